"""Cross entropy without a GPU: every way to share a row, on fibers, against float64."""

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
OPS = ("cross_entropy", "cross_entropy_backward", "cross_entropy_with_gradient")
SMOOTH = {"label_smoothing": 0.1, "z_loss": 0.01}


@dataclass(frozen=True)
class Trial:
    """Logits of this shape, their classes along an axis, and how they are asked for.

    Classes have weights of a dtype, or none.
    """

    shape: tuple[int, ...]
    axis: int
    options: tuple[tuple[str, Any], ...] = ()
    dtype: str = "float32"
    facts: DeviceFacts = FACTS
    padded: bool = False
    index: str = "int64"
    weight: str = ""


def trial(shape: tuple[int, ...], axis: int = -1, **more: Any) -> Trial:
    own = {k: more.pop(k) for k in ("dtype", "facts", "padded", "index", "weight") if k in more}
    return Trial(shape, axis, tuple(more.items()), **own)


TRIALS = {
    "a lane": trial((70, 3)),
    "lanes": trial((9, 64), reduction="none", **SMOOTH, softcap=3.0),
    "half a warp, bf16": trial((5, 300), reduction="sum", dtype="bfloat16", **SMOOTH),
    "odd rows": trial((5, 301), dtype="bfloat16", index="int32"),
    "a block": trial((3, 2000), softcap=5.0),
    "a block, padded": trial((3, 2000), reduction="none", padded=True, dtype="float16", **SMOOTH),
    "a block, f64": trial((2, 1000), dtype="float64", **SMOOTH),
    "long": trial((2, 40000), reduction="sum", **SMOOTH),
    "long, read again": trial((2, 28001), facts=SMALL),
    "long, bf16": trial((2, 70000), facts=SMALL, dtype="bfloat16"),
    "long, f64": trial((2, 6001), facts=OLD, dtype="float64"),
    "long, in shared memory": trial((2, 40000), facts=OLD, reduction="none"),
    "two blocks": trial((3, 20008), softcap=5.0, **SMOOTH),
    "two blocks, bf16": trial((3, 40008), dtype="bfloat16", reduction="none"),
    "four blocks, f16": trial((3, 70000), dtype="float16"),
    "eight blocks": trial((2, 70004), padded=True),
    "rows side by side": trial((2, 40, 33), 1, **SMOOTH),
    "rows side by side, bf16": trial((2, 40, 33), 1, reduction="none", dtype="bfloat16"),
    "weights, a lane": trial((70, 3), weight="float32"),
    "weights, lanes": trial((9, 64), weight="float32", reduction="none", **SMOOTH, softcap=3.0),
    "weights, wide": trial((5, 300), dtype="bfloat16", weight="float32", **SMOOTH),
    "weights, odd rows": trial((5, 301), dtype="bfloat16", weight="bfloat16", index="int32"),
    "weights, a block, padded": trial(
        (3, 2000), weight="float16", padded=True, dtype="float16", reduction="sum", **SMOOTH
    ),
    "weights, a block, f64": trial((2, 1000), dtype="float64", weight="float64", **SMOOTH),
    "weights, long": trial((2, 28001), facts=SMALL, weight="float32", **SMOOTH),
    "weights, two blocks": trial((3, 20008), weight="float32", softcap=5.0, **SMOOTH),
    "weights, rows side by side": trial((2, 40, 33), 1, weight="float32", **SMOOTH),
    "metrics, a lane": trial((70, 3), metrics=True),
    "metrics, lanes": trial((9, 64), reduction="none", metrics=True, **SMOOTH, softcap=3.0),
    "metrics, odd rows": trial((5, 301), dtype="bfloat16", index="int32", metrics=True),
    "metrics, a block, padded": trial((3, 2000), padded=True, dtype="float16", metrics=True),
    "metrics, long": trial((2, 28001), facts=SMALL, reduction="sum", metrics=True),
    "metrics, four blocks": trial((3, 70000), dtype="bfloat16", metrics=True),
    "metrics, rows side by side": trial((2, 40, 33), 1, metrics=True),
    "metrics, weights, f64": trial(
        (6, 6001), dtype="float64", weight="float64", metrics=True, **SMOOTH
    ),
    "weights of many rows": trial((9000, 5), weight="float32"),
}
PAIRS = lanes.turns(TRIALS, OPS)
# What gradients are added to, logits that gradients are written over, and what else is tried.
ADDED = ("lanes", "a block", "long", "two blocks", "rows side by side, bf16", "weights, lanes")
WRITTEN = ("lanes", "a block", "long", "long, read again", "four blocks, f16")
TOPPED = ("metrics, lanes", "metrics, long", "metrics, rows side by side")
# Few enough for lanes, one by one and in vectors, and for a block.
INFINITE = {columns: trial((6, columns + 3), reduction="none") for columns in (1, 8, 700)}


