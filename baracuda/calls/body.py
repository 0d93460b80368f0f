"""Run an op's own body: up to the accumulate dtype, through the body, one rounding at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from baracuda.calls import ranges
from baracuda.declaration.backend import Adds, Runner, each
from baracuda.declaration.dispatch import unrecorded
from baracuda.declaration.dtypes import name_of
from baracuda.declaration.indexed import scatters
from baracuda.declaration.sku import PrecisionGuarantee
from baracuda.declaration.spec import Problem
from baracuda.families.numerics import narrow, stored_as, unread
from baracuda.libraries import TRACED, Array


def evaluator(problem: Problem) -> Callable[..., tuple[Array, ...]]:
    """``(arrays, scalars) -> results`` in the accumulate dtype, without looking at values."""
    evaluate = _of_numbers(problem)
    if not problem.reads:
        return evaluate

    def unlooked(arrays: Sequence[Array], scalars: Mapping[str, Any]) -> tuple[Array, ...]:
        values = {
            name: taken(problem, name, x) if dtype else x
            for (name, x), dtype in zip(scalars.items(), problem.reads, strict=True)
        }
        with unread():
            return evaluate(arrays, values)

    return unlooked


def taken(problem: Problem, name: str, value: Array) -> Array:
    """A run-time value that is an array, as bodies take it: in the accumulate dtype, or exact."""
    library, takes = problem.library, problem.spec.scalars[name]
    # The bits of a seed are no number.
    bits = getattr(takes, "code", "") == "Q"
    if bits or (getattr(takes, "exact", False) and name_of(value.dtype) == "float64"):
        return value
    return library.xp.astype(value, library.dtype(problem.compute_dtype))


def _of_numbers(problem: Problem) -> Callable[..., tuple[Array, ...]]:
    """`evaluator` where run-time values are numbers, or arrays of the accumulate dtype."""
    body, options, library = problem.spec.body, problem.options, problem.library
    stored = library.stored_as.get(problem.dtype)
    if stored is not None and problem.spec.moves:

        def moved(arrays: Sequence[Array], scalars: Mapping[str, Any]) -> tuple[Array, ...]:
            first, *rest = arrays
            result = body(library.view(first, stored), *rest, **options, **scalars)
            return (library.view(result, problem.dtype),)

        return moved

    if problem.spec.composite:

        def composed(arrays: Sequence[Array], scalars: Mapping[str, Any]) -> tuple[Array, ...]:
            # A record says how to run this op, not those that it is made of.
            with unrecorded():
                result = body(*arrays, **options, **scalars)
            return result if type(result) is tuple else (result,)

        return composed

    if problem.dtype == problem.compute_dtype:

        def plain(arrays: Sequence[Array], scalars: Mapping[str, Any]) -> tuple[Array, ...]:
            result = body(*arrays, **options, **scalars)
            return result if type(result) is tuple else (result,)

        return plain

    compute, astype, dtypes = (
        library.dtype(problem.compute_dtype), library.xp.astype,
        [x.dtype for x in problem.outputs],
    )  # fmt: skip
    # Of all parameters: blocks give the halves of a packed array in the places of two.
    floats = [name not in problem.spec.discrete for name in problem.spec.arrays]

    def widened(arrays: Sequence[Array], scalars: Mapping[str, Any]) -> tuple[Array, ...]:
        wide = [
            astype(x, compute) if cast and x is not None and x.dtype != compute else x
            for x, cast in zip(arrays, floats, strict=False)
        ]
        with stored_as(*dtypes, primal=problem.dtype):
            result = body(*wide, **options, **scalars)
        return result if type(result) is tuple else (result,)

    return widened


def runner(problem: Problem) -> Runner:
    """The runner of the body over whole arrays."""
    evaluate, library = evaluator(problem), problem.library
    dtypes = [library.dtype(x.dtype) for x in problem.outputs]
    block = narrow if problem.spec.composite else nullcontext

    def rounded(arrays: Sequence[Array], scalars: Mapping[str, Any]) -> tuple[Array, ...]:
        with block():
            found = evaluate(arrays, scalars)
        results = zip(found, dtypes, strict=True)
        return tuple([x if x.dtype == d else library.xp.astype(x, d) for x, d in results])

    # A program would round the scalars of lerp, or have to be made anew for each of its weights. It
    # takes no seed of 64 bits.
    numbered = problem.spec.numbers(problem.signature)
    steered = (problem.spec.elementwise or numbered) and problem.spec.scalars
    if not (problem.mode or problem.spec.composite or steered):
        rounded = library.compiled(rounded)
    checked = bool(problem.raising)
    # Whoever differentiates or traces keeps the layout that falls out; a copy would be recorded.
    layouts = [x.strides for x in problem.outputs] if not problem.mode else None

    def run(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        if checked:
            ranges.check(problem, arrays)
        elif ranges.begun:
            ranges.raise_found()
        with library.running(problem.device):
            if outs is None:
                results = rounded(arrays, scalars)
                if layouts is not None:
                    results = tuple(map(library.conform, results, layouts))
            else:
                adds = each(accumulate, len(outs))
                for out, value, add in zip(outs, evaluate(arrays, scalars), adds, strict=True):
                    library.assign(out, value, add)
                results = outs
        return results if len(results) > 1 else results[0]

    return run


def slots(problem: Problem, given: Iterable[Array]) -> list[Array]:
    """The arrays that are there, in the places of all that the op takes, None elsewhere."""
    left = iter(given)
    return [None if x is None else next(left) for x in problem.inputs]


def on_views(run: Runner, view: Callable[[Array], Array], back: Callable[[Array], Array]) -> Runner:
    """`run` on what `view` makes of another library's arrays; `back` makes its results theirs."""

    def run_on_views(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        given = [x if x is None else view(x) for x in arrays]
        if outs is not None:
            run(given, tuple(map(view, outs)), accumulate, scalars)
            return outs if len(outs) > 1 else outs[0]
        result = run(given, None, accumulate, scalars)
        return tuple(map(back, result)) if type(result) is tuple else back(result)

    return run_on_views


def of_given(
    problem: Problem, run: Runner, scalars: Mapping[str, Any]
) -> Callable[..., tuple[Array, ...]]:
    """`run` as a function of the arrays that are there, its results a tuple."""

    def call(*given: Array) -> tuple[Array, ...]:
        result = run(slots(problem, given), None, False, scalars)
        return result if type(result) is tuple else (result,)

    return call


def ordered(problem: Problem) -> bool:
    """Whether the library adds what collides in a fixed order; devices scatter by atomics."""
    host = any(name in problem.device.lower() for name in ("cpu", TRACED))
    return host or not scatters(problem.spec)


KERNELS = ("body", "composite")
"""What runs, for the SKU: the body in one dtype, or one that is made of other ops."""


def kernel(problem: Problem) -> str:
    """Which of `KERNELS` runs."""
    return KERNELS[problem.spec.composite]


def precision(problem: Problem) -> PrecisionGuarantee:
    """What the body guarantees: one dtype throughout, in the library's own order.

    Composites compute in the storage dtype between the ops that they are made of, whose choices
    are their own.
    """
    compute, fixed = problem.compute_dtype, ordered(problem)
    if problem.spec.composite:
        return PrecisionGuarantee(problem.dtype, compute, fixed, False)
    return PrecisionGuarantee(compute, compute, fixed, fixed)
