"""Expressions for what is computed of rows or channels: norms, softmax, losses of logits."""

from __future__ import annotations

import math
from typing import Any

from baracuda.libraries import Array


def _mean(x: Array) -> Array:
    return x.mean(-1)[..., None]


def rms_norm(xp: Any, x: Array, weight: Array, *, eps: float = 1e-6) -> Array:
    if hasattr(xp, "nn"):
        return xp.nn.functional.rms_norm(x, weight.shape, weight, eps)
    return x / xp.sqrt(_mean(x * x) + eps) * weight


def rms_norm_backward(
    xp: Any, dy: Array, x: Array, weight: Array, *, eps: float = 1e-6
) -> tuple[Array, Array]:
    inverse = 1 / xp.sqrt(_mean(x * x) + eps)
    z, g = x * inverse, dy * weight
    return inverse * (g - z * _mean(g * z)), (dy * z).reshape(-1, weight.shape[0]).sum(0)


def l2_normalize(xp: Any, x: Array, *, axis: int = -1, eps: float = 1e-12) -> Array:
    if hasattr(xp, "nn"):
        return xp.nn.functional.normalize(x, 2, axis, eps)
    return x / xp.maximum(xp.sqrt((x * x).sum(axis, keepdims=True)), eps)


def l2_normalize_backward(
    xp: Any, dy: Array, x: Array, *, axis: int = -1, eps: float = 1e-12
) -> Array:
    inverse = 1 / xp.sqrt(xp.sum(x * x, axis)[_along(x, axis)])
    return inverse * (dy - x * (xp.sum(dy * x, axis)[_along(x, axis)] * inverse * inverse))


def layer_norm(xp: Any, x: Array, weight: Array, bias: Array, *, eps: float = 1e-5) -> Array:
    if hasattr(xp, "nn"):
        return xp.nn.functional.layer_norm(x, weight.shape, weight, bias, eps)
    d = x - _mean(x)
    return d / xp.sqrt(_mean(d * d) + eps) * weight + bias


