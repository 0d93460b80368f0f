"""Whatever is called, the caller's device and context are current again afterwards.

A driver that is not there keeps the current context of the only thread, and what is done in it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import stub_device
import torch

import baracuda as bc
from baracuda.backends import cuda

pytest.importorskip("cuda.core", reason="needs pip install 'baracuda[cuda]'")
pytest.importorskip("cuda.bindings", reason="needs pip install 'baracuda[cuda]'")

# A context is its device and whose it is.
SHARED, OWN = "shared", "of the caller"
CALLERS = [(0, SHARED), (1, SHARED), (0, OWN), (1, OWN), None]


class Driver:
    """The driver's functions that are asked for, each with the status that it is told to have."""

    def __init__(self, real: Any) -> None:
        self._real, self.current, self.fails = real, (0, SHARED), ""
        self.done: list[tuple[str, Any]] = []
        self._held: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            return getattr(self._real, name)

        def call(*given: Any) -> tuple[Any, ...]:
            self.done.append((name, self.current))
            result = self._real.CUresult
            if name == self.fails:
                return (result.CUDA_ERROR_OUT_OF_MEMORY, None)
            return (result.CUDA_SUCCESS, *self._answer(name, given))

        return call

    def _answer(self, name: str, given: tuple[Any, ...]) -> tuple[Any, ...]:
        if name == "cuCtxGetCurrent":
            return (self.current,)
        if name == "cuCtxSetCurrent":
            self.current = given[0]
        if name == "cuMemHostAlloc":
            self._held.append(ctypes.create_string_buffer(given[0] + 64))
            return (ctypes.addressof(self._held[-1]),)
        if name == "cuGetErrorName" or name == "cuGetErrorString":
            return (b"it fails",)
        if name == "cuEventElapsedTime":
            return (1.0,)
        return (
            (len(self.done),) if name in ("cuEventCreate", "cuThreadExchangeStreamCapture") else ()
        )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    from cuda.bindings import driver as real

    from baracuda.backends.cuda import index_errors, launch, tune

    fake = Driver(real)

    class Device:
        def __init__(self, ordinal: int) -> None:
            self._ordinal = ordinal
            self.properties = SimpleNamespace(l2_cache_size=64)

        def set_current(self) -> None:
            fake.current = (self._ordinal, SHARED)

    for module in (launch, index_errors, tune):
        monkeypatch.setattr(module, "driver", fake)
        if hasattr(module, "Device"):
            monkeypatch.setattr(module, "Device", Device)

    @contextmanager
    def capturing() -> Iterator[None]:
        yield

    monkeypatch.setattr(launch, "while_capturing", capturing)
    monkeypatch.setattr(index_errors, "while_capturing", capturing)
    monkeypatch.setattr(index_errors, "_listeners", {})
    bc.plan_cache.clear()
    yield fake
    bc.plan_cache.clear()


@pytest.fixture(params=CALLERS, ids=str)
def caller(request: Any, driver: Driver) -> Iterator[Any]:
    """The context that is current before, and has to be afterwards."""
    driver.current = request.param
    yield request.param
    assert driver.current == request.param


def test_the_record_of_another_device(driver: Driver, caller: Any) -> None:
    from baracuda.backends.cuda import index_errors

    made = index_errors.listener(1)
    assert ("cuMemHostAlloc", (1, SHARED)) in driver.done
    # Waits for that device, whichever is current.
    assert driver.current == caller
    made.wait()
    assert ("cuCtxSynchronize", (1, SHARED)) in driver.done
    index_errors.Record.from_address(made.address).state = 2
    with pytest.raises(IndexError):
        index_errors.check()


@pytest.mark.parametrize("fails", ["cuMemHostAlloc", "cuCtxSynchronize"])
def test_errors_leave_what_was_current(driver: Driver, caller: Any, fails: str) -> None:
    from baracuda.backends.cuda import index_errors, launch

    driver.fails = fails
    with pytest.raises(launch.CudaError):
        index_errors.listener(1).wait()


def test_measuring(driver: Driver, caller: Any) -> None:
    from baracuda.backends.cuda import tune

    arrays = SimpleNamespace(empty=lambda *_: 0, pointer=lambda x: 64)
    with tune.stopwatch(1, arrays, 0) as timer:
        assert timer(lambda: None) > 0
    assert ("cuEventCreate", (1, SHARED)) in driver.done
    with pytest.raises(ZeroDivisionError), tune.stopwatch(1, arrays, 0) as timer:
        timer(lambda: 1 / 0)


def test_blocks_of_jax(driver: Driver, caller: Any) -> None:
    seam = pytest.importorskip("baracuda.backends.cuda.jax")
    with seam.on_device(1):
        assert driver.current == (1, SHARED)
    with pytest.raises(ZeroDivisionError), seam.on_device(1):
        raise ZeroDivisionError


