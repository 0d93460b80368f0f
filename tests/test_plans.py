"""Plans: what they are tied to, options in force, routes, and a backend from outside."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import baracuda as bc
from baracuda import backends, layouts
from baracuda.calls import body
from baracuda.calls.op import Op, registry
from baracuda.calls.recent import Known
from baracuda.calls.routes import routes
from baracuda.declaration.backend import Misfit, Prepared
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.libraries import library_of

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)


def test_a_plan_holds_no_array() -> None:
    plan = bc.swiglu.plan(X)
    assert not any(isinstance(getattr(plan, name), np.ndarray) for name in plan.__slots__)


def test_another_layout_runs_through_the_sibling_plan() -> None:
    plan = bc.swiglu.plan(X)
    views = np.asfortranarray(X), np.repeat(X, 2, axis=1)[:, ::2], X[::-1][::-1]
    for view in views:
        assert np.array_equal(plan(view), bc.swiglu(X))
    result = plan(views[0])
    assert result.flags.f_contiguous


def test_a_sibling_keeps_the_options_of_its_plan() -> None:
    plan = bc.swiglu.plan(X, axis=0 - 1, gate_first=True, backend="array_api")
    view = np.asfortranarray(X)
    assert np.array_equal(plan(view), bc.swiglu(X, gate_first=True))
    sibling = bc.swiglu.plan(view, gate_first=True, backend="array_api")
    assert sibling is not plan
    assert sibling.sku.backend == "array_api"


def test_plans_differ_by_what_is_structural_only() -> None:
    plan = bc.lerp.plan(X, X)
    assert bc.lerp.plan(X, X, weight=0.1) is plan
    np.testing.assert_array_equal(plan(X, 3 * X, weight=1), 3 * X)


def test_in_place_where_the_op_says_so() -> None:
    a, b = X.copy(), 2 * X
    want = bc.lerp(a, b, weight=0.25)
    assert bc.lerp.plan(a, b)(a, b, weight=0.25, out=a) is a
    np.testing.assert_array_equal(a, want)


def test_in_place_on_large_arrays_and_threads() -> None:
    a = np.random.default_rng(0).standard_normal((512, 1024), dtype=np.float32)
    b = a[::-1].copy()
    want = bc.lerp(a, b, weight=0.75)
    bc.lerp.plan(a, b)(a, b, weight=0.75, out=b)
    np.testing.assert_array_equal(b, want)


def test_blocks_give_the_bits_of_the_whole() -> None:
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((300, 1024)), rng.standard_normal((300, 512))
    plan = bc.geglu_backward.plan(dy, x)
    assert "blocks" in plan.sku.variant
    np.testing.assert_array_equal(plan(dy, x), bc.geglu_backward(dy, x, backend="array_api"))
    packed_first = bc.geglu_backward(dy, x, gate_first=True)
    whole = bc.geglu_backward(dy, x, gate_first=True, backend="array_api")
    np.testing.assert_array_equal(packed_first, whole)


PACKED = [name for name, f in registry.items() if f.spec.packed and not f.spec.adjoint_of]


@pytest.mark.parametrize("op", PACKED)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_of_a_packed_array_are_as_wide_as_whole_arrays(op: str, dtype: type) -> None:
    rng = np.random.default_rng(0)
    f, backward = registry[op], registry[f"{op}_backward"]
    x, dy = (rng.standard_normal((300, n)).astype(dtype) for n in (1024, 512))
    assert "blocks" in f.plan(x).sku.variant
    np.testing.assert_array_equal(f(x), f(x[:, :512], x[:, 512:]))
    np.testing.assert_array_equal(f(x), f(x, backend="array_api"))
    split = backward(dy, x[:, :512], x[:, 512:])
    np.testing.assert_array_equal(backward(dy, x), np.concatenate(split, axis=1))
    np.testing.assert_array_equal(backward(dy, x), backward(dy, x, backend="array_api"))


def test_blocks_along_a_middle_axis_and_with_positions() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 70, 15, 128), dtype=np.float32)
    for positions in (
        None,
        np.arange(70),
        rng.integers(0, 9999, (3, 70, 1)),
        rng.integers(0, 9, (1, 70, 15)),
    ):
        got = bc.rope(x, positions, seq_axis=1)
        assert "blocks" in bc.rope.plan(x, positions, seq_axis=1).sku.variant
        np.testing.assert_array_equal(got, bc.rope(x, positions, seq_axis=1, backend="array_api"))
    g = rng.standard_normal((4, 6, 16384), dtype=np.float32)
    np.testing.assert_array_equal(bc.glu(g, axis=1), bc.glu(g, axis=1, backend="array_api"))


def test_options_hold_for_a_block_and_keywords_win() -> None:
    with bc.options(backend="array_api"):
        assert bc.swiglu.plan(X).sku.backend == "array_api"
        assert bc.swiglu.plan(X, backend="numpy").sku.backend == "numpy"
        with bc.options(backend=None, deterministic=True):
            assert bc.swiglu.plan(X).sku.backend == "numpy"
    assert bc.swiglu.plan(X).sku.backend == "numpy"
    # A call that repeats the last one is no way past a block.
    bc.plan_cache.clear()
    for _ in range(3):
        bc.swiglu(X)
    with bc.options(backend="array_api"):
        bc.swiglu(X)
    assert bc.plan_cache.info().misses == 2


def test_options_hold_in_their_own_thread_only() -> None:
    seen: list[str] = []
    with bc.options(backend="array_api"):
        thread = threading.Thread(target=lambda: seen.append(bc.swiglu.plan(X).sku.backend))
        thread.start()
        thread.join()
    assert seen == ["numpy"]


def test_a_recorded_choice_is_made_again() -> None:
    sku = bc.swiglu.plan(X, backend="array_api").sku
    for spelling in (sku, sku.to_json()):
        assert bc.swiglu.plan(X, sku=spelling).sku == sku


@pytest.mark.parametrize("by_block", [False, True])
def test_the_record_of_watched_tensors_is_made_again(by_block: bool) -> None:
    x = torch.ones(2, 8, requires_grad=True)
    sku = bc.swiglu.plan(x).sku
    if by_block:
        with bc.options(sku=sku):
            assert bc.swiglu.plan(x).sku == sku
    else:
        assert bc.swiglu.plan(x, sku=sku).sku == sku


def test_the_record_of_a_block_is_for_the_calls_in_it_alone() -> None:
    """Not for the plan of another layout, for gradients, nor for what an op is made of."""
    plan, known = bc.reglu.plan(X), bc.reglu(X)
    with bc.options(sku=bc.swiglu.plan(X).sku):
        assert np.array_equal(plan(np.asfortranarray(X)), known)
    x = torch.ones(2, 8, requires_grad=True)
    with bc.options(sku=bc.swiglu.plan(x).sku):
        bc.swiglu(x).sum().backward()
    assert x.grad is not None
    y = jnp.ones((2, 8))
    with bc.options(sku=bc.swiglu.plan(y).sku):
        assert jax.grad(lambda y: bc.swiglu(y).sum())(y).shape == y.shape
    given = X, np.ones((5, 8), np.float32), np.asarray([0, 4, 2])
    with bc.options(sku=bc.linear_cross_entropy.plan(*given).sku):
        inside = bc.linear_cross_entropy(*given)
    assert np.array_equal(inside, bc.linear_cross_entropy(*given))


class _Doubling:
    """A backend from outside that takes float32 lerps and runs the body."""

    name = "doubling"

    def claims(self, spec: OpSpec, library: str) -> Sequence[str]:
        return ("float32",)

    def check_errors(self) -> None:
        pass

    def refuses(self, problem: Problem) -> str | None:
        return None if problem.dtype == "float32" else "takes float32 only"

    def prepare(self, problem: Problem) -> Prepared:
        return Prepared(body.runner(problem), "outside", "", "any", body.precision(problem), 1024)


@pytest.fixture
def outside() -> Iterator[None]:
    module = types.ModuleType("outside_backend")
    module.BACKEND = _Doubling()  # type: ignore[attr-defined]
    sys.modules["outside_backend"] = module
    backends.register("doubling", backends.Entry("outside_backend", ("numpy",)), before="numpy")
    yield
    backends.unregister("doubling")
    del sys.modules["outside_backend"]


@pytest.mark.usefixtures("outside")
def test_a_backend_slots_in_without_touching_an_op() -> None:
    assert bc.lerp.plan(X, X).sku.backend == "doubling"
    wide = X.astype(np.float64)
    plan = bc.lerp.plan(wide, wide)
    assert plan.sku.backend == "numpy"
    assert ("doubling", "takes float32 only") in plan.why
    with pytest.raises(
        NotImplementedError, match="'doubling' refuses: doubling: takes float32 only"
    ):
        bc.lerp(wide, wide, weight=0.5, backend="doubling")


def test_backends_that_come_and_go_take_hold_of_calls_that_were_planned(
    request: pytest.FixtureRequest,
) -> None:
    def planned() -> str:
        bc.lerp(X, X, weight=0.5)
        return bc.lerp.plan(X, X).sku.backend

    assert planned() == "numpy"
    request.getfixturevalue("outside")
    assert planned() == "doubling"
    entry = backends._ENTRIES["doubling"]
    backends.unregister("doubling")
    assert planned() == "numpy"
    backends.register("doubling", entry, before="numpy")
    assert planned() == "doubling"
    # Of a function alone, which repeats its last call without a look at the cache.
    bc.lerp(X, X, weight=0.5)
    backends.unregister("doubling")
    misses = bc.plan_cache.info().misses
    bc.lerp(X, X, weight=0.5)
    assert bc.plan_cache.info().misses == misses + 1
    backends.register("doubling", entry, before="numpy")


@pytest.mark.parametrize("place", ["nowhere", "numpy"])
def test_a_backend_cannot_go_before_what_is_not_there(place: str) -> None:
    before = backends.names()
    with pytest.raises(ValueError, match=f"expected one of .*, got '{place}'"):
        backends.register("numpy", backends._ENTRIES["numpy"], before=place)
    with pytest.raises(KeyError):
        backends.unregister("nowhere")
    assert backends.names() == before


@pytest.mark.usefixtures("outside")
def test_a_plan_that_needs_too_much_workspace_is_passed_over() -> None:
    plan = bc.lerp.plan(X, X, max_workspace_bytes=1000)
    assert plan.sku.backend == "numpy"
    assert ("doubling", "needs 1024 bytes of workspace, max_workspace_bytes is 1000") in plan.why
    assert bc.lerp.plan(X, X).workspace_size == 1024


@pytest.mark.usefixtures("outside")
def test_a_backend_may_go_while_a_plan_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = backends._ENTRIES["doubling"]

    # What another thread does, where this one has just asked.
    def going(self: _Doubling, problem: Problem) -> None:
        backends.unregister("doubling")

    monkeypatch.setattr(_Doubling, "refuses", going)
    assert bc.lerp(X, X, weight=0.5).tolist() == X.tolist()
    assert bc.lerp.plan(X, X).sku.backend == "numpy"
    backends.register("doubling", entry, before="numpy")


class _Behind(_Doubling):
    """A backend that writes into memory of tensors, as kernels do, behind the back of torch."""

    def prepare(self, problem: Problem) -> Prepared:
        def run(arrays: Any, outs: Any, accumulate: bool, scalars: Any) -> Any:
            outs[0].detach().numpy()[...] = 7
            return outs[0]

        return super().prepare(problem)._replace(run=run)


def test_autograd_knows_of_outputs_that_were_written_behind_its_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("backend_behind")
    module.BACKEND = _Behind()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "backend_behind", module)
    backends.register("behind", backends.Entry("backend_behind", ("torch",)), before="torch")
    try:
        x, fresh = torch.zeros(3, requires_grad=True), torch.zeros(3)
        y = torch.exp(x)
        plan = bc.lerp.plan(fresh, fresh)
        assert plan(fresh, fresh, weight=0.5, out=y.detach())[0] == 7
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        with torch.inference_mode():
            hidden = torch.zeros(3)
        assert plan(fresh, fresh, weight=0.5, out=hidden) is hidden
    finally:
        backends.unregister("behind")


def test_an_output_whose_memory_has_other_values_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x, out = torch.ones(3), torch.zeros(3)
    plan, library = bc.relu.plan(x), library_of(x)
    lazy = library.describe(out)._replace(alignment=0)
    monkeypatch.setattr(library, "describe", lambda x: lazy)
    with pytest.raises(ValueError, match="got a lazily conjugated or negated view"):
        plan(x, out=out)
    assert not out.any()


class _Echo:
    """A route that notes what it was handed."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def takes(self, op: Op[Any, Any], arrays: Sequence[Any], mode: str) -> bool:
        self.seen.append((op.spec.name, mode))
        return mode == "traced"

    def call(self, op: Op[Any, Any], arrays: Sequence[Any], options: dict[str, Any]) -> Any:
        return "routed", options


