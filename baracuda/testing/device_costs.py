"""What calls cost the host beside a GPU: on tiny arrays, with gradients, and the first ones."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import baracuda as bc
from baracuda.testing import timing


def cold_start(torch: Any) -> dict[str, float]:
    """Milliseconds of what happens once: per process, per kernel, per problem."""
    x = torch.ones(4, 8, device="cuda")
    shapes = [torch.ones(n, 8, device="cuda") for n in range(5, 205)]
    torch.cuda.synchronize()

    def ms(task: Callable[[], Any]) -> float:
        start = time.perf_counter()
        task()
        return (time.perf_counter() - start) * 1e3

    def load() -> None:
        backend = import_module("baracuda.backends.cuda")
        backend.unavailable()
        import_module("baracuda.backends.cuda.runner")

    with tempfile.TemporaryDirectory() as folder:
        os.environ["BARACUDA_CACHE_DIR"] = folder
        out = {"once per process: importing the launch layer": ms(load)}
        out["once per process: NVRTC, with the first kernel"] = ms(lambda: bc.reglu(x))
        compiled = [ms(partial(op, x)) for op in (bc.glu, bc.swiglu, bc.geglu)]
        out["a kernel that has to be compiled, the slowest of 3"] = max(compiled)
        import_module("baracuda.backends.cuda.launch").forget_kernels()
        bc.plan_cache.clear()
        read = [ms(partial(op, x)) for op in (bc.glu, bc.swiglu, bc.geglu)]
        out["a kernel from the disk cache, the slowest of 3"] = max(read)
        fresh = sorted(ms(partial(bc.glu, x)) for x in shapes)
        out["a new shape of a loaded kernel, median of 200"] = fresh[100]
        del os.environ["BARACUDA_CACHE_DIR"]
    return out


def takers() -> dict[str, Callable[[Any], Any]]:
    """How each library whose arrays the kernels take looks at the memory of a tensor."""
    out: dict[str, Callable[[Any], Any]] = {"torch": lambda x: x}
    with suppress(ImportError):
        out["cupy"] = import_module("cupy").from_dlpack
    return out


def tiny(torch: Any) -> dict[str, float]:
    """Host time of a call on tiny arrays, and the GPU's idle share when they follow closely."""
    x, dy = torch.randn(4, 64, device="cuda"), torch.randn(4, 32, device="cuda")
    z, plan = torch.empty_like(x), bc.swiglu_backward.plan(dy, x)
    out = {
        "torch.add(out=)": timing.per_call(lambda: torch.add(x, x, out=z)),
        "swiglu_backward, cached call": timing.per_call(lambda: bc.swiglu_backward(dy, x)),
        "swiglu_backward, plan call": timing.per_call(lambda: plan(dy, x)),
    }
    for name, take in takers().items():
        if name != "torch":
            its = take(dy), take(x)
            its_plan = bc.swiglu_backward.plan(*its)
            call, planned = partial(bc.swiglu_backward, *its), partial(its_plan, *its)
            out[f"swiglu_backward from {name}, cached call"] = timing.per_call(call)
            out[f"swiglu_backward from {name}, plan call"] = timing.per_call(planned)
    torch.cuda.synchronize()
    big, grad = torch.randn(1024, 8192, device="cuda"), torch.randn(1024, 4096, device="cuda")
    bc.swiglu_backward(grad, big)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(1000):
        bc.swiglu_backward(grad, big)
    torch.cuda.synchronize()
    wall = (time.perf_counter() - start) / 1000
    busy = timing.by_replay(lambda: bc.swiglu_backward(grad, big)) / wall
    out["1,000 calls of swiglu_backward [1024, 2·4096] float32, each"] = wall * 1e6
    out["of that the GPU is busy, percent"] = min(busy, 1.0) * 100
    return out


def watched(torch: Any, device: str = "cuda", **dispatch: Any) -> dict[str, float]:
    """Microseconds of the host for a call that is recorded, and for the gradient of it.

    Parameters
    ----------
    torch : module
    device : str
        Where the tensors are.
    **dispatch
        Options of every call: ``backend="torch"`` has the explicit gradient on a CPU too.
    """
    packed = torch.randn(16, 64, device=device, requires_grad=True)
    a, b = (torch.randn(16, 32, device=device, requires_grad=True) for _ in range(2))
    dy, plain = torch.randn(16, 32, device=device), packed.detach()
    swiglu, backward = partial(bc.swiglu, **dispatch), partial(bc.swiglu_backward, **dispatch)
    silu, gradient = torch.nn.functional.silu, partial(torch.autograd.grad, retain_graph=True)
    ours, theirs = swiglu(packed), silu(a) * b
    tasks = {
        "swiglu, forward": lambda: swiglu(packed),
        "swiglu, its gradient by torch.autograd.grad": lambda: gradient(ours, packed, dy),
        "swiglu_backward, cached call, not recorded": lambda: backward(dy, plain),
        "F.silu(a) * b, forward": lambda: silu(a) * b,
        "F.silu(a) * b, its gradient by torch.autograd.grad": lambda: gradient(theirs, (a, b), dy),
    }
    out = {}
    for name, task in tasks.items():
        out[name] = timing.per_call(task)
        if device == "cuda":
            torch.cuda.synchronize()
    return out
