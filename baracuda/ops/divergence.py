"""Losses of probabilities: binary cross entropies, and the Kullback-Leibler divergence."""

from __future__ import annotations

import math
from typing import Literal, Unpack

from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, flag
from baracuda.families.losses import CASES, COTANGENT, LOSS, PROBABILITY, backward, forward
from baracuda.families.numerics import parts, sigmoid
from baracuda.families.reductions import reduced, share
from baracuda.libraries import A, Array, library_of

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_backward",
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy_with_logits_backward",
    "kl_div",
    "kl_div_backward",
]

DIVERGENCE = {"reduction": choice("mean", "batchmean", "sum", "none")}
DIVERGENCES = (
    *CASES[1:],
    Case({"s": (4, 9)}, reduction="batchmean", log_target=True),
)
# Beside `x`, in its shape: what each element counts, and a positive target of it.
WEIGHT = {"weight": roles.value(0.5, 2)}
WEIGHTS = {**WEIGHT, "pos_weight": roles.value(0.5, 2)}
HINT = "broadcast it to the shape of x, which copies nothing"
# What has a logarithm of -100, times so much: float32 has the product, but not all bits of that.
_LARGER = 2.0**24
_LEAST = math.exp(-100) * _LARGER


def weighted(terms: Array, weight: Array | None) -> Array:
    """Terms of a loss or a slope, times the weights of their elements."""
    return terms if weight is None else terms * weight


@forward(
    *WEIGHT,
    namesake="nn.functional.binary_cross_entropy",
    roles={**LOSS, **WEIGHT, "x": PROBABILITY, "target": PROBABILITY},
    hints=dict.fromkeys(WEIGHT, HINT),
    kernel=Kernel("divergence.cu", "BinaryCrossEntropy", schedule="reduce"),
)
def binary_cross_entropy(
    x: A,
    target: Array,
    weight: Array | None = None,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Cross entropy of probabilities: ``-target * log(x) - (1 - target) * log(1 - x)``.

    Each is multiplied by the `weight` of its element, where that is given.

    Parameters
    ----------
    x, target : array of shape [*s]
        Probabilities, 0 to 1, of any floating dtype; of one shape. NaN comes of others.
    weight : array of shape [*s], optional
        Factor of the loss of each element; of the dtype of `x`. One for each row or
        class is broadcast to that shape first: ``xp.broadcast_to(weight, x.shape)`` copies nothing.
    reduction : {"mean", "sum", "none"}
        The mean of the losses (NaN if there are none), their sum, or each of them.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*s]
        float32 of 16-bit inputs, else their dtype; all losses in the layout of a dense `x`.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes.
    ValueError
        Shapes that differ; `reduction` none of the three.

    Notes
    -----
    As `torch.nn.functional.binary_cross_entropy`: a logarithm below -100 counts as -100, and a mean
    is divided by the number of elements, whatever their weights. Sums are taken in a fixed order,
    in float32 (float64 for float64), and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x = np.asarray([0.5, 0.0])
    >>> bc.binary_cross_entropy(x, np.ones(2), reduction="none").round(4)
    array([  0.6931, 100.    ])
    """
    xp = library_of(x).xp
    # Where a logarithm is cut off it is not taken: its slope there is no number.
    zero, one = (x >= 0) & (x * _LARGER <= _LEAST), x == 1
    on = xp.where(zero, -100, xp.log(xp.where(zero, 1, x)))
    # JAX's log1p has 7 bits less in float64 between -0.41 and -0.3.
    small = x < 0.25
    off = xp.where(small, xp.log1p(-xp.where(small, x, 0)), 0) + xp.where(
        one, -100, xp.log(xp.where(one | small, 1, 1 - x))
    )
    return reduced(weighted((target - 1) * off - target * on, weight), reduction)


@backward(
    *WEIGHT,
    roles={**COTANGENT, **WEIGHT, "x": PROBABILITY, "target": PROBABILITY},
    hints=dict.fromkeys(WEIGHT, HINT),
    adjoint_of="binary_cross_entropy",
    kernel=Kernel("divergence.cu", "BinaryCrossEntropyBackward", schedule="elementwise"),
)
def binary_cross_entropy_backward(
    dloss: Array,
    x: A,
    target: Array,
    weight: Array | None = None,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `binary_cross_entropy`: ``dloss * (x - target) / (x * (1 - x))``.

    It is multiplied by the `weight` of the element, where that is given.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    x : array of shape [*s]
    target : array of shape [*s]
    weight : array of shape [*s], optional
    reduction, **dispatch
        As in `binary_cross_entropy`.

    Returns
    -------
    dx : array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `binary_cross_entropy`; `dloss` of another shape than the result.

    Notes
    -----
    As torch's: the denominator is at least 1e-12; a mean's is divided by its size. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.binary_cross_entropy_backward(np.asarray(1.0), np.asarray([0.5]), np.asarray([1.0]))
    array([-2.])
    """
    spread = library_of(x).clip((1 - x) * x, 1e-12, None)
    return weighted(share(dloss, x, reduction) * ((x - target) / spread), weight)


