"""Rows of an array by their numbers, and sums of rows: an index stands for one axis of an array."""

from __future__ import annotations

from math import prod

from baracuda.families.numerics import scatter_add
from baracuda.libraries import Array, library_of


def taken(x: Array, index: Array, axis: int, in_range: bool = False) -> Array:
    """`x` with the axes of `index` in the place of `axis`; zeros for an entry out of range.

    `in_range`: it is known that there is none.
    """
    library = library_of(x)
    xp, n = library.xp, x.shape[axis]
    lead, rest = x.shape[:axis], x.shape[axis + 1 :]
    shape = (*lead, *index.shape, *rest)
    if n == 0:
        return xp.zeros(shape, dtype=x.dtype, device=library.device_of(x))
    valid = (index >= 0) & (index < n)
    at = index if in_range else xp.where(valid, index, 0)
    rows = library.lookup(x, at, axis)
    if rows is None:
        rows = library.take(x, _beside(at, lead, rest), axis)
    if in_range:
        return xp.reshape(rows, shape)
    valid = xp.reshape(valid, (*(1,) * len(lead), *index.shape, *(1,) * len(rest)))
    return xp.where(valid, xp.reshape(rows, shape), xp.zeros((), dtype=x.dtype, **_there(x)))


def added(values: Array, index: Array, axis: int, extent: int) -> Array:
    """The transpose of `taken`: sums of `values` along an axis of that extent."""
    library = library_of(values)
    xp = library.xp
    if (sums := library.added(values, index, axis, extent)) is not None:
        return sums
    lead, rest = values.shape[:axis], values.shape[axis + index.ndim :]
    values = xp.reshape(values, (*lead, prod(index.shape), *rest))
    return scatter_add(values, _beside(index, lead, rest), axis, (*lead, extent, *rest))


def _beside(index: Array, lead: tuple[int, ...], rest: tuple[int, ...]) -> Array:
    """An index along one axis, the same for all others."""
    xp, entries = library_of(index).xp, prod(index.shape)
    line = xp.reshape(index, (*(1,) * len(lead), entries, *(1,) * len(rest)))
    return xp.broadcast_to(line, (*lead, entries, *rest))


def _there(x: Array) -> dict[str, object]:
    device = library_of(x).device_of(x)
    return {} if device is None else {"device": device}