def test_a_route_takes_the_calls_of_its_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    t = torch.ones(2, 4, requires_grad=True)
    assert bc.swiglu(t).grad_fn is not None
    echo = _Echo()
    monkeypatch.setitem(routes, "torch", echo)
    with FlopCounterMode(display=False):
        assert bc.swiglu(t, axis=1) == ("routed", {"axis": 1})
        assert bc.swiglu(t) == ("routed", {})
        assert bc.lerp(t, t, weight=0.5) == ("routed", {"weight": 0.5})
    assert echo.seen == [("swiglu", "traced"), ("swiglu", "traced"), ("lerp", "traced")]
    assert torch.is_tensor(bc.swiglu(t))
    with torch.no_grad():
        assert torch.is_tensor(bc.swiglu(t))


def test_a_plan_of_watched_tensors_is_not_one_for_a_block_without_gradients() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 6, requires_grad=True)
    plan = bc.swiglu.plan(x)
    bc.swiglu(x)
    # Before and after the quicker way takes over.
    for _ in range(3):
        assert plan.matches((x,))
        with torch.no_grad():
            assert not plan.matches((x,))
            assert not plan(x).requires_grad
            assert bc.swiglu.planned(x)[1] is not plan


def test_a_plan_made_without_gradients_is_not_one_for_watched_tensors() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 6, requires_grad=True)
    with torch.no_grad():
        plan = bc.swiglu.plan(x)
    # Before and after the quicker way takes over.
    assert not plan.matches((x,))
    assert plan.matches((x.detach(),))
    assert not plan.matches((x,))
    assert plan.matches((x.detach(),))
    assert not plan.matches((x.detach().T.contiguous().T,))
    assert plan(x).requires_grad


