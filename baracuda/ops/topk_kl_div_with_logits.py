"""Divergences of a student's logits from the likeliest classes of a teacher.

What a teacher says of the other classes is not stored, so there is the forward kind alone.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice
from baracuda.families.divergences import (
    OPTIONS,
    SCALARS,
    TAUGHT,
    WEIGHT,
    counted,
    log_softmax,
    pulled,
    weighed,
)
from baracuda.families.indexing import inside, looked_up
from baracuda.families.losses import COTANGENT, LOSS
from baracuda.families.numerics import scatter_add
from baracuda.libraries import A, Array, library_of

__all__ = [
    "topk_kl_div_with_logits",
    "topk_kl_div_with_logits_backward",
    "topk_kl_div_with_logits_with_gradient",
]

_divergence = partial(
    op,
    category="cross_entropy",
    dtypes=FLOATS,
    options={"reduction": OPTIONS["reduction"], "mode": choice("raise", "drop")},
    scalars={"temperature": SCALARS["temperature"]},
    cases=(
        Case({"b": (5,), "v": 9, "k": 3}, temperature=2.0),
        Case({"b": (2, 3), "v": 16, "k": 2}, reduction="none", mode="drop"),
    ),
)


class _Rows(NamedTuple):
    """What is made of rows; the last axis is that of all classes, or of the teacher's.

    Attributes
    ----------
    counts
        Where a row counts, None without weights of rows.
    logs
        Logarithms of the student's probabilities, of all classes.
    probs
        The teacher's, 0 where there is no such class.
    """

    counts: Array | None
    logs: Array
    probs: Array


def _rows(
    logits: Array, ids: Array, probs: Array, row_weight: Array | None, temperature: float
) -> _Rows:
    xp = library_of(logits).xp
    counts, (logits,) = counted(row_weight, logits)
    probs = xp.where(inside(ids, logits.shape[-1]), probs, 0)
    return _Rows(counts, log_softmax(logits, temperature), probs)


def _losses(rows: _Rows, ids: Array, mode: str) -> Array:
    """The divergence of every row."""
    xp, none = library_of(ids).xp, rows.probs == 0
    own = looked_up(rows.logs, ids, ids.ndim - 1, mode == "raise")
    own = xp.log(xp.where(none, 1, rows.probs)) - xp.where(none, 0, own)
    losses: Array = xp.sum(rows.probs * own, axis=-1)
    return losses


def _slopes(rows: _Rows, ids: Array) -> Array:
    """Those of the loss of each row along ``logits / temperature``."""
    xp, shape = library_of(ids).xp, rows.logs.shape
    mass = xp.sum(rows.probs, axis=-1, keepdims=True)
    return xp.exp(rows.logs) * mass - scatter_add(rows.probs, ids, ids.ndim - 1, shape)


_ARRAYS = "logits[*b v], teacher_ids[*b k], teacher_probs[*b k]"
# Over the logits alone: the teacher's probabilities are read again when their row is written.
_WRITTEN = {"dlogits": roles.typed_as("logits")}


@_divergence(
    f"{_ARRAYS} -> loss[*b] if reduction=none",
    f"{_ARRAYS} -> loss[] if reduction!=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[*b] if reduction=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[] if reduction!=none",
    roles={**TAUGHT, **WEIGHT, **LOSS},
    kernel=Kernel("topk_kl_div.cu", "TopkKlDivWithLogits", schedule="topk_kl_div"),
)
def topk_kl_div_with_logits(
    logits: A,
    teacher_ids: Array,
    teacher_probs: Array,
    row_weight: Array | None = None,
    /,
    *,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Forward divergence of rows from the k likeliest classes of a teacher: ``sum(t * log(t/s))``.

    ``s = softmax(logits / temperature)[teacher_ids]`` is the student's, over all classes, and t the
    teacher's.

    Parameters
    ----------
    logits : array of shape [*b, v]
        Those of the student, classes last. Any floating dtype.
    teacher_ids : array of shape [*b, k]
        The teacher's classes of each row: int32 or int64, ``0 <= teacher_ids < v``. A class that
        a row has twice costs twice.
    teacher_probs : array of shape [*b, k]
        Their probabilities, not below 0, at the teacher's own temperature: of the dtype of
        `logits`, or float32 beside 16 bits. They need not sum up to 1. One of 0 costs 0.
    row_weight : array of shape [*b], optional
        Weight of each row, 1 by default: dtype of `teacher_probs`. Rows of weight 0, such as
        padding, cost exactly 0, whatever their logits, NaN included.
    temperature : float
        Above 0: the student's logits are divided by it. A run-time value.
    reduction : {"mean", "sum", "none"}
        "mean" is the weighted sum over rows, divided by the sum of their weights (NaN if that is
        0). "sum" is the sum alone, "none" the loss of each row times its weight.
    mode : {"raise", "drop"}
        What a class out of range does, as in `gather`: raise, or cost 0.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*b]
        float32 of 16-bit inputs, else their dtype; C order.

    Raises
    ------
    IndexError
        A class out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `teacher_ids` neither int32 nor int64; mixed libraries, devices or dtypes.
    ValueError
        Shapes that do not fit, an option out of its range.

    Notes
    -----
    The truncated forward divergence of offline distillation. Reverse and Jensen-Shannon kinds take
    what a teacher says of every class: `kl_div_with_logits` has them. `linear_topk_kl_div` takes
    hidden states and a last layer in the place of logits. Where a framework differentiates
    `teacher_probs` or `row_weight`, it does so through the body; nothing flows back to a weight of
    0. Sums are taken in float32 (float64 for float64), in a fixed order. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> logits, ids, probs = np.zeros((1, 2)), np.asarray([[1]]), np.asarray([[0.75]])
    >>> bc.topk_kl_div_with_logits(logits, ids, probs).round(6)
    np.float64(0.304099)
    """
    rows = _rows(logits, teacher_ids, teacher_probs, row_weight, temperature)
    return weighed(_losses(rows, teacher_ids, mode), row_weight, reduction)


