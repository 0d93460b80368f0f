"""Stochastic depth: whole examples are dropped from a branch, by the words of `dropout`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import choice, probability
from baracuda.declaration.values import seed as bits
from baracuda.families.philox import PART, dropped, within
from baracuda.layouts import Shape
from baracuda.libraries import A, Array

__all__ = ["stochastic_depth", "stochastic_depth_backward"]


def _numbers(shape: Shape, options: Mapping[str, Any]) -> Shape:
    """The number of an element is that of its example, or 0."""
    return (int(options["mode"] == "row"), *(0,) * (len(shape) - 1))


def _dropped(
    x: Array, p: Any, seed: Any, offset: Any, mode: str, part: tuple[Any, ...] | None
) -> Array:
    ones = (1,) * (x.ndim - 1)
    if mode == "batch":
        return dropped(x, p, seed, offset, (1, *ones))
    # Of all axes the first alone says where an example lies. It is always said, so that compilers
    # see how the words of examples are cut.
    whole, begin = (part[0], part[x.ndim]) if part else (x.shape[0], 0)
    lies = (whole, *ones, begin, *(0,) * (x.ndim - 1))
    return dropped(x, p, seed, offset, (x.shape[0], *ones), lies)


_op = partial(
    op,
    category="random",
    options={"mode": choice("row", "batch"), **PART},
    resolve=within,
    scalars={"seed": bits, "offset": bits, "p": probability},
    elementwise=True,
    numbered=_numbers,
    inplace=True,
    kernel=Kernel("random.cu", "StochasticDepth", schedule="elementwise"),
    cases=(
        Case({"n": 37, "s": (2, 4)}, p=0.25, seed=2**64 - 3, offset=1),
        Case({"n": 1, "s": (3, 7)}, p=0.5, seed=7),
        Case({"n": 9, "s": ()}, p=0.5, seed=3, offset=2**33),
        Case({"n": 3, "s": (16,)}, p=0.5, seed=1, mode="batch"),
    ),
)


@_op("x[n *s] -> y[n *s]")
def stochastic_depth(
    x: A, /, *, p: float, seed: int, offset: int = 0, mode: Literal["row", "batch"] = "row",
    part: tuple[int, ...] | None = None, **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """Set whole examples to 0 with probability `p`, and scale the others: ``x / (1 - p)``.

    Parameters
    ----------
    x : array of shape [n, *s]
        A branch that is added to a stream; float16, bfloat16, float32 or float64. Examples lie
        along axis 0.
    p : float
        From 0 to 1. It counts as a multiple of 2^-32, rounded down; 0 and 1 are exact.
    seed : int
        64 bits: from -2^63 to 2^64 - 1, negative numbers by their bits. Under `jax.jit` also a
        traced array of two uint32 words, the low one first.
    offset : int, optional
        64 bits, as `seed`. Give each layer and each step its own, as `seeds` does.
    mode : {"row", "batch"}
        Drop each example by itself, or all of them at once.
    part : tuple of int, optional
        Where `x` is a part of a larger array: the extents of that, then where `x` begins along each
        axis. Its words are those of its places in the whole. Shards are told so by themselves.
    **dispatch
        `Dispatch` options. The three numbers are run-time values, which may be arrays on a device.

    Returns
    -------
    array of shape [n, *s]
        In the layout of a dense `x`.

    Raises
    ------
    TypeError
        A dtype that is not floating; a seed or offset that is no integer.
    ValueError
        `x` without axes; `p` out of range; a seed or offset of more than 64 bits; a `part` beyond
        its whole.

    Notes
    -----
    Huang et al. (arXiv:1603.09382), with the modes of `torchvision.ops.stochastic_depth`, which
    draws from torch's own generator. An example is dropped where `dropout` of an array of shape [n]
    drops the element in its place; all are where it drops the first. The mask is the same bit for
    bit on every library, device and dtype. What is dropped is 0, also if it was NaN or infinite.
    Shards draw their own parts of it, as in `dropout`. Bit-stable.

    Under `vmap` each example of the batch has the mask of an array of its own shape.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.stochastic_depth(np.ones((4, 2)), p=0.5, seed=3)
    array([[2., 2.],
           [0., 0.],
           [0., 0.],
           [0., 0.]])
    """
    return _dropped(x, p, seed, offset, mode, part)


@_op("dy[n *s] -> dx[n *s]", adjoint_of="stochastic_depth")
def stochastic_depth_backward(
    dy: A, /, *, p: float, seed: int, offset: int = 0, mode: Literal["row", "batch"] = "row",
    part: tuple[int, ...] | None = None, **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """Gradient of `stochastic_depth`: the same function of `dy`.

    Parameters
    ----------
    dy : array of shape [n, *s]
        Gradient of the result.
    p, seed, offset, mode, part
        As in `stochastic_depth`; the values of the forward draw its mask again.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [n, *s]
        In the layout of a dense `dy`.

    Raises
    ------
    TypeError
        As `stochastic_depth`.
    ValueError
        `dy` without axes; `p` out of range; a seed or offset of more than 64 bits.

    Notes
    -----
    Linear in `dy`. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.stochastic_depth_backward(np.ones((4, 1)), p=0.5, seed=3)[:, 0]
    array([2., 0., 0., 0.])
    """
    return _dropped(dy, p, seed, offset, mode, part)