def test_a_call_with_options_repeats_the_last_one_only_where_they_are_the_same() -> None:
    x = np.arange(24.0).reshape(4, 6)
    first, second = x[:2], x[2:]
    for _ in range(3):
        assert np.array_equal(bc.glu(x, axis=0), bc.glu(first, second))
        assert np.array_equal(bc.glu(x, axis=0, gate_first=True), bc.glu(second, first))
    misses = bc.plan_cache.info().misses
    for _ in range(3):
        bc.glu(x, axis=0, gate_first=True)
    assert bc.plan_cache.info().misses == misses
    for wrong in (1, np.ones(2), [True]):
        with pytest.raises(TypeError, match="gate_first"):
            bc.glu(x, axis=0, gate_first=wrong)  # type: ignore[arg-type]


def test_arrays_that_lie_differently_are_looked_up_before_they_are_planned_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the quick comparison does not see is refused by the plan, and costs one look."""
    calls: list[str] = []
    known = bc.tanhshrink.plan(X)

    class Narrow:
        def run(self, *_: Any) -> Any:
            raise Misfit

    bc.tanhshrink(X)
    op: Any = bc.tanhshrink
    guess = Known(Narrow(), bc.plan_cache.generation)
    guess.matches = lambda arrays: True
    monkeypatch.setattr(op._recent, "last", guess)
    monkeypatch.setattr(type(op), "_find", lambda *_: calls.append("find"))
    assert np.array_equal(bc.tanhshrink(X), known(X))
    assert op._recent.last.plan is known
    assert not calls


SHUT_DOWN = """
import atexit, threading, time
import numpy as np
import baracuda as bc

