"""Formulas of elements joined by an index: place by place, from the list of what goes there."""

from __future__ import annotations

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
