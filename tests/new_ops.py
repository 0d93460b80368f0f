"""Ops of no family, declared as a newcomer would: nothing else in the package knows their names.

They are registered while a test asks for them, and gone afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Unpack

from baracuda import roles
from baracuda.dispatch import Dispatch
from baracuda.libraries import A, Array, library_of
from baracuda.numerics import scatter_add
from baracuda.op import op, registry
from baracuda.spec import Case
from baracuda.values import choice, shape

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


def _made(function: Any, text: str, **more: Any) -> Any:
    declared = op(text, category="lookup", roles=LOOKED_UP, cases=CASES, **more)(function)
    if function.__name__ != "look_up":
        del registry[function.__name__]
    return declared


look_up = _made(look_up, "ids[*i], table[n d] -> y[*i d]", options=BOUNDS)
look_up_backward = _made(
    look_up_backward, "dy[*i d], ids[*i], table_shape(n d) -> dtable[n d]",
    options={**BOUNDS, "table_shape": shape}, adjoint_of="look_up",
)  # fmt: skip
del registry["look_up"]
wrong_look_up = _made(wrong_look_up, "ids[*i], table[n d] -> y[*i d]", options=BOUNDS)
