"""Rows whose sums stay in registers, where a block holds just what a row has: kept_rows.cuh."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from baracuda.backends.cuda.geometry import Packer, count
from baracuda.backends.cuda.steps import WIDEST, Call, Step, flag
from baracuda.dtypes import named

if TYPE_CHECKING:
    from baracuda.backends.cuda.schedules.rows import Kind, Lie, Operands

_WARP = 32
# Threads of a multiprocessor; of FAR rows, which are what more of them hold, in 64 registers.
_THREADS, _FAR_THREADS = 512, 1024
# Vectors of a thread that fit 128 registers beside sums and the next row: by the bytes of an
# element, the number of rows read, and of the sums.
_HELD = {(2, 2, 1): 2, (2, 2, 2): 2, (2, 3, 1): 2, (2, 3, 2): 2,
         (4, 2, 1): 4, (4, 2, 2): 2, (4, 3, 1): 2, (4, 3, 2): 2}  # fmt: skip
# The same of FAR rows. Four of three rows pay only where a block of `Rows` would read them again:
# on an H200 [8192, 16384] takes 853 us with two sums and not 1519, 813 with one and not 869. Two of
# three with one sum do not pay (296 us, and 287 by `Rows`).
_FAR_HELD = {(2, 2, 1): 2, (2, 2, 2): 2, (2, 3, 2): 2,
             (4, 2, 2): 2, (4, 3, 1): 4, (4, 3, 2): 4}  # fmt: skip
_MANY = 4
# Rows that clusters take rather than one block as FAR, and those that they do not take where there
# is no other way either. Of 16384 elements in float32 rms_norm_backward takes 397 us by two blocks
# and 460 by one, add_rms_norm_backward by four 1017 and 806: who holds little waits often.
_BEFORE_FAR, _NEVER = {(4, 2, 1)}, {(2, 2, 1)}
# Blocks of a cluster that takes a row, and how many of these a device of 132 multiprocessors holds
# at once, whose groups are not all of a multiple of four. One without that many takes turns.
_PARTS = {2: 66, 4: 32, 8: 16}


class Kept(NamedTuple):
    """How rows are kept.

    Attributes
    ----------
    threads : int
        Of a block.
    held : int
        Vectors of a thread.
    parts : int
        Blocks of a row, a cluster; 0 where rows are too long for sums in registers.
    together : int
        Rows that a device has at once, where each multiprocessor has one block.
    resident : int
        Blocks of a multiprocessor.
    shared : int
        Bytes on chip for sums.
    """

    threads: int
    held: int
    parts: int
    together: int
    resident: int
    shared: int


def kept(call: Call, of: Operands, lie: Lie, n: int, processors: int, room: int) -> Kept | None:
    """How rows of `n` elements are kept, with so many bytes on chip; None where they are not."""
    if lie.access == "STEPS":
        return None
    kind = (call.itemsize, len(of.loads), len(of.sums))
    size = len(of.sums) * n * named(call.accumulate_dtype).itemsize
    near, far = _HELD.get(kind), _FAR_HELD.get(kind)
    clusters = _PARTS if call.facts.clusters and kind not in _NEVER else {}

    def shared(ways: dict[int, int]) -> Kept | None:
        for parts, together in ways.items():
            threads = _threads(call, n, near, parts, _WARP, _THREADS)
            if near and threads:
                return Kept(threads, near, parts, together, _THREADS // threads, 0)
        return None

    first = shared({1: processors, **(clusters if kind in _BEFORE_FAR else {})})
    if first:
        return first
    threads = _threads(call, n, far, 1, _THREADS if far == _MANY else _WARP, _FAR_THREADS)
    if far and threads and size <= room:
        resident = min(_FAR_THREADS // threads, room // size)
        return Kept(threads, far, 0, processors, resident, size)
    return shared(clusters)


def _threads(call: Call, n: int, held: int | None, parts: int, least: int, most: int) -> int:
    """How many have just what a part of a row has, more than `least`; 0 where none do."""
    threads, rest = divmod(n, parts * (held or n + 1) * WIDEST // call.itemsize)
    return threads if not rest and threads % _WARP == 0 and least < threads <= most else 0


def plan(call: Call, of: Operands, kind: Kind, how: Kept, lie: Lie, lines: int) -> Step:
    """One kernel, of which so many blocks or clusters leave a line of sums each."""
    n, rows = of.loads[0].shape[of.axis], count(lie.dims)
    pointers = [v.slot for v in (*of.loads, *of.columns, *of.outs)] + [call.workspace()]
    scalars = len(call.problem.spec.scalars)
    packer = Packer(True).pointers(len(pointers)).add("d", *[0.0] * scalars, *kind.numbers)
    packer.add("q", rows).add("i", n, 0).add("q", *lie.steps)
    arguments = packer.walk(lie.dims, len(lie.walked)).done()
    far, parts = how.parts == 0, max(how.parts, 1)
    schedule = (
        f"KeptRows<{call.functor}<{call.accumulate}, {kind.number}>, {call.type}, {how.held}, "
        f"{lie.access}, {flag(far)}, {parts}, {flag(call.add)}>"
    )
    way = "far" if far else f"parts_{parts}" if parts > 1 else "kept"
    tags = (way, kind.label, lie.access.lower(), *["add"] * call.add)
    most = _FAR_THREADS if far else _THREADS
    entry = call.entry(schedule, len(arguments), *tags, threads=most, cluster=parts)
    front, grid = [(slot, 0) for slot in pointers], (lines * parts, 1)
    return Step(entry, grid, arguments, front, scalars, shared=how.shared, fewer=how.threads)
