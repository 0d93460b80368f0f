"""Gated activations: ``a * act(b)``, with `a` and the gate `b` packed in one array or apart."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case, Kernel, Packed
from baracuda.declaration.values import choice, flag, integer
from baracuda.families.numerics import gelu_weight, relu, sigmoid
from baracuda.libraries import A, Array, library_of

__all__ = ["geglu", "geglu_backward", "glu", "glu_backward", "reglu", "reglu_backward", "swiglu",
           "swiglu_backward"]  # fmt: skip

GATED = {"axis": integer, "gate_first": flag}
GELU = GATED | {"approximate": choice("none", "tanh")}
CASES = (
    Case({"b": (3,), "n": 8, "c": ()}),
    Case({"b": (2,), "n": 5, "c": (3,)}, axis=1),
    Case({"b": (2,), "n": 5, "c": (3,)}, axis=-2, gate_first=True),
)
GELU_CASES = (*CASES, Case({"b": (3,), "n": 8, "c": ()}, approximate="tanh"))

_gated = partial(
    op,
    category="gated",
    dtypes=FLOATS,
    options=GATED,
    elementwise=True,
    packed=Packed("x", "gate", axis="axis", first="gate_first"),
    cases=CASES,
)
_forward = partial(
    _gated,
    "x[*b 2n@axis *c] -> y[*b n *c]",
    "x[*b n@axis *c], gate[*b n *c] -> y[*b n *c]",
)
_backward = partial(
    _gated,
    "dy[*b n *c], x[*b 2n@axis *c] -> dx[*b 2n *c]",
    "dy[*b n *c], x[*b n@axis *c], gate[*b n *c] -> dx[*b n *c], dgate[*b n *c]",
)


def _halves(x: Array, gate: Array | None, axis: int, gate_first: bool) -> tuple[Array, Array]:
    """The value and the gate."""
    if gate is not None:
        return x, gate
    n = x.shape[axis] // 2
    before = (slice(None),) * axis
    first, second = x[(*before, slice(0, n), ...)], x[(*before, slice(n, 2 * n), ...)]
    return (second, first) if gate_first else (first, second)


def _joined(da: Array, db: Array, gate: Array | None, axis: int, gate_first: bool) -> Any:
    """The gradients as the arrays came: packed, or apart."""
    if gate is not None:
        return da, db
    return library_of(da).xp.concat([db, da] if gate_first else [da, db], axis=axis)


@_forward(kernel=Kernel("gated.cu", "Glu", schedule="elementwise"))
def glu(
    x: A,
    gate: Array | None = None,
    /,
    *,
    axis: int = -1,
    gate_first: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gated linear unit: ``a * sigmoid(b)``.

    Parameters
    ----------
    x : array of shape [*b, 2n, *c], or [*b, n, *c] beside `gate`
        `a` and the gate `b` as halves along `axis`, or `a` alone. Any floating dtype.
    gate : array of shape [*b, n, *c], optional
        `b`, where it is an array of its own.
    axis : int
        Axis along which `x` has its two halves; negative counts from the end.
    gate_first : bool
        The first half of a packed `x` is the gate. The default is the second, as in torch.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `x`, in the layout of a dense `x`.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes.
    ValueError
        An odd extent along `axis`, no such axis, `x` and `gate` of different shapes.

    Notes
    -----
    Dauphin et al. (arXiv:1612.08083). The sigmoid keeps its relative accuracy on both sides. NaN
    and infinities propagate as in the product. Agrees with `torch.nn.functional.glu`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.glu(np.asarray([2.0, 6.0, 0.0, 0.0]))
    array([1., 3.])
    """
    a, b = _halves(x, gate, axis, gate_first)
    return a * sigmoid(b)


@_backward(adjoint_of="glu", kernel=Kernel("gated.cu", "GluBackward", schedule="elementwise"))
def glu_backward(
    dy: Array,
    x: A,
    gate: Array | None = None,
    /,
    *,
    axis: int = -1,
    gate_first: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A]:
    """Gradient of `glu`: ``da = dy * s``, ``db = dy * a * s * (1 - s)``, ``s = sigmoid(b)``.

    Parameters
    ----------
    dy : array of shape [*b, n, *c]
        Gradient of the result.
    x : array of shape [*b, 2n, *c], or [*b, n, *c] beside `gate`
    gate : array of shape [*b, n, *c], optional
    axis, gate_first, **dispatch
        As in `glu`.

    Returns
    -------
    dx, and dgate where `gate` was given : arrays of the shapes of `x` and `gate`
        Packed as `x` is; in the layouts of the two where they are dense.

    Raises
    ------
    TypeError, ValueError
        As `glu`; `dy` of another shape than the result.

    Notes
    -----
    ``1 - s`` is evaluated as ``sigmoid(-b)``, without cancellation. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.glu_backward(np.ones(1), np.asarray([4.0, 0.0]))
    array([0.5, 1. ])
    """
    a, b = _halves(x, gate, axis, gate_first)
    on, off = sigmoid(b), sigmoid(-b)
    return _joined(dy * on, dy * a * (on * off), gate, axis, gate_first)


