"""A Python function as a custom call of XLA, in the C layout of its foreign function interface.

XLA calls a handler with the address of a frame: where operands, results and attributes are, and
what to ask for the stream. A frame is read in place, a field at a time, since an object for each
struct would cost more than the launch that follows. Nothing is compiled, and nothing has to be
installed beside JAX.
"""

from __future__ import annotations

import _thread
import ctypes
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

LaunchAll: TypeAlias = Callable[[list[int], Sequence[float], int], Any]
"""``(addresses of operands and results, scalars, stream)``: what a handler does."""

# Offsets in bytes on a 64-bit machine, those of every version 0.x of the interface. Of a frame: its
# own size, extension, api, context; of operands and results the number, types and addresses; of
# attributes the same, their names left out.
FRAME_FORMAT = "<QQQQ24xqQQ16xqQQ16xqQ8xQ"
FRAME_SIZE = struct.calcsize(FRAME_FORMAT)
# Of a buffer: dtype, address. Of an array: dtype, number of elements, address.
BUFFER, BUFFER_FORMAT = 16, "<I4xQ"
ARRAY_FORMAT = "<I4xQQ"
EXTENSION_TYPE, EXTENSION_NEXT, EXTENSION_METADATA = 8, 16, 24
METADATA_VERSION, METADATA_TRAITS = 24, 32
API_VERSION, API_ERROR_CREATE, API_STREAM_GET = 32, 48, 80
# What a handler says of itself: the oldest version with all that is used here, and that its
# launches may be captured into a CUDA graph.
IS_METADATA, MAJOR, MINOR, COMMAND_BUFFER_COMPATIBLE = 1, 0, 1, 1
CANCELLED, INVALID_ARGUMENT, INTERNAL_ERROR = 1, 3, 13
IS_BUFFER, IS_ARRAY = 1, 1
DTYPES = {
    "bool": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "uint8": 6, "uint16": 7,
    "uint32": 8, "uint64": 9, "float16": 10, "float32": 11, "float64": 12, "complex64": 15,
    "bfloat16": 16, "complex128": 18,
}  # fmt: skip
"""The interface's number for each dtype."""

# All memory, to read a field at an address without making an object for it.
_memory = (ctypes.c_char * sys.maxsize).from_address(0)
_word = struct.Struct("<Q").unpack_from
_frame = struct.Struct(FRAME_FORMAT).unpack_from
_buffer = struct.Struct(BUFFER_FORMAT).unpack_from
_array = struct.Struct(ARRAY_FORMAT).unpack_from
_version = struct.Struct("<ii")
_traits = struct.Struct("<I")
_kind = struct.Struct("<I").unpack_from

_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
# Called without giving up the interpreter's lock: they do not wait.
_CALL = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_functions: dict[int, Any] = {}
# Seconds after which a handler has returned to XLA, and a signal is not raised within it.
_SOON = 0.005


