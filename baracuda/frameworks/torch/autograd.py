"""Under autograd an op runs as it does without, and its gradient is the explicit op.

Everything is read off the declarations (`baracuda.calls.adjoint`). A backward that is itself
watched, for a second derivative, is a call like any other: it runs the same way where it has an
adjoint of its adjoint of its own, and else as its body, which autograd differentiates.

A loss whose gradients cost least in the same pass (`ahead_of`) makes them forward, for a cotangent
of 1, and scales them backward. It does so where all that it can differentiate is watched, and
nothing takes saved tensors away, as checkpoints do: they would have them made twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from baracuda.calls import adjoint, body
from baracuda.calls.op import Op, registry
from baracuda.calls.plan import Plan
from baracuda.declaration.backend import Adds, Misfit, Runner
from baracuda.declaration.dispatch import NAMES
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.frameworks.torch.ahead import scale
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
    early = _early(problem, link)

    def run_watched(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        # What the gradient has no cotangent for is a constant to it.
        if outs is not None or (link.open and any(arrays[i].requires_grad for i in link.open)):
            return composite(arrays, outs, accumulate, scalars)
        if early is not None and early.pays(arrays):
            return early.apply(early, scalars, *arrays)
        return apply(link, scalars, *arrays)

    def run_on_copies(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        # The gradient is that at the values of now, whatever is written to them until then.
        pairs = zip(scalars.items(), problem.reads, strict=True)
        held = {name: x.clone() if dtype else x for (name, x), dtype in pairs}
        return run_watched(arrays, outs, accumulate, held)

    return run_on_copies if problem.reads else run_watched


def _choices(problem: Problem) -> dict[str, Any]:
    """All dispatch options, for another op than that of the problem.

    The block that set them may be left by then, or another one entered. A record says how to run
    the op that it is of.
    """
    return {k: getattr(problem.choices, k) for k in NAMES} | {"sku": None}


class Planned:
    """An op with its options, by the plan of the last call where arrays are such as those were."""

    __slots__ = ("_call", "_last", "_never", "_request")

    def __init__(self, op: Op[Any, Any], options: Mapping[str, Any], never: bool = False) -> None:
        self._call, self._request = partial(op, **options), partial(op.plan, **options)
        self._last: tuple[Plan | None, Callable[..., bool]] = None, lambda *arrays: False
        self._never = never

    @property
    def plan(self) -> Plan | None:
        """That of the last call which had one."""
        return self._last[0]

    def __call__(self, arrays: Sequence[Array], scalars: Mapping[str, Any]) -> Any:
        plan, fits = self._last
        if plan is None or not fits(*arrays):
            if self._never or any(map(is_batch, arrays)):
                return self._call(*arrays, **scalars)
            plan = self._request(*arrays)
            self._last = plan, ADAPTER.guard(arrays)
        try:
            return plan.run(arrays, None, False, scalars)
        except Misfit:
            return plan(*arrays, **scalars)


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
    metrics : tuple of int
        The floating results from which nothing flows back.
    """

    __slots__ = (
        "_again",
        "_explicit",
        "_handed",
        "_order",
        "inputs",
        "keeps_all",
        "metrics",
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
        self.metrics = tuple([i for i, x in enumerate(outputs) if spec.role(x).metric])
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
            else asked.gradients.index(adjoint.dual(spec, name))
            for name in there
        ])  # fmt: skip
        self._handed = [saved.index(name) for name in asked.handed]
        op = registry[partner.name]
        # What is to be differentiated again is nobody's to choose.
        self._again = partial(op, **asked.options, sku=None)
        # A plan that is kept is for numbers.
        self._explicit = Planned(
            op, {**asked.options, **_choices(problem)}, never=bool(problem.reads)
        )

    def gradients(
        self, kept: Sequence[Array], cotangents: Sequence[Array], scalars: Mapping[str, Any]
    ) -> list[Array | None]:
        """The cotangents of all that the op takes, None for what has none."""
        some = (*kept, *cotangents)
        arrays = [None if i is None else some[i] for i in self._order]
        if torch.is_grad_enabled():
            found = self._again(*arrays, **scalars)
        else:
            found = self._explicit(arrays, scalars)
        results = found if type(found) is tuple else (found,)
        if self._handed:
            results = (*results, *[some[i] for i in self._handed])
        return [None if i is None else results[i] for i in self.places]


def _owned(result: Any) -> Any:
    """Results that may be written to in place: autograd forbids it of views made in a function."""
    if type(result) is tuple:
        return tuple(map(_owned, result))
    return result.data if result._is_view() else result


