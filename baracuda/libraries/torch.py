"""torch: facts of its tensors, and what is watching them (autograd, transforms, tracing)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from types import MappingProxyType
from typing import Any

import array_api_compat.torch
import torch
from torch.autograd import forward_ad

from baracuda.dtypes import name_of
from baracuda.layouts import Shape
from baracuda.libraries import Array, Facts, Library

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


class Torch(Library):
    """Dense torch tensors on any device."""

    name = "torch"
    xp = array_api_compat.torch
    stored_as = MappingProxyType({"uint16": "int16", "uint32": "int32", "uint64": "int64"})

    def facts(self, x: Array) -> Hashable:
        return ("torch", x.dtype, x.shape, x.stride(), x.device)

    def describe(self, x: Array) -> Facts:
        if x.is_nested or x.layout != torch.strided or x.is_quantized:
            what = "a nested tensor" if x.is_nested else f"layout {x.layout}"
            raise TypeError(f"expected a dense tensor, got {what}")
        return Facts(name_of(x.dtype), tuple(x.shape), tuple(x.stride()), str(x.device))

    def strides(self, x: Array) -> Shape | None:
        return tuple(x.stride())

    def device_of(self, x: Array) -> Any:
        return x.device

    def state(self, arrays: Sequence[Array]) -> tuple[str, bool] | None:
        mode, grad = "", False
        for x in arrays:
            if type(x) in _PLAIN_TYPES:
                grad |= x.requires_grad
            elif isinstance(x, torch.Tensor):
                mode = "traced"
        if (
            torch.compiler.is_compiling()
            or torch._C._functorch.peek_interpreter_stack() is not None
            or torch._C._len_torch_dispatch_stack()
        ):
            mode = "traced"
        elif not mode and (forward_ad._current_level >= 0 or (grad and torch.is_grad_enabled())):
            mode = "autograd"
        deterministic = torch.are_deterministic_algorithms_enabled()
        return (mode, deterministic) if mode or deterministic else None

    def readable(self, x: Array) -> bool:
        return bool(
            x.device.type == "cpu"
            and type(x) in _PLAIN_TYPES
            and not torch.compiler.is_compiling()
            and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        )

    def empty(self, shape: Shape, dtype: str, like: Array, strides: Shape | None) -> Array:
        if strides is None:
            return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
        return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=like.device)

    def conform(self, x: Array, strides: Shape | None) -> Array:
        if strides is None:
            return x.contiguous()
        if tuple(x.stride()) == strides:
            return x
        return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)

    def assign(self, out: Array, value: Array, accumulate: bool) -> None:
        out.copy_(out.to(value.dtype) + value if accumulate else value)

    def memory(self, x: Array) -> tuple[int, Shape] | None:
        size = x.element_size()
        return x.data_ptr(), tuple(s * size for s in x.stride())

    def sigmoid(self, x: Array) -> Array:
        return torch.sigmoid(x)

    def scatter_add(self, values: Array, index: Array, axis: int, shape: Shape) -> Array:
        zeros = torch.zeros(shape, dtype=values.dtype, device=values.device)
        return zeros.scatter_add(axis, index.long(), values)


ADAPTER = Torch()
