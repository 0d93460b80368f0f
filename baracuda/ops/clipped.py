"""Activations that stop rising, in straight pieces: relu6, and what approximates a sigmoid."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import at_least, real
from baracuda.families.numerics import has_slopes
from baracuda.libraries import A, Array, library_of

__all__ = ["hardsigmoid", "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh",
           "hardtanh_backward", "relu6", "relu6_backward"]  # fmt: skip

_op = partial(op, category="activation", elementwise=True, inplace=True)

ENDS = {"min_val": real, "max_val": at_least("min_val")}
CASES = (Case({"s": (4, 9)}),)
TANH_CASES = (*CASES, Case({"s": (9,)}, min_val=-0.3, max_val=0.7))


def _clipped(x: Array, low: float, high: float) -> Array:
    """`x` between `low` and `high`, with slope 0 at both; NaN at NaN."""
    xp = library_of(x).xp
    if has_slopes(x):
        return xp.where(x <= low, low, xp.where(x >= high, high, x))
    low, high = (xp.asarray(end, dtype=x.dtype) for end in (low, high))
    return xp.minimum(xp.maximum(x, low), high)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.relu6",
    kernel=Kernel("clipped.cu", "Relu6", schedule="elementwise"),
    cases=CASES,
)
def relu6(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Rectified linear unit up to 6: ``min(max(x, 0), 6)``.

    Parameters
    ----------
    x : array of shape [*s]
        float16, bfloat16, float32 or float64.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        A dtype that is not floating.

    Notes
    -----
    NaN at NaN. Agrees with `torch.nn.functional.relu6`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.relu6(np.asarray([-1.0, 0.5, 7.0]))
    array([0. , 0.5, 6. ])
    """
    return _clipped(x, 0, 6)


@_op(
    "dy[*s], y[*s] -> dx[*s]",
    adjoint_of="relu6",
    kernel=Kernel("clipped.cu", "Relu6Backward", schedule="elementwise"),
    cases=CASES,
)
def relu6_backward(dy: A, y: Array, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `relu6`: `dy` where ``0 < y < 6``, else 0.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    y : array of shape [*s]
        The result, which is all that the slope depends on.
    **dispatch
        As in `relu6`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `dy`.

    Raises
    ------
    TypeError, ValueError
        As `relu6`; `y` of another shape than `dy`.

    Notes
    -----
    From the result, as every dtype holds the 6. The slope is 0 at both ends and at NaN, as in
    torch. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.relu6_backward(np.ones(3), np.asarray([0.0, 0.5, 6.0]))
    array([0., 1., 0.])
    """
    return library_of(y).xp.where((y > 0) & (y < 6), dy, 0)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.hardtanh",
    scalars=ENDS,
    kernel=Kernel("clipped.cu", "Hardtanh", schedule="elementwise"),
    cases=TANH_CASES,
)
def hardtanh(
    x: A, /, *, min_val: float = -1.0, max_val: float = 1.0, **dispatch: Unpack[Dispatch]
) -> A:
    """Clip `x` to the range from `min_val` to `max_val`.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `relu6`.
    min_val : float
        The least result. A run-time value.
    max_val : float
        The largest result, not below the least. A run-time value.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `relu6`; `min_val` or `max_val` not a real number.
    ValueError
        `min_val` above `max_val`; one of them NaN.

    Notes
    -----
    NaN at NaN. Agrees with `torch.nn.functional.hardtanh`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.hardtanh(np.asarray([-3.0, 0.5, 7.0]))
    array([-1. ,  0.5,  1. ])
    """
    return _clipped(x, min_val, max_val)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="hardtanh",
    scalars=ENDS,
    kernel=Kernel("clipped.cu", "HardtanhBackward", schedule="elementwise"),
    cases=TANH_CASES,
)
def hardtanh_backward(
    dy: Array,
    x: A,
    /,
    *,
    min_val: float = -1.0,
    max_val: float = 1.0,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `hardtanh`: `dy` where ``min_val < x < max_val``, else 0.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    min_val, max_val, **dispatch
        As in `hardtanh`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `hardtanh`; `x` of another shape than `dy`.

    Notes
    -----
    From the input: a result in 16 bits may lie inside of an end that they do not hold. The slope is
    0 at both ends and at NaN, as in torch. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.hardtanh_backward(np.ones(3), np.asarray([-3.0, 0.5, 7.0]))
    array([0., 1., 0.])
    """
    return library_of(x).xp.where((x > min_val) & (x < max_val), dy, 0)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.hardsigmoid",
    kernel=Kernel("clipped.cu", "Hardsigmoid", schedule="elementwise"),
    cases=CASES,
)
def hardsigmoid(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Piecewise linear sigmoid: ``min(max(x + 3, 0), 6) / 6``.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `relu6`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `relu6`.

    Notes
    -----
    NaN at NaN. Courbariaux et al. (arXiv:1511.00363), with the slope of torch. Agrees with
    `torch.nn.functional.hardsigmoid`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.hardsigmoid(np.asarray([-4.0, 0.0, 1.5]))
    array([0.  , 0.5 , 0.75])
    """
    return _clipped(x + 3, 0, 6) / 6


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="hardsigmoid",
    kernel=Kernel("clipped.cu", "HardsigmoidBackward", schedule="elementwise"),
    cases=CASES,
)
def hardsigmoid_backward(dy: Array, x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `hardsigmoid`: ``dy / 6`` where ``-3 < x < 3``, else 0.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    **dispatch
        As in `hardsigmoid`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `hardsigmoid`; `x` of another shape than `dy`.

    Notes
    -----
    From the input. The slope is 0 at both ends and at NaN, as in torch. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.hardsigmoid_backward(np.full(3, 6.0), np.asarray([-4.0, 0.0, 1.5]))
    array([0., 1., 1.])
    """
    return library_of(x).xp.where((x > -3) & (x < 3), dy / 6, 0)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.hardswish",
    kernel=Kernel("clipped.cu", "Hardswish", schedule="elementwise"),
    cases=CASES,
)
def hardswish(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Piecewise quadratic silu: ``x * min(max(x + 3, 0), 6) / 6``.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `relu6`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `relu6`.

    Notes
    -----
    Howard et al. (arXiv:1905.02244). NaN at -inf, as ``-inf * 0`` is. Agrees with
    `torch.nn.functional.hardswish`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.hardswish(np.asarray([-4.0, 1.0, 4.0])).round(4)
    array([-0.    ,  0.6667,  4.    ])
    """
    return x * (_clipped(x + 3, 0, 6) / 6)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="hardswish",
    kernel=Kernel("clipped.cu", "HardswishBackward", schedule="elementwise"),
    cases=CASES,
)
def hardswish_backward(dy: Array, x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `hardswish`: ``dy * (x / 3 + 0.5)`` between -3 and 3, 0 below, `dy` above.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    **dispatch
        As in `hardswish`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `hardswish`; `x` of another shape than `dy`.

    Notes
    -----
    From the input. At -3 the slope is that of below, at 3 that of above. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.hardswish_backward(np.ones(3), np.asarray([-4.0, 0.0, 4.0]))
    array([0. , 0.5, 1. ])
    """
    xp = library_of(x).xp
    inside = xp.where(x >= 3, dy, dy * (x / 3 + 0.5))
    return xp.where(x <= -3, 0, inside)
