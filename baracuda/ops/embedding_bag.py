"""Rows of a table joined bag by bag, and the gradients of the table and of weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Literal, TypeAlias, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, integer, optional
from baracuda.families.indexing import added, highest, inside, of_rows, padding, taken
from baracuda.families.numerics import masked
from baracuda.libraries import A, Array, library_of

__all__ = ["embedding_bag", "embedding_bag_backward"]

Joins: TypeAlias = Callable[..., Array]
Spreads: TypeAlias = Callable[[Array], Array]
AXES: dict[str, Any] = {"b": 4, "k": 3, "t": 11, "m": 4, "n": 7, "d": 5}
ROLES = {"ids": roles.index("n", skipped="padding_idx"), "offsets": roles.ascending(0, 11)}
_bags = partial(
    op,
    category="indexing",
    options={
        "reduction": choice("sum", "mean", "max"),
        "padding_idx": optional(integer),
        "mode": choice("raise", "drop"),
    },
    resolve=padding,
    batches=("b",),
    cases=(
        Case({**AXES, "d": 16}, reduction="sum", mode="drop"),
        Case(AXES, reduction="mean", padding_idx=2),
        Case({**AXES, "b": 2, "m": 9, "d": 1}, reduction="max"),
    ),
)


def _between(ids: Array, offsets: Array | None) -> tuple[Joins, Spreads]:
    """What joins arrays of entries bag by bag, and what gives each entry what its bag has."""
    xp = library_of(ids).xp
    if offsets is None:

        def along(x: Array, top: bool = False) -> Array:
            if not top or 0 in x.shape:
                return xp.sum(x, axis=1)
            return xp.max(x, axis=1)

        return along, partial(xp.expand_dims, axis=1)
    # An entry is of the bag that began last, and of the first where none has.
    within, bags = xp.where(offsets < ids.shape[0], offsets, -1), offsets.shape[0]
    bag = xp.cumulative_sum(added(xp.ones_like(offsets), within, 0, ids.shape[0])) - 1
    bag = xp.where(bag < 0, min(bags - 1, 0), bag)

    def joined(x: Array, top: bool = False) -> Array:
        return highest(x, bag, bags) if top else added(x, bag, 0, bags)

    return joined, lambda x: taken(x, bag, 0)


def _counting(ids: Array, extent: int, padding_idx: int | None) -> Array:
    """Which entries are rows that count."""
    valid = inside(ids, extent)
    return valid if padding_idx is None else valid & (ids != padding_idx)


@_bags(
    "ids[b k], weight[n d] -> y[b d]",
    "ids[t], weight[n d], offsets[m] -> y[m d]",
    "ids[b k], weight[n d], per_sample_weight[b k] -> y[b d] if reduction=sum",
    "ids[t], weight[n d], offsets[m], per_sample_weight[t] -> y[m d] if reduction=sum",
    roles=ROLES,
    kernel=Kernel("indexing.cu", "", schedule="bags"),
)
def embedding_bag(
    ids: Array,
    weight: A,
    offsets: Array | None = None,
    per_sample_weight: Array | None = None,
    /,
    *,
    reduction: Literal["sum", "mean", "max"] = "mean",
    padding_idx: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Look up rows of a table and join them bag by bag: ``y[b] = sum(weight[ids[b]])``.

    Parameters
    ----------
    ids : array of shape [b, k] or [t]
        int32 or int64, ``0 <= id < n``: k rows for each bag; or, with `offsets`, all bags one after
        the other.
    weight : array of shape [n, d]
        The table; float16, bfloat16, float32 or float64.
    offsets : array of shape [m], optional
        int32 or int64, ascending: where each bag begins in `ids`; it ends where the next begins.
        The first bag begins at 0, whatever its offset. Of offsets that do not ascend, results are
        undefined.
    per_sample_weight : array of the shape of `ids`, optional
        What each row is multiplied by, for ``reduction="sum"`` alone; dtype of `weight`.
    reduction : {"sum", "mean", "max"}
        How the rows of a bag are joined.
    padding_idx : int, optional
        A row that is in no bag.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or be in no bag. On a GPU nothing waits, and the error
        comes with the next call on that device or from `check_errors`. Under transforms of JAX and
        `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [b, d] or [m, d]
        dtype of `weight`, C order; 0 for a bag without rows.

    Raises
    ------
    IndexError
        An id out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `ids` or `offsets` neither int32 nor int64, `weight` not floating; mixed libraries, devices
        or dtypes; arrays that do not go together, as weights beside a mean or maximum.
    ValueError
        Shapes that do not fit, `padding_idx` not a row.

    Notes
    -----
    Same as `torch.nn.functional.embedding_bag`, whose `mode` is `reduction` here. Without `offsets`
    it takes ids of two axes; ``include_last_offset=True`` is ``offsets[:-1]``. Sums are kept in
    float32 (float64 for float64) and rounded once. A maximum is NaN where one of its rows is.

    Deterministic on the host and on NVIDIA GPUs: a thread adds up the rows of a bag in the order of
    the ids. Bags are meant to be short: one of very many rows keeps one thread for each 16 bytes of
    a row busy, where `segment_sum` takes parts.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> table = np.asarray([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    >>> bc.embedding_bag(np.asarray([2, 0, 1]), table, np.asarray([0, 2, 3]), reduction="sum")
    array([[4., 6.],
           [2., 3.],
           [0., 0.]])
    """
    xp, here = library_of(weight).xp, _counting(ids, weight.shape[0], padding_idx)
    join, _ = _between(ids, offsets)
    rows = taken(weight, ids, 0)
    mask = of_rows(here, rows)
    if per_sample_weight is not None:
        rows = rows * of_rows(per_sample_weight, rows)
    if reduction == "sum":
        return join(masked(rows, mask))
    many = of_rows(join(xp.astype(here, rows.dtype)), weight)
    if reduction == "max":
        return xp.where(many > 0, join(masked(rows, mask, -inf), True), 0)
    return join(masked(rows, mask)) / xp.where(many > 0, many, 1)


