"""A program for any machine: the host's time of optimiser steps, where the launch does nothing.

`python tests/optimiser_host.py` prints microseconds of a step and of each parameter, for 145 and
2,000 of them. Tensors of the CPU stand for tensors on a device; each step has new gradients.
`--arrays` takes other numbers, `--profile` prints where the time of AdamW goes instead.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stub_device import Memory, install, install_copies

import baracuda as bc

OPTIMISERS: dict[str, Callable[[list[torch.Tensor]], Any]] = {
    "AdamW": lambda params: bc.optim.AdamW(params),
    "AdamW, capturable": lambda params: bc.optim.AdamW(params, capturable=True),
    "SGD, momentum": lambda params: bc.optim.SGD(params, momentum=0.9),
    "Lion": lambda params: bc.optim.Lion(params),
}


def parameters(count: int) -> list[torch.Tensor]:
    """Vectors of a few lengths."""
    return [torch.zeros(2048 - i % 8).requires_grad_() for i in range(count)]


def give(params: list[torch.Tensor]) -> None:
    """New gradients."""
    for p in params:
        p.grad = torch.zeros_like(p)


def per_step(optimiser: Any, params: list[torch.Tensor], steps: int) -> float:
    """The least seconds of a step, of so many after three to warm up; others share the machine."""
    found = []
    for _ in range(steps + 3):
        give(params)
        start = time.perf_counter()
        optimiser.step()
        found.append(time.perf_counter() - start)
    return min(found[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arrays", type=int, nargs="*", default=[145, 2000])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        install_copies(patch, Memory())
        for count in options.arrays:
            for name, make in OPTIMISERS.items():
                params = parameters(count)
                optimiser = make(params)
                if options.profile:
                    per_step(optimiser, params, 1)
                    give(params)
                    with cProfile.Profile() as profile:
                        optimiser.step()
                    pstats.Stats(profile).sort_stats("tottime").print_stats(12)
                    continue
                seconds = per_step(optimiser, params, options.steps)
                each = seconds / count
                print(f"{count:5} {name:20} {seconds * 1e6:8.0f} us  {each * 1e6:6.2f} an array")


if __name__ == "__main__":
    main()
