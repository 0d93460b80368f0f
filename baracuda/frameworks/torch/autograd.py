"""Under autograd an op runs as it does without, and its gradient is the explicit op.

Everything is read off the declarations (`baracuda.calls.adjoint`). A backward that is itself
watched, for a second derivative, is a call like any other: it runs the same way where it has an
adjoint of its own, and else as its body, which autograd differentiates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from baracuda.calls import adjoint, body
from baracuda.calls.op import registry
from baracuda.calls.plan import Plan
from baracuda.declaration.dispatch import NAMES
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Adds, Misfit, OpSpec, Problem, Runner
from baracuda.libraries import Array
from baracuda.libraries.torch import ADAPTER, is_batch


def watched(problem: Problem) -> Callable[[Runner], Runner] | None:
    """From a runner of plain tensors to one of watched tensors; None: no op is the gradient.

    Parameters
    ----------
    problem : Problem
        In mode ``"autograd"``.
    """
    partner, _ = adjoint.partner(problem.spec)
    if partner is None or problem.dtype not in FLOATS:
        return None
    return partial(_differentiable, problem, partner)


def _differentiable(problem: Problem, partner: OpSpec, run: Runner) -> Runner:
    link, composite, apply = Link(problem, partner, run), body.runner(problem), _apply

    def run_watched(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        # What the gradient has no cotangent for is a constant to it.
        if outs is not None or (link.open and any(arrays[i].requires_grad for i in link.open)):
            return composite(arrays, outs, accumulate, scalars)
        return apply(link, scalars, *arrays)

    return run_watched


class Link:
    """A planned op and the op that is its gradient.

    Attributes
    ----------
    run : Runner
        The op on plain tensors.
    inputs, outputs : tuple of int
        What the gradient needs of the arrays, and then of the results.
    keeps_all : bool
        Whether `inputs` are all arrays that an op can be given.
    places : tuple of (int or None)
        For each array that the op takes, which result of the gradient is its cotangent.
    open : tuple of int
        Floating arrays for which none is; autograd differentiates the body for them.
    """

    __slots__ = (
        "_again",
        "_chosen",
        "_order",
        "_planned",
        "_request",
        "inputs",
        "keeps_all",
        "open",
        "outputs",
        "places",
        "run",
    )

    def __init__(self, problem: Problem, partner: OpSpec, run: Runner) -> None:
        spec, self.run = problem.spec, run
        outputs = [x.name for x in problem.outputs]
        there = [x and x.name for x in problem.inputs]
        self.inputs = tuple([i for i, name in enumerate(there) if name in partner.arrays])
        self.outputs = tuple([i for i, name in enumerate(outputs) if name in partner.arrays])
        self.keeps_all = self.inputs == tuple(range(len(there)))
        kept = [there[i] or "" for i in self.inputs] + [outputs[i] for i in self.outputs]
        saved = [*kept, *[adjoint.dual(spec, name) for name in outputs]]
        asked = adjoint.request(partner, problem, saved)
        last = max(i for i, name in enumerate(asked.arrays) if name is not None)
        order = asked.arrays[: last + 1]
        self._order = [None if name is None else saved.index(name) for name in order]
        constants = adjoint.constants(problem, asked)
        self.open = tuple([i for i, name in enumerate(there) if name in constants])
        self.places = tuple([
            None if name is None or name in spec.discrete or name in constants
            else asked.results.index(adjoint.dual(spec, name))
            for name in there
        ])  # fmt: skip
        # All of them: the block that set them may be left by then, or another one entered. A record
        # says how to run this op, not its partner.
        chosen = {k: getattr(problem.choices, k) for k in NAMES} | {"sku": None}
        op = registry[partner.name]
        self._chosen = partial(op, **asked.options, **chosen)
        self._request = partial(op.plan, **asked.options, **chosen)
        # What is to be differentiated again is nobody's to choose.
        self._again = partial(op, **asked.options, sku=None)
        self._planned: tuple[Plan | None, Callable[..., bool]] = None, lambda *arrays: False

    def gradients(
        self, kept: Sequence[Array], cotangents: Sequence[Array], scalars: Mapping[str, Any]
    ) -> list[Array | None]:
        """The cotangents of all that the op takes, None for what has none."""
        some = (*kept, *cotangents)
        arrays = [None if i is None else some[i] for i in self._order]
        explicit = self._again if torch.is_grad_enabled() else self._explicit
        found = explicit(*arrays, **scalars)
        results = found if type(found) is tuple else (found,)
        return [None if i is None else results[i] for i in self.places]

    def _explicit(self, *arrays: Array, **scalars: Any) -> Any:
        """The fused gradient, by the plan of the last one where these are such tensors."""
        plan, fits = self._planned
        if plan is None or not fits(*arrays):
            if any(map(is_batch, arrays)):
                return self._chosen(*arrays, **scalars)
            plan = self._request(*arrays)
            self._planned = plan, ADAPTER.guard(arrays)
        try:
            return plan.run(arrays, None, False, scalars)
        except Misfit:
            return plan(*arrays, **scalars)


class Fused(torch.autograd.Function):
    """``Fused.apply(link, scalars, *arrays)``: the op, with its adjoint as the gradient.

    With a context that is made apart, torch would look up the signature at every call; transforms
    that need one never come here.
    """

    @staticmethod
    def forward(ctx: Any, link: Link, scalars: Mapping[str, Any], *arrays: Array) -> Any:
        result = link.run(arrays, None, False, scalars)
        ctx.call = link, scalars
        kept = arrays if link.keeps_all else [arrays[i] for i in link.inputs]
        if link.outputs:
            results = result if type(result) is tuple else (result,)
            kept = [*kept, *[results[i] for i in link.outputs]]
        ctx.save_for_backward(*kept)
        return result

    @staticmethod
    def backward(ctx: Any, *cotangents: Array) -> Any:
        link, scalars = ctx.call
        found = link.gradients(ctx.saved_tensors, cotangents, scalars)
        return None, None, *found[: len(ctx.needs_input_grad) - 2]


# What `Function.apply` adds is for transforms, which never come here, and costs a third of it.
_level: Any = getattr(torch.autograd.function, "_SingleLevelFunction", None)
_apply = super(_level, Fused).apply if _level else Fused.apply
