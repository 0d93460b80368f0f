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

from baracuda.calls.op import registry
from baracuda.declaration.spec import OpSpec
from baracuda.libraries import Array
from baracuda.testing import optimiser_peers, row_peers

Expression: TypeAlias = Callable[..., Any]


def _halves(x: Array) -> tuple[Array, Array]:
    n = x.shape[-1] // 2
    return x[..., :n], x[..., n:]


def _sigmoid(xp: Any, b: Array) -> Array:
    return 1 / (1 + xp.exp(-b))


def _erf(xp: Any) -> Callable[[Array], Array]:
    """The library's error function, SciPy's for NumPy."""
    if xp.__name__ == "numpy":
        return import_module("scipy.special").erf  # type: ignore[no-any-return]
    if xp.__name__ == "cupy":
        return import_module("cupyx.scipy.special").erf  # type: ignore[no-any-return]
    if xp.__name__ == "jax.numpy":
        return import_module("jax.scipy.special").erf  # type: ignore[no-any-return]
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
        slope = share * xp.sign(cells) * abs(cells) ** (norm_type - 1)
        if hasattr(dx, "at"):
            dx = dx.at[spot].add(slope)
        else:
            dx[spot] += slope
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


EXPRESSIONS: dict[str, Expression] = {
    f.__name__: f
    for f in (
        glu, reglu, swiglu, geglu, glu_backward, reglu_backward, swiglu_backward, geglu_backward,
        lerp, lerp_backward, rope, rope_backward, lp_pool2d, lp_pool2d_backward, gather,
        gather_backward, *row_peers.EXPRESSIONS, *optimiser_peers.EXPRESSIONS,
    )
}  # fmt: skip
"""Of the ops that torch has no function for, or one that takes other arguments."""


def namesake(spec: OpSpec) -> Expression:
    """torch's function that is the same as an op; optional arrays go by their names."""
    function = attrgetter(spec.namesake or "")(import_module("torch"))
    always = len(spec.arrays) - len(spec.optional)

    def call(*arrays: Array | None, **options: Any) -> Any:
        named = zip(spec.optional, arrays[always:], strict=False)
        more = {name: x for name, x in named if x is not None}
        return function(*arrays[:always], **more, **options)

    return call if spec.optional else function


def expression_of(op: str) -> Expression:
    """What an op is compared with: an expression, torch's function, else the body at one go."""
    spec = registry[op].spec

    def plain(xp: Any, *arrays: Array, **options: Any) -> Any:
        if spec.namesake and xp.__name__ == "torch":
            return namesake(spec)(*arrays, **options)
        return registry[op](*arrays, **options, backend="array_api")

    return EXPRESSIONS.get(op, plain)
