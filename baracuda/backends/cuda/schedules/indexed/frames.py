"""Views of the arrays of a gather or scatter: an index beside the one array, an axis of the other.

Where an index has fewer axes than the array that has its entries, it is broadcast to them. Its axes
are merged to one where they can be.
"""

from __future__ import annotations

from dataclasses import dataclass

from baracuda.backends.cuda.geometry import Dim, View, merged
from baracuda.backends.cuda.launch_plan import Call
from baracuda.declaration.indexed import Indexed, indexed
from baracuda.layouts import Shape


@dataclass(frozen=True, slots=True)
class Frame:
    """Views of a gather or scatter.

    Attributes
    ----------
    whole : View
        The array that has the axis which the index points along.
    asked, index : View
        The array of the entries; the index, of its shape.
    axis, run : int
        Where the axis is in `whole`, and where its entries begin in the others; of how many axes
        there they are.
    """

    whole: View
    asked: View
    index: View
    axis: int
    run: int

    @property
    def beside(self) -> Shape:
        """The strides of `whole` for each axis of `asked`, 0 for those of the entries."""
        strides, axis = self.whole.strides, self.axis
        return (*strides[:axis], *(0,) * self.run, *strides[axis + 1 :])


def frame(call: Call) -> Frame:
    """The views of a call."""
    of = indexed(call.problem)
    outputs = [x.name for x in call.problem.outputs]

    def view(name: str) -> View:
        return call.out(outputs.index(name)) if name in outputs else call.view(name)

    asked, index, run = view(of.asked), view(of.index), of.run
    if len(index.shape) < len(asked.shape):
        before, behind = of.axis, len(asked.shape) - of.axis - run
        strides = (*(0,) * before, *index.strides, *(0,) * behind)
        index = View(index.slot, 0, asked.shape, strides)
        line = line_of(of, asked, index)
        if line is not None:
            asked, index = (_flattened(of, v, s) for v, s in zip((asked, index), line, strict=True))
            run = 1
    return Frame(view(of.whole), asked, index, of.axis, run)


def added(call: Call) -> View:
    """The values that a scatter adds up."""
    return call.view(indexed(call.problem).asked)


def line_of(of: Indexed, *views: View) -> Shape | None:
    """The strides of views along all entries of an index, None where one would not do."""
    cut = slice(of.axis, of.axis + of.run)
    shape = views[0].shape[cut]
    if 0 in shape:
        return (0,) * len(views)
    dims = merged(shape, [v.strides[cut] for v in views]) or [Dim(1, (0,) * len(views))]
    return dims[0].strides if len(dims) == 1 else None


def apart(strides: Shape, axis: int) -> Shape:
    """Strides with the axis left out."""
    return (*strides[:axis], 0, *strides[axis + 1 :])


def _flattened(of: Indexed, view: View, stride: int) -> View:
    strides = (*view.strides[: of.axis], stride, *view.strides[of.axis + of.run :])
    return View(view.slot, view.offset, of.flat(view.shape), strides)
