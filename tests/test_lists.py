"""Sequences of arrays in the places of arrays: one plan, one launch for each dtype, one table."""

from __future__ import annotations

import ctypes
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import emulator
import numpy as np
import pytest
import torch
from stub_device import Memory, StubDevice, install, install_copies

import baracuda as bc

SHAPES = ((3, 40), (5,), (), (0, 2), (70, 500), (3, 40), (1,))
STEP = {"lr": 0.1, "step": 3}
Lists = list[list[Any]]


def drawn(seed: int = 0, param: Any = torch.float32, state: Any = None) -> Lists:
    """Parameters, gradients and both states."""
    torch.manual_seed(seed)
    kinds = (param, param, state or param, state or param)
    return [[torch.rand(s).to(kind) for s in SHAPES] for kind in kinds]


def one_by_one(op: Any, arrays: Lists, **options: Any) -> Lists:
    return [list(some) for some in zip(*[op(*row, **options) for row in zip(*arrays, strict=True)],
                                       strict=True)]  # fmt: skip


def same(got: Any, want: Any) -> None:
    for some, others in zip(got, want, strict=True):
        for x, y in zip(some, others, strict=True):
            np.testing.assert_array_equal(np.asarray(x.float()), np.asarray(y.float()))


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_list_is_a_loop(library: str, kind: Any) -> None:
    arrays = drawn()
    if library == "numpy":
        arrays = [[np.asarray(x) for x in some] for some in arrays]
    want = one_by_one(bc.adamw, arrays, **STEP)
    given = [kind(some) for some in arrays]
    got = bc.adamw(*given, **STEP)
    plan = bc.adamw.plan(*given)
    assert plan is bc.adamw.plan(*given)
    again, found = bc.adamw.planned(*given, **STEP)
    assert found is plan
    out = plan(*given, out=(given[0], *given[2:]), **STEP)
    assert out[0] is given[0]
    for results in (got, again, out):
        for some, others in zip(results, want, strict=True):
            for x, y in zip(some, others, strict=True):
                np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_lists_of_other_ops() -> None:
    arrays = [torch.randn(s) for s in SHAPES]
    for x, y in zip(bc.relu(arrays), arrays, strict=True):
        assert torch.equal(x, y.relu())
    moved = bc.sgd(arrays, arrays, lr=0.5)
    assert isinstance(moved, list)
    assert torch.equal(moved[0], arrays[0] * 0.5)
    buffers = bc.sgd(arrays, arrays, arrays, lr=0.5, momentum=0.5)[1]
    torch.testing.assert_close(buffers[0], arrays[0] * 1.5)
    assert bc.adamw([], [], [], [], step=1) == ([], [], [])


def test_what_watches_arrays_sees_every_call() -> None:
    x = [torch.randn(3, requires_grad=True), torch.randn(4)]
    y = bc.silu(x)
    (dx,) = torch.autograd.grad(y[0].sum(), x[0])
    torch.testing.assert_close(dx, bc.silu_backward(torch.ones(3), x[0].detach()))
    run = torch.compile(lambda a, b: bc.lerp([a, b], [b, a], weight=0.25), backend="aot_eager")
    a, b = torch.randn(2, 5)
    torch.testing.assert_close(run(a, b)[1], torch.lerp(b, a, 0.25))


def test_lists_in_jax() -> None:
    jax = pytest.importorskip("jax")
    arrays = [[jax.numpy.asarray(x.numpy()) for x in some[:3]] for some in drawn()]
    want = one_by_one(bc.adamw, arrays, **STEP)
    for run in (bc.adamw, jax.jit(lambda *lists: bc.adamw(*lists, **STEP))):
        got = run(*arrays, **(STEP if run is bc.adamw else {}))
        for x, y in zip(got[0], want[0], strict=True):
            # Fused by XLA, a difference of what is added and taken away rounds once less.
            np.testing.assert_allclose(x, y, rtol=4e-6)


def as_numpy(x: torch.Tensor) -> np.ndarray:
    return x.numpy()


