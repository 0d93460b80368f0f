"""Normalisation along the last axis."""

from __future__ import annotations

from typing import Literal, Unpack

from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import DTypeLike
from baracuda.families import norms
from baracuda.families.norms import kernel, norm, rms
from baracuda.libraries import A, Array

__all__ = [
    "layer_norm",
    "layer_norm_backward",
    "rms_norm",
    "rms_norm_backward",
]


@rms(
    "x[*b n] -> y[*b n]",
    "x[*b n], weight[n] -> y[*b n]",
    options={**norms.CASTING, **norms.DTYPE},
    roles={**norms.SCALED, **norms.WIDENED},
    kernel=kernel("RmsNorm"),
)
def rms_norm(
    x: A,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: Literal["none", "before_weight"] = "none",
    dtype: DTypeLike | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Divide the last axis by its root mean square, and scale it by ``offset + weight``.

    That is ``x / sqrt(mean(x**2) + eps) * (offset + weight)``, or without the scale where no weight
    is given.

    Parameters
    ----------
    x : array of shape [*b, n]
        Any floating dtype.
    weight : array of shape [n], optional
        Of the dtype of `x`, or float32 beside 16 bits.
    eps : float
        Added to the mean square, not below 0; a run-time value.
    offset : float
        Added to the weight, at most 1e30 in size; a run-time value. Gemma has 1. Without a weight
        it is not used.
    casting : {"none", "before_weight"}
        Whether the normalised x is rounded to the dtype of `x` before it is multiplied by the
        scale, as Llama and Qwen do. Without a weight, or in float32 and float64, both are the same.
    dtype : dtype, optional
        dtype of the result: that of `x`, the default, or float32 beside 16 bits. The name, or an
        object of any library.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n]
        dtype of `x`, or `dtype`; C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes; `eps` or `offset` not a
        real number.
    ValueError
        A `weight` of another length than the last axis; `eps` negative, infinite or NaN; `offset`
        above 1e30 in size or NaN; another `casting` or `dtype`.

    Notes
    -----
    Zhang and Sennrich (arXiv:1910.07467). Agrees with `torch.nn.functional.rms_norm`, whose `eps`
    is by default that of the dtype. A NaN makes its row NaN. Bit-stable.

    ``offset + weight`` and its product with the normalised x are computed in the accumulate dtype.
    The result is rounded once to its dtype. Beside a float32 weight Llama's own code returns
    float32: its values are those of ``dtype="float32"``.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.rms_norm(np.asarray([[3.0, -3.0], [0.0, 0.0]])).round(4)
    array([[ 1., -1.],
           [ 0.,  0.]])
    """
    return norms.rms_norm(x, weight, eps, offset, casting)


@rms(
    "dy[*b n], x[*b n] -> dx[*b n]",
    "dy[*b n], x[*b n], weight[n] -> dx[*b n], dweight[n]",
    adjoint_of="rms_norm",
    roles={**norms.SCALED_BACKWARD, **norms.PULLED},
    kernel=kernel("RmsNormBackward"),
)
def rms_norm_backward(
    dy: Array,
    x: A,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: Literal["none", "before_weight"] = "none",
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A]:
    """Gradient of `rms_norm`: ``r * (g - x * r**2 * mean(g * x))``.

    Here r is ``1 / sqrt(mean(x**2) + eps)`` and g is ``dy * (offset + weight)``. ``dweight`` is the
    sum of ``dy * x * r`` over all rows.

    Parameters
    ----------
    dy : array of shape [*b, n]
        Gradient of the result; dtype of `x`, or float32 beside 16 bits.
    x : array of shape [*b, n]
    weight : array of shape [n], optional
    eps, offset, casting, **dispatch
        As in `rms_norm`.

    Returns
    -------
    dx, and dweight where `weight` was given : arrays of shapes [*b, n] and [n]
        dtype of `x`, those of parameters that of `weight`; C order.

    Raises
    ------
    TypeError, ValueError
        As `rms_norm`; `dy` of another shape than `x`.

    Notes
    -----
    The root is computed from `x` again: nothing else was saved. Sums over rows are kept in the
    accumulate dtype and rounded once, in an order that the shape alone decides. Bit-stable.

    With ``casting="before_weight"`` dweight has ``x * r`` as the forward rounded it. The rounding
    counts as the identity in dx. torch's autograd of the body or of Llama's own code also rounds g
    to the dtype of `x`; this op does not.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x, w = np.asarray([[3.0, -3.0]]), np.asarray([2.0, 2.0])
    >>> [g.round(4) for g in bc.rms_norm_backward(np.asarray([[1.0, 0.0]]), x, w)]
    [array([[0.3333, 0.3333]]), array([1., 0.])]
    """
    found = norms.rms_norm_backward(dy, x, weight, eps, offset, casting)
    return found[0] if weight is None else (found[0], found[1])


@norm(
    "x[*b n] -> y[*b n]",
    "x[*b n], weight[n] -> y[*b n]",
    "x[*b n], weight[n], bias[n] -> y[*b n]",
    options=norms.DTYPE,
    roles={**norms.AFFINE, **norms.WIDENED},
    kernel=kernel("LayerNorm"),
)
def layer_norm(
    x: A,
    weight: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    dtype: DTypeLike | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Centre and scale the last axis: ``(x - mean) / sqrt(var + eps) * weight + bias``.

    Parameters
    ----------
    x : array of shape [*b, n]
        Any floating dtype.
    weight, bias : arrays of shape [n], optional
        Of the dtype of `x`, or both float32 beside 16 bits; a bias needs a weight.
    eps : float
        Added to the variance, not below 0; a run-time value.
    dtype : dtype, optional
        dtype of the result: that of `x`, the default, or float32 beside 16 bits. The name, or an
        object of any library.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n]
        dtype of `x`, or `dtype`; C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes; `eps` not a real number.
    ValueError
        A `weight` or `bias` of another length than the last axis; `eps` negative, infinite or
        NaN; another `dtype`.

    Notes
    -----
    Ba et al. (arXiv:1607.06450). Agrees with `torch.nn.functional.layer_norm` over one axis. The
    variance is the mean of squared deviations from a mean that is corrected for its own rounding,
    so that rows far from 0 keep their accuracy. A NaN makes its row NaN. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.layer_norm(np.asarray([1.0, 3.0]) + 1e8).round(4)
    array([-1.,  1.])
    """
    return norms.layer_norm(x, weight, bias, eps)


