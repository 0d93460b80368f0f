"""Divergences without a GPU: every way to share two rows, against torch in float64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import plan
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT

Array = NDArray[Any]
FACTS = DeviceFacts(0, "sm_90", 4, 232448)
# Shared memory for two more pairs of vectors of each thread.
SMALL = DeviceFacts(0, "sm_90", 4, (4 << 10) + 1024 * 64)
# Without clusters.
OLD = DeviceFacts(0, "sm_80", 4, 166912)
OP = "kl_div_with_logits"
OPS = (OP, f"{OP}_backward", f"{OP}_with_gradient")
KINDS, BETA = ("forward", "reverse", "jsd"), 0.3


@dataclass(frozen=True)
class Trial:
    """Rows of so many logits, the options, whether rows have weights, and how arrays lie."""

    shape: tuple[int, ...]
    kind: str = "forward"
    reduction: str = "mean"
    weighted: bool = False
    temperature: float = 1.0
    dtype: str = "float32"
    facts: DeviceFacts = FACTS
    how: str = "dense"


SHAPES = {
    "a lane": Trial((70, 3)),
    "lanes": Trial((9, 64), reduction="none", weighted=True, temperature=0.7),
    "lanes of more axes": Trial((3, 2, 64), weighted=True),
    "half a warp, bf16": Trial((5, 300), reduction="sum", dtype="bfloat16", weighted=True),
    "odd rows": Trial((5, 301), dtype="bfloat16"),
    "a block": Trial((3, 2000), weighted=True, temperature=1.5),
    "a block, padded": Trial((3, 2000), reduction="none", how="padded", dtype="float16"),
    "a block, f64": Trial((2, 600), dtype="float64", weighted=True, temperature=2.0),
    "long, read again": Trial((2, 14001), facts=SMALL, reduction="sum"),
    "long, in shared memory": Trial((2, 20000), facts=OLD, weighted=True),
    "two blocks": Trial((3, 10008), reduction="none", weighted=True, temperature=0.8),
    "four blocks, f16": Trial((2, 40000), dtype="float16", reduction="sum"),
    "rows side by side": Trial((33, 40), how="turned", weighted=True),
}
TRIALS = {
    f"{name}, {kind}": replace(how, kind=kind) for name, how in SHAPES.items() for kind in KINDS
}
PAIRS = lanes.turns(TRIALS, OPS)
ADDED = ("lanes, jsd", "two blocks, forward", "rows side by side, reverse")
WRITTEN = ("lanes, forward", "a block, jsd", "long, read again, reverse", "two blocks, jsd")
EDGES = {kind: Trial((7, 700), kind, "none") for kind in KINDS}
NEAR = {kind: Trial((3, 2000), kind, "none") for kind in KINDS}


def placed(x: Array, how: str) -> Array:
    if how == "turned" and x.ndim == 2:
        return emulator.placed(np.ascontiguousarray(x.T)).T
    return emulator.lying(x, "padded" if how == "padded" and x.ndim == 2 else "dense")


@cache
def arrays_of(how: Trial) -> dict[str, Array]:
    rng, rows = np.random.default_rng(how.shape[0]), how.shape[:-1]
    kind = np.dtype(getattr(ml_dtypes, how.dtype, how.dtype))
    wide = np.float64 if how.dtype == "float64" else np.float32
    weight = rng.uniform(0.5, 2, rows).astype(wide)
    dloss = rng.standard_normal(rows if how.reduction == "none" else ()).astype(kind)
    x, y = ((3 * rng.standard_normal(how.shape)).astype(kind) for _ in range(2))
    if how.weighted:
        # A row of weight 0 costs nothing, whatever its logits are.
        weight.flat[1::5] = 0
        x[weight == 0] = np.nan
    return {"dloss": dloss, "logits": x, "teacher_logits": y, "row_weight": weight}


def given_to(op: str, how: Trial, **others: Array) -> list[Array]:
    known = {**arrays_of(how), **others}
    names = [n for n in registry[op].spec.arrays if how.weighted or n != "row_weight"]
    return [placed(known[n], how.how) for n in names]


def call_of(op: str, how: Trial, add: bool = False) -> Call:
    options = {"kind": how.kind, "reduction": how.reduction}
    given = given_to(op, how)
    spec = registry[op].spec
    problem = check.problem(spec, [*given, *[None] * (not how.weighted)], options, DEFAULT)
    outs = tuple(strides_of(x) for x in problem.outputs)
    return Call(problem, how.facts, outs, add)


@cache
def entries() -> tuple[Entry, ...]:
    """Every kernel of these, compiled together."""
    every = [call_of(op, TRIALS[name]) for name, op in lanes.tried(PAIRS)]
    every += [call_of(op, how) for op in OPS for how in EDGES.values()]
    every += [call_of(OPS[1], TRIALS[name], add=True) for name in ADDED]
    every += [call_of(OPS[2], TRIALS[name]) for name in WRITTEN]
    every += [call_of(OPS[2], how) for how in NEAR.values()]
    found = {step.entry.symbol: step.entry for call in every for step in plan(call).kernels}
    return tuple(found.values())


def each(how: Trial, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The divergence of each row, by torch."""
    student, teacher = (F.log_softmax(v / how.temperature, -1) for v in (x, y))
    if how.kind == "jsd":
        mixture = torch.log(BETA * teacher.exp() + (1 - BETA) * student.exp())
        pairs = ((BETA, mixture, teacher), (1 - BETA, mixture, student))
    else:
        pairs = ((1.0, *((student, teacher) if how.kind == "forward" else (teacher, student))),)
    kl = [b * F.kl_div(q, p, reduction="none", log_target=True).sum(-1) for b, q, p in pairs]
    return torch.stack(kl).sum(0)


