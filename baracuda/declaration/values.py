"""What options and run-time values may be: functions that read a value, or refuse it by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from numbers import Integral, Real
from sys import float_info
from typing import Any, ClassVar, TypeAlias

import numpy as np

from baracuda.declaration.dtypes import FLOATS, name_of
from baracuda.declaration.spec import Normaliser, OpSpec
from baracuda.errors import shown, type_error, value_error

# One more than the largest integer of 64 bits.
_TOP = 1 << 63
# Of the dtypes in which ops compute: the least normal number, which XLA takes what is smaller for
# 0; the largest divisor that loses no more by that than a unit in the last place of 1; the largest.
_RANGES = {
    "float32": (2.0**-126, 2.0**103, (2 - 2.0**-23) * 2.0**127),
    "float64": (float_info.min, 2.0**970, float_info.max),
}
_ALWAYS = (0.0, math.inf, -math.inf)

Numbers: TypeAlias = Sequence[float] | np.ndarray
"""Several numbers that are known on the host."""


def _integral(op: str, name: str, value: Any) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise type_error(op, name, "an integer", shown(value))
    return int(value)


def integer(op: str, name: str, value: Any) -> int:
    """An integer, of Python or NumPy, or an extent of a graph that is not known yet."""
    if type(value).__name__ == "SymInt":
        return value  # type: ignore[no-any-return]
    number = _integral(op, name, value)
    if not -_TOP <= number < _TOP:
        raise value_error(op, name, "an integer of 64 bits", shown(value))
    return number


def flag(op: str, name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise type_error(op, name, "True or False", shown(value))
    return value


@dataclass(frozen=True, slots=True)
class Number:
    """A real number, of Python or NumPy; NaN only where there are no bounds.

    Attributes
    ----------
    code : str
        How kernels get it, as `struct` has it.
    dtypes : tuple of str
        Those of an array that may stand for it.
    text : str
        What is expected.
    bounds : tuple of float or None
        The least and the largest, both included.
    zero : bool
        Whether 0 is within the bounds.
    inf : bool
        Whether infinity is taken beside the bounds.
    divides : bool
        Whether something may be divided by it: then it is neither tiny nor huge.
    floor : str
        An option of the same op that it may not lie below.
    exact : bool
        Whether bodies get an array of it in float64 as it is: they form a difference that the
        accumulate dtype would round away.
    """

    code: ClassVar[str] = "d"
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float64")
    text: str = "a real number"
    bounds: tuple[float, float] | None = None
    zero: bool = True
    inf: bool = False
    divides: bool = False
    floor: str = ""
    exact: bool = False

    def __call__(self, op: str, name: str, value: Any) -> float:
        if not isinstance(value, Real) or isinstance(value, bool):
            hint = "float(x) reads an array of one element" if hasattr(value, "dtype") else ""
            raise type_error(op, name, "a real number", shown(value), hint)
        try:
            number = float(value)
        except OverflowError:
            raise value_error(op, name, "a number within float64", shown(value)) from None
        if self.bounds is not None:
            least, largest = self.bounds
            fits = least <= number <= largest or (self.inf and number == math.inf)
            if not fits or not (number or self.zero):
                raise value_error(op, name, self.text, shown(value))
        return number


@dataclass(frozen=True, slots=True)
class Whole:
    """A run-time value that is an integer of 64 bits, which kernels get as one.

    Attributes
    ----------
    least, largest : int
        Both included.
    code : str
        "q", or "Q" for one without a sign: then a negative number is what its bits stand for.
    dtypes : tuple of str
        Those of an array that may stand for it.
    """

    dtypes: ClassVar[tuple[str, ...]] = ("int32", "int64", "uint32", "uint64")
    least: int
    largest: int
    code: str = "q"

    def __call__(self, op: str, name: str, value: Any) -> int:
        number = _integral(op, name, value)
        if not self.least <= number <= self.largest:
            expected = f"an integer from {self.least} to {self.largest}"
            raise value_error(op, name, expected, shown(value))
        return number % (2 * _TOP) if self.code == "Q" else number


seed = Whole(-_TOP, 2 * _TOP - 1, "Q")
"""Any 64 bits."""

probability = Number("a number from 0 to 1", (0.0, 1.0), exact=True)
"""What random words are compared with: a bound of 32 bits follows from it."""

counting = Whole(1, _TOP - 1)
"""An integer from 1 on, such as the number of a step."""

real = Number()
"""Any real number, infinities and NaN included."""

_FINITE = (-float_info.max, float_info.max)
finite = Number("a finite number", _FINITE)
"""Neither an infinity nor NaN."""

nonzero = Number("a finite number other than 0", _FINITE, zero=False, divides=True)
"""A real number that something is divided by."""

ordered = Number("a number, not NaN", (-math.inf, math.inf))
"""A real number that something is compared with."""

exponent = Number(
    "a number > 0, at most 131072 or infinite", (0.0, 2.0**17), zero=False, inf=True, divides=True
)
"""The exponent of a norm; beyond 2^17 powers of what is scaled to about 1 are out of range."""


def at_least(floor: str) -> Number:
    """A real number that is not below the option `floor`; neither is NaN."""
    return Number(floor=floor)


def positive(*, zero: bool = False) -> Number:
    """A finite number above 0, 0 included where `zero`."""
    text = f"a finite number >{'=' * zero} 0"
    return Number(text, (0.0, float_info.max), zero, divides=True)


def between(low: float, high: float) -> Number:
    """A real number from `low` to `high`."""
    return Number(f"a number from {low} to {high}", (low, high))


def inside(low: float, high: float) -> Number:
    """A real number between `low` and `high`, which float32 tells apart from both."""
    gap = (high - low) * 2.0**-24
    return Number(f"a number > {low} and < {high}, by 2**-24 at least", (low + gap, high - gap))


def choice(*values: Any) -> Normaliser:
    """One of `values`."""

    def normalise(op: str, name: str, value: Any) -> Any:
        if not any(type(v) is type(value) and v == value for v in values):
            raise value_error(op, name, "one of " + ", ".join(map(repr, values)), shown(value))
        return value

    return normalise


def optional(inner: Normaliser) -> Normaliser:
    """None, or what `inner` takes."""
    return lambda op, name, value: None if value is None else inner(op, name, value)


def dtype(op: str, name: str, value: Any) -> str:
    """A floating dtype: its name, or any library's object for it."""
    # Anything else is not even printed: it may be an array, or a number of any length.
    kind = type(value).__name__.lower()
    is_name = isinstance(value, str) or "dtype" in kind
    found = value.__name__ if isinstance(value, type) else name_of(value) if is_name else ""
    if found not in FLOATS:
        raise value_error(op, name, f"one of {', '.join(FLOATS)}", shown(value))
    return found


