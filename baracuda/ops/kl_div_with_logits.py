"""Divergences of a student's logits from those of a teacher, as distillation has them."""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple, Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case, Kernel
from baracuda.families.divergences import (
    OPTIONS,
    SCALARS,
    WEIGHT,
    counted,
    log_softmax,
    pulled,
    weighed,
)
from baracuda.families.losses import COTANGENT, LOSS
from baracuda.libraries import A, Array, library_of

__all__ = [
    "kl_div_with_logits",
    "kl_div_with_logits_backward",
    "kl_div_with_logits_with_gradient",
]

_divergence = partial(
    op,
    category="cross_entropy",
    dtypes=FLOATS,
    options=OPTIONS,
    scalars=SCALARS,
    cases=(
        Case({"b": (5,), "v": 9}),
        Case({"b": (2, 3), "v": 7}, kind="reverse", reduction="none", temperature=2.0),
        Case({"b": (2, 3), "v": 16}, kind="jsd", reduction="sum", beta=0.3),
    ),
)


class _Rows(NamedTuple):
    """Logarithms of probabilities and these, and where a row counts; an axis stays for the classes.

    Without weights of rows `counts` is None.
    """

    counts: Array | None
    student: Array
    teacher: Array
    of_student: Array
    of_teacher: Array


def _rows(logits: Array, teacher: Array, row_weight: Array | None, temperature: float) -> _Rows:
    counts, both = counted(row_weight, logits, teacher)
    logs = [log_softmax(x, temperature) for x in both]
    return _Rows(counts, *logs, *map(library_of(logits).xp.exp, logs))


def _times(p: Array, log: Array) -> Array:
    """``p * log``, and 0 where `p` is 0, whatever the logarithm."""
    library = library_of(p)
    # One pass tells that nothing is to be selected.
    if library.readable(p) and 0 not in p.shape and bool(library.xp.min(p) > 0):
        return p * log
    return p * library.xp.where(p == 0, 0, log)


def _over_mixture(rows: _Rows, beta: float) -> tuple[Array, Array]:
    """Logarithms of the student's and of the teacher's probabilities over those of the mixture.

    With ``x = student - teacher`` the latter is ``-log1p((1 - beta) * expm1(x))``, which neither
    overflows nor cancels where x <= 0. Elsewhere the two change places.
    """
    xp = library_of(rows.student).xp
    neither = (rows.of_student == 0) & (rows.of_teacher == 0)
    x = xp.where(neither, 0, rows.student - rows.teacher)
    above = x > 0
    away = xp.where(above, -x, x)
    less = xp.expm1(away)
    more = xp.where(above, less * beta, less * (1 - beta))
    # JAX's log1p has 7 bits less in float64 between -0.41 and -0.3.
    small = more > -0.25
    likely = -xp.where(
        small, xp.log1p(xp.where(small, more, 0)), xp.log(xp.where(small, 1, 1 + more))
    )
    unlikely = away + likely
    return xp.where(above, likely, unlikely), xp.where(above, unlikely, likely)


def _losses(rows: _Rows, kind: str, beta: float) -> Array:
    """The divergence of every row."""
    xp = library_of(rows.student).xp
    # What is added to the terms sums up to 0, and takes off the error of a rounded normaliser.
    more = rows.of_student - rows.of_teacher
    if kind == "forward":
        terms = _times(rows.of_teacher, rows.teacher - rows.student) + more
    elif kind == "reverse":
        terms = _times(rows.of_student, rows.student - rows.teacher) - more
    else:
        student, teacher = _over_mixture(rows, beta)
        terms = _times(rows.of_teacher, teacher) * beta
        terms = terms + _times(rows.of_student, student) * (1 - beta)
    losses: Array = xp.sum(terms, axis=-1)
    return losses


def _slopes(rows: _Rows, kind: str, beta: float) -> Array:
    """Those of the loss of each row along ``logits / temperature``."""
    if kind == "forward":
        return rows.of_student - rows.of_teacher
    if kind == "reverse":
        log, share = rows.student - rows.teacher, 1.0
    else:
        (log, _), share = _over_mixture(rows, beta), 1 - beta
    terms = _times(rows.of_student, log)
    divergence = library_of(terms).xp.sum(terms, axis=-1, keepdims=True)
    return (terms - rows.of_student * divergence) * share


