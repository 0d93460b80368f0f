"""Tiles: what a block of an on-chip schedule works on. See indexed/tiles.cuh for the terms."""

from __future__ import annotations

from dataclasses import dataclass

from baracuda.backends.cuda.geometry import Dim, Packer, View, count, divisor, merged, reach, wide
from baracuda.backends.cuda.launch_plan import WIDEST, Call
from baracuda.declaration.dtypes import named

# Words of a bin on chip at one scale: cuda_src/common/exact_integers.cuh.
WORDS = {"bf16": 2, "f16": 2, "f32": 3, "f64": 5}


@dataclass(frozen=True, slots=True)
class Lanes:
    """Views of values, index and bins, split at the axis into lanes that share no bin.

    Attributes
    ----------
    across : bool
        Lanes are neighbouring columns; else rows of the last axis.
    outer : list of Dim
        Rows, or what is outside of the axis.
    count : int
        Lanes in all; ACROSS of an outer item.
    length, extent : int
        Elements and bins of a lane.
    steps : tuple of int
        Strides of the three along the axis.
    beside : int
        Stride of index from lane to lane, ACROSS.
    views : tuple of View
    """

    across: bool
    outer: list[Dim]
    count: int
    length: int
    extent: int
    steps: tuple[int, ...]
    beside: int
    views: tuple[View, View, View]

    @property
    def tiles_outside(self) -> int:
        """Outer items that have lanes of their own."""
        return count(self.outer) if self.across else 1

    def wide(self) -> bool:
        """Whether offsets or counts need 64 bits."""
        along = max(abs(s) * max(self.length, self.extent) for s in (*self.steps, 1))
        lanes = self.count if self.across else 0
        every = count(self.outer) * max(self.length, self.extent) * max(lanes, 1)
        return wide(every, reach(self.outer) + along + lanes)


def lanes_of(axis: int, values: View, index: View, bins: View) -> Lanes | None:
    """The lanes of three views; None where they do not lie as a tile needs them."""
    if index.shape[:axis] != bins.shape[:axis] or index.shape[axis + 1 :] != bins.shape[axis + 1 :]:
        return None
    views = (values, index, bins)
    steps = tuple(v.strides[axis] for v in views)
    length, extent = index.shape[axis], bins.shape[axis]
    inner = merged(index.shape[axis + 1 :], [v.strides[axis + 1 :] for v in views])
    outer = merged(index.shape[:axis], [v.strides[:axis] for v in views])
    if not inner:
        side_by_side = all(
            s == 1 for s, n in zip(steps, (length, length, extent), strict=True) if n > 1
        )
        if not side_by_side:
            return None
        return Lanes(False, outer, count(outer), length, extent, steps, 0, views)
    beside = inner[0].strides[1]
    if len(inner) > 1 or inner[0].strides not in ((1, beside, 1),) or beside not in (0, 1):
        return None
    return Lanes(True, outer, inner[0].extent, length, extent, steps, beside, views)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How lanes are cut: lanes per tile, bins per slice.

    Lines of bins are `aligned` on chip, so that they can be written in vectors, or have an odd
    pitch, so that they meet all banks.
    """

    lanes: int
    slice: int
    aligned: bool = False

    @property
    def pitch(self) -> int:
        """From one line of bins to the next, ACROSS."""
        return self.lanes if self.aligned else self.lanes | 1

    def way(self, lanes: Lanes) -> str:
        """The direction, as the kernels call it."""
        return "ACROSS" if lanes.across else "ALONG" if self.lanes > 1 else "ALONE"

    def groups(self, lanes: Lanes) -> int:
        """Tiles side by side."""
        return -(-lanes.count // self.lanes)

    def room(self, lanes: Lanes) -> int:
        """Bins of a tile in shared memory, with those for what belongs nowhere: a line of them
        ACROSS, else some behind each row."""
        # At least so much that some bins fit at scales of their own.
        if lanes.across:
            return (max(self.slice + 1, 6) * self.pitch // 4 + 1) * 4
        return self.lanes * max(-(-self.slice // 4) * 4 + 4, 16)


@dataclass(frozen=True, slots=True)
class Tiled:
    """A packed tiling: template arguments, grid and the argument struct so far."""

    packer: Packer
    values: int
    indices: int
    bins: int
    grid: tuple[int, int]
    room: int


def packed(call: Call, lanes: Lanes, tiling: Tiling) -> Tiled:
    """The arguments of TileArgs."""
    kind = named(call.problem.index_dtype or "").itemsize
    along = [s for d in lanes.outer for s in d.strides]
    starts = [along[k::3] for k in range(3)]
    if lanes.across:
        numbers = [[lanes.count, tiling.lanes, *starts[k], lanes.steps[k]] for k in range(3)]
    else:
        numbers = [[lanes.length, *starts[0]], [lanes.length, *starts[1]]]
        numbers.append([lanes.extent, tiling.slice, *starts[2]])
    # Lanes of a warp read indices side by side; more values at a time would pull them apart.
    values = divisor(numbers[0], min(call.elements(), WIDEST // kind))
    indices = divisor(numbers[1], min(values, call.elements(kind)))
    if lanes.across and lanes.beside != 1:
        indices = 1
    # Four bins at a time meet all banks; rows on chip are aligned to as many.
    aligned = tiling.aligned and tiling.way(lanes) != "ALONG"
    bins = divisor(numbers[2], call.elements() if aligned else min(call.elements(), 4))
    line = tiling.lanes if lanes.across else lanes.length
    held = tiling.lanes if lanes.across else tiling.slice
    slices = -(-lanes.extent // tiling.slice)
    groups = tiling.groups(lanes)
    room = tiling.room(lanes)
    packer = Packer(lanes.wide()).pointers(3)
    packer.add("Q", call.listener).add("q", lanes.extent)
    packer.add("I", call.ticket, tiling.lanes, tiling.slice, room)
    packer.extents(line // values, -(-held // bins), code="I")
    packer.indices(lanes.length, lanes.count, *lanes.steps, lanes.beside)
    packer.extents(groups).add(packer.unsigned, tiling.pitch).walk(lanes.outer, 3)
    grid = (groups * lanes.tiles_outside, slices)
    return Tiled(packer, values, indices, bins, grid, room)
