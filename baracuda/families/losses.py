"""What losses share: their forms, and what becomes of what each element costs.

A form of its own has the result of ``reduction="none"``. Gradients are those of `x`; where a
framework differentiates a target too, it does so through the body.
"""

from __future__ import annotations

from functools import partial

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case
from baracuda.declaration.values import choice

CASES = (
    Case({"s": (37,)}),
    Case({"s": (4, 33)}, reduction="none"),
    Case({"s": (2, 3, 5)}, reduction="sum"),
)
PROBABILITY = roles.value(0.05, 0.95)
LOSS = {"loss": roles.accumulated()}
COTANGENT = {"dloss": roles.cotangent()}

_loss = partial(
    op, category="loss", dtypes=FLOATS, options={"reduction": choice("mean", "sum", "none")},
    elementwise=True, inplace=True, cases=CASES,
)  # fmt: skip
forward = partial(
    _loss,
    "x[*s], target[*s] -> loss[*s] if reduction=none",
    "x[*s], target[*s] -> loss[] if reduction!=none",
    roles=LOSS,
)
"""Declares a loss of pairs of elements."""
backward = partial(
    _loss,
    "dloss[*s], x[*s], target[*s] -> dx[*s] if reduction=none",
    "dloss[], x[*s], target[*s] -> dx[*s] if reduction!=none",
    roles=COTANGENT,
)
"""Declares its gradient."""