def placed(x: Array, padded: bool) -> Array:
    return emulator.lying(x, "padded" if padded else "dense")


@cache
def arrays_of(how: Trial) -> dict[str, Array]:
    rng = np.random.default_rng(len(how.shape))
    kind = np.dtype(getattr(ml_dtypes, how.dtype, how.dtype))
    logits = (4 * rng.standard_normal(how.shape)).astype(kind)
    rows = tuple(n for i, n in enumerate(how.shape) if i != how.axis % len(how.shape))
    target = rng.integers(0, how.shape[how.axis], rows).astype(how.index)
    target.flat[1::5] = -100
    none = dict(how.options).get("reduction") == "none"
    dloss = rng.standard_normal(rows if none else ()).astype(kind)
    known = {"dloss": dloss, "logits": logits, "target": target}
    if how.weight:
        weight = rng.uniform(0.25, 4, how.shape[how.axis])
        known["weight"] = weight.astype(getattr(ml_dtypes, how.weight, how.weight))
    return known


def names_of(op: str, how: Trial) -> list[str]:
    """The arrays of an op, in order; its own cotangent, where that is 1, is not given."""
    spec = registry[op].spec
    needed = {*spec.signatures[0].names, *["weight"] * bool(how.weight)}
    return [name for name in spec.arrays if name in needed]


def given_to(op: str, how: Trial) -> list[Array]:
    known = arrays_of(how)
    return [placed(known[n], how.padded and n in ("logits", "weight")) for n in names_of(op, how)]


def call_of(op: str, how: Trial, add: bool = False, listener: int = 0, **more: Any) -> Call:
    spec, given = registry[op].spec, given_to(op, how)
    options = {k: v for k, v in {**dict(how.options), **more}.items() if k in spec.options}
    problem = check.problem(spec, given, {"axis": how.axis, **options}, DEFAULT)
    outs = tuple(strides_of(x) for x in problem.outputs)
    return Call(problem, how.facts, outs, add, listener=listener, ticket=7)


@cache
def entries() -> tuple[Entry, ...]:
    """Every kernel of these, compiled together."""
    usual, backward, both = OPS
    every = [call_of(op, TRIALS[name]) for name, op in lanes.tried(PAIRS)]
    every += [call_of(op, how) for op in OPS for how in INFINITE.values()]
    every += [call_of(backward, TRIALS[name], add=True) for name in ADDED]
    every += [call_of(both, TRIALS[name]) for name in (*WRITTEN, *TOPPED, "weights, a lane")]
    every += [call_of(usual, TRIALS[name]) for name in (*TOPPED, "rows side by side")]
    every.append(call_of(backward, TRIALS["weights, a lane"]))
    found = {step.entry.symbol: step.entry for call in every for step in plan(call).kernels}
    return tuple(found.values())


def scalars(how: Trial) -> list[float]:
    given = dict(how.options)
    return [given.get(name, 0.0) for name in ("label_smoothing", "z_loss", "softcap")]


def want(op: str, how: Trial) -> list[Array]:
    known = arrays_of(how)
    names = names_of(op, how)
    wide = [known[n] if n == "target" else known[n].astype(np.float64) for n in names]
    spec = registry[op].spec
    options = {k: v for k, v in how.options if k in spec.options or k in spec.scalars}
    out = registry[op](*wide, axis=how.axis, **options, backend="array_api")
    return list(out) if isinstance(out, tuple) else [out]


def run(op: str, how: Trial, steps: Steps, outs: list[Array], seed: int = 0) -> None:
    emulator.run(entries(), steps, [*given_to(op, how), *outs], seed, scalars(how))


@pytest.mark.slow("the first of these compiles all kernels")
def test_a_mean_of_many_logits_that_one_thread_adds_up_does_not_drift() -> None:
    op, how = "cross_entropy", trial((1, 5690, 2), 1, reduction="none", label_smoothing=1.0)
    x, target = np.full(how.shape, 0.1348732, np.float32), np.zeros((1, 2), np.int64)
    x[:, 0] = 0
    exact = registry[op](x.astype(np.float64), target, axis=1, **dict(how.options))
    (out,) = emulator.outputs(call_of(op, how))
    emulator.run(entries(), plan(call_of(op, how)), [x, target, out], 0, scalars(how))
    assert np.all(np.abs(out - exact) <= 1e-6 * exact)


