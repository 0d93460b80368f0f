"""How far a result may be from its formula: what one rounding of the inputs moves it, and more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from baracuda.declaration.dtypes import named
from baracuda.testing.cases import adapter, apart

from . import moves
from .draw import Drawn
from .formulas import expected

STEPS = 8
"""Roundings of the accumulate dtype that an evaluation may take, as in the laws."""

# Piecewise linear without arithmetic before the comparison: nothing is to be moved over an edge.
SHARP = frozenset(
    name + end
    for name in ("relu", "relu6", "leaky_relu", "threshold", "hardtanh", "hardshrink", "softshrink",
                 "l1_loss", "segment_max")
    for end in ("", "_backward")
)  # fmt: skip
# Sums of whatever names the same place, which torch makes by atomic additions.
SCATTERED = frozenset((
    "gather_backward", "index_select_backward", "embedding_backward", "index_add", "scatter_add",
    "scatter", "permute_rows", "unpermute_rows", "permute_rows_backward", "unpermute_rows_backward",
    "segment_sum", "segment_mean", "segment_softmax", "segment_softmax_backward",
    "embedding_bag", "embedding_bag_backward", "embedding_backward_rows", "scatter_reduce",
    "scatter_reduce_backward",
))  # fmt: skip
TOP = {"float16": 65504.0, "bfloat16": 3.3895314e38, "float32": 3.4028235e38}


def within(have: Any, want: Any, room: Any, dtype: str) -> Any:
    """Whether values are within the tolerance, and what is no number is the same."""
    if have.dtype.kind != "f":
        return have == want
    have = have.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.abs(apart(have, want)) <= room
        over = np.abs(want) + room >= TOP.get(dtype, math.inf)
        over &= np.isinf(have) & (np.sign(have) == np.sign(want))
        # Where a little noise moves the result without bound, it is no number to compare with.
        vague = ~np.isfinite(room)
    return near | over | vague | (np.isnan(have) & np.isnan(want))


def _moved(drawn: Drawn, truth: Any, eps: float, seed: int) -> tuple[Any, Any]:
    """Inputs and options as they may be after one rounding."""
    rng = np.random.default_rng(drawn.number)
    arrays = dict(truth)
    # The last one moves run-time values alone.
    sharp = drawn.op in SHARP or drawn.options.get("reduction") in ("max", "min")
    still = sharp or seed == 3
    for k, (name, x) in enumerate(() if still else truth.items()):
        if x.dtype.kind == "f":
            # Neighbours, and the same place of two arrays, are moved apart once at least.
            turn = (np.arange(x.size).reshape(x.shape) // seed + k // seed) % 2 if seed else 0
            sign = rng.choice([-1.0, 1.0], x.shape) * (1 - 2 * turn)
            arrays[name] = np.asarray(x * (1 + eps * sign))
    options = dict(drawn.options)
    for name, value in drawn.scalars.items():
        # A run-time value that the compute dtype does not hold.
        if isinstance(value, float) and math.isfinite(value) and float(np.float32(value)) != value:
            options[name] = value * (1 + eps)
    if "rope" in drawn.op and drawn.dtype == "float64":
        # The angle is itself rounded.
        options["base"] = options.get("base", 1e4) * (1 + 2.0**-52 * float(rng.choice([-1, 1])))
    return arrays, options


def reference(drawn: Drawn, truth: Any) -> tuple[list[Any], list[Any]]:
    """What the formula says of these inputs, and how far each result may be from it."""
    spec, store = drawn.spec, named(drawn.dtype)
    if spec.moves:
        moved = getattr(moves, drawn.op)
        return [moved(truth["src"], truth["index"], drawn.options["axis"])], [np.zeros(())]
    compute = store if spec.composite else named(store.accumulate)
    wide = {n: x if x.dtype.kind in "iub" else x.astype(np.float64) for n, x in truth.items()}
    with np.errstate(all="ignore"):
        if "residual" in wide:
            # The sum is rounded before it is normalised.
            acc = adapter("numpy").dtype(store.accumulate)
            total = truth["x"].astype(acc) + truth["residual"].astype(acc)
            wide["sum"] = np.asarray(total.astype(truth["x"].dtype).astype(np.float64))
        want = expected(drawn.op, wide, drawn.options)
        moved = [_moved(drawn, wide, compute.eps, seed) for seed in range(4)]
        if moved[3][1] == drawn.options:
            moved.pop()
        others = [expected(drawn.op, *each) for each in moved]
        scales = [np.zeros(())] * len(want)
        if drawn.op in SCALES:
            scales = SCALES[drawn.op](drawn, wide, want)
        most = []
        for i, x in enumerate(want):
            moving = np.max([np.abs(apart(other[i], x)) for other in others], axis=0)
            value = np.where(np.isfinite(x), np.abs(x), 0.0)
            size = 0.0 if spec.elementwise and x.ndim else np.max(value, initial=0.0)
            # At random, it is to either neighbour.
            half = 1.0 if i == 0 and drawn.options.get("stochastic_rounding") else 0.5
            rounding = half * store.eps * (1 + store.eps) * value if store is not compute else 0.0
            smallest = 2.0**-24 if drawn.dtype == "float16" else 2.0**-126
            # The formula of a result in float64 has roundings of its own.
            more = 16 if drawn.dtype == "float64" else 1
            steps = compute.eps * (STEPS * (value + scales[i]) + 0.25 * size)
            room = rounding + more * (steps + STEPS * moving) + smallest
            if drawn.op in SCATTERED and drawn.device != "cpu":
                # Atomic additions in the memory of a GPU take subnormal float32 numbers for 0.
                ones = {n: a if a.dtype.kind in "iub" else np.ones_like(a) for n, a in wide.items()}
                terms = np.abs(expected(drawn.op, ones, drawn.options)[i])
                room = room + 2 * terms * 2.0**-126
                # They add terms one by one, whatever their signs.
                sizes = {n: a if a.dtype.kind in "iub" else np.abs(a) for n, a in wide.items()}
                total = np.abs(expected(drawn.op, sizes, drawn.options)[i])
                entries = max([a.size for a in wide.values() if a.dtype.kind == "i"], default=0)
                total = np.where(np.isfinite(total), total, 0.0)
                room = room + STEPS * compute.eps * math.sqrt(entries) * total
            cast = drawn.options.get("casting") == "before_weight" and "weight" in wide
            if cast and i == ("dy" in wide):
                # The normalised rows are rounded: those of y, or of the gradient of the weight.
                sizes = {n: np.abs(wide[n]) for n in ("dy", "x", "s") if n in wide and i}
                if drawn.op == "rms_norm_add" and "residual" in wide:
                    # That is added afterwards, and may take the rows away again.
                    sizes["residual"] = np.zeros_like(wide["residual"])
                of = expected(drawn.op, {**wide, **sizes}, drawn.options)[i]
                room = room + 0.5 * store.eps * np.abs(of)
            # What is no number is to be that.
            most.append(np.where(np.isnan(x), 0.0, room))
            if "dy" in wide and spec.elementwise and drawn.op not in SHARP:
                # A slope below the least number is none, and NaN beside an infinity.
                dy = wide["dy"] if wide["dy"].shape == x.shape else _finite(wide["dy"])
                most[i] = most[i] + np.where(np.isnan(dy), 0.0, np.abs(dy)) * 2.0**-116
            elif spec.elementwise and "x" in wide and wide["x"].shape == x.shape:
                most[i] = most[i] + np.clip(np.nan_to_num(np.abs(wide["x"])), 0, 1e3) * 2.0**-126
            if spec.category == "gated" and np.isinf(x).any():
                # An infinity beside a gate that float32 takes for 0 is no number.
                plain = {n: np.where(np.isinf(a), 1.0, a) for n, a in wide.items()}
                least = np.abs(expected(drawn.op, plain, drawn.options)[i]) < 2.0**-116
                most[i] = np.where(np.isinf(x) & least, np.inf, most[i])
            if spec.category == "gated":
                most[i] = most[i] + _finite(wide["x"]) * _finite(wide.get("dy", 1.0)) * 2.0**-116
    return want, most


def _finite(x: Any) -> float:
    return float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))


def _lerp(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    size = np.abs(t["a"]) + np.abs(t["b"])
    return [np.where(np.isfinite(size), size, 0.0) * (1 + abs(drawn.options["weight"]))]


def _placed(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """A random number is what its law is moved by, and a multiple of where it was drawn."""
    low, high, mean, std = (
        abs(drawn.options.get(name, usual))
        for name, usual in (("low", 0), ("high", 1), ("mean", 0), ("std", 1))
    )
    return [low + high if drawn.op == "uniform" else mean + std]


def _ones(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """A cosine, which is taken off 1."""
    return [t["target"].size if drawn.options.get("reduction") == "sum" else 1.0]


def _triplet(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """Distances, whose difference decides whether there is a slope, and to which of two."""
    o = {**drawn.spec.defaults, **drawn.options}
    a, p, n = (t[k] for k in ("anchor", "positive", "negative"))
    near, far, other = (np.linalg.norm(x - y + o["eps"], o["p"], -1) if x.shape[-1] else
                        np.zeros(x.shape[:-1]) for x, y in ((a, p), (a, n), (p, n)))  # fmt: skip
    # Each difference is rounded at the size of what it is of.
    size = np.abs(a).sum(-1) + np.abs(p).sum(-1) + np.abs(n).sum(-1)
    if not drawn.op.endswith("backward"):
        parts = size.size if o["reduction"] == "mean" else 1
        return [size if o["reduction"] == "none" else size.sum() / max(parts, 1)]
    close = 16 * named(named(drawn.dtype).accumulate).eps * (size + o["margin"])
    gap = np.minimum(far, other) if o["swap"] else far
    vague = np.abs(o["margin"] + near - gap) <= close
    if o["swap"]:
        vague |= np.abs(far - other) <= close
    steps = 1 + (o["p"] if o["p"] < math.inf else 0)
    slope = np.where(vague, np.inf, _finite(t["dloss"]) * steps)[..., None]
    return [np.broadcast_to(slope, x.shape) for x in (a, p, n)]


def _cosine(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """The two terms of the slope, which cancel where rows are parallel."""
    a, b = t["x1"], t["x2"]
    la, lb = (np.sqrt((x * x).sum(-1, keepdims=True) + 1e-12) for x in (a, b))
    g = _finite(t["dloss"])
    return [g * (np.abs(y) / (la * lb) + np.abs(x) / lx**2)
            for x, lx, y in ((a, la, b), (b, lb, a))]  # fmt: skip


def _cotangent(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """Slopes of logits are parts of 1, less the target; a loss is the logarithm of about 1."""
    options = drawn.options
    rows = t["target"].size if options.get("reduction") == "sum" else 1.0
    g = _finite(t["dloss"]) if "dloss" in t else 1.0
    if options.get("z_loss"):
        g = g * (1 + 2 * options["z_loss"] * 1e2)
    # Like rows are rounded alike, so sums over rows are off by all of them.
    many = 1.0 if options.get("reduction", "mean") == "mean" else t["target"].size
    scales: dict[str, Any] = {"loss": rows, "accuracy": rows, "top": 1.0, "dlogits": g}
    if "hidden" in t:
        scales["dhidden"] = g * _finite(t["weight"])
        # The sum may be rounded after each chunk.
        often = 1.0
        if options.get("grad_dtype") == "weight" and options.get("chunk"):
            often += t["target"].size / options["chunk"]
        scales["dweight"], scales["dbias"] = often * many * g * _finite(t["hidden"]), many * g
    return [np.asarray(scales[p.name]) for p in drawn.form.outputs]


def _pulled(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """As `_cotangent`, of two cotangents; an entropy is at most the logarithm of the classes."""
    many, most = t["target"].size, math.log(drawn.axes["v"] + 1)
    g = sum([_finite(t[n]) for n in ("dlog_prob", "dentropy") if n in t]) * (1 + most)
    g = g / drawn.options.get("temperature", 1.0)
    scales: dict[str, Any] = {"log_prob": 1.0, "entropy": 1.0, "dlogits": g}
    if "hidden" in t:
        scales["dhidden"] = g * _finite(t["weight"])
        scales["dweight"], scales["dbias"] = many * g * _finite(t["hidden"]), many * g
    return [np.asarray(scales[p.name]) for p in drawn.form.outputs]


def _divergence(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """Differences of logarithms of probabilities, which may cancel, times these."""
    options = drawn.options
    pairs = [(f"{of}hidden", f"{of}weight") for of in ("", "teacher_")]
    logits = [t[x] @ t[w].T for x, w in pairs if x in t]
    logits = logits or [t[n] for n in ("logits", "teacher_logits") if n in t]
    size = 1 + sum(map(_finite, logits)) / options.get("temperature", 1.0)
    weight = _finite(t["row_weight"]) if "row_weight" in t else 1.0
    rows = logits[0][..., 0].size if logits[0].size else 0
    many = 1.0 if options.get("reduction", "mean") == "mean" else max(rows, 1)
    if "teacher_probs" in t:
        # They need not add up to 1, and are added one by one.
        many_probs = math.sqrt(t["teacher_probs"].shape[-1]) / STEPS
        weight = weight * max(1.0, _finite(np.abs(t["teacher_probs"]).sum(-1)) * max(1, many_probs))
    g = _finite(t["dloss"]) if "dloss" in t else 1.0
    g = g * weight * size / options.get("temperature", 1.0)
    scales: dict[str, Any] = {
        "loss": weight * size * (many if options.get("reduction") == "sum" else 1.0), "dlogits": g
    }  # fmt: skip
    if "hidden" in t:
        scales["dhidden"] = g * _finite(t["weight"])
        scales["dweight"] = many * g * _finite(t["hidden"])
    return [np.asarray(scales[p.name]) for p in drawn.form.outputs]


def _softmax(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """What a softmax takes off its cotangent."""
    dy, axis = np.abs(t["dy"]), drawn.options.get("axis", -1)
    total, scale = dy.sum(axis, keepdims=True), abs(drawn.options.get("scale", 1.0))
    if drawn.op.startswith("log"):
        return [scale * (dy + np.exp(t["y"]) * total)]
    return [scale * t["y"] * (dy + total)]


def _probabilities(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """A bias may take up digits of the input that it is added to, or all that matter."""
    if "bias" not in t:
        return [np.zeros(())]
    size = _log_softmax(drawn, t, want)[0]
    lost = STEPS * named(named(drawn.dtype).accumulate).eps * size > 0.05
    return [np.full_like(want[0], np.inf) if lost else want[0] * size]


def _log_softmax(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """The scaled input and its bias, off which the largest of their row is taken."""
    bias = _finite(t["bias"]) if "bias" in t else 0.0
    return [_finite(t["x"]) * abs(drawn.options.get("scale", 1.0)) + bias]


def _dropped(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """What is taken off a cotangent that is scaled, times what the scores do to a share."""
    p, scale = drawn.options["p"], abs(drawn.options.get("scale", 1.0))
    g = np.abs(t["dy"]) / (1 - p if p < 1 else 1)
    forward = {name: x for name, x in t.items() if name != "dy"}
    (s,) = expected("softmax", forward, {k: v for k, v in drawn.options.items() if k in _OWN})
    size = 1 + _log_softmax(drawn, t, want)[0]
    return [scale * s * (g + (s * g).sum(-1, keepdims=True)) * size]


_OWN = ("scale", "causal")


def _act(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """The terms of a slope, which cancel near its zero: each is about as large as ``dy``."""
    return [np.nan_to_num(np.abs(t["dy"]), posinf=0.0)]


def _gate(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """The same of a gate, times what it lets through."""
    axis, first = drawn.options.get("axis", -1), drawn.options.get("gate_first", False)
    halves = (t["x"], t["gate"]) if "gate" in t else np.split(t["x"], 2, axis)
    value, gate = halves[:: 1 - 2 * first]
    # Where a gate is closed its slope may underflow: an infinity times that is NaN.
    vague = np.where(np.isinf(value) & (gate < -9), np.inf, 0.0)
    if "dy" not in t:
        return [vague]
    size = np.nan_to_num(np.abs(t["dy"] * value), posinf=0.0) + vague
    parts = [np.zeros(size.shape), size][:: 1 - 2 * first]
    return parts if "gate" in t else [np.concatenate(parts, axis)]


def _pairs(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """The norm of the pair that an entry belongs to: two terms of that size may cancel."""
    o = {**drawn.spec.defaults, **drawn.options}
    out = []
    for name in [n for n in ("x", "q", "k", "dy", "dz") if n in t]:
        x = np.nan_to_num(t[name], posinf=0.0, neginf=0.0)
        other = np.arange(x.shape[-1])
        size = len(other) if o["rotary_dim"] is None else o["rotary_dim"]
        turn = other[:size]
        other[:size] = turn ^ 1 if o["interleaved"] else np.roll(turn, size // 2)
        out.append(np.hypot(x, x[..., other]))
    return out


def _heads(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """What turns in a pair: both entries, at the size of the factors; of a gradient, of all a head.

    What is rounded before it is scaled is off by a part of that, too.
    """
    o = {**drawn.spec.defaults, **drawn.options}
    tables = [_finite(t[name]) for name in ("cos", "sin") if name in t]
    factor = 2 * max([*tables, 1.0])
    if o["casting"] == "before_weight":
        store = named(drawn.dtype)
        factor *= 1 + store.eps / named(store.accumulate).eps
    rows, sums = [], []
    for name in ("q", "k"):
        x, weight = t[name], _finite(t[f"{name}_weight"]) + abs(o["offset"])
        r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + o["eps"]) if x.size else x
        if f"d{name}_out" not in t:
            size = np.abs(x * r).max(-1, keepdims=True, initial=0, where=np.isfinite(x * r))
            rows.append(np.broadcast_to(factor * weight * size, x.shape))
            continue
        pull = np.abs(t[f"d{name}_out"]).max(-1, keepdims=True, initial=0) * factor
        size = r * pull * weight
        rows.append(np.broadcast_to(np.where(np.isfinite(size), size, 0.0), x.shape))
        size = np.abs(x * r) * pull
        sums.append(np.where(np.isfinite(size), size, 0.0).sum(tuple(range(x.ndim - 1))))
    return rows + sums


def _centred(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """``x`` and the mean that is taken off it, normalised; a mean is as exact as its terms.

    A variance is as exact as the squares of what is left. Both are added one by one.
    """
    x = t.get("sum", t.get("x"))
    more: list[Any] = [np.zeros(())] * (len(want) - 1)
    if not x.size:
        return [np.zeros(()), *more]
    shape, axes, eps = x.shape, (-1,), drawn.options.get("eps", 1e-5)
    channels = (-1,) if "layer" in drawn.op else (-1, *[1] * (x.ndim - 2))
    weight = np.abs(t["weight"]).reshape(channels) if "weight" in t else 1.0
    if "group" in drawn.op or "instance" in drawn.op:
        x = x.reshape(shape[0], drawn.options.get("num_groups", shape[1]), -1)
    elif "batch" in drawn.op:
        axes = (0, *range(2, x.ndim))
        mean = x.mean(axes, keepdims=True)
        left = 2 * np.abs(x - mean) * (np.abs(x) + np.abs(mean))
        terms = max(1.0, math.sqrt(x.size / max(x.shape[1], 1)) / STEPS)
        more[:2] = [np.abs(x).mean(axes) * terms, left.mean(axes) * terms][: len(more)]
    size = np.abs(x) + np.abs(x).mean(axes, keepdims=True)
    terms = size / np.sqrt(x.var(axes, keepdims=True) + eps)
    terms = terms.reshape(shape) * weight
    return [np.where(np.isfinite(terms), terms, 0.0), *more]


def _norm(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """The terms of the slope of a norm, which cancel: each is as large as ``r * dy * weight``."""
    x = t.get("x", t.get("s"))
    g = np.abs(t["dy"])
    if "batch_norm_inference" in drawn.op or not x.size:
        return [np.zeros(())] * len(want)
    weight = _finite(t["weight"]) + abs(drawn.options.get("offset", 0)) if "weight" in t else 1.0
    shape, axes = x.shape, (-1,)
    if drawn.op.startswith("batch"):
        axes = (0, *range(2, x.ndim))
    elif "group" in drawn.op or "instance" in drawn.op:
        groups = drawn.options.get("num_groups", shape[1])
        x, g = (v.reshape(shape[0], groups, -1) for v in (x, g))
    centre = 0.0 if "rms" in drawn.op else x.mean(axes, keepdims=True)
    eps = drawn.options.get("eps", 1e-6 if "rms" in drawn.op else 1e-5)
    r = 1 / np.sqrt(((x - centre) ** 2).mean(axes, keepdims=True) + eps)
    dx = np.broadcast_to(r * g.max(axes, keepdims=True) * weight, x.shape).reshape(shape)
    # Like rows are rounded alike, so a sum over rows is off by all of them.
    terms = (g * (np.abs(x) + np.abs(centre)) * r).reshape(shape)
    channel = len(shape) - 1 if "rms" in drawn.op or "layer" in drawn.op else 1
    dweight = np.moveaxis(terms, channel, 0).reshape(shape[channel], -1).sum(-1)
    dweight = np.where(np.isfinite(dweight), dweight, 0.0)
    scales = {"dx": dx, "dweight": dweight}
    return [scales.get(p.name, np.zeros(())) for p in drawn.form.outputs]


def _signed(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """The sum whose sign is the direction of a step, where that is no more than its roundings."""
    o = {**drawn.spec.defaults, **drawn.options}
    terms = o["beta1"] * t["exp_avg"], (1 - o["beta1"]) * t["grad"] / o["grad_scale"]
    close = 2 * STEPS * named(named(drawn.dtype).accumulate).eps * sum(map(np.abs, terms))
    vague = np.where(np.abs(sum(terms)) <= close, np.inf, 0.0)
    return [vague, *[np.zeros(())] * (len(want) - 1)]


def _residual(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """What a norm is added to, which it may take away again."""
    return [np.abs(t["residual"]) if "residual" in t else np.zeros(())]


def _unit(drawn: Drawn, t: Any, want: Any) -> list[Any]:
    """The terms of the slope of a Euclidean norm: each is up to as large as all of ``dy * r``."""
    axis, eps = drawn.options.get("axis", -1), drawn.options.get("eps", 1e-12)
    norm, pull = (np.linalg.norm(t[n], axis=axis, keepdims=True) for n in ("x", "dy"))
    scale = pull / np.maximum(norm, eps)
    return [np.where(np.isfinite(scale), scale, 0.0)]


SCALES: dict[str, Callable[[Drawn, Any, Any], list[Any]]] = {
    "cosine_embedding_loss_backward": _cosine,
    "cosine_embedding_loss": _ones,
    "triplet_margin_loss": _triplet,
    "triplet_margin_loss_backward": _triplet,
    "lerp": _lerp,
    **dict.fromkeys(("uniform", "normal"), _placed),
    **dict.fromkeys(("layer_norm", "add_layer_norm", "group_norm", "instance_norm", "batch_norm"),
                    _centred),
    **dict.fromkeys(("mish_backward", "silu_backward", "gelu_backward"), _act),
    **dict.fromkeys(("geglu", "swiglu", "geglu_backward", "swiglu_backward"), _gate),
    **{f"{op}{end}": _pairs for end in ("", "_backward") for op in
       ("rope", "rope_with_tables", "rope_qk", "rope_qk_with_tables")},
    **dict.fromkeys(("qk_norm_rope", "qk_norm_rope_backward"), _heads),
    "lion": _signed,
    "softmax": _probabilities,
    "log_softmax": _log_softmax,
    "softmax_backward": _softmax,
    "softmax_dropout": _probabilities,
    "softmax_dropout_backward": _dropped,
    "l2_normalize_backward": _unit,
    "log_softmax_backward": _softmax,
    "cross_entropy": _cotangent,
    "soft_target_cross_entropy": _cotangent,
    "linear_cross_entropy": _cotangent,
    "cross_entropy_backward": _cotangent,
    "cross_entropy_with_gradient": _cotangent,
    "soft_target_cross_entropy_backward": _cotangent,
    "soft_target_cross_entropy_with_gradient": _cotangent,
    "linear_cross_entropy_backward": _cotangent,
    "linear_cross_entropy_with_gradient": _cotangent,
    "log_prob": _pulled,
    "linear_log_prob": _pulled,
    "log_prob_backward": _pulled,
    "linear_log_prob_backward": _pulled,
    "linear_log_prob_with_gradient": _pulled,
    **dict.fromkeys(("kl_div_with_logits", "kl_div_with_logits_backward",
                     "kl_div_with_logits_with_gradient", "linear_kl_div", "linear_kl_div_backward",
                     "linear_kl_div_with_gradient", "topk_kl_div_with_logits",
                     "topk_kl_div_with_logits_backward", "topk_kl_div_with_logits_with_gradient",
                     "linear_topk_kl_div", "linear_topk_kl_div_backward",
                     "linear_topk_kl_div_with_gradient"),
                    _divergence),
    "rms_norm_add": _residual,
    "rms_norm_add_backward": _norm,
    **{f"{name}_norm_backward": _norm for name in (
        "rms", "layer", "add_rms", "add_layer", "batch", "group", "instance")},
}  # fmt: skip
"""The size of terms that cancel in the results of an op."""
