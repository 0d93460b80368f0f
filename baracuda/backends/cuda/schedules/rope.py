"""Rope: rows that share a position are walked by the threads that know its angles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baracuda import layouts
from baracuda.backends.cuda.geometry import Dim, Packer, View, at_most, count, merged, reach, wide
from baracuda.backends.cuda.launch_plan import (
    MOST_ROWS,
    Call,
    Step,
    Steps,
    added,
    bits,
    blocks,
    flag,
)
from baracuda.declaration.dtypes import named
from baracuda.families.rotation import Frequencies
from baracuda.layouts import Shape

# Frequencies of one launch, for one array and for two: the arguments of a kernel have 4 KiB.
_MOST_PAIRS = (160, 128)
# Launches of a call, at most.
_MOST_PARTS = 64


class Tuning(NamedTuple):
    """What rope takes of an architecture.

    Attributes
    ----------
    prefetch_bytes : int
        From what a block loads to what it asks the L2 for.
    rows, rows_of_16_bits : int
        Rows of a thread, all in flight at once; of pairs of 16 bits, and of 16 bits where the walk
        is the general one. See `_depth`.
    """

    prefetch_bytes: int
    rows: int
    rows_of_16_bits: int


SM_90 = Tuning(
    # 1 to 3 MiB are all within 0.01 of the copy ceiling of an H200. The prefetch stays: without it
    # [4, 32, 8192, 128] takes 1.4 to 2.3 % longer.
    prefetch_bytes=3 << 19,
    rows=2,
    rows_of_16_bits=4,
)
TUNINGS = {"sm_90": SM_90}


class Side(NamedTuple):
    """One array that turns, and the dimensions of rows that share an angle."""

    x: View
    out: View
    row: list[Dim]

    @property
    def free(self) -> int:
        """How many rows share an angle."""
        return count(self.row)


class Turning(NamedTuple):
    """What turns, and by what.

    Attributes
    ----------
    sides : tuple of Side
    place : list of Dim
        Where the angle changes: in and out of each side, then the source's operands.
    tables : tuple of View
        Cosines and sines; () where angles are computed.
    positions : View or None
    """

    sides: tuple[Side, ...]
    place: list[Dim]
    tables: tuple[View, ...]
    positions: View | None

    @property
    def views(self) -> list[View]:
        """All arrays that turn, and what they become."""
        return [view for side in self.sides for view in (side.x, side.out)]

    @property
    def dims(self) -> list[Dim]:
        """The dimensions of all walks, with the strides of the arrays that turn."""
        operands = 2 * len(self.sides)
        place = [Dim(d.extent, d.strides[:operands]) for d in self.place]
        return place + [d for side in self.sides for d in side.row]


def plan(call: Call) -> Steps:
    """One launch for all pairs of tables; of computed angles for every 160, 128 of two arrays."""
    pairs, turning = call.problem.options["rotary_dim"] // 2, _turning(call)
    most = max(pairs, 1) if turning.tables else _MOST_PAIRS[len(turning.sides) - 1]
    at_most(most * _MOST_PARTS, "pairs", pairs)
    parts = []
    for first in range(0, max(pairs, 1), most):
        number = min(pairs - first, most)
        parts.append(_part(call, turning, first, number, first + number == pairs))
    return Steps(tuple(parts))


def _turning(call: Call) -> Turning:
    """The arrays of a call by what they are for."""
    spec = call.problem.spec
    values = [call.view(x.name) for x in call.problem.given if x.name not in spec.discrete]
    tables = tuple([v for v in values if spec.role(call.problem.given[v.slot].name).wide])
    turned = [v for v in values if v not in tables]
    outs = [call.out(number) for number in range(len(turned))]
    positions = next((call.given(name) for name in spec.integers), None)
    shape = turned[0].shape[:-1]
    source = _source(call, len(shape), tables, positions)
    moving = [i for i, n in enumerate(shape) if n > 1 and any(steps[i] for steps in source)]
    ends = [v.strides[:-1] for pair in zip(turned, outs, strict=True) for v in pair]
    sides = []
    for x, out in zip(turned, outs, strict=True):
        still = [i for i in range(len(shape)) if i not in moving]
        row = merged(x.shape[:-1], (x.strides[:-1], out.strides[:-1]), still)
        sides.append(Side(x, out, row))
    return Turning(tuple(sides), merged(shape, (*ends, *source), moving), tables, positions)


def _source(
    call: Call, rank: int, tables: Sequence[View], positions: View | None
) -> tuple[Shape, ...]:
    """The steps of what angles come from, along the axes of rows: see common/angles.cuh."""
    axis = call.problem.options["seq_axis"]

    def along(shape: Shape, strides: Shape) -> Shape:
        if len(shape) == 1 < rank:
            return tuple([strides[0] if i == axis and shape[0] > 1 else 0 for i in range(rank)])
        return tuple([s if n > 1 else 0 for s, n in zip(strides, shape, strict=True)])

    if positions is None and tables:
        return tuple([along(t.shape[:-1], t.strides[:-1]) for t in tables])
    if positions is None:
        return (tuple([int(i == axis) for i in range(rank)]),)
    # Beside tables an error has to say which one a position is.
    numbers = [layouts.contiguous(positions.shape)] if tables else []
    return tuple([along(positions.shape, s) for s in (positions.strides, *numbers)])


def _part(call: Call, turning: Turning, first: int, pairs: int, last: bool) -> Step:
    """The launch for `pairs` pairs from `first` on; the last one moves what does not turn."""
    options, problem = call.problem.options, call.problem
    interleaved, size = options["interleaved"], options["rotary_dim"]
    sides, place, positions = turning.sides, turning.place, turning.positions
    length = int(problem.axes["d"])  # type: ignore[arg-type]
    half = 1 if interleaved else size // 2
    rest = length - size if last else 0
    width, vector = _width(call, turning, size, length)
    per_chunk = width // 2 if interleaved else width
    start = 2 * first if interleaved else first
    chunks = pairs // per_chunk, -(-rest // width)
    places, free = sum(chunks) * count(place), [side.free for side in sides]
    dims = max(len(place), *[len(side.row) for side in sides], 1)
    if dims > 2 or chunks[1]:
        dims = 0
    depth = _depth(call, dims)
    rows = _rows(turning, depth)
    # The distance to what is prefetched: in threads of the same rows, and in rows.
    bytes_each = rows * width * call.itemsize * (1 if interleaved else 2)
    prefetched = call.facts.tuned(TUNINGS).prefetch_bytes
    further, ahead = divmod(prefetched // bytes_each, places)
    # Where rows end within a line, with something else behind them, a prefetch would read that too.
    packed = not length * call.itemsize % 128
    whole = all(packed or side.x.strides[-2] == length for side in sides)
    ahead_rows = further * rows if whole and call.past_caches else max(free)
    spans = [(v.shape[-1] - 1) * abs(v.strides[-1]) for v in turning.views]
    far = [reach(place) + max(map(reach, [side.row for side in sides])) + 2 * max(spans)]
    far += [sum([(n - 1) * abs(s) for n, s in zip(t.shape, t.strides, strict=True)])
            for t in turning.tables]  # fmt: skip
    packer = Packer(wide(places, max(free), *far))
    fronts = [-(-n // rows) for n in free]
    packer.pointers(len(turning.views) + len(turning.tables) + 1).indices(
        places, rows, half, start, chunks[0], size - start, length - start, ahead, ahead_rows,
        fronts[0], *free, *[v.strides[-1] for v in turning.views],
    )  # fmt: skip
    packer.extents(sum(chunks)).add(packer.unsigned, 0)
    packer.walk(place, 2 * len(sides) + (2 if turning.tables else 1))
    for side in sides:
        packer.walk(side.row, 2)
    index = named(problem.index_dtype).short if positions is not None else "void"  # type: ignore[arg-type]
    if turning.tables:
        source, *tags = _read(call, turning, first, per_chunk, packer, index)
    else:
        source, *tags = _computed(call, len(sides), first, pairs, packer, index)
    arguments = packer.done()
    schedule = (
        f"Rotate<{call.functor}, {call.type}, {source}, {len(sides)}, {flag(interleaved)}, "
        f"{width}, {flag(vector)}, {dims}, {depth}, {packer.type}, {bits(call.adds)}>"
    )
    kind, loose = "pairs" if interleaved else "halves", ["loose"] * (not vector)
    tags = [kind, *tags, f"v{width}", *loose, f"d{dims}", packer.type, *added(call.adds)]
    entry = call.entry(schedule, len(arguments), *tags)
    seen = [*turning.views, *turning.tables, positions or sides[0].x]
    return Step(entry, (blocks(places), sum(fronts)), arguments, [(v.slot, 0) for v in seen])


def _rows(turning: Turning, depth: int) -> int:
    """Rows of a thread: those in flight at once, or as many as the grid leaves for each."""
    free = [side.free for side in turning.sides]
    # One block of each side is perhaps not full.
    least = -(-sum(free) // (MOST_ROWS - len(free)))
    return min(max(depth, least), max(free))


def _computed(
    call: Call, sides: int, first: int, pairs: int, packer: Packer, index: str
) -> tuple[str, ...]:
    """The source of angles that are computed, and the tags of its kernels."""
    most = _MOST_PAIRS[sides - 1]
    pack_frequencies(call, packer, slice(first, first + pairs), most)
    return f"Computed<{call.accumulate}, {index}, {most}>", index


def _read(
    call: Call, turning: Turning, first: int, per_chunk: int, packer: Packer, index: str
) -> tuple[str, ...]:
    """The source of angles that are read from tables, and the tags of its kernels."""
    options, tables = call.problem.options, turning.tables
    dtype = call.problem.given[tables[0].slot].dtype
    # Of two entries for each pair the first one counts.
    twice = tables[0].shape[-1] > options["rotary_dim"] // 2 and options["interleaved"]
    inner = [t.strides[-1] * (2 if twice else 1) for t in tables]
    width = min(per_chunk, call.elements(named(dtype).itemsize))
    numbers = [s for t in tables for s in t.strides[:-1]]
    while width > 1 and (any(n % width for n in numbers) or per_chunk % width):
        width //= 2
    if any(step != 1 for step in inner):
        width = 1
    packer.add("Q", call.listener).add("q", tables[0].shape[0]).add("I", call.ticket, 0)
    packer.indices(first, *[t.strides[0] for t in tables], *inner)
    kind = named(dtype).short
    source = f"Tables<{call.accumulate}, {kind}, {index}, {width}>"
    return source, f"{kind}x{width}", index


def _width(call: Call, turning: Turning, size: int, length: int) -> tuple[int, bool]:
    """Elements per chunk, and whether each chunk is one aligned access."""
    interleaved = call.problem.options["interleaved"]
    numbers = [size if interleaved else size // 2, length]
    numbers += [s for d in turning.dims for s in d.strides]
    width = call.elements()
    while width > 1 and any(n % width for n in numbers):
        width //= 2
    dense = all(v.strides[-1] == 1 for v in turning.views)
    if dense and width > 1:
        return width, True
    return (2, False) if interleaved else (1, False)


def _depth(call: Call, dims: int) -> int:
    """Rows per thread, all in flight at once: enough to be worth the price of an angle.

    Share of the copy ceiling on an H200 at [4, 32, 8192, 128]; a plain copy of the bf16 size has
    0.97 to 0.98:

    ============== ===== ===== =====
    rows             1     2     4
    ============== ===== ===== =====
    bf16 pairs     0.76  0.97  0.97
    bf16 halves    0.77  0.97  0.96
    f32 pairs      0.79  0.99  0.98
    f32 halves     0.99  0.99  0.98
    f64 pairs      0.72  1.00  0.99
    f64 halves     0.99  1.00  0.99
    ============== ===== ===== =====

    Pairs in bf16 take 4: where x is not [..., S, D] in C order, 2 have 0.90 and 4 have 0.93. So
    does all of bf16 that walks in the general way.
    """
    dear = call.problem.options["interleaved"] or not dims
    tuning = call.facts.tuned(TUNINGS)
    return tuning.rows_of_16_bits if call.itemsize == 2 and dear else tuning.rows


def pack_frequencies(call: Call, packer: Packer, part: slice, most: int) -> None:
    """Some pairs' frequencies, and the factor of cosines and sines: `Held` in common/angles.cuh."""
    options, double = call.problem.options, call.accumulate == "f64"
    frequencies = Frequencies.of(options)
    turns = frequencies.turns(options["rotary_dim"] // 2, 128 if double else 64)[part]
    for shift in (64, 0) if double else (0,):
        words = [turn >> shift & (1 << 64) - 1 for turn in turns]
        packer.add("Q", *words, *[0] * (most - len(words)))
    packer.add("d", frequencies.factor)
