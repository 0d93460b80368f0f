"""The code of docs/recipes/rotary.md, against the modules of transformers that it is of."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from documents import defined

transformers = pytest.importorskip("transformers")
qwen2_vl = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl")
qwen3_vl = pytest.importorskip("transformers.models.qwen3_vl.modeling_qwen3_vl")
llama = pytest.importorskip("transformers.models.llama.modeling_llama")


@cache
def page() -> SimpleNamespace:
    return defined("recipes/rotary.md")


def of(kind: Any, rope: dict[str, Any]) -> Any:
    """A configuration of heads of 128."""
    return kind(hidden_size=256, num_attention_heads=2, head_dim=128, rope_parameters=rope)


def drawn(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(2, 4, tokens, 128), torch.randn(2, 2, tokens, 128)


def close(ours: Any, theirs: Any) -> None:
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-4)


def test_scaled_ropes_are_those_of_llama() -> None:
    rope = {"rope_type": "llama3", "rope_theta": 500000.0, **page().config}
    module = llama.LlamaRotaryEmbedding(of(transformers.LlamaConfig, rope))
    q, k = drawn(5)
    cos, sin = module(q, torch.arange(5)[None])
    close(page().scaled(q, k), llama.apply_rotary_pos_emb(q, k, cos, sin))


@pytest.mark.parametrize("way", ["sections", "in_turns"])
def test_positions_of_images_are_those_of_qwen(way: str) -> None:
    pairs = {"sections": [16, 24, 24], "in_turns": [24, 20, 20]}[way]
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": pairs}
    if way == "sections":
        config = of(transformers.Qwen2VLTextConfig, rope)
        module = qwen2_vl.Qwen2VLRotaryEmbedding(config)
    else:
        module = qwen3_vl.Qwen3VLTextRotaryEmbedding(of(transformers.Qwen3VLTextConfig, rope))
    q, k = drawn(7)
    positions = torch.randint(0, 60, (3, 2, 7))
    cos, sin = module(q, positions)
    want = llama.apply_rotary_pos_emb(q, k, cos, sin)
    recipe = page()
    own = recipe.tables(positions, recipe.powers, getattr(recipe, way)(*pairs))
    close(recipe.of_images(q, k, *own), want)
    # In any other order of axes a token is elsewhere.
    other = recipe.tables(positions.roll(1, 0), recipe.powers, getattr(recipe, way)(*pairs))
    assert (recipe.of_images(q, k, *other)[0] - want[0]).abs().max() > 0.1
