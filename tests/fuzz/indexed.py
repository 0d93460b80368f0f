"""Formulas of rows by their ids: plain indexing in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .formulas import formula


def _valid(ids: Any, n: int, skipped: int | None = None) -> Any:
    return (ids >= 0) & (ids < n) & (ids != (-1 if skipped is None else skipped))


def _sums(values: Any, ids: Any, shape: Any, valid: Any) -> Any:
    # Many roundings of equal terms go the same way.
    out = np.zeros(shape, np.longdouble)
    np.add.at(out, ids[valid], values[valid])
    return out


@formula("embedding")
def embedding(t: Any, o: Any) -> Any:
    ids, weight = t["ids"].numpy(), t["weight"].numpy()
    out = np.zeros((*ids.shape, weight.shape[1]))
    valid = _valid(ids, len(weight))
    out[valid] = weight[ids[valid]] * o["scale"]
    return (out,)


@formula("embedding_backward")
def embedding_backward(t: Any, o: Any) -> Any:
    ids, shape = t["ids"].numpy(), o["weight_shape"]
    sums = _sums(t["dy"].numpy(), ids, shape, _valid(ids, shape[0], o["padding_idx"]))
    return ((sums * o["scale"]).astype(np.float64),)


@formula("embedding_backward_rows")
def embedding_backward_rows(t: Any, o: Any) -> Any:
    ids, n = t["ids"].numpy(), o["num_embeddings"]
    shape = (n, t["dy"].shape[-1])
    (sums,) = embedding_backward(t, {**o, "weight_shape": shape})
    named = np.unique(ids[_valid(ids, n, o["padding_idx"])])
    values = np.zeros((ids.size, shape[1]))
    values[: len(named)] = sums[named]
    return np.concatenate([named, np.full(ids.size - len(named), n)]), values


def _counts(ids: Any, n: int, rest: int) -> Any:
    """The rows of each segment, at least 1, beside the other axes."""
    counts = np.bincount(ids[_valid(ids, n)], minlength=n)
    return np.maximum(counts, 1).reshape(-1, *[1] * rest)


def _looked_up(x: Any, ids: Any) -> Any:
    """The row of its segment for each id, 0 for one out of range."""
    out = np.zeros((len(ids), *x.shape[1:]))
    valid = _valid(ids, len(x))
    out[valid] = x[ids[valid]]
    return out


@formula("index_select_backward")
def index_select_backward(t: Any, o: Any) -> Any:
    axis, shape = o["axis"], np.moveaxis(np.empty(o["src_shape"]), o["axis"], 0).shape
    dout, index = np.moveaxis(t["dout"].numpy(), axis, 0), t["index"].numpy()
    sums = _sums(dout, index, shape, _valid(index, shape[0])).astype(np.float64)
    return (np.moveaxis(sums, 0, axis),)


@formula("segment_sum")
def reduced(t: Any, o: Any) -> Any:
    data, ids, n = t["data"].numpy(), t["segment_ids"].numpy(), o["num_segments"]
    return (_sums(data, ids, (n, *data.shape[1:]), _valid(ids, n)).astype(np.float64),)


@formula("segment_mean")
def mean(t: Any, o: Any) -> Any:
    counts = _counts(t["segment_ids"].numpy(), o["num_segments"], t["data"].ndim - 1)
    return (reduced(t, o)[0] / counts,)


@formula("segment_sum_backward")
def sum_backward(t: Any, o: Any) -> Any:
    return (_looked_up(t["dout"].numpy(), t["segment_ids"].numpy()),)


@formula("segment_mean_backward")
def mean_backward(t: Any, o: Any) -> Any:
    dout, ids = t["dout"].numpy(), t["segment_ids"].numpy()
    return (_looked_up(dout / _counts(ids, len(dout), dout.ndim - 1), ids),)


def highest(data: Any, ids: Any, n: int) -> Any:
    """The largest of each segment, NaN where there is one."""
    out = np.full((n, *data.shape[1:]), -np.inf)
    valid = _valid(ids, n)
    np.maximum.at(out, ids[valid], data[valid])
    return out


@formula("segment_max")
def largest(t: Any, o: Any) -> Any:
    return (highest(t["data"].numpy(), t["segment_ids"].numpy(), o["num_segments"]),)


@formula("segment_max_backward")
def max_backward(t: Any, o: Any) -> Any:
    data, out, ids = t["data"].numpy(), t["out"].numpy(), t["segment_ids"].numpy()
    valid = _valid(ids, len(out)).reshape(-1, *[1] * (data.ndim - 1))
    top = _looked_up(out, ids)
    hit = valid & ((data == top) | (np.isnan(data) & np.isnan(top)))
    ties = _sums(hit.astype(np.float64), ids, out.shape, _valid(ids, len(out)))
    share = _looked_up(t["dout"].numpy() / np.maximum(ties, 1).astype(np.float64), ids)
    return (np.where(hit, share, 0),)


@formula("segment_softmax")
def softmax(t: Any, o: Any) -> Any:
    data, ids, n = t["data"].numpy(), t["segment_ids"].numpy(), o["num_segments"]
    valid = _valid(ids, n)
    powers = np.exp(data - _looked_up(highest(data, ids, n), ids))
    sums = _looked_up(_sums(powers, ids, (n, *data.shape[1:]), valid).astype(np.float64), ids)
    sums[~valid], powers[~valid] = 1, 0
    return (powers / sums,)


@formula("segment_softmax_backward")
def softmax_backward(t: Any, o: Any) -> Any:
    dy, y, ids, n = t["dy"].numpy(), t["y"].numpy(), t["segment_ids"].numpy(), o["num_segments"]
    valid = _valid(ids, n)
    sums = _sums(dy * y, ids, (n, *y.shape[1:]), valid).astype(np.float64)
    out = y * (dy - _looked_up(sums, ids))
    out[~valid] = 0
    return (out,)


def _sent(x: Any, at: Any, n: int, weights: Any) -> Any:
    """Each row the sum of the tokens that are sent there."""
    out = np.zeros((n, *x.shape[1:]), np.longdouble)
    for choice in range(at.shape[1]):
        where = _valid(at[:, choice], n)
        shares = x * weights[:, choice].reshape(-1, *[1] * (x.ndim - 1))
        np.add.at(out, at[where, choice], shares[where])
    return out.astype(np.float64)


def _fetched(y: Any, at: Any, weights: Any) -> Any:
    """Each token the sum of its rows."""
    out = np.zeros((len(at), *y.shape[1:]))
    for choice in range(at.shape[1]):
        where = _valid(at[:, choice], len(y)).reshape(-1, *[1] * (y.ndim - 1))
        shares = _looked_up(y, at[:, choice]) * weights[:, choice].reshape(-1, *[1] * (y.ndim - 1))
        out += np.where(where, shares, 0)
    return out


@formula("permute_rows")
def permute_rows(t: Any, o: Any) -> Any:
    at = t["row_map"].numpy()
    return (_sent(t["x"].numpy(), at, o["num_rows"], np.ones(at.shape)),)


@formula("permute_rows_backward")
def permute_rows_backward(t: Any, o: Any) -> Any:
    at = t["row_map"].numpy()
    return (_fetched(t["dout"].numpy(), at, np.ones(at.shape)),)


@formula("unpermute_rows")
def unpermute_rows(t: Any, o: Any) -> Any:
    return (_fetched(t["y"].numpy(), t["row_map"].numpy(), t["probs"].numpy()),)


@formula("unpermute_rows_backward")
def unpermute_rows_backward(t: Any, o: Any) -> Any:
    dout, y, at, probs = (t[name].numpy() for name in ("dout", "y", "row_map", "probs"))
    products = np.zeros(at.shape)
    for choice in range(at.shape[1]):
        each = (dout * _looked_up(y, at[:, choice])).reshape(len(at), math.prod(y.shape[1:]))
        products[:, choice] = np.where(_valid(at[:, choice], len(y)), each.sum(-1), 0)
    return _sent(dout, at, len(y), probs), products


@formula("index_add")
def index_add(t: Any, o: Any) -> Any:
    axis = o["axis"]
    x, source = (np.moveaxis(t[name].numpy(), axis, 0) for name in ("x", "source"))
    at = t["index"].numpy()
    sums = _sums(source, at, x.shape, _valid(at, len(x)))
    return (np.moveaxis((x + o["alpha"] * sums).astype(np.float64), 0, axis),)


@formula("index_add_backward")
def index_add_backward(t: Any, o: Any) -> Any:
    rows = np.moveaxis(t["dout"].numpy(), o["axis"], 0)
    return (np.moveaxis(o["alpha"] * _looked_up(rows, t["index"].numpy()), 0, o["axis"]),)
