"""Steps of optimisers as one would write them without baracuda, for the benchmark."""

from __future__ import annotations

from typing import Any

from baracuda.libraries import Array


def _moments(
    xp: Any, param: Array, grad: Array, m: Array, v: Array, step: int
) -> tuple[Array, ...]:
    """Adam's step with the defaults, without weight decay."""
    m = 0.9 * m + 0.1 * grad
    v = 0.999 * v + 0.001 * grad * grad
    root = xp.sqrt(v) * (1 - 0.999**step) ** -0.5
    return param - 1e-3 / (1 - 0.9**step) * (m / (root + 1e-8)), m, v


def adamw(
    xp: Any, param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, *, step: int
) -> tuple[Array, ...]:
    return _moments(xp, (1 - 1e-3 * 0.01) * param, grad, exp_avg, exp_avg_sq, step)


def adam(
    xp: Any, param: Array, grad: Array, exp_avg: Array, exp_avg_sq: Array, *, step: int
) -> tuple[Array, ...]:
    return _moments(xp, param, grad, exp_avg, exp_avg_sq, step)


def sgd(
    xp: Any, param: Array, grad: Array, momentum_buffer: Array, *, momentum: float
) -> tuple[Array, ...]:
    buffer = momentum * momentum_buffer + grad
    return param - 1e-3 * buffer, buffer


def lion(xp: Any, param: Array, grad: Array, exp_avg: Array) -> tuple[Array, ...]:
    along = xp.sign(0.9 * exp_avg + 0.1 * grad)
    return param - 1e-4 * along, 0.99 * exp_avg + 0.01 * grad


def ema(xp: Any, average: Array, value: Array, *, decay: float) -> Array:
    return average + (1 - decay) * (value - average)


def sum_of_squares(xp: Any, x: Array) -> Array:
    return xp.sum(x * x)


def clip_scale(xp: Any, squares: Array, *, max_norm: float) -> tuple[Array, ...]:
    norm = xp.sqrt(squares)
    excess = (norm + 1e-6) / max_norm
    finite = xp.isfinite(norm)
    return norm, xp.where(finite & (excess > 1), excess, 1.0), 1.0 - finite * 1.0


def scale_by(xp: Any, x: Array, *, factor: float) -> Array:
    return x * factor


EXPRESSIONS = (adamw, adam, sgd, lion, ema, sum_of_squares, clip_scale, scale_by)
