"""The logarithm of the sum of exponentials along any axis."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import DTypeLike
from baracuda.declaration.shapes import Axes
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import dtype, flag, integer, optional
from baracuda.families.reductions import largest
from baracuda.libraries import A, Array, library_of

__all__ = ["logsumexp", "logsumexp_backward"]


def _one(op: str, axes: Axes, options: dict[str, Any]) -> Mapping[str, int]:
    """The extent of an axis that is kept."""
    return {"one": 1}


_ROWS = {"axis": integer, "keepdims": flag}
_logsumexp = partial(
    op,
    category="softmax",
    resolve=_one,
    derived=("one",),
    cases=(
        Case({"b": (3,), "n": 8, "c": ()}),
        Case({"b": (), "n": 5, "c": (3,)}, axis=0, keepdims=True),
        Case({"b": (2, 3), "n": 4, "c": ()}, keepdims=True),
        Case({"b": (2,), "n": 6, "c": (3,)}, axis=1),
    ),
)


@_logsumexp(
    "x[*b n@axis *c] -> out[*b *c] if keepdims=False",
    "x[*b n@axis *c] -> out[*b one *c] if keepdims=True",
    options={**_ROWS, "dtype": optional(dtype)},
    roles={"out": roles.chosen("dtype")},
    kernel=Kernel("softmax.cu", "LogSumExp", schedule="rows"),
)
def logsumexp(
    x: A,
    /,
    *,
    axis: int = -1,
    keepdims: bool = False,
    dtype: DTypeLike | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Logarithm of the sum of exponentials along an axis: ``log(sum(exp(x)))``.

    It is computed as ``m + log(sum(exp(x - m)))`` with m the largest of a row, so that nothing
    overflows.

    Parameters
    ----------
    x : array of shape [*b, n, *c]
        Any floating dtype.
    axis : int
        The axis of extent n, along which rows lie; negative counts from the end.
    keepdims : bool
        Whether the result keeps the axis, with extent 1.
    dtype : dtype, optional
        dtype of the result: that of `x`, the default, or float32 beside 16 bits. The name, or an
        object of any library.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, *c] or, with ``keepdims=True``, [*b, 1, *c]
        dtype of `x`, or `dtype`; C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; an option of another type.
    ValueError
        No such axis; another `dtype`.

    Notes
    -----
    Agrees with `torch.logsumexp`, `jax.nn.logsumexp` and `scipy.special.logsumexp`. A row of -inf
    throughout, or of no elements, gives -inf. A row with inf gives inf, and one with NaN gives NaN.
    Computed in float32 (float64 for float64), in an order that the shape fixes, and rounded once.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.logsumexp(np.log([[1.0, 3.0], [2.0, 2.0]]), keepdims=True).round(4)
    array([[1.3863],
           [1.3863]])
    """
    xp, most = library_of(x).xp, largest(x, axis)
    most = xp.where(xp.isfinite(most), most, 0)
    out = most + xp.log(xp.sum(xp.exp(x - most), axis=axis, keepdims=True))
    return out if keepdims else xp.squeeze(out, axis=axis)


@_logsumexp(
    "dout[*b *c], x[*b n@axis *c] -> dx[*b n *c] if keepdims=False",
    "dout[*b one *c], x[*b n@axis *c] -> dx[*b n *c] if keepdims=True",
    adjoint_of="logsumexp",
    options=_ROWS,
    roles={"dout": roles.cotangent()},
    hints={"dout": "with keepdims=True dout has the axis, with keepdims=False it does not"},
    kernel=Kernel("softmax.cu", "LogSumExpBackward", schedule="rows"),
)
def logsumexp_backward(
    dout: Array,
    x: A,
    /,
    *,
    axis: int = -1,
    keepdims: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `logsumexp`: ``dout * softmax(x)``, each `dout` along its whole row.

    Parameters
    ----------
    dout : array of shape [*b, *c] or, with ``keepdims=True``, [*b, 1, *c]
        Gradient of the result; dtype of `x`, or float32 beside 16 bits.
    x : array of shape [*b, n, *c]
        The input of `logsumexp`: any floating dtype.
    axis : int
        The axis of extent n; negative counts from the end.
    keepdims : bool
        Whether `dout` has the axis, with extent 1.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `x`, C order.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes; an option of another type.
    ValueError
        No such axis; `dout` of another shape than the result.

    Notes
    -----
    A row of -inf throughout, or with NaN, has NaN as its gradient. In a row with inf, elements that
    are inf have NaN, and all others have 0. `torch.logsumexp` has the same gradients, which torch
    takes as ``exp(x - out)``. Here a row's exponentials are divided by their sum, so that shares
    add up to `dout` however large `x` is. The sum is computed again, in the order of the forward.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.logsumexp_backward(np.asarray(2.0), np.log([1.0, 3.0])).round(4)
    array([0.5, 1.5])
    """
    xp, most = library_of(x).xp, largest(x, axis)
    powers = xp.exp(x - most)
    # Beside inf all others are 0, and their sum is NaN.
    total = xp.where(most == xp.inf, 1, xp.sum(powers, axis=axis, keepdims=True))
    return (dout if keepdims else xp.expand_dims(dout, axis=axis)) * (powers / total)
