"""Frequencies of scaled ropes are those of transformers, for models too; ropes turn by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import baracuda as bc

SHORT = [1.0 + 0.05 * i for i in range(48)]
LONG = [1.0 + 1.3 * i for i in range(48)]

# A model, what turns of its heads, the configuration, and its rule.
MODELS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "Llama 3.1": (128, {}, {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "Llama 3.2 1B": (64, {}, {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
    "Gemma 3": (256, {}, {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}),
    "Qwen 2.5, 128k": (128, {}, {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0,
        "original_max_position_embeddings": 32768}),
    "GPT-OSS": (64, {}, {
        "rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096}),
    "DeepSeek V3": (64, {}, {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.7,
        "original_max_position_embeddings": 4096}),
    "Phi 3.5 mini": (96, {"max_position_embeddings": 131072}, {
        "rope_type": "longrope", "rope_theta": 10000.0, "factor": 32.0, "short_factor": SHORT,
        "long_factor": LONG, "original_max_position_embeddings": 4096}),
    "dynamic": (128, {"max_position_embeddings": 2048}, {
        "rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}),
    "Gemma 4": (512, {}, {
        "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}),
}  # fmt: skip


def ours(name: str, **more: Any) -> tuple[np.ndarray, float]:
    dim, config, parameters = MODELS[name]
    given = {k: v for k, v in parameters.items() if k not in ("rope_type", "rope_theta")}
    if name == "dynamic":
        more |= config
    return bc.rope_frequencies(
        parameters["rope_type"], dim, parameters["rope_theta"], **given, **more
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("length", [None, 5000])
def test_frequencies_are_those_of_transformers(name: str, length: int | None) -> None:
    transformers = pytest.importorskip("transformers")
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    dim, more, parameters = MODELS[name]
    config = transformers.LlamaConfig(
        hidden_size=2 * dim, num_attention_heads=2, head_dim=dim, rope_parameters=parameters, **more
    )
    want, factor = functions[parameters["rope_type"]](config, "cpu", seq_len=length)
    takes = {"seq_len": length} if parameters["rope_type"] in ("dynamic", "longrope") else {}
    found, attention_factor = ours(name, **takes)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, want.numpy(), rtol=3e-6, atol=0)
    assert attention_factor == pytest.approx(factor, rel=1e-12)
    if takes and length:
        assert not np.allclose(found, ours(name)[0])


def test_a_rule_takes_its_own_parameters() -> None:
    with pytest.raises(TypeError, match="linear takes factor and needs factor, got none"):
        bc.rope_frequencies("linear", 8)
    with pytest.raises(TypeError, match="default takes no parameters"):
        bc.rope_frequencies("default", 8, factor=2.0)
    with pytest.raises(ValueError, match="rule: expected one of default, linear"):
        bc.rope_frequencies("ntk", 8)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dim: expected an even number, got 7"):
        bc.rope_frequencies("default", 7)
    with pytest.raises(ValueError, match="factor: expected a finite number > 0, got 0"):
        bc.rope_frequencies("linear", 8, factor=0)
    with pytest.raises(ValueError, match="long_factor: expected 4 numbers, got 2 of them"):
        bc.rope_frequencies(
            "longrope", 8, factor=2, short_factor=[1] * 4, long_factor=[1, 2],
            original_max_position_embeddings=64,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("interleaved", [True, False])
def test_ropes_turn_by_given_frequencies(dtype: Any, interleaved: bool) -> None:
    """At large positions too: the phase of a float32 frequency is exact."""
    frequencies, factor = ours("Qwen 2.5, 128k")
    rng = np.random.default_rng(0)
    q, k = (rng.normal(size=(heads, 6, 128)).astype(dtype) for heads in (3, 2))
    positions = np.asarray([0, 1, 77, 32768, 131071, 10**6])
    angles = positions[:, None] * frequencies.astype(np.longdouble)
    cos, sin = factor * np.cos(angles), factor * np.sin(angles)
    turns = {"frequencies": frequencies, "attention_factor": factor, "interleaved": interleaved}
    for x, y in zip((q, k), bc.rope_qk(q, k, positions, **turns), strict=True):
        halves = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (
            slice(0, 64), slice(64, None))  # fmt: skip
        a, b = (x[..., half] for half in halves)
        assert np.array_equal(y, bc.rope(x, positions, **turns))
        eps = np.finfo(dtype).eps * (6 if dtype == np.float32 else 5e5)
        assert abs(y[..., halves[0]] - (a * cos - b * sin)).max() < 5 * eps
        assert abs(y[..., halves[1]] - (a * sin + b * cos)).max() < 5 * eps
        back = bc.rope_backward(y, positions, **turns)
        np.testing.assert_allclose(back, factor**2 * x, rtol=0, atol=20 * np.finfo(dtype).eps * 10)


def test_frequencies_are_read_when_an_op_is_called() -> None:
    x, given = np.random.default_rng(1).normal(size=(3, 8)), np.asarray([1.0, 0.5], np.float32)
    for _ in range(3):
        found = bc.rope(x, frequencies=given)
        assert np.array_equal(found, bc.rope(x, frequencies=tuple(given.tolist()), rotary_dim=4))
        assert np.array_equal(found[:, 4:], x[:, 4:])
        given *= 2
    with pytest.raises(TypeError, match=r"frequencies: expected a tuple of numbers.*tolist"):
        bc.rope(x, frequencies=torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"frequencies: expected 3 numbers .*, got 2 of them"):
        bc.rope(x, frequencies=(1.0, 2.0), rotary_dim=6)
    with pytest.raises(ValueError, match="rotary_dim: expected an even number from 0 to d = 8"):
        bc.rope(x, frequencies=(1.0,) * 5)
    with pytest.raises(ValueError, match="frequencies: expected a finite number, got inf"):
        bc.rope(x, frequencies=(1.0, float("inf")))


def test_torch_compiles_ropes_of_given_frequencies() -> None:
    x = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    turns: Any = {"frequencies": (1.0, 0.25, 0.5), "attention_factor": 1.5}

    def rotated(x: torch.Tensor) -> torch.Tensor:
        return bc.rope_qk(x, x, **turns)[1]

    want = rotated(x)
    (dx,) = torch.autograd.grad(want.sum(), x)
    found = torch.compile(rotated, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, want)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], dx)


def test_jax_differentiates_ropes_of_given_frequencies() -> None:
    jax = pytest.importorskip("jax")
    x = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    turns: Any = {"frequencies": np.asarray([1.0, 0.25]), "attention_factor": 1.5}
    dy = np.ones_like(x)
    dx = jax.jit(jax.grad(lambda v: bc.rope(v, **turns).sum()))(x)
    np.testing.assert_allclose(dx, bc.rope_backward(dy, **turns), rtol=1e-5, atol=1e-6)