def layer_norm_backward(
    xp: Any, dy: Array, x: Array, weight: Array, *, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    d = x - _mean(x)
    inverse = 1 / xp.sqrt(_mean(d * d) + eps)
    z, g = d * inverse, dy * weight
    dx, n = inverse * (g - _mean(g) - z * _mean(g * z)), weight.shape[0]
    return dx, (dy * z).reshape(-1, n).sum(0), dy.reshape(-1, n).sum(0)


def add_rms_norm(
    xp: Any, x: Array, residual: Array, weight: Array, *, eps: float = 1e-6
) -> tuple[Array, Array]:
    s = x + residual
    return rms_norm(xp, s, weight, eps=eps), s


def add_rms_norm_backward(
    xp: Any, dy: Array, ds: Array, s: Array, weight: Array, *, eps: float = 1e-6
) -> tuple[Array, Array]:
    dx, dweight = rms_norm_backward(xp, dy, s, weight, eps=eps)
    return ds + dx, dweight


def rms_norm_add(xp: Any, x: Array, residual: Array, weight: Array, *, eps: float = 1e-6) -> Array:
    return residual + rms_norm(xp, x, weight, eps=eps)


def rms_norm_add_backward(
    xp: Any, dy: Array, x: Array, weight: Array, *, eps: float = 1e-6
) -> tuple[Array, Array]:
    return rms_norm_backward(xp, dy, x, weight, eps=eps)


def add_layer_norm(
    xp: Any, x: Array, residual: Array, weight: Array, bias: Array, *, eps: float = 1e-5
) -> tuple[Array, Array]:
    s = x + residual
    return layer_norm(xp, s, weight, bias, eps=eps), s


def add_layer_norm_backward(
    xp: Any, dy: Array, ds: Array, s: Array, weight: Array, *, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    dx, dweight, dbias = layer_norm_backward(xp, dy, s, weight, eps=eps)
    return ds + dx, dweight, dbias


def _channel(v: Array, x: Array) -> Array:
    return v.reshape(-1, *[1] * (x.ndim - 2))


def _rows(x: Array, number: int) -> Array:
    return x.reshape(x.shape[0], number, -1)


def _affine(y: Array, weight: Array, bias: Array) -> Array:
    return y * _channel(weight, y) + _channel(bias, y)


def _standard(xp: Any, x: Array, eps: float) -> tuple[Array, Array]:
    """Rows less their means over their deviations, and one over these."""
    d = x - _mean(x)
    inverse = 1 / xp.sqrt(_mean(d * d) + eps)
    return d * inverse, inverse


def _standard_backward(xp: Any, g: Array, x: Array, eps: float) -> tuple[Array, Array]:
    """The gradient of `_standard` to x, and its result."""
    z, inverse = _standard(xp, x, eps)
    return inverse * (g - _mean(g) - z * _mean(g * z)), z


def _sums(xp: Any, dy: Array, z: Array) -> tuple[Array, Array]:
    others = (0, *range(2, dy.ndim))
    return xp.sum(dy * z, others), xp.sum(dy, others)


def group_norm(
    xp: Any, x: Array, weight: Array, bias: Array, *, num_groups: int, eps: float = 1e-5
) -> Array:
    if hasattr(xp, "nn"):
        return xp.nn.functional.group_norm(x, num_groups, weight, bias, eps)
    z, _ = _standard(xp, _rows(x, num_groups), eps)
    return _affine(z.reshape(x.shape), weight, bias)


def group_norm_backward(
    xp: Any, dy: Array, x: Array, weight: Array, *, num_groups: int, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    g, rows = _rows(dy * _channel(weight, dy), num_groups), _rows(x, num_groups)
    dx, z = _standard_backward(xp, g, rows, eps)
    return dx.reshape(x.shape), *_sums(xp, dy, z.reshape(x.shape))


def instance_norm(xp: Any, x: Array, weight: Array, bias: Array, *, eps: float = 1e-5) -> Array:
    if hasattr(xp, "nn"):
        return xp.nn.functional.instance_norm(x, None, None, weight, bias, True, 0.1, eps)
    return group_norm(xp, x, weight, bias, num_groups=x.shape[1], eps=eps)


def instance_norm_backward(
    xp: Any, dy: Array, x: Array, weight: Array, *, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    return group_norm_backward(xp, dy, x, weight, num_groups=x.shape[1], eps=eps)


def batch_norm(
    xp: Any, x: Array, weight: Array, bias: Array, *, eps: float = 1e-5
) -> tuple[Array, Array, Array]:
    many = math.prod(x.shape) // x.shape[1]
    if hasattr(xp, "nn"):
        # With a momentum of 1 the running statistics are those of the batch.
        mean, var = xp.zeros_like(weight), xp.zeros_like(weight)
        y = xp.nn.functional.batch_norm(x, mean, var, weight, bias, True, 1.0, eps)
        return y, mean, var * ((many - 1) / many)
    others = (0, *range(2, x.ndim))
    mean, var = x.mean(others), x.var(others)
    z = (x - _channel(mean, x)) / xp.sqrt(_channel(var, x) + eps)
    return _affine(z, weight, bias), mean, var


def batch_norm_backward(
    xp: Any,
    dy: Array,
    dmean: Array,
    dvar: Array,
    x: Array,
    weight: Array,
    *,
    eps: float = 1e-5,
) -> tuple[Array, Array, Array]:
    rows, back = (a.swapaxes(0, 1).reshape(x.shape[1], -1) for a in (x, dy)), x.swapaxes(0, 1).shape
    x, g = rows
    dx, z = _standard_backward(xp, g * weight[:, None], x, eps)
    dx = dx + (dmean[:, None] + 2 * dvar[:, None] * (x - _mean(x))) / x.shape[1]
    return dx.reshape(back).swapaxes(0, 1), *_sums(xp, g[None], z[None])


def softmax(xp: Any, x: Array, *, axis: int = -1) -> Array:
    if hasattr(xp, "softmax"):
        return xp.softmax(x, axis)
    e = xp.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def softmax_backward(xp: Any, dy: Array, y: Array, *, axis: int = -1) -> Array:
    return y * (dy - xp.sum(dy * y, axis)[_along(y, axis)])


def log_softmax(xp: Any, x: Array, *, axis: int = -1) -> Array:
    if hasattr(xp, "log_softmax"):
        return xp.log_softmax(x, axis)
    d = x - x.max(axis, keepdims=True)
    return d - xp.log(xp.exp(d).sum(axis, keepdims=True))


def log_softmax_backward(xp: Any, dy: Array, y: Array, *, axis: int = -1) -> Array:
    return dy - xp.exp(y) * xp.sum(dy, axis)[_along(y, axis)]


def logsumexp(xp: Any, x: Array, *, axis: int = -1) -> Array:
    if hasattr(xp, "logsumexp"):
        return xp.logsumexp(x, axis)
    most = x.max(axis)
    return most + xp.log(xp.exp(x - most[_along(x, axis)]).sum(axis))


def logsumexp_backward(xp: Any, dout: Array, x: Array, *, axis: int = -1) -> Array:
    return dout[_along(x, axis)] * softmax(xp, x, axis=axis)


def _along(x: Array, axis: int) -> tuple[Any, ...]:
    """Puts back an axis that was summed over."""
    return (*[slice(None)] * (axis % x.ndim), None)


def cross_entropy(xp: Any, logits: Array, target: Array) -> Array:
    if hasattr(xp, "nn"):
        return xp.nn.functional.cross_entropy(logits, target)
    shifted = logits - xp.max(logits, -1, keepdims=True)
    hit = xp.take_along_axis(shifted, target[:, None], -1)[:, 0]
    return xp.mean(xp.log(xp.sum(xp.exp(shifted), -1)) - hit)


def cross_entropy_backward(xp: Any, dloss: Array, logits: Array, target: Array) -> Array:
    if hasattr(xp, "softmax"):
        d = xp.softmax(logits, -1)
    else:
        e = xp.exp(logits - xp.max(logits, -1, keepdims=True))
        d = e / xp.sum(e, -1, keepdims=True)
    on = {"device": logits.device} if hasattr(xp, "nn") else {}
    hit = xp.arange(logits.shape[-1], **on)[None, :] == target[:, None]
    return xp.where(hit, d - 1, d) * (dloss / logits.shape[0])


def cross_entropy_with_gradient(xp: Any, logits: Array, target: Array) -> tuple[Array, Array]:
    one = xp.ones((), dtype=logits.dtype)
    if hasattr(xp, "nn"):
        one = one.to(logits.device)
    return cross_entropy(xp, logits, target), cross_entropy_backward(xp, one, logits, target)


def soft_target_cross_entropy(xp: Any, logits: Array, target: Array) -> Array:
    if hasattr(xp, "nn"):
        return xp.nn.functional.cross_entropy(logits, target)
    shifted = logits - xp.max(logits, -1, keepdims=True)
    log = shifted - xp.log(xp.sum(xp.exp(shifted), -1, keepdims=True))
    return -xp.sum(target * log) / logits.shape[0]


def soft_target_cross_entropy_backward(
    xp: Any, dloss: Array, logits: Array, target: Array
) -> Array:
    d = softmax(xp, logits) * xp.sum(target, -1)[..., None] - target
    return d * (dloss / logits.shape[0])


def soft_target_cross_entropy_with_gradient(
    xp: Any, logits: Array, target: Array
) -> tuple[Array, Array]:
    one = xp.ones_like(logits[0, 0])
    loss = soft_target_cross_entropy(xp, logits, target)
    return loss, soft_target_cross_entropy_backward(xp, one, logits, target)


def nll_loss(xp: Any, x: Array, target: Array, *, axis: int = -1) -> Array:
    if hasattr(xp, "nn"):
        return xp.nn.functional.nll_loss(x, target)
    return -xp.mean(xp.take_along_axis(x, xp.expand_dims(target, axis), axis))


def nll_loss_backward(
    xp: Any, dloss: Array, target: Array, *, x_shape: tuple[int, ...], axis: int = -1
) -> Array:
    if hasattr(xp, "nn"):
        like, number = dloss.new_empty(x_shape), xp.full_like(dloss, target.numel())
        kind = "nll_loss2d_backward" if len(x_shape) == 4 else "nll_loss_backward"
        return getattr(xp.ops.aten, kind)(dloss, like, target, None, 1, -100, number)
    dx = xp.zeros(x_shape, dtype=dloss.dtype)
    places, share = xp.expand_dims(target, axis), -dloss / target.size
    if hasattr(dx, "at"):
        return xp.put_along_axis(dx, places, share, axis, inplace=False)
    xp.put_along_axis(dx, places, share, axis)
    return dx


def linear_cross_entropy(
    xp: Any, hidden: Array, weight: Array, target: Array, bias: Array | None = None
) -> Array:
    return cross_entropy(xp, _linear(xp, hidden, weight, bias), target)


def linear_cross_entropy_backward(
    xp: Any,
    dloss: Array,
    hidden: Array,
    weight: Array,
    target: Array,
    bias: Array | None = None,
) -> tuple[Array, ...]:
    d = cross_entropy_backward(xp, dloss, _linear(xp, hidden, weight, bias), target)
    return d @ weight, d.T @ hidden, *(() if bias is None else (d.sum(0),))


def linear_cross_entropy_with_gradient(
    xp: Any, hidden: Array, weight: Array, target: Array, bias: Array | None = None
) -> tuple[Array, ...]:
    loss, d = cross_entropy_with_gradient(xp, _linear(xp, hidden, weight, bias), target)
    return loss, d @ weight, d.T @ hidden, *(() if bias is None else (d.sum(0),))


def _linear(xp: Any, hidden: Array, weight: Array, bias: Array | None) -> Array:
    if bias is None:
        return hidden @ weight.T
    return xp.addmm(bias, hidden, weight.T) if hasattr(xp, "addmm") else hidden @ weight.T + bias


def log_prob(xp: Any, logits: Array, target: Array, *, entropy: bool = True) -> Any:
    log = log_softmax(xp, logits)
    if hasattr(xp, "gather"):
        first = xp.gather(log, -1, target[:, None])[:, 0]
    else:
        first = xp.take_along_axis(log, target[:, None], -1)[:, 0]
    return (first, -(xp.exp(log) * log).sum(-1)) if entropy else first


def log_prob_backward(
    xp: Any, dlog_prob: Array, dentropy: Array, logits: Array, target: Array
) -> Array:
    log = log_softmax(xp, logits)
    p = xp.exp(log)
    spread = dentropy[:, None] * (log - (p * log).sum(-1)[:, None])
    on = {"device": logits.device} if hasattr(xp, "nn") else {}
    hit = xp.arange(logits.shape[-1], **on)[None, :] == target[:, None]
    d = dlog_prob[:, None]
    return xp.where(hit, d, 0.0) - p * (d + spread)


def linear_log_prob(
    xp: Any, hidden: Array, weight: Array, target: Array, *, entropy: bool = True
) -> Any:
    return log_prob(xp, _linear(xp, hidden, weight, None), target, entropy=entropy)


def linear_log_prob_backward(
    xp: Any, dlog_prob: Array, dentropy: Array, hidden: Array, weight: Array, target: Array
) -> tuple[Array, ...]:
    logits = _linear(xp, hidden, weight, None)
    d = log_prob_backward(xp, dlog_prob, dentropy, logits, target)
    return d @ weight, d.T @ hidden


def linear_log_prob_with_gradient(
    xp: Any, dlog_prob: Array, dentropy: Array, hidden: Array, weight: Array, target: Array
) -> tuple[Array, ...]:
    logits = _linear(xp, hidden, weight, None)
    d = log_prob_backward(xp, dlog_prob, dentropy, logits, target)
    return *log_prob(xp, logits, target), d @ weight, d.T @ hidden


EXPRESSIONS = (
    rms_norm, rms_norm_backward, l2_normalize, l2_normalize_backward, layer_norm,
    layer_norm_backward, add_rms_norm, add_rms_norm_backward, add_layer_norm,
    add_layer_norm_backward, rms_norm_add, rms_norm_add_backward, group_norm,
    group_norm_backward, instance_norm, instance_norm_backward,
    batch_norm, batch_norm_backward, softmax, softmax_backward, log_softmax, log_softmax_backward,
    logsumexp, logsumexp_backward, cross_entropy, cross_entropy_backward,
    cross_entropy_with_gradient, soft_target_cross_entropy, soft_target_cross_entropy_backward,
    soft_target_cross_entropy_with_gradient, nll_loss, nll_loss_backward, linear_cross_entropy,
    linear_cross_entropy_backward, linear_cross_entropy_with_gradient, log_prob, log_prob_backward,
    linear_log_prob, linear_log_prob_backward, linear_log_prob_with_gradient,
)  # fmt: skip
