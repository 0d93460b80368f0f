"""Divergences of rows of logits from k classes of a teacher: one kernel, around it as `kl_div`."""

from __future__ import annotations

from math import prod

from baracuda.backends.cuda.geometry import Packer, at_most
from baracuda.backends.cuda.launch_plan import Call, Step, Steps
from baracuda.backends.cuda.schedules import kl_div, rows

# Flags of cuda_src/topk_kl_div.cu.
_WIDE_IDS, _WIDE_PROBS = 128, 256


def plan(call: Call) -> Steps:
    """One kernel over all rows; before it the sum of their weights, after it that of losses."""
    of, ids = kl_div.operands(call), call.of_kind("index")
    probs, (*outer, n), k = of.teacher, of.logits.shape, ids.shape[-1]
    count, slopes = prod(outer), of.dlogits is not None
    at_most(rows.LONGEST, "classes of a teacher", k)
    over = kl_div.way(call, of, ids, ids.strides[:-1], probs.strides[:-1], keeps=slopes)
    # Of each class of the teacher its logit and, where there is one to add to, the old slope.
    seen = (((1 + call.add) * count * k,), call.accumulate_dtype)

    def rows_step(left: kl_div.Leaves) -> Step:
        packer = Packer(True).pointers(10).add("d", *[0.0] * len(call.problem.spec.scalars))
        packer.add("Q", call.listener).add("q", count, *over.steps[:2])
        packer.add("q", ids.strides[-1], probs.strides[-1])
        packer.add("i", n, k, over.how.lanes.bit_length() - 1, over.rounds, over.kept, left.parts)
        wide = _WIDE_IDS * (call.problem.index_dtype == "int64")
        wide |= _WIDE_PROBS * call.is_wide(probs.slot)
        packer.add("I", call.ticket, kl_div.flags(call, of) | wide)
        arguments = packer.walk(over.dims, 6).done()
        views = (of.logits, ids, probs, of.dloss, of.weight, of.dlogits, of.loss)
        front = [((x or of.logits).slot, 0) for x in views]
        room = call.workspace() if slopes else of.logits.slot
        front += [left.sums, left.shares, (room, 0)]
        return kl_div.step(call, of, over, arguments, front)

    return kl_div.steps(call, of, over, rows_step, *[seen] * slopes)
