"""What the entries of each place leave there: an integer, made on chip where a lane fits.

A lane is a line along the axis, so lanes share no place. See indexed/tell.cuh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from baracuda import layouts
from baracuda.backends.cuda.geometry import Packer, View, count, merged, reach, wide, without
from baracuda.backends.cuda.launch_plan import Call, Step, blocks
from baracuda.backends.cuda.schedules.indexed.frames import apart
from baracuda.declaration.dtypes import named
from baracuda.layouts import Shape

# Entries of a thread that are under way together.
_DEPTH = 4
# Bytes on chip that are left for what is static.
_STATIC = 1024


class Tuning(NamedTuple):
    """What states on chip take of an architecture.

    Attributes
    ----------
    threads : int
        Of a multiprocessor.
    columns, fewest : int
        Neighbouring lanes of a block, at most, and at least where there are so many: fewer would
        read a small part of each sector.
    """

    threads: int
    columns: int
    fewest: int


SM_90 = Tuning(threads=1024, columns=32, fewest=2)
TUNINGS = {"sm_90": SM_90}


@dataclass(frozen=True, slots=True)
class Told:
    """What becomes of entries: a functor of index, elements and results, into states of `size`
    bytes. They begin with `start` of what is there, `own`, and of the results."""

    functor: str
    start: str
    index: View
    src: View
    out: View
    own: View
    state: View
    axis: int
    size: int = 4


def in_memory(call: Call, told: Told, listens: bool) -> Step:
    """One kernel that changes states in memory, which hold what they begin with."""
    index, axis, places = told.index, told.axis, (told.out, told.state)
    apart_from_axis = [apart(v.strides, axis) for v in places]
    strides = (index.strides, told.src.strides, *apart_from_axis, numbers(index.shape, axis))
    dims = merged(index.shape, strides)
    along = sum([abs(v.strides[axis]) * v.shape[axis] for v in places])
    packer = Packer(wide(count(dims), reach(dims) + along)).pointers(4)
    packer.add("Q", call.listener if listens else 0).add("q", told.state.shape[axis])
    packer.add("I", call.ticket, 0).indices(count(dims))
    packer.indices(*(v.strides[axis] for v in places)).walk(dims, 5)
    kind = f"TellPlaces<{call.type}, {_integer(call)}, {told.functor}, {packer.type}>"
    step = _step(call, told, kind, packer, (index, told.src, *places))
    return step._replace(grid=(blocks(count(dims), _DEPTH), 1))


def on_chip(call: Call, told: Told, listens: bool) -> Step | None:
    """One kernel that makes the states, where they fit and every multiprocessor has a block."""
    index, state, axis = told.index, told.state, told.axis
    if without(index.shape, axis) != without(state.shape, axis) or 0 in index.shape:
        return None
    length, extent = index.shape[axis], state.shape[axis]
    position = View(0, 0, index.shape, layouts.contiguous(index.shape))
    views = (index, told.src, told.out, told.own, state, position)
    dims = merged(without(index.shape, axis), [without(v.strides, axis) for v in views])
    every, tuning, room = count(dims), call.facts.tuned(TUNINGS), call.facts.shared_per_block
    each = max(extent, 1) * told.size
    most = (room - _STATIC) // each
    beside = prod(index.shape[axis + 1 :])
    if most < 1 or (beside > 1 and most < min(tuning.fewest, beside)):
        return None
    # A thread for each entry, where lanes are short.
    longest = 1 << (max(length, extent) - 1).bit_length()
    usual = max(tuning.columns if beside > 1 else 1, tuning.threads // 2 // longest)
    lanes = 1 << min(most, usual).bit_length() - 1
    used, grid = lanes * each, -(-every // lanes)
    if grid < call.facts.multiprocessors:
        return None
    at_once = 2 if 2 * (used + _STATIC) <= room else 1
    threads = tuning.threads // at_once
    shift = (threads // lanes).bit_length() - 1, lanes.bit_length() - 1
    far = sum([abs(v.strides[axis]) * v.shape[axis] for v in views])
    packer = Packer(wide(prod(index.shape), reach(dims) + far)).pointers(5)
    packer.add("Q", call.listener if listens else 0).add("q", extent)
    packer.add("I", call.ticket, lanes)
    # Neighbouring threads have neighbouring lanes, or else neighbouring entries.
    packer.add("I", *((0, shift[1], lanes, 1) if beside > 1 else (shift[0], 0, 1, extent)))
    packer.indices(every, length, *(v.strides[axis] for v in views)).walk(dims, 6)
    kind = (
        f"TellTiles<{call.type}, {_integer(call)}, {told.functor}, {told.start}, {at_once}, "
        f"{packer.type}>"
    )
    tags = (told.start.lower(), f"b{at_once}")
    step = _step(call, told, kind, packer, views[:5], *tags, threads=threads)
    return step._replace(grid=(grid, 1), shared=used)


def _integer(call: Call) -> str:
    return named(call.problem.index_dtype or "").short


def _step(
    call: Call, told: Told, kind: str, packer: Packer, views: Sequence[View], *tags: str,
    threads: int = 0,
) -> Step:  # fmt: skip
    arguments, name = packer.done(), kind.partition("<")[0].lower()
    tags = (name, word(told.functor), _integer(call), packer.type, *tags)
    entry = call.entry(kind, len(arguments), *tags, threads=threads)
    return Step(entry, (1, 1), arguments, [(v.slot, 0) for v in views])


def numbers(shape: Shape, axis: int) -> Shape:
    """The strides of what counts along the axis."""
    return tuple([int(i == axis) for i in range(len(shape))])


def word(functor: str) -> str:
    """A functor as part of a name."""
    return "".join([c for c in functor.lower().replace("-", "minus") if c.isalnum()])
