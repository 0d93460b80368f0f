"""Division by the Euclidean norm along any axis."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import integer, positive
from baracuda.families.numerics import root
from baracuda.libraries import A, Array, library_of

__all__ = ["l2_normalize", "l2_normalize_backward"]

_l2_normalize = partial(
    op,
    category="norm",
    options={"axis": integer},
    scalars={"eps": positive(zero=True)},
    cases=(
        Case({"b": (3,), "n": 8, "c": ()}),
        Case({"b": (), "n": 5, "c": (3,)}, axis=0, eps=2.0),
        Case({"b": (2, 3), "n": 4, "c": ()}),
        Case({"b": (2,), "n": 6, "c": (3,)}, axis=1),
    ),
)


def _dot(x: Array, y: Array, axis: int) -> Array:
    """The sums of products along an axis, which stays."""
    library = library_of(x)
    if axis % x.ndim == x.ndim - 1:
        return library.dot(x, y)
    return library.xp.sum(x * y, axis=axis, keepdims=True)


def _inverse(x: Array, axis: int, eps: float) -> tuple[Array, Array]:
    """One over the norm or, where that is less, over `eps`; and where it is less."""
    xp, norm = library_of(x).xp, root(_dot(x, x, axis), 2)
    small = norm < eps
    return 1 / xp.where(small, eps, norm), small


@_l2_normalize(
    "x[*b n@axis *c] -> y[*b n *c]",
    kernel=Kernel("l2_normalize.cu", "L2Normalize", schedule="rows"),
)
def l2_normalize(x: A, /, *, axis: int = -1, eps: float = 1e-12, **dispatch: Unpack[Dispatch]) -> A:
    """Divide by the Euclidean norm along an axis: ``x / max(sqrt(sum(x**2)), eps)``.

    Parameters
    ----------
    x : array of shape [*b, n, *c]
        Any floating dtype.
    axis : int
        The axis of extent n, along which rows lie; negative counts from the end.
    eps : float
        The least divisor, not below 0; a run-time value.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `x`, C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; `axis` not an integer, `eps` not a real number.
    ValueError
        No such axis; `eps` negative, infinite or NaN.

    Notes
    -----
    Agrees with `torch.nn.functional.normalize` of ``p=2``. A NaN makes its row NaN. In a row with
    an infinity, elements that are infinite give NaN, and all others 0.

    Squares are summed in float32 (float64 for float64), in an order that the shape fixes. They are
    not scaled: a row whose norm is above 1.8e19 in float32 or bfloat16 gives 0, as in torch. A
    float16 row of zeros gives 0, where torch rounds the default `eps` to 0 and gives NaN. The
    result is rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.l2_normalize(np.asarray([[3.0, -4.0], [0.0, 0.0]]))
    array([[ 0.6, -0.8],
           [ 0. ,  0. ]])
    """
    return x * _inverse(x, axis, eps)[0]


@_l2_normalize(
    "dy[*b n@axis *c], x[*b n *c] -> dx[*b n *c]",
    adjoint_of="l2_normalize",
    kernel=Kernel("l2_normalize.cu", "L2NormalizeBackward", schedule="rows"),
)
def l2_normalize_backward(
    dy: Array, x: A, /, *, axis: int = -1, eps: float = 1e-12, **dispatch: Unpack[Dispatch]
) -> A:
    """Gradient of `l2_normalize`: ``r * (dy - x * r**2 * sum(dy * x))``, ``r = 1/max(norm, eps)``.

    Where the norm is below `eps`, the divisor is a constant: the gradient is ``dy * r``.

    Parameters
    ----------
    dy : array of shape [*b, n, *c]
        Gradient of the result; dtype of `x`.
    x : array of shape [*b, n, *c]
        The input of `l2_normalize`: any floating dtype.
    axis : int
        The axis of extent n; negative counts from the end.
    eps : float
        The least divisor, not below 0; a run-time value.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `x`, C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes; `axis` not an integer,
        `eps` not a real number.
    ValueError
        No such axis; `dy` of another shape than `x`; `eps` negative, infinite or NaN.

    Notes
    -----
    torch's autograd gives the same, the gradient of a norm of exactly `eps` included. A row of
    zeros has NaN with ``eps=0``, as its result is. The norm is computed again from `x`: nothing
    else was saved. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.l2_normalize_backward(np.asarray([1.0, 0.0]), np.asarray([3.0, 4.0])).round(4)
    array([ 0.128, -0.096])
    """
    inverse, small = _inverse(x, axis, eps)
    along = library_of(x).xp.where(small, 0, _dot(dy, x, axis) * inverse * inverse)
    return inverse * (dy - x * along)
