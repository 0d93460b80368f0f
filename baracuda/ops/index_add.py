"""Ops that add to an array where an index points."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, finite, integer
from baracuda.families import numerics
from baracuda.families.indexing import added, looked_up, taken
from baracuda.families.numerics import scaled
from baracuda.libraries import A, Array

__all__ = ["index_add", "index_add_backward", "scatter_add", "scatter_add_backward"]

INDEX = {"index": roles.index("n")}
SUMS = {**INDEX, "x": roles.like("out"), "out": roles.typed_as("x")}

_op = partial(op, category="indexing", options={"axis": integer, "mode": choice("raise", "drop")})
_slices = partial(
    _op,
    scalars={"alpha": finite},
    cases=(
        Case({"b": (), "n": 7, "c": (5,), "k": 11}, axis=0),
        Case({"b": (3,), "n": 5, "c": (4,), "k": 6}, axis=1, mode="drop", alpha=-1.5),
        Case({"b": (2, 3), "n": 6, "c": (), "k": 4}, axis=-1, alpha=0.25),
    ),
)
_elements = partial(
    _op,
    cases=(
        Case({"b": (), "n": 7, "c": (), "i": (), "k": 12, "j": ()}, axis=0),
        Case({"b": (3,), "n": 5, "c": (4,), "i": (2,), "k": 9, "j": (4,)}, axis=1),
        Case({"b": (2, 3), "n": 6, "c": (), "i": (2, 2), "k": 4, "j": ()}, axis=-1, mode="drop"),
    ),
)


@_slices(
    "x[*b n@axis *c], index[k], source[*b k *c] -> out[*b n *c]",
    roles=SUMS,
    inplace=True,
    kernel=Kernel("indexing.cu", "Scaled", schedule="add_rows"),
)
def index_add(
    x: A,
    index: Array,
    source: Array,
    /,
    *,
    axis: int,
    alpha: float = 1.0,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Add slices where an index points: ``out[index[j]] += alpha * source[j]``, from ``out = x``.

    Parameters
    ----------
    x : array of shape [*b, n, *c]
        The array to add to; float16, bfloat16, float32 or float64.
    index : array of shape [k]
        int32 or int64: the slice of `x` that each slice of `source` is added to, ``0 <= i < n``.
        Entries may repeat.
    source : array of shape [*b, k, *c]
        The slices; dtype of `x`.
    axis : int
        The axis of `x` that has n elements; negative counts from the end.
    alpha : float
        Factor of `source`, applied in the accumulate dtype, before the one rounding.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or add nothing. On a GPU nothing waits, and the
        error comes with the next call on that device or from `check_errors`. Under transforms of
        JAX and `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `x`, C order. A given `out` may be `x` itself.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `x` not floating, `index` neither int32 nor int64; mixed libraries, devices or dtypes.
    ValueError
        `index` not of rank 1, `source` of another shape, `alpha` not finite, no such axis.

    Notes
    -----
    Same as `torch.index_add`, but sums are kept in float32 (float64 for float64), `x` among them,
    and rounded once. Deterministic on the host and on NVIDIA GPUs, where slices are summed as
    `embedding_backward` sums rows. Along another axis than the first, the kernels copy `source` and
    the result once.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x, source = np.ones((3, 2)), np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> bc.index_add(x, np.asarray([2, 0, 2]), source, axis=0)
    array([[4., 5.],
           [1., 1.],
           [7., 9.]])
    """
    return x + scaled(added(source, index, axis, x.shape[axis]), alpha)


