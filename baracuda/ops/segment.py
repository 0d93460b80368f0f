"""Sums, means and maxima of the rows of each segment, and their gradients."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, flag, integer
from baracuda.families import indexing
from baracuda.families.indexing import added, counted, taken
from baracuda.libraries import A, Array, library_of

__all__ = [
    "segment_max",
    "segment_max_backward",
    "segment_mean",
    "segment_mean_backward",
    "segment_sum",
    "segment_sum_backward",
]

IDS = {"segment_ids": roles.index("n")}

_segment = partial(
    op,
    category="indexing",
    options={"num_segments": integer, "sorted": flag, "mode": choice("raise", "drop")},
    resolve=indexing.segments,
    derived=("n",),
    cases=(
        Case({"e": 23, "d": (5,), "n": 7}, num_segments=7),
        Case({"e": 9, "d": (2, 3), "n": 4}, num_segments=4, mode="drop"),
        Case({"e": 6, "d": (), "n": 8}, num_segments=8),
    ),
)
_forward = partial(_segment, "data[e *d], segment_ids[e] -> out[n *d]")


@_forward(
    roles={**IDS, "out": roles.total()},
    kernel=Kernel("indexing.cu", "", schedule="add_rows"),
)
def segment_sum(
    data: A,
    segment_ids: Array,
    /,
    *,
    num_segments: int,
    sorted: bool = False,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Add up the rows of each segment: ``out[s] = sum(data[segment_ids == s])``.

    Parameters
    ----------
    data : array of shape [e, *d]
        Rows; float16, bfloat16, float32 or float64.
    segment_ids : array of shape [e]
        int32 or int64: the segment of each row, ``0 <= id < num_segments``, in any order.
    num_segments : int
        The number of segments, n.
    sorted : bool
        Promises that `segment_ids` ascend. CUDA kernels then find segments by binary search, and
        results of ids that do not ascend are undefined. Other backends ignore it.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or leave its row out. On a GPU nothing waits, and the
        error comes with the next call on that device or from `check_errors`. Under transforms of
        JAX and `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [n, *d]
        dtype of `data`, C order; 0 for an empty segment. A given `out` may be float32 beside
        `data` of 16 bits, and ``accumulate=True`` adds into it.

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
    Same as `jax.ops.segment_sum`, and as ``torch_scatter.scatter(..., reduce="sum")`` along axis 0.
    Sums are kept in float32 (float64 for float64) and rounded once. Linear in `data`.
    Deterministic on the host and on NVIDIA GPUs: the kernels sum the rows of a segment in their
    order, and segments of more than 64 rows in parts that are cut at fixed places.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> data = np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> bc.segment_sum(data, np.asarray([2, 0, 2]), num_segments=3)
    array([[3., 4.],
           [0., 0.],
           [6., 8.]])
    """
    return added(data, segment_ids, 0, num_segments)


