"""Calls into which torch looks: under its dispatch modes, and on DTensors, an op is one operator.

On the stand-ins of `torch.fx` it is a node that calls it, and on batches that autograd makes a call
on what is behind them. Transforms (`torch.func`) are left with the body, which all of them know how
to take apart, and so are subclasses that may know nothing but torch's own operators.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from baracuda.calls.op import Op
from baracuda.calls.routes import routes
from baracuda.frameworks.torch import batches
from baracuda.libraries import Array
from baracuda.libraries.torch import is_batch, modes, transforms

# Where they are defined; whoever has one has imported it.
_KNOWN = (("torch.distributed.tensor", "DTensor"), ("torch._subclasses.fake_tensor", "FakeTensor"))


def knows_operators(x: Array) -> bool:
    """Whether `x` is of a subclass that takes operators as they are."""
    # A module that another thread is importing may lack the class.
    return any(isinstance(x, getattr(sys.modules.get(module), name, ())) for module, name in _KNOWN)


class TorchRoute:
    """Takes what dispatch modes and known subclasses are to see as one operator."""

    def takes(self, op: Op[Any, Any], arrays: Sequence[Array], mode: str) -> bool:
        if any(isinstance(x, torch.fx.Proxy) for x in arrays):
            return True
        return transforms() is None and bool(
            modes() or any(knows_operators(x) or is_batch(x) for x in arrays)
        )

    def call(self, op: Op[Any, Any], arrays: Sequence[Array], options: dict[str, Any]) -> Any:
        for x in arrays:
            if isinstance(x, torch.fx.Proxy):
                return x.tracer.create_proxy("call_function", op, tuple(arrays), options)
        if any(map(is_batch, arrays)):
            return batches.call(op, arrays, options)
        return op.as_operator(torch, arrays, options)


routes["torch"] = TorchRoute()
