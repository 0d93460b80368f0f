"""Formulas of what acts on each element: activations, gated units, interpolation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy import special

from .formulas import FORMULAS, Formula, formula
from .philox import masks, whole

SQRT = math.sqrt(2 / math.pi)
# The polynomials of PPND7, from the highest power on.
QUANTILE = (
    ([59.109374720, 159.29113202, 50.434271938, 3.3871327179],
     [67.187563600, 78.757757664, 17.895169469, 1.0]),
    ([0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777],
     [0.12021132975, 0.73700164250, 1.0]),
    ([0.017337203997, 0.42868294337, 3.0812263860, 6.6579051150],
     [0.012258202635, 0.24197894225, 1.0]),
)  # fmt: skip
SELU, SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


def _elementwise(op: str, function: Callable[..., Any], *names: str) -> None:
    FORMULAS[op] = lambda t, o: (function(t["x"], *(o[n] for n in names)),)


def _slope(op: str, function: Callable[..., Any], at: str = "x", *names: str) -> None:
    """``dy`` times a slope."""
    FORMULAS[f"{op}_backward"] = lambda t, o: (
        t["dy"] * torch.as_tensor(function(t[at], *(o[n] for n in names))),
    )


_elementwise("relu6", F.relu6)
_elementwise("hardtanh", lambda x, low, high: x.clamp(low, high), "min_val", "max_val")
_elementwise("hardsigmoid", F.hardsigmoid)
_elementwise("hardswish", F.hardswish)
_elementwise("elu", F.elu, "alpha")
# NaN at NaN, where torch's slope is 1.
_slope("elu", lambda x, a: torch.where(x > 0, 1.0, a * torch.exp(x)), "x", "alpha")
_elementwise("selu", F.selu)
_slope("selu", lambda x: torch.where(x > 0, 1.0, SELU * torch.exp(x)) * SCALE)
# torch's quotient by alpha is one in float32, and so is its sixth.
_elementwise("celu", lambda x, a: torch.where(x > 0, x, a * torch.expm1(x / a)), "alpha")
_slope("celu", lambda x, a: torch.where(x > 0, 1.0, torch.exp(x / a)), "x", "alpha")
_elementwise("relu", F.relu)
_elementwise("leaky_relu", F.leaky_relu, "negative_slope")
_elementwise("threshold", F.threshold, "threshold", "value")
_elementwise("silu", F.silu)
_elementwise("mish", F.mish)
_elementwise("hardshrink", F.hardshrink, "lambd")
_elementwise("softshrink", F.softshrink, "lambd")
_elementwise("sigmoid", torch.sigmoid)
_elementwise("log_sigmoid", F.logsigmoid)
_elementwise("tanh", torch.tanh)
_elementwise("softsign", F.softsign)
_elementwise("softplus", F.softplus, "beta", "threshold")


def _gate(op: str, function: Callable[..., Any], at: str = "x", *names: str) -> None:
    """``dy`` where something holds, else 0, whatever it is there."""
    FORMULAS[f"{op}_backward"] = lambda t, o: (
        torch.where(function(t[at], *(o[n] for n in names)), t["dy"], 0.0),
    )


def _np(x: Any) -> Any:
    return x.detach().numpy()


# Of the results, which may be any number; the slope of relu is 1 at NaN.
_gate("relu", lambda y: ~(y <= 0), "y")
_gate("relu6", lambda y: (y > 0) & (y < 6), "y")
_gate("threshold", lambda x, at: ~(x <= at), "x", "threshold")
_gate("hardtanh", lambda x, low, high: (x > low) & (x < high), "x", "min_val", "max_val")
_gate("hardshrink", lambda x, at: x.abs() > at, "x", "lambd")
_gate("softshrink", lambda x, at: x.abs() > at, "x", "lambd")
FORMULAS["hardsigmoid_backward"] = lambda t, o: (torch.where(t["x"].abs() < 3, t["dy"] / 6, 0.0),)
# NaN at NaN, where torch's slope is 1.
FORMULAS["hardswish_backward"] = lambda t, o: (
    torch.where(t["x"] <= -3, 0.0, torch.where(t["x"] >= 3, t["dy"], t["dy"] * (t["x"] / 3 + 0.5))),
)
_slope("sigmoid", lambda y: y * (1 - y), "y")
_slope("tanh", lambda y: (1 - y) * (1 + y), "y")
# Where autograd cancels: far from 0, or near it.
_slope("softsign", lambda x: 1 / (1 + x.abs()) ** 2)
_slope("log_sigmoid", lambda x: special.expit(-_np(x)))
_slope("tanhshrink", lambda x: torch.tanh(x) ** 2)


@formula("softplus_backward")
def softplus_backward(t: Any, o: Any) -> Any:
    dy, x = t["dy"], t["x"] * o["beta"]
    return (torch.where(x > o["threshold"], dy, dy * torch.from_numpy(np.asarray(
        special.expit(_np(x))))),)  # fmt: skip


@formula("tanhshrink")
def tanhshrink(t: Any, o: Any) -> Any:
    """``(x cosh x - sinh x) / cosh x``, whose numerator is a series of positive terms near 0."""
    x = t["x"]
    small = x.clamp(-1, 1)
    terms = sum(small ** (2 * k + 1) * (2 * k / math.factorial(2 * k + 1)) for k in range(1, 14))
    return (torch.where(x.abs() < 1, terms / torch.cosh(small), x - torch.tanh(x)),)


def gelu(x: Any, approximate: str) -> Any:
    """By SciPy's tail of the normal distribution, which torch's loses."""
    if approximate == "tanh":
        return x * torch.sigmoid(2 * SQRT * (x + 0.044715 * x**3))
    return x * torch.as_tensor(special.ndtr(_np(x)))


def gelu_slope(x: Any, approximate: str) -> Any:
    if approximate == "tanh":
        inner = 2 * SQRT * (x + 0.044715 * x**3)
        # Beyond 100 the density is 0, and no square overflows.
        s, rise = torch.sigmoid(inner), 2 * SQRT * (1 + 3 * 0.044715 * x.clamp(-100, 100) ** 2)
        return s + x * rise * s * torch.sigmoid(-inner)
    return torch.as_tensor(special.ndtr(_np(x))) + x * torch.exp(-x * x / 2) / math.sqrt(
        2 * math.pi
    )


_elementwise("gelu", gelu, "approximate")
_slope("gelu", gelu_slope, "x", "approximate")


@formula("prelu")
def prelu(t: Any, o: Any) -> Any:
    return (torch.where(t["x"] > 0, t["x"], _channels(t) * t["x"]),)


@formula("prelu_backward")
def prelu_backward(t: Any, o: Any) -> Any:
    dy, x, w = t["dy"], t["x"], _channels(t)
    lost = torch.where(x > 0, 0.0, dy * x)
    if t["weight"].numel() == 1 and (x.ndim < 2 or x.shape[1] != 1):
        return torch.where(x > 0, dy, w * dy), lost.sum().reshape(1)
    others = [i for i in range(x.ndim) if i != 1]
    return torch.where(x > 0, dy, w * dy), lost.sum(others)


def _channels(t: Any) -> Any:
    x, w = t["x"], t["weight"]
    if w.numel() == 1 and (x.ndim < 2 or x.shape[1] != 1):
        return w.reshape(())
    return w.reshape(-1, *[1] * (x.ndim - 2))


@formula("dropout", "dropout_backward")
def dropout(t: Any, o: Any) -> Any:
    """Of the masks of philox.py; what is dropped is 0, whatever it was."""
    x = next(iter(t.values()))
    keep = masks(x.numel(), o["seed"], o["offset"]).reshape(x.shape) >= int(o["p"] * 2**32)
    scale = 1 / (1 - o["p"]) if o["p"] < 1 else 0.0
    return (torch.where(torch.from_numpy(np.asarray(keep)), x * scale, 0.0),)


@formula("dropout_add", "dropout_add_backward")
def dropout_add(t: Any, o: Any) -> Any:
    """The gradient to the residual is the cotangent itself."""
    (left,) = dropout(t, o)
    return (left + t["residual"] if "residual" in t else left,)


@formula("stochastic_depth", "stochastic_depth_backward")
def stochastic_depth(t: Any, o: Any) -> Any:
    """The mask of dropout of as many elements as there are examples, or of one."""
    x = next(iter(t.values()))
    n = x.shape[0] if o["mode"] == "row" else 1
    keep = masks(n, o["seed"], o["offset"]) >= int(o["p"] * 2**32)
    scale = 1 / (1 - o["p"]) if o["p"] < 1 else 0.0
    mask = torch.from_numpy(np.asarray(keep)).reshape(n, *(1,) * (x.ndim - 1))
    return (torch.where(mask, x * scale, 0.0),)


@formula("bernoulli")
def bernoulli(t: Any, o: Any) -> Any:
    """1 where dropout drops."""
    x = t["x"]
    ones = masks(x.numel(), o["seed"], o["offset"]) < int(o["p"] * 2**32)
    return (torch.from_numpy(np.asarray(ones)).reshape(x.shape).to(x.dtype),)


@formula("uniform")
def uniform(t: Any, o: Any) -> Any:
    x = t["x"]
    unit = (whole(x.numel(), o["seed"], o["offset"]) >> np.uint64(8)).astype(float) * 2.0**-24
    found = o["low"] + (o["high"] - o["low"]) * unit
    return (torch.from_numpy(np.asarray(found)).reshape(x.shape),)


@formula("normal")
def normal(t: Any, o: Any) -> Any:
    """AS 241 with 7 digits, which `test_random` holds to SciPy's quantile."""
    x = t["x"]
    word = whole(x.numel(), o["seed"], o["offset"]).astype(float)
    p = (np.minimum(word, 2.0**32 - 1 - word) + 0.5) * 2.0**-32
    q, r = 0.5 - p, np.sqrt(-np.log(p))
    near, tail, far = (
        np.polyval(above, y) / np.polyval(below, y)
        for (above, below), y in zip(QUANTILE, (0.180625 - q * q, r - 1.6, r - 5), strict=True)
    )
    z = np.where(q <= 0.425, q * near, np.where(r <= 5, tail, far))
    z = z * np.where(word < 2.0**31, -1, 1)
    return (torch.from_numpy(np.asarray(o["mean"] + o["std"] * z)).reshape(x.shape),)


