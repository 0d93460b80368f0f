"""Pooling over sliding windows of the last axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add, mul
from typing import Any, Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.shapes import Axes
from baracuda.declaration.spec import Case, Kernel, Normaliser
from baracuda.declaration.values import exponent, flag, optional, sizes
from baracuda.errors import value_error
from baracuda.families.numerics import coverings, root, square_unit, unit, usual, windows
from baracuda.libraries import A, Array, library_of

__all__ = ["lp_pool1d", "lp_pool1d_backward", "lp_pool2d", "lp_pool2d_backward"]

CASES_1D = (
    Case({"b": (2,), "l": 12}, norm_type=2, kernel_size=3),
    Case({"b": (3,), "l": 11}, norm_type=3, kernel_size=4, stride=2, ceil_mode=True),
    Case({"b": (), "l": 9}, norm_type=1, kernel_size=2, stride=3),
    Case({"b": (2,), "l": 10}, norm_type=1.5, kernel_size=3, stride=1),
    Case({"b": (2,), "l": 10}, norm_type=0.5, kernel_size=3, stride=2),
    Case({"b": (2,), "l": 10}, norm_type=math.inf, kernel_size=3, stride=2),
)
CASES_2D = (
    Case({"b": (2, 3), "h": 8, "w": 6}, norm_type=2, kernel_size=2),
    Case({"b": (2,), "h": 7, "w": 9}, norm_type=3.5, kernel_size=(3, 2), stride=(2, 3)),
    Case({"b": (2,), "h": 7, "w": 8}, norm_type=2, kernel_size=3, stride=2, ceil_mode=True),
    Case({"b": (), "h": 6, "w": 5}, norm_type=1, kernel_size=(1, 3), stride=1),
    Case({"b": (2,), "h": 6, "w": 7}, norm_type=math.inf, kernel_size=3, stride=1),
)


def _options(rank: int) -> dict[str, Normaliser]:
    return {
        "norm_type": exponent,
        "kernel_size": sizes(rank),
        "stride": optional(sizes(rank)),
        "ceil_mode": flag,
    }


def _count(extent: int, kernel: int, stride: int, ceil_mode: bool) -> int:
    """How many windows there are; in `ceil_mode` the last may reach out, but not start outside."""
    if ceil_mode:
        return min(-(-(extent - kernel) // stride), (extent - 1) // stride) + 1
    return (extent - kernel) // stride + 1


def _counts(name: str, axes: Axes, options: dict[str, Any]) -> dict[str, int]:
    """The number of windows per axis; `stride` is the kernel's size by default."""
    kernel = options["kernel_size"]
    options["stride"] = options["stride"] or kernel
    counts = {}
    names = ("l",) if "l" in axes else ("h", "w")
    for axis, k, s in zip(names, kernel, options["stride"], strict=True):
        extent: Any = axes[axis]
        if k > extent:
            raise value_error(name, "kernel_size", f"at most {axis} = {extent}", k, axes)
        counts[f"o{axis}"] = _count(extent, k, s, options["ceil_mode"])
    return counts


def _pool(x: Array, p: float, kernel: Any, stride: Any, ceil_mode: bool) -> Array:
    """The p-norm of every window."""
    xp = library_of(x).xp
    extents = x.shape[x.ndim - len(kernel) :]
    counts = [_count(*sizes, ceil_mode) for sizes in zip(extents, kernel, stride, strict=True)]

    def slide(cells: Array) -> Any:
        return windows(cells, kernel, stride, counts)

    if p == math.inf:
        # One maximum over all: a chain of pairwise ones would not share the gradient of ties.
        return xp.max(xp.stack(list(slide(x * _sign(x)))), axis=0)
    if p == 1:
        return reduce(add, slide(x * _sign(x)))
    size = xp.abs(x)
    if p > 1 and usual(size, p):
        # Each cell is raised once, not in each of its windows.
        return root(reduce(add, slide(_power(size, p))), p)
    largest = reduce(xp.maximum, slide(size))
    if p == 2:
        scale = square_unit(largest)
        share = 1 / scale
        return scale * root(reduce(add, (xp.square(cells * share) for cells in slide(x))), p)
    scale = unit(largest)
    if p < 1:
        # The cells of a window may lie so far apart that their ratio underflows, its power not.
        zero = x == 0
        powers = slide(xp.where(zero, 0, xp.where(zero, 1, size) ** p))
        return scale * root(reduce(add, powers) / scale**p, p)
    powers = (_power(cells / scale, p) for cells in slide(size))
    return scale * root(reduce(add, powers), p)


def _sign(x: Array) -> Array:
    """-1, 0 or 1; 0 at NaN. ``x * _sign(x)`` has slope 0 at 0, on which libraries' abs differ."""
    astype = library_of(x).xp.astype
    return astype(x > 0, x.dtype) - astype(x < 0, x.dtype)


