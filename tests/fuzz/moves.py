"""Formulas of what moves, turns and pools: gather, rope, norms of windows."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import torch

from .formulas import formula


def _places(index: Any, shape: Any, axis: int) -> tuple[Any, Any]:
    """Where in an array of this shape each index points, and which are in range."""
    valid = (index >= 0) & (index < shape[axis])
    grid = list(np.indices(index.shape))
    grid[axis] = np.where(valid, index, 0)
    return tuple(g[valid] for g in grid), valid


def gather(src: Any, index: Any, axis: int) -> Any:
    """Of any dtype; 0 where an index is out of range."""
    at, valid = _places(index, src.shape, axis % src.ndim)
    out = np.zeros(index.shape, src.dtype)
    out[valid] = src[at]
    return out


def index_select(src: Any, index: Any, axis: int) -> Any:
    """The same for whole slices."""
    lines = index.reshape([-1 if i == axis % src.ndim else 1 for i in range(src.ndim)])
    shape = [len(index) if i == axis % src.ndim else n for i, n in enumerate(src.shape)]
    return gather(src, np.broadcast_to(lines, shape), axis)


@formula("gather_backward")
def gather_backward(t: Any, o: Any) -> Any:
    dout, index = t["dout"].numpy(), t["index"].numpy()
    return (_scattered(np.zeros(o["src_shape"]), index, dout, o["axis"]),)


def _scattered(x: Any, index: Any, src: Any, axis: int) -> Any:
    at, valid = _places(index, x.shape, axis % x.ndim)
    # Many roundings of equal terms go the same way.
    out = x.astype(np.longdouble)
    np.add.at(out, at, src[valid])
    return out.astype(np.float64)


@formula("scatter_add")
def scatter_add(t: Any, o: Any) -> Any:
    return (_scattered(*[t[name].numpy() for name in ("x", "index", "src")], o["axis"]),)


@formula("scatter_add_backward")
def scatter_add_backward(t: Any, o: Any) -> Any:
    return (gather(t["dout"].numpy(), t["index"].numpy(), o["axis"]),)


def _roped(x: Any, positions: Any, o: Any, sign: int) -> Any:
    """A product of complex numbers, whose angles are of extended precision."""
    d, axis = x.shape[-1], o["seq_axis"] % x.ndim
    size = d if o["rotary_dim"] is None else o["rotary_dim"]
    positions = np.arange(x.shape[axis]) if positions is None else positions
    if positions.ndim == 1:
        positions = positions.reshape(-1, *[1] * (x.ndim - 2 - axis))
    powers = np.arange(size // 2, dtype=np.longdouble) * -2 / max(size, 1)
    angle = positions.astype(np.longdouble)[..., None] * np.longdouble(o["base"]) ** powers
    cos, sin = np.cos(angle), sign * np.sin(angle)
    out = x.astype(np.longdouble)
    first = slice(0, size, 2) if o["interleaved"] else slice(0, size // 2)
    second = slice(1, size, 2) if o["interleaved"] else slice(size // 2, size)
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return (out.astype(np.float64),)


def _by_tables(x: Any, t: Any, o: Any, sign: int) -> Any:
    """Each element has a cosine and a sine; those of positions without a row are 0."""
    d, axis = x.shape[-1], o["seq_axis"] % x.ndim
    size = d if o["rotary_dim"] is None else o["rotary_dim"]
    first = slice(0, size, 2) if o["interleaved"] else slice(0, size // 2)
    second = slice(1, size, 2) if o["interleaved"] else slice(size // 2, size)
    tables = []
    for table in (t["cos"].numpy(), t["sin"].numpy()):
        if "positions" in t:
            at = t["positions"].numpy()
            valid = (at >= 0) & (at < len(table))
            table = np.where(valid[..., None], table[np.where(valid, at, 0)], 0)
        if table.ndim == 2:
            table = table.reshape(len(table), *[1] * (x.ndim - 2 - axis), table.shape[-1])
        tables.append(table if table.shape[-1] == size // 2 else table[..., first])
    (cos, sin), out = tables, x.copy()
    a, b, sin = x[..., first], x[..., second], sign * sin
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return (out,)


def _positions(t: Any) -> Any:
    return t["positions"].numpy() if "positions" in t else None


@formula("rope_qk")
def rope_qk(t: Any, o: Any) -> Any:
    return tuple([_roped(t[n].numpy(), _positions(t), o, 1)[0] for n in ("q", "k")])


@formula("rope_qk_backward")
def rope_qk_backward(t: Any, o: Any) -> Any:
    return tuple([_roped(t[n].numpy(), _positions(t), o, -1)[0] for n in ("dy", "dz")])


@formula("rope_qk_with_tables")
def rope_qk_with_tables(t: Any, o: Any) -> Any:
    return tuple([_by_tables(t[n].numpy(), t, o, 1)[0] for n in ("q", "k")])


@formula("rope_qk_with_tables_backward")
def rope_qk_with_tables_backward(t: Any, o: Any) -> Any:
    return tuple([_by_tables(t[n].numpy(), t, o, -1)[0] for n in ("dy", "dz")])


@formula("rope_with_tables")
def rope_with_tables(t: Any, o: Any) -> Any:
    return _by_tables(t["x"].numpy(), t, o, 1)


@formula("rope_with_tables_backward")
def rope_with_tables_backward(t: Any, o: Any) -> Any:
    return _by_tables(t["dy"].numpy(), t, o, -1)


@formula("rope")
def rope(t: Any, o: Any) -> Any:
    return _roped(t["x"].numpy(), _positions(t), o, 1)


@formula("rope_backward")
def rope_backward(t: Any, o: Any) -> Any:
    return _roped(t["dy"].numpy(), _positions(t), o, -1)


@formula("qk_norm_rope")
def qk_norm_rope(t: Any, o: Any) -> Any:
    """Heads as complex numbers, times factors that tables may hold."""
    q = t["q"]
    d = q.shape[-1]
    size = d if o["rotary_dim"] is None else o["rotary_dim"]
    if "cos" in t:
        once = slice(0, size, 2) if o["interleaved"] else slice(0, size // 2)
        part = once if t["cos"].shape[-1] == size else slice(None)
        cos, sin = t["cos"][..., part], t["sin"][..., part]
    else:
        at = t["positions"].numpy() if "positions" in t else np.arange(q.shape[-3])
        powers = np.arange(size // 2, dtype=np.longdouble) * -2 / max(size, 1)
        angle = at.astype(np.longdouble)[..., None] * np.longdouble(o["base"]) ** powers
        cos, sin = (torch.from_numpy(f(angle).astype(np.float64)) for f in (np.cos, np.sin))
    turn = cos[..., None, :], sin[..., None, :]
    return tuple(
        _headed(x, t[f"{name}_weight"] + o["offset"], turn, size, o)
        for name, x in (("q", q), ("k", t["k"]))
    )


def _headed(x: Any, weight: Any, turn: Any, size: int, o: Any) -> Any:
    if not x.numel():
        return x * weight
    y = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, o["eps"])
    part, (cos, sin) = y[..., :size], turn
    if o["interleaved"]:
        a, b = part[..., 0::2], part[..., 1::2]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    else:
        a, b = part.chunk(2, -1)
        turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    return torch.cat([turned, y[..., size:]], -1)


def _windows(extent: int, size: int, stride: int, ceil: bool) -> list[slice]:
    starts = range(0, extent, stride)
    return [slice(s, s + size) for s in starts if s + size <= extent or (
        ceil and s < extent and (s == 0 or s - stride + size < extent))]  # fmt: skip


def _pools(x: Any, o: Any, dims: int) -> list[tuple[Any, Any]]:
    """The place of each window in the result, and the cells that it has."""
    pairs = []
    for axis in range(dims):
        size, stride = (
            v[axis] if isinstance(v, tuple) else v
            for v in (o["kernel_size"], o.get("stride") or o["kernel_size"])
        )
        extent = x.shape[x.ndim - dims + axis]
        pairs.append(list(enumerate(_windows(extent, size, stride, o.get("ceil_mode", False)))))
    return [
        ((..., *(i for i, _ in chosen)), (..., *(s for _, s in chosen)))
        for chosen in product(*pairs)
    ]


def lp_pool(x: Any, o: Any, dims: int) -> Any:
    """The norm of each window, relative to its largest cell."""
    pools = _pools(x, o, dims)
    last = [max((at[1 + k] for at, _ in pools), default=-1) + 1 for k in range(dims)]
    y = np.zeros((*x.shape[: x.ndim - dims], *last))
    p, axes = float(o["norm_type"]), tuple(range(-dims, 0))
    for at, cells in pools:
        part = np.abs(x[cells])
        most = part.max(axes, keepdims=True) if part.size else part.sum(axes, keepdims=True)
        safe = np.where((most > 0) & np.isfinite(most), most, 1)
        norm = ((part / safe) ** p).sum(axes) ** (1 / p) if p != math.inf else 1.0
        norm = np.squeeze(safe, axes) * norm
        y[at] = np.where(np.squeeze(np.isfinite(most) & (most > 0), axes), norm,
                         np.squeeze(most, axes))  # fmt: skip
    return y


def _pool(dims: int) -> Any:
    def forward(t: Any, o: Any) -> Any:
        return (lp_pool(t["x"].numpy(), o, dims),)

    def backward(t: Any, o: Any) -> Any:
        dy, x, y = (t[n].numpy() for n in ("dy", "x", "y"))
        out, p, axes = np.zeros(x.shape), float(o["norm_type"]), tuple(range(-dims, 0))
        for at, cells in _pools(x, o, dims):
            part = x[cells]
            norm, g = (np.expand_dims(v[at], axes) for v in (y, dy))
            if p == math.inf:
                hit = np.abs(part) == norm
                slope = np.sign(part) * hit / np.maximum(hit.sum(axes, keepdims=True), 1)
            elif p < 1:
                # The ratio to the norm may underflow where its power does not.
                slope = np.sign(part) * np.abs(part) ** (p - 1) * norm ** (1 - p)
            else:
                slope = np.sign(part) * (np.abs(part) / norm) ** (p - 1)
            slope = np.where((norm == 0) | (part == 0), 0.0, g * slope)
            bad = np.isnan(part).any(axes, keepdims=True)
            out[cells] += np.where(bad, np.nan, slope)
        return (out,)

    return forward, backward


for _dims_of in (1, 2):
    _forward, _backward = _pool(_dims_of)
    formula(f"lp_pool{_dims_of}d")(_forward)
    formula(f"lp_pool{_dims_of}d_backward")(_backward)


def _written(x: Any, index: Any, src: Any, axis: int) -> Any:
    """One after the other along the axis, the last one last; and which places are written."""
    out, held = x.copy(), np.zeros(x.shape, bool)
    axis %= x.ndim
    for k in range(index.shape[axis]):
        part = [slice(None)] * x.ndim
        part[axis] = slice(k, k + 1)
        at, valid = _places(index[tuple(part)], x.shape, axis)
        out[at], held[at] = src[tuple(part)][valid], True
    return out, held


@formula("scatter")
def scatter(t: Any, o: Any) -> Any:
    return (_written(*[t[name].numpy() for name in ("x", "index", "src")], o["axis"])[0],)


@formula("scatter_backward")
def scatter_backward(t: Any, o: Any) -> Any:
    dout, index = t["dout"].numpy(), t["index"].numpy()
    numbers = np.arange(index.size).reshape(index.shape)
    which, held = _written(np.full(dout.shape, -1), index, numbers, o["axis"])
    dsrc = np.zeros(index.size)
    dsrc[which[held]] = dout[held]
    return np.where(held, 0, dout), dsrc.reshape(index.shape)
