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
from baracuda.testing import distillation_peers, indexed_peers, optimiser_peers, row_peers

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
    return rope_with_tables(xp, x, cos, sin, interleaved=interleaved)


def rope_with_tables(
    xp: Any, x: Array, cos: Array, sin: Array, *, interleaved: bool = True
) -> Array:
    if interleaved:
        e, o = x[..., 0::2], x[..., 1::2]
        out = xp.stack((e * cos - o * sin, o * cos + e * sin), -1)
        return out.reshape(x.shape)
    e, o = _halves(x)
    return _join(xp, e * cos - o * sin, o * cos + e * sin)


def rope_with_tables_backward(
    xp: Any, dy: Array, cos: Array, sin: Array, *, interleaved: bool = True
) -> Array:
    return rope_with_tables(xp, dy, cos, -sin, interleaved=interleaved)


def qk_norm_rope(
    xp: Any, q: Array, k: Array, q_weight: Array, k_weight: Array, cos: Array, sin: Array, *,
    interleaved: bool = True,
) -> tuple[Array, ...]:  # fmt: skip
    angles = cos[..., None, :], sin[..., None, :]
    normal = [row_peers.rms_norm(xp, x, w) for x, w in ((q, q_weight), (k, k_weight))]
    return tuple([rope_with_tables(xp, x, *angles, interleaved=interleaved) for x in normal])


def qk_norm_rope_backward(
    xp: Any, dq_out: Array, dk_out: Array, q: Array, k: Array, q_weight: Array, k_weight: Array,
    cos: Array, sin: Array, *, interleaved: bool = True,
) -> tuple[Array, ...]:  # fmt: skip
    back = [
        rope_with_tables(xp, dy, cos[..., None, :], -sin[..., None, :], interleaved=interleaved)
        for dy in (dq_out, dk_out)
    ]
    dq, dq_weight = row_peers.rms_norm_backward(xp, back[0], q, q_weight)
    dk, dk_weight = row_peers.rms_norm_backward(xp, back[1], k, k_weight)
    return dq, dk, dq_weight, dk_weight


def rope(xp: Any, x: Array, *, interleaved: bool = True) -> Array:
    return _rotated(xp, x, interleaved, 1)


def rope_backward(xp: Any, dy: Array, *, interleaved: bool = True) -> Array:
    return _rotated(xp, dy, interleaved, -1)


def rope_qk(xp: Any, q: Array, k: Array, *, interleaved: bool = True) -> tuple[Array, Array]:
    return _rotated(xp, q, interleaved, 1), _rotated(xp, k, interleaved, 1)


def rope_qk_backward(
    xp: Any, dy: Array, dz: Array, *, interleaved: bool = True
) -> tuple[Array, Array]:
    return _rotated(xp, dy, interleaved, -1), _rotated(xp, dz, interleaved, -1)


def rope_qk_with_tables(
    xp: Any, q: Array, k: Array, cos: Array, sin: Array, *, interleaved: bool = True
) -> tuple[Array, ...]:
    both = (q, k)
    return tuple([rope_with_tables(xp, x, cos, sin, interleaved=interleaved) for x in both])


def rope_qk_with_tables_backward(
    xp: Any, dy: Array, dz: Array, cos: Array, sin: Array, *, interleaved: bool = True
) -> tuple[Array, ...]:
    return rope_qk_with_tables(xp, dy, dz, cos, -sin, interleaved=interleaved)


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


def embedding(
    xp: Any, ids: Array, weight: Array, *, padding_idx: int | None = None, scale: float = 1.0
) -> Array:
    if hasattr(xp, "nn"):
        rows = xp.nn.functional.embedding(ids, weight, padding_idx)
    else:
        rows = weight[ids]
    return rows if scale == 1 else rows * scale


def embedding_backward(
    xp: Any, dy: Array, ids: Array, *, weight_shape: tuple[int, ...],
    padding_idx: int | None = None, scale: float = 1.0,
) -> Array:  # fmt: skip
    if hasattr(xp, "ops"):
        padding = -1 if padding_idx is None else padding_idx
        backward = xp.ops.aten.embedding_dense_backward
        dw = backward(dy, ids, weight_shape[0], padding, False)
        return dw if scale == 1 else dw * scale
    out = xp.zeros(weight_shape, dtype=dy.dtype)
    if padding_idx is not None:
        dy = xp.where((ids == padding_idx)[..., None], 0, dy)
    if hasattr(out, "at"):
        return out.at[ids].add(dy) * scale
    add_at = import_module("cupyx").scatter_add if xp.__name__ == "cupy" else xp.add.at
    add_at(out, ids, dy)
    return out * scale


def index_select(xp: Any, src: Array, index: Array, *, axis: int) -> Array:
    if hasattr(xp, "index_select"):
        return xp.index_select(src, axis, index)
    return xp.take(src, index, axis=axis)


def index_select_backward(
    xp: Any, dout: Array, index: Array, *, axis: int, src_shape: tuple[int, ...]
) -> Array:
    if hasattr(xp, "index_select"):
        return dout.new_zeros(src_shape).index_add_(axis, index, dout)
    rows = xp.moveaxis(dout, axis, 0)
    n = src_shape[axis]
    return xp.moveaxis(_reduced(xp, rows, index, n, "sum", 0.0), 0, axis)


def _beside(ids: Array, x: Array) -> Array:
    """One id for each element of a row, as `scatter_reduce` takes them."""
    return ids[(slice(None), *[None] * (x.ndim - 1))].expand_as(x)


