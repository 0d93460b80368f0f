"""The laws and more on an NVIDIA GPU: ``pytest -m gpu``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import baracuda as bc
from baracuda.dtypes import named
from baracuda.op import registry
from baracuda.testing.cases import Call, Subject, subjects, to_numpy
from baracuda.testing.laws import LAWS, tolerance

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

EVERY = list(subjects(libraries=["torch"], device="cuda"))
KERNELS = [s for s in EVERY if s.backend == "cuda"]
SINGLE = [s for s in KERNELS if s.dtype == "float32"]
SHORT = [s for s in KERNELS if s.dtype in ("float32", "bfloat16")]
each_kernel = pytest.mark.parametrize("subject", KERNELS, ids=str)
each_op = pytest.mark.parametrize("subject", SINGLE, ids=str)


@pytest.fixture(autouse=True)
def nothing_is_pending() -> Iterator[None]:
    """No test leaves an index error to the next one."""
    yield
    bc.check_errors()


@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize("subject", EVERY, ids=str)
def test_law(subject: Subject, law: str) -> None:
    LAWS[law](subject)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def randint(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, shape, device="cuda", dtype=dtype)


def many(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def one_or_many(results: Sequence[torch.Tensor]) -> Any:
    return tuple(results) if len(results) > 1 else results[0]


def close(call: Call, got: Any, times: float = 1.0, plus: float = 0.0) -> None:
    """Whether `got` is `times` the reference and `plus` a number."""
    eps = named(call.subject.dtype).eps
    for x, want, most in zip(many(got), call.reference(), tolerance(call), strict=True):
        have, what = to_numpy(x), f"{call.case} {call.form.text}"
        if call.subject.spec.moves:
            assert np.array_equal(have, want), what
            continue
        want = times * want + plus
        # A sum rounds once more.
        rounded = 2 * eps * (np.abs(want) + plus) * (times != 1 or plus != 0)
        assert np.all(np.abs(have - want) <= times * most + rounded), what


# Layouts.


def moved(x: torch.Tensor | None, by: int) -> torch.Tensor | None:
    """The same values and strides, `by` elements behind an aligned address."""
    if x is None:
        return None
    room = x.new_empty(x.numel() + by)
    view = room[by:].as_strided(x.shape, x.stride(), room.storage_offset() + by)
    return view.copy_(x)


@pytest.mark.parametrize("by", [1, 2, 4])
@each_kernel
def test_misaligned_views_give_what_copies_give(subject: Subject, by: int) -> None:
    for call in subject.calls():
        plain = call.given()
        views = [moved(x, by) for x in plain]
        close(call, call.run(views))
        # One plan for one alignment; both serve the other.
        close(call, call.plan(plain)(*views, **call.scalars))
        close(call, call.plan(views)(*plain, **call.scalars))
        # Only one of them.
        close(call, call.run([views[0], *plain[1:]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("offset", "step"), [(0, 64), (3, 67), (8, 72), (1, 200)])
def test_rows_apart_are_taken_as_they_lie(dtype: torch.dtype, offset: int, step: int) -> None:
    room = randn(33, step, dtype=dtype)
    # The last row may end before a whole step.
    x = room.flatten()[offset:].as_strided((32, 64), (step, 1), offset)
    bc.swiglu(x)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = bc.swiglu(x)
    assert torch.cuda.max_memory_allocated() - before <= max(y.nbytes, 512)
    assert torch.equal(y, bc.swiglu(x.contiguous()))
    if step != 64:
        assert bc.swiglu.plan(x).sku.layout == "strided"


def laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """An empty tensor like `x`, lying in another way."""
    if layout == "misaligned":
        return x.new_empty(x.numel() + 1)[1:].view(x.shape)
    if layout == "turned":
        return x.new_empty(tuple(reversed(x.shape))).permute(tuple(reversed(range(x.ndim))))
    room = x.new_empty((*x.shape[:-1], 2 * x.shape[-1] + 3)) if x.ndim else x.new_empty(3)
    return room[..., 1 : 1 + x.shape[-1]] if x.ndim else room[1]


@pytest.mark.parametrize("layout", ["misaligned", "turned", "rows apart"])
@pytest.mark.parametrize("subject", SHORT, ids=str)
def test_outputs_may_lie_in_any_way(subject: Subject, layout: str) -> None:
    for call in subject.calls():
        arrays = call.given()
        plan = call.plan(arrays)
        outs = [laid(x, layout) for x in call.run(arrays)]
        for x in outs:
            x.fill_(float("nan"))
        plan(*arrays, out=one_or_many(outs), **call.scalars)
        close(call, tuple(outs))
        if not subject.spec.accumulates:
            continue
        plan(*arrays, out=one_or_many(outs), accumulate=True, **call.scalars)
        close(call, tuple(outs), times=2)
        for x in outs:
            x.fill_(0.5)
        plan(*arrays, out=one_or_many(outs), accumulate=True, **call.scalars)
        close(call, tuple(outs), plus=0.5)


@each_op
def test_what_lies_around_an_output_stays(subject: Subject) -> None:
    for call in subject.calls():
        arrays = call.given()
        plan = call.plan(arrays)
        for add in (False, True)[: 1 + subject.spec.accumulates]:
            rooms, outs = [], []
            for x in call.run(arrays):
                rooms.append(torch.full((x.numel() + 128,), 7.0, device="cuda", dtype=x.dtype))
                outs.append(rooms[-1][64:-64].view(x.shape))
            plan(*arrays, out=one_or_many(outs), accumulate=add, **call.scalars)
            for room in rooms:
                assert bool((room[:64] == 7).all() & (room[-64:] == 7).all())


# Past 2^31 elements.


# Past the caches kernels prefetch: positions that fill no block, rows ahead of one another, two
# dimensions of rows.
PAST_CACHES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("lerp_backward", (8, (1 << 22) + 3), {"weight": 0.3}),
    ("rope", (8, 16, 1021, 128), {}),
    ("rope", (8, 4096, 17, 32), {"interleaved": False}),
    ("rope_backward", (8, 1024, 16, 128), {"seq_axis": 1}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "shape", "options"), PAST_CACHES)
def test_large_arrays_give_what_their_parts_give(
    name: str, shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    op, x = getattr(bc, name), randn(*shape, dtype=dtype)
    whole = many(op(x, **options))
    for i in range(len(x)):
        for got, want in zip(whole, many(op(x[i : i + 1], **options)), strict=True):
            assert torch.equal(got[i : i + 1], want)


@pytest.fixture
def large() -> Iterator[Callable[[], torch.Tensor]]:
    """Makes arrays of 2^31 + 2^20 elements; freed behind the test."""
    torch.cuda.empty_cache()
    size = 2**31 + 2**20
    if torch.cuda.mem_get_info()[0] < 8 * size:
        pytest.skip("needs 17 GB of free GPU memory")
    yield lambda: torch.empty(size, device="cuda", dtype=torch.bfloat16).uniform_(-1, 1)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("skip", [0, 1])
def test_past_2_to_the_31_elements(large: Callable[[], torch.Tensor], skip: int) -> None:
    a, b = large()[skip:], large()[skip:]
    y = bc.lerp(a, b, weight=0.25, backend="cuda")
    size = len(a)
    near = [torch.arange(at - 4096, at + 4096) for at in (4096, 2**30, 2**31, size - 4096)]
    at = torch.cat([*near, torch.randint(0, size, (1 << 20,))]).cuda()
    want = torch.lerp(a[at].double(), b[at].double(), 0.25)
    assert bool(((y[at].double() - want).abs() <= 2.0**-8 * want.abs() + 1e-6).all())


def test_few_elements_that_lie_far_apart(large: Callable[[], torch.Tensor]) -> None:
    room = large()
    x = room.as_strided((3, 96), (2**30, 1))
    assert torch.equal(bc.geglu(x, backend="cuda"), bc.geglu(x.contiguous(), backend="cuda"))
    dy = randn(3, 48, dtype=torch.bfloat16)
    want = bc.geglu_backward(dy, x.contiguous())
    assert torch.equal(bc.geglu_backward(dy, x), want)
    plan = bc.geglu_backward.plan(dy, x.contiguous())
    copy = x.contiguous()
    plan(dy, copy, out=x)
    assert torch.equal(x, want)


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


def run_at_once(tasks: Sequence[Callable[[], None]]) -> None:
    """Each in a thread of its own, started together; the first failure is raised."""
    barrier, failures = threading.Barrier(len(tasks)), []

    def guarded(task: Callable[[], None]) -> None:
        try:
            barrier.wait()
            task()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


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
    with torch.cuda.graph(graph):
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
                if x is not None and name not in subject.spec.integers:
                    # A saved norm stays that of its input.
                    x.mul_(abs(factor) if name == "y" else factor)
            for out in outs:
                out.fill_(float("nan"))
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


# Indices out of range.


@pytest.fixture
def table() -> tuple[torch.Tensor, torch.Tensor]:
    """64 rows of 128 elements, and an index into them."""
    return randn(64, 128), randint(128, 64, 128)


BAD = [
    (-1, torch.int32),
    (128, torch.int32),
    (2**31 - 1, torch.int32),
    (-(2**31), torch.int32),
    (-1, torch.int64),
    (128, torch.int64),
    (2**40, torch.int64),
    (2**63 - 1, torch.int64),
    (-(2**63), torch.int64),
]


@pytest.mark.parametrize("surfaces", ["next call", "next plan call", "check_errors"])
@pytest.mark.parametrize(("bad", "dtype"), BAD)
def test_an_index_out_of_range_is_skipped_and_raised_later(
    bad: int, dtype: torch.dtype, surfaces: str, table: tuple[torch.Tensor, torch.Tensor]
) -> None:
    src, index = table[0], table[1].to(dtype)
    want = torch.gather(src, 1, index.long())
    plan = bc.swiglu.plan(src)
    index[3, 5], want[3, 5] = bad, 0
    y = bc.gather(src, index, axis=1)
    message = rf"gather: index: expected 0 <= i < 128, got {bad} at position \(3, 5\)"
    if surfaces != "check_errors":
        torch.cuda.synchronize()
    with pytest.raises(IndexError, match=message):
        {"next call": lambda: bc.swiglu(src), "next plan call": lambda: plan(src),
         "check_errors": bc.check_errors}[surfaces]()  # fmt: skip
    # It is raised once, and the context lives.
    bc.check_errors()
    assert torch.equal(y, want)
    assert torch.equal(plan(src), bc.swiglu(src))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["raise", "drop"])
def test_what_is_out_of_range_adds_nothing(mode: str, dtype: torch.dtype, axis: int) -> None:
    dout, index = randn(64, 128, dtype=dtype), randint(64, 64, 128)
    bad = torch.zeros_like(index, dtype=torch.bool)
    bad[3, 5], bad[0, 0], bad[63, 127] = True, True, True
    valid = index.clone()
    index[bad] = torch.tensor([-1, 64, 2**50], device="cuda")
    shape = (64, 128) if axis == 0 else (64, 64)
    want = torch.zeros(shape, device="cuda", dtype=torch.float64)
    want.scatter_add_(axis, valid, dout.double().masked_fill(bad, 0))
    room = torch.full((shape[0] * shape[1] + 128,), 7.0, device="cuda", dtype=dtype)
    out = room[64:-64].view(shape)
    plan = bc.gather_backward.plan(dout, index, axis=axis, src_shape=shape, mode=mode)
    plan(dout, index, out=out)
    torch.cuda.synchronize()
    if mode == "raise":
        with pytest.raises(IndexError, match=r"gather_backward: index: expected 0 <= i < 64, got"):
            bc.check_errors()
    bc.check_errors()
    torch.testing.assert_close(out.double(), want, rtol=8e-3, atol=1e-4)
    assert bool((room[:64] == 7).all() & (room[-64:] == 7).all())


def test_drop_gives_zeros_and_no_error(table: tuple[torch.Tensor, torch.Tensor]) -> None:
    src, index = table
    index[3] = -1
    index[5] = 128
    y = bc.gather(src, index, axis=1, mode="drop")
    bc.check_errors()
    assert not y[[3, 5]].any()
    assert torch.equal(y[6:], torch.gather(src, 1, index.clamp(0, 127))[6:])


def test_an_error_found_while_others_run_is_raised_by_one_of_them(
    table: tuple[torch.Tensor, torch.Tensor],
) -> None:
    src, index = table
    good = index.clone()
    index[0, 0] = -7
    raised = []

    def task() -> None:
        for i in range(100):
            try:
                bc.gather(src, index if i == 50 else good, axis=1)
            except IndexError as error:
                raised.append(str(error))

    run_at_once([task] * 8)
    try:
        bc.check_errors()
    except IndexError as error:
        raised.append(str(error))
    assert 1 <= len(raised) <= 8
    assert all("got -7 at position (0, 0)" in text for text in raised)


# Determinism.


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Under torch's global switch."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


SCATTER: dict[str, Any] = {"axis": 1, "src_shape": (8, 16)}


def test_atomics_are_refused_where_determinism_is_asked_for() -> None:
    dout, index = randn(8, 16), randint(16, 8, 16)
    with pytest.raises(NotImplementedError, match="cuda: adds by atomics, in no fixed order"):
        bc.gather_backward(dout, index, **SCATTER, deterministic=True, backend="cuda")
    # The others add by atomics as well.
    with pytest.raises(NotImplementedError, match="cuda: adds by atomics, in no fixed order"):
        bc.gather_backward(dout, index, **SCATTER, deterministic=True)
    assert not bc.gather_backward.plan(dout, index, **SCATTER).sku.precision.deterministic


@pytest.mark.usefixtures("deterministic")
def test_the_global_switch_is_respected() -> None:
    dout, index = randn(8, 16), randint(16, 8, 16)
    with pytest.raises(NotImplementedError, match="cuda: adds by atomics, in no fixed order"):
        bc.gather_backward(dout, index, **SCATTER, backend="cuda")
    assert bc.swiglu.plan(dout).sku.backend == "cuda"
    free = bc.gather_backward.plan(dout, index, **SCATTER, deterministic=False)
    assert free.sku.backend == "cuda"


def test_the_switch_counts_when_it_is_thrown() -> None:
    dout, index = randn(8, 16), randint(16, 8, 16)
    plan = bc.gather_backward.plan(dout, index, **SCATTER, backend="cuda")
    want = plan(dout, index)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(NotImplementedError, match="adds by atomics"):
            bc.gather_backward(dout, index, **SCATTER, backend="cuda")
    finally:
        torch.use_deterministic_algorithms(False)
    got = bc.gather_backward(dout, index, **SCATTER, backend="cuda")
    torch.testing.assert_close(got, want)


# Rope at large positions.


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("position", [1_000_000, 2**31 - 1, -(2**31 - 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["rope", "rope_backward"])
def test_rope_is_accurate_at_large_positions(
    name: str, dtype: torch.dtype, position: int, interleaved: bool
) -> None:
    from mpmath import mp, mpf

    mp.dps = 60
    pairs = 64
    x = torch.randn(2, 4, 2 * pairs, device="cuda", dtype=torch.float64).to(dtype)
    at = torch.full((4,), position, device="cuda", dtype=torch.int64)
    op: Any = registry[name]
    angles = [position * mpf(10000) ** (-mpf(i) / pairs) for i in range(pairs)]
    cos, sin = (
        np.array([np.longdouble(mp.nstr(f(angle), 25)) for angle in angles])
        for f in (mp.cos, mp.sin)
    )
    if name == "rope_backward":
        sin = -sin
    first = slice(0, None, 2) if interleaved else slice(0, pairs)
    second = slice(1, None, 2) if interleaved else slice(pairs, None)
    host = x.double().cpu().numpy().astype(np.longdouble)
    a, b = host[..., first], host[..., second]
    norm = np.hypot(a, b)
    for positions in (at, at.int()):
        got = op(x, positions, interleaved=interleaved, backend="cuda")
        y = got.double().cpu().numpy().astype(np.longdouble)
        for part, want in ((first, a * cos - b * sin), (second, a * sin + b * cos)):
            error = np.abs(y[..., part] - want) / (norm * torch.finfo(dtype).eps)
            assert error.max() <= 4, error.max()


# Tensors that are watched.

WATCHED: dict[str, Callable[[Any], Any]] = {
    "swiglu": lambda x: bc.swiglu(x),
    "geglu": lambda x: bc.geglu(x, axis=0, approximate="tanh"),
    "rope": lambda x: bc.rope(x),
    "lp_pool2d": lambda x: bc.lp_pool2d(x, norm_type=3, kernel_size=2),
    "lerp": lambda x: bc.lerp(x, torch.ones_like(x), weight=0.3),
    "gather": lambda x: bc.gather(x, x.new_zeros((4, 3), dtype=torch.int64), axis=1),
}


@pytest.mark.parametrize("name", list(WATCHED))
def test_gradients_flow_through_the_body(name: str) -> None:
    x = randn(4, 8, dtype=torch.float64).requires_grad_()
    y = WATCHED[name](x)
    assert y.requires_grad
    torch.testing.assert_close(y.detach(), WATCHED[name](x.detach()))
    torch.autograd.gradcheck(WATCHED[name], x, nondet_tol=1e-12)


def test_the_fused_gradient_is_that_of_the_body() -> None:
    x, dy = randn(64, 256).requires_grad_(), randn(64, 128)
    plan = bc.swiglu.plan(x)
    assert plan.sku.backend == "array_api"
    want = "autograd arrays need functions that can be differentiated and traced"
    assert dict(plan.why)["cuda"] == want
    bc.swiglu(x).backward(dy)
    torch.testing.assert_close(x.grad, bc.swiglu_backward(dy, x.detach(), backend="cuda"))
    with pytest.raises(NotImplementedError, match=f"cuda: {want}"):
        bc.swiglu(x, backend="cuda")
    with torch.no_grad():
        assert bc.swiglu.plan(x).sku.backend == "cuda"
        assert not bc.swiglu(x).requires_grad


def test_a_plan_for_plain_tensors_serves_watched_ones() -> None:
    x = randn(64, 256)
    plan = bc.swiglu.plan(x)
    assert plan.sku.backend == "cuda"
    watched = x.clone().requires_grad_()
    assert plan(watched).requires_grad
    assert not plan(x).requires_grad


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


def test_threads_that_never_used_the_device_may_call() -> None:
    x = randn(64, 256)
    want = bc.swiglu(x)
    torch.cuda.synchronize()
    got: list[torch.Tensor] = []
    run_at_once([lambda: got.append(bc.swiglu(x))] * 8)
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