@forward(
    *WEIGHTS,
    namesake="nn.functional.binary_cross_entropy_with_logits",
    roles={**LOSS, **WEIGHTS, "target": PROBABILITY},
    hints=dict.fromkeys(WEIGHTS, HINT),
    kernel=Kernel("divergence.cu", "BinaryCrossEntropyWithLogits", schedule="reduce"),
)
def binary_cross_entropy_with_logits(
    x: A,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Cross entropy of `sigmoid(x)`: ``log(1 + exp(x)) - target * x``.

    With weights ``weight * ((1 - target) * softplus(x) + pos_weight * target * softplus(-x))``.

    Parameters
    ----------
    x, target : array of shape [*s]
        Logits, and probabilities or labels 0 and 1. Any floating dtype; one shape.
    weight : array of shape [*s], optional
        Factor of the loss of each element; of the dtype of `x`. One for each row or
        class is broadcast to that shape first: ``xp.broadcast_to(weight, x.shape)`` copies nothing.
    pos_weight : array of shape [*s], optional
        Factor of the term of `target`, usually one for each class, broadcast to that
        shape likewise: above 1 it favours recall, below 1 precision. Of the dtype of `x`.
    reduction : {"mean", "sum", "none"}
        The mean of the losses (NaN if there are none), their sum, or each of them.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*s]
        float32 of 16-bit inputs, else their dtype; all losses in the layout of a dense `x`.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes.
    ValueError
        Shapes that differ; `reduction` none of the three.

    Notes
    -----
    As `torch.nn.functional.binary_cross_entropy_with_logits`, but that a small loss keeps its
    digits for targets of 0 as of 1. No exponential overflows. An infinite logit gives NaN where it
    is right, infinity where it is wrong. A mean is divided by the number of elements, whatever
    their weights. Sums are taken in a fixed order, in float32 (float64 for float64), and rounded
    once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x = np.asarray([0.0, 1000.0])
    >>> bc.binary_cross_entropy_with_logits(x, np.zeros(2), reduction="none").round(4)
    array([6.931e-01, 1.000e+03])
    """
    (above, below), xp = parts(x), library_of(x).xp
    curve = xp.log1p(xp.exp(below - above))
    if pos_weight is not None:
        curve = curve * (1 - target + pos_weight * target)
        target_below = pos_weight * target * below
    else:
        target_below = target * below
    # Of one sign both, or one of them 0: nothing cancels where the logit is right.
    linear = (1 - target) * above - target_below
    return reduced(weighted(linear + curve, weight), reduction)


@backward(
    *WEIGHTS,
    roles={**COTANGENT, **WEIGHTS, "target": PROBABILITY},
    hints=dict.fromkeys(WEIGHTS, HINT),
    adjoint_of="binary_cross_entropy_with_logits",
    kernel=Kernel("divergence.cu", "BinaryCrossEntropyWithLogitsBackward", schedule="elementwise"),
)
def binary_cross_entropy_with_logits_backward(
    dloss: Array,
    x: A,
    target: Array,
    weight: Array | None = None,
    pos_weight: Array | None = None,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `binary_cross_entropy_with_logits`: ``dloss * (sigmoid(x) - target)``.

    With weights
    ``dloss * weight * ((1 - target) * sigmoid(x) - pos_weight * target * sigmoid(-x))``.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    x : array of shape [*s]
    target : array of shape [*s]
    weight : array of shape [*s], optional
    pos_weight : array of shape [*s], optional
    reduction, **dispatch
        As in `binary_cross_entropy_with_logits`.

    Returns
    -------
    dx : array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `binary_cross_entropy_with_logits`; `dloss` of another shape than the result.

    Notes
    -----
    A mean's is divided by its size. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.binary_cross_entropy_with_logits_backward(np.asarray(1.0), np.zeros(1), np.ones(1))
    array([-0.5])
    """
    if pos_weight is None:
        slope = sigmoid(x) - target
    else:
        slope = (1 - target) * sigmoid(x) - pos_weight * target * sigmoid(-x)
    return weighted(share(dloss, x, reduction) * slope, weight)


