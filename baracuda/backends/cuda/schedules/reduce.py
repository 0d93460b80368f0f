"""Sums of what a functor makes of each element, in two stages and a fixed order."""

from __future__ import annotations

from typing import TypeAlias

from baracuda.backends.cuda.geometry import Packer
from baracuda.backends.cuda.launch_plan import THREADS, Call, Step, Steps, delivered
from baracuda.backends.cuda.schedules import elementwise
from baracuda.backends.cuda.schedules.elementwise import LAYOUTS, operands_of, share, way

Place: TypeAlias = tuple[int, int]
"""An array of a call, and how many bytes into it."""
# Vectors of each input in flight per thread, and at least how often a thread does that.
_DEPTH, _ROUNDS = 2, 4
# Sums that the last block adds up, at most, and its threads: whoever has few waits less.
MOST, _ADDERS = 4096, 1024
_WARP = 32


def plan(call: Call) -> Steps:
    """Two kernels, or one elementwise where every element keeps what it has."""
    problem = call.problem
    if problem.signature.outputs[0].terms:
        return elementwise.plan(call)
    shape, inputs, (out,) = operands_of(call)
    over = way(call, shape, inputs)
    each = THREADS * _DEPTH
    work = over.items + over.tail
    rounds = max(_ROUNDS, -(-work // (each * MOST)))
    blocks = -(-work // (each * rounds))
    scalars, itemsize = problem.spec.codes, call.itemsize
    packer = over.packer().pointers(len(inputs) + 1).scalars(scalars)
    packer.indices(over.items, over.tail, rounds, 0)
    arguments, integer = over.pack(packer), packer.type
    schedule = (
        f"Totals<{call.functor}, {call.type}, {over.width}, {_DEPTH}, {over.kind}, {integer}>"
    )
    entry = call.entry(
        schedule, len(arguments), "totals", LAYOUTS[over.kind], f"v{over.width}", integer
    )
    sums = (call.workspace(), 0)
    front = [*[(x.slot, x.offset * itemsize) for x in inputs], sums]
    first = [Step(entry, (blocks, 1), arguments, front, scalars)] if blocks else []
    last = total(call, blocks, share(problem, shape), sums, sums, (out.slot, 0))
    return Steps((*first, last), (((max(blocks, 1),), call.accumulate_dtype),))


def total(
    call: Call, count: int, share: float, sums: Place, counts: Place, out: Place, parts: int = 0
) -> Step:
    """Adds up what `count` blocks left: a share of that, or one by the number in `parts` counts."""
    wide = call.is_wide(out[0])
    packer = Packer(False).pointers(3).add("d", share).add("i", count, parts, wide, 0)
    arguments = packer.done()
    entry = call.entry(f"Total<{call.type}>", len(arguments), "total", threads=_ADDERS)
    return Step(entry, (1, 1), arguments, [sums, counts, out])


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
