"""Run a body block by block into the result, so that its temporaries stay in the cache.

Along an axis that every output has, no element depends on another: such axes are cut. So are those
that some output lacks because it is a sum over them; sums of blocks are added in the blocks' order.
Axes that an input lacks are cut late, so that what broadcasts (a table of angles) is computed once
a block. The last axis comes after all others, as its elements lie side by side.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from baracuda.backends.numpy import programs
from baracuda.calls import body
from baracuda.calls.partitioning import added_up, independent, located
from baracuda.declaration.backend import Adds, Prepared, Runner, each
from baracuda.declaration.shapes import Label, Pattern
from baracuda.declaration.spec import Problem
from baracuda.forks import Guard
from baracuda.libraries import Array
from baracuda.libraries.numpy import settle

# Elements per block. Temporaries of 512 KiB fit a core's own cache, and the interpreter's cost per
# block (some 50 us) stays small: a quarter of it costs 10% on swiglu_backward, 80% on pooling.
BLOCK = 1 << 17
# Elements of a run along the last axis: functions begin anew with each.
_RUN = 512

Cut: TypeAlias = Mapping[str, slice]
"""A block, as a slice of each label."""


def prepare(problem: Problem) -> Prepared:
    """The body in blocks where there is more than one, else at once."""
    form = _Form(problem)
    steps = {} if problem.spec.composite else form.steps()
    if not steps:
        run, variant = body.runner(problem), ""
    else:
        run, variant = _runner(problem, form, steps), f"blocks of {BLOCK}"
        if form.records:
            run, variant = (
                programs.runner(problem, form.arrays, form.outs, on_threads, run),
                "blocks",
            )
    return Prepared(
        run=run,
        kernel=body.kernel(problem),
        variant=variant,
        arch=problem.library.arch(problem.device),
        precision=body.precision(problem),
    )


@dataclass(frozen=True, slots=True)
class _Half:
    """One half of a packed array."""

    axis: int
    extent: int
    second: bool

    def __call__(self, x: Array) -> Array:
        along = slice(self.extent, None) if self.second else slice(self.extent)
        return x[(slice(None),) * self.axis + (along,)]


class _Form:
    """A problem without packing and without implied inputs: one pattern for every array."""

    def __init__(self, problem: Problem) -> None:
        spec, given = problem.spec, set(problem.signature.names)
        self.problem = problem
        self.halves: dict[str, _Half] = {}
        counted = spec.uncounted(given)
        self.counts = {name: int(problem.axes[axis]) for name, axis in counted.items()}  # type: ignore[arg-type]
        wanted = given | set(self.counts)
        packed = spec.packed
        if packed is not None and packed.other not in given:
            wanted.add(packed.other)
            axis = problem.options[packed.axis]
            shape = next(x.shape for x in problem.given if x.name == packed.array)
            for second, name in enumerate(packed.order(problem.options)):
                self.halves[name] = _Half(axis, shape[axis] // 2, bool(second))
        forms = (problem.signature, *spec.signatures)
        self.signature = next(s for s in forms if set(s.names) == wanted)
        self.free = independent(spec, self.signature) | added_up(spec, self.signature)

    def arrays(self, given: Sequence[Array]) -> list[Array]:
        """The inputs, in the order of the op's parameters, absent ones None."""
        known = dict(zip(self.problem.spec.arrays, given, strict=False))
        if self.halves:
            packed = known[self.problem.spec.packed.array]  # type: ignore[union-attr]
            known.update({name: half(packed) for name, half in self.halves.items()})
        for name, extent in self.counts.items():
            known[name] = np.arange(extent, dtype=np.int32)
        return [known.get(name) for name in self.problem.spec.arrays]

    def outs(self, outs: Sequence[Array]) -> list[Array]:
        """The outputs, a packed one as its halves."""
        if len(outs) == len(self.signature.outputs):
            return list(outs)
        return [self.halves[p.name.removeprefix("d")](outs[0]) for p in self.signature.outputs]

    @property
    def records(self) -> bool:
        """Whether elements depend on those in their places, all in rows of C order."""
        problem = self.problem
        every = {p.names for p in (*self.signature.inputs, *self.signature.outputs)}
        plain = problem.spec.elementwise and len(every) == 1 and not self.counts
        dtypes = {x.dtype for x in (*problem.given, *problem.outputs)}
        in_order = all(x.strides is None for x in problem.outputs)
        return plain and in_order and dtypes == {problem.compute_dtype}

    def labels(self, pattern: Pattern) -> tuple[Label, ...]:
        return pattern.labels(self.problem.axes)

    def patterns(self) -> list[Pattern | None]:
        """The pattern of each of the op's parameters."""
        known = {p.name: p for p in self.signature.inputs}
        return [known.get(name) for name in self.problem.spec.arrays]

    def steps(self) -> dict[str, tuple[int, int]]:
        """Extent and step of every label that is cut, the outermost first; none for one block."""
        shapes = {x.name: x.shape for x in self.problem.given}
        total = max(x.size for x in (*self.problem.given, *self.problem.outputs))
        if total < 2 * BLOCK or 0 in (x.size for x in self.problem.outputs):
            return {}
        extents: dict[str, int] = {}
        lacking: dict[str, bool] = {}
        first, fixed = self.signature.outputs[0], located(self.problem)
        for label, extent in zip(self.labels(first), first.shape(self.problem.axes), strict=True):
            if label.term.name in self.free and label.name not in fixed:
                extents[label.name] = extent
                lacking[label.name] = False
        for pattern in self.signature.inputs:
            shape = shapes.get(pattern.name)
            have = {
                label.name
                for i, label in enumerate(self.labels(pattern))
                if not label.term.or_one or shape is None or shape[i] != 1
            }
            for name in lacking:
                lacking[name] |= name not in have
        out: dict[str, tuple[int, int]] = {}
        last = self.labels(first)[-1].name if extents else ""
        for name in sorted(extents, key=lambda n: (n == last, lacking[n])):
            if total <= BLOCK:
                break
            each = total // max(extents[name], 1)
            least = _RUN if name == last else 1
            step = min(max(least, BLOCK // max(each, 1)), max(extents[name], 1))
            out[name] = (extents[name], step)
            total = each * step
        return out


def _cuts(steps: Mapping[str, tuple[int, int]]) -> Iterator[Cut]:
    names = list(steps)
    ranges = [range(0, extent, step) for extent, step in steps.values()]
    for starts in itertools.product(*ranges):
        yield {n: slice(at, at + steps[n][1]) for n, at in zip(names, starts, strict=True)}


def _indexer(labels: Sequence[Label], cut_names: Iterable[str]) -> Callable[[Cut, Array], Array]:
    """Takes a block's part out of one array."""
    names = [label.name if label.name in cut_names else "" for label in labels]
    maybe = {i for i, label in enumerate(labels) if label.term.or_one}
    whole = slice(None)

    def part(cut: Cut, x: Array) -> Array:
        return x[
            tuple(
                [
                    whole if not name or (i in maybe and x.shape[i] == 1) else cut[name]
                    for i, name in enumerate(names)
                ]
            )
        ]

    return part


def _runner(problem: Problem, form: _Form, steps: Mapping[str, tuple[int, int]]) -> Runner:
    evaluate = body.evaluator(problem)
    library, compute = problem.library, problem.library.dtype(problem.compute_dtype)
    takes = [_indexer(form.labels(p), steps) if p else None for p in form.patterns()]
    puts = [_indexer(form.labels(p), steps) for p in form.signature.outputs]
    summed = [not steps.keys() <= {x.name for x in form.labels(p)} for p in form.signature.outputs]

    def run(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        results = outs or tuple(
            library.empty(x.shape, x.dtype, arrays[0], x.strides) for x in problem.outputs
        )
        inputs, targets = form.arrays(arrays), form.outs(results)
        # The halves of a packed output are its own.
        adds = each(accumulate, len(targets))
        sums = [
            np.zeros(x.shape, compute) if s else None for x, s in zip(targets, summed, strict=True)
        ]
        in_order = _InOrder()

        def block(numbered: tuple[int, Cut]) -> None:
            number, cut = numbered
            parts = [
                take if take is None or x is None else take(cut, x)
                for take, x in zip(takes, inputs, strict=True)
            ]
            values = evaluate(parts, scalars)
            for put, target, total, value, add in zip(
                puts, targets, sums, values, adds, strict=True
            ):
                if total is None:
                    view = put(cut, target)
                    view[...] = view.astype(compute) + value if add else value
            if any(summed):
                found = [
                    (put(cut, total), value)
                    for put, total, value in zip(puts, sums, values, strict=True)
                    if total is not None
                ]
                in_order.add(number, found)

        on_threads(block, enumerate(_cuts(steps)))
        for target, total, add in zip(targets, sums, adds, strict=True):
            if total is not None:
                target[...] = target.astype(compute) + total if add else total
        return results if len(results) > 1 else results[0]

    return run


class _InOrder:
    """Adds what blocks leave, in their order, whichever thread comes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, Sequence[tuple[Array, Array]]] = {}
        self._next = 0

    def add(self, number: int, found: Sequence[tuple[Array, Array]]) -> None:
        """Add pairs of a total and a part of it, when those of all blocks before have been."""
        with self._lock:
            self._waiting[number] = found
            while (ready := self._waiting.pop(self._next, None)) is not None:
                for total, part in ready:
                    total += part
                self._next += 1


_WORKERS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_pool: ThreadPoolExecutor | None = None
# Threads that are handing tasks to the pool.
_submitting: set[int] = set()


def on_threads(task: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Run `task` on every item, this thread among the workers, floating-point warnings off."""
    remaining = iter(items)
    # A generator may not be advanced by two threads at once.
    lock = threading.Lock()

    def drain() -> None:
        with np.errstate(all="ignore"):
            while True:
                with lock:
                    item = next(remaining, None)
                if item is None:
                    return
                task(item)

    helpers: list[Future[None]] = []
    try:
        _submit(drain, helpers)
        drain()
    finally:
        for helper in helpers:
            # One that has not begun finds nothing left to do: no need to wait for it.
            if not helper.cancel():
                helper.result()


def _submit(drain: Callable[[], None], helpers: list[Future[None]]) -> None:
    """Ask the pool for help, where it takes tasks."""
    me = threading.get_ident()
    # A signal handler that interrupts this would wait for a lock of the pool that its own thread
    # holds.
    if me in _submitting:
        return
    _submitting.add(me)
    try:
        # While the interpreter shuts down nothing is taken any more: then this thread does it all.
        with suppress(RuntimeError):
            for _ in range(_WORKERS - 1):
                helpers.append(_shared_pool().submit(drain))
    finally:
        _submitting.discard(me)


def _shared_pool() -> ThreadPoolExecutor:
    global _pool
    with _pool_guard.lock:
        if _pool is None:
            settle()
            _pool = ThreadPoolExecutor(max(_WORKERS - 1, 1), "baracuda")
        return _pool


def _forget_pool() -> None:
    """A forked child has the pool's record but none of its threads."""
    global _pool
    _pool = None
    _submitting.clear()


_pool_guard = Guard(_forget_pool)
