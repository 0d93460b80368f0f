"""Rows with one index each, as of embeddings: the index is inverted, then each row written once."""

from __future__ import annotations

from baracuda.backends.cuda.geometry import Packer, divisor
from baracuda.backends.cuda.schedules.tiles import Lanes
from baracuda.backends.cuda.steps import Call, Step, Steps, flag
from baracuda.dtypes import named

# cuda_src/common/lists.cuh: positions of a part, rows that a warp takes.
_PART, _ROWS = 64, 4
# A row below so many bytes leaves most of a warp without work.
_LEAST_BYTES = 64
_WARP, _THREADS, _INVERT_THREADS = 32, 256, 1024
_WARPS = _INVERT_THREADS // _WARP
# Blocks that invert, as a power of 2: one for so many rows, and about as many as multiprocessors.
_ROWS_OF_BLOCK, _MOST_SHIFT = 64, 7


def takes(call: Call, lanes: Lanes) -> bool:
    """Whether the index is the same along rows and not too long, and rows are wide enough."""
    return (
        lanes.across
        and lanes.beside == 0
        and lanes.tiles_outside == 1
        and lanes.count * call.itemsize >= _LEAST_BYTES
        and max(lanes.length, lanes.extent, lanes.count) < 1 << 30
        and _most_slots(call, lanes) > 0
    )


def _per_warp(lanes: Lanes) -> int:
    """Steps of a warp that inverts."""
    return -(-lanes.length // _INVERT_THREADS)


def _most_slots(call: Call, lanes: Lanes) -> int:
    """So many rows have their counts on chip, beside the steps of all warps."""
    return (call.facts.shared_per_block // (4 * _WARPS) - 1 - _per_warp(lanes)) // 2


def plan(call: Call, lanes: Lanes, name: str) -> Steps | None:
    """Invert the index, then sum the lists; None where the index is too long for that."""
    values, index, target = lanes.views
    kind = named(call.problem.index_dtype or "").short
    per_warp, most = _per_warp(lanes), _most_slots(call, lanes)
    if most < 1:
        return None
    # By the problem alone: where long lists are cut depends on it, and so do the bits.
    shift = min((lanes.extent // _ROWS_OF_BLOCK).bit_length(), _MOST_SHIFT)
    while -(-lanes.extent // (1 << shift)) > most:
        shift += 1
    slots = -(-lanes.extent // (1 << shift))
    pieces = -(-lanes.length // _PART)
    width = divisor([lanes.count, lanes.steps[0], lanes.steps[2]], call.elements())
    chunks = -(-lanes.count // (_WARP * width))
    accumulate = named(call.problem.dtype).accumulate
    workspaces = (
        ((lanes.length,), "int32"),
        (((slots << shift) + 1,), "int32"),
        ((slots << shift,), "int32"),
        ((2 * pieces,), "int32"),
        ((pieces * chunks * 2,), "int32"),
        ((2 * pieces, lanes.count), accumulate),
    )
    *lists, parts = (call.workspace(i) for i in range(6))

    def packer(pointers: int) -> Packer:
        sizes = (lanes.length, lanes.extent, slots, shift)
        return Packer(False).pointers(5 + pointers).add("I", *sizes)

    counters = pieces * chunks * 2
    arguments = packer(1).add("Q", call.listener).add("q", lanes.steps[1])
    arguments.add("I", call.ticket, per_warp, counters, lanes.count)
    entry = call.entry(
        f"Invert<{kind}, 8>", len(arguments.done()), "invert", kind, threads=_INVERT_THREADS
    )
    front = [(slot, 0) for slot in (*lists, index.slot)]
    shared = 4 * _WARPS * (2 * slots + per_warp + 1)
    invert = Step(entry, (1 << shift, 1), arguments.done(), front, 0, shared)

    long_tasks = pieces * chunks * min(width, 2) if lanes.length > _PART else 0
    tasks = long_tasks + -(-lanes.extent // _ROWS) * chunks
    if tasks >= 1 << 31:
        return None
    arguments = packer(3).add("q", lanes.steps[0], lanes.steps[2])
    arguments.add("I", lanes.count, chunks).extents(chunks).add("I", long_tasks, tasks, 0)
    front = [(slot, 0) for slot in (*lists, values.slot, target.slot, parts)]

    add = flag(call.add)
    schedule = f"SumLists<{call.type}, {width}, {_ROWS}, {add}>"
    tags = ("lists", f"v{width}", *["add"] * call.add)
    entry = call.entry(schedule, len(arguments.done()), *tags, threads=_THREADS)
    grid = (-(-tasks * _WARP // _THREADS), 1)
    return Steps((invert, Step(entry, grid, arguments.done(), front)), workspaces, variant=name)
