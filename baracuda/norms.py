"""What norms share: how they are declared, and their formulas, with a residual or without."""

from __future__ import annotations

from functools import partial

from baracuda.check import real
from baracuda.libraries import Array, library_of
from baracuda.op import op
from baracuda.spec import Case, Kernel

norm = partial(
    op,
    category="norm",
    scalars={"eps": real},
    cases=(
        Case({"b": (3,), "n": 8}),
        Case({"b": (), "n": 5}, eps=0.5),
        Case({"b": (2, 3), "n": 4}),
    ),
)
"""Declares a norm of the last axis, or its gradient."""


def kernel(functor: str) -> Kernel:
    """Where the kernel of a norm is."""
    return Kernel("norm.cu", functor, schedule="rows")


def _mean(x: Array) -> Array:
    """Along the last axis, which stays."""
    return library_of(x).xp.sum(x, axis=-1, keepdims=True) / max(x.shape[-1], 1)


def _mean_product(x: Array, y: Array) -> Array:
    """The mean of the products along the last axis, which stays."""
    return library_of(x).dot(x, y) / max(x.shape[-1], 1)


def _summed(x: Array) -> Array:
    """Over all axes but the last, of which there may be none."""
    x = x[None, ...]
    return library_of(x).xp.sum(x, axis=tuple(range(x.ndim - 1)))


def _rms(x: Array, eps: float) -> Array:
    """One over the root of the mean square."""
    return 1 / library_of(x).xp.sqrt(_mean_product(x, x) + eps)


def rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    """`x` over the root of the mean square of its last axis."""
    y = x * _rms(x, eps)
    return y if weight is None else y * weight


def rms_norm_backward(dy: Array, x: Array, weight: Array | None, eps: float) -> tuple[Array, ...]:
    """The gradients of `rms_norm` to x, and to the weight where there is one."""
    inverse = _rms(x, eps)
    pulled = dy if weight is None else dy * weight
    along = _mean_product(pulled, x) * inverse * inverse
    dx = inverse * (pulled - x * along)
    return (dx,) if weight is None else (dx, _summed(dy * (x * inverse)))


def _centred(x: Array, eps: float) -> tuple[Array, Array]:
    """The normalised rows, and one over their standard deviations."""
    # Twice: the mean of a row far from 0 is rounded by more than its elements differ.
    d = x - _mean(x)
    d = d - _mean(d)
    inverse = 1 / library_of(x).xp.sqrt(_mean_product(d, d) + eps)
    return d * inverse, inverse


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """`x` less the mean of its last axis, over the deviation."""
    y = _centred(x, eps)[0]
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def layer_norm_backward(dy: Array, x: Array, weight: Array | None, eps: float) -> tuple[Array, ...]:
    """The gradients of `layer_norm` to x, and to weight and bias where there is a weight."""
    normal, inverse = _centred(x, eps)
    pulled = dy if weight is None else dy * weight
    along = _mean_product(pulled, normal)
    dx = inverse * (pulled - _mean(pulled) - normal * along)
    return (dx,) if weight is None else (dx, _summed(dy * normal), _summed(dy))