@_forward(kernel=Kernel("gated.cu", "Reglu", schedule="elementwise"))
def reglu(
    x: A,
    gate: Array | None = None,
    /,
    *,
    axis: int = -1,
    gate_first: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """ReLU-gated linear unit: ``a * max(b, 0)``.

    Parameters
    ----------
    x : array of shape [*b, 2n, *c], or [*b, n, *c] beside `gate`
    gate : array of shape [*b, n, *c], optional
    axis, gate_first, **dispatch
        As in `glu`.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `x`, in the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `glu`.

    Notes
    -----
    Shazeer (arXiv:2002.05202). A NaN gate gives NaN, and so does an infinite `a` behind a closed
    gate, as in ``a * torch.relu(b)``. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.reglu(np.asarray([2.0, 6.0]), np.asarray([-1.0, 0.5]))
    array([0., 3.])
    """
    a, b = _halves(x, gate, axis, gate_first)
    return a * relu(b)


@_backward(adjoint_of="reglu", kernel=Kernel("gated.cu", "RegluBackward", schedule="elementwise"))
def reglu_backward(
    dy: Array,
    x: A,
    gate: Array | None = None,
    /,
    *,
    axis: int = -1,
    gate_first: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A]:
    """Gradient of `reglu`: ``da = dy * max(b, 0)``, ``db = dy * a`` where ``b > 0``, else 0.

    Parameters
    ----------
    dy : array of shape [*b, n, *c]
        Gradient of the result.
    x : array of shape [*b, 2n, *c], or [*b, n, *c] beside `gate`
    gate : array of shape [*b, n, *c], optional
    axis, gate_first, **dispatch
        As in `glu`.

    Returns
    -------
    dx, and dgate where `gate` was given : arrays of the shapes of `x` and `gate`
        Packed as `x` is; in the layouts of the two where they are dense.

    Raises
    ------
    TypeError, ValueError
        As `glu`; `dy` of another shape than the result.

    Notes
    -----
    The slope is 0 at 0 and 1 at NaN, as in torch. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.reglu_backward(np.ones(2), np.asarray([2.0, 6.0]), np.asarray([-1.0, 0.5]))
    (array([0. , 0.5]), array([0., 6.]))
    """
    a, b = _halves(x, gate, axis, gate_first)
    xp, closed = library_of(b).xp, b <= 0
    da, db = dy * xp.where(closed, 0, b), xp.where(closed, 0, dy * a)
    return _joined(da, db, gate, axis, gate_first)


@_forward(kernel=Kernel("gated.cu", "Swiglu", schedule="elementwise"))
def swiglu(
    x: A,
    gate: Array | None = None,
    /,
    *,
    axis: int = -1,
    gate_first: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """SiLU-gated linear unit: ``a * b * sigmoid(b)``.

    Parameters
    ----------
    x : array of shape [*b, 2n, *c], or [*b, n, *c] beside `gate`
    gate : array of shape [*b, n, *c], optional
    axis, gate_first, **dispatch
        As in `glu`. HF Llama packs the gate first.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `x`, in the layout of a dense `x`.

    Raises
    ------
    TypeError, ValueError
        As `glu`.

    Notes
    -----
    Shazeer (arXiv:2002.05202). A gate of -inf gives NaN, as ``-inf * 0`` does and
    `torch.nn.functional.silu`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.swiglu(np.asarray([2.0, 3.0]), np.asarray([0.0, 1.0])).round(4)
    array([0.    , 2.1932])
    """
    a, b = _halves(x, gate, axis, gate_first)
    return a * (b * sigmoid(b))


@_backward(adjoint_of="swiglu", kernel=Kernel("gated.cu", "SwigluBackward", schedule="elementwise"))
def swiglu_backward(
    dy: Array,
    x: A,
    gate: Array | None = None,
    /,
    *,
    axis: int = -1,
    gate_first: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A]:
    """Gradient of `swiglu`: ``dy * b * s`` and ``dy * a * s * (1 + b * (1 - s))``, s the sigmoid.

    Parameters
    ----------
    dy : array of shape [*b, n, *c]
        Gradient of the result.
    x : array of shape [*b, 2n, *c], or [*b, n, *c] beside `gate`
    gate : array of shape [*b, n, *c], optional
    axis, gate_first, **dispatch
        As in `glu`.

    Returns
    -------
    dx, and dgate where `gate` was given : arrays of the shapes of `x` and `gate`
        Packed as `x` is; in the layouts of the two where they are dense.

    Raises
    ------
    TypeError, ValueError
        As `glu`; `dy` of another shape than the result.

    Notes
    -----
    ``1 - s`` is evaluated as ``sigmoid(-b)``. NaN at both infinities, as in torch. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.swiglu_backward(np.ones(1), np.asarray([4.0, 0.0]))
    array([0., 2.])
    """
    a, b = _halves(x, gate, axis, gate_first)
    on, off = sigmoid(b), sigmoid(-b)
    return _joined(dy * (b * on), dy * a * (on * (1 + b * off)), gate, axis, gate_first)


@_forward(
    options=GELU, cases=GELU_CASES, kernel=Kernel("gated.cu", "Geglu", schedule="elementwise")
)
def geglu(
    x: A,
    gate: Array | None = None,
    /,
    *,
    axis: int = -1,
    gate_first: bool = False,
    approximate: Literal["none", "tanh"] = "none",
    **dispatch: Unpack[Dispatch],
) -> A:
    """GELU-gated linear unit: ``a * b * cdf(b)``, `cdf` of the standard normal distribution.

    Parameters
    ----------
    x : array of shape [*b, 2n, *c], or [*b, n, *c] beside `gate`
    gate : array of shape [*b, n, *c], optional
    axis, gate_first, **dispatch
        As in `glu`.
    approximate : {"none", "tanh"}
        Exact, or with ``(1 + tanh(sqrt(2/pi) * (b + 0.044715 * b**3)))/2`` for `cdf`.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `x`, in the layout of a dense `x`.

    Raises
    ------
    TypeError
        As `glu`.
    ValueError
        As `glu`; `approximate` neither of the two.

    Notes
    -----
    Shazeer (arXiv:2002.05202); Hendrycks and Gimpel (arXiv:1606.08415). For negative gates the
    exact form keeps the accuracy that ``1 + erf`` loses. NaN at -inf as `swiglu`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.geglu(np.asarray([2.0, 1.0]), np.asarray([1.0, -1.0])).round(4)
    array([ 1.6827, -0.1587])
    """
    a, b = _halves(x, gate, axis, gate_first)
    return a * (b * gelu_weight(b, approximate)[0])


@_backward(
    adjoint_of="geglu",
    options=GELU,
    kernel=Kernel("gated.cu", "GegluBackward", schedule="elementwise"),
    cases=GELU_CASES,
)
def geglu_backward(
    dy: Array,
    x: A,
    gate: Array | None = None,
    /,
    *,
    axis: int = -1,
    gate_first: bool = False,
    approximate: Literal["none", "tanh"] = "none",
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A]:
    """Gradient of `geglu`: ``da = dy * b * cdf(b)``, ``db = dy * a * (cdf(b) + b * pdf(b))``.

    Parameters
    ----------
    dy : array of shape [*b, n, *c]
        Gradient of the result.
    x : array of shape [*b, 2n, *c], or [*b, n, *c] beside `gate`
    gate : array of shape [*b, n, *c], optional
    axis, gate_first, approximate, **dispatch
        As in `geglu`.

    Returns
    -------
    dx, and dgate where `gate` was given : arrays of the shapes of `x` and `gate`
        Packed as `x` is; in the layouts of the two where they are dense.

    Raises
    ------
    TypeError, ValueError
        As `geglu`; `dy` of another shape than the result.

    Notes
    -----
    `cdf` and `pdf` share their exponential. NaN at both infinities (``inf * 0``). Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.geglu_backward(np.ones(1), np.asarray([4.0, 0.0]))
    array([0., 2.])
    """
    a, b = _halves(x, gate, axis, gate_first)
    cdf, pdf = gelu_weight(b, approximate)
    return _joined(dy * (b * cdf), dy * a * (cdf + b * pdf), gate, axis, gate_first)
