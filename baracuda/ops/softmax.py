"""Softmax along any axis, its logarithm, and what a mask or a diagonal leaves out of them."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import DTypeLike
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import dtype, flag, integer, optional
from baracuda.families import scores
from baracuda.families.numerics import masked, scaled
from baracuda.families.scores import exponents
from baracuda.libraries import A, Array, library_of

__all__ = [
    "log_softmax",
    "log_softmax_backward",
    "softmax",
    "softmax_backward",
]

_softmax = partial(
    op,
    category="softmax",
    options={"axis": integer, "causal": flag, "dtype": optional(dtype)},
    scalars=scores.SCALE,
    cases=(
        Case({"b": (3,), "n": 8, "c": ()}, scale=0.7),
        Case({"b": (), "n": 5, "c": (3,)}, axis=0, scale=-1.5),
        Case({"b": (2, 3), "n": 4, "c": ()}, causal=True),
    ),
)
_forward = partial(
    _softmax,
    "x[*b n@axis *c] -> y[*b n *c]",
    "x[*b n@axis *c], mask[*b? n? *c?] -> y[*b n *c]",
    "x[*b n@axis *c], bias[*b? n? *c?] -> y[*b n *c]",
    "x[*b n@axis *c], mask[*b? n? *c?], bias[*b? n? *c?] -> y[*b n *c]",
    roles={**scores.BESIDE, "y": roles.chosen("dtype")},
    hints=scores.HINTS,
    located={"causal": "b"},
    resolve=scores.diagonal,
)
_backward = partial(
    _softmax,
    "dy[*b n@axis *c], y[*b n *c] -> dx[*b n *c]",
    options={"axis": integer, "x_dtype": optional(dtype)},
    roles={"dx": roles.chosen("x_dtype")},
)


def _kernel(functor: str) -> Kernel:
    return Kernel("softmax.cu", functor, schedule="rows")


@_forward(kernel=_kernel("Softmax"))
def softmax(
    x: A,
    mask: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    axis: int = -1,
    scale: float = 1.0,
    causal: bool = False,
    dtype: DTypeLike | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Normalise exponentials along an axis: ``exp(z) / sum(exp(z))``, ``z = scale * x + bias``.

    Parameters
    ----------
    x : array of shape [*b, n, *c]
        Any floating dtype.
    mask : boolean array of the rank of `x`, optional
        True where an element counts; its extents are those of `x`, or 1.
    bias : array of the rank of `x`, optional
        Added to ``scale * x``, as slopes of ALiBi, relative positions or a mask of floats are; -inf
        where an element does not count, whatever `x` is there. Its extents are those of `x`, or 1,
        its dtype is that of `x`, or float32 beside 16 bits.
    axis : int
        Axis of a row; negative counts from the end.
    scale : float
        Factor of `x`, at most 1e30 in size. A run-time value.
    causal : bool
        Of a row q of the last two axes, [.., Q, K], entries up to ``q + K - Q`` count.
    dtype : dtype, optional
        dtype of the result: that of `x`, the default, or float32 beside 16 bits. The name, or an
        object of any library.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `x`, or `dtype`; C order; 0 where an element does not count.

    Raises
    ------
    TypeError
        A dtype that is not floating; `mask` not boolean; mixed libraries, devices or dtypes;
        `scale` not a real number.
    ValueError
        No such axis; `causal` with an axis other than the last; `mask` or `bias` that does not
        broadcast; `scale` NaN or above 1e30 in size; another `dtype`.

    Notes
    -----
    Agrees with `torch.nn.functional.softmax`, but a row of which nothing counts, or that is -inf
    throughout, gives 0 where torch gives NaN. A NaN that counts makes its row NaN. Bit-stable.

    The gradient of `x` does not depend on `bias`: it is that of `softmax_backward`. Where an
    autograd engine asks for the gradient of `bias` too, it differentiates the definition.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.softmax(np.log([[1.0, 3.0], [2.0, 2.0]]), causal=True).round(4)
    array([[1. , 0. ],
           [0.5, 0.5]])
    >>> bc.softmax(np.zeros((1, 3)), None, np.asarray([[np.log(3.0), 0.0, -np.inf]])).round(4)
    array([[0.75, 0.25, 0.  ]])
    """
    z, keep = exponents(x, mask, bias, scale, causal)
    return library_of(x).softmax(z, axis, keep)


