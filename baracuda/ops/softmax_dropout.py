"""Softmax of attention scores whose weights are dropped at random, in one pass over the scores."""

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
from baracuda.declaration.values import dtype, flag, optional, probability
from baracuda.declaration.values import seed as bits
from baracuda.errors import value_error
from baracuda.families import scores
from baracuda.families.numerics import scaled
from baracuda.families.philox import PART, dropped, within
from baracuda.families.scores import exponents
from baracuda.libraries import A, Array, library_of

__all__ = ["softmax_dropout", "softmax_dropout_backward"]


def _resolve(name: str, axes: Axes, options: dict[str, Any]) -> Mapping[str, int]:
    part, n = options["part"], axes["n"]
    if part and part[len(part) // 2 - 1] != n:
        raise value_error(name, "part", f"rows that are whole, of {n}", part)
    return {**scores.diagonal(name, axes, options), **within(name, axes, options)}


_op = partial(
    op,
    category="softmax",
    scalars={**scores.SCALE, "seed": bits, "offset": bits, "p": probability},
    hints=scores.HINTS,
    located={"causal": "b"},
    resolve=_resolve,
    numbered=True,
    cases=(
        Case({"b": (3,), "n": 9}, scale=0.7, p=0.25, seed=2**64 - 3, offset=1),
        Case({"b": (), "n": 5}, scale=-1.5, p=0.5, seed=7),
        Case({"b": (2, 3), "n": 4}, causal=True, p=0.1, seed=1, offset=2**33),
        Case({"b": (2,), "n": 4}, scale=2.0, p=1.0, seed=1),
    ),
)


def _kernel(functor: str) -> Kernel:
    return Kernel("softmax.cu", functor, schedule="rows")


@_op(
    "x[*b n] -> y[*b n]",
    "x[*b n], mask[*b? n?] -> y[*b n]",
    "x[*b n], bias[*b? n?] -> y[*b n]",
    "x[*b n], mask[*b? n?], bias[*b? n?] -> y[*b n]",
    options={**PART, "causal": flag, "dtype": optional(dtype)},
    roles={**scores.BESIDE, "y": roles.chosen("dtype")},
    kernel=_kernel("SoftmaxDropout"),
)
def softmax_dropout(
    x: A,
    mask: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    p: float,
    seed: int,
    offset: int = 0,
    part: tuple[int, ...] | None = None,
    scale: float = 1.0,
    causal: bool = False,
    dtype: DTypeLike | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Drop shares of a softmax along the last axis: ``dropout(softmax(x))``, as attention does.

    Parameters
    ----------
    x : array of shape [*b, n]
        Scores, in any floating dtype.
    mask : boolean array of the rank of `x`, optional
        True where an element counts; its extents are those of `x`, or 1.
    bias : array of the rank of `x`, optional
        Added to ``scale * x``, as in `softmax`; of the dtype of `x`, or float32 beside 16 bits.
    p : float
        The probability to drop an element, from 0 to 1. It counts as a multiple of 2^-32, rounded
        down; 0 and 1 are exact.
    seed, offset : int
        64 bits each, as in `dropout`: give each layer and each step an offset of its own.
    part : tuple of int, optional
        Where `x` is a part of a larger array: the extents of that, then where `x` begins along each
        axis. Its words are those of its places in the whole. Shards are told so by themselves.
        Along the last axis it is whole.
    scale : float
        A run-time value.
    causal : bool
        Of a row q of the last two axes, [.., Q, K], entries up to ``q + K - Q`` count.
    dtype : dtype, optional
        dtype of the result: that of `x`, the default, or float32 beside 16 bits. The name, or an
        object of any library.
    **dispatch
        `Dispatch` options. The four numbers are run-time values, which may be arrays on a device.

    Returns
    -------
    array of shape [*b, n]
        C order; 0 where an element does not count, or is dropped.

    Raises
    ------
    TypeError
        As `softmax`; a seed or offset that is no integer.
    ValueError
        As `softmax`; `p` out of range; a seed or offset of more than 64 bits; a `part` beyond its
        whole, or of rows.

    Notes
    -----
    With the softmax ``s`` of ``z = scale * x + bias``, and m, which is ``1 / (1 - p)`` where an
    element stays and 0 where it is dropped: ``y = s * m``. The mask is that of `dropout` for an
    array of the shape of `x`: bit for bit the same on every library, device and dtype, and in
    shards. What is dropped is 0, also in a row of NaN. A row of which nothing counts gives 0.
    Bit-stable.

    The product is rounded once; code that calls `softmax` and then `dropout` rounds each.

    Nothing is saved for the gradient but what was given: `softmax_dropout_backward` computes ``s``
    again from `x`, and draws the mask again, as FlashAttention does. Both passes together read and
    write five arrays of the size of `x`. With ``s`` as a second result they would be six, and two
    ops of their own make nine. Where an autograd engine asks for the gradient of `bias`, it
    differentiates the definition.

    Under `vmap` each example has the mask of an array of its own shape.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.softmax_dropout(np.zeros((2, 4)), p=0.5, seed=3)
    array([[0.5, 0. , 0. , 0. ],
           [0.5, 0.5, 0.5, 0. ]])
    """
    z, keep = exponents(x, mask, bias, scale, causal)
    return dropped(library_of(x).softmax(z, -1, keep), p, seed, offset, part=part)


@_op(
    "dy[*b n], x[*b n] -> dx[*b n]",
    "dy[*b n], x[*b n], mask[*b? n?] -> dx[*b n]",
    "dy[*b n], x[*b n], bias[*b? n?] -> dx[*b n]",
    "dy[*b n], x[*b n], mask[*b? n?], bias[*b? n?] -> dx[*b n]",
    options={**PART, "causal": flag},
    roles={**scores.BESIDE, "dy": roles.cotangent()},
    adjoint_of="softmax_dropout",
    kernel=_kernel("SoftmaxDropoutBackward"),
)
def softmax_dropout_backward(
    dy: Array,
    x: A,
    mask: Array | None = None,
    bias: Array | None = None,
    /,
    *,
    p: float,
    seed: int,
    offset: int = 0,
    part: tuple[int, ...] | None = None,
    scale: float = 1.0,
    causal: bool = False,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `softmax_dropout` to x: ``scale * s * (m * dy - sum(m * dy * s))``.

    `softmax_dropout` says what ``s`` and ``m`` are.

    Parameters
    ----------
    dy : array of shape [*b, n]
        Gradient of the result; dtype of `x`, or float32 beside 16 bits.
    x : array of shape [*b, n]
    mask : boolean array of the rank of `x`, optional
    bias : array of the rank of `x`, optional
        As in `softmax_dropout`.
    p, seed, offset, part, scale, causal
        As in `softmax_dropout`; the values of the forward draw its mask again.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, n]
        dtype of `x`, C order; 0 where an element does not count.

    Raises
    ------
    TypeError, ValueError
        As `softmax_dropout`; `dy` and `x` of different shapes.

    Notes
    -----
    A dropped element of `dy` does not matter, but its share does: it has a gradient where another
    of its row stays. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> dy = np.asarray([[1.0, 5.0, 5.0, 5.0]])
    >>> bc.softmax_dropout_backward(dy, np.zeros((1, 4)), p=0.5, seed=3)
    array([[ 0.375, -0.125, -0.125, -0.125]])
    """
    z, keep = exponents(x, mask, bias, scale, causal)
    library = library_of(x)
    s, g = library.softmax(z, -1, keep), dropped(dy, p, seed, offset, part=part)
    return scaled(s * (g - library.xp.sum(s * g, axis=-1, keepdims=True)), scale)
