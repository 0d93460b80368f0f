"""Cross entropy of logits and class indices, with its gradient apart or in the same pass."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack, cast

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.collective import Collective
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import between, choice, flag, integer, positive
from baracuda.families import vocabulary
from baracuda.families.entropy import gradient, losses, scored, statistics
from baracuda.families.losses import COTANGENT, LOSS, METRICS, measured
from baracuda.libraries import A, Array, library_of

__all__ = [
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_with_gradient",
]

OPTIONS = {
    "axis": integer,
    "ignore_index": integer,
    "reduction": choice("mean", "sum", "none"),
    "mode": choice("raise", "drop"),
}
SCALARS = {
    "label_smoothing": between(0, 1),
    "z_loss": positive(zero=True),
    "softcap": positive(zero=True),
}
CASES = (
    Case({"b": (5,), "v": 9, "c": ()}),
    Case({"b": (2,), "v": 7, "c": (3,)}, axis=1, reduction="none", label_smoothing=0.1),
    Case({"b": (2, 3), "v": 16, "c": ()}, reduction="sum", z_loss=0.01, softcap=2.0, mode="drop"),
)

MEASURED = {**OPTIONS, "metrics": flag}
MEASURED_CASES = (
    *CASES[:2],
    Case({"b": (2, 3), "v": 16, "c": ()}, reduction="sum", z_loss=0.01, softcap=2.0, mode="drop",
         metrics=True),
    Case({"b": (2,), "v": 7, "c": (3,)}, axis=1, reduction="none", metrics=True),
)  # fmt: skip

ROWS = {
    "target": roles.index("v", ignored="ignore_index"),
    "weight": roles.parameter(0.5, 2),
}

_entropy = partial(
    op,
    category="cross_entropy",
    dtypes=FLOATS,
    scalars=SCALARS,
)


@_entropy(
    *measured(
        "logits[*b v@axis *c], target[*b *c] -> loss[*b *c] if reduction=none",
        "logits[*b v@axis *c], target[*b *c] -> loss[] if reduction!=none",
        "logits[*b v@axis *c], target[*b *c], weight[v] -> loss[*b *c] if reduction=none",
        "logits[*b v@axis *c], target[*b *c], weight[v] -> loss[] if reduction!=none",
        rows="*b *c",
    ),
    options=MEASURED,
    roles={**ROWS, **LOSS, **METRICS},
    cases=MEASURED_CASES,
    kernel=Kernel("cross_entropy.cu", "CrossEntropy", schedule="cross_entropy"),
    collective=Collective("v", ("logits",), vocabulary.cross_entropy),
)
def cross_entropy(
    logits: A,
    target: Array,
    weight: Array | None = None,
    /,
    *,
    axis: int = -1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    mode: Literal["raise", "drop"] = "raise",
    metrics: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Cross entropy, classes last (torch: axis 1): ``log(sum(exp(logits))) - logits[target]``.

    Parameters
    ----------
    logits : array of shape [*b, v, *c]
        Any floating dtype.
    target : array of shape [*b, *c]
        The right class of each row: int32 or int64, ``0 <= target < v``.
    weight : array of shape [v], optional
        Weight of each class, 1 by default: of the dtype of `logits`, or float32 beside 16 bits.
    axis : int
        Axis of the classes; negative counts from the end. The default is the last axis, where
        torch has the second.
    ignore_index : int
        Rows with this target have a loss of 0 and do not count in a mean.
    label_smoothing : float
        Share of the target that is spread over all classes, by their weights; from 0 to 1. A
        run-time value.
    z_loss : float
        Factor of the square of ``log(sum(exp(logits)))`` that is added, times the weight of the
        target. A run-time value.
    softcap : float
        Above 0, logits are first ``softcap * tanh(logits/softcap)``. A run-time value.
    reduction : {"mean", "sum", "none"}
        "mean" is the sum over the rows that count, divided by the sum of their targets' weights
        (NaN if no row counts). "sum" is the sum alone, "none" the loss of each row.
    mode : {"raise", "drop"}
        What a target out of range does, as in `gather`: raise, or count as ignored.
    metrics : bool
        Whether to return the accuracy and each row's top class too, from the same look at logits.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*b, *c]
        float32 of 16-bit inputs, else their dtype; C order.
    accuracy : array of that shape and dtype, with ``metrics=True``
        1 for a row whose top class is its target, else 0; weighted and reduced as the loss is.
    top : array of shape [*b, *c], with ``metrics=True``
        Class with the largest logit of a row, the first of equals: int64, in JAX without 64 bits
        int32. -1 in rows that do not count. A NaN counts as the largest. Nothing flows back from
        either.

    Raises
    ------
    IndexError
        A target out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `target` neither int32 nor int64; mixed libraries or devices; a `weight` of another dtype.
    ValueError
        Shapes that do not fit, no such axis, an option out of its range.

    Notes
    -----
    Agrees with `torch.nn.functional.cross_entropy` of class indices, also with weights and at
    infinite logits. The z-loss is that of Chowdhery et al. (arXiv:2204.02311), the cap that of
    Gemma 2 (arXiv:2408.00118). Sums are taken in a fixed order, in float32 (float64 for float64),
    and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.cross_entropy(np.asarray([[0.0, 0.0], [9.0, -1000.0]]), np.asarray([1, 0]))
    array(0.34657359)
    >>> bc.cross_entropy(np.zeros((2, 2)), np.asarray([0, 1]), np.asarray([1.0, 3.0]))
    array(0.69314718)
    >>> logits = np.asarray([[0.0, 1.0], [3.0, 2.0]])
    >>> bc.cross_entropy(logits, np.asarray([1, 1]), metrics=True)[1:]
    (array(0.5), array([1, 0]))
    """
    rows, every = statistics(logits, target, weight, axis, ignore_index, softcap)
    loss = losses(rows, every, axis, label_smoothing, z_loss, reduction)
    # For who asks for the loss alone, a union of types would be a nuisance.
    return cast("A", (loss, *scored(rows, logits, axis, reduction))) if metrics else loss


