"""Activations that are exponential below 0: elu, selu, celu, softplus."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import finite, nonzero, real
from baracuda.families.numerics import parts, sigmoid
from baracuda.families.numerics import softplus as log_of_exp
from baracuda.libraries import A, Array, library_of

__all__ = ["celu", "celu_backward", "elu", "elu_backward", "selu", "selu_backward", "softplus",
           "softplus_backward"]  # fmt: skip

_op = partial(op, category="activation", elementwise=True, inplace=True)

ALPHA, DIVISOR = {"alpha": finite}, {"alpha": nonzero}
SOFT = {"beta": real, "threshold": real}
SCALE, DEPTH = 1.0507009873554804934, 1.7580993408473768600
CASES = (Case({"s": (4, 9)}),)
ALPHAS = (*CASES, Case({"s": (9,)}, alpha=0.4))
SOFTENED = (*CASES, Case({"s": (9,)}, beta=2.5, threshold=1.0))


def _bent(x: Array, above: float, below: float, reach: float) -> Array:
    """``above * x`` above 0, ``below * expm1(x / reach)`` elsewhere."""
    high, low = parts(x)
    return above * high + below * library_of(x).xp.expm1(low / reach)


def _slope(x: Array, above: float, below: float, reach: float) -> Array:
    """`above` above 0, ``below * exp(x / reach)`` elsewhere."""
    xp = library_of(x).xp
    up = xp.astype(x > 0, x.dtype)
    return above * up + (1 - up) * (below * xp.exp(parts(x)[1] / reach))


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.elu",
    scalars=ALPHA,
    kernel=Kernel("exponential_units.cu", "Elu", schedule="elementwise"),
    cases=ALPHAS,
)
def elu(x: A, /, *, alpha: float = 1.0, **dispatch: Unpack[Dispatch]) -> A:
    """Exponential linear unit: `x` above 0, ``alpha * expm1(x)`` elsewhere.

    Parameters
    ----------
    x : array of shape [*s]
        float16, bfloat16, float32 or float64.
    alpha : float
        Negative of the limit at -inf. A run-time value.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        A dtype that is not floating; `alpha` not a real number.
    ValueError
        `alpha` infinite or NaN.

    Notes
    -----
    Clevert et al. (arXiv:1511.07289). Keeps its relative accuracy near 0. Agrees with
    `torch.nn.functional.elu`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.elu(np.asarray([-1.0, 0.5])).round(4)
    array([-0.6321,  0.5   ])
    """
    return _bent(x, 1, alpha, 1)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="elu",
    scalars=ALPHA,
    kernel=Kernel("exponential_units.cu", "EluBackward", schedule="elementwise"),
    cases=ALPHAS,
)
def elu_backward(dy: Array, x: A, /, *, alpha: float = 1.0, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `elu`: `dy` where ``x > 0``, else ``dy * alpha * exp(x)``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    alpha, **dispatch
        As in `elu`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `elu`; `x` of another shape than `dy`.

    Notes
    -----
    From the input: a result near ``-alpha`` has lost the slope. At 0 it is `alpha`, as in torch.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.elu_backward(np.ones(2), np.asarray([-1.0, 0.5])).round(4)
    array([0.3679, 1.    ])
    """
    return dy * _slope(x, 1, alpha, 1)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.selu",
    kernel=Kernel("exponential_units.cu", "Selu", schedule="elementwise"),
    cases=CASES,
)
def selu(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Self-normalising `elu`: ``1.0507 * x`` above 0, ``1.7581 * expm1(x)`` elsewhere.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `elu`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `elu`.

    Notes
    -----
    Klambauer et al. (arXiv:1706.02515), with both constants in full. Agrees with
    `torch.nn.functional.selu`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.selu(np.asarray([-1.0, 1.0])).round(4)
    array([-1.1113,  1.0507])
    """
    return _bent(x, SCALE, DEPTH, 1)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="selu",
    kernel=Kernel("exponential_units.cu", "SeluBackward", schedule="elementwise"),
    cases=CASES,
)
def selu_backward(dy: Array, x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `selu`: ``1.0507 * dy`` where ``x > 0``, else ``dy * 1.7581 * exp(x)``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    **dispatch
        As in `selu`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `selu`; `x` of another shape than `dy`.

    Notes
    -----
    From the input, as `elu_backward`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.selu_backward(np.ones(2), np.asarray([-1.0, 1.0])).round(4)
    array([0.6468, 1.0507])
    """
    return dy * _slope(x, SCALE, DEPTH, 1)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.celu",
    scalars=DIVISOR,
    kernel=Kernel("exponential_units.cu", "Celu", schedule="elementwise"),
    cases=ALPHAS,
)
def celu(x: A, /, *, alpha: float = 1.0, **dispatch: Unpack[Dispatch]) -> A:
    """Continuously differentiable `elu`: `x` above 0, ``alpha * expm1(x / alpha)`` elsewhere.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `elu`.
    alpha : float
        Negative of the limit at -inf, and scale of the curve; not 0. A run-time value.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `elu`.
    ValueError
        `alpha` 0, infinite or NaN.

    Notes
    -----
    Barron (arXiv:1704.07483). Agrees with `torch.nn.functional.celu`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.celu(np.asarray([-1.0, 0.5]), alpha=2.0).round(4)
    array([-0.7869,  0.5   ])
    """
    return _bent(x, 1, alpha, alpha)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="celu",
    scalars=DIVISOR,
    kernel=Kernel("exponential_units.cu", "CeluBackward", schedule="elementwise"),
    cases=ALPHAS,
)
def celu_backward(dy: Array, x: A, /, *, alpha: float = 1.0, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `celu`: `dy` where ``x > 0``, else ``dy * exp(x / alpha)``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    alpha, **dispatch
        As in `celu`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `celu`; `x` of another shape than `dy`.

    Notes
    -----
    From the input, as `elu_backward`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.celu_backward(np.ones(2), np.asarray([-1.0, 0.5]), alpha=2.0).round(4)
    array([0.6065, 1.    ])
    """
    return dy * _slope(x, 1, 1, alpha)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.softplus",
    scalars=SOFT,
    kernel=Kernel("exponential_units.cu", "Softplus", schedule="elementwise"),
    cases=SOFTENED,
)
def softplus(
    x: A, /, *, beta: float = 1.0, threshold: float = 20.0, **dispatch: Unpack[Dispatch]
) -> A:
    """Smooth `relu`: ``log1p(exp(beta * x)) / beta``.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `elu`.
    beta : float
        How sharp the bend is; not 0. A run-time value.
    threshold : float
        Where ``beta * x`` exceeds it, the result is `x` itself, by definition. inf switches this
        off. A run-time value.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        A dtype that is not floating; a run-time value that is no real number.

    Notes
    -----
    Nothing overflows, and far below 0 the relative accuracy is kept. The default threshold leaves
    out 2e-9, which float64 sees. Agrees with `torch.nn.functional.softplus`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.softplus(np.asarray([0.0, 1.0, 50.0])).round(4)
    array([ 0.6931,  1.3133, 50.    ])
    """
    z = x * beta
    return library_of(x).xp.where(z > threshold, x, log_of_exp(z) / beta)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="softplus",
    scalars=SOFT,
    kernel=Kernel("exponential_units.cu", "SoftplusBackward", schedule="elementwise"),
    cases=SOFTENED,
)
def softplus_backward(
    dy: Array,
    x: A,
    /,
    *,
    beta: float = 1.0,
    threshold: float = 20.0,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `softplus`: ``dy * sigmoid(beta * x)``, and `dy` beyond the threshold.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    beta, threshold, **dispatch
        As in `softplus`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `softplus`; `x` of another shape than `dy`.

    Notes
    -----
    From the input. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.softplus_backward(np.ones(2), np.asarray([0.0, 50.0]))
    array([0.5, 1. ])
    """
    z = x * beta
    return library_of(x).xp.where(z > threshold, dy, dy * sigmoid(z))
