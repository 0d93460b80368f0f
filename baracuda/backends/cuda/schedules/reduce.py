"""Sums of what a functor makes of each element, in two stages and a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from baracuda.backends.cuda.geometry import Packer
from baracuda.backends.cuda.launch_plan import THREADS, WIDEST, Call, Step, Steps, delivered
from baracuda.backends.cuda.schedules import elementwise
from baracuda.backends.cuda.schedules.elementwise import LAYOUTS, operands_of, share, way

Place: TypeAlias = tuple[int, int]
"""An array of a call, and how many bytes into it."""
# Lanes of a warp, and threads of the kernels that add up what blocks leave.
_WARP, _ADDERS = 32, 1024
# Flags of cuda_src/common/total.cuh.
_DELIVERS, _WIDE_SUM = 1, 2


class Tuning(NamedTuple):
    """What sums of elements take of an architecture.

    Attributes
    ----------
    vectors : int
        Vectors of each input in flight in a thread.
    rounds : int
        How often a thread loads so many, at least.
    sums : int
        Sums that the last block adds up, at most: it waits less for few.
    """

    vectors: int
    rounds: int
    sums: int


SM_90 = Tuning(vectors=2, rounds=4, sums=4096)
TUNINGS = {"sm_90": SM_90}


def plan(call: Call) -> Steps:
    """Two kernels, or one of one block, or one elementwise where elements keep what they have."""
    problem = call.problem
    if problem.signature.outputs[0].terms:
        return elementwise.plan(call)
    shape, inputs, (out,) = operands_of(call)
    over = way(call, shape, inputs)
    tuning = call.facts.tuned(TUNINGS)
    each, depth = THREADS * tuning.vectors, tuning.vectors
    work = over.items + over.tail
    rounds = max(tuning.rounds, -(-work // (each * tuning.sums)))
    blocks = -(-work // (each * rounds))
    scalars, itemsize = problem.spec.codes, call.itemsize
    # One block has the sum of all, and delivers it.
    how = (_DELIVERS | _WIDE_SUM * call.is_wide(out.slot)) * (blocks == 1)
    part = share(problem, shape)
    packer = over.packer().pointers(len(inputs) + 2).scalars(scalars).add("d", part)
    packer.indices(over.items, over.tail, rounds, how)
    arguments, integer = over.pack(packer), packer.type
    functor = call.functor + call.form_end
    schedule = f"Totals<{functor}, {call.type}, {over.width}, {depth}, {over.kind}, {integer}>"
    ends = (call.form_end,) if call.form_end else ()
    tags = ("totals", *ends, LAYOUTS[over.kind], f"v{over.width}", integer)
    entry = call.entry(schedule, len(arguments), *tags)
    # What a kernel has no use for is the address of something else.
    sums, to = (out.slot if how else call.workspace(), 0), (out.slot, 0)
    front = [*[(x.slot, x.offset * itemsize) for x in inputs], sums, to]
    first = [Step(entry, (blocks, 1), arguments, front, scalars)] if blocks else []
    if how:
        return Steps(tuple(first))
    last = total(call, blocks, part, sums, sums, to)
    return Steps((*first, last), (((max(blocks, 1),), call.accumulate_dtype),))


def total(
    call: Call, count: int, share: float, sums: Place, counts: Place, out: Place, parts: int = 0,
    weighted: bool = False,
) -> Step:  # fmt: skip
    """Adds up what `count` blocks left: a share of that, or one by the number in `parts` counts.

    Rows that are weighted have sums of weights there.
    """
    wide = call.is_wide(out[0])
    packer = Packer(False).pointers(3).add("d", share).add("i", count, parts, wide, 0)
    arguments = packer.done()
    kind, tags = call.type, ("total", *["weighted"] * weighted)
    kind = f"{kind}, {call.accumulate}" if weighted else kind
    entry = call.entry(f"Total<{kind}>", len(arguments), *tags, threads=_ADDERS)
    return Step(entry, (1, 1), arguments, [sums, counts, out])


def summed(call: Call, steps: Sequence[Step], first: int, n: int, blocks: int) -> Steps:
    """Kernels of which `blocks` blocks leave sums in a workspace, and what adds these up.

    As `sum_rows` has it; one block leaves the sums of an output of their type there.
    """
    slot, numbers = call.workspace(), range(first, len(call.outs))
    out, dtype = call.out(first), call.problem.outputs[first].dtype
    whole = blocks == 1 == len(numbers) and out.strides == (1,) and call.alignment == WIDEST
    if whole and dtype == call.accumulate_dtype and not call.how(numbers):
        front = [[(out.slot if x == slot else x, at) for x, at in step.front] for step in steps]
        pairs = zip(steps, front, strict=True)
        return Steps(tuple([step._replace(front=places) for step, places in pairs]))
    last = sum_rows(call, first, n, blocks, slot)
    workspace = (max(blocks, 1), len(numbers), n), call.accumulate_dtype
    return Steps((*steps, last), (workspace,))


def sum_rows(call: Call, first: int, n: int, blocks: int, slot: int) -> Step:
    """Adds up what `blocks` blocks left in a workspace for the outputs from the `first` on.

    These are sums of `n` elements of each block.
    """
    numbers = range(first, len(call.outs))
    sums, many, how = [call.out(i) for i in numbers], len(numbers), call.how(numbers)
    packer = Packer(True).pointers(1 + many).add("q", *[v.strides[0] for v in sums])
    arguments = packer.add("i", n, blocks).done()
    schedule = f"SumRows<{call.column_type}, {many}, {how}>"
    tags = ("sum_rows", many, *delivered(how, many), *call.column_tags)
    entry = call.entry(schedule, len(arguments), *tags, threads=_ADDERS)
    front = [(slot, 0), *[(v.slot, 0) for v in sums]]
    return Step(entry, (-(-n * many // _WARP), 1), arguments, front)
