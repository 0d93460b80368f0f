"""What losses share: their forms, and what becomes of what each element costs.

A form of its own has the result of ``reduction="none"``. Gradients are those of `x`; where a
framework differentiates a target too, it does so through the body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from baracuda.calls.op import Op, P, R, op
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
METRICS = {"accuracy": roles.metric(), "top": roles.positions()}
COTANGENT = {"dloss": roles.cotangent()}

_loss = partial(
    op, category="loss", dtypes=FLOATS, options={"reduction": choice("mean", "sum", "none")},
    elementwise=True, inplace=True, cases=CASES,
)  # fmt: skip


def measured(*forms: str, rows: str) -> Iterator[str]:
    """The forms of a loss, and those in which metrics follow it: the tops are those of `rows`."""
    yield from [f"{form} and metrics=False" for form in forms]
    for form in forms:
        given, loss, behind = re.split(r"(?<=-> )(loss\[.*?\])", form)
        metrics = f"accuracy{loss.removeprefix('loss')}, top[{rows}]"
        yield f"{given}{loss}, {metrics}{behind} and metrics=True"


def _forms(before: str, result: str, optional: Sequence[str]) -> Iterator[str]:
    """The forms with each choice of optional arrays; braces stand for the axes of the loss."""
    for many in range(len(optional) + 1):
        for some in combinations(optional, many):
            arrays = ", ".join(f"{name}[*s]" for name in ("x", "target", *some))
            for axes, sign in (("*s", "="), ("", "!=")):
                yield f"{before}{arrays} -> {result} if reduction{sign}none".format(axes)


def forward(*optional: str, **declared: Any) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Declares a loss of pairs of elements; `optional` names more arrays of their shape."""
    return _loss(*_forms("", "loss[{}]", optional), **{"roles": LOSS, **declared})


def backward(*optional: str, **declared: Any) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Declares its gradient."""
    return _loss(*_forms("dloss[{}], ", "dx[*s]", optional), **{"roles": COTANGENT, **declared})
