"""Activations that take something off: hard, soft and tanh shrinkage."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import ordered, positive
from baracuda.families.numerics import plus
from baracuda.libraries import A, Array, library_of

__all__ = ["hardshrink", "hardshrink_backward", "softshrink", "softshrink_backward", "tanhshrink",
           "tanhshrink_backward"]  # fmt: skip

_op = partial(op, category="activation", elementwise=True, inplace=True)

LAMBDA, DEPTH = {"lambd": ordered}, {"lambd": positive(zero=True)}
CASES = (Case({"s": (4, 9)}),)
SHRUNK = (*CASES, Case({"s": (9,)}, lambd=0.1))


def _kept(dy: Array, x: Array, lambd: float) -> Array:
    """`dy` where `x` is beyond `lambd` on either side, else 0."""
    return library_of(x).xp.where((x < -lambd) | (x > lambd), dy, 0)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.hardshrink",
    scalars=LAMBDA,
    kernel=Kernel("shrinks.cu", "Hardshrink", schedule="elementwise"),
    cases=SHRUNK,
)
def hardshrink(x: A, /, *, lambd: float = 0.5, **dispatch: Unpack[Dispatch]) -> A:
    """`x` where ``abs(x) > lambd``, else 0.

    Parameters
    ----------
    x : array of shape [*s]
        float16, bfloat16, float32 or float64.
    lambd : float
        Up to where values become 0. A run-time value.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        A dtype that is not floating; `lambd` not a real number.
    ValueError
        `lambd` NaN.

    Notes
    -----
    NaN at NaN. Agrees with `torch.nn.functional.hardshrink`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.hardshrink(np.asarray([-2.0, 0.3]))
    array([-2.,  0.])
    """
    return x * library_of(x).xp.astype((x < -lambd) | (x > lambd), x.dtype)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="hardshrink",
    scalars=LAMBDA,
    kernel=Kernel("shrinks.cu", "HardshrinkBackward", schedule="elementwise"),
    cases=SHRUNK,
)
def hardshrink_backward(
    dy: Array, x: A, /, *, lambd: float = 0.5, **dispatch: Unpack[Dispatch]
) -> A:
    """Gradient of `hardshrink`: `dy` where ``abs(x) > lambd``, else 0.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    lambd, **dispatch
        As in `hardshrink`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `hardshrink`; `x` of another shape than `dy`.

    Notes
    -----
    From the input. The slope is 0 at both ends and at NaN, as in torch. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.hardshrink_backward(np.ones(2), np.asarray([-2.0, 0.3]))
    array([1., 0.])
    """
    return _kept(dy, x, lambd)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.softshrink",
    scalars=DEPTH,
    kernel=Kernel("shrinks.cu", "Softshrink", schedule="elementwise"),
    cases=SHRUNK,
)
def softshrink(x: A, /, *, lambd: float = 0.5, **dispatch: Unpack[Dispatch]) -> A:
    """Move `x` towards 0 by `lambd`; the result is 0 from ``-lambd`` to `lambd`.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `hardshrink`.
    lambd : float
        By how much values come nearer to 0; not below 0. A run-time value.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `hardshrink`.
    ValueError
        `lambd` below 0, infinite or NaN.

    Notes
    -----
    NaN at NaN. Agrees with `torch.nn.functional.softshrink`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.softshrink(np.asarray([-2.0, 0.3]))
    array([-1.5,  0. ])
    """
    xp = library_of(x).xp
    nearer = xp.where(x > 0, x - lambd, x + lambd)
    return xp.where((x >= -lambd) & (x <= lambd), 0, nearer)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="softshrink",
    scalars=DEPTH,
    kernel=Kernel("shrinks.cu", "SoftshrinkBackward", schedule="elementwise"),
    cases=SHRUNK,
)
def softshrink_backward(
    dy: Array, x: A, /, *, lambd: float = 0.5, **dispatch: Unpack[Dispatch]
) -> A:
    """Gradient of `softshrink`: `dy` where ``abs(x) > lambd``, else 0.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    lambd, **dispatch
        As in `softshrink`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `softshrink`; `x` of another shape than `dy`.

    Notes
    -----
    From the input. The slope is 0 at both ends and at NaN, as in torch. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.softshrink_backward(np.ones(2), np.asarray([-2.0, 0.3]))
    array([1., 0.])
    """
    return _kept(dy, x, lambd)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.tanhshrink",
    kernel=Kernel("shrinks.cu", "Tanhshrink", schedule="elementwise"),
    cases=CASES,
)
def tanhshrink(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Difference of `x` and its tanh: ``x - tanh(x)``.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `hardshrink`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `hardshrink`.

    Notes
    -----
    Below 1 in size by Lambert's continued fraction (in kernels, but for float64, a polynomial),
    which keeps the relative accuracy that the difference loses near 0, in
    `torch.nn.functional.tanhshrink` too. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.tanhshrink(np.asarray([1e-5, 2.0])).round(20)
    array([3.33330000e-16, 1.03597242e+00])
    """
    library = library_of(x)
    xp, small = library.xp, library.clip(x, -1.0, 1.0)
    square = small * small
    # The difference is num/(den + num) of x; a level for each odd number down to 3.
    levels = 9 if x.dtype == xp.float64 else 5
    num, den = square, 2 * levels + 1
    for odd in range(2 * levels - 1, 1, -2):
        num, den = square * den, plus(num, den, odd)
    near = small * (num / (den + num))
    # No selection, on which libraries stall: up to 1 the rest is 0.
    return near + ((x - small) - (xp.tanh(x) - xp.tanh(small)))


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="tanhshrink",
    kernel=Kernel("shrinks.cu", "TanhshrinkBackward", schedule="elementwise"),
    cases=CASES,
)
def tanhshrink_backward(dy: Array, x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `tanhshrink`: ``dy * tanh(x)**2``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    **dispatch
        As in `tanhshrink`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `tanhshrink`; `x` of another shape than `dy`.

    Notes
    -----
    From the input. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.tanhshrink_backward(np.ones(2), np.asarray([0.0, 30.0]))
    array([0., 1.])
    """
    slope = library_of(x).xp.tanh(x)
    return dy * (slope * slope)
