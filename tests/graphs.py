"""What tests of torch's graphs share, on the CPU and on a GPU."""

from __future__ import annotations

from typing import Any

import torch

from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.frameworks.torch import operators
from baracuda.testing.cases import Call, Subject


def calls(
    op: str, dtype: str = "float32", backend: str = "torch", device: str = "cpu"
) -> list[Call]:
    """One with elements for each form."""
    found: dict[str, Call] = {}
    for call in Subject(op, backend, "torch", dtype, device).calls():
        if all(x.size for x in call.arrays.values()):
            found.setdefault(call.form.text, call)
    return list(found.values())


def floats(arrays: list[Any]) -> list[torch.Tensor]:
    """Those that may have gradients."""
    return [x for x in arrays if x is not None and x.is_floating_point()]


def options_of(call: Call) -> dict[str, Any]:
    """All options of a call as its operator takes them: integers have a sign."""
    spec = registry[call.subject.op].spec
    options = check.arguments(spec, {**spec.options, **spec.scalars}, call.options)
    bits = {name for name, code in zip(spec.scalars, spec.codes, strict=True) if code == "Q"}
    return {k: v - (v >> 63 << 64) if k in bits else v for k, v in options.items()}


def overload(call: Call) -> Any:
    """The operator of the form of a call."""
    op = registry[call.subject.op]
    for name, forms in operators.overloads(op).items():
        if call.form in forms:
            packet, _, suffix = name.partition(".")
            return getattr(getattr(torch.ops.baracuda, packet), suffix or "default")
    raise AssertionError