@_backward(adjoint_of="softmax", kernel=_kernel("SoftmaxBackward"))
def softmax_backward(
    dy: A,
    y: Array,
    /,
    *,
    axis: int = -1,
    scale: float = 1.0,
    x_dtype: DTypeLike | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `softmax` from its result: ``scale * y * (dy - sum(dy * y))``.

    Parameters
    ----------
    dy : array of shape [*b, n, *c]
        Gradient of the result.
    y : array of shape [*b, n, *c]
        The result of `softmax`, which says also what counted.
    axis, scale, **dispatch
        As in `softmax`.
    x_dtype : dtype, optional
        dtype of `x`, where the result was widened: that of `dy`, the default, or 16 bits beside
        float32.

    Returns
    -------
    array of shape [*b, n, *c]
        `x_dtype`, C order; 0 where an element did not count.

    Raises
    ------
    TypeError, ValueError
        As `softmax`; `dy` and `y` of different shapes.

    Notes
    -----
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.softmax_backward(np.asarray([1.0, 0.0]), np.asarray([0.5, 0.5]))
    array([ 0.25, -0.25])
    """
    along = library_of(dy).xp.sum(dy * y, axis=axis, keepdims=True)
    return scaled(y * (dy - along), scale)


@_forward(kernel=_kernel("LogSoftmax"))
def log_softmax(
    x: A,
    mask: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    axis: int = -1,
    scale: float = 1.0,
    causal: bool = False,
    dtype: DTypeLike | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Logarithm of `softmax`: ``z - log(sum(exp(z)))`` of ``z = scale * x + bias``.

    Parameters
    ----------
    x : array of shape [*b, n, *c]
    mask : boolean array of the rank of `x`, optional
    bias : array of the rank of `x`, optional
    axis, scale, causal, dtype, **dispatch
        As in `softmax`.

    Returns
    -------
    array of shape [*b, n, *c]
        C order; -inf where an element does not count.

    Raises
    ------
    TypeError, ValueError
        As `softmax`.

    Notes
    -----
    Agrees with `torch.nn.functional.log_softmax`, but a row of which nothing counts, or that is
    -inf throughout, gives -inf where torch gives NaN. A NaN that counts makes its row NaN.
    Bit-stable. Gradients are as those of `softmax`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.log_softmax(np.asarray([1e4, 1e4])).round(4)
    array([-0.6931, -0.6931])
    """
    z, keep = exponents(x, mask, bias, scale, causal)
    library = library_of(x)
    xp = library.xp
    shifted = library.less_largest(z if keep is None else xp.where(keep, z, -xp.inf), axis)
    total = xp.sum(xp.exp(shifted), axis=axis, keepdims=True)
    y = shifted - xp.log(xp.where(total == 0, 1, total))
    return y if keep is None else xp.where(keep, y, -xp.inf)


@_backward(adjoint_of="log_softmax", kernel=_kernel("LogSoftmaxBackward"))
def log_softmax_backward(
    dy: A,
    y: Array,
    /,
    *,
    axis: int = -1,
    scale: float = 1.0,
    x_dtype: DTypeLike | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `log_softmax` from its result: ``scale * (dy - exp(y) * sum(dy))``.

    Parameters
    ----------
    dy : array of shape [*b, n, *c]
        Gradient of the result.
    y : array of shape [*b, n, *c]
        The result of `log_softmax`, which says also what counted.
    axis, scale, **dispatch
        As in `log_softmax`.
    x_dtype : dtype, optional
        dtype of `x`, where the result was widened: that of `dy`, the default, or 16 bits beside
        float32.

    Returns
    -------
    array of shape [*b, n, *c]
        `x_dtype`, C order; 0 where `y` is -inf, whose `dy` does not matter.

    Raises
    ------
    TypeError, ValueError
        As `softmax`; `dy` and `y` of different shapes.

    Notes
    -----
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.log_softmax_backward(np.asarray([1.0, 0.0]), np.log([0.5, 0.5])).round(4)
    array([ 0.5, -0.5])
    """
    xp = library_of(dy).xp
    dy = masked(dy, y != -xp.inf)
    along = xp.sum(dy, axis=axis, keepdims=True)
    return scaled(dy - xp.exp(y) * along, scale)
