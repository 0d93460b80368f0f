"""How a composite runs the ops that it is made of, on arrays that are its own."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

from baracuda.calls.op import registry
from baracuda.calls.recent import Recent
from baracuda.declaration.backend import Misfit
from baracuda.libraries import Array

_recent: defaultdict[str, Recent] = defaultdict(Recent)


def run(
    name: str,
    arrays: tuple[Array | None, ...],
    outs: tuple[Array, ...] | None,
    options: dict[str, Any],
) -> Any:
    """An op on plain arrays, and into others, that are ours: they fit and are checked by none."""
    fused, recent = registry[name], _recent[name]
    scalars = {key: options[key] for key in fused.spec.scalars}
    # A plan takes numbers, or arrays of some dtypes.
    kinds = tuple([str(getattr(x, "dtype", "")) for x in scalars.values()])
    structural = [(key, value) for key, value in options.items() if key not in scalars]
    written = (*structural, ("dtypes", kinds))
    plan = partial(recent.plan, fused.plan, arrays, written, options)
    try:
        return plan().run(arrays, outs, False, scalars)
    except Misfit:
        return plan(narrow=True).run(arrays, outs, False, scalars)
