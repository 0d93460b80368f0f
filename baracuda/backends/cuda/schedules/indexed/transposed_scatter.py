"""Scatter across long columns by way of rows: transposed, summed and transposed back in one
kernel.

indexed/transposed_scatter.cuh says how.
"""

from __future__ import annotations

from typing import NamedTuple

from baracuda.backends.cuda.geometry import Packer, divisor
from baracuda.backends.cuda.launch_plan import Call, Step, Steps, Zero, flag
from baracuda.backends.cuda.schedules.indexed.tiles import WORDS, Lanes
from baracuda.declaration.dtypes import named

# indexed/transposed_scatter.cuh: columns of a group, lines of a square and their room; a bin that
# nothing has.
_GROUP, _LINES, _PITCH, _NOWHERE = 64, 128, 132, 0xFFFF
_THREADS, _RESIDENT = 512, 2
_MOST_ITEMS = 1 << 30


class Tuning(NamedTuple):
    """What transposed scatters take of an architecture.

    Attributes
    ----------
    lag : int
        Groups between two things that are done to one, so that nobody has to wait for it.
    slots : int
        Groups for which the stage has room: more than two lags.
    columns : int
        Columns, of a group of 64, for which reading as many is worth it.
    """

    lag: int
    slots: int
    columns: int


SM_90 = Tuning(lag=4, slots=9, columns=8)
TUNINGS = {"sm_90": SM_90}


def takes(call: Call, lanes: Lanes) -> bool:
    """Whether the bins of a column fit on chip, and there are columns side by side."""
    groups = -(-lanes.count // _GROUP) * lanes.tiles_outside
    return (
        lanes.across
        and lanes.count >= call.facts.tuned(TUNINGS).columns
        and 0 < lanes.extent < _NOWHERE
        and lanes.length > 0
        and _shared(call, lanes) <= call.facts.shared_per_block - 1024
        and _items(call, lanes, groups) < _MOST_ITEMS
    )


def _room(lanes: Lanes) -> int:
    """Bins of a column, with some for what belongs nowhere."""
    return max(-(-lanes.extent // 4) * 4 + 4, 16)


def _shared(call: Call, lanes: Lanes) -> int:
    """Bytes on chip: the bins of a column, or a square."""
    square = _GROUP * _PITCH * (call.itemsize + 2)
    return max(_room(lanes) * 4 * WORDS[call.type], square) + 32


def _items(call: Call, lanes: Lanes, groups: int) -> int:
    squares = -(-lanes.length // _LINES) + -(-lanes.extent // _LINES)
    return (squares + _GROUP) * (groups + 2 * call.facts.tuned(TUNINGS).lag)


def plan(call: Call, lanes: Lanes, bits: int, name: str) -> Steps | None:
    """One kernel, and zeros for its counters; None where the bins of a column do not fit."""
    if not takes(call, lanes):
        return None
    across = -(-lanes.count // _GROUP)
    groups = across * lanes.tiles_outside
    tuning = call.facts.tuned(TUNINGS)
    slots = min(tuning.slots, groups)
    into, out = -(-lanes.length // _LINES), -(-lanes.extent // _LINES)
    sums = named(call.problem.dtype).accumulate if call.add else call.problem.dtype
    elements = slots * _GROUP * into * _LINES
    workspaces = (
        ((elements,), call.problem.dtype),
        ((elements // 2,), "int32"),
        ((slots * _GROUP * out * _LINES,), sums),
        ((1 + 3 * groups,), "int32"),
    )
    stage = [call.workspace(i) for i in range(4)]

    kind = named(call.problem.index_dtype or "")
    numbers = [lanes.count, *(s for d in lanes.outer for s in d.strides), *lanes.steps]
    width = divisor(numbers, min(2, call.elements(), call.elements(kind.itemsize)))
    width = width if lanes.beside == 1 else 1
    packer = Packer(lanes.wide()).pointers(7).add("Q", call.listener).add("q", lanes.extent)
    packer.add("I", call.ticket, bits, _room(lanes), lanes.length, into, out)
    packer.add("I", groups, tuning.lag, _items(call, lanes, groups), 0)
    packer.extents(slots, into + _GROUP + out, code="I")
    packer.indices(lanes.count, lanes.beside, *lanes.steps, 0)
    packer.extents(across).add(packer.unsigned, 0)
    arguments = packer.walk(lanes.outer, 3).done()
    template = f"{call.type}, {kind.short}, {width}, {packer.type}, {flag(call.add)}"
    schedule = f"ScatterTransposed<{template}>"
    tags = ("transposed", kind.short, f"v{width}", packer.type, *["add"] * call.add)
    entry = call.entry(schedule, len(arguments), *tags, threads=_THREADS)
    shared = _shared(call, lanes)
    # Of each block the device keeps 1 KiB, and the schedule has some fixed.
    resident = min(_RESIDENT, (call.facts.shared_per_block + 1024) // (shared + 2048))
    grid = (call.facts.multiprocessors * max(resident, 1), 1)
    front = [(view.slot, 0) for view in lanes.views] + [(slot, 0) for slot in stage]
    step = Step(entry, grid, arguments, front, shared=shared)
    return Steps((Zero(stage[3], (1 + 3 * groups) * 4), step), workspaces, variant=name)
