"""Channels: elementwise with a parameter of each channel, whose gradient is a sum over the rest."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Packer, View, count, divisor, reach, split, wide
from baracuda.backends.cuda.launch_plan import THREADS, Call, Step, Steps, flag
from baracuda.backends.cuda.schedules import reduce
from baracuda.backends.cuda.schedules.elementwise import LAYOUTS, Operand, Way, way

_WARP = 32


class Tuning(NamedTuple):
    """What channels take of an architecture.

    Attributes
    ----------
    vectors, vectors_beside : dict of int to int
        Vectors of each input in flight in a thread, by the number of inputs; of channels beside
        each other, for which a thread loads a vector of parameters first.
    rounds : int
        How often a thread that adds up loads so many, at least.
    runs : int
        Runs of a channel whose sums are added up, at most.
    run_beside : int
        Items of a run of channels beside each other, at least: so their sums have few bytes.
    """

    vectors: dict[int, int]
    vectors_beside: dict[int, int]
    rounds: int
    runs: int
    run_beside: int


SM_90 = Tuning(
    vectors={1: 1, 2: 2}, vectors_beside={1: 4, 2: 2}, rounds=4, runs=1024, run_beside=128
)
TUNINGS = {"sm_90": SM_90}


class Lie(NamedTuple):
    """How channels lie.

    Attributes
    ----------
    over : Way
        Over what each has.
    width : int
        Elements of an access.
    lanes : int
        Accesses beside each other, each of as many channels; 0 where they are within a channel.
    """

    over: Way
    width: int
    lanes: int


def plan(call: Call) -> Steps:
    """One kernel, and one more where the parameter has a gradient."""
    form, scalars = call.problem.signature, call.problem.spec.codes
    *loads, weight = [call.view(p.name) for p in form.inputs]
    whole, *sums = [call.out(i) for i in range(len(form.outputs))]
    labels = [label.name for label in form.outputs[0].labels(call.problem.axes)]
    (term,) = form.inputs[-1].terms
    # Without an axis of channels there is one.
    axis = labels.index(term.name) if term.name in labels else len(labels)
    channels, views = prod(whole.shape[axis : axis + 1]), [*loads, whole]
    if not channels:
        return Steps(())
    steps = [v.strides[axis] for v in views] if channels > 1 else [0] * len(views)
    over, width, lanes = _lie(call, views, axis, steps)
    tuning, rounds = call.facts.tuned(TUNINGS), 1
    depth = (tuning.vectors_beside if lanes else tuning.vectors)[len(loads)]
    each = THREADS // max(lanes, 1) * depth
    if sums:
        few = -(-over.items // (each * tuning.runs))
        rounds = max(tuning.rounds, few, lanes and tuning.run_beside // each)
    tiles = -(-channels // (lanes * width)) if lanes else channels
    runs = max(-(-over.items // (each * rounds)), 1)
    # Runs of a channel that lie beside each other.
    beside = max(over.dims[0].extent // over.width // (each * rounds), 1) if over.dims else 1
    fast = tiles if lanes else min(beside, runs)
    grid = runs * tiles if lanes else -(-runs // fast) * fast * tiles

    steps.append(weight.strides[0] if channels > 1 else 0)
    packer = Packer(wide(
        channels * count(over.dims), reach(over.dims) + (channels - 1) * max(map(abs, steps))
    ))  # fmt: skip
    slots = [*(v.slot for v in (*loads, weight, whole)), *[call.workspace()] * len(sums)]
    packer.pointers(len(slots)).scalars(scalars)
    packer.extents(fast, tiles, code="I").add("i", max(lanes, 1).bit_length() - 1, runs)
    packer.indices(over.items, over.tail, each * rounds, channels, *steps, *[0] * (len(steps) % 2))
    packer.walk(split(over.dims, over.width), len(views), over.kind)
    arguments, integer, add = packer.done(), packer.type, call.adds[0]
    schedule = (
        f"Channels<{call.functor}, {call.type}, {width}, {depth}, {flag(lanes)}, {over.kind}, "
        f"{integer}, {flag(add)}>"
    )
    tags = ("beside" if lanes else LAYOUTS[over.kind], f"v{width}", integer, *["add"] * add)
    entry = call.entry(schedule, len(arguments), *tags)
    step = Step(entry, (grid, 1), arguments, [(slot, 0) for slot in slots], scalars)
    there = (step,) if prod(whole.shape) else ()
    if not sums:
        return Steps(there)
    return reduce.summed(call, there, 1, channels, runs if there else 0)


def _lie(call: Call, views: Sequence[View], axis: int, steps: Sequence[int]) -> Lie:
    """Vectors along what a channel has, or along channels where these are closer together."""
    shape, channels = views[-1].shape, prod(views[-1].shape[axis : axis + 1])
    rest = (*shape[:axis], *shape[axis + 1 :])
    # What divides the step from channel to channel divides where each begins.
    over = way(call, rest, [
        Operand(v.slot, step, (*v.strides[:axis], *v.strides[axis + 1 :]))
        for v, step in zip(views, steps, strict=True)
    ])  # fmt: skip
    dims = over.dims
    if channels == 1 or (dims and abs(dims[0].strides[-1]) < abs(steps[-1])):
        return Lie(over, over.width, 0)
    numbers = [channels, *(s for d in dims for s in d.strides)]
    width = divisor(numbers, call.elements()) if all(step == 1 for step in steps) else 1
    lanes = min(1 << (channels // width - 1).bit_length(), _WARP)
    return Lie(Way(dims, 0, 1, count(dims), 0), width, lanes)