def close(got: Array, exact: Array, dtype: str) -> None:
    if got.dtype.kind == "i":
        assert np.array_equal(got, exact)
        return
    eps = {"float32": 2e-6, "float16": 1e-3, "bfloat16": 8e-3, "float64": 1e-13}[dtype]
    size = np.max(np.abs(exact), initial=1e-30)
    error = np.abs(got.astype(np.float64) - exact)
    assert np.all(error <= eps * (np.abs(exact) + size * 0.2) + 2.0**-24 * (dtype == "float16"))


@pytest.mark.parametrize(("name", "op"), PAIRS)
def test_every_way_gives_what_the_body_gives(op: str, name: str) -> None:
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
    op, how = "cross_entropy_backward", TRIALS[name]
    (exact,) = want(op, how)
    out = emulator.empty(exact.shape, how.dtype)
    out[...] = 0.5
    run(op, how, plan(call_of(op, how, add=True)), [out])
    close(out, exact + 0.5, how.dtype)


@pytest.mark.parametrize("name", WRITTEN)
def test_gradients_may_be_written_over_logits(name: str) -> None:
    op, how = "cross_entropy_with_gradient", TRIALS[name]
    exact, known = want(op, how), arrays_of(how)
    for seed in (0, 1):
        logits, loss = emulator.placed(known["logits"]), emulator.outputs(call_of(op, how))[0]
        given = [logits, emulator.placed(known["target"]), loss, logits]
        emulator.run(entries(), plan(call_of(op, how)), given, seed, scalars(how))
        close(loss, exact[0], how.dtype)
        close(logits, exact[1], how.dtype)


@pytest.mark.parametrize("name", ["lanes", "a block"])
def test_targets_out_of_range_are_reported_and_cost_nothing(name: str) -> None:
    op, how, record = "cross_entropy_with_gradient", TRIALS[name], Record()
    known, target = arrays_of(how), arrays_of(how)["target"].copy()
    target[2] = known["logits"].shape[-1]
    steps = plan(call_of(op, how, listener=emulator.ctypes.addressof(record)))
    loss, d = emulator.outputs(call_of(op, how))
    given = [emulator.placed(known["logits"]), emulator.placed(target), loss, d]
    emulator.run(entries(), steps, given, 0, scalars(how))
    assert (record.state, record.ticket) == (2, 7)
    assert (record.value, record.position) == (target[2], 2)
    assert not d[2].any()
    target[2] = -100
    again = emulator.outputs(call_of(op, how))
    given = [emulator.placed(known["logits"]), emulator.placed(target), *again]
    emulator.run(entries(), steps, given, 0, scalars(how))
    assert np.array_equal(loss, again[0])
    assert np.array_equal(d, again[1])


@pytest.mark.parametrize("name", ["lanes", "a block", "long", "four blocks, f16", "weights, wide"])
def test_a_cotangent_goes_into_the_gradient_and_not_the_loss(name: str) -> None:
    op, how = "cross_entropy_with_gradient", TRIALS[name]
    known, spec = arrays_of(how), registry[op].spec
    given = [known["logits"], known["target"], known.get("weight"), np.asarray(0.25, np.float32)]
    options = {**dict(how.options), "reduction": "sum", "axis": how.axis}
    structural = {k: v for k, v in options.items() if k in spec.options}
    problem = check.problem(spec, given, structural, DEFAULT)
    call = Call(problem, how.facts, tuple(strides_of(x) for x in problem.outputs), ticket=7)
    steps, outs = plan(call), emulator.outputs(call)
    compiled = tuple({s.entry.symbol: s.entry for s in steps.kernels}.values())
    there = [emulator.placed(x) for x in given if x is not None]
    emulator.run(compiled, steps, [*there, *outs], 0, scalars(how))
    wide = [x if x is None or x.dtype.kind == "i" else x.astype(np.float64) for x in given[:3]]
    loss, slopes = registry[op](*wide, **options, backend="array_api")
    close(outs[0], loss, "float32")
    close(outs[1], slopes * 0.25, how.dtype)


