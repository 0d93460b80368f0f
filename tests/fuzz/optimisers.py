"""Formulas of steps of optimisers, as their papers and torch's documentation have them."""

from __future__ import annotations

from typing import Any

import torch

from .formulas import formula


def _done(t: Any, o: Any, states: tuple[str, ...], *new: Any) -> tuple[Any, ...]:
    """The results; of a step that is skipped, what came in."""
    if o["found_inf"] != 0:
        new = tuple(t[name].clone() for name in ("param", *states))
    return (*new, new[0]) if o["copy"] else new


@formula("adam")
def adam(t: Any, o: Any) -> tuple[Any, ...]:
    return _adam(t, o, False)


@formula("adamw")
def adamw(t: Any, o: Any) -> tuple[Any, ...]:
    return _adam(t, o, True)


def _adam(t: Any, o: Any, decoupled: bool) -> tuple[Any, ...]:
    p, g = t["param"], t["grad"] / o["grad_scale"]
    g = g if decoupled else g + o["weight_decay"] * p
    m = o["beta1"] * t["exp_avg"] + (1 - o["beta1"]) * g
    v = o["beta2"] * t["exp_avg_sq"] + (1 - o["beta2"]) * g**2
    m_hat, v_hat = m / (1 - o["beta1"] ** o["step"]), v / (1 - o["beta2"] ** o["step"])
    p = p * (1 - o["lr"] * o["weight_decay"]) if decoupled else p
    new = p - o["lr"] * m_hat / (torch.sqrt(v_hat) + o["eps"])
    return _done(t, o, ("exp_avg", "exp_avg_sq"), new, m, v)


@formula("sgd")
def sgd(t: Any, o: Any) -> tuple[Any, ...]:
    p = t["param"]
    g = t["grad"] / o["grad_scale"] + o["weight_decay"] * p
    if "momentum_buffer" not in t:
        return _done(t, o, (), p - o["lr"] * g)
    b = o["momentum"] * t["momentum_buffer"] + (1 - o["dampening"]) * g
    along = g + o["momentum"] * b if o["nesterov"] else b
    return _done(t, o, ("momentum_buffer",), p - o["lr"] * along, b)


@formula("lion")
def lion(t: Any, o: Any) -> tuple[Any, ...]:
    p, g, m = t["param"], t["grad"] / o["grad_scale"], t["exp_avg"]
    c = o["beta1"] * m + (1 - o["beta1"]) * g
    # The sign of what is no number is none.
    along = torch.where(torch.isnan(c), c, torch.sign(c))
    new = p * (1 - o["lr"] * o["weight_decay"]) - o["lr"] * along
    return _done(t, o, ("exp_avg",), new, o["beta2"] * m + (1 - o["beta2"]) * g)


@formula("sum_of_squares")
def sum_of_squares(t: Any, o: Any) -> tuple[Any, ...]:
    return (torch.sum(t["x"] ** 2),)


@formula("clip_scale")
def clip_scale(t: Any, o: Any) -> tuple[Any, ...]:
    norm = torch.sqrt(t["squares"]) / o["grad_scale"]
    finite = torch.isfinite(norm)
    # Gradients that are no finite numbers stay as they are: such a step is skipped.
    factor = torch.clamp((norm + o["eps"]) / o["max_norm"], min=1).where(finite, 1)
    return norm, factor * o["grad_scale"], (~finite).to(norm.dtype)


@formula("scale_by")
def scale_by(t: Any, o: Any) -> tuple[Any, ...]:
    return (t["x"] * o["factor"],)


@formula("ema")
def ema(t: Any, o: Any) -> tuple[Any, ...]:
    return (t["average"] + (1 - o["decay"]) * (t["value"] - t["average"]),)