_ARRAYS = "logits[*b v], teacher_logits[*b v]"


@_divergence(
    f"{_ARRAYS} -> loss[*b] if reduction=none",
    f"{_ARRAYS} -> loss[] if reduction!=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[*b] if reduction=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[] if reduction!=none",
    roles={**WEIGHT, **LOSS},
    kernel=Kernel("kl_div.cu", "KlDivWithLogits", schedule="kl_div"),
)
def kl_div_with_logits(
    logits: A,
    teacher_logits: Array,
    row_weight: Array | None = None,
    /,
    *,
    kind: Literal["forward", "reverse", "jsd"] = "forward",
    beta: float = 0.5,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Divergence of softmaxes of rows, for distillation: ``sum(t * log(t / s))``.

    ``s = softmax(logits / temperature)`` is the student's, and t the teacher's. No factor of
    ``temperature**2`` is applied, as some recipes do: multiply the loss by it.

    Parameters
    ----------
    logits : array of shape [*b, v]
        Those of the student, classes last. Any floating dtype.
    teacher_logits : array of shape [*b, v]
        Those of the teacher: dtype of `logits`.
    row_weight : array of shape [*b], optional
        Weight of each row, 1 by default: of the dtype of `logits`, or float32 beside 16 bits. Rows
        of weight 0, such as padding, cost exactly 0, whatever their logits, NaN included.
    kind : {"forward", "reverse", "jsd"}
        ``KL(t || s)``, ``KL(s || t)``, or the generalised Jensen-Shannon divergence
        ``beta * KL(t || m) + (1 - beta) * KL(s || m)`` with ``m = beta * t + (1 - beta) * s``.
    beta : float
        Share of the teacher in the mixture m, above 0 and below 1. A run-time value; of
        ``kind="jsd"`` alone.
    temperature : float
        Both logits are divided by it; above 0. A run-time value.
    reduction : {"mean", "sum", "none"}
        "mean" is the weighted sum over rows, divided by the sum of their weights (NaN if that is
        0). "sum" is the sum alone, "none" the loss of each row times its weight.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*b]
        float32 of 16-bit inputs, else their dtype; C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries or devices; a `row_weight` of another dtype.
    ValueError
        Shapes that do not fit, an option out of its range.

    Notes
    -----
    The Jensen-Shannon divergence is that of Agarwal et al., On-Policy Distillation of Language
    Models (arXiv:2306.13649), and of ``generalized_jsd_loss`` in TRL. There a `beta` of 0 and 1
    stands for the forward and the reverse divergence, which are kinds of their own here. A class of
    probability 0 adds nothing, also where the other's logarithm is infinite. If only the other
    distribution rules a class out, a forward or reverse divergence is infinite. Where a framework
    differentiates `teacher_logits` or `row_weight`, it does so through the body; nothing flows back
    to a weight of 0. Sums are taken in float32 (float64 for float64), in a fixed order. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> logits, teacher = np.zeros((1, 2)), np.log([[0.25, 0.75]])
    >>> bc.kl_div_with_logits(logits, teacher).round(6)
    np.float64(0.130812)
    """
    rows = _rows(logits, teacher_logits, row_weight, temperature)
    return weighed(_losses(rows, kind, beta), row_weight, reduction)


@_divergence(
    f"dloss[*b], {_ARRAYS} -> dlogits[*b v] if reduction=none",
    f"dloss[], {_ARRAYS} -> dlogits[*b v] if reduction!=none",
    f"dloss[*b], {_ARRAYS}, row_weight[*b] -> dlogits[*b v] if reduction=none",
    f"dloss[], {_ARRAYS}, row_weight[*b] -> dlogits[*b v] if reduction!=none",
    adjoint_of="kl_div_with_logits",
    roles={**WEIGHT, **COTANGENT},
    inplace=True,
    kernel=Kernel("kl_div.cu", "KlDivWithLogitsBackward", schedule="kl_div"),
)
def kl_div_with_logits_backward(
    dloss: Array,
    logits: A,
    teacher_logits: Array,
    row_weight: Array | None = None,
    /,
    *,
    kind: Literal["forward", "reverse", "jsd"] = "forward",
    beta: float = 0.5,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `kl_div_with_logits` to the student's logits: ``dloss * (s - t) / temperature``.

    With ``r = log(s / t)``, of the Jensen-Shannon divergence ``(1 - beta) * log(s / m)``, the other
    kinds have ``dloss * s * (r - sum(s * r)) / temperature``.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result: dtype of `logits`, or float32 beside 16 bits.
    logits : array of shape [*b, v]
        Those of the student. Any floating dtype.
    teacher_logits : array of shape [*b, v]
        Those of the teacher: dtype of `logits`.
    row_weight : array of shape [*b], optional
        Weight of each row: of the dtype of `logits`, or float32 beside 16 bits. The gradient of
        rows of weight 0 is exactly 0.
    kind, beta, temperature, reduction, **dispatch
        As in `kl_div_with_logits`.

    Returns
    -------
    dlogits : array of shape [*b, v]
        May be written over `logits`.

    Raises
    ------
    TypeError, ValueError
        As `kl_div_with_logits`; `dloss` of another shape than the result.

    Notes
    -----
    Nothing but the inputs of the forward is kept. A row whose reverse divergence is infinite has a
    gradient of NaN. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> logits, teacher = np.zeros((1, 2)), np.log([[0.25, 0.75]])
    >>> bc.kl_div_with_logits_backward(np.asarray(1.0), logits, teacher)
    array([[ 0.25, -0.25]])
    """
    rows = _rows(logits, teacher_logits, row_weight, temperature)
    slopes = _slopes(rows, kind, beta)
    return pulled(slopes, rows.counts, row_weight, dloss, temperature, reduction)


