"""Gather, and the addition that is its transpose."""

from __future__ import annotations

from baracuda import layouts
from baracuda.backends.cuda.geometry import (
    Dim,
    Packer,
    View,
    count,
    divisor,
    merged,
    reach,
    split,
    wide,
)
from baracuda.backends.cuda.steps import Call, Step, Steps, Zero, blocks, flag
from baracuda.dtypes import named

# Sizes of the elements that gather moves, whatever they mean.
_UNITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "u128"}
# Bytes of rows that a block sums on chip: some blocks of small rows, one of a large one.
_ROWS_TOGETHER = 32 * 1024


def gather(call: Call) -> Steps:
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


def scatter(call: Call) -> Steps:
    """Rows on chip where they fit; else atomics, in a workspace where the output is narrower."""
    dout, index, out = call.view("dout"), call.view("index"), call.out()
    if 0 not in index.shape and 0 not in out.shape:
        rows = _scatter_rows(call, dout, index, out)
        if rows is not None:
            return Steps((rows,), deterministic=False, stable=False)
    wide_sums = call.type == call.accumulate
    contiguous = out.strides == layouts.contiguous(out.shape)
    if wide_sums and (contiguous or call.add):
        add = _scatter_atomic(call, dout, index, View(out.slot, 0, out.shape, out.strides))
        nbytes = count(merged(out.shape, (out.strides,))) * call.itemsize
        zero = () if call.add else (Zero(out.slot, nbytes),)
        return Steps((*zero, *add), deterministic=False, stable=False)
    sums = View(call.workspace(), 0, out.shape, layouts.contiguous(out.shape))
    dtype = named(call.problem.dtype).accumulate
    nbytes = count(merged(out.shape, (sums.strides,))) * named(dtype).itemsize
    add = _scatter_atomic(call, dout, index, sums)
    return Steps(
        (Zero(sums.slot, nbytes), *add, _settle(call, sums, out)),
        ((out.shape, dtype),), deterministic=False, stable=False,
    )  # fmt: skip


def _scatter_atomic(call: Call, dout: View, index: View, target: View) -> tuple[Step, ...]:
    if 0 in index.shape:
        return ()
    axis = call.problem.options["axis"]
    steps = (*target.strides[:axis], 0, *target.strides[axis + 1 :])
    dims = merged(index.shape, (dout.strides, index.strides, steps))
    items, depth, extent = count(dims), 4, target.shape[axis]
    packer = Packer(wide(items, reach(dims) + abs(target.strides[axis]) * extent)).pointers(3)
    packer.add("Q", call.listener).add("q", extent).add("I", call.ticket, 0)
    packer.indices(items, target.strides[axis]).walk(dims, 3)
    arguments = packer.done()
    kind = named(call.problem.index_dtype or "").short
    schedule = f"ScatterAtomic<{call.type}, {kind}, {depth}, {packer.type}>"
    entry = call.entry(schedule, len(arguments), "atomic", kind, packer.type)
    front = [(dout.slot, 0), (index.slot, 0), (target.slot, 0)]
    return (Step(entry, (blocks(items, depth), 1), arguments, front),)


def _settle(call: Call, sums: View, out: View) -> Step:
    dims = merged(out.shape, (sums.strides, out.strides))
    dense = all(s == 1 for d in dims[:1] for s in d.strides)
    numbers = [d.extent for d in dims[:1]] + [s for d in dims[1:] for s in d.strides]
    width = divisor(numbers, call.elements()) if dense else 1
    items = count(dims) // width
    packer = Packer(wide(count(dims), reach(dims))).pointers(2).indices(items, 0)
    arguments = packer.walk(split(dims, width), 2).done()
    schedule = f"Settle<{call.type}, {width}, {packer.type}, {flag(call.add)}>"
    entry = call.entry(
        schedule, len(arguments), "settle", f"v{width}", packer.type, *["add"] * call.add
    )
    return Step(entry, (blocks(items), 1), arguments, [(sums.slot, 0), (out.slot, 0)])


def _scatter_rows(call: Call, dout: View, index: View, out: View) -> Step | None:
    """A block owns rows of the output, where the axis is the last one and a row fits on chip."""
    axis, last = call.problem.options["axis"], len(out.shape) - 1
    extent, length = out.shape[last], index.shape[last]
    size = named(named(call.problem.dtype).accumulate).itemsize
    inner = [v.strides[last] for v, n in ((dout, length), (index, length), (out, extent)) if n > 1]
    if (
        axis != last
        or index.shape[:last] != out.shape[:last]
        or any(s != 1 for s in inner)
        or extent * size > call.facts.shared_per_block
    ):
        return None
    views = (dout.strides[:last], index.strides[:last], out.strides[:last])
    dims = merged(out.shape[:last], views)
    rows = count(dims)
    each = min(max(_ROWS_TOGETHER // (extent * size), 1), rows)
    kind = named(call.problem.index_dtype or "")
    width = divisor([length, *(d.strides[0] for d in dims)], call.elements())
    together = divisor([d.strides[1] for d in dims], min(width, call.elements(kind.itemsize)))
    written = divisor([extent, *(d.strides[2] for d in dims)], call.elements())
    packer = Packer(wide(rows * max(length, extent), reach(dims) + max(length, extent))).pointers(3)
    packer.add("Q", call.listener).add("q", extent).add("I", call.ticket, 0)
    packer.indices(rows, each, length, 0).extents(length // width).add(packer.unsigned, 0)
    arguments = packer.walk(dims, 3).done()
    schedule = (
        f"ScatterRows<{call.type}, {kind.short}, {width}, {together}, {written}, {packer.type}, "
        f"{flag(call.add)}>"
    )
    tags = ("rows", kind.short, f"v{width}", f"a{together}", f"a{written}", packer.type)
    entry = call.entry(schedule, len(arguments), *tags, *["add"] * call.add)
    front = [(dout.slot, 0), (index.slot, 0), (out.slot, 0)]
    blocks_needed = -(-rows // each)
    return Step(entry, (blocks_needed, 1), arguments, front, shared=each * extent * size)
