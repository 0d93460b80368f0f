"""Gather: elements are moved, whatever they mean."""

from __future__ import annotations

from baracuda.backends.cuda.geometry import (
    Dim,
    Packer,
    count,
    divisor,
    merged,
    reach,
    split,
    wide,
)
from baracuda.backends.cuda.steps import Call, Step, Steps, blocks, flag
from baracuda.dtypes import named

# Sizes of the elements that gather moves, whatever they mean.
_UNITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "u128"}


def plan(call: Call) -> Steps:
    """One kernel, in vectors where a run of elements shares an index or lies side by side."""
    src, index, out = call.view("src"), call.view("index"), call.out()
    axis, shape = call.problem.options["axis"], index.shape
    along = src.strides[axis]
    steps = (*src.strides[:axis], 0, *src.strides[axis + 1 :])
    dims = merged(shape, (steps, index.strides, out.strides))
    inner = dims[0] if dims else Dim(1, (0, 0, 1))
    outer = [s for d in dims[1:] for s in d.strides[2:]]
    width = divisor([inner.extent, *outer], call.elements()) if inner.strides[2] == 1 else 1
    shared = width > 1 and inner.strides[1] == 0 and inner.strides[0] == 1
    if shared:
        width = divisor([along, *(d.strides[0] for d in dims[1:])], width)
        shared = width > 1
    item = named(call.problem.index_dtype or "").itemsize
    together = 1
    if not shared and inner.strides[1] == 1:
        most = min(width, call.elements(item))
        together = divisor([d.strides[1] for d in dims[1:]], most)
    depth = 1 if width > 1 and not shared else 2 if shared else 4
    items, extent = count(dims) // width, int(call.problem.axes["n"])  # type: ignore[arg-type]
    far = abs(along) * extent
    packer = Packer(wide(count(dims), reach(dims) + far)).pointers(3)
    packer.add("Q", call.listener).add("q", extent).add("I", call.ticket, 0)
    packer.indices(items, along, inner.strides[0], inner.strides[1]).walk(split(dims, width), 3)
    arguments = packer.done()
    unit, kind = _UNITS[call.itemsize], named(call.problem.index_dtype or "").short
    schedule = (
        f"Gather<{unit}, {kind}, {flag(shared)}, {width}, {together}, {depth}, {packer.type}>"
    )
    symbol = ("runs" if shared else "cells", kind, f"v{width}", f"a{together}", packer.type)
    entry = call.entry(schedule, len(arguments), *symbol)
    front = [(src.slot, 0), (index.slot, 0), (out.slot, 0)]
    return Steps((Step(entry, (blocks(items, depth), 1), arguments, front),))
