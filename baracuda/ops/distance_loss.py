"""Losses of rows by how far apart they are: the cosine of an angle, or a p-norm."""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, NamedTuple, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, exponent, flag, positive, real
from baracuda.families.losses import COTANGENT, LOSS
from baracuda.families.numerics import root, sign, unit
from baracuda.families.reductions import reduced, share
from baracuda.libraries import A, Array, library_of

__all__ = [
    "cosine_embedding_loss",
    "cosine_embedding_loss_backward",
    "triplet_margin_loss",
    "triplet_margin_loss_backward",
]

SIGN = {"target": roles.integer(-1, 1)}
REDUCTION = {"reduction": choice("mean", "sum", "none")}
# What torch adds to the square of a length.
_EPS = 1e-12

_cosine = partial(
    op,
    category="loss",
    dtypes=FLOATS,
    options=REDUCTION,
    scalars={"margin": real},
    cases=(
        Case({"b": (9,), "n": 4}, margin=0.1),
        Case({"b": (6,), "n": 7}, margin=-0.2, reduction="none"),
        Case({"b": (), "n": 5}, reduction="sum"),
    ),
)
_triplet = partial(
    op,
    category="loss",
    dtypes=FLOATS,
    options={"p": exponent, **REDUCTION},
    scalars={"margin": positive(), "eps": positive(zero=True), "swap": flag},
    cases=(
        Case({"b": (7,), "n": 4}),
        Case({"b": (2, 3), "n": 5}, p=1.0, swap=True, reduction="none"),
        Case({"b": (5,), "n": 6}, p=3.5, eps=0.1, margin=2.0),
        Case({"b": (6,), "n": 3}, p=math.inf, swap=True, reduction="sum"),
    ),
)


def _dot(x: Array, y: Array) -> Array:
    """The sum of products along the last axis, which stays."""
    return library_of(x).xp.sum(x * y, axis=-1, keepdims=True)


class _Angle(NamedTuple):
    """The cosine of the angle of two rows, and one over their lengths; the axis stays."""

    cosine: Array
    first: Array
    second: Array


def _angle(x1: Array, x2: Array) -> _Angle:
    first, second = (1 / library_of(x).xp.sqrt(_dot(x, x) + _EPS) for x in (x1, x2))
    return _Angle(_dot(x1, x2) * first * second, first, second)


class _Distance(NamedTuple):
    """The difference of two rows, and its p-norm; the axis stays."""

    difference: Array
    length: Array


def _distance(x: Array, y: Array, p: float, eps: float) -> _Distance:
    d = x - y + eps
    xp = library_of(d).xp
    if p == 2:
        return _Distance(d, root(_dot(d, d), 2))
    size = d * sign(d)
    if p == 1 or not d.shape[-1]:
        return _Distance(d, xp.sum(size, axis=-1, keepdims=True))
    largest = xp.max(size, axis=-1, keepdims=True)
    if p == math.inf:
        return _Distance(d, largest)
    scale, zero = unit(largest), d == 0
    powers = xp.where(zero, 0, xp.where(zero, 1, size / scale) ** p)
    return _Distance(d, scale * root(xp.sum(powers, axis=-1, keepdims=True), p))


def _slopes(of: _Distance, p: float) -> Array:
    """Those of the norm; 0 where it is 0, and where the difference is. Ties share the largest."""
    d, length = of
    xp = library_of(d).xp
    if p == 1:
        return sign(d)
    if p == math.inf:
        ties = xp.astype(xp.abs(d) == length, d.dtype)
        count = xp.sum(ties, axis=-1, keepdims=True)
        return sign(d) * ties / xp.where(count == 0, 1, count)
    length = xp.where(length == 0, 1, length)
    if p == 2:
        return d / length
    zero = d == 0
    return sign(d) * xp.where(zero, 0, xp.where(zero, 1, d * sign(d) / length) ** (p - 1))


