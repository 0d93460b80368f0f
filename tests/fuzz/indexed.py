"""Formulas of rows by their ids: plain indexing in NumPy."""

from __future__ import annotations

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
