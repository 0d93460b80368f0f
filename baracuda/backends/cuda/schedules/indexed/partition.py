"""Scatter of many elements to bins that no block holds alone: sorted by parts, summed part by part.

Three kernels: indexed/partition.cuh and indexed/units.cuh say how.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baracuda import layouts
from baracuda.backends.cuda.geometry import Packer, View, count, divisor, merged, reach, split, wide
from baracuda.backends.cuda.launch_plan import WIDEST, Call, Step, Steps, flag
from baracuda.backends.cuda.schedules.indexed.frames import added
from baracuda.backends.cuda.schedules.indexed.tiles import WORDS
from baracuda.declaration.dtypes import named

# indexed/partition.cuh: elements of a chunk and their room, threads that sort it, log2 of the bins
# of a part, bytes of an element that is sorted.
_CHUNK, _ROOM, _SORTERS = 4096, 4096 + 4 * 32, 256
_SORT_ROOM = _CHUNK + 256 + 32
_SHIFT = {"f32": 13, "f64": 12}
_STAGED = {"bf16": 4, "f16": 4, "f32": 6, "f64": 10}
# indexed/units.cuh: threads that sum, and that join.
_SUMMERS, _JOINERS = 512, 256
_MOST_PARTS = 32
# Elements that 32 bits count, and those of a unit for which carries have room.
_MOST, _LARGE = 1 << 28, (1 << 17) - _ROOM


class Tuning(NamedTuple):
    """What partitions take of an architecture.

    Attributes
    ----------
    elements, elements_deterministic : int
        Elements from which sorting is worth its three launches, beside atomics, and beside other
        forms that are deterministic.
    units : int
        Units that sum at once, about.
    unit_elements : int
        Elements of a unit, at least: fewer are not worth clearing its bins.
    """

    elements: int
    elements_deterministic: int
    units: int
    unit_elements: int


SM_90 = Tuning(
    elements=1 << 20,
    elements_deterministic=1 << 18,
    # Two for each multiprocessor of the larger devices.
    units=240,
    unit_elements=1 << 14,
)
TUNINGS = {"sm_90": SM_90}


def takes(call: Call) -> bool:
    """Whether there are enough elements, and bins that fit."""
    tuning, fixed = call.facts.tuned(TUNINGS), call.problem.choices.deterministic
    least = tuning.elements_deterministic if fixed else tuning.elements
    return _fits(call) and least <= prod(call.of_kind("index").shape) <= _MOST


def _fits(call: Call) -> bool:
    """Whether there are not too many parts, each small enough for the device."""
    bins, room = prod(call.out().shape), call.facts.shared_per_block - 1024
    return 0 < bins <= _MOST_PARTS << _SHIFT[call.accumulate] and _shared(call) <= room


def _shared(call: Call) -> int:
    """Bytes on chip of a block that sums: the bins, and a stretch of segments."""
    return ((WORDS[call.type] << _SHIFT[call.accumulate]) + 2 * _SUMMERS + 64) * 4


def plan(call: Call, name: str) -> Steps | None:
    """Sort, sum, join; None where there is nothing to add, or bins do not fit."""
    dout, index, out = added(call), call.of_kind("index"), call.out()
    if 0 in index.shape or not _fits(call):
        return None
    bins, shift = prod(out.shape), _SHIFT[call.accumulate]
    parts, chunks = -(-bins >> shift), -(-prod(index.shape) // _CHUNK)
    row, room = -(-chunks // 8) * 8, chunks * _ROOM
    tuning = call.facts.tuned(TUNINGS)
    target = min(max(prod(index.shape) // tuning.units, tuning.unit_elements), _LARGE) // 4
    units = room // 4 // target + parts
    workspaces = (
        ((room * _STAGED[call.type] // 4,), "int32"),
        ((parts * row // 2,), "int32"),
        ((parts * chunks * 4,), "int32"),
        ((units << shift,), named(call.problem.dtype).accumulate),
        ((parts + 1,), "int32"),
    )
    stage, fours, segments, sums, firsts = (call.workspace(i) for i in range(5))

    packer = Packer(False).pointers(5).add("q", room).add("I", chunks, row, parts, target)
    arguments = packer.done()
    entry = call.entry(f"SumParts<{call.type}>", len(arguments), "sum_parts", threads=_SUMMERS)
    front = [(slot, 0) for slot in (stage, fours, segments, sums, firsts)]
    sum_up = Step(entry, (units, 1), arguments, front, shared=_shared(call))

    sort = _sort(call, dout, index, parts, chunks)
    front = [(slot, 0) for slot in (dout.slot, index.slot, stage, fours, segments)]
    sort = sort._replace(front=front)
    join = _join(call, out, bins)._replace(front=[(sums, 0), (firsts, 0), (out.slot, 0)])
    return Steps((sort, sum_up, join), workspaces, variant=name)


def _sort(call: Call, dout: View, index: View, parts: int, chunks: int) -> Step:
    axis, shape = call.problem.options["axis"], call.out().shape
    strides = layouts.contiguous(shape)
    kind = named(call.problem.index_dtype or "")
    bins = (*strides[:axis], 0, *strides[axis + 1 :])
    dims = merged(index.shape, (dout.strides, index.strides, bins))
    width, beside = 1, 0
    if dims and dims[0].strides[:2] == (1, 1):
        numbers = [dims[0].extent, *(s for d in dims[1:] for s in d.strides[:2])]
        width = divisor(numbers, min(call.elements(), call.elements(kind.itemsize)))
        width, beside = min(width, WIDEST // kind.itemsize), dims[0].strides[2]
    flat = [d.strides for d in dims] == [(1, 1, 0)]
    packer = Packer(wide(count(dims), reach(dims))).pointers(5)
    packer.add("Q", call.listener).add("q", shape[axis], chunks * _ROOM)
    packer.add("I", call.ticket, parts, -(-chunks // 8) * 8, strides[axis], beside, 0)
    packer.indices(count(dims) // width, 0)
    arguments = packer.walk(split(dims, width), 3, int(flat)).done()
    schedule = f"Partition<{call.type}, {kind.short}, {width}, {flag(flat)}, {packer.type}>"
    tags = ("partition", kind.short, f"v{width}", *["flat"] * flat, packer.type)
    entry = call.entry(schedule, len(arguments), *tags, threads=_SORTERS)
    shared = _SORT_ROOM * _STAGED[call.type] + 4 * ((parts + 1) * _SORTERS + 2 * parts + 1)
    return Step(entry, (chunks, 1), arguments, (), shared=shared)


def _join(call: Call, out: View, bins: int) -> Step:
    dims = merged(out.shape, (layouts.contiguous(out.shape), out.strides))
    packer = Packer(wide(count(dims), reach(dims))).pointers(3).add("I", bins, 0)
    arguments = packer.walk(dims, 2).done()
    wide_out = any(call.wide)
    kind = call.accumulate if wide_out else call.type
    schedule = f"JoinParts<{kind}, {packer.type}, {flag(call.add)}>"
    tags = ("join_parts", packer.type, *["add"] * call.add, *["wide"] * wide_out)
    entry = call.entry(schedule, len(arguments), *tags, threads=_JOINERS)
    size = named(named(call.problem.dtype).accumulate).itemsize
    wide_sums = 32 * WIDEST // size
    return Step(entry, (-(-bins // wide_sums), 1), arguments, (), shared=_JOINERS * WIDEST)
