"""Elements joined with what is there: sums, means, maxima, minima and products by an index."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, flag, integer
from baracuda.families.indexing import combined, inside, looked_up
from baracuda.families.numerics import has_slopes, scatter_add
from baracuda.layouts import Shape
from baracuda.libraries import A, Array, library_of

__all__ = ["scatter_reduce", "scatter_reduce_backward"]

INDEX = {"index": roles.index("n")}
LINE: dict[str, int | Shape] = {"b": (), "n": 7, "c": (), "i": (), "k": 12, "j": ()}
PLANES: dict[str, int | Shape] = {"b": (3,), "n": 5, "c": (4,), "i": (2,), "k": 9, "j": (4,)}
ROWS: dict[str, int | Shape] = {"b": (2, 3), "n": 6, "c": (), "i": (2, 2), "k": 4, "j": ()}

_op = partial(
    op,
    category="indexing",
    options={
        "axis": integer,
        "reduction": choice("sum", "mean", "max", "min", "prod"),
        "include_self": flag,
        "mode": choice("raise", "drop"),
    },
    cases=(
        Case(PLANES, axis=1, reduction="sum", include_self=False),
        Case(ROWS, axis=-1, reduction="mean", mode="drop"),
        Case(LINE, axis=0, reduction="mean", include_self=False),
        Case(PLANES, axis=1, reduction="max"),
        Case(ROWS, axis=-1, reduction="min", include_self=False, mode="drop"),
        Case(LINE, axis=0, reduction="prod"),
        Case(LINE, axis=0, reduction="sum"),
    ),
)


@_op(
    "x[*b n@axis *c], index[*i<=b k *j<=c], src[*i k *j] -> out[*b n *c]",
    roles={**INDEX, "out": roles.typed_as("x")},
    inplace=True,
    kernel=Kernel("indexing.cu", "", schedule="combine", lacks=("reduction", "prod")),
)
def scatter_reduce(
    x: A,
    index: Array,
    src: Array,
    /,
    *,
    axis: int,
    reduction: Literal["sum", "mean", "max", "min", "prod"],
    include_self: bool = True,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Reduce elements into places of an index: ``out[index[i, j], j] max= src[i, j]``.

    Parameters
    ----------
    x : array of shape [*b, n, *c]
        The values before; float16, bfloat16, float32 or float64.
    index : array of shape [*i, k, *j]
        int32 or int64, of the rank of `x`; off `axis` no larger than `x`. Where along `axis` each
        element of `src` goes, ``0 <= i < n``; entries may repeat.
    src : array of shape [*i, k, *j]
        The elements; dtype of `x`.
    axis : int
        The axis of `x` that has n elements; negative counts from the end.
    reduction : {"sum", "mean", "max", "min", "prod"}
        How the elements that go to one place are joined.
    include_self : bool
        Whether the element of `x` takes part where others come. Without, it is replaced there.
        Where none comes it stays, either way.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or join nothing. On a GPU nothing waits, and the
        error comes with the next call on that device or from `check_errors`. Under transforms of
        JAX and `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n, *c]
        dtype of `x`, C order. A given `out` may be `x` itself.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `x` not floating, `index` neither int32 nor int64; mixed libraries, devices or dtypes.
    ValueError
        `index` and `src` of different shapes, or larger than `x` off the axis; no such axis;
        another `reduction`.

    Notes
    -----
    Same as `torch.scatter_reduce` for `src` of the shape of `index`, where "max" is ``"amax"`` and
    "min" is ``"amin"``. Sums, means and products are kept in float32 (float64 for float64) and
    rounded once. A maximum or minimum is NaN where one of its elements is.

    Deterministic on the host and on NVIDIA GPUs. The kernels add in the forms of `gather_backward`
    whose order is fixed, count in integers, and find maxima and minima as those of integers that
    are ordered as the numbers are. Products have no kernel: on every device the body makes them.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x, at, src = np.ones(3), np.asarray([2, 0, 2]), np.asarray([5.0, 6.0, 7.0])
    >>> bc.scatter_reduce(x, at, src, axis=0, reduction="max")
    array([6., 1., 7.])
    >>> bc.scatter_reduce(x, at, src, axis=0, reduction="mean", include_self=False)
    array([6., 1., 6.])
    """
    xp = library_of(x).xp
    if reduction in ("max", "min"):
        sign = 1 if reduction == "max" else -1
        return sign * _most(sign * x, index, sign * src, axis, include_self, mode == "raise")
    if reduction == "prod":
        found, many = combined(src, index, axis, x.shape, "prod")
        return found * (x if include_self else xp.where(many > 0, 1, x))
    total = scatter_add(src, index, axis, x.shape)
    if include_self and reduction == "sum":
        return x + total
    many = scatter_add(xp.ones_like(src), index, axis, x.shape)
    total = total + (x if include_self else xp.where(many > 0, 0, x))
    return total if reduction == "sum" else total / _count(many, include_self)


def _count(many: Array, include_self: bool) -> Array:
    """By how many a mean is divided."""
    return many + 1 if include_self else library_of(many).xp.where(many > 0, many, 1)


def _same(x: Array, y: Array) -> Array:
    """Where elements are equal, as NaN is to NaN."""
    return (x == y) | ((x != x) & (y != y))


