"""What rows of tokens, and what adds to an array, are compared with: indexing, in any library."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from baracuda.libraries import Array


def _written(xp: Any, rows: Array, at: Array, n: int) -> Array:
    """`rows` where `at` says, each place at most once; 0 elsewhere."""
    shape = (n, *rows.shape[1:])
    if hasattr(rows, "new_zeros"):
        out = rows.new_zeros(shape)
    else:
        out = xp.zeros(shape, dtype=rows.dtype)
    if hasattr(out, "at"):
        return out.at[at].set(rows)
    out[at] = rows
    return out


def permute_rows(xp: Any, x: Array, row_map: Array, *, num_rows: int | None = None) -> Array:
    tokens, choices = row_map.shape
    n = tokens * choices if num_rows is None else num_rows
    repeat = getattr(xp, "repeat_interleave", None) or xp.repeat
    return _written(xp, repeat(x, choices, 0), row_map.reshape(-1), n)


def permute_rows_backward(
    xp: Any, dout: Array, row_map: Array, *, num_rows: int | None = None
) -> Array:
    return dout[row_map].sum(1)


def unpermute_rows(xp: Any, y: Array, row_map: Array, probs: Array) -> Array:
    return (y[row_map] * probs[..., None]).sum(1)


def unpermute_rows_backward(
    xp: Any, dout: Array, y: Array, row_map: Array, probs: Array
) -> tuple[Array, Array]:
    shares = (dout[:, None] * probs[..., None]).reshape(-1, *dout.shape[1:])
    dy = _written(xp, shares, row_map.reshape(-1), y.shape[0])
    return dy, (dout[:, None] * y[row_map]).sum(-1)


def index_add(
    xp: Any, x: Array, index: Array, source: Array, *, axis: int, alpha: float = 1.0
) -> Array:
    if hasattr(xp, "index_add"):
        return xp.index_add(x, axis, index, source, alpha=alpha)
    return _added(xp, x, (*[slice(None)] * (axis % x.ndim), index), alpha * source)


def index_add_backward(
    xp: Any, dout: Array, index: Array, *, axis: int, alpha: float = 1.0
) -> Array:
    rows = dout.index_select(axis, index) if hasattr(dout, "index_select") else None
    rows = xp.take(dout, index, axis=axis) if rows is None else rows
    return rows if alpha == 1 else alpha * rows


def embedding_backward_rows(
    xp: Any, dy: Array, ids: Array, *, num_embeddings: int
) -> tuple[Array, Array]:
    if hasattr(xp, "sparse_coo_tensor"):
        flat, rows = ids.reshape(1, -1), dy.reshape(-1, dy.shape[-1])
        size = (num_embeddings, dy.shape[-1])
        few = xp.sparse_coo_tensor(flat, rows, size, check_invariants=False).coalesce()
        return few.indices()[0], few.values()
    if hasattr(dy, "at"):
        rows, places = xp.unique(ids, size=ids.size, fill_value=num_embeddings, return_inverse=True)
    else:
        rows, places = xp.unique(ids, return_inverse=True)
    start = xp.zeros((len(rows), dy.shape[-1]), dtype=dy.dtype)
    return rows, _added(xp, start, places.reshape(ids.shape), dy)


def scatter_add(xp: Any, x: Array, index: Array, src: Array, *, axis: int) -> Array:
    if hasattr(xp, "scatter_add"):
        return xp.scatter_add(x, axis, index, src)
    return _added(xp, x, _places(xp, index, axis), src)


def scatter_add_backward(xp: Any, dout: Array, index: Array, *, axis: int) -> Array:
    if hasattr(xp, "take_along_axis"):
        return xp.take_along_axis(dout, index, axis)
    return xp.gather(dout, axis, index)


def scatter(xp: Any, x: Array, index: Array, src: Array, *, axis: int) -> Array:
    if hasattr(xp, "scatter"):
        return xp.scatter(x, axis, index, src)
    if hasattr(x, "at"):
        return x.at[_places(xp, index, axis)].set(src)
    out = x.copy()
    xp.put_along_axis(out, index, src, axis)
    return out


def scatter_backward(xp: Any, dout: Array, index: Array, *, axis: int) -> tuple[Array, Array]:
    dsrc = scatter_add_backward(xp, dout, index, axis=axis)
    return scatter(xp, dout, index, 0 * dsrc, axis=axis), dsrc


def scatter_reduce(
    xp: Any, x: Array, index: Array, src: Array, *, axis: int, reduction: str
) -> Array:
    """Means and maxima."""
    if hasattr(xp, "scatter_reduce"):
        how = {"max": "amax"}.get(reduction, reduction)
        return xp.scatter_reduce(x, axis, index, src, how)
    at = _places(xp, index, axis)
    if reduction == "mean":
        return _added(xp, x, at, src) / _added(xp, xp.ones_like(x), at, xp.ones_like(src))
    if hasattr(x, "at"):
        return x.at[at].max(src)
    out = x.copy()
    maximum_at = import_module("cupyx").scatter_max if xp.__name__ == "cupy" else xp.maximum.at
    maximum_at(out, at, src)
    return out


def scatter_reduce_backward(
    xp: Any, dout: Array, x: Array, index: Array, src: Array, out: Array, *, axis: int,
    reduction: str,
) -> tuple[Array, Array]:  # fmt: skip
    own, hit = xp.ones_like(x), xp.ones_like(src)
    if reduction == "max":
        own, hit = own * (x == out), hit * (src == scatter_add_backward(xp, out, index, axis=axis))
    share = dout / scatter_add(xp, own, index, hit, axis=axis)
    return share * own, hit * scatter_add_backward(xp, share, index, axis=axis)


def _places(xp: Any, index: Array, axis: int) -> tuple[Array, ...]:
    """The places of elements that an index points to along an axis, for other libraries."""
    shape = index.shape
    places = [xp.arange(n).reshape(-1, *[1] * (len(shape) - i - 1)) for i, n in enumerate(shape)]
    places[axis] = index
    return tuple(places)


def _added(xp: Any, x: Array, at: Any, values: Array) -> Array:
    if hasattr(x, "at"):
        return x.at[at].add(values)
    out = x.copy()
    add_at = import_module("cupyx").scatter_add if xp.__name__ == "cupy" else xp.add.at
    add_at(out, at, values)
    return out


EXPRESSIONS = (
    permute_rows, permute_rows_backward, unpermute_rows, unpermute_rows_backward,
    embedding_backward_rows, index_add, index_add_backward, scatter_add, scatter_add_backward,
    scatter, scatter_backward, scatter_reduce, scatter_reduce_backward,
)  # fmt: skip
