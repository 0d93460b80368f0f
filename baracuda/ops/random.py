"""Random masks: functions of a seed, an offset and the place of an element, which store nothing."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel, Normaliser
from baracuda.declaration.values import probability
from baracuda.declaration.values import seed as bits
from baracuda.families.philox import PART, dropped, within
from baracuda.libraries import A, Array

__all__ = ["dropout", "dropout_add", "dropout_add_backward", "dropout_backward"]

MASK: dict[str, Normaliser] = {"seed": bits, "offset": bits, "p": probability}
CASES = (
    Case({"s": (37,)}, p=0.25, seed=2**64 - 3, offset=1),
    Case({"s": (3, 1, 7)}, p=0.5, seed=7),
    Case({"s": ()}, p=0.1, seed=1, offset=2**33),
)

_op = partial(
    op, category="random", options=PART, scalars=MASK, resolve=within, elementwise=True,
    numbered=True, inplace=True,
)  # fmt: skip


@_op(
    "x[*s] -> y[*s]",
    kernel=Kernel("random.cu", "Dropout", schedule="elementwise"),
    cases=CASES,
)
def dropout(
    x: A, /, *, p: float, seed: int, offset: int = 0, part: tuple[int, ...] | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """Set elements to 0 with probability `p`, and scale the others: ``x / (1 - p)``.

    Parameters
    ----------
    x : array of shape [*s]
        float16, bfloat16, float32 or float64.
    p : float
        From 0 to 1. It counts as a multiple of 2^-32, rounded down; 0 and 1 are exact.
    seed : int
        64 bits: from -2^63 to 2^64 - 1, negative numbers by their bits. Under `jax.jit` also a
        traced array of two uint32 words, the low one first.
    offset : int, optional
        64 bits, as `seed`. Masks of different offsets are independent, those of 0, 1, 2, ... too:
        give each layer and each step its own.
    part : tuple of int, optional
        Where `x` is a part of a larger array: the extents of that, then where `x` begins along each
        axis. Its words are those of its places in the whole. Shards are told so by themselves.
    **dispatch
        `Dispatch` options. All three numbers are run-time values, which may be arrays on a device.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        A dtype that is not floating; a seed or offset that is no integer.
    ValueError
        `p` out of range; a seed or offset of more than 64 bits; a `part` beyond its whole.

    Notes
    -----
    The mask is a function of seed, offset and the element's number in C order, and of nothing
    else: bit for bit the same on every library, device and dtype, for all strides. A shard of a
    torch DTensor or of a sharded JAX array draws its own part of it, and nothing is sent. It is
    never stored: `dropout_backward` draws it again. It is not torch's own mask. What is dropped is
    0, also if it was NaN or infinite; torch multiplies by 0. Bit-stable.

    A call of Philox4x32-10 (Salmon et al., SC 2011) gives 128 bits for eight elements. An element
    is dropped where 32 of these bits, beginning with its own 16, are below ``p * 2**32``. So
    neighbours within eight have a correlation of at most 2^-16, and none where `p` is a multiple of
    2^-16.

    Under `vmap` each example has the mask of an array of its own shape, as in a loop over them.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.dropout(np.ones(8), p=0.5, seed=3)
    array([2., 0., 0., 0., 2., 2., 2., 0.])
    >>> bc.dropout(np.ones(4), p=0.5, seed=3, part=(8, 4))
    array([2., 2., 2., 0.])
    """
    return dropped(x, p, seed, offset, part=part)


@_op(
    "dy[*s] -> dx[*s]",
    adjoint_of="dropout",
    kernel=Kernel("random.cu", "Dropout", schedule="elementwise"),
    cases=CASES,
)
def dropout_backward(
    dy: A, /, *, p: float, seed: int, offset: int = 0, part: tuple[int, ...] | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """Gradient of `dropout`: the same function of `dy`.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    p, seed, offset, part
        As in `dropout`; the values of the forward draw its mask again.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `dy`.

    Raises
    ------
    TypeError, ValueError
        As `dropout`.

    Notes
    -----
    Linear in `dy`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.dropout_backward(np.ones(8), p=0.5, seed=3)
    array([2., 0., 0., 0., 2., 2., 2., 0.])
    """
    return dropped(dy, p, seed, offset, part=part)


@_op(
    "x[*s], residual[*s] -> y[*s]",
    roles={"residual": roles.residual("y"), "y": roles.typed_as("residual")},
    kernel=Kernel("random.cu", "DropoutAdd", schedule="elementwise"),
    cases=CASES,
)
def dropout_add(
    x: Array, residual: A, /, *, p: float, seed: int, offset: int = 0,
    part: tuple[int, ...] | None = None, **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """Drop elements and add a residual: ``residual + dropout(x)``.

    Parameters
    ----------
    x : array of shape [*s]
        float16, bfloat16, float32 or float64.
    residual : array of shape [*s]
        dtype of `x`, or float32 beside 16 bits.
    p, seed, offset, part, **dispatch
        As in `dropout`; the mask is the same.

    Returns
    -------
    array of shape [*s]
        dtype of `residual`, in its layout where that is dense.

    Raises
    ------
    TypeError, ValueError
        As `dropout`; `x` and `residual` of different shapes.

    Notes
    -----
    The sum is rounded once; code that adds apart rounds what `dropout` leaves first. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.dropout_add(np.ones(8), np.arange(8.0), p=0.5, seed=3)
    array([2., 1., 2., 3., 6., 7., 8., 7.])
    """
    return residual + dropped(x, p, seed, offset, part=part)


@_op(
    "dy[*s] -> dx[*s]",
    adjoint_of="dropout_add",
    kernel=Kernel("random.cu", "Dropout", schedule="elementwise"),
    cases=CASES,
)
def dropout_add_backward(
    dy: A, /, *, p: float, seed: int, offset: int = 0, part: tuple[int, ...] | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """Gradient of `dropout_add` to x: that of `dropout`.

    The gradient to the residual is `dy` itself.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    p, seed, offset, part, **dispatch
        As in `dropout_backward`.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `dy`.

    Raises
    ------
    TypeError, ValueError
        As `dropout`.

    Notes
    -----
    As `dropout_backward`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.dropout_add_backward(np.ones(8), p=0.5, seed=3)
    array([2., 0., 0., 0., 2., 2., 2., 0.])
    """
    return dropped(dy, p, seed, offset, part=part)