@_entropy(
    "dloss[*b *c], logits[*b v@axis *c], target[*b *c] -> dlogits[*b v *c] if reduction=none",
    "dloss[], logits[*b v@axis *c], target[*b *c] -> dlogits[*b v *c] if reduction!=none",
    "dloss[*b *c], logits[*b v@axis *c], target[*b *c], weight[v] -> dlogits[*b v *c]"
    " if reduction=none",
    "dloss[], logits[*b v@axis *c], target[*b *c], weight[v] -> dlogits[*b v *c]"
    " if reduction!=none",
    adjoint_of="cross_entropy",
    options=OPTIONS,
    roles={**ROWS, **COTANGENT},
    cases=CASES,
    inplace=True,
    kernel=Kernel("cross_entropy.cu", "CrossEntropyBackward", schedule="cross_entropy"),
    collective=Collective("v", ("logits",), vocabulary.cross_entropy_backward),
)
def cross_entropy_backward(
    dloss: Array,
    logits: A,
    target: Array,
    weight: Array | None = None,
    /,
    *,
    axis: int = -1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `cross_entropy`: ``dloss * weight[target] * (softmax - one_hot(target))``.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    logits : array of shape [*b, v, *c]
    target : array of shape [*b, *c]
    weight : array of shape [v], optional
    axis, ignore_index, label_smoothing, z_loss, softcap, reduction, mode, **dispatch
        As in `cross_entropy`.

    Returns
    -------
    dlogits : array of shape [*b, v, *c]
        0 in rows that do not count. May be written over `logits`.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `cross_entropy`; `dloss` of another shape than the result.

    Notes
    -----
    The softmax is computed again: nothing but the inputs of the forward is kept. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.cross_entropy_backward(np.asarray(1.0), np.zeros((1, 2)), np.asarray([1]))
    array([[ 0.5, -0.5]])
    """
    rows, every = statistics(logits, target, weight, axis, ignore_index, softcap)
    if reduction == "none":
        dloss = library_of(dloss).xp.expand_dims(dloss, axis=axis)
    return gradient(rows, every, axis, label_smoothing, z_loss, reduction, dloss)


@_entropy(
    *measured(
        "logits[*b v@axis *c], target[*b *c] -> loss[*b *c], dlogits[*b v *c] if reduction=none",
        "logits[*b v@axis *c], target[*b *c] -> loss[], dlogits[*b v *c] if reduction!=none",
        "logits[*b v@axis *c], target[*b *c], dloss[]"
        " -> loss[], dlogits[*b v *c] if reduction!=none",
        "logits[*b v@axis *c], target[*b *c], weight[v]"
        " -> loss[*b *c], dlogits[*b v *c] if reduction=none",
        "logits[*b v@axis *c], target[*b *c], weight[v]"
        " -> loss[], dlogits[*b v *c] if reduction!=none",
        "logits[*b v@axis *c], target[*b *c], weight[v], dloss[]"
        " -> loss[], dlogits[*b v *c] if reduction!=none",
        rows="*b *c",
    ),
    inplace=True,
    options=MEASURED,
    roles={**ROWS, **LOSS, **METRICS, **COTANGENT},
    cases=MEASURED_CASES,
    kernel=Kernel("cross_entropy.cu", "CrossEntropyWithGradient", schedule="cross_entropy"),
    collective=Collective("v", ("logits",), vocabulary.cross_entropy_with_gradient),
)
def cross_entropy_with_gradient(
    logits: A,
    target: Array,
    weight: Array | None = None,
    dloss: Array | None = None,
    /,
    *,
    axis: int = -1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    mode: Literal["raise", "drop"] = "raise",
    metrics: bool = False,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, ...]:
    """`cross_entropy`, classes last (torch: axis 1), and its gradient, from one read of the logits.

    Parameters
    ----------
    dloss : array of shape [], optional
        Gradient of the sum or mean, 1 by default: float32 or of the dtype of `logits`.
    logits : array of shape [*b, v, *c]
    target : array of shape [*b, *c]
    weight : array of shape [v], optional
    axis, ignore_index, label_smoothing, z_loss, softcap, reduction, mode, metrics, **dispatch
        As in `cross_entropy`.

    Returns
    -------
    loss : array of shape [] or, with ``reduction="none"``, [*b, *c]
    accuracy, top : arrays, with ``metrics=True``
        As of `cross_entropy`.
    dlogits : array of shape [*b, v, *c]
        May be written over `logits`: ``plan(logits, target, out=(loss, logits))``.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `cross_entropy`.

    Notes
    -----
    For training steps without an autograd engine: the cotangent is 1 where none is given.
    Frameworks differentiate its body. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> loss, dlogits = bc.cross_entropy_with_gradient(np.zeros((1, 2)), np.asarray([1]))
    >>> loss, dlogits
    (array(0.69314718), array([[ 0.5, -0.5]]))
    """
    rows, every = statistics(logits, target, weight, axis, ignore_index, softcap)
    given = 1 if dloss is None else dloss
    return (
        losses(rows, every, axis, label_smoothing, z_loss, reduction),
        *(scored(rows, logits, axis, reduction) if metrics else ()),
        gradient(rows, every, axis, label_smoothing, z_loss, reduction, given),
    )
