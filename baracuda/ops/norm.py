"""Normalisation along the last axis, with the weight, the bias and the residual that go with it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Unpack

from baracuda.check import real
from baracuda.dispatch import Dispatch
from baracuda.libraries import Array, library_of
from baracuda.numerics import stored
from baracuda.op import op
from baracuda.spec import Case, Kernel

__all__ = [
    "add_layer_norm",
    "add_layer_norm_backward",
    "add_rms_norm",
    "add_rms_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "rms_norm",
    "rms_norm_backward",
]

_norm = partial(
    op,
    category="norm",
    scalars={"eps": real},
    cases=(
        Case({"b": (3,), "n": 8}),
        Case({"b": (), "n": 5}, eps=0.5),
        Case({"b": (2, 3), "n": 4}),
    ),
)


def _kernel(functor: str) -> Kernel:
    return Kernel("norm.cu", functor, schedule="rows")


def _mean(x: Array) -> Array:
    """Along the last axis, which stays."""
    return library_of(x).xp.sum(x, axis=-1, keepdims=True) / max(x.shape[-1], 1)


def _summed(x: Array) -> Array:
    """Over all axes but the last."""
    n = x.shape[-1]
    xp = library_of(x).xp
    return xp.sum(xp.reshape(x, (math.prod(x.shape[:-1]), n)), axis=0)


def _rms(x: Array, eps: float) -> Array:
    """One over the root of the mean square."""
    return 1 / library_of(x).xp.sqrt(_mean(x * x) + eps)


def _rms_norm(x: Array, weight: Array | None, eps: float) -> Array:
    y = x * _rms(x, eps)
    return y if weight is None else y * weight


def _rms_norm_backward(dy: Array, x: Array, weight: Array | None, eps: float) -> Any:
    inverse = _rms(x, eps)
    pulled = dy if weight is None else dy * weight
    along = _mean(pulled * x) * inverse * inverse
    dx = inverse * (pulled - x * along)
    return dx if weight is None else (dx, _summed(dy * (x * inverse)))


def _centred(x: Array, eps: float) -> tuple[Array, Array]:
    """The normalised rows, and one over their standard deviations."""
    # Twice: the mean of a row far from 0 is rounded by more than its elements differ.
    d = x - _mean(x)
    d = d - _mean(d)
    inverse = 1 / library_of(x).xp.sqrt(_mean(d * d) + eps)
    return d * inverse, inverse


def _layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    y = _centred(x, eps)[0]
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _layer_norm_backward(dy: Array, x: Array, weight: Array | None, eps: float) -> Any:
    normal, inverse = _centred(x, eps)
    pulled = dy if weight is None else dy * weight
    along = _mean(pulled * normal)
    dx = inverse * (pulled - _mean(pulled) - normal * along)
    return dx if weight is None else (dx, _summed(dy * normal), _summed(dy))


@_norm(
    "x[*b n] -> y[*b n]",
    "x[*b n], weight[n] -> y[*b n]",
    kernel=_kernel("RmsNorm"),
)
def rms_norm(
    x: Array,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-6,
    **dispatch: Unpack[Dispatch],
) -> Array:
    """Divide by the root mean square of the last axis: ``x / sqrt(mean(x**2) + eps) * weight``.

    Parameters
    ----------
    x : array of shape [*b, n]
        Any floating dtype.
    weight : array of shape [n], optional
        Of the dtype of `x`.
    eps : float
        Added to the mean square; a run-time value.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n]
        dtype of `x`, C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes; `eps` not a real number.
    ValueError
        A `weight` of another length than the last axis.

    Notes
    -----
    Zhang and Sennrich (arXiv:1910.07467). Agrees with `torch.nn.functional.rms_norm`, whose `eps`
    is by default that of the dtype. A NaN makes its row NaN. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.rms_norm(np.asarray([[3.0, -3.0], [0.0, 0.0]])).round(4)
    array([[ 1., -1.],
           [ 0.,  0.]])
    """
    return _rms_norm(x, weight, eps)


@_norm(
    "dy[*b n], x[*b n] -> dx[*b n]",
    "dy[*b n], x[*b n], weight[n] -> dx[*b n], dweight[n]",
    adjoint_of="rms_norm",
    kernel=_kernel("RmsNormBackward"),
)
def rms_norm_backward(
    dy: Array,
    x: Array,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-6,
    **dispatch: Unpack[Dispatch],
) -> Array | tuple[Array, Array]:
    """Gradient of `rms_norm`: ``r * (g - x * r**2 * mean(g * x))``, ``g = dy * weight``.

    Here r is ``1 / sqrt(mean(x**2) + eps)``, and ``dweight = sum(dy * x * r)`` over all rows.

    Parameters
    ----------
    dy : array of shape [*b, n]
        Gradient of the result.
    x, weight, eps, **dispatch
        As in `rms_norm`.

    Returns
    -------
    dx, and dweight where `weight` was given : arrays of shapes [*b, n] and [n]
        dtype of `x`, C order.

    Raises
    ------
    TypeError, ValueError
        As `rms_norm`; `dy` of another shape than `x`.

    Notes
    -----
    The root is computed from `x` again: nothing else was saved. Sums over rows are kept in the
    accumulate dtype and rounded once, in an order that the shape alone decides. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x, w = np.asarray([[3.0, -3.0]]), np.asarray([2.0, 2.0])
    >>> [g.round(4) for g in bc.rms_norm_backward(np.asarray([[1.0, 0.0]]), x, w)]
    [array([[0.3333, 0.3333]]), array([ 1., -0.])]
    """
    return _rms_norm_backward(dy, x, weight, eps)


@_norm(
    "x[*b n] -> y[*b n]",
    "x[*b n], weight[n] -> y[*b n]",
    "x[*b n], weight[n], bias[n] -> y[*b n]",
    kernel=_kernel("LayerNorm"),
)
def layer_norm(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> Array:
    """Centre and scale the last axis: ``(x - mean) / sqrt(var + eps) * weight + bias``.

    Parameters
    ----------
    x : array of shape [*b, n]
        Any floating dtype.
    weight, bias : arrays of shape [n], optional
        Of the dtype of `x`; a bias needs a weight.
    eps : float
        Added to the variance; a run-time value.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n]
        dtype of `x`, C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes; `eps` not a real number.
    ValueError
        A `weight` or `bias` of another length than the last axis.

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
    return _layer_norm(x, weight, bias, eps)