def _pool_backward(dy: Array, x: Array, y: Array, p: float, kernel: Any, stride: Any) -> Array:
    """Each cell collects from the windows that contain it: nothing is scattered."""
    xp = library_of(x).xp
    x = _reached(x, dy.shape, kernel, stride)
    # A window of zeros counts as none; one with a NaN sends it to all of its cells.
    live = y > 0
    extents = x.shape[x.ndim - len(kernel) :]
    size = xp.abs(x)
    # Neither factor over- or underflows.
    if 1 < p <= 3 and usual(size, p) and usual(y, p) and usual(xp.abs(dy), 2):
        pull = xp.where(live, dy / _power(xp.where(live, y, 1), p - 1), 0)
        covering = coverings((pull,), (0.0,), extents, kernel, stride)
        total = reduce(add, (gradient for (gradient,) in covering))
        return total * (x if p == 2 else _sign(x) * _power(size, p - 1))
    dy, norm, none = xp.where(live, dy, y), xp.where(live, y, math.inf), math.inf
    if p == 2:

        def slope(norm: Array) -> Array:
            return x / norm

    else:
        sign = _sign(x)
        if p == math.inf:
            counts = dy.shape[dy.ndim - len(kernel) :]
            reach = windows(size, kernel, stride, counts)
            ties = reduce(add, (xp.astype(cells == norm, dy.dtype) for cells in reach))
            dy = dy / xp.where(ties == 0, 1, ties)
        elif p < 2 and p != 1:
            # The ratio to the norm may underflow where its power below 1 does not.
            norm, none = xp.where(live, xp.where(live, y, 1) ** (1 - p), 0), 0.0
            zero = x == 0
            size = sign * xp.where(zero, 0, xp.where(zero, 1, size) ** (p - 1))

        def slope(norm: Array) -> Array:
            if p == math.inf:
                return sign * xp.astype(size == norm, sign.dtype)
            if p == 1:
                return sign
            if p < 2:
                # Beside an infinite cell the norm is infinite, and a cell of 0 still has no slope.
                return xp.where(zero, 0, size * norm)
            return sign * _power(size / norm, p - 1)

    covering = coverings((dy, norm), (0.0, none), extents, kernel, stride)
    return reduce(add, (gradient * slope(norm) for gradient, norm in covering))


def _power(x: Array, p: float) -> Array:
    """``x ** p`` of x >= 0; small whole powers by products."""
    if p in (1, 2, 3):
        return reduce(mul, [x] * int(p))
    return x**p


def _reached(x: Array, counts: Sequence[int], kernel: Any, stride: Any) -> Array:
    """`x` with 0 in the cells that are in no window."""
    library = library_of(x)
    xp = library.xp
    for axis in range(-len(kernel), 0):
        extent, n, k, s = x.shape[axis], counts[axis], kernel[axis], stride[axis]
        if k < s or (n - 1) * s + k < extent:
            cell = xp.arange(extent, device=library.device_of(x))
            inside = (cell % s < k) & (cell < (n - 1) * s + k)
            x = xp.where(xp.reshape(inside, (extent,) + (1,) * (-1 - axis)), x, 0)
    return x


