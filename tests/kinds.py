"""Ops that are declared alike, of which one stands for all where only declarations matter.

What frameworks make of an op (batches, shards, graphs, launches) is derived from its declaration,
not from its formula. Tests of that take the first op of each kind, and in the full lane every op;
tests of values always take all.
"""

from __future__ import annotations

from typing import Any

import lanes

from baracuda.calls import adjoint, lists
from baracuda.calls.op import registry
from baracuda.declaration.spec import OpSpec


def kind(spec: OpSpec) -> tuple[Any, ...]:
    """All that a declaration says but names and numbers."""
    partner, linear = adjoint.partner(spec)
    return (
        tuple(s.text for s in spec.signatures),
        tuple(spec.options),
        spec.codes,
        spec.numbered,
        spec.dtypes,
        tuple((n, spec.role(n).below, spec.role(n).counts) for n in spec.integers),
        spec.resolve is None,
        spec.elementwise,
        spec.inplace,
        spec.packed,
        spec.kernel and spec.kernel.schedule,
        spec.adjoint_of is None,
        partner is None,
        linear,
    )


def representatives() -> dict[str, list[str]]:
    """The first op of each kind, with all that it stands for."""
    kinds: dict[tuple[Any, ...], list[str]] = {}
    for name, op in registry.items():
        kinds.setdefault(kind(op.spec), []).append(name)
    return {names[0]: names for names in kinds.values()}


def of_category() -> set[str]:
    """The first op of each category, and its gradient; a sum of all elements stands for none."""
    names: dict[Any, str] = {}
    for name, op in registry.items():
        if lists.summed(op.spec):
            continue
        names.setdefault((op.spec.category, op.spec.adjoint_of is None), name)
    return {*names.values()}


FIRST = representatives()
USUAL = of_category()
OPS = lanes.cases(registry, FIRST.__contains__)
PAIRS = [(o.spec.adjoint_of, name) for name, o in registry.items() if o.spec.adjoint_of]


def runs_both_ways(op: str) -> bool:
    """Whether it stands for a kind and is no gradient: what runs it runs its gradient too."""
    return op in FIRST and registry[op].spec.adjoint_of is None


def one_of_category(op: str) -> bool:
    """Whether it stands for its category and is no gradient."""
    return op in USUAL and runs_both_ways(op)