@_divergence(
    f"{_ARRAYS} -> loss[*b], dlogits[*b v] if reduction=none",
    f"{_ARRAYS} -> loss[], dlogits[*b v] if reduction!=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[*b], dlogits[*b v] if reduction=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[], dlogits[*b v] if reduction!=none",
    roles={**WEIGHT, **LOSS},
    inplace=True,
    kernel=Kernel("kl_div.cu", "KlDivWithLogitsWithGradient", schedule="kl_div"),
)
def kl_div_with_logits_with_gradient(
    logits: A,
    teacher_logits: Array,
    row_weight: Array | None = None,
    /,
    *,
    kind: Literal["forward", "reverse", "jsd"] = "forward",
    beta: float = 0.5,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """`kl_div_with_logits` and its gradient to the student's logits, from one read of both.

    Parameters
    ----------
    logits : array of shape [*b, v]
        Those of the student. Any floating dtype.
    teacher_logits : array of shape [*b, v]
        Those of the teacher: dtype of `logits`.
    row_weight : array of shape [*b], optional
        Weight of each row: of the dtype of `logits`, or float32 beside 16 bits. Rows of weight 0
        cost exactly 0, and so is their gradient.
    kind, beta, temperature, reduction, **dispatch
        As in `kl_div_with_logits`.

    Returns
    -------
    loss : array of shape [] or, with ``reduction="none"``, [*b]
        float32 of 16-bit inputs, else their dtype.
    dlogits : array of shape [*b, v]
        May be written over `logits`: ``plan(logits, teacher_logits, out=(loss, logits))``.

    Raises
    ------
    TypeError, ValueError
        As `kl_div_with_logits`.

    Notes
    -----
    For training steps without an autograd engine: the cotangent is 1. Frameworks differentiate its
    body. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> logits, teacher = np.zeros((1, 2)), np.log([[0.25, 0.75]])
    >>> loss, dlogits = bc.kl_div_with_logits_with_gradient(logits, teacher)
    >>> loss.round(6), dlogits
    (np.float64(0.130812), array([[ 0.25, -0.25]]))
    """
    rows = _rows(logits, teacher_logits, row_weight, temperature)
    return (
        weighed(_losses(rows, kind, beta), row_weight, reduction),
        pulled(_slopes(rows, kind, beta), rows.counts, row_weight, 1, temperature, reduction),
    )
