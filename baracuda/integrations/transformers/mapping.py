"""Layers for Hugging Face's `kernels`, which puts them in the place of a model's by their names.

A layer of `kernels` has no state: its forward runs with the model's own module as `self`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from baracuda.integrations.transformers.code import way_of
from baracuda.integrations.transformers.forwards import Pair, rotation
from baracuda.integrations.transformers.modules import Mismatch, norm_of
from baracuda.nn.namesakes import taken
from baracuda.ops.norm import rms_norm
from baracuda.ops.self_gated import gelu, silu

__all__ = ["mapping"]

_ROUNDINGS: dict[type, tuple[float, str] | None] = {}
_WAYS: dict[type, tuple[bool, int] | None] = {}


# torch.compile looks at what a class computes when it traces, and not again.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _rounding(kind: Any) -> tuple[float, str] | None:
    """The offset and the casting with which `rms_norm` computes what a class does."""
    if kind not in _ROUNDINGS:
        found = norm_of(kind(8, eps=0.125))
        known = not isinstance(found, Mismatch) and found.op is rms_norm and found.options
        _ROUNDINGS[kind] = (known["offset"], known["casting"]) if known else None
    return _ROUNDINGS[kind]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _way(kind: Any) -> tuple[bool, int] | None:
    """How the function that a class wraps rotates."""
    if kind not in _WAYS:
        _WAYS[kind] = way_of(lambda *given: kind.forward(kind(), *given))
    return _WAYS[kind]


class RMSNorm(torch.nn.Module):
    """An RMS norm as its model defines it, by `rms_norm`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        module: Any = self
        rounding = _rounding(type(module))
        if rounding is None or not taken(hidden_states, module.weight):
            return type(module).forward(module, hidden_states)  # type: ignore[no-any-return]
        offset, casting = rounding
        eps = module.variance_epsilon
        return rms_norm(hidden_states, module.weight, eps=eps, offset=offset, casting=casting)


class RotaryPosEmb(torch.nn.Module):
    """A rotation of q and k by their model's tables, by `rope_qk_with_tables`."""

    can_torch_compile = True
    has_backward = True

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor,
        unsqueeze_dim: int = 1,
    ) -> Pair:  # fmt: skip
        module: Any = self
        way, turned = _way(type(module)), None
        if way is not None and unsqueeze_dim in (1, 2):
            turned = rotation(q, k, (cos, sin), way, unsqueeze_dim)
        if turned is None:
            return type(module).forward(module, q, k, cos, sin, unsqueeze_dim)  # type: ignore[no-any-return]
        return turned


class SiLU(torch.nn.Module):
    """SiLU, by `silu`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return silu(input) if taken(input) else torch.nn.functional.silu(input)


class GeLU(torch.nn.Module):
    """The exact GELU, by `gelu`."""

    can_torch_compile = True
    has_backward = True

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return gelu(input) if taken(input) else torch.nn.functional.gelu(input)


class _Repository:
    """What `kernels` loads a layer from."""

    def __init__(self, layer: type[torch.nn.Module]) -> None:
        self.layer_name, self._layer = layer.__name__, layer

    def load(self) -> type[torch.nn.Module]:
        return self._layer

    def __str__(self) -> str:
        return f"baracuda, layer `{self.layer_name}`"


_REPOSITORIES = {
    name: _Repository(layer)
    for name, layer in (
        ("RMSNorm", RMSNorm), ("rotary_pos_emb", RotaryPosEmb), ("SiLU", SiLU), ("GeLU", GeLU)
    )
}  # fmt: skip


def mapping(device: str = "cuda") -> dict[str, dict[str, dict[Any, Any]]]:
    """The layers of baracuda by the names under which `kernels` looks for them.

    For ``kernels.use_kernel_mapping(mapping())``, in which ``kernels.kernelize(model, mode=...)``
    finds them in every mode: training, inference, and either under `torch.compile`.

    Parameters
    ----------
    device : str
        The type of the device that they are for.

    Returns
    -------
    dict
        For "RMSNorm", "rotary_pos_emb", "SiLU" and "GeLU", by device and mode, what loads a layer.

    Raises
    ------
    ImportError
        `kernels` is not installed.

    Notes
    -----
    `patch` finds more by structure: residual adds, gated MLPs, the head and its
    loss. A layer whose class computes something else than `rms_norm` or `rope` keeps its own
    forward. Gradients and determinism are those of the ops.
    """
    mode = import_module("kernels").Mode
    modes = [way | more for way in (mode.TRAINING, mode.INFERENCE)
             for more in (mode._NONE, mode.TORCH_COMPILE)]  # fmt: skip
    return {name: {device: dict.fromkeys(modes, each)} for name, each in _REPOSITORIES.items()}
