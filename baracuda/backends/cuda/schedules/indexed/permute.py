"""Rows of tokens, and the rows that they are sent to: taken back as sums, or spread out.

The first is one kernel. For the second the index is inverted, which tells how many tokens a row
has: one for most, or for all. These are written by who reads the token, so that it is read once.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Packer, View, at_most, divisor
from baracuda.backends.cuda.launch_plan import MOST_BLOCKS, WIDEST, Call, Step, Steps, blocks, flag
from baracuda.backends.cuda.schedules.indexed.tiles import Lanes
from baracuda.backends.cuda.schedules.indexed.work import Work
from baracuda.declaration.dtypes import named
from baracuda.layouts import Shape

# cuda_src/indexed/permute.cuh: rows of a warp that sees to those of no token or of several.
_ROWS, _WARP, _THREADS = 8, 32, 256
# Choices of a token that are few. Of others, so many are under way together.
_FEW = 2
_JOINED, _SPREAD = 4, 8


class Sent(NamedTuple):
    """The arrays of a call by their roles: an index, its weights, and rows in their order."""

    at: View
    weights: View | None
    rows: tuple[View, ...]


def join(call: Call) -> Steps:
    """The row of each token from those that it was sent to."""
    out = call.out()
    tokens, columns = out.shape[0], prod(out.shape[1:])
    if not tokens or not columns:
        return Steps((), variant="join")
    work = Work(call)
    index, weights, (rows,) = _sent(work)
    made = work.target(out, call.add)
    access, choices = _access(call, columns), index.shape[1]
    # A thread has as many loads under way for few choices as for others.
    many, units = (_FEW, _JOINED // _FEW) if choices <= _FEW else (_JOINED, 1)
    across = -(-columns // (_unit(call) * units))
    items = tokens * across
    at_most(MOST_BLOCKS, "units of 16 bytes of all rows", items)
    arguments = Packer(False).pointers(4).add("Q", call.listener).add("q", rows.shape[0])
    arguments.add("q", *index.strides, *(weights or index).strides)
    arguments.add("I", call.ticket, choices, columns, items)
    arguments.extents(across, code="I").add("I", _wide(call))
    form = (many, units)
    step = _step(work, "JoinRows", weights, made, arguments, blocks(items), access, form)
    front = [(v.slot, 0) for v in (rows, index, weights or rows, made)]
    work.steps.append(step._replace(front=front))
    work.deliver(made, out, call.add)
    return work.done("join")


def spread(call: Call) -> Steps:
    """Each row from the tokens that are sent there; and the products of both."""
    out, adds = call.out(), call.adds
    extent, columns = out.shape[0], prod(out.shape[1:])
    work = Work(call)
    index, weights, (tokens, *others) = _sent(work)
    if not others and not extent * columns:
        return Steps((), variant="spread")
    line = work.line(call.problem.spec.indices[0])
    steps = (columns, line.strides[0], columns)
    lanes = Lanes(True, [], columns, line.shape[0], extent, steps, 0, (tokens, line, tokens))
    work.invert(lanes, ahead=False)
    order, offsets, _ = work.lists
    made, cut = work.target(out, adds[0]), work.cut
    products = call.out(1) if others else made
    entries: list[Shape] = [x.strides for x in (index, weights or index)]
    arguments = Packer(False).pointers(8).add("q", *entries[0], *entries[1])
    arguments.add("q", *(products.strides if others else entries[0]))
    many = index.shape[0] if line.shape[0] else 0
    arguments.add("I", line.shape[0], extent, cut.slots, cut.shift, many, columns)
    arguments.extents(index.shape[1], code="I").add("I", _wide(call), adds[-1], 0)
    # By the problem alone: the order of a sum depends on it.
    threads = min(-(-columns // _unit(call) // _WARP) * _WARP, _THREADS)
    threads = max(threads, _WARP)
    grid = many + -(-extent // (threads // _WARP * _ROWS))
    access, form = _access(call, columns), (_FEW if index.shape[1] <= _FEW else _SPREAD,)
    step = _step(work, "SpreadRows", weights, made, arguments, grid, access, form)
    arrays = (tokens, *(others or [tokens]), index, weights or tokens, order, offsets, made)
    front = [(v.slot, 0) for v in (*arrays, products)]
    work.steps.append(step._replace(front=front, fewer=threads))
    work.deliver(made, out, adds[0])
    return work.done("spread")


def _sent(work: Work) -> Sent:
    """Rows lie side by side; an index and its weights as they are."""
    spec, given = work.call.problem.spec, [x.name for x in work.call.problem.given]
    weights = [n for n in given if spec.role(n).wide]
    rows = [n for n in given if n not in spec.discrete and n not in weights]
    view = work.call.view
    of_weights = view(weights[0]) if weights else None
    return Sent(view(spec.indices[0]), of_weights, tuple([work.given(n) for n in rows]))


def _unit(call: Call) -> int:
    """Elements of a row that a thread takes."""
    return WIDEST // call.itemsize


def _access(call: Call, columns: int) -> int:
    return divisor([columns], call.elements())


def _wide(call: Call) -> int:
    """Whether weights have the accumulate type."""
    return int(call.problem.dtype_of("parameter") != call.problem.dtype)


def _step(
    work: Work, name: str, weights: View | None, made: View, arguments: Packer, grid: int,
    access: int, form: tuple[int, ...],
) -> Step:  # fmt: skip
    call, packed = work.call, arguments.done()
    index, own = named(call.problem.index_dtype or "").short, call.problem.dtype
    beside = made.slot >= call.workspace()
    to = named(work.wide if beside else own).short
    more = ", ".join(map(str, form))
    kind = f"{name}<{call.type}, {index}, {to}, {access}, {flag(weights is not None)}, {more}>"
    tags = ("rows", index, f"a{access}", *["few"] * (form[0] == _FEW), *["wide"] * beside)
    return Step(call.entry(kind, len(packed), *tags), (grid, 1), packed, ())
