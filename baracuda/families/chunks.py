"""Rows of a linear layer's inputs, cut into chunks whose outputs lie in memory one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

from baracuda.declaration.dtypes import name_of, named
from baracuda.libraries import Array, Library, library_of

# Logits of a chunk, and of how many rows it is a multiple where it can be.
_LOGITS, _ROWS = 1 << 28, 128


class Chunk(NamedTuple):
    """Some rows: their hidden states, their logits, their targets, and where they begin."""

    first: int
    hidden: Array
    logits: Array
    target: Array

    @property
    def rows(self) -> slice:
        """Which rows these are."""
        return slice(self.first, self.first + self.hidden.shape[0])


class Rows:
    """The rows of a problem, cut into chunks; `plain` where results may be written to."""

    def __init__(
        self,
        hidden: Array,
        weight: Array,
        target: Array,
        bias: Array | None,
        chunk: int | None,
        gradients: bool = False,
    ) -> None:
        self.library: Library = library_of(hidden)
        self.xp, self.shape = self.library.xp, hidden.shape
        self.weight, self.bias = weight, bias
        self.count, few = prod(target.shape), _LOGITS // max(weight.shape[0], 1)
        few = max(few // _ROWS * _ROWS, few, 1)
        # Several chunks keep the weight's gradient in float32: all logits take no more than that.
        if gradients and self.count <= 2 * hidden.shape[-1] + few:
            few = max(self.count, 1)
        self.chunk = chunk or few
        given = (hidden, weight, target) if bias is None else (hidden, weight, target, bias)
        self.plain = self.may_write(*given)
        # Axes that XLA may have spread over devices would be gathered to be one.
        apart = target.ndim > 1 and self.count <= self.chunk and not self.library.writable
        self.hidden, self.target = hidden, target
        if target.ndim != 1 and not apart:
            self.target = self.xp.reshape(target, (-1,))
            self.hidden = self.xp.reshape(hidden, (*self.target.shape, hidden.shape[-1]))
        # That in which sums are kept.
        self.wide = self.library.dtype(named(name_of(hidden.dtype)).accumulate)

    def may_write(self, *arrays: Array) -> bool:
        """Whether nothing records or transforms what is done with the arrays."""
        state = self.library.state(arrays)
        return self.library.writable and not (state and state[0])

    @property
    def whole(self) -> bool:
        """Whether all plain rows are one chunk, with nothing to add up over chunks."""
        return self.plain and self.count <= self.chunk

    def logits(self) -> Array:
        """Of all rows."""
        return self._outputs(self.hidden)

    def _outputs(self, hidden: Array) -> Array:
        """The layer's outputs of some rows."""
        return self.library.product(hidden, self.xp.matrix_transpose(self.weight), self.bias)

    def chunks(self) -> Iterator[Chunk]:
        for first in range(0, max(self.count, 1), self.chunk):
            rows = slice(first, min(first + self.chunk, self.count))
            hidden = self.hidden[rows, ...]
            yield Chunk(first, hidden, self._outputs(hidden), self.target[rows, ...])

    def added(self, dweight: Array | None, slopes: Array, hidden: Array) -> Array:
        """The gradient of the weight, and what a chunk has of it."""
        if slopes.ndim == 2:
            return self.library.add_product(dweight, self.xp.matrix_transpose(slopes), hidden)
        axes = tuple(range(slopes.ndim - 1))
        return self.xp.tensordot(self.widened(slopes), self.widened(hidden), axes=(axes, axes))

    def summed(
        self, dbias: Array | None, slopes: Array, share: Array | None = None
    ) -> Array | None:
        """The gradient of the bias, and what a chunk has of it; None where there is no bias.

        `share`, where it is given, is what the slopes of each row are multiplied by.
        """
        if self.bias is None:
            return None
        if share is None:
            # Without a widened copy of the slopes.
            axes = tuple(range(slopes.ndim - 1))
            part = self.xp.sum(slopes, axis=axes, dtype=self.wide)
        else:
            part = self.xp.reshape(self.added(None, slopes, share), (-1,))
        return part if dbias is None else dbias + part

    def widened(self, x: Array) -> Array:
        return self.xp.astype(x, self.wide, copy=False)

    def narrowed(self, x: Array) -> Array:
        return self.xp.astype(x, self.hidden.dtype, copy=False)

    def largest(self, scale: Array) -> Any:
        """The largest magnitude, or 1 where one cannot divide by that."""
        if not self.count:
            return 1.0
        most = self.xp.max(self.xp.abs(scale))
        return self.xp.where(self.xp.isfinite(most) & (most > 0), most, 1)

    def number(self, ignore_index: int) -> Array:
        """How many count."""
        xp, target = self.xp, self.target
        counts = self.library.differs(target, ignore_index)
        counts = counts & (target >= 0) & (target < self.weight.shape[0])
        return xp.astype(xp.sum(xp.astype(counts, xp.int32)), self.wide)

    def reduced(self, losses: list[Array], reduction: str, ignore_index: int) -> Array:
        """What becomes of the losses of all chunks."""
        join = self.xp.concat if losses[0].ndim else self.xp.stack
        every = join(losses) if len(losses) > 1 else losses[0]
        if reduction == "none":
            return self.xp.reshape(every, self.shape[:-1])
        total = self.xp.sum(self.widened(every))
        return total / self.number(ignore_index) if reduction == "mean" else total


