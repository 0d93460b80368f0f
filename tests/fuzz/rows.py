"""Formulas of norms and softmax."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from .activations import dropout
from .formulas import FORMULAS, formula


def _scaled(y: Any, t: Any, shape: tuple[int, ...]) -> Any:
    y = y * t["weight"].reshape(shape) if "weight" in t else y
    return y + t["bias"].reshape(shape) if "bias" in t else y


def _channels(x: Any) -> tuple[int, ...]:
    return (-1, *[1] * (x.ndim - 2))


@formula("rms_norm")
def rms_norm(t: Any, o: Any) -> Any:
    x = t["x"]
    if not x.numel():
        return (_scaled(x, t, (-1,)),)
    weight = t["weight"] + o["offset"] if "weight" in t else None
    return (F.rms_norm(x, x.shape[-1:], weight, o["eps"]),)


@formula("l2_normalize")
def l2_normalize(t: Any, o: Any) -> Any:
    return (F.normalize(t["x"], 2.0, o["axis"], o["eps"]),)


def _centred(x: Any, axes: Any, eps: float) -> Any:
    """Not torch's own, whose result for one element is not 0, and which refuses some."""
    far = x - x.mean(axes, keepdim=True)
    # A row that is one number throughout has no variance, and its mean is rounded.
    far = far - far.mean(axes, keepdim=True)
    return far * torch.rsqrt((far * far).mean(axes, keepdim=True) + eps)


@formula("layer_norm")
def layer_norm(t: Any, o: Any) -> Any:
    x = t["x"]
    return (_scaled(_centred(x, -1, o["eps"]) if x.numel() else x, t, (-1,)),)


def _added(norm: Any) -> Any:
    def forward(t: Any, o: Any) -> Any:
        s = t["sum"]
        return *norm({**t, "x": s}, o), s

    return forward


def _add_backward(norm: Any) -> Any:
    """From the sum, which takes the place of both addends."""

    def backward(t: Any, o: Any) -> Any:
        s = t["s"].clone().requires_grad_()
        own = {"x": s}
        if "weight" in t:
            own["weight"] = t["weight"].clone().requires_grad_()
            if norm is layer_norm:
                own["bias"] = torch.zeros_like(t["weight"]).requires_grad_()
        outputs = (*norm(own, o), s * 1)
        return torch.autograd.grad(
            outputs, list(own.values()), (t["dy"], t["ds"]), materialize_grads=True,
            allow_unused=True,
        )  # fmt: skip

    return backward


formula("rms_norm_add")(lambda t, o: (t.get("residual", 0) + rms_norm(t, o)[0],))
formula("add_rms_norm")(_added(rms_norm))
formula("add_layer_norm")(_added(layer_norm))
formula("add_rms_norm_backward")(_add_backward(rms_norm))
formula("add_layer_norm_backward")(_add_backward(layer_norm))


@formula("group_norm")
def group_norm(t: Any, o: Any) -> Any:
    x = t["x"]
    if not x.numel():
        return (_scaled(x, t, _channels(x)),)
    y = _centred(x.reshape(x.shape[0], o["num_groups"], -1), -1, o["eps"])
    return (_scaled(y.reshape(x.shape), t, _channels(x)),)


@formula("instance_norm")
def instance_norm(t: Any, o: Any) -> Any:
    return group_norm(t, {**o, "num_groups": max(t["x"].shape[1], 1)})


@formula("batch_norm")
def batch_norm(t: Any, o: Any) -> Any:
    x = t["x"]
    others = [i for i in range(x.ndim) if i != 1]
    if not x.numel():
        # Of nothing.
        nothing = x.sum(others)
        return _scaled(x, t, _channels(x)), nothing, nothing
    mean, var = x.mean(others), x.var(others, unbiased=False)
    return _scaled(_centred(x, others, o["eps"]), t, _channels(x)), mean, var


@formula("batch_norm_inference")
def batch_norm_inference(t: Any, o: Any) -> Any:
    x, mean, var = t["x"], t["mean"], t["var"]
    if not x.numel():
        return (_scaled(x, t, _channels(x)),)
    return (F.batch_norm(x, mean, var, t.get("weight"), t.get("bias"), eps=o["eps"]),)


def _hidden(x: Any, t: Any, o: Any) -> Any:
    """Which entries count."""
    kept = torch.ones(x.shape, dtype=torch.bool)
    if "mask" in t:
        kept = kept & t["mask"]
    if "bias" in t:
        kept = kept & (t["bias"] != -math.inf)
    if o["causal"]:
        q, k = x.shape[-2:]
        kept = kept & (torch.arange(k) <= torch.arange(q)[:, None] + k - q)
    return kept


def _softmax(act: Any, nothing: float) -> Any:
    def forward(t: Any, o: Any) -> Any:
        kept = _hidden(t["x"], t, o)
        x = torch.where(kept, t["x"] * o["scale"] + t.get("bias", 0.0), -math.inf)
        # Rows of nothing are zeros here, where torch has NaN.
        empty = (x == -math.inf).all(o["axis"], keepdim=True) if x.numel() else x == 0
        y = act(torch.where(empty, 0.0, x), o["axis"])
        return (torch.where(empty | ~kept, nothing, y),)

    return forward


formula("softmax")(_softmax(torch.softmax, 0.0))
formula("log_softmax")(_softmax(torch.log_softmax, -math.inf))


@formula("softmax_dropout")
def softmax_dropout(t: Any, o: Any) -> Any:
    return dropout({"y": FORMULAS["softmax"](t, {**o, "axis": -1})[0]}, o)


@formula("softmax_dropout_backward")
def softmax_dropout_backward(t: Any, o: Any) -> Any:
    (s,) = FORMULAS["softmax"](t, {**o, "axis": -1})
    (g,) = dropout({"dy": t["dy"]}, o)
    return (o["scale"] * s * (g - (g * s).sum(-1, keepdim=True)),)


@formula("logsumexp")
def logsumexp(t: Any, o: Any) -> Any:
    return (torch.logsumexp(t["x"], o["axis"], o["keepdims"]),)


@formula("logsumexp_backward")
def logsumexp_backward(t: Any, o: Any) -> Any:
    """By a softmax, but in rows with inf: torch's exponentials forget the sum beside large `x`."""
    x, axis = t["x"], o["axis"]
    dout = t["dout"] if o["keepdims"] else t["dout"].unsqueeze(axis)
    out = torch.logsumexp(x, axis, keepdim=True)
    share = torch.where(out == math.inf, (x - out).exp(), torch.softmax(x, axis))
    return (dout * share,)


@formula("softmax_backward")
def softmax_backward(t: Any, o: Any) -> Any:
    dy, y = t["dy"], t["y"]
    # What was left out has no gradient, and none that it is given counts.
    dy = torch.where(y == 0, 0.0, dy)
    return (o["scale"] * y * (dy - (dy * y).sum(o["axis"], keepdim=True)),)


@formula("log_softmax_backward")
def log_softmax_backward(t: Any, o: Any) -> Any:
    dy, y = t["dy"], t["y"]
    out = y == -math.inf
    dy = torch.where(out, 0.0, dy)
    slope = o["scale"] * (dy - y.exp() * dy.sum(o["axis"], keepdim=True))
    return (torch.where(out, 0.0, slope),)
