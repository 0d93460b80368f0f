"""Cross entropy of logits and class probabilities, with its gradient apart or in the same pass."""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import between, choice, integer
from baracuda.families.losses import COTANGENT, LOSS
from baracuda.families.numerics import traced
from baracuda.families.reductions import largest, parts, reduced
from baracuda.libraries import A, Array, library_of

__all__ = [
    "soft_target_cross_entropy",
    "soft_target_cross_entropy_backward",
    "soft_target_cross_entropy_with_gradient",
]

TARGET = {"target": roles.value(0.0, 0.2)}

_entropy = partial(
    op,
    category="cross_entropy",
    options={"axis": integer, "reduction": choice("mean", "sum", "none")},
    scalars={"label_smoothing": between(0, 1)},
    cases=(
        Case({"b": (5,), "v": 9, "c": ()}),
        Case({"b": (2,), "v": 7, "c": (3,)}, axis=1, reduction="none", label_smoothing=0.1),
        Case({"b": (2, 3), "v": 16, "c": ()}, reduction="sum"),
    ),
)


class _Rows(NamedTuple):
    """What the losses of rows are made of.

    Attributes
    ----------
    target
        The probabilities, smoothed.
    mass, total
        Their sum, and that of the exponentials of `shifted`, along an axis that stays.
    shifted
        The logits less their largest.
    """

    target: Array
    mass: Array
    total: Array
    shifted: Array


def _rows(logits: Array, target: Array, axis: int, label_smoothing: float) -> _Rows:
    xp = library_of(logits).xp
    if traced(label_smoothing) or label_smoothing:
        target = target * (1 - label_smoothing) + label_smoothing / max(logits.shape[axis], 1)
    shifted = logits - largest(logits, axis)
    total = xp.sum(xp.exp(shifted), axis=axis, keepdims=True)
    return _Rows(target, xp.sum(target, axis=axis, keepdims=True), total, shifted)


def _losses(rows: _Rows, axis: int, reduction: str) -> Array:
    xp = library_of(rows.total).xp
    # Without classes the mass is 0: so is the loss, which the logarithm of nothing would make NaN.
    losses = rows.mass
    if rows.shifted.shape[axis]:
        losses = losses * xp.log(rows.total)
        losses = losses - xp.sum(rows.target * rows.shifted, axis=axis, keepdims=True)
    return reduced(xp.squeeze(losses, axis=axis), reduction)


def _gradient(rows: _Rows, dloss: Array | int) -> Array:
    xp = library_of(rows.total).xp
    return (xp.exp(rows.shifted) * (rows.mass / rows.total) - rows.target) * dloss


