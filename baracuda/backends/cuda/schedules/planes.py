"""Planes: sets of the planes of [n, c, *s] have statistics, by which every element is scaled.

A set that lies beside itself and fits the registers of a block is a row, and read once; so is one
that fits on chip in a cluster of blocks (`kept_planes`). Else one kernel leaves moments of parts of
the data, one joins those of each set and makes coefficients for each channel of it, one computes
the elements, which is enough where the statistics are given and nothing is summed. Where each of
the n has sets of its own, what they leave for the gradients of parameters is added up at last.
What is summed in which order follows from the shape, and from which axes lie beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Dim, Packer, View, divisor, merged, walkable
from baracuda.backends.cuda.launch_plan import (
    THREADS,
    WIDEST,
    Call,
    Step,
    Steps,
    blocks,
    delivered,
    flag,
)
from baracuda.backends.cuda.schedules import kept_planes, reduce
from baracuda.backends.cuda.schedules.plane_sets import Sets, counted, parameters_of, sets_of
from baracuda.backends.cuda.schedules.row_operands import Operands
from baracuda.backends.cuda.schedules.rows import Planes, whole
from baracuda.declaration.backend import Refusal
from baracuda.layouts import Shape

_WARP, _MOST = 32, 1024
# Coefficients of a plane of one element have more bytes than it: a workspace has so many times the
# bytes of the arrays at most, or so many bytes.
_MOST_SPACE, _LITTLE_SPACE = 2, 1 << 26


class Tuning(NamedTuple):
    """What planes take of an architecture.

    Attributes
    ----------
    vectors : int
        Vectors that a thread holds of each input; of float64 half as many, of elements that lie
        apart one.
    rows_at_once : dict of int to int
        Rows of a column that a thread has in flight, by the number of inputs.
    column_plane, column_lines : int
        Bytes of a plane up to which, and lines from which on, columns are read.
    column_threads, column_rows : int
        Threads that columns should be shared by, and rows that each takes at most.
    rounds, rounds_told : int
        Times that a thread uses what it knows of its columns of 16 bits, at most; of what it is
        told.
    joined_parts : int
        Parts that a thread joins.
    joined_channels : int
        Channels of one element a plane that a block joins: their moments lie beside each other.
    """

    vectors: int
    rows_at_once: dict[int, int]
    column_plane: int
    column_lines: int
    column_threads: int
    column_rows: int
    rounds: int
    rounds_told: int
    joined_parts: int
    joined_channels: int


SM_90 = Tuning(
    vectors=4,
    rows_at_once={1: 8, 2: 4},
    column_plane=1024,
    column_lines=16,
    column_threads=1 << 16,
    column_rows=128,
    rounds=16,
    # batch_norm_inference of [8192, 4096] in bf16 on an H200 takes 39.8 us with 2, and 41.2 with
    # 16, its gradient 38.7 and 40.9.
    rounds_told=2,
    joined_parts=4,
    # A sector of 32 bytes or more.
    joined_channels=8,
)
TUNINGS = {"sm_90": SM_90}


class Moments(NamedTuple):
    """Moments of parts: how they lie, and what leaves them.

    Attributes
    ----------
    units : int
        Parts of all sets.
    base, step : int
        Parts from set to set, and from line to line of a set.
    lines, parts : int
        Of a set and of a line.
    full, tail, leading : int
        Elements of a part, of a shorter one, and how many come before the shorter ones.
    by_lines : bool
        Whether it is lines that are counted for that, or the parts of each.
    steps : tuple of Step
    """

    units: int
    base: int
    step: int
    lines: int
    parts: int
    full: int
    tail: int
    leading: int
    by_lines: bool
    steps: tuple[Step, ...]


_NOTHING = Moments(0, 0, 0, 0, 1, 0, 0, 0, False, ())


def plan(call: Call) -> Steps:
    """Two kernels or three, and one more for gradients of parameters that all of the n share."""
    of = sets_of(call)
    counted(of.n, of.c * of.s, of.number)
    kind, moments, empty = call.accumulate_dtype, _NOTHING, of.n * of.c * of.s == 0
    shares, on_chip = ((of.n or 1, 2, of.c or 1), kind), None
    if of.groups and not empty:
        on_chip = _on_chip(call, of)
    if on_chip is not None:
        if not of.shared:
            return Steps((on_chip,))
        return Steps((on_chip, _shared(call, of, of.n, 0)), (shares,))
    kept = kept_planes.plan(call, of) if of.sums and not (of.given or empty) else None
    if kept is not None:
        return Steps((kept, _shared(call, of, of.n, 0)), (shares,)) if of.shared else Steps((kept,))
    over = _mapped(call, of)
    if over.told:
        return Steps(() if empty else (_map(call, of, over),))
    count = 5 if of.back else 3
    if of.sums and not empty:
        moments = _moments(call, of, count)
    workspaces: list[tuple[Shape, str]] = [((of.number * of.channels or 1, 4), kind)]
    if of.sums:
        workspaces.append(((count, moments.units or 1), kind))
    if of.shared:
        workspaces.append(shares)
    steps = [*moments.steps]
    # Of nothing the sums are 0.
    if of.number and not (empty and of.groups):
        steps.append(_join(call, of, moments))
    if not empty and of.c:
        steps.append(_map(call, of, over))
    if of.shared and of.c:
        steps.append(_shared(call, of, 0 if empty else of.n, 2))
    planned = Steps(tuple(steps), tuple(workspaces))
    if planned.workspace_size > max(_MOST_SPACE * call.nbytes, _LITTLE_SPACE):
        raise Refusal(
            f"needs {planned.workspace_size} bytes for the coefficients of short planes, more than "
            f"{_MOST_SPACE} times those of the arrays"
        )
    return planned


def _shared(call: Call, of: Sets, many: int, workspace: int) -> Step:
    """Adds up what each of the n has left for the gradients of parameters."""
    return reduce.sum_rows(call, 1, of.c, many, call.workspace(workspace))


def _on_chip(call: Call, of: Sets) -> Step | None:
    """The kernel for sets as rows; None where they do not lie so, or are too long."""
    inside = _lie(call, [*of.loads, call.out()], of.groups).inside
    if len(inside) > 1:
        return None

    def rows(view: View, place: int) -> View:
        step = inside[0].strides[place] if inside else 1
        strides = view.strides[0], view.strides[1] * of.channels, step
        return View(view.slot, 0, (of.n, of.groups, of.channels * of.s), strides)

    loads = [rows(view, i) for i, view in enumerate(of.loads)]
    columns = [v for v in map(call.given, ("weight", "bias")) if v is not None]
    sums = [call.out(1), call.out(2)] if of.shared else []
    out = rows(call.out(), len(loads))
    functor = "LayerNormBackward" if of.back else "LayerNorm"
    of_rows = Operands(2, loads, columns, [], [out], sums)
    return whole(call, of_rows, Planes(functor, of.s, of.groups, of.channels))


class Lie(NamedTuple):
    """How arrays lie as lines: from one to the next, within one, and how that is read."""

    lines: list[Dim]
    inside: list[Dim]
    access: str


def _lie(call: Call, views: Sequence[View], groups: int) -> Lie:
    """Arrays as lines of all channels, of some (`groups` a member of the batch)."""
    n, c, *inner = views[0].shape
    channels = c // groups
    lines = merged((n, groups), [(v.strides[0], v.strides[1] * channels) for v in views])
    within = (channels, *inner)
    inside = merged(within, [v.strides[1:] for v in views])
    walkable(inside)
    beside = not inside or (len(inside) == 1 and all(s == 1 for s in inside[0].strides))
    numbers = [prod(within), *(s for d in lines for s in d.strides)]
    wide = beside and divisor(numbers, call.elements()) == WIDEST // call.itemsize
    return Lie(lines, inside, "VECTORS" if wide else "ELEMENTS" if beside else "STEPS")


def _held(call: Call, lie: Lie) -> int:
    """Vectors of each array in a thread."""
    held = call.facts.tuned(TUNINGS).vectors // (1 + (call.itemsize == 8))
    return 1 if lie.access == "STEPS" else held


def _moments(call: Call, of: Sets, count: int) -> Moments:
    tuning = call.facts.tuned(TUNINGS)
    narrow = of.s * call.itemsize <= tuning.column_plane
    if not of.groups and narrow and (of.s == 1 or of.n >= tuning.column_lines):
        lie = _lie(call, of.loads, 1)
        if lie.access != "STEPS":
            return _columns(call, of, lie)
    # Gradients of parameters take sums of planes, which else need not be told apart.
    groups = of.groups if of.groups and not of.shared else of.c
    lie, length = _lie(call, of.loads, groups), of.c // groups * of.s
    held, width = _held(call, lie), WIDEST // call.itemsize
    lanes = min(1 << (-(-length // (held * width)) - 1).bit_length(), _WARP)
    full = lanes * held * width
    parts, arrays = -(-length // full), len(of.loads)
    units = of.n * groups * parts
    counted(units * lanes)
    packer = Packer(True).pointers(arrays + 1).add("i", length, units, lanes.bit_length() - 1)
    packer.extents(parts, code="I").walk(lie.lines, arrays).walk(lie.inside, arrays)
    arguments = packer.done()
    functor = f"{call.functor}<{call.accumulate}>"
    schedule = f"LineMoments<{functor}, {call.type}, {held}, {lie.access}>"
    entry = call.entry(schedule, len(arguments), "lines", lie.access.lower())
    front = [*((v.slot, 0) for v in of.loads), (call.workspace(1), 0)]
    step = Step(entry, (-(-units // (THREADS // lanes)), 1), arguments, front)
    tail = length - (parts - 1) * full
    lines = of.n if not of.groups else groups // of.groups
    between = groups * parts if not of.groups else parts
    base = parts if not of.groups else lines * parts
    return Moments(units, base, between, lines, parts, full, tail, parts - 1, False, (step,))


def _columns(call: Call, of: Sets, lie: Lie) -> Moments:
    columns, width = of.c * of.s, WIDEST // call.itemsize
    tuning = call.facts.tuned(TUNINGS)
    held, least = tuning.rows_at_once[len(of.loads)], tuning.rows_at_once[1]
    # As if they were read in vectors: their alignment does not change the bits.
    each = of.n * -(-columns // width) // tuning.column_threads // least * least
    chunks = -(-of.n // min(max(each, least), tuning.column_rows))
    rows, leading = -(-of.n // chunks), of.n % chunks or chunks
    width = width if lie.access == "VECTORS" else 1
    vectors = columns // width
    counted(chunks * vectors)
    steps = [lie.lines[0].strides[k] if lie.lines else 0 for k in range(len(of.loads))]
    packer = Packer(True).pointers(len(of.loads) + 1).add("q", *steps, columns)
    packer.add("i", of.n, chunks, rows, leading).extents(vectors, code="I")
    arguments = packer.done()
    functor = f"{call.functor}<{call.accumulate}>"
    schedule = f"ColumnMoments<{functor}, {call.type}, {held}, {width}>"
    entry = call.entry(schedule, len(arguments), "columns", f"v{width}")
    front = [*((v.slot, 0) for v in of.loads), (call.workspace(1), 0)]
    step = Step(entry, (blocks(chunks * vectors), 1), arguments, front)
    of_lines = rows, rows - 1, leading, True
    return Moments(chunks * columns, of.s, columns, chunks, of.s, *of_lines, (step,))


def _join(call: Call, of: Sets, moments: Moments) -> Step:
    parameters = parameters_of(call, of, 2)
    slots = [*parameters.slots, call.workspace(1 if of.sums else 0), call.workspace()]
    packer = Packer(True).pointers(len(slots)).add("d", 0.0)
    parameters.numbers(packer)
    packer.add("q", moments.units, moments.base, moments.step)
    packer.add("i", moments.lines, moments.full, moments.tail, moments.leading)
    packer.add("i", moments.by_lines, of.number)
    packer.extents(moments.parts, code="I")
    arguments = packer.done()
    how = call.how((1, 2)) if parameters.left else 0
    tuning = call.facts.tuned(TUNINGS)
    beside = tuning.joined_channels if moments.by_lines and moments.parts == 1 else 1
    schedule = (
        f"JoinMoments<{call.functor}<{call.accumulate}>, {call.type}, {parameters.given}, "
        f"{flag(not of.groups)}, {flag(of.sums)}, {how}, {beside}{call.column_argument}>"
    )
    tags = ["join", parameters.given, *["beside"] * (beside > 1), *delivered(how, 2),
            *call.column_tags]  # fmt: skip
    entry = call.entry(schedule, len(arguments), *tags, threads=_MOST)
    items = max(moments.lines * moments.parts // tuning.joined_parts, of.channels) * beside
    threads = min(-(-max(items, 1) // _WARP) * _WARP, _MOST)
    front = [(slot, 0) for slot in slots]
    scalars = call.problem.spec.codes
    return Step(entry, (-(-of.number // beside), 1), arguments, front, scalars, fewer=threads)


class Mapped(NamedTuple):
    """How elements are computed.

    Attributes
    ----------
    views : list of View
        What is read, and what is written.
    lie : Lie
    same, down, told : bool
        Whether the coefficients are one channel's for all of a vector, those of all lines of a
        thread, and made by each thread: of statistics that are given, where there are few.
    """

    views: list[View]
    lie: Lie
    same: bool
    down: bool
    told: bool


def _mapped(call: Call, of: Sets) -> Mapped:
    views = [*(of.loads[:1] if of.given else of.loads), call.out()]
    lie, same = _lie(call, views, 1), of.s % (WIDEST // call.itemsize) == 0
    down = not (of.groups or same) and lie.access == "VECTORS"
    return Mapped(views, lie, same, down, of.given and not of.sums and (same or down))


def _map(call: Call, of: Sets, over: Mapped) -> Step:
    views, lie, same, down, _ = over
    arrays, width, scalars = len(views), WIDEST // call.itemsize, call.problem.spec.codes
    # Of what is read once one vector a thread is enough: 198 us for 203 with four.
    held = 1 if over.told and same else _held(call, lie)
    vectors = -(-of.c * of.s // width)
    told = parameters_of(call, of, 0) if over.told else None
    # What is known of a vector of 16 bits has twice the bytes of what a thread holds.
    tuning = call.facts.tuned(TUNINGS)
    most = (tuning.rounds_told if over.told else tuning.rounds) if call.itemsize == 2 else 1
    rounds = max(min(of.n * vectors // (held * tuning.column_threads), most), 1)
    apart = -(-of.n // (held * rounds))
    items = vectors * (apart if down else of.n)
    counted(items)
    slots = [*(v.slot for v in views), *(told.slots if told else [call.workspace()])]
    packer, given, add = Packer(True).pointers(len(slots)), "", call.adds[0]
    if told:
        told.numbers(packer.scalars(scalars))
        given = f", true, {told.given}{call.column_argument}"
    packer.add("q", of.c if of.groups else 0)
    packer.add("i", of.c * of.s, of.n, items, rounds, apart).extents(vectors, of.s, code="I")
    arguments = packer.walk(lie.lines, arrays).walk(lie.inside, arrays).done()
    schedule = (
        f"MapPlanes<{call.functor}<{call.accumulate}>, {call.type}, {held}, {lie.access}, "
        f"{flag(same)}, {flag(down)}, {flag(add)}{given}>"
    )
    tags = ["map", lie.access.lower(), *["same"] * same, *["down"] * down, *["add"] * add]
    tags += ["told", str(told.given), *call.column_tags] if told else []
    entry = call.entry(schedule, len(arguments), *tags)
    front, grid = [(slot, 0) for slot in slots], (blocks(items, 1 if down else held), 1)
    return Step(entry, grid, arguments, front, scalars if told else "")