@forward(
    namesake="nn.functional.kl_div",
    options=DIVERGENCE,
    scalars={"log_target": flag},
    roles={**LOSS, "target": PROBABILITY},
    cases=DIVERGENCES,
    kernel=Kernel("divergence.cu", "KlDiv", schedule="reduce"),
)
def kl_div(
    x: A,
    target: Array,
    /,
    *,
    reduction: Literal["mean", "batchmean", "sum", "none"] = "mean",
    log_target: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Kullback-Leibler divergence of log-probabilities: ``target * (log(target) - x)``.

    Parameters
    ----------
    x, target : array of shape [*s]
        Log-probabilities, and probabilities. Any floating dtype; one shape.
    reduction : {"mean", "batchmean", "sum", "none"}
        The mean of the losses (NaN if there are none), their sum, or each of them. "batchmean"
        divides the sum by the extent of the first axis.
    log_target : bool
        `target` holds logarithms too. A run-time value.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*s]
        float32 of 16-bit inputs, else their dtype; all losses in the layout of a dense `x`.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes.
    ValueError
        Shapes that differ; `reduction` none of the four.

    Notes
    -----
    As `torch.nn.functional.kl_div`. A target of 0 costs nothing beside a finite `x`. Sums are
    taken in a fixed order, in float32 (float64 for float64), and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.kl_div(np.log([[0.5, 0.5]]), np.asarray([[1.0, 0.0]]), reduction="batchmean")
    array(0.69314718)
    """
    xp = library_of(x).xp
    if log_target:
        return reduced(xp.exp(target) * (target - x), reduction)
    zero = target == 0
    entropy = xp.where(zero, 0, target * xp.log(xp.where(zero, 1, target)))
    return reduced(entropy - target * x, reduction)


@backward(
    options=DIVERGENCE,
    scalars={"log_target": flag},
    roles={**COTANGENT, "target": PROBABILITY},
    cases=DIVERGENCES,
    adjoint_of="kl_div",
    kernel=Kernel("divergence.cu", "KlDivBackward", schedule="elementwise"),
)
def kl_div_backward(
    dloss: Array,
    x: A,
    target: Array,
    /,
    *,
    reduction: Literal["mean", "batchmean", "sum", "none"] = "mean",
    log_target: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `kl_div`: ``-dloss * target``.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    x : array of shape [*s]
    target : array of shape [*s]
    reduction, log_target, **dispatch
        As in `kl_div`.

    Returns
    -------
    dx : array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `kl_div`; `dloss` of another shape than the result.

    Notes
    -----
    A mean's is divided by its size. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.kl_div_backward(np.ones(2), np.zeros(2), np.asarray([1.0, 0.5]), reduction="none")
    array([-1. , -0.5])
    """
    weight = library_of(x).xp.exp(target) if log_target else target
    return -share(dloss, x, reduction) * weight
