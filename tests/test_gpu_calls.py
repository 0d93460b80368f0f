"""Calls on an NVIDIA GPU beside others: streams, threads, graphs, devices, variants."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from device import MARKS, close, each_op, many, one_or_many, randint, randn, run_at_once

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.testing.cases import Subject
from baracuda.testing.timing import uncollected

pytestmark = MARKS


# Streams, threads, graphs.


class Work:
    """A call of an op with the result that it should have, to be repeated anywhere."""

    def __init__(self, name: str, *arrays: torch.Tensor, exact: bool = True, **options: Any):
        self.name, self.arrays, self.options, self.exact = name, arrays, options, exact
        self.want = [x.clone() for x in self()]

    def __call__(self) -> tuple[torch.Tensor, ...]:
        return many(registry[self.name](*self.arrays, **self.options, backend="cuda"))

    def good(self, got: Sequence[torch.Tensor]) -> bool:
        if self.exact:
            return all(torch.equal(x, y) for x, y in zip(got, self.want, strict=True))
        return all(torch.allclose(x, y, 1e-2, 1e-2) for x, y in zip(got, self.want, strict=True))


def works(seed: int) -> list[Work]:
    """One call of every schedule, on values of their own."""
    torch.manual_seed(seed)
    x, dy, image = randn(64, 256), randn(64, 128, dtype=torch.float32), randn(2, 3, 32, 32)
    pool = {"norm_type": 2, "kernel_size": 2}
    y = bc.lp_pool2d(image, **pool)
    half, index = randn(64, 128, dtype=torch.bfloat16), randint(256, 64, 128)
    low = index.clamp(max=63)
    work = [
        Work("swiglu_backward", dy, x),
        Work("lerp", x, x.flip(0), weight=0.3),
        Work("rope", x.view(2, 4, 8, 256)),
        Work("lp_pool2d", image, **pool),
        Work("lp_pool2d_backward", randn(*y.shape), image, y, **pool),
        Work("gather", x, index, axis=1),
        Work("gather_backward", dy, index, axis=1, src_shape=(64, 256), exact=False),
        Work("gather_backward", half, low, axis=0, src_shape=(64, 128), exact=False),
    ]  # fmt: skip
    torch.cuda.synchronize()
    return work


def test_eight_streams_at_once() -> None:
    lots = [works(seed) for seed in range(8)]
    streams = [torch.cuda.Stream() for _ in lots]
    found: list[tuple[Work, tuple[torch.Tensor, ...]]] = []
    for _ in range(20):
        for stream, lot in zip(streams, lots, strict=True):
            with torch.cuda.stream(stream):
                found += [(work, work()) for work in lot]
    torch.cuda.synchronize()
    assert all(work.good(got) for work, got in found)


def test_eight_threads_at_once() -> None:
    def task(seed: int) -> Callable[[], None]:
        lot = works(seed)

        def repeat() -> None:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(50):
                    for work in lot:
                        got = work()
                        stream.synchronize()
                        assert work.good(got), work.name

        return repeat

    run_at_once([task(seed) for seed in range(8)])


def test_eight_threads_share_a_plan() -> None:
    x = randn(64, 256)
    plan = bc.lerp.plan(x, x)

    def task(seed: int) -> Callable[[], None]:
        a = torch.full_like(x, float(seed))

        def repeat() -> None:
            # On one stream: arguments must not be mixed up between two launches.
            results = [plan(a, a + 8, weight=i / 256) for i in range(200)]
            for i, y in enumerate(results):
                assert bool((y == seed + i / 32).all())

        return repeat

    run_at_once([task(seed) for seed in range(8)])


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were asked for since: none is loaded, no plan is known."""
    from baracuda.backends.cuda import compiler, launch

    seen, cubin = [], compiler.cubin

    def counted(entry: Any, arch: str) -> bytes:
        seen.append(entry.symbol)
        return cubin(entry, arch)

    monkeypatch.setattr(compiler, "cubin", counted)
    torch.cuda.synchronize()
    launch.forget_kernels()
    bc.plan_cache.clear()
    return seen


def test_threads_that_miss_at_once_load_a_kernel_once(compiled: list[str]) -> None:
    x = randn(64, 256)

    def task() -> None:
        torch.cuda.current_stream().synchronize()
        bc.geglu(x)

    run_at_once([task] * 8)
    torch.cuda.synchronize()
    assert len(compiled) == 1