@formula("lerp")
def lerp(t: Any, o: Any) -> Any:
    a, b, w = t["a"], t["b"], o["weight"]
    # torch takes the second form for weights below -0.5 too.
    return (a + w * (b - a) if w < 0.5 else b - (1 - w) * (b - a),)


@formula("lerp_backward")
def lerp_backward(t: Any, o: Any) -> Any:
    return (1 - o["weight"]) * t["dy"], o["weight"] * t["dy"]


def _derivative(act: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def slope(x: Any) -> Any:
        x = x.clone().requires_grad_()
        return torch.autograd.grad(act(x).sum(), x)[0]

    return slope


def _sigmoid_slope(x: Any) -> Any:
    return torch.sigmoid(x) * torch.sigmoid(-x)


ACTS: dict[str, tuple[Any, Any]] = {
    "glu": (lambda b, o: torch.sigmoid(b), lambda b, o: _sigmoid_slope(b)),
    "swiglu": (lambda b, o: F.silu(b), lambda b, o: _derivative(F.silu)(b)),
    "geglu": (lambda b, o: gelu(b, o["approximate"]), lambda b, o: gelu_slope(
        b, o["approximate"])),
    "reglu": (lambda b, o: F.relu(b), lambda b, o: _derivative(F.relu)(b)),
}  # fmt: skip


def _halves(t: Any, o: Any) -> tuple[Any, Any]:
    if "gate" in t:
        return t["x"], t["gate"]
    first, second = t["x"].chunk(2, o["axis"])
    return (second, first) if o["gate_first"] else (first, second)


def _gated(op: str) -> tuple[Formula, Formula]:
    act, slope = ACTS[op]

    def forward(t: Any, o: Any) -> Any:
        a, b = _halves(t, o)
        return (a * act(b, o),)

    def backward(t: Any, o: Any) -> Any:
        dy, (a, b) = t["dy"], _halves(t, o)
        da = dy * act(b, o)
        # A closed gate has slope 0 whatever is behind it.
        db = torch.where(b <= 0, 0.0, dy * a) if op == "reglu" else dy * a * slope(b, o)
        if "gate" in t:
            return da, db
        return (torch.cat([db, da] if o["gate_first"] else [da, db], o["axis"]),)

    return forward, backward


for _op in ACTS:
    FORMULAS[_op], FORMULAS[f"{_op}_backward"] = _gated(_op)
