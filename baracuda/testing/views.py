"""The same values in other memory: views of every kind that a library has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from baracuda.libraries import Array
from baracuda.testing.cases import Call, adapter, to_library, to_numpy


def every(call: Call, plain: Sequence[Array]) -> dict[str, list[Array]]:
    """The same values in every layout that the library has."""
    lib = call.subject.library
    out: dict[str, list[Array]] = {}
    if lib == "jax":
        return out
    if lib == "array_api_strict":
        out["reversed"] = [_reversed(x, lib) for x in plain]
        return out
    out["offset and strided"] = [strided(x, lib) for x in plain]
    out["transposed"] = [_permuted(x, lib) for x in plain]
    if lib in ("numpy", "cupy"):
        out["reversed"] = [_reversed(x, lib) for x in plain]
    if lib == "numpy":
        out["misaligned"] = [_misaligned(x) for x in plain]
        out["read-only"] = [_read_only(x) for x in plain]
    return out


def strided(x: Array, lib: str) -> Array:
    """Every other element of a wider array, which begins with some that are not its own."""
    if x is None or x.ndim == 0:
        return x
    shape = (*x.shape[:-1], 2 * x.shape[-1] + 3)
    wide = x.new_zeros(shape) if lib == "torch" else adapter(lib).xp.zeros(shape, dtype=x.dtype)
    view = wide[..., 3::2]
    view[...] = x
    return view


def _permuted(x: Array, lib: str) -> Array:
    if x is None or x.ndim < 2:
        return x
    order = tuple(reversed(range(x.ndim)))
    if lib != "torch":
        return x.transpose(order).copy(order="C").transpose(order)
    return x.permute(order).contiguous().permute(order)


def _reversed(x: Array, lib: str) -> Array:
    if x is None or x.ndim == 0:
        return x
    if lib != "array_api_strict":
        return x[::-1].copy(order="C")[::-1]
    return to_library(np.ascontiguousarray(to_numpy(x)[::-1]), lib)[::-1, ...]


def _misaligned(x: Array) -> Array:
    if x is None:
        return x
    raw = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    raw[...] = x
    return raw


def _read_only(x: Array) -> Array:
    if x is not None:
        x = x.copy()
        x.flags.writeable = False
    return x
