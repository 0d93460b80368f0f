"""How a function of torch is called in the place of a body: one adapter for ops of one shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Problem
from baracuda.libraries import Array

Serve: TypeAlias = Callable[..., Any]
"""``(*arrays, **options) -> result``; None where the definition has another value."""

Arguments: TypeAlias = Callable[..., tuple[Any, ...]]
"""``(*arrays, **options)`` of an op -> the arguments of a function of torch."""

WIDE = ("float32", "float64")
"""Where torch rounds numbers of 16 bits more than once, or what it keeps between two steps."""


def whole(problem: Problem) -> bool:
    """Whether no array is empty."""
    return all(x.size for x in problem.given)


@dataclass(frozen=True, slots=True)
class Namesake:
    """A function of torch that computes an op, to the same accuracy and at the same edges.

    Attributes
    ----------
    name : str
        The function below `torch.ops.aten`.
    serving : callable
        For a problem, what calls it with the arrays and options of the op.
    dtypes : tuple of str
        The dtypes in which it rounds as the contract says. Of others it takes 16 bits as float32.
    writes : bool
        Whether what `serving` makes takes ``out=``, the tensor to write into.
    corrected : bool
        Whether values decide that the body computes some elements, or the whole.
    suits : callable
        Whether it takes a problem.
    checks : bool
        Whether it raises an error itself for an entry of an index that is out of range.
    """

    name: str
    serving: Callable[[Problem], Serve]
    dtypes: tuple[str, ...] = FLOATS
    writes: bool = False
    corrected: bool = False
    suits: Callable[[Problem], bool] = lambda problem: True
    checks: bool = False


def function(name: str) -> Any:
    """The overload of aten that makes a tensor, `name` with its overload behind a dot."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _writer(name: str) -> tuple[Any, str]:
    """The overload that writes into one given tensor, and its keyword; None where there is none."""
    packet = getattr(torch.ops.aten, name.partition(".")[0])
    takes = [a.type for a in function(name)._schema.arguments]
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        outs = [a.name for a in schema.arguments if a.is_out]
        if len(outs) == 1 and [a.type for a in schema.arguments if not a.is_out] == takes:
            return getattr(packet, overload), outs[0]
    return None, ""


def pointwise(
    name: str,
    arguments: Arguments | None = None,
    dtypes: tuple[str, ...] = FLOATS,
    nan: int | None = None,
) -> Namesake:
    """A function of one tensor result, all of whose arrays have the result's shape.

    Parameters
    ----------
    name : str
        The function below `torch.ops.aten`, and its overload.
    arguments : callable, optional
        By default the arrays.
    dtypes : tuple of str
        As in `Namesake`.
    nan : int, optional
        The array of which torch takes a NaN in two ways: in its vectors as the definition does, in
        the elements behind the last vector as another number. With one the body runs.
    """
    new, (into, keyword) = function(name), _writer(name)

    def serve(*arrays: Array, out: Array | None = None, **options: Any) -> Any:
        if nan is not None and has_nan(arrays[nan]):
            return None
        given = arrays if arguments is None else arguments(*arrays, **options)
        return new(*given) if out is None else into(*given, **{keyword: out})

    return Namesake(
        name.partition(".")[0], lambda problem: serve, dtypes, into is not None, nan is not None
    )


def has_nan(x: Array) -> bool:
    """Whether there is a NaN, or infinities of both signs: one pass, which reads only."""
    total = x.sum().item()
    return bool(total != total)


def rows(
    name: str,
    serve: Serve,
    dtypes: tuple[str, ...] = FLOATS,
    suits: Callable[[Problem], bool] = whole,
    corrected: bool = False,
    checks: bool = False,
) -> Namesake:
    """What `serve` makes of arrays that are not empty, by the function called `name`."""
    return Namesake(
        name, lambda problem: serve, dtypes, corrected=corrected, suits=suits, checks=checks
    )


def wide(x: Any) -> Any:
    """An array in the accumulate dtype, where there is one."""
    return x.float() if x is not None and x.dtype in (torch.float16, torch.bfloat16) else x


REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}
"""torch's numbers for what becomes of losses."""


_LEAST = {torch.float32: 2.0**-149, torch.float64: 2.0**-1074}


def pairs(name: str, *scalars: str, sharp: bool = False) -> Namesake:
    """A loss of pairs, or its gradient: ``(*arrays, reduction, *scalars)``.

    Parameters
    ----------
    name : str
        The function below `torch.ops.aten`.
    *scalars : str
        Run-time values that it takes.
    sharp : bool
        Whether a bend may be as narrow as nothing: torch gets the least number for 0.
    """
    new = function(name)

    def serve(*arrays: Array, reduction: str, **options: Any) -> Any:
        values = [options[name] for name in scalars]
        if sharp:
            least = _LEAST[arrays[-1].dtype]
            values = [max(value, least) for value in values]
        return new(*arrays, REDUCTIONS[reduction], *values)

    return Namesake(name, lambda problem: serve, WIDE)
