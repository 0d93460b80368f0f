"""Rotations of pairs, by angles that are computed or read from tables: what ropes share."""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from baracuda.declaration.shapes import Axes
from baracuda.errors import value_error
from baracuda.families.indexing import taken
from baracuda.libraries import Array, library_of


class Frequencies(NamedTuple):
    """How far each pair turns from one position to the next: given, or powers of a base.

    Attributes
    ----------
    base : float
    given : tuple of float or None
    factor : float
        What cosines and sines are multiplied by.
    """

    base: float
    given: Any = None
    factor: float = 1.0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Frequencies:
        """Those that the options of an op say."""
        factor = options.get("attention_factor", 1.0)
        return cls(options["base"], options.get("frequencies"), factor)

    def turns(self, count: int, bits: int) -> tuple[int, ...]:
        """The frequencies of `count` pairs in turns, modulo 1, in units of 2^-bits."""
        return _turns(self.base, self.given, count, bits)


@lru_cache(maxsize=64)
def _turns(base: float, given: tuple[float, ...] | None, count: int, bits: int) -> tuple[int, ...]:
    """`Frequencies.turns`."""
    exact = decimal.Decimal(base)
    # A base below 1 has frequencies with that many digits before the point.
    before = (
        [-exact.adjusted()] if given is None else [decimal.Decimal(f).adjusted() for f in given]
    )
    digits = 70 + max([0, *before])
    with decimal.localcontext(decimal.Context(prec=digits)):
        circle = decimal.Decimal(2 * _pi(digits)).scaleb(-digits)
        if given is None:
            log = exact.ln()
            angles = [(-log * i / count).exp() for i in range(count)]
        else:
            angles = [decimal.Decimal(f) for f in given]
        units = [(angle * (1 << bits) / circle).to_integral_value() for angle in angles]
    return tuple([int(unit) % (1 << bits) for unit in units])


def _pi(digits: int) -> int:
    """Pi times 10**digits, by Machin's formula: 16 atan(1/5) - 4 atan(1/239)."""
    total = 0
    for weight, x in ((16, 5), (-4, 239)):
        term, odd = weight * 10 ** (digits + 10) // x, 1
        while abs(term) > 1:
            total += term // odd
            term, odd = -term // (x * x), odd + 2
    return total // 10**10


