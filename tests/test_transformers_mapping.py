"""Layers for Hugging Face's `kernels`: models train by them as without, in every mode."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import lanes
import pytest
import torch

pytest.importorskip("transformers")
import kernels
import transformers
from kernels import Mode

from baracuda.integrations.transformers import mapping
from baracuda.integrations.transformers.mapping import (
    GeLU,
    RMSNorm,
    RotaryPosEmb,
    SiLU,
    _rounding,
    _way,
)

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "max_position_embeddings": 64,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "use_cache": False,
}  # fmt: skip
IDS = torch.arange(32).reshape(2, 16) * 37 % 128
# What the norm rounds before its weight, and whether its rotation is in the mapping.
MODELS = {"Llama": "before_weight", "Qwen3": "before_weight", "Olmo2": "none"}


def functions(model: Any) -> list[Any]:
    """The rotations, which models of one family share."""
    return [f for m in model.modules() for f in vars(m).get("_kernel_funcs", {}).values()]


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A model of the family, whose shared functions are as before afterwards."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{request.param}Config")(**SIZES)
    model = getattr(transformers, f"{request.param}ForCausalLM")(config).train()
    yield model
    for function in functions(model):
        vars(function).pop("forward", None)


def step(model: Any, called: Any = None) -> list[torch.Tensor]:
    """The loss and all gradients."""
    model.zero_grad()
    loss = (model if called is None else called)(input_ids=IDS, labels=IDS).loss
    loss.backward()
    return [loss.detach(), *[p.grad.clone() for p in model.parameters()]]


def kernelized(model: Any, mode: Any) -> Any:
    with kernels.use_kernel_mapping(mapping("cpu"), inherit_mapping=False):
        return kernels.kernelize(model, mode=mode, device="cpu")


# What a mode makes of layers is the same in every model.
@pytest.mark.parametrize(
    ("made", "mode"),
    lanes.cases(
        itertools.product(MODELS, (Mode.TRAINING, Mode.TRAINING | Mode.TORCH_COMPILE)),
        lambda given: given[0] == "Llama" or given[1] == Mode.TRAINING,
    ),
    indirect=["made"],
    ids=str,
)
def test_a_model_trains_by_the_layers_as_without(made: Any, mode: Any) -> None:
    want, model = step(made), kernelized(copy.deepcopy(made), mode)
    norm, casting = model.model.norm, MODELS[type(model).__name__.removesuffix("ForCausalLM")]
    assert vars(norm)["forward"].__func__ is RMSNorm.forward
    assert _rounding(type(norm)) == (0.0, casting)
    act = model.model.layers[0].mlp.act_fn
    assert vars(act)["forward"].__func__ is SiLU.forward
    assert functions(model)
    for function in functions(model):
        assert vars(function)["forward"].__func__ is RotaryPosEmb.forward
        assert _way(type(function)) == (False, 2)
    called = model
    if Mode.TORCH_COMPILE in mode:
        called = torch.compile(model, backend="aot_eager", fullgraph=True)
    for got, wanted in zip(step(model, called), want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("made", ["Llama"], indirect=True)
def test_every_mode_has_them(made: Any) -> None:
    for mode in (Mode.INFERENCE, Mode.INFERENCE | Mode.TORCH_COMPILE):
        model = kernelized(copy.deepcopy(made).eval(), mode)
        assert vars(model.model.norm)["forward"].__func__ is RMSNorm.forward
    assert list(mapping()["RMSNorm"]) == ["cuda"]


def test_activations_are_those_of_transformers() -> None:
    for name, layer in (("silu", SiLU), ("gelu", GeLU)):
        theirs = transformers.activations.ACT2FN[name]
        x = torch.linspace(-9, 9, 50, dtype=torch.float64)
        want = theirs(x)
        found = kernelized(torch.nn.Sequential(theirs), Mode.TRAINING)[0]
        assert vars(found)["forward"].__func__ is layer.forward
        torch.testing.assert_close(found(x), want)
        vars(theirs).pop("forward", None)


def test_what_computes_something_else_keeps_its_own_forward() -> None:
    @kernels.use_kernel_forward_from_hub("RMSNorm")
    class Other(torch.nn.Module):
        def __init__(self, size: int, eps: float) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(size))
            self.variance_epsilon = eps

        def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
            return hidden_states.abs() * self.weight

    x = torch.randn(3, 8)
    other = Other(8, 1e-6)
    found = kernelized(torch.nn.Sequential(other), Mode.TRAINING)[0]
    assert vars(found)["forward"].__func__ is RMSNorm.forward
    torch.testing.assert_close(found(x), x.abs())

    @kernels.use_kernel_forward_from_hub("rotary_pos_emb")
    def turned(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
        return q * 2, k * 3

    rotation = RotaryPosEmb.forward.__get__(turned)
    q, tables = torch.randn(2, 4, 5, 8), torch.randn(2, 5, 8)
    got = rotation(q, q, tables, tables)
    torch.testing.assert_close(got, (q * 2, q * 3))
