"""Batches that autograd makes of cotangents (`is_grads_batched`, `jacobian(vectorize=True)`).

Such a tensor has no memory. A call on one is a call on the tensor behind it, with the batch as one
more axis of a group of the op. Where the forms of the op have no room for it, it is one call for
each member. Either is a plain call: its backend is chosen, and its gradient found, as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from baracuda.calls import check, partitioning
from baracuda.calls.op import Op
from baracuda.declaration.dispatch import DEFAULT
from baracuda.libraries import Array
from baracuda.libraries.torch import is_batch


def call(op: Op[Any, Any], arrays: Sequence[Array], options: Mapping[str, Any]) -> Any:
    """An op on arrays of which some are batches, of one level or several."""
    # The inner ones first: torch nests them so.
    level = max(map(_highest, arrays))
    sizes = [_size(x, level) for x in arrays]
    size, along = max(sizes), [n > 0 for n in sizes]
    whole = [
        torch._remove_batch_dim(x, level, size, 0) if differs else x
        for x, differs in zip(arrays, along, strict=True)
    ]

    def member(i: int) -> list[Array]:
        return [x[i] if differs else x for x, differs in zip(whole, along, strict=True)]

    own = {k: v for k, v in options.items() if k in op.spec.options}
    problem = check.problem(op.spec, member(0), own, DEFAULT)
    there = [i for i, x in enumerate(arrays) if x is not None]
    found = partitioning.batch(problem, size, [along[i] for i in there])
    if found is None:
        results = [_listed(op(*member(i), **options)) for i in range(size)]
        outs = [torch.stack(same) for same in zip(*results, strict=True)]
    else:
        for i, shape in zip(there, found[0], strict=True):
            whole[i] = whole[i].reshape(shape) if along[i] else whole[i].expand(shape)
        outs = _listed(op(*whole, **{**options, **found[1]}))
    outs = [torch._add_batch_dim(y, 0, level) for y in outs]
    return tuple(outs) if len(outs) > 1 else outs[0]


def _highest(x: Array) -> int:
    """The highest level of which `x` is a batch, 0 for none."""
    level = 0
    while is_batch(x):
        level += 1
        if _size(x, level):
            x = torch._remove_batch_dim(x, level, 0, 0)
    return level


def _size(x: Array, level: int) -> int:
    """The size of the batch that `x` is of a level, 0 where it is none."""
    # Where it is none, torch makes one of the size that is given.
    return torch._remove_batch_dim(x, level, 0, 0).shape[0] if is_batch(x) else 0


def _listed(result: Any) -> list[Array]:
    return list(result) if isinstance(result, tuple) else [result]
