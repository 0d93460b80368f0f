"""Columns: rows along an axis with others behind it, side by side in neighbouring threads."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import MOST_DIMS, Packer, View, divisor, merged, wide
from baracuda.backends.cuda.launch_plan import WIDEST, Call, Step, Steps, flag
from baracuda.declaration.backend import Refusal

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


def plan(call: Call, loads: list[View], outs: list[View], axis: int) -> Steps | None:
    """One kernel; None where columns do not lie beside each other, or 32 bits do not count them."""
    shape, views = outs[0].shape, [*loads, *outs]
    inner_shape, strides = shape[axis + 1 :], [v.strides for v in views]
    dims = merged(inner_shape, [s[axis + 1 :] for s in strides])
    if len(dims) != 1 or any(s != 1 for s in dims[0].strides):
        return None
    n, inner = shape[axis], dims[0].extent
    if wide(n, inner):
        return None
    around = merged(shape[:axis], [s[:axis] for s in strides])
    if len(around) > MOST_DIMS:
        raise Refusal(f"walks over at most {MOST_DIMS} dimensions that do not merge")
    steps = [s[axis] for s in strides]
    width, most = WIDEST // call.itemsize, _MOST // (1 + (call.itemsize == 8))
    if divisor([inner, *steps, *(s for d in around for s in d.strides)], call.elements()) < width:
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
    packer = Packer(True).pointers(len(views)).scalars(scalars).add("q", *steps)
    packer.add("i", n, inner, lanes.bit_length() - 1, 0).extents(tiles, code="I")
    arguments = packer.walk(around, len(views)).done()
    schedule = (
        f"Columns<{call.functor}<{call.accumulate}, 0>, {call.type}, {held}, {width}, "
        f"{flag(again)}, {flag(call.add)}>"
    )
    tags = ("columns", f"v{width}", *["again"] * again, *["add"] * call.add)
    bound = tuning.threads_again if again else most
    entry = call.entry(schedule, len(arguments), *tags, threads=bound)
    # What is known of a column takes no more than what a thread finds out.
    room = (threads // _WARP + 1) * lanes * width * _STATE * (8 if call.itemsize == 8 else 4)
    front = [(v.slot, 0) for v in views]
    grid = outer * tiles, 1
    return Steps((Step(entry, grid, arguments, front, scalars, room, threads),))
