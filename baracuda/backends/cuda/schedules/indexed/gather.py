"""Gather: elements are moved, whatever they mean; straight from memory, or over the chip."""

from __future__ import annotations

from typing import NamedTuple

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
from baracuda.backends.cuda.launch_plan import Call, Step, Steps, blocks, flag
from baracuda.backends.cuda.schedules.indexed.frames import frame
from baracuda.backends.cuda.schedules.indexed.tiles import Lanes, Tiling, lanes_of, packed
from baracuda.declaration.dtypes import named
from baracuda.declaration.indexed import indexed

UNITS = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "u128"}
"""The types of sources that stand for elements of so many bytes."""
STRAIGHT, TILES = "straight", "tiles"
# Bytes that memory reads at least, whatever is asked for.
_SECTOR = 32


class Tuning(NamedTuple):
    """What gather takes of an architecture.

    Attributes
    ----------
    threads : int
        Of a block, straight from memory.
    vectors, runs, elements : int
        Of a thread, under way together, straight from memory: vectors of indices; vectors that
        share an index; single elements.
    asked : float
        Elements for each bin of a tile, on average, from which tiles can pay: a tile is read whole.
    blocks : int
        Blocks of each multiprocessor from which tiles are preferred.
    tile, columns : int
        Elements of a tile along the axis, about; lanes of one across the axis, at most.
    tile_vectors : int
        Vectors of a thread of a tile that are under way together.
    tile_vectors_across : dict of int to int
        The same across the axis, by the bytes of an element; one where these are not named.
    """

    threads: int
    vectors: int
    runs: int
    elements: int
    asked: float
    blocks: int
    tile: int
    columns: int
    tile_vectors: int
    tile_vectors_across: dict[int, int]


SM_90 = Tuning(
    # With 128 and 256 rows of 8 KB take 264 and 270 us in bf16, 521 and 533 in float32.
    threads=128,
    vectors=1,
    runs=2,
    elements=4,
    asked=0.5,
    blocks=4,
    tile=8192,
    columns=64,
    tile_vectors=4,
    # With four, two and one [8192, 8192] on an H200 takes 376, 327 and 334 us in bf16, 642, 598 and
    # 541 in float32.
    tile_vectors_across={1: 2, 2: 2},
)
TUNINGS = {"sm_90": SM_90}


def plan(call: Call) -> Steps:
    """The named variant; by default over the chip, where that pays; straight where it adds."""
    cut = None if call.variant == STRAIGHT else _cut(call)
    if cut is None or not (call.variant or _pays(call, *cut)):
        return _straight(call)
    return _tiles(call, *cut)


def variants(call: Call) -> tuple[str, ...]:
    """Those that take the problem, that of the rule first."""
    cut = _cut(call)
    if cut is None:
        return (STRAIGHT,)
    return (TILES, STRAIGHT) if _pays(call, *cut) else (STRAIGHT, TILES)


def _pays(call: Call, lanes: Lanes, tiling: Tiling) -> bool:
    """Whether tiles read fewer bytes, and every multiprocessor has blocks to change between.

    Columns that share an index are rows of a table, as of an embedding. From a sector on, only the
    rows that are asked for are read straight from memory, and whole; tiles would read all of the
    table, in lines of a few bytes where it is long.
    """
    if lanes.across and not lanes.beside and lanes.count * call.itemsize >= _SECTOR:
        return False
    least = call.facts.tuned(TUNINGS).blocks * call.facts.multiprocessors
    return tiling.groups(lanes) * lanes.tiles_outside >= least


