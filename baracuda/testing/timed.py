"""What is measured of one row of the benchmark, and how."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from baracuda.calls.op import registry
from baracuda.testing.timed_row import Row, ideal_bytes


@dataclass(frozen=True)
class Timing:
    """What was measured of one row: medians in seconds, and the spread of ours.

    `extra` is the memory of a call beside inputs and results, as a part of these, of "ours" and of
    each peer; where it was measured.
    """

    op: str
    label: str
    dtype: str
    sku: str
    ideal_bytes: int
    ours: float
    spread: float
    plan: float
    peers: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The fastest peer."""
        return min(self.peers, key=lambda name: self.peers[name], default="none")

    @property
    def beside(self) -> float:
        """What the best peer takes; NaN where none can do the row."""
        return self.peers.get(self.best, math.nan)

    @property
    def ratio(self) -> float:
        """How many times as fast as the best peer."""
        return self.beside / self.ours

    def share(self, ceiling: float) -> float:
        """Ideal bytes over time, as a part of the copy ceiling."""
        return self.ideal_bytes / self.ours / ceiling


def time_row(
    row: Row,
    dtype: str,
    arrays: Sequence[Any],
    peers: dict[str, Callable[[], Any]],
    measure: Callable[[Callable[[], Any], float], tuple[float, float]],
    seconds: float,
) -> Timing:
    """Ours through the function and through a plan, then every peer."""
    op = registry[row.op]
    plan = op.plan(*arrays, **row.keywords)
    scalars = {k: v for k, v in row.options.items() if k in op.spec.scalars}
    ours, spread = measure(lambda: op(*arrays, **row.keywords), seconds)
    planned, _ = measure(lambda: plan(*arrays, **scalars), seconds)
    out = Timing(
        row.op, row.label, dtype, str(plan.sku), ideal_bytes(plan.problem), ours, spread, planned
    )
    for name, task in peers.items():
        try:
            out.peers[name], _ = measure(task, seconds)
        except Exception as error:
            # A peer that cannot do the row is part of the result.
            out.errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    return out
