"""The arrays of a problem by what they are to a row, and which functor takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baracuda.backends.cuda.geometry import View, without
from baracuda.backends.cuda.launch_plan import Call


class Operands(NamedTuple):
    """The arrays of a problem, by what they are to a row.

    Attributes
    ----------
    axis : int
        Along which rows lie.
    loads, columns, masks, outs, sums : list of View
    labels, costs : sequence of View
        Of rows with one result each, as losses: an integer of each, where there is one, and the
        result or its cotangent. Neither has the axis.
    reduced : bool
        There is one loss of all.
    biases : sequence of View
        What is added to rows and broadcasts to them: a column of each row's own.
    """

    axis: int
    loads: list[View]
    columns: list[View]
    masks: list[View]
    outs: list[View]
    sums: list[View]
    labels: Sequence[View] = ()
    costs: Sequence[View] = ()
    reduced: bool = False
    biases: Sequence[View] = ()

    @property
    def added(self) -> bool:
        """Whether blocks leave sums of losses."""
        return self.reduced and not self.outs

    @property
    def crowded(self) -> bool:
        """Whether each element has a mask beside a bias."""
        return bool(self.masks and self.biases)

    @property
    def pulls(self) -> bool:
        """Whether it is the gradient of losses of several rows."""
        return bool(self.costs and self.outs) and len(self.loads) > 1


def operands(call: Call) -> Operands:
    """Which array is what."""
    problem = call.problem
    form, hides, integers = problem.signature, problem.spec.masks, problem.spec.integers
    row = call.row
    added = [p for p in form.inputs if p.broadcasts and p.name not in hides]
    along = {t.name for t in row.terms if not t.group}
    own = [p for p in form.inputs if p.name not in hides and p not in added]
    whole = [p for p in own if p.names == row.names]
    others = [p for p in own if p not in whole]
    outs = [(call.out(i), p.names) for i, p in enumerate(form.outputs)]
    each = [p for p in others if not p.names & along]
    loads = [call.view(p.name) for p in whole]
    rank = len(loads[0].shape)
    axis = problem.options.get("axis", -1) % rank
    costs = [call.view(p.name) for p in each if p.name not in integers]
    costs += [x for x, names in outs if not names & along]
    return Operands(
        axis,
        loads,
        [call.view(p.name) for p in others if p not in each],
        [call.view(p.name) for p in form.inputs if p.name in hides],
        [x for x, names in outs if names == row.names],
        [x for x, names in outs if names & along and names != row.names],
        [call.view(p.name) for p in each if p.name in integers],
        [_less(x, axis) if len(x.shape) == rank else x for x in costs],
        problem.options.get("reduction", "none") != "none",
        [call.view(p.name) for p in added],
    )


def _less(x: View, axis: int) -> View:
    """A view without an axis of extent 1."""
    return x._replace(shape=without(x.shape, axis), strides=without(x.strides, axis))


class Kind(NamedTuple):
    """What tells functors of one name apart, and what they hold beside run-time values.

    Attributes
    ----------
    number : int
        How many columns there are or, of distances, whether they are Euclidean.
    label : str
        The same in names of kernels.
    numbers : tuple of float
        Held beside run-time values.
    stored : str
        The type to which what is normalised is rounded before it is scaled; "" for none.
    """

    number: int
    label: str
    numbers: tuple[float, ...] = ()
    stored: str = ""

    @property
    def arguments(self) -> str:
        """The template arguments of the functor, behind the accumulate type."""
        return f"{self.number}, {self.stored}" if self.stored else str(self.number)


def kind_of(call: Call, of: Operands) -> Kind:
    """That of a problem."""
    options, many = call.problem.options, len(of.columns) + len(of.biases)
    if (p := options.get("p")) is not None:
        return Kind(2, "p2") if p == 2 else Kind(0, "preal", (p, 1 / p))
    if many and options.get("casting") == "before_weight" and call.type != call.accumulate:
        return Kind(many, f"c{many}_cast", stored=call.type)
    return Kind(many, f"c{many}")
