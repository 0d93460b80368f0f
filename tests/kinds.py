"""Ops that are declared alike, of which one stands for all where only declarations matter.

What frameworks make of an op (batches, shards, graphs, launches) is derived from its declaration,
not from its formula. Tests of that take the first op of each kind, or with ``BARACUDA_ALL_OPS=1``
every op; tests of values always take all.
"""

from __future__ import annotations

import os
from typing import Any

from baracuda import adjoint
from baracuda.op import registry
from baracuda.spec import OpSpec

ALL = os.environ.get("BARACUDA_ALL_OPS") == "1"


def kind(spec: OpSpec) -> tuple[Any, ...]:
    """All that a declaration says but names and numbers."""
    partner, linear = adjoint.partner(spec)
    return (
        tuple(s.text for s in spec.signatures),
        tuple(spec.options),
        len(spec.scalars),
        spec.dtypes,
        tuple(spec.integers.items()),
        spec.resolve is None,
        spec.elementwise,
        spec.inplace,
        spec.packed,
        tuple(spec.counted.items()),
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


OPS = list(registry) if ALL else list(representatives())
PAIRS = [(o.spec.adjoint_of, name) for name, o in registry.items() if o.spec.adjoint_of]
PAIRS = [pair for pair in PAIRS if ALL or {*pair} & {*OPS}]
