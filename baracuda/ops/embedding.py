"""Rows of a table by their ids, and the gradient of the table: whole, or its few rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any, Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.shapes import Axes
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, finite, integer, optional, shape
from baracuda.families.indexing import added, distinct, extent_given, padding, taken
from baracuda.families.numerics import scaled
from baracuda.libraries import A, Array, library_of

__all__ = ["embedding", "embedding_backward", "embedding_backward_rows"]

OPTIONS = {"padding_idx": optional(integer), "mode": choice("raise", "drop")}


_embedding = partial(
    op,
    category="indexing",
    scalars={"scale": finite},
    resolve=padding,
    cases=(
        # Without a row of padding, along which the gradient is another.
        Case({"i": (11,), "n": 7, "d": 5}),
        Case({"i": (2, 3), "n": 4, "d": 16}, scale=-1.5, mode="drop"),
        Case({"i": (), "n": 3, "d": 1}),
    ),
)


@_embedding(
    "ids[*i], weight[n d] -> y[*i d]",
    options=OPTIONS,
    roles={"ids": roles.index("n")},
    kernel=Kernel("indexing.cu", "Scaled", schedule="gather"),
)
def embedding(
    ids: Array,
    weight: A,
    /,
    *,
    padding_idx: int | None = None,
    scale: float = 1.0,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Look up rows of a table: ``scale * weight[ids]``.

    Parameters
    ----------
    ids : array of shape [*i]
        int32 or int64, of any rank. Valid ids are ``0 <= id < n``: a negative one does not count
        from the end.
    weight : array of shape [n, d]
        The table. Any floating dtype.
    padding_idx : int, optional
        A row that gets no gradient. The forward looks it up as any other.
    scale : float
        Factor of the rows, applied in the accumulate dtype, before the one rounding.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or give a row of 0. On a GPU nothing waits, and the
        error comes with the next call on that device or from `check_errors`. Under transforms of
        JAX and `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*i, d]
        dtype of `weight`, C order.

    Raises
    ------
    IndexError
        An id out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `ids` neither int32 nor int64, `weight` not floating; mixed libraries or devices.
    ValueError
        `weight` not of rank 2, `padding_idx` not a row of it, `scale` not finite.

    Notes
    -----
    The arguments are those of `torch.nn.functional.embedding`. Gemma multiplies by the square root
    of d, rounded to the dtype of the table; ``scale`` of that number gives the same bits.
    Deterministic and bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> table = np.asarray([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    >>> bc.embedding(np.asarray([2, 0]), table, scale=10.0)
    array([[40., 50.],
           [ 0., 10.]])
    """
    rows = taken(weight, ids, 0, mode == "raise")
    if padding_idx is not None:
        library = library_of(weight)
        still = library.xp.expand_dims(ids == padding_idx, axis=-1)
        rows = library.xp.where(still, library.constant(rows), rows)
    return scaled(rows, scale)


