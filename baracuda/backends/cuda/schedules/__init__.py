"""The schedules by the names that ops give them."""

from baracuda.backends.cuda.launch_plan import (
    MOST_BLOCKS,
    MOST_ROWS,
    Call,
    Planner,
    Steps,
    Variants,
)
from baracuda.backends.cuda.schedules import (
    channels,
    cross_entropy,
    elementwise,
    heads,
    kl_div,
    log_prob,
    nll_loss,
    planes,
    reduce,
    rope,
    rows,
    topk_kl_div,
    window,
)
from baracuda.backends.cuda.schedules.indexed import (
    add_rows,
    bags,
    combine,
    few_rows,
    gather,
    last_write,
    permute,
    scatter,
    segments,
)
from baracuda.declaration.backend import Refusal
from baracuda.declaration.spec import Problem

PLANNERS: dict[str, Planner] = {
    "elementwise": elementwise.plan,
    "cross_entropy": cross_entropy.plan,
    "reduce": reduce.plan,
    "rope": rope.plan,
    "heads": heads.plan,
    "window": window.forward,
    "window_backward": window.backward,
    "gather": gather.plan,
    "add_rows": add_rows.plan,
    "bags": bags.plan,
    "bags_backward": bags.backward,
    "combine": combine.plan,
    "combine_backward": combine.backward,
    "few_rows": few_rows.plan,
    "scatter": scatter.plan,
    "last_write": last_write.plan,
    "last_write_backward": last_write.backward,
    "segments": segments.plan,
    "join_rows": permute.join,
    "spread_rows": permute.spread,
    "rows": rows.plan,
    "channels": channels.plan,
    "nll_loss": nll_loss.plan,
    "log_prob": log_prob.plan,
    "kl_div": kl_div.plan,
    "topk_kl_div": topk_kl_div.plan,
    "planes": planes.plan,
}

# Bytes on chip of arguments that a block copies (common/reading.cuh), and of what is static beside
# what a schedule asks for, at most.
_COPY, _NEAR = 1024, 8192
VARIANTS: dict[str, Variants] = {
    "elementwise": elementwise.variants,
    "gather": gather.variants,
    "scatter": scatter.variants,
}
"""Of the schedules that have several."""
ENTRIES = frozenset({"cross_entropy", "log_prob"})
"""Those whose kernels read the entries of an index one at a time, however they are aligned."""


def plan(call: Call) -> Steps:
    """What the op's schedule launches for a call.

    Raises
    ------
    Refusal
        Where it does not take the problem.
    """
    planner, reads = PLANNERS[call.schedule], call.problem.reads
    steps = planner(call)
    if reads:
        most = call.facts.shared_per_block
        if any(step.shared > most - _NEAR for step in steps.kernels):
            steps = planner(call._replace(facts=call.facts._replace(shared_per_block=most - _COPY)))
        steps = steps.reading(reads)
        if any(s.entry.reads and len(s.arguments) > _COPY for s in steps.kernels):
            raise Refusal(
                f"reads run-time values on the device beside at most {_COPY} bytes of arguments: "
                "give numbers"
            )
    for step in steps.kernels:
        if step.grid[0] > MOST_BLOCKS or step.grid[1] > MOST_ROWS:
            across, down = step.grid
            raise Refusal(
                f"launches at most {MOST_BLOCKS} x {MOST_ROWS} blocks, not {across} x {down}"
            )
    if call.problem.choices.deterministic and not steps.deterministic:
        raise Refusal("adds by atomics, in no fixed order, which deterministic=True rules out")
    return steps


def any_alignment(problem: Problem) -> frozenset[int]:
    """The slots of arrays whose addresses no kernel of a problem depends on.

    Labels that were shifted by one, as those of a language model are, begin within 16 bytes.
    """
    kernel, indices = problem.spec.kernel, problem.spec.indices
    if kernel is None or kernel.schedule not in ENTRIES:
        return frozenset()
    return frozenset(i for i, x in enumerate(problem.given) if x.name in indices)


def variants(call: Call) -> tuple[str, ...]:
    """The variants for a call, that of the rule first; none where there is nothing to choose."""
    return VARIANTS[call.schedule](call) if call.schedule in VARIANTS else ()
