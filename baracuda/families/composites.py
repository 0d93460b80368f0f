"""How a composite runs the ops that it is made of, on arrays that are its own."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

from baracuda.calls.op import registry
from baracuda.calls.recent import Recent
from baracuda.declaration.backend import Misfit
from baracuda.declaration.dtypes import name_of, named
from baracuda.families.chunks import Chunk, Rows
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


def over_logits(
    rows: Rows, name: str, chunk: Chunk, given: tuple[Any, ...], options: dict[str, Any]
) -> Any:
    """The losses of a chunk by an op, and their slopes, which may take the place of its logits."""
    given = chunk.logits, *given, chunk.numbers
    if not (rows.plain and rows.may_write(*[x for x in given if x is not None])):
        return registry[name](*given, **options)
    kind = named(name_of(chunk.logits.dtype)).accumulate
    losses = rows.library.empty(chunk.logits.shape[:-1], kind, chunk.logits, None)
    return run(name, given, (losses, chunk.logits), options)
