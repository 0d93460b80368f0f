"""Scatter: the addition that is the transpose of gather, by the form that suits the problem."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from baracuda import layouts
from baracuda.backends.cuda.geometry import Packer, View, count, divisor, merged, reach, split, wide
from baracuda.backends.cuda.launch_plan import (
    MOST_ROWS,
    Call,
    Step,
    Steps,
    Zero,
    blocks,
    flag,
    strides_of,
)
from baracuda.backends.cuda.schedules.indexed import lists, partition, transposed_scatter
from baracuda.backends.cuda.schedules.indexed.copies import started
from baracuda.backends.cuda.schedules.indexed.frames import added
from baracuda.backends.cuda.schedules.indexed.tiles import WORDS, Lanes, Tiling, lanes_of, packed
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dtypes import named

FEW, TILES, TRANSPOSED, LISTS = "few a row", "tiles", "transposed", "lists"
PARTITION, FIXED, ATOMIC = "partition", "fixed point", "atomics"

# The least bits of a digit (a lone element stays exact, of several less is lost than by rounding
# once), and words per bin in memory: cuda_src/common/exact_integers.cuh and fixed.cuh.
_LEAST_BITS, _MOST_BITS = {"f32": 13, "f64": 14}, 21
_WIDE_WORDS = {"f32": 1, "f64": 2}
# Elements of each thread that give the scale: cuda_src/indexed/accumulate.cuh.
_SAMPLE = 4


class Tuning(NamedTuple):
    """What scatter takes of an architecture.

    Attributes
    ----------
    few : int
        Elements of a row up to which each is looked for in every vector of bins.
    few_vectors : int
        Vectors of bins of a thread that are under way together, where there are so few.
    elements : int
        Elements of a thread that are under way together, where sums are in memory.
    tile_threads : int
        Threads of a block that has a tile; two share a multiprocessor.
    tile_vectors : dict of (str, int) to int
        Vectors of a thread of a tile that are under way together, by how lanes lie and by the bytes
        of an element; four where these are not named.
    tile_held : int
        Elements of a thread of a tile for which registers suffice.
    slices : int
        Blocks that read the same elements, each for some of the bins, at most.
    rows, long_row : int
        Rows that keep a device busy; elements of one beyond which fewer rows are not for tiles.
    columns, columns_at_most : int
        Columns of a tile from which on memory sees runs, and the most that a tile has.
    tile : int
        Elements of a tile, about, where lanes are short.
    """

    few: int
    few_vectors: int
    elements: int
    tile_threads: int
    tile_vectors: dict[tuple[str, int], int]
    tile_held: int
    slices: int
    rows: int
    long_row: int
    columns: int
    columns_at_most: int
    tile: int


SM_90 = Tuning(
    few=4,
    few_vectors=4,
    elements=4,
    # 1024 are slower.
    tile_threads=512,
    # The best of 2, 4 and 8 on an H200.
    tile_vectors={("ALONE", 2): 2, ("ALONE", 4): 8, ("ACROSS", 4): 2},
    tile_held=16,
    slices=8,
    rows=64,
    long_row=1 << 16,
    columns=16,
    columns_at_most=64,
    tile=8192,
)
TUNINGS = {"sm_90": SM_90}


def plan(call: Call) -> Steps:
    """The named variant, or that of the rule.

    The rule sees the problem, not the call: where its choice cannot write into given outputs, what
    does so in its stead is as deterministic, or there is none.
    """
    call, before = started(call)
    steps = added_to(call)
    return steps._replace(steps=(*before, *steps.steps))


def added_to(call: Call) -> Steps:
    """The same on top of what is there, where the call adds to its output."""
    name, choices = call.variant or _rule(call), call.problem.choices
    steps = _steps(call, name)
    if not call.variant and not _affordable(call, steps):
        raise _too_much(call, steps.workspace_size)
    # Variants round differently.
    sku = choices.sku
    measured = choices.autotune if sku is None else not sku.precision.bit_stable
    stable = steps.deterministic and (choices.deterministic or not measured)
    return steps._replace(variant=name, stable=bool(stable))


def _rule(call: Call) -> str:
    """The first form that suits new outputs, which are aligned, and fits."""
    outs = tuple(strides_of(x) for x in call.problem.outputs)
    alignment = min(x.alignment for x in call.problem.given)
    usual = call._replace(outs=outs, add=False, alignment=alignment, wide=())
    least = 0
    for name in _names(usual):
        steps = _steps(usual, name)
        if _affordable(usual, steps):
            return name
        least = min(least or steps.workspace_size, steps.workspace_size)
    raise _too_much(call, least)


def _too_much(call: Call, needed: int) -> Refusal:
    limit = call.problem.choices.max_workspace_bytes
    return Refusal(f"needs {needed} bytes of workspace, max_workspace_bytes is {limit}")


def _steps(call: Call, name: str) -> Steps:
    return _FORMS[name](call) or (_atomic if name == ATOMIC else _fixed)(call)


def variants(call: Call) -> tuple[str, ...]:
    """What takes the problem, in the order of preference; one only where bits must not vary."""
    names = _names(call)
    return names[:1] if call.problem.choices.deterministic else names


def _names(call: Call) -> tuple[str, ...]:
    index, out, fixed = call.of_kind("index"), call.out(), call.problem.choices.deterministic
    names: list[str] = []
    lanes = _lanes(call)
    if lanes is not None and 0 not in index.shape and 0 not in out.shape:
        names = [name for name, takes in _TAKES.items() if takes(call, lanes)]
    names += [PARTITION] * partition.takes(call)
    names += [FIXED] if fixed else [ATOMIC, FIXED]
    return tuple(names)


def _affordable(call: Call, steps: Steps) -> bool:
    limit = call.problem.choices.max_workspace_bytes
    return limit is None or steps.workspace_size <= limit


def _lanes(call: Call) -> Lanes | None:
    axis = call.problem.options["axis"]
    return lanes_of(axis, added(call), call.of_kind("index"), call.out())


# -- few elements per row ------------------------------------------------------------------------


def _takes_few(call: Call, lanes: Lanes) -> bool:
    return not lanes.across and lanes.length <= call.facts.tuned(TUNINGS).few


def _few(call: Call) -> Steps | None:
    lanes = _lanes(call)
    if lanes is None:
        return None
    depth, rows = call.facts.tuned(TUNINGS).few_vectors, count(lanes.outer)
    width = divisor([lanes.extent, *(d.strides[2] for d in lanes.outer)], call.elements())
    per_row = lanes.extent // width
    packer = Packer(lanes.wide()).pointers(3)
    packer.add("Q", call.listener).add("q", lanes.extent).add("I", call.ticket, lanes.length)
    packer.indices(rows * per_row, *lanes.steps[:2], 0).extents(per_row).add(packer.unsigned, 0)
    arguments = packer.walk(lanes.outer, 3).done()
    kind = named(call.problem.index_dtype or "").short
    schedule = f"ScatterFew<{call.type}, {kind}, {width}, {depth}, {packer.type}, "
    schedule += f"{flag(call.add)}{call.sum_type}>"
    tags = ("few", kind, f"v{width}", packer.type, *["add"] * call.add, *["wide"] * any(call.wide))
    entry = call.entry(schedule, len(arguments), *tags)
    step = Step(entry, (blocks(rows * per_row, depth), 1), arguments, _front(lanes))
    return Steps((step,), variant=FEW)


# -- tiles ---------------------------------------------------------------------------------------


def _bits(call: Call, length: int) -> int | None:
    """Bits of a digit, so that `length` of them add up without a carry."""
    bits = min(31 - length.bit_length(), _MOST_BITS)
    return bits if bits >= _LEAST_BITS[call.accumulate] else None


def _takes_tiles(call: Call, lanes: Lanes) -> bool:
    return _tiling(call, lanes) is not None


def _tiling(call: Call, lanes: Lanes) -> Tiling | None:
    rows, tuning = lanes.count * lanes.tiles_outside, call.facts.tuned(TUNINGS)
    uneven = rows < tuning.rows and lanes.length > tuning.long_row
    if _bits(call, lanes.length) is None or uneven:
        return None
    words = WORDS[call.type]
    most = (call.facts.shared_per_block - 1024) // 4
    # Two blocks of a multiprocessor at once: one reads while the other adds.
    pair = (call.facts.shared_per_block - 2048) // 8
    if lanes.across:
        return _width(tuning, lanes, words, most, pair)
    if Tiling(1, lanes.extent).room(lanes) * words > most:
        slices = -(-(lanes.extent + 1) * words // max(pair, 1))
        each = -(-lanes.extent // slices // 16) * 16
        return Tiling(1, each) if slices <= tuning.slices else None
    room = max(pair // (lanes.extent * words + words), 1)
    return Tiling(min(max(tuning.tile // lanes.length, 1), room, lanes.count), lanes.extent)


def _width(tuning: Tuning, lanes: Lanes, words: int, most: int, pair: int) -> Tiling | None:
    for room, least in ((pair, tuning.columns), (most, 1)):
        width = tuning.columns_at_most
        while width and Tiling(width, lanes.extent).room(lanes) * words > room:
            width //= 2
        if width >= min(least, lanes.count):
            return Tiling(width, lanes.extent)
    return None


def _tiles(call: Call) -> Steps | None:
    lanes = _lanes(call)
    tiling = _tiling(call, lanes) if lanes is not None else None
    if lanes is None or tiling is None or any(call.wide):
        return None
    tiled = packed(call, lanes, tiling)
    if tiled.grid[1] > MOST_ROWS:
        return None
    arguments = tiled.packer.add("I", _bits(call, lanes.length) or 0, 0).done()
    kind = named(call.problem.index_dtype or "").short
    way = tiling.way(lanes)
    tuning = call.facts.tuned(TUNINGS)
    depth = tuning.tile_vectors.get((way, call.itemsize), 4)
    depth = min(depth, tuning.tile_held // tiled.values)
    depth = max(depth, _SAMPLE // tiled.values)
    schedule = (
        f"ScatterTiles<{call.type}, {kind}, {way}, {tiled.values}, {tiled.indices}, "
        f"{tiled.bins}, {depth}, {tiled.packer.type}, {flag(call.add)}>"
    )
    tags = ("tiles", kind, way.lower(), f"v{tiled.values}", f"a{tiled.indices}", f"w{tiled.bins}")
    entry = call.entry(
        schedule,
        len(arguments),
        *tags,
        tiled.packer.type,
        *["add"] * call.add,
        threads=tuning.tile_threads,
    )
    shared = tiled.room * 4 * WORDS[call.type]
    step = Step(entry, tiled.grid, arguments, _front(lanes), shared=shared)
    return Steps((step,), variant=TILES)


# -- transposed -----------------------------------------------------------------------------------


def _takes_transposed(call: Call, lanes: Lanes) -> bool:
    """Whether a tile can take only few of the columns."""
    tiling = _tiling(call, lanes)
    wide = call.facts.tuned(TUNINGS).columns
    if tiling is not None and tiling.lanes >= min(wide, lanes.count):
        return False
    return _bits(call, lanes.length) is not None and transposed_scatter.takes(call, lanes)


def _transposed(call: Call) -> Steps | None:
    lanes = _lanes(call)
    bits = _bits(call, lanes.length) if lanes is not None else None
    if lanes is None or not bits or any(call.wide):
        return None
    return transposed_scatter.plan(call, lanes, bits, TRANSPOSED)


def _front(lanes: Lanes) -> list[tuple[int, int]]:
    return [(view.slot, 0) for view in lanes.views]


# -- in memory -----------------------------------------------------------------------------------


def _atomic(call: Call) -> Steps:
    """Additions in the accumulate type, in a workspace where the output is narrower."""
    dout, index, out = added(call), call.of_kind("index"), call.out()
    wide_sums = any(call.wide) or call.type == call.accumulate
    contiguous = out.strides == layouts.contiguous(out.shape)
    if wide_sums and (contiguous or call.add):
        add = _atomic_step(call, dout, index, View(out.slot, 0, out.shape, out.strides))
        size = named(call.accumulate_dtype).itemsize
        nbytes = count(merged(out.shape, (out.strides,))) * size
        zero = () if call.add else (Zero(out.slot, nbytes),)
        return Steps((*zero, *add), variant=ATOMIC, deterministic=False, stable=False)
    sums = View(call.workspace(), 0, out.shape, layouts.contiguous(out.shape))
    dtype = named(call.problem.dtype).accumulate
    nbytes = count(merged(out.shape, (sums.strides,))) * named(dtype).itemsize
    add = _atomic_step(call, dout, index, sums)
    return Steps(
        (Zero(sums.slot, nbytes), *add, settle(call, sums, out)),
        ((out.shape, dtype),), variant=ATOMIC, deterministic=False, stable=False,
    )  # fmt: skip


def _atomic_step(call: Call, dout: View, index: View, target: View) -> tuple[Step, ...]:
    if 0 in index.shape:
        return ()
    axis = call.problem.options["axis"]
    steps = (*target.strides[:axis], 0, *target.strides[axis + 1 :])
    dims = merged(index.shape, (dout.strides, index.strides, steps))
    items, depth = count(dims), call.facts.tuned(TUNINGS).elements
    extent = target.shape[axis]
    packer = Packer(wide(items, reach(dims) + abs(target.strides[axis]) * extent)).pointers(3)
    packer.add("Q", call.listener).add("q", extent).add("I", call.ticket, 0)
    packer.indices(items, target.strides[axis]).walk(dims, 3)
    arguments = packer.done()
    kind = named(call.problem.index_dtype or "").short
    schedule = f"ScatterAtomic<{call.type}, {kind}, {depth}, {packer.type}>"
    entry = call.entry(schedule, len(arguments), "atomic", kind, packer.type)
    front = [(dout.slot, 0), (index.slot, 0), (target.slot, 0)]
    return (Step(entry, (blocks(items, depth), 1), arguments, front),)


def settle(call: Call, sums: View, out: View) -> Step:
    """Sums in the accumulate dtype, rounded once to where they belong."""
    dims = merged(out.shape, (sums.strides, out.strides))
    dense = all(s == 1 for d in dims[:1] for s in d.strides)
    numbers = [dims[0].extent if dims else 1, *(s for d in dims[1:] for s in d.strides)]
    # Of sums that are as wide as they are here an access has no more bytes.
    size = named(call.accumulate_dtype).itemsize if any(call.wide) else call.itemsize
    width = divisor(numbers, call.elements(size)) if dense else 1
    items = count(dims) // width
    packer = Packer(wide(count(dims), reach(dims))).pointers(2).indices(items, 0)
    arguments = packer.walk(split(dims, width), 2).done()
    wide_out = any(call.wide)
    kind = call.accumulate if wide_out else call.type
    schedule = f"Settle<{kind}, {width}, {packer.type}, {flag(call.add)}>"
    tags = ("settle", f"v{width}", packer.type, *["add"] * call.add, *["wide"] * wide_out)
    entry = call.entry(schedule, len(arguments), *tags)
    return Step(entry, (blocks(items), 1), arguments, [(sums.slot, 0), (out.slot, 0)])


def _fixed(call: Call) -> Steps:
    """64-bit integers at the scale of the largest element of each bin."""
    dout, index, out = added(call), call.of_kind("index"), call.out()
    axis, size = call.problem.options["axis"], count(merged(out.shape, (out.strides,)))
    words = _WIDE_WORDS[call.accumulate]
    keys, sums = call.workspace(0), call.workspace(1)
    bits = 62 - index.shape[axis].bit_length()
    strides = layouts.contiguous(out.shape)
    steps: list[Step | Zero] = [Zero(keys, size * 4), Zero(sums, size * 8 * words)]
    kind = named(call.problem.index_dtype or "").short
    if 0 not in index.shape:
        bins = (*strides[:axis], 0, *strides[axis + 1 :])
        dims = merged(index.shape, (dout.strides, index.strides, bins))
        items, depth = count(dims), call.facts.tuned(TUNINGS).elements
        extent = out.shape[axis]
        packer = Packer(wide(items, size, reach(dims))).pointers(4)
        packer.add("Q", call.listener).add("q", extent, size).add("I", call.ticket, bits)
        arguments = packer.indices(items, strides[axis]).walk(dims, 3).done()
        front = [(dout.slot, 0), (index.slot, 0), (keys, 0), (sums, 0)]
        for name, first in (("keys", True), ("fixed", False)):
            schedule = f"ScatterFixed<{call.type}, {kind}, {flag(first)}, {depth}, {packer.type}>"
            entry = call.entry(schedule, len(arguments), name, kind, packer.type)
            steps.append(Step(entry, (blocks(items, depth), 1), arguments, front))
    dims = merged(out.shape, (strides, out.strides))
    packer = Packer(wide(size, reach(dims))).pointers(3).add("q", size).add("I", bits, 0)
    arguments = packer.indices(size, 0).walk(dims, 2).done()
    wide_out = any(call.wide)
    kind = call.accumulate if wide_out else call.type
    schedule = f"SettleFixed<{kind}, {packer.type}, {flag(call.add)}>"
    tags = ("settle", packer.type, *["add"] * call.add, *["wide"] * wide_out)
    entry = call.entry(schedule, len(arguments), "fixed", *tags)
    front = [(keys, 0), (sums, 0), (out.slot, 0)]
    steps.append(Step(entry, (blocks(size), 1), arguments, front))
    workspaces = ((out.shape, "int32"), ((words, *out.shape), "int64"))
    return Steps(tuple(steps), workspaces, variant=FIXED)


def _lists(call: Call) -> Steps | None:
    lanes = _lanes(call)
    return lists.plan(call, lanes, LISTS) if lanes is not None else None


def _partition(call: Call) -> Steps | None:
    return partition.plan(call, PARTITION)


# In the order of preference, each with what it takes.
_TAKES = {
    LISTS: lists.takes,
    FEW: _takes_few,
    TRANSPOSED: _takes_transposed,
    TILES: _takes_tiles,
}
_FORMS: dict[str, Callable[[Call], Steps | None]] = {
    LISTS: _lists,
    FEW: _few,
    TRANSPOSED: _transposed,
    TILES: _tiles,
    PARTITION: _partition,
    FIXED: _fixed,
    ATOMIC: _atomic,
}
