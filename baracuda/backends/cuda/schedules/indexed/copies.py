"""Copies between layouts, before a kernel that needs another, or that adds to what is there."""

from __future__ import annotations

from math import prod

from baracuda import layouts
from baracuda.backends.cuda.geometry import Dim, Packer, View, count, divisor, merged, reach, wide
from baracuda.backends.cuda.launch_plan import Call, Step, blocks
from baracuda.backends.cuda.schedules.indexed.gather import UNITS
from baracuda.declaration.indexed import indexed


def packed(call: Call, given: View, to: View, size: int) -> Step:
    """Elements of `size` bytes where those of another view are; in C order in one of less axes."""
    strides = to.strides if to.shape == given.shape else layouts.contiguous(given.shape)
    dims = merged(given.shape, (given.strides, strides))
    width = 1
    if dims and dims[0].strides == (1, 1):
        # As many at once as lie side by side in both.
        apart = [s for d in dims[1:] for s in d.strides]
        width = divisor([dims[0].extent, *apart], call.elements(size))
        inner = Dim(dims[0].extent // width, (1, 1))
        dims = [inner, *[Dim(n, tuple([s // width for s in each])) for n, each in dims[1:]]]
    items, unit = count(dims), size * width
    packer = Packer(wide(items, reach(dims))).pointers(2).indices(items, 0)
    arguments = packer.walk(dims, 2).done()
    entry = call.entry(f"Pack<{UNITS[unit]}, {packer.type}>", len(arguments), "pack", unit,
                       packer.type)  # fmt: skip
    return Step(entry, (blocks(items), 1), arguments, [(given.slot, 0), (to.slot, 0)])


def started(call: Call) -> tuple[Call, tuple[Step, ...]]:
    """A call of a scatter that adds to its output, behind a copy of the input that it begins with.

    As it is where it begins with zeros.
    """
    name = indexed(call.problem).start
    if not name:
        return call, ()
    given, out = call.view(name), call.out()
    copy = (packed(call, given, out, call.itemsize),) if prod(out.shape) else ()
    return call._replace(add=True), copy