@_norm(
    "dy[*b n], x[*b n] -> dx[*b n]",
    "dy[*b n], x[*b n], weight[n] -> dx[*b n], dweight[n], dbias[n]",
    adjoint_of="layer_norm",
    kernel=_kernel("LayerNormBackward"),
)
def layer_norm_backward(
    dy: Array,
    x: Array,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> Array | tuple[Array, Array, Array]:
    """Gradient of `layer_norm`: ``r * (g - mean(g) - z * mean(g * z))``, ``g = dy * weight``.

    Here z is the normalised row and r one over its deviation; ``dweight = sum(dy * z)`` and
    ``dbias = sum(dy)`` over all rows.

    Parameters
    ----------
    dy : array of shape [*b, n]
        Gradient of the result.
    x, weight, eps, **dispatch
        As in `layer_norm`; the bias does not matter.

    Returns
    -------
    dx, and dweight and dbias where `weight` was given : arrays of shapes [*b, n], [n] and [n]
        dtype of `x`, C order.

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
    return _layer_norm_backward(dy, x, weight, eps)


@_norm(
    "x[*b n], residual[*b n] -> y[*b n], s[*b n]",
    "x[*b n], residual[*b n], weight[n] -> y[*b n], s[*b n]",
    alike={"residual": "x"},
    kernel=_kernel("AddRmsNorm"),
)
def add_rms_norm(
    x: Array,
    residual: Array,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-6,
    **dispatch: Unpack[Dispatch],
) -> tuple[Array, Array]:
    """Add a residual and normalise the sum: `rms_norm` of ``s = x + residual``, and s.

    Parameters
    ----------
    x, residual : arrays of shape [*b, n]
        Any floating dtype.
    weight, eps, **dispatch
        As in `rms_norm`.

    Returns
    -------
    y, s : arrays of shape [*b, n]
        dtype of `x`, C order.

    Raises
    ------
    TypeError, ValueError
        As `rms_norm`; `x` and `residual` of different shapes.

    Notes
    -----
    s is rounded to its dtype first, so that y is the norm of what is returned. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.add_rms_norm(np.asarray([1.0, -2.0]), np.asarray([2.0, -1.0]), eps=0.0)
    (array([ 1., -1.]), array([ 3., -3.]))
    """
    s = stored(x + residual)
    return _rms_norm(s, weight, eps), s


@_norm(
    "dy[*b n], ds[*b n], s[*b n] -> dx[*b n]",
    "dy[*b n], ds[*b n], s[*b n], weight[n] -> dx[*b n], dweight[n]",
    adjoint_of="add_rms_norm",
    kernel=_kernel("AddRmsNormBackward"),
)
def add_rms_norm_backward(
    dy: Array,
    ds: Array,
    s: Array,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-6,
    **dispatch: Unpack[Dispatch],
) -> Array | tuple[Array, Array]:
    """Gradient of `add_rms_norm`, for x and the residual alike: ``ds`` and that of `rms_norm`.

    Parameters
    ----------
    dy, ds : arrays of shape [*b, n]
        Gradients of the results.
    s : array of shape [*b, n]
        The sum that `add_rms_norm` returned.
    weight, eps, **dispatch
        As in `rms_norm`.

    Returns
    -------
    dx, and dweight where `weight` was given : arrays of shapes [*b, n] and [n]
        dtype of `dy`, C order.

    Raises
    ------
    TypeError, ValueError
        As `rms_norm`; arrays of different shapes.

    Notes
    -----
    As `rms_norm_backward`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dy, ds, s = np.asarray([1.0, 0.0]), np.asarray([0.0, 5.0]), np.asarray([3.0, -3.0])
    >>> bc.add_rms_norm_backward(dy, ds, s).round(4)
    array([0.1667, 5.1667])
    """
    found = _rms_norm_backward(dy, s, weight, eps)
    return ds + found if weight is None else (ds + found[0], found[1])


@_norm(
    "x[*b n], residual[*b n] -> y[*b n], s[*b n]",
    "x[*b n], residual[*b n], weight[n] -> y[*b n], s[*b n]",
    "x[*b n], residual[*b n], weight[n], bias[n] -> y[*b n], s[*b n]",
    alike={"residual": "x"},
    kernel=_kernel("AddLayerNorm"),
)
def add_layer_norm(
    x: Array,
    residual: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> tuple[Array, Array]:
    """Add a residual and normalise the sum: `layer_norm` of ``s = x + residual``, and s.

    Parameters
    ----------
    x, residual : arrays of shape [*b, n]
        Any floating dtype.
    weight, bias, eps, **dispatch
        As in `layer_norm`.

    Returns
    -------
    y, s : arrays of shape [*b, n]
        dtype of `x`, C order.

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
    s = stored(x + residual)
    return _layer_norm(s, weight, bias, eps), s


@_norm(
    "dy[*b n], ds[*b n], s[*b n] -> dx[*b n]",
    "dy[*b n], ds[*b n], s[*b n], weight[n] -> dx[*b n], dweight[n], dbias[n]",
    adjoint_of="add_layer_norm",
    kernel=_kernel("AddLayerNormBackward"),
)
def add_layer_norm_backward(
    dy: Array,
    ds: Array,
    s: Array,
    weight: Array | None = None,
    /,
    *,
    eps: float = 1e-5,
    **dispatch: Unpack[Dispatch],
) -> Array | tuple[Array, Array, Array]:
    """Gradient of `add_layer_norm`, for x and the residual alike: ``ds`` and that of `layer_norm`.

    Parameters
    ----------
    dy, ds : arrays of shape [*b, n]
        Gradients of the results.
    s : array of shape [*b, n]
        The sum that `add_layer_norm` returned.
    weight, eps, **dispatch
        As in `layer_norm`.

    Returns
    -------
    dx, and dweight and dbias where `weight` was given : arrays of shapes [*b, n], [n] and [n]
        dtype of `dy`, C order.

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
    found = _layer_norm_backward(dy, s, weight, eps)
    return ds + found if weight is None else (ds + found[0], *found[1:])
