"""Loaded kernels and the launch itself: all that does not depend on pointers is done before.

A kernel takes one struct. It is packed once; a call copies its pointers and run-time values into
the front of it. Launches go through `cuda.bindings`: `cuda.core.launch` takes no structs by value.
"""

from __future__ import annotations

import ctypes
import os
import struct
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

from cuda.bindings import driver
from cuda.core import Device, ObjectCode

from baracuda.backends.cuda import compiler
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import DeviceFacts, Step
from baracuda.forks import Guard

OK = driver.CUresult.CUDA_SUCCESS
_NO_CONTEXT = (
    driver.CUresult.CUDA_ERROR_INVALID_CONTEXT,
    driver.CUresult.CUDA_ERROR_CONTEXT_IS_DESTROYED,
)
launch_kernel = driver.cuLaunchKernel
clear = driver.cuMemsetD8Async
# Dynamic shared memory that any kernel may take: of 48 KiB, what is static is left out, arguments
# that are copied there too.
_FIXED_SHARED = 46 * 1024
GEOMETRY = 7
"""Numbers that say where a kernel runs: grid, block, shared memory."""


class CudaError(RuntimeError):
    """A call of the CUDA driver failed."""


def checked(result: tuple[Any, ...]) -> Any:
    """The values of a driver call.

    Raises
    ------
    CudaError
        Where it failed.
    """
    status, *values = result
    if status != OK:
        _, name = driver.cuGetErrorName(status)
        _, text = driver.cuGetErrorString(status)
        raise CudaError(f"{name.decode()}: {text.decode()}")
    return values[0] if len(values) == 1 else tuple(values)


@lru_cache(maxsize=64)
def device_facts(ordinal: int) -> DeviceFacts:
    """The facts of a device."""
    device = Device(ordinal)
    return DeviceFacts(
        ordinal,
        f"sm_{device.arch}",
        device.properties.multiprocessor_count,
        device.properties.max_shared_memory_per_block_optin,
    )


@contextmanager
def while_capturing() -> Iterator[None]:
    """Allow loading and allocating on this thread while a stream is captured into a graph."""
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(driver.cuThreadExchangeStreamCaptureMode(relaxed))
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)


class Memory:
    """Device memory of no array library: what is kept from call to call is in no pool of a graph.

    Attributes
    ----------
    address : int
    """

    __slots__ = ("__weakref__", "address")

    def __init__(self, nbytes: int) -> None:
        with while_capturing():
            self.address = int(checked(driver.cuMemAlloc(max(nbytes, 1))))
        context = checked(driver.cuCtxGetCurrent())
        # At the end of the process the driver frees all.
        weakref.finalize(self, _freed, self.address, context, os.getpid()).atexit = False


def _freed(address: int, context: Any, process: int) -> None:
    """Free device memory once all work on the device is done; not in a forked child."""
    if os.getpid() == process and not driver.cuCtxPushCurrent(context)[0]:
        with while_capturing():
            driver.cuMemFree(address)
        driver.cuCtxPopCurrent()


@contextmanager
def as_before() -> Iterator[None]:
    """A block that may change the current device: afterwards the caller's context is current."""
    before = checked(driver.cuCtxGetCurrent())
    try:
        yield
    finally:
        driver.cuCtxSetCurrent(before)


@contextmanager
def on_primary(ordinal: int) -> Iterator[None]:
    """A block in which the context that all libraries share is current on this device."""
    with as_before():
        Device(ordinal).set_current()
        yield


def in_context(ordinal: int, call: Callable[..., Any], *given: Any) -> tuple[Any, ...]:
    """What a call of the driver gives, in a thread that may not have used its device yet.

    Such a thread has no context. It gets the one of device `ordinal`, its current device, as after
    any call of the CUDA runtime.
    """
    found = call(*given)
    if found[0] in _NO_CONTEXT:
        Device(ordinal).set_current()
        found = call(*given)
    return found  # type: ignore[no-any-return]


_kernels: dict[tuple[Entry, str], tuple[Any, Any]] = {}
_granted: dict[tuple[Entry, int], int] = {}
_kernels_guard = Guard()


def forget_kernels() -> None:
    """Load every kernel again when it is next needed, as a new process would."""
    with _kernels_guard.lock:
        _kernels.clear()
        _granted.clear()