def want(op: str, how: Trial, **others: Array) -> list[Array]:
    """By torch, in float64."""
    known = {**arrays_of(how), **others}
    x, y, weight, dloss = (
        torch.tensor(known[n].astype(np.float64))
        for n in ("logits", "teacher_logits", "row_weight", "dloss")
    )
    x = (torch.where(weight[..., None] == 0, 0.0, x) if how.weighted else x).requires_grad_()
    weight = weight if how.weighted else torch.ones_like(weight)
    loss = each(how, x, y) * weight
    if how.reduction != "none":
        loss = loss.sum() / (weight.sum() if how.reduction == "mean" else 1)
    pull = dloss if op.endswith("backward") else torch.ones_like(loss)
    (slopes,) = torch.autograd.grad(loss, x, pull)
    found = [loss.detach().numpy(), slopes.numpy()]
    return {OPS[0]: found[:1], OPS[1]: found[1:], OPS[2]: found}[op]


def run(how: Trial, steps: Steps, arrays: list[Array], seed: int = 0) -> None:
    emulator.run(entries(), steps, arrays, seed, [BETA, how.temperature])


def close(got: Array, exact: Array, dtype: str) -> None:
    # Results of 16 bits are rounded; those that are not are float32.
    kind = dtype if got.dtype.name == dtype else "float32"
    eps = {"float32": 4e-6, "float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-13}[kind]
    size = np.max(np.abs(exact), initial=1e-30)
    error = np.abs(got.astype(np.float64) - exact)
    assert np.all(error <= eps * (np.abs(exact) + size * 0.2) + 2.0**-24 * (kind == "float16"))


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


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_student_that_is_all_but_its_teacher_no_digits_cancel(kind: str) -> None:
    how, rng = NEAR[kind], np.random.default_rng(3)
    y = rng.standard_normal(how.shape)
    for off in (1e-2, 1e-4, 0.0):
        # A constant moves no probability.
        x = (y + 5 + off * rng.standard_normal(how.shape)).astype(np.float32)
        pair = {"logits": x, "teacher_logits": y.astype(np.float32)}
        if not off:
            pair["logits"] = pair["teacher_logits"]
        exact = want(OPS[2], how, **pair)
        outs = emulator.outputs(call_of(OPS[2], how))
        run(how, plan(call_of(OPS[2], how)), [*given_to(OPS[2], how, **pair), *outs])
        assert np.all(np.abs(outs[0] - exact[0]) <= 1e-3 * exact[0] + (off == 1e-4) * 1e-11)
        assert outs[0].any() == (off > 0)
        most = np.max(np.abs(exact[1]))
        assert np.all(np.abs(outs[1] - exact[1]) <= 1e-3 * most + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_edges_are_those_of_the_body(kind: str) -> None:
    how = EDGES[kind]
    x, y = (arrays_of(how)[n].copy() for n in ("logits", "teacher_logits"))
    # Ruled out by both, by the student, by the teacher; NaN; an infinity; far apart; large.
    x[0, :9] = y[0, :9] = -np.inf
    x[1, 3], y[2, 4], x[3, 0], y[4, 1] = -np.inf, -np.inf, np.nan, np.inf
    x[5] *= 100
    x[6], y[6] = 1e37 * x[6], 1e37 * y[6]
    pair = {"logits": x, "teacher_logits": y}
    for op in OPS:
        given = given_to(op, how, **pair)
        outs = emulator.outputs(call_of(op, how))
        run(how, plan(call_of(op, how)), [*given, *outs])
        more: dict[str, Any] = {"kind": kind, "beta": BETA, "reduction": "none"}
        with np.errstate(all="ignore"):
            exact = registry[op](*given, **more)
        for got, z in zip(outs, exact if isinstance(exact, tuple) else (exact,), strict=True):
            np.testing.assert_allclose(got, z, rtol=2e-5, atol=1e-6 * how.shape[-1] / 100)
