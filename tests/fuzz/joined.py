"""Formulas of what an index joins, elements and bags of rows: from the list of what goes there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .formulas import formula

_JOINS = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod}


def _lists(x: Any, index: Any, axis: int) -> dict[Any, list[Any]]:
    """Of each place where something goes: where that is."""
    found: dict[Any, list[Any]] = {}
    for place, to in np.ndenumerate(index):
        if 0 <= to < x.shape[axis]:
            there = list(place)
            there[axis] = int(to)
            found.setdefault(tuple(there), []).append(place)
    return found


def joined(x: Any, index: Any, src: Any, o: Any) -> Any:
    """The result; in extended precision, as many roundings of equal terms go the same way."""
    out, mine = x.astype(np.float64), bool(o["include_self"])
    for there, places in _lists(x, index, o["axis"] % x.ndim).items():
        every = np.asarray([*[x[there]] * mine, *[src[p] for p in places]], np.longdouble)
        out[there] = _JOINS[o["reduction"]](every)
    return out


@formula("scatter_reduce")
def scatter_reduce(t: Any, o: Any) -> Any:
    return (joined(*[t[name].numpy() for name in ("x", "index", "src")], o),)


@formula("scatter_reduce_backward")
def scatter_reduce_backward(t: Any, o: Any) -> Any:
    dout, x, index, src, out = (t[n].numpy() for n in ("dout", "x", "index", "src", "out"))
    how, mine = o["reduction"], bool(o["include_self"])
    dx, dsrc = dout.astype(np.float64), np.zeros(src.shape)
    for there, places in _lists(x, index, o["axis"] % x.ndim).items():
        every = np.asarray([*[x[there]] * mine, *[src[p] for p in places]], np.longdouble)
        shares = np.ones(len(every)) / (len(every) if how == "mean" else 1)
        if how in ("max", "min"):
            hit = (every == out[there]) | (np.isnan(every) & np.isnan(out[there]))
            shares = hit / max(hit.sum(), 1)
        if how == "prod":
            shares = np.asarray([np.prod(np.delete(every, k)) for k in range(len(every))])
        with_own = [(dx if k < mine else dsrc, share) for k, share in enumerate(shares)]
        for (into, share), place in zip(with_own, [*[there] * mine, *places], strict=True):
            into[place] = share * dout[there] if share else 0
        if not mine:
            dx[there] = 0
    return dx, dsrc


def _bags(t: Any, o: Any) -> Iterator[list[Any]]:
    """Of each bag: where the entries that count are in the ids."""
    ids, offsets = t["ids"].numpy(), t.get("offsets")
    n = t["weight"].shape[0]
    if offsets is None:
        bags = [[(b, k) for k in range(ids.shape[1])] for b in range(ids.shape[0])]
    else:
        edges = [min(int(at), len(ids)) for at in offsets[1:]] + [len(ids)]
        bags = [[(k,) for k in range(a, b)] for a, b in zip([0, *edges], edges, strict=False)]
    for places in bags[: len(ids) if offsets is None else len(offsets)]:
        yield [p for p in places if 0 <= ids[p] < n and ids[p] != o["padding_idx"]]


def _weight(t: Any, place: Any) -> Any:
    weights = t.get("per_sample_weight")
    return np.longdouble(1) if weights is None else weights.numpy()[place].astype(np.longdouble)


@formula("embedding_bag")
def embedding_bag(t: Any, o: Any) -> Any:
    ids, table = t["ids"].numpy(), t["weight"].numpy().astype(np.longdouble)
    out = []
    for places in _bags(t, o):
        rows = [table[ids[p]] * _weight(t, p) for p in places] or [np.zeros(table.shape[1])]
        out.append({"sum": np.sum, "mean": np.mean, "max": np.max}[o["reduction"]](rows, axis=0))
    return (np.reshape(out, (len(out), table.shape[1])).astype(np.float64),)


@formula("embedding_bag_backward")
def embedding_bag_backward(t: Any, o: Any) -> Any:
    ids, table, y = t["ids"].numpy(), t["weight"].numpy(), t["y"].numpy()
    dy = t["dy"].numpy().astype(np.longdouble)
    dtable, dweight = np.zeros(table.shape, np.longdouble), np.zeros(ids.shape)
    for b, places in enumerate(_bags(t, o)):
        rows = np.asarray([table[ids[p]] for p in places]).reshape(len(places), table.shape[1])
        shares = np.ones(rows.shape) / (max(len(places), 1) if o["reduction"] == "mean" else 1)
        if o["reduction"] == "max":
            hit = (rows == y[b]) | (np.isnan(rows) & np.isnan(y[b]))
            shares = hit / np.maximum(hit.sum(axis=0), 1)
        for p, row, share in zip(places, rows, shares, strict=True):
            dtable[ids[p]] += np.where(share > 0, share * dy[b] * _weight(t, p), 0)
            dweight[p] = (dy[b] * row).sum()
    return dtable.astype(np.float64), *[dweight] * ("per_sample_weight" in t)
