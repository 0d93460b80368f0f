"""What the runner asks of CuPy: pointers, the current stream and device, memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from math import prod
from operator import attrgetter
from typing import Any

import cupy

from baracuda.declaration.dtypes import numpy_dtype
from baracuda.layouts import Shape
from baracuda.libraries import Array
from baracuda.libraries.cupy import empty as new

# As expressions, for code that is written out for one plan.
POINTER, STRIDES = "{}.data.ptr", "{}.strides"
EMPTY = "new({shape}, {strides}, {dtype})"
WORKSPACE = "workspace({shape}, 'uint8', ordinal)"


def names() -> dict[str, Any]:
    """What these expressions refer to."""
    return {"new": new, "workspace": workspace}


pointer: Callable[[Array], int] = attrgetter("data.ptr")
current_device: Callable[[], int] = cupy.cuda.runtime.getDevice


def current_stream(ordinal: int) -> int:
    """The handle of the current stream: 0 for the default one, 2 for that of each thread."""
    stream: int = cupy.cuda.get_current_stream(ordinal).ptr
    return stream


def strides_as_told(strides: Shape, dtype: str) -> Shape:
    """What `STRIDES` gives for strides in elements."""
    return tuple([s * numpy_dtype(dtype).itemsize for s in strides])


def refuses() -> str | None:
    """Why these arrays cannot be taken at all."""
    return "this CuPy is built for AMD devices" if cupy.cuda.runtime.is_hip else None


def on_device(ordinal: int) -> AbstractContextManager[Any]:
    """A block in which `ordinal` is the current device."""
    device: AbstractContextManager[Any] = cupy.cuda.Device(ordinal)
    return device


def ordinal_of(device: str) -> int:
    """The number of the device called `device` (``cuda:1``)."""
    return int(device.rpartition(":")[2])


def empty(shape: Shape, strides: Shape, dtype: str, ordinal: int) -> Array:
    """A new array; `ordinal` is the current device."""
    return new(shape, strides, numpy_dtype(dtype))


def workspace(shape: Shape, dtype: str, ordinal: int) -> Array:
    """A new array that no one sees; of the graph, where the current stream is captured into one."""
    kind = numpy_dtype(dtype)
    if cupy.cuda.get_current_stream(ordinal).is_capturing():
        # The pool would have to ask the device for memory, and give it to others before a replay.
        return cupy.ndarray(shape, kind, cupy.cuda.malloc_async(prod(shape) * kind.itemsize))
    return cupy.ndarray(shape, kind)
