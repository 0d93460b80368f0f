"""Many sets of arrays in one launch: a table of their addresses, made again when one changes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from cuda.bindings import driver
from numpy.typing import NDArray

from baracuda.backends.cuda import compiler
from baracuda.backends.cuda.launch import (
    Launch,
    Memory,
    as_before,
    checked,
    in_context,
    stream_of,
    while_capturing,
)
from baracuda.backends.cuda.launch_plan import DeviceFacts
from baracuda.backends.cuda.schedules import lists
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import Problem
from baracuda.errors import UnsupportedError, value_error
from baracuda.forks import Guard
from baracuda.libraries import Array

_PINNED = 0x01  # CU_MEMHOSTALLOC_PORTABLE
_NO_TIMING = 0x02  # CU_EVENT_DISABLE_TIMING
_NONE = np.zeros(0, np.uint64)
Spans = tuple[NDArray[np.uint64], NDArray[np.uint64]]
_CAPTURING = driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE


class Staging:
    """Host memory that a device copies from, until it is known to have done so.

    Attributes
    ----------
    words : array of uint64
        What is copied.
    """

    __slots__ = ("_address", "_event", "words")

    def __init__(self, size: int) -> None:
        self._address = checked(driver.cuMemHostAlloc(8 * size, _PINNED))
        memory = (ctypes.c_uint64 * size).from_address(int(self._address))
        self.words: NDArray[np.uint64] = np.ctypeslib.as_array(memory)
        self._event = checked(driver.cuEventCreate(_NO_TIMING))

    @property
    def free(self) -> bool:
        """Whether the last copy is done."""
        return bool(driver.cuEventQuery(self._event)[0] == driver.CUresult.CUDA_SUCCESS)

    def send(self, to: int, count: int, stream: Any) -> None:
        """Copy the first `count` words to a device address, in the order of the stream."""
        checked(driver.cuMemcpyHtoDAsync(to, self._address, 8 * count, stream))
        checked(driver.cuEventRecord(self._event, stream))


def at_once(words: NDArray[np.uint64]) -> Memory:
    """Device memory that holds `words` from now on.

    For graphs: a capture records no copy, and replays may come at any time.
    """
    room = Memory(words.nbytes)
    with while_capturing():
        own = checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        checked(driver.cuMemcpyHtoDAsync(room.address, words.ctypes.data, words.nbytes, own))
        checked(driver.cuStreamSynchronize(own))
        checked(driver.cuStreamDestroy(own))
    return room


def capturing(stream: Any, ordinal: int) -> bool:
    """Whether a graph is being captured from a stream; the thread has a context afterwards."""
    return bool(checked(in_context(ordinal, driver.cuStreamIsCapturing, stream)) == _CAPTURING)


class Table:
    """Device memory for the table of one stream.

    Attributes
    ----------
    room : Memory
    written : tuple
        The addresses of arrays that it holds.
    captured : bool
        Whether a graph reads it: then it is never written to again.
    """

    __slots__ = ("captured", "room", "written")

    def __init__(self, room: Memory, written: Any) -> None:
        self.room, self.written, self.captured = room, written, False


# Those that graphs read, for as long as the process lives: nobody tells when a graph is gone.
_kept: list[Table] = []


class _Rows(NamedTuple):
    """The rows of a table, what they were made of, and where what is written to lies."""

    addresses: list[int]
    places: list[int]
    by_set: NDArray[np.uint64]
    written: Spans


class Adder:
    """Launches that leave a number for each chunk, and one that adds these up in their order."""

    def __init__(
        self, problem: Problem, chunks: Sequence[int], facts: DeviceFacts, arrays: Any
    ) -> None:
        self._arrays, self._ordinal, count = arrays, facts.ordinal, sum(chunks)
        self._dtype = named(problem.dtype).accumulate
        self._shape, size = (max(count, 1),), named(self._dtype).itemsize
        self._places = [size * sum(chunks[:i]) for i in range(len(chunks))]
        self._last = Launch(lists.total(problem, count), facts, "<QQQ")

    def __call__(
        self, launches: Sequence[tuple[Launch, int]], tables: Sequence[int], values: Sequence[Any],
        stream: Any, into: int,
    ) -> None:  # fmt: skip
        """Launch on a stream: by tables at these addresses, into a result at `into`."""
        memory = self._arrays.workspace(self._shape, self._dtype, self._ordinal)
        sums = self._arrays.pointer(memory)
        for (launch, _), table, place in zip(launches, tables, self._places, strict=True):
            launch(stream, [table, sums + place, *values])
        self._last(stream, [sums, sums, into])


class ListRunner:
    """Runs sets of arrays, in one launch for all that have the same dtypes.

    Parameters
    ----------
    problems : sequence of Problem
        Of each set.
    facts : DeviceFacts
    arrays : module
        What is asked of the array library: `backends.cuda.torch`.
    variant : str
        One of `schedules.lists.VARIANTS`.

    Attributes
    ----------
    launches : tuple of (int, str, str)
        Of each launch its first set, kernel and variant.
    """

    def __init__(
        self, problems: Sequence[Problem], facts: DeviceFacts, arrays: Any, variant: str = ""
    ) -> None:
        self._facts, self._arrays, self._op = facts, arrays, problems[0].spec.name
        self._variant = variant or lists.VARIANTS[0]
        self._count, self._inputs = len(problems), len(problems[0].given)
        every = [lists.operands(p) for p in problems]
        shape = len(problems), len(every[0])
        self._sizes = np.asarray([[x.nbytes for x in some] for some in every], np.uint64)
        self._sizes = self._sizes.reshape(shape)
        groups: dict[lists.Form, list[int]] = {}
        for i, problem in enumerate(problems):
            groups.setdefault(lists.Form.of(problem), []).append(i)
        layouts = []
        for form, members in groups.items():
            sizes = [problems[i].given[0].size for i in members]
            over = lists.layout(sizes, form.row, lists.chunk(problems[members[0]]))
            if len(over.chunks):
                layouts.append((np.asarray(members), over))
        # All rows come first: only they change with addresses, so only they are sent again.
        self._rows = map_at = sum(over.rows_size for _, over in layouts)
        self._groups, steps, at = [], [], 0
        for of, over in layouts:
            problem, processors = problems[of[0]], facts.multiprocessors
            step = lists.plan(problem, over, map_at - at, processors, self._variant)
            steps.append((step, 8 * at))
            self._groups.append((of, over, at))
            at, map_at = at + over.rows_size, map_at + len(over.chunks)
        self._words, chunks = map_at, [len(over.chunks) for _, over in layouts]
        self._map = np.concatenate([over.chunks for _, over in layouts] or [_NONE])
        summed = lists.sums(problems[0])
        self._adder = Adder(problems[0], chunks, facts, arrays) if summed else None
        self._steps = steps
        self._loaded: dict[tuple[str, ...], list[tuple[Launch, int]]] = {}
        self._tables: dict[int, Table] = {}
        self._staging: list[Staging] = []
        self._before: _Rows | None = None
        self._guard = Guard()
        self._load(())
        self.launches = tuple(
            (int(members[0]), step.entry.symbol, f"{self._variant}, {step.threads} threads",
             compiler.origin([step.entry], facts.arch))
            for (step, _), (members, _, _) in zip(steps, self._groups, strict=True)
        )  # fmt: skip

    def __call__(
        self,
        inputs: Sequence[Array],
        outs: Sequence[int | Sequence[Array]],
        values: Sequence[Any],
        reads: tuple[str, ...],
        total: Array | None = None,
    ) -> None:
        """Launch on the current stream.

        `inputs` are all arrays, one operand after the other; `outs` has for each output its arrays,
        or the number of the operand in whose place it is. `reads` are the dtypes of the run-time
        values that are arrays, as `Problem` has them. `total` is where the sum goes, of sums.
        """
        if not self._words and total is None:
            return None
        arrays, ordinal = self._arrays, self._facts.ordinal
        if arrays.current_device() != ordinal:
            with as_before(), arrays.on_device(ordinal):
                return self(inputs, outs, values, reads, total)
        pointer, handle = arrays.pointer, arrays.current_stream(ordinal)
        addresses, places = [*map(pointer, inputs)], []
        for some in outs:
            places.append(some if isinstance(some, int) else -1)
            if not isinstance(some, int):
                addresses += map(pointer, some)
        if reads:
            pairs = zip(values, reads, strict=True)
            values = [pointer(x) if dtype else x for x, dtype in pairs]
        launches, stream = self._loaded.get(reads) or self._load(reads), stream_of(handle)
        # Another thread may not write the table between the copy and the launches.
        with self._guard.lock:
            address = self._table((addresses, places), handle, stream) if self._words else 0
            addresses = [address + offset for _, offset in launches]
            if self._adder is not None:
                self._adder(launches, addresses, values, stream, pointer(total))
                return None
            for (launch, _), at in zip(launches, addresses, strict=True):
                launch(stream, [at, *values])
        return None

    def _load(self, reads: tuple[str, ...]) -> list[tuple[Launch, int]]:
        """The launches where these run-time values are arrays, and where their rows begin."""
        made = []
        for step, offset in self._steps:
            read = step.reading(reads) if reads else step
            front = "<" + "Q" * len(read.front)
            try:
                made.append((Launch(read, self._facts, front + read.scalars), offset))
            except Refusal as refusal:
                if not reads:  # each set may still have a launch of its own
                    raise
                raise UnsupportedError(f"{self._op}: the planned kernel {refusal}") from None
        self._loaded[reads] = made
        return made

    def _table(self, key: tuple[list[int], list[int]], handle: int, stream: Any) -> int:
        """The device address of a table of these addresses."""
        table, captured = self._tables.get(handle), capturing(stream, self._facts.ordinal)
        if table is None or table.written != key:
            table = self._written(key, stream, table, captured)
            self._tables[handle] = table
        if captured and not table.captured:
            table.captured = True
            _kept.append(table)
        return table.room.address

    def _written(self, key: Any, stream: Any, old: Table | None, captured: bool) -> Table:
        """The table with other addresses: in the same memory, unless a graph reads that."""
        by_set = self._by_set(*key)
        if captured:
            words = np.empty(self._words, np.uint64)
            self._fill(words, by_set)
            words[self._rows :] = self._map
            return Table(at_once(words), key)
        staging = next((s for s in self._staging if s.free), None)
        if staging is None:
            staging = Staging(self._words)
            staging.words[self._rows :] = self._map
            self._staging.append(staging)
        self._fill(staging.words, by_set)
        count = self._rows
        if old is None or old.captured:
            count, old = self._words, Table(Memory(8 * self._words), None)
        staging.send(old.room.address, count, stream)
        old.written = key
        return old

    def _fill(self, words: NDArray[np.uint64], by_set: NDArray[np.uint64]) -> None:
        for members, over, at in self._groups:
            rows = by_set if len(members) == self._count else by_set[members]
            over.write(words[at : at + over.rows_size], rows, members)

    def _by_set(self, addresses: list[int], places: list[int]) -> NDArray[np.uint64]:
        """A row of addresses for each set, inputs then outputs; refuses what overlaps."""
        count, before = self._count, self._before
        changed = self._changed(addresses, before) if before else []
        fixed = {*places, *range(self._inputs, len(addresses) // count)}
        if before is None or before.places != places or not fixed.isdisjoint(changed):
            by_set, written = self._every(addresses, places)
        else:
            # Gradients are elsewhere in most steps; what is written to stays where it is.
            by_set, written = before.by_set.copy(), before.written
            for k in changed:
                column = np.asarray(addresses[k * count : (k + 1) * count], np.uint64)
                if touches(column, self._sizes[:, k], *written):
                    self._refuse()
                by_set[:, k] = column
        self._before = _Rows(addresses, places, by_set, written)
        return by_set

    def _changed(self, addresses: list[int], before: _Rows) -> list[int]:
        """The numbers of the lists of arrays that lie elsewhere than before."""
        n, old = self._count, before.addresses
        starts = enumerate(range(0, len(addresses), n))
        return [k for k, i in starts if addresses[i : i + n] != old[i : i + n]]

    def _every(self, addresses: list[int], places: list[int]) -> tuple[NDArray[np.uint64], Spans]:
        """All rows, and where what is written to begins and ends, in order."""
        flat = np.asarray(addresses, np.uint64).reshape(-1, self._count)
        given, new = flat[: self._inputs], iter(flat[self._inputs :])
        outs = [given[k] if k >= 0 else next(new) for k in places]
        by_set = np.stack([*given, *outs], axis=1)
        # Each memory once: an output in the place of an input is that input, written to.
        own = [k for k in range(self._inputs) if k not in places]
        own += range(self._inputs, by_set.shape[1])
        written = np.zeros((self._count, len(own)), bool)
        written[:, len(own) - len(places) :] = True
        begins, sizes = by_set[:, own].ravel(), self._sizes[:, own].ravel()
        if overlap(begins, sizes, written.ravel()):
            self._refuse()
        there = written.ravel() & (sizes > 0)
        order = np.argsort(begins[there])
        begins = begins[there][order]
        return by_set, (begins, begins + sizes[there][order])

    def _refuse(self) -> None:
        expected = "memory of its own for each array that is written to"
        raise value_error(self._op, "out", expected, "an overlap")


def touches(
    begins: NDArray[np.uint64], sizes: NDArray[np.uint64], starts: NDArray[np.uint64],
    ends: NDArray[np.uint64],
) -> bool:  # fmt: skip
    """Whether some memory is part of spans that are in order, and apart from each other."""
    before = np.searchsorted(starts, begins + sizes)
    last = np.concatenate([[np.uint64(0)], ends])[before]
    return bool(np.any((last > begins) & (sizes > 0)))


def overlap(
    begins: NDArray[np.uint64], sizes: NDArray[np.uint64], written: NDArray[np.bool_]
) -> bool:
    """Whether some memory that is written to is part of any other."""
    there = sizes > 0
    begins, sizes, written = begins[there], sizes[there], written[there]
    order = np.argsort(begins, kind="stable")
    begins, ends, written = begins[order], (begins + sizes)[order], written[order]
    if not len(begins):
        return False
    reach = np.maximum.accumulate(ends)[:-1]
    of_written = np.maximum.accumulate(np.where(written, ends, np.uint64(0)))[:-1]
    after = begins[1:]
    return bool(np.any((after < of_written) | (written[1:] & (after < reach))))
