"""A program for a machine with a GPU: AdamW's step over lists of arrays, beside torch's.

`python tests/optimiser_lists.py` prints, for 145, 300 and 2,000 arrays of 1.24e9 parameters
together, milliseconds, the share of the copy ceiling that the bytes of the step or norm alone
have, and microseconds of host time, in all and for each array of each list. `--parameters` and
`--arrays` take other sizes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import baracuda as bc
from baracuda.backends.cuda import launch
from baracuda.backends.cuda import torch as library
from baracuda.backends.cuda.lists import ListRunner
from baracuda.backends.cuda.schedules.lists import VARIANTS
from baracuda.testing.timing import copy_ceiling

DTYPES = {
    "bf16, bf16 states": (torch.bfloat16, torch.bfloat16),
    "bf16, f32 states": (torch.bfloat16, torch.float32),
    "f32": (torch.float32, torch.float32),
}


def shapes(arrays: int, parameters: int) -> list[int]:
    """Sizes as those of a model: half of the arrays are 4,096 elements, the others share the rest.

    Three in eight of these are odd, so that no vector ends where they do.
    """
    small = arrays // 2
    rest = (parameters - small * 4096) // (arrays - small)
    return [4096] * small + [rest - (i % 8 < 3) for i in range(arrays - small)]


def timed(task: Callable[[], Any]) -> tuple[float, float]:
    """Median seconds on the device and of the host, of ten calls after three to warm up."""
    device, host = [], []
    for _ in range(13):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        start = time.perf_counter()
        task()
        host.append(time.perf_counter() - start)
        end.record()
        torch.cuda.synchronize()
        device.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(device[3:]), statistics.median(host[3:])


def graphed(task: Callable[[], Any]) -> Callable[[], Any]:
    """The task as a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        task()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        task()
    return graph.replay


@dataclass
class Report:
    """One list: how many arrays, the bytes of a step, and those of a copy in a second."""

    arrays: int
    nbytes: int
    ceiling: float
    lists: int = 4

    def line(self, what: str, task: Callable[[], Any]) -> None:
        try:
            device, host = timed(task)
        except torch.OutOfMemoryError:
            print(f"  {what:20} out of memory", flush=True)
            return
        share, each = self.nbytes / device / self.ceiling, host / (self.lists * self.arrays)
        print(
            f"  {what:20} {device * 1e3:7.2f} ms  {share:.3f} of the ceiling  "
            f"{host * 1e6:7.0f} us of the host, {each * 1e6:.3f} an array and list",
            flush=True,
        )


def ours(report: Report, sizes: list[int], param: torch.dtype, state: torch.dtype) -> None:
    """By each variant, with a table that is made anew, and as a graph."""
    lists = [
        [torch.zeros(n, dtype=kind, device="cuda") for n in sizes]
        for kind in (param, param, state, state)
    ]
    plan, out = bc.adamw.plan(*lists), (lists[0], lists[2], lists[3])
    facts = launch.device_facts(torch.cuda.current_device())

    def step() -> None:
        plan(*lists, out=out, step=3)

    def moved() -> None:
        lists[1][0] = lists[1][0].clone()
        step()

    for variant in reversed(VARIANTS):
        plan._together = ListRunner([p.problem for p in plan.plans], facts, library, variant)
        report.line(f"baracuda, {variant}", step)
    report.line("baracuda, moved", moved)
    report.line("baracuda, graph", graphed(step))


def norms(report: Report, sizes: list[int], dtype: torch.dtype) -> None:
    """The joint norm of gradients: ours, with the scale that clips by it, and torch's."""
    grads = [torch.zeros(n, dtype=dtype, device="cuda") for n in sizes]
    only = replace(report, nbytes=sum(sizes) * dtype.itemsize, lists=1)
    plan = bc.sum_of_squares.plan(grads)
    only.line("norm, baracuda", lambda: bc.clip_scale(plan(grads), max_norm=1.0))
    only.line("norm, torch", lambda: torch.nn.utils.get_total_norm(grads, foreach=True))


def theirs(report: Report, sizes: list[int], dtype: torch.dtype, how: str) -> None:
    """torch's step, fused or foreach, torchao's, or that of our optimiser in its place."""
    params = [torch.zeros(n, dtype=dtype, device="cuda").requires_grad_() for n in sizes]
    for p in params:
        p.grad = torch.zeros_like(p)
    if how == "ours":
        report.line("bc.optim.AdamW", bc.optim.AdamW(params, capturable=True).step)
    elif how == "torchao":
        try:
            from torchao.optim import AdamW8bit, _AdamW
        except ImportError:
            return
        report.line("torchao", _AdamW(params).step)
        # Its states have a byte an element; what scales their blocks is not counted.
        short = replace(report, nbytes=sum(sizes) * (3 * dtype.itemsize + 4))
        short.line("torchao, 8 bits", AdamW8bit(params).step)
    else:
        report.line(f"torch, {how}", torch.optim.AdamW(params, **{how: True}).step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=1_240_000_000)
    parser.add_argument("--arrays", type=int, nargs="*", default=[145, 300, 2000])
    options = parser.parse_args()
    ceiling = copy_ceiling(1.0)
    print(f"{torch.cuda.get_device_name()}: copy ceiling {ceiling / 1e9:.0f} GB/s")
    for arrays in options.arrays:
        sizes = shapes(arrays, options.parameters)
        for name, (param, state) in DTYPES.items():
            print(f"{arrays} arrays, {name}")
            nbytes = sum(sizes) * (3 * param.itemsize + 4 * state.itemsize)
            report = Report(arrays, nbytes, ceiling)
            ours(report, sizes, param, state)
            torch.cuda.empty_cache()
            norms(report, sizes, param)
            torch.cuda.empty_cache()
            for how in ("ours", "fused", "foreach", "torchao") if param is state else ():
                theirs(report, sizes, param, how)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
