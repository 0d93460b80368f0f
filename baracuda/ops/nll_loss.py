"""Negative log-likelihood of classes, of which logarithms of probabilities are given."""

from __future__ import annotations

from functools import partial
from typing import Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, dtype, integer, optional, shape
from baracuda.families.losses import COTANGENT, LOSS
from baracuda.families.reductions import classes, hits, picked, shares
from baracuda.libraries import A, Array, library_of

__all__ = ["nll_loss", "nll_loss_backward"]

OPTIONS = {
    "axis": integer,
    "ignore_index": integer,
    "reduction": choice("mean", "sum", "none"),
    "mode": choice("raise", "drop"),
}

TARGET = {"target": roles.index("v", ignored="ignore_index")}

_nll = partial(
    op,
    category="cross_entropy",
    cases=(
        Case({"b": (5,), "v": 9, "c": ()}),
        Case({"b": (2,), "v": 7, "c": (3,)}, axis=1, reduction="none", ignore_index=2),
        Case({"b": (2, 3), "v": 16, "c": ()}, reduction="sum", mode="drop"),
    ),
)


@_nll(
    "x[*b v@axis *c], target[*b *c] -> loss[*b *c] if reduction=none",
    "x[*b v@axis *c], target[*b *c] -> loss[] if reduction!=none",
    "x[*b v@axis *c], target[*b *c], weight[v] -> loss[*b *c] if reduction=none",
    "x[*b v@axis *c], target[*b *c], weight[v] -> loss[] if reduction!=none",
    options=OPTIONS,
    roles={**TARGET, **LOSS},
    kernel=Kernel("nll_loss.cu", "NllLoss", schedule="nll_loss"),
)
def nll_loss(
    x: A,
    target: Array,
    weight: Array | None = None,
    /,
    *,
    axis: int = -1,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Negative log-likelihood, classes last (torch: axis 1): ``-weight[target] * x[target]``.

    Parameters
    ----------
    x : array of shape [*b, v, *c]
        Logarithms of probabilities, as `log_softmax` gives them. Any floating dtype.
    target : array of shape [*b, *c]
        The right class of each row: int32 or int64, ``0 <= target < v``.
    weight : array of shape [v], optional
        Weight of each class, 1 by default. Of the dtype of `x`.
    axis : int
        Axis of the classes; negative counts from the end. The default is the last axis, where
        torch has the second.
    ignore_index : int
        Rows with this target have a loss of 0 and do not count in a mean.
    reduction : {"mean", "sum", "none"}
        "mean" is the sum over the rows that count, divided by the sum of their weights (NaN if
        no row counts). "sum" is the sum alone, "none" the loss of each row.
    mode : {"raise", "drop"}
        What a target out of range does, as in `gather`: raise, or count as ignored.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*b, *c]
        float32 of 16-bit inputs, else their dtype; C order.

    Raises
    ------
    IndexError
        A target out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `target` neither int32 nor int64; mixed libraries, devices or dtypes.
    ValueError
        Shapes that do not fit, no such axis, an option out of its range.

    Notes
    -----
    Agrees with `torch.nn.functional.nll_loss`. Of each row one element is read. Sums are taken in a
    fixed order, in float32 (float64 for float64), and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x, target = np.asarray([[-1.0, -2.0], [-3.0, -4.0]]), np.asarray([0, 1])
    >>> bc.nll_loss(x, target), bc.nll_loss(x, target, np.asarray([1.0, 3.0]))
    (array(2.5), array(3.25))
    """
    xp = library_of(x).xp
    counts, at = classes(target, x.shape[axis], ignore_index)
    each, number = shares(weight, counts, at, x.dtype)
    hit = xp.squeeze(picked(x, xp.expand_dims(at, axis=axis), axis), axis=axis)
    losses = xp.where(counts, -hit * each, 0)
    if reduction == "none":
        return losses
    return xp.sum(losses) / number if reduction == "mean" else xp.sum(losses)


@_nll(
    "dloss[*b *c], target[*b *c], x_shape(*b v@axis *c) -> dx[*b v *c] if reduction=none",
    "dloss[], target[*b *c], x_shape(*b v@axis *c) -> dx[*b v *c] if reduction!=none",
    "dloss[*b *c], target[*b *c], weight[v], x_shape(*b v@axis *c) -> dx[*b v *c]"
    " if reduction=none",
    "dloss[], target[*b *c], weight[v], x_shape(*b v@axis *c) -> dx[*b v *c] if reduction!=none",
    adjoint_of="nll_loss",
    options={**OPTIONS, "x_shape": shape, "x_dtype": optional(dtype)},
    roles={**TARGET, **COTANGENT, "dx": roles.chosen("x_dtype")},
    kernel=Kernel("nll_loss.cu", "NllLossBackward", schedule="nll_loss"),
)
def nll_loss_backward(
    dloss: A,
    target: Array,
    weight: Array | None = None,
    /,
    *,
    x_shape: tuple[int, ...],
    x_dtype: str | None = None,
    axis: int = -1,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `nll_loss`: ``-weight[target] * dloss`` at the target of every row, 0 elsewhere.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result; any floating dtype.
    target : array of shape [*b, *c]
    weight : array of shape [v], optional
        Weight of each class, 1 by default. Of the dtype of `dloss`, or 16 bits beside a float32
        `dloss`.
    axis, ignore_index, reduction, mode, **dispatch
        As in `nll_loss`.
    x_shape : tuple of int
        Shape of `x`, [*b, v, *c], on whose values nothing depends.
    x_dtype : dtype, optional
        dtype of `x`, an object of any library or the name; by default that of `weight`, or of
        `dloss` where there is no weight.

    Returns
    -------
    dx : array of shape [*b, v, *c]
        C order; 0 in rows that do not count.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `nll_loss`; shapes that do not fit `x_shape`.

    Notes
    -----
    Zeros and slopes are written in one pass. Sums of weights, for a mean, are taken in a fixed
    order, in float32 (float64 for float64). Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.nll_loss_backward(np.asarray(1.0), np.asarray([0, 1]), x_shape=(2, 2))
    array([[-0.5,  0. ],
           [ 0. , -0.5]])
    """
    library, v = library_of(dloss), x_shape[axis]
    xp = library.xp
    counts, at = classes(target, v, ignore_index)
    each, number = shares(weight, counts, at, dloss.dtype)
    if reduction == "mean":
        # A weight by the sum: a quotient by a sum that is tiny, as weights may be, overflows.
        each, dloss = (each, dloss / number) if weight is None else (each / number, dloss)
    slopes = xp.expand_dims(xp.where(counts, -dloss * each, 0), axis=axis)
    at = xp.expand_dims(at, axis=axis)
    # In place, which what is transformed does not allow.
    if v and library.readable(at) and library.readable(slopes):
        shape = (*at.shape[:axis], v, *at.shape[axis + 1 :])
        zeros = xp.zeros(shape, dtype=slopes.dtype, device=library.device_of(dloss))
        return library.put(zeros, at, slopes, axis)
    return xp.where(hits(at, axis, v), slopes, 0)
