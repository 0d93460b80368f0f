"""Index arithmetic as the host describes it to kernels: merged dimensions, packed as they read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import product
from math import gcd, prod
from operator import gt
from typing import NamedTuple

from baracuda.declaration.backend import Refusal
from baracuda.layouts import Shape

# Dimensions that a kernel can walk over, and pairs that it has frequencies for: cuda_src/common.
MOST_DIMS = 10
# Multiprocessors that are kept busy: those of an H200, so that sums have one order on all devices.
PROCESSORS = 132
# Beyond this 64-bit offsets are used: the last block may count past the end without overflow.
_NARROW = 2**31 - 2**22


def at_most(most: int, what: str, n: int) -> None:
    """Refuse a problem that has `n` of something of which kernels take at most so many.

    Raises
    ------
    Refusal
    """
    if n > most:
        raise Refusal(f"takes at most {most} {what}, not {n}")


class View(NamedTuple):
    """An operand of a kernel: elements of one of the arrays of a call.

    Attributes
    ----------
    slot : int
        Which array: inputs first, then outputs, then workspaces.
    offset : int
        Of the first element, in elements.
    shape, strides : tuple of int
        In elements.
    """

    slot: int
    offset: int
    shape: Shape
    strides: Shape


class Dim(NamedTuple):
    """One merged dimension: its extent, and the stride of every operand along it."""

    extent: int
    strides: Shape


def walkable(dims: Sequence[Dim], most: int = MOST_DIMS) -> None:
    """Refuse dimensions that are too many for a walk; arrays in C order have one."""
    at_most(most, "dimensions of strides that do not merge", len(dims))


def merged(shape: Shape, strides: Sequence[Shape], order: Sequence[int] | None = None) -> list[Dim]:
    """The fewest dimensions that visit the same elements, the innermost first.

    `order` names the axes from the slowest to the fastest; as they are by default.
    """
    out: list[Dim] = []
    along = list(zip(*strides, strict=True))
    for axis in reversed(range(len(shape)) if order is None else order):
        extent, steps = shape[axis], along[axis]
        if extent == 1:
            continue
        if out:
            inner, below = out[-1]
            if steps == tuple([step * inner for step in below]):
                out[-1] = Dim(inner * extent, below)
                continue
        out.append(Dim(extent, steps))
    return out


def without(shape: Shape, axis: int) -> Shape:
    """Extents or strides but that of one axis."""
    return (*shape[:axis], *shape[axis + 1 :])


def by_stride(shape: Shape, strides: Sequence[Shape]) -> Sequence[int]:
    """The axes from the slowest to the fastest of the last operand, ties broken by the others."""
    last = strides[-1]
    if all(map(gt, last, (*last[1:], 0))):
        return range(len(shape))
    keys = [[-abs(s) for s in along] for along in zip(*reversed(strides), strict=True)]
    return sorted(range(len(shape)), key=keys.__getitem__)


def reach(dims: Sequence[Dim]) -> int:
    """The largest offset of any operand, in elements."""
    if not dims:
        return 0
    spans = [[(extent - 1) * abs(s) for s in strides] for extent, strides in dims]
    return max(map(sum, zip(*spans, strict=True)))


def wide(*numbers: int) -> bool:
    """Whether counts or offsets of these sizes need 64 bits."""
    return max(numbers, default=0) >= _NARROW


def divisor(numbers: Sequence[int], most: int) -> int:
    """The largest power of two up to `most` that divides all of `numbers`."""
    return gcd(most, *numbers)


class Packer:
    """Builds the argument struct of a kernel field by field, aligned as C++ aligns it."""

    def __init__(self, wide: bool) -> None:
        self.index = "q" if wide else "i"
        self.unsigned = "Q" if wide else "I"
        self.type = "i64" if wide else "i32"
        # In native mode `struct` aligns as C++ does.
        self._codes = "@"
        self._values: list[float] = []

    def add(self, code: str, *values: float) -> Packer:
        """Append `values`, all of one struct format code."""
        self._codes += code * len(values)
        self._values += values
        return self

    def pointers(self, count: int) -> Packer:
        """Leave room for pointers, which every call fills in."""
        self._codes += "Q" * count
        self._values += [0] * count
        return self

    def scalars(self, codes: str) -> Packer:
        """Leave room for run-time values, which every call fills in."""
        self._codes += codes
        self._values += [0] * len(codes)
        return self

    def indices(self, *values: int) -> Packer:
        """Append signed indices or offsets."""
        self._codes += self.index * len(values)
        self._values += values
        return self

    def extents(self, *sizes: int, code: str = "") -> Packer:
        """Append extents with what division by them takes."""
        code = code or self.unsigned
        bits = 32 if code == "I" else 64
        for size in sizes:
            # Nothing is found in an axis of no elements, so nobody divides by its extent.
            size = max(size, 1)
            shift = (size - 1).bit_length()
            magic = ((1 << bits) * ((1 << shift) - size)) // size + 1
            self._values += (size, magic, shift)
        self._codes += 3 * len(sizes) * code
        return self

    def walk(
        self, dims: Sequence[Dim], operands: int, kind: int = 0, most: int = MOST_DIMS
    ) -> Packer:
        """Append a walk over `dims`, at most so many; see common/index.cuh for its kinds."""
        if kind == 1:
            return self.add("Q", 0)
        if kind == 2:
            self.extents(dims[0].extent)
            self.add(self.unsigned, 0)
            return self.indices(*(dims[1].strides if len(dims) > 1 else (0,) * operands))
        rest = most - len(dims)
        self.extents(*(d.extent for d in dims), *(1 for _ in range(rest)))
        self.add(self.unsigned, len(dims), 0)
        strides = [s for d in dims for s in d.strides]
        return self.indices(*strides, *[0] * (rest * operands))

    def done(self) -> bytes:
        """The struct, padded to its alignment.

        Raises
        ------
        Refusal
            Where a number does not fit its field.
        """
        try:
            return struct.pack(self._codes + "0q", *self._values)
        except struct.error:
            raise Refusal("has kernels that count in fewer bits than this problem needs") from None


def split(dims: Sequence[Dim], width: int) -> list[Dim]:
    """`dims` counted in runs of `width` along the innermost one."""
    if width == 1 or not dims:
        return list(dims)
    first = dims[0]
    inner = Dim(first.extent // width, tuple([s * width for s in first.strides]))
    return [inner, *dims[1:]]


def count(dims: Sequence[Dim]) -> int:
    """How many elements there are."""
    return prod([extent for extent, _ in dims])


def visited(dims: Sequence[Dim], operand: int) -> list[int]:
    """All offsets of an operand in the order of the walk: what kernels compute, for tests."""
    ranges = [range(d.extent) for d in reversed(dims)]
    steps = [d.strides[operand] for d in reversed(dims)]
    return [sum(i * s for i, s in zip(at, steps, strict=True)) for at in product(*ranges)]