def loaded(entry: Entry, facts: DeviceFacts, shared: int) -> Any:
    """The function of `entry`, ready to run with `shared` bytes of dynamic shared memory."""
    key = (entry, facts.arch)
    found = _kernels.get(key)
    if found is None:
        with _kernels_guard.lock, while_capturing():
            found = _kernels.get(key)
            if found is None:
                code, kernel = _load(entry, facts.arch)
                found = _kernels[key] = code, driver.CUfunction(int(kernel.handle))
    if shared > _FIXED_SHARED:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        device, kernel = driver.CUdevice(facts.ordinal), driver.CUkernel(int(found[1]))
        with _kernels_guard.lock:
            # Never less than before: launches that were made for more would fail.
            if shared > _granted.get((entry, facts.ordinal), 0):
                checked(driver.cuKernelSetAttribute(attribute, shared, kernel, device))
                _granted[entry, facts.ordinal] = shared
    return found[1]


def _load(entry: Entry, arch: str) -> tuple[Any, Any]:
    for attempt in (0, 1):
        code = ObjectCode.from_cubin(compiler.cubin(entry, arch), name=entry.symbol)
        try:
            return code, code.get_kernel(entry.symbol)
        except Exception:
            # A cubin that was damaged on disk: compile it again, once.
            if attempt:
                raise
            compiler.forget(entry, arch)
    raise AssertionError("unreachable")


class Launch:
    """One kernel with everything but its pointers and run-time values.

    Safe to call from several threads at once: each call takes an argument struct of its own.

    Parameters
    ----------
    step : Step
    facts : DeviceFacts
    front : str
        struct format of what a call fills in, from the beginning of it.

    Attributes
    ----------
    function, fixed, pack
        The parts of a call.
    free : list
        Argument structs that no call uses.
    """

    __slots__ = ("_arguments", "_ordinal", "fixed", "free", "function", "pack")

    def __init__(self, step: Step, facts: DeviceFacts, front: str) -> None:
        self.function = loaded(step.entry, facts, step.shared)
        self.fixed = (*step.grid, 1, step.threads, 1, 1, step.shared)
        self._arguments = step.arguments
        self.pack = _packer(front)
        self.free: list[tuple[Any, int, Any]] = []
        self._ordinal = facts.ordinal

    @property
    def parts(self) -> tuple[Any, ...]:
        """What code that is written out makes a call of."""
        return self.pack, self.room, self.function, self.fixed

    def room(self) -> tuple[Any, int, Any]:
        """An argument struct, and the address of the array that points at it."""
        room = _bytes(len(self._arguments)).from_buffer_copy(self._arguments)
        pointer = _POINTER(ctypes.addressof(room))
        return room, ctypes.addressof(pointer), pointer

    def __call__(self, stream: Any, words: Sequence[Any]) -> None:
        """Launch on `stream`, a CUstream; `words` are the pointers and run-time values."""
        free = self.free
        room = free.pop() if free else self.room()
        self.pack(room[0], 0, *words)
        given = self.function, *self.fixed, stream, room[1], 0
        checked(in_context(self._ordinal, launch_kernel, *given))
        free.append(room)


_POINTER = ctypes.c_void_p * 1


@cache
def _bytes(count: int) -> Any:
    """The type of so many bytes; ctypes itself makes it again when nothing of it is left."""
    return ctypes.c_char * count


@lru_cache(maxsize=64)
def _packer(front: str) -> Callable[..., None]:
    """Writes what a call fills in."""
    return struct.Struct(front).pack_into


class Clear:
    """Zeros into an array: `words` are its address, `parts` how many bytes."""

    __slots__ = ("_ordinal", "parts")

    def __init__(self, nbytes: int, ordinal: int) -> None:
        self.parts, self._ordinal = (nbytes,), ordinal

    def __call__(self, stream: Any, words: Sequence[Any]) -> None:
        checked(in_context(self._ordinal, clear, words[0], 0, *self.parts, stream))


STREAMS: dict[int, Any] = {}


def stream_of(handle: int) -> Any:
    """The driver's object for a raw stream handle; it holds the handle and nothing else."""
    found = STREAMS.get(handle)
    if found is None:
        found = STREAMS[handle] = driver.CUstream(handle)
    return found
