"""Random words of elements: Philox4x32-10, a function of a seed, an offset and a place.

The generator is that of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
3" (SC 2011), with four words and ten rounds. The seed is the key. The counter has the number of a
group of eight elements in its low half, and the offset in its high half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count, pairwise
from numbers import Integral
from typing import Any, TypeAlias

from baracuda.errors import shown, value_error
from baracuda.families.numerics import stored_name, traced
from baracuda.layouts import Shape
from baracuda.libraries import Array, library_of

Word: TypeAlias = Any
"""32 bits, as an integer of Python or an array of int64."""

_TOP = 2**32 - 1
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
# Groups at a time on a host: temporaries of 256 KiB stay in a core's own cache.
_BLOCK = 1 << 15


def seeds(seed: int, /, *, step: int | Array = 0) -> Iterator[dict[str, Any]]:
    """Seed and offset of one random call after another, within a step of training.

    Parameters
    ----------
    seed : int
        Of the whole training; any 64 bits.
    step : int or array, optional
        The number of the step, from 0 to 2^32 - 1; an integer, or an integer array without axes on
        the device, which `jax.jit` may trace.

    Yields
    ------
    dict
        ``{"seed": seed, "offset": step + 2**32 * k}`` for the k-th call.

    Raises
    ------
    ValueError
        `step` out of range. What an array holds is not looked at.

    Notes
    -----
    There is no state: whoever goes on from a checkpoint, or makes a step again, gives the number of
    the step and has the same masks. A call for which the order shall not count takes an offset of
    its own instead.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> draw = bc.seeds(7, step=1200)
    >>> first, second = next(draw), next(draw)
    >>> second == {"seed": 7, "offset": 1200 + 2**32}
    True
    >>> y = bc.dropout(np.ones(8), p=0.5, **first)
    """
    if isinstance(step, Integral):
        number = int(step)
        if not 0 <= number <= _TOP:
            raise value_error("seeds", "step", "an integer from 0 to 2**32 - 1", shown(step))
        return ({"seed": seed, "offset": number + (k << 32)} for k in count())
    joined = library_of(step).joined
    return ({"seed": seed, "offset": joined(step, k)} for k in count())


def words(number: Any) -> tuple[Word, Word]:
    """The low and the high 32 bits of a number of 64.

    One that is traced is a pair of words, or an array without axes; then both are int64.
    """
    if not traced(number):
        return number & _TOP, number >> 32
    library = library_of(number)
    # With an axis of extent 1: overflow of a mere number would be an error, or a warning.
    whole = library.xp.reshape(library.xp.astype(number, library.dtype("int64")), (-1, 1))
    if whole.shape[0] > 1:
        return whole[0, ...], whole[1, ...]
    return whole[0, ...] & _TOP, (whole[0, ...] >> 32) & _TOP


def philox(counter: tuple[Word, ...], key: tuple[Word, ...]) -> tuple[Word, ...]:
    """The four words that a counter of four becomes under a key of two."""
    a, b, c, d = counter
    for turn in range(_ROUNDS):
        first, second = [(k + turn * w) & _TOP for k, w in zip(key, _WEYL, strict=True)]
        # Of a signed product that overflows, the bits are those of the unsigned one.
        left, right = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b = ((right >> 32) & _TOP) ^ b ^ first, right & _TOP
        c, d = ((left >> 32) & _TOP) ^ d ^ second, left & _TOP
    return a, b, c, d


def words_of(shape: Shape, seed: Any, offset: Any, like: Array) -> Array:
    """A word of int64 for each element of `shape`, on the device of `like`.

    The four words of a counter are eight halves. The word of an element is its half, and behind it
    the next one, which hardly ever counts: all of 32 bits at the cost of 16.
    """
    library = library_of(like)
    xp, there = library.xp, {
        "dtype": library.dtype("int64"),
        "device": library.device_of(like),
    }  # fmt: skip
    key, high = words(seed), words(offset)
    size = math.prod(shape)
    groups = max(-(-size // 8), 1)
    step = _BLOCK if library.readable(like) else groups

    def part(first: int) -> Array:
        number = xp.arange(first, min(first + step, groups), **there)
        # Of 2^35 elements on, some have more groups before them than a word counts.
        counter = (number & _TOP, number >> 32) if groups > _TOP else (number, 0)
        four = philox((*counter, *high), key)
        between = [((x << 16) & _TOP) | (y >> 16) for x, y in pairwise((*four, four[0]))]
        eight = [x for both in zip(four, between, strict=True) for x in both]
        return xp.reshape(xp.stack(eight, axis=-1), (-1,))

    parts = [part(first) for first in range(0, groups, step)]
    every = parts[0] if len(parts) == 1 else xp.concat(parts)
    return xp.reshape(every[:size], shape)


def kept(x: Array, p: Any, seed: Any, offset: Any) -> Array:
    """Where the words of the elements of `x` are not below `p` times 2^32, rounded down.

    That is everywhere for ``p = 0``, and nowhere for ``p = 1``.

    Parameters
    ----------
    x : array
    p : float, or an array without axes that nobody may read
    seed, offset : int, or what `words` takes
    """
    library = library_of(x)
    with library.wide_integers():
        word = words_of(x.shape, seed, offset, x)
        if not traced(p):
            return word >= int(p * 2.0**32)
        return word >= library.xp.astype(library.xp.floor(p * 2.0**32), word.dtype)


def stochastic(x: Array, number: int, seed: Any, offset: Any) -> Array:
    """`x`, rounded at random to what the result of this number holds, in the dtype of `x`.

    It goes away from zero where 16 bits of the word of an element, added to the bits that a dtype
    of 16 has no room for, carry into its last place: so the mean is `x`. What is not finite stays
    as it is, and so does `x` where the result is as wide, or a reference is computed. To whoever
    differentiates, this is `x`.
    """
    name, library = stored_name(number), library_of(x)
    if name not in ("float16", "bfloat16") or x.dtype != library.dtype("float32"):
        return x
    xp, held = library.xp, library.constant(x)
    with library.wide_integers():
        word = words_of(x.shape, seed, offset, x) >> 16
        by = xp.astype(word, library.dtype("int32"))
    size = xp.abs(held)
    bits = library.view(size, "int32")
    if name == "bfloat16":
        up = library.view((bits + by) & 0x7FFF0000, "float32")
    else:
        up = library.view((bits + (by >> 3)) & 0x7FFFE000, "float32")
        # The numbers of float16 below 2^-14 are multiples of 2^-24.
        steps = xp.floor(size * 2.0**24 + xp.astype(by, x.dtype) * 2.0**-16)
        up = xp.where(size < 2.0**-14, steps * 2.0**-24, up)
    rounded = xp.where(held < 0, -up, up)
    exact = (rounded == held) | ~xp.isfinite(held)
    return xp.where(exact, x, x + (rounded - xp.where(exact, 0, held)))
