"""Log-probabilities and entropies: rows as in cross entropy, with one or two results of each."""

from __future__ import annotations

from math import prod

from baracuda.backends.cuda.geometry import Packer, at_most
from baracuda.backends.cuda.launch_plan import THREADS, Call, Step, Steps, flag
from baracuda.backends.cuda.schedules import cross_entropy, rows

# Flags of cuda_src/log_prob.cu.
_WIDE_TARGET, _WIDE_RESULT = 1, 2


def plan(call: Call) -> Steps:
    """One kernel over all rows."""
    problem, row = call.problem, call.row
    spec, form = problem.spec, problem.signature
    logits, target = call.view(row.name), call.of_kind("index")
    small = [call.view(p.name) for p in form.inputs if p is not row and p.name != spec.indices[0]]
    dlogits = call.out() if small else None
    # Cotangents of the results, or these.
    small = small or [call.out(i) for i in range(len(form.outputs))]
    first, last = small[0], small[-1]
    axis, count = len(logits.shape) - 1, prod(target.shape)
    n = logits.shape[axis]
    at_most(rows.LONGEST, "classes", n)
    of = cross_entropy.Operands(logits, target, None, dlogits, None, None)
    over = cross_entropy.way(call, of, axis, [
        logits.strides, target.strides, (dlogits or logits).strides, first.strides, last.strides,
    ], dlogits is not None)  # fmt: skip
    if not count:
        return Steps(())
    how, spread = over.how, len(small) > 1
    # What a kernel has no use for is the address of something else.
    front = [(x.slot, 0) for x in (logits, target, dlogits or logits, first, last)]
    packer = Packer(True).pointers(len(front)).add("d", *[0.0] * len(spec.scalars))
    packer.add("Q", call.listener).add("q", n, call.ignored, count, *over.steps[:2])
    packer.add("i", n, how.lanes.bit_length() - 1, over.rounds, over.kept)
    flags = _WIDE_TARGET * (problem.index_dtype == "int64")
    flags |= _WIDE_RESULT * call.is_wide(first.slot)
    arguments = packer.add("I", call.ticket, flags).walk(over.dims, len(front)).done()
    schedule = (
        f"{call.functor}<{call.type}, {how.way}, {how.held}, {flag(over.wide)}, {flag(call.add)}, "
        f"{over.cluster}, {flag(spread)}>"
    )
    tags = [how.way.lower(), "wide" if over.wide else "strided", *["add"] * call.add]
    tags += [f"clusters_of_{over.cluster}"] * (over.cluster > 1) + ["spread"] * spread
    bound = over.most if how.way in ("BLOCK", "LONG") else THREADS
    entry = call.entry(schedule, len(arguments), *tags, threads=bound, cluster=over.cluster)
    grid = (-(-count // how.groups) * over.cluster, 1)
    step = Step(entry, grid, arguments, front, spec.codes, over.shared, how.threads)
    return Steps((step,))
