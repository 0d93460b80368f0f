"""Rows: along one axis something is found out, and every element is computed from it.

Inputs with the axis alone are columns that all rows share; outputs with the axis alone are sums
over all rows: each block leaves those of its own rows, which a second kernel adds up. What has all
axes but this one belongs to rows that are losses: labels and cotangents, or the losses themselves,
whose sum blocks leave in the same way.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import (
    PROCESSORS,
    Dim,
    Packer,
    View,
    at_most,
    divisor,
    merged,
    walkable,
    without,
)
from baracuda.backends.cuda.launch_plan import (
    THREADS,
    WIDEST,
    Call,
    Step,
    Steps,
    added,
    bits,
)
from baracuda.backends.cuda.schedules import columns, elementwise, kept_rows, reduce
from baracuda.backends.cuda.schedules.row_operands import Kind, Operands, kind_of, operands
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dtypes import named
from baracuda.layouts import numbers_of

# common/rows.cuh: lanes of a warp, and threads of the largest block.
_WARP, _MOST = 32, 1024
# Threads beyond which there are no registers for single elements, for a mask beside a bias, or for
# sums of the longest rows.
_SINGLE = 512
# Bytes on chip beside the sums.
_JOINS = 3 << 10
_CAUSAL, _MASKED = 1, 2
_WIDE_LABELS, _REDUCED, _WIDE_LOSS = 1, 2, 4
# Columns are counted in 32 bits, with room for the steps of a block.
LONGEST = 2**31 - 2**22


class Tuning(NamedTuple):
    """What rows take of an architecture.

    Attributes
    ----------
    vectors, vectors_less : dict of int to int
        Vectors of 16 bytes that a thread holds of each input, by the number of inputs; of float64
        and beside a mask, which take more registers.
    short_row, vectors_short : int
        Elements of a row up to which a thread holds fewer vectors, and how many. Rows whose one
        array is all there is to read keep theirs. Gradients of losses of several have as few.
    vectors_reread : int
        Vectors of a thread in 16-bit rows that a block reads twice, of one array and at most one
        column.
    loss_lanes : int
        Lanes of a row that is a loss, at least.
    loss_gradient_threads : int
        Threads of a block for gradients of losses whose rows are lanes of a warp.
    sum_threads, sum_room : int
        Of blocks that leave sums: threads, and bytes of shared memory, that a multiprocessor has.
    sum_part : int
        Bytes of rows for each byte of the sums that blocks leave, at least.
    prefetch_threads, prefetch_threads_alone : int
        Threads of a block from which on it asks the L2 for a later row; of one that does nothing
        but read a row and write one.
    prefetch_rows : int
        Rows that are asked for, of each multiprocessor.
    """

    vectors: dict[int, int]
    vectors_less: dict[int, int]
    short_row: int
    vectors_short: int
    vectors_reread: int
    loss_lanes: int
    loss_gradient_threads: int
    sum_threads: int
    sum_room: int
    sum_part: int
    prefetch_threads: int
    prefetch_threads_alone: int
    prefetch_rows: int


# Times are of an H200.
SM_90 = Tuning(
    # With 64 registers a multiprocessor has 1024 threads, and 64 KiB and more of the inputs under
    # way.
    vectors={1: 4, 2: 4, 3: 2},
    vectors_less={1: 2, 2: 2, 3: 1},
    # [8192, 1024] in bf16: rms_norm takes 14.0 us, and 14.5 with 4 vectors, softmax 15.3 and 14.1.
    short_row=1024,
    vectors_short=2,
    # [4096, 65536] in bf16: rms_norm takes 317 us, and 360 with 4 vectors, softmax 320 and 361.
    vectors_reread=2,
    # cosine_embedding_loss of [2^20, 128] takes 142 us in bf16 with 8 lanes of two vectors each,
    # and 150 with 4; in float32 255 with 8 and 268 with 16.
    loss_lanes=8,
    # triplet_margin_loss_backward of [2^20, 128] in bf16 takes 393 us, and 405 with 256 threads.
    loss_gradient_threads=64,
    sum_threads=768,
    sum_room=227 << 10,
    sum_part=16,
    prefetch_threads=512,
    prefetch_threads_alone=128,
    # Two rows are as good as three. layer_norm of [8192, 8192] in bf16 takes 72 us with two, 86
    # with six, 78 with none.
    prefetch_rows=2,
)
TUNINGS = {"sm_90": SM_90}


class Shares(NamedTuple):
    """Which threads take a row.

    Attributes
    ----------
    way : str
        ``LANES`` of a warp, a ``BLOCK``, or one that reads again what it cannot hold (``LONG``).
    lanes, threads : int
        Threads of a row, and of a block.
    held : int
        Vectors of each input in a thread.
    """

    way: str
    lanes: int
    threads: int
    held: int

    @property
    def groups(self) -> int:
        """Rows of a block."""
        return self.threads // self.lanes


def shares(n: int, width: int, held: int, most: int = _MOST) -> Shares:
    """How rows of `n` elements are shared by at most `most` threads, `width` elements at a time."""
    lanes = max(-(-n // (width * held)), 1)
    if lanes <= _WARP:
        return Shares("LANES", 1 << (lanes - 1).bit_length(), THREADS, held)
    threads = -(-lanes // _WARP) * _WARP
    if threads <= most:
        return Shares("BLOCK", threads, threads, held)
    return Shares("LONG", most, most, held)


def holds(call: Call, of: Operands) -> int:
    """Vectors of each input in a thread."""
    tuning = call.facts.tuned(TUNINGS)
    less = call.itemsize == 8 or of.masks or of.biases
    return (tuning.vectors_less if less else tuning.vectors)[len(of.loads)]


def _vectors(call: Call, of: Operands, n: int) -> int:
    """Fewer for rows of `n` elements that are short, and for gradients of losses."""
    tuning, held = call.facts.tuned(TUNINGS), holds(call, of)
    if of.costs:
        few = of.pulls or n < held * WIDEST // call.itemsize * tuning.loss_lanes
    else:
        few = n <= tuning.short_row and len(of.loads) + len(of.columns) > 1 and not of.sums
    return min(held, tuning.vectors_short) if few else held


def plan(call: Call) -> Steps:
    """One kernel, one more where rows are added up; see `columns` for inner axes."""
    of, tuning = operands(call), call.facts.tuned(TUNINGS)
    shape = of.loads[0].shape
    n, rows = shape[of.axis], prod(without(shape, of.axis))
    at_most(LONGEST, "elements along an axis", n)
    if of.costs and call.mixed_rows:
        raise Refusal("has no kernel for losses of rows that are wider than the primal")
    if of.axis < len(shape) - 1 and not (of.masks or of.columns or of.biases or call.mixed_rows):
        beside = columns.plan(call, of)
        if beside is not None:
            return beside
    width, most = WIDEST // call.row_size, _MOST
    lie, size = _lie(call, of), named(call.accumulate_dtype).itemsize
    held = 1 if lie.access == "STEPS" else _vectors(call, of, n)
    kind = kind_of(call, of)
    if lie.access != "VECTORS" or kind.numbers or of.crowded:
        most = _SINGLE
    room = size * width * held * len(of.sums)
    if room:
        most = min(most, (call.facts.shared_per_block - _JOINS) // room // _WARP * _WARP)
    kept = kept_rows.kept(call, of, lie, n, PROCESSORS, call.facts.shared_per_block - _JOINS)
    how = shares(n, width, held, most)
    alone = len(of.loads) == 1 and len(of.columns) < 2 and lie.access == "VECTORS"
    if how.way == "LONG" and alone and call.row_size == 2:
        how = shares(n, width, min(held, tuning.vectors_reread), most)
    if how.way == "LONG" and of.sums:
        how = shares(n, width, held, min(most, _SINGLE))
    if how.way == "BLOCK" and lie.access != "VECTORS":
        how = how._replace(way="LONG")
    if how.way == "LANES" and of.pulls:
        how = how._replace(threads=tuning.loss_gradient_threads)
    blocks, shared = -(-rows // how.groups), how.threads * room
    if of.sums:
        few = rows * (len(of.loads) + 1) * call.row_size // (tuning.sum_part * size)
        resident = min(tuning.sum_threads // how.threads, tuning.sum_room // (shared + _JOINS))
        together = PROCESSORS
        if kept:
            blocks, together, resident = rows, kept.together, kept.resident
        blocks = min(blocks, together * max(min(resident, few // together), 1))
    least = tuning.prefetch_threads if of.sums else tuning.prefetch_threads_alone
    ahead = _ahead(of, how, blocks, least, tuning.prefetch_rows)
    if of.added:
        # Where a block has a row, as many as are resident at once.
        most = PROCESSORS * (_MOST // how.threads)
        if how.way == "LANES":
            most = call.facts.tuned(reduce.TUNINGS).sums
        blocks = -(-blocks // max(-(-blocks // most), 1))
    steps = []
    if rows and kept:
        steps.append(kept_rows.plan(call, of, kind, kept, lie, blocks))
    elif rows:
        steps.append(_rows(call, of, kind, how, lie, blocks, ahead)._replace(shared=shared))
    if of.added:
        sums = (call.workspace(), 0)
        whole = elementwise.share(call.problem, shape[:-1])
        steps.append(reduce.total(call, blocks, whole, sums, sums, (of.costs[0].slot, 0)))
        return Steps(tuple(steps), (((max(blocks, 1),), call.accumulate_dtype),))
    if not of.sums:
        return Steps(tuple(steps))
    return reduce.summed(call, steps, len(of.outs), n, blocks)


def _ahead(of: Operands, how: Shares, blocks: int, least: int, asked: int) -> int:
    """How many rows later is one that the L2 is asked for: of more bytes it keeps too few."""
    if how.way == "LANES" or how.threads < least:
        return 0
    if of.sums:
        return blocks if len(of.sums) > 1 or how.threads < _MOST else 0
    return PROCESSORS * min(_MOST // how.threads, asked) if len(of.loads) == 1 else 0


class Planes(NamedTuple):
    """Rows that are whole planes of channels, whose parameters columns are then.

    Attributes
    ----------
    functor : str
        What rows are for, where the op's own functor is for something else.
    size : int
        Elements of a plane.
    groups, channels : int
        Rows of one member of a batch, and planes of a row.
    """

    functor: str
    size: int
    groups: int
    channels: int

    def together(self, lanes: int, width: int) -> int:
        """The logarithm of how many of some lanes join the sums of a plane."""
        return min(max(self.size // width, 1), lanes, _WARP).bit_length() - 1


def whole(call: Call, of: Operands, planes: Planes) -> Step | None:
    """One kernel for rows of planes, each read once; None where a block does not hold one."""
    shape, width, most = of.outs[0].shape, WIDEST // call.row_size, _MOST
    n, rows, lie = shape[of.axis], prod(without(shape, of.axis)), _lie(call, of)
    held = 1 if lie.access == "STEPS" else holds(call, of)
    how = shares(n, width, held, most if lie.access == "VECTORS" else _SINGLE)
    if how.way == "LONG" or rows >= 2**31 or (of.sums and planes.size % width):
        return None
    if how.way == "BLOCK" and lie.access != "VECTORS":
        how = how._replace(way="LONG")
    tuning = call.facts.tuned(TUNINGS)
    ahead = _ahead(of._replace(sums=[]), how, 0, tuning.prefetch_threads, tuning.prefetch_rows)
    room = how.threads * held * len(of.sums) * named(call.accumulate_dtype).itemsize
    step = _rows(call, of, kind_of(call, of), how, lie, -(-rows // how.groups), ahead, planes)
    return step._replace(shared=room)


class Lie(NamedTuple):
    """How the arrays of a problem lie.

    Attributes
    ----------
    walked : list of View
        What has rows: loads, outputs, mask, bias; then what belongs to rows that are losses, then
        the numbers of elements that have random words.
    steps : list of int
        From one element of a row to the next, of these and of the columns.
    dims : list of Dim
        From row to row.
    access : str
        In ``VECTORS``, as ``ELEMENTS``, or in ``STEPS`` from one element to the next.
    """

    walked: list[View]
    steps: list[int]
    dims: list[Dim]
    access: str


def _lie(call: Call, of: Operands) -> Lie:
    shape, axis = of.loads[0].shape, of.axis
    outer = without(shape, axis)
    walked = [*of.loads, *of.outs, *of.masks, *of.biases]
    # A mask or bias of extent 1 is that of all.
    strides = [
        tuple([s if x == y else 0 for s, x, y in zip(v.strides, v.shape, shape, strict=True)])
        for v in walked
    ]
    # One loss of all rows lies beside each, and a label that is not there anywhere.
    shared = (0,) * len(outer)
    labels = [v.strides for v in of.labels] or [shared] * len(of.costs)
    each = [*labels, *[shared if of.reduced else v.strides for v in of.costs]]
    numbered = call.problem.spec.numbers(call.problem.signature)
    each += [without(numbers_of(shape, call.problem.options)[0], axis)] * numbered
    dims = merged(outer, [*[without(s, axis) for s in strides], *each])
    walkable(dims)
    steps = [s[axis] for s in strides] + [v.strides[0] for v in of.columns]
    arrays = len(of.loads) + len(of.outs)
    hidden = arrays + len(of.masks)
    beside = all(s == 1 for s in (*steps[:arrays], *steps[hidden:]))
    # A mask is read one by one.
    vectors = [*range(arrays), *range(hidden, len(walked))]
    numbers = [shape[axis], *(d.strides[k] for d in dims for k in vectors)]
    # Of the narrowest arrays too: copies in bulk are of 16 bytes.
    wide = beside and divisor(numbers, call.elements()) == WIDEST // call.itemsize
    access = "VECTORS" if wide else "ELEMENTS" if beside else "STEPS"
    return Lie(walked, steps, dims, access)


def _rows(
    call: Call,
    of: Operands,
    kind: Kind,
    how: Shares,
    lie: Lie,
    blocks: int,
    ahead: int,
    planes: Planes | None = None,
) -> Step:
    problem, scalars = call.problem, call.problem.spec.codes
    walked, steps, dims, access = lie
    # Sums are delivered by the kernel that adds them up.
    adds = call.adds[: len(of.outs) or 1]
    n, outer = of.loads[0].shape[of.axis], without(of.loads[0].shape, of.axis)
    causal = bool(problem.options.get("causal"))
    left = _CAUSAL * causal + _MASKED * bool(of.masks)
    queries = outer[-1] if causal else 1
    at_most(LONGEST, "rows beside a diagonal", prod(outer) if causal else 0)
    pointers = [v.slot for v in (*of.loads, *of.columns, *of.biases, *of.outs, *of.masks)]
    pointers += [call.workspace()] * bool(of.sums)
    if of.costs:
        pointers.append((of.labels or of.loads)[0].slot)
        pointers.append(call.workspace() if of.added else of.costs[0].slot)
    packer = Packer(True).pointers(len(pointers)).scalars(scalars).add("d", *kind.numbers)
    if of.costs:
        part = elementwise.share(problem, outer) if of.outs else 1.0
        flags = _WIDE_LABELS * (problem.index_dtype == "int64") + _REDUCED * of.reduced
        flags += _WIDE_LOSS * call.is_wide(of.costs[0].slot)
        packer.add("d", part).add("I", flags, 0)
    width, by = WIDEST // call.itemsize, "BY_ROWS" if of.biases else "BY_ELEMENTS"
    if planes and of.columns:
        by = "BY_MIXED_PLANES" if planes.size % width else "BY_PLANES"
        packer.extents(planes.size, planes.groups, code="I")
        packer.add("i", planes.channels, planes.together(how.lanes, width))
    numbered = problem.spec.numbers(problem.signature)
    if numbered:
        packer.add("q", numbers_of(of.loads[0].shape, problem.options)[1])
    packer.add("q", prod(outer), ahead).add("i", n, how.lanes.bit_length() - 1)
    packer.add("i", call.past_caches, 0)
    packer.extents(queries, code="I").add("i", n - queries).add("q", *steps)
    arguments = packer.walk(dims, len(walked) + 2 * len(of.costs) + numbered).done()
    name = planes.functor if planes else call.functor
    functor = f"{name}<{call.accumulate}, {kind.arguments}>"
    last = f", false{call.row_arguments([*of.loads, *of.outs])}" if call.row_tags else ""
    schedule = (
        f"Rows<{functor}, {call.row_type}, {how.way}, {how.held}, {access}, {left}, "
        f"{bits(adds)}, {by}{', true' * len(of.costs)}{last}>"
    )
    tags = (how.way.lower(), kind.label, access.lower())
    left_out = [name for bit, name in ((_CAUSAL, "causal"), (_MASKED, "masked")) if left & bit]
    single = access != "VECTORS" or kind.numbers or of.crowded or (how.way == "LONG" and of.sums)
    bound = THREADS if how.way == "LANES" else _SINGLE if single else _MOST
    entry = call.entry(
        schedule,
        len(arguments),
        *tags,
        *left_out,
        *[by.lower()] * (by != "BY_ELEMENTS"),
        *["few"] * (access != "STEPS" and how.held < holds(call, of)),
        *added(adds),
        *call.row_tags,
        threads=bound,
    )
    front = [(slot, 0) for slot in pointers]
    return Step(entry, (blocks, 1), arguments, front, scalars, fewer=how.threads)