class _StreamGet(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


class _ErrorCreate(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


class Handler:
    """A custom call; XLA may call it for as long as the process lives.

    Parameters
    ----------
    operands, results : sequence of str
        Their dtypes.
    scalars : str
        What the only attribute holds, an array of 64 bits each, as `struct` has it; "" for none.
    launch : callable
        What to do; an exception becomes the error of the program.
    replayed : bool, optional
        Whether the launches of one call may stand for those of others, in a CUDA graph.

    Attributes
    ----------
    address : int
        The C function.
    """

    def __init__(
        self,
        operands: Sequence[str],
        results: Sequence[str],
        scalars: str,
        launch: LaunchAll,
        replayed: bool = True,
    ) -> None:
        self._operands, self._results = _Buffers("operands", operands), _Buffers("results", results)
        self._count = len(scalars)
        self._scalars = struct.Struct(f"<{scalars}").unpack_from
        self._launch, self._traits = launch, COMMAND_BUFFER_COMPATIBLE * replayed
        self._free: list[_StreamGet] = []
        self._function = _HANDLER(self._call)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def _call(self, frame: int) -> int:
        size, extension, api, ctx, *fields = _frame(_memory, frame)
        try:
            if extension and _described(extension, api, self._traits):
                return 0
            if size < FRAME_SIZE:
                raise Malformed(f"expected a frame of {FRAME_SIZE} bytes or more, got {size}")
            words = self._operands(*fields[:3]) + self._results(*fields[3:6])
            self._launch(words, self._attributes(*fields[6:]), self._stream(api, ctx))
        except KeyboardInterrupt as error:
            # An exception cannot pass through XLA. Once XLA has its error, it is raised again.
            timer = threading.Timer(_SOON, _thread.interrupt_main)
            timer.daemon = True
            timer.start()
            return _failed(api, error, CANCELLED)
        except Malformed as error:
            return _failed(api, error, INVALID_ARGUMENT)
        except BaseException as error:
            return _failed(api, error, INTERNAL_ERROR)
        return 0

    def _attributes(self, count: int, types: int, values: int) -> Sequence[float]:
        """The run-time values."""
        if count != (self._count > 0):
            raise Malformed(f"expected {int(self._count > 0)} attributes, got {count}")
        if not count:
            return ()
        (kind,) = _kind(_memory, types)
        if kind != IS_ARRAY:
            raise Malformed(f"expected an attribute of type {IS_ARRAY} (array), got {kind}")
        dtype, size, data = _array(_memory, _word(_memory, values)[0])
        if (dtype, size) != (DTYPES["int64"], self._count):
            raise Malformed(
                f"expected {self._count} values of dtype {DTYPES['int64']} (int64),"
                f" got {size} of dtype {dtype}"
            )
        return self._scalars(_memory, data)

    def _stream(self, api: int, ctx: int) -> int:
        room = self._free.pop() if self._free else _StreamGet(ctypes.sizeof(_StreamGet))
        room.ctx = ctx
        if _function(api + API_STREAM_GET)(ctypes.addressof(room)):
            raise RuntimeError("XLA has no stream for this call")
        self._free.append(room)
        return room.stream or 0


class Malformed(Exception):
    """A frame is not that of the call that was compiled."""


class _Buffers:
    """The operands or results of a frame, of which number and dtypes are known."""

    def __init__(self, what: str, dtypes: Sequence[str]) -> None:
        self._what, self._dtypes = what, [DTYPES[name] for name in dtypes]
        self._kinds = (IS_BUFFER,) * len(dtypes)
        self._types = struct.Struct(f"<{len(dtypes)}I").unpack_from
        self._words = struct.Struct(f"<{len(dtypes)}Q").unpack_from

    def __call__(self, count: int, types: int, values: int) -> list[int]:
        """The addresses of their elements."""
        if count != len(self._kinds):
            raise Malformed(f"expected {len(self._kinds)} {self._what}, got {count}")
        if not count:
            return []
        kinds = self._types(_memory, types)
        if kinds != self._kinds:
            raise Malformed(f"expected {self._what} of type {IS_BUFFER} (buffer), got {kinds}")
        dtypes, words = [], []
        for at in self._words(_memory, values):
            dtype, data = _buffer(_memory, at + BUFFER)
            dtypes.append(dtype)
            words.append(data)
        if dtypes != self._dtypes:
            raise Malformed(f"expected {self._what} of dtypes {self._dtypes}, got {dtypes}")
        return words


def _function(at: int) -> Any:
    """The function of the interface whose address stands at `at`."""
    found = _functions.get(at)
    if found is None:
        found = _functions[at] = _CALL(_word(_memory, at)[0])
    return found


def _described(extension: int, api: int, traits: int) -> bool:
    """Answer what XLA asks of a handler before it is ever used; False where it does not ask.

    Other extensions say more of a call than has to be known: they are passed over.
    """
    while _kind(_memory, extension + EXTENSION_TYPE)[0] != IS_METADATA:
        (extension,) = _word(_memory, extension + EXTENSION_NEXT)
        if not extension:
            return False
    major, minor = _version.unpack_from(_memory, api + API_VERSION)
    if major != MAJOR:
        raise RuntimeError(f"needs version {MAJOR}.x of XLA's FFI, found {major}.{minor}")
    (metadata,) = _word(_memory, extension + EXTENSION_METADATA)
    _version.pack_into(_memory, metadata + METADATA_VERSION, MAJOR, min(MINOR, minor))
    _traits.pack_into(_memory, metadata + METADATA_TRAITS, traits)
    return True


def _failed(api: int, error: BaseException, code: int) -> int:
    """An error object of XLA, which it takes over."""
    size = _ErrorCreate.code.offset + _ErrorCreate.code.size
    made = _ErrorCreate(size, None, f"{type(error).__name__}: {error}".encode(), code)
    return int(_function(api + API_ERROR_CREATE)(ctypes.addressof(made)) or 0)