@op(
    "x[*b l] -> y[*b ol]",
    category="pooling",
    dtypes=FLOATS,
    options=_options(1),
    resolve=_counts,
    derived=("ol",),
    kernel=Kernel("pooling.cu", "LpPool", schedule="window"),
    cases=CASES_1D,
)
def lp_pool1d(
    x: A,
    /,
    *,
    norm_type: float,
    kernel_size: int | tuple[int],
    stride: int | tuple[int] | None = None,
    ceil_mode: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """The p-norm of every window along the last axis: ``(sum(abs(x)**p))**(1/p)``.

    Parameters
    ----------
    x : array of shape [*b, l]
        float16, bfloat16, float32 or float64.
    norm_type : float
        ``p > 0``; infinity is the largest absolute value.
    kernel_size : int or tuple of int
        Length of a window, at most l.
    stride : int or tuple of int, optional
        Distance of the windows; `kernel_size` by default.
    ceil_mode : bool
        Also take the windows that reach beyond the end, if they start inside. They sum what they
        have.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, ol]
        dtype of `x`, C order; ``ol = floor((l - kernel_size)/stride) + 1``, or ceil.

    Raises
    ------
    TypeError
        A dtype that is not floating; an option of the wrong type.
    ValueError
        `norm_type` not positive, or finite and above 131072; a size below 1, a window longer
        than l.

    Notes
    -----
    Powers are taken relative to the window's maximum, so that nothing over- or underflows on the
    way. NaN propagates; an infinite cell makes the norm infinite. `torch.nn.functional.lp_pool1d`
    leaves out the absolute value (even p agree) and rescales clipped windows. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.lp_pool1d(np.asarray([3.0, -4.0, 6.0, 8.0]), norm_type=2, kernel_size=2)
    array([ 5., 10.])
    """
    return _pool(x, norm_type, kernel_size, stride, ceil_mode)


@op(
    "dy[*b ol], x[*b l], y[*b ol] -> dx[*b l]",
    category="pooling",
    adjoint_of="lp_pool1d",
    dtypes=FLOATS,
    options=_options(1),
    resolve=_counts,
    derived=("ol",),
    kernel=Kernel("pooling.cu", "LpPoolBackward", schedule="window_backward"),
    cases=CASES_1D,
)
def lp_pool1d_backward(
    dy: Array,
    x: A,
    y: Array,
    /,
    *,
    norm_type: float,
    kernel_size: int | tuple[int],
    stride: int | tuple[int] | None = None,
    ceil_mode: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `lp_pool1d`: the sum of ``dy * sign(x) * (abs(x)/y)**(p - 1)`` over windows.

    Parameters
    ----------
    dy : array of shape [*b, ol]
        Gradient of the result.
    x : array of shape [*b, l]
    y : array of shape [*b, ol]
        The result of `lp_pool1d`.
    norm_type, kernel_size, stride, ceil_mode, **dispatch
        As in `lp_pool1d`.

    Returns
    -------
    array of shape [*b, l]
        dtype of `x`, C order.

    Raises
    ------
    TypeError, ValueError
        As `lp_pool1d`; `dy` or `y` of another shape than the result.

    Notes
    -----
    0 where `y` or `x` is 0, and in cells of no window. For infinite p the cells that reach the
    maximum share the gradient equally. A NaN in a window makes all of its gradient NaN. Each cell
    collects from its windows in a fixed order: bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x = np.asarray([3.0, -4.0, 6.0, 8.0])
    >>> y = bc.lp_pool1d(x, norm_type=2, kernel_size=2)
    >>> bc.lp_pool1d_backward(np.ones(2), x, y, norm_type=2, kernel_size=2)
    array([ 0.6, -0.8,  0.6,  0.8])
    """
    return _pool_backward(dy, x, y, norm_type, kernel_size, stride)


@op(
    "x[*b h w] -> y[*b oh ow]",
    category="pooling",
    dtypes=FLOATS,
    options=_options(2),
    resolve=_counts,
    derived=("oh", "ow"),
    kernel=Kernel("pooling.cu", "LpPool", schedule="window"),
    cases=CASES_2D,
)
def lp_pool2d(
    x: A,
    /,
    *,
    norm_type: float,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    ceil_mode: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """The p-norm of every window over the last two axes: ``(sum(abs(x)**p))**(1/p)``.

    Parameters
    ----------
    x : array of shape [*b, h, w]
        float16, bfloat16, float32 or float64.
    norm_type : float
        ``p > 0``; infinity is the largest absolute value.
    kernel_size : int or tuple of int
        Height and width of a window, at most h and w.
    stride : int or tuple of int, optional
        Distance of the windows; `kernel_size` by default.
    ceil_mode : bool
        As in `lp_pool1d`.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, oh, ow]
        dtype of `x`, C order; extents as in `lp_pool1d`.

    Raises
    ------
    TypeError, ValueError
        As `lp_pool1d`.

    Notes
    -----
    As `lp_pool1d`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.lp_pool2d(np.ones((2, 4)), norm_type=2, kernel_size=2)
    array([[2., 2.]])
    """
    return _pool(x, norm_type, kernel_size, stride, ceil_mode)


@op(
    "dy[*b oh ow], x[*b h w], y[*b oh ow] -> dx[*b h w]",
    category="pooling",
    adjoint_of="lp_pool2d",
    dtypes=FLOATS,
    options=_options(2),
    resolve=_counts,
    derived=("oh", "ow"),
    kernel=Kernel("pooling.cu", "LpPoolBackward", schedule="window_backward"),
    cases=CASES_2D,
)
def lp_pool2d_backward(
    dy: Array,
    x: A,
    y: Array,
    /,
    *,
    norm_type: float,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    ceil_mode: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `lp_pool2d`: the sum of ``dy * sign(x) * (abs(x)/y)**(p - 1)`` over windows.

    Parameters
    ----------
    dy : array of shape [*b, oh, ow]
        Gradient of the result.
    x : array of shape [*b, h, w]
    y : array of shape [*b, oh, ow]
        The result of `lp_pool2d`.
    norm_type, kernel_size, stride, ceil_mode, **dispatch
        As in `lp_pool2d`.

    Returns
    -------
    array of shape [*b, h, w]
        dtype of `x`, C order.

    Raises
    ------
    TypeError, ValueError
        As `lp_pool2d`; `dy` or `y` of another shape than the result.

    Notes
    -----
    As `lp_pool1d_backward`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x = np.ones((2, 4))
    >>> y = bc.lp_pool2d(x, norm_type=2, kernel_size=2)
    >>> bc.lp_pool2d_backward(np.ones((1, 2)), x, y, norm_type=2, kernel_size=2)
    array([[0.5, 0.5, 0.5, 0.5],
           [0.5, 0.5, 0.5, 0.5]])
    """
    return _pool_backward(dy, x, y, norm_type, kernel_size, stride)