def _most(
    x: Array, index: Array, src: Array, axis: int, include_self: bool, checked: bool
) -> Array:
    """The maximum of what lands in each place, `x` among it or where nothing does."""
    library = library_of(x)
    xp = library.xp
    found, many = combined(src, index, axis, x.shape)
    start = x if include_self else xp.where(many > 0, -inf, x)
    top = xp.maximum(start, found)
    if not has_slopes(x):
        return top
    # Libraries share the slope of a maximum of several by halves.
    top = library.constant(top)
    own = _same(start, top)
    hit = _same(src, looked_up(top, index, axis, checked)) & inside(index, x.shape[axis])
    still = [xp.where(on, y - library.constant(y), 0) for on, y in ((own, x), (hit, src))]
    ties = xp.astype(own, x.dtype) + scatter_add(xp.astype(hit, x.dtype), index, axis, x.shape)
    moved = still[0] + scatter_add(still[1], index, axis, x.shape)
    # Of infinities the difference is no number, and there is no slope.
    return top + xp.where(xp.isfinite(top), moved / xp.where(ties > 0, ties, 1), 0)


@_op(
    "dout[*b n@axis *c], x[*b n *c], index[*i<=b k *j<=c], src[*i k *j], out[*b n *c] "
    "-> dx[*b n *c], dsrc[*i k *j]",
    adjoint_of="scatter_reduce",
    roles=INDEX,
    kernel=Kernel("indexing.cu", "", schedule="combine_backward", lacks=("reduction", "prod")),
)
def scatter_reduce_backward(
    dout: Array,
    x: A,
    index: Array,
    src: Array,
    out: Array,
    /,
    *,
    axis: int,
    reduction: Literal["sum", "mean", "max", "min", "prod"],
    include_self: bool = True,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Gradients of `scatter_reduce`; elements that tie for a maximum share it evenly.

    Parameters
    ----------
    dout : array of shape [*b, n, *c]
        Gradient of the result; dtype of `x`.
    x : array of shape [*b, n, *c]
        The values before; float16, bfloat16, float32 or float64.
    index : array of shape [*i, k, *j]
        int32 or int64, of the rank of `x`: where each element went.
    src : array of shape [*i, k, *j]
        The elements; dtype of `x`.
    out : array of shape [*b, n, *c]
        Result of `scatter_reduce`; dtype of `x`. Read for "max" and "min" alone.
    axis : int
        The axis of `x` that has n elements; negative counts from the end.
    reduction : {"sum", "mean", "max", "min", "prod"}
        How the elements were joined.
    include_self : bool
        Whether the element of `x` took part where others came.
    mode : {"raise", "drop"}
        What an entry out of range does: raise, or have a gradient of 0.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    dx : array of shape [*b, n, *c]
        dtype of `x`, C order.
    dsrc : array of shape [*i, k, *j]
        dtype of `x`, C order.

    Raises
    ------
    IndexError
        An entry out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `x` not floating, `index` neither int32 nor int64; mixed libraries, devices or dtypes.
    ValueError
        Shapes that do not fit, no such axis, another `reduction`.

    Notes
    -----
    As torch's, which counts `x` among ties with ``include_self=False`` too, where it takes no part.
    Where a maximum is NaN, the elements that are NaN share its gradient. A product of which one
    factor is 0 has a slope along this factor alone, and of which two are 0 none. Deterministic on
    the host and on NVIDIA GPUs: elements and ties are counted in integers. Products have no kernel.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x, at, src = np.ones(2), np.asarray([1, 0, 1]), np.asarray([5.0, 1.0, 5.0])
    >>> out = bc.scatter_reduce(x, at, src, axis=0, reduction="max")
    >>> bc.scatter_reduce_backward(np.ones(2), x, at, src, out, axis=0, reduction="max")
    (array([0.5, 0. ]), array([0.5, 0.5, 0.5]))
    """
    xp, there = library_of(x).xp, inside(index, x.shape[axis])

    def each(y: Array) -> Array:
        return looked_up(y, index, axis, mode == "raise")

    def landed(y: Array) -> Array:
        return scatter_add(xp.astype(y, x.dtype), index, axis, x.shape)

    if reduction == "prod":
        zero, none = src == 0, x == 0
        rest, _ = combined(xp.where(zero, 1, src), index, axis, x.shape, "prod")
        zeros = landed(zero)
        if include_self:
            rest, zeros = rest * xp.where(none, 1, x), zeros + xp.astype(none, x.dtype)
        dsrc = each(dout) * _without(each(rest), src, each(zeros))
        dsrc, own = xp.where(there, dsrc, 0), dout * _without(rest, x, zeros)
    elif reduction in ("max", "min"):
        # Where an element landed, one at least is the result.
        there = _same(src, each(out)) & there
        ties = landed(there)
        if include_self:
            ties = ties + xp.astype(_same(x, out), x.dtype)
        share = dout / xp.where(ties > 0, ties, 1)
        dsrc, own = xp.where(there, each(share), 0), xp.where(_same(x, out), share, 0)
    else:
        # Divided by 1, too, a result is no argument.
        share = own = dout / (_count(landed(there), include_self) if reduction == "mean" else 1)
        dsrc = each(share)
    return own if include_self else xp.where(landed(there) > 0, 0, dout), dsrc


def _without(product: Array, factor: Array, zeros: Array) -> Array:
    """The product of the others, by that of all factors but zeros, and how many zeros there are."""
    xp = library_of(factor).xp
    of_zero = xp.where(zeros == 1, product, 0)
    return xp.where(factor == 0, of_zero, xp.where(zeros == 0, product / factor, 0))
