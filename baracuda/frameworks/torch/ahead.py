"""Gradients that are made forward for a cotangent of 1, and what scales them backward.

Nothing is done where the factor is 1: on a device the kernel reads it, so nobody waits. In a
program of torch.compile an operator says so. Inductor runs it in the place of a donated buffer, a
saved tensor that nobody else has, where the program returns what it makes. What is made of a
gradient further on has the factor multiplied in, for no pass of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch

from baracuda.calls.op import registry
from baracuda.libraries import Array

NAMESPACE = "baracuda"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]


def scale(made: Sequence[Array], factor: Array, **choices: Any) -> None:
    """Multiply arrays by a number, in their place."""
    if factor.is_cuda:
        registry["scale_by"].plan(made, **choices)(made, out=made, factor=factor)
    elif factor.device.type != "cpu" or factor.item() != 1:
        for x in made:
            x.mul_(factor)


class Ahead(torch.autograd.Function):
    """A loss whose gradients for a cotangent of 1 are there: the loss, and those of its inputs."""

    @staticmethod
    def forward(ctx: Any, loss: Array, count: int, *both: Array) -> Array:
        ctx.save_for_backward(*both[:count])
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, dloss: Array) -> Any:
        made = ctx.saved_tensors
        scaled = [torch.ops.baracuda.scaled_gradient(x, dloss) for x in made]
        return None, None, *[None] * len(made), *scaled


def _scaled(made: Array, factor: Array) -> Array:
    return made * factor


def _scale(made: Array, factor: Array) -> None:
    scale([made], factor)


def _fake(made: Array, factor: Array) -> Array:
    if "torch._inductor.lowering" in sys.modules:
        _lower()
    return torch.empty_like(made)


@cache
def _lower() -> None:
    """Tell Inductor how a gradient is scaled."""
    ir, lowering, virtual = (
        import_module(f"torch._inductor.{name}") for name in ("ir", "lowering", "virtualized")
    )
    ops = torch.ops.baracuda

    def lowered(made: Any, factor: Any) -> Any:
        returned = all(user.op == "output" for user in virtual.V.graph.current_node.users)
        if returned and isinstance(getattr(made.data, "data", None), ir.DonatedBuffer):
            ir.FallbackKernel.create(ops.scale_gradient_.default, made, factor)
            return made
        wide = lowering.to_dtype(made, factor.get_dtype())
        product = lowering.lowerings[torch.ops.aten.mul.Tensor](wide, factor)
        return lowering.to_dtype(product, made.get_dtype())

    lowering.register_lowering(ops.scaled_gradient, type_promotion_kind=None)(lowered)


for _name, _results, _run, _traced in (
    ("scaled_gradient(Tensor made, Tensor factor)", "Tensor", _scaled, _fake),
    ("scale_gradient_(Tensor(a!) made, Tensor factor)", "()", _scale, lambda made, factor: None),
):
    _library.define(f"{_name} -> {_results}", tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    _own = _name.partition("(")[0]
    _library.impl(_own, _run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{_own}", _traced, lib=_library)
