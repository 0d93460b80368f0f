"""What `torch.utils.flop_counter.FlopCounterMode` counts: the matrix products in composite ops.

As it counts no other elementwise or row-wise work, ops without products have no formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch.utils import flop_counter
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import baracuda.frameworks.torch.operators  # noqa: F401  (it defines them)
from baracuda.calls.op import registry

# How many products of rows x d x v each takes, for each layer: logits, and the gradients of both
# factors.
PRODUCTS = {
    "linear_cross_entropy": (1,),
    "linear_cross_entropy_backward": (3,),
    "linear_cross_entropy_with_gradient": (3,),
    "linear_log_prob": (1,),
    "linear_log_prob_backward": (3,),
    "linear_log_prob_with_gradient": (3,),
    "linear_kl_div": (1, 1),
    "linear_kl_div_backward": (3, 1),
    "linear_kl_div_with_gradient": (3, 1),
    "linear_topk_kl_div": (1,),
    "linear_topk_kl_div_backward": (3,),
    "linear_topk_kl_div_with_gradient": (3,),
}


def _formula(products: tuple[int, ...], arrays: Sequence[str], *shapes: Any, **_: Any) -> int:
    """Two for each multiplication and addition; both factors of each layer stand side by side."""
    # Cotangents come before them.
    first, given = arrays.index("hidden"), dict(zip(arrays, shapes, strict=False))
    factors = zip(products, shapes[first::2], shapes[first + 1 :: 2], strict=False)
    listed = given.get("rows")
    return sum(
        2 * many * (prod(hidden[:-1]) if listed is None else listed[0]) * prod(weight)
        for many, hidden, weight in factors
    )


for _name, _products in PRODUCTS.items():
    flop_counter.register_flop_formula(getattr(torch.ops.baracuda, _name))(
        partial(_formula, _products, registry[_name].spec.arrays)
    )


def known() -> None:
    """Let the counters that run know the formulas: each takes those that it finds when made."""
    for mode in _get_current_dispatch_mode_stack():
        found = getattr(getattr(mode, "counter", mode), "flop_registry", {})
        for name in PRODUCTS:
            operator = getattr(torch.ops.baracuda, name)
            found.setdefault(operator, flop_counter.flop_registry[operator])
