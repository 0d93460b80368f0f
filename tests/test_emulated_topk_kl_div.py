"""Divergences from k classes without a GPU: every way to share a row, against torch in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.index_errors import Record
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import plan
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT

Array = NDArray[Any]
FACTS = DeviceFacts(0, "sm_90", 4, 232448)
# Shared memory for two more vectors of each thread.
SMALL = DeviceFacts(0, "sm_90", 4, (4 << 10) + 1024 * 64)
# Without clusters.
OLD = DeviceFacts(0, "sm_80", 4, 166912)
OP = "topk_kl_div_with_logits"
OPS = (OP, f"{OP}_backward", f"{OP}_with_gradient")


@dataclass(frozen=True)
class Trial:
    """Rows of so many logits, of how many classes a teacher speaks, and how arrays lie."""

    shape: tuple[int, ...]
    k: int
    reduction: str = "mean"
    weighted: bool = False
    temperature: float = 1.0
    dtype: str = "float32"
    index: str = "int64"
    facts: DeviceFacts = FACTS
    how: str = "dense"


TRIALS = {
    "a lane": Trial((70, 3), 2),
    "lanes": Trial((9, 64), 7, "none", True, 0.7, index="int32"),
    "lanes of more axes": Trial((3, 2, 64), 40, weighted=True),
    "half a warp, bf16": Trial((5, 300), 5, "sum", True, dtype="bfloat16"),
    "odd rows": Trial((5, 301), 17, dtype="bfloat16", index="int32"),
    "a block": Trial((3, 2000), 300, weighted=True, temperature=1.5),
    "a block, padded": Trial((3, 2000), 64, "none", how="padded", dtype="float16"),
    "a block, f64": Trial((2, 600), 9, weighted=True, temperature=2.0, dtype="float64"),
    "long, read again": Trial((2, 28001), 30, "sum", facts=SMALL),
    "long, in shared memory": Trial((2, 40000), 30, weighted=True, facts=OLD),
    "two blocks": Trial((3, 20008), 600, "none", True, 0.8),
    "four blocks, f16": Trial((2, 70000), 40, "sum", dtype="float16"),
    "rows side by side": Trial((33, 40), 6, weighted=True, how="turned"),
    "no classes": Trial((4, 0), 2, "none"),
    "of no classes": Trial((4, 40), 0),
    "no rows": Trial((0, 40), 3),
}
PAIRS = lanes.turns(TRIALS, OPS)
ADDED = ("lanes", "two blocks", "odd rows", "rows side by side")
WRITTEN = ("lanes", "a block", "long, read again", "two blocks")
EDGES = Trial((7, 700), 6, "none")


def placed(x: Array, how: str) -> Array:
    if how == "turned" and x.ndim == 2:
        return emulator.placed(np.ascontiguousarray(x.T)).T
    return emulator.lying(x, "padded" if how == "padded" and x.ndim == 2 else "dense")


@cache
def arrays_of(how: Trial) -> dict[str, Array]:
    rng, rows, v = np.random.default_rng(how.shape[0]), how.shape[:-1], how.shape[-1]
    kind = np.dtype(getattr(ml_dtypes, how.dtype, how.dtype))
    wide = np.float64 if how.dtype == "float64" else np.float32
    weight = rng.uniform(0.5, 2, rows).astype(wide)
    logits = (3 * rng.standard_normal(how.shape)).astype(kind)
    # Some classes are of no use, some are there twice, and one has a probability of 0.
    ids = rng.integers(-1, v + 1, (*rows, how.k)).astype(how.index)
    probs = rng.uniform(0, 2 / max(how.k, 1), ids.shape).astype(wide)
    ids[..., 3:5], probs[..., 1:2] = 1, 0
    if how.weighted:
        # A row of weight 0 costs nothing, whatever its logits are.
        weight.flat[1::5] = 0
        logits[weight == 0] = np.nan
    return {
        "dloss": rng.standard_normal(rows if how.reduction == "none" else ()).astype(kind),
        "logits": logits, "teacher_ids": ids, "teacher_probs": probs, "row_weight": weight,
    }  # fmt: skip


def given_to(op: str, how: Trial, **others: Array) -> list[Array]:
    known = {**arrays_of(how), **others}
    names = [n for n in registry[op].spec.arrays if how.weighted or n != "row_weight"]
    return [placed(known[n], how.how) for n in names]


def call_of(op: str, how: Trial, add: bool = False, listener: int = 0) -> Call:
    given, spec = given_to(op, how), registry[op].spec
    options = {"reduction": how.reduction, "mode": "drop"}
    problem = check.problem(spec, [*given, *[None] * (not how.weighted)], options, DEFAULT)
    outs = tuple(strides_of(x) for x in problem.outputs)
    return Call(problem, how.facts, outs, add, listener=listener, ticket=7)


@cache
def entries() -> tuple[Entry, ...]:
    """Every kernel of these, compiled together."""
    every = [call_of(op, TRIALS[name]) for name, op in lanes.tried(PAIRS)]
    every += [call_of(op, how) for op in OPS for how in (EDGES, TRIALS["lanes"])]
    every += [call_of(OPS[1], TRIALS[name], add=True) for name in ADDED]
    every += [call_of(OPS[2], TRIALS[name]) for name in WRITTEN]
    found = {step.entry.symbol: step.entry for call in every for step in plan(call).kernels}
    return tuple(found.values())


def want(op: str, how: Trial, **others: Array) -> list[Array]:
    """By torch, in float64, from a teacher of all classes."""
    known = {**arrays_of(how), **others}
    x, probs, weight, dloss = (
        torch.tensor(known[n].astype(np.float64))
        for n in ("logits", "teacher_probs", "row_weight", "dloss")
    )
    ids = torch.tensor(known["teacher_ids"].astype(np.int64))
    there = (ids >= 0) & (ids < x.shape[-1])
    ids, probs = ids * there, probs * there
    x = (torch.where(weight[..., None] == 0, 0.0, x) if how.weighted else x).requires_grad_()
    weight = weight if how.weighted else torch.ones_like(weight)
    log = torch.log_softmax(x / how.temperature, -1)
    # One more class takes what is of no use where there are none.
    room = torch.cat([log, torch.zeros_like(log[..., :1])] if x.shape[-1] else [
        x.sum(-1, keepdim=True)
    ], -1)  # fmt: skip
    own = torch.where(probs == 0, 0.0, room.gather(-1, ids))
    loss = (torch.xlogy(probs, probs) - probs * own).sum(-1) * weight
    if how.reduction != "none":
        loss = loss.sum() / (weight.sum() if how.reduction == "mean" else 1)
    pull = dloss if op.endswith("backward") else torch.ones_like(loss)
    (slopes,) = torch.autograd.grad(loss, x, pull)
    found = [loss.detach().numpy(), slopes.numpy()]
    return {OPS[0]: found[:1], OPS[1]: found[1:], OPS[2]: found}[op]


def run(how: Trial, steps: Steps, arrays: list[Array], seed: int = 0) -> None:
    emulator.run(entries(), steps, arrays, seed, [how.temperature])


def close(got: Array, exact: Array, dtype: str) -> None:
    # Results of 16 bits are rounded once; those that are not are float32.
    kind = dtype if got.dtype.name == dtype else "float32"
    eps = {"float32": 4e-6, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 1e-13}[kind]
    fine = 1e-13 if kind == "float64" else 4e-6
    size = np.max(np.abs(exact), initial=1e-30)
    error = np.abs(got.astype(np.float64) - exact)
    most = 1.01 * eps * np.abs(exact) + fine * size + 2.0**-24 * (kind == "float16")
    assert np.all((error <= most) | (np.isnan(got) & np.isnan(exact)))


@pytest.mark.slow("the first of these compiles all kernels")
@pytest.mark.parametrize(("name", "op"), PAIRS)
def test_every_way_gives_what_torch_gives(op: str, name: str) -> None:
    how = TRIALS[name]
    exact, steps, seen = want(op, how), plan(call_of(op, how)), []
    for seed in (0, 1):
        outs = emulator.outputs(call_of(op, how))
        run(how, steps, [*given_to(op, how), *outs], seed)
        for got, x in zip(outs, exact, strict=True):
            close(got, x, how.dtype)
        seen.append([x.tobytes() for x in outs])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ADDED)
def test_gradients_add_into_what_is_there(name: str) -> None:
    op, how = OPS[1], TRIALS[name]
    (exact,) = want(op, how)
    out = emulator.empty(exact.shape, how.dtype)
    out[...] = 0.5
    run(how, plan(call_of(op, how, add=True)), [*given_to(op, how), out])
    close(out, exact + 0.5, how.dtype)


@pytest.mark.parametrize("name", WRITTEN)
def test_gradients_may_be_written_over_logits(name: str) -> None:
    op, how = OPS[2], TRIALS[name]
    exact, arrays = want(op, how), given_to(op, how)
    loss = emulator.outputs(call_of(op, how))[0]
    run(how, plan(call_of(op, how)), [*arrays, loss, arrays[0]])
    close(loss, exact[0], how.dtype)
    close(arrays[0], exact[1], how.dtype)


@pytest.mark.parametrize("op", OPS)
def test_classes_out_of_range_are_reported(op: str) -> None:
    how, record = TRIALS["lanes"], Record()
    ids = arrays_of(how)["teacher_ids"] % how.shape[-1]
    # Of a row of weight 0 too.
    ids[1, 2] = how.shape[-1]
    steps = plan(call_of(op, how, listener=emulator.ctypes.addressof(record)))
    given, outs = given_to(op, how, teacher_ids=ids), emulator.outputs(call_of(op, how))
    run(how, steps, [*given, *outs])
    assert (record.state, record.ticket) == (2, 7)
    assert (record.value, record.position) == (ids[1, 2], how.k + 2)
    for got, x in zip(outs, want(op, how, teacher_ids=ids), strict=True):
        close(got, x, how.dtype)


def test_edges_are_those_of_the_body() -> None:
    how = EDGES
    known = {n: x.copy() for n, x in arrays_of(how).items()}
    x, probs, ids = (known[n] for n in ("logits", "teacher_probs", "teacher_ids"))
    ids[...] = ids % how.shape[-1]
    # A class that the student rules out, the teacher too; NaN; infinities; far apart; large.
    ids[0, 0], x[0, ids[0, 0]] = 5, -np.inf
    ids[1, 1], x[1, ids[1, 1]] = 7, -np.inf
    x[2, 0], probs[3, 0], x[4, 1] = np.nan, np.nan, np.inf
    x[5] *= 100
    x[6] = 1e37 * x[6]
    for op in OPS:
        outs = emulator.outputs(call_of(op, how))
        run(how, plan(call_of(op, how)), [*given_to(op, how, **known), *outs])
        with np.errstate(all="ignore"):
            exact = registry[op](*given_to(op, how, **known), reduction="none")
        for got, z in zip(outs, exact if isinstance(exact, tuple) else (exact,), strict=True):
            np.testing.assert_allclose(got, z, rtol=2e-5, atol=1e-5)
