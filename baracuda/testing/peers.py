"""What one would write without baracuda: the expressions that the benchmark times beside it.

An expression takes the namespace first, so NumPy, torch and CuPy time the same formula; torch's own
functions stand in where it has one that computes the same. An op whose block names such a function
needs no expression.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from typing import Any, TypeAlias

from baracuda.libraries import Array
from baracuda.op import registry
from baracuda.spec import OpSpec

Expression: TypeAlias = Callable[..., Any]


def _halves(x: Array) -> tuple[Array, Array]:
    n = x.shape[-1] // 2
    return x[..., :n], x[..., n:]


def _sigmoid(xp: Any, b: Array) -> Array:
    return 1 / (1 + xp.exp(-b))


def _erf(xp: Any) -> Callable[[Array], Array]:
    """The library's error function: SciPy's for NumPy, CuPy's own, torch's own."""
    if xp.__name__ == "numpy":
        return import_module("scipy.special").erf  # type: ignore[no-any-return]
    if xp.__name__ == "cupy":
        return import_module("cupyx.scipy.special").erf  # type: ignore[no-any-return]
    return xp.erf  # type: ignore[no-any-return]


def _cdf(xp: Any, b: Array) -> Array:
    return 0.5 * (1 + _erf(xp)(b * (1 / math.sqrt(2))))


def _join(xp: Any, *parts: Array) -> Array:
    return (xp.cat if hasattr(xp, "cat") else xp.concatenate)(parts, -1)


def glu(xp: Any, x: Array) -> Array:
    a, b = _halves(x)
    return a * _sigmoid(xp, b)


def reglu(xp: Any, x: Array) -> Array:
    a, b = _halves(x)
    return a * (xp.relu(b) if hasattr(xp, "relu") else xp.maximum(b, 0))


def swiglu(xp: Any, x: Array) -> Array:
    a, b = _halves(x)
    return a * b * _sigmoid(xp, b)


def geglu(xp: Any, x: Array) -> Array:
    a, b = _halves(x)
    return a * b * _cdf(xp, b)


def glu_backward(xp: Any, dy: Array, x: Array) -> Array:
    a, b = _halves(x)
    s = _sigmoid(xp, b)
    return _join(xp, dy * s, dy * a * s * (1 - s))


def reglu_backward(xp: Any, dy: Array, x: Array) -> Array:
    a, b = _halves(x)
    return _join(xp, dy * xp.where(b > 0, b, 0), xp.where(b > 0, dy * a, 0))


def swiglu_backward(xp: Any, dy: Array, x: Array) -> Array:
    a, b = _halves(x)
    s = _sigmoid(xp, b)
    return _join(xp, dy * b * s, dy * a * s * (1 + b * (1 - s)))


def geglu_backward(xp: Any, dy: Array, x: Array) -> Array:
    a, b = _halves(x)
    cdf = _cdf(xp, b)
    pdf = xp.exp(-0.5 * b * b) * (1 / math.sqrt(2 * math.pi))
    return _join(xp, dy * b * cdf, dy * a * (cdf + b * pdf))


def lerp(xp: Any, a: Array, b: Array, *, weight: float) -> Array:
    return xp.lerp(a, b, weight) if hasattr(xp, "lerp") else a + weight * (b - a)


def lerp_backward(xp: Any, dy: Array, *, weight: float) -> tuple[Array, Array]:
    return (1 - weight) * dy, weight * dy


def _rotated(xp: Any, x: Array, interleaved: bool, sign: int) -> Array:
    s, d = x.shape[-2:]
    on = {"device": x.device} if hasattr(xp, "cat") else {}
    steps = xp.arange(0, d, 2, dtype=xp.float32, **on) / d
    angles = xp.arange(s, dtype=xp.float32, **on)[:, None] * 10000.0**-steps
    # The table has the dtype of x, as models keep it.
    cos, sin = xp.cos(angles), sign * xp.sin(angles)
    cos, sin = (t.to(x.dtype) if on else t.astype(x.dtype) for t in (cos, sin))
    if interleaved:
        e, o = x[..., 0::2], x[..., 1::2]
        out = xp.stack((e * cos - o * sin, o * cos + e * sin), -1)
        return out.reshape(x.shape)
    e, o = _halves(x)
    return _join(xp, e * cos - o * sin, o * cos + e * sin)


def rope(xp: Any, x: Array, *, interleaved: bool = True) -> Array:
    return _rotated(xp, x, interleaved, 1)


def rope_backward(xp: Any, dy: Array, *, interleaved: bool = True) -> Array:
    return _rotated(xp, dy, interleaved, -1)


def _spots(x: Array, y: Array, k: int, s: int) -> list[tuple[Any, ...]]:
    h, w = y.shape[-2:]
    return [
        (..., slice(i, i + s * (h - 1) + 1, s), slice(j, j + s * (w - 1) + 1, s))
        for i in range(k)
        for j in range(k)
    ]


def lp_pool2d(xp: Any, x: Array, *, norm_type: float, kernel_size: int, stride: int) -> Array:
    h, w = ((n - kernel_size) // stride + 1 for n in x.shape[-2:])
    total: Any = 0
    for spot in _spots(x, x[..., :h, :w], kernel_size, stride):
        total = total + abs(x[spot]) ** norm_type
    return total ** (1 / norm_type)


def lp_pool2d_backward(
    xp: Any, dy: Array, x: Array, y: Array, *, norm_type: float, kernel_size: int, stride: int
) -> Array:
    if kernel_size == stride and norm_type == 2:
        ratio = xp.where(y == 0, 0, dy / xp.where(y == 0, 1, y))
        spread = xp.broadcast_to(
            ratio[..., :, None, :, None],
            (*y.shape[:-1], stride, y.shape[-1], stride),
        )
        return x * spread.reshape(x.shape)
    dx = xp.zeros_like(x)
    share = dy * y ** (1 - norm_type)
    for spot in _spots(x, y, kernel_size, stride):
        cells = x[spot]
        dx[spot] += share * xp.sign(cells) * abs(cells) ** (norm_type - 1)
    return dx


def gather(xp: Any, src: Array, index: Array, *, axis: int) -> Array:
    return (
        xp.gather(src, axis, index)
        if hasattr(xp, "gather")
        else xp.take_along_axis(src, index, axis)
    )


def gather_backward(
    xp: Any, dout: Array, index: Array, *, axis: int, src_shape: tuple[int, ...]
) -> Array:
    if hasattr(xp, "scatter_add"):
        zeros = xp.zeros(src_shape, dtype=dout.dtype, device=dout.device)
        return zeros.scatter_add_(axis, index, dout)
    places = list(xp.ogrid[tuple(slice(n) for n in index.shape)])
    places[axis] = index
    out = xp.zeros(src_shape, dtype=dout.dtype)
    if hasattr(out, "at"):
        return out.at[tuple(places)].add(dout)
    add_at = import_module("cupyx").scatter_add if xp.__name__ == "cupy" else xp.add.at
    add_at(out, tuple(places), dout)
    return out


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
    xp.put_along_axis(dx, xp.expand_dims(target, axis), -dloss / target.size, axis)
    return dx


def linear_cross_entropy(xp: Any, hidden: Array, weight: Array, target: Array) -> Array:
    return cross_entropy(xp, hidden @ weight.T, target)


def linear_cross_entropy_backward(
    xp: Any, dloss: Array, hidden: Array, weight: Array, target: Array
) -> tuple[Array, Array]:
    d = cross_entropy_backward(xp, dloss, hidden @ weight.T, target)
    return d @ weight, d.T @ hidden


def linear_cross_entropy_with_gradient(
    xp: Any, hidden: Array, weight: Array, target: Array
) -> tuple[Array, Array, Array]:
    loss, d = cross_entropy_with_gradient(xp, hidden @ weight.T, target)
    return loss, d @ weight, d.T @ hidden


EXPRESSIONS: dict[str, Expression] = {
    f.__name__: f
    for f in (
        glu, reglu, swiglu, geglu, glu_backward, reglu_backward, swiglu_backward, geglu_backward,
        lerp, lerp_backward, rope, rope_backward, lp_pool2d, lp_pool2d_backward, gather,
        gather_backward, cross_entropy, cross_entropy_backward, cross_entropy_with_gradient,
        soft_target_cross_entropy, soft_target_cross_entropy_backward,
        soft_target_cross_entropy_with_gradient, nll_loss, nll_loss_backward,
        linear_cross_entropy, linear_cross_entropy_backward, linear_cross_entropy_with_gradient,
        rms_norm, rms_norm_backward, layer_norm, layer_norm_backward,
        add_rms_norm, add_rms_norm_backward, add_layer_norm, add_layer_norm_backward, softmax,
        softmax_backward, log_softmax, log_softmax_backward, group_norm, group_norm_backward,
        instance_norm, instance_norm_backward, batch_norm, batch_norm_backward,
    )
}  # fmt: skip
"""Of the ops that torch has no function for, or one that takes other arguments."""


def namesake(spec: OpSpec) -> Expression:
    """torch's function that is the same as an op."""
    return attrgetter(spec.namesake or "")(import_module("torch"))  # type: ignore[no-any-return]


def expression_of(op: str) -> Expression:
    """What an op is compared with: an expression, torch's function, else the body at one go."""
    spec = registry[op].spec

    def plain(xp: Any, *arrays: Array, **options: Any) -> Any:
        if spec.namesake and xp.__name__ == "torch":
            return namesake(spec)(*arrays, **options)
        return registry[op](*arrays, **options, backend="array_api")

    return EXPRESSIONS.get(op, plain)
