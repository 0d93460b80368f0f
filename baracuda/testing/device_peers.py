"""What a torch user on an NVIDIA GPU would call instead: eager, compiled, Liger, CuPy."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from baracuda.libraries import Array
from baracuda.testing.peers import EXPRESSIONS
from baracuda.testing.problems import Row

Task = Callable[[], Any]


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    """Normal values on the GPU."""
    return torch.randn(shape, device="cuda", dtype=dtype)


def arrays_of(row: Row, dtype: torch.dtype) -> list[Array]:
    """The inputs of a row as fresh random tensors on the GPU."""
    from baracuda.op import registry

    spec, out = registry[row.op].spec, []
    for name, shape in zip(spec.arrays, row.shapes, strict=False):
        if name == "index":
            extent = row.options.get("src_shape", row.shapes[0])[row.options["axis"]]
            out.append(torch.randint(0, extent, shape, device="cuda"))
        elif name == "y":
            out.append(registry[spec.adjoint_of or ""](out[-1], **row.options))
        else:
            out.append(random_tensor(shape, dtype))
    return out


def peers(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """Every peer that has the op, ready to be timed on these arrays."""
    expression, options = EXPRESSIONS[row.op], row.options
    compiled = torch.compile(expression, dynamic=False)
    out: dict[str, Task] = {
        "eager": lambda: expression(torch, *arrays, **options),
        "compile": lambda: compiled(torch, *arrays, **options),
    }
    if row.op.startswith("rope"):
        out |= _rope(row, arrays)
    if row.op.startswith("gather") and arrays[0].dtype == torch.float32:
        out |= _cupy(row, arrays)
    if row.op in ("swiglu", "swiglu_backward", "geglu", "geglu_backward"):
        out |= _liger_gated(row, arrays)
    return out


def _rope(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """With the table of angles given, as models keep it; Liger rotates q and k in place."""
    x = arrays[0]
    interleaved, sign = row.options["interleaved"], -1 if row.op == "rope_backward" else 1
    s, d = x.shape[-2:]
    steps = torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d
    angles = torch.arange(s, dtype=torch.float64, device=x.device)[:, None] * 10000.0**-steps
    cos, sin = angles.cos().to(x.dtype), (sign * angles.sin()).to(x.dtype)

    def turn(x: Array, cos: Array, sin: Array) -> Array:
        if interleaved:
            e, o = x[..., 0::2], x[..., 1::2]
            return torch.stack((e * cos - o * sin, o * cos + e * sin), -1).flatten(-2)
        e, o = x.chunk(2, -1)
        return torch.cat((e * cos - o * sin, o * cos + e * sin), -1)

    compiled = torch.compile(turn, dynamic=False)
    return {"compile, table": lambda: compiled(x, cos, sin)}


def _cupy(row: Row, arrays: list[Array]) -> dict[str, Task]:
    try:
        cupy = import_module("cupy")
    except ImportError:
        return {}
    expression, given = EXPRESSIONS[row.op], [cupy.from_dlpack(x) for x in arrays]
    return {"cupy": lambda: expression(cupy, *given, **row.options)}


def _liger_gated(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """Liger takes the halves apart, geglu in its tanh form; its backward overwrites them."""
    kind = row.op.removesuffix("_backward")
    try:
        liger = import_module(f"liger_kernel.ops.{kind}")
    except ImportError:
        return {}
    a, b = (half.contiguous() for half in arrays[-1].chunk(2, -1))
    # Liger gates its first argument, baracuda its second half.
    if row.op.endswith("_backward"):
        task, dy = getattr(liger, f"{kind}_backward"), arrays[0]
        return {"liger": lambda: task(b, a, dy)}
    task = getattr(liger, f"{kind}_forward")
    return {"liger": lambda: task(b, a)}
