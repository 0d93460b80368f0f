"""What statistics of planes are over, and the parameters that belong to each set."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Packer, View, at_most
from baracuda.backends.cuda.launch_plan import Call

_WEIGHT, _BIAS, _PULLS = 1, 2, 4
_COUNTED = 2**31 - 2**22


class Sets(NamedTuple):
    """What the statistics of a problem are over.

    Attributes
    ----------
    n, c, s : int
        The batch, the channels, and the elements of a plane.
    groups : int
        Sets of each of the n; 0 where a set is a channel of all of them.
    loads : list of View
        What is summed over: dy, x.
    given : bool
        Whether the statistics are given.
    back : bool
        Whether it is a gradient.
    weighted : bool
        Whether there is a weight.
    """

    n: int
    c: int
    s: int
    groups: int
    loads: list[View]
    given: bool
    back: bool
    weighted: bool

    @property
    def sums(self) -> bool:
        """Whether there is anything to sum."""
        return not self.given or (self.back and self.weighted)

    @property
    def channels(self) -> int:
        """Channels of a set."""
        return self.c // self.groups if self.groups else 1

    @property
    def number(self) -> int:
        """How many there are."""
        return self.n * self.groups if self.groups else self.c

    @property
    def shared(self) -> bool:
        """Whether each of the n leaves a share of the gradients of parameters."""
        return self.back and self.weighted and self.groups > 0


def sets_of(call: Call) -> Sets:
    """Those of a problem."""
    problem = call.problem
    n, c, *inner = problem.outputs[0].shape
    given, back = call.given("mean") is not None, problem.spec.adjoint_of is not None
    apart = "n" in (problem.spec.batches or ()) and not given
    groups: int = problem.options.get("num_groups", c)
    loads = [call.view(name) for name in ("dy", "x") if call.given(name) is not None]
    weighted = call.given("weight") is not None
    return Sets(n, c, prod(inner), groups * apart, loads, given, back, weighted)


def counted(*numbers: int) -> None:
    """Kernels count in 32 bits, with room for the steps of a block."""
    at_most(_COUNTED - 1, "threads, sets, and elements of an example", max(numbers))


class Parameters(NamedTuple):
    """What belongs to channels: cuda_src/common/plane_sets.cuh.

    Attributes
    ----------
    given : int
        Which parameters there are.
    slots : list of int
        Of what is found, then of the parameters.
    size : int
        Elements of a set.
    channels, groups : int
        Of a set, and sets of one of the n.
    found, steps : list of int
        Strides of what is found, and of the parameters.
    left : bool
        Whether what is found of a set is an output.
    """

    given: int
    slots: list[int]
    size: int
    channels: int
    groups: int
    found: list[int]
    steps: list[int]
    left: bool

    def numbers(self, packer: Packer) -> None:
        """Append what is not a pointer."""
        packer.add("d", max(self.size, 1)).add("q", *self.found, *self.steps)
        packer.add("i", self.channels).extents(max(self.groups, 1), code="I")


def parameters_of(call: Call, of: Sets, shares: int) -> Parameters:
    """Those of a call, with the workspace for the shares that each of the n leaves."""
    names = ["mean", "var"] * of.given + ["weight", "bias", "dmean", "dvar"]
    views = [v for v in map(call.given, names) if v is not None]
    given = _WEIGHT * of.weighted
    given |= _BIAS * (call.given("bias") is not None)
    given |= _PULLS * (call.given("dmean") is not None)
    outs = [call.out(i) for i in range(1, len(call.problem.outputs))]
    # What is not there has the place of the first output.
    none = call.out().slot
    slots = [call.workspace(shares)] * 2 if of.shared else [v.slot for v in outs] or [none] * 2
    return Parameters(
        given,
        slots + ([v.slot for v in views] or [none]),
        of.channels * of.s * (1 if of.groups else of.n),
        of.channels,
        of.groups,
        [v.strides[0] for v in outs] or [0, 0],
        [v.strides[0] for v in views] or [0],
        not of.groups and bool(outs),
    )
