"""Philox4x32-10 in NumPy's uint64, by the paper: what random ops are held to."""

from __future__ import annotations

from typing import Any

import numpy as np

U64 = np.uint64


def philox(counter: Any, key: Any) -> Any:
    """The words of counters [n, 4] under a key of two words."""
    c = [np.asarray(counter, U64)[:, i] for i in range(4)]
    k = [int(word) for word in key]
    for _ in range(10):
        p, q = c[0] * U64(0xD2511F53), c[2] * U64(0xCD9E8D57)
        c = [
            (q >> U64(32)) ^ c[1] ^ U64(k[0]), q & U64(2**32 - 1),
            (p >> U64(32)) ^ c[3] ^ U64(k[1]), p & U64(2**32 - 1),
        ]  # fmt: skip
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return np.stack(c, -1)


def whole(size: int, seed: int, offset: int) -> Any:
    """The words of counters from 0 on, four of each."""
    seed, offset, groups = seed % 2**64, offset % 2**64, -(-size // 4)
    high = [np.full(groups, offset % 2**32), np.full(groups, offset // 2**32)]
    four = philox(
        np.stack([np.arange(groups), np.zeros(groups), *high], -1), (seed % 2**32, seed // 2**32)
    )
    return four.reshape(-1)[:size]


def masks(size: int, seed: int, offset: int) -> Any:
    """Of each element the 32 bits from its own 16 on, among the eight halves of its counter."""
    four = whole(4 * -(-size // 8), seed, offset).reshape(-1, 4)
    halves = np.stack([four >> U64(16), four & U64(0xFFFF)], -1).reshape(-1, 8)
    return (halves << U64(16) | np.roll(halves, -1, -1)).reshape(-1)[:size]


def dropped(x: Any, p: float, seed: int, offset: int) -> Any:
    """`x` scaled where it is kept, 0 elsewhere; in the dtype of `x`."""
    keep = masks(x.size, seed, offset).reshape(x.shape) >= U64(int(p * 2**32))
    return np.where(keep, x / (1 - p if p < 1 else 1), 0)