@norm(
    "dy[*b n], x[*b n] -> dx[*b n]",
    "dy[*b n], x[*b n], weight[n] -> dx[*b n], dweight[n], dbias[n]",
    adjoint_of="layer_norm",
    roles={**norms.AFFINE_BACKWARD, **norms.PULLED},
    kernel=kernel("LayerNormBackward"),
)
def layer_norm_backward(
    dy: Array,
    x: A,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A, A]:
    """Gradient of `layer_norm`: ``r * (g - mean(g) - z * mean(g * z))``, ``g = dy * weight``.

    Here z is the normalised row and r one over its deviation; ``dweight = sum(dy * z)`` and
    ``dbias = sum(dy)`` over all rows.

    Parameters
    ----------
    dy : array of shape [*b, n]
        Gradient of the result; dtype of `x`, or float32 beside 16 bits.
    x : array of shape [*b, n]
    weight : array of shape [n], optional
    eps, **dispatch
        As in `layer_norm`; the bias does not matter.

    Returns
    -------
    dx, and dweight and dbias where `weight` was given : arrays of shapes [*b, n], [n] and [n]
        dtype of `x`, those of parameters that of `weight`; C order.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm`; `dy` of another shape than `x`.

    Notes
    -----
    As `rms_norm_backward`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x, w = np.asarray([[-1.0, 1.0]]), np.ones(2)
    >>> dx, dweight, dbias = bc.layer_norm_backward(np.asarray([[1.0, 0.0]]), x, w, eps=0.0)
    >>> dx, dweight, dbias
    (array([[0., 0.]]), array([-1.,  0.]), array([1., 0.]))
    """
    found = norms.layer_norm_backward(dy, x, weight, eps)
    return found[0] if weight is None else (found[0], found[1], found[2])
