"""What modules share that have torch's name: our op where it takes the call, else torch's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from baracuda.frameworks.torch.route import knows_operators

_SHORT = (torch.float16, torch.bfloat16)
_FLOATS = (*_SHORT, torch.float32, torch.float64)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def listed(always: dict[str, Any], sometimes: dict[str, tuple[Any, Any]]) -> str:
    """What ``repr`` shows: some values always, others where they are not (value, default) alike."""
    more = {name: value for name, (value, default) in sometimes.items() if value != default}
    return ", ".join(f"{name}={value!r}" for name, value in (always | more).items())


def _known(x: torch.Tensor) -> bool:
    """Whether `x` is dense and of no class that may know nothing but torch's own operators."""
    dense = x.layout is torch.strided and not x.is_nested
    return dense and (type(x) in _PLAIN or knows_operators(x))


def taken(
    x: torch.Tensor, *others: torch.Tensor | None, parameters: Sequence[torch.Tensor | None] = ()
) -> bool:
    """Whether an op takes `x`, others of its dtype, and parameters that may be float32 beside it.

    All are to be dense, floating and on one device.
    """
    own, device = x.dtype, x.device
    if not (own in _FLOATS and _known(x)):
        return False
    for y in others:
        if y is not None and not (y.dtype is own and y.device == device and _known(y)):
            return False
    shared = None
    for p in parameters:
        if p is None:
            continue
        shared = shared or p.dtype
        if not (p.dtype is shared and p.device == device and _known(p)):
            return False
    return shared in (None, own) or (own in _SHORT and shared is torch.float32)


def leaf(module: torch.nn.Module, *inputs: Any, **named: Any) -> Any:
    """The call as a leaf of what `torch.fx` traces, as of torch's modules; None elsewhere."""
    for x in (*inputs, *named.values()):
        if isinstance(x, torch.fx.Proxy):
            path = x.tracer.path_of_module(module)  # type: ignore[attr-defined]
            return x.tracer.create_proxy("call_module", path, inputs, named)
    return None


class Namesake(torch.nn.Module):
    """Stands before torch's class among the bases of a module that has its name.

    It adds no parameter, buffer or attribute, so that an instance of either class can become one
    of the other.
    """

    def _computed(self, *inputs: Any, **named: Any) -> Any:
        """The op's result, or None where it does not take these inputs."""
        raise NotImplementedError

    def _kept(self) -> str:
        """Why torch's own forward runs on every input; empty where an op may."""
        return ""

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the op, or torch's own forward where the op does not take the inputs."""
        if (node := leaf(self, *inputs, **named)) is not None:
            return node
        y = None if self._kept() else self._computed(*inputs, **named)
        return super().forward(*inputs, **named) if y is None else y
