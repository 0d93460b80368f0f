"""Random words of elements: Philox4x32-10, a function of a seed, an offset and a place.

The generator is that of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2,
3" (SC 2011), with four words and ten rounds. The seed is the key. The counter has the number of a
group of eight elements in its low half, and the offset in its high half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from itertools import count, pairwise
from numbers import Integral
from typing import Any, TypeAlias

import numpy as np

from baracuda.declaration.shapes import Axes
from baracuda.declaration.spec import Normaliser
from baracuda.declaration.values import optional
from baracuda.declaration.values import part as lies
from baracuda.errors import shown, value_error
from baracuda.families.numerics import stored_name, traced
from baracuda.layouts import Part, Shape, contiguous
from baracuda.libraries import Array, library_of

Word: TypeAlias = Any
"""32 bits, as an integer of Python or an array of int64, on a host of uint32."""

Finish: TypeAlias = Callable[[Array, Array], Array]
"""``(word, x) -> result`` of elements."""

_TOP = 2**32 - 1
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
PART: dict[str, Normaliser] = {"part": optional(lies)}
_ROUNDS = 10
# Groups at a time on a host: temporaries of 128 KiB stay in a core's own cache.
_BLOCK = 1 << 14
_SHIFT, _LOW = np.uint64(32), np.uint64(_TOP)


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


def words_of(
    shape: Shape, seed: Any, offset: Any, like: Array, whole: bool = False, part: Part | None = None
) -> Array:
    """A word of int64 for each element of `shape`, on the device of `like`.

    The four words of a counter are eight halves. The word of an element is its half, and behind it
    the next one, which hardly ever counts: all of 32 bits at the cost of 16. Those that are
    `whole` share nothing: a counter has four. `part` says where the array lies in another one.
    """
    library = library_of(like)
    xp, there = library.xp, {
        "dtype": library.dtype("int64"),
        "device": library.device_of(like),
    }  # fmt: skip
    key, high = words(seed), words(offset)
    size, many = math.prod(shape), 4 if whole else 8
    start = _start(shape, part)
    by_number = library.hosted and _plain(*key, *high)
    if by_number and start is not None and (host := library.hosted(library.constant(like))):
        found = _by_blocks(_widened, np.empty(0), start, size, key, high, whole)
        return xp.reshape(host[1](found), shape)
    if part or not (library.readable(like) or not shape or shape[-1] % many):
        return _words_at(shape, part or (*shape, *(0,) * len(shape)), key, high, whole, xp, there)
    groups = max(-(-size // many), 1)
    step = _BLOCK if library.readable(like) else groups

    def drawn(first: int) -> Array:
        number = xp.arange(first, min(first + step, groups), **there)
        # Of 2^35 elements on, some have more groups before them than a word counts. The mask also
        # keeps Inductor from taking the number for an index, whose products it makes in 32 bits.
        counter = number & _TOP, number >> 32 if groups > _TOP else 0
        found = _of_counter(philox((*counter, *high), key), whole)
        return xp.reshape(xp.stack(found, axis=-1), (-1,))

    parts = [drawn(first) for first in range(0, groups, step)]
    every = parts[0] if len(parts) == 1 else xp.concat(parts)
    return xp.reshape(every[:size], shape)


def _of_counter(four: tuple[Word, ...], whole: bool) -> list[Word]:
    """The words of the elements that share a counter."""
    if whole:
        return list(four)
    between = [((x << 16) & _TOP) | (y >> 16) for x, y in pairwise((*four, four[0]))]
    return [x for both in zip(four, between, strict=True) for x in both]


def _plain(*words: Any) -> bool:
    """Whether nothing of a seed and an offset is traced."""
    return all(isinstance(word, int) for word in words)


def _start(shape: Shape, part: Part | None) -> int | None:
    """The number of the first element, where they follow each other; None where they do not."""
    if not part:
        return 0
    extents, (first, *others) = part[: len(shape)], part[len(shape) :]
    if not isinstance(first, int) or extents[1:] != shape[1:] or any(x != 0 for x in others):
        return None
    return first * math.prod(shape[1:])


def _widened(word: Array, _: Array) -> Array:
    return word.astype(np.int64)


def _by_blocks(
    finish: Finish, x: Array, start: int, size: int, key: tuple[int, int], high: tuple[int, int],
    whole: bool,
) -> Array:  # fmt: skip
    """What `finish` makes of so many words, of which memory holds those of one block at a time.

    Beside them it is given the elements of `x`, if that has as many.
    """
    x, many, made = x.reshape(-1), 4 if whole else 8, None
    for first in range(0, max(size, 1), _BLOCK * many):
        part = slice(first, min(first + _BLOCK * many, size))
        group, before = divmod(start + first, many)
        end = before + part.stop - first
        words = _on_host(group, -(-end // many), key, high, whole)
        # Whoever has arrays of another library does not look for what NumPy reports.
        with np.errstate(all="ignore"):
            found = finish(words[before:end], x[part])
        made = np.empty(size, found.dtype) if made is None else made
        made[part] = found
    return made


def _on_host(
    first: int, groups: int, key: tuple[int, int], high: tuple[int, int], whole: bool
) -> Array:
    """The words of uint32 of so many counters from the first on, with the fewest passes."""
    number = np.arange(first, first + groups, dtype=np.uint64)
    a, b = number & _LOW, number >> _SHIFT
    c, d = (np.full_like(a, word) for word in high)
    left, right = np.empty_like(a), np.empty_like(a)
    for turn in range(_ROUNDS):
        # Signed products are faster, of the same bits. Of b and d the low halves count.
        for x, by, product in zip((a, c), _MULTIPLIERS, (left, right), strict=True):
            np.multiply(x.view(np.int64), np.int64(by), out=product.view(np.int64))
        for x, product, y, k, w in zip((a, c), (right, left), (b, d), key, _WEYL, strict=True):
            np.right_shift(product, _SHIFT, out=x)
            x ^= y
            x ^= np.uint64((k + turn * w) & _TOP)
            x &= _LOW
        b, right, d, left = right, b, left, d
    four = tuple([x.astype(np.uint32) for x in (a, b, c, d)])
    found = _of_counter(four, whole)
    every = np.empty((groups, len(found)), np.uint32)
    for place, word in enumerate(found):
        every[:, place] = word
    return every.reshape(-1)


def _words_at(
    shape: Shape, part: Part, key: Any, high: Any, whole: bool, xp: Any, there: dict[str, Any]
) -> Array:
    """The words by the place of each element, which a compiler can cut along any axis.

    Where a part begins may be traced along an axis that is cut evenly: at a multiple of its extent.
    """
    many, rank = 4 if whole else 8, len(shape)
    extents, begins = part[:rank], part[rank:]
    last = math.gcd(shape[-1], begins[-1]) if isinstance(begins[-1], int) else shape[-1]
    together = not math.gcd(last, extents[-1]) % many
    counts = (*shape[:-1], shape[-1] // many) if together else shape
    number: Any = 0
    for axis, (begin, step) in enumerate(zip(begins, contiguous(extents), strict=True)):
        by = many if together and axis == rank - 1 else 1
        along = xp.reshape(xp.arange(counts[axis], **there), (-1, *(1,) * (rank - 1 - axis)))
        begin = begin if isinstance(begin, int) else xp.astype(begin, there["dtype"])
        number = number + (begin + along * by) * step
    group, place = number >> (2 if whole else 3), number & (many - 1)
    far = math.prod(extents) // many > _TOP
    counter = (group & _TOP, group >> 32) if far else (group, 0)
    found = _of_counter(philox((*counter, *high), key), whole)
    if together:
        return xp.reshape(xp.stack(found, axis=-1), shape)
    # By selections: nothing is looked up, and so nothing is gathered.
    return reduce(lambda y, k: xp.where(place == k, found[k], y), range(1, many), found[0])


def within(name: str, axes: Axes, options: dict[str, Any]) -> Mapping[str, int]:
    """See that an array that is said to be a part lies in its whole."""
    part = options.get("part")
    if part:
        shape = [n for v in axes.values() for n in (v if isinstance(v, tuple) else (v,))]
        ends = zip(part, part[len(shape) :], shape, strict=False)
        if len(part) != 2 * len(shape) or any(first + n > whole for whole, first, n in ends):
            expected = f"the extents of the whole array, then where {shape} begins in it"
            raise value_error(name, "part", expected, part)
    return {}


def _finished(
    finish: Finish, x: Array, seed: Any, offset: Any, whole: bool = False, part: Part | None = None
) -> Array:
    """What `finish` makes of the word of each element of `x`, and of the element."""
    library, start = library_of(x), _start(x.shape, part)
    if library.hosted and start is not None:
        key, high = words(seed), words(offset)
        if _plain(*key, *high) and (host := library.hosted(x)):
            size = math.prod(x.shape)
            drawn = _by_blocks(finish, host[0], start, size, key, high, whole)
            return library.xp.reshape(host[1](drawn), x.shape)
    with library.wide_integers():
        return finish(words_of(x.shape, seed, offset, x, whole=whole, part=part), x)


def _keeps(word: Array, p: Any) -> Array:
    """Where a word is not below `p` times 2^32, rounded down."""
    if not traced(p):
        return word >= int(p * 2.0**32)
    xp = library_of(word).xp
    return word >= xp.astype(xp.floor(p * 2.0**32), word.dtype)


def kept(x: Array, p: Any, seed: Any, offset: Any, part: Part | None = None) -> Array:
    """Where the words of the elements of `x` are not below `p` times 2^32, rounded down.

    That is everywhere for ``p = 0``, and nowhere for ``p = 1``.

    Parameters
    ----------
    x : array
    p : float, or an array without axes that nobody may read
    seed, offset : int, or what `words` takes
    """
    return _finished(lambda word, _: _keeps(word, p), x, seed, offset, part=part)


def dropped(
    x: Array, p: Any, seed: Any, offset: Any, shape: Shape | None = None, part: Part | None = None
) -> Array:
    """0 where `kept` says no, else `x`, scaled so that the mean stays.

    Of another `shape`, and a `part` of such a one, where elements share words.
    """

    def finish(word: Array, x: Array) -> Array:
        library = library_of(x)
        xp, keep = library.xp, _keeps(word, p)
        # Where nothing is left, the quotient does not count.
        scale = xp.astype(1 / (1 - p), x.dtype) if traced(p) else 1 / (1 - p) if p < 1 else 1.0
        x = x * scale
        found = library.masked(x, keep) if library.masked else None
        return xp.where(keep, x, 0) if found is None else found

    if shape is None:
        return _finished(finish, x, seed, offset, part=part)
    with library_of(x).wide_integers():
        return finish(words_of(shape, seed, offset, x, part=part), x)


def unit(like: Array, seed: Any, offset: Any, part: Part | None = None) -> Array:
    """A multiple of 2^-24 from 0 to below 1 for each element of `like`, in its dtype."""

    def finish(word: Array, like: Array) -> Array:
        return library_of(word).xp.astype(word >> 8, like.dtype) * 2.0**-24

    return _finished(finish, like, seed, offset, whole=True, part=part)


# Wichura's AS 241 (Applied Statistics 37, 1988), PPND7: the numerators and the denominators, from
# the constant on. Near the middle they are of (0.425^2 - q^2), in both tails of what a root is
# above 1.6. No word of 32 bits is so near an end that the root is above 5.
_MIDDLE = ((3.3871327179, 50.434271938, 159.29113202, 59.109374720),
           (1.0, 17.895169469, 78.757757664, 67.187563600))  # fmt: skip
_TAIL = ((1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103),
         (1.0, 0.73700164250, 0.12021132975))  # fmt: skip


def gaussian(like: Array, seed: Any, offset: Any, part: Part | None = None) -> Array:
    """A number of the standard normal distribution for each element of `like`, in its dtype."""
    return _finished(quantile, like, seed, offset, whole=True, part=part)


def quantile(word: Array, like: Array) -> Array:
    """Where the standard normal distribution reaches (word + 1/2) 2^-32.

    It is found from the distance to 1/2 and to the nearer end, which are exact or rounded once, so
    that nothing cancels.
    """
    dtype, xp = like.dtype, library_of(word).xp
    above = word >> 31
    from_end = above * _TOP + (1 - 2 * above) * word
    to_middle = xp.astype((1 << 31) - 1 - from_end, dtype)
    sign, tail = 2 * xp.astype(above, dtype) - 1, xp.astype(from_end, dtype)
    q, p = (to_middle + 0.5) * 2.0**-32, (tail + 0.5) * 2.0**-32
    middle = q * _quotient(0.180625 - q * q, _MIDDLE)
    outside = _quotient(xp.sqrt(-xp.log(p)) - 1.6, _TAIL)
    # No selection, on which libraries stall: both are finite.
    near = xp.astype(q <= 0.425, dtype)
    return sign * (near * middle + (1 - near) * outside)


def _quotient(x: Array, coefficients: tuple[tuple[float, ...], ...]) -> Array:
    """Of two polynomials."""
    first, second = [
        reduce(lambda y, c: y * x + c, low[::-1], top * x + high)
        for *low, high, top in coefficients
    ]
    return first / second


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
