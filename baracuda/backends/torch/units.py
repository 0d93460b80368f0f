"""Activations and gates, by few passes over arrays that nobody else has."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from baracuda.backends.torch.adapters import WIDE, Namesake, Serve, function, whole
from baracuda.calls import body
from baracuda.declaration.spec import Problem
from baracuda.layouts import contiguous, overlaps_itself
from baracuda.libraries import Array

_NONE = {dtype: torch.zeros((), dtype=dtype) for dtype in (torch.float32, torch.float64)}
_ROOT, _DENSITY = math.sqrt(0.5), 1 / math.sqrt(2 * math.pi)
_SCALE, _CUBE = math.sqrt(8 / math.pi), 0.044715
# Below it the root of 1/2, rounded, shows in more than 8 roundings of a gate.
_TAIL = -2.75
_gelu_backward, _kept = function("gelu_backward"), function("threshold_backward")


def _times(x: Array, y: Array, factor: float, out: Array | None = None) -> Array:
    """The product of three in one pass."""
    return torch.addcmul(_NONE[x.dtype], x, y, value=factor, out=out)


def _tail(x: Array) -> Array:
    """Twice the weight of `x` in its `gelu`."""
    return torch.mul(x, -_ROOT).erfc_()


def gelu(x: Array, /, *, approximate: str) -> Array:
    """By the complementary error function, or a sigmoid: neither cancels below 0."""
    if approximate == "none":
        weight = _tail(x)
        return _times(weight, x, 0.5, weight)
    weight = torch.mul(x, x).mul_(_SCALE * _CUBE).add_(_SCALE).mul_(x).sigmoid_()
    return weight.mul_(x)


def _softsign(x: Array) -> Array:
    divisor = torch.abs(x).add_(1)
    return torch.div(x, divisor, out=divisor)


def _reglu(a: Array, b: Array) -> Array:
    return torch.relu(b).mul_(a)


def _reglu_backward(dy: Array, a: Array, b: Array) -> tuple[Array, Array]:
    return torch.relu(b).mul_(dy), _kept(dy * a, b, 0)


def _slopes(dy: Array, x: Array) -> Array:
    """The gradient of `gelu` from the complementary error function."""
    slope = _tail(x).mul_(0.5)
    return slope.addcmul_(x, torch.mul(x, x).mul_(-0.5).exp_(), value=_DENSITY).mul_(dy)


def _geglu(a: Array, b: Array, *, approximate: str) -> Array:
    return gelu(b, approximate=approximate).mul_(a)


def _geglu_backward(dy: Array, a: Array, b: Array, *, approximate: str) -> tuple[Array, Array]:
    if approximate == "tanh":
        da, db = gelu(b, approximate=approximate), _gelu_backward(dy, b, approximate=approximate)
        return da.mul_(dy), db.mul_(a)
    at = torch.mul(b, -_ROOT)
    weight = torch.erfc(at)
    da = _times(weight, b, 0.5).mul_(dy)
    slope = weight.addcmul_(b, _times(at, at, -1.0, at).exp_(), value=2 * _DENSITY)
    return da, _times(slope, a, 0.5, slope).mul_(dy)


def _unit(
    name: str, compute: Serve, *options: str, tail: int | None = None, few: Serve | None = None
) -> Namesake:
    """What `compute` makes of arrays, halves of one of them apart.

    Parameters
    ----------
    name : str
        The function below `torch.ops.aten`.
    compute : callable
    *options : str
        Those that it takes.
    tail : int, optional
        The array that decides which elements the body computes: all, from 1e30 on and at NaN.
    few : callable, optional
        What computes them in float64 instead, for results of float32 and no approximation.
    """

    def serving(problem: Problem) -> Serve:
        evaluate, (split, join) = body.evaluator(problem), _halves(problem)
        # oneDNN takes no array whose elements share memory.
        lie = [(0, x.shape, x.strides or contiguous(x.shape), 1) for x in problem.given]
        precise = few if problem.options.get("approximate") == "none" else None
        folded = [i for i, memory in enumerate(lie) if overlaps_itself(memory)]

        def serve(*given: Array, **every: Any) -> Any:
            arrays = split([x.contiguous() if i in folded else x for i, x in enumerate(given)])
            least, most = (0.0, 0.0) if tail is None else arrays[tail].aminmax()
            if not most < 1e30:
                return None
            made = compute(*arrays, **{name: every[name] for name in options})
            results = made if type(made) is tuple else (made,)
            if tail is not None and least < _TAIL:
                # NumPy finds the few in half the time.
                at = torch.from_numpy(np.flatnonzero(arrays[tail].detach().numpy() < _TAIL))
                parts = [x.take(at) for x in arrays]
                if precise is None or parts[0].dtype == torch.float64:
                    exact = evaluate(parts, {})
                else:
                    exact = tuple([x.float() for x in precise(*[x.double() for x in parts])])
                for y, values in zip(results, exact, strict=True):
                    y.put_(at, values)
            return join(results)

        return serve

    return Namesake(name, serving, WIDE, corrected=tail is not None, suits=whole)


def _halves(problem: Problem) -> tuple[Serve, Serve]:
    """What takes the halves of a packed array apart, and what joins results of such."""
    packed, options = problem.spec.packed, problem.options
    if packed is None or problem.inputs[problem.spec.arrays.index(packed.other)] is not None:
        return lambda arrays: arrays, lambda results: results if results[1:] else results[0]
    at = problem.spec.arrays.index(packed.array)
    axis, order = options[packed.axis], slice(None, None, -1 if options[packed.first] else 1)

    def split(arrays: list[Array]) -> list[Array]:
        return [*arrays[:at], *arrays[at].chunk(2, axis)[order]]

    def join(results: tuple[Array, ...]) -> Array:
        return torch.cat(results[order], axis) if results[1:] else results[0]

    return split, join


UNITS = {
    "gelu": Namesake("erfc", lambda problem: gelu, WIDE),
    "gelu_backward": _unit(
        "gelu_backward",
        _gelu_backward,
        "approximate",
        tail=1,
        few=lambda dy, x: (_slopes(dy, x),),
    ),
    "softsign": Namesake("div", lambda problem: _softsign, WIDE),
    "reglu": _unit("relu", _reglu),
    "reglu_backward": _unit("threshold_backward", _reglu_backward),
    "geglu": _unit(
        "erfc",
        _geglu,
        "approximate",
        tail=1,
        few=lambda a, b: (_geglu(a, b, approximate="none"),),
    ),
    "geglu_backward": _unit(
        "erfc",
        _geglu_backward,
        "approximate",
        tail=2,
        few=lambda dy, a, b: _geglu_backward(dy, a, b, approximate="none"),
    ),
}
"""The functions that serve them."""
