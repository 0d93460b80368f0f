"""Any other conforming namespace, found through ``__array_namespace__``."""

from __future__ import annotations

from typing import Any

import numpy as np

from baracuda.layouts import Shape
from baracuda.libraries import Array, Library

_ADAPTERS: dict[str, ArrayAPI] = {}


class ArrayAPI(Library):
    """An array library of which nothing is known but the standard."""

    def __init__(self, xp: Any) -> None:
        self.xp = xp
        self.name = xp.__name__

    def memory(self, x: Array) -> tuple[int, Shape] | None:
        try:
            view = np.from_dlpack(x)
        except (AttributeError, BufferError, RuntimeError, TypeError, ValueError):
            return None
        return view.__array_interface__["data"][0], view.strides

    def running(self, device: str) -> Any:
        # Namespaces that compute through NumPy inherit its floating-point warnings.
        return np.errstate(all="ignore")


def adapter(x: Array) -> ArrayAPI:
    """The adapter for the namespace of `x`."""
    return of_namespace(x.__array_namespace__())


def of_namespace(xp: Any) -> ArrayAPI:
    """The adapter for a namespace."""
    return _ADAPTERS.setdefault(xp.__name__, ArrayAPI(xp))
