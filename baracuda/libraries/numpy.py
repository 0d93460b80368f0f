"""NumPy: facts, allocation and floating-point state of its arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import Any

import array_api_compat.numpy
import numpy as np

from baracuda.declaration.dtypes import numpy_dtype
from baracuda.layouts import Shape, contiguous, dense_order
from baracuda.libraries import Array, Library, near, no_array

_FACTS = attrgetter("dtype", "shape", "strides")
# So few ids take longer as passes over all of them than one after the other.
_FEW_IDS = 32


@cache
def settle() -> None:
    """Have glibc keep freed memory, which it hands back until an array of this size was freed.

    Faulting temporaries in again, page by page, would double the time of a body.
    """
    np.empty(31 << 20, np.uint8)


class NumPy(Library):
    """Arrays of NumPy, in files too, and its scalars."""

    name = "numpy"
    xp = array_api_compat.numpy
    differentiates = False

    def takes(self, x: Array) -> bool:
        # A subclass may have masks, units or another product: results would not have its class.
        if isinstance(x, np.ndarray) and type(x) not in (np.ndarray, np.memmap):
            raise no_array(x)
        return isinstance(x, (np.ndarray, np.generic))

    def facts(self, x: Array) -> Hashable:
        return ("numpy", x.dtype, x.shape, x.strides)

    def matcher(self, arrays: Sequence[Array]) -> Callable[[Sequence[Array]], bool]:
        if any(x is None for x in arrays):
            return super().matcher(arrays)
        types, want = [*map(type, arrays)], [*map(_FACTS, arrays)]
        return lambda others: [*map(type, others)] == types and [*map(_FACTS, others)] == want

    def strides(self, x: Array) -> Shape | None:
        # A step that is no whole number of elements (a field of a record) has no stride in
        # elements; it only has to be told apart from a dense one.
        size = x.dtype.itemsize
        return tuple(s // size if s % size == 0 else s * size + 1 for s in x.strides)

    def device_of(self, x: Array) -> Any:
        return "cpu"

    def dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def empty(self, shape: Shape, dtype: str, like: Array, strides: Shape | None) -> Array:
        if strides is None:
            return np.empty(shape, self.dtype(dtype))
        order = dense_order(shape, strides) or tuple(range(len(shape)))
        permuted = np.empty([shape[i] for i in order], self.dtype(dtype))
        return permuted.transpose(np.argsort(order))

    def conform(self, x: Array, strides: Shape | None) -> Array:
        if strides is None:
            # Unlike ascontiguousarray this keeps rank 0.
            return np.asarray(x, order="C")
        if self.strides(x) == strides:
            return x
        out = self.empty(x.shape, x.dtype.name, x, strides)
        out[...] = x
        return out

    def memory(self, x: Array) -> tuple[int, Shape] | None:
        return x.__array_interface__["data"][0], x.strides

    def apart(self, x: Array, others: Sequence[Array]) -> bool:
        return not any(map(np.may_share_memory, repeat(x), others))

    def assign(self, out: Array, value: Array, accumulate: bool) -> None:
        if accumulate:
            value = np.add(out, value, dtype=value.dtype)
        # Storing rounds as `astype` does.
        out[...] = value

    def frozen(self, x: Array) -> bool:
        return not x.flags.writeable

    def hosted(self, x: Array) -> tuple[Array, Callable[[Array], Array]]:
        return x, np.asarray

    def masked(self, x: Array, keep: Array) -> Array:
        # By bits: its `where` stalls on masks that no branch predictor can follow.
        bits = np.dtype(f"i{x.itemsize}")
        return (x.view(bits) & -keep.astype(bits)).view(x.dtype)

    def clip(self, x: Array, low: float | None, high: float | None) -> Array:
        # That of array_api_compat takes elements by a mask.
        return np.clip(x, low, high)

    def softmax(self, x: Array, axis: int, keep: Array | None) -> Array:
        if not x.shape[axis]:
            return x.copy()
        x = self.less_largest(x if keep is None else np.where(keep, x, -np.inf), axis)
        np.exp(x, out=x)
        total = np.sum(x, axis=axis, keepdims=True)
        x /= np.where(total == 0, 1, total)
        # Only a NaN spreads to what is 0 already.
        if keep is not None and np.isnan(total).any():
            np.copyto(x, 0, where=~keep)
        return x

    def turned(self, x: Array, cos: Array, sin: Array) -> Array:
        turns = np.empty(cos.shape, np.result_type(x.dtype, np.complex64))
        turns.real, turns.imag = cos, sin
        return (np.ascontiguousarray(x).view(turns.dtype) * turns).view(x.dtype)

    def dot(self, x: Array, y: Array) -> Array:
        return np.vecdot(x, y)[..., None]

    def spans(self, index: Array, n: int) -> bool:
        # A negative entry is a huge unsigned one.
        unsigned = index.dtype.str.replace("i", "u")
        return not index.size or bool(index.view(unsigned).max() < n)

    def lookup(self, x: Array, index: Array, axis: int) -> Array:
        # Every entry is in range; NumPy's own check would copy the result.
        return np.take(x, index, axis=axis, mode="clip")

    def take(self, x: Array, index: Array, axis: int) -> Array:
        line = self._line(index, axis)
        if line is None:
            return super().take(x, index, axis)
        return self.lookup(x[near(index.shape, axis)], line, axis)

    def put(self, x: Array, index: Array, values: Array, axis: int) -> Array:
        np.put_along_axis(x, index, values, axis)
        return x

    def scatter_add(self, values: Array, index: Array, axis: int, shape: Shape) -> Array:
        line = self._line(index, axis)
        if line is None or line.size == values.size:
            # In float64, entry by entry.
            sums = np.bincount(places(index, axis, shape), np.ravel(values), math.prod(shape))
            return sums.astype(values.dtype).reshape(shape)
        out = np.zeros(shape, values.dtype)
        if values.size:
            ids, sums = row_sums(line, np.moveaxis(values, axis, 0), values.dtype)
            np.moveaxis(out[near(index.shape, axis)], axis, 0)[ids] = sums
        return out

    def highest(self, values: Array, index: Array, extent: int) -> Array:
        out = np.full((extent + 1, *values.shape[1:]), -np.inf, values.dtype)
        ids, rows = row_sums(index, values, values.dtype, np.maximum)
        out[ids] = rows
        return out[:extent]

    def combined(
        self, values: Array, index: Array, axis: int, shape: Shape, how: str, none: float
    ) -> Array:
        out = np.full(shape, none, values.dtype)
        flat, at, values = out.reshape(-1), places(index, axis, shape), np.ravel(values)
        if how == "last":
            # Along one axis the last of several values stays.
            flat[at] = values
            return out
        join = np.maximum if how == "max" else np.multiply
        # With one axis of places `at` is many times as fast.
        join.at(flat, at, values)
        return out

    def _line(self, index: Array, axis: int) -> Array | None:
        """The entries of an index that varies along `axis` alone, None for any other."""
        once = self.once(index)
        alone = once.shape[axis] == once.size == index.shape[axis]
        return once.reshape(-1) if alone else None

    def running(self, device: str) -> AbstractContextManager[Any]:
        return np.errstate(all="ignore")


def places(index: Array, axis: int, shape: Shape) -> Array:
    """The number of the place in `shape`, in C order, that each entry along an axis points to."""
    steps, numbers = contiguous(shape), index.astype(np.intp, order="C")
    numbers *= steps[axis]
    for other, along in enumerate(np.ogrid[tuple(map(slice, index.shape))]):
        if other != axis:
            numbers += along * steps[other]
    return numbers.reshape(-1)


def row_sums(ids: Array, rows: Array, dtype: Any, join: np.ufunc = np.add) -> tuple[Array, Array]:
    """The distinct `ids`, the most frequent first, and the `rows` of each added up, or joined.

    Whole passes add the k-th row of every id that has one, which is several times as fast as
    `reduceat` along an outer axis. The last few ids, which may be frequent, are summed one by one.
    """
    order = np.argsort(ids, kind="stable")
    given, ids = ids, ids[order]
    starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    if len(starts) == len(ids):
        return given, rows.astype(dtype, copy=False)
    counts = np.concatenate([starts[1:], [len(ids)]]) - starts
    frequent = np.argsort(-counts, kind="stable")
    starts, counts = starts[frequent], counts[frequent]
    sums = rows[order[starts]].astype(dtype, copy=False)
    done, live = 1, len(starts)
    while True:
        live = int(np.searchsorted(-counts[:live], -done))
        # One by one where that is fewer calls than as many passes as are left.
        if live <= min(_FEW_IDS, counts[0] - done):
            break
        join(sums[:live], rows[order[starts[:live] + done]], out=sums[:live])
        done += 1
    for i in range(live):
        rest = order[starts[i] + done : starts[i] + counts[i]]
        if rest.size:
            sums[i] = join(sums[i], join.reduce(rows[rest], axis=0, dtype=dtype))
    return ids[starts], sums


ADAPTER = NumPy()
