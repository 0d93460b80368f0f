"""Rows of tokens sent to experts and taken back, as a mixture of experts does it."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, integer, optional
from baracuda.families.indexing import added, destinations, inside, of_rows, taken
from baracuda.families.numerics import masked
from baracuda.libraries import A, Array, library_of

__all__ = [
    "permute_rows",
    "permute_rows_backward",
    "unpermute_rows",
    "unpermute_rows_backward",
]

MODE = choice("raise", "drop")
MAP = {"row_map": roles.index("n")}

_permute = partial(
    op,
    category="indexing",
    options={"num_rows": optional(integer), "mode": MODE},
    roles=MAP,
    resolve=destinations,
    derived=("n",),
    cases=(
        Case({"t": 9, "k": 2, "d": (5,), "n": 24}, num_rows=24),
        Case({"t": 4, "k": 3, "d": (2, 8), "n": 12}),
        Case({"t": 7, "k": 2, "d": (), "n": 5}, num_rows=5, mode="drop"),
    ),
)
_unpermute = partial(
    op,
    category="indexing",
    options={"mode": MODE},
    cases=(
        Case({"t": 9, "k": 2, "d": (5,), "n": 24}),
        Case({"t": 4, "k": 3, "d": (2, 8), "n": 12}),
        Case({"t": 7, "k": 2, "d": (), "n": 5}, mode="drop"),
    ),
)


@_permute(
    "x[t *d], row_map[t k] -> out[n *d]",
    kernel=Kernel("indexing.cu", "", schedule="spread_rows"),
)
def permute_rows(
    x: A,
    row_map: Array,
    /,
    *,
    num_rows: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Send the row of each token to k rows: ``out[row_map[t, j]] = x[t]``.

    Parameters
    ----------
    x : array of shape [t, *d]
        Rows of tokens; float16, bfloat16, float32 or float64.
    row_map : array of shape [t, k]
        int32 or int64: where the j-th copy of each token goes, ``0 <= row < num_rows``.
    num_rows : int, optional
        The number of rows of the result, n; by default t * k. Groups of rows that are padded to a
        multiple have more rows than tokens have copies.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or send nothing, as -1 for a token over the capacity
        of its expert. On a GPU nothing waits, and the error comes with the next call on that device
        or from `check_errors`. Under transforms of JAX and `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [n, *d]
        dtype of `x`, C order; 0 where no token is sent.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `x` not floating, `row_map` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `row_map` not of rank 2 or not of as many tokens as `x`, `num_rows` not in [0, 2**31).

    Notes
    -----
    The map is the ``row_id_map`` of TransformerEngine's ``moe_permute`` with ``map_type="index"``,
    but that has choices before tokens: pass ``row_id_map.view(k, t).T``. Where ``experts[t, k]``
    are the experts of each token, the ranks ``argsort(argsort(experts.flatten(), stable=True))`` in
    the shape [t, k] sort rows by experts. Add to the ranks of each expert the padding of those
    before, as the recipe of a mixture of experts does.

    Linear in `x`. A map names a row at most once as a rule. A row that it names more often is the
    sum of its tokens, in the order of the map, kept in float32 (float64 for float64) and rounded
    once. Deterministic on the host and on NVIDIA GPUs: the kernels invert the map, read each token
    once and write each row once. For maps that name few rows very often `segment_sum` is faster.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x = np.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> bc.permute_rows(x, np.asarray([[2, 0], [3, 4]]), num_rows=6)
    array([[1., 2.],
           [0., 0.],
           [1., 2.],
           [3., 4.],
           [3., 4.],
           [0., 0.]])
    """
    xp = library_of(x).xp
    copies = xp.broadcast_to(xp.expand_dims(x, axis=1), (*row_map.shape, *x.shape[1:]))
    entries = row_map.shape[0] * row_map.shape[1]
    return added(copies, row_map, 0, entries if num_rows is None else num_rows)


