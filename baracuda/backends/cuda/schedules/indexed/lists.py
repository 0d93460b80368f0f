"""Rows with one index each, as of embeddings: the index is inverted, then each row written once."""

from __future__ import annotations

from typing import NamedTuple

from baracuda.backends.cuda.geometry import Packer, divisor
from baracuda.backends.cuda.launch_plan import Call, Step, Steps, flag
from baracuda.backends.cuda.schedules.indexed.tiles import Lanes
from baracuda.declaration.dtypes import named

# cuda_src/indexed/lists.cuh: positions of a part, lanes of a warp, threads of a block of either
# kernel.
_PART, _WARP, _THREADS, _INVERT_THREADS = 64, 32, 128, 512
# Blocks of a team that inverts for its rows, where there are clusters; its slots are a multiple of
# as many.
_CLUSTER = 8
# Elements that a block inverts at a time; words of shared memory for each of two of them, and for a
# slot: eight counts of half a word, three sums.
_ROUND, _PAIR_WORDS, _SLOT_WORDS = 8192, 3, 7
# Bytes of a line of the L2.
_LINE = 128
# No index: cuda_src/indexed/invert_index.cuh.
_NONE = 0xFFFFFFFF
# Elements from a row to the next, whose bytes have 31 bits.
MOST_APART = 1 << 27
WORKSPACES = 5
"""How many workspaces there are."""


class Tuning(NamedTuple):
    """What lists take of an architecture.

    Attributes
    ----------
    row_bytes : int
        Bytes of a row, at least: a shorter one leaves most of a warp without work.
    rows : int
        Rows that a warp takes.
    elements : dict of int to int
        Elements of theirs that are under way together, as many as registers have room for, by
        the bytes of an element.
    elements_adding : int
        The same where sums are added to an output, or are wider than the values.
    elements_finished : int
        The same where a functor finishes sums, at most.
    rows_of_block, blocks_log2 : int
        Rows of a block that inverts, about; the logarithm of how many blocks there are, at most.
    prefetch_bytes : int
        Bytes of values that come into the L2 while the index is inverted.
    """

    row_bytes: int
    rows: int
    elements: dict[int, int]
    elements_adding: int
    elements_finished: int
    rows_of_block: int
    blocks_log2: int
    prefetch_bytes: int


# Shares of the copy ceiling of an H200.
SM_90 = Tuning(
    row_bytes=64,
    # [65536, 1024] in bf16 has 0.67 with 4 rows and 4 elements, as much with 8 rows (Zipf 0.59 for
    # 0.63), 0.64 with 2, 0.69 with 4 rows and 6 elements.
    rows=4,
    elements={2: 6, 4: 7, 8: 7},
    elements_adding=4,
    elements_finished=6,
    rows_of_block=64,
    # About as many as multiprocessors. Two blocks fit one: else not all clusters would start at
    # once.
    blocks_log2=7,
    # 16 MiB gain no more, of 24 a part is gone before it is used.
    prefetch_bytes=8 << 20,
)
TUNINGS = {"sm_90": SM_90}


def takes(call: Call, lanes: Lanes) -> bool:
    """Whether the index is the same along rows and not too long, and rows are wide enough."""
    return (
        lanes.across
        and lanes.beside == 0
        and lanes.tiles_outside == 1
        and lanes.count * call.itemsize >= call.facts.tuned(TUNINGS).row_bytes
        and counts(call, lanes)
    )


def counts(call: Call, lanes: Lanes) -> bool:
    """Whether rows and their bytes can be counted, and a row has its counts on chip."""
    return (
        max(lanes.length, lanes.extent) < 1 << 30
        and max(lanes.count, *map(abs, lanes.steps)) < MOST_APART
        and _most_slots(call) > 0
    )


def _blocks(call: Call) -> int:
    """Blocks of a team."""
    return _CLUSTER if call.facts.clusters else 1


def _words(call: Call, slots: int) -> int:
    """Words of shared memory that a block takes to invert for a team with so many slots."""
    rest = _blocks(call) + 1 + 2 * _INVERT_THREADS // _WARP
    return _ROUND // 2 * _PAIR_WORDS + rest + slots * _SLOT_WORDS


