"""Negative log-likelihood without a GPU: every way rows lie, on fibers, against float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.index_errors import Record
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import nll_loss, plan
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import named

Array = NDArray[Any]
FACTS = DeviceFacts(0, "sm_90", 4, 232448)
OPS = ("nll_loss", "nll_loss_backward")


@dataclass(frozen=True)
class Trial:
    """The shape of x, where its classes are, what becomes of losses, and how all lies."""

    shape: tuple[int, ...]
    axis: int = -1
    reduction: str = "mean"
    weighted: bool = False
    dtype: str = "float32"
    index: str = "int64"
    step: int = 1

    @property
    def rows(self) -> tuple[int, ...]:
        axis = self.axis % len(self.shape)
        return (*self.shape[:axis], *self.shape[axis + 1 :])

    @property
    def options(self) -> dict[str, Any]:
        return {"axis": self.axis, "reduction": self.reduction, "ignore_index": 1}


TRIALS = {
    "few classes": Trial((1300, 3)),
    "weights": Trial((300, 40), weighted=True),
    "each, weights": Trial((7, 90, 8), reduction="none", weighted=True, dtype="bfloat16"),
    "sum, bf16": Trial((33, 520), reduction="sum", dtype="bfloat16", index="int32"),
    "odd, f16": Trial((33, 21), dtype="float16", weighted=True),
    "f64": Trial((40, 30), dtype="float64", weighted=True),
    "steps": Trial((20, 24), weighted=True, step=2),
    "across": Trial((2, 37, 40), 1, weighted=True),
    "across, each, bf16": Trial((2, 21, 8, 8), 1, "none", True, "bfloat16", "int32"),
    "across, odd": Trial((3, 16, 7), 1, "sum"),
    "across, steps": Trial((2, 5, 8), 1, "none", step=2),
    "classes first": Trial((5, 300), 0, weighted=True),
    "one row": Trial((9,)),
    "one class": Trial((6, 1, 4), 1),
    "no classes": Trial((6, 0)),
    "no rows": Trial((0, 5)),
}

PAIRS = lanes.turns(TRIALS, OPS)
ADDED = ("weights", "sum, bf16", "across", "across, odd")
TOLD = ("weights", "across, each, bf16", "classes first")


def laid(x: Array, step: int) -> Array:
    """A copy with `step` - 1 elements behind each along the last axis, between guarded pages."""
    if step == 1 or not x.ndim:
        return emulator.placed(x)
    wide = emulator.empty((*x.shape[:-1], x.shape[-1] * step), x.dtype.name)
    wide[..., ::step] = x
    return wide[..., ::step]


@cache
def arrays_of(how: Trial) -> dict[str, Array]:
    rng = np.random.default_rng(len(how.shape))
    kind = np.dtype(getattr(ml_dtypes, how.dtype, how.dtype))
    v, each = how.shape[how.axis], how.reduction == "none"
    out = {
        "x": rng.standard_normal(how.shape).astype(kind),
        "dloss": rng.standard_normal(how.rows if each else ()).astype(kind),
        "target": np.asarray(rng.integers(0, max(v, 1), how.rows), how.index),
    }
    if how.weighted:
        out["weight"] = rng.uniform(0.5, 2, v).astype(kind)
    return {n: laid(x, how.step) for n, x in out.items()}


def given(op: str, how: Trial) -> list[Array]:
    known = arrays_of(how)
    return [known[n] for n in registry[op].spec.arrays if n in known]


def options(op: str, how: Trial) -> dict[str, Any]:
    return how.options | ({"x_shape": how.shape} if op == "nll_loss_backward" else {})


def call_of(op: str, how: Trial, add: bool = False, listener: int = 0) -> Call:
    spec = registry[op].spec
    problem = check.problem(spec, given(op, how), options(op, how), DEFAULT)
    outs = tuple(strides_of(x) for x in problem.outputs)
    return Call(problem, FACTS, outs, add, listener=listener, ticket=7)


@cache
def entries() -> tuple[Entry, ...]:
    every = [call_of(op, TRIALS[name]) for name, op in lanes.tried(PAIRS)]
    every += [call_of(op, TRIALS[name]) for op in OPS for name in TOLD]
    every += [call_of(OPS[1], TRIALS[name], add=True) for name in ADDED]
    found = {step.entry.symbol: step.entry for call in every for step in plan(call).kernels}
    return tuple(found.values())


def body(op: str, how: Trial, **more: Array) -> Array:
    known = {**arrays_of(how), **more}
    wide = [
        x if x.dtype.kind == "i" else x.astype(np.float64)
        for n in registry[op].spec.arrays
        if (x := known.get(n)) is not None
    ]
    out: Array = registry[op](*wide, **options(op, how), mode="drop", backend="array_api")
    return out


def close(got: Array, exact: Array, how: Trial) -> None:
    eps, fine = named(how.dtype).eps, named(named(how.dtype).accumulate).eps
    most = (0.5 * eps + 16 * fine) * np.abs(exact) + 16 * fine + 2.0**-24 * (how.dtype == "float16")
    error = np.abs(got.astype(np.float64) - exact)
    assert np.all((error <= most) | (np.isnan(got) & np.isnan(exact)))


def dtype_of(op: str, how: Trial) -> str:
    """Of the result: losses of 16 bits are float32."""
    return named(how.dtype).accumulate if op == "nll_loss" else how.dtype


def run(op: str, how: Trial, steps: Steps, out: Array, seed: int = 0) -> None:
    emulator.run(entries(), steps, [*given(op, how), out], seed)


@pytest.mark.parametrize(("name", "op"), PAIRS)
def test_every_way_gives_what_the_body_gives(
    op: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = nll_loss.SM_90._replace(sums=3, counted_rows=5, parts=2)
    monkeypatch.setitem(nll_loss.TUNINGS, "sm_90", few)
    how, seen = TRIALS[name], []
    exact, steps = body(op, how), plan(call_of(op, how))
    for seed in (0, 1):
        out = emulator.empty(exact.shape, dtype_of(op, how))
        run(op, how, steps, out, seed)
        close(out, exact, how)
        seen.append(out.tobytes())
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ADDED)
def test_gradients_add_into_what_is_there(name: str) -> None:
    op, how = "nll_loss_backward", TRIALS[name]
    out = emulator.empty(how.shape, how.dtype)
    out[...] = 0.5
    run(op, how, plan(call_of(op, how, add=True)), out)
    close(out, body(op, how) + 0.5, how)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", TOLD)
def test_targets_out_of_range_are_reported_and_cost_nothing(op: str, name: str) -> None:
    how, record = TRIALS[name], Record()
    known = arrays_of(how)
    bad = emulator.placed(known["target"])
    bad.flat[2] = how.shape[how.axis]
    steps = plan(call_of(op, how, listener=emulator.ctypes.addressof(record)))
    exact = body(op, how, target=bad)
    out = emulator.empty(exact.shape, dtype_of(op, how))
    arrays = [bad if x is known["target"] else x for x in given(op, how)]
    emulator.run(entries(), steps, [*arrays, out])
    assert (record.state, record.ticket) == (2, 7)
    assert (record.value, record.position) == (bad.flat[2], 2)
    close(out, exact, how)


def test_what_does_not_count_may_be_anything() -> None:
    how = TRIALS["weights"]
    x, weight = np.full(how.shape, np.inf, np.float32), np.ones(how.shape[-1], np.float32)
    target = np.full(how.rows, 1)
    target[0], x[0, 2], weight[1] = 2, -1.5, np.nan
    out = emulator.empty((), "float32")
    arrays = [emulator.placed(a) for a in (x, target, weight)]
    emulator.run(entries(), plan(call_of("nll_loss", how)), [*arrays, out])
    assert out == 1.5


@pytest.mark.parametrize("where", ["kernel", "body"])
def test_weights_of_no_normal_size_share_a_mean(where: str) -> None:
    """Their sum has no finite reciprocal."""
    op, how = "nll_loss_backward", TRIALS["weights"]
    weight = np.full(how.shape[-1], 1e-42, np.float32)
    known = arrays_of(how)
    arrays = [weight if x is known["weight"] else x for x in given(op, how)]
    exact = body(op, how, weight=weight)
    if where == "kernel":
        out = emulator.empty(exact.shape, dtype_of(op, how))
        emulator.run(entries(), plan(call_of(op, how)), [*arrays, out])
    else:
        out = registry[op](*arrays, **options(op, how))
    assert np.isfinite(exact).all()
    close(out, exact, how)
