"""Losses of rows without a GPU: every way of sharing a row, in two orders of threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import emulator
import lanes
import numpy as np
import pytest
from numpy.typing import NDArray

from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import plan, reduce, rows
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import Case
from baracuda.testing.bounds import tolerance
from baracuda.testing.cases import Call as Drawn
from baracuda.testing.cases import Subject, draw, tried

Array = NDArray[Any]
FACTS = DeviceFacts(0, "sm_90", 4, 232448)
DTYPES = ("float32", "bfloat16", "float16", "float64")
COSINE, TRIPLET = LOSSES = ("cosine_embedding_loss", "triplet_margin_loss")
OPS = [f"{loss}{back}" for loss in LOSSES for back in ("", "_backward")]
# Rows for a lane, for lanes, for a block, and longer than what a block holds.
LENGTHS = (3, 24, 1000, 20004)
HOWS = ("dense", "padded", "odd", "stepped")
POWERS = (1.0, 3.5, 0.5, math.inf)


class Trial(NamedTuple):
    """A call on arrays that lie in some way."""

    drawn: Drawn
    arrays: list[Array]
    add: bool
    steps: Steps


def cases(loss: str) -> Iterator[tuple[Case, tuple[str, ...]]]:
    """Problems, and how their arrays lie."""
    more: dict[str, Any] = {"margin": 0.1} if loss == COSINE else {"swap": True}
    for n in LENGTHS:
        rows = 70 if n < 100 else 3 if n < 5000 else 2
        hows = HOWS if n in (24, 1000) else ("dense", "odd") if n > 5000 else ("dense",)
        yield Case({"b": (rows,), "n": n}), hows
        yield Case({"b": (rows,), "n": n}, reduction="none", **more), hows[:2]
    if loss == TRIPLET:
        for p in POWERS:
            hows = HOWS if p == 3.5 else ("dense",)
            yield Case({"b": (2, 3), "n": 24}, p=p, reduction="none", **more), hows
        yield Case({"b": (3,), "n": 1000}, p=3.5, reduction="sum"), HOWS
        yield Case({"b": (1,), "n": 20004}, p=3.5, reduction="sum"), ("dense", "odd")


def trial(drawn: Drawn, how: str, index: str = "int64") -> Trial:
    spec = drawn.subject.spec
    known = {n: drawn.arrays[n] for n in drawn.form.names}
    arrays = [
        emulator.lying(x.astype(index) if n in spec.integers else x, how) for n, x in known.items()
    ]
    options = {k: v for k, v in drawn.options.items() if k not in spec.scalars}
    problem = check.problem(spec, arrays, options, DEFAULT)
    outs, add = tuple(map(strides_of, problem.outputs)), how == "padded" and spec.accumulates
    call = Call(problem, FACTS, outs, add, alignment=1 if how == "odd" else 16)
    return Trial(drawn, arrays, add, plan(call))


@cache
def trials(op: str, dtype: str) -> tuple[Trial, ...]:
    subject, out = Subject(op, "cuda", "numpy", dtype), []
    for case, hows in cases(op.removesuffix("_backward")):
        for _, form in tried(subject.spec, (case,)):
            drawn = Drawn(subject, case, form, draw(subject.spec, case, form, dtype))
            out += [trial(drawn, how, ("int64", "int32")[how == "odd"]) for how in hows]
    return tuple(out)


@cache
def entries(dtype: str) -> tuple[Entry, ...]:
    """Every kernel of these, compiled together."""
    every = [one.steps for op in OPS for one in trials(op, dtype)]
    return tuple({s.entry.symbol: s.entry for steps in every for s in steps.kernels}.values())


def computed(one: Trial, dtype: str, seed: int = 0) -> list[Array]:
    drawn = zip(one.drawn.reference(), one.drawn.dtypes, strict=True)
    outs = [emulator.empty(x.shape, kind) for x, kind in drawn]
    for x in outs:
        x[...] = 0.5 if one.add else x
    scalars = [float(x) for x in one.drawn.scalars.values()]
    emulator.run(entries(dtype), one.steps, [*one.arrays, *outs], seed, scalars)
    return outs


@pytest.mark.parametrize(("op", "dtype"), lanes.turns(OPS, DTYPES, DTYPES[:2]))
def test_losses_of_rows_are_those_of_the_body(op: str, dtype: str) -> None:
    small = named(named(dtype).accumulate).eps
    for one in trials(op, dtype):
        # Distances are so large, of which a loss is the difference.
        large = one.drawn.case.axes["n"] ** 0.5 * (op == TRIPLET)
        first, second = (computed(one, dtype, seed) for seed in (0, 1))
        most = tolerance(one.drawn)
        for x, again, want, slack in zip(first, second, one.drawn.reference(), most, strict=True):
            assert x.tobytes() == again.tobytes()
            want = want + 0.5 * one.add
            slack = 4 * slack + 8 * small * large
            slack = slack + one.add * named(dtype).eps * (np.abs(want) + 0.5)
            error = np.abs(x.astype(np.float64) - want)
            assert np.all(error <= slack), (one.drawn.case, one.drawn.form.text, error.max())


def edges(loss: str) -> list[Array]:
    """Rows that are equal, zero, tied, at the margin, huge, infinite or NaN."""
    rng = np.random.default_rng(0)
    count = 2 + (loss == TRIPLET)
    rows = [rng.standard_normal((12, 24)).astype(np.float32) for _ in range(count)]
    rows[1][0] = rows[0][0]
    rows[0][1] = 0
    rows[-1][2] = rows[0][2]
    rows[0][3, 5] = np.nan
    rows[1][4, 0], rows[-1][5, 1] = np.inf, -np.inf
    for x in rows:
        x[6] = 0
        x[7] = np.sign(x[7])
        x[8] *= 1e15
        x[9] *= 1e-4
    rows[1][10] = rows[-1][10]
    return rows if loss == TRIPLET else [*rows, rng.integers(-1, 2, 12)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("loss", "p", "swap"),
    [(COSINE, 2.0, False), *product((TRIPLET,), (2.0, *POWERS), (False, True))],
)
def test_edges_give_what_the_body_gives(loss: str, p: float, swap: bool) -> None:
    options: dict[str, Any] = {"reduction": "none"}
    scalars: dict[str, float] = {"margin": 1.0}
    if loss == TRIPLET:
        options["p"] = p
        scalars |= {"eps": 0.0, "swap": swap}
    rows = edges(loss)
    for op in (loss, f"{loss}_backward"):
        spec = registry[op].spec
        dloss = [np.linspace(-1, 2, 12).astype(np.float32)] * (op != loss)
        given = [emulator.placed(x) for x in (*dloss, *rows)]
        problem = check.problem(spec, given, options, DEFAULT)
        steps = plan(Call(problem, FACTS, tuple(map(strides_of, problem.outputs))))
        wide = [x.astype(np.float64) if x.dtype.kind == "f" else x for x in given]
        want = registry[op](*wide, **options, **scalars, backend="array_api")
        want = want if isinstance(want, tuple) else (want,)
        outs = [emulator.empty(x.shape, "float32") for x in want]
        run = [float(x) for x in scalars.values()]
        emulator.run(entries("float32"), steps, [*given, *outs], 0, run)
        for x, y in zip(outs, want, strict=True):
            bad = ~np.isclose(x, y, rtol=2e-5, atol=2e-6, equal_nan=True)
            assert not bad.any(), (op, np.argwhere(bad).tolist(), x[bad], y[bad])


def test_blocks_that_leave_sums_take_several_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(reduce.TUNINGS, "sm_90", reduce.SM_90._replace(sums=2))
    monkeypatch.setattr(rows, "PROCESSORS", 1)
    for loss in LOSSES:
        subject = Subject(loss, "cuda", "numpy", "float32")
        for case, most in ((Case({"b": (500,), "n": 24}), 2), (Case({"b": (40,), "n": 1000}), 16)):
            form = next(f for _, f in tried(subject.spec, (case,)))
            drawn = Drawn(subject, case, form, draw(subject.spec, case, form, "float32"))
            one = trial(drawn, "dense")
            assert one.steps.kernels[0].grid[0] <= most
            (got,), (want,) = computed(one, "float32"), drawn.reference()
            assert abs(got - want) <= 1e-6 * abs(want)


@pytest.mark.parametrize("n", [0, 5])
@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize(("reduction", "none"), [("mean", np.nan), ("sum", 0.0)])
def test_nothing_has_no_mean_and_rows_of_nothing_are_alike(
    rows: int, n: int, reduction: str, none: float
) -> None:
    x, label = np.ones((rows, n), np.float32), np.ones(rows, np.int64)
    for loss, given in ((COSINE, [x, x, label]), (TRIPLET, [x, x, x])):
        problem = check.problem(registry[loss].spec, given, {"reduction": reduction}, DEFAULT)
        steps = plan(Call(problem, FACTS, ((),)))
        out = emulator.empty((), "float32")
        scalars = [0.0] if loss == COSINE else [1.0, 0.0, 0.0]
        emulator.run(entries("float32"), steps, [*given, out], 0, scalars)
        each = 1.0 if loss == TRIPLET or not n else 0.0
        want = none if not rows else each * (1 if reduction == "mean" else rows)
        assert np.allclose(out, np.float32(want), atol=1e-6, equal_nan=True)