def _most_slots(call: Call) -> int:
    """So many slots of a team have their counts on chip."""
    room = call.facts.shared_per_block // 4 - _words(call, 0)
    return max(room // _SLOT_WORDS, 0) // _CLUSTER * _CLUSTER


def plan(call: Call, lanes: Lanes, name: str) -> Steps | None:
    """Invert the index, then sum the lists; None where there is no room for that."""
    values, index, target = lanes.views
    kind = named(call.problem.index_dtype or "")
    blocks, most, tuning = _blocks(call), _most_slots(call), call.facts.tuned(TUNINGS)
    if most < 1:
        return None
    # By the problem alone: where long lists are cut depends on it, and so do the bits.
    shift = (lanes.extent // (tuning.rows_of_block * blocks)).bit_length()
    shift = min(shift, tuning.blocks_log2 - blocks.bit_length() + 1)
    while lanes.extent > most << shift:
        shift += 1
    slots = -(-lanes.extent // (_CLUSTER << shift)) * _CLUSTER
    pieces = -(-lanes.length // _PART)
    width = divisor([lanes.count, lanes.steps[0], lanes.steps[2]], call.elements())
    chunks = -(-lanes.count // (_WARP * width))
    accumulate = named(call.problem.dtype).accumulate
    counters = 6 * pieces * chunks
    workspaces = (
        ((lanes.length,), "int32"),
        (((slots << shift) + 1,), "int32"),
        ((2 * pieces,), "int32"),
        ((counters,), "int32"),
        ((2 * pieces, lanes.count), accumulate),
    )
    *lists, parts = (call.workspace(i) for i in range(WORKSPACES))
    sizes = (lanes.length, lanes.extent, slots, shift)
    size, lines = call.itemsize, -(-lanes.count * call.itemsize // _LINE)
    ahead = min(tuning.prefetch_bytes // _LINE, lanes.length * lines)
    arguments = Packer(False).pointers(6).add("I", *sizes).add("Q", call.listener)
    arguments.add("i", lanes.steps[1] * kind.itemsize, lanes.steps[0] * size)
    arguments.add("I", call.ticket, -(-lanes.length // blocks), counters, lanes.count)
    skipped = call.problem.skipped_by(call.problem.spec.indices[0])
    arguments.extents(lines, code="I").add("I", ahead, _NONE if skipped is None else skipped, 0)
    entry = call.entry(
        f"Invert<{kind.short}, {blocks}>",
        len(arguments.done()),
        *("invert", kind.short, blocks),
        threads=_INVERT_THREADS,
        cluster=blocks,
    )
    front = [(slot, 0) for slot in (*lists, index.slot, values.slot)]
    shared, grid = 4 * _words(call, slots), (blocks << shift, 1)
    invert = Step(entry, grid, arguments.done(), front, "", shared)

    groups = (slots // tuning.rows) << shift
    long = pieces * min(width, 2) * chunks
    tasks = max(long, groups * chunks)
    if tasks >= 1 << 31:
        return None
    sum_size = named(accumulate).itemsize
    target_size = sum_size if any(call.wide) else size
    steps = (lanes.steps[0] * size, lanes.steps[2] * target_size, lanes.count * sum_size)
    scalars = call.problem.spec.codes
    arguments = Packer(False).pointers(7).scalars(scalars).add("I", *sizes).add("i", *steps)
    arguments.add("I", lanes.count, chunks).extents(chunks)
    arguments.add("I", pieces, groups, min(long, groups * chunks), 0)
    front = [(slot, 0) for slot in (*lists, values.slot, target.slot, parts)]

    once = tuning.elements_adding if call.add or any(call.wide) else tuning.elements[size]
    once = min(once, tuning.elements_finished) if call.functor else once
    template = f"{call.type}, {width}, {tuning.rows}, {once}, {flag(call.add)}"
    finished = f", {call.accumulate if any(call.wide) else call.type}, {call.functor}"
    schedule = f"SumLists<{template}{finished if call.functor else call.sum_type}>"
    tags = ("lists", f"v{width}", *["add"] * call.add, *["wide"] * any(call.wide))
    entry = call.entry(schedule, len(arguments.done()), *tags, threads=_THREADS)
    grid = (-(-tasks * _WARP // _THREADS), 1)
    add = Step(entry, grid, arguments.done(), front, scalars)
    return Steps((invert, add), workspaces, variant=name)
