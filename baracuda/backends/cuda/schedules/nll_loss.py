"""Negative log-likelihood: a look at one element of each row, a gradient that is 0 but there."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from baracuda.backends.cuda.geometry import (
    Dim,
    Packer,
    View,
    divisor,
    merged,
    reach,
    walkable,
    wide,
    without,
)
from baracuda.backends.cuda.launch_plan import THREADS, Call, Step, Steps, blocks, flag
from baracuda.backends.cuda.schedules.reduce import Place
from baracuda.layouts import Shape

# Flags of cuda_src/nll_loss.cu.
_WIDE_TARGET, _EACH, _WEIGHTED, _COSTS, _MEAN, _COUNTED, _WIDE_LOSS = 1, 2, 4, 8, 16, 32, 64
_DELIVERS = 128
# cuda_src/nll_loss.cu: vectors of a thread along classes, and the most lanes of a row.
_DEPTH, _WARP = 4, 32


class Tuning(NamedTuple):
    """What likelihoods take of an architecture.

    Attributes
    ----------
    sums : int
        Sums that one block adds up, at most.
    parts : int
        Counts that every warp of a gradient adds up, at most: of more one block makes one.
    counted_rows : int
        Rows of which a block leaves one count, at least.
    class_bytes : int
        Bytes of classes of each row for which a thread across rows keeps the targets.
    """

    sums: int
    parts: int
    counted_rows: int
    class_bytes: int


SM_90 = Tuning(sums=4096, parts=64, counted_rows=4096, class_bytes=32)
TUNINGS = {"sm_90": SM_90}


def plan(call: Call) -> Steps:
    """One kernel over all rows; after it their sum, or before it what they count."""
    return (_gradient if call.problem.spec.adjoint_of else _losses)(call)


class Operands(NamedTuple):
    """The inputs of a problem: losses of x or their cotangent, the index, a share of each class."""

    first: View
    target: View
    weight: View | None


def operands(call: Call) -> Operands:
    """Which input is what. A weight has the axis alone along which the index points."""
    spec, (index,) = call.problem.spec, call.problem.spec.indices
    along = {spec.role(index).below}
    given = [p for p in call.problem.signature.inputs if not p.is_option and p.name != index]
    weights = [call.view(p.name) for p in given if p.names == along]
    (first,) = (call.view(p.name) for p in given if p.names != along)
    return Operands(first, call.view(index), weights[0] if weights else None)


def _losses(call: Call) -> Steps:
    options, of, out = call.problem.options, operands(call), call.out()
    x, target, reduction = of.first, of.target, options["reduction"]
    rows, sums, each = prod(target.shape), (call.workspace(), 0), reduction == "none"
    run = THREADS if each else max(THREADS, -(-rows // call.facts.tuned(TUNINGS).sums))
    many, steps = -(-rows // run), []
    # One block has the sums of all rows, and delivers the loss.
    whole, last_flags = each or many == 1, _MEAN * (reduction == "mean") | _wide(call, out)
    if rows:
        dims = _dims(target, without(x.strides, options["axis"]), out.strides if each else None)
        places = [(x.slot, 0), (out.slot, 0), (out.slot, 0) if whole else sums]
        flags = _COSTS | last_flags | _EACH * each | _DELIVERS * (whole and not each)
        steps.append(_looked_up(call, of, dims, places, run, x.strides[options["axis"]], flags))
    if whole:
        return Steps(tuple(steps))
    last = _total(call, call.type, many, last_flags, [sums, (out.slot, 0)])
    return Steps((*steps, last), (((max(many, 1), 2), call.accumulate_dtype),))


def _total(call: Call, kind: str, many: int, flags: int, places: list[Place]) -> Step:
    """Adds up what `many` blocks left."""
    arguments = Packer(True).pointers(2).add("i", many).add("I", flags).done()
    entry = call.entry(f"NllTotal<{kind}>", len(arguments), "total", threads=1024)
    return Step(entry, (1, 1), arguments, places)


def _gradient(call: Call) -> Steps:
    options, of, dx = call.problem.options, operands(call), call.out()
    dloss, target, axis = of.first, of.target, options["axis"]
    tuning = call.facts.tuned(TUNINGS)
    n, step, rows = dx.shape[axis], dx.strides[axis], prod(target.shape)
    each = options["reduction"] == "none"
    if not n * rows:
        return Steps(())
    dims = _dims(target, dloss.strides if each else None, without(dx.strides, axis))
    # Rows that lie beside each other are written side by side.
    inner = dims[0] if dims else Dim(1, (0, 0, 0))
    across, most = step != 1 and inner.strides[2] == 1, call.elements()
    strides = [d.strides[2] for d in dims[across:]]
    width = divisor([inner.extent if across else n, step * across, *strides], most)
    width = width if across or step == 1 else 1
    vectors = (inner.extent if across else n) // width
    if across:
        each = tuning.class_bytes // call.itemsize
        runs = -(-n // each)
        items = rows // inner.extent * runs * vectors
    else:
        lanes = min(1 << (-(-vectors // _DEPTH) - 1).bit_length(), _WARP)
        runs, each = -(-vectors // (lanes * _DEPTH)), lanes.bit_length() - 1
        items = rows * runs * lanes
    run = max(tuning.counted_rows, -(-rows // tuning.sums))
    counted = -(-rows // run) if options["reduction"] == "mean" else 0
    # More than a warp should add up are added up before.
    parts = counted if counted <= tuning.parts else 1

    sums = (call.workspace(1 if parts < counted else 0), 0) if counted else (dx.slot, 0)
    packer = Packer(wide(n * rows, items, reach(dims) + n * abs(step)))
    _targets(call, of, packer, _wide(call, dloss), call.listener)
    packer.add("i", parts, each).indices(items, step, *inner.strides[:2])
    packer.extents(vectors, runs).walk(dims, 3)
    arguments, integer = packer.done(), packer.type
    schedule = f"NllLossBackward<{call.type}, {width}, {flag(across)}, {integer}, {flag(call.add)}>"
    tags = ("across" if across else "along", f"v{width}", integer, *["add"] * call.add)
    entry = call.entry(schedule, len(arguments), *tags)
    grid = blocks(items), 1
    places = [(dloss.slot, 0), (dx.slot, 0), sums]
    last = Step(entry, grid, arguments, _front(of, places))
    if not counted:
        return Steps((last,))
    kind, left = call.accumulate_dtype, (call.workspace(), 0)
    steps = [_looked_up(call, of, _dims(target, None, None), [*places[:2], left], run, 0, 0)]
    workspaces: list[tuple[Shape, str]] = [((counted, 2), kind)]
    if parts < counted:
        steps.append(_total(call, call.accumulate, counted, _COUNTED, [left, sums]))
        workspaces.append(((2,), kind))
    return Steps((*steps, last), tuple(workspaces))


def _wide(call: Call, loss: View) -> int:
    """The flag of a loss, or of its cotangent, that is wider than the rows."""
    return _WIDE_LOSS * call.is_wide(loss.slot)


def _dims(target: View, first: Shape | None, last: Shape | None) -> list[Dim]:
    """Rows, as targets and two more arrays lie over them; one that has no rows has none."""
    none = (0,) * len(target.shape)
    dims = merged(target.shape, [first or none, target.strides, last or none])
    walkable(dims)
    return dims


def _front(of: Operands, places: list[Place]) -> list[Place]:
    """The pointers of a kernel. What it has no use for is the address of something else."""
    return [*places, (of.target.slot, 0), ((of.weight or of.target).slot, 0)]


def _targets(call: Call, of: Operands, packer: Packer, flags: int, listener: int) -> None:
    """The pointers, and what there is to know of targets."""
    problem, weight = call.problem, of.weight
    flags |= _WIDE_TARGET * (problem.index_dtype == "int64") | _WEIGHTED * (weight is not None)
    packer.pointers(5).add("Q", listener).add("q", problem.extent_of(problem.spec.indices[0]))
    packer.add("q", call.ignored, weight.strides[0] if weight else 0)
    packer.add("I", call.ticket, flags)


def _looked_up(
    call: Call, of: Operands, dims: list[Dim], places: list[Place], run: int, step: int, flags: int
) -> Step:
    """What rows cost, or at least what they count, by runs of rows."""
    rows = prod(of.target.shape)
    packer = Packer(True)
    _targets(call, of, packer, flags, call.listener if flags & _COSTS else 0)
    arguments = packer.add("q", rows, run, step).walk(dims, 3).done()
    entry = call.entry(f"NllLoss<{call.type}>", len(arguments), "rows")
    return Step(entry, (-(-rows // run), 1), arguments, _front(of, places))
