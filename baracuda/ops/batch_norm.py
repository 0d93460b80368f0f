"""Normalisation of channels over the batch: by its own statistics, or by known ones."""

from __future__ import annotations

from typing import Unpack

from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.families import norms
from baracuda.families.norms import channel_norm, planes
from baracuda.libraries import A, Array

__all__ = [
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_inference",
    "batch_norm_inference_backward",
]


STATISTICS = {"mean": roles.parameter(), "var": roles.parameter(0.25, 4.0)}


@channel_norm(
    "x[n c *s] -> y[n c *s], mean[c], var[c]",
    "x[n c *s], weight[c] -> y[n c *s], mean[c], var[c]",
    "x[n c *s], weight[c], bias[c] -> y[n c *s], mean[c], var[c]",
    batches=("c",),
    roles=norms.AFFINE,
    kernel=planes("Normalised"),
)
def batch_norm(
    x: A,
    weight: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A, A]:
    """Centre and scale each channel over the batch, as in training; the statistics too.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias``, over all axes but that of the channels.

    Parameters
    ----------
    x : array of shape [n, c, *s]
        Any floating dtype; s may have any number of axes, none too.
    weight, bias : arrays of shape [c], optional
        Of the dtype of `x`, or both float32 beside 16 bits; a bias needs a weight.
    eps : float
        Added to the variance, not below 0; a run-time value.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    y, mean, var : arrays of shapes [n, c, *s], [c] and [c]
        dtype of `x`, C order. The variance is biased: that by which y is scaled.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes; `eps` not a real number.
    ValueError
        A `weight` or `bias` of another length than c; `eps` negative, infinite or NaN.

    Notes
    -----
    Ioffe and Szegedy (arXiv:1502.03167). y agrees with that of `torch.nn.functional.batch_norm` in
    training, which refuses a channel of one element: here it becomes the bias. Nothing is kept
    from call to call. Running statistics as torch has them, with its `momentum` and the unbiased
    variance of ``m = x.size // c`` elements, are the caller's::

        running_mean = (1 - momentum) * running_mean + momentum * mean
        running_var = (1 - momentum) * running_var + momentum * var * m / (m - 1)

    The statistics are rounded to the dtype of `x` only as they are returned, and both have
    gradients. The variance is that of deviations from a mean that is corrected for its own
    rounding, so that channels far from 0 keep their accuracy. A NaN makes its channel NaN.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> y, mean, var = bc.batch_norm(np.asarray([[1.0, 10.0], [3.0, 30.0]]), eps=0.0)
    >>> y, mean, var
    (array([[-1., -1.],
           [ 1.,  1.]]), array([ 2., 20.]), array([  1., 100.]))
    """
    return norms.batch_norm(x, weight, bias, eps)


@channel_norm(
    "dy[n c *s], dmean[c], dvar[c], x[n c *s] -> dx[n c *s]",
    "dy[n c *s], dmean[c], dvar[c], x[n c *s], weight[c] -> dx[n c *s], dweight[c], dbias[c]",
    adjoint_of="batch_norm",
    batches=("c",),
    roles=norms.AFFINE_BACKWARD,
    kernel=planes("NormalisedBackward"),
)
def batch_norm_backward(
    dy: Array | None,
    dmean: Array | None,
    dvar: Array | None,
    x: A,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A, A]:
    """Gradient of `batch_norm`: ``r * (g - mean(g) - z * mean(g * z))``, ``g = dy * weight``.

    Here z is the normalised channel and r one over its deviation; ``dweight = sum(dy * z)`` and
    ``dbias = sum(dy)`` over all axes but that of the channels. What the statistics add to each of m
    elements is ``(dmean + 2 * (x - mean) * dvar) / m``.

    Parameters
    ----------
    dy : array of shape [n, c, *s] or None
        Gradient of the result. None counts as zeros.
    dmean, dvar : arrays of shape [c] or None
        Gradients of the statistics: None, which counts as zeros, where these are only kept.
    x : array of shape [n, c, *s]
    weight : array of shape [c], optional
    eps, **dispatch
        As in `batch_norm`; the bias does not matter.

    Returns
    -------
    dx, and dweight and dbias where `weight` was given : arrays of shapes [n, c, *s], [c] and [c]
        dtype of `x`, those of parameters that of `weight`; C order.

    Raises
    ------
    TypeError, ValueError
        As `batch_norm`; `dy` of another shape than `x`.

    Notes
    -----
    As `group_norm_backward`: the statistics are found again, which costs no further pass, and are
    then not those that were rounded to be returned. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dy, x, w = np.asarray([[1.0], [0.0]]), np.asarray([[-1.0], [1.0]]), np.ones(1)
    >>> bc.batch_norm_backward(dy, 0 * w, 0 * w, x, w, eps=0.0)
    (array([[0.],
           [0.]]), array([-1.]), array([1.]))
    """
    found = norms.batch_norm_backward(dy, dmean, dvar, x, weight, eps)
    return found[0] if weight is None else (found[0], found[1], found[2])


