"""Activations that weigh their input by a function of it: silu, mish, gelu."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice
from baracuda.families.numerics import gelu_weight, sides, sigmoid, sigmoids
from baracuda.libraries import A, Array, library_of

__all__ = ["gelu", "gelu_backward", "mish", "mish_backward", "silu", "silu_backward"]

_op = partial(op, category="activation", elementwise=True, inplace=True)

GELU = {"approximate": choice("none", "tanh")}
CASES = (Case({"s": (4, 9)}),)
GELU_CASES = (*CASES, Case({"s": (9,)}, approximate="tanh"))


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.silu",
    kernel=Kernel("self_gated.cu", "Silu", schedule="elementwise"),
    cases=CASES,
)
def silu(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Sigmoid-weighted linear unit, or swish: ``x * sigmoid(x)``.

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
    Elfwing et al. (arXiv:1702.03118). NaN at -inf, as ``-inf * 0`` is. Agrees with
    `torch.nn.functional.silu`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.silu(np.asarray([0.0, 1.0])).round(4)
    array([0.    , 0.7311])
    """
    return x * sigmoid(x)


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="silu",
    kernel=Kernel("self_gated.cu", "SiluBackward", schedule="elementwise"),
    cases=CASES,
)
def silu_backward(dy: Array, x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `silu`: ``dy * s * (1 + x * (1 - s))``, ``s = sigmoid(x)``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    **dispatch
        As in `silu`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `silu`; `x` of another shape than `dy`.

    Notes
    -----
    From the input. ``1 - s`` is evaluated as ``sigmoid(-x)``. NaN at both infinities, as in torch.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.silu_backward(np.ones(1), np.asarray([0.0]))
    array([0.5])
    """
    on, off = sigmoids(x)
    return dy * (on * (1 + x * off))


def _mish(b: Array) -> tuple[Array, Array]:
    """``tanh(softplus(b))`` and its slope."""
    above, below = sides(b)
    e = library_of(b).xp.exp(b * (below - above))
    num = above * (1 + 2 * e) + below * (e * (2 + e))
    share = 1 / (num + above * (2 * e * e) + below * 2)
    return num * share, 4 * e * (1 + e) * (above * e + below) * (share * share)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.mish",
    kernel=Kernel("self_gated.cu", "Mish", schedule="elementwise"),
    cases=CASES,
)
def mish(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Mish: ``x * tanh(softplus(x))``.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `silu`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `silu`.

    Notes
    -----
    Misra (arXiv:1908.08681). The weight is a quotient of polynomials in ``exp(-abs(x))`` whose
    terms are all positive, so that nothing cancels on either side. NaN at -inf, as ``-inf * 0`` is.
    Agrees with `torch.nn.functional.mish`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.mish(np.asarray([0.0, 1.0])).round(4)
    array([0.    , 0.8651])
    """
    return x * _mish(x)[0]


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="mish",
    kernel=Kernel("self_gated.cu", "MishBackward", schedule="elementwise"),
    cases=CASES,
)
def mish_backward(dy: Array, x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Gradient of `mish`: ``dy * (w + x * v)``, w the weight ``tanh(softplus(x))``, v its slope.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    **dispatch
        As in `mish`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `mish`; `x` of another shape than `dy`.

    Notes
    -----
    From the input; weight and slope share one exponential. NaN at both infinities, as in torch.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.mish_backward(np.ones(1), np.asarray([0.0]))
    array([0.6])
    """
    weight, slope = _mish(x)
    return dy * (weight + x * slope)


@_op(
    "x[*s] -> y[*s]",
    namesake="nn.functional.gelu",
    options=GELU,
    kernel=Kernel("self_gated.cu", "Gelu", schedule="elementwise"),
    cases=GELU_CASES,
)
def gelu(
    x: A, /, *, approximate: Literal["none", "tanh"] = "none", **dispatch: Unpack[Dispatch]
) -> A:
    """Gaussian error linear unit: ``x * cdf(x)``, `cdf` of the standard normal distribution.

    Parameters
    ----------
    x : array of shape [*s]
    **dispatch
        As in `silu`.
    approximate : {"none", "tanh"}
        Exact, or with ``(1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)))/2`` for `cdf`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `silu`.
    ValueError
        `approximate` neither of the two.

    Notes
    -----
    Hendrycks and Gimpel (arXiv:1606.08415). For negative `x` both forms keep the relative accuracy
    that ``1 + erf`` and ``1 + tanh`` lose, in `torch.nn.functional.gelu` too. NaN at -inf, as
    ``-inf * 0`` is. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.gelu(np.asarray([1.0, -1.0])).round(4)
    array([ 0.8413, -0.1587])
    """
    return x * gelu_weight(x, approximate)[0]


@_op(
    "dy[*s], x[*s] -> dx[*s]",
    adjoint_of="gelu",
    options=GELU,
    kernel=Kernel("self_gated.cu", "GeluBackward", schedule="elementwise"),
    cases=GELU_CASES,
)
def gelu_backward(
    dy: Array,
    x: A,
    /,
    *,
    approximate: Literal["none", "tanh"] = "none",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `gelu`: ``dy * (cdf(x) + x * pdf(x))``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    x : array of shape [*s]
    approximate, **dispatch
        As in `gelu`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `gelu`; `x` of another shape than `dy`.

    Notes
    -----
    From the input; `cdf` and `pdf` share their exponential. NaN at both infinities, as in torch.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.gelu_backward(np.ones(1), np.asarray([0.0]))
    array([0.5])
    """
    cdf, pdf = gelu_weight(x, approximate)
    return dy * (cdf + x * pdf)
