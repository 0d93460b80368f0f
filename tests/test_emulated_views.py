"""Views that run backwards, which torch does not have, through every kernel, on fibers; and arrays
as they usually are through elementwise ones, in the widest accesses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import emulator
import lanes
import numpy as np
import plannable
import pytest
from numpy.typing import NDArray

import baracuda.ops  # noqa: F401
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import plan, variants
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.testing import cases
from baracuda.testing.bounds import tolerance

FACTS = DeviceFacts(0, "sm_90", 4, 232448)
# Which axes run backwards: the slowest, the fastest, all.
AXES = (slice(0, 1), slice(-1, None), slice(None))
FILES = sorted({op.spec.kernel.file for op in registry.values() if op.spec.kernel})
# One of each schedule, and packed arrays.
_FIRST = {k.schedule: k.file for op in registry.values() if (k := op.spec.kernel)}.values()
_USUAL = {*_FIRST, "gated.cu"}


@dataclass(frozen=True)
class Trial:
    """One variant on views of the arrays of one call."""

    call: cases.Call
    views: list[NDArray[Any]]
    planned: Call
    steps: Steps
    axes: slice | None


def backwards(x: NDArray[Any], axes: slice) -> NDArray[Any]:
    """The same values, their last ones first in memory along `axes`."""
    turned = range(x.ndim)[axes]
    at = (*[slice(None, None, -1 if i in turned else 1) for i in range(x.ndim)], ...)
    return x[at].copy()[at]


def laid(x: NDArray[Any], axes: slice | None) -> NDArray[Any]:
    """Backwards along some axes, or a plain copy between pages that cannot be read."""
    return emulator.placed(x) if axes is None else backwards(x, axes)


@cache
def trials(file: str) -> list[Trial]:
    out = []
    for name, op in registry.items():
        if op.spec.kernel is None or op.spec.kernel.file != file:
            continue
        usual = (None,) if op.spec.kernel.schedule == "elementwise" else ()
        for call in cases.Subject(name, "cuda", "numpy", "float32").calls():
            for axes in (*AXES, *usual):
                arrays = [call.arrays.get(n) for n in op.spec.arrays]
                views = [x if x is None else laid(x, axes) for x in arrays]
                options = {k: v for k, v in call.options.items() if k not in op.spec.scalars}
                given = cases.positional(views)
                problem = check.problem(op.spec, given, options, DEFAULT)
                outs = tuple(strides_of(x) for x in problem.outputs)
                # A view that ends where its memory begins is aligned as one element is.
                planned = Call(problem, FACTS, outs, alignment=16 if axes is None else 4)
                for variant in variants(planned) or ("",):
                    steps = plan(planned._replace(variant=variant))
                    there = [x for x in given if x is not None]
                    out.append(Trial(call, there, planned, steps, axes))
    if lanes.FULL:
        return out
    # Of equals the cheaper.
    out.sort(key=lambda one: emulator.work(one.steps))
    return [out[at] for at in lanes.covering(dict(enumerate(map(told, out))))]


def told(one: Trial) -> set[Any]:
    """What a trial tells: its kernels, and of its op which axes run backwards and each choice."""
    op, options = one.call.subject.op, one.planned.problem.options
    ways = {(op, name, value) for name, value in options.items() if isinstance(value, (bool, str))}
    ways.add((op, "axes", str(one.axes)))
    return ways.union(*(plannable.arguments(step.entry) for step in one.steps.kernels))


@cache
def entries(file: str) -> tuple[Entry, ...]:
    """Every kernel of a file, compiled together."""
    found = {s.entry.symbol: s.entry for trial in trials(file) for s in trial.steps.kernels}
    return tuple(found.values())


@pytest.mark.parametrize("file", lanes.cases(FILES, lanes.thinned(_USUAL.__contains__)))
def test_views_that_run_backwards_give_what_copies_give(file: str) -> None:
    assert any(min(x.strides, default=0) < 0 for trial in trials(file) for x in trial.views)
    for trial in trials(file):
        call = trial.call
        want = call.reference()
        outs = emulator.outputs(trial.planned)
        scalars = list(call.scalars.values())
        emulator.run(entries(file), trial.steps, [*trial.views, *outs], scalars=scalars)
        for x, y, most in zip(outs, want, tolerance(call), strict=True):
            assert np.all(np.abs(cases.apart(x, y)) <= most), (
                f"{call.subject.op} {call.case} {call.form.text}"
            )


@pytest.mark.parametrize("count", [1, 3, 1031])
def test_what_does_not_fill_a_vector_is_computed_and_nothing_behind_it(count: int) -> None:
    x = np.random.default_rng(count).standard_normal(count).astype(np.float32)
    problem = check.problem(registry["relu"].spec, [x], {}, DEFAULT)
    steps = plan(Call(problem, FACTS, ((1,),)))
    assert "_flat_v4_" in steps.kernels[0].entry.symbol
    room = emulator.empty((count + 9,), "float32")
    before = room[count:].tobytes()
    every = tuple(s.entry for s in steps.kernels)
    emulator.run(every, steps, [emulator.placed(x), room[:count]])
    np.testing.assert_array_equal(room[:count], np.maximum(x, 0))
    assert room[count:].tobytes() == before
