"""Run a body block by block into the result, so that its temporaries stay in a cache.

On a CPU. New memory for each step of a body of large arrays takes longer than the step. Elements
are cut where arrays in C order have one shape, or one holds two as its halves; else rows and sums
over rows are, as `calls.cuts` has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from baracuda.calls import body
from baracuda.calls.cuts import Form, cuts
from baracuda.calls.partitioning import located
from baracuda.declaration.backend import Adds, Runner, each
from baracuda.declaration.spec import Problem
from baracuda.libraries import Array
from baracuda.libraries.numpy import settle

# Elements per block: temporaries of 256 KiB stay in a cache, and calls of torch stay few.
BLOCK = 1 << 16
# The same of rows, whose sums are added, and of how many elements on: temporaries of fewer stay in
# a cache as they are.
ROWS, LARGE = 1 << 18, 1 << 21


def variant(problem: Problem) -> str:
    """How a body runs, for the SKU: a vector loop that ends elsewhere may round otherwise."""
    if _Cut(problem).fits:
        return f"blocks of {BLOCK}"
    return f"blocks of {ROWS}" if _rows(problem) else ""


def _rows(problem: Problem) -> tuple[Form, dict[str, tuple[int, int]]] | None:
    """How rows are cut, if they are: into runs of memory.

    Of elements alone the body takes few passes. Where it counts positions, as ropes do, most of it
    is many small steps, which blocks would only repeat.
    """
    spec = problem.spec
    if problem.device != "cpu" or spec.elementwise or spec.composite or problem.reads:
        return None
    small = max(x.size for x in (*problem.given, *problem.outputs)) < LARGE
    if small or spec.counted or any(x.strides for x in problem.given):
        return None
    form = Form(problem)
    steps, first = form.steps(ROWS), form.signature.outputs[0]
    extents = zip(form.labels(first), first.shape(problem.axes), strict=True)
    outer = [label.name for label, extent in extents if extent > 1]
    cut = {name for name, (extent, step) in steps.items() if step < extent}
    return (form, steps) if steps and cut == set(outer[: len(cut)]) else None


def runner(problem: Problem) -> Runner:
    """The runner of a body, in blocks where there is more than one."""
    if problem.device == "cpu":
        settle()
    whole = body.runner(problem)
    cut = _Cut(problem)
    if not cut.fits:
        rows = _rows(problem)
        return _of_rows(problem, *rows) if rows else whole
    evaluate, library = body.evaluator(problem), problem.library

    def run(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        if outs is not None and not all(x.is_contiguous() for x in outs):
            return whole(arrays, outs, accumulate, scalars)
        results = outs or tuple(
            [library.empty(x.shape, x.dtype, arrays[0], None) for x in problem.outputs]
        )
        targets = cut.outs(results)
        # The halves of a packed output are its own.
        adds = each(accumulate, len(targets))
        blocks = zip(
            zip(*cut.inputs(arrays), strict=False), zip(*targets, strict=True), strict=False
        )
        with library.running(problem.device):
            for parts, places in blocks:
                values = evaluate(parts, scalars)
                for place, value, add in zip(places, values, adds, strict=True):
                    library.assign(place, value, add)
        return results if len(results) > 1 else results[0]

    return run


def _of_rows(problem: Problem, form: Form, steps: Mapping[str, tuple[int, int]]) -> Runner:
    """The runner of a body whose rows are cut."""
    evaluate, library = body.evaluator(problem), problem.library
    compute = library.dtype(problem.compute_dtype)
    takes, puts, summed = form.parts(steps)

    def run(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        results = outs or tuple(
            [library.empty(x.shape, x.dtype, arrays[0], x.strides) for x in problem.outputs]
        )
        inputs, targets = form.arrays(arrays), form.outs(results)
        sums = [
            x.new_zeros(x.shape, dtype=compute) if some else None
            for x, some in zip(targets, summed, strict=True)
        ]
        adds = each(accumulate, len(targets))
        with library.running(problem.device):
            for block in cuts(steps):
                parts = [
                    take if take is None or x is None else take(block, x)
                    for take, x in zip(takes, inputs, strict=True)
                ]
                values = evaluate(parts, scalars)
                for i, (put, value) in enumerate(zip(puts, values, strict=True)):
                    total = sums[i]
                    if total is None:
                        library.assign(put(block, targets[i]), value, adds[i])
                    else:
                        put(block, total).add_(value)
            for target, total, add in zip(targets, sums, adds, strict=True):
                if total is not None:
                    library.assign(target, total, add)
        return results if len(results) > 1 else results[0]

    return run


class _Cut:
    """How the arrays of a problem fall into blocks, those of one that is packed as its halves."""

    def __init__(self, problem: Problem) -> None:
        spec, packed = problem.spec, problem.spec.packed
        self.names = spec.arrays
        self.outputs = [x.name for x in problem.outputs]
        self.both: str = ""
        # What lies together in one half.
        self.run = 1
        if packed is not None and problem.inputs[spec.arrays.index(packed.other)] is None:
            first = next(x for x in problem.given if x.name == packed.array)
            axis = problem.options[packed.axis]
            self.both, self.other = packed.array, packed.other
            self.turned = packed.order(problem.options)[0] != packed.array
            for extent in first.shape[axis:]:
                self.run *= extent
            self.run //= 2
        self.fits = self._fits(problem)

    def _fits(self, problem: Problem) -> bool:
        spec, every = problem.spec, (*problem.given, *problem.outputs)
        halves = {self.both, f"d{self.both}"} if self.both else set()
        sizes = {x.size // 2 if x.name in halves else x.size for x in every}
        return (
            problem.device == "cpu"
            and spec.elementwise
            # Steps and blends take few passes: to copy blocks would be one more.
            and not (spec.composite or spec.scalars or problem.reads or located(problem))
            and not spec.numbers(problem.signature)
            and len(sizes) == 1
            and max(sizes) >= 2 * BLOCK
            and all(x.strides is None for x in every)
        )

    def inputs(self, arrays: Sequence[Array]) -> Iterator[Any]:
        """The blocks of what each parameter of the body takes."""
        known = dict(zip(self.names, arrays, strict=False))
        parts = {
            name: self._parts(x) for name, x in known.items() if x is not None and name != self.both
        }
        if self.both:
            parts[self.both], parts[self.other] = self._halves(known[self.both])
        return (parts.get(name, repeat(None)) for name in self.names)

    def outs(self, outs: Sequence[Array]) -> list[Sequence[Array]]:
        """The blocks of each result of the body."""
        found: list[Sequence[Array]] = []
        for name, x in zip(self.outputs, outs, strict=True):
            found += self._halves(x) if self.both and name == f"d{self.both}" else [self._parts(x)]
        return found

    def _parts(self, x: Array) -> Sequence[Array]:
        return self._pieces(x.view(-1, self.run)) if self.both else x.view(-1).split(BLOCK)

    def _halves(self, x: Array) -> list[Sequence[Array]]:
        """Of the array that the packed one is called by, then of the other."""
        halves = x.view(-1, 2, self.run).unbind(1)
        return [self._pieces(half) for half in halves[:: -1 if self.turned else 1]]

    def _pieces(self, rows: Array) -> Sequence[Array]:
        if self.run <= BLOCK:
            return rows.split(BLOCK // self.run)  # type: ignore[no-any-return]
        return [piece for row in rows.unbind() for piece in row.split(BLOCK)]
