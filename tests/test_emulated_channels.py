"""Parameters of channels without a GPU: every way channels lie, on fibers, against float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import channels, plan
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import named

Array = NDArray[Any]
FACTS = DeviceFacts(0, "sm_90", 4, 232448)
OPS = ("prelu", "prelu_backward")
# The shape of x, how many slopes there are, the dtype, how x lies, and dy if otherwise.
TRIALS: dict[str, tuple[tuple[int, ...], int, str, str, str]] = {
    "runs of a channel": ((5, 6, 8, 40), 6, "float32", "", ""),
    "runs of a channel, bf16": ((3, 2, 4104), 2, "bfloat16", "", ""),
    "odd runs": ((3, 4, 7, 7), 4, "float32", "", ""),
    "room behind rows": ((3, 4, 6, 16), 4, "float16", "padded", ""),
    "one channel with a tail": ((1037,), 1, "float32", "", ""),
    "one channel, bf16": ((9, 5, 301), 1, "bfloat16", "", ""),
    "one channel of no vector": ((3,), 1, "float32", "", ""),
    "a number": ((), 1, "float64", "", ""),
    "one slope, dense otherwise": ((4, 6, 20), 1, "float32", "turned", ""),
    "beside": ((301, 64), 64, "float32", "", ""),
    "beside, bf16": ((90, 520), 520, "bfloat16", "", ""),
    "beside, odd": ((70, 37), 37, "float32", "", ""),
    "beside, f64": ((33, 6), 6, "float64", "", ""),
    "beside, room behind rows": ((20, 24), 24, "float16", "padded", ""),
    "one row": ((1, 40), 40, "float32", "", ""),
    "channels last": ((2, 6, 8, 5), 6, "float32", "last", ""),
    "two layouts": ((2, 6, 8, 5), 6, "float32", "last", "dense"),
    "turned": ((5, 6, 40), 6, "float64", "turned", ""),
    "no channels": ((3, 0, 4), 0, "float32", "", ""),
    "no elements": ((0, 3, 4), 3, "float32", "", ""),
}

PAIRS = lanes.turns(TRIALS, OPS)
ADDED = ("runs of a channel", "one channel with a tail", "beside, bf16", "no elements")
EDGED = ("runs of a channel", "one channel with a tail", "beside, odd")


def laid(x: Array, how: str) -> Array:
    """A copy of some layout, between pages that nobody can read."""
    if how == "last":
        return np.moveaxis(emulator.placed(np.moveaxis(x, 1, -1)), -1, 1)
    if how == "turned":
        return emulator.placed(x.T).T
    if how == "padded":
        wide = emulator.empty((*x.shape[:-1], x.shape[-1] + 16), x.dtype.name)
        wide[..., : x.shape[-1]] = x
        return wide[..., : x.shape[-1]]
    return emulator.placed(x)


@cache
def arrays_of(name: str) -> dict[str, Array]:
    shape, slopes, dtype, how, other = TRIALS[name]
    rng = np.random.default_rng(len(name))
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    dy, x = (rng.standard_normal(shape).astype(kind) for _ in range(2))
    weight = rng.standard_normal(slopes).astype(kind)
    return {"dy": laid(dy, other or how), "x": laid(x, how), "weight": emulator.placed(weight)}


def call_of(op: str, name: str, add: bool = False, outs: Any = None) -> Call:
    spec = registry[op].spec
    problem = check.problem(spec, [arrays_of(name)[n] for n in spec.arrays], {}, DEFAULT)
    strides = outs or tuple(strides_of(x) for x in problem.outputs)
    return Call(problem, FACTS, strides, add)


@cache
def entries() -> tuple[Entry, ...]:
    every = [call_of(op, name) for name, op in lanes.tried(PAIRS)]
    every += [call_of(op, name) for op in OPS for name in EDGED]
    every += [call_of(OPS[1], name, add=True) for name in ADDED]
    found = {step.entry.symbol: step.entry for call in every for step in plan(call).kernels}
    return tuple(found.values())


def results(call: Call) -> list[Array]:
    """New outputs, of the layout that the problem gives them."""
    out = []
    for x in call.problem.outputs:
        order = sorted(range(len(x.shape)), key=lambda i: -strides_of(x)[i])
        whole = emulator.empty([x.shape[i] for i in order], x.dtype)
        out.append(np.transpose(whole, np.argsort(order)))
    return out


def body(op: str, arrays: dict[str, Array]) -> tuple[Array, ...]:
    spec = registry[op].spec
    wide = [arrays[n].astype(np.float64) for n in spec.arrays]
    out = registry[op](*wide, backend="array_api")
    return out if isinstance(out, tuple) else (out,)


def close(got: Array, exact: Array, size: Array, dtype: str) -> None:
    """To a rounding of the result, and a few of what is added up."""
    eps = named(dtype).eps * np.abs(exact) + 32 * named(named(dtype).accumulate).eps * size
    assert np.all(np.abs(got.astype(np.float64) - exact) <= eps)


def sizes(op: str, name: str) -> list[Array]:
    """Of what each result is the sum of."""
    known = {n: np.abs(x.astype(np.float64)) for n, x in arrays_of(name).items()}
    if op == "prelu":
        return [known["x"]]
    share = np.ones_like(known["weight"]) * (known["x"] * known["dy"]).sum()
    return [known["dy"] * 4, share]


def run(op: str, steps: Steps, name: str, outs: list[Array], seed: int = 0) -> None:
    given = [arrays_of(name)[n] for n in registry[op].spec.arrays]
    emulator.run(entries(), steps, [*given, *outs], seed)


@pytest.mark.parametrize("most", [1024, 2])
@pytest.mark.parametrize(("name", "op"), PAIRS)
def test_every_way_gives_what_the_body_gives(
    op: str, name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = channels.SM_90._replace(runs=most, rounds=1, run_beside=1)
    monkeypatch.setitem(channels.TUNINGS, "sm_90", few)
    exact, call = body(op, arrays_of(name)), call_of(op, name)
    seen = []
    for seed in (0, 1):
        outs = results(call)
        run(op, plan(call), name, outs, seed)
        for got, want, size in zip(outs, exact, sizes(op, name), strict=True):
            close(got, want, size, TRIALS[name][2])
        seen.append([x.tobytes() for x in outs])
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ADDED)
def test_gradients_add_into_what_is_there(name: str) -> None:
    op = "prelu_backward"
    call = call_of(op, name, add=True)
    outs = results(call)
    for out in outs:
        out[...] = 0.5
    run(op, plan(call), name, outs)
    for got, want, size in zip(outs, body(op, arrays_of(name)), sizes(op, name), strict=True):
        close(got, want + 0.5, size + 1, TRIALS[name][2])


@pytest.mark.parametrize("name", EDGED)
def test_edges_are_those_of_the_body(name: str) -> None:
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1e30], np.float32)
    known = arrays_of(name)
    shape = known["x"].shape
    arrays = {
        "dy": np.where(np.arange(known["x"].size) % 5, 1, np.inf).reshape(shape),
        "x": np.resize(edges, shape),
        "weight": known["weight"],
    }
    given = {n: emulator.placed(x.astype(np.float32)) for n, x in arrays.items()}
    for op in OPS:
        call = call_of(op, name)
        outs = results(call)
        inputs = [given[n] for n in registry[op].spec.arrays]
        emulator.run(entries(), plan(call), [*inputs, *outs])
        for got, want in zip(outs, body(op, given), strict=True):
            want = want.astype(np.float32)
            assert np.allclose(got, want, rtol=1e-5, equal_nan=True)


def test_results_may_be_written_over_inputs() -> None:
    name = "runs of a channel"
    known = {n: emulator.placed(x) for n, x in arrays_of(name).items()}
    exact = body("prelu_backward", known)
    steps, dweight = plan(call_of("prelu_backward", name)), emulator.empty((6,), "float32")
    emulator.run(entries(), steps, [*known.values(), known["dy"], dweight])
    close(known["dy"], exact[0], np.abs(exact[0]), "float32")
