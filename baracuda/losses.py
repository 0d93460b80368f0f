"""What losses share: their forms, and what becomes of what each element costs.

A form of its own has the result of ``reduction="none"``. Gradients are those of `x`; where a
framework differentiates a target too, it does so through the body.
"""

from __future__ import annotations

import math
from functools import partial

from baracuda.check import choice
from baracuda.dtypes import FLOATS
from baracuda.layouts import Shape
from baracuda.libraries import Array, library_of
from baracuda.op import op
from baracuda.spec import Case

CASES = (
    Case({"s": (37,)}),
    Case({"s": (4, 33)}, reduction="none"),
    Case({"s": (2, 3, 5)}, reduction="sum"),
)
PROBABILITY = (0.05, 0.95)

_loss = partial(
    op, category="loss", dtypes=FLOATS, options={"reduction": choice("mean", "sum", "none")},
    elementwise=True, inplace=True, cases=CASES,
)  # fmt: skip
forward = partial(
    _loss,
    "x[*s], target[*s] -> loss[*s] if reduction=none",
    "x[*s], target[*s] -> loss[] if reduction!=none",
)
"""Declares a loss of pairs of elements."""
backward = partial(
    _loss,
    "dloss[*s], x[*s], target[*s] -> dx[*s] if reduction=none",
    "dloss[], x[*s], target[*s] -> dx[*s] if reduction!=none",
)
"""Declares its gradient."""


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