@pytest.mark.parametrize("made", [as_numpy, torch.clone], ids=["numpy", "torch"])
def test_what_one_set_writes_is_no_array_of_another(made: Any) -> None:
    x, y = made(torch.randn(6)), made(torch.randn(6))
    half, rest, shifted = x[:3], x[3:], x[2:5]
    plan = bc.scale_by.plan([half, rest])
    for arrays, out in (
        ([half, half], [half, half]),
        ([half, rest], [y[:3], y[2:5]]),
        ([half, shifted], [half, y[:3]]),
        ([half, rest], [shifted, y[:3]]),
    ):
        before = [made(torch.as_tensor(z)) + 0 for z in (x, y)]
        with pytest.raises(ValueError, match="scale_by: out: expected memory of its own for each"):
            plan(arrays, factor=0.5, out=out)
        for z, was in zip((x, y), before, strict=True):
            np.testing.assert_array_equal(z, was)
    # Columns that interlock share no byte, and an array may be read twice.
    columns = y.reshape(3, 2)
    out = [columns[:, 0], columns[:, 1]]
    for _ in range(2):
        plan([half, half], factor=0.5, out=out)
        np.testing.assert_array_equal(columns[:, 1], half * 0.5)
    plan([half, rest], factor=2.0, out=[half, rest])


def test_outputs_that_are_not_given_are_made() -> None:
    p, g, m, v = drawn()
    want = bc.adamw(p, g, m, v, **STEP)
    plan, own = bc.adamw.plan(p, g, m, v), [torch.empty_like(x) for x in m]
    for _ in range(2):
        got = plan(
            p, g, m, v, out=([*map(torch.empty_like, p[:1]), *[None] * 6], own, None), **STEP
        )
        for some, right in zip(got, want, strict=True):
            for x, y in zip(some, right, strict=True):
                torch.testing.assert_close(x, y)
        assert all(x is y for x, y in zip(got[1], own, strict=True))
    (y, z) = bc.silu.plan(p[:2])(p[:2], out=[None, torch.empty_like(p[1])])
    torch.testing.assert_close(y, bc.silu(p[0]))
    torch.testing.assert_close(z, bc.silu(p[1]))


def test_a_pickled_plan_runs() -> None:
    p, g, m, v = drawn()
    plan = bc.adamw.plan(p, g, m, v)
    again = pickle.loads(pickle.dumps(plan))
    assert again.skus == plan.skus
    for _ in range(2):
        for x, y in zip(again(p, g, m, v, **STEP)[0], plan(p, g, m, v, **STEP)[0], strict=True):
            assert torch.equal(x, y)
    assert again.matches([*p, *g, *m, *v])


def test_what_is_in_a_list_is_named() -> None:
    x, plan = np.ones(2), bc.relu.plan([np.ones(2)])
    with pytest.raises(TypeError, match="relu: x: expected a list of 1 arrays, got ndarray"):
        plan(x)
    for wrong in (1.0, [x], np.ma.array(x)):
        with pytest.raises(TypeError, match="relu: x: expected an array, got "):
            bc.relu([x, wrong])
        with pytest.raises(TypeError, match="relu: x: expected an array, got "):
            bc.relu([wrong, x])
    for some in ([x, torch.ones(2)], [torch.ones(2), x]):
        with pytest.raises(TypeError, match="relu: x: expected an array of library "):
            bc.relu(some)


