"""Run a body block by block into the result, on threads: see `calls.cuts`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np

from baracuda.backends.numpy import programs
from baracuda.calls import body
from baracuda.calls.cuts import Cut, Form, cuts
from baracuda.declaration.backend import Adds, Prepared, Runner, each
from baracuda.declaration.spec import Problem
from baracuda.forks import Guard
from baracuda.libraries import Array
from baracuda.libraries.numpy import settle

# Elements per block. Temporaries of 512 KiB fit a core's own cache, and the interpreter's cost per
# block (some 50 us) stays small: a quarter of it costs 10% on swiglu_backward, 80% on pooling.
BLOCK = 1 << 17


def prepare(problem: Problem) -> Prepared:
    """The body in blocks where there is more than one, else at once."""
    form = Form(problem)
    steps = {} if problem.spec.composite else form.steps(BLOCK)
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


def _runner(problem: Problem, form: Form, steps: Mapping[str, tuple[int, int]]) -> Runner:
    evaluate = body.evaluator(problem)
    library, compute = problem.library, problem.library.dtype(problem.compute_dtype)
    takes, puts, summed = form.parts(steps)

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

        on_threads(block, enumerate(cuts(steps)))
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
