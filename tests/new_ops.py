"""Ops of no family, declared as a newcomer would: nothing else in the package knows their names.

They are registered while a test asks for them, and gone afterwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Unpack

from baracuda.calls.op import op, registry
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.shapes import Axes
from baracuda.declaration.spec import Case
from baracuda.declaration.values import (
    choice,
    shape,
    sizes,
)
from baracuda.errors import value_error
from baracuda.families.numerics import scatter_add
from baracuda.libraries import A, Array, library_of

BOUNDS = {"bounds": choice("raise", "drop")}
LOOKED_UP = {"ids": roles.index("n", policy="bounds")}
CASES = (
    Case({"i": (5,), "n": 7, "d": 3}),
    Case({"i": (2, 3), "n": 4, "d": 6}, bounds="drop"),
    Case({"i": (), "n": 2, "d": 1}),
)


@contextmanager
def registered(*names: str) -> Iterator[None]:
    """Ops of this file by their names, in the registry."""
    added = {name: globals()[name] for name in names}
    registry.update(added)
    try:
        yield
    finally:
        for name in added:
            del registry[name]


def look_up(
    ids: Array, table: A, /, *, bounds: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """Rows of a table."""
    xp = library_of(table).xp
    valid = (ids >= 0) & (ids < table.shape[0])
    rows = xp.take(table, xp.reshape(xp.where(valid, ids, 0), (-1,)), axis=0)
    rows = xp.reshape(rows, (*ids.shape, table.shape[1]))
    return xp.where(xp.expand_dims(valid, axis=-1), rows, xp.zeros_like(rows))


def look_up_backward(
    dy: A, ids: Array, /, *, table_shape: tuple[int, ...],
    bounds: Literal["raise", "drop"] = "raise", **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """What each row of the table had a part in, added up."""
    xp = library_of(dy).xp
    flat = xp.reshape(dy, (-1, table_shape[1]))
    at = xp.broadcast_to(xp.reshape(ids, (-1, 1)), flat.shape)
    return scatter_add(flat, at, 0, table_shape)


def wrong_look_up(
    ids: Array, table: A, /, *, bounds: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """Rows of a table, the last one for -1."""
    xp = library_of(table).xp
    rows = xp.take(table, xp.reshape(ids % table.shape[0], (-1,)), axis=0)
    return xp.reshape(rows, (*ids.shape, table.shape[1]))


def max_pool2d(
    x: A, /, *, kernel_size: int | tuple[int, int], **dispatch: Unpack[Dispatch]
) -> tuple[Array, Array]:
    """The largest of each window, and where it is in its plane."""
    library, (kh, kw), (h, w) = library_of(x), kernel_size, x.shape[-2:]
    xp, oh, ow = library.xp, h // kh, w // kw
    there = {"dtype": library.dtype(library.held_as("int64")), "device": library.device_of(x)}
    corner = kh * w * xp.arange(oh, **there)[:, None] + kw * xp.arange(ow, **there)
    y = at = None
    for i, j in itertools.product(range(kh), range(kw)):
        cell = x[..., i : oh * kh : kh, j : ow * kw : kw]
        place = xp.broadcast_to(corner + (i * w + j), cell.shape)
        if y is None:
            y, at = cell, place
            continue
        more = (cell > y) | (xp.isnan(cell) & ~xp.isnan(y))
        y, at = xp.where(more, cell, y), xp.where(more, place, at)
    return y, at


def max_pool2d_backward(
    dy: A, where: Array, /, *, x_shape: tuple[int, ...], kernel_size: int | tuple[int, int],
    **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """To the cells that were the largest, what came for their windows."""
    xp, (*b, h, w) = library_of(dy).xp, x_shape
    flat = [xp.reshape(x, (*b, math.prod(x.shape[-2:]))) for x in (dy, where)]
    return xp.reshape(scatter_add(*flat, len(b), (*b, h * w)), x_shape)


def _counts(op: str, axes: Axes, options: Mapping[str, Any]) -> dict[str, int]:
    h, w = options["kernel_size"]
    if axes["h"] < h or axes["w"] < w:
        raise value_error(op, "kernel_size", "at most the plane", options["kernel_size"])
    return {"oh": axes["h"] // h, "ow": axes["w"] // w}


def _made(function: Any, text: str, **more: Any) -> Any:
    if "category" not in more:
        more = {"category": "lookup", "roles": LOOKED_UP, "cases": CASES, **more}
    declared = op(text, **more)(function)
    _MADE.append(function.__name__)
    return declared


_MADE: list[str] = []
look_up = _made(look_up, "ids[*i], table[n d] -> y[*i d]", options=BOUNDS)
look_up_backward = _made(
    look_up_backward, "dy[*i d], ids[*i], table_shape(n d) -> dtable[n d]",
    options={**BOUNDS, "table_shape": shape}, adjoint_of="look_up",
)  # fmt: skip
wrong_look_up = _made(wrong_look_up, "ids[*i], table[n d] -> y[*i d]", options=BOUNDS)
_pool = partial(
    _made, category="pooling", options={"kernel_size": sizes(2)}, resolve=_counts,
    derived=("oh", "ow"),
    cases=(Case({"b": (2,), "h": 6, "w": 9}, kernel_size=(2, 3)),
           Case({"b": (), "h": 5, "w": 4}, kernel_size=2)),
)  # fmt: skip
max_pool2d = _pool(
    max_pool2d, "x[*b h w] -> y[*b oh ow], where[*b oh ow]", roles={"where": roles.positions()}
)
max_pool2d_backward = _pool(
    max_pool2d_backward, "dy[*b oh ow], where[*b oh ow], x_shape(*b h w) -> dx[*b h w]",
    options={"kernel_size": sizes(2), "x_shape": shape}, roles={"where": roles.integer()},
    adjoint_of="max_pool2d",
)  # fmt: skip
for _name in _MADE:
    del registry[_name]
