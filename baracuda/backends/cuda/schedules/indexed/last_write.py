"""Scatter in which the last of several elements for one place stays, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from baracuda import layouts
from baracuda.backends.cuda.geometry import Dim, Packer, View, at_most, count, merged, reach, wide
from baracuda.backends.cuda.launch_plan import Call, Step, Steps, Zero, blocks, flag
from baracuda.backends.cuda.schedules.indexed import states
from baracuda.backends.cuda.schedules.indexed.frames import Frame, apart, frame
from baracuda.backends.cuda.schedules.indexed.states import Told, numbers
from baracuda.declaration.dtypes import named
from baracuda.declaration.indexed import indexed

_NAME = "last"
# Entries or places of a thread that are under way together.
_DEPTH = 4


def plan(call: Call) -> Steps:
    """Find the last entry of each place, then let each place take its element."""
    framed, last, steps = _found(call)
    out, axis = framed.whole, framed.axis
    x, src = call.view(indexed(call.problem).start), framed.asked
    if 0 in out.shape:
        return Steps((), variant=_NAME)
    strides = (x.strides, last.strides, apart(src.strides, axis), out.strides)
    dims = merged(out.shape, strides)
    packer = _packer(dims, src.strides[axis] * src.shape[axis])
    packer.pointers(4).indices(count(dims), src.strides[axis]).walk(dims, 4)
    step = _step(
        call, "TakeLast", packer, f"{call.type}, {_DEPTH}, {packer.type}, false, false", count(dims)
    )
    step = step._replace(front=[(v.slot, 0) for v in (x, last, src, out)])
    return Steps((*steps, step), ((out.shape, "int32"),), variant=_NAME)


def backward(call: Call) -> Steps:
    """The gradient of what stays of the first array, and of the elements that were the last."""
    framed, last, every = _found(call)
    dout, index, axis = call.view(indexed(call.problem).start), framed.index, framed.axis
    (dx, dsrc), adds, steps = (call.out(0), call.out(1)), call.adds, list(every)
    if 0 not in dx.shape:
        dims = merged(dx.shape, (dout.strides, last.strides, dx.strides, dx.strides))
        packer = _packer(dims, 0)
        packer.pointers(4).indices(count(dims), 0).walk(dims, 4)
        kind = f"{call.type}, {_DEPTH}, {packer.type}, true, {flag(adds[0])}"
        step = _step(call, "TakeLast", packer, kind, count(dims), add=adds[0])
        front = [(v.slot, 0) for v in (dout, last, dout, dx)]
        steps.append(step._replace(front=front))
    if 0 not in dsrc.shape:
        places = [apart(v.strides, axis) for v in (last, dout)]
        strides = (index.strides, *places, numbers(index.shape, axis), dsrc.strides)
        dims = merged(index.shape, strides)
        packer = _packer(dims, *[v.strides[axis] * v.shape[axis] for v in (last, dout)])
        packer.pointers(4).add("q", dout.shape[axis]).indices(count(dims), last.strides[axis])
        packer.indices(dout.strides[axis], 0).walk(dims, 5)
        integer = named(call.problem.index_dtype or "").short
        kind = f"{call.type}, {integer}, {_DEPTH}, {packer.type}, {flag(adds[1])}"
        step = _step(call, "GiveLast", packer, kind, count(dims), integer, add=adds[1])
        front = [(v.slot, 0) for v in (index, last, dout, dsrc)]
        steps.append(step._replace(front=front))
    return Steps(tuple(steps), ((dout.shape, "int32"),), variant=_NAME)


def _found(call: Call) -> tuple[Frame, View, tuple[Step | Zero, ...]]:
    """The views of a call, a number for each place, and what finds the number."""
    framed = frame(call)
    index, axis, shape = framed.index, framed.axis, framed.whole.shape
    last = View(call.workspace(), 0, shape, layouts.contiguous(shape))
    at_most((1 << 32) - 2, "entries along the axis", index.shape[axis])
    if not prod(shape):
        return framed, last, ()
    told = Told("Last", "ZERO", index, index, last, last, last, axis)
    step = states.on_chip(call, told, True)
    if step is not None:
        return framed, last, (step,)
    zero = Zero(last.slot, 4 * prod(shape))
    return framed, last, (zero, *[states.in_memory(call, told, True)] * (0 not in index.shape))


def _packer(dims: Sequence[Dim], *far: int) -> Packer:
    return Packer(wide(count(dims), reach(dims) + sum(map(abs, far))))


def _step(
    call: Call, name: str, packer: Packer, kind: str, items: int, *tags: str, add: bool = False
) -> Step:
    arguments = packer.done()
    tags = (*tags, packer.type, *["add"] * add)
    entry = call.entry(f"{name}<{kind}>", len(arguments), name.lower(), *tags)
    return Step(entry, (blocks(items, _DEPTH), 1), arguments, ())
