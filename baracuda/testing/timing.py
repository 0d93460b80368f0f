"""How things are timed: medians with their spread, on the host and on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

Task = Callable[[], Any]


def on_host(task: Task, seconds: float) -> tuple[float, float]:
    """Median seconds of a call, and half the width of the middle half of the calls."""
    task()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 1000):
        start = time.perf_counter()
        task()
        times.append(time.perf_counter() - start)
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, (high - low) / 2


def on_device(task: Task, seconds: float) -> tuple[float, float]:
    """The same for work on the current GPU, its caches flushed before every call."""
    bench = import_module("triton.testing").do_bench
    rep = max(seconds * 1e3, 10.0)
    low, middle, high = bench(task, warmup=rep / 4, rep=rep, quantiles=[0.25, 0.5, 0.75])
    return middle * 1e-3, (high - low) * 0.5e-3


def by_replay(task: Task, copies: int = 50) -> float:
    """Seconds per call of small work, as a CUDA graph of many copies runs it."""
    torch = import_module("torch")
    for _ in range(3):
        task()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
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
