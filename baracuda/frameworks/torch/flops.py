"""What `torch.utils.flop_counter.FlopCounterMode` counts: the matrix products in composite ops.

As it counts no other elementwise or row-wise work, ops without products have no formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch.utils import flop_counter

from baracuda.frameworks.torch.operators import NAMESPACE, library
from baracuda.layouts import Shape

# How many products of rows x d x v each takes: logits, and the gradients of both factors.
PRODUCTS = {
    "linear_cross_entropy": 1,
    "linear_cross_entropy_backward": 3,
    "linear_cross_entropy_with_gradient": 3,
}


def _formula(products: int, *shapes: Shape, **_: Any) -> int:
    """Two for each multiplication and addition; `hidden` and `weight` stand before the target."""
    hidden, weight = shapes[-3:-1]
    return 2 * products * prod(hidden) * weight[0]


def _counted(
    formula: Any, mode: Any, func: Any, types: Any, args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
) -> Any:  # fmt: skip
    """An operator within a counter that was made before its formula was known."""
    counter = getattr(mode, "counter", mode)
    counter.flop_registry.setdefault(func._overloadpacket, formula)
    return mode.__torch_dispatch__(func, types, args, kwargs)


for _name, _products in PRODUCTS.items():
    _operator = getattr(torch.ops.baracuda, _name)
    flop_counter.register_flop_formula(_operator)(partial(_formula, _products))
    torch.library.register_torch_dispatch(
        f"{NAMESPACE}::{_name}",
        getattr(flop_counter, "_FlopCounterMode", flop_counter.FlopCounterMode),
        partial(_counted, flop_counter.flop_registry[_operator]),
        lib=library,
    )
