"""CuPy arrays on an NVIDIA GPU: streams, graphs, other libraries beside them, SKUs, training."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import array_api_compat
import numpy as np
import pytest
import torch
from device import EVERY, MARKS, close, many, one_or_many, run_at_once

import baracuda as bc
from baracuda.examples.charlm import Config
from baracuda.libraries import library
from baracuda.testing.cases import Subject
from baracuda.testing.timing import uncollected
from baracuda.tools import train

cupy = pytest.importorskip("cupy", reason="needs pip install 'baracuda[cupy]'")
pytestmark = MARKS

OURS = [s for s in EVERY if s.library == "cupy" and s.dtype == "float32"]
KERNELS = [s for s in OURS if s.backend == "cuda"]
SHORT = [s for s in EVERY if s.library == "cupy" and s.dtype in ("float32", "bfloat16")]
each_kernel = pytest.mark.parametrize("subject", KERNELS, ids=str)
BACKENDS = ("cuda", "cupy")
# What capture forbids is an error on this thread. Threads of other libraries free when they like.
THIS_THREAD = cupy.cuda.runtime.streamCaptureModeThreadLocal


def randn(*shape: int, dtype: Any = np.float32) -> Any:
    return cupy.random.standard_normal(shape, dtype=np.float32).astype(dtype)


def randint(high: int, *shape: int, dtype: Any = np.int64) -> Any:
    return cupy.random.randint(0, high, shape).astype(dtype)


# Streams.


@cache
def spinner() -> Any:
    """A kernel that does nothing for so many cycles."""
    source = """extern "C" __global__ void spin(long long cycles) {
        for (long long start = clock64(); clock64() - start < cycles;);
    }"""
    return cupy.RawKernel(source, "spin")


def busy(seconds: float = 0.4) -> None:
    """Keep the current stream from going on for that long, at 2 GHz."""
    spinner()((1,), (1,), (np.int64(seconds * 2e9),))


@pytest.fixture(params=["default", "non-blocking", "per thread", "of torch"])
def stream(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Each kind of stream as the current one."""
    theirs = torch.cuda.Stream()

    class OfTorch:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, theirs.cuda_stream

    kinds: dict[str, Callable[[], Any]] = {
        "default": lambda: cupy.cuda.Stream.null,
        "non-blocking": lambda: cupy.cuda.Stream(non_blocking=True),
        "per thread": lambda: cupy.cuda.Stream.ptds,
        "of torch": lambda: cupy.cuda.Stream.from_external(OfTorch()),
    }
    cupy.cuda.Device().synchronize()
    with kinds[request.param]() as current:
        yield current
        current.synchronize()


