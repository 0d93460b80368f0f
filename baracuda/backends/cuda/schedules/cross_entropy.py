"""Cross entropy: a row of logits on chip, one look at its target, losses added up by blocks.

A soft target is a row beside that of the logits: it has their axes.
"""

from __future__ import annotations

import math
from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Dim, Packer, View, at_most, divisor, merged, walkable
from baracuda.backends.cuda.launch_plan import THREADS, WIDEST, Call, Step, Steps, flag
from baracuda.backends.cuda.schedules import reduce, rows
from baracuda.declaration.backend import Refusal
from baracuda.layouts import Shape

# Bytes by which each block of a cluster tells the others of its part.
_TOLD = 48
# Run-time values of the kernel, the first of which an op has.
_SCALARS = 3
# Bytes of shared memory that are not for logits.
_FIXED = 4 << 10
# Flags of cuda_src/cross_entropy.cu.
_WIDE_TARGET, _REDUCED, _EQUAL_SHARES, _WIDE_LOSS = 1, 2, 4, 8
_GIVEN, _WIDE_DLOSS, _WIDE_WEIGHT, _WIDE_TOP = 16, 32, 64, 128


class Tuning(NamedTuple):
    """What cross entropy takes of an architecture.

    Attributes
    ----------
    vectors, threads : dict of int to int
        Vectors of a row that a thread holds, and threads of the largest block, by the bytes of an
        element.
    spreads : tuple of (int, int)
        How a row may be spread, in order of preference: blocks of the cluster that has it, and how
        many of these blocks a multiprocessor has at once.
    counters : int
        Blocks that count targets, at most: every block adds up what they found.
    counter_rows : int
        Targets that each of these counts, at least.
    """

    vectors: dict[int, int]
    threads: dict[int, int]
    spreads: tuple[tuple[int, int], ...]
    counters: int
    counter_rows: int


SM_90 = Tuning(
    # The formulas take twice the registers in float64.
    vectors={2: 4, 4: 4, 8: 2},
    threads={2: 1024, 4: 1024, 8: 512},
    # Two blocks of a smaller cluster beat four of a larger one: on an H200 gradients of
    # [8192, 128256] take 1103 and 1145 us in bf16, 2155 and 2240 in float32.
    spreads=((1, 4), (1, 2), (2, 2), (4, 2), (8, 2)),
    counters=64,
    counter_rows=4096,
)
TUNINGS = {"sm_90": SM_90}


class Operands(NamedTuple):
    """The arrays of a problem, by what they are to a row.

    Attributes
    ----------
    logits, target : View
        Along the axis of the classes; an index, or a row beside that of the logits.
    dloss, dlogits, loss : View or None
        The cotangent of the losses; the outputs along that axis, and not.
    weight : View or None
        Of the classes.
    accuracy, top : View or None
        Metrics of the losses.
    """

    logits: View
    target: View
    dloss: View | None
    dlogits: View | None
    loss: View | None
    weight: View | None
    accuracy: View | None = None
    top: View | None = None


def operands(call: Call) -> Operands:
    """Which array is what."""
    form, indices = call.problem.signature, call.problem.spec.indices
    row = next(p for p in form.inputs if any(t.marker for t in p.terms))
    others = [p for p in form.inputs if p is not row]
    target = next(p.name for p in others if p.name in indices or p.names == row.names)
    along = [{call.problem.spec.role(name).below} for name in indices]
    weight = [call.view(p.name) for p in others if p.names in along]
    dloss = [call.view(p.name) for p in others if p.name != target and p.names not in along]
    # The loss, its metrics, and the gradient.
    outs = [(call.out(i), call.problem.spec.role(p.name)) for i, p in enumerate(form.outputs)]
    metrics = [x for x, role in outs if not role.flows]
    small = [x for x, role in outs if role.accumulated and role.flows]
    large = [x for x, role in outs if role.flows and not role.accumulated]
    return Operands(
        call.view(row.name), call.view(target), dloss[0] if dloss else None,
        large[0] if large else None, small[0] if small else None, weight[0] if weight else None,
        *metrics,
    )  # fmt: skip


class Way(NamedTuple):
    """How rows are shared, and walked over.

    Attributes
    ----------
    how : rows.Shares
    wide : bool
        By vectors.
    most : int
        Threads of the largest block.
    cluster : int
        Blocks of a row.
    rounds, kept : int
        How often a thread takes as many vectors as it holds, and how often it keeps them.
    shared : int
        Bytes of it.
    dims : list of Dim
        Of the rows; logits, target, dlogits, and loss or dloss along them.
    steps : tuple of int
        From class to class, of logits, dlogits and a soft target.
    """

    how: rows.Shares
    wide: bool
    most: int
    cluster: int
    rounds: int
    kept: int
    shared: int
    dims: list[Dim]
    steps: tuple[int, int, int]


