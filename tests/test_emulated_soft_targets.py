"""Cross entropy of probabilities without a GPU: every way to share a row, against float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from test_emulated_cross_entropy import SMALL, Trial, close, placed, trial

from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, Steps, strides_of
from baracuda.backends.cuda.schedules import plan
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT

Array = NDArray[Any]
OP = "soft_target_cross_entropy"
OPS = (OP, f"{OP}_backward", f"{OP}_with_gradient")
SMOOTH = {"label_smoothing": 0.1}
TRIALS = {
    "a lane": trial((70, 3)),
    "lanes": trial((9, 64), reduction="none", **SMOOTH),
    "half a warp, bf16": trial((5, 300), reduction="sum", dtype="bfloat16", **SMOOTH),
    "odd rows": trial((5, 301), dtype="bfloat16"),
    "a block": trial((3, 2000)),
    "a block, padded": trial((3, 2000), reduction="none", padded=True, dtype="float16", **SMOOTH),
    "a block, f64": trial((2, 600), dtype="float64", **SMOOTH),
    "long": trial((2, 20000), reduction="sum", **SMOOTH),
    "long, read again": trial((2, 14001), facts=SMALL),
    "rows side by side": trial((2, 40, 33), 1, **SMOOTH),
    "rows side by side, bf16": trial((2, 40, 33), 1, reduction="none", dtype="bfloat16"),
    "no rows": trial((0, 5)),
}

PAIRS = lanes.turns(TRIALS, OPS)
ADDED = ("lanes", "a block", "long", "rows side by side, bf16")
WRITTEN = ("lanes", "a block", "long, read again")


@cache
def arrays_of(how: Trial) -> dict[str, Array]:
    rng = np.random.default_rng(len(how.shape))
    kind = np.dtype(getattr(ml_dtypes, how.dtype, how.dtype))
    logits = (4 * rng.standard_normal(how.shape)).astype(kind)
    target = rng.random(how.shape)
    target = (target / target.sum(how.axis, keepdims=True)).astype(kind)
    rows = tuple(n for i, n in enumerate(how.shape) if i != how.axis % len(how.shape))
    none = dict(how.options).get("reduction") == "none"
    dloss = rng.standard_normal(rows if none else ()).astype(kind)
    return {"dloss": dloss, "logits": logits, "target": target}


def given(op: str, how: Trial) -> list[Array]:
    known = arrays_of(how)
    return [placed(known[n], how.padded and n != "dloss") for n in registry[op].spec.arrays]


def call_of(op: str, how: Trial, add: bool = False) -> Call:
    spec = registry[op].spec
    options = {k: v for k, v in how.options if k in spec.options}
    problem = check.problem(spec, given(op, how), {"axis": how.axis, **options}, DEFAULT)
    outs = tuple(strides_of(x) for x in problem.outputs)
    return Call(problem, how.facts, outs, add)


@cache
def entries() -> tuple[Entry, ...]:
    every = [call_of(op, TRIALS[name]) for name, op in lanes.tried(PAIRS)]
    every += [call_of(OPS[1], TRIALS[name], add=True) for name in ADDED]
    every += [call_of(OPS[2], TRIALS[name]) for name in WRITTEN]
    every += [call_of(op, TRIALS["rows side by side"]) for op in (OP, OPS[2])]
    found = {step.entry.symbol: step.entry for call in every for step in plan(call).kernels}
    return tuple(found.values())


def want(op: str, how: Trial, **more: Array) -> list[Array]:
    known = {**arrays_of(how), **more}
    wide = [known[n].astype(np.float64) for n in registry[op].spec.arrays]
    out = registry[op](*wide, axis=how.axis, **dict(how.options), backend="array_api")
    return list(out) if isinstance(out, tuple) else [out]


def run(steps: Steps, how: Trial, arrays: list[Array], seed: int = 0) -> None:
    scalars = [dict(how.options).get("label_smoothing", 0.0)]
    emulator.run(entries(), steps, arrays, seed, scalars)


@pytest.mark.parametrize(("name", "op"), PAIRS)
def test_every_way_gives_what_the_body_gives(op: str, name: str) -> None:
    how, seen = TRIALS[name], []
    exact = (
        [np.asarray(np.nan), np.zeros((0, 5))][op.endswith("_backward") :]
        if name == "no rows"
        else want(op, how)
    )
    steps = plan(call_of(op, how))
    for seed in (0, 1):
        outs = emulator.outputs(call_of(op, how))
        if not all(x.size == 0 for x in outs):
            run(steps, how, [*given(op, how), *outs], seed)
        for got, x in zip(outs, exact, strict=False):
            if np.isnan(x).any():
                assert np.isnan(got).all()
            else:
                close(got, x, how.dtype)
        seen.append([x.tobytes() for x in outs])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ADDED)
def test_gradients_add_into_what_is_there(name: str) -> None:
    op, how = OPS[1], TRIALS[name]
    (exact,) = want(op, how)
    out = emulator.empty(exact.shape, how.dtype)
    out[...] = 0.5
    run(plan(call_of(op, how, add=True)), how, [*given(op, how), out])
    close(out, exact + 0.5, how.dtype)


@pytest.mark.parametrize("name", WRITTEN)
def test_gradients_may_be_written_over_logits(name: str) -> None:
    op, how = OPS[2], TRIALS[name]
    exact, arrays = want(op, how), given(op, how)
    loss = emulator.outputs(call_of(op, how))[0]
    run(plan(call_of(op, how)), how, [*arrays, loss, arrays[0]])
    close(loss, exact[0], how.dtype)
    close(arrays[0], exact[1], how.dtype)


@pytest.mark.parametrize("op", [OP, OPS[2]])
def test_many_equal_probabilities_that_one_thread_adds_up_do_not_drift(op: str) -> None:
    how = trial((1, 5690, 2), 1, reduction="none")
    x, target = (np.full(how.shape, 0.1348732, np.float32) for _ in range(2))
    x[:, 0] = 1
    exact = registry[op](x.astype(np.float64), target.astype(np.float64), axis=1, reduction="none")
    exact = exact if isinstance(exact, tuple) else (exact,)
    outs = [emulator.empty(y.shape, how.dtype) for y in exact]
    run(plan(call_of(op, how)), how, [x, target, *outs])
    for out, y in zip(outs, exact, strict=True):
        assert np.all(np.abs(out - y) <= 1e-5 * np.abs(y).max())


@pytest.mark.parametrize("columns", [4, 70, 2000])
def test_large_and_infinite_logits_give_what_the_body_gives(columns: int) -> None:
    how = trial((6, columns), reduction="none")
    x, target = (arrays_of(how)[n].copy() for n in ("logits", "target"))
    x[0] += 1e4
    x[1, 0], x[2, 1], x[3, 0], x[4, :] = -1e6, -np.inf, np.inf, -np.inf
    x[5, 1], target[5] = -np.inf, np.eye(columns)[0]
    for op in OPS:
        dloss = np.ones(6, np.float32)
        known = {"dloss": dloss, "logits": x, "target": target}
        exact = want(op, how, **known)
        outs = [emulator.empty(y.shape, "float32") for y in exact]
        steps = plan(call_of(op, how))
        arrays = [placed(known[n], False) for n in registry[op].spec.arrays]
        emulator.run(tuple(s.entry for s in steps.kernels), steps, [*arrays, *outs], 0, [0.0])
        for got, y in zip(outs, exact, strict=True):
            assert np.allclose(got, y, rtol=1e-5, atol=1e-5, equal_nan=True), op