@_slices(
    "dout[*b n@axis *c], index[k] -> dsource[*b k *c]",
    adjoint_of="index_add",
    roles=INDEX,
    kernel=Kernel("indexing.cu", "Scaled", schedule="gather"),
)
def index_add_backward(
    dout: A,
    index: Array,
    /,
    *,
    axis: int,
    alpha: float = 1.0,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `index_add` for `source`: ``alpha * dout[index[j]]``; that for `x` is `dout`.

    Parameters
    ----------
    dout : array of shape [*b, n, *c]
        Gradient of the result; float16, bfloat16, float32 or float64.
    index : array of shape [k]
        int32 or int64: the slice that each slice was added to.
    axis : int
        The axis of `dout` that has n elements; negative counts from the end.
    alpha : float
        Factor of `source` in the forward.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or give a slice of 0.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, k, *c]
        dtype of `dout`, C order.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `dout` not floating, `index` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `index` not of rank 1, `alpha` not finite, no such axis.

    Notes
    -----
    Rounded once: deterministic and bit-stable. Linear in `dout`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dout = np.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> bc.index_add_backward(dout, np.asarray([1, 0, 1]), axis=0, alpha=2.0)
    array([[6., 8.],
           [2., 4.],
           [6., 8.]])
    """
    return scaled(taken(dout, index, axis, mode == "raise"), alpha)


@_elements(
    "x[*b n@axis *c], index[*i<=b k *j<=c], src[*i k *j] -> out[*b n *c]",
    roles=SUMS,
    inplace=True,
    kernel=Kernel("indexing.cu", "", schedule="scatter"),
)
def scatter_add(
    x: A,
    index: Array,
    src: Array,
    /,
    *,
    axis: int,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Add elements where an index points: ``out[index[i, j], j] += src[i, j]``, from ``out = x``.

    Parameters
    ----------
    x : array of shape [*b, n, *c]
        The array to add to; float16, bfloat16, float32 or float64.
    index : array of shape [*i, k, *j]
        int32 or int64, of the rank of `x`; off `axis` no larger than `x`. Where along `axis` each
        element of `src` is added, ``0 <= i < n``; entries may repeat.
    src : array of shape [*i, k, *j]
        The elements; dtype of `x`.
    axis : int
        The axis of `x` that has n elements; negative counts from the end.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or add nothing. On a GPU nothing waits, and the
        error comes with the next call on that device or from `check_errors`. Under transforms of
        JAX and `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options. ``deterministic=True``: the same bits on every run, or an error.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `x`, C order. A given `out` may be `x` itself.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `x` not floating, `index` neither int32 nor int64; mixed libraries, devices or dtypes.
    ValueError
        `index` and `src` of different shapes, or larger than `x` off the axis; no such axis.

    Notes
    -----
    Same as `torch.scatter_add` for `src` of the shape of `index`, but sums are kept in float32
    (float64 for float64), `x` among them, and rounded once. The kernels for NVIDIA GPUs are those
    of `gather_backward`, behind a copy of `x`, with its order of sums and its determinism.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.scatter_add(np.ones(3), np.asarray([2, 0, 2]), np.asarray([1.0, 2.0, 4.0]), axis=0)
    array([3., 1., 6.])
    """
    return x + numerics.scatter_add(src, index, axis, x.shape)


@_elements(
    "dout[*b n@axis *c], index[*i<=b k *j<=c] -> dsrc[*i<=b k *j<=c]",
    adjoint_of="scatter_add",
    roles=INDEX,
    kernel=Kernel("indexing.cu", "", schedule="gather"),
)
def scatter_add_backward(
    dout: A,
    index: Array,
    /,
    *,
    axis: int,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `scatter_add` for `src`: ``dout[index[i, j], j]``; that for `x` is `dout`.

    Parameters
    ----------
    dout : array of shape [*b, n, *c]
        Gradient of the result; float16, bfloat16, float32 or float64.
    index : array of shape [*i, k, *j]
        int32 or int64, of the rank of `dout`: where each element was added.
    axis : int
        The axis of `dout` that has n elements; negative counts from the end.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or give 0.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*i, k, *j]
        dtype of `dout`, C order.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `dout` not floating, `index` neither int32 nor int64; mixed libraries or devices.
    ValueError
        Ranks that differ, `index` larger than `dout` off the axis, no such axis.

    Notes
    -----
    Same as `gather`: moves values unchanged, bit-stable. Linear in `dout`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.scatter_add_backward(np.asarray([1.0, 2.0, 4.0]), np.asarray([2, 0, 2]), axis=0)
    array([4., 1., 4.])
    """
    return looked_up(dout, index, axis, mode == "raise")