@_permute(
    "dout[n *d], row_map[t k] -> dx[t *d]",
    adjoint_of="permute_rows",
    kernel=Kernel("indexing.cu", "", schedule="join_rows"),
)
def permute_rows_backward(
    dout: A,
    row_map: Array,
    /,
    *,
    num_rows: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `permute_rows`: each token gets the sum of its k rows.

    Parameters
    ----------
    dout : array of shape [n, *d]
        Gradient of the result; float16, bfloat16, float32 or float64.
    row_map : array of shape [t, k]
        int32 or int64: where the j-th copy of each token went.
    num_rows : int, optional
        The number of rows of `dout`, n; by default t * k.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or contribute nothing.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [t, *d]
        dtype of `dout`, C order.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `dout` not floating, `row_map` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `dout` without `num_rows` rows, `row_map` not of rank 2.

    Notes
    -----
    Same as `unpermute_rows` with probabilities of 1, and the way to take rows back where the
    experts have multiplied by them already. The k rows are added in their order, in float32
    (float64 for float64), and rounded once: deterministic and bit-stable. Linear in `dout`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dout = np.asarray([[1.0], [2.0], [4.0], [8.0]])
    >>> bc.permute_rows_backward(dout, np.asarray([[2, 0], [3, 1]]))
    array([[ 5.],
           [10.]])
    """
    xp = library_of(dout).xp
    return xp.sum(taken(dout, row_map, 0), axis=1)


@_unpermute(
    "y[n *d], row_map[t k], probs[t k] -> out[t *d]",
    roles={**MAP, "probs": roles.parameter(0, 1)},
    kernel=Kernel("indexing.cu", "", schedule="join_rows"),
)
def unpermute_rows(
    y: A,
    row_map: Array,
    probs: Array,
    /,
    *,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Take the rows of each token back, weighted: ``out[t] = sum(probs[t] * y[row_map[t]])``.

    Parameters
    ----------
    y : array of shape [n, *d]
        Rows, as the experts return them; float16, bfloat16, float32 or float64.
    row_map : array of shape [t, k]
        int32 or int64: the k rows of each token, ``0 <= row < n``.
    probs : array of shape [t, k]
        The weight of each row. Of the dtype of `y`, or float32 beside 16 bits.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or contribute nothing. On a GPU nothing waits, and
        the error comes with the next call on that device or from `check_errors`. Under transforms
        of JAX and `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [t, *d]
        dtype of `y`, C order; 0 for a token without rows.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `y` not floating, `row_map` neither int32 nor int64; mixed libraries, devices or dtypes.
    ValueError
        `row_map` not of rank 2, `probs` of another shape.

    Notes
    -----
    The map is that of `permute_rows`. Same as TransformerEngine's ``moe_unpermute`` with
    ``merging_probs``. Without probabilities use `permute_rows_backward`, the plain sum. The k rows
    are added in their order, in float32 (float64 for float64), and rounded once: deterministic and
    bit-stable, and a token does not depend on the others of its batch.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> y = np.asarray([[1.0], [2.0], [4.0], [8.0]])
    >>> probs = np.asarray([[0.5, 0.5], [0.25, 0.75]])
    >>> bc.unpermute_rows(y, np.asarray([[2, 0], [3, 1]]), probs)
    array([[2.5],
           [3.5]])
    """
    xp, rows = library_of(y).xp, taken(y, row_map, 0)
    there = of_rows(inside(row_map, y.shape[0]), rows)
    return xp.sum(masked(rows * of_rows(probs, rows), there), axis=1)


@_unpermute(
    "dout[t *d], y[n *d], row_map[t k], probs[t k] -> dy[n *d], dprobs[t k]",
    adjoint_of="unpermute_rows",
    roles={**MAP, "probs": roles.parameter(0, 1), "dprobs": roles.typed_as("probs")},
    kernel=Kernel("indexing.cu", "", schedule="spread_rows"),
)
def unpermute_rows_backward(
    dout: Array,
    y: A,
    row_map: Array,
    probs: Array,
    /,
    *,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Gradients of `unpermute_rows`: ``probs * dout`` for each row, ``sum(dout * y)`` for `probs`.

    Parameters
    ----------
    dout : array of shape [t, *d]
        Gradient of the result; dtype of `y`.
    y : array of shape [n, *d]
        Rows; float16, bfloat16, float32 or float64.
    row_map : array of shape [t, k]
        int32 or int64: the k rows of each token.
    probs : array of shape [t, k]
        The weight of each row. Of the dtype of `y`, or float32 beside 16 bits.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or have no gradient.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    dy : array of shape [n, *d]
        dtype of `y`, C order; 0 for rows that no token has.
    dprobs : array of shape [t, k]
        dtype of `probs`, C order; 0 for an entry that is dropped.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `y` not floating, `row_map` neither int32 nor int64; mixed libraries, devices or dtypes.
    ValueError
        Shapes that do not fit.

    Notes
    -----
    Both gradients come from one pass over `dout` and `y`. Sums are kept in float32 (float64 for
    float64) and rounded once. Deterministic on the host and on NVIDIA GPUs: the kernels invert the
    map, a block takes a token and adds up the products of its rows in an order that d alone
    decides. A row of several tokens gets the sum of their gradients, in the order of the map.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> y, probs = np.asarray([[1.0], [2.0], [4.0]]), np.asarray([[0.25, 0.75]])
    >>> dy, dprobs = bc.unpermute_rows_backward(np.asarray([[2.0]]), y, np.asarray([[2, 0]]), probs)
    >>> dy, dprobs
    (array([[1.5],
           [0. ],
           [0.5]]), array([[8., 2.]]))
    """
    xp, rows = library_of(y).xp, taken(y, row_map, 0)
    there, copies = of_rows(inside(row_map, y.shape[0]), rows), xp.expand_dims(dout, axis=1)
    shares = masked(copies * of_rows(probs, rows), there)
    products, rest = masked(copies * rows, there), tuple(range(2, rows.ndim))
    dprobs = xp.sum(products, axis=rest) if rest else products
    return added(shares, row_map, 0, y.shape[0]), dprobs