@channel_norm(
    "x[n c *s], mean[c], var[c] -> y[n c *s]",
    "x[n c *s], mean[c], var[c], weight[c] -> y[n c *s]",
    "x[n c *s], mean[c], var[c], weight[c], bias[c] -> y[n c *s]",
    namesake="nn.functional.batch_norm",
    batches=("n", "c", "s"),
    roles={**norms.AFFINE, **STATISTICS},
    kernel=planes("Known"),
)
def batch_norm_inference(
    x: A,
    mean: Array,
    var: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Normalise channels by known statistics: ``(x - mean) / sqrt(var + eps) * weight + bias``.

    Parameters
    ----------
    x : array of shape [n, c, *s]
        Any floating dtype; s may have any number of axes, none too.
    mean, var : arrays of shape [c]
        Of the dtype of `x`, or all float32 beside 16 bits.
    weight : array of shape [c], optional
    bias : array of shape [c], optional
    eps, **dispatch
        As in `batch_norm`.

    Returns
    -------
    array of shape [n, c, *s]
        dtype of `x`, C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes; `eps` not a real number.
    ValueError
        A parameter or statistic of another length than c; `eps` negative, infinite or NaN.

    Notes
    -----
    Ioffe and Szegedy (arXiv:1502.03167). Where the statistics are differentiated, which torch does
    not do, the gradients to them are the body's. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x, mean, var = np.asarray([[1.0, 10.0]]), np.asarray([0.0, 12.0]), np.asarray([1.0, 4.0])
    >>> bc.batch_norm_inference(x, mean, var, eps=0.0)
    array([[ 1., -1.]])
    """
    return norms.batch_norm_inference(x, mean, var, weight, bias, eps)


@channel_norm(
    "dy[n c *s], x[n c *s], mean[c], var[c] -> dx[n c *s]",
    "dy[n c *s], x[n c *s], mean[c], var[c], weight[c] -> dx[n c *s], dweight[c], dbias[c]",
    adjoint_of="batch_norm_inference",
    batches=("n", "c", "s"),
    roles={**norms.AFFINE_BACKWARD, **STATISTICS},
    kernel=planes("KnownBackward"),
)
def batch_norm_inference_backward(
    dy: Array,
    x: A,
    mean: Array,
    var: Array,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A, A]:
    """Gradient of `batch_norm_inference` for constant statistics: ``dy * r * weight``.

    Here r is ``1 / sqrt(var + eps)``; ``dweight = sum(dy * (x - mean) * r)`` and
    ``dbias = sum(dy)`` over all axes but that of the channels.

    Parameters
    ----------
    dy : array of shape [n, c, *s]
        Gradient of the result.
    x : array of shape [n, c, *s]
    mean : array of shape [c]
    var : array of shape [c]
    weight : array of shape [c], optional
    eps, **dispatch
        As in `batch_norm_inference`; the bias does not matter.

    Returns
    -------
    dx, and dweight and dbias where `weight` was given : arrays of shapes [n, c, *s], [c] and [c]
        dtype of `x`, those of parameters that of `weight`; C order.

    Raises
    ------
    TypeError, ValueError
        As `batch_norm_inference`; `dy` of another shape than `x`.

    Notes
    -----
    Sums are kept in the accumulate dtype and rounded once, in an order that the shape alone
    decides; without a weight `x` is not read. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dy, x, zero, one = np.ones((2, 1)), np.asarray([[1.0], [2.0]]), np.zeros(1), np.ones(1)
    >>> bc.batch_norm_inference_backward(dy, x, zero, one, 3 * one, eps=0.0)
    (array([[3.],
           [3.]]), array([3.]), array([2.]))
    """
    found = norms.batch_norm_inference_backward(dy, x, mean, var, weight, eps)
    return found[0] if weight is None else (found[0], found[1], found[2])
