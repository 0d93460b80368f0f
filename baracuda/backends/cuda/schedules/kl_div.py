"""Divergences of rows of logits from a teacher's: both on chip, losses added up by blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Packer, View, at_most, merged
from baracuda.backends.cuda.launch_plan import THREADS, Call, Step, Steps, flag
from baracuda.backends.cuda.schedules import cross_entropy, reduce, rows
from baracuda.declaration.backend import Refusal
from baracuda.layouts import Shape

# Flags of cuda_src/common/divergence_rows.cuh.
_REDUCED, _EQUAL_SHARES, _WIDE_LOSS, _WEIGHTED, _WIDE_WEIGHT, _GIVEN, _WIDE_DLOSS = (
    1 << i for i in range(7)
)


class Operands(NamedTuple):
    """The arrays of a problem, by what they are to a row.

    Attributes
    ----------
    logits, teacher : View
        Of the same axes, or those of the teacher's classes: the probabilities of these.
    dloss, weight, dlogits, loss : View or None
        Of each row, but for `dlogits`; one `dloss` or `loss` of all where they are reduced.
    """

    logits: View
    teacher: View
    dloss: View | None
    weight: View | None
    dlogits: View | None
    loss: View | None


def operands(call: Call) -> Operands:
    """Which array is what."""
    spec, form, row = call.problem.spec, call.problem.signature, call.row.names
    values = [p for p in form.inputs if p.name not in spec.indices]
    small = {spec.role(p.name).wide: call.view(p.name) for p in values if p.names < row}
    logits, teacher = (call.view(p.name) for p in values if not p.names < row)
    outs = {p.names == row: call.out(i) for i, p in enumerate(form.outputs)}
    return Operands(
        logits, teacher, small.get("cotangent"), small.get("parameter"), outs.get(True),
        outs.get(False),
    )  # fmt: skip


class Leaves(NamedTuple):
    """What the kernel over all rows finds before it, and leaves to that behind it.

    Attributes
    ----------
    sums, shares : Place
        Workspaces of its losses by blocks, and of the weights of all rows in parts; something else
        where there is no use for them.
    parts : int
        How many of the latter there are.
    """

    sums: reduce.Place
    shares: reduce.Place
    parts: int


def plan(call: Call) -> Steps:
    """One kernel over all rows; before it the sum of their weights, after it that of losses."""
    of, kind = operands(call), call.problem.options["kind"]
    if not of.logits.shape[-1]:
        raise Refusal("has no kernel for rows of no classes")
    over = way(call, of, of.teacher, of.teacher.strides)

    def rows_step(left: Leaves) -> Step:
        packer = Packer(True).pointers(8).add("d", *[0.0] * len(call.problem.spec.scalars))
        logits, dlogits, teacher = over.steps
        packer.add("q", _count(of), logits, teacher, dlogits)
        packer.add("i", of.logits.shape[-1], over.how.lanes.bit_length() - 1)
        packer.add("i", over.rounds, over.kept, left.parts).add("I", flags(call, of))
        arguments = packer.walk(over.dims, 5).done()
        views = (of.logits, of.teacher, of.dloss, of.weight, of.dlogits, of.loss)
        front = [*[((x or of.logits).slot, 0) for x in views], left.sums, left.shares]
        return step(call, of, over, arguments, front, kind)

    return steps(call, of, over, rows_step)


def way(
    call: Call, of: Operands, target: View, lies: Shape, *more: Shape, keeps: bool = True
) -> cross_entropy.Way:
    """How rows are shared, and walked over: logits, what lies so beside them, dlogits and others.

    These are the loss or its cotangent, the weight of rows, and more. `keeps` says that rows are
    looked at more than once.
    """
    *outer, n = of.logits.shape
    at_most(rows.LONGEST, "classes", n)
    flat, small = (0,) * len(outer), of.loss or of.dloss
    each = small if call.problem.options["reduction"] == "none" else None
    lie = [of.logits.strides, lies, (of.dlogits or of.logits).strides]
    lie += [x.strides if x else flat for x in (each, of.weight)]
    targets = cross_entropy.Operands(of.logits, target, None, of.dlogits, None, None)
    return cross_entropy.way(call, targets, len(outer), [*lie, *more], keeps)


def steps(
    call: Call,
    of: Operands,
    over: cross_entropy.Way,
    rows_step: Callable[[Leaves], Step],
    *more: tuple[Shape, str],
) -> Steps:
    """The kernel over all rows, and what is before and after it; it has `more` workspaces first."""
    weight, count, reduction = of.weight, _count(of), call.problem.options["reduction"]
    blocks, added = -(-count // over.how.groups), reduction != "none" and of.loss is not None
    parts, tuning = 0, call.facts.tuned(cross_entropy.TUNINGS)
    if weight and reduction == "mean" and count:
        parts = min(max(-(-count // tuning.counter_rows), 1), tuning.counters)

    # What a kernel has no use for is the address of something else.
    workspaces = [*more]
    sums = shares = (of.logits.slot, 0)
    if added:
        sums = (call.workspace(len(workspaces)), 0)
        workspaces.append(((max(blocks, 1),), call.accumulate_dtype))
    if parts:
        shares = (call.workspace(len(workspaces)), 0)
        workspaces.append(((parts,), call.accumulate_dtype))
    found = []
    if parts and weight:
        found.append(_shares(call, weight, count, parts, shares))
    if count:
        found.append(rows_step(Leaves(sums, shares, parts)))
    if added and of.loss:
        equal = 1 / count if count else math.nan
        share = equal if reduction == "mean" and not parts else 1.0
        out = (of.loss.slot, 0)
        found.append(reduce.total(call, blocks, share, sums, shares, out, parts, parts > 0))
    return Steps(tuple(found), tuple(workspaces))


def _count(of: Operands) -> int:
    """How many rows there are."""
    return prod(of.logits.shape[:-1])


def flags(call: Call, of: Operands) -> int:
    """Those of all divergences of rows."""
    reduction: str = call.problem.options["reduction"]
    found = _WEIGHTED * (of.weight is not None)
    found |= _REDUCED * (reduction != "none") | _GIVEN * (of.dloss is not None)
    found |= _EQUAL_SHARES * (reduction == "mean" and of.weight is None)
    for x, wide in ((of.loss, _WIDE_LOSS), (of.weight, _WIDE_WEIGHT), (of.dloss, _WIDE_DLOSS)):
        found |= wide * (x is not None and call.is_wide(x.slot))
    return found


def step(
    call: Call,
    of: Operands,
    over: cross_entropy.Way,
    arguments: bytes,
    front: list[reduce.Place],
    kind: str = "",
) -> Step:
    """The kernel over all rows; of the kinds of a divergence it has that one."""
    how = over.how
    schedule = (
        f"{call.functor}<{call.type}{f', {kind.upper()}' * bool(kind)}, {how.way}, {how.held}, "
        f"{flag(over.wide)}, {flag(call.add)}, {over.cluster}>"
    )
    tags = [how.way.lower(), "wide" if over.wide else "strided"]
    tags += [f"clusters_of_{over.cluster}"] * (over.cluster > 1)
    tags += [kind] * bool(kind) + ["add"] * call.add
    bound = over.most if how.way in ("BLOCK", "LONG") else THREADS
    entry = call.entry(schedule, len(arguments), *tags, threads=bound, cluster=over.cluster)
    grid = (-(-_count(of) // how.groups) * over.cluster, 1)
    scalars = call.problem.spec.codes
    return Step(entry, grid, arguments, front, scalars, over.shared, how.threads)


def _shares(call: Call, weight: View, count: int, parts: int, shares: reduce.Place) -> Step:
    """What the weights of all rows are, in parts."""
    packer = Packer(True).pointers(2).add("q", count, -(-count // parts))
    packer.add("I", call.is_wide(weight.slot), 0)
    arguments = packer.walk(merged(weight.shape, [weight.strides]), 1).done()
    entry = call.entry(f"RowShares<{call.type}>", len(arguments), "shares", threads=1024)
    return Step(entry, (parts, 1), arguments, [(weight.slot, 0), shares])
