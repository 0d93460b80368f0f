"""What schedules of several passes over rows share: launches, workspaces, lists, results."""

from __future__ import annotations

from math import prod

from baracuda import layouts
from baracuda.backends.cuda.geometry import View, merged
from baracuda.backends.cuda.launch_plan import Call, Step, Steps, Zero
from baracuda.backends.cuda.schedules.indexed import lists
from baracuda.backends.cuda.schedules.indexed.add_rows import near
from baracuda.backends.cuda.schedules.indexed.copies import packed
from baracuda.backends.cuda.schedules.indexed.scatter import settle
from baracuda.backends.cuda.schedules.indexed.tiles import Lanes
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dtypes import named
from baracuda.layouts import Shape


class Work:
    """The launches of one call, and the workspaces that they share."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.steps: list[Step | Zero] = []
        self.workspaces: list[tuple[Shape, str]] = []
        self.wide = named(call.problem.dtype).accumulate

    def room(self, shape: Shape, dtype: str) -> View:
        """A workspace."""
        self.workspaces.append((shape, dtype))
        slot = self.call.workspace(len(self.workspaces) - 1)
        return View(slot, 0, shape, layouts.contiguous(shape))

    def given(self, name: str) -> View:
        """An input, its elements side by side."""
        view = self.call.view(name)
        dense = view.strides == layouts.contiguous(view.shape)
        return view if dense else self._packed(view, self.call.problem.dtype)

    def line(self, name: str) -> View:
        """The entries of an index along one axis."""
        view = self.call.view(name)
        dims = merged(view.shape, (view.strides,))
        flat = (prod(view.shape),)
        line = View(view.slot, view.offset, flat, dims[0].strides if dims else (1,))
        if not flat[0]:
            return line._replace(strides=(1,))
        if len(dims) <= 1 and near(line):
            return line
        made = self._packed(view, self.call.problem.index_dtype or "")
        return View(made.slot, 0, flat, (1,))

    def _packed(self, view: View, dtype: str) -> View:
        to = self.room(view.shape, dtype)
        self.steps.append(packed(self.call, view, to, named(dtype).itemsize))
        return to

    def invert(self, lanes: Lanes, ahead: bool) -> None:
        """Lists of the entries of each row; `ahead`: values come into the L2 meanwhile."""
        call = self.call
        cut = lists.cut_of(call, lanes) if lists.counts(call, lanes) else None
        if cut is None or not lanes.extent:
            raise Refusal(
                "takes fewer than 2**30 entries, and 1 to 2**30 rows of less than 2**27 elements, "
                f"not {lanes.length} entries for {lanes.extent} rows of {lanes.count}"
            )
        self.cut = cut
        self.lists = [self.room(*each) for each in lists.rooms(lanes, cut)]
        done = self.room((1,), "int32")
        slots = [x.slot for x in (*self.lists, done)]
        # An entry out of range is reported by its own place.
        self.steps += lists.invert(call, lanes, cut, slots, 0, 1, ahead=ahead)

    def add_up(self, lanes: Lanes, sums: lists.Sums) -> None:
        """The rows of a target, each from its list."""
        done, parts = [
            self.room(*each) for each in lists.room_of_parts(self.call, lanes, self.cut, sums)
        ]
        self.steps.append(Zero(done.slot, prod(done.shape) * 4))
        slots = [x.slot for x in (*self.lists, done)]
        step = lists.total(self.call, lanes, self.cut, sums, slots, parts.slot)
        if step is None:
            raise Refusal("has more rows than warps can be counted for, in 31 bits")
        self.steps.append(step)

    def target(self, out: View, add: bool) -> View:
        """Where a result is made: where it belongs, or in the accumulate dtype beside it."""
        direct = out.strides == layouts.contiguous(out.shape) and not add
        return out if direct and not any(self.call.wide) else self.room(out.shape, self.wide)

    def deliver(self, made: View, out: View, add: bool) -> None:
        """Bring a result from where it was made to where it belongs."""
        if made is not out and 0 not in out.shape:
            self.steps.append(settle(self.call._replace(add=add), made, out))

    def done(self, variant: str) -> Steps:
        """All launches."""
        return Steps(tuple(self.steps), tuple(self.workspaces), variant=variant)