x = np.ones((2048, 4096), np.float32)
bc.relu(x)


def late():
    time.sleep(0.5)
    assert bc.relu(x)[0, 0] == 1
    print("thread", flush=True)


atexit.register(lambda: print("exit", bc.relu(x)[0, 0], flush=True))
threading.Thread(target=late).start()
"""


def test_arrays_in_blocks_are_computed_while_the_interpreter_shuts_down() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHUT_DOWN], capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["thread", "exit", "1.0"], "")


@pytest.mark.parametrize(
    ("shape", "strides", "apart"),
    [
        ((3, 2), (2, 3), True),
        ((3, 2), (2, 2), False),
        ((2, 3), (3, 2), True),
        ((4, 2), (2, 6), False),
        ((5, 1), (-3, 7), True),
    ],
)
def test_rows_that_interlock_are_apart_where_no_element_is_two(
    shape: tuple[int, int], strides: tuple[int, int], apart: bool
) -> None:
    room = np.zeros(64, np.float32)[16:]
    steps = (strides[0] * 4, strides[1] * 4)
    out = np.lib.stride_tricks.as_strided(room, shape, steps)
    x = np.ones(shape, np.float32)
    plan = bc.relu.plan(x)
    if apart:
        plan(x, out=out)
        assert np.array_equal(out, x)
    else:
        with pytest.raises(ValueError, match="overlaps itself"):
            plan(x, out=out)


def test_a_plan_runs_arrays_that_lie_less_aligned_by_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = bc.tanhshrink.plan(X)

    def narrow(*_: Any) -> Any:
        raise Misfit

    misled = plan.through(narrow)
    fitting = type(plan).fitting
    monkeypatch.setattr(
        type(plan), "fitting", lambda self, x: plan if self is misled else fitting(self, x)
    )
    assert np.array_equal(misled(X), plan(X))


def test_blocks_add_into_what_is_there() -> None:
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((300, 1024)), rng.standard_normal((300, 512))
    plan, out = bc.swiglu_backward.plan(dy, x), np.ones((300, 1024))
    assert "blocks" in plan.sku.variant
    plan(dy, x, out=out, accumulate=True)
    np.testing.assert_array_equal(out, 1 + plan(dy, x))


def test_blocks_neither_warn_nor_raise() -> None:
    x = np.full((1024, 1024), 3e38, np.float32)
    with np.errstate(all="raise"):
        assert np.isinf(bc.swiglu(x, x)).all()


def test_what_is_too_costly_to_decide_counts_as_an_overlap() -> None:
    # Whether two of these elements share memory is a matter of many sums of strides.
    shape = (2, 3, 2, 2, 3, 2, 3, 3, 2, 3)
    steps = (
        378079184, 414446720, 494062172, 824513057, 615979757, 37263684, 230847984, 889051402,
        140381385, 47553266,
    )  # fmt: skip
    assert layouts.overlap((1 << 40, shape, steps, 1), ((1 << 40) + 12345678, shape, steps, 1))
    assert not layouts.overlap((1 << 40, (9,), (4,), 4), ((1 << 40) + 36, (9,), (4,), 4))


def test_a_sku_says_how_the_inputs_lie() -> None:
    x = np.ones((4, 6))
    for view, layout in ((x, "contiguous"), (x.T, "dense"), (x[:, ::2], "strided")):
        assert bc.relu.plan(view).sku.layout == layout


@pytest.mark.parametrize("make", [np.asarray, torch.asarray])
def test_some_outputs_may_be_given_and_others_made(make: Any) -> None:
    rng = np.random.default_rng(3)
    dy, x, w = (make(rng.standard_normal(s).astype(np.float32)) for s in ((4, 8), (4, 8), (8,)))
    plan = bc.rms_norm_backward.plan(dy, x, w)
    want, total = plan(dy, x, w), make(np.zeros(8, np.float32))
    dx, dw = plan(dy, x, w, out=(None, total))
    assert dw is total
    for got, exact in zip((dx, dw), want, strict=True):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(exact))
    with pytest.raises(ValueError, match=r"out \(dx\): expected an array to add into, got None"):
        plan(dy, x, w, out=(None, total), accumulate=True)