def test_lists_that_do_not_fit_are_refused() -> None:
    p, g, m, v = drawn()
    plan = bc.adamw.plan(p, g, m, v)
    for arrays, text in (
        ((p, g[:2], m, v), r"adamw: grad: expected 7 arrays \(as param\), got 2"),
        ((p, g, m, v[0]), r"adamw: exp_avg_sq: expected a list of arrays \(as param\), got Tensor"),
        ((p[:2], g[:2], m[:2], [v[0], v[0]]), "adamw: exp_avg_sq: "),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            bc.adamw(*arrays, **STEP)
    with pytest.raises(ValueError, match="adamw: plan: expected 7 arrays in a list, got 1"):
        plan(p[:1], g[:1], m[:1], v[:1], **STEP)
    with pytest.raises(ValueError, match=r"adamw: param: expected shape \(3, 40\) \(as planned\)"):
        plan([p[1], *p[1:]], g, m, v, **STEP)
    with pytest.raises(ValueError, match="adamw: out: expected a tuple of 3 lists, got list, list"):
        plan(p, g, m, v, out=(p, m), **STEP)
    with pytest.raises(TypeError, match=r"swiglu: x: .* got builtins\.list"):
        bc.swiglu(p)
    with pytest.raises(ValueError, match="adamw: beta1"):
        plan(p, g, m, v, beta1=2.0, **STEP)


# On a device that is not there: kernels run in the emulator, on the memory of the tensors.


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, memory: Memory) -> Iterator[StubDevice]:
    device = install(monkeypatch)
    install_copies(monkeypatch, memory)
    from baracuda.backends.cuda import fast_call, launch

    def run(function: Any, *rest: Any) -> tuple[int]:
        x, y, _, threads, _, _, shared, _, at, _ = rest
        arguments = ctypes.c_void_p.from_address(at).value
        built = emulator.library((function,))
        getattr(built, function.symbol)(ctypes.c_void_p(arguments), x, y, threads, shared, 1)
        return device.launch(function)

    for module in (launch, fast_call):
        monkeypatch.setattr(module, "launch_kernel", run)
    fast_call._binder.cache_clear()
    bc.plan_cache.clear()
    yield device
    bc.plan_cache.clear()


DTYPES = {
    "f32": (torch.float32, None), "bf16": (torch.bfloat16, None),
    "bf16-f32": (torch.bfloat16, torch.float32), "f16-f32": (torch.float16, torch.float32),
    "f64": (torch.float64, None),
}  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_one_launch_takes_arrays_of_any_shape(
    device: StubDevice, memory: Memory, name: str
) -> None:
    arrays = drawn(0, *DTYPES[name])
    # One element off a vector's address, and a dense array whose axes are turned.
    for some in arrays:
        some[1] = torch.cat([some[1], some[1]])[3:8]
        some[4] = some[4].t().contiguous().t()
    want = one_by_one(lambda *x, **o: bc.adamw(*x, backend="array_api", **o), arrays, **STEP)
    plan = bc.adamw.plan(*arrays)
    got = plan(*arrays, **STEP)
    assert len(device.launched) == memory.copies == len(plan.skus) == 1
    assert "lists" in plan.skus[0].kernel
    for some, others in zip(got, want, strict=True):
        for x, y in zip(some, others, strict=True):
            assert x.dtype == y.dtype
            eps = torch.finfo(x.dtype).eps
            torch.testing.assert_close(x, y, rtol=4 * eps, atol=4 * eps)


def test_a_table_is_made_again_where_an_address_has_changed(
    device: StubDevice, memory: Memory
) -> None:
    arrays = drawn()
    plan, out = bc.adamw.plan(*arrays), (arrays[0], *arrays[2:])
    for step in range(3):
        plan(*arrays, out=out, lr=0.1, step=step + 1)
    assert (len(device.launched), memory.copies) == (3, 1)
    arrays[1][4] = arrays[1][4].clone()
    plan(*arrays, out=out, **STEP)
    assert memory.copies == 2
    # A parameter that moved is written where it is now.
    old = arrays[0][4]
    arrays[0][4] = old.clone()
    plan(*arrays, out=out, **STEP)
    assert memory.copies == 3
    assert not torch.equal(arrays[0][4], old)
    # New results are other addresses than those in place.
    want = [[x.clone() for x in some] for some in arrays]
    results = plan(*arrays, **STEP)
    assert memory.copies == 4
    same([arrays[0]], [want[0]])
    memory.busy = True
    plan(*arrays, out=out, **STEP)
    same(out, results)


def test_each_dtype_has_a_launch_and_all_have_one_copy(device: StubDevice, memory: Memory) -> None:
    both = [a + b for a, b in zip(drawn(), drawn(1, torch.bfloat16, torch.float32), strict=True)]
    plan = bc.adamw.plan(*both)
    got = plan(*both, **STEP)
    assert len(device.launched) == len(plan.skus) == 2
    assert memory.copies == 1
    halves = [[some[:7] for some in both], [some[7:] for some in both]]
    for half, at in zip(halves, (slice(7), slice(7, None)), strict=True):
        same([some[at] for some in got], bc.adamw(*half, **STEP))


