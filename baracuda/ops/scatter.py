"""Elements written where an index points: the last of several stays."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, integer
from baracuda.families.indexing import lasting, latest, looked_up
from baracuda.families.numerics import scatter_add
from baracuda.libraries import A, Array, library_of

__all__ = ["scatter", "scatter_backward"]

INDEX = {"index": roles.index("n")}

_op = partial(
    op,
    category="indexing",
    options={"axis": integer, "mode": choice("raise", "drop")},
    cases=(
        Case({"b": (), "n": 7, "c": (), "i": (), "k": 12, "j": ()}, axis=0),
        Case({"b": (3,), "n": 5, "c": (4,), "i": (2,), "k": 9, "j": (4,)}, axis=1),
        Case({"b": (2, 3), "n": 6, "c": (), "i": (2, 2), "k": 4, "j": ()}, axis=-1, mode="drop"),
    ),
)


@_op(
    "x[*b n@axis *c], index[*i<=b k *j<=c], src[*i k *j] -> out[*b n *c]",
    roles={**INDEX, "out": roles.typed_as("x")},
    inplace=True,
    kernel=Kernel("indexing.cu", "", schedule="last_write"),
)
def scatter(
    x: A,
    index: Array,
    src: Array,
    /,
    *,
    axis: int,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Write elements where an index points: ``out[index[i, j], j] = src[i, j]``, from ``out = x``.

    Parameters
    ----------
    x : array of shape [*b, n, *c]
        The array to write to; float16, bfloat16, float32 or float64.
    index : array of shape [*i, k, *j]
        int32 or int64, of the rank of `x`; off `axis` no larger than `x`. Where along `axis` each
        element of `src` is written, ``0 <= i < n``. Of entries that repeat the last stays.
    src : array of shape [*i, k, *j]
        The elements; dtype of `x`.
    axis : int
        The axis of `x` that has n elements; negative counts from the end.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or write nothing. On a GPU nothing waits, and the
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
        `index` and `src` of different shapes, or larger than `x` off the axis; no such axis.

    Notes
    -----
    Same as `torch.scatter` for `src` of the shape of `index` and entries that do not repeat; where
    they do, torch keeps any of them. Moves values unchanged. Linear in `x` and `src`. Deterministic
    on the host and on NVIDIA GPUs: the kernels find the last entry of each place as a maximum of
    integers, in a workspace of 4 bytes for each element of `x`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.scatter(np.ones(3), np.asarray([2, 0, 2]), np.asarray([5.0, 6.0, 7.0]), axis=0)
    array([6., 1., 7.])
    """
    library, n = library_of(x), x.shape[axis]
    xp, last = library.xp, latest(index, axis, n)
    if last is not None and last.shape == x.shape:
        return xp.where(last < 0, x, library.take(src, xp.where(last < 0, 0, last), axis))
    stays, _ = lasting(index, axis, n)
    written = scatter_add(xp.astype(stays, x.dtype), index, axis, x.shape) > 0
    return xp.where(written, scatter_add(xp.where(stays, src, 0), index, axis, x.shape), x)


@_op(
    "dout[*b n@axis *c], index[*i<=b k *j<=c] -> dx[*b n *c], dsrc[*i<=b k *j<=c]",
    adjoint_of="scatter",
    roles=INDEX,
    kernel=Kernel("indexing.cu", "", schedule="last_write_backward"),
)
def scatter_backward(
    dout: A,
    index: Array,
    /,
    *,
    axis: int,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Gradients of `scatter`: `dout` goes to the elements that stayed, in `x` or in `src`.

    Parameters
    ----------
    dout : array of shape [*b, n, *c]
        Gradient of the result; float16, bfloat16, float32 or float64.
    index : array of shape [*i, k, *j]
        int32 or int64, of the rank of `dout`: where each element was written.
    axis : int
        The axis of `dout` that has n elements; negative counts from the end.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or have a gradient of 0.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    dx : array of shape [*b, n, *c]
        dtype of `dout`, C order; 0 where an element was written.
    dsrc : array of shape [*i, k, *j]
        dtype of `dout`, C order; 0 for elements that did not stay.

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
    Moves values unchanged: deterministic as `scatter`. Linear in `dout`. torch gives elements that
    were overwritten the gradient of those that stayed.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.scatter_backward(np.asarray([1.0, 2.0, 4.0]), np.asarray([2, 0, 2]), axis=0)
    (array([0., 2., 0.]), array([0., 1., 4.]))
    """
    xp, n = library_of(dout).xp, dout.shape[axis]
    stays, last = lasting(index, axis, n)
    if last is not None and last.shape == dout.shape:
        written = last >= 0
    else:
        written = scatter_add(xp.astype(stays, dout.dtype), index, axis, dout.shape) > 0
    dsrc = looked_up(dout, index, axis, mode == "raise")
    return xp.where(written, 0, dout), xp.where(stays, dsrc, 0)
