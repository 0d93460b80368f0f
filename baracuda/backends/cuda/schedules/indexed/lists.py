"""Rows with one index each, as of embeddings: the index is inverted, then each row written once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Packer, View, divisor
from baracuda.backends.cuda.launch_plan import Call, Step, Steps, Zero, flag
from baracuda.backends.cuda.launch_plan import blocks as blocks_of
from baracuda.backends.cuda.schedules.indexed.tiles import Lanes
from baracuda.declaration.dtypes import named
from baracuda.layouts import Shape

# cuda_src/indexed/lists.cuh: positions of a part, lanes of a warp, threads of a block of either
# kernel.
_PART, _WARP, _THREADS, _INVERT_THREADS = 64, 32, 128, 512
# Blocks of a team that inverts for its rows, where there are clusters; its slots are a multiple of
# as many.
_CLUSTER = 8
# Rows that a warp takes side by side, at most; their slots are a multiple of as many.
_MOST_BESIDE = 8
# Elements that a block inverts at a time; words of shared memory for each of two of them, and for a
# slot: eight counts of half a word, three sums.
_ROUND, _PAIR_WORDS, _SLOT_WORDS = 8192, 3, 7
# cuda_src/indexed/sort_index.cuh: entries of a chunk; bits of a digit, at most.
_CHUNK, _DIGIT_BITS = 8192, 10
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
    elements_finished, elements_of_two : int
        The same where a functor finishes sums, or makes terms of two arrays, at most.
    rows_of_block, blocks_log2 : int
        Rows of a block that inverts, about; the logarithm of how many blocks there are, at most.
    prefetch_bytes : int
        Bytes of values that come into the L2 while the index is inverted.
    sorted : int
        Entries from which an index is sorted, where a shorter one is inverted by teams.
    """

    row_bytes: int
    rows: int
    elements: dict[int, int]
    elements_adding: int
    elements_finished: int
    elements_of_two: int
    rows_of_block: int
    blocks_log2: int
    prefetch_bytes: int
    sorted: int


