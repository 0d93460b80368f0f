"""A program for a machine with a GPU: the last layer of a language model and its loss.

`python tests/head_of_a_model.py` prints milliseconds and memory beside operands (GiB) of the loss
with its gradients, by several chunks, beside the bare matrix products, torch and Liger.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

import baracuda as bc

SIZES = ((8192, 4096, 128256), (8192, 2048, 151936), (2048, 4096, 128256))
CHUNKS = (None, 1024, 4096)


def timed(task: Callable[[], Any]) -> float:
    """The median of five, after one to warm up, in ms."""
    task()
    torch.cuda.synchronize()
    found = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        task()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return statistics.median(found)


def peak(task: Callable[[], Any]) -> float:
    """The most memory beside what there is, in GiB."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = task()
    torch.cuda.synchronize()
    del result
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def measure(rows: int, d: int, v: int) -> None:
    """Print the times of one size."""
    torch.manual_seed(0)
    hidden = torch.randn(rows, d, device="cuda").bfloat16().requires_grad_()
    weight = (torch.randn(v, d, device="cuda") * d**-0.5).bfloat16().requires_grad_()
    target = torch.randint(0, v, (rows,), device="cuda")
    target[::7] = -100
    x, w = hidden.detach(), weight.detach()
    logits = torch.empty(rows, v, device="cuda", dtype=torch.bfloat16)
    dx, dw = torch.empty_like(x), torch.empty_like(w)

    one = timed(partial(torch.mm, x, w.T, out=logits))
    back = timed(partial(torch.mm, logits, w, out=dx)) + timed(
        partial(torch.mm, logits.T, x, out=dw)
    )
    print(f"[{rows}, {d}] x {v}: one bare product {one:.2f} ms, three {one + back:.2f}")
    del logits, dx, dw

    def line(name: str, loss: Callable[[], torch.Tensor]) -> None:
        def step() -> None:
            hidden.grad = weight.grad = None
            loss().backward()

        print(f"  {name:36} {timed(step):8.2f} ms {peak(step):6.2f} GiB")

    def chunked(chunk: int | None) -> None:
        def both() -> Any:
            return bc.linear_cross_entropy_with_gradient(x, w, target, chunk=chunk)

        print(f"  with gradients, chunk {chunk!s:14} {timed(both):8.2f} ms")
        line(
            f"autograd, chunk {chunk}",
            lambda: bc.linear_cross_entropy(hidden, weight, target, chunk=chunk),
        )

    for size in CHUNKS:
        if size is None or size <= rows:
            chunked(size)
    line("torch", lambda: F.cross_entropy((hidden @ weight.T).float(), target))
    try:
        from liger_kernel.transformers.fused_linear_cross_entropy import (
            LigerFusedLinearCrossEntropyLoss,
        )
    except ImportError:
        return
    other = LigerFusedLinearCrossEntropyLoss()
    line("Liger", lambda: other(weight, hidden, target))


if __name__ == "__main__":
    print(torch.cuda.get_device_name())
    for size in SIZES:
        measure(*size)
        torch.cuda.empty_cache()
