"""CuPy: facts of its arrays on NVIDIA devices, named as torch names them, and its own scatter."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import array_api_compat.cupy
import cupy
import cupyx
import numpy as np

from baracuda.declaration.dtypes import name_of, numpy_dtype
from baracuda.layouts import Shape, contiguous
from baracuda.libraries import Array, Facts, Library, alignment, no_array

_FACTS = attrgetter("dtype", "shape", "strides", "data.device_id")


class CuPy(Library):
    """Arrays of CuPy on any device."""

    name = "cupy"
    xp = array_api_compat.cupy
    differentiates = False
    # Not all that moves elements knows bfloat16.
    stored_as = MappingProxyType({"bfloat16": "uint16"})

    def takes(self, x: Array) -> bool:
        if isinstance(x, cupy.ndarray) and type(x) is not cupy.ndarray:
            raise no_array(x, "x.view(cupy.ndarray)")
        return super().takes(x)

    def facts(self, x: Array) -> Hashable:
        return ("cupy", *_FACTS(x), alignment(x.data.ptr))

    def matcher(self, arrays: Sequence[Array]) -> Callable[[Sequence[Array]], bool]:
        if any(x is None for x in arrays):
            return super().matcher(arrays)
        want = [_FACTS(x) for x in arrays]

        # Without the alignment: a plan looks at the addresses itself.
        def fits(others: Sequence[Array]) -> bool:
            try:
                return list(map(_FACTS, others)) == want
            except (AttributeError, ValueError):
                # Of another library: NumPy has no buffer for the `data` of some dtypes.
                return False

        return fits

    def describe(self, x: Array) -> Facts:
        size, address = x.dtype.itemsize, x.data.ptr
        steps = [s for n, s in zip(x.shape, x.strides, strict=True) if n > 1]
        # On the device, an access that is not aligned to its size ends the process's work there.
        if x.size and any(number % min(size, 16) for number in (address, *steps)):
            raise TypeError(
                f"expected elements at multiples of their {size} bytes,"
                f" got address {address} and strides {x.strides}"
            )
        device = f"cuda:{x.data.device_id}"
        return Facts(name_of(x.dtype), x.shape, self.strides(x), device, alignment(address))

    def strides(self, x: Array) -> Shape | None:
        size = x.dtype.itemsize
        return tuple([s // size for s in x.strides])

    def dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def empty(self, shape: Shape, dtype: str, like: Array, strides: Shape | None) -> Array:
        with like.device:
            return empty(shape, strides or contiguous(shape), numpy_dtype(dtype))

    def conform(self, x: Array, strides: Shape | None) -> Array:
        if strides is None:
            return x if x.flags.c_contiguous else x.copy(order="C")
        if self.strides(x) == strides:
            return x
        out = empty(x.shape, strides, x.dtype)
        out[...] = x
        return out

    def clip(self, x: Array, low: float | None, high: float | None) -> Array:
        # That of array_api_compat takes elements by a mask, and waits for the device to count them.
        x = x if low is None else cupy.maximum(x, low)
        return x if high is None else cupy.minimum(x, high)

    def memory(self, x: Array) -> tuple[int, Shape] | None:
        return x.data.ptr, x.strides

    def apart(self, x: Array, others: Sequence[Array]) -> bool:
        # What lies across elements, `describe` refuses.
        if x.data.ptr % x.itemsize or [y for y in (x, *others) if not y.flags.c_contiguous]:
            return False
        begin, end = x.data.ptr, x.data.ptr + x.nbytes
        return not [y for y in others if y.data.ptr < end and begin < y.data.ptr + y.nbytes]

    def put(self, x: Array, index: Array, values: Array, axis: int) -> Array:
        cupy.put_along_axis(x, index, values, axis)
        return x

    def scatter_add(self, values: Array, index: Array, axis: int, shape: Shape) -> Array:
        out = cupy.zeros(shape, values.dtype)
        grid = list(cupy.ogrid[tuple(map(slice, index.shape))])
        grid[axis] = index
        cupy.add.at(out, tuple(grid), values)
        return out

    def arch(self, device: str) -> str:
        return f"sm_{cupy.cuda.Device(int(device.rpartition(':')[2])).compute_capability}"

    def search(self, x: Array, bad: Callable[[Array], Array]) -> Any:
        """Begin to look for the first bad entry; nothing is left in a graph."""
        if cupy.cuda.get_current_stream().is_capturing():
            return None
        flat = x.ravel()
        strange = bad(flat)
        first = strange.argmax()
        found = [y.astype(np.int64) for y in (strange.take(first), first, flat.take(first))]
        host, told = (cupyx.empty_pinned(n, np.int64) for n in (3, 1))
        told[0] = -1
        stacked = cupy.stack(found)
        stacked.get(out=host, blocking=False)
        # Behind the rest.
        stacked[:1].get(out=told, blocking=False)
        done = cupy.cuda.Event(disable_timing=True)
        done.record()
        return lambda: told[0] >= 0, done.synchronize, host.tolist

    def running(self, device: str) -> AbstractContextManager[Any]:
        """CuPy computes on the current device, wherever the arrays are."""
        ordinal = int(device.rpartition(":")[2])
        # Setting a device makes its primary context current, also in the place of another one.
        here = cupy.cuda.runtime.getDevice() == ordinal
        block: AbstractContextManager[Any] = nullcontext() if here else cupy.cuda.Device(ordinal)
        return block


def empty(shape: Shape, strides: Shape, dtype: Any) -> Array:
    """A new array on the current device; `strides`, in elements, are dense."""
    if strides == contiguous(shape):
        return cupy.ndarray(shape, dtype)
    size = dtype.itemsize
    memory = cupy.cuda.alloc(prod(shape) * size)
    return cupy.ndarray(shape, dtype, memory, tuple([s * size for s in strides]))


ADAPTER = CuPy()
