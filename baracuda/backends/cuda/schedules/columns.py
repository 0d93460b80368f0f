"""Columns: rows along an axis with others behind it, side by side in neighbouring threads."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Packer, divisor, merged, walkable, wide, without
from baracuda.backends.cuda.launch_plan import WIDEST, Call, Step, Steps, flag
from baracuda.backends.cuda.schedules.row_operands import Operands

# common/columns.cuh: lanes of a warp, threads of the largest block, numbers that are known of a
# column.
_WARP, _MOST, _STATE = 32, 1024, 2


class Tuning(NamedTuple):
    """What columns take of an architecture.

    Attributes
    ----------
    elements : dict of int to int
        Elements of a column that a thread holds, by the number of inputs; of float64 half as many,
        by half the threads.
    threads_again : int
        Threads of a block that reads its columns twice.
    blocks : int
        Blocks that keep all multiprocessors busy.
    columns : int
        Columns that a block keeps even where there are fewer blocks than that.
    segment : int
        Bytes beside each other that a block reads, at least.
    """

    elements: dict[int, int]
    threads_again: int
    blocks: int
    columns: int
    segment: int


SM_90 = Tuning(
    elements={1: 8, 2: 4},
    threads_again=512,
    blocks=264,
    columns=64,
    # Memory is read twice in less time than once by 64 bytes.
    segment=128,
)
TUNINGS = {"sm_90": SM_90}


def _lanes(tuning: Tuning, vectors: int, width: int, nbytes: int, outer: int, most: int) -> int:
    """Vectors side by side of a block: no more than there are, and so few that blocks are many."""
    lanes = min(1 << (vectors - 1).bit_length(), _WARP)
    while lanes * nbytes > tuning.segment:
        few = lanes * width > tuning.columns and outer * -(-vectors // lanes) < tuning.blocks
        if lanes <= most and not few:
            break
        lanes //= 2
    return lanes


def plan(call: Call, of: Operands) -> Steps | None:
    """One kernel; None where columns do not lie beside each other, or 32 bits do not count them."""
    loads, axis, views = of.loads, of.axis, [*of.loads, *of.outs]
    shape, strides = loads[0].shape, [v.strides for v in views]
    lie = [*[without(s, axis) for s in strides], *[v.strides for v in of.costs]]
    inner_shape = shape[axis + 1 :]
    dims = merged(inner_shape, [s[axis:] for s in lie])
    if len(dims) != 1 or any(s != 1 for s in dims[0].strides[: len(views)]):
        return None
    # A cotangent may be the same for all columns side by side.
    apart = dims[0].strides[len(views) :]
    if any(s not in (0, 1) for s in apart):
        return None
    n, inner = shape[axis], dims[0].extent
    # Columns of nothing have a result too, and no thread.
    if wide(n, inner) or not n:
        return None
    around = merged(shape[:axis], [s[:axis] for s in lie])
    walkable(around)
    steps = [s[axis] for s in strides]
    width, most = WIDEST // call.itemsize, _MOST // (1 + (call.itemsize == 8))
    numbers = [inner, *steps, *(s for d in around for s in d.strides[: len(views)])]
    if divisor(numbers, call.elements()) < width:
        width = 1
    tuning, nbytes = call.facts.tuned(TUNINGS), width * call.itemsize
    held = tuning.elements[len(loads)] // (1 + (call.itemsize == 8))
    outer, vectors = prod(shape[:axis]), -(-inner // width)
    lanes = _lanes(tuning, vectors, width, nbytes, outer, held * most // max(n, 1))
    again = n > held * (most // lanes)
    if again:
        lanes = _lanes(tuning, vectors, width, nbytes, outer, _WARP)
    rows = tuning.threads_again // lanes if again else -(-n // held)
    threads = -(-rows * lanes // _WARP) * _WARP
    tiles = -(-vectors // lanes)

    scalars = call.problem.spec.codes
    front = [(v.slot, 0) for v in (*views, *of.costs)]
    packer = Packer(True).pointers(len(front)).scalars(scalars)
    if of.costs:
        packer.add("I", call.is_wide(of.costs[0].slot)).add("i", *apart)
    packer.add("q", *steps).add("i", n, inner, lanes.bit_length() - 1, 0)
    arguments = packer.extents(tiles, code="I").walk(around, len(front)).done()
    schedule = (
        f"Columns<{call.functor}<{call.accumulate}, 0>, {call.type}, {held}, {width}, "
        f"{flag(again)}, {flag(call.add)}{', true' * len(of.costs)}>"
    )
    tags = ("columns", f"v{width}", *["again"] * again, *["add"] * call.add)
    bound = tuning.threads_again if again else most
    entry = call.entry(schedule, len(arguments), *tags, threads=bound)
    # What is known of a column takes no more than what a thread finds out.
    room = (threads // _WARP + 1) * lanes * width * _STATE * (8 if call.itemsize == 8 else 4)
    grid = outer * tiles, 1
    return Steps((Step(entry, grid, arguments, front, scalars, room, threads),))
