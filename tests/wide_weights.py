"""A program for a machine with a GPU: norms with float32 weights beside bfloat16, and heads.

`python tests/wide_weights.py` prints, for norms and their gradients of [8192, n] in bfloat16,
microseconds with weights in bfloat16 and in float32, and their ratio. `--heads` times
`qk_norm_rope` and its gradient with interleaved and half-split pairs instead.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import baracuda as bc

NORMS = ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm")
ROUNDS = 31


def in_turns(tasks: list[Callable[[], Any]]) -> list[float]:
    """The median of each in us; who comes first alternates, and the L2 is overwritten before."""
    flush = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    for task in 2 * tasks:
        task()
    times: list[list[float]] = [[] for _ in tasks]
    for turn in range(ROUNDS):
        for i in list(range(len(tasks)))[:: 1 if turn % 2 else -1]:
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            tasks[i]()
            end.record()
            torch.cuda.synchronize()
            times[i].append(begin.elapsed_time(end) * 1e3)
    return [statistics.median(some) for some in times]


def norm(name: str, n: int, dtype: torch.dtype, device: str = "cuda") -> Callable[[], Any]:
    """A plan's call with weights of this dtype."""
    op = getattr(bc, name)
    gradient = name.endswith("_backward")
    rows = 2 + (gradient and name.startswith("add_")) if "add_" in name or gradient else 1
    weights = 2 if "layer_norm" in name and not gradient else 1
    arrays = [torch.randn(8192, n, device=device).bfloat16() for _ in range(rows)]
    arrays += [torch.randn(n, device=device).to(dtype) for _ in range(weights)]
    return partial(op.plan(*arrays), *arrays)


def heads(interleaved: bool, dtype: torch.dtype, device: str = "cuda") -> list[Callable[[], Any]]:
    """Calls of the plans of `qk_norm_rope` and its gradient."""
    q, k = (torch.randn(4, 4096, h, 128, device=device).to(dtype) for h in (32, 8))
    given = (q, k, *[torch.ones(128, device=device, dtype=dtype) for _ in range(2)])
    forward = bc.qk_norm_rope.plan(*given, interleaved=interleaved)
    backward = bc.qk_norm_rope_backward.plan(q, k, *given, interleaved=interleaved)
    return [partial(forward, *given), partial(backward, q, k, *given)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1024, 2048, 4096, 8192, 16384])
    options = parser.parse_args()
    print(torch.cuda.get_device_name())
    kinds = torch.bfloat16, torch.float32
    if options.heads:
        for dtype in kinds:
            for interleaved in (True, False):
                there, back = in_turns(heads(interleaved, dtype))
                layout = "interleaved" if interleaved else "half-split"
                print(f"{dtype} {layout:12} {there:7.1f} us, gradient {back:7.1f}", flush=True)
        return
    for name in (*NORMS, *[f"{name}_backward" for name in NORMS]):
        for n in options.sizes:
            own, wide = in_turns([norm(name, n, dtype) for dtype in kinds])
            print(f"{name:24} {n:6} {own:7.1f} {wide:7.1f} us, {wide / own:.3f}", flush=True)


if __name__ == "__main__":
    main()
