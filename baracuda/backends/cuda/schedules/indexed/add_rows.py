"""Sums of whole rows, one index each, by lists: whatever the layout, in one order.

Arrays that lists do not take as they lie are first put side by side. An output whose rows are not
gets its sums by way of a workspace.
"""

from __future__ import annotations

from math import prod

from baracuda import layouts
from baracuda.backends.cuda.geometry import Dim, View, merged
from baracuda.backends.cuda.launch_plan import Call, Step, Steps, Zero
from baracuda.backends.cuda.schedules.indexed import lists
from baracuda.backends.cuda.schedules.indexed.copies import packed, started
from baracuda.backends.cuda.schedules.indexed.frames import frame
from baracuda.backends.cuda.schedules.indexed.scatter import settle
from baracuda.backends.cuda.schedules.indexed.tiles import Lanes
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dtypes import named
from baracuda.declaration.indexed import indexed
from baracuda.layouts import Shape

_NAME = "lists"


def plan(call: Call) -> Steps:
    """Invert the index, then sum the lists."""
    call, before = started(call)
    framed, given = frame(call), call.view(indexed(call.problem).index)
    # The entries first, and the axis that they stand for.
    values, index = (_first(x, framed.axis, framed.run) for x in (framed.asked, framed.index))
    run, target = framed.run, _first(framed.whole, framed.axis, 1)
    if not prod(target.shape):
        return Steps((), variant=_NAME)
    steps: list[Step | Zero] = [*before]
    more: list[tuple[Shape, str]] = []

    def room(shape: Shape, dtype: str) -> View:
        more.append((shape, dtype))
        slot = call.workspace(lists.WORKSPACES + len(more) - 1)
        return View(slot, 0, shape, layouts.contiguous(shape))

    out, adding = target, call
    flat = (prod(values.shape[:run]), *values.shape[run:])
    if not prod(flat):
        # Lists of nothing.
        run, flat = 1, (0, *out.shape[1:])
        values, index = (View(x.slot, 0, flat, layouts.contiguous(flat)) for x in (values, index))
    if run != 1 or not near(index):
        dtype = call.problem.index_dtype or ""
        line = room((prod(given.shape),), dtype)
        steps.append(packed(call, given, line, named(dtype).itemsize))
        index = View(line.slot, 0, flat, (1, *(0,) * (len(flat) - 1)))
    if run != 1 or not _lies(values):
        side = room(flat, call.problem.dtype)
        steps.append(packed(call, values, side, call.itemsize))
        values = side
    if not _lies(target):
        target = room(target.shape, named(call.problem.dtype).accumulate)
        adding = call._replace(wide=(True,), add=False)
    lanes = Lanes(
        True, [], prod(out.shape[1:]), values.shape[0], out.shape[0],
        (values.strides[0], index.strides[0], target.strides[0]), 0, (values, index, target),
    )  # fmt: skip
    made = lists.plan(adding, lanes, _NAME) if lists.counts(call, lanes) else None
    if made is None:
        raise Refusal(
            f"takes fewer than 2**30 rows of less than 2**27 elements, not {lanes.length} rows to "
            f"{lanes.extent}, of {lanes.count} elements"
        )
    steps += made.steps
    if adding is not call:
        steps.append(settle(call, target, out))
    return Steps(tuple(steps), (*made.workspaces, *more), variant=_NAME)


def _first(view: View, axis: int, run: int) -> View:
    """With some axes, from one on, before all others."""
    cut = slice(axis, axis + run)
    shape, strides = ((*x[cut], *x[:axis], *x[axis + run :]) for x in (view.shape, view.strides))
    return View(view.slot, view.offset, shape, strides)


def near(view: View) -> bool:
    """Whether the elements from a row to the next can be counted."""
    return abs(view.strides[0]) < lists.MOST_APART


def _lies(view: View) -> bool:
    """Whether the elements of a row are side by side, and the next row is near."""
    dims = merged(view.shape[1:], [view.strides[1:]]) or [Dim(1, (1,))]
    return len(dims) == 1 and dims[0].strides == (1,) and near(view)