@_cosine(
    "x1[*b n], x2[*b n], target[*b] -> loss[*b] if reduction=none",
    "x1[*b n], x2[*b n], target[*b] -> loss[] if reduction!=none",
    namesake="nn.functional.cosine_embedding_loss",
    roles={**SIGN, **LOSS},
    kernel=Kernel("distance_loss.cu", "CosineEmbeddingLoss", schedule="rows"),
)
def cosine_embedding_loss(
    x1: A,
    x2: Array,
    target: Array,
    /,
    *,
    margin: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Draw rows together or apart: ``1 - cos`` where `target` is 1, ``max(cos - margin, 0)`` at -1.

    Parameters
    ----------
    x1, x2 : arrays of shape [*b, n]
        Any floating dtype; ``cos = sum(x1*x2)/sqrt((sum(x1**2) + eps)*(sum(x2**2) + eps))`` with
        ``eps = 1e-12``.
    target : array of shape [*b]
        1 for rows that are alike, -1 for others: int32 or int64. Rows with another one cost
        nothing, and count in a mean.
    margin : float
        Up to which cosine rows that are not alike cost nothing. A run-time value.
    reduction : {"mean", "sum", "none"}
        The mean of the losses (NaN if there are none), their sum, or each of them.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*b]
        float32 of 16-bit inputs, else their dtype; C order.

    Raises
    ------
    TypeError
        `x1` or `x2` not floating, `target` neither int32 nor int64; mixed libraries, devices or
        dtypes.
    ValueError
        Shapes that do not fit; `reduction` none of the three.

    Notes
    -----
    As `torch.nn.functional.cosine_embedding_loss`, whose `target` may be floating and whose rows
    have at most one axis before theirs. Lengths are multiplied after the root, so that rows up to
    1e19 have a cosine in float32. Sums are taken in a fixed order, in float32 (float64 for
    float64), and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x1, x2 = np.asarray([[1.0, 0.0], [3.0, 4.0]]), np.asarray([[0.0, 2.0], [3.0, 4.0]])
    >>> bc.cosine_embedding_loss(x1, x2, np.asarray([1, -1]), margin=0.5, reduction="none")
    array([1. , 0.5])
    """
    xp, cosine = library_of(x1).xp, _angle(x1, x2).cosine[..., 0]
    apart = xp.where(cosine < margin, 0, cosine - margin)
    losses = xp.where(target == 1, 1 - cosine, xp.where(target == -1, apart, 0))
    return reduced(losses, reduction)


@_cosine(
    "dloss[*b], x1[*b n], x2[*b n], target[*b] -> dx1[*b n], dx2[*b n] if reduction=none",
    "dloss[], x1[*b n], x2[*b n], target[*b] -> dx1[*b n], dx2[*b n] if reduction!=none",
    adjoint_of="cosine_embedding_loss",
    roles={**SIGN, **COTANGENT},
    kernel=Kernel("distance_loss.cu", "CosineEmbeddingLossBackward", schedule="rows"),
)
def cosine_embedding_loss_backward(
    dloss: Array,
    x1: A,
    x2: Array,
    target: Array,
    /,
    *,
    margin: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Gradient of `cosine_embedding_loss`: ``dcos * (x2/(l1*l2) - cos * x1/l1**2)``, and for `x2`.

    Here l1 and l2 are the lengths, and dcos is ``-dloss`` or, beyond the margin, ``dloss``.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    x1 : array of shape [*b, n]
    x2 : array of shape [*b, n]
    target : array of shape [*b]
    margin, reduction, **dispatch
        As in `cosine_embedding_loss`.

    Returns
    -------
    dx1, dx2 : arrays of shape [*b, n]
        dtype of `x1`, C order.

    Raises
    ------
    TypeError, ValueError
        As `cosine_embedding_loss`; `dloss` of another shape than the result.

    Notes
    -----
    A row at the margin has a gradient, as in torch. Cosines are computed again: nothing but the
    inputs of the forward is kept. A mean's is divided by the number of rows. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x1, x2 = np.asarray([[1.0, 0.0]]), np.asarray([[0.0, 2.0]])
    >>> bc.cosine_embedding_loss_backward(np.asarray(1.0), x1, x2, np.asarray([1]))
    (array([[ 0., -1.]]), array([[-0.5,  0. ]]))
    """
    xp, (cosine, first, second) = library_of(x1).xp, _angle(x1, x2)
    target, dloss = target[..., None], share(dloss, target, reduction)[..., None]
    far = (target == -1) & (cosine >= margin)
    dcosine = xp.where(target == 1, -dloss, xp.where(far, dloss, 0))
    across, along = dcosine * first * second, dcosine * cosine
    return across * x2 - along * first * first * x1, across * x1 - along * second * second * x2


