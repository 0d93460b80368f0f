"""Losses without a GPU: every kernel on fibers, in two orders of threads, against float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import emulator
import lanes
import numpy as np
import pytest
from numpy.typing import NDArray

from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import plan, reduce
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import Case
from baracuda.testing.bounds import tolerance
from baracuda.testing.cases import Call as Trial
from baracuda.testing.cases import Subject, draw, tried

FACTS = DeviceFacts(0, "sm_90", 4, 232448)
POINTWISE = [
    name for name, op in registry.items() if op.spec.kernel and op.spec.kernel.file in
    ("loss.cu", "divergence.cu")
]  # fmt: skip
# Vectors with a tail, rows with room behind them, and more than one round of more than one block.
CASES = (
    Case({"s": (1031,)}),
    Case({"s": (9, 16)}, reduction="none"),
    Case({"s": (3, 1500)}, reduction="sum"),
)


def steps_of(trial: Trial, arrays: list[NDArray[Any]], add: bool = False) -> Steps:
    spec = trial.subject.spec
    options = {k: v for k, v in trial.options.items() if k not in spec.scalars}
    given = dict(zip(trial.form.names, arrays, strict=True))
    problem = check.problem(spec, [given.get(n) for n in spec.arrays], options, DEFAULT)
    outs = tuple(strides_of(x) for x in problem.outputs)
    return plan(Call(problem, FACTS, outs, add, alignment=16))


def trials(name: str, dtype: str) -> list[tuple[Trial, list[NDArray[Any]], Steps, bool]]:
    subject, out = Subject(name, "cuda", "numpy", dtype), []
    for case, form in tried(subject.spec, CASES):
        trial = Trial(subject, case, form, draw(subject.spec, case, form, dtype))
        for padded in (False, True):
            lie = "padded" if padded else "dense"
            arrays = [emulator.lying(trial.arrays[n], lie) for n in form.names]
            add = padded and subject.spec.accumulates
            out.append((trial, arrays, steps_of(trial, arrays, add), add))
    return out


# By file and dtype, so that each worker of a parallel run compiles little.
KINDS = sorted(
    [
        *((name, dtype) for name in POINTWISE for dtype in ("float32", "bfloat16")),
        *((name, dtype) for name in POINTWISE[:2] for dtype in ("float16", "float64")),
    ],
    key=lambda kind: (registry[kind[0]].spec.kernel.file, kind[1]),
)


@cache
def entries(file: str, dtype: str) -> tuple[Entry, ...]:
    """Every kernel of a file for a dtype, compiled together."""
    names = [n for n, d in KINDS if d == dtype and registry[n].spec.kernel.file == file]
    every = [steps for name in names for *_, steps, _ in trials(name, dtype)]
    return tuple({s.entry.symbol: s.entry for steps in every for s in steps.kernels}.values())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the longest case has more than one, as some kernels are for these alone."""
    monkeypatch.setitem(reduce.TUNINGS, "sm_90", reduce.SM_90._replace(rounds=1, sums=2))


@pytest.mark.slow("the first of a file compiles all of its kernels")
@pytest.mark.parametrize(("name", "dtype"), lanes.cases(KINDS, lambda kind: lanes.common(kind[1])))
def test_losses_are_those_of_the_body(name: str, dtype: str) -> None:
    together = entries(registry[name].spec.kernel.file, dtype)
    for trial, arrays, steps, add in trials(name, dtype):
        (want,) = trial.reference()
        (most,) = tolerance(trial)
        seen = []
        for seed in (0, 1):
            out = emulator.empty(want.shape, *trial.dtypes)
            if add:
                out[...] = 0.5
            emulator.run(together, steps, [*arrays, out], seed, list(trial.scalars.values()))
            sum_of = want + 0.5 * add
            slack = add * named(dtype).eps * (np.abs(sum_of) + 0.5)
            error = np.abs(out.astype(np.float64) - sum_of)
            # Among thousands of elements some cancel in every direction that was tried.
            assert np.all(error <= 4 * most + slack), (trial.case, trial.form.text, error.max())
            seen.append(out.tobytes())
        assert seen[0] == seen[1]


@pytest.mark.parametrize(("reduction", "want"), [("mean", np.nan), ("sum", 0.0)])
def test_nothing_has_no_mean(reduction: str, want: float) -> None:
    x = np.zeros((0, 3), np.float32)
    problem = check.problem(registry["mse_loss"].spec, [x, x], {"reduction": reduction}, DEFAULT)
    steps = plan(Call(problem, FACTS, ((),)))
    out = emulator.empty((), "float32")
    emulator.run(entries("loss.cu", "float32"), steps, [x, x, out])
    assert np.array_equal(out, np.float32(want), equal_nan=True)