def test_what_has_gaps_runs_by_itself(device: StubDevice, memory: Memory) -> None:
    arrays = drawn()
    arrays[0][0] = torch.rand(3, 80)[:, ::2]
    plan = bc.adamw.plan(*arrays)
    assert len(plan.skus) == 2
    got = plan(*arrays, **STEP)
    assert len(device.launched) == 2
    want = one_by_one(lambda *x, **o: bc.adamw(*x, backend="array_api", **o), arrays, **STEP)
    for x, y in zip(got[0], want[0], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)


def test_a_table_is_in_no_pool_of_a_library(
    device: StubDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lasts longer than a call would be lost memory to the graphs of torch.compile."""
    from baracuda.backends import cuda

    def asked(*what: Any) -> Any:
        raise AssertionError(f"a table is of memory of torch: {what}")

    monkeypatch.setattr(cuda._arrays("torch"), "workspace", asked)
    arrays = drawn()
    bc.adamw.plan(*arrays)(*arrays, **STEP)
    assert len(device.launched) == 1


def test_a_graph_keeps_its_table(device: StubDevice, memory: Memory) -> None:
    arrays, others = drawn(), drawn(1)
    plan = bc.adamw.plan(*arrays)
    outs = [(some[0], *some[2:]) for some in (arrays, others)]
    plan(*arrays, out=outs[0], **STEP)
    memory.capturing = True
    plan(*arrays, out=outs[0], **STEP)
    # The table was there: nothing was copied, and nothing else is written there any more.
    assert (memory.copies, len(memory.kept)) == (1, 0)
    plan(*others, out=outs[1], **STEP)
    assert (memory.copies, len(memory.kept)) == (1, 1)
    first = memory.kept[0].copy()
    memory.capturing = False
    plan(*arrays, out=outs[0], **STEP)
    assert memory.copies == 2
    np.testing.assert_array_equal(memory.kept[0], first)


def test_values_may_lie_on_the_device(
    device: StubDevice, memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baracuda.libraries.torch import Torch

    arrays = drawn()
    plan = bc.adamw.plan(*arrays)
    want = plan(*arrays, **STEP)
    monkeypatch.setattr(Torch, "readable", lambda self, x: False)
    held = {"lr": torch.tensor(0.1, dtype=torch.float64), "step": torch.tensor(3)}
    same(plan(*arrays, **held), want)
    assert "_reads_" in device.launched[-1].symbol
    # The first array may have no axes, or many elements along its first one.
    turned = [[*reversed(some)] for some in arrays]
    turned = [[some[4], *some[:4], *some[5:]] for some in turned]
    assert turned[0][0].shape == ()
    same(bc.adamw(*turned, **held), bc.adamw(*turned, **STEP))
    same(plan(*arrays, found_inf=torch.tensor(1.0), **held), [arrays[0], *arrays[2:]])


def test_memory_that_is_written_to_is_nobody_elses(device: StubDevice, memory: Memory) -> None:
    arrays = drawn()
    plan = bc.adamw.plan(*arrays)
    arrays[0][5] = arrays[0][0]
    plan(*arrays, **STEP)
    with pytest.raises(ValueError, match="adamw: out: expected memory of its own"):
        plan(*arrays, out=(arrays[0], *arrays[2:]), **STEP)


def test_only_rows_are_sent_again_and_overlaps_still_found(
    device: StubDevice, memory: Memory
) -> None:
    arrays = drawn()
    plan, out = bc.adamw.plan(*arrays), (arrays[0], *arrays[2:])
    plan(*arrays, out=out, **STEP)
    whole, memory.words = memory.words, 0
    arrays[1] = [x.clone() for x in arrays[1]]
    want = bc.adamw(*arrays, **STEP)
    memory.words = 0
    plan(*arrays, out=out, **STEP)
    same(out, want)
    # Four inputs, three outputs and a size for each array that has elements or not.
    assert memory.words == 8 * len(SHAPES) < whole
    arrays[1][5] = arrays[3][0].view(3, 40)
    with pytest.raises(ValueError, match="adamw: out: expected memory of its own"):
        plan(*arrays, out=out, **STEP)


def test_a_step_of_an_optimiser_walks_over_no_array(device: StubDevice, memory: Memory) -> None:
    def calls(count: int) -> int:
        params = [torch.zeros(3 + i % 2).requires_grad_() for i in range(count)]
        optimiser, found = bc.optim.AdamW(params), 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal found
            found += event in ("call", "c_call")

        for step in range(3):
            for p in params:
                p.grad = torch.ones_like(p)
            if step == 2:
                sys.setprofile(note)
            try:
                optimiser.step()
            finally:
                sys.setprofile(None)
        return found

    launched = len(device.launched)
    few, many = calls(8), calls(40)
    assert len(device.launched) - launched == 6
    # What calls a function for each array is a loop in C.
    assert many - few < 8


def test_master_weights_are_rounded_in_the_launch_that_moves_them(
    device: StubDevice, memory: Memory
) -> None:
    params = [x.requires_grad_() for x in drawn(0, torch.bfloat16)[0]]
    optimiser = bc.optim.AdamW(params, master_weights=True)
    for _ in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        optimiser.step()
    assert len(device.launched) == 2
    assert memory.copies <= 2
    assert "Copy" in device.launched[-1].symbol
    for p in params:
        master = optimiser.state[p]["master_param"]
        assert torch.equal(p.detach(), master.bfloat16())


def test_overlaps_are_found() -> None:
    lists = pytest.importorskip("baracuda.backends.cuda.lists")

    def found(*spans: tuple[int, int, bool]) -> bool:
        begins, sizes, written = map(np.asarray, zip(*spans, strict=True))
        return lists.overlap(begins.astype(np.uint64), sizes.astype(np.uint64), written)

    assert not found((0, 8, True), (8, 8, True), (16, 4, False))
    assert not found((0, 8, False), (0, 8, False), (4, 8, False))
    assert found((0, 8, True), (4, 8, False))
    assert found((0, 80, False), (8, 8, False), (40, 8, True))
    assert found((40, 8, True), (0, 80, False), (90, 8, False))
    assert not found((0, 0, True), (0, 8, True), (4, 0, True))


def test_a_table_has_every_chunk() -> None:
    schedule = pytest.importorskip("baracuda.backends.cuda.schedules.lists")
    sizes = [5, 0, 3 * schedule.ELEMENTS, schedule.ELEMENTS + 1, 0, 1]
    table = schedule.layout(sizes, 4)
    rows, parts = table.chunks & np.uint64(2**32 - 1), table.chunks >> np.uint64(32)
    assert rows.tolist() == [0, 2, 2, 2, 3, 3, 5]
    assert parts.tolist() == [0, 0, 1, 2, 0, 1, 0]
    words = np.zeros(table.rows_size, np.uint64)
    table.write(words, np.arange(18, dtype=np.uint64).reshape(6, 3), np.arange(6))
    assert words[:8].tolist() == [0, 1, 2, 5, 3, 4, 5, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_launch_and_one_more_sum_a_list(
    device: StubDevice, memory: Memory, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    arrays = [torch.randn(s).to(dtype) for s in (*SHAPES, (3, 33_001))]
    # One element off a vector's address.
    shifted = [torch.cat([x.flatten(), x.flatten()])[x.numel() :].reshape(x.shape) for x in arrays]
    plan = bc.sum_of_squares.plan(arrays)
    got = plan(arrays)
    assert len(device.launched) == 2
    assert memory.copies == len(plan.skus) == 1
    want = sum((x.double() ** 2).sum() for x in arrays)
    torch.testing.assert_close(
        got.double(), want, rtol=1e-5 if dtype.itemsize < 8 else 1e-13, atol=0
    )
    assert torch.equal(plan(shifted), got)
    arrays[4][1, 2] = torch.nan
    assert plan(arrays).isnan()


def test_sums_of_dtypes_are_added_up_together(device: StubDevice, memory: Memory) -> None:
    arrays = [torch.ones(3, 5), torch.ones(7).bfloat16(), torch.ones(4, 4)[:, ::2]]
    assert bc.sum_of_squares(arrays[:2]) == 22
    assert (len(device.launched), memory.copies) == (3, 1)
    assert bc.sum_of_squares(arrays) == 30
    assert bc.sum_of_squares([torch.ones(0, 2)]) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_launch_numbers_the_elements_of_each_array(
    device: StubDevice, memory: Memory, dtype: torch.dtype
) -> None:
    p, g, *_ = drawn(0, dtype)
    # One element off a vector's address: what is numbered is the element, not its vector.
    p[1], g[4] = torch.cat([p[1], p[1]])[3:8], torch.cat([g[4], g[4]]).flatten()[1:35001]
    g[4] = g[4].reshape(70, 500)
    options = {"lr": 2.0**-9, "stochastic_rounding": True, "seed": 5}
    got = bc.sgd(p, g, offset=3, **options)
    assert len(device.launched) == 1
    assert "StochasticRounding" in device.launched[0].symbol
    for i, (x, y, have) in enumerate(zip(p, g, got, strict=True)):
        want = bc.sgd(x, y, offset=3 + 2**32 * i, backend="array_api", **options)
        assert torch.equal(have, want), i
    # A set that runs by itself has its own words all the same.
    p[2], g[5] = p[2].clone(), torch.rand(3, 80).to(dtype)[:, ::2]
    got = bc.sgd(p, g, offset=3, **options)
    want = bc.sgd(p[5], g[5], offset=3 + 2**32 * 5, backend="array_api", **options)
    assert torch.equal(got[5], want)


@pytest.mark.parametrize("name", DTYPES)
def test_no_kernel_of_a_list_spills(device: StubDevice, name: str) -> None:
    from baracuda.backends.cuda import compiler

    for copy in (False, True):
        bc.adamw.plan(*drawn(0, *DTYPES[name]), copy=copy)
    bc.adamw.plan(*drawn(0, *DTYPES[name]), stochastic_rounding=True)
    bc.sum_of_squares.plan(drawn(0, DTYPES[name][0])[0])
    entries = [entry for entry in device.loaded if "_list" in entry.symbol]
    assert len(entries) == 4
    for entry in entries:
        found = compiler.usage(entry, "sm_90")
        assert (found.stack, found.spilled) == (0, 0), entry.symbol


@pytest.mark.parametrize("factor", [1.0, -0.75])
def test_arrays_in_place_are_left_alone_where_their_factor_is_1(
    device: StubDevice, factor: float
) -> None:
    quiet, loud = 0x7FC00001, 0x7F800001  # A product makes of this NaN the other one.
    bits = torch.full((20000,), loud, dtype=torch.int32)
    halves = torch.arange(-8, 8).bfloat16().reshape(2, 8)
    arrays, by = [bits.view(torch.float32), halves.clone()], torch.tensor(factor)
    plan = bc.scale_by.plan(arrays)
    plan(arrays, out=arrays, factor=by)
    assert len(device.launched) == len(plan.skus) == 2
    assert (bits == (loud if factor == 1 else quiet)).all()
    assert torch.equal(arrays[1], halves * factor)
    # What lies elsewhere is written.
    same([plan(arrays, factor=by)[1:]], [[halves * factor * factor]])


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_gradients_that_were_made_forward_are_scaled_in_one_launch(
    device: StubDevice, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    torch.manual_seed(0)
    leaves = [torch.randn(n).requires_grad_() for n in ((6, 8), (16, 8))]
    target = torch.arange(6)
    loss = bc.linear_cross_entropy(*leaves, target)
    before = len(device.launched)
    with monkeypatch.context() as on_device:
        on_device.setattr(torch.Tensor, "is_cuda", property(lambda x: True))
        got = torch.autograd.grad(loss, leaves, torch.tensor(factor))
    assert [x.symbol.split("_lists")[0] for x in device.launched[before:]] == ["scale_by_f32"]
    want = torch.nn.functional.cross_entropy(leaves[0] @ leaves[1].T, target) * factor
    for x, y in zip(got, torch.autograd.grad(want, leaves), strict=True):
        torch.testing.assert_close(x, y)
