"""Ops that are declared alike, of which one stands for all where only declarations matter.

What frameworks make of an op (batches, shards, graphs, launches) is derived from its declaration,
not from its formula. Tests of that take a covering set, and in the full lane every op: each part
of each declaration is in it once, not each mixture. Tests of values take all ops.
"""

from __future__ import annotations

import re
from typing import Any

import lanes

from baracuda.calls import adjoint, sets
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
        if sets.summed(op.spec):
            continue
        names.setdefault((op.spec.category, op.spec.adjoint_of is None), name)
    return {*names.values()}


def features(spec: OpSpec) -> set[Any]:
    """What a framework has to cope with: each part of a kind alone, axes without names."""
    signatures, options, *others = kind(spec)
    texts = [text.split("->") for text in signatures]
    shapes = [re.sub(r"[a-z]+", "n", x) for x in re.findall(r"\[.*?\]", " ".join(signatures))]
    counts = [(takes.count("["), gives.count("[")) for takes, gives in texts]
    return {spec.category, *options, *shapes, *counts, *enumerate(others)}


FIRST = representatives()
USUAL = of_category()
# Few ops that have every feature of all.
COVERING = lanes.covering({name: features(op.spec) for name, op in registry.items()})
_FORWARDS = {registry[name].spec.adjoint_of or name for name in COVERING}
OPS = lanes.cases(registry, COVERING.__contains__)
# Nothing flows back from random numbers.
SLOPING = [
    name
    for name, op in registry.items()
    if any(op.spec.role(p.name).flows for form in op.spec.signatures for p in form.outputs)
]
PAIRS = [(o.spec.adjoint_of, name) for name, o in registry.items() if o.spec.adjoint_of]


def runs_both_ways(op: str) -> bool:
    """Whether it is no gradient, and it or its gradient covers: what runs it runs both."""
    return op in _FORWARDS


def one_of_category(op: str) -> bool:
    """Whether it stands for its category and is no gradient."""
    return op in USUAL and registry[op].spec.adjoint_of is None
