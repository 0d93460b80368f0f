"""Heads of q and k, a row each: normalised, scaled, and turned by the angles of their position.

What has heads are the inputs of the most axes: q and k, in a gradient behind the cotangents of both
results. Parameters scale them. Angles come from tables or from positions.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import (
    PROCESSORS,
    Dim,
    Packer,
    View,
    at_most,
    divisor,
    merged,
    walkable,
)
from baracuda.backends.cuda.launch_plan import THREADS, WIDEST, Call, Step, Steps, flag
from baracuda.backends.cuda.schedules import reduce
from baracuda.backends.cuda.schedules.rope import pack_frequencies
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dtypes import named
from baracuda.layouts import Shape

# common/angles.cuh: pairs of which a launch computes the angles.
_MOST_PAIRS = 160
# common/heads.cuh: dimensions of positions; chunks of a lane, and their bytes in each of two parts,
# beyond which no registers are left.
_MOST_DIMS, _MOST_HELD, _MOST_BYTES = 5, 8, 64
# What 32 bits count, with room for one more step.
_MOST_HEADS = 1 << 30
_WARP = 32
# Bytes on chip beside those that a launch asks for: offsets, and frequencies.
_NEAR = 4 << 10


class Tuning(NamedTuple):
    """What heads take of an architecture.

    Attributes
    ----------
    resident : int
        Blocks that leave sums, of each multiprocessor.
    warps : int
        Warps of a multiprocessor that a call has at least, where its heads are enough: fewer
        positions are cut into slices of their heads.
    """

    resident: int
    warps: int


SM_90 = Tuning(resident=2, warps=16)
TUNINGS = {"sm_90": SM_90}


class Chunks(NamedTuple):
    """How a head is cut: chunks of two parts, whose pairs turn.

    Attributes
    ----------
    width : int
        Elements of a part.
    turning, still : int
        Chunks that turn, and those that pass through.
    half, apart : int
        From the first part to the second, of either, where these are not side by side.
    lanes, held : int
        Lanes of a head, and chunks of a lane.
    """

    width: int
    turning: int
    still: int
    half: int
    apart: int
    lanes: int
    held: int


def chunks(length: int, rotary: int, widest: int, size: int) -> Chunks:
    """How heads are cut into parts of at most the `widest` elements, of `size` bytes on chip.

    What the arrays are aligned to makes no difference, so that sums have one order.

    Raises
    ------
    Refusal
        For heads of more than a warp holds.
    """
    half, apart = rotary // 2, -(-(length - rotary) // 2)
    width = 1 if length % 2 else divisor((half, apart), widest)
    turning, still = half // width, apart // width
    many = turning + still
    lanes = min(1 << max(many - 1, 0).bit_length(), _WARP)
    held = 1 << max(-(-many // lanes) - 1, 0).bit_length()
    most = min(_MOST_HELD, _MOST_BYTES // (width * size))
    at_most(_WARP * most * 2 * width, "elements of a head", length)
    return Chunks(width, turning, still, half, apart, lanes, held)


class Operands(NamedTuple):
    """The arrays of a call: of q and of k, but for the loads in their order.

    Attributes
    ----------
    loads : list of View
        q and k, behind the cotangents of both results.
    outs, scales, angles : list of View
        Angles are two tables, positions, or none.
    """

    loads: list[View]
    outs: list[View]
    scales: list[View]
    angles: list[View]

    @property
    def rows(self) -> list[View]:
        """What has heads."""
        return [*self.loads, *self.outs]


def operands(call: Call) -> Operands:
    """The arrays of a call, by their roles."""
    problem, spec = call.problem, call.problem.spec
    wide = {x.name: spec.role(x.name).wide for x in problem.given}
    rows = [call.view(n) for n, kind in wide.items() if not kind and n not in spec.discrete]
    angles = [call.view(n) for n, kind in wide.items() if kind == "table" or n in spec.integers]
    return Operands(
        rows, [call.out(0), call.out(1)],
        [call.view(n) for n, kind in wide.items() if kind == "parameter"], angles,
    )  # fmt: skip


def plan(call: Call) -> Steps:
    """One kernel, and one more where the gradients of the weights are added up."""
    of, tuning = operands(call), call.facts.tuned(TUNINGS)
    options, size = call.problem.options, named(call.accumulate_dtype).itemsize
    *places, heads, length = of.loads[0].shape
    cut = chunks(length, options["rotary_dim"], WIDEST // call.itemsize, size)
    many, summed = [heads, of.loads[1].shape[-2]], len(call.outs) > 2
    at_most(_MOST_HEADS, "heads", max(many))
    # A warp has as many heads at once as it has runs of lanes.
    together = _WARP // cut.lanes
    positions, steps = prod(places), max(-(-n // together) for n in many)
    slices = max(min(steps, -(-PROCESSORS * tuning.warps // max(positions, 1))), 1)
    tasks = positions * slices if length and steps else 0
    threads, shared = _room(call, cut, size, summed)
    blocks = -(-tasks // (threads // _WARP))
    if summed:
        blocks = min(blocks, PROCESSORS * tuning.resident)
    kernels = []
    if tasks:
        kernels.append(
            _heads(call, of, cut, slices, tasks, blocks)._replace(shared=shared, fewer=threads)
        )
    if not summed:
        return Steps(tuple(kernels))
    kernels.append(reduce.sum_rows(call, 2, length, blocks, call.workspace()))
    workspace = (max(blocks, 1), 2, length), call.accumulate_dtype
    return Steps(tuple(kernels), (workspace,))


def _room(call: Call, cut: Chunks, size: int, summed: bool) -> tuple[int, int]:
    """Threads of a block, as many as there is room for, and its bytes on chip."""
    part = 2 * cut.width * size
    for threads in (THREADS, THREADS // 2, THREADS // 4, _WARP):
        # Scales of q and k, and angles of each warp; sums of each thread.
        shared = part * cut.held * (_WARP * (2 + threads // _WARP) + summed * 2 * threads)
        if shared <= call.facts.shared_per_block - _NEAR:
            return threads, shared
    raise Refusal(
        f"needs {shared + _NEAR} bytes of shared memory for the heads of a warp, "
        f"a block has {call.facts.shared_per_block}"
    )


def _heads(call: Call, of: Operands, cut: Chunks, slices: int, tasks: int, blocks: int) -> Step:
    options = call.problem.options
    rotary, length = options["rotary_dim"], of.loads[0].shape[-1]
    shape, scalars = of.loads[0].shape[:-2], call.problem.spec.codes
    kind, steps = _angles(call, of, shape)
    dims = merged(shape, [*[v.strides[:-2] for v in of.rows], *steps])
    walkable(dims, _MOST_DIMS)
    vector = _vectors(call, of, dims, cut.width)
    workspace = call.workspace() if len(call.outs) > 2 else of.loads[0].slot
    tables = kind.startswith("Tables")
    slots = [v.slot for v in (*of.loads, *of.outs, *of.scales)]
    slots += [workspace, *[v.slot for v in of.angles]]
    # Positions that are not there are not read.
    slots += [of.loads[0].slot] * (tables or not of.angles)
    packer = Packer(True).pointers(len(slots)).scalars(scalars).add("d", 1 / max(length, 1))
    packer.add("q", tasks, *[v.strides[0] for v in of.scales]).extents(slices)
    packer.add("i", length, cut.turning + cut.still, cut.turning, cut.half, rotary, cut.apart)
    packer.add("i", cut.lanes.bit_length() - 1, 0)
    for side in (0, 1):
        own = [*of.loads[side::2], of.outs[side]]
        packer.add("i", own[0].shape[-2], call.adds[side])
        packer.add("q", *[v.strides[-2] for v in own], *[v.strides[-1] for v in own])
    packer.walk(dims, len(of.rows) + 2, most=_MOST_DIMS)
    if tables:
        packer.add("Q", 0).add("q", 0).add("I", 0, 0).add("q", 0, 0, 0)
        # Of tables that have each entry twice, halves are read in part, pairs every other one.
        twice = of.angles[0].shape[-1] == rotary and options["interleaved"]
        packer.add("q", *[v.strides[-1] * (1 + twice) for v in of.angles])
    else:
        pack_frequencies(call, packer, slice(None), _MOST_PAIRS)
    arguments = packer.done()
    rounded = options["casting"] == "before_weight" and call.type != call.accumulate
    schedule = (
        f"Heads<{call.functor}, {call.type}, {call.column_type}, {kind}, "
        f"{flag(options['interleaved'])}, {cut.width}, {cut.held}, {flag(vector)}, {flag(rounded)}>"
    )
    source = kind.split(", ")[1]
    entry = call.entry(
        schedule,
        len(arguments),
        "pairs" if options["interleaved"] else "halves",
        *["table"] * tables, source, f"v{cut.width}", f"h{cut.held}",
        *["loose"] * (not vector), *["cast"] * rounded, *call.column_tags,
    )  # fmt: skip
    return Step(entry, (blocks, 1), arguments, [(slot, 0) for slot in slots], scalars)


def _angles(call: Call, of: Operands, shape: Shape) -> tuple[str, list[Shape]]:
    """The type that angles come from, and what two arrays of them step along the positions."""
    accumulate = call.accumulate
    if call.problem.index_dtype is None and of.angles:
        kind = f"Tables<{accumulate}, {named(call.problem.dtype_of('table')).short}, void, 1>"
        return kind, [_along(v.shape[:-1], v.strides[:-1], shape) for v in of.angles]
    at_most(_MOST_PAIRS, "pairs without tables", call.problem.options["rotary_dim"] // 2)
    if call.problem.index_dtype is None:
        counted = (*(0,) * (len(shape) - 1), 1)
        return f"Computed<{accumulate}, void, {_MOST_PAIRS}>", [counted, (0,) * len(shape)]
    (positions,) = of.angles
    index = named(call.problem.index_dtype).short
    kind = f"Computed<{accumulate}, {index}, {_MOST_PAIRS}>"
    return kind, [_along(positions.shape, positions.strides, shape), (0,) * len(shape)]


def _along(own: Shape, strides: Shape, shape: Shape) -> Shape:
    """The strides of an array along the axes of `shape`, with which it broadcasts."""
    missing = len(shape) - len(own)
    steps = zip(strides, own, shape[missing:], strict=True)
    return (*(0,) * missing, *[step if extent == n else 0 for step, extent, n in steps])


def _vectors(call: Call, of: Operands, dims: list[Dim], width: int) -> bool:
    """Whether each part of a head is one aligned access."""
    numbers = [v.strides[-2] for v in of.rows]
    numbers += [s for d in dims for s in d.strides[: len(of.rows)]]
    beside = all(v.strides[-1] == 1 for v in of.rows)
    return width > 1 and beside and divisor(numbers, call.elements()) >= width