class Fused(torch.autograd.Function):
    """``Fused.apply(link, scalars, *arrays)``: the op, with its adjoint as the gradient.

    With a context that is made apart, torch would look up the signature at every call; transforms
    that need one never come here.
    """

    @staticmethod
    def forward(ctx: Any, link: Link, scalars: Mapping[str, Any], *arrays: Array) -> Any:
        result = _owned(link.run(arrays, None, False, scalars))
        ctx.call = link, scalars
        kept = arrays if link.keeps_all else [arrays[i] for i in link.inputs]
        if link.outputs:
            results = result if type(result) is tuple else (result,)
            kept = [*kept, *[results[i] for i in link.outputs]]
        if link.metrics:
            ctx.mark_non_differentiable(*[result[i] for i in link.metrics])
        ctx.save_for_backward(*kept)
        return result

    @staticmethod
    def backward(ctx: Any, *cotangents: Array) -> Any:
        link, scalars = ctx.call
        found = link.gradients(ctx.saved_tensors, cotangents, scalars)
        return None, None, *found[: len(ctx.needs_input_grad) - 2]


class Early:
    """A planned op, and the op that makes its gradients along with its result.

    Attributes
    ----------
    link : Link
        Says what becomes of gradients that are asked for again, or are differentiated.
    places : tuple of (int or None)
        For each array that the op takes, which of the gradients is its cotangent.
    results : int
        How many results there are before the gradients.
    choices : mapping
        The dispatch options of what scales these.
    """

    __slots__ = ("_count", "_run", "apply", "choices", "link", "places", "results")

    def __init__(
        self, link: Link, run: Planned, places: tuple[int | None, ...], results: int,
        choices: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.link, self.places, self.apply, self._run = link, places, _apply_early, run
        self.results, self.choices = results, choices
        # A plan is for calls that write None for a missing array, and for those that do not.
        self._count = max(link.inputs) + 1

    def pays(self, arrays: Sequence[Array]) -> bool:
        """Whether all gradients will be asked for, and what is kept for them stays."""
        watched = [arrays[i].requires_grad for i, k in enumerate(self.places) if k is not None]
        return all(watched) and _hooks(True) is None

    def __call__(self, arrays: Sequence[Array], scalars: Mapping[str, Any]) -> Any:
        """The results, and the gradients for a cotangent of 1."""
        return self._run(arrays[: self._count], scalars)


def _early(problem: Problem, link: Link) -> Early | None:
    spec = adjoint.ahead(problem)
    # The plan that is kept is for numbers.
    if spec is None or problem.reads:
        return None
    results = adjoint.made_ahead(spec, problem)
    names = [None if x is None else adjoint.dual(problem.spec, x.name) for x in problem.inputs]
    places = tuple([results.index(n) if n in results else None for n in names])
    choices = _choices(problem)
    run = Planned(registry[spec.name], {**problem.options, **choices})
    return Early(link, run, places, len(problem.outputs), choices)


class FusedEarly(torch.autograd.Function):
    """``FusedEarly.apply(early, scalars, *arrays)``: a loss whose gradients are made forward."""

    @staticmethod
    def forward(ctx: Any, early: Early, scalars: Mapping[str, Any], *arrays: Array) -> Any:
        found, results = early(arrays, scalars), early.results
        # Not among what is saved: they are handed out, and may be written to, once.
        ctx.call, ctx.made = (early, scalars), found[results:]
        ctx.save_for_backward(*arrays)
        found = _owned(found[:results])
        if results == 1:
            return found[0]
        ctx.mark_non_differentiable(*[found[i] for i in early.link.metrics])
        return found

    @staticmethod
    def backward(ctx: Any, dloss: Array, *metrics: Array) -> Any:
        (early, scalars), made, ctx.made = ctx.call, ctx.made, None
        arrays = ctx.saved_tensors
        if torch.is_grad_enabled() or is_batch(dloss):
            kept = [arrays[i] for i in early.link.inputs]
            found = early.link.gradients(kept, (dloss, *metrics), scalars)
        else:
            # Asked for again, they are made again: the same bits.
            made = early(arrays, scalars)[early.results :] if made is None else made
            scale(made, dloss, **early.choices)
            found = [None if k is None else made[k] for k in early.places]
        return None, None, *found[: len(ctx.needs_input_grad) - 2]


# What `Function.apply` adds is for transforms, which never come here, and costs a third of it.
_level: Any = getattr(torch.autograd.function, "_SingleLevelFunction", None)
_apply = super(_level, Fused).apply if _level else Fused.apply
_apply_early = super(_level, FusedEarly).apply if _level else FusedEarly.apply
# Set where a block packs what is saved for backward; torch shows it to its own compiler only.
_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks
