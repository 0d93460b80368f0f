"""A residual is added before a norm of the last axis, and the sum returned too, or after it."""

from __future__ import annotations

from typing import Literal, Unpack

from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.families import norms
from baracuda.families.norms import kernel, norm, rms
from baracuda.families.numerics import stored
from baracuda.libraries import A, Array

__all__ = [
    "add_layer_norm",
    "add_layer_norm_backward",
    "add_rms_norm",
    "add_rms_norm_backward",
    "rms_norm_add",
    "rms_norm_add_backward",
]


@rms(
    "x[*b n], residual[*b n] -> y[*b n], s[*b n]",
    "x[*b n], residual[*b n], weight[n] -> y[*b n], s[*b n]",
    roles={**norms.SCALED, **norms.STREAM},
    kernel=kernel("AddRmsNorm"),
)
def add_rms_norm(
    x: A,
    residual: Array,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: Literal["none", "before_weight"] = "none",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Add a residual and normalise the sum: `rms_norm` of ``s = x + residual``, and s.

    Parameters
    ----------
    x : array of shape [*b, n]
        Any floating dtype.
    residual : array of shape [*b, n]
        dtype of `x`, or float32 beside 16 bits, whatever that of the parameters.
    weight : array of shape [n], optional
    eps, offset, casting, **dispatch
        As in `rms_norm`.

    Returns
    -------
    y, s : arrays of shape [*b, n]
        dtype of `x`, and that of `residual`; C order.

    Raises
    ------
    TypeError, ValueError
        As `rms_norm`; `x` and `residual` of different shapes.

    Notes
    -----
    s is rounded to its dtype first, so that y is the norm of what is returned. Bit-stable.
    ``casting="before_weight"`` rounds the normalised s to the dtype of `x`, that of y.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.add_rms_norm(np.asarray([1.0, -2.0]), np.asarray([2.0, -1.0]), eps=0.0)
    (array([ 1., -1.]), array([ 3., -3.]))
    """
    s = stored(x + residual, 1)
    return norms.rms_norm(s, weight, eps, offset, casting), s


@rms(
    "dy[*b n], ds[*b n], s[*b n] -> dx[*b n]",
    "dy[*b n], ds[*b n], s[*b n], weight[n] -> dx[*b n], dweight[n]",
    adjoint_of="add_rms_norm",
    roles={**norms.SCALED_BACKWARD, **norms.STREAM_BACKWARD},
    kernel=kernel("AddRmsNormBackward"),
)
def add_rms_norm_backward(
    dy: Array | None,
    ds: Array | None,
    s: A,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: Literal["none", "before_weight"] = "none",
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A]:
    """Gradient of `add_rms_norm`, for x and the residual alike: ``ds`` plus that of `rms_norm`.

    Parameters
    ----------
    dy : array of shape [*b, n] or None
        Gradient of y. Any floating dtype. None counts as zeros, of the dtype of `s`.
    ds : array of shape [*b, n] or None
        Gradient of s, in its dtype. None counts as zeros.
    s : array of shape [*b, n]
        dtype of `dy`, or float32 beside 16 bits. The sum that `add_rms_norm` returned.
    weight : array of shape [n], optional
        Of the dtype of `dy`, or float32 beside 16 bits.
    casting : {"none", "before_weight"}
        Whether the forward rounded the normalised s to the dtype of `dy` before it multiplied it by
        the scale. Without a weight, or in float32 and float64, both are the same.
    eps, offset, **dispatch
        As in `rms_norm`.

    Returns
    -------
    dx, and dweight where `weight` was given : arrays of shapes [*b, n] and [n]
        dtype of `s`, those of parameters that of `weight`; C order.

    Raises
    ------
    TypeError, ValueError
        As `rms_norm`; arrays of different shapes.

    Notes
    -----
    As `rms_norm_backward`, with the dtype of `dy` in the place of that of x. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dy, ds, s = np.asarray([1.0, 0.0]), np.asarray([0.0, 5.0]), np.asarray([3.0, -3.0])
    >>> bc.add_rms_norm_backward(dy, ds, s).round(4)
    array([0.1667, 5.1667])
    """
    found = norms.rms_norm_backward(dy, s, weight, eps, offset, casting)
    return ds + found[0] if weight is None else (ds + found[0], found[1])


@norm(
    "x[*b n], residual[*b n] -> y[*b n], s[*b n]",
    "x[*b n], residual[*b n], weight[n] -> y[*b n], s[*b n]",
    "x[*b n], residual[*b n], weight[n], bias[n] -> y[*b n], s[*b n]",
    roles={**norms.AFFINE, **norms.STREAM},
    kernel=kernel("AddLayerNorm"),
)
def add_layer_norm(
    x: A,
    residual: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Add a residual and normalise the sum: `layer_norm` of ``s = x + residual``, and s.

    Parameters
    ----------
    x : array of shape [*b, n]
        Any floating dtype.
    residual : array of shape [*b, n]
        dtype of `x`, or float32 beside 16 bits, whatever that of the parameters.
    weight : array of shape [n], optional
    bias : array of shape [n], optional
    eps, **dispatch
        As in `layer_norm`.

    Returns
    -------
    y, s : arrays of shape [*b, n]
        dtype of `x`, and that of `residual`; C order.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm`; `x` and `residual` of different shapes.

    Notes
    -----
    s is rounded to its dtype first, so that y is the norm of what is returned. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.add_layer_norm(np.asarray([1.0, 1.0]), np.asarray([0.0, 2.0]), eps=0.0)
    (array([-1.,  1.]), array([1., 3.]))
    """
    s = stored(x + residual, 1)
    return norms.layer_norm(s, weight, bias, eps), s


@norm(
    "dy[*b n], ds[*b n], s[*b n] -> dx[*b n]",
    "dy[*b n], ds[*b n], s[*b n], weight[n] -> dx[*b n], dweight[n], dbias[n]",
    adjoint_of="add_layer_norm",
    roles={**norms.AFFINE_BACKWARD, **norms.STREAM_BACKWARD},
    kernel=kernel("AddLayerNormBackward"),
)
def add_layer_norm_backward(
    dy: Array | None,
    ds: Array | None,
    s: A,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A, A]:
    """Gradient of `add_layer_norm`, for x and the residual alike: ``ds`` plus that of `layer_norm`.

    Parameters
    ----------
    dy : array of shape [*b, n] or None
        Gradient of y. Any floating dtype. None counts as zeros, of the dtype of `s`.
    ds : array of shape [*b, n] or None
        Gradient of s, in its dtype. None counts as zeros.
    s : array of shape [*b, n]
        dtype of `dy`, or float32 beside 16 bits. The sum that `add_layer_norm` returned.
    weight : array of shape [n], optional
        Of the dtype of `dy`, or float32 beside 16 bits.
    eps, **dispatch
        As in `layer_norm`.

    Returns
    -------
    dx, and dweight and dbias where `weight` was given : arrays of shapes [*b, n], [n] and [n]
        dtype of `s`, those of parameters that of `weight`; C order.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm`; arrays of different shapes.

    Notes
    -----
    As `rms_norm_backward`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dy, ds, s = np.asarray([1.0, 0.0]), np.asarray([0.0, 5.0]), np.asarray([-1.0, 1.0])
    >>> bc.add_layer_norm_backward(dy, ds, s, eps=0.0)
    array([0., 5.])
    """
    found = norms.layer_norm_backward(dy, s, weight, eps)
    return ds + found[0] if weight is None else (ds + found[0], found[1], found[2])


@rms(
    "x[*b n], residual[*b n] -> y[*b n]",
    "x[*b n], residual[*b n], weight[n] -> y[*b n]",
    roles={**norms.SCALED, "residual": roles.residual("y"), "y": roles.typed_as("residual")},
    kernel=kernel("RmsNormAdd"),
)
def rms_norm_add(
    x: Array,
    residual: A,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: Literal["none", "before_weight"] = "none",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Normalise and add a residual: ``residual + rms_norm(x)``.

    OLMo 2's layers add so.

    Parameters
    ----------
    x : array of shape [*b, n]
        Any floating dtype.
    residual : array of shape [*b, n]
        dtype of `x`, or float32 beside 16 bits, whatever that of the weight.
    weight : array of shape [n], optional
    eps, offset, casting, **dispatch
        As in `rms_norm`.

    Returns
    -------
    array of shape [*b, n]
        dtype of `residual`; C order.

    Raises
    ------
    TypeError, ValueError
        As `rms_norm`; `x` and `residual` of different shapes.

    Notes
    -----
    The sum is rounded once; code that adds apart rounds the norm first. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.rms_norm_add(np.asarray([3.0, -3.0]), np.asarray([1.0, 2.0]), eps=0.0)
    array([2., 1.])
    """
    return residual + norms.rms_norm(x, weight, eps, offset, casting)


@rms(
    "dy[*b n], x[*b n] -> dx[*b n]",
    "dy[*b n], x[*b n], weight[n] -> dx[*b n], dweight[n]",
    adjoint_of="rms_norm_add",
    roles={**norms.SCALED_BACKWARD, **norms.PULLED},
    kernel=kernel("RmsNormBackward"),
)
def rms_norm_add_backward(
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
    """Gradient of `rms_norm_add` with respect to x and the weight, by `rms_norm_backward`.

    The gradient to the residual is `dy` itself.

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
    As `rms_norm_backward`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x, w = np.asarray([[3.0, -3.0]]), np.asarray([2.0, 2.0])
    >>> [g.round(4) for g in bc.rms_norm_add_backward(np.asarray([[1.0, 0.0]]), x, w)]
    [array([[0.3333, 0.3333]]), array([1., 0.])]
    """
    found = norms.rms_norm_backward(dy, x, weight, eps, offset, casting)
    return found[0] if weight is None else (found[0], found[1])
