"""Divergences of rows of logits from a teacher's: both on chip, losses added up by blocks."""

from __future__ import annotations

import math
from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Packer, View, at_most, merged
from baracuda.backends.cuda.launch_plan import THREADS, Call, Step, Steps, flag
from baracuda.backends.cuda.schedules import cross_entropy, reduce, rows
from baracuda.declaration.backend import Refusal
from baracuda.layouts import Shape

# Flags of cuda_src/kl_div.cu.
_REDUCED, _EQUAL_SHARES, _WIDE_LOSS, _WEIGHTED, _WIDE_WEIGHT, _GIVEN, _WIDE_DLOSS = (
    1 << i for i in range(7)
)


class Operands(NamedTuple):
    """The arrays of a problem, by what they are to a row.

    Attributes
    ----------
    logits, teacher : View
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
    logits, teacher = (call.view(p.name) for p in form.inputs if p.names == row)
    small = {spec.role(p.name).wide: call.view(p.name) for p in form.inputs if p.names != row}
    outs = {p.names == row: call.out(i) for i, p in enumerate(form.outputs)}
    return Operands(
        logits, teacher, small.get("cotangent"), small.get("parameter"), outs.get(True),
        outs.get(False),
    )  # fmt: skip


def plan(call: Call) -> Steps:
    """One kernel over all rows; before it the sum of their weights, after it that of losses."""
    of, reduction = operands(call), call.problem.options["reduction"]
    logits, weight = of.logits, of.weight
    *outer, n = logits.shape
    if not n:
        raise Refusal("has no kernel for rows of no classes")
    at_most(rows.LONGEST, "classes", n)
    flat, count, small = (0,) * len(outer), prod(outer), of.loss or of.dloss
    lie = [v.strides for v in (logits, of.teacher, of.dlogits or logits)]
    lie.append(small.strides if small and reduction == "none" else flat)
    lie.append(weight.strides if weight else flat)
    targets = cross_entropy.Operands(logits, of.teacher, None, of.dlogits, None, None)
    over = cross_entropy.way(call, targets, len(outer), lie, True)
    blocks, added = -(-count // over.how.groups), reduction != "none" and of.loss is not None
    parts, tuning = 0, call.facts.tuned(cross_entropy.TUNINGS)
    if weight and reduction == "mean" and count:
        parts = min(max(-(-count // tuning.counter_rows), 1), tuning.counters)

    # What a kernel has no use for is the address of something else.
    workspaces: list[tuple[Shape, str]] = []
    sums = shares = (logits.slot, 0)
    if added:
        sums = (call.workspace(), 0)
        workspaces.append(((max(blocks, 1),), call.accumulate_dtype))
    if parts:
        shares = (call.workspace(len(workspaces)), 0)
        workspaces.append(((parts,), call.accumulate_dtype))
    steps = []
    if parts and weight:
        steps.append(_shares(call, weight, count, parts, shares))
    if count:
        steps.append(_rows(call, of, over, parts, sums, shares))
    if added and of.loss:
        equal = 1 / count if count else math.nan
        share = equal if reduction == "mean" and not parts else 1.0
        out = (of.loss.slot, 0)
        steps.append(reduce.total(call, blocks, share, sums, shares, out, parts, parts > 0))
    return Steps(tuple(steps), tuple(workspaces))


def _rows(
    call: Call,
    of: Operands,
    over: cross_entropy.Way,
    parts: int,
    sums: reduce.Place,
    shares: reduce.Place,
) -> Step:
    options, scalars, how = call.problem.options, call.problem.spec.codes, over.how
    *outer, n = of.logits.shape
    count, reduction, kind = prod(outer), options["reduction"], options["kind"]
    views = (of.logits, of.teacher, of.dloss, of.weight, of.dlogits, of.loss)
    front = [*[((x or of.logits).slot, 0) for x in views], sums, shares]
    flags = _REDUCED * (reduction != "none")
    flags |= _EQUAL_SHARES * (reduction == "mean" and of.weight is None)
    flags |= _WEIGHTED * (of.weight is not None) | _GIVEN * (of.dloss is not None)
    for x, wide in ((of.loss, _WIDE_LOSS), (of.weight, _WIDE_WEIGHT), (of.dloss, _WIDE_DLOSS)):
        flags |= wide * (x is not None and call.is_wide(x.slot))
    logits, dlogits, teacher = over.steps
    packer = Packer(True).pointers(len(front)).add("d", *[0.0] * len(scalars))
    packer.add("q", count, logits, teacher, dlogits)
    packer.add("i", n, how.lanes.bit_length() - 1, over.rounds, over.kept, parts).add("I", flags)
    arguments = packer.walk(over.dims, 5).done()
    schedule = (
        f"{call.functor}<{call.type}, {kind.upper()}, {how.way}, {how.held}, {flag(over.wide)}, "
        f"{flag(call.add)}, {over.cluster}>"
    )
    tags = [how.way.lower(), "wide" if over.wide else "strided"]
    tags += [f"clusters_of_{over.cluster}"] * (over.cluster > 1) + [kind] + ["add"] * call.add
    bound = over.most if how.way in ("BLOCK", "LONG") else THREADS
    entry = call.entry(schedule, len(arguments), *tags, threads=bound, cluster=over.cluster)
    grid = (-(-count // how.groups) * over.cluster, 1)
    return Step(entry, grid, arguments, front, scalars, over.shared, how.threads)


def _shares(call: Call, weight: View, count: int, parts: int, shares: reduce.Place) -> Step:
    """What the weights of all rows are, in parts."""
    packer = Packer(True).pointers(2).add("q", count, -(-count // parts))
    packer.add("I", call.is_wide(weight.slot), 0)
    arguments = packer.walk(merged(weight.shape, [weight.strides]), 1).done()
    entry = call.entry(f"RowShares<{call.type}>", len(arguments), "shares", threads=1024)
    return Step(entry, (parts, 1), arguments, [(weight.slot, 0), shares])