class Gradients:
    """The gradients of a linear layer, from those of its outputs, chunk after chunk.

    Those of the weight and the bias are added up unrounded. Rows may have `units`: what the
    gradients of their outputs were divided by, along an axis of extent 1 in the place of the
    outputs. `scale` is the largest unit, or without units what all were divided by. `narrow` says
    that nobody asks for an unrounded sum.
    """

    def __init__(
        self, rows: Rows, units: Array | None = None, scale: Any = None, narrow: bool = False
    ) -> None:
        self._rows, self._units, self._scale = rows, units, scale
        self._rounds = rows.whole and narrow and scale is None
        self._dhidden: list[Array] = []
        self._dweight: Array | None = None
        self._dbias: Array | None = None

    def add(self, chunk: Chunk, slopes: Array, live: Array | None = None) -> None:
        """Add what a chunk has, of which `slopes` are the gradients of outputs.

        Where a row is not `live` its slopes are 0, and 0 of NaN and infinities is 0 too.
        """
        rows, hidden, share = self._rows, chunk.hidden, None
        back = rows.library.product(slopes, rows.weight)
        if live is not None:
            hidden, back = (self._held(x, live) for x in (hidden, back))
        if self._units is not None:
            part = self._units[chunk.rows, ...]
            back = rows.narrowed(rows.widened(back) * part)
            # By 1 and less, which keeps float16 in its range.
            share = part / self._scale
            hidden, share = rows.narrowed(rows.widened(hidden) * share), rows.narrowed(share)
        elif self._scale is not None:
            back = rows.narrowed(rows.widened(back) * self._scale)
        self._dhidden.append(back)
        if self._rounds:
            self._dweight = rows.library.product(rows.xp.matrix_transpose(slopes), hidden)
        else:
            self._dweight = rows.added(self._dweight, slopes, hidden)
        self._dbias = rows.summed(self._dbias, slopes, share)

    def _held(self, x: Array, live: Array) -> Array:
        # Finite elements stay, so that derivatives along cotangents of 0 are right.
        return self._rows.xp.where(live | self._rows.xp.isfinite(x), x, 0)

    def found(self) -> tuple[Array, ...]:
        """Those of the hidden states, of the weight and, where there is one, of the bias."""
        rows, dweight, dbias = self._rows, self._dweight, self._dbias
        if self._scale is not None:
            dweight = rows.library.scaled(dweight, self._scale)
            dbias = None if dbias is None else rows.library.scaled(dbias, self._scale)
        every = self._dhidden
        back = rows.xp.reshape(rows.xp.concat(every) if len(every) > 1 else every[0], rows.shape)
        return (back, dweight) if dbias is None else (back, dweight, dbias)
