"""Random numbers in the shape of an array: functions of a seed, an offset and a place."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import at_least, finite, positive, probability
from baracuda.declaration.values import seed as bits
from baracuda.families.numerics import scaled, shifted
from baracuda.families.philox import PART, gaussian, kept, unit, within
from baracuda.libraries import A, library_of

__all__ = ["bernoulli", "normal", "uniform"]

STREAM = {"seed": bits, "offset": bits}

_op = partial(
    op,
    "x[*s] -> y[*s]",
    category="random",
    # Nothing of the values of x goes into it.
    roles={"y": roles.metric(accumulated=False)},
    options=PART,
    resolve=within,
    elementwise=True,
    numbered=True,
    inplace=True,
)
_kernel = partial(Kernel, "random.cu", schedule="elementwise")


@_op(
    scalars={**STREAM, "p": probability},
    kernel=_kernel("Bernoulli"),
    cases=(
        Case({"s": (37,)}, p=0.25, seed=2**64 - 3, offset=1),
        Case({"s": (3, 1, 7)}, p=0.5, seed=7, offset=2**33),
        Case({"s": ()}, p=1.0, seed=1),
    ),
)
def bernoulli(
    x: A, /, *, p: float, seed: int, offset: int = 0, part: tuple[int, ...] | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """Random 1 with probability `p`, else 0, in the shape of an array.

    Parameters
    ----------
    x : array of shape [*s]
        Gives shape, dtype, layout, library and device; its values do not count. float16, bfloat16,
        float32 or float64.
    p : float
        From 0 to 1. It counts as a multiple of 2^-32, rounded down; 0 and 1 are exact.
    seed : int
        64 bits: from -2^63 to 2^64 - 1, negative numbers by their bits. Under `jax.jit` also a
        traced array of two uint32 words, the low one first.
    offset : int, optional
        64 bits, as `seed`. Give each call its own, as `seeds` does.
    part : tuple of int, optional
        Where `x` is a part of a larger array: the extents of that, then where `x` begins along each
        axis. Its words are those of its places in the whole. Shards are told so by themselves.
    **dispatch
        `Dispatch` options. The three numbers are run-time values, which may be arrays on a device.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`. Nothing is differentiated.

    Raises
    ------
    TypeError
        A dtype that is not floating; a seed or offset that is no integer.
    ValueError
        `p` out of range; a seed or offset of more than 64 bits; a `part` beyond its whole.

    Notes
    -----
    It is 1 where `dropout` of these numbers drops, on the words of Philox4x32-10 (Salmon et al.,
    SC 2011) that are described there. The same bit for bit on every library, device and dtype.
    It is not `torch.bernoulli`, which takes probabilities by element and a generator. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.bernoulli(np.empty(8), p=0.5, seed=3)
    array([0., 1., 1., 1., 0., 0., 0., 1.])
    """
    xp, keep = library_of(x).xp, kept(x, p, seed, offset, part=part)
    return xp.astype(xp.logical_not(keep), x.dtype)


@_op(
    scalars={**STREAM, "low": finite, "high": at_least("low")},
    kernel=_kernel("Uniform"),
    cases=(
        Case({"s": (37,)}, seed=2**64 - 3, offset=1),
        Case({"s": (3, 1, 7)}, low=-2.0, high=3.0, seed=7, offset=2**33),
        Case({"s": ()}, seed=1),
    ),
)
def uniform(
    x: A, /, *, low: float = 0.0, high: float = 1.0, seed: int, offset: int = 0,
    part: tuple[int, ...] | None = None, **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """Random numbers that are equally likely from `low` to `high`, in the shape of an array.

    Parameters
    ----------
    x : array of shape [*s]
        Gives shape, dtype, layout, library and device; its values do not count. float16, bfloat16,
        float32 or float64.
    low, high : float, default 0 and 1
        The ends, ``low <= high``.
    seed, offset, part
        As in `bernoulli`.
    **dispatch
        `Dispatch` options. All numbers are run-time values, which may be arrays on a device.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`. Nothing is differentiated.

    Raises
    ------
    TypeError
        A dtype that is not floating; a seed or offset that is no integer.
    ValueError
        An end that is not finite, `high` below `low`; a seed or offset of more than 64 bits.

    Notes
    -----
    ``low + (high - low) * k * 2**-24`` for an integer k of 24 random bits, in float32, and in
    float64 too: every dtype has the same numbers, rounded to it. `high` itself comes by rounding
    alone. The integers are the same bit for bit on every library and device, and with 0 and 1 so
    are the results; others may differ by one rounding.

    A call of Philox4x32-10 (Salmon et al., SC 2011) gives 128 bits for four elements, 24 of 32 bits
    of each. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.uniform(np.empty(3), seed=3).round(3)
    array([0.817, 0.117, 0.656])
    """
    return shifted(scaled(unit(x, seed, offset, part), high - low), low)


@_op(
    scalars={**STREAM, "mean": finite, "std": positive(zero=True)},
    kernel=_kernel("Normal"),
    cases=(
        Case({"s": (37,)}, seed=2**64 - 3, offset=1),
        Case({"s": (3, 1, 7)}, mean=-2.0, std=0.5, seed=7, offset=2**33),
        Case({"s": ()}, seed=1),
    ),
)
def normal(
    x: A, /, *, mean: float = 0.0, std: float = 1.0, seed: int, offset: int = 0,
    part: tuple[int, ...] | None = None, **dispatch: Unpack[Dispatch],
) -> A:  # fmt: skip
    """Random numbers of a normal distribution, in the shape of an array.

    Parameters
    ----------
    x : array of shape [*s]
        Gives shape, dtype, layout, library and device; its values do not count. float16, bfloat16,
        float32 or float64.
    mean : float, default 0
        Of the distribution.
    std : float, default 1
        Its standard deviation, >= 0.
    seed, offset, part
        As in `bernoulli`.
    **dispatch
        `Dispatch` options. All numbers are run-time values, which may be arrays on a device.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `x`. Nothing is differentiated.

    Raises
    ------
    TypeError
        A dtype that is not floating; a seed or offset that is no integer.
    ValueError
        A `mean` that is not finite, a `std` below 0; a seed or offset of more than 64 bits.

    Notes
    -----
    The quantile of ``(k + 1/2) * 2**-32`` for a word k of Philox4x32-10 (Salmon et al., SC 2011),
    which gives 128 bits for four elements. Numbers reach from -6.3 to 6.3. The quantile is that of
    Wichura's algorithm AS 241 with 7 digits (Applied Statistics 37, 1988), in float64 too: within
    1e-6 of the true one, relatively. The words are the same bit for bit on every library and
    device; results in float32 agree within 4e-6, relatively. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.normal(np.empty(3), seed=3).round(3)
    array([ 0.903, -1.191,  0.402])
    """
    return shifted(scaled(gaussian(x, seed, offset, part), std), mean)
