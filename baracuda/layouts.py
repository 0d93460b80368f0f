"""Strides: which layouts are dense, which are the same, and which overlap in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np

Shape: TypeAlias = tuple[int, ...]

Numbering: TypeAlias = Callable[[Shape, Mapping[str, Any]], Shape]
"""``(shape, options)`` of a call to the strides of the numbers that its elements have."""

Part: TypeAlias = tuple[Any, ...]
"""The extents of a whole array, then where a part of it begins along each axis."""

# Beyond this many steps the exact overlap test gives up and the answer is "may overlap".
_OVERLAP_WORK = 20_000
# Beyond so many elements an array whose rows interlock counts as one that overlaps itself.
_PLACES = 1 << 16


def contiguous(shape: Shape) -> Shape:
    """The C-order strides of `shape`, in elements."""
    try:
        return _known(shape)
    except TypeError:  # symbolic extents have no hash
        return _contiguous(shape)


def numbers_of(
    shape: Shape, options: Mapping[str, Any], numbering: Numbering | None = None
) -> tuple[Shape, int]:
    """Strides of the numbers that elements have in the whole array, and the first number.

    Parameters
    ----------
    shape : tuple of int
    options : mapping
        Those of a call; its ``part``, if there is one, says where the array lies in the whole.
    numbering : callable, optional
        Gives the strides where elements share numbers.
    """
    rank, part = len(shape), options.get("part") or (*shape, *(0,) * len(shape))
    strides = numbering(part[:rank], options) if numbering else contiguous(part[:rank])
    return strides, sum(n * step for n, step in zip(part[rank:], strides, strict=True))


def _contiguous(shape: Shape) -> Shape:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


# A plan asks for the same ones several times.
_known = lru_cache(maxsize=1024)(_contiguous)


def canonical(shape: Shape, strides: Shape | None) -> Shape | None:
    """None for C order, else the strides with those of axes of extent 1 set to 0.

    An axis of extent 1 is never stepped along, and an empty array never read, so their strides
    make no difference to any kernel.
    """
    if strides is None or 0 in shape:
        return None
    dense = contiguous(shape)
    if strides == dense or all(
        n == 1 or have == want for n, have, want in zip(shape, strides, dense, strict=True)
    ):
        return None
    return tuple(0 if n == 1 else s for n, s in zip(shape, strides, strict=True))


def dense_order(shape: Shape, strides: Shape) -> tuple[int, ...] | None:
    """The axes from the slowest to the fastest where the elements fill a block, else None."""
    order = sorted(range(len(shape)), key=lambda i: (bool(shape[i] != 1), -strides[i], i))
    step = 1
    for i in reversed(order):
        if shape[i] != 1 and strides[i] != step:
            return None
        step *= shape[i]
    return tuple(order)


def in_order(shape: Shape, order: Sequence[int]) -> Shape:
    """The dense strides of `shape` whose axes run from slowest to fastest as `order` says."""
    strides = [0] * len(shape)
    permuted = contiguous(tuple(shape[i] for i in order))
    for axis, step in zip(order, permuted, strict=True):
        strides[axis] = step
    return tuple(strides)


def kind(shape: Shape, strides: Shape | None) -> str:
    """``contiguous``, ``dense`` or ``strided``, of canonical strides."""
    if strides is None:
        return "contiguous"
    return "strided" if dense_order(shape, strides) is None else "dense"


def least_regular(arrays: Iterable[tuple[Shape, Shape | None]]) -> str:
    """The last of these words that is true of one of the arrays."""
    kinds = {kind(shape, strides) for shape, strides in arrays if strides is not None}
    return "strided" if "strided" in kinds else "dense" if kinds else "contiguous"


class _Phantom:
    """An array interface over an address that is never read."""

    def __init__(self, address: int, shape: Shape, strides: Shape, itemsize: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{itemsize}",
            "shape": shape,
            "strides": strides,
            "data": (address, True),
        }


Memory: TypeAlias = tuple[int, Shape, Shape, int]
"""Address, shape, strides in bytes, bytes per element."""


def overlap(a: Memory, b: Memory) -> bool:
    """Whether any byte belongs to both arrays; True where that is too costly to decide."""
    if 0 in a[1] or 0 in b[1]:
        return False
    (begin, end), (start, stop) = reached(a), reached(b)
    if end <= start or stop <= begin:
        return False
    try:
        return bool(
            np.shares_memory(
                np.asarray(_Phantom(*a)),
                np.asarray(_Phantom(*b)),
                max_work=_OVERLAP_WORK,  # type: ignore[arg-type]
            )
        )
    except np.exceptions.TooHardError:
        return True


def reached(memory: Memory) -> tuple[int, int]:
    """The addresses of the first byte of an array and of the first one behind it."""
    low, high = _reach(*memory[1:])
    return memory[0] + low, memory[0] + high


@lru_cache(maxsize=4096)
def _reach(shape: Shape, strides: Shape, itemsize: int) -> tuple[int, int]:
    """From the address of an array to its first byte, and to the first one behind it."""
    reach = [step * (extent - 1) for step, extent in zip(strides, shape, strict=True)]
    return sum([r for r in reach if r < 0]), itemsize + sum([r for r in reach if r > 0])


def overlaps_itself(memory: Memory) -> bool:
    """Whether two elements of one array share memory (a stride of 0, a sliding window)."""
    return _folded(*memory[1:])


@lru_cache(maxsize=4096)
def _folded(shape: Shape, strides: Shape, itemsize: int) -> bool:
    if 0 in shape:
        return False
    steps = sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1)
    reach = itemsize
    for step, extent in steps:
        if step < reach:
            break
        reach = step * (extent - 1) + reach
    else:
        return False
    if prod(shape) > _PLACES:
        return True
    # Rows that interlock: whether two elements are apart, each tells by its own address.
    places = np.zeros((), np.int64)
    for step, extent in steps:
        places = np.add.outer(places, step * np.arange(extent))
    return bool(np.any(np.diff(np.sort(places, axis=None)) < itemsize))
