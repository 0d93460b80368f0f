"""Norms whose result is rounded before it is scaled, bit for bit, in every way of sharing a row."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import lanes
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from test_emulated_rows import Mixed, Trial, computed, few, kept_trials, streamed_trials, trial

from baracuda.backends.cuda.compiler import Entry
from baracuda.calls.op import registry
from baracuda.declaration.dtypes import named
from baracuda.testing.cases import mixtures_of

Array = NDArray[Any]
OPS = [
    name
    for name, op in registry.items()
    if "casting" in op.spec.options
    and op.spec.category == "norm"
    # What is added behind the scale rounds once more, or in one instruction.
    and op.spec.role("residual").alike != "y"
]
# For a lane, a warp, a block, and what a block reads again; sums of squares are exact, and so are
# their parts.
LENGTHS = (1, 8, 64, 1024, 32768)
CAST = {"casting": "before_weight"}


def mixtures(op: str) -> tuple[Mixed, ...]:
    """Kinds of inputs that are wider: weights always may be, since their gradients tell more."""
    every = mixtures_of(registry[op].spec.wide)
    return every if lanes.FULL else ((), ("parameter",), every[-1])


def exact(one: Trial) -> Trial:
    """With rows of small integers, whose mean squares no order of adding up rounds."""
    rng = np.random.default_rng(3)
    for name, x in zip(registry[one.op].spec.arrays, one.arrays, strict=True):
        if x is not None and name in ("x", "s", "residual"):
            x[...] = rng.integers(-2, 3, x.shape)
    return one


def made(op: str, dtype: str, mixed: Mixed) -> Iterator[Trial]:
    form = registry[op].spec.signatures[-1]
    sums = registry[op].spec.accumulates
    # What reads the longest rows again adds up as `streamed_trials` has it, of fewer columns.
    for n in LENGTHS if lanes.FULL or not sums else LENGTHS[:-1]:
        shapes = {p.name: p.shape({"b": (3, 5) if n < 100 else (2,), "n": n}) for p in form.inputs}
        for how in ("dense", "odd", "stepped") if n == 64 else ("dense",):
            yield trial(op, shapes, dtype, how, mixed=mixed, **CAST)
    if sums:
        yield from kept_trials(op, dtype, mixed, **CAST)
        yield from streamed_trials(op, dtype, mixed, **CAST)


@cache
def trials(dtype: str) -> tuple[Trial, ...]:
    return few(exact(t) for op in OPS for mixed in mixtures(op) for t in made(op, dtype, mixed))


@cache
def entries(dtype: str) -> tuple[Entry, ...]:
    """Every kernel of these, compiled together."""
    return tuple({s.entry.symbol: s.entry for t in trials(dtype) for s in t.steps.kernels}.values())


def rounded(one: Trial, dtype: str) -> tuple[Array, Array]:
    """The rows that are normalised, in float32, before and after they are rounded."""
    given = dict(zip(registry[one.op].spec.arrays, one.arrays, strict=True))
    wide = {name: x.astype(np.float32) for name, x in given.items() if x is not None}
    rows = wide["s"] if "s" in wide else wide["x"] + wide.get("residual", np.float32(0))
    square = (rows * rows).mean(-1, keepdims=True, dtype=np.float32)
    normal = rows * (1 / np.sqrt(square + np.float32(one.scalars["eps"])))
    return normal, normal.astype(getattr(ml_dtypes, dtype, dtype)).astype(np.float32)


@pytest.mark.slow("kernels for every way of sharing a row, thread by thread")
@pytest.mark.parametrize(
    "dtype", lanes.cases(("bfloat16", "float16"), lanes.thinned("bfloat16".__eq__))
)
def test_what_is_normalised_is_rounded_before_it_is_scaled(dtype: str) -> None:
    for one in trials(dtype):
        spec, problem = registry[one.op].spec, one.call.problem
        outs = computed(one, entries(dtype), 0)
        given = dict(zip(spec.arrays, one.arrays, strict=True))
        unrounded, normal = rounded(one, dtype)
        scale = given["weight"].astype(np.float32) + np.float32(one.scalars["offset"])
        if not spec.accumulates:
            y = (normal * scale).astype(outs[0].dtype)
            assert outs[0].tobytes() == y.tobytes(), one.label
            continue
        dy = given["dy"].astype(np.float64)
        others, start = tuple(range(dy.ndim - 1)), 0.5 * one.call.add
        want, plain = ((dy * x).sum(others) for x in (normal, unrounded))
        kind, size = named(problem.outputs[1].dtype), np.abs(dy * normal).sum(others) + start
        room = 2.0**-20 * size + kind.eps * np.abs(want + start)
        room += float(ml_dtypes.finfo(outs[1].dtype).smallest_subnormal)
        assert np.all(np.abs(outs[1].astype(np.float64) - start - want) <= room), one.label
        if kind.name == "float32" and dy.shape[-1] > 1:
            assert np.any(np.abs(plain - want) > room), one.label


def test_only_what_is_narrower_than_its_scale_is_rounded() -> None:
    """Kernels without a weight, and of float32, are those that there are without the option."""
    for op in OPS:
        plain, weighted = registry[op].spec.signatures
        for form, dtype in ((plain, "bfloat16"), (weighted, "float32")):
            shapes = {p.name: p.shape({"b": (3,), "n": 64}) for p in form.inputs}
            cast, usual = (trial(op, shapes, dtype, **options) for options in (CAST, {}))
            assert cast.steps.kernels == usual.steps.kernels
