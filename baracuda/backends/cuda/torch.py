"""What the runner asks of torch: pointers, the current stream and device, memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from baracuda.layouts import Shape, contiguous
from baracuda.libraries import Array

# As expressions, for code that is written out for one plan. What torch.compile's own code allocates
# with takes half the time of the fastest way through the dispatcher, which stands in for it.
POINTER, STRIDES = "{}.data_ptr()", "{}.stride()"
_direct = getattr(getattr(torch._C._dynamo, "guards", None), "_empty_strided_cuda", None)
EMPTY = WORKSPACE = (
    "empty_strided({shape}, {strides}, {dtype})"
    if _direct
    else "{like}.new_empty_strided({shape}, {strides}, dtype={dtype})"
)


def names() -> dict[str, Any]:
    """What these expressions refer to."""
    return {"empty_strided": _direct}


pointer: Callable[[Array], int] = torch.Tensor.data_ptr
# A build for the CPU has neither; `refuses` says so.
current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # type: ignore[assignment]
current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", None)  # type: ignore[assignment]


def strides_as_told(strides: Shape, dtype: str) -> Shape:
    """What `STRIDES` gives for strides in elements."""
    return strides


def refuses() -> str | None:
    """Why these tensors cannot be taken at all."""
    if torch.version.hip:
        return "this torch is built for AMD devices"
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    return None


def on_device(ordinal: int) -> AbstractContextManager[Any]:
    """A block in which `ordinal` is the current device."""
    return torch.cuda.device(ordinal)


def ordinal_of(device: str) -> int:
    """The number of the device called `device` (``cuda:1``)."""
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def empty(shape: Shape, strides: Shape, dtype: str, ordinal: int) -> Array:
    """A new array."""
    device = torch.device("cuda", ordinal)
    return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=device)


def workspace(shape: Shape, dtype: str, ordinal: int) -> Array:
    """A new array that no one sees."""
    return empty(shape, contiguous(shape), dtype, ordinal)
