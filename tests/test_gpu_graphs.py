"""On an NVIDIA GPU: torch's operators, compiled programs, and CUDA graphs that replay them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from device import MARKS
from graphs import calls, floats, options_of, overload
from torch._dynamo.utils import counters

import baracuda as bc
from baracuda.calls import adjoint
from baracuda.calls.op import registry
from baracuda.testing.cases import Call

# Of the empty graph with which torch opens a pool, and of matrix products that are to be exact.
pytestmark = [
    *MARKS,
    pytest.mark.filterwarnings("ignore:The CUDA Graph is empty"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]

each_op = pytest.mark.parametrize("op", registry)


def watched(call: Call) -> list[Any]:
    """Its arrays, gradients wanted where the op has an explicit one."""
    explicit = adjoint.partner(call.subject.spec)[0] is not None
    arrays = call.given()
    for x in floats(arrays):
        x.requires_grad_(explicit)
    return arrays


def results(call: Call, function: Any, arrays: list[Any]) -> tuple[torch.Tensor, ...]:
    """The outputs and, where arrays are watched, their gradients; copies."""
    out = function(*arrays, **call.options)
    out = out if isinstance(out, tuple) else (out,)
    leaves = [x for x in arrays if x is not None and x.requires_grad]
    # Counts are differentiated by nothing.
    sloping = [y for y in out if y.requires_grad]
    along = [torch.cos(y.detach()) for y in sloping]
    slopes = torch.autograd.grad(sloping, leaves, along) if leaves else ()
    return tuple(x.detach().clone() for x in (*out, *slopes))


@each_op
def test_operators_keep_their_promises(op: str) -> None:
    for call in calls(op, "float32", "cuda", "cuda"):
        torch.library.opcheck(overload(call), tuple(watched(call)), options_of(call))


@pytest.mark.filterwarnings("ignore:\\s*Online softmax is disabled:UserWarning")
@pytest.mark.parametrize("how", ["graphs", "dynamic"])
@each_op
def test_compiled_programs_run_the_kernels(op: str, how: str) -> None:
    counters.clear()
    more: dict[str, Any] = {"mode": "reduce-overhead"}
    if how == "dynamic":
        more = {"dynamic": True, "backend": "aot_eager"}

    def function(*arrays: Any, **options: Any) -> Any:
        return registry[op](*arrays, **options)

    for call in calls(op, "float32", "cuda", "cuda"):
        torch._dynamo.reset()
        compiled = torch.compile(function, fullgraph=True, **more)
        for _ in range(4):
            arrays = watched(call)
            torch.compiler.cudagraph_mark_step_begin()
            got = results(call, compiled, arrays)
            want = results(call, function, arrays)
            for x, y in zip(got, want, strict=True):
                torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-6)
    assert counters["inductor"]["cudagraph_skips"] == 0


def test_a_replayed_step_trains_like_an_eager_one() -> None:
    torch._dynamo.reset()

    def loss(x: torch.Tensor, w: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        h = bc.rope((x @ w).unflatten(-1, (4, 16)).transpose(1, 2), interleaved=False)
        h = bc.swiglu(h.transpose(1, 2).flatten(-2), gate_first=True)
        return bc.gather(h, index, axis=1).square().mean()

    x = torch.randn(4, 32, 64, device="cuda")
    index = torch.randint(0, 32, (4, 8, 32), device="cuda")
    start = torch.randn(64, 64, device="cuda") / 8
    found = []
    for step in (loss, torch.compile(loss, fullgraph=True, mode="reduce-overhead")):
        w = start.clone().requires_grad_()
        for _ in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            (slope,) = torch.autograd.grad(step(x, w, index), w)
            with torch.no_grad():
                w -= 0.1 * slope
        found.append(w.detach())
    torch.testing.assert_close(*found)
