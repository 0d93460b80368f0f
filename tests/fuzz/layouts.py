"""Memory for the arrays of a call: strides of any sign, overlaps, odd offsets, guard bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from baracuda.testing.cases import adapter

GUARD = 64
"""Bytes before and behind all elements that no call may change."""

# Libraries whose arrays are views of memory that we lay out.
VIEWS = ("numpy", "torch")


@dataclass(frozen=True)
class Layout:
    """Where the elements of an array are, in units of one, and `skew` bytes beside that."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    count: int
    skew: int = 0

    @property
    def apart(self) -> bool:
        """Whether every element has a place of its own, as far as strides alone show."""
        moves = sorted((abs(s), n) for s, n in zip(self.strides, self.shape, strict=True) if n > 1)
        end = 1
        for stride, extent in moves:
            if stride < end:
                return False
            end = stride * (extent - 1) + end
        return True


def draw(rng: Any, shape: tuple[int, ...], library: str, *, repeat: bool = True) -> Layout:
    """A layout that the library has; elements share places only where `repeat` allows that."""
    rank = len(shape)
    if library not in VIEWS or rng.random() < 0.3:
        return _placed(shape, _dense(shape, range(rank)), 0, 0)
    kind = rng.random()
    strides = [0] * rank
    if repeat and kind < 0.1:
        # Windows that slide over each other.
        strides = [int(s) for s in rng.integers(0, 4, rank)]
    else:
        order = rng.permutation(rank) if kind < 0.5 else np.arange(rank)
        strides = _dense(shape, order, (lambda: int(rng.integers(1, 4))) if kind > 0.3 else None)
        if repeat and kind > 0.85:
            strides = [0 if rng.random() < 0.4 else s for s in strides]
    if library == "numpy":
        strides = [-s if rng.random() < 0.3 else s for s in strides]
    skew = 1 if library == "numpy" and rng.random() < 0.15 else 0
    return _placed(shape, strides, int(rng.integers(0, 4)), skew)


def _dense(shape: Any, order: Any, step: Any = None) -> list[int]:
    """Strides with the axes of `order` from the outermost in, and gaps where `step` says so."""
    strides, span = [0] * len(shape), 1
    for axis in reversed(list(order)):
        strides[axis] = span * (step() if step else 1)
        span = strides[axis] * max(shape[axis], 1)
    return strides


def _placed(shape: tuple[int, ...], strides: list[int], shift: int, skew: int) -> Layout:
    reach = [(n - 1) * s for n, s in zip(shape, strides, strict=True) if n > 1]
    low = -sum(r for r in reach if r < 0)
    high = sum(r for r in reach if r > 0)
    return Layout(tuple(shape), tuple(strides), low + shift, low + high + shift + 1, skew)


class Memory:
    """One array of a library, and all bytes around its elements."""

    def __init__(
        self,
        layout: Layout,
        dtype: str,
        library: str,
        device: str,
        fill: Callable[[int], Any] | Any,
    ) -> None:
        """`fill` makes so many values, or is the array that the elements become."""
        self.layout, self.dtype, self.library, self.device = layout, dtype, library, device
        self.kind = adapter("numpy").dtype(dtype)
        size = self.kind.itemsize
        body = -(-(layout.skew + layout.count * size) // 16) * 16
        raw = np.full(GUARD + body + GUARD, 0xA5, np.uint8)
        if callable(fill):
            every = np.asarray(fill(layout.count)).astype(self.kind)
            start = GUARD + layout.skew
            raw[start : start + layout.count * size] = np.frombuffer(every.tobytes(), np.uint8)
        else:
            self._view(raw)[...] = fill
        self.raw: Any = raw
        if library == "numpy":
            self.array: Any = self._view(raw)
        elif library == "torch":
            import torch

            self.raw = torch.from_numpy(raw).to(device)
            flat = self.raw.view(adapter("torch").dtype(dtype))
            self.array = flat.as_strided(
                layout.shape, layout.strides, GUARD // size + layout.offset
            )
        else:
            values = np.array(self._view(raw), order="C")
            self.array = adapter(library).xp.asarray(values)
        self.before = self._bytes().copy()

    def _view(self, raw: Any) -> Any:
        size = self.kind.itemsize
        return np.ndarray(
            self.layout.shape, self.kind, raw,
            GUARD + self.layout.skew + self.layout.offset * size,
            [s * size for s in self.layout.strides],
        )  # fmt: skip

    def _bytes(self) -> Any:
        return self.raw if isinstance(self.raw, np.ndarray) else self.raw.cpu().numpy()

    def values(self) -> Any:
        """A copy of the elements as they are now, in NumPy."""
        if self.library not in VIEWS:
            return np.array(self._view(self.raw), order="C")
        return np.array(self._view(self._bytes()), order="C")

    def unharmed(self, elements_too: bool = True) -> bool:
        """Whether the bytes are as they were, those between and beside the elements at least."""
        now, before = self._bytes().copy(), self.before.copy()
        if not elements_too and math.prod(self.layout.shape):
            for raw in (now, before):
                self._view(raw)[...] = np.zeros((), self.kind)
        return bool(np.array_equal(now, before))
