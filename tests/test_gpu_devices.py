"""On two GPUs: the caller's device, context and streams are as they were after anything."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from device import MARKS

import baracuda as bc

pytestmark = [
    *MARKS,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs"),
]


def _torch(x: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(x).to("cuda:1")


def _cupy(x: np.ndarray[Any, Any]) -> Any:
    import cupy

    with cupy.cuda.Device(1):
        return cupy.asarray(x)


def _jax(x: np.ndarray[Any, Any]) -> Any:
    import jax

    return jax.device_put(x, jax.devices("cuda")[1])


MAKE = {"torch": _torch, "cupy": _cupy, "jax": _jax}
LIBRARIES = [name for name in MAKE if find_spec(name)]
Make = Callable[[np.ndarray[Any, Any]], Any]


def state() -> dict[str, Any]:
    from cuda.bindings import driver

    out = {
        "context": int(driver.cuCtxGetCurrent()[1]),
        "device": torch.cuda.current_device(),
        "streams": [torch.cuda.current_stream(i).cuda_stream for i in range(2)],
    }
    if find_spec("cupy"):
        import cupy

        out["cupy"] = cupy.cuda.Device().id, cupy.cuda.get_current_stream().ptr
    return out


def floats(make: Make, *shape: int) -> Any:
    return make(np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape))


def _out_of_range(make: Make) -> None:
    index = make(np.full((4, 2), 99, np.int32))
    out = bc.gather(floats(make, 4, 16), index, axis=1)
    # JAX launches later, in a thread of its own.
    getattr(out, "block_until_ready", int)()
    with pytest.raises(IndexError):
        bc.check_errors()


def _refused(make: Make) -> None:
    with pytest.raises(ValueError, match="swiglu"):
        bc.swiglu(floats(make, 4, 15))


CALLS: dict[str, Callable[[Make], Any]] = {
    "call": lambda make: bc.swiglu(floats(make, 4, 16)),
    "plan": lambda make: bc.swiglu.plan(floats(make, 4, 16)),
    "workspace": lambda make: bc.layer_norm_backward(
        floats(make, 4, 16), floats(make, 4, 16), floats(make, 16)
    ),
    "autotune": lambda make: bc.softmax(floats(make, 64, 512), axis=-1, autotune=True),
    "body": lambda make: bc.swiglu(floats(make, 4, 16), backend="array_api"),
    "composite": lambda make: bc.linear_cross_entropy(
        floats(make, 4, 16), floats(make, 8, 16), make(np.zeros(4, np.int32))
    ),
    "out of range": _out_of_range,
    "refused": _refused,
}


@pytest.fixture
def at_first(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing is planned, loaded or listened to yet."""
    from baracuda.backends.cuda import index_errors, launch

    bc.plan_cache.clear()
    launch.forget_kernels()
    if request.node.callspec.params.get("library") != "jax":
        # A program of JAX has the address of a listener, and lives as long as the process.
        monkeypatch.setattr(index_errors, "_listeners", {})
    yield
    bc.plan_cache.clear()
    # A new thread begins on the first device, and other tests compare what threads do.
    gc.collect()
    torch.cuda.set_device(0)


@pytest.mark.usefixtures("at_first")
@pytest.mark.parametrize("what", list(CALLS))
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("current", [0, 1])
def test_all_is_as_it_was(current: int, library: str, what: str) -> None:
    make = MAKE[library]
    with torch.cuda.device(current):
        # There is a context before the call.
        torch.zeros(1, device="cuda")
        if library == "jax":
            # Whatever JAX computes, it leaves the device of its arrays current.
            (floats(make, 1) + 1).block_until_ready()
        before = state()
        for _ in range(3):
            CALLS[what](make)
            assert state() == before


def stays(call: Callable[[], Any]) -> list[bool]:
    """Whether a call in a thread of its own keeps the context there: one of device 0, and none."""
    from cuda.bindings import driver

    found = []

    def in_thread() -> None:
        status, device = driver.cuDeviceGet(0)
        status, own = driver.cuDevicePrimaryCtxRetain(device)
        assert status == driver.CUresult.CUDA_SUCCESS
        try:
            for context in (own, driver.CUcontext(0)):
                driver.cuCtxSetCurrent(context)
                call()
                found.append(int(driver.cuCtxGetCurrent()[1]) == int(context))
        finally:
            driver.cuCtxSetCurrent(driver.CUcontext(0))
            driver.cuDevicePrimaryCtxRelease(device)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    # A thread that had no context may have that of the device that is current without one.
    assert len(found) == 2
    return found


@pytest.mark.usefixtures("at_first")
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_context_of_the_callers_own_stays(library: str) -> None:
    with torch.cuda.device(0):
        x = floats(MAKE[library], 4, 16)
    # Where XLA itself leaves a context behind, it does so for whatever JAX computes.
    assert stays(lambda: bc.swiglu(x))[0] or (library == "jax" and not stays(lambda: x + 1)[0])