def captured(function: Callable[[], Any]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    # What capture forbids is an error on this thread. Other libraries' threads free when they like.
    with uncollected(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
        function()
    return graph


@each_op
def test_a_graph_replays_with_new_values(subject: Subject) -> None:
    for call in subject.calls():
        arrays = call.given()
        plan = call.plan(arrays)
        want = call.run(arrays)
        outs = [torch.empty_like(x) for x in want]

        def launch(arrays: Any = arrays, outs: Any = outs, plan: Any = plan, call: Any = call):
            plan(*arrays, out=one_or_many(outs), **call.scalars)

        graph = captured(launch)
        for factor in (1.0, -2.0):
            for name, x in zip(subject.spec.arrays, arrays, strict=False):
                if x is not None and name not in subject.spec.discrete:
                    # A saved norm stays that of its input.
                    x.mul_(abs(factor) if name == "y" else factor)
            for out in outs:
                out.fill_(float("nan") if out.is_floating_point() else -1)
            graph.replay()
            torch.cuda.synchronize()
            again = many(plan(*arrays, **call.scalars))
            for out, y in zip(outs, again, strict=True):
                torch.testing.assert_close(out, y, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_results_of_a_graph_live_in_its_pool() -> None:
    x = randn(64, 256)
    dy, index = randn(64, 128, dtype=torch.bfloat16), randint(64, 64, 128)
    results: list[torch.Tensor] = []

    def work() -> None:
        results[:] = [
            bc.swiglu(x),
            # Zeros, atomics into a workspace, and its rounding.
            bc.gather_backward(dy, index, axis=0, src_shape=(64, 128)),
        ]

    work()
    torch.cuda.synchronize()
    graph = captured(work)
    x.copy_(randn(64, 256))
    dy.copy_(randn(64, 128))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(results[0], bc.swiglu(x))
    want = bc.gather_backward(dy, index, axis=0, src_shape=(64, 128))
    torch.testing.assert_close(results[1], want)


def test_a_kernel_may_be_first_met_while_capturing(compiled: list[str]) -> None:
    x, result = randn(64, 256), []
    graph = captured(lambda: result.append(bc.geglu(x)))
    assert len(compiled) == 1
    x.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result[0], bc.geglu(x))


@each_op
def test_no_call_waits_for_the_device(subject: Subject) -> None:
    calls = [(call, call.given()) for call in subject.calls()]
    plans = [call.plan(arrays) for call, arrays in calls]
    for call, arrays in calls:
        call.run(arrays)
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    # About a second; what waits for the device would see the event happen.
    torch.cuda._sleep(2_000_000_000)
    done.record()
    results = []
    for (call, arrays), plan in zip(calls, plans, strict=True):
        results += [call.run(arrays), many(plan(*arrays, **call.scalars))]
    assert not done.query()
    torch.cuda.synchronize()
    for (call, _), got in zip([c for c in calls for _ in (0, 1)], results, strict=True):
        close(call, got)


def test_a_new_shape_does_not_wait_for_the_device() -> None:
    bc.swiglu(randn(8, 64))
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)
    done.record()
    x = torch.ones(9, 64, device="cuda")
    y = bc.swiglu(x)
    assert not done.query()
    torch.cuda.synchronize()
    assert torch.equal(y, bc.swiglu(x.clone()))


# New shapes compile nothing.

LENGTHS: dict[str, Callable[[int], Any]] = {
    "swiglu": lambda s: bc.swiglu(randn(2, s, 64)),
    "geglu_backward": lambda s: bc.geglu_backward(randn(2, s, 32), randn(2, s, 64)),
    "lerp": lambda s: bc.lerp(randn(s, 64), randn(s, 64), weight=0.3),
    "rope": lambda s: bc.rope(randn(2, 4, s, 64)),
    "rope with positions": lambda s: bc.rope(randn(2, s, 4, 64), randint(9999, s), seq_axis=1),
    "lp_pool1d": lambda s: bc.lp_pool1d(randn(s, 64), norm_type=2, kernel_size=2),
    "gather": lambda s: bc.gather(randn(s, 64), randint(64, s, 64), axis=1),
    "gather_backward": lambda s: bc.gather_backward(
        randn(s, 64), randint(128, s, 64), axis=1, src_shape=(s, 128)
    ),
}


@pytest.mark.parametrize("name", list(LENGTHS))
def test_new_lengths_compile_nothing(name: str, compiled: list[str]) -> None:
    LENGTHS[name](2)
    first = len(compiled)
    assert first >= 1
    for length in range(3, 203):
        LENGTHS[name](length)
    assert len(compiled) == first, compiled


# Devices.


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
@each_op
def test_the_device_is_that_of_the_arrays(subject: Subject) -> None:
    assert torch.cuda.current_device() == 0
    for call in subject.calls():
        for device in ("cuda:1", "cuda:0"):
            arrays = [None if x is None else x.to(device) for x in call.given()]
            plan = call.plan(arrays)
            for got in (call.run(arrays), many(plan(*arrays, **call.scalars))):
                assert all(str(x.device) == device for x in got)
                torch.cuda.synchronize(device)
                close(call, got)
        assert torch.cuda.current_device() == 0
        # The stream is that of the device that the arrays are on.
        with torch.cuda.device(1), torch.cuda.stream(torch.cuda.Stream(1)):
            arrays = [None if x is None else x.to("cuda:1") for x in call.given()]
            got = call.run(arrays)
            torch.cuda.current_stream().synchronize()
            close(call, got)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
def test_devices_are_not_mixed() -> None:
    x = randn(4, 8)
    with pytest.raises(TypeError, match="device"):
        bc.lerp(x, x.to("cuda:1"), weight=0.5)
    with pytest.raises(ValueError, match="device"):
        bc.swiglu.plan(x)(x.to("cuda:1"))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
def test_each_device_reports_its_own_errors() -> None:
    src, index = randn(4, 8).to("cuda:1"), torch.full((4, 8), 8, device="cuda:1")
    bc.gather(src, index, axis=1)
    torch.cuda.synchronize(1)
    bc.swiglu(randn(4, 8))
    with pytest.raises(IndexError, match="gather: index: expected 0 <= i < 8, got 8"):
        bc.swiglu(src)


@pytest.mark.parametrize("op", ["swiglu", "scatter"])
def test_threads_that_never_used_the_device_may_call(op: str) -> None:
    # `scatter` begins with zeros, not with a kernel.
    x = randn(64, 256)
    index = torch.arange(64, device="cuda")[:, None].expand(64, 256)

    def call() -> torch.Tensor:
        return bc.swiglu(x) if op == "swiglu" else bc.scatter(x, index, x, axis=0)

    want = call()
    torch.cuda.synchronize()
    got: list[torch.Tensor] = []
    run_at_once([lambda: got.append(call())] * 8)
    torch.cuda.synchronize()
    assert len(got) == 8
    assert all(torch.equal(y, want) for y in got)


def test_a_call_takes_microseconds_while_the_device_is_busy() -> None:
    x = randn(64, 256)
    plan = bc.swiglu.plan(x)
    plan(x)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    began = time.perf_counter()
    for _ in range(100):
        plan(x)
    assert time.perf_counter() - began < 0.1
    torch.cuda.synchronize()


# Variants.


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was found the fastest since."""
    from baracuda.backends.cuda import tune

    found, least = [], tune.least

    def noted(*arguments: Any) -> str:
        found.append(least(*arguments))
        return found[-1]

    monkeypatch.setattr(tune, "least", noted)
    bc.plan_cache.clear()
    return found


def test_what_is_measured_once_is_made_again(measured: list[str], tmp_path: Path) -> None:
    a, b = randn(1 << 20), randn(1 << 20)
    copies = a.clone(), b.clone()
    plan = bc.lerp.plan(a, b, autotune=True)
    assert len(measured) == 1
    assert plan.sku.variant.startswith(f"{measured[0]}, ")
    want = torch.lerp(a, b, 0.25)
    torch.testing.assert_close(bc.lerp(a, b, weight=0.25, autotune=True), want)
    assert all(torch.equal(x, y) for x, y in zip((a, b), copies, strict=True))
    bc.plan_cache.save(tmp_path / "plans.json")
    bc.plan_cache.clear()
    bc.plan_cache.load(tmp_path / "plans.json")
    again = bc.lerp.plan(a, b, autotune=True)
    assert again.sku == plan.sku
    assert bc.lerp.plan(a, b, sku=plan.sku).sku == plan.sku
    torch.testing.assert_close(again(a, b, weight=0.25), want)
    assert len(measured) == 1


def test_a_captured_stream_is_not_measured(measured: list[str]) -> None:
    x, result = randn(64, 256), []
    graph = captured(lambda: result.append(bc.swiglu(x, autotune=True)))
    assert not measured
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result[0], bc.swiglu(x))


def test_a_bad_index_is_met_by_the_call_and_not_by_its_measurement(measured: list[str]) -> None:
    dout, index = randn(64, 128), randint(64, 64, 128)
    index[3, 5] = -1
    bc.gather_backward(dout, index, axis=0, src_shape=(64, 128), autotune=True)
    with pytest.raises(IndexError, match=r"got -1 at position \(3, 5\)"):
        bc.check_errors()


@each_op
def test_every_variant_computes_the_same(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    from baracuda.backends.cuda import tune

    seen: dict[str, None] = {}

    def next_one(problem: Any, facts: Any, arrays: Any, choices: Any, given: Any) -> str:
        chosen = next((name for name in choices if name not in seen), choices[0])
        seen[chosen] = None
        return chosen

    monkeypatch.setattr(tune, "fastest", next_one)
    for call in subject.calls():
        seen.clear()
        arrays, before = call.given(), -1
        while len(seen) > before:
            before = len(seen)
            bc.plan_cache.clear()
            with bc.options(autotune=True):
                plan = call.plan(arrays)
            close(call, many(plan(*arrays, **call.scalars)))
