"""What becomes of many losses: their sum, their mean, or all of them."""

from __future__ import annotations

import math

from baracuda.layouts import Shape
from baracuda.libraries import Array, library_of


def reduced(losses: Array, reduction: str) -> Array:
    """The sum or the mean of all, or all; the mean of nothing is NaN."""
    if reduction == "none":
        return losses
    total = library_of(losses).xp.sum(losses)
    return total / parts(losses.shape, reduction) if "mean" in reduction else total


def parts(shape: Shape, reduction: str) -> int:
    """By how many a sum over an array of this shape is divided; 1 where it stays a sum."""
    if reduction == "batchmean":
        return shape[0] if shape else 1
    return math.prod(shape) if reduction == "mean" else 1


def share(dloss: Array, x: Array, reduction: str) -> Array:
    """The cotangent of what each element of `x` costs."""
    return dloss / parts(x.shape, reduction) if "mean" in reduction else dloss
