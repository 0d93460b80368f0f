"""What becomes of many losses: their sum, their mean, or all of them; and which rows count."""

from __future__ import annotations

import math
from typing import Any

from baracuda.layouts import Shape
from baracuda.libraries import Array, library_of


def reduced(losses: Array, reduction: str) -> Array:
    """The sum or the mean of all, or all; the mean of nothing is NaN."""
    if reduction == "none":
        return losses
    total = library_of(losses).xp.sum(losses)
    return total / parts(losses.shape, reduction) if "mean" in reduction else total


def classes(target: Array, v: int, ignore_index: int) -> tuple[Array, Array]:
    """Which targets count: are one of `v` classes, and not to be ignored; and which, else 0."""
    library = library_of(target)
    xp = library.xp
    counts = library.differs(target, ignore_index) & (target >= 0) & (target < v)
    native = xp.__array_namespace_info__().default_dtypes()["indexing"]
    return counts, xp.astype(xp.where(counts, target, 0), native, copy=False)


def picked(x: Array, at: Array, axis: int) -> Array:
    """`x` where `at` points along an axis; 0 where there is nothing along it."""
    library = library_of(x)
    if x.shape[axis] == 0:
        return library.xp.zeros(at.shape, dtype=x.dtype, device=library.device_of(x))
    return library.xp.take_along_axis(x, at, axis=axis)


def largest(x: Array, axis: int) -> Array:
    """The largest along an axis, which stays; 0 where there is nothing along it.

    Derivatives take it for a constant: results relative to it do not depend on it. The derivative
    of a maximum divides by the number of elements that equal it. A compiler that computes `x`
    twice, in other bits, finds none.
    """
    library = library_of(x)
    # Namespaces have no largest of nothing, but its sum.
    most = library.xp.max if x.shape[axis] else library.xp.sum
    return most(library.constant(x), axis=axis, keepdims=True)


def hits(at: Array, axis: int, v: int) -> Array:
    """Where along an axis, of which `at` has an extent of 1, the class is that of `at`."""
    library = library_of(at)
    every = library.xp.arange(v, dtype=at.dtype, device=library.device_of(at))
    return library.xp.reshape(every, (v, *(1,) * (at.ndim - axis - 1))) == at


def shares(weight: Array | None, counts: Array, at: Array, dtype: Any) -> tuple[Array, Array]:
    """What each row counts, its class's weight or 1, and the sum over all rows."""
    xp = library_of(at).xp
    if weight is None:
        number = xp.astype(xp.sum(xp.astype(counts, xp.int32)), dtype)
        return xp.astype(counts, dtype), number
    beside = xp.reshape(weight, (*(1,) * at.ndim, -1))
    each = xp.squeeze(picked(beside, xp.expand_dims(at, axis=-1), -1), axis=-1)
    each = xp.where(counts, each, 0)
    return each, xp.sum(each)


def parts(shape: Shape, reduction: str) -> int:
    """By how many a sum over an array of this shape is divided; 1 where it stays a sum."""
    if reduction == "batchmean":
        return shape[0] if shape else 1
    return math.prod(shape) if reduction == "mean" else 1


def share(dloss: Array, x: Array, reduction: str) -> Array:
    """The cotangent of what each element of `x` costs."""
    return dloss / parts(x.shape, reduction) if "mean" in reduction else dloss
