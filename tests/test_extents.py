"""Extents at their ends: arrays of no axes, of no elements, and of more than 2^31 elements."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import array_api_strict
import jax.numpy as jnp
import lanes
import numpy as np
import plannable
import pytest
import torch
from kinds import COVERING, OPS

import baracuda as bc
from baracuda.backends.cuda import schedules
from baracuda.backends.cuda.geometry import Packer
from baracuda.backends.cuda.launch_plan import Steps
from baracuda.backends.cuda.schedules.indexed import scatter
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.shapes import Signature
from baracuda.declaration.spec import Case, OpSpec, Problem
from baracuda.errors import BaracudaError
from baracuda.testing.cases import (
    _derived,
    many,
    options_of,
    positional,
    to_library,
    to_numpy,
    tried,
)

LIBRARIES = {"numpy": np, "torch": torch, "jax": jnp, "array_api_strict": array_api_strict}
# Ops that have every feature say what all others say.
PLANNED = lanes.cases(
    [name for name in registry if registry[name].spec.kernel], COVERING.__contains__
)
HUGE = (2**31 - 2**22, 2**31, 2**33 + 16, 2**40)
# 64-bit sums and a key for every bin: what adding in a fixed order costs, of 2 bytes a bin most.
_KEYS_AND_SUMS = 6


# Arrays of no axes.


def bounded() -> list[str]:
    """Ops that look up an integer that may be one for all."""
    return [
        name
        for name, op in registry.items()
        for form in op.spec.signatures[:1]
        for p in form.inputs
        if p.name in op.spec.indices and all(t.group for t in p.terms)
    ]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("op", bounded())
def test_a_single_index_out_of_range_is_an_index_error(op: str, library: str) -> None:
    spec = registry[op].spec
    form = next(f for f in spec.signatures if f.allowed(spec.defaults))
    axes = {"b": (), "i": (), "v": 3, "n": 3, "c": (), "d": 2}
    options, given = {}, dict[str, np.ndarray]()
    if "num_embeddings" in spec.options:
        options["num_embeddings"] = 3
    for p in form.inputs:
        shape = p.shape(axes)
        if p.is_option:
            options[p.name] = shape
            continue
        integer = p.name in spec.integers
        given[p.name] = np.full(shape, 7) if integer else np.zeros(shape, np.float32)
    places = spec.arrays[: spec.arrays.index([*given][-1]) + 1]
    arrays = [to_library(given[n], library) if n in given else None for n in places]
    message = rf"^{op}: {spec.indices[0]}: expected 0 <= i < 3, got 7 at position \(\)$"
    with pytest.raises(IndexError, match=message):
        registry[op](*arrays, **options)


# Arrays of no elements.


def emptied(case: Case) -> Iterator[Case]:
    """The case with each axis of no extent, each two of them, and all."""
    places = [
        (name, i)
        for name, extent in case.axes.items()
        for i in (range(len(extent)) if isinstance(extent, tuple) else [None])
    ]
    for number in {*range(1, min(len(places), 2) + 1), len(places)}:
        for some in itertools.combinations(places, number):
            yield extended(case, dict.fromkeys(some, 0))


def extended(case: Case, extents: dict[Any, int]) -> Case:
    """The case with other extents at some places."""
    axes: dict[str, Any] = {}
    for name, extent in case.axes.items():
        if isinstance(extent, tuple):
            axes[name] = tuple(extents.get((name, i), n) for i, n in enumerate(extent))
        else:
            axes[name] = extents.get((name, None), extent)
    return Case(axes, **case.options)


def shapes(spec: OpSpec, case: Case, form: Signature) -> dict[str, tuple[int, ...]]:
    """The shapes of all inputs; where options do not fit, those that a caller might give."""
    axes = dict(case.axes)
    try:
        axes.update(_derived(spec, case, axes))
    except BaracudaError:
        axes.update(dict.fromkeys(form.derived, 0))
    return {p.name: p.shape(axes) for p in form.inputs}


def call_of(spec: OpSpec, case: Case, form: Signature) -> tuple[list[Any], dict[str, Any]]:
    """Ones, and zeros for integers; and the options."""
    known, options = shapes(spec, case, form), options_of(spec, case)
    options.update({p.name: known.pop(p.name) for p in form.inputs if p.is_option})
    return positional([
        np.ones(known[n], spec.dtype_of(n, "float32", "int64")) * (n not in spec.integers)
        if n in known else None
        for n in spec.arrays
    ]), options  # fmt: skip


@cache
def on_numpy(op: str) -> list[tuple[list[Any], dict[str, Any], Any]]:
    """Every empty problem of an op, with what NumPy makes of it."""
    spec, out = registry[op].spec, {}
    for case, form in tried(spec, [e for c in spec.cases for e in emptied(c)]):
        arrays, options = call_of(spec, case, form)
        out[repr((options, [None if x is None else x.shape for x in arrays]))] = arrays, options
    return [(*each, outcome(op, "numpy", *each)) for each in out.values()]


def outcome(op: str, library: str, arrays: list[Any], options: dict[str, Any]) -> Any:
    """The results, as their shapes and values, or what the refusal says."""
    given = [None if x is None else to_library(x, library) for x in arrays]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            results = many(registry[op](*given, **options))
        except BaracudaError as error:
            return str(error)
    return [(x.shape, x.tolist()) for x in map(to_numpy, results)]


@pytest.mark.parametrize("library", ["torch", "array_api_strict", "jax"])
@pytest.mark.parametrize("op", OPS)
def test_a_problem_of_no_elements_has_the_same_result_everywhere(op: str, library: str) -> None:
    problems = on_numpy(op)
    # JAX compiles each anew.
    every = 60 if library == "jax" else 1 if lanes.FULL else 3
    for arrays, options, want in problems[::every]:
        found = outcome(op, library, arrays, options)
        if isinstance(want, str) or isinstance(found, str):
            assert found == want, (arrays, options)
            continue
        for (shape, values), (other, exact) in zip(found, want, strict=True):
            assert shape == other, (arrays, options)
            # A logarithm is rounded as the library does it, and so is what cancels beside it.
            np.testing.assert_allclose(values, exact, rtol=2.0**-22, atol=2.0**-22)


def test_losses_of_no_classes_are_those_of_rows_that_do_not_count() -> None:
    none, ignored = np.zeros((3, 0)), np.full(3, -100)
    assert np.isnan(bc.cross_entropy(none, ignored))
    assert bc.cross_entropy(none, ignored, reduction="sum", label_smoothing=0.5) == 0
    assert bc.cross_entropy_backward(np.asarray(1.0), none, ignored).shape == (3, 0)
    with pytest.raises(IndexError, match="expected 0 <= i < 0"):
        bc.cross_entropy(none, np.zeros(3, int))
    assert bc.soft_target_cross_entropy(none, none, label_smoothing=0.5) == 0
    assert np.isnan(bc.cross_entropy(np.zeros((0, 0)), np.zeros(0, int)))


def problems(spec: OpSpec, cases: list[Case], dtype: str) -> Iterator[Problem]:
    """Of arrays that are never read."""
    for case, form in tried(spec, cases):
        known, options = shapes(spec, case, form), options_of(spec, case)
        options.update({p.name: known.pop(p.name) for p in form.inputs if p.is_option})
        arrays = [
            plannable.phantom(known[n], "dense", spec.dtype_of(n, dtype, "int64"))
            if n in known else None
            for n in spec.arrays
        ]  # fmt: skip
        try:
            problem = check.problem(spec, arrays, options, DEFAULT)
        except BaracudaError:
            continue
        if not all(0 in x.shape for x in problem.outputs):
            yield problem


def steps_of(problem: Problem) -> Iterator[Any]:
    """What calls of a problem launch, that of the rule first; nothing where it is refused."""
    for add, alignment in ((False, 16), (True, 8))[: 1 + problem.spec.accumulates]:
        call = plannable.call(problem, "", add, alignment)
        for variant in ("", *schedules.variants(call)[1:]):
            try:
                yield add, schedules.plan(call._replace(variant=variant))
            except Refusal:
                continue


@pytest.mark.parametrize("op", PLANNED)
def test_kernels_are_planned_for_problems_of_no_elements(op: str) -> None:
    spec = registry[op].spec
    cases = [e for c in spec.cases for e in emptied(c)]
    for problem in problems(spec, cases, "float32"):
        for add, steps in steps_of(problem):
            # Sums of nothing have to be written.
            assert steps.steps or add, problem.given
            assert all(min(step.grid) > 0 for step in steps.kernels), problem.given


def test_sums_for_a_single_bin_are_settled() -> None:
    x = (1 << 19,)
    arrays = [plannable.phantom(x, "dense", dtype) for dtype in ("float16", "int64")]
    spec = registry["gather_backward"].spec
    problem = check.problem(spec, arrays, {"axis": 0, "src_shape": (1,)}, DEFAULT)
    steps = plannable.steps(plannable.call(problem))
    assert steps.variant == scatter.ATOMIC
    assert all(min(step.grid) > 0 for step in steps.kernels)


# More elements than 32 bits count.


def grown(case: Case) -> Iterator[Case]:
    """The case with one axis of a huge extent, beside the others and beside axes of 1."""
    places = [
        (name, i)
        for name, extent in case.axes.items()
        for i in (range(len(extent)) if isinstance(extent, tuple) else [None])
    ]
    for place, extent in itertools.product(places, HUGE):
        yield extended(case, {place: extent})
        yield extended(case, {**dict.fromkeys(places, 1), place: extent})


@pytest.mark.parametrize("op", PLANNED)
def test_huge_problems_are_planned_within_limits_or_refused(op: str) -> None:
    spec = registry[op].spec
    cases = [e for c in (*spec.cases[:2], *plannable.cases(spec)[:1]) for e in grown(c)]
    for problem in problems(spec, cases, "float16"):
        nbytes = sum(x.nbytes for x in (*problem.given, *problem.outputs))
        for _, steps in steps_of(problem):
            most = _KEYS_AND_SUMS if steps.variant.endswith(scatter.FIXED) else 2
            assert steps.workspace_size <= most * nbytes + (1 << 26), problem.given
            for step in steps.kernels:
                assert 0 < step.grid[0] < 2**31, problem.given
                assert 0 < step.grid[1] < 2**16, problem.given


def planned(op: str, *given: tuple[int, ...], **options: Any) -> Any:
    spec = registry[op].spec
    arrays = [plannable.phantom(s, "dense", "float16") for s in given]
    return plannable.steps(plannable.call(check.problem(spec, arrays, options, DEFAULT)))


def test_columns_that_32_bits_do_not_count_are_planned_as_rows() -> None:
    (step,) = planned("softmax", (2, 2**31), axis=0).kernels
    assert "steps" in step.entry.symbol
    assert step.grid[0] * step.threads >= 2**31


def test_what_kernels_cannot_count_is_refused_with_a_reason() -> None:
    x = (1, 2**31)
    with pytest.raises(Refusal, match="count in fewer bits than this problem needs"):
        planned("prelu_backward", x, x, x[1:])
    with pytest.raises(Refusal, match="for the coefficients of short planes"):
        planned("group_norm", (2, 2143289343), num_groups=1)
    with pytest.raises(Refusal, match="launches at most 2147483647 x 65535 blocks"):
        planned("layer_norm", (2**40, 8))
    with pytest.raises(Refusal, match="fewer bits"):
        Packer(False).add("i", 2**31).done()
    assert math.isfinite(planned("group_norm", (2, 4096), num_groups=1).workspace_size)


@pytest.mark.parametrize("grid", [(2**31, 1), (1, 2**16), (2**31 - 1, 2**16 - 1)])
def test_a_grid_is_within_both_limits(
    grid: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = registry["relu"].spec
    problem = check.problem(spec, [plannable.phantom((4,), "dense", "float32")], {}, DEFAULT)
    (step,) = plannable.steps(plannable.call(problem)).kernels
    steps = Steps((step._replace(grid=grid),))
    monkeypatch.setitem(schedules.PLANNERS, "elementwise", lambda call: steps)
    if grid[0] >= 2**31 or grid[1] >= 2**16:
        with pytest.raises(Refusal, match=f"not {grid[0]} x {grid[1]}"):
            schedules.plan(plannable.call(problem))
    else:
        assert schedules.plan(plannable.call(problem)) is steps
