"""Sets of planes that blocks of a cluster keep on chip, so that they are read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from baracuda.backends.cuda.geometry import PROCESSORS, Dim, Packer, View, divisor, merged
from baracuda.backends.cuda.launch_plan import WIDEST, Call, Step, bits, flag
from baracuda.backends.cuda.schedules.plane_sets import counted, parameters_of
from baracuda.declaration.dtypes import named

if TYPE_CHECKING:
    from baracuda.backends.cuda.schedules.plane_sets import Sets

_WARP = 32
# Threads of a multiprocessor, in 64 registers each; bytes on chip that it has beside those that one
# block may have, and that each block takes beside what it asks for.
_THREADS, _MORE, _BESIDE = 1024, 1 << 10, 3 << 10


class Tuning(NamedTuple):
    """What kept planes take of an architecture.

    Attributes
    ----------
    vectors : dict of int to int
        Vectors of 16 bytes that a lane has of a part, by the number of arrays.
    vectors_of_float64 : int
        The same in float64, at most.
    resident : int
        Blocks of a multiprocessor, one of which loads while another computes; one where sets are
        too large for that.
    cluster : int
        Blocks of a cluster, at most.
    turns : int
        Sets that a cluster takes in turn, at most, so that loads of the next pass stores of the
        last.
    blocks : int
        Blocks below which too many multiprocessors are idle.
    """

    vectors: dict[int, int]
    vectors_of_float64: int
    resident: int
    cluster: int
    turns: int
    blocks: int


SM_90 = Tuning(
    vectors={1: 4, 2: 4},
    vectors_of_float64=2,
    resident=2,
    # Sixteen, which not every device takes, are no faster than reading twice: on an H200 batch_norm
    # of [32, 64, 224, 224] in bf16 takes 171 us, and 166.
    cluster=8,
    turns=2,
    blocks=64,
)
# The compiler would spill with four vectors of two arrays.
SM_100 = SM_90._replace(vectors={1: 4, 2: 2})
TUNINGS = {"sm_90": SM_90, "sm_100": SM_100}


class Share(NamedTuple):
    """How the parts of a set are shared.

    Attributes
    ----------
    cluster : int
        Blocks of a set.
    resident : int
        Blocks of a multiprocessor.
    parts : int
        Of a block.
    """

    cluster: int
    resident: int
    parts: int


def share(call: Call, units: int, nbytes: int) -> Share | None:
    """Blocks for `units` parts of so many bytes on chip each; None where there are too many."""
    tuning = call.facts.tuned(TUNINGS)
    for resident in dict.fromkeys((tuning.resident, 1)):
        room = (call.facts.shared_per_block + _MORE) // resident - _BESIDE
        least, cluster = -(-units // max(room // nbytes, 1)), 1
        while cluster < least:
            cluster *= 2
        if room >= nbytes and cluster <= tuning.cluster:
            return Share(cluster, resident, -(-units // cluster))
    return None


def threads(parts: int, resident: int) -> int:
    """Threads of a block whose warps take about as many of its parts each."""
    rounds = -(-parts * resident * _WARP // _THREADS)
    return -(-parts // rounds) * _WARP


def plan(call: Call, of: Sets) -> Step | None:
    """One kernel; None where sets do not fit, or do not lie so."""
    if not call.facts.clusters:
        return None
    width, arrays = WIDEST // call.itemsize, len(of.loads)
    tuning = call.facts.tuned(TUNINGS)
    held = tuning.vectors[arrays]
    if call.itemsize == 8:
        held = min(held, tuning.vectors_of_float64)
    full = _WARP * held * width
    parts = -(-of.s // full)
    # Vectors are within a plane, and at least half of the lanes have some.
    if of.s % width or 2 * of.s < parts * full:
        return None
    views = [*of.loads, call.out()]
    inside = merged(views[0].shape[2:], [v.strides[2:] for v in views])
    if len(inside) > 1 or any(s != 1 for d in inside for s in d.strides):
        return None
    units = parts * (of.channels if of.groups else of.n)
    size, sums = named(call.accumulate_dtype).itemsize, 5 if of.back else 3
    nbytes = arrays * full * call.itemsize + 8 + (4 + sums) * size
    how = share(call, units, nbytes)
    if how is None or of.number * how.cluster < tuning.blocks:
        return None
    return _step(call, of, how, _sets(of, views), (held, parts, units, how.parts * nbytes))


def _sets(of: Sets, views: list[View]) -> list[Dim]:
    """From set to set."""
    if not of.groups:
        return merged((of.c,), [v.strides[1:2] for v in views])
    strides = [(v.strides[0], v.strides[1] * of.channels) for v in views]
    return merged((of.n, of.groups), strides)


def _step(
    call: Call, of: Sets, how: Share, sets: list[Dim], sizes: tuple[int, int, int, int]
) -> Step:
    held, parts, units, shared = sizes
    views = [*of.loads, call.out()]
    planes = [v.strides[1 if of.groups else 0] for v in views]
    wide = divisor([*planes, *(s for d in sets for s in d.strides)], call.elements())
    access = "VECTORS" if wide == WIDEST // call.itemsize else "ELEMENTS"
    parameters = parameters_of(call, of, 0)
    slots = [*(v.slot for v in views), *parameters.slots]
    turns = of.number * how.cluster // (PROCESSORS * how.resident)
    turns = max(min(turns, call.facts.tuned(TUNINGS).turns), 1)
    packer = Packer(True).pointers(len(slots)).add("d", 0.0)
    parameters.numbers(packer)
    packer.add("q", *planes).add("i", of.number, turns, units, of.s)
    packer.extents(parts, how.parts, code="I").walk(sets, len(views))
    arguments = packer.done()
    counted(units, how.parts * how.cluster, of.number + turns)
    add, found = call.adds[0], call.how((1, 2)) if parameters.left else 0
    last = f", {found}{call.column_argument}" if found or call.column_tags else ""
    schedule = (
        f"KeptPlanes<{call.functor}<{call.accumulate}>, {call.type}, {parameters.given}, "
        f"{flag(not of.groups)}, {how.cluster}, {held}, {access}, {flag(add)}{last}>"
    )
    usual = not parameters.left or found == bits((add, False, add, False))
    names = ["add"] * add if usual else [f"add{add:d}", f"how{found}"]
    # In the name where it is not that of sm_90.
    other = [f"h{held}"] * (call.itemsize < 8 and held != SM_90.vectors[len(of.loads)])
    tags = (
        "kept",
        parameters.given,
        how.cluster,
        access.lower(),
        *other,
        *names,
        *call.column_tags,
    )
    entry = call.entry(schedule, len(arguments), *tags, threads=_THREADS, cluster=how.cluster)
    front = [(slot, 0) for slot in slots]
    blocks = -(-of.number // turns) * how.cluster
    return Step(
        entry, (blocks, 1), arguments, front, call.problem.spec.codes, shared,
        threads(how.parts, how.resident),
    )  # fmt: skip
