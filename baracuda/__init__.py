"""Fused machine-learning primitives, forward and explicit backward, over any array-API array.

Every op is a stateless function: ``bc.swiglu(x)``, ``bc.swiglu_backward(dy, x)``. The library
picks a backend, records the choice in a plan (``bc.swiglu.plan(x)``) and its SKU, and reuses it.
"""

from typing import TYPE_CHECKING

from baracuda import ops as _ops
from baracuda._version import __version__ as __version__
from baracuda.backends import check_errors as check_errors
from baracuda.calls.cache import CacheInfo as CacheInfo
from baracuda.calls.cache import PlanCache as PlanCache
from baracuda.calls.cache import plan_cache as plan_cache
from baracuda.calls.op import Op as Op
from baracuda.calls.plan import Plan as Plan
from baracuda.declaration.dispatch import Dispatch as Dispatch
from baracuda.declaration.dispatch import options as options
from baracuda.declaration.sku import KernelSku as KernelSku
from baracuda.declaration.sku import PrecisionGuarantee as PrecisionGuarantee
from baracuda.errors import ArgumentTypeError as ArgumentTypeError
from baracuda.errors import ArgumentValueError as ArgumentValueError
from baracuda.errors import BaracudaError as BaracudaError
from baracuda.errors import IndexOutOfRangeError as IndexOutOfRangeError
from baracuda.errors import UnsupportedError as UnsupportedError
from baracuda.families.frequencies import rope_frequencies as rope_frequencies
from baracuda.families.philox import seeds as seeds
from baracuda.forks import import_module as _import_module
from baracuda.ops import *

# Type checkers go by the imports, as in `baracuda.ops`.
if TYPE_CHECKING:
    from baracuda import nn as nn
    from baracuda import optim as optim
else:
    __all__ = [
        "ArgumentTypeError",
        "ArgumentValueError",
        "BaracudaError",
        "CacheInfo",
        "Dispatch",
        "IndexOutOfRangeError",
        "KernelSku",
        "Op",
        "Plan",
        "PlanCache",
        "PrecisionGuarantee",
        "UnsupportedError",
        "__version__",
        "check_errors",
        "options",
        "plan_cache",
        "rope_frequencies",
        "seeds",
        *_ops.__all__,
    ]
    # Imported when they are asked for: they import torch.
    _LAZY = ("nn", "optim")

    def __getattr__(name):
        if name in _LAZY:
            return _import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*__all__, *_LAZY})
