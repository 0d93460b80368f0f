"""Rows of an array by their numbers, and sums of rows: an index stands for one axis of an array."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod
from typing import Any

from baracuda.declaration.shapes import Axes
from baracuda.errors import value_error
from baracuda.families.numerics import joined, scatter_add
from baracuda.layouts import Shape
from baracuda.libraries import Array, library_of


def looked_up(x: Array, index: Array, axis: int, checked: bool) -> Array:
    """Elements of `x` along an axis, an index for each; 0 for an entry out of range.

    `checked`: where it can be read, its range was looked at before.
    """
    library = library_of(x)
    xp, n = library.xp, x.shape[axis]
    if n == 0:
        return xp.zeros(index.shape, dtype=x.dtype, device=library.device_of(x))
    if checked and library.readable(index):
        return library.take(x, index, axis)
    valid = inside(index, n)
    out = library.take(x, xp.where(valid, index, 0), axis)
    return xp.where(valid, out, xp.zeros_like(out))


def taken(x: Array, index: Array, axis: int, checked: bool = False) -> Array:
    """`x` with the axes of `index` in the place of `axis`; zeros for an entry out of range.

    `checked`: where the index can be read, its range was looked at before.
    """
    library = library_of(x)
    xp, n = library.xp, x.shape[axis]
    lead, rest = x.shape[:axis], x.shape[axis + 1 :]
    shape = (*lead, *index.shape, *rest)
    if n == 0:
        return xp.zeros(shape, dtype=x.dtype, device=library.device_of(x))
    # A pass over the index is short beside one over the rows.
    in_range = library.readable(index) and (checked or library.spans(index, n))
    valid = None if in_range else inside(index, n)
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


def latest(index: Array, axis: int, extent: int) -> Array | None:
    """The number along an axis of the last entry that points to each place, -1 where none does.

    None where the library has no way of its own. Other axes are those of the index.
    """
    library = library_of(index)
    if not library.combined or 0 in index.shape or not extent:
        return None
    shape = (*index.shape[:axis], extent + 1, *index.shape[axis + 1 :])
    # Behind the last place is one for what is out of range.
    at = library.xp.where(inside(index, extent), index, extent)
    # Of entries for one place the numbers ascend, so the last is the largest.
    last = library.combined(_numbers(index, axis), at, axis, shape, "last", -1)
    return last[(*(slice(None),) * axis, slice(extent))]


def _numbers(index: Array, axis: int) -> Array:
    """The number of each entry of an index along an axis."""
    xp, behind = library_of(index).xp, index.ndim - axis - 1
    along = xp.arange(index.shape[axis], dtype=index.dtype, **_there(index))
    return xp.broadcast_to(xp.reshape(along, (-1, *(1,) * behind)), index.shape)


def lasting(index: Array, axis: int, extent: int) -> tuple[Array, Array | None]:
    """Which entries are the last of their line along an axis to point to a place; and `latest`."""
    library, valid, last = library_of(index), inside(index, extent), latest(index, axis, extent)
    xp = library.xp
    if 0 in index.shape or not extent:
        return valid, None
    if last is not None:
        at = library.take(last, xp.where(valid, index, 0), axis)
        return valid & (at == _numbers(index, axis)), last
    before = (slice(None),) * axis
    first, rest, but_last = (
        (*before, cut, ...) for cut in (slice(1), slice(1, None), slice(None, -1))
    )  # fmt: skip
    order = xp.argsort(index, axis=axis, stable=True)
    keys = xp.take_along_axis(index, order, axis=axis)
    ends = xp.astype(keys[rest] != keys[but_last], index.dtype)
    ends = xp.concat([ends, xp.ones_like(keys[first])], axis=axis)
    ends = xp.take_along_axis(ends, xp.argsort(order, axis=axis), axis=axis)
    return valid & (ends > 0), None


def distinct(index: Array, extent: int) -> tuple[Array, Array]:
    """The distinct entries in range, ascending, and `extent` for as many as are left.

    And which of them each entry is, along one axis: -1 for an entry out of range.
    """
    xp = library_of(index).xp
    flat = xp.reshape(index, (-1,))
    if not flat.shape[0]:
        return flat, flat
    keys = xp.where(inside(flat, extent), flat, extent)
    order = xp.argsort(keys, stable=True)
    along = xp.take(keys, order, axis=0)
    fresh = xp.astype(along[1:] != along[:-1], index.dtype)
    fresh = xp.concat([xp.ones_like(along[:1]), fresh])
    numbers = xp.cumulative_sum(fresh, axis=0, dtype=index.dtype) - 1
    place = xp.take(numbers, xp.argsort(order), axis=0)
    entries = xp.sort(xp.where(fresh > 0, along, extent))
    return entries, xp.where(keys < extent, place, -1)


def segments(op: str, axes: Axes, options: Mapping[str, Any]) -> dict[str, int]:
    """The extent n that the option `num_segments` gives."""
    return {"n": extent_given(op, "num_segments", options["num_segments"])}


def destinations(op: str, axes: Axes, options: Mapping[str, Any]) -> dict[str, int]:
    """The extent n that the option `num_rows` gives: one row for each entry of a map by default."""
    rows = options["num_rows"]
    entries: Any = prod([axes[name] for name in "tk"])
    return {"n": entries if rows is None else extent_given(op, "num_rows", rows)}


def padding(op: str, axes: Axes, options: Mapping[str, Any]) -> dict[str, int]:
    """See that the row of padding is one of the table."""
    row, rows = options["padding_idx"], axes["n"]
    if row is not None and not 0 <= row < rows:
        raise value_error(op, "padding_idx", f"None, or 0 <= padding_idx < {rows}", row)
    return {}


def extent_given(op: str, option: str, n: int) -> int:
    """An extent that an option gives, checked."""
    if n < 0:
        raise value_error(op, option, "an integer >= 0", n)
    # Kernels hold a size in 32 bits.
    if n >= 1 << 31:
        raise value_error(op, option, "an integer < 2**31", n)
    return n


def inside(index: Array, n: int) -> Array:
    """Which entries are in range."""
    return (index >= 0) & (index < n)


def of_rows(each: Array, x: Array) -> Array:
    """One entry for each row of `x`, beside its trailing axes."""
    return library_of(each).xp.reshape(each, (*each.shape, *(1,) * (x.ndim - each.ndim)))


def highest(values: Array, index: Array, extent: int) -> Array:
    """The largest of the rows that have the same entry of an index, for each; -inf where none."""
    library = library_of(values)
    xp, shape, there = library.xp, (extent, *values.shape[1:]), _there(values)
    if 0 in shape or not index.shape[0]:
        return xp.full(shape, -inf, dtype=values.dtype, **there)
    valid = inside(index, extent)
    found = library.highest(values, xp.where(valid, index, extent), extent)
    if found is not None:
        return found
    values = xp.where(of_rows(valid, values), values, -inf)
    at = _beside(xp.where(valid, index, 0), (), shape[1:])
    return joined(values, at, 0, shape, xp.maximum, -inf)


def combined(
    values: Array, index: Array, axis: int, shape: Shape, how: str = "max"
) -> tuple[Array, Array]:
    """The maximum or product of what lands in each place along an axis, and how much lands.

    Where nothing does, -inf or 1. Entries out of range land nowhere.
    """
    library, there = library_of(values), _there(values)
    xp, none = library.xp, -inf if how == "max" else 1.0
    valid = inside(index, shape[axis])
    many = scatter_add(xp.astype(valid, values.dtype), index, axis, shape)
    if 0 in shape or 0 in index.shape:
        return xp.full(shape, none, dtype=values.dtype, **there), many
    values, at = xp.where(valid, values, none), xp.where(valid, index, 0)
    found = library.combined and library.combined(values, at, axis, shape, how, none)
    if found is None:
        join = xp.maximum if how == "max" else xp.multiply
        found = joined(values, at, axis, shape, join, none)
    return found, many


def counted(index: Array, extent: int, like: Array) -> Array:
    """How many entries of an index have each value, beside the trailing axes of `like`."""
    xp = library_of(like).xp
    ones = xp.ones((*index.shape, *(1,) * (like.ndim - 1)), dtype=like.dtype, **_there(like))
    return added(ones, index, 0, extent)


def _beside(index: Array, lead: tuple[int, ...], rest: tuple[int, ...]) -> Array:
    """An index along one axis, the same for all others."""
    xp, entries = library_of(index).xp, prod(index.shape)
    line = xp.reshape(index, (*(1,) * len(lead), entries, *(1,) * len(rest)))
    return xp.broadcast_to(line, (*lead, entries, *rest))


def _there(x: Array) -> dict[str, object]:
    device = library_of(x).device_of(x)
    return {} if device is None else {"device": device}