def plan(call: Call) -> Steps:
    """One kernel over all rows; before it how many count, after it their sum, where asked for.

    Where nothing else asks for a count that one block has, the last kernel makes it.
    """
    problem = call.problem
    of = operands(call)
    logits, target, dloss, dlogits, loss, weight, accuracy, top = of
    small = loss or dloss
    n, count = logits.shape[problem.options["axis"]], _count(call, logits)
    soft = not problem.spec.integers
    if soft and not n:
        raise Refusal("has no kernel for rows of no classes")
    at_most(rows.LONGEST, "classes", n)
    reduced = problem.options["reduction"] != "none"
    mean = problem.options["reduction"] == "mean"
    flat = (0,) * (len(logits.shape) - 1)
    over = way(call, of, problem.options["axis"], [
        logits.strides, target.strides, (dlogits or logits).strides,
        flat if small is None or reduced else small.strides,
        *[flat if reduced and x is accuracy else x.strides for x in (accuracy, top) if x],
    ], dlogits is not None)  # fmt: skip
    blocks = -(-count // over.how.groups)
    parts, tuning = 0, call.facts.tuned(TUNINGS)
    if mean and count and not soft:
        parts = min(max(-(-count // tuning.counter_rows), 1), tuning.counters)

    last = parts == 1 and weight is None and dlogits is None and accuracy is None
    parts = 0 if last else parts

    # What a kernel has no use for is the address of something else.
    workspaces: list[tuple[Shape, str]] = []
    sums = counts = (logits.slot, 0)
    if reduced and loss is not None:
        sums = (call.workspace(len(workspaces)), 0)
        workspaces.append(((max(blocks, 1),), call.accumulate_dtype))
    hits = sums
    if reduced and accuracy is not None:
        hits = (call.workspace(len(workspaces)), 0)
        workspaces.append(workspaces[0])
    if parts:
        counts = (call.workspace(len(workspaces)), 0)
        workspaces.append(((parts,), call.accumulate_dtype if weight else "int32"))
    steps = [_counts(call, of, parts, counts)] if parts else []
    if count:
        slots = [x.slot if x else logits.slot for x in (logits, target, dloss, dlogits, loss)]
        front = [*[(slot, 0) for slot in slots], sums, counts]
        metrics = [hits, (accuracy.slot, 0), (top.slot, 0)] if accuracy and top else []
        steps.append(_rows(call, of, over, blocks, parts, front, metrics))
    if last and loss is not None:
        steps.append(_counts(call, of, 1, sums, (blocks, (loss.slot, 0))))
    elif reduced and loss is not None:
        share = 1.0 if parts or not mean else 1 / count if count else math.nan
        out = (loss.slot, 0)
        weighted = weight is not None and parts > 0
        steps.append(reduce.total(call, blocks, share, sums, counts, out, parts, weighted))
        if accuracy is not None:
            out = (accuracy.slot, 0)
            steps.append(reduce.total(call, blocks, share, hits, counts, out, parts, weighted))
    return Steps(tuple(steps), tuple(workspaces))


def _count(call: Call, logits: View) -> int:
    """How many rows there are."""
    shape, axis = logits.shape, call.problem.options["axis"]
    return prod((*shape[:axis], *shape[axis + 1 :]))


def way(call: Call, of: Operands, axis: int, strides: list[Shape], keeps: bool) -> Way:
    """How rows along an axis are shared: logits, targets, dlogits and more lie so over them.

    `keeps` says that rows are looked at more than once.
    """
    shape = of.logits.shape
    n, outer = shape[axis], (*shape[:axis], *shape[axis + 1 :])
    every = [s if len(s) == len(outer) else (*s[:axis], *s[axis + 1 :]) for s in strides]
    dims = merged(outer, every)
    walkable(dims)
    soft = len(strides[1]) == len(shape)
    steps = strides[0][axis], strides[2][axis], strides[1][axis] if soft else 1
    width = WIDEST // call.itemsize
    # Of an index for each row, any step.
    whole = slice(None, 3, None if soft else 2)
    numbers = [n, *[s for d in dims for s in d.strides[whole]]]
    wide = steps == (1, 1, 1) and divisor(numbers, call.elements()) == width
    # Two rows are held where a target is one too; weights and single elements take registers.
    weighs = of.weight is not None and (keeps or call.itemsize == 2)
    tuning, single = call.facts.tuned(TUNINGS), call.itemsize == 2 and not wide
    fewer = 1 + (soft or weighs)
    held = tuning.vectors[call.itemsize] // fewer // (1 + single)
    most = tuning.threads[call.itemsize] if wide else rows._SINGLE
    # Bytes of a vector that is kept, and of a probability beside each where the target is soft.
    size = WIDEST * (1 + soft) * keeps
    cluster, threads = _spread(call, n, held, most, size) if wide else (1, most)
    how = rows.shares(n, width, held, threads)
    if dims and abs(dims[0].strides[0]) < abs(steps[0]):
        # Rows side by side: threads side by side have one each.
        how, cluster = rows.Shares("ALONE", 1, THREADS, held), 1
    rounds = kept = 0
    if how.way in ("LONG", "ALONE"):
        rounds = _rounds(n, width, held, cluster * how.lanes)
    if how.way == "LONG" and keeps:
        room = (call.facts.shared_per_block - _FIXED) // (how.threads * size * held)
        kept = min(room, rounds)
    shared = kept * held * how.threads * size + _TOLD * cluster * (cluster > 1)
    return Way(how, wide, most, cluster, rounds, kept, shared, dims, steps)


def _rounds(n: int, width: int, held: int, threads: int) -> int:
    """How often each thread of a row takes as many vectors as it holds in the end, among which are
    those that not all threads have."""
    return max(-(-n // (threads * width * held)) - 1, 0)


def _spread(call: Call, n: int, held: int, most: int, size: int) -> tuple[int, int]:
    """Blocks of a row, and threads of each: so few that one block loads while others compute, where
    all of them have room for what they keep."""
    width = WIDEST // call.itemsize
    if n <= width * held * most // 2:
        return 1, most
    for cluster, together in call.facts.tuned(TUNINGS).spreads:
        threads = most // together
        shared = _rounds(n, width, held, cluster * threads) * held * threads * size
        if cluster > 1 and not call.facts.clusters:
            continue
        if shared + _FIXED <= call.facts.shared_per_block // together:
            return cluster, threads
    return 1, most


def _rows(
    call: Call, of: Operands, over: Way, blocks: int, parts: int, front: list[reduce.Place],
    metrics: list[reduce.Place],
) -> Step:  # fmt: skip
    problem, how, logits, weight = call.problem, over.how, of.logits, of.weight
    options, count = problem.options, _count(call, logits)
    n = logits.shape[options["axis"]]
    scalars = problem.spec.codes
    first = [*([(weight.slot, 0)] if weight else []), *metrics]
    packer = Packer(True).pointers(len(first) + len(front)).add("d", *[0.0] * _SCALARS)
    packer.add("Q", call.listener).add("q", n, call.ignored, count)
    packer.add("q", *over.steps[:2], weight.strides[0] if weight else over.steps[2])
    packer.add("i", n, how.lanes.bit_length() - 1, over.rounds, over.kept, parts)
    flags = _WIDE_TARGET * (problem.index_dtype == "int64")
    flags |= _REDUCED * (options["reduction"] != "none")
    dloss, loss = front[2][0], front[4][0]
    flags |= _WIDE_DLOSS * call.is_wide(dloss) | _WIDE_LOSS * call.is_wide(loss)
    flags |= _WIDE_WEIGHT * (weight is not None and call.is_wide(weight.slot))
    flags |= _GIVEN * (dloss != front[0][0])
    if not problem.spec.integers and options["reduction"] == "mean":
        flags |= _EQUAL_SHARES
    flags |= _WIDE_TOP * any(x.dtype == "int64" for x in problem.outputs)
    walked = 6 if metrics else 4
    arguments = packer.add("I", call.ticket, flags, 0).walk(over.dims, walked).done()
    more = f", {flag(weight is not None)}" * bool(weight or metrics) + ", true" * bool(metrics)
    schedule = (
        f"{call.functor}<{call.type}, {how.way}, {how.held}, {flag(over.wide)}, {flag(call.add)}, "
        f"{over.cluster}{more}>"
    )
    tags = [how.way.lower(), "wide" if over.wide else "strided", *["add"] * call.add]
    tags += [f"clusters_of_{over.cluster}"] * (over.cluster > 1)
    tags += ["weighted"] * (weight is not None) + ["metrics"] * bool(metrics)
    by_block = how.way in ("BLOCK", "LONG")
    bound = over.most if by_block else THREADS
    entry = call.entry(schedule, len(arguments), *tags, threads=bound, cluster=over.cluster)
    grid = (blocks * over.cluster, 1)
    return Step(entry, grid, arguments, [*first, *front], scalars, over.shared, how.threads)


def _counts(
    call: Call, of: Operands, parts: int, counts: reduce.Place,
    mean: tuple[int, reduce.Place] | None = None,
) -> Step:  # fmt: skip
    """How many rows count, or what they count where classes have weights.

    With a `mean`, what so many blocks left in the place of counts is divided by it, and delivered.
    """
    problem, target, weight = call.problem, of.target, of.weight
    count, n = prod(target.shape), of.logits.shape[problem.options["axis"]]
    more = [mean[1]] if mean else [(weight.slot, 0)] if weight else []
    front = [(target.slot, 0), counts, *more]
    packer = Packer(True).pointers(len(front)).add("q", count, -(-count // parts), n, call.ignored)
    packer.add("q", *([weight.strides[0]] if weight else []))
    packer.add("I", problem.index_dtype == "int64", any(call.is_wide(slot) for slot, _ in more))
    packer.add("i", *([mean[0], 0] if mean else []))
    arguments = packer.walk(merged(target.shape, [target.strides]), 1).done()
    name, tag = (f"Shares<{call.type}>", "shares") if weight else ("Counts", "counts")
    if mean:
        name, tag = f"CountedMean<{call.type}>", "counted_mean"
    entry = call.entry(name, len(arguments), tag, threads=1024)
    return Step(entry, (parts, 1), arguments, front)