@_bags(
    "dy[b d], ids[b k], weight[n d], y[b d] -> dweight[n d]",
    "dy[m d], ids[t], weight[n d], y[m d], offsets[m] -> dweight[n d]",
    "dy[b d], ids[b k], weight[n d], y[b d], per_sample_weight[b k] "
    "-> dweight[n d], dper_sample_weight[b k] if reduction=sum",
    "dy[m d], ids[t], weight[n d], y[m d], offsets[m], per_sample_weight[t] "
    "-> dweight[n d], dper_sample_weight[t] if reduction=sum",
    adjoint_of="embedding_bag",
    roles={**ROLES, "dweight": roles.total()},
    kernel=Kernel("indexing.cu", "", schedule="bags_backward"),
)
def embedding_bag_backward(
    dy: Array,
    ids: Array,
    weight: A,
    y: Array,
    offsets: Array | None = None,
    per_sample_weight: Array | None = None,
    /,
    *,
    reduction: Literal["sum", "mean", "max"] = "mean",
    padding_idx: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A]:
    """Gradients of `embedding_bag` for the table, and for the weights where there are some.

    Parameters
    ----------
    dy : array of shape [b, d] or [m, d]
        Gradient of the result; dtype of `weight`.
    ids : array of shape [b, k] or [t]
        int32 or int64: the rows of each bag.
    weight : array of shape [n, d]
        The table; float16, bfloat16, float32 or float64.
    y : array of shape [b, d] or [m, d]
        Result of `embedding_bag`; dtype of `weight`. Read for "max" alone.
    offsets : array of shape [m], optional
        int32 or int64, ascending: where each bag begins in `ids`.
    per_sample_weight : array of the shape of `ids`, optional
        What each row was multiplied by; dtype of `weight`.
    reduction : {"sum", "mean", "max"}
        How the rows of a bag were joined.
    padding_idx : int, optional
        A row that is in no bag, and gets no gradient.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or have no gradient.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    dweight : array of shape [n, d]
        dtype of `weight`, C order; 0 where no id points. A given `out` may be float32 beside
        `weight` of 16 bits, and ``accumulate=True`` adds into it.
    dper_sample_weight : array of the shape of `ids`
        dtype of `weight`, C order; where `per_sample_weight` is given.

    Raises
    ------
    IndexError
        An id out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `weight` not floating, `ids` neither int32 nor int64; mixed libraries, devices or dtypes.
    ValueError
        Shapes that do not fit, `padding_idx` not a row.

    Notes
    -----
    Elements that tie for a maximum share its gradient evenly; torch gives it to the first. Sums are
    kept in float32 (float64 for float64) and rounded once. Deterministic on the host and on NVIDIA
    GPUs: the share of each entry is a row of its own, in a workspace, and these are summed as
    `embedding_backward` sums rows.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> table, ids = np.asarray([[0.0, 1.0], [2.0, 3.0]]), np.asarray([[1, 1], [1, 0]])
    >>> y = bc.embedding_bag(ids, table)
    >>> bc.embedding_bag_backward(np.ones((2, 2)), ids, table, y)
    array([[0.5, 0.5],
           [1.5, 1.5]])
    """
    xp, n = library_of(weight).xp, weight.shape[0]
    join, spread = _between(ids, offsets)
    # Where there is no bag, no entry is in one.
    here = _counting(ids, n, padding_idx) & (dy.shape[0] > 0)
    at, mask = xp.where(here, ids, -1), here[..., None]
    if reduction == "mean":
        many = of_rows(join(xp.astype(here, dy.dtype)), dy)
        dy = dy / xp.where(many > 0, many, 1)
    if reduction == "max":
        rows, top = taken(weight, at, 0), spread(y)
        hit = ((rows == top) | ((rows != rows) & (top != top))) & mask
        ties = join(xp.astype(hit, dy.dtype))
        shares = xp.where(hit, spread(dy / xp.where(ties > 0, ties, 1)), 0)
    else:
        shares = xp.where(mask, spread(dy), 0)
    if per_sample_weight is None:
        return added(shares, at, 0, n)
    dots = xp.sum(xp.where(mask, shares * taken(weight, at, 0), 0), axis=-1)
    return added(xp.where(mask, shares * per_sample_weight[..., None], 0), at, 0, n), dots