# Shares of the copy ceiling of an H200.
SM_90 = Tuning(
    row_bytes=64,
    # [65536, 1024] in bf16 has 0.67 with 4 rows and 4 elements, as much with 8 rows (Zipf 0.59 for
    # 0.63), 0.64 with 2, 0.69 with 4 rows and 6 elements.
    rows=4,
    elements={2: 6, 4: 7, 8: 7},
    elements_adding=4,
    elements_finished=5,
    elements_of_two=3,
    rows_of_block=64,
    # About as many as multiprocessors. Two blocks fit one: else not all clusters would start at
    # once.
    blocks_log2=7,
    # 16 MiB gain no more, of 24 a part is gone before it is used.
    prefetch_bytes=8 << 20,
    sorted=1 << 18,
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


class Cut(NamedTuple):
    """How the rows of a target are dealt out, and the elements cut.

    Attributes
    ----------
    blocks, shift, slots : int
        Blocks of a team; the logarithm of how many teams there are; rows of a team.
    pieces : int
        Chunks of positions.
    chunks : int
        Chunks of entries that are sorted; 0 where an index is inverted by teams, or ascends.
    """

    blocks: int
    shift: int
    slots: int
    pieces: int
    chunks: int = 0


class Sums(NamedTuple):
    """What is added up, or joined by a functor; into the dtype `to`, where that is another.

    Where the functor makes terms: rows `beside` the values, and what is `known` of the target's.
    """

    dtype: str
    functor: str = ""
    to: str = ""
    add: bool = False
    scalars: str = ""
    tags: tuple[str, ...] = ()
    beside: View | None = None
    known: View | None = None

    @property
    def terms(self) -> bool:
        """Whether the functor makes terms."""
        return self.beside is not None or self.known is not None


def cut_of(call: Call, lanes: Lanes) -> Cut | None:
    """How lists are cut; None where there is no room on chip to invert an index.

    By the problem alone: where long lists are cut depends on it, and so do the bits.
    """
    pieces, tuning = -(-lanes.length // _PART), call.facts.tuned(TUNINGS)
    ascends = bool(call.problem.options.get("sorted"))
    if ascends or lanes.length >= tuning.sorted:
        chunks = 0 if ascends else -(-lanes.length // _CHUNK)
        return Cut(1, 0, -(-lanes.extent // _CLUSTER) * _CLUSTER, pieces, chunks)
    blocks, most = _blocks(call), _most_slots(call)
    if most < 1:
        return None
    shift = (lanes.extent // (tuning.rows_of_block * blocks)).bit_length()
    shift = min(shift, tuning.blocks_log2 - blocks.bit_length() + 1)
    while lanes.extent > most << shift:
        shift += 1
    return Cut(blocks, shift, -(-lanes.extent // (_CLUSTER << shift)) * _CLUSTER, pieces)


def _digits(lanes: Lanes) -> tuple[int, int]:
    """How many digits a row is sorted by, and their bits; the row behind the last has a number."""
    bits = max(lanes.extent.bit_length(), 1)
    many = -(-bits // _DIGIT_BITS)
    return many, -(-bits // many)


def plan(call: Call, lanes: Lanes, name: str) -> Steps | None:
    """Invert the index, then sum the lists; None where there is no room for that."""
    cut = cut_of(call, lanes)
    if cut is None:
        return None
    dtype, scalars = call.problem.dtype, call.problem.spec.codes
    to = named(dtype).accumulate if any(call.wide) else ""
    sums = Sums(dtype, call.functor, to, call.add, scalars)
    lists, parts = rooms(lanes, cut), room_of_parts(call, lanes, cut, sums)
    *slots, done, behind = (call.workspace(i) for i in range(WORKSPACES))
    first = invert(call, lanes, cut, (*slots, done), parts[0][0][0], lanes.count)
    last = total(call, lanes, cut, sums, (*slots, done), behind)
    if last is None:
        return None
    return Steps((*first, last), (*lists, *parts), variant=name)


def rooms(lanes: Lanes, cut: Cut) -> tuple[tuple[Shape, str], ...]:
    """Workspaces of lists: elements, where lists begin, what is long and what sorting takes."""
    sorting = 0
    if cut.chunks:
        many, bits = _digits(lanes)
        sorting = (3 if many > 1 else 1) * lanes.length + (1 + cut.chunks << bits)
    sizes = (lanes.length, (cut.slots << cut.shift) + 1, 2 * cut.pieces + sorting)
    return tuple([((max(size, 1),), "int32") for size in sizes])


def room_of_parts(
    call: Call, lanes: Lanes, cut: Cut, sums: Sums
) -> tuple[tuple[Shape, str], tuple[Shape, str]]:
    """Workspaces of the parts of long lists: counters, which begin at 0, and sums."""
    counters = 6 * cut.pieces * _chunks(lanes, _width(call, lanes, sums))
    kept = (max(2 * cut.pieces, 1), lanes.count)
    return ((max(counters, 1),), "int32"), (kept, named(sums.dtype).accumulate)


def _width(call: Call, lanes: Lanes, sums: Sums) -> int:
    most = call.elements(named(sums.dtype).itemsize)
    width = divisor([lanes.count, lanes.steps[0], lanes.steps[2]], most)
    # As many rows as a warp takes side by side have lanes for accesses of this width.
    while width > 1 and 2 * lanes.count <= _WARP // _MOST_BESIDE * width:
        width //= 2
    return width


def _beside(lanes: Lanes, width: int) -> int:
    """Rows that have lanes of a warp side by side."""
    rows = _MOST_BESIDE
    while rows > 1 and lanes.count > _WARP // rows * width:
        rows //= 2
    return rows


def _chunks(lanes: Lanes, width: int) -> int:
    return -(-lanes.count // (_WARP * width))


def invert(
    call: Call, lanes: Lanes, cut: Cut, slots: Sequence[int], counters: int, columns: int,
    ahead: bool = True,
) -> tuple[Step | Zero, ...]:  # fmt: skip
    """Lists of the elements of each row; an entry out of range is reported times `columns`.

    `ahead`: values are brought into the L2 meanwhile.
    """
    values, index, _ = lanes.views
    kind, size = named(call.problem.index_dtype or ""), named(call.problem.dtype).itemsize
    if not lanes.length:
        return (Zero(slots[1], 4 * ((cut.slots << cut.shift) + 1)),)
    tuning, problem = call.facts.tuned(TUNINGS), call.problem
    sizes = (lanes.length, lanes.extent, cut.slots, cut.shift)
    skipped = problem.skipped_by(problem.spec.indices[0])
    skipped = _NONE if skipped is None else skipped
    given, step, short = (index.slot, 0), lanes.steps[1] * kind.itemsize, kind.short
    if cut.chunks or problem.options.get("sorted"):
        steps: tuple[Step, ...] = ()
        if cut.chunks:
            steps, given = _sort(call, lanes, cut, slots, columns, skipped)
            step, short = 4, "u32"
        arguments = Packer(False).pointers(5).add("I", *sizes).add("Q", call.listener)
        arguments.add("i", step).add("I", call.ticket, cut.pieces, counters, columns, 0)
        schedule, tags = f"Bounds<{short}, {flag(steps)}>", ("bounds", short)
        entry = call.entry(schedule, len(arguments.done()), *tags)
        most = max(lanes.length, cut.slots + 1, counters)
        front = [*[(slot, 0) for slot in slots], given]
        return (*steps, Step(entry, (blocks_of(most), 1), arguments.done(), front))
    lines = -(-lanes.count * size // _LINE)
    most = min(tuning.prefetch_bytes // _LINE, lanes.length * lines) if ahead else 0
    arguments = Packer(False).pointers(6).add("I", *sizes).add("Q", call.listener)
    arguments.add("i", step, lanes.steps[0] * size)
    arguments.add("I", call.ticket, -(-lanes.length // cut.blocks), counters, columns)
    arguments.extents(lines, code="I").add("I", most, skipped, 0)
    entry = call.entry(
        f"Invert<{short}, {cut.blocks}>",
        len(arguments.done()),
        *("invert", short, cut.blocks),
        threads=_INVERT_THREADS,
        cluster=cut.blocks,
    )
    front = [*[(slot, 0) for slot in slots], given, (values.slot, 0)]
    shared, grid = 4 * _words(call, cut.slots), (cut.blocks << cut.shift, 1)
    return (Step(entry, grid, arguments.done(), front, "", shared),)


def _sort(
    call: Call, lanes: Lanes, cut: Cut, slots: Sequence[int], columns: int, skipped: int
) -> tuple[tuple[Step, ...], tuple[int, int]]:
    """The entries by their rows, and where these rows are then; by one digit after the other."""
    kind, (many, bits) = named(call.problem.index_dtype or ""), _digits(lanes)
    # Behind what is long: the sorted rows, counts, and rows and numbers between two digits.
    begin, length = 8 * cut.pieces, 4 * lanes.length
    rows, counts = (slots[2], begin), (slots[2], begin + length)
    behind = begin + length + 4 * (1 + cut.chunks << bits)
    last, between = (rows, (slots[0], 0)), ((slots[2], behind), (slots[2], behind + length))
    warps = _INVERT_THREADS // _WARP
    words = (2 << bits) + warps + max(2 * _CHUNK, warps << bits >> 1)
    each = (
        ("CountDigits", _INVERT_THREADS, cut.chunks, 1 << bits),
        ("SumDigits", _THREADS, -(-(_WARP << bits) // _THREADS), 0),
        ("SortDigit", _INVERT_THREADS, cut.chunks, words),
    )
    given, step, short = (lanes.views[1].slot, 0), lanes.steps[1] * kind.itemsize, kind.short
    numbers, steps = last[1], []
    for digit in range(many):
        to = between if (many - digit) % 2 == 0 else last
        arguments = Packer(False).pointers(5).add("Q", call.listener).add("i", step)
        arguments.add("I", lanes.length, lanes.extent, digit * bits, bits, cut.chunks)
        arguments.add("I", call.ticket, columns, skipped, 0)
        front, packed = (given, numbers, *to, counts), arguments.done()
        for name, threads, grid, shared in each:
            typed = name != "SumDigits"
            schedule = f"{name}<{short}, {flag(not digit)}>" if typed else name
            tags = (name.lower(), *[short] * typed)
            entry = call.entry(schedule, len(packed), *tags, threads=threads)
            steps.append(Step(entry, (grid, 1), packed, front, shared=4 * shared))
        (given, numbers), step, short = to, 4, "u32"
    return tuple(steps), rows


def total(
    call: Call, lanes: Lanes, cut: Cut, sums: Sums, slots: Sequence[int], parts: int
) -> Step | None:
    """Each row of the target, from its list; None where warps cannot be counted."""
    values, _, target = lanes.views
    tuning, own, width = call.facts.tuned(TUNINGS), named(sums.dtype), _width(call, lanes, sums)
    accumulate, chunks = named(own.accumulate), _chunks(lanes, width)
    beside = _beside(lanes, width)
    rows = beside if beside > 1 else tuning.rows
    groups = (cut.slots // rows) << cut.shift
    long = cut.pieces * min(width, 2) * chunks
    tasks = max(long, groups * chunks)
    if tasks >= 1 << 31:
        return None
    size, to = own.itemsize, named(sums.to or sums.dtype)
    steps = (lanes.steps[0] * size, lanes.steps[2] * to.itemsize)
    # What a functor does not take is never read.
    more = [view or values for view in (sums.beside, sums.known)] if sums.terms else []
    arguments = Packer(False).pointers(7 + len(more)).scalars(sums.scalars)
    arguments.add("I", lanes.length, lanes.extent, cut.slots, cut.shift)
    arguments.add("i", *steps, lanes.count * accumulate.itemsize)
    arguments.add("I", lanes.count, chunks).extents(chunks, code="I")
    arguments.add("I", cut.pieces, groups, min(long, groups * chunks), 0)
    views = (*slots, values.slot, target.slot, parts, *[view.slot for view in more])
    front = [(slot, 0) for slot in views]

    wider = to.itemsize > size
    once = tuning.elements_adding if sums.add or wider else tuning.elements[size]
    once = min(once, tuning.elements_finished) if sums.functor else once
    if sums.beside is not None:
        once = min(once, tuning.elements_of_two)
    template = f"{own.short}, {width}, {rows}, {once}, {flag(sums.add)}, {flag(beside > 1)}"
    kind = f", {to.short}" if to is not own or sums.functor else ""
    functor = f", {sums.functor}" if sums.functor else ""
    tags = (
        "lists",
        f"v{width}",
        *[f"beside{beside}"] * (beside > 1),
        *["add"] * sums.add,
        *["wide"] * wider,
        *[f"to_{to.short}"] * (to.itemsize < size),
        *sums.tags,
    )
    schedule = f"SumLists<{template}{kind}{functor}>"
    entry = call.entry(schedule, len(arguments.done()), *tags, threads=_THREADS)
    grid = (-(-tasks * _WARP // _THREADS), 1)
    return Step(entry, grid, arguments.done(), front, sums.scalars)
