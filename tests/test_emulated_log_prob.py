"""Log-probabilities and entropies without a GPU: every way to share a row, against float64."""

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
# Shared memory for four more vectors of each thread.
SMALL = DeviceFacts(0, "sm_90", 4, (4 << 10) + 1024 * 64)
# Without clusters.
OLD = DeviceFacts(0, "sm_80", 4, 166912)
OPS = ("log_prob", "log_prob_backward")
USUAL = (1.0, 0.0)


@dataclass(frozen=True)
class Trial:
    """Rows of so many logits, whether entropies take part, the temperature and the cap."""

    shape: tuple[int, int]
    spread: bool = True
    scalars: tuple[float, float] = USUAL
    dtype: str = "float32"
    facts: DeviceFacts = FACTS
    how: str = "dense"
    index: str = "int64"


TRIALS = {
    "a lane": Trial((70, 3)),
    "lanes": Trial((9, 64), scalars=(0.7, 3.0)),
    "lanes without entropies": Trial((9, 64), spread=False, scalars=(0.7, 3.0)),
    "half a warp, bf16": Trial((5, 300), dtype="bfloat16"),
    "odd rows": Trial((5, 301), dtype="bfloat16", index="int32"),
    "a block": Trial((3, 2000), scalars=(0.05, 5.0)),
    "a block, padded": Trial((3, 2000), how="padded", dtype="float16"),
    "a block, f64": Trial((2, 1000), dtype="float64", scalars=(2.0, 0.0)),
    "long, read again": Trial((2, 28001), facts=SMALL, scalars=(1.5, 0.0)),
    "long, without entropies": Trial((2, 28001), facts=SMALL, spread=False),
    "long, f64": Trial((2, 6001), facts=OLD, dtype="float64"),
    "long, in shared memory": Trial((2, 40000), facts=OLD),
    "two blocks": Trial((3, 20008), scalars=(0.5, 5.0)),
    "four blocks, f16": Trial((2, 70000), dtype="float16"),
    "rows side by side": Trial((33, 40), how="turned", scalars=(0.5, 2.0)),
}
PAIRS = lanes.turns(TRIALS, OPS)
ADDED = ("lanes", "two blocks", "odd rows", "rows side by side")
WRITTEN = ("lanes", "a block", "long, read again", "four blocks, f16")
INFINITE = {columns: Trial((6, columns + 3)) for columns in (1, 700)}


def placed(x: Array, how: str) -> Array:
    if how == "turned" and x.ndim == 2:
        return emulator.placed(np.ascontiguousarray(x.T)).T
    return emulator.lying(x, "padded" if how == "padded" and x.ndim == 2 else "dense")


@cache
def arrays_of(how: Trial) -> dict[str, Array]:
    rng, (rows, n) = np.random.default_rng(how.shape[0]), how.shape
    kind = np.dtype(getattr(ml_dtypes, how.dtype, how.dtype))
    target = rng.integers(0, n, rows).astype(how.index)
    target[1::5] = -100
    wide = np.float64 if how.dtype == "float64" else np.float32
    pulls = rng.standard_normal((2, rows)).astype(wide)
    # A row that nothing pulls at has a gradient of 0, whatever its logits are.
    pulls[:, 2:3] = 0
    logits = (4 * rng.standard_normal(how.shape)).astype(kind)
    return {"dlog_prob": pulls[0], "dentropy": pulls[1], "logits": logits, "target": target}


def names_of(op: str, how: Trial) -> list[str]:
    left_out = set() if how.spread else {"dentropy"}
    return [name for name in registry[op].spec.arrays if name not in left_out]


def given_to(op: str, how: Trial) -> list[Array]:
    return [placed(arrays_of(how)[name], how.how) for name in names_of(op, how)]


def call_of(op: str, how: Trial, add: bool = False, listener: int = 0) -> Call:
    spec, named = registry[op].spec, dict(zip(names_of(op, how), given_to(op, how), strict=True))
    options = {"entropy": how.spread} if "entropy" in spec.options else {}
    problem = check.problem(spec, [named.get(name) for name in spec.arrays], options, DEFAULT)
    outs = tuple(strides_of(x) for x in problem.outputs)
    return Call(problem, how.facts, outs, add, listener=listener, ticket=7)


@cache
def entries() -> tuple[Entry, ...]:
    """Every kernel of these, compiled together."""
    every = [call_of(op, TRIALS[name]) for name, op in lanes.tried(PAIRS)]
    every += [call_of(op, how) for op in OPS for how in INFINITE.values()]
    every += [call_of(OPS[0], TRIALS[name]) for name in ("lanes", "a block")]
    every += [call_of(OPS[1], TRIALS[name], add=True) for name in ADDED]
    every += [call_of(OPS[1], TRIALS[name]) for name in WRITTEN]
    found = {step.entry.symbol: step.entry for call in every for step in plan(call).kernels}
    return tuple(found.values())


