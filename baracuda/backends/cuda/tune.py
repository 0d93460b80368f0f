"""Which variant is the fastest: measured once, on the arrays of the call that makes the plan."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, TypeAlias

from cuda.bindings import driver
from cuda.core import Device

from baracuda.backends.cuda.launch import (
    OK,
    as_before,
    checked,
    in_context,
    on_primary,
    stream_of,
    while_capturing,
)
from baracuda.backends.cuda.launch_plan import WIDEST, DeviceFacts
from baracuda.backends.cuda.runner import CudaRunner
from baracuda.declaration.backend import Refusal
from baracuda.declaration.spec import Problem
from baracuda.libraries import Array

logger = logging.getLogger("baracuda")

Task: TypeAlias = Callable[[], Any]
Timer: TypeAlias = Callable[[Task], float]

_ROUNDS, _WARM_UP = 15, 2
# What another variant has to be ahead of the rule's choice, lest noise decides.
_AHEAD = 0.98


def fastest(
    problem: Problem,
    facts: DeviceFacts,
    arrays: Any,
    choices: Sequence[str],
    given: Sequence[Array],
) -> str:
    """The fastest of `choices` for `problem`, on the arrays `given` and new outputs.

    "", which leaves the choice to the rule, while the current stream is captured into a graph.
    """
    if arrays.current_device() != facts.ordinal:
        with as_before(), arrays.on_device(facts.ordinal):
            return fastest(problem, facts, arrays, choices, given)
    stream = stream_of(arrays.current_stream(facts.ordinal))
    if _captured(stream, facts.ordinal):
        logger.info("%s: not measured while a stream is captured", problem.spec.name)
        return ""
    limit, runners = problem.choices.max_workspace_bytes, {}
    for name in choices:
        try:
            # Scratch runs report nothing: the call itself will.
            runner = CudaRunner(problem, facts, arrays, name, listens=False)
            runner.program(WIDEST)
        except Refusal:
            continue
        if limit is None or runner.steps.workspace_size <= limit:
            runners[name] = runner
    scalars = {
        name: 0.5 if code == "d" else 1
        for name, code in zip(problem.spec.scalars, problem.spec.codes, strict=True)
    }
    tasks = {n: lambda r=r: r(given, None, False, scalars) for n, r in runners.items()}
    with while_capturing(), stopwatch(facts.ordinal, arrays, stream) as timer:
        return least(tasks, timer)


def least(tasks: Mapping[str, Task], timer: Timer) -> str:
    """The name of the fastest task by the median: the first, unless another is clearly ahead."""
    if len(tasks) < 2:
        return next(iter(tasks), "")
    for _ in range(_WARM_UP):
        for task in tasks.values():
            task()
    times: dict[str, list[float]] = {name: [] for name in tasks}
    # In turns, so that what changes with time meets all of them.
    for _ in range(_ROUNDS):
        for name, task in tasks.items():
            times[name].append(timer(task))
    medians = {name: median(measured) for name, measured in times.items()}
    first, best = next(iter(tasks)), min(medians, key=medians.__getitem__)
    logger.info("measured: %s", ", ".join(f"{n} {t * 1e6:.2f} us" for n, t in medians.items()))
    return best if medians[best] < _AHEAD * medians[first] else first


@contextmanager
def stopwatch(ordinal: int, arrays: Any, stream: Any) -> Iterator[Timer]:
    """Seconds that what a task launches takes on the device, its caches cold."""
    with on_primary(ordinal):
        # Writing it also keeps the device busy until all of a task is queued.
        size = 2 * Device(ordinal).properties.l2_cache_size
        flushed = arrays.empty((size,), (1,), "int8", ordinal)
        events = [checked(driver.cuEventCreate(0)) for _ in range(2)]

        def seconds(task: Task) -> float:
            checked(driver.cuMemsetD8Async(arrays.pointer(flushed), 0, size, stream))
            checked(driver.cuEventRecord(events[0], stream))
            task()
            checked(driver.cuEventRecord(events[1], stream))
            checked(driver.cuEventSynchronize(events[1]))
            return float(checked(driver.cuEventElapsedTime(*events))) * 1e-3

        try:
            yield seconds
        finally:
            for event in events:
                driver.cuEventDestroy(event)


def _captured(stream: Any, ordinal: int) -> bool:
    status, state = in_context(ordinal, driver.cuStreamIsCapturing, stream)
    none: bool = state == driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return status != OK or not none
