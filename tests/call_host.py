"""A program for any machine: the host's time of calls of kernels, where the launch does nothing.

`PYTHONPATH=. python tests/call_host.py` prints the launches of each call and its microseconds: the
least, and the lower quartile, of many runs, as others share the machine. Tensors of the CPU stand
for tensors on a device, where an allocation costs more. With names only calls that have one.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Mapping
from statistics import quantiles
from typing import Any

import pytest
import torch
from stub_device import install

import baracuda as bc
from baracuda.libraries.torch import Torch

Task = Callable[[], Any]
# Shapes that are new, of each op.
_SHAPES = 1000


def calls() -> dict[str, Task]:
    """Calls of one kernel and of several, cached and of plans."""
    x, dy, out = torch.randn(4, 64), torch.randn(4, 32), torch.empty(4, 64)
    a, b, weight = torch.randn(16, 64), torch.randn(16, 64), torch.randn(64)
    target, images = torch.zeros(16, dtype=torch.int64), torch.randn(4, 8, 6, 6)
    scale, shift = torch.randn(8), torch.randn(8)
    swiglu, entropy = bc.swiglu_backward.plan(dy, x), bc.cross_entropy.plan(a, target)
    return {
        "torch.add(out=)": lambda: torch.add(x, x, out=out),
        "swiglu_backward, plan": lambda: swiglu(dy, x),
        "swiglu_backward": lambda: bc.swiglu_backward(dy, x),
        "mse_loss": lambda: bc.mse_loss(a, b),
        "huber_loss": lambda: bc.huber_loss(a, b),
        "huber_loss, a delta": lambda: bc.huber_loss(a, b, delta=0.5),
        "nll_loss": lambda: bc.nll_loss(a, target),
        "prelu_backward": lambda: bc.prelu_backward(a, b, weight),
        "layer_norm_backward": lambda: bc.layer_norm_backward(a, b, weight),
        "cross_entropy, plan": lambda: entropy(a, target),
        "cross_entropy": lambda: bc.cross_entropy(a, target),
        "batch_norm": lambda: bc.batch_norm(images, scale, shift),
    }


def composites() -> dict[str, Task]:
    """Cross entropy of a linear layer: of one chunk, of equal ones, of others."""
    hidden, weight = torch.randn(16, 4), torch.randn(9, 4)
    target, one = torch.zeros(16, dtype=torch.int64), torch.ones(())
    out: dict[str, Task] = {}
    for name, rows, chunk in (("one chunk", 16, 16), ("two", 16, 8), ("two odd ones", 15, 9)):
        arrays, how = (hidden[:rows], weight, target[:rows]), {"chunk": chunk}
        for op, given in (
            (bc.linear_cross_entropy, arrays),
            (bc.linear_cross_entropy_backward, (one, *arrays)),
            (bc.linear_cross_entropy_with_gradient, arrays),
        ):
            label = f"{op.spec.name}, {name}"
            out[label] = lambda op=op, given=given, how=how: op(*given, **how)
    return out


def per_call(task: Task, calls: int = 200, runs: int = 30) -> tuple[float, float]:
    """Microseconds of a call: of the fastest run, and of the lower quartile."""
    for _ in range(calls):
        task()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        for _ in range(calls):
            task()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return min(times), quantiles(times, n=4)[0]


def per_shape(op: Callable[..., Any], arrays: Callable[[int], Any]) -> tuple[float, float]:
    """Microseconds of calls of shapes that are new: the least, and the lower quartile."""
    op(*arrays(4))
    times = []
    for given in map(arrays, range(5, 5 + _SHAPES)):
        start = time.perf_counter()
        op(*given)
        times.append((time.perf_counter() - start) * 1e6)
    return min(times), quantiles(times, n=4)[0]


def measured(named: Callable[[str], bool], launched: list[Any]) -> Mapping[str, tuple[Any, ...]]:
    """The launches of each call, and its microseconds."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, task in {**calls(), **composites()}.items():
        if named(name):
            task()
            launched.clear()
            task()
            found[name] = len(launched), *per_call(task)
    ones, zeros = (lambda n: torch.ones(n, 8)), (lambda n: torch.zeros(n, dtype=torch.int64))
    for name, op, arrays in (
        ("glu, new shapes", bc.glu, lambda n: (ones(n),)),
        ("cross_entropy, new shapes", bc.cross_entropy, lambda n: (ones(n), zeros(n))),
    ):
        if named(name):
            found[name] = "", *per_shape(op, arrays)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    gc.disable()
    with pytest.MonkeyPatch.context() as patch:
        device = install(patch)
        # As on a device, nobody reads an index before the call.
        patch.setattr(Torch, "readable", lambda self, x: False)
        print(f"{'launches':>48} {'least':>8} {'quartile':>8}")
        found = measured(
            lambda name: not names or any(part in name for part in names), device.launched
        )
        for name, (launches, least, quartile) in found.items():
            print(f"{name:42} {launches:>5} {least:8.2f} {quartile:8.2f}")


if __name__ == "__main__":
    main()