@_divergence(
    f"dloss[*b], {_ARRAYS} -> dlogits[*b v] if reduction=none",
    f"dloss[], {_ARRAYS} -> dlogits[*b v] if reduction!=none",
    f"dloss[*b], {_ARRAYS}, row_weight[*b] -> dlogits[*b v] if reduction=none",
    f"dloss[], {_ARRAYS}, row_weight[*b] -> dlogits[*b v] if reduction!=none",
    adjoint_of="topk_kl_div_with_logits",
    roles={**TAUGHT, **WEIGHT, **COTANGENT, **_WRITTEN},
    inplace=True,
    kernel=Kernel("topk_kl_div.cu", "TopkKlDivWithLogitsBackward", schedule="topk_kl_div"),
)
def topk_kl_div_with_logits_backward(
    dloss: Array,
    logits: A,
    teacher_ids: Array,
    teacher_probs: Array,
    row_weight: Array | None = None,
    /,
    *,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `topk_kl_div_with_logits` to the student's logits.

    It is ``dloss * (s * sum(t) - t) / temperature``, t being 0 of classes that are not the
    teacher's.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result: dtype of `logits`, or float32 beside 16 bits.
    logits : array of shape [*b, v]
        Those of the student. Any floating dtype.
    teacher_ids, teacher_probs : arrays of shape [*b, k]
        The teacher's classes, int32 or int64, and their probabilities, of the dtype of `logits` or
        float32 beside 16 bits.
    row_weight : array of shape [*b], optional
        Weight of each row: dtype of `teacher_probs`. The gradient of rows of weight 0 is exactly 0.
    temperature, reduction, mode, **dispatch
        As in `topk_kl_div_with_logits`.

    Returns
    -------
    dlogits : array of shape [*b, v]
        May be written over `logits`.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `topk_kl_div_with_logits`; `dloss` of another shape than the result.

    Notes
    -----
    Nothing but the inputs of the forward is kept. Each element is rounded once, that of a class
    which the teacher has too. Deterministic on the host and on NVIDIA GPUs.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> logits, ids, probs = np.zeros((1, 2)), np.asarray([[1]]), np.asarray([[0.75]])
    >>> bc.topk_kl_div_with_logits_backward(np.asarray(1.0), logits, ids, probs)
    array([[ 0.375, -0.375]])
    """
    rows = _rows(logits, teacher_ids, teacher_probs, row_weight, temperature)
    slopes = _slopes(rows, teacher_ids)
    return pulled(slopes, rows.counts, row_weight, dloss, temperature, reduction)


@_divergence(
    f"{_ARRAYS} -> loss[*b], dlogits[*b v] if reduction=none",
    f"{_ARRAYS} -> loss[], dlogits[*b v] if reduction!=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[*b], dlogits[*b v] if reduction=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[], dlogits[*b v] if reduction!=none",
    roles={**TAUGHT, **WEIGHT, **LOSS, **_WRITTEN},
    inplace=True,
    kernel=Kernel("topk_kl_div.cu", "TopkKlDivWithLogitsWithGradient", schedule="topk_kl_div"),
)
def topk_kl_div_with_logits_with_gradient(
    logits: A,
    teacher_ids: Array,
    teacher_probs: Array,
    row_weight: Array | None = None,
    /,
    *,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """`topk_kl_div_with_logits` and its gradient to the student's logits, from one read of them.

    Parameters
    ----------
    logits : array of shape [*b, v]
        Those of the student. Any floating dtype.
    teacher_ids, teacher_probs : arrays of shape [*b, k]
        The teacher's classes, int32 or int64, and their probabilities, of the dtype of `logits` or
        float32 beside 16 bits.
    row_weight : array of shape [*b], optional
        Weight of each row: dtype of `teacher_probs`. Rows of weight 0 cost exactly 0, and so is
        their gradient.
    temperature, reduction, mode, **dispatch
        As in `topk_kl_div_with_logits`.

    Returns
    -------
    loss : array of shape [] or, with ``reduction="none"``, [*b]
        float32 of 16-bit inputs, else their dtype.
    dlogits : array of shape [*b, v]
        May be written over `logits`, as in `kl_div_with_logits_with_gradient`.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `topk_kl_div_with_logits`.

    Notes
    -----
    For training steps without an autograd engine: the cotangent is 1. Frameworks differentiate its
    body. Deterministic on the host and on NVIDIA GPUs.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> logits, ids, probs = np.zeros((1, 2)), np.asarray([[1]]), np.asarray([[0.75]])
    >>> loss, dlogits = bc.topk_kl_div_with_logits_with_gradient(logits, ids, probs)
    >>> loss.round(6), dlogits
    (np.float64(0.304099), array([[ 0.375, -0.375]]))
    """
    rows = _rows(logits, teacher_ids, teacher_probs, row_weight, temperature)
    slopes = _slopes(rows, teacher_ids)
    return (
        weighed(_losses(rows, teacher_ids, mode), row_weight, reduction),
        pulled(slopes, rows.counts, row_weight, 1, temperature, reduction),
    )
