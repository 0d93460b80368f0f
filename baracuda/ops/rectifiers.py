"""Activations of two pieces, straight on either side: relu and its kin."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import finite, real
from baracuda.families.numerics import relu as rectified
from baracuda.libraries import A, Array, library_of

__all__ = ["leaky_relu", "leaky_relu_backward", "relu", "relu_backward", "threshold",
           "threshold_backward"]  # fmt: skip

_op = partial(op, category="activation", elementwise=True, inplace=True)

SLOPE = {"negative_slope": finite}
LEVEL = {"threshold": real, "value": real}
CASES = (Case({"s": (4, 9)}),)
LEAKY = (*CASES, Case({"s": (9,)}, negative_slope=0.3))
LEVELS = (Case({"s": (4, 9)}, threshold=0.1, value=-2.0),)


def _slope(x: Array, leak: float) -> Array:
    """1 above 0, `leak` elsewhere."""
    up = library_of(x).xp.astype(x > 0, x.dtype)
    return up + (1 - up) * leak


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.relu",
    kernel=Kernel("rectifiers.cu", "Relu", schedule="elementwise"),
    cases=CASES,
)
def relu(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Rectified linear unit: ``max(x, 0)``.

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
    NaN at NaN. Agrees with `torch.nn.functional.relu`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.relu(np.asarray([-1.0, 0.5]))
    array([0. , 0.5])
    """
    return rectified(x)


@_op(
    "dy[*s], y[*s] -> dx[*s]",
    adjoint_of="relu",
    kernel=Kernel("rectifiers.cu", "ReluBackward", schedule="elementwise"),
    cases=CASES,
)
def relu_backward(dy: A, y: Array, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `relu`: `dy` where ``y > 0``, else 0.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    y : array of shape [*s]
        The result, which is all that the slope depends on.
    **dispatch
        As in `relu`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `dy`.

    Raises
    ------
    TypeError, ValueError
        As `relu`; `y` of another shape than `dy`.

    Notes
    -----
    From the result. The slope is 0 at 0 and 1 at NaN, as in torch. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.relu_backward(np.ones(2), np.asarray([0.0, 0.5]))
    array([0., 1.])
    """
    return library_of(y).xp.where(y <= 0, 0, dy)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.leaky_relu",
    scalars=SLOPE,
    kernel=Kernel("rectifiers.cu", "LeakyRelu", schedule="elementwise"),
    cases=LEAKY,
)
def leaky_relu(x: A, /, *, negative_slope: float = 0.01, **dispatch: Unpack[Dispatch]) -> A:
    """Rectified linear unit that leaks: `x` above 0, ``negative_slope * x`` elsewhere.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `relu`.
    negative_slope : float
        Slope of what is below 0. A run-time value.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `relu`; `negative_slope` not a real number.
    ValueError
        `negative_slope` infinite or NaN.

    Notes
    -----
    Maas et al. (2013). Agrees with `torch.nn.functional.leaky_relu`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.leaky_relu(np.asarray([-1.0, 0.5]), negative_slope=0.1)
    array([-0.1,  0.5])
    """
    return x * _slope(x, negative_slope)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="leaky_relu",
    scalars=SLOPE,
    kernel=Kernel("rectifiers.cu", "LeakyReluBackward", schedule="elementwise"),
    cases=LEAKY,
)
def leaky_relu_backward(
    dy: Array, x: A, /, *, negative_slope: float = 0.01, **dispatch: Unpack[Dispatch]
) -> A:
    """Gradient of `leaky_relu`: `dy` where ``x > 0``, else ``negative_slope * dy``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    negative_slope, **dispatch
        As in `leaky_relu`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `leaky_relu`; `x` of another shape than `dy`.

    Notes
    -----
    From the input: a result does not tell the pieces apart where the slope is not above 0.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.leaky_relu_backward(np.ones(2), np.asarray([-1.0, 0.5]))
    array([0.01, 1.  ])
    """
    return dy * _slope(x, negative_slope)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.threshold",
    scalars=LEVEL,
    kernel=Kernel("rectifiers.cu", "Threshold", schedule="elementwise"),
    cases=LEVELS,
)
def threshold(x: A, /, *, threshold: float, value: float, **dispatch: Unpack[Dispatch]) -> A:
    """`x` where it exceeds a threshold, else `value`.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `relu`.
    threshold : float
        Bound that `x` has to exceed. A run-time value.
    value : float
        The result where `x` does not exceed the threshold. A run-time value.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `relu`; a run-time value that is no real number.

    Notes
    -----
    NaN at NaN. Agrees with `torch.nn.functional.threshold`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.threshold(np.asarray([0.2, 0.5]), threshold=0.3, value=-1.0)
    array([-1. ,  0.5])
    """
    return library_of(x).xp.where(x <= threshold, value, x)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="threshold",
    scalars=LEVEL,
    kernel=Kernel("rectifiers.cu", "ThresholdBackward", schedule="elementwise"),
    cases=LEVELS,
)
def threshold_backward(
    dy: Array, x: A, /, *, threshold: float, value: float, **dispatch: Unpack[Dispatch]
) -> A:
    """Gradient of `threshold`: `dy` where ``x > threshold``, else 0.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    threshold, value, **dispatch
        As in `threshold`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `threshold`; `x` of another shape than `dy`.

    Notes
    -----
    From the input. The slope is 0 at the threshold and 1 at NaN, as in torch. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.threshold_backward(np.ones(2), np.asarray([0.2, 0.5]), threshold=0.3, value=-1.0)
    array([0., 1.])
    """
    return library_of(x).xp.where(x <= threshold, 0, dy)