@_embedding(
    "dy[*i d], ids[*i], weight_shape(n d) -> dweight[n d]",
    adjoint_of="embedding",
    options={"weight_shape": shape, **OPTIONS},
    roles={"ids": roles.index("n", skipped="padding_idx"), "dweight": roles.total()},
    kernel=Kernel("indexing.cu", "Scaled", schedule="add_rows"),
)
def embedding_backward(
    dy: A,
    ids: Array,
    /,
    *,
    weight_shape: tuple[int, ...],
    padding_idx: int | None = None,
    scale: float = 1.0,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `embedding`: add each row of `dy` to the row of the table that its id names.

    Parameters
    ----------
    dy : array of shape [*i, d]
        Gradient of the result; float16, bfloat16, float32 or float64.
    ids : array of shape [*i]
        As in `embedding`; ids may repeat.
    weight_shape : tuple of int
        Shape of `weight`, [n, d].
    padding_idx : int, optional
        A row that gets no gradient.
    scale : float
        As in `embedding`; the sums are multiplied by it.
    mode : {"raise", "drop"}
        As in `embedding`; a dropped id contributes nothing.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [n, d]
        dtype of `dy`, C order; 0 where no id points. A given `out` may be float32 beside `dy` of
        16 bits, and ``accumulate=True`` adds into it.

    Raises
    ------
    IndexError
        An id out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `dy` not floating, `ids` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `dy` not of the shape of `ids` and d, `padding_idx` not a row, `scale` not finite.

    Notes
    -----
    Linear in `dy`. Sums are kept in float32 (float64 for float64), multiplied by `scale` and
    rounded once. torch adds 16-bit rows of a table in their own precision where ids repeat.

    Deterministic on the host and on NVIDIA GPUs. The kernels invert the ids, then write each row of
    the table once, as the sum of its rows in the order of the ids. Lists of more than 64 rows are
    summed in parts, cut at fixed places, so frequent ids cost no more than others.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dy = np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> bc.embedding_backward(dy, np.asarray([2, 0, 2]), weight_shape=(3, 2))
    array([[3., 4.],
           [0., 0.],
           [6., 8.]])
    """
    if padding_idx is not None:
        xp = library_of(ids).xp
        ids = xp.where(ids == padding_idx, -1, ids)
    return scaled(added(dy, ids, 0, weight_shape[0]), scale)


def _few(op: str, axes: Axes, options: Mapping[str, Any]) -> dict[str, int]:
    """The rows of the table, and as many of its gradient as there are ids."""
    ids: Any = axes["i"]
    n = extent_given(op, "num_embeddings", options["num_embeddings"])
    return {"n": n, "m": prod(ids), **padding(op, {"n": n}, options)}


@op(
    "dy[*i d], ids[*i] -> rows[m], values[m d]",
    category="indexing",
    options={"num_embeddings": integer, **OPTIONS},
    scalars={"scale": finite},
    # The ids of all rows are compared: nothing falls apart.
    batches=(),
    roles={"ids": roles.index("n"), "rows": roles.positions(), "values": roles.total()},
    resolve=_few,
    derived=("n", "m"),
    kernel=Kernel("indexing.cu", "Scaled", schedule="few_rows"),
    cases=(
        Case({"i": (11,), "d": 5, "n": 7, "m": 11}, num_embeddings=7),
        Case({"i": (2, 3), "d": 16, "n": 40, "m": 6}, num_embeddings=40, scale=-1.5, mode="drop"),
        Case({"i": (), "d": 1, "n": 3, "m": 1}, num_embeddings=3, padding_idx=1),
    ),
)
def embedding_backward_rows(
    dy: A,
    ids: Array,
    /,
    *,
    num_embeddings: int,
    padding_idx: int | None = None,
    scale: float = 1.0,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Gradient of `embedding` as the rows that are not 0, with their numbers.

    Parameters
    ----------
    dy : array of shape [*i, d]
        Gradient of the result; float16, bfloat16, float32 or float64.
    ids : array of shape [*i]
        int32 or int64: the row of the table of each row of `dy`, ``0 <= id < n``; ids may repeat.
    num_embeddings : int
        The number of rows of the table, n.
    padding_idx : int, optional
        A row that gets no gradient, and is not among the rows.
    scale : float
        Factor of the sums, applied in the accumulate dtype, before the one rounding.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or contribute nothing. On a GPU nothing waits, and the
        error comes with the next call on that device or from `check_errors`. Under transforms of
        JAX and `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    rows : array of shape [m]
        int64, int32 in JAX without 64 bits; m is the number of ids. The distinct ids, ascending,
        then n for each entry that is left over.
    values : array of shape [m, d]
        dtype of `dy`, C order: the gradient of each of these rows, and 0 beside an entry n. A given
        `out` may be float32 beside `dy` of 16 bits, and ``accumulate=(False, True)`` adds into it.

    Raises
    ------
    IndexError
        An id out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `dy` not floating, `ids` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `dy` not of the shape of `ids` and d, `num_embeddings` not in [0, 2**31), `padding_idx` not
        a row, `scale` not finite.

    Notes
    -----
    For steps of an optimiser that touch few rows of a long table. ``index_add(table, rows, values,
    axis=0, mode="drop")`` adds the gradient, as n is no row; `embedding_backward` writes all n
    rows. Same as ``coalesce()`` of the sparse gradient of `torch.nn.functional.embedding` for ids
    that all differ. Else shapes stay those of the ids, as with ``jax.numpy.unique(ids, size=m,
    fill_value=n)``, so nothing waits for the number of distinct ids.

    Linear in `dy`. Sums are kept in float32 (float64 for float64), and rounded once. Deterministic
    on the host and on NVIDIA GPUs, where the rows of one id are summed as by `embedding_backward`.
    The kernels mark the rows in n bits and number them; no id is sorted.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dy = np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> bc.embedding_backward_rows(dy, np.asarray([7, 0, 7]), num_embeddings=9)
    (array([0, 7, 9]), array([[3., 4.],
           [6., 8.],
           [0., 0.]]))
    """
    if padding_idx is not None:
        xp = library_of(ids).xp
        ids = xp.where(ids == padding_idx, -1, ids)
    rows, place = distinct(ids, num_embeddings)
    flat = library_of(dy).xp.reshape(dy, (prod(ids.shape), dy.shape[-1]))
    return rows, scaled(added(flat, place, 0, prod(ids.shape)), scale)
