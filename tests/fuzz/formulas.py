"""What every op should compute, by torch in float64, SciPy, and formulas written for this.

A formula takes tensors of float64 and integers by the names of the op's inputs, and the options;
it returns a tuple of tensors. A gradient without one of its own is torch's autograd of the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from baracuda.calls.op import registry

Tensors: TypeAlias = Mapping[str, Any]
Formula: TypeAlias = Callable[[Tensors, Mapping[str, Any]], tuple[Any, ...]]

FORMULAS: dict[str, Formula] = {}
"""By op."""


def formula(*ops: str) -> Callable[[Formula], Formula]:
    """Add one for each of some ops."""

    def add(function: Formula) -> Formula:
        FORMULAS.update(dict.fromkeys(ops, function))
        return function

    return add


def expected(op: str, arrays: Mapping[str, Any], options: Mapping[str, Any]) -> list[Any]:
    """The results in NumPy's float64, of NumPy arrays and the options that were given."""
    spec = registry[op].spec
    known = {**spec.defaults, **options}
    given = {
        n: torch.from_numpy(x.astype(np.float64) if x.dtype.kind not in "iub" else x)
        for n, x in arrays.items()
    }
    with np.errstate(all="ignore"):
        results = FORMULAS[op](given, known) if op in FORMULAS else autograd(op, given, known)
    return [np.asarray(r.detach() if isinstance(r, torch.Tensor) else r) for r in results]


def autograd(op: str, given: Tensors, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """The gradient by torch's autograd; inputs that it does not take are zeros."""
    spec = registry[op].spec
    forward = spec.adjoint_of
    assert forward is not None, f"{op} has no formula"
    form = next(f for f in spec.signatures if f.takes(given) and f.allowed(options))
    # Outputs may belong to inputs that are not there: the bias, what is linear.
    wanted = [p.name[1:] for p in form.outputs]
    inputs = {n: x for n, x in given.items() if n in registry[forward].spec.arrays}
    for name in wanted:
        if name not in inputs:
            inputs[name] = _absent(name, given, options)
        inputs[name] = inputs[name].clone().requires_grad_()
    # How many results there are may be seen from the cotangents alone.
    names = dict.fromkeys(p.name for f in registry[forward].spec.signatures for p in f.outputs)
    cotangents = [given[f"d{n}"] for n in names if f"d{n}" in given]
    pulled = {f"d{n}": given[f"d{n}"] for n in names if f"d{n}" in given}
    outputs = FORMULAS[forward]({**inputs, **pulled}, options)
    return torch.autograd.grad(
        outputs, [inputs[n] for n in wanted], cotangents, allow_unused=True, materialize_grads=True
    )


def _absent(name: str, given: Tensors, options: Mapping[str, Any]) -> Any:
    if name == "bias":
        return torch.zeros_like(given["weight"])
    return torch.zeros_like(given["dy"])


def reduced(losses: Any, reduction: str) -> Any:
    """What becomes of losses; a mean of nothing is NaN."""
    if reduction == "none":
        return losses
    count = losses.numel() if reduction == "mean" else losses.shape[0] if losses.ndim else 1
    return losses.sum() if reduction == "sum" else losses.sum() / count


def share(given: Tensors, options: Mapping[str, Any]) -> Any:
    """The cotangent of the loss of each element of x."""
    x, reduction = given["x"], options["reduction"]
    count = {"mean": x.numel(), "batchmean": x.shape[0] if x.ndim else 1}.get(reduction, 1)
    return (given["dloss"] / max(count, 1)).expand(x.shape)
