"""Rows of a table joined bag by bag, and the gradients.

The gradient of the table is a sum by lists of the shares that entries have in the gradients of
their bags. A share that is rounded nowhere else is of the accumulate dtype.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Packer, View, at_most, divisor
from baracuda.backends.cuda.launch_plan import MOST_BLOCKS, WIDEST, Call, Step, Steps, blocks, flag
from baracuda.backends.cuda.schedules.indexed.lists import Sums
from baracuda.backends.cuda.schedules.indexed.tiles import Lanes
from baracuda.backends.cuda.schedules.indexed.work import Work
from baracuda.declaration.dtypes import named

# Threads of a block, and of a warp, that has a bag.
_THREADS, _WARP = 256, 32
# By the reduction: what joins rows, and how a gradient is shared.
_WAYS = {
    "sum": ("Whole", "SHARE_ALL"), "mean": ("Averaged", "SHARE_EVENLY"),
    "max": ("Highest", "SHARE_TIES"),
}  # fmt: skip


class Bags(NamedTuple):
    """What kernels are told of bags.

    Attributes
    ----------
    front : tuple of View
        The pointers that they begin with: ids, and offsets where there are some.
    weights : View or None
    values : list of View
        The arrays of rows, their elements side by side, in their order.
    bags, columns, access : int
        How many there are; elements of a row; elements of an access.
    """

    front: tuple[View, View]
    weights: View | None
    values: list[View]
    bags: int
    columns: int
    access: int


def _bags(work: Work) -> Bags:
    call, spec = work.call, work.call.problem.spec
    ids = call.view(spec.indices[0])
    some = {n: v for n in spec.optional if (v := call.given(n)) is not None}
    offsets = next((v for n, v in some.items() if n in spec.integers), None)
    weights = next((v for n, v in some.items() if n not in spec.integers), None)
    always = [n for n in spec.arrays if n not in spec.optional and n not in spec.discrete]
    values = [work.given(n) for n in always]
    columns = values[0].shape[1]
    bags = ids.shape[0] if offsets is None else offsets.shape[0]
    units = bags * max(-(-columns // _unit(call)), 1)
    at_most(MOST_BLOCKS, "entries, and units of 16 bytes of all bags", max(units, prod(ids.shape)))
    front = (ids, ids if offsets is None else offsets)
    return Bags(front, weights, values, bags, columns, divisor([columns], call.elements()))


def _unit(call: Call) -> int:
    """Elements of a row that a thread takes."""
    return WIDEST // call.itemsize


def _sizes(packer: Packer, call: Call, bags: Bags) -> None:
    """BagSizes of indexed/bags.cuh."""
    problem, (ids, offsets) = call.problem, bags.front
    apart = len(ids.shape) == 1
    skipped = problem.skipped_by(problem.spec.indices[0])
    packer.add("q", *_entries(ids), *_entries(bags.weights or ids))
    packer.add("q", offsets.strides[0], problem.extent_of(problem.spec.indices[0]))
    packer.add("q", -1 if skipped is None else skipped)
    wide = [_wide(call, view) for view in (ids, offsets)]
    packer.add("I", bags.bags, ids.shape[-1], apart, *wide, bags.columns)


def _entries(view: View) -> tuple[int, int]:
    """Strides from a bag to the next, and from an entry to the next."""
    return (0, view.strides[0]) if len(view.shape) == 1 else (view.strides[0], view.strides[1])


def _wide(call: Call, view: View) -> bool:
    return named(call.problem.given[view.slot].dtype).itemsize == 8


def _launch(
    work: Work, name: str, kind: str, packer: Packer, grid: int, *views: View, tags: str = ""
) -> None:
    arguments = packer.done()
    entry = work.call.entry(f"{name}<{kind}>", len(arguments), name.lower(), tags)
    work.steps.append(Step(entry, (grid, 1), arguments, [(v.slot, 0) for v in views]))


def plan(call: Call) -> Steps:
    """Each bag from its rows."""
    out, (functor, _) = call.out(), _WAYS[call.problem.options["reduction"]]
    if 0 in out.shape:
        return Steps((), variant="bags")
    work = Work(call)
    bags = _bags(work)
    across = -(-bags.columns // _unit(call))
    made, weighted = work.target(out, call.add), bags.weights is not None
    packer = Packer(False).pointers(5).add("Q", call.listener)
    _sizes(packer, call, bags)
    packer.add("I", call.ticket, bags.bags * across).extents(across, code="I").add("I", 0)
    to = work.wide if made is not out else call.problem.dtype
    kind = f"{call.type}, {named(to).short}, {bags.access}, {flag(weighted)}, {functor}"
    tags = _tags(functor, bags, weighted, made is not out)
    views = (*bags.front, bags.values[0], bags.weights or bags.values[0], made)
    _launch(work, "SumBags", kind, packer, blocks(bags.bags * across), *views, tags=tags)
    work.deliver(made, out, call.add)
    return work.done("bags")


def _tags(functor: str, bags: Bags, weighted: bool, wide: bool) -> str:
    more = [*["weighted"] * weighted, *["wide"] * wide]
    return "_".join([functor.lower().replace("_", ""), f"a{bags.access}", *more])


def backward(call: Call) -> Steps:
    """The shares of entries, then the rows of the table, each from the list of its entries."""
    how, work = call.problem.options["reduction"], Work(call)
    bags, adds = _bags(work), call.adds
    dy, table, y = bags.values
    out, ids, weighted = call.out(0), bags.front[0], bags.weights is not None
    many, across = prod(ids.shape) if bags.bags else 0, -(-bags.columns // _unit(call))
    own = call.problem.dtype
    # Of a sum without weights, shares are rows of the gradient; of a mean, there is one for a bag.
    plain, same = how == "sum" and not weighted, how != "max" and not weighted
    dtype = own if plain else work.wide
    if weighted and 0 not in ids.shape:
        # Entries of no bag have a product of nothing.
        _dots(work, bags if bags.bags else bags._replace(bags=1, columns=0), adds[1])
    if 0 in out.shape:
        return work.done("bags")
    line = work.line(call.problem.spec.indices[0])._replace(shape=(many,))
    rows = max(bags.bags if same else many, 1)
    shares = dy if plain else work.room((rows, bags.columns), dtype)
    if many and not plain:
        packer = Packer(False).pointers(7)
        _sizes(packer, call, bags)
        packer.add("I", bags.bags * across, 0).extents(across, code="I")
        sharing = _WAYS[how][1]
        kind = f"{call.type}, {named(dtype).short}, {bags.access}, {flag(weighted)}, {sharing}"
        tags = _tags(sharing, bags, weighted, dtype != own)
        views = (*bags.front, dy, table, y, bags.weights or dy, shares)
        _launch(work, "ShareBags", kind, packer, blocks(bags.bags * across), *views, tags=tags)
    made = work.target(out, adds[0])
    to = own if made is out else work.wide
    steps = (bags.columns, line.strides[0], bags.columns)
    lanes = Lanes(True, [], bags.columns, many, out.shape[0], steps, 0, (shares, line, made))
    work.invert(lanes, ahead=False)
    if same and many:
        _bags_of_entries(work, bags, many)
    work.add_up(lanes, Sums(dtype, to=to, tags=(named(dtype).short,)))
    work.deliver(made, out, adds[0])
    return work.done("bags")


def _bags_of_entries(work: Work, bags: Bags, many: int) -> None:
    """The lists name the bags of their entries."""
    order, ends, _ = work.lists
    packer = Packer(False).pointers(4)
    _sizes(packer, work.call, bags)
    arguments = packer.add("I", work.cut.slots << work.cut.shift, 0).done()
    entry = work.call.entry("BagsOfEntries", len(arguments), "bagsofentries")
    front = [(v.slot, 0) for v in (*bags.front, order, ends)]
    work.steps.append(Step(entry, (blocks(many), 1), arguments, front))


def _dots(work: Work, bags: Bags, add: bool) -> None:
    """The gradient of the weights."""
    call, (dy, table, _) = work.call, bags.values
    out = call.out(1)
    packer = Packer(False).pointers(5)
    _sizes(packer, call, bags)
    packer.add("q", *_entries(out))
    kind = f"{call.type}, {bags.access}, {flag(add)}"
    tags = "_".join([f"a{bags.access}", *["add"] * add])
    grid = -(-bags.bags // (_THREADS // _WARP))
    _launch(work, "DotBags", kind, packer, grid, *bags.front, dy, table, out, tags=tags)
