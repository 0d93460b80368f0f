"""Steps of optimisers: numbers that are formed before anything is rounded, and results."""

from __future__ import annotations

import math
from typing import Any

from baracuda.families.numerics import plus, traced
from baracuda.families.philox import stochastic
from baracuda.libraries import Array, library_of


def rest(beta: Any, like: Array) -> Any:
    """1 - beta in the accumulate dtype, formed before anything is rounded to that."""
    one = 1 - beta
    return library_of(like).xp.astype(one, like.dtype) if traced(beta) else one


def held(beta: Any, like: Array) -> Any:
    """A value that keeps its own dtype, in the accumulate dtype."""
    return library_of(like).xp.astype(beta, like.dtype) if traced(beta) else beta


def correction(beta: Any, one: Any, step: Any, like: Array) -> Any:
    """1 - beta**step, from ``one = 1 - beta``: the power itself would cancel."""
    xp = library_of(like).xp
    if traced(beta):
        power = step * xp.log1p(-one)
    else:
        power = step * (math.log1p(-one) if one < 1 else -math.inf)
    return -(xp.expm1(power) if traced(beta) or traced(step) else math.expm1(power))


def unscaled(grad: Array, grad_scale: Any) -> Array:
    return grad if not traced(grad_scale) and grad_scale == 1 else grad / grad_scale


def done(
    found_inf: Any, copy: bool, random: tuple[bool, Any, Any], new: tuple[Array, ...],
    old: tuple[Array, ...],
) -> tuple[Array, ...] | Array:  # fmt: skip
    """The results: what is new or, of a step that is skipped, what was.

    `random` says whether the parameter is rounded stochastically, by which seed and offset.
    """
    xp = library_of(old[0]).xp
    if random[0]:
        new = (stochastic(new[0], 0, *random[1:]), *new[1:])
    if traced(found_inf):
        new = tuple([xp.where(found_inf != 0, x, y) for x, y in zip(old, new, strict=True)])
    elif found_inf != 0:
        new = tuple([xp.astype(x, x.dtype, copy=True) for x in old])
    new += (xp.astype(new[0], new[0].dtype, copy=True),) if copy else ()
    return new if len(new) > 1 else new[0]


def adam_step(
    param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, lr: Any, beta1: Any, beta2: Any,
    eps: Any, step: Any,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Adam's step without weight decay."""
    rest1, rest2 = rest(beta1, grad), rest(beta2, grad)
    m = plus(held(beta1, grad) * exp_avg, grad, rest1)
    v = plus(held(beta2, grad) * exp_avg_sq, grad * grad, rest2)
    rate = lr / correction(beta1, rest1, step, grad)
    unit = correction(beta2, rest2, step, grad) ** -0.5
    root = library_of(grad).xp.sqrt(v) * unit
    return plus(param, m / (root + eps), -rate), m, v