@_triplet(
    "anchor[*b n], positive[*b n], negative[*b n] -> loss[*b] if reduction=none",
    "anchor[*b n], positive[*b n], negative[*b n] -> loss[] if reduction!=none",
    namesake="nn.functional.triplet_margin_loss",
    roles=LOSS,
    kernel=Kernel("distance_loss.cu", "TripletMarginLoss", schedule="rows"),
)
def triplet_margin_loss(
    anchor: A,
    positive: Array,
    negative: Array,
    /,
    *,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Draw `anchor` to `positive`, away from `negative`: ``max(margin + d(a, p) - d(a, n), 0)``.

    Parameters
    ----------
    anchor, positive, negative : arrays of shape [*b, n]
        Any floating dtype; one shape, no broadcasting.
    margin : float
        By how much, above 0. A run-time value.
    p : float
        Of the norm ``d(x, y) = sum(abs(x - y + eps)**p)**(1/p)``, above 0; infinity is the largest.
    eps : float
        Added to differences, not below 0. A run-time value.
    swap : bool
        Take the distance from `positive` to `negative` where that is the smaller one. A run-time
        value.
    reduction : {"mean", "sum", "none"}
        The mean of the losses (NaN if there are none), their sum, or each of them.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*b]
        float32 of 16-bit inputs, else their dtype; C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes.
    ValueError
        Shapes that differ; `margin` or `p` not above 0, `p` finite and above 131072; `eps` below
        0; `reduction` none of the three.

    Notes
    -----
    As `torch.nn.functional.triplet_margin_loss`, which broadcasts; Balntas et al. (BMVC 2016) for
    `swap`. Powers other than 1 and 2 are taken relative to the largest difference. Sums are taken
    in a fixed order, in float32 (float64 for float64), and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> anchor, positive, negative = np.zeros((1, 2)), np.asarray([[3.0, 4.0]]), np.ones((1, 2))
    >>> bc.triplet_margin_loss(anchor, positive, negative, p=1.0, eps=0.0)
    array(6.)
    >>> bc.triplet_margin_loss(anchor, positive, negative, p=np.inf, eps=0.0)
    array(4.)
    """
    xp = library_of(anchor).xp
    near, far = (_distance(anchor, x, p, eps).length for x in (positive, negative))
    if swap:
        far = xp.minimum(far, _distance(positive, negative, p, eps).length)
    excess = (margin + near - far)[..., 0]
    return reduced(xp.where(excess < 0, 0, excess), reduction)


@_triplet(
    "dloss[*b], anchor[*b n], positive[*b n], negative[*b n]"
    " -> danchor[*b n], dpositive[*b n], dnegative[*b n] if reduction=none",
    "dloss[], anchor[*b n], positive[*b n], negative[*b n]"
    " -> danchor[*b n], dpositive[*b n], dnegative[*b n] if reduction!=none",
    adjoint_of="triplet_margin_loss",
    roles=COTANGENT,
    kernel=Kernel("distance_loss.cu", "TripletMarginLossBackward", schedule="rows"),
)
def triplet_margin_loss_backward(
    dloss: Array,
    anchor: A,
    positive: Array,
    negative: Array,
    /,
    *,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A, A]:
    """Gradient of `triplet_margin_loss`: ``dloss`` times the slopes of distances, 0 without a loss.

    The slope of a distance d by a difference x is ``sign(x) * (abs(x)/d)**(p - 1)``.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    anchor : array of shape [*b, n]
    positive : array of shape [*b, n]
    negative : array of shape [*b, n]
    margin, p, eps, swap, reduction, **dispatch
        As in `triplet_margin_loss`.

    Returns
    -------
    danchor, dpositive, dnegative : arrays of shape [*b, n]
        dtype of `anchor`, C order.

    Raises
    ------
    TypeError, ValueError
        As `triplet_margin_loss`; `dloss` of another shape than the result.

    Notes
    -----
    As in torch, the gradient is 0 where a difference or a distance is 0. For infinite p the largest
    differences share theirs equally, and so do two equal distances of `swap`. A loss whose argument
    of ``max(..., 0)`` is exactly 0 has a gradient. Distances are computed again: nothing but the
    inputs of the forward is kept. The gradient of a mean is divided by the number of rows.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> anchor, positive, negative = np.zeros((1, 2)), np.asarray([[3.0, 4.0]]), np.zeros((1, 2))
    >>> bc.triplet_margin_loss_backward(np.asarray(1.0), anchor, positive, negative, eps=0.0)
    (array([[-0.6, -0.8]]), array([[0.6, 0.8]]), array([[0., 0.]]))
    """
    xp, astype = library_of(anchor).xp, library_of(anchor).xp.astype
    near, far = (_distance(anchor, x, p, eps) for x in (positive, negative))
    chosen, dloss = far.length, share(dloss, far.length[..., 0], reduction)[..., None]
    if swap:
        other = _distance(positive, negative, p, eps)
        chosen = xp.minimum(chosen, other.length)
    dexcess = xp.where(margin + near.length - chosen >= 0, dloss, 0)
    pull, push = dexcess * _slopes(near, p), dexcess * _slopes(far, p)
    if not swap:
        return pull - push, -pull, push
    own = far.length < other.length, far.length == other.length
    weight = astype(own[0], push.dtype) + 0.5 * astype(own[1], push.dtype)
    push, third = weight * push, (1 - weight) * (dexcess * _slopes(other, p))
    return pull - push, -pull - third, push + third
