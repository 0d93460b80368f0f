"""Rotations of pairs, by angles that are computed or read from tables: what ropes share."""

from __future__ import annotations

from typing import Any

from baracuda.declaration.shapes import Axes
from baracuda.errors import value_error
from baracuda.families.numerics import rotations
from baracuda.libraries import Array, library_of


def rotary_dim(name: str, axes: Axes, options: dict[str, Any]) -> dict[str, int]:
    """Complete `rotary_dim` by the extent of the last axis."""
    d: Any = axes["d"]
    if options["rotary_dim"] is None:
        options["rotary_dim"] = d
    size = options["rotary_dim"]
    if size % 2 or not 0 <= size <= d:
        expected = f"an even number from 0 to d = {d}"
        raise value_error(name, "rotary_dim", expected, size, axes)
    return {}


def table_dim(name: str, axes: Axes, options: dict[str, Any]) -> dict[str, int]:
    """The same beside tables, which have one entry or two for each pair."""
    derived = rotary_dim(name, axes, options)
    size, entries = options["rotary_dim"], axes["r"]
    if entries not in (size // 2, size):
        expected = f"{size // 2} or {size} entries along the last axis (rotary_dim={size})"
        hint = "rotary_dim= is all of d by default"
        raise value_error(name, "cos", expected, f"{entries} of them", axes, hint)
    return derived


def computed(
    x: Array, positions: Array | None, base: float, size: int, axis: int
) -> tuple[Array, Array]:
    """cos and sin of the angles of pairs, of the rank of `x`; positions count along `axis`."""
    library, extent, bound = library_of(x), x.shape[axis], None
    if positions is None:
        positions, bound = library.xp.arange(extent, device=library.device_of(x)), extent
    if positions.ndim == 1:
        positions = library.xp.reshape(positions, (-1,) + (1,) * (x.ndim - 2 - axis))
    # The frequencies of a symbolic number of pairs could not be looked up.
    return rotations(positions, base, int(size) // 2, x, bound=bound)


def read(
    x: Array, tables: tuple[Array, Array], positions: Array | None, interleaved: bool, size: int,
    axis: int, checked: bool,
) -> tuple[Array, Array]:  # fmt: skip
    """The same from tables; of two entries for each pair the first one counts.

    Positions out of range give 0; `checked`: those at hand have been found to be in range.
    """
    library = library_of(x)
    xp = library.xp
    out = []
    for table in tables:
        if table.shape[-1] != size // 2:
            table = table[..., ::2] if interleaved else table[..., : size // 2]
        if positions is not None:
            table = _rows(table, positions, checked and library.readable(positions))
        if table.ndim == 2 < x.ndim:
            inner = (1,) * (x.ndim - 2 - axis)
            table = xp.reshape(table, (table.shape[0], *inner, size // 2))
        out.append(table)
    cos, sin = out
    if cos.shape != sin.shape:
        cos, sin = xp.broadcast_arrays(cos, sin)
    return cos, sin


def _rows(table: Array, positions: Array, in_range: bool) -> Array:
    """The rows of a table that positions point to, 0 for those out of range."""
    library, extent = library_of(table), table.shape[0]
    xp, shape = library.xp, (*positions.shape, table.shape[-1])
    if extent == 0:
        return xp.zeros(shape, dtype=table.dtype, device=library.device_of(table))
    at = xp.reshape(positions, (-1, 1))
    valid = (at >= 0) & (at < extent)
    at = at if in_range else xp.where(valid, at, xp.zeros_like(at))
    rows = library.take(table, xp.broadcast_to(at, (at.shape[0], table.shape[-1])), 0)
    if not in_range:
        rows = xp.where(valid, rows, xp.zeros_like(rows))
    return xp.reshape(rows, shape)


def turned(
    x: Array, angles: tuple[Array, Array], interleaved: bool, size: int, back: bool
) -> Array:
    """Rotate the pairs of the first `size` entries of `x` by their angles, or `back`."""
    library, (cos, sin) = library_of(x), angles
    if back:
        sin = -sin
    if interleaved:
        y = library.turned(x[..., :size], cos, sin)
    else:
        first, second = x[..., : size // 2], x[..., size // 2 : size]
        y = library.halves(first * cos - second * sin, first * sin + second * cos, x[..., :size])
    return y if size == x.shape[-1] else library.xp.concat([y, x[..., size:]], axis=-1)


def paired(name: str, axes: Axes) -> None:
    """See that q and k differ along one axis at most, and angles do not change along that one.

    The groups of q are b and h, those of k c and g; what angles come from has i and j, or u and v.

    Raises
    ------
    ValueError
        Where they do.
    """
    apart, moving = list[str](), False
    for q, k, *sources in (("b", "c", "i", "u"), ("h", "g", "j", "v")):
        every: list[Any] = [axes[group] for group in (q, k, *sources) if group in axes]
        if len({*map(len, every)}) > 1:
            expected = "arrays of the same number of axes"
            raise value_error(name, "axes", expected, " and ".join(map(str, every)), axes)
        for m, n, *angles in zip(*every, strict=True):
            if any(extent not in (1, m) for extent in angles):
                expected = f"an extent of 1 or {m} along an axis of positions or tables"
                raise value_error(name, "axes", expected, max(angles), axes)
            if m != n:
                apart.append(f"{m} and {n}")
                moving |= any(extent != 1 for extent in angles)
    if len(apart) > 1:
        expected = "two arrays alike but along one axis, that of heads"
        raise value_error(name, "axes", expected, ", ".join(apart), axes)
    if moving:
        expected = "two arrays alike along every axis along which positions or tables change"
        raise value_error(name, "axes", expected, apart[0], axes)