def _straight(call: Call) -> Steps:
    """One kernel, in vectors where a run of elements shares an index or lies side by side."""
    framed = frame(call)
    src, index, out = framed.whole, framed.index, framed.asked
    along = src.strides[framed.axis]
    dims = merged(out.shape, (framed.beside, index.strides, out.strides))
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
    tuning = call.facts.tuned(TUNINGS)
    depth = tuning.runs if shared else tuning.vectors if width > 1 else tuning.elements
    items, extent = count(dims) // width, src.shape[framed.axis]
    far = abs(along) * extent
    packer, scalars = Packer(wide(count(dims), reach(dims) + far)), call.problem.spec.codes
    packer.pointers(3).scalars(scalars)
    packer.add("Q", call.listener).add("q", extent).add("I", call.ticket, 0)
    packer.indices(items, along, inner.strides[0], inner.strides[1]).walk(split(dims, width), 3)
    arguments = packer.done()
    unit, kind = UNITS[call.itemsize], named(call.problem.index_dtype or "").short
    change = ""
    if call.functor or call.add:
        unit = call.type
        change = f", {call.functor or 'Unchanged'}" + ", true" * call.add
    schedule = (
        f"Gather<{unit}, {kind}, {flag(shared)}, {width}, {together}, {depth}, {packer.type}"
        f"{change}>"
    )
    way = "runs" if shared else "cells"
    symbol = (way, kind, f"v{width}", f"a{together}", packer.type, *["add"] * call.add)
    entry = call.entry(schedule, len(arguments), *symbol, threads=tuning.threads)
    front = [(src.slot, 0), (index.slot, 0), (out.slot, 0)]
    step = Step(entry, (blocks(items, depth, tuning.threads), 1), arguments, front, scalars)
    return Steps((step,), variant=STRAIGHT)


def _cut(call: Call) -> tuple[Lanes, Tiling] | None:
    """Lanes and their tiles, where the problem has any that pay."""
    if call.functor or call.add:
        return None
    src, index, out = call.of_kind("value"), call.of_kind("index"), call.out()
    if 0 in index.shape or 0 in src.shape or len(index.shape) < len(out.shape):
        return None
    lanes = lanes_of(indexed(call.problem).axis, out, index, src)
    tuning = call.facts.tuned(TUNINGS)
    if lanes is None or lanes.length < tuning.asked * lanes.extent or lanes.length >= 1 << 24:
        return None
    most = (call.facts.shared_per_block - 2048) // (call.itemsize * _blocks(lanes))
    along = min(max(tuning.tile // lanes.length, 1), lanes.count)
    width = tuning.columns if lanes.across else along
    while width and Tiling(width, lanes.extent, aligned=True).room(lanes) > most:
        width //= 2
    return (lanes, Tiling(width, lanes.extent, aligned=True)) if width else None


def _blocks(lanes: Lanes) -> int:
    """Of a multiprocessor at once: one reads while the other writes. But only one where its tile
    takes columns, the more of which lie side by side the better."""
    return 1 if lanes.across else 2


def _tiles(call: Call, lanes: Lanes, tiling: Tiling) -> Steps:
    tiled = packed(call, lanes, tiling)
    arguments = tiled.packer.done()
    unit, kind = UNITS[call.itemsize], named(call.problem.index_dtype or "").short
    way = tiling.way(lanes)
    tuning = call.facts.tuned(TUNINGS)
    across = tuning.tile_vectors_across.get(call.itemsize, 1)
    depth = across if lanes.across else tuning.tile_vectors
    schedule = (
        f"GatherTiles<{unit}, {kind}, {way}, {tiled.values}, {tiled.indices}, {tiled.bins}, "
        f"{depth}, {tiled.packer.type}>"
    )
    tags = ("tiles", kind, way.lower(), f"v{tiled.values}", f"a{tiled.indices}", f"w{tiled.bins}")
    threads = 1024 // _blocks(lanes)
    entry = call.entry(schedule, len(arguments), *tags, tiled.packer.type, threads=threads)
    front = [(view.slot, 0) for view in lanes.views]
    step = Step(entry, tiled.grid, arguments, front, shared=tiled.room * call.itemsize)
    return Steps((step,), variant=TILES)
