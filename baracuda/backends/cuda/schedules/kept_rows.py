"""Rows whose sums stay on chip, where blocks hold just what a row has.

They come in registers (kept_rows.cuh) or by copies in bulk (streamed_rows.cuh).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from baracuda.backends.cuda.geometry import Packer, count
from baracuda.backends.cuda.launch_plan import WIDEST, Call, Step, flag
from baracuda.declaration.dtypes import named

if TYPE_CHECKING:
    from baracuda.backends.cuda.schedules.row_operands import Kind, Operands
    from baracuda.backends.cuda.schedules.rows import Lie

_WARP = 32
# Threads of a multiprocessor; of FAR rows, which are what more of them hold, in 64 registers.
_THREADS, _FAR_THREADS = 512, 1024
# Bytes that a multiprocessor has on chip beside those of one block, and that each block takes
# beside its rows, for itself and for the sums of each block of its cluster.
_MORE, _BESIDE = 1 << 10, 1 << 10

_Kind: TypeAlias = tuple[int, int, int]
"""The bytes of an element, how many rows are read, and how many sums there are."""


class Tuning(NamedTuple):
    """What kept rows take of an architecture.

    Attributes
    ----------
    vectors, vectors_far : dict of (int, int, int) to int
        Vectors of a thread that fit the registers beside sums and the next row, by the kind of
        rows; those of FAR rows. Kinds that are not named are not kept so.
    vectors_far_long : int
        Vectors of a thread for which FAR rows have to be longer than 512 threads would hold.
    vectors_streamed : dict of int to int
        Vectors of a lane in streamed rows, by the bytes of an element.
    threads_streamed : int
        Threads of a block of streamed rows, at least.
    preferred : set of (int, int, int)
        Kinds of rows that are streamed although registers hold them.
    preferred_vectors, preferred_threads : int
        Vectors of a lane in such rows; threads that would have to hold them, at least.
    slots, slots_early : int
        Places of a block of streamed rows; of one that has `preferred_vectors`, or waits for other
        blocks, so that it asks for sums early.
    clusters : dict of int to int
        Blocks of a cluster that takes a row, and how many of these a device has at once.
    """

    vectors: dict[_Kind, int]
    vectors_far: dict[_Kind, int]
    vectors_far_long: int
    vectors_streamed: dict[int, int]
    threads_streamed: int
    preferred: frozenset[_Kind]
    preferred_vectors: int
    preferred_threads: int
    slots: int
    slots_early: int
    clusters: dict[int, int]


# Times are of an H200.
SM_90 = Tuning(
    vectors={(2, 2, 1): 2, (2, 2, 2): 2, (2, 3, 1): 2, (2, 3, 2): 2,
             (4, 2, 1): 4, (4, 2, 2): 2, (4, 3, 1): 2, (4, 3, 2): 2},
    # Four of three rows pay only where a block of `Rows` would read them again: [8192, 16384] takes
    # 853 us with two sums and not 1519, 813 with one and not 869. Two of three with one sum do not
    # pay (296 us, and 287 by `Rows`).
    vectors_far={(2, 2, 1): 2, (2, 2, 2): 2, (2, 3, 2): 2,
                 (4, 2, 2): 2, (4, 3, 1): 4, (4, 3, 2): 4},
    vectors_far_long=4,
    vectors_streamed={2: 4, 4: 4},
    threads_streamed=128,
    # [8192, 8192] in bf16: rms_norm_backward takes 111 us and not 119.
    preferred=frozenset({(2, 2, 1), (2, 3, 1), (2, 3, 2)}),
    preferred_vectors=2,
    preferred_threads=256,
    # 12288 elements of bf16 layer_norm_backward take 166 us with two places and 188 with three, of
    # float32, by two blocks, 349 and 326.
    slots=2,
    slots_early=3,
    # Of 132 multiprocessors not all groups are of a multiple of four. Two clusters more take turns:
    # 645 us for 32768 elements of float32 rms_norm_backward, and 407.
    clusters={2: 66, 4: 30, 8: 14},
)  # fmt: skip
TUNINGS = {"sm_90": SM_90}


class Kept(NamedTuple):
    """How rows are kept.

    Attributes
    ----------
    way : str
        In registers (``kept``), with sums in shared memory (``far``), or ``streamed``.
    threads : int
        Of a block.
    held : int
        Vectors of a thread.
    resident : int
        Blocks of a multiprocessor.
    shared : int
        Bytes on chip, for sums or for rows.
    together : int
        Rows that a device has at once, where each multiprocessor has one block.
    slots, parts : int
        Of streamed rows: places of a block, blocks of a row.
    chip : bool
        Whether columns that are wider than rows lie on chip beside these.
    """

    way: str
    threads: int
    held: int
    resident: int
    shared: int
    together: int
    slots: int = 0
    parts: int = 1
    chip: bool = False


def kept(call: Call, of: Operands, lie: Lie, n: int, processors: int, room: int) -> Kept | None:
    """How rows of `n` elements are kept, with so many bytes on chip; None where they are not."""
    if lie.access == "STEPS" or not of.sums:
        return None
    kind, tuning = (call.row_size, len(of.loads), len(of.sums)), call.facts.tuned(TUNINGS)
    near, held = _near(call, kind, n, processors), tuning.vectors_streamed.get(call.row_size)
    bulk = lie.access == "VECTORS" and call.facts.clusters
    # Registers that are all taken keep as much under way.
    full = near and near.threads * near.resident == _THREADS
    preferred = kind in tuning.preferred and near and near.threads >= tuning.preferred_threads
    if held and full and bulk and preferred:
        return _streamed(call, of, n, {1: processors}, tuning.preferred_vectors)
    if held and bulk and not full:
        found = _streamed(call, of, n, {1: processors} | tuning.clusters, held)
        if found:
            return found
    return near or _far(call, kind, n, processors, room)


def _near(call: Call, kind: _Kind, n: int, processors: int) -> Kept | None:
    held = call.facts.tuned(TUNINGS).vectors.get(kind)
    threads = _threads(call, n, held, _WARP, _THREADS)
    if not (held and threads):
        return None
    return Kept("kept", threads, held, _THREADS // threads, 0, processors)


def _far(call: Call, kind: _Kind, n: int, processors: int, room: int) -> Kept | None:
    tuning = call.facts.tuned(TUNINGS)
    held, size = tuning.vectors_far.get(kind), kind[2] * n * named(call.accumulate_dtype).itemsize
    least = _THREADS if held == tuning.vectors_far_long else _WARP
    threads = _threads(call, n, held, least, _FAR_THREADS)
    if not (held and threads and size <= room):
        return None
    resident = min(_FAR_THREADS // threads, room // size)
    return Kept("far", threads, held, resident, size, processors)


def _streamed(call: Call, of: Operands, n: int, ways: dict[int, int], held: int) -> Kept | None:
    tuning = call.facts.tuned(TUNINGS)
    narrow, less = call.narrow(of.loads).bit_count(), call.row_size - call.itemsize
    nbytes = len(of.loads) * call.row_size - narrow * less
    for parts, together in ways.items():
        threads = _threads(call, n // parts, held, tuning.threads_streamed - 1, _THREADS)
        if not threads or n % parts:
            continue
        resident = _THREADS // threads
        place = n // parts * nbytes + threads // _WARP * 8
        room = (call.facts.shared_per_block + _MORE) // resident - _BESIDE * (1 + parts)
        early = parts > 1 or held == tuning.preferred_vectors
        slots = min(room // place, tuning.slots_early if early else tuning.slots)
        if slots >= tuning.slots:
            shared, size = slots * place, n // parts * len(of.columns) * call.column_size
            chip = call.column_size > call.row_size and shared + size <= room
            shared += size * chip
            return Kept("streamed", threads, held, resident, shared, together, slots, parts, chip)
    return None


def _threads(call: Call, n: int, held: int | None, least: int, most: int) -> int:
    """How many have just `n` elements, more than `least`; 0 where none do."""
    threads, rest = divmod(n, (held or n + 1) * WIDEST // call.row_size)
    return threads if not rest and threads % _WARP == 0 and least < threads <= most else 0


def plan(call: Call, of: Operands, kind: Kind, how: Kept, lie: Lie, lines: int) -> Step:
    """One kernel, of which so many blocks or clusters leave a line of sums each."""
    n, rows = of.loads[0].shape[of.axis], count(lie.dims)
    pointers = [v.slot for v in (*of.loads, *of.columns, *of.outs)] + [call.workspace()]
    scalars = call.problem.spec.codes
    packer = Packer(True).pointers(len(pointers)).scalars(scalars).add("d", *kind.numbers)
    packer.add("q", rows).add("i", n, 0).add("q", *lie.steps)
    arguments = packer.walk(lie.dims, len(lie.walked)).done()
    functor = f"{call.functor}<{call.accumulate}, {kind.arguments}>, {call.row_type}, {how.held}"
    last = call.row_arguments([*of.loads, *of.outs])
    # Sums are delivered by the kernel that adds them up.
    add = call.adds[0]
    if how.way == "streamed":
        flags = f"{flag(add)}, {flag(how.chip)}"
        schedule = f"StreamedRows<{functor}, {how.slots}, {how.parts}, {flags}{last}>"
        own: tuple[object, ...] = (how.held, how.slots, how.parts, *["chip"] * how.chip)
    else:
        far = flag(how.way == "far")
        schedule = f"KeptRows<{functor}, {lie.access}, {far}, {flag(add)}{last}>"
        own = (lie.access.lower(),)
    most = _FAR_THREADS if how.way == "far" else _THREADS
    entry = call.entry(
        schedule, len(arguments), how.way, kind.label, *own, *["add"] * add, *call.row_tags,
        threads=most, cluster=how.parts,
    )  # fmt: skip
    front, grid = [(slot, 0) for slot in pointers], (lines * how.parts, 1)
    return Step(entry, grid, arguments, front, scalars, shared=how.shared, fewer=how.threads)
