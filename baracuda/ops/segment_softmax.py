"""Softmax of the rows of each segment, and its gradient."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, flag, integer
from baracuda.families import indexing
from baracuda.families.indexing import added, of_rows, taken
from baracuda.families.numerics import masked
from baracuda.libraries import A, Array, library_of

__all__ = ["segment_softmax", "segment_softmax_backward"]

_softmax = partial(
    op,
    category="indexing",
    options={"num_segments": integer, "sorted": flag, "mode": choice("raise", "drop")},
    roles={"segment_ids": roles.index("n")},
    resolve=indexing.segments,
    derived=("n",),
    cases=(
        Case({"e": 23, "d": (5,), "n": 7}, num_segments=7),
        Case({"e": 9, "d": (2, 3), "n": 2}, num_segments=2, mode="drop"),
        Case({"e": 6, "d": (), "n": 8}, num_segments=8),
    ),
)


@_softmax(
    "data[e *d], segment_ids[e] -> y[e *d]",
    kernel=Kernel("indexing.cu", "Ratio", schedule="segments"),
)
def segment_softmax(
    data: A,
    segment_ids: Array,
    /,
    *,
    num_segments: int,
    sorted: bool = False,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Softmax over the rows of each segment: ``exp(data) / segment_sum(exp(data))[segment_ids]``.

    Parameters
    ----------
    data : array of shape [e, *d]
        Rows, such as attention scores of edges and heads; float16, bfloat16, float32 or float64.
    segment_ids : array of shape [e]
        int32 or int64: the segment of each row, ``0 <= id < num_segments``, in any order.
    num_segments : int
        The number of segments, n.
    sorted : bool
        Promises that `segment_ids` ascend. CUDA kernels then find segments by binary search, and
        results of ids that do not ascend are undefined. Other backends ignore it.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or give a row of 0. On a GPU nothing waits, and the
        error comes with the next call on that device or from `check_errors`. Under transforms of
        JAX and `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [e, *d]
        dtype of `data`, C order. The rows of a segment add up to 1.

    Raises
    ------
    IndexError
        An id out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `data` not floating, `segment_ids` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `segment_ids` not as long as `data`, `num_segments` not in [0, 2**31).

    Notes
    -----
    Same as ``torch_geometric.utils.softmax``, whose 1e-16 in the denominator it lacks. The largest
    of each segment is subtracted first. A segment whose elements are all -inf gives NaN, as
    `softmax` does. Deterministic on the host and on NVIDIA GPUs; the kernels need a workspace of
    an element of `data` in float32 (float64).

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.segment_softmax(np.asarray([1.0, 5.0, 1.0]), np.asarray([0, 1, 0]), num_segments=2)
    array([0.5, 1. , 0.5])
    """
    library = library_of(data)
    xp = library.xp
    top = library.constant(indexing.highest(data, segment_ids, num_segments))
    powers = xp.exp(data - taken(top, segment_ids, 0))
    sums = taken(added(powers, segment_ids, 0, num_segments), segment_ids, 0)
    valid = of_rows(indexing.inside(segment_ids, num_segments), data)
    return masked(powers / masked(sums, valid, 1), valid)


@_softmax(
    "dy[e *d], y[e *d], segment_ids[e] -> ddata[e *d]",
    adjoint_of="segment_softmax",
    kernel=Kernel("indexing.cu", "Slope", schedule="segments"),
)
def segment_softmax_backward(
    dy: Array,
    y: A,
    segment_ids: Array,
    /,
    *,
    num_segments: int,
    sorted: bool = False,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `segment_softmax`: ``y * (dy - segment_sum(dy * y)[segment_ids])``.

    Parameters
    ----------
    dy : array of shape [e, *d]
        Gradient of the result; dtype of `y`.
    y : array of shape [e, *d]
        Result of `segment_softmax`; float16, bfloat16, float32 or float64.
    segment_ids : array of shape [e]
        int32 or int64: the segment of each row.
    num_segments : int
        The number of segments, n.
    sorted : bool
        Promises that `segment_ids` ascend, as in `segment_softmax`.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or give a row of 0.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [e, *d]
        dtype of `y`, C order.

    Raises
    ------
    IndexError
        An id out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `y` not floating, `segment_ids` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `dy` not of the shape of `y`, `segment_ids` not as long, `num_segments` not in [0, 2**31).

    Notes
    -----
    Takes the result, as `softmax_backward` does, and needs no exponential. Products and sums are
    in float32 (float64 for float64). Deterministic as `segment_softmax`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> ids, y = np.asarray([0, 1, 0]), np.asarray([0.25, 1.0, 0.75])
    >>> bc.segment_softmax_backward(np.asarray([4.0, 1.0, 0.0]), y, ids, num_segments=2)
    array([ 0.75,  0.  , -0.75])
    """
    xp = library_of(y).xp
    sums = taken(added(dy * y, segment_ids, 0, num_segments), segment_ids, 0)
    valid = of_rows(indexing.inside(segment_ids, num_segments), y)
    return xp.where(valid, y * (dy - sums), 0)
