"""How things are timed: medians with their spread, on the host and on a GPU."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

Task = Callable[[], Any]

# Seconds of a call that two measure well enough.
_SLOW = 0.1
# Bytes that are written before a call: ten times what the caches hold, so that a host that is slow
# has asked for the call before the device gets to it. With half of them kernels of 20 us took 60.
_FLUSH = 1 << 29
# Calls that tell how many fit the time, and the most of these.
_FEW, _MANY = 5, 1000


@dataclass(frozen=True)
class Queued:
    """Work on streams that no event of torch sees, and what waits for a result of it."""

    task: Task
    wait: Callable[[Any], Any]

    def __call__(self) -> Any:
        return self.wait(self.task())

    def timed(self, calls: int) -> float:
        """Seconds of one of so many calls in a row, by the host's clock."""
        start = time.perf_counter()
        for _ in range(calls - 1):
            self.task()
        self()
        return (time.perf_counter() - start) / calls


def on_host(task: Task, seconds: float) -> tuple[float, float]:
    """Median seconds of a call, and half the width of the middle half of the calls."""
    task()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 1000):
        start = time.perf_counter()
        task()
        times.append(time.perf_counter() - start)
    return _median(times)


def in_turns(tasks: Mapping[str, Task], seconds: float) -> dict[str, tuple[float, float]]:
    """`on_host` of several tasks that take turns, so that what slows a machine down slows all."""
    for task in tasks.values():
        task()
    times: dict[str, list[float]] = {name: [] for name in tasks}
    order, first = list(tasks), time.perf_counter()
    for rounds in range(1, 1001):
        for name in order:
            start = time.perf_counter()
            tasks[name]()
            times[name].append(time.perf_counter() - start)
        # The first one maps memory anew where the last one has freed large arrays.
        order.append(order.pop(0))
        spent = time.perf_counter() - first
        # Five rounds at least, or three of what takes longer than a second.
        if spent >= seconds * len(tasks) and rounds >= (5 if spent < 1 else 3):
            break
    return {name: _median(taken) for name, taken in times.items()}


def extra_bytes(task: Task) -> int:
    """The most bytes that a call had allocated at once in NumPy, beside its results."""
    task()
    tracemalloc.start()
    try:
        result = task()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    results = result if isinstance(result, tuple) else (result,)
    return max(0, peak - int(sum(x.nbytes for x in results)))


def on_device(task: Task, seconds: float) -> tuple[float, float]:
    """The same for work on the current GPU, its caches flushed before every call.

    What is `Queued` is timed in runs of many calls, one after the other, so that the host's part is
    hidden behind the device's: of work that is larger than all caches.
    """
    torch = import_module("torch")
    queued = task if isinstance(task, Queued) else Queued(task, lambda _: torch.cuda.synchronize())
    queued()
    once = queued.timed(1)
    if once > _SLOW:
        return _median([once, queued.timed(1)])
    if queued is task:
        calls = max(int(seconds / 5 / once), 1)
        return _median([queued.timed(calls) for _ in range(5)])
    flush = torch.empty(_FLUSH, dtype=torch.int8, device="cuda")
    start = time.perf_counter()
    _flushed(torch, task, flush, _FEW)
    each = (time.perf_counter() - start) / _FEW
    return _median(_flushed(torch, task, flush, min(max(int(seconds / each), _FEW), _MANY)))


def _flushed(torch: Any, task: Task, flush: Any, calls: int) -> list[float]:
    """Seconds of each of so many calls, as events around it tell."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * calls)]
    for before, after in zip(events[::2], events[1::2], strict=True):
        flush.zero_()
        before.record()
        task()
        after.record()
    torch.cuda.synchronize()
    pairs = zip(events[::2], events[1::2], strict=True)
    return [before.elapsed_time(after) * 1e-3 for before, after in pairs]


def _median(times: list[float]) -> tuple[float, float]:
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, (high - low) / 2


@contextmanager
def uncollected() -> Iterator[None]:
    """A block without the collector: what it frees (a module, pinned memory) breaks a capture."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def by_replay(task: Task, copies: int = 50) -> float:
    """Seconds per call of small work, as a CUDA graph of many copies runs it."""
    torch = import_module("torch")
    for _ in range(3):
        task()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with uncollected(), torch.cuda.graph(graph):
        for _ in range(copies):
            task()
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e-3 / copies)
    return float(statistics.median(times))


def per_call(task: Task, calls: int = 20_000) -> float:
    """Microseconds of host time per call: the best of five runs."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls // 5):
            task()
        best = min(best, time.perf_counter() - start)
    return best / (calls // 5) * 1e6


def copy_ceiling(seconds: float) -> float:
    """Bytes per second of a device-to-device copy, read and written."""
    torch = import_module("torch")
    x = torch.empty(1 << 30, dtype=torch.int8, device="cuda").random_()
    y = torch.empty_like(x)
    median, _ = on_device(lambda: y.copy_(x), seconds)
    return 2 * int(x.numel()) / median
