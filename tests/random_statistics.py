"""A battery of statistics of the random words, ours: no part of TestU01 or PractRand.

`PYTHONPATH=. python tests/random_statistics.py` draws 2^28 words for each statistic, and prints how
likely each is in a perfect generator. `--log2` takes another power of two.

- `bits`: how often each of the 16 bits that decide on an element is set.
- `halves`: chi-square of the 2^16 values that they have.
- `pairs`, `triples`: chi-square of the top 6 bits of two neighbours, of the top 4 of three.
- `lags`: correlation with the element 1 to 16, 64 and 4,096 places on.
- `runs`: chi-square of the lengths of runs of a mask of one half.
- `seeds`, `offsets`, `arrays`: correlation, and agreement of bits, between streams of neighbouring
  seeds, of neighbouring offsets, and of neighbours in a list (2^32 further).
- `whole bits`: as `bits`, of words that share nothing, of which random numbers are made.
- `whole pairs`: chi-square of the lowest 6 of 24 bits of such a word beside the top 6 of the next.
- `uniform`: chi-square of `bc.uniform` in 4,096 bins, and Kolmogorov and Smirnov's test of 2^20.
- `normal`: the same of `bc.normal` in 256 bins that are equally likely.
- `bernoulli`: how often `bc.bernoulli` is 1, for 12 probabilities.
- `avalanche`: how many bits of 128 change with one bit of a counter or key.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import baracuda as bc
from baracuda.families import philox

Halves = NDArray[np.int64]
Numbers = NDArray[np.float64]
# So many words are drawn at a time.
_PART = 1 << 22
SEED, OFFSET = 20_011, 5


def halves(size: int, seed: int = SEED, offset: int = OFFSET) -> Halves:
    """The 16 bits of each element that decide on it."""
    found: Halves = philox.words_of((size,), seed, offset, np.empty(0)) >> 16
    return found


def streams(size: int) -> Iterator[Halves]:
    """So many of them, by one offset after the other."""
    for k in range(max(size // _PART, 1)):
        yield halves(min(size, _PART), offset=OFFSET + k)


def chi_square(counts: NDArray[np.int64], shares: NDArray[np.float64] | float) -> float:
    """How likely so large a deviation of counts from their shares is."""
    want = counts.sum() * np.broadcast_to(shares, counts.shape)
    found = float(((counts - want) ** 2 / want).sum())
    # As close as never is no better than as far as never.
    return 2 * min(float(stats.chi2.sf(found, counts.size - 1)),
                   float(stats.chi2.cdf(found, counts.size - 1)))  # fmt: skip


def normal(z: NDArray[np.float64] | float) -> float:
    """How likely the largest of some standard normal numbers is."""
    every = np.abs(np.atleast_1d(z))
    return float(-np.expm1(every.size * np.log1p(-2 * stats.norm.sf(every.max()))))


def centred(x: Halves) -> NDArray[np.float64]:
    """Of mean 0 and variance 1."""
    return (x - 32767.5) / np.sqrt((2.0**32 - 1) / 12)


def bits(size: int) -> float:
    ones, count = np.zeros(16), 0
    for x in streams(size):
        ones += [float((x >> k & 1).sum()) for k in range(16)]
        count += x.size
    return normal((2 * ones - count) / np.sqrt(count))


def _of_values(size: int, low: int, together: int) -> float:
    """Chi-square of what some neighbours have above their `low` bits."""
    base, counts = 16 - low, np.zeros(2 ** ((16 - low) * together), np.int64)
    for x in streams(size):
        groups = (x[: x.size // together * together] >> low).reshape(-1, together)
        values = groups @ (2 ** (base * np.arange(together)))
        counts += np.bincount(values, minlength=counts.size)
    return chi_square(counts, 1 / counts.size)


def lags(size: int) -> float:
    steps = (*range(1, 17), 64, 4096)
    sums, counts = np.zeros(len(steps)), np.zeros(len(steps))
    for x in map(centred, streams(size)):
        sums += [float(x[:-k] @ x[k:]) for k in steps]
        counts += [x.size - k for k in steps]
    return normal(sums / np.sqrt(counts))


def runs(size: int) -> float:
    longest = 12
    counts = np.zeros(longest, np.int64)
    for x in streams(size):
        ends = np.flatnonzero(np.diff(x >> 15))
        counts += np.bincount(np.minimum(np.diff(ends), longest) - 1, minlength=longest)
    shares = 0.5 ** np.arange(1, longest + 1)
    shares[-1] *= 2
    return chi_square(counts, shares)


def _between(size: int, other: Callable[[int], Halves]) -> float:
    """Streams beside each other: correlation, and how often each bit agrees."""
    products, alike, count = 0.0, np.zeros(16), 0
    for k in range(max(size // _PART, 1)):
        n = min(size, _PART)
        x, y = halves(n, SEED, OFFSET + 2 * k), other(k)[:n]
        products += float(centred(x) @ centred(y))
        alike += [float((~(x ^ y) >> j & 1).sum()) for j in range(16)]
        count += n
    return normal(np.append((2 * alike - count), products) / np.sqrt(count))


def avalanche(size: int) -> float:
    """Each bit of the counter and of the key, from as many counters as there are words."""
    many = max(size >> 8, 64)
    words = [np.arange(many) * 7 % 2**32, *np.full((3, many), 3), *np.full((2, many), 5)]
    before = philox.philox(tuple(words[:4]), tuple(words[4:]))
    z = []
    for k in range(192):
        flipped = [w ^ (1 << k % 32) if i == k // 32 else w for i, w in enumerate(words)]
        after = philox.philox(tuple(flipped[:4]), tuple(flipped[4:]))
        changed = sum(
            int(np.bitwise_count((x ^ y).astype(np.uint64)).sum())
            for x, y in zip(before, after, strict=True)
        )
        z.append((2 * changed - 128 * many) / np.sqrt(128 * many))
    return normal(np.asarray(z))


def whole(size: int) -> Iterator[Halves]:
    """Words that share nothing, in parts."""
    for k in range(max(size // _PART, 1)):
        yield philox.words_of((min(size, _PART),), SEED, OFFSET + k, np.empty(0), whole=True)


def whole_bits(size: int) -> float:
    ones, count = np.zeros(32), 0
    for x in whole(size):
        ones += [float((x >> k & 1).sum()) for k in range(32)]
        count += x.size
    return normal((2 * ones - count) / np.sqrt(count))


def whole_pairs(size: int) -> float:
    counts = np.zeros(1 << 12, np.int64)
    for x in whole(size):
        counts += np.bincount((x[:-1] >> 8 & 63) << 6 | x[1:] >> 26, minlength=counts.size)
    return chi_square(counts, 1 / counts.size)


def _of_numbers(size: int, name: str, bins: int, share: Callable[[Numbers], Numbers]) -> float:
    """Chi-square in equally likely bins, and the largest distance of the first from their law."""
    counts, distance = np.zeros(bins, np.int64), 1.0
    for k in range(max(size // _PART, 1)):
        like = np.empty(min(size, _PART), np.float32)
        below = share(getattr(bc, name)(like, seed=SEED, offset=OFFSET + k).astype(float))
        counts += np.bincount(np.minimum((below * bins).astype(int), bins - 1), minlength=bins)
        if k == 0:
            distance = float(stats.kstest(below[: 1 << 20], "uniform").pvalue)
    return min(1.0, 2 * min(chi_square(counts, 1 / bins), distance))


def bernoulli(size: int) -> float:
    z, like = [], np.empty(min(size, _PART), np.float32)
    for k, p in enumerate(2.0 ** -np.arange(1, 13)):
        ones = float(bc.bernoulli(like, p=p, seed=SEED, offset=OFFSET + k).sum(dtype=float))
        z.append((ones - p * like.size) / np.sqrt(p * (1 - p) * like.size))
    return normal(np.asarray(z))


BATTERY: dict[str, Callable[[int], float]] = {
    "bits": bits,
    "halves": lambda n: _of_values(n, 0, 1),
    "pairs": lambda n: _of_values(n, 10, 2),
    "triples": lambda n: _of_values(n, 12, 3),
    "lags": lags,
    "runs": runs,
    "seeds": lambda n: _between(n, lambda k: halves(min(n, _PART), SEED + 1, OFFSET + 2 * k)),
    "offsets": lambda n: _between(n, lambda k: halves(min(n, _PART), SEED, OFFSET + 2 * k + 1)),
    "arrays": lambda n: _between(
        n, lambda k: halves(min(n, _PART), SEED, OFFSET + 2 * k + 2**32)
    ),
    "whole bits": whole_bits,
    "whole pairs": whole_pairs,
    "uniform": lambda n: _of_numbers(n, "uniform", 4096, lambda x: x),
    "normal": lambda n: _of_numbers(n, "normal", 256, stats.norm.cdf),
    "bernoulli": bernoulli,
    "avalanche": avalanche,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--log2", type=int, default=28)
    size = 1 << parser.parse_args().log2
    for name, statistic in BATTERY.items():
        print(f"{name:12} p = {statistic(size):.3g}", flush=True)


if __name__ == "__main__":
    main()