@lru_cache(maxsize=64)
def _pieces(frequencies: Frequencies, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The frequencies of pairs in turns, whole ones left out, in two forms.

    As float64 of [3, count]: two pieces of 21 bits and the rest. As int32 of [2, 3, count]: turns
    per position and per 2^16 positions, as three signed 15-bit limbs.
    """
    pieces = np.empty((3, count), np.float64)
    limbs = np.empty((2, 3, count), np.int32)
    for i, exactly in enumerate(frequencies.turns(count, 96)):
        for piece, (shift, bits) in enumerate(((75, 21), (54, 21), (0, 54))):
            pieces[piece, i] = math.ldexp((exactly >> shift) & ((1 << bits) - 1), shift - 96)
        turns = (exactly + (1 << 34)) >> 35
        for part in (0, 1):
            units = turns if part else (turns + (1 << 15)) >> 16
            for limb in (2, 1, 0):
                digit = ((units + (1 << 14)) & 0x7FFF) - (1 << 14)
                limbs[part, limb, i] = digit
                units = (units - digit) >> 15
    return pieces, limbs


def rotary_dim(name: str, axes: Axes, options: dict[str, Any]) -> dict[str, int]:
    """Complete `rotary_dim`: two for each given frequency, or the extent of the last axis."""
    d: Any = axes["d"]
    given = options.get("frequencies")
    if options["rotary_dim"] is None:
        options["rotary_dim"] = d if given is None else 2 * len(given)
    size = options["rotary_dim"]
    if size % 2 or not 0 <= size <= d:
        expected = f"an even number from 0 to d = {d}"
        raise value_error(name, "rotary_dim", expected, size, axes)
    if given is not None and len(given) != size // 2:
        expected = f"{size // 2} numbers (rotary_dim={size})"
        raise value_error(name, "frequencies", expected, f"{len(given)} of them", axes)
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
    x: Array, positions: Array | None, frequencies: Frequencies, size: int, axis: int
) -> tuple[Array, Array]:
    """cos and sin of the angles of pairs, of the rank of `x`; positions count along `axis`."""
    library, extent, bound = library_of(x), x.shape[axis], None
    if positions is None:
        positions, bound = library.xp.arange(extent, device=library.device_of(x)), extent
    if positions.ndim == 1:
        positions = library.xp.reshape(positions, (-1,) + (1,) * (x.ndim - 2 - axis))
    # The frequencies of a symbolic number of pairs could not be looked up.
    return _rotations(positions, frequencies, int(size) // 2, x, bound)


def _rotations(
    positions: Array, frequencies: Frequencies, count: int, like: Array, bound: int | None
) -> tuple[Array, Array]:
    """cos and sin of ``positions * frequencies``, along a new last axis.

    The phase is reduced exactly, in integers or, for float64, in pieces of 21 bits whose products
    with a position are exact: below an eps of error at every position below 2^31 in size.

    Parameters
    ----------
    positions : array of int32 or int64
    frequencies : Frequencies
    count : int
        How many of them.
    like : array
        Gives dtype and device.
    bound : int or None
        Known bound: every position is in ``0 <= p < bound``.
    """
    library = library_of(like)
    xp, device = library.xp, library.device_of(like)
    pieces, limbs = _pieces(frequencies, count)
    if like.dtype == xp.float64:
        table = xp.asarray(pieces, dtype=xp.float64, device=device)
        products = xp.astype(positions, xp.float64)[..., None, None] * table
        first, second, small = (products[..., piece, :] for piece in range(3))
        turns = (first - xp.round(first)) + (second - xp.round(second))
        turns = turns - xp.round(turns)
        quarters = xp.round(4 * turns)
        quarter = xp.astype(quarters, xp.int32)
        rest = ((turns - quarters * 0.25) + small) * (2 * math.pi)
    else:
        table = xp.asarray(limbs, dtype=xp.int32, device=device)
        positions = xp.astype(positions, xp.int32, copy=False)[..., None, None]
        if bound is not None and bound <= 1 << 16:
            columns = positions * table[0, ...]
        else:
            low = ((positions & 0xFFFF) ^ 0x8000) - 0x8000
            high = (positions >> 16) + ((positions >> 15) & 1)
            columns = low * table[0, ...] + high * table[1, ...]
        # The columns count 2^-15, 2^-30 and 2^-45 turns; no sum here leaves the range of int32.
        phase = ((columns[..., 0, :] & 0x7FFF) << 15) + columns[..., 1, :]
        phase = (phase + (columns[..., 2, :] >> 15)) & 0x3FFFFFFF
        quarter = (phase + (1 << 27)) >> 28
        rest = xp.astype(phase - (quarter << 28), xp.float32) * (math.pi * 2.0**-29)
    cos, sin = xp.cos(rest), xp.sin(rest)
    ahead = xp.astype(1 - (quarter & 2), rest.dtype)
    across = ahead * xp.astype(quarter & 1, rest.dtype)
    ahead = ahead - across
    cos, sin = cos * ahead - sin * across, sin * ahead + cos * across
    if frequencies.factor == 1:
        return cos, sin
    return cos * frequencies.factor, sin * frequencies.factor


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
            table = taken(table, positions, 0, checked)
        if table.ndim == 2 < x.ndim:
            inner = (1,) * (x.ndim - 2 - axis)
            table = xp.reshape(table, (table.shape[0], *inner, size // 2))
        out.append(table)
    cos, sin = out
    if cos.shape != sin.shape:
        cos, sin = xp.broadcast_arrays(cos, sin)
    return cos, sin


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
