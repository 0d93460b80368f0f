"""Heads without a GPU: every way of cutting them, in two orders of threads, against the body."""

from __future__ import annotations

from typing import Any

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest

from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import plan
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import Operand
from baracuda.families.numerics import stored_as

FACTS = DeviceFacts(0, "sm_90", 4, 232448)
OPS = ("qk_norm_rope", "qk_norm_rope_backward")
DTYPES = ("float32", "bfloat16", "float16", "float64")
SCALARS = {"eps": 1e-5, "offset": 0.25}
Trial = tuple[str, list[Any], Any, Steps, Call]


def trial(
    op: str, dtype: str, d: int, how: str = "dense", angles: int = 3, add: bool = False,
    wide: tuple[str, ...] = (), places: tuple[tuple[int, ...], int] = ((2,), 3),
    heads: tuple[int, int] = (5, 2), twice: bool = False, **options: Any,
) -> Trial:  # fmt: skip
    """A call of the form of that number, with its arrays where the emulator has them."""
    spec = registry[op].spec
    form, rng = spec.signatures[angles], np.random.default_rng(d)
    rotary = options.get("rotary_dim", d)
    axes = dict(zip("bshg", (*places, *heads), strict=True))
    axes |= {"d": d, "r": rotary // 2 * (1 + twice)}
    arrays: list[Any] = []
    for name in spec.arrays:
        pattern = next((p for p in form.inputs if p.name == name), None)
        if pattern is None:
            arrays.append(None)
        elif name in spec.integers:
            arrays.append(emulator.placed(rng.integers(-9999, 10**6, pattern.shape(axes))))
        else:
            kind = named(dtype).accumulate if spec.role(name).wide in wide else dtype
            x = rng.standard_normal(pattern.shape(axes)).astype(getattr(ml_dtypes, kind, kind))
            # One set of tables for all of a batch.
            x = x[:1] if spec.role(name).wide == "table" and places[0] else x
            if how == "turned" and x.ndim > 2:
                arrays.append(emulator.placed(x.swapaxes(-3, -2)).swapaxes(-3, -2))
            else:
                arrays.append(emulator.lying(x, "dense" if how == "turned" else how))
    problem = check.problem(spec, arrays, options, DEFAULT)
    outs = tuple(strides_of(x) for x in problem.outputs)
    call = Call(problem, FACTS, outs, add, 1 if how == "odd" else 16)
    return op, arrays, problem, plan(call), call


def results_of(x: Operand) -> Any:
    """An output full of ones, which may be added to, in the layout that it has."""
    shape, turned = list(x.shape), x.strides is not None
    if turned:
        shape[-3:-1] = shape[-2], shape[-3]
    out = emulator.empty(shape, x.dtype)
    out[...] = 1
    return out.swapaxes(-3, -2) if turned else out


def trials(op: str, dtype: str) -> list[Trial]:
    """Heads for a few lanes, a warp, and more chunks than lanes; what passes through; layouts."""
    width = 16 // named(dtype).itemsize
    found = [
        trial(op, dtype, 8 * width),
        trial(op, dtype, 8 * width, "turned", 0, interleaved=False, base=500.0),
        trial(op, dtype, 128 * width, twice=True, interleaved=False, places=((), 2)),
        trial(op, dtype, 7, angles=2, rotary_dim=4, casting="before_weight"),
        trial(op, dtype, 6 * width, "padded", twice=True, rotary_dim=4 * width),
        trial(op, dtype, 40, "odd", 1, interleaved=False, heads=(1, 9), rotary_dim=0),
        # So many positions that none is cut into slices.
        trial(op, dtype, 16, places=((3,), 720), heads=(3, 1), interleaved=False),
    ]
    if named(dtype).accumulate != dtype:
        found.append(trial(op, dtype, 64, "stepped", wide=("parameter", "table")))
        found.append(trial(op, dtype, 64, wide=("table",), casting="before_weight"))
    if registry[op].spec.accumulates:
        found.append(trial(op, dtype, 8 * width, add=True, interleaved=False))
    return found


@pytest.mark.parametrize(
    ("op", "dtype"), lanes.turns(filter(lanes.chosen, OPS), DTYPES, DTYPES[:2])
)
def test_heads_are_as_the_body_makes_them(op: str, dtype: str) -> None:
    every = trials(op, dtype)
    entries = tuple(dict.fromkeys(s.entry for _, _, _, steps, _ in every for s in steps.kernels))
    for _, arrays, problem, steps, call in every:
        given = [x for x in arrays if x is not None]
        with stored_as(*[x.dtype for x in problem.outputs], primal=dtype):
            widened = [
                x if x is None or x.dtype == np.int64 else x.astype(np.float64) for x in arrays
            ]
            want = registry[op].spec.body(*widened, **problem.options, **SCALARS)
        results = []
        for seed in (0, 1):
            outs = [results_of(x) for x in call.problem.outputs]
            emulator.run(entries, steps, [*given, *outs], seed, [*SCALARS.values()])
            results.append([np.array(out) for out in outs])
        for first, second, expected in zip(*results, want, strict=True):
            assert first.tobytes() == second.tobytes()
            room = 2e-2 if named(dtype).accumulate != dtype else 2e-5
            size = np.abs(expected).max() + 1
            apart = np.abs(first.astype(np.float64) - expected - call.add).max()
            assert apart <= room * size, (op, dtype, problem.options, apart, size)