@pytest.mark.parametrize("backend", BACKENDS)
def test_calls_are_part_of_the_current_stream_and_wait_for_nothing(
    backend: str, stream: Any
) -> None:
    x, dy, index = randn(64, 256), randn(64, 128), randint(256, 64, 128)
    plan = bc.swiglu_backward.plan(dy, x, backend=backend)
    out = cupy.empty_like(x)

    def work() -> list[Any]:
        return [
            bc.swiglu_backward(dy, x, backend=backend),
            plan(dy, x),
            plan(dy, x, out=out).copy(),
            bc.gather(x, index, axis=1, backend=backend, mode="drop"),
            bc.gather_backward(dy, index, axis=1, src_shape=(64, 256), backend=backend),
        ]

    want = [y.get() for y in work()]
    there, there_too = x.copy(), dy.copy()
    x.fill(np.nan)
    dy.fill(np.nan)
    busy()
    # Whoever does not wait for these reads what is not a number.
    x[...], dy[...] = there, there_too
    got = work()
    assert not stream.done
    for y, right in zip(got, want, strict=True):
        np.testing.assert_allclose(y.get(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("subject", OURS, ids=str)
def test_no_call_waits_for_the_device(subject: Subject) -> None:
    calls = [(call, call.given()) for call in subject.calls()]
    plans = [call.plan(arrays) for call, arrays in calls]
    for (call, arrays), plan in zip(calls, plans, strict=True):
        for _ in (0, 1):
            call.run(arrays)
            plan(*arrays, **call.scalars)
    # CuPy copies numbers from pinned memory, and to get more of it may wait for the device.
    pinned = [cupy.cuda.alloc_pinned_memory(1) for _ in range(256)]
    pinned.clear()
    stream = cupy.cuda.get_current_stream()
    # A host that runs other tests beside this one may take longer than the shorter wait.
    for seconds in (0.4, 4.0):
        stream.synchronize()
        busy(seconds)
        results = []
        for (call, arrays), plan in zip(calls, plans, strict=True):
            results += [call.run(arrays), many(plan(*arrays, **call.scalars))]
        if not stream.done:
            break
    else:
        raise AssertionError("a call waited for the device")
    for (call, _), got in zip([c for c in calls for _ in (0, 1)], results, strict=True):
        close(call, got)


def test_eight_threads_with_streams_of_their_own() -> None:
    def task(seed: int) -> Callable[[], None]:
        def repeat() -> None:
            with cupy.cuda.Stream(non_blocking=True) as stream:
                x, dy = cupy.full((64, 256), 0.1 * seed), cupy.full((64, 128), 1.0)
                want = bc.swiglu_backward(np.ones((64, 128)), np.full((64, 256), 0.1 * seed))
                for _ in range(50):
                    got = bc.swiglu_backward(dy, x, backend="cuda")
                    stream.synchronize()
                    np.testing.assert_allclose(got.get(), want, rtol=1e-12)

        return repeat

    run_at_once([task(seed) for seed in range(8)])


# Graphs.


@each_kernel
def test_a_graph_replays_with_new_values(subject: Subject) -> None:
    for call in subject.calls():
        arrays = call.given()
        plan = call.plan(arrays)
        outs = [cupy.empty_like(x) for x in call.run(arrays)]
        plan(*arrays, out=one_or_many(outs), **call.scalars)
        with cupy.cuda.Stream(non_blocking=True) as stream:
            cupy.cuda.Device().synchronize()
            with uncollected():
                stream.begin_capture(THIS_THREAD)
                plan(*arrays, out=one_or_many(outs), **call.scalars)
                graph = stream.end_capture()
            for factor in (1.0, -2.0):
                for name, x in zip(subject.spec.arrays, arrays, strict=False):
                    if x is not None and name not in subject.spec.discrete:
                        # A saved norm stays that of its input.
                        x *= np.float32(abs(factor) if name == "y" else factor)
                for out in outs:
                    out.fill(np.nan if out.dtype.kind == "f" else -1)
                graph.launch(stream)
                again = many(plan(*arrays, **call.scalars))
                for out, y in zip(outs, again, strict=True):
                    np.testing.assert_allclose(out.get(), y.get(), rtol=1e-5, atol=1e-5)


def test_a_search_for_bad_indices_is_left_out_of_a_graph() -> None:
    src, index = randn(4, 8), randint(8, 4, 8)
    plan = bc.gather.plan(src, index, axis=1, backend="cupy")
    out = plan(src, index)
    bc.check_errors()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        cupy.cuda.Device().synchronize()
        stream.begin_capture()
        plan(src, index, out=out)
        graph = stream.end_capture()
        index[0, 0] = 8
        graph.launch(stream)
        stream.synchronize()
    bc.check_errors()
    assert out[0, 0] == 0


# Other libraries.


def test_arrays_handed_over_arrive_in_order() -> None:
    x, dy = torch.randn(64, 256, device="cuda"), torch.randn(64, 128, device="cuda")
    y, dx = bc.swiglu(x.double()), bc.swiglu_backward(dy.double(), 2 * x.double())
    side = torch.cuda.Stream()

    def there_and_back() -> list[torch.Tensor]:
        with torch.cuda.stream(side):
            torch.cuda._sleep(800_000_000)
            late = x * 1
        with cupy.cuda.Stream(non_blocking=True):
            with torch.cuda.stream(side):
                given = cupy.from_dlpack(late)
            ours, double = bc.swiglu(given), given + given
            with torch.cuda.stream(torch.cuda.Stream()):
                theirs, back = torch.from_dlpack(ours), torch.from_dlpack(double)
                return [theirs, bc.swiglu_backward(dy, back)]

    there_and_back()
    torch.cuda.synchronize()
    theirs, grad = there_and_back()
    assert not side.query()
    torch.cuda.synchronize()
    torch.testing.assert_close(theirs.double(), y, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grad.double(), dx, rtol=1e-5, atol=1e-5)


def test_tensors_through_cupy_stay_on_their_stream() -> None:
    x = torch.randn(64, 256, device="cuda")
    want = bc.swiglu(x)
    plan = bc.swiglu.plan(x, backend="cupy")
    assert plan.sku.variant == "from_dlpack"
    plan(x)
    side, out = torch.cuda.Stream(), torch.empty_like(want)
    copy = x.clone()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        x.fill_(float("nan"))
        torch.cuda._sleep(400_000_000)
        x.copy_(copy)
        y = plan(x)
        assert plan(x, out=out) is out
        assert not side.query()
        assert type(y) is torch.Tensor
        torch.testing.assert_close(y, want)
        torch.testing.assert_close(out, want)


def test_wrapped_namespaces_are_taken() -> None:
    xp = array_api_compat.array_namespace(cupy.ones(1))
    assert xp.__name__ == "array_api_compat.cupy"
    x = xp.asarray(np.ones((2, 8), np.float32))
    y = bc.swiglu(x)
    assert type(y) is cupy.ndarray
    assert bc.swiglu.plan(x).sku.backend == "cuda"


def test_libraries_and_devices_are_not_mixed() -> None:
    a = cupy.ones((4, 8), np.float32)
    for other, name in ((torch.ones(4, 8, device="cuda"), "torch"), (a.get(), "numpy")):
        with pytest.raises(TypeError, match=rf"lerp: b: .*library cupy \(as a\), got {name}"):
            bc.lerp(a, other, weight=0.5)
        with pytest.raises(ValueError, match="library cupy"):
            bc.swiglu.plan(a)(other)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
@pytest.mark.parametrize("subject", OURS, ids=str)
def test_the_device_is_that_of_the_arrays(subject: Subject) -> None:
    for call in subject.calls():
        with cupy.cuda.Device(1):
            arrays = call.given()
        for got in (call.run(arrays), many(call.plan(arrays)(*arrays, **call.scalars))):
            assert {x.device.id for x in got} == {1}
            cupy.cuda.Device(1).synchronize()
            close(call, got)
        assert cupy.cuda.Device().id == 0


ALONE = """
import sys
sys.modules[{absent!r}] = None
import {library} as library, baracuda as bc
x = library.{make}
y, plan = bc.swiglu.planned(x)
print(plan.sku.backend, float(y[0, 0]))
try:
    bc.swiglu(x, backend={other!r})
except NotImplementedError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("library", "make", "absent", "other", "reason"),
    [
        ("cupy", "ones((2, 8), 'float32')", "torch", "torch", "takes arrays of torch, numpy"),
        ("torch", "ones(2, 8, device='cuda')", "cupy", "cupy", "cannot be loaded: import of cupy"),
    ],
)
def test_one_library_needs_no_other(
    library: str, make: str, absent: str, other: str, reason: str
) -> None:
    script = ALONE.format(library=library, make=make, absent=absent, other=other)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, _, rest = done.stdout.partition("\n")
    assert first.startswith("cuda 0.73105")
    assert reason in rest


# Choices, and what is recorded of them.


@pytest.mark.parametrize("subject", [s for s in SHORT if s.backend == "cuda"], ids=str)
def test_a_record_made_from_torch_runs_the_same_kernel(subject: Subject) -> None:
    for call in subject.calls():
        theirs = replace(call, subject=replace(subject, library="torch"))
        recorded = theirs.plan().sku
        arrays = call.given()
        plan = call.plan(arrays, sku=recorded, backend=None)
        assert plan.sku == recorded == call.plan(arrays).sku
        assert plan.sku.backend == "cuda"
        close(call, many(plan(*arrays, **call.scalars)))


def test_the_kernels_come_first_and_determinism_is_what_it_is() -> None:
    dout, index = randn(64, 128), randint(64, 64, 128)
    how: dict[str, Any] = {"axis": 0, "src_shape": (64, 128)}
    assert bc.gather_backward.plan(dout, index, **how).sku.backend == "cuda"
    free = bc.gather_backward.plan(dout, index, **how, backend="cupy")
    assert not free.sku.precision.deterministic
    with pytest.raises(NotImplementedError, match="cuda:0 adds in no fixed order"):
        bc.gather_backward(dout, index, **how, backend="cupy", deterministic=True)
    with bc.options(deterministic=True):
        assert bc.gather_backward.plan(dout, index, **how).sku.precision.bit_stable


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("by", [1, 2, 3])
def test_misaligned_views_give_what_copies_give(by: int, dtype: str) -> None:
    kind = library("cupy").dtype(dtype)
    room = randn(64 * 256 + by, dtype=kind)
    x = room[by:].reshape(64, 256)
    y, plan = bc.swiglu.planned(x)
    want, other = bc.swiglu.planned(x.copy())
    for got in (y, other(x), plan(x), plan(x.copy())):
        np.testing.assert_array_equal(got.astype("f4").get(), want.astype("f4").get())


# Indices out of range.


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("surfaces", ["next call", "check_errors"])
@pytest.mark.parametrize("bad", [-1, 128, 2**40])
def test_an_index_out_of_range_is_skipped_and_raised_later(
    bad: int, surfaces: str, backend: str
) -> None:
    src, index = randn(64, 128), randint(128, 64, 128)
    want = cupy.take_along_axis(src, index, 1)
    index[3, 5], want[3, 5] = bad, 0
    y = bc.gather(src, index, axis=1, backend=backend)
    cupy.cuda.Device().synchronize()
    message = rf"gather: index: expected 0 <= i < 128, got {bad} at position \(3, 5\)"
    with pytest.raises(IndexError, match=message):
        bc.check_errors() if surfaces == "check_errors" else bc.swiglu(src, backend=backend)
    bc.check_errors()
    assert (y == want).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["raise", "drop"])
def test_what_is_out_of_range_adds_nothing(mode: str, backend: str) -> None:
    dout, index = randn(64, 128), randint(64, 64, 128)
    want = np.zeros((64, 128))
    index[3, 5], index[0, 0], index[63, 127] = -1, 64, 2**50
    host, place = index.get(), dout.get().astype(np.float64)
    good = (host >= 0) & (host < 64)
    np.add.at(want, (host[good], np.nonzero(good)[1]), place[good])
    got = bc.gather_backward(dout, index, axis=0, src_shape=(64, 128), mode=mode, backend=backend)
    if mode == "raise":
        # Whichever is found first.
        bad = rf"-1 at .*\(3, 5\)|64 at .*\(0, 0\)|{2**50} at .*\(63, 127\)"
        with pytest.raises(IndexError, match=f"gather_backward: index: .* got ({bad})"):
            bc.check_errors()
    bc.check_errors()
    np.testing.assert_allclose(got.get(), want, rtol=1e-5, atol=1e-5)


# Training.


def test_training_agrees_with_numpy_and_torch() -> None:
    text = train.python_reference()
    text = replace(text, validation=text.validation[:2000])
    runs = {
        name: train.fit(
            array_api_compat.array_namespace(x), text, Config(text.vocabulary), steps=100,
            device="cuda" if name == "torch" else None,
        )
        for name, x in (("numpy", np.ones(1)), ("torch", torch.ones(1)), ("cupy", cupy.ones(1)))
    }  # fmt: skip
    for name in ("torch", "cupy"):
        apart = np.abs(np.subtract(runs[name].losses, runs["numpy"].losses))
        assert apart.max() <= 1e-4, (name, apart.max())
        assert {sku.backend for sku in runs[name].training.plans.skus()} == {"cuda"}
        assert runs[name].later_misses == 0
