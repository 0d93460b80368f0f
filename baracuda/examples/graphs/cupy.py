"""A step as a CUDA graph of CuPy's, and products of matrices that it can hold.

CuPy refuses to call cuBLAS while a stream is captured, though cuBLAS itself allows it. `Products`
calls the same library by a handle of its own.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, TypeAlias

import cupy

Array: TypeAlias = Any
Recorder = Callable[[Callable[[], None]], Callable[[], None]]

# cuBLAS would take memory of its own by the stream: NVIDIA recommends 32 MiB for Hopper.
_WORKSPACE = 32 << 20
_AS_IT_LIES, _TURNED = 0, 1


def record(step: Callable[[], None]) -> Callable[[], None]:
    """Capture what a step launches on the current stream; returns what launches it again.

    Parameters
    ----------
    step : callable
        Takes and returns nothing. It has run before, so that no kernel is compiled meanwhile.
    """
    stream = cupy.cuda.get_current_stream()
    # The arrays of the graph: no other may ever lie in their memory.
    pool = cupy.cuda.MemoryPool()
    # Relaxed, as the pool asks the device for memory, which is allowed while none else does.
    mode = cupy.cuda.runtime.streamCaptureModeRelaxed
    collects = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with cupy.cuda.using_allocator(pool.malloc):
            stream.begin_capture(mode)
            try:
                step()
            finally:
                graph = stream.end_capture()
    finally:
        if collects:
            gc.enable()

    def replay() -> None:
        assert pool is not None  # it lives as long as the graph
        graph.launch(stream)

    return replay


@contextmanager
def recording() -> Iterator[Recorder]:
    """A block on a stream of its own, as the default one cannot be captured; gives `record`."""
    with cupy.cuda.Stream(non_blocking=True) as stream:
        cupy.cuda.Device().synchronize()
        yield record
        stream.synchronize()


class Products:
    """``a @ b`` for float32 arrays of matrices, by cuBLAS, also while a stream is captured."""

    def __init__(self) -> None:
        major = cupy.cuda.runtime.runtimeGetVersion() // 1000
        # Loads CuPy's cuBLAS, which the name then means.
        cupy.cuda.device.get_cublas_handle()
        self._blas = ctypes.CDLL(f"libcublas.so.{major}")
        self._handle = ctypes.c_void_p()
        _checked(self._blas.cublasCreate_v2(ctypes.byref(self._handle)))
        self._workspace = cupy.cuda.alloc(_WORKSPACE)
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)

    def __call__(self, a: Array, b: Array) -> Array:
        """The product.

        Parameters
        ----------
        a : array of shape [..., m, k]
        b : array of shape [..., k, n]

        Returns
        -------
        array of shape [..., m, n]
            In C order.
        """
        (a, step_a, apart_a, how_a), (b, step_b, apart_b, how_b) = map(_operand, (a, b))
        *batch, m, k = a.shape
        n = b.shape[-1]
        out = cupy.empty((*batch, m, n), cupy.float32)
        blas, handle = self._blas, self._handle
        stream = cupy.cuda.get_current_stream()
        _checked(blas.cublasSetStream_v2(handle, ctypes.c_void_p(stream.ptr)))
        # Setting the stream takes the workspace away.
        _checked(blas.cublasSetWorkspace_v2(
            handle, ctypes.c_void_p(self._workspace.ptr), ctypes.c_size_t(_WORKSPACE)
        ))  # fmt: skip
        # cuBLAS counts along columns first: to it each array is its own transpose.
        _checked(blas.cublasSgemmStridedBatched(
            handle, how_b, how_a, n, m, k, ctypes.byref(self._one),
            ctypes.c_void_p(b.data.ptr), step_b, ctypes.c_longlong(apart_b),
            ctypes.c_void_p(a.data.ptr), step_a, ctypes.c_longlong(apart_a),
            ctypes.byref(self._zero),
            ctypes.c_void_p(out.data.ptr), n, ctypes.c_longlong(m * n), prod(batch),
        ))  # fmt: skip
        return out


def product() -> Products:
    """A product of matrices that a graph can hold."""
    return Products()


def _operand(x: Array) -> tuple[Array, int, int, int]:
    """An array that cuBLAS can read, its leading dimension, the elements from one matrix to the
    next, and whether its rows lie as columns."""
    turned = cupy.swapaxes(x, -1, -2)
    if x.ndim == 2 and x.strides[0] == x.itemsize:
        return x, max(x.strides[1] // x.itemsize, x.shape[0]), 0, _TURNED
    if x.ndim == 2 and x.strides[1] == x.itemsize:
        return x, max(x.strides[0] // x.itemsize, x.shape[1]), 0, _AS_IT_LIES
    if turned.flags.c_contiguous:
        return x, x.shape[-2], x.shape[-2] * x.shape[-1], _TURNED
    x = cupy.ascontiguousarray(x)
    return x, x.shape[-1], x.shape[-2] * x.shape[-1], _AS_IT_LIES


def _checked(status: int) -> None:
    if status:
        raise RuntimeError(f"cuBLAS: status {status}")