def sizes(count: int) -> Normaliser:
    """An integer >= 1 for all of `count` axes, or one for each."""

    def normalise(op: str, name: str, value: Any) -> tuple[int, ...]:
        many = tuple(value) if isinstance(value, (tuple, list)) else (value,) * count
        many = tuple(integer(op, name, v) for v in many)
        if len(many) != count:
            raise value_error(op, name, f"{count} sizes", value)
        if min(many) < 1:
            raise value_error(op, name, "sizes >= 1", value)
        # Kernels hold a size in 32 bits, and strides are its multiples.
        if max(many) >= 1 << 31:
            raise value_error(op, name, "sizes < 2**31", value)
        return many

    return normalise


def numbers(op: str, name: str, value: Any) -> tuple[float, ...]:
    """Finite numbers: a sequence of them, or a NumPy array of one axis."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = value.tolist()
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        hint = "x.tolist() reads an array of one axis" if hasattr(value, "dtype") else ""
        raise type_error(
            op, name, "a tuple of numbers, or a NumPy array of them", shown(value), hint
        )
    return tuple([finite(op, name, number) for number in value])


def part(op: str, name: str, value: Any) -> tuple[int, ...]:
    """Integers >= 0: the extents of a whole array, then where a part begins along each axis."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise type_error(op, name, "a tuple of integers", shown(value))
    extents = tuple(integer(op, name, v) for v in value)
    if min(extents, default=0) < 0:
        raise value_error(op, name, "extents >= 0", extents)
    return extents


def shape(op: str, name: str, value: Any) -> tuple[int, ...]:
    """A shape: integers >= 0."""
    extents = part(op, name, value)
    if math.prod([n for n in extents if type(n) is int]) >= _TOP:
        raise value_error(op, name, "a shape of fewer than 2**63 elements", extents)
    return extents


def in_graphs(parameters: Sequence[Parameter], spec: OpSpec) -> dict[str, Callable[[int], Any]]:
    """How an integer goes into torch's graphs, by name of the option.

    They take a number for each axis, none for all of them, and no integer without a sign.
    """
    axes = {p.name: str(p.annotation).partition("int | tuple")[2].count("int") for p in parameters}
    out: dict[str, Callable[[int], Any]] = {n: partial(_repeated, k) for n, k in axes.items() if k}
    words = zip(spec.scalars, spec.codes, strict=True)
    return out | {name: _signed for name, code in words if code == "Q"}


def _repeated(count: int, value: int) -> tuple[int, ...]:
    return (value,) * count


def _signed(value: int) -> int:
    return value - 2 * _TOP if value >= _TOP else value


def within(spec: OpSpec, compute: str, values: Mapping[str, Any]) -> None:
    """See that the dtype in which an op computes holds the numbers among its options.

    Libraries differ in what a number beyond it means: an infinity, an error, or NaN.
    """
    if compute not in _RANGES:
        return
    least, divisor, largest = _RANGES[compute]
    for name, value in values.items():
        if type(value) is not float or least <= abs(value) <= divisor or value in _ALWAYS:
            continue
        normaliser = spec.options.get(name) or spec.scalars[name]
        if getattr(normaliser, "divides", False):
            expected = f"a number of {least:.3g} to {divisor:.3g} in size (in {compute})"
            raise value_error(spec.name, name, expected, value)
        if abs(value) > largest:
            raise value_error(spec.name, name, f"a number within {compute}", value)
