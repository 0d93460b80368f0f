"""Normalisation over groups of channels of each member of a batch, or over each channel."""

from __future__ import annotations

from typing import Unpack

from baracuda.declaration.dispatch import Dispatch
from baracuda.families import norms
from baracuda.families.norms import channel_norm, grouped, planes
from baracuda.libraries import A, Array

__all__ = [
    "group_norm",
    "group_norm_backward",
    "instance_norm",
    "instance_norm_backward",
]


@grouped(
    "x[n c *s] -> y[n c *s]",
    "x[n c *s], weight[c] -> y[n c *s]",
    "x[n c *s], weight[c], bias[c] -> y[n c *s]",
    roles=norms.AFFINE,
    kernel=planes("Normalised"),
)
def group_norm(
    x: A,
    weight: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    num_groups: int,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Centre and scale groups of channels: ``(x - mean) / sqrt(var + eps) * weight + bias``.

    The mean and the variance are those of ``c / num_groups`` channels of one of the n.

    Parameters
    ----------
    x : array of shape [n, c, *s]
        Any floating dtype; s may have any number of axes, none too.
    weight, bias : arrays of shape [c], optional
        Of the dtype of `x`, or both float32 beside 16 bits; a bias needs a weight.
    num_groups : int
        A divisor of c.
    eps : float
        Added to the variance, not below 0; a run-time value.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [n, c, *s]
        dtype of `x`, C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes; `eps` not a real number.
    ValueError
        A `weight` or `bias` of another length than c; `num_groups` no divisor of c; `eps` negative,
        infinite or NaN.

    Notes
    -----
    Wu and He (arXiv:1803.08494). Agrees with `torch.nn.functional.group_norm`. The variance is the
    mean of squared deviations from a mean that is corrected for its own rounding, so that groups
    far from 0 keep their accuracy. A NaN makes its group NaN. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.group_norm(np.asarray([[1.0, 3.0, 10.0, 30.0]]), num_groups=2).round(4)
    array([[-1.,  1., -1.,  1.]])
    """
    return norms.group_norm(x, weight, bias, eps, num_groups)


@grouped(
    "dy[n c *s], x[n c *s] -> dx[n c *s]",
    "dy[n c *s], x[n c *s], weight[c] -> dx[n c *s], dweight[c], dbias[c]",
    adjoint_of="group_norm",
    roles=norms.AFFINE_BACKWARD,
    kernel=planes("NormalisedBackward"),
)
def group_norm_backward(
    dy: Array,
    x: A,
    weight: Array | None = None,
    /,
    *,
    num_groups: int,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A, A]:
    """Gradient of `group_norm`: ``r * (g - mean(g) - z * mean(g * z))``, ``g = dy * weight``.

    Here z is the normalised group and r one over its deviation; ``dweight = sum(dy * z)`` and
    ``dbias = sum(dy)`` over all axes but that of the channels.

    Parameters
    ----------
    dy : array of shape [n, c, *s]
        Gradient of the result.
    x : array of shape [n, c, *s]
    weight : array of shape [c], optional
    num_groups, eps, **dispatch
        As in `group_norm`; the bias does not matter.

    Returns
    -------
    dx, and dweight and dbias where `weight` was given : arrays of shapes [n, c, *s], [c] and [c]
        dtype of `x`, those of parameters that of `weight`; C order.

    Raises
    ------
    TypeError, ValueError
        As `group_norm`; `dy` of another shape than `x`.

    Notes
    -----
    The statistics are computed from `x` again, in the pass that the sums take anyway: nothing else
    was saved. Sums are kept in the accumulate dtype and rounded once, in an order that the shape
    alone decides. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dy, x, w = np.asarray([[1.0, 0.0]]), np.asarray([[-1.0, 1.0]]), np.ones(2)
    >>> bc.group_norm_backward(dy, x, w, num_groups=1, eps=0.0)
    (array([[0., 0.]]), array([-1.,  0.]), array([1., 0.]))
    """
    found = norms.group_norm_backward(dy, x, weight, eps, num_groups)
    return found[0] if weight is None else (found[0], found[1], found[2])


@channel_norm(
    "x[n c *s] -> y[n c *s]",
    "x[n c *s], weight[c] -> y[n c *s]",
    "x[n c *s], weight[c], bias[c] -> y[n c *s]",
    batches=("n", "c"),
    roles=norms.AFFINE,
    kernel=planes("Normalised"),
)
def instance_norm(
    x: A,
    weight: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Centre and scale each channel of each of the n, over s: `group_norm` with c groups.

    Parameters
    ----------
    x : array of shape [n, c, *s]
    weight : array of shape [c], optional
    bias : array of shape [c], optional
    eps, **dispatch
        As in `group_norm`.

    Returns
    -------
    array of shape [n, c, *s]
        dtype of `x`, C order.

    Raises
    ------
    TypeError, ValueError
        As `group_norm`.

    Notes
    -----
    Ulyanov et al. (arXiv:1607.08022). Agrees with `torch.nn.functional.instance_norm` without
    running statistics, which refuses channels of one element: here they become the bias.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.instance_norm(np.asarray([[[1.0, 3.0], [30.0, 10.0]]])).round(4)
    array([[[-1.,  1.],
            [ 1., -1.]]])
    """
    return norms.group_norm(x, weight, bias, eps, max(x.shape[1], 1))


@channel_norm(
    "dy[n c *s], x[n c *s] -> dx[n c *s]",
    "dy[n c *s], x[n c *s], weight[c] -> dx[n c *s], dweight[c], dbias[c]",
    adjoint_of="instance_norm",
    batches=("n", "c"),
    roles=norms.AFFINE_BACKWARD,
    kernel=planes("NormalisedBackward"),
)
def instance_norm_backward(
    dy: Array,
    x: A,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A, A]:
    """Gradient of `instance_norm`: that of `group_norm` with c groups.

    Parameters
    ----------
    dy : array of shape [n, c, *s]
        Gradient of the result.
    x : array of shape [n, c, *s]
    weight : array of shape [c], optional
    eps, **dispatch
        As in `instance_norm`; the bias does not matter.

    Returns
    -------
    dx, and dweight and dbias where `weight` was given : arrays of shapes [n, c, *s], [c] and [c]
        dtype of `x`, those of parameters that of `weight`; C order.

    Raises
    ------
    TypeError, ValueError
        As `instance_norm`; `dy` of another shape than `x`.

    Notes
    -----
    As `group_norm_backward`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dy, x, w = np.asarray([[[1.0, 0.0]]]), np.asarray([[[-1.0, 1.0]]]), np.ones(1)
    >>> bc.instance_norm_backward(dy, x, w, eps=0.0)
    (array([[[0., 0.]]]), array([-1.]), array([1.]))
    """
    found = norms.group_norm_backward(dy, x, weight, eps, max(x.shape[1], 1))
    return found[0] if weight is None else (found[0], found[1], found[2])
