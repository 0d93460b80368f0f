"""PReLU: a rectified linear unit whose slope below 0 is a parameter, of each channel or of all."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.shapes import Axes
from baracuda.declaration.spec import Case, Kernel
from baracuda.libraries import A, Array, library_of

__all__ = ["prelu", "prelu_backward"]


def _one(op: str, axes: Axes, options: dict[str, Any]) -> Mapping[str, int]:
    """The extent of a weight that serves all channels."""
    return {"one": 1}


_prelu = partial(
    op,
    category="activation",
    elementwise=True,
    inplace=True,
    resolve=_one,
    derived=("one",),
    cases=(
        Case({"n": 4, "c": 3, "s": (5,)}),
        Case({"n": 6, "c": 8, "s": ()}),
        Case({"n": 2, "c": 1, "s": (3, 2)}),
    ),
)


def _channels(x: Array, weight: Array) -> Array:
    """`weight` as it broadcasts against `x`."""
    c = weight.shape[0]
    along = (1, c, *(1,) * (x.ndim - 2)) if c != 1 else ()
    return library_of(weight).xp.reshape(weight, along)


@_prelu(
    "x[n c *s], weight[c] -> y[n c *s]",
    "x[*s], weight[one] -> y[*s]",
    namesake="nn.functional.prelu",
    kernel=Kernel("prelu.cu", "Prelu", schedule="channels"),
)
def prelu(x: A, weight: Array, /, **dispatch: Unpack[Dispatch]) -> A:
    """Rectified linear unit with a learned slope: `x` above 0, ``weight * x`` elsewhere.

    Parameters
    ----------
    x : array of shape [n, c, *s] or [*s]
        float16, bfloat16, float32 or float64.
    weight : array of shape [c] or [1]
        The slope below 0 of each channel, which are along the second axis of `x`, or one for all.
        Of the dtype of `x`.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of the shape of `x`
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes.
    ValueError
        A `weight` of neither as many elements as `x` has channels nor of one. An `x` of less than
        two axes has one channel.

    Notes
    -----
    He et al. (arXiv:1502.01852). NaN at NaN. Agrees with `torch.nn.functional.prelu`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.prelu(np.asarray([[-1.0, -1.0], [0.5, -2.0]]), np.asarray([0.1, 0.5]))
    array([[-0.1, -0.5],
           [ 0.5, -1. ]])
    """
    xp, up = library_of(x).xp, x > 0
    # What is not below 0 does not meet the weight, in the derivatives either.
    return xp.where(up, x, _channels(x, weight) * xp.where(up, 0, x))


@_prelu(
    "dy[n c *s], x[n c *s], weight[c] -> dx[n c *s], dweight[c]",
    "dy[*s], x[*s], weight[one] -> dx[*s], dweight[one]",
    adjoint_of="prelu",
    roles={"dweight": roles.total()},
    kernel=Kernel("prelu.cu", "PreluBackward", schedule="channels"),
)
def prelu_backward(dy: Array, x: A, weight: Array, /, **dispatch: Unpack[Dispatch]) -> tuple[A, A]:
    """Gradients of `prelu`: `dy` where ``x > 0``, else ``weight * dy``; the sums of ``x * dy``.

    Parameters
    ----------
    dy : array of the shape of `x`
        Gradient of the result.
    x : array of shape [n, c, *s] or [*s]
    weight : array of shape [c] or [1]
    **dispatch
        As in `prelu`.

    Returns
    -------
    dx : array of the shape of `x`
        In the layout of a dense `x`.
    dweight : array of the shape of `weight`
        Of each channel, or of all, the sum of ``x * dy`` where x is not above 0.

    Raises
    ------
    TypeError, ValueError
        As `prelu`; `dy` of another shape than `x`.

    Notes
    -----
    The slope is `weight` at 0 and at NaN, as in torch. Sums are kept in float32 (float64 for
    float64) and rounded once, in an order that shapes and layouts alone decide; both gradients
    come from one look at `dy` and `x`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x, w = np.asarray([[-1.0, -3.0], [0.5, -2.0]]), np.asarray([0.1, 0.5])
    >>> dx, dweight = bc.prelu_backward(np.ones((2, 2)), x, w)
    >>> dx, dweight
    (array([[0.1, 0.5],
           [1. , 0.5]]), array([-1., -5.]))
    """
    xp, up = library_of(x).xp, x > 0
    dx = xp.where(up, dy, _channels(x, weight) * dy)
    shares = xp.where(up, 0, dy) * xp.where(up, 0, x)
    if weight.shape[0] == 1:
        return dx, xp.reshape(xp.sum(shares), (1,))
    return dx, xp.sum(shares, axis=(0, *range(2, x.ndim)))
