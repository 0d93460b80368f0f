"""Which op is the gradient of which, and how one is called by the names of the other's arrays.

A pair shares the names of its axes, options and run-time values; the cotangent of ``y`` is ``dy``.
Frameworks derive their gradients from this and from nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from baracuda.calls.op import registry
from baracuda.calls.partitioning import added_up, independent
from baracuda.declaration.shapes import Signature
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.libraries import Array


def partner(spec: OpSpec) -> tuple[OpSpec | None, bool]:
    """The op that transposes this one's tangents, None where only the body can say; linear?

    Linear where the backward takes no floating input but cotangents: then each of the two
    transposes into the other.
    """
    if spec.adjoint_of:
        first, second = registry[spec.adjoint_of].spec, spec
    else:
        found = [o.spec for o in registry.values() if o.spec.adjoint_of == spec.name]
        if not found:
            return None, False
        first, second = spec, found[0]
    results = {p.name for form in first.signatures for p in form.outputs}
    cotangents = {f"d{name}" for name in results}
    # What a result says of the inputs, even as an index, is no linear thing.
    linear = set(second.arrays) - second.discrete <= cotangents and not results & {*second.arrays}
    # Nor does the backward become the forward again where that adds what the backward never takes.
    linear = linear and results.isdisjoint([role.alike for role in first.roles.values()])
    if second is spec:
        return (first if linear else None), linear
    return second, linear


def ahead(problem: Problem) -> OpSpec | None:
    """The op that computes the result and its gradients at once, for engines that scale these.

    None where there is none, where the result is not one number beside metrics, and for float16:
    there the share of a mean may flush gradients to 0 before a scaled cotangent comes.
    """
    if flowing(problem) != (0,) or problem.outputs[0].shape or problem.dtype == "float16":
        return None
    early = registry[problem.spec.name].early
    return early.spec if early is not None else None


def flowing(problem: Problem) -> tuple[int, ...]:
    """The results that have cotangents: metrics and positions have none."""
    role = problem.spec.role
    return tuple([i for i, x in enumerate(problem.outputs) if role(x.name).flows])


def made_ahead(spec: OpSpec, problem: Problem) -> list[str]:
    """The gradients that the op ahead of `problem` returns behind its results, in their order."""
    there = {x.name for x in problem.given}
    form = next(form for form in spec.forms(problem.options) if form.takes(there))
    return [p.name for p in form.outputs[len(problem.outputs) :]]


def summed(spec: OpSpec, form: Signature) -> frozenset[str]:
    """The axes over which gradients add up: the forward takes each place by itself.

    A part of such an axis gives a part of the sum. Some result lacks the axis; those that have it
    are apart there, and so are the cotangents: a mean over an axis depends on all of it.
    """
    if not spec.adjoint_of:
        return added_up(spec, form)
    forward = registry[spec.adjoint_of].spec
    apart = frozenset().union(*[independent(forward, form) for form in forward.signatures])
    kept = frozenset.intersection(*[p.reached for form in spec.signatures for p in form.outputs])
    bounded = {t.name for form in spec.signatures for p in form.inputs for t in p.terms if t.bound}
    given = frozenset.intersection(*[p.names for p in form.inputs if p.name.startswith("d")])
    return (apart - kept - bounded) & given


def dual(spec: OpSpec, name: str) -> str:
    """What the partner of `spec` calls the cotangent of one of its arrays."""
    return name.removeprefix("d") if spec.adjoint_of else f"d{spec.role(name).alike or name}"


class Request(NamedTuple):
    """How an op is called for its partner.

    Attributes
    ----------
    arrays : tuple of (str or None)
        In their places, None for what is not given.
    options : dict
        Structural options, shapes that are options among them.
    results : tuple of str
    handed : tuple of str
        The cotangents that are gradients as they are.
    """

    arrays: tuple[str | None, ...]
    options: dict[str, Any]
    results: tuple[str, ...]
    handed: tuple[str, ...]

    @property
    def gradients(self) -> tuple[str, ...]:
        """All that is known after the call."""
        return self.results + self.handed

    def call(
        self, function: Callable[..., Any], known: Mapping[str, Array], more: Mapping[str, Any]
    ) -> dict[str, Array]:
        """The gradients by name, of what is known; `more` are keywords beside options."""
        arrays = [None if name is None else known[name] for name in self.arrays]
        while arrays[-1] is None:
            arrays.pop()
        result = function(*arrays, **self.options, **more)
        results = result if isinstance(result, tuple) else (result,)
        found = zip(self.results, results, strict=True)
        return {**dict(found), **{name: known[name] for name in self.handed}}


def constants(problem: Problem, asked: Request) -> tuple[str, ...]:
    """The floating inputs of `problem` for which the request to its partner has no cotangent.

    Where one of them is differentiated, the body says how.
    """
    spec = problem.spec
    names = [x.name for x in problem.given if x.name not in spec.discrete]
    return tuple([name for name in names if dual(spec, name) not in asked.gradients])


def request(spec: OpSpec, problem: Problem, names: Collection[str]) -> Request:
    """How the op of `spec` is called where its partner has `problem` and `names` are known."""
    arrays = tuple([name if name in names else None for name in spec.arrays])
    there = {name for name in arrays if name is not None}
    options = {k: v for k, v in problem.options.items() if k in spec.options}
    form = next(s for s in spec.forms(options) if set(s.names) == there)
    shapes = {p.name: p.shape(problem.axes) for p in form.inputs if p.is_option}
    results = tuple([p.name for p in form.outputs])
    # What the gradient has nothing to read off: the dtype of an input that it does not take.
    dtypes = {
        role.chosen: x.dtype
        for name, role in spec.roles.items()
        for x in problem.given
        if role.chosen and dual(problem.spec, x.name) == name
    }
    given, own = problem.spec, {x.name for x in problem.outputs}
    handed = [f"d{a}" for x in problem.given if (a := given.role(x.name).alike) in own]
    return Request(arrays, {**options, **shapes, **dtypes}, results, tuple(handed))
