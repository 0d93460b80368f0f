"""An axis along which an op may be cut at the price of a collective of small arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Part(NamedTuple):
    """What one device has of an axis.

    Attributes
    ----------
    first : int
        Where it begins; traced, where one program is for all devices.
    extent : int
        That of the whole axis.
    widest : int
        The largest extent of any part.
    gathered : callable
        ``(x) -> array [parts, *x.shape]``: what all devices have, in the same order on each. A
        collective: all devices call it equally often, with arrays of one shape and dtype.
    """

    first: Any
    extent: int
    widest: int
    gathered: Callable[[Any], Any]


class Collective(NamedTuple):
    """How an op is computed where one of its axes is cut.

    Results that have the axis are cut along it. Of the others a gradient is a part of a sum, and
    what is no gradient is there as a whole.

    Attributes
    ----------
    axis : str
        A single axis.
    cut : tuple of str
        The inputs that are cut along it. All others are there as a whole.
    run : callable
        ``(part, *arrays, **options) -> results`` of one part: arrays in the places of those that
        the op takes, structural options, run-time values and dispatch options by keyword. Whoever
        runs it checks these, and rounds the results, which may be wider.
    """

    axis: str
    cut: tuple[str, ...]
    run: Callable[..., Any]