@_entropy(
    "logits[*b v@axis *c], target[*b v *c] -> loss[*b *c] if reduction=none",
    "logits[*b v@axis *c], target[*b v *c] -> loss[] if reduction!=none",
    roles={**TARGET, **LOSS},
    kernel=Kernel("cross_entropy.cu", "SoftCrossEntropy", schedule="cross_entropy"),
)
def soft_target_cross_entropy(
    logits: A,
    target: Array,
    /,
    *,
    axis: int = -1,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Cross entropy, classes last (torch: axis 1): ``-sum(target * log_softmax(logits))``.

    Parameters
    ----------
    logits : array of shape [*b, v, *c]
        Any floating dtype.
    target : array of shape [*b, v, *c]
        The probability of each class, as distillation and mixed labels have them. Of the dtype of
        `logits`; not made to add up to 1.
    axis : int
        Axis of the classes; negative counts from the end. The default is the last axis, where
        torch has the second.
    label_smoothing : float
        Share of the target that is spread over all classes, from 0 to 1. A run-time value.
    reduction : {"mean", "sum", "none"}
        The mean over rows (NaN if there are none), their sum, or the loss of each.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*b, *c]
        float32 of 16-bit inputs, else their dtype; C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes.
    ValueError
        Shapes that differ, no such axis, an option out of its range.

    Notes
    -----
    Agrees with `torch.nn.functional.cross_entropy` of class probabilities without weights. Sums are
    taken in a fixed order, in float32 (float64 for float64), and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.soft_target_cross_entropy(np.zeros((1, 2)), np.asarray([[0.25, 0.75]]))
    array(0.69314718)
    """
    return _losses(_rows(logits, target, axis, label_smoothing), axis, reduction)


@_entropy(
    "dloss[*b *c], logits[*b v@axis *c], target[*b v *c] -> dlogits[*b v *c] if reduction=none",
    "dloss[], logits[*b v@axis *c], target[*b v *c] -> dlogits[*b v *c] if reduction!=none",
    adjoint_of="soft_target_cross_entropy",
    roles={**TARGET, **COTANGENT},
    inplace=True,
    kernel=Kernel("cross_entropy.cu", "SoftCrossEntropyBackward", schedule="cross_entropy"),
)
def soft_target_cross_entropy_backward(
    dloss: Array,
    logits: A,
    target: Array,
    /,
    *,
    axis: int = -1,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `soft_target_cross_entropy`, ``dloss * (softmax(logits) - target)``.

    Where the target does not add up to 1, the softmax is multiplied by what it adds up to.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    logits : array of shape [*b, v, *c]
    target : array of shape [*b, v, *c]
    axis, label_smoothing, reduction, **dispatch
        As in `soft_target_cross_entropy`.

    Returns
    -------
    dlogits : array of shape [*b, v, *c]
        May be written over `logits`.

    Raises
    ------
    TypeError, ValueError
        As `soft_target_cross_entropy`; `dloss` of another shape than the result.

    Notes
    -----
    That of `logits` alone; where a framework differentiates the target too, it does so through the
    body. The softmax is computed again: nothing but the inputs of the forward is kept. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> target = np.asarray([[0.25, 0.75]])
    >>> bc.soft_target_cross_entropy_backward(np.asarray(1.0), np.zeros((1, 2)), target)
    array([[ 0.25, -0.25]])
    """
    rows = _rows(logits, target, axis, label_smoothing)
    if reduction == "none":
        dloss = library_of(dloss).xp.expand_dims(dloss, axis=axis)
    return _gradient(rows, dloss / parts(rows.total.shape, reduction))


@_entropy(
    "logits[*b v@axis *c], target[*b v *c] -> loss[*b *c], dlogits[*b v *c] if reduction=none",
    "logits[*b v@axis *c], target[*b v *c] -> loss[], dlogits[*b v *c] if reduction!=none",
    inplace=True,
    roles={**TARGET, **LOSS},
    kernel=Kernel("cross_entropy.cu", "SoftCrossEntropyWithGradient", schedule="cross_entropy"),
)
def soft_target_cross_entropy_with_gradient(
    logits: A,
    target: Array,
    /,
    *,
    axis: int = -1,
    label_smoothing: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """`soft_target_cross_entropy`, classes last (torch: axis 1), and its gradient, from one read.

    Parameters
    ----------
    logits : array of shape [*b, v, *c]
    target : array of shape [*b, v, *c]
    axis, label_smoothing, reduction, **dispatch
        As in `soft_target_cross_entropy`.

    Returns
    -------
    loss : array of shape [] or, with ``reduction="none"``, [*b, *c]
    dlogits : array of shape [*b, v, *c]
        May be written over `logits`: ``plan(logits, target, out=(loss, logits))``.

    Raises
    ------
    TypeError, ValueError
        As `soft_target_cross_entropy`.

    Notes
    -----
    For training steps without an autograd engine: the cotangent is 1. Frameworks differentiate its
    body. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> target = np.asarray([[0.25, 0.75]])
    >>> bc.soft_target_cross_entropy_with_gradient(np.zeros((1, 2)), target)
    (array(0.69314718), array([[ 0.25, -0.25]]))
    """
    rows = _rows(logits, target, axis, label_smoothing)
    share = 1 / max(parts(rows.total.shape, reduction), 1)
    return _losses(rows, axis, reduction), _gradient(rows, share)