class Seam:
    """What libraries do: they set a device, and the one before again, never a context."""

    def __init__(self, driver: Driver, kernels: list[Any]) -> None:
        self._driver, self.kernels = driver, kernels
        self.zeros: list[Any] = []

    def current_device(self) -> int:
        return self._driver.current[0] if self._driver.current else 0

    @contextmanager
    def on_device(self, ordinal: int) -> Iterator[None]:
        before, self._driver.current = self.current_device(), (ordinal, SHARED)
        try:
            yield
        finally:
            self._driver.current = (before, SHARED)

    def launch(self, function: Any, *rest: Any) -> tuple[Any]:
        """As the driver: no kernel runs in a thread that has no context."""
        if self._driver.current is None:
            return (self._driver.CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        self.kernels.append(self._driver.current)
        return (0,)

    def clear(self, *given: Any) -> tuple[Any]:
        """Zeros into memory, likewise: noted with the number of kernels before."""
        if self._driver.current is None:
            return (self._driver.CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        self.zeros.append((len(self.kernels), self._driver.current))
        return (0,)


@pytest.fixture
def seam(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Seam:
    """Tensors of the host as tensors on device 1, whose launches are noted."""
    from baracuda.backends.cuda import fast_call, index_errors, launch, launch_plan, runner
    from baracuda.libraries.torch import Torch

    listener = index_errors.listener
    stub_device.install(monkeypatch)
    monkeypatch.setattr(runner.index_errors, "listener", listener)
    made, describe = Seam(driver, []), Torch.describe
    monkeypatch.setattr(Torch, "describe", lambda s, x: describe(s, x)._replace(device="cuda:1"))
    arrays = cuda._arrays("torch")
    for name, value in (
        ("current_device", made.current_device),
        ("on_device", made.on_device),
        ("ordinal_of", lambda device: int(device[-1])),
    ):
        monkeypatch.setattr(arrays, name, staticmethod(value), raising=False)
    facts = launch_plan.DeviceFacts(1, "sm_90", 132, 232448)
    monkeypatch.setattr(launch, "device_facts", lambda ordinal: facts)
    for module in (launch, fast_call):
        monkeypatch.setattr(module, "launch_kernel", made.launch)
        monkeypatch.setattr(module, "clear", made.clear)
    return made


CALLS: dict[str, Callable[..., Any]] = {
    "call": lambda x: bc.swiglu(x),
    "plan": lambda x: bc.swiglu.plan(x),
    "of a plan": lambda x: bc.swiglu.plan(x)(x),
    "into an output": lambda x: bc.swiglu.plan(x)(x, out=torch.empty(4, 8)),
    "that reports": lambda x: bc.gather(x, torch.zeros(4, 2, dtype=torch.int64), axis=1),
    "with a workspace": lambda x: bc.rms_norm_backward(x, x, torch.ones(16)),
}


@pytest.mark.parametrize("what", list(CALLS))
def test_calls_on_another_device(what: str, seam: Seam, caller: Any) -> None:
    x = torch.ones(4, 16)
    for _ in range(3):
        CALLS[what](x)
        assert seam._driver.current == caller
    # It ran where the arrays are; the context of a caller who is there already stays in place.
    assert {device for device, _ in seam.kernels} <= {1}
    assert seam.kernels or what == "plan"


@pytest.mark.parametrize("first", ["kernel", "zeros"])
def test_a_thread_that_has_no_context(
    first: str, seam: Seam, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A thread of `torch.autograd` has none before it uses the device. To allocate from memory that
    # is held does not use it.
    from baracuda.backends.cuda import launch, launch_plan
    from baracuda.libraries.torch import Torch

    facts = launch_plan.DeviceFacts(0, "sm_90", 132, 232448)
    monkeypatch.setattr(launch, "device_facts", lambda ordinal: facts)
    describe = Torch.describe
    monkeypatch.setattr(Torch, "describe", lambda s, x: describe(s, x)._replace(device="cuda:0"))
    x, index = torch.ones(4, 16), torch.zeros(4, 16, dtype=torch.int64)
    call = (lambda: bc.swiglu(x)) if first == "kernel" else (
        lambda: bc.scatter(x, index, x, axis=0))  # fmt: skip
    for _ in range(2):
        driver.current = None
        seam.kernels.clear()
        seam.zeros.clear()
        call()
        assert set(seam.kernels) == {(0, SHARED)}
        assert seam.zeros == [(0, (0, SHARED))] * (first == "zeros")


def test_a_launch_that_fails(seam: Seam, caller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from baracuda.backends.cuda import fast_call, launch

    wrong = seam._driver.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    for module in (launch, fast_call):
        monkeypatch.setattr(module, "launch_kernel", lambda *_: (wrong,))
    plan = bc.swiglu.plan(torch.ones(4, 16))
    for _ in range(2):
        with pytest.raises(launch.CudaError):
            plan(torch.ones(4, 16))