def _reduced(xp: Any, data: Array, ids: Array, n: int, reduce: str, none: float) -> Array:
    shape = (n, *data.shape[1:])
    if hasattr(xp, "scatter_reduce"):
        out, at = data.new_full(shape, none), _beside(ids, data)
        return out.scatter_reduce_(0, at, data, reduce, include_self=False)
    out = xp.full(shape, none, dtype=data.dtype)
    if hasattr(out, "at"):
        return out.at[ids].max(data) if reduce == "amax" else out.at[ids].add(data)
    if xp.__name__ == "cupy":
        scatters = import_module("cupyx")
        (scatters.scatter_max if reduce == "amax" else scatters.scatter_add)(out, ids, data)
    else:
        (xp.maximum if reduce == "amax" else xp.add).at(out, ids, data)
    return out


def _counts(xp: Any, ids: Array, n: int, x: Array) -> Array:
    counts = xp.bincount(ids, minlength=n).reshape(-1, *[1] * (x.ndim - 1))
    return counts + (counts == 0)


def segment_sum(xp: Any, data: Array, segment_ids: Array, *, num_segments: int) -> Array:
    if hasattr(xp, "scatter_reduce"):
        zeros = data.new_zeros((num_segments, *data.shape[1:]))
        return zeros.index_add_(0, segment_ids, data)
    return _reduced(xp, data, segment_ids, num_segments, "sum", 0.0)


def segment_sum_backward(xp: Any, dout: Array, segment_ids: Array, *, num_segments: int) -> Array:
    if hasattr(xp, "index_select"):
        return xp.index_select(dout, 0, segment_ids)
    return dout[segment_ids]


def segment_mean(xp: Any, data: Array, segment_ids: Array, *, num_segments: int) -> Array:
    if hasattr(xp, "scatter_reduce"):
        return _reduced(xp, data, segment_ids, num_segments, "mean", 0.0)
    total = _reduced(xp, data, segment_ids, num_segments, "sum", 0.0)
    return total / _counts(xp, segment_ids, num_segments, data).astype(data.dtype)


def segment_mean_backward(xp: Any, dout: Array, segment_ids: Array, *, num_segments: int) -> Array:
    counts = _counts(xp, segment_ids, num_segments, dout)
    share = dout / (counts.to(dout.dtype) if hasattr(counts, "to") else counts)
    return segment_sum_backward(xp, share, segment_ids, num_segments=num_segments)


def segment_max(xp: Any, data: Array, segment_ids: Array, *, num_segments: int) -> Array:
    return _reduced(xp, data, segment_ids, num_segments, "amax", -math.inf)


def segment_max_backward(
    xp: Any, dout: Array, data: Array, out: Array, segment_ids: Array, *, num_segments: int
) -> Array:
    def each(x: Array) -> Array:
        return segment_sum_backward(xp, x, segment_ids, num_segments=num_segments)

    hit = data == each(out)
    hit = hit.to(data.dtype) if hasattr(hit, "to") else hit.astype(data.dtype)
    ties = segment_sum(xp, hit, segment_ids, num_segments=num_segments)
    return hit * each(dout / (ties + (ties == 0)))


def segment_softmax(xp: Any, data: Array, segment_ids: Array, *, num_segments: int) -> Array:
    top = segment_max(xp, data, segment_ids, num_segments=num_segments)
    powers = xp.exp(data - top[segment_ids])
    return powers / segment_sum(xp, powers, segment_ids, num_segments=num_segments)[segment_ids]


def segment_softmax_backward(
    xp: Any, dy: Array, y: Array, segment_ids: Array, *, num_segments: int
) -> Array:
    sums = segment_sum(xp, dy * y, segment_ids, num_segments=num_segments)
    return y * (dy - sums[segment_ids])


def embedding_bag(xp: Any, ids: Array, weight: Array, *, reduction: str) -> Array:
    """Of bags side by side: a sum or a maximum."""
    if hasattr(xp, "nn"):
        return xp.nn.functional.embedding_bag(ids, weight, mode=reduction)
    return getattr(weight[ids], {"sum": "sum", "max": "max"}[reduction])(1)


def embedding_bag_backward(
    xp: Any, dy: Array, ids: Array, weight: Array, y: Array, *, reduction: str
) -> Array:
    """Of sums."""
    each = xp.broadcast_to(dy[:, None], (*ids.shape, dy.shape[-1]))
    return embedding_backward(xp, each, ids, weight_shape=tuple(weight.shape))


EXPRESSIONS: dict[str, Expression] = {
    f.__name__: f
    for f in (
        glu, reglu, swiglu, geglu, glu_backward, reglu_backward, swiglu_backward, geglu_backward,
        lerp, lerp_backward, rope, rope_backward, rope_with_tables, rope_with_tables_backward,
        rope_qk, rope_qk_backward, rope_qk_with_tables, rope_qk_with_tables_backward, lp_pool2d,
        lp_pool2d_backward, gather, gather_backward, embedding, embedding_backward,
        embedding_bag, embedding_bag_backward,
        index_select, index_select_backward,
        segment_sum, segment_sum_backward, segment_mean, segment_mean_backward,
        segment_max, segment_max_backward, segment_softmax, segment_softmax_backward,
        *indexed_peers.EXPRESSIONS, *row_peers.EXPRESSIONS, *distillation_peers.EXPRESSIONS,
        qk_norm_rope, qk_norm_rope_backward, *optimiser_peers.EXPRESSIONS,
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