@pytest.mark.parametrize("columns", list(INFINITE))
def test_infinite_logits_give_what_the_body_gives(columns: int) -> None:
    how = INFINITE[columns]
    known = dict(arrays_of(how))
    x = known["logits"].copy()
    x[0, 1], x[1, :], x[2, 2], x[3, 0], x[4, :] = -np.inf, -np.inf, np.inf, np.nan, 1e4
    target = np.array([0, 1, 0, 1, 2, 1])
    x[5, 1] = -np.inf
    for op in OPS:
        spec = registry[op].spec
        given = [
            {"dloss": known["dloss"], "logits": x, "target": target}[n]
            for n in spec.signatures[0].names
        ]
        exact = registry[op](
            *[a.astype(np.float64) if a.dtype.kind == "f" else a for a in given],
            reduction="none", backend="array_api",
        )  # fmt: skip
        exact = exact if isinstance(exact, tuple) else (exact,)
        outs = [emulator.empty(y.shape, "float32") for y in exact]
        steps = plan(call_of(op, how))
        emulator.run(entries(), steps, [*map(emulator.placed, given), *outs], 0, [0.0] * 3)
        for got, y in zip(outs, exact, strict=True):
            assert np.allclose(got, y, rtol=1e-5, atol=1e-6, equal_nan=True), op


@pytest.mark.parametrize("name", TOPPED)
@pytest.mark.parametrize("op", ["cross_entropy", "cross_entropy_with_gradient"])
def test_the_top_class_is_the_first_of_equals(op: str, name: str) -> None:
    how = TRIALS[name]
    x = np.moveaxis(arrays_of(how)["logits"].copy(), how.axis, -1)
    rows = x.reshape(-1, x.shape[-1])
    n = rows.shape[-1]
    rows[0, [n - 1, n // 2, 7]], rows[1, :] = 30, -np.inf
    if len(rows) > 2:
        rows[2, [n - 1, 5]], rows[3, [1, n - 1]], rows[4, :] = np.inf, np.nan, 1
    logits = np.ascontiguousarray(np.moveaxis(rows.reshape(x.shape), -1, how.axis))
    target = np.full_like(arrays_of(how)["target"], 7)
    outs = emulator.outputs(call_of(op, how))
    given = [emulator.placed(logits), emulator.placed(target), *outs]
    emulator.run(entries(), plan(call_of(op, how)), given, 0, scalars(how))
    top = logits.argmax(how.axis)
    assert np.array_equal(outs[2], top)
    right = (top == 7).mean() if dict(how.options).get("reduction") is None else (top == 7).sum()
    assert right
    assert np.isclose(outs[1].sum(), right)


@pytest.mark.parametrize("far", [-3e3, 9e5, 3e6, 3e38])
def test_logits_far_from_0_lose_nothing(far: float) -> None:
    # Of 3e38 the product with log2 e is infinite.
    how = INFINITE[700]
    known = dict(arrays_of(how))
    known["logits"] = (known["logits"].astype(np.float64) + far).astype(np.float32)
    for op in OPS:
        names = registry[op].spec.signatures[0].names
        wide = [known[n] if n == "target" else known[n].astype(np.float64) for n in names]
        exact = registry[op](*wide, reduction="none", backend="array_api")
        exact = exact if isinstance(exact, tuple) else (exact,)
        outs = [emulator.empty(y.shape, "float32") for y in exact]
        steps = plan(call_of(op, how))
        given = [emulator.placed(known[n]) for n in names]
        emulator.run(entries(), steps, [*given, *outs], 0, [0.0] * 3)
        for got, y in zip(outs, exact, strict=True):
            close(got, y, "float32")


@pytest.mark.parametrize("op", OPS[1:])
def test_tiny_weights_have_a_mean(op: str) -> None:
    # The inverse of their sum is no float32.
    how = TRIALS["weights, a lane"]
    known = {**arrays_of(how), "weight": np.full(3, 2e-40, np.float32)}
    names, smooth = names_of(op, how), 0.1
    wide = [known[n] if n == "target" else known[n].astype(np.float64) for n in names]
    exact = registry[op](*wide, label_smoothing=smooth, backend="array_api")
    outs = emulator.outputs(call_of(op, how))
    given = [emulator.placed(known[n]) for n in names]
    emulator.run(entries(), plan(call_of(op, how)), [*given, *outs], 0, [smooth, 0.0, 0.0])
    close(outs[-1], exact[1] if isinstance(exact, tuple) else exact, "float32")


@pytest.mark.parametrize(("reduction", "mean"), [("mean", np.nan), ("sum", 0.0)])
def test_no_rows_have_no_mean(reduction: str, mean: float) -> None:
    how = trial((0, 5), reduction=reduction)
    steps = plan(call_of("cross_entropy", how))
    out = emulator.empty((), "float32")
    given = [np.zeros((0, 5), np.float32), np.zeros((0,), np.int64), out]
    emulator.run(entries(), steps, given, 0, [0.0] * 3)
    assert np.array_equal(out, np.float32(mean), equal_nan=True)