@_segment(
    "dout[n *d], segment_ids[e] -> ddata[e *d]",
    adjoint_of="segment_sum",
    roles=IDS,
    kernel=Kernel("indexing.cu", "", schedule="gather"),
)
def segment_sum_backward(
    dout: A,
    segment_ids: Array,
    /,
    *,
    num_segments: int,
    sorted: bool = False,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `segment_sum`: each row gets the gradient of its segment.

    Parameters
    ----------
    dout : array of shape [n, *d]
        Gradient of the result; float16, bfloat16, float32 or float64.
    segment_ids : array of shape [e]
        int32 or int64: the segment of each row.
    num_segments : int
        The number of segments, n.
    sorted : bool
        Promises that `segment_ids` ascend, as in `segment_sum`; without effect here.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or give a row of 0.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [e, *d]
        dtype of `dout`, C order.

    Raises
    ------
    IndexError
        An id out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `dout` not floating, `segment_ids` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `dout` without `num_segments` rows.

    Notes
    -----
    Moves values unchanged: deterministic and bit-stable. Linear in `dout`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.segment_sum_backward(np.asarray([1.0, 2.0]), np.asarray([1, 0, 1]), num_segments=2)
    array([2., 1., 2.])
    """
    return taken(dout, segment_ids, 0, mode == "raise")


@_forward(roles=IDS, kernel=Kernel("indexing.cu", "Averaged", schedule="add_rows"))
def segment_mean(
    data: A,
    segment_ids: Array,
    /,
    *,
    num_segments: int,
    sorted: bool = False,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Average the rows of each segment: ``out[s] = mean(data[segment_ids == s])``.

    Parameters
    ----------
    data : array of shape [e, *d]
        Rows; float16, bfloat16, float32 or float64.
    segment_ids : array of shape [e]
        int32 or int64: the segment of each row, ``0 <= id < num_segments``, in any order.
    num_segments : int
        The number of segments, n.
    sorted : bool
        Promises that `segment_ids` ascend, as in `segment_sum`.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or leave its row out, which then does not count.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [n, *d]
        dtype of `data`, C order; 0 for an empty segment.

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
    Same as ``torch_scatter.scatter(..., reduce="mean")`` along axis 0. The sum of `segment_sum` is
    divided before the one rounding. Linear in `data`. Deterministic as `segment_sum`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.segment_mean(np.asarray([1.0, 2.0, 4.0]), np.asarray([2, 0, 2]), num_segments=3)
    array([2. , 0. , 2.5])
    """
    count = counted(segment_ids, num_segments, data)
    return added(data, segment_ids, 0, num_segments) / library_of(data).xp.where(
        count > 0, count, 1
    )


@_segment(
    "dout[n *d], segment_ids[e] -> ddata[e *d]",
    adjoint_of="segment_mean",
    roles=IDS,
    kernel=Kernel("indexing.cu", "Evenly", schedule="segments"),
)
def segment_mean_backward(
    dout: A,
    segment_ids: Array,
    /,
    *,
    num_segments: int,
    sorted: bool = False,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `segment_mean`: each row gets an even share of the gradient of its segment.

    Parameters
    ----------
    dout : array of shape [n, *d]
        Gradient of the result; float16, bfloat16, float32 or float64.
    segment_ids : array of shape [e]
        int32 or int64: the segment of each row.
    num_segments : int
        The number of segments, n.
    sorted : bool
        Promises that `segment_ids` ascend, as in `segment_sum`.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or give a row of 0.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [e, *d]
        dtype of `dout`, C order.

    Raises
    ------
    IndexError
        An id out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `dout` not floating, `segment_ids` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `dout` without `num_segments` rows.

    Notes
    -----
    Rounded once, after the division. Rows are counted exactly: deterministic and bit-stable.
    Linear in `dout`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.segment_mean_backward(np.asarray([1.0, 2.0]), np.asarray([1, 0, 1]), num_segments=2)
    array([1., 1., 1.])
    """
    count = counted(segment_ids, num_segments, dout)
    return taken(dout / library_of(dout).xp.where(count > 0, count, 1), segment_ids, 0)


@_forward(roles=IDS, kernel=Kernel("indexing.cu", "Highest", schedule="add_rows"))
def segment_max(
    data: A,
    segment_ids: Array,
    /,
    *,
    num_segments: int,
    sorted: bool = False,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Find the largest elements of each segment: ``out[s] = max(data[segment_ids == s])``.

    Parameters
    ----------
    data : array of shape [e, *d]
        Rows; float16, bfloat16, float32 or float64.
    segment_ids : array of shape [e]
        int32 or int64: the segment of each row, ``0 <= id < num_segments``, in any order.
    num_segments : int
        The number of segments, n.
    sorted : bool
        Promises that `segment_ids` ascend, as in `segment_sum`.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or leave its row out.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [n, *d]
        dtype of `data`, C order; -inf for an empty segment, NaN where a row has one.

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
    Same as `jax.ops.segment_max`. Deterministic as `segment_sum`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.segment_max(np.asarray([1.0, 2.0, 4.0]), np.asarray([2, 0, 2]), num_segments=3)
    array([  2., -inf,   4.])
    """
    return indexing.highest(data, segment_ids, num_segments)


@_segment(
    "dout[n *d], data[e *d], out[n *d], segment_ids[e] -> ddata[e *d]",
    adjoint_of="segment_max",
    roles=IDS,
    kernel=Kernel("indexing.cu", "Shared", schedule="segments"),
)
def segment_max_backward(
    dout: Array,
    data: A,
    out: Array,
    segment_ids: Array,
    /,
    *,
    num_segments: int,
    sorted: bool = False,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `segment_max`: elements equal to the largest share its gradient evenly.

    Parameters
    ----------
    dout : array of shape [n, *d]
        Gradient of the result; dtype of `data`.
    data : array of shape [e, *d]
        Rows; float16, bfloat16, float32 or float64.
    out : array of shape [n, *d]
        Result of `segment_max`; dtype of `data`.
    segment_ids : array of shape [e]
        int32 or int64: the segment of each row.
    num_segments : int
        The number of segments, n.
    sorted : bool
        Promises that `segment_ids` ascend, as in `segment_sum`.
    mode : {"raise", "drop"}
        What an id out of range does: raise, or give a row of 0.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [e, *d]
        dtype of `data`, C order; 0 for elements below the largest.

    Raises
    ------
    IndexError
        An id out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `data` not floating, `segment_ids` neither int32 nor int64; mixed libraries or devices.
    ValueError
        `dout` or `out` without `num_segments` rows, `segment_ids` not as long as `data`.

    Notes
    -----
    Ties share evenly, as in torch's `amax` and `scatter_reduce` and in JAX's `max`. Where the
    largest is NaN, the elements that are NaN share it. Ties are counted exactly: deterministic and
    bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> data, ids = np.asarray([4.0, 2.0, 4.0]), np.asarray([0, 0, 0])
    >>> out = bc.segment_max(data, ids, num_segments=1)
    >>> bc.segment_max_backward(np.asarray([1.0]), data, out, ids, num_segments=1)
    array([0.5, 0. , 0.5])
    """
    xp, top = library_of(data).xp, taken(out, segment_ids, 0)
    hit = (data == top) | ((data != data) & (top != top))
    ties = added(xp.astype(hit, data.dtype), segment_ids, 0, num_segments)
    share = taken(dout / xp.where(ties > 0, ties, 1), segment_ids, 0)
    return xp.where(hit, share, 0)