def want(op: str, how: Trial, logits: Array | None = None) -> list[Array]:
    """By torch, in float64."""
    known, (temperature, softcap) = arrays_of(how), how.scalars
    x = torch.tensor((known["logits"] if logits is None else logits).astype(np.float64))
    x.requires_grad_()
    target = torch.tensor(known["target"].astype(np.int64))
    capped = softcap * torch.tanh(x / softcap) if softcap else x
    log = torch.log_softmax(capped / temperature, -1)
    counts = target != -100
    hit = log.gather(-1, target.clamp(min=0)[:, None])[:, 0]
    spread = -(log.exp() * log.masked_fill(log == -torch.inf, 0.0)).sum(-1)
    results = [torch.where(counts, y, 0.0) for y in (hit, spread)][: 1 + how.spread]
    if op == "log_prob":
        return [y.detach().numpy() for y in results]
    pulls = [torch.tensor(known[n]).double() for n in ("dlog_prob", "dentropy")][: 1 + how.spread]
    (found,) = torch.autograd.grad(results, x, pulls)
    live = counts & torch.stack([p != 0 for p in pulls]).any(0)
    return [torch.where(live[:, None], found, 0.0).numpy()]


def run(op: str, how: Trial, steps: Steps, outs: list[Array], seed: int = 0) -> None:
    emulator.run(entries(), steps, [*given_to(op, how), *outs], seed, how.scalars)


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
    exact, steps = want(op, how), plan(call_of(op, how))
    seen = []
    for seed in (0, 1):
        outs = emulator.outputs(call_of(op, how))
        run(op, how, steps, outs, seed)
        for got, x in zip(outs, exact, strict=True):
            close(got, x, how.dtype)
        seen.append([x.tobytes() for x in outs])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ADDED)
def test_gradients_add_into_what_is_there(name: str) -> None:
    op, how = "log_prob_backward", TRIALS[name]
    (exact,) = want(op, how)
    out = emulator.empty(exact.shape, how.dtype)
    out[...] = 0.5
    run(op, how, plan(call_of(op, how, add=True)), [out])
    close(out, exact + 0.5, how.dtype)


@pytest.mark.parametrize("name", WRITTEN)
def test_gradients_may_be_written_over_logits(name: str) -> None:
    op, how = "log_prob_backward", TRIALS[name]
    (exact,) = want(op, how)
    given = given_to(op, how)
    logits = given[names_of(op, how).index("logits")]
    emulator.run(entries(), plan(call_of(op, how)), [*given, logits], 0, how.scalars)
    close(logits, exact, how.dtype)


@pytest.mark.parametrize("name", ["lanes", "a block"])
def test_targets_out_of_range_are_reported_and_count_as_ignored(name: str) -> None:
    op, how, record = "log_prob", TRIALS[name], Record()
    given, known = given_to(op, how), arrays_of(how)
    given[1][2] = known["logits"].shape[-1]
    steps = plan(call_of(op, how, listener=emulator.ctypes.addressof(record)))
    outs = emulator.outputs(call_of(op, how))
    emulator.run(entries(), steps, [*given, *outs], 0, how.scalars)
    assert (record.state, record.ticket) == (2, 7)
    assert (record.value, record.position) == (known["logits"].shape[-1], 2)
    for got, exact in zip(outs, want(op, how), strict=True):
        exact[2] = 0
        close(got, exact, how.dtype)


@pytest.mark.parametrize("columns", list(INFINITE))
def test_infinite_logits_give_what_torch_gives(columns: int) -> None:
    how = INFINITE[columns]
    x = arrays_of(how)["logits"].copy()
    # Of -inf throughout, with NaN where nothing pulls, and with NaN.
    x[0, 1], x[1, :], x[2, 0], x[3, :], x[4, 0] = -np.inf, np.nan, np.nan, -np.inf, np.nan
    for op in OPS:
        given, outs = given_to(op, how), emulator.outputs(call_of(op, how))
        given[names_of(op, how).index("logits")][...] = x
        emulator.run(entries(), plan(call_of(op, how)), [*given, *outs], 0, how.scalars)
        for got, y in zip(outs, want(op, how, x), strict=True):
            assert np.allclose(got, y, rtol=1e-5, atol=1e-6, equal_nan=True), op
