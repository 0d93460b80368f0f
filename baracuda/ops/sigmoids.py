"""Activations of the shape of an S, and the logarithm of one."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.families.numerics import sigmoid as logistic
from baracuda.families.numerics import softplus
from baracuda.libraries import A, Array, library_of

__all__ = ["log_sigmoid", "log_sigmoid_backward", "sigmoid", "sigmoid_backward", "softsign",
           "softsign_backward", "tanh", "tanh_backward"]  # fmt: skip

_op = partial(op, category="activation", elementwise=True, inplace=True)

CASES = (Case({"s": (4, 9)}),)


@_op(
    "x[*s] -> y[*s]",
    namesake="sigmoid",
    kernel=Kernel("sigmoids.cu", "Sigmoid", schedule="elementwise"),
    cases=CASES,
)
def sigmoid(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Logistic function: ``1 / (1 + exp(-x))``.

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
    Keeps its relative accuracy far below 0. Agrees with `torch.sigmoid`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.sigmoid(np.asarray([0.0, 2.0])).round(4)
    array([0.5   , 0.8808])
    """
    return logistic(x)


@_op(
    "dy[*s], y[*s] -> dx[*s]",
    adjoint_of="sigmoid",
    kernel=Kernel("sigmoids.cu", "SigmoidBackward", schedule="elementwise"),
    cases=CASES,
)
def sigmoid_backward(dy: A, y: Array, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `sigmoid`: ``dy * y * (1 - y)``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    y : array of shape [*s]
        The result, which is all that the slope depends on.
    **dispatch
        As in `sigmoid`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `dy`.

    Raises
    ------
    TypeError, ValueError
        As `sigmoid`; `y` of another shape than `dy`.

    Notes
    -----
    From the result: exact for the `y` that is given. Where that has been rounded to 1, the slope is
    0, as in torch. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.sigmoid_backward(np.ones(2), np.asarray([0.5, 0.75]))
    array([0.25  , 0.1875])
    """
    return dy * (y * (1 - y))


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.logsigmoid",
    kernel=Kernel("sigmoids.cu", "LogSigmoid", schedule="elementwise"),
    cases=CASES,
)
def log_sigmoid(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Logarithm of the logistic function: ``-log1p(exp(-x))``.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `sigmoid`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `sigmoid`.

    Notes
    -----
    Nothing overflows or cancels: far above 0 the relative accuracy is kept. Agrees with
    `torch.nn.functional.logsigmoid`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.log_sigmoid(np.asarray([-8.0, 0.0])).round(4)
    array([-8.0003, -0.6931])
    """
    return -softplus(-x)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="log_sigmoid",
    kernel=Kernel("sigmoids.cu", "LogSigmoidBackward", schedule="elementwise"),
    cases=CASES,
)
def log_sigmoid_backward(dy: Array, x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `log_sigmoid`: ``dy * sigmoid(-x)``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    **dispatch
        As in `log_sigmoid`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `log_sigmoid`; `x` of another shape than `dy`.

    Notes
    -----
    From the input. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.log_sigmoid_backward(np.ones(2), np.asarray([-800.0, 0.0]))
    array([1. , 0.5])
    """
    return dy * logistic(-x)


@_op(
    "x[*s] -> y[*s]",
    namesake="tanh",
    kernel=Kernel("sigmoids.cu", "Tanh", schedule="elementwise"),
    cases=CASES,
)
def tanh(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Hyperbolic tangent.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `sigmoid`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `sigmoid`.

    Notes
    -----
    Agrees with `torch.tanh`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.tanh(np.asarray([0.0, 1.0])).round(4)
    array([0.    , 0.7616])
    """
    return library_of(x).xp.tanh(x)


@_op(
    "dy[*s], y[*s] -> dx[*s]",
    adjoint_of="tanh",
    kernel=Kernel("sigmoids.cu", "TanhBackward", schedule="elementwise"),
    cases=CASES,
)
def tanh_backward(dy: A, y: Array, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `tanh`: ``dy * (1 - y) * (1 + y)``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    y : array of shape [*s]
        The result, which is all that the slope depends on.
    **dispatch
        As in `tanh`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `dy`.

    Raises
    ------
    TypeError, ValueError
        As `tanh`; `y` of another shape than `dy`.

    Notes
    -----
    From the result: exact for the `y` that is given, as ``1 - y**2`` is not near 1. Where `y` has
    been rounded to 1, the slope is 0, as in torch. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.tanh_backward(np.ones(2), np.asarray([0.0, 0.5]))
    array([1.  , 0.75])
    """
    return dy * ((1 - y) * (1 + y))


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.softsign",
    kernel=Kernel("sigmoids.cu", "Softsign", schedule="elementwise"),
    cases=CASES,
)
def softsign(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Softened sign: ``x / (1 + abs(x))``.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `sigmoid`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `sigmoid`.

    Notes
    -----
    NaN at both infinities, as ``inf / inf`` is. Agrees with `torch.nn.functional.softsign`.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.softsign(np.asarray([-1.0, 3.0]))
    array([-0.5 ,  0.75])
    """
    return x / (1 + library_of(x).xp.abs(x))


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="softsign",
    kernel=Kernel("sigmoids.cu", "SoftsignBackward", schedule="elementwise"),
    cases=CASES,
)
def softsign_backward(dy: Array, x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `softsign`: ``dy / (1 + abs(x))**2``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    **dispatch
        As in `softsign`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `softsign`; `x` of another shape than `dy`.

    Notes
    -----
    From the input. 0 at both infinities, where autograd in torch has NaN. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.softsign_backward(np.ones(2), np.asarray([-1.0, 3.0]))
    array([0.25  , 0.0625])
    """
    share = 1 / (1 + library_of(x).xp.abs(x))
    return dy * (share * share)
