"""Losses by distance: squared, absolute, and between the two."""

from __future__ import annotations

from typing import Literal, Unpack

from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Kernel
from baracuda.declaration.values import positive
from baracuda.families.losses import backward, forward
from baracuda.families.numerics import sign, traced
from baracuda.families.reductions import reduced, share
from baracuda.libraries import A, Array, library_of

__all__ = [
    "huber_loss",
    "huber_loss_backward",
    "l1_loss",
    "l1_loss_backward",
    "mse_loss",
    "mse_loss_backward",
    "smooth_l1_loss",
    "smooth_l1_loss_backward",
]


@forward(namesake="nn.functional.mse_loss", kernel=Kernel("loss.cu", "MseLoss", schedule="reduce"))
def mse_loss(
    x: A,
    target: Array,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Squared error: ``(x - target)**2``.

    Parameters
    ----------
    x, target : array of shape [*s]
        Any floating dtype; one shape, no broadcasting.
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
    As `torch.nn.functional.mse_loss`, which broadcasts. Sums are taken in a fixed order, in
    float32 (float64 for float64), and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.mse_loss(np.asarray([1.0, 2.0]), np.asarray([1.0, 5.0]))
    array(4.5)
    """
    difference = x - target
    return reduced(difference * difference, reduction)


@backward(
    adjoint_of="mse_loss",
    kernel=Kernel("loss.cu", "MseLossBackward", schedule="elementwise"),
)
def mse_loss_backward(
    dloss: Array,
    x: A,
    target: Array,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `mse_loss`: ``dloss * 2 * (x - target)``, for a mean divided by the size.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    x : array of shape [*s]
    target : array of shape [*s]
    reduction, **dispatch
        As in `mse_loss`.

    Returns
    -------
    dx : array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `mse_loss`; `dloss` of another shape than the result.

    Notes
    -----
    Linear in `dloss`, of which the sum and the mean have one. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.mse_loss_backward(np.asarray(1.0), np.asarray([1.0, 2.0]), np.asarray([1.0, 5.0]))
    array([ 0., -3.])
    """
    return share(dloss, x, reduction) * (2 * (x - target))


@forward(namesake="nn.functional.l1_loss", kernel=Kernel("loss.cu", "L1Loss", schedule="reduce"))
def l1_loss(
    x: A,
    target: Array,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Absolute error: ``abs(x - target)``.

    Parameters
    ----------
    x, target : array of shape [*s]
        Any floating dtype; one shape, no broadcasting.
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
    As `torch.nn.functional.l1_loss`, which broadcasts. Sums are taken in a fixed order, in float32
    (float64 for float64), and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.l1_loss(np.asarray([1.0, 2.0]), np.asarray([1.0, 5.0]))
    array(1.5)
    """
    return reduced(library_of(x).xp.abs(x - target), reduction)


@backward(
    adjoint_of="l1_loss",
    kernel=Kernel("loss.cu", "L1LossBackward", schedule="elementwise"),
)
def l1_loss_backward(
    dloss: Array,
    x: A,
    target: Array,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `l1_loss`: ``dloss * sign(x - target)``, for a mean divided by the size.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    x : array of shape [*s]
    target : array of shape [*s]
    reduction, **dispatch
        As in `l1_loss`.

    Returns
    -------
    dx : array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `l1_loss`; `dloss` of another shape than the result.

    Notes
    -----
    0 where the two are equal, NaN where one is NaN. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.l1_loss_backward(np.asarray(1.0), np.asarray([1.0, 2.0]), np.asarray([1.0, 5.0]))
    array([ 0. , -0.5])
    """
    return share(dloss, x, reduction) * sign(x - target)


@forward(
    namesake="nn.functional.smooth_l1_loss",
    scalars={"beta": positive(zero=True)},
    kernel=Kernel("loss.cu", "SmoothL1Loss", schedule="reduce"),
)
def smooth_l1_loss(
    x: A,
    target: Array,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    beta: float = 1.0,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Absolute error beyond `beta`, a parabola below: ``d**2/(2*beta)`` and ``d - beta/2``.

    Parameters
    ----------
    x, target : array of shape [*s]
        Any floating dtype; one shape, no broadcasting.
    reduction : {"mean", "sum", "none"}
        The mean of the losses (NaN if there are none), their sum, or each of them.
    beta : float
        Difference at which parabola and line meet, from 0 on; at 0 the loss is `l1_loss`. A
        run-time value.
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
        Shapes that differ; `reduction` none of the three; `beta` below 0.

    Notes
    -----
    As `torch.nn.functional.smooth_l1_loss`; Girshick (arXiv:1504.08083). Sums are taken in a fixed
    order, in float32 (float64 for float64), and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.smooth_l1_loss(np.asarray([0.5, 4.0]), np.zeros(2), reduction="none")
    array([0.125, 3.5  ])
    """
    library = library_of(x)
    distance = library.xp.abs(x - target)
    if traced(beta):
        near = library.clip(distance, None, beta)
        bent = (distance - near) + near * near * (0.5 / library.xp.where(beta == 0, 1, beta))
        return reduced(bent, reduction)
    if beta == 0:
        return reduced(distance, reduction)
    near = library.clip(distance, None, beta)
    return reduced((distance - near) + near * near * (0.5 / beta), reduction)


@backward(
    scalars={"beta": positive(zero=True)},
    adjoint_of="smooth_l1_loss",
    kernel=Kernel("loss.cu", "SmoothL1LossBackward", schedule="elementwise"),
)
def smooth_l1_loss_backward(
    dloss: Array,
    x: A,
    target: Array,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    beta: float = 1.0,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `smooth_l1_loss`: ``dloss * (x - target)/beta``, held between -1 and 1.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    x : array of shape [*s]
    target : array of shape [*s]
    reduction, beta, **dispatch
        As in `smooth_l1_loss`.

    Returns
    -------
    dx : array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `smooth_l1_loss`; `dloss` of another shape than the result.

    Notes
    -----
    A mean's is divided by its size. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.smooth_l1_loss_backward(np.asarray(1.0), np.asarray([0.5, 4.0]), np.zeros(2))
    array([0.25, 0.5 ])
    """
    difference = x - target
    if traced(beta):
        xp = library_of(x).xp
        bent = library_of(x).clip(difference, -beta, beta) / xp.where(beta == 0, 1, beta)
        slope = xp.where(beta == 0, sign(difference), bent)
    elif beta == 0:
        slope = sign(difference)
    else:
        slope = library_of(x).clip(difference, -beta, beta) / beta
    return share(dloss, x, reduction) * slope


@forward(
    namesake="nn.functional.huber_loss",
    scalars={"delta": positive()},
    kernel=Kernel("loss.cu", "HuberLoss", schedule="reduce"),
)
def huber_loss(
    x: A,
    target: Array,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    delta: float = 1.0,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Squared error up to `delta`, linear beyond: ``d**2/2`` and ``delta*(d - delta/2)``.

    Parameters
    ----------
    x, target : array of shape [*s]
        Any floating dtype; one shape, no broadcasting.
    reduction : {"mean", "sum", "none"}
        The mean of the losses (NaN if there are none), their sum, or each of them.
    delta : float
        Difference at which parabola and line meet, above 0. A run-time value.
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
        Shapes that differ; `reduction` none of the three; `delta` not above 0.

    Notes
    -----
    As `torch.nn.functional.huber_loss`; Huber (Ann. Math. Stat. 35, 1964). Sums are taken in a
    fixed order, in float32 (float64 for float64), and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.huber_loss(np.asarray([0.5, 4.0]), np.zeros(2), reduction="none", delta=2.0)
    array([0.125, 6.   ])
    """
    library = library_of(x)
    distance = library.xp.abs(x - target)
    near = library.clip(distance, None, delta)
    return reduced((distance - near) * delta + near * near * 0.5, reduction)


@backward(
    scalars={"delta": positive()},
    adjoint_of="huber_loss",
    kernel=Kernel("loss.cu", "HuberLossBackward", schedule="elementwise"),
)
def huber_loss_backward(
    dloss: Array,
    x: A,
    target: Array,
    /,
    *,
    reduction: Literal["mean", "sum", "none"] = "mean",
    delta: float = 1.0,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `huber_loss`: ``dloss * (x - target)``, the difference held within `delta`.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    x : array of shape [*s]
    target : array of shape [*s]
    reduction, delta, **dispatch
        As in `huber_loss`.

    Returns
    -------
    dx : array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `huber_loss`; `dloss` of another shape than the result.

    Notes
    -----
    A mean's is divided by its size. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.huber_loss_backward(np.ones(2), np.asarray([0.5, 4.0]), np.zeros(2), reduction="none")
    array([0.5, 1. ])
    """
    slope = library_of(x).clip(x - target, -delta, delta)
    return share(dloss, x, reduction) * slope
