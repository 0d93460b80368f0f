"""Rows of a linear layer's inputs, cut into chunks whose outputs lie in memory one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

from baracuda.declaration.collective import Part
from baracuda.declaration.dtypes import name_of, named
from baracuda.libraries import Array, Library, library_of

# Logits of a chunk, and of how many rows it is a multiple where it can be.
_LOGITS, _ROWS = 1 << 28, 128
# Adding a chunk to a float32 sum takes an H200 as long as the products of 250 rows, of any shapes.
_SUMMED = 4096


class Chunk(NamedTuple):
    """Some rows: their hidden states, logits and numbers, if any, and where they begin."""

    first: int
    hidden: Array
    logits: Array
    numbers: Array

    @property
    def rows(self) -> slice:
        """Which rows these are."""
        return slice(self.first, self.first + self.hidden.shape[0])


class Rows:
    """The rows of a problem, cut into chunks; `plain` where results may be written to.

    Each row may have a number of its own: its target, or its weight. With a `part` the layer has
    some of the outputs on this device. `rounds` says that the sum of the weight's gradient may be
    rounded after each chunk.
    """

    def __init__(
        self,
        hidden: Array,
        weight: Array,
        numbers: Array | None,
        bias: Array | None,
        chunk: int | None,
        gradients: bool = False,
        logits: int = _LOGITS,
        part: Part | None = None,
        rounds: bool = False,
    ) -> None:
        self.library: Library = library_of(hidden)
        self.xp, self.shape = self.library.xp, hidden.shape
        self.weight, self.bias, self.part = weight, bias, part
        self.rounds = rounds
        # Of all devices, which are to have equally many chunks.
        self.extent: int = part.extent if part else weight.shape[0]
        widest = part.widest if part else self.extent
        self.count, few = prod(self.shape[:-1]), logits // max(widest, 1)
        few = max(few // _ROWS * _ROWS, few, 1)
        # Several chunks keep the weight's gradient in float32: they are few, and all logits are one
        # chunk where they take no more than that and the logits of a chunk.
        if gradients and not rounds:
            few = max(few, hidden.shape[-1] // _ROWS * _ROWS, _SUMMED)
            few = max(self.count, 1) if self.count <= 2 * hidden.shape[-1] + few else few
        self.chunk = chunk or few
        given = [x for x in (hidden, weight, numbers, bias) if x is not None]
        self.plain = part is None and self.may_write(*given)
        # Axes that XLA may have spread over devices would be gathered to be one.
        apart = hidden.ndim > 2 and self.count <= self.chunk and not self.library.writable
        self.hidden: Array = hidden
        self.numbers: Any = numbers
        if hidden.ndim != 2 and not apart:
            self.hidden = self.xp.reshape(hidden, (self.count, hidden.shape[-1]))
            if numbers is not None:
                self.numbers = self.xp.reshape(numbers, (-1,))
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
        return map(self.at, range(0, max(self.count, 1), self.chunk))

    def at(self, first: int) -> Chunk:
        """The chunk that begins with this row."""
        hidden, numbers = self.hidden, self.numbers
        if self.count > self.chunk:
            rows = slice(first, min(first + self.chunk, self.count))
            hidden = hidden[rows, ...]
            numbers = None if numbers is None else numbers[rows, ...]
        return Chunk(first, hidden, self._outputs(hidden), numbers)

    def added(
        self, dweight: Array | None, slopes: Array, hidden: Array, rounds: bool = False
    ) -> Array:
        """The gradient of the weight, and what a chunk has of it."""
        if slopes.ndim == 2:
            add = self.library.add_rounded if rounds else self.library.add_product
            return add(dweight, self.xp.matrix_transpose(slopes), hidden)
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

    def reduced(
        self, losses: list[Array], reduction: str, number: Array | int | None = None
    ) -> Array:
        """What becomes of the losses of all chunks; a mean is their sum by the `number`."""
        join = self.xp.concat if losses[0].ndim else self.xp.stack
        every = join(losses) if len(losses) > 1 else losses[0]
        if reduction == "none":
            return self.xp.reshape(every, self.shape[:-1])
        total = self.xp.sum(self.widened(every)) if every.ndim else every
        return total / number if reduction == "mean" else total

    def results(
        self, parts: list[tuple[Array, ...]], reduction: str, number: Array | int | None = None
    ) -> tuple[Array, ...]:
        """As `reduced`: the losses of all chunks, their accuracies and the tops of their rows."""
        every = zip(parts[0], (reduction, reduction, "none"), strict=False)
        return tuple([
            self.reduced([part[i] for part in parts], how, number)
            for i, (_, how) in enumerate(every)
        ])  # fmt: skip


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
        self._rounds = rows.rounds or (rows.whole and narrow and scale is None)
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
        self._dweight = rows.added(self._dweight, slopes, hidden, self._rounds)
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
        back = rows.xp.concat(every) if len(every) > 1 else every[0]
        if back.ndim != len(rows.shape):
            back = rows.xp.reshape(back, rows.shape)
        return (back, dweight) if dbias is None else (back, dweight, dbias)


def differentiated(
    rows: Rows,
    of: Callable[[Chunk], tuple[Array, ...]],
    dloss: Array | None,
    reduction: str,
    number: Array | int | None,
) -> tuple[Array, ...]:
    """The loss of all rows, and the gradients for a cotangent, of 1 if there is none.

    `of` makes of a chunk its losses, metrics if any, and the slopes of losses along its logits,
    which may take the place of these; `number` is what a mean divides by. Gradients of the weight
    and the bias are not rounded yet: a given output may keep them as they are.
    """
    xp, each = rows.xp, None
    scale = None if dloss is None else rows.widened(dloss)
    if number is not None:
        # Where none counts the loss is NaN and the gradients are 0.
        known = not hasattr(number, "dtype")
        count = max(number, 1) if known else xp.where(number != 0, number, 1)
        scale = 1 / count if scale is None else scale / count
    elif reduction == "none" and scale is not None:
        each, scale = xp.reshape(scale, (*rows.hidden.shape[:-1], 1)), rows.largest(scale)
    parts, gradients = list[tuple[Array, ...]](), Gradients(rows, each, scale)
    for chunk in rows.chunks():
        *found, slopes = of(chunk)
        parts.append(tuple(found))
        gradients.add(chunk, slopes)
        # Before there are logits of another chunk, or a rounded gradient.
        del chunk, slopes
    return *rows.results(parts, reduction, number), *gradients.found()
