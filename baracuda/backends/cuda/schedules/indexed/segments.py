"""Rows beside what is known of their segment: softmax, and gradients of means and maxima.

What a segment has in common is a sum or maximum of rows by lists, in a fixed order. A pass over the
rows, a kernel of `by_row.cuh`, makes the result, and of ties also what is summed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from baracuda.backends.cuda.geometry import Packer, View, at_most, divisor
from baracuda.backends.cuda.launch_plan import MOST_BLOCKS, Call, Step, Steps, blocks
from baracuda.backends.cuda.schedules.indexed import lists
from baracuda.backends.cuda.schedules.indexed.tiles import Lanes
from baracuda.backends.cuda.schedules.indexed.work import Work
from baracuda.declaration.dtypes import named

# Vectors of a thread that are under way together.
_DEPTH = 2


class Segments(Work):
    """The launches of one call over rows of segments."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        spec = call.problem.spec
        (name,) = spec.indices
        self.out = call.out()
        self.rows, self.row = self.out.shape[0], self.out.shape[1:]
        self.count = prod(self.row)
        self.extent = int(call.problem.extent_of(name))
        self.index = self.line(name)
        self.values = [self.given(n) for n in spec.arrays if n not in spec.discrete]
        of_rows = [x for x in self.values if x.shape == self.out.shape]
        first = of_rows[0] if of_rows else self.index
        self.lanes = self._lanes(first, first)
        at_most(MOST_BLOCKS, "elements", self.rows * self.count)
        self.invert(self.lanes, ahead=bool(of_rows))

    def _lanes(self, values: View, target: View) -> Lanes:
        steps = (self.count, self.index.strides[0], self.count)
        views = (values, self.index, target)
        return Lanes(True, [], self.count, self.rows, self.extent, steps, 0, views)

    def joined(
        self, values: View, dtype: str, functor: str = "",
        beside: View | None = None, known: View | None = None,
    ) -> View:  # fmt: skip
        """The sum of the rows of each segment, or what a functor makes of them.

        The functor makes terms of rows `beside` these, or of what is `known` of segments.
        """
        target = self.room((self.extent, *self.row), dtype)
        sums = lists.Sums(dtype, functor, dtype, False, "", (functor or "sums",), beside, known)
        if sums.terms:
            own = self.call.problem.dtype
            sums = sums._replace(dtype=own, functor=f"{functor}<{named(own).short}>")
        self.add_up(self._lanes(values, target), sums)
        return target

    def by_row(
        self, functor: str, x: View | None = None, y: View | None = None,
        known: View | None = None, sums: View | None = None, wide: bool = False,
        last: bool = False,
    ) -> View:  # fmt: skip
        """Each element from those in its place; `wide`: x is of the accumulate dtype."""
        call, own = self.call, self.call.problem.dtype
        out = self.target(self.out, call.add) if last else self.room(self.out.shape, self.wide)
        taken, made = (self.wide if wide else own), (own if out is self.out else self.wide)
        kind = named(call.problem.index_dtype or "")
        narrow = sums is None and taken == made == own
        width = divisor([self.count], call.elements(0 if narrow else named(self.wide).itemsize))
        across, cut = self.count // width, self.cut
        arguments = Packer(False).pointers(7)
        arguments.add("I", self.rows, self.extent, cut.slots, cut.shift)
        arguments.add("i", self.index.strides[0] * kind.itemsize)
        arguments.add("I", self.rows * across).extents(across, code="I").add("I", 0)
        types = ", ".join(named(each).short for each in (own, taken, made))
        entry = call.entry(
            f"ByRow<{types}, {kind.short}, {width}, {functor}>",
            len(arguments.done()),
            *(functor, kind.short, f"v{width}", *["wide"] * (made != own)),
        )
        # What a functor does not take is never read.
        nothing = out
        arrays = [v or nothing for v in (x, y, known, sums)]
        front = [(v.slot, 0) for v in (*arrays, self.index, self.lists[1], out)]
        grid = (blocks(self.rows * across, _DEPTH), 1)
        self.steps.append(Step(entry, grid, arguments.done(), front))
        if last:
            self.deliver(out, self.out, call.add)
        return out


def _softmax(work: Segments, data: View) -> None:
    top = work.joined(data, work.call.problem.dtype, "Highest")
    sums = work.joined(data, work.wide, "Powers", known=top)
    work.by_row("Ratio", data, known=top, sums=sums, last=True)


def _softmax_backward(work: Segments, dy: View, y: View) -> None:
    sums = work.joined(dy, work.wide, "Products", beside=y)
    work.by_row("Slope", dy, y, sums=sums, last=True)


def _max_backward(work: Segments, dout: View, data: View, out: View) -> None:
    ties = work.by_row("Tie", data, known=out)
    sums = work.joined(ties, work.wide)
    work.by_row("Shared", ties, known=dout, sums=sums, wide=True, last=True)


def _mean_backward(work: Segments, dout: View) -> None:
    work.by_row("Evenly", known=dout, last=True)


# By the functor of the pass that makes the result.
WAYS: dict[str, Callable[..., None]] = {
    "Ratio": _softmax,
    "Slope": _softmax_backward,
    "Shared": _max_backward,
    "Evenly": _mean_backward,
}


def plan(call: Call) -> Steps:
    """Lists of the rows of each segment, then passes over them."""
    if not call.out().shape[0] or not prod(call.out().shape):
        return Steps((), variant="segments")
    work = Segments(call)
    WAYS[call.functor](work, *work.values)
    return work.done("segments")
