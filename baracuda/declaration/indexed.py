"""Which axes an index of a problem stands for: what gathers and scatters share on every backend."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

from baracuda.declaration.shapes import Pattern
from baracuda.declaration.spec import Operand, OpSpec, Problem
from baracuda.layouts import Shape


@dataclass(frozen=True, slots=True)
class Indexed:
    """How the entries of an index lie beside the arrays of a gather or scatter.

    Attributes
    ----------
    index : str
        The index.
    whole, asked : str
        The array that has the axis which the index points along; the one that has the entries.
    axis : int
        Where that axis is in `whole`, and where the entries begin in `asked`.
    run : int
        Axes of `asked` that stand in the place of the axis: those of the index, or the axis alone
        where the index has all axes of `asked`.
    start : str
        The input that a scatter begins with, "" for zeros.
    """

    index: str
    whole: str
    asked: str
    axis: int
    run: int
    start: str

    def flat(self, shape: Shape) -> Shape:
        """A shape of `asked` with the entries along one axis."""
        first, end = self.axis, self.axis + self.run
        return (*shape[:first], prod(shape[first:end]), *shape[end:])


def indexed(problem: Problem) -> Indexed:
    """How the one index of a problem lies beside its values."""
    spec, form = problem.spec, problem.signature
    name = spec.indices[0]
    below = spec.role(name).below
    arrays = [p for p in (*form.inputs, *form.outputs) if not p.is_option]
    index = next(p for p in arrays if p.name == name)
    values = [p for p in arrays if p.name not in spec.discrete]
    having = [p for p in values if below in p.names]
    whole, start = having[-1], having[0].name if having[1:] else ""
    asked = next(p for p in values if p not in having)
    axis = _rank(whole, problem, below)
    rank = len(index.shape(problem.axes))
    run = 1 if rank == len(asked.shape(problem.axes)) else rank
    return Indexed(name, whole.name, asked.name, axis, run, start)


def of_elements(problem: Problem) -> bool:
    """Whether the op has an index for each element: it points along an axis that is an option."""
    index = next(p for p in problem.signature.inputs if p.name == problem.spec.indices[0])
    return bool(index.groups)


@cache
def grouping(spec: OpSpec) -> frozenset[str]:
    """The indices that put their entries in groups: they point along an axis of no array."""
    patterns = [p for form in spec.signatures for p in (*form.inputs, *form.outputs)]
    axes = {name for p in patterns if not p.is_option for name in p.names}
    return frozenset([n for n in spec.indices if spec.role(n).below not in axes])


@cache
def scatters(spec: OpSpec) -> bool:
    """Whether entries of an index may meet in one element of an output, which adds them up.

    They point along an axis of the output, and lie along one that it does not have; or groups are
    added up on the way, by an index or by where each begins. What a composite adds up is for the
    ops that it is made of to say.
    """
    return not spec.composite and any(
        p.name in grouping(spec)
        or spec.role(p.name).ascends
        or (spec.role(p.name).below in q.names and p.names - q.names)
        for form in spec.signatures
        for p in form.inputs
        for q in form.outputs
    )


def operand(problem: Problem, name: str) -> Operand:
    """An array of a problem."""
    return next(x for x in (*problem.given, *problem.outputs) if x.name == name)


def _rank(pattern: Pattern, problem: Problem, name: str) -> int:
    """How many axes of an array are before the one that is named."""
    return [label.name for label in pattern.labels(problem.axes)].index(name)
