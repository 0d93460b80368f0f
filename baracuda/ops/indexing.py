"""Ops that read or write where an index array points."""

from __future__ import annotations

from typing import Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import ANY, FLOATS
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, integer, shape
from baracuda.families.indexing import added, looked_up, taken
from baracuda.families.numerics import scatter_add
from baracuda.libraries import A, Array

__all__ = ["gather", "gather_backward", "index_select", "index_select_backward"]

MODE = choice("raise", "drop")
CASES = (
    Case({"b": (), "n": 7, "c": (), "i": (), "k": 12, "j": ()}, axis=0),
    Case({"b": (3,), "n": 5, "c": (4,), "i": (2,), "k": 9, "j": (4,)}, axis=1),
    Case({"b": (2, 3), "n": 6, "c": (), "i": (2, 2), "k": 4, "j": ()}, axis=-1, mode="drop"),
)


@op(
    "src[*b n@axis *c], index[*i<=b k *j<=c] -> out[*i k *j]",
    category="indexing",
    dtypes=ANY,
    options={"axis": integer, "mode": MODE},
    roles={"index": roles.index("n")},
    kernel=Kernel("indexing.cu", "", schedule="gather"),
    cases=CASES,
)
def gather(
    src: A,
    index: Array,
    /,
    *,
    axis: int,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Take elements along an axis: ``out[..., j, ...] = src[..., index[..., j, ...], ...]``.

    Parameters
    ----------
    src : array of shape [*b, n, *c]
        Any dtype.
    index : array of shape [*i, k, *j]
        int32 or int64, of the rank of `src`; off `axis` no larger than `src`. Valid entries are
        ``0 <= i < n``: a negative one does not count from the end.
    axis : int
        Axis of `src` that is indexed; negative counts from the end.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or give 0. On a GPU the entry is skipped, nothing
        waits, and the error comes with the next call on that device or from `check_errors`.
        Under transforms of JAX and `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*i, k, *j]
        dtype of `src`, C order.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `index` neither int32 nor int64; mixed libraries or devices.
    ValueError
        Ranks that differ, `index` larger than `src` off the axis, no such axis.

    Notes
    -----
    Moves values unchanged; bit-stable. `torch.gather` is the same but for `mode` and int32. So is
    ``take_along_axis`` of the array API, where negative entries count from the end and `index` is
    broadcast off the axis.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> src = np.asarray([[1, 2, 3], [4, 5, 6]])
    >>> bc.gather(src, np.asarray([[2, 0], [1, 1]]), axis=1)
    array([[3, 1],
           [5, 5]])
    """
    return looked_up(src, index, axis, mode == "raise")


@op(
    "dout[*i<=b k *j<=c], index[*i k *j], src_shape(*b n@axis *c) -> dsrc[*b n *c]",
    category="indexing",
    adjoint_of="gather",
    dtypes=FLOATS,
    options={"axis": integer, "src_shape": shape, "mode": MODE},
    roles={"index": roles.index("n"), "dsrc": roles.total()},
    kernel=Kernel("indexing.cu", "", schedule="scatter"),
    cases=CASES,
)
def gather_backward(
    dout: A,
    index: Array,
    /,
    *,
    axis: int,
    src_shape: tuple[int, ...],
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `gather`: add each element of `dout` where its index points.

    Parameters
    ----------
    dout : array of shape [*i, k, *j]
        Gradient of the result; float16, bfloat16, float32 or float64.
    index : array of shape [*i, k, *j]
        As in `gather`; entries may repeat.
    axis : int
        As in `gather`.
    src_shape : tuple of int
        Shape of `src`, [*b, n, *c].
    mode : {"raise", "drop"}
        As in `gather`; a dropped entry contributes nothing.
    **dispatch
        `Dispatch` options. ``deterministic=True``: the same bits on every run, or an error.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `dout`, C order; 0 where nothing landed.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `dout` not floating, `index` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `dout` and `index` of different shapes, or larger than `src_shape` off the axis.

    Notes
    -----
    Sums are kept in float32 (float64 for float64) and rounded once, where torch adds float16 and
    bfloat16 in their own precision on a GPU. The error is within the bound of a sequential sum in
    float32 (float64). Linear in `dout`.

    On the host the order of a sum is fixed. The kernels for NVIDIA GPUs come in forms that suit
    shapes and strides, named by the plan's SKU. Two add in a fixed order: "lists" (the index is the
    same along rows) and "few a row". Four add integers, whose sum no order changes: "transposed",
    "tiles", "partition" (many elements to not too many bins), and "fixed point", which takes any
    problem. "atomics" (all that the others do not suit) may differ from run to run, and
    ``deterministic=True`` never runs them. They take subnormal float32 numbers and sums for 0, as
    the hardware does in memory. Two forms may differ in the last bit. Other backends on a GPU may
    add in any order; the SKU says so.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.gather_backward(np.ones(4), np.asarray([2, 0, 2, 2]), axis=0, src_shape=(4,))
    array([1., 0., 3., 0.])
    """
    return scatter_add(dout, index, axis, src_shape)


SELECTED = (
    Case({"b": (), "n": 7, "c": (5,), "k": 11}, axis=0),
    Case({"b": (3,), "n": 5, "c": (4,), "k": 6}, axis=1, mode="drop"),
    Case({"b": (2, 3), "n": 6, "c": (), "k": 4}, axis=-1),
)


@op(
    "src[*b n@axis *c], index[k] -> out[*b k *c]",
    category="indexing",
    dtypes=ANY,
    options={"axis": integer, "mode": MODE},
    roles={"index": roles.index("n")},
    kernel=Kernel("indexing.cu", "", schedule="gather"),
    cases=SELECTED,
)
def index_select(
    src: A,
    index: Array,
    /,
    *,
    axis: int,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Take whole slices along an axis: ``out[:, j] = src[:, index[j]]`` for axis 1.

    Parameters
    ----------
    src : array of shape [*b, n, *c]
        Any dtype.
    index : array of shape [k]
        int32 or int64. Valid entries are ``0 <= i < n``: a negative one does not count from the
        end. Entries may repeat.
    axis : int
        The axis of `src` that has n elements; negative counts from the end.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or give a slice of 0. On a GPU nothing waits, and
        the error comes with the next call on that device or from `check_errors`. Under transforms
        of JAX and `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, k, *c]
        dtype of `src`, C order.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `index` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `index` not of rank 1, no such axis.

    Notes
    -----
    Moves values unchanged; bit-stable. `torch.index_select` is the same but for `mode`. So is
    ``take`` of the array API, where negative entries count from the end. Linear in `src`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> src = np.asarray([[1, 2, 3], [4, 5, 6]])
    >>> bc.index_select(src, np.asarray([2, 0]), axis=1)
    array([[3, 1],
           [6, 4]])
    """
    return taken(src, index, axis, mode == "raise")


@op(
    "dout[*b k *c], index[k], src_shape(*b n@axis *c) -> dsrc[*b n *c]",
    category="indexing",
    adjoint_of="index_select",
    dtypes=FLOATS,
    options={"axis": integer, "src_shape": shape, "mode": MODE},
    roles={"index": roles.index("n"), "dsrc": roles.total()},
    kernel=Kernel("indexing.cu", "", schedule="add_rows"),
    cases=SELECTED,
)
def index_select_backward(
    dout: A,
    index: Array,
    /,
    *,
    axis: int,
    src_shape: tuple[int, ...],
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `index_select`: add each slice of `dout` where its index points.

    Parameters
    ----------
    dout : array of shape [*b, k, *c]
        Gradient of the result; float16, bfloat16, float32 or float64.
    index : array of shape [k]
        int32 or int64; entries may repeat.
    axis : int
        The axis of `src` that has n elements; negative counts from the end.
    src_shape : tuple of int
        Shape of `src`, [*b, n, *c].
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or contribute nothing.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `dout`, C order; 0 where nothing landed. A given `out` may be float32 beside `dout`
        of 16 bits, and ``accumulate=True`` adds into it.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `dout` not floating, `index` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `dout` not of the shape of the result, `index` not of rank 1.

    Notes
    -----
    Same as `torch.index_add` into zeros, but sums are kept in float32 (float64 for float64) and
    rounded once. Linear in `dout`. Deterministic on the host and on NVIDIA GPUs, where slices are
    summed as `embedding_backward` sums rows. Along another axis than the first, the kernels copy
    `dout` and the result once.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dout = np.asarray([[1.0, 2.0, 3.0]])
    >>> bc.index_select_backward(dout, np.asarray([1, 0, 1]), axis=1, src_shape=(1, 2))
    array([[2., 4.]])
    """
    return added(dout, index, axis, src_shape[axis])
