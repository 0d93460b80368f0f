"""What the arrays of an op are: values, indices, masks or counters.

An op's block says it beside the shapes, for each array that is not a plain value:
``roles={"target": index("v", ignored="ignore_index"), "mask": mask()}``. Every part that needs to
know what an array is asks its role, never its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from baracuda.declaration.dtypes import named

Kind: TypeAlias = Literal["value", "integer", "index", "mask"]
Wide: TypeAlias = Literal["", "parameter", "residual", "cotangent", "table"]


@dataclass(frozen=True, slots=True)
class Role:
    """What one array of an op is, in every form that takes it.

    Attributes
    ----------
    kind : {"value", "integer", "index", "mask"}
        A value has the dtype of the problem and may be differentiated. An integer or index is int32
        or int64, and a mask is bool, True where something counts.
    below : str
        Of an index: the axis whose extent its entries lie below.
    policy : str
        Of an index: the option that says what an entry out of range does, "raise" or "drop".
    ignored : str
        Of an index: the option that holds the one entry that is in range everywhere.
    skipped : str
        Of an index: the option that holds the one entry of which nothing is added up, or None.
    counts : str
        Of an integer: the axis along which it is 0, 1, ... where it is not given.
    ascends : bool
        Of an integer: its entries ascend, as offsets do.
    between : tuple of float or None
        The least and the largest value that tests and benchmarks draw, both included by an integer.
    alike : str
        Of a value: the input whose gradient is its own too, since only the sum of both matters; or
        the result whose cotangent is its gradient, since it is added to that.
    wide : {"", "parameter", "residual", "cotangent", "table"}
        Of a value: it may have the accumulate dtype of the problem instead of its dtype, as all
        others of its kind that are given: float32 parameters, or a float32 residual stream, beside
        16-bit activations. "": it may not.
    typed_as : str
        Of a result: the input whose dtype it has, and whose layout where the op keeps layouts; the
        primal by default. In place it may be no other input, unless the op is elementwise.
    accumulated : bool
        Of a result: it has the accumulate dtype of the problem, as losses of 16-bit inputs do.
    chosen : str
        Of a result: the option that names its dtype; that of the primal where it names none.
    dtype : str
        Of a result: the dtype it has whatever the inputs have, such as "int64" of positions.
    total : bool
        Of a result: it is a sum over what the inputs have beside it, as gradients of parameters
        are. A given output may keep it in the accumulate dtype.
    metric : bool
        Of a result: it is a number to look at. Nothing flows back from it, as from positions.
    """

    kind: Kind = "value"
    below: str = ""
    policy: str = ""
    ignored: str = ""
    skipped: str = ""
    counts: str = ""
    ascends: bool = False
    between: tuple[float, float] | None = None
    alike: str = ""
    wide: Wide = ""
    typed_as: str = ""
    accumulated: bool = False
    chosen: str = ""
    dtype: str = ""
    total: bool = False
    metric: bool = False

    @property
    def flows(self) -> bool:
        """Of a result: whether it has a cotangent."""
        return not (self.metric or self.dtype)

    def result(self, dtype: str, inputs: Mapping[str, str], options: Mapping[str, Any]) -> str:
        """The dtype of a result beside a primal of `dtype`, and inputs of theirs."""
        if asked := options.get(self.chosen):
            return str(asked)
        own = self.dtype or inputs.get(self.typed_as, dtype)
        return named(own).accumulate if self.accumulated else own


VALUE = Role()
"""What an array is of which a block says nothing."""


def value(low: float, high: float) -> Role:
    """A value, which is meaningful from `low` to `high`."""
    return Role(between=(low, high))


def parameter(low: float | None = None, high: float | None = None) -> Role:
    """A value that may be float32 beside 16-bit ones."""
    return Role(between=None if low is None or high is None else (low, high), wide="parameter")


def residual(like: str = "") -> Role:
    """A value of a residual stream, which may be float32 beside 16-bit ones.

    Its gradient is its own, or that of the input `like` where only the sum of both matters, or the
    cotangent of the result `like` that it is added to.
    """
    return Role(alike=like, wide="residual")


def table() -> Role:
    """A value that a model makes once for all layers, and may keep in float32 beside 16 bits."""
    return Role(wide="table")


def cotangent() -> Role:
    """The cotangent of a loss, which may be float32 beside 16-bit inputs, as the loss is."""
    return Role(wide="cotangent")


def accumulated() -> Role:
    """A result in the accumulate dtype of the problem."""
    return Role(accumulated=True)


def metric(accumulated: bool = True) -> Role:
    """A result in the accumulate dtype, or that of the problem; nothing flows back from it."""
    return Role(accumulated=accumulated, metric=True)


def chosen(option: str) -> Role:
    """A result of the dtype that an option names."""
    return Role(chosen=option)


def typed_as(name: str) -> Role:
    """A result that has the dtype, and may have the layout and the memory, of the input `name`."""
    return Role(typed_as=name)


def total(typed_as: str = "") -> Role:
    """A result that is a sum, of the dtype of the primal or of the input `typed_as`."""
    return Role(typed_as=typed_as, total=True)


def positions() -> Role:
    """A result of int64, of 32 bits where the library holds no more; nothing flows back from it."""
    return Role("integer", dtype="int64")


def like(name: str) -> Role:
    """A value whose gradient is that of the input `name`."""
    return Role(alike=name)


def index(below: str, *, policy: str = "mode", ignored: str = "", skipped: str = "") -> Role:
    """An integer that points along the axis `below`."""
    return Role("index", below, policy, ignored, skipped)


def integer(low: int | None = None, high: int | None = None) -> Role:
    """An integer of any size, or one from `low` to `high`."""
    return Role("integer", between=None if low is None or high is None else (low, high))


def ascending(low: int, high: int) -> Role:
    """An integer whose entries ascend, from `low` to `high` in tests."""
    return Role("integer", ascends=True, between=(low, high))


def counter(axis: str) -> Role:
    """An integer of any size, which counts along `axis` where it is not given."""
    return Role("integer", counts=axis)


def mask() -> Role:
    """A boolean array, True where something counts."""
    return Role("mask")
