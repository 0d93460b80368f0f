"""`rms_norm` as models define it, beside their own formulas, which transformers has in classes.

Llama, Mistral and Qwen round what is normalised before they scale it. Gemma, Gemma 2 and Gemma 3
add 1 to the weight, and round once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import baracuda as bc
from baracuda.nn import RMSNorm, replace, restore

SHORT = (torch.bfloat16, torch.float16)
EPS = 1e-6


def normalised(x: torch.Tensor) -> torch.Tensor:
    wide = x.to(torch.float32)
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)


def llama(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As LlamaRMSNorm and Qwen2RMSNorm: float32 beside a float32 weight, by promotion."""
    return weight * normalised(x).to(x.dtype)


def gemma(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """As GemmaRMSNorm, Gemma2RMSNorm and Gemma3RMSNorm."""
    return (normalised(x) * (1.0 + weight.float())).type_as(x)


MODELS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "llama": (llama, {"casting": "before_weight"}),
    "gemma": (gemma, {"offset": 1.0}),
}


def drawn(n: int, dtype: torch.dtype, weight: torch.dtype, exact: bool) -> tuple[Any, Any]:
    """Rows and a weight; mean squares of small integers are exact, in whatever order."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(64, n, generator=generator)
    x = (2 * x).round().clamp(-7, 7) if exact else x
    return x.to(dtype), torch.randn(n, generator=generator).to(weight)


@pytest.mark.parametrize("n", [1, 64, 1024])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("model", MODELS)
def test_bits_are_those_of_the_model(model: str, dtype: torch.dtype, wide: bool, n: int) -> None:
    reference, options = MODELS[model]
    x, weight = drawn(n, dtype, torch.float32 if wide else dtype, exact=True)
    # What promotion leaves in float32 is rounded to the dtype of x, once.
    want = reference(x, weight).to(dtype)
    got = bc.rms_norm(x, weight, eps=EPS, **options)
    assert got.dtype is dtype
    assert torch.equal(got, want)
    for backend in ("torch", "array_api"):
        assert torch.equal(bc.rms_norm(x, weight, eps=EPS, backend=backend, **options), want)
    y, s = bc.add_rms_norm(x - 1, torch.ones_like(x), weight, eps=EPS, **options)
    assert torch.equal(s, x)
    assert torch.equal(y, want)
    if n > 1:
        other = MODELS["llama" if model == "gemma" else "gemma"][1]
        assert not torch.equal(bc.rms_norm(x, weight, eps=EPS, **other), want)


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("model", MODELS)
def test_where_sums_are_rounded_few_bits_are_others(model: str, dtype: torch.dtype) -> None:
    """Of results that lie beside a rounding's edge: one in thousands, by one place."""
    reference, options = MODELS[model]
    x, weight = drawn(4096, dtype, dtype, exact=False)
    got, want = bc.rms_norm(x, weight, eps=EPS, **options), reference(x, weight)
    unlike = got != want
    assert unlike.float().mean() < 2e-3
    # One place before the weight, and one more of the product.
    torch.testing.assert_close(got, want, rtol=2 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_numpy_and_jax_say_the_same(dtype: Any) -> None:
    x, weight = (v.numpy() for v in drawn(64, torch.float32, torch.float32, exact=True))
    x = x.astype(dtype)
    weight = weight.astype(dtype)
    for _, options in MODELS.values():
        want = bc.rms_norm(torch.from_numpy(x), torch.from_numpy(weight), **options).numpy()
        np.testing.assert_array_equal(bc.rms_norm(x, weight, **options), want)
        if dtype != np.float64:
            given = jnp.asarray(x), jnp.asarray(weight)
            compiled = jax.jit(lambda x, w, options=options: bc.rms_norm(x, w, **options))
            close = {"rtol": 4 * np.finfo(dtype).eps, "atol": 0}
            np.testing.assert_allclose(compiled(*given), want, **close)


def straight(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`x` rounded, with the slope of the identity."""
    return x + (x.detach().to(dtype).to(x.dtype) - x.detach())


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("model", MODELS)
def test_gradients_are_those_of_the_model(model: str, dtype: torch.dtype, wide: bool) -> None:
    reference, options = MODELS[model]
    x, weight = drawn(64, dtype, torch.float32 if wide else dtype, exact=True)
    dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(dtype)

    def differentiated(function: Callable[..., Any], *given: torch.Tensor) -> Any:
        given = tuple(v.clone().requires_grad_() for v in given)
        y = function(*given)
        return torch.autograd.grad(y, given, dy.to(y.dtype))

    def definition(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
        normal = straight(normal, dtype) if model == "llama" else normal
        return normal * (weight + options.get("offset", 0.0))

    want = differentiated(definition, x.double(), weight.double())
    watched = differentiated(lambda x, w: bc.rms_norm(x, w, eps=EPS, **options), x, weight)
    explicit = bc.rms_norm_backward(dy, x, weight, eps=EPS, **options)
    added = bc.add_rms_norm_backward(dy, torch.zeros_like(dy), x, weight, eps=EPS, **options)
    eps = torch.finfo(dtype).eps
    for got in (explicit, added):
        for g, w, own in zip(got, want, (x, weight), strict=True):
            assert g.dtype is own.dtype
            few = torch.finfo(own.dtype).eps
            torch.testing.assert_close(g.double(), w, rtol=few, atol=1e-6 * w.abs().max().item())
    # The model's own autograd rounds what it stores in between, too.
    for got in (watched, explicit):
        for g, w in zip(got, differentiated(reference, x, weight), strict=True):
            torch.testing.assert_close(g, w, rtol=4 * eps, atol=8 * eps * w.abs().max().item())
    if model == "llama":
        plain = bc.rms_norm_backward(dy, x, weight.float(), eps=EPS)
        cast = bc.rms_norm_backward(dy, x, weight.float(), eps=EPS, **options)
        assert torch.equal(cast[0], plain[0])
        assert not torch.allclose(cast[1], plain[1], rtol=1e-5, atol=0)


@pytest.mark.parametrize("model", MODELS)
def test_a_compiled_model_has_the_same_bits(model: str) -> None:
    reference, options = MODELS[model]
    x, weight = drawn(64, torch.bfloat16, torch.bfloat16, exact=True)
    x, weight = x.requires_grad_(), weight.requires_grad_()

    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y, s = bc.add_rms_norm(x, torch.zeros_like(x), w, eps=EPS, **options)
        return bc.rms_norm(s, w, eps=EPS, **options) + y

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    eager = layer(x, weight)
    assert torch.equal(compiled(x, weight), eager)
    assert torch.equal(eager, 2 * reference(x, weight))
    want = torch.autograd.grad(eager.float().sum(), (x, weight))
    got = torch.autograd.grad(compiled(x, weight).float().sum(), (x, weight))
    assert all(map(torch.equal, got, want))


def test_an_offset_is_a_run_time_value_and_a_casting_is_none() -> None:
    x, w = torch.randn(3, 8), torch.randn(8)
    plan = bc.rms_norm.plan(x, w, offset=1.0)
    assert bc.rms_norm.plan(x, w) is plan
    assert torch.equal(plan(x, w, offset=0.5, eps=EPS), bc.rms_norm(x, w, offset=0.5))
    assert bc.rms_norm.plan(x, w, casting="before_weight") is not plan
    # Without a weight there is no scale to add to.
    assert torch.equal(bc.rms_norm(x, offset=3.0), bc.rms_norm(x))


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("model", MODELS)
def test_the_module_is_the_models(model: str, dtype: torch.dtype) -> None:
    reference, options = MODELS[model]
    x, _ = drawn(64, dtype, dtype, exact=True)
    module = RMSNorm((8, 8), EPS, dtype=dtype, **options)
    assert torch.equal(module(x.view(64, 8, 8)), reference(x, 1 - torch.full((64,), options.get(
        "offset", 0.0), dtype=dtype)).view(64, 8, 8))  # fmt: skip
    torch.nn.init.normal_(module.weight)
    want = reference(x, module.weight.reshape(-1)).view(64, 8, 8)
    assert torch.equal(module(x.view(64, 8, 8)), want)
    assert next(iter(options)) in repr(module)
    with pytest.raises(
        TypeError, match=f"RMSNorm: x: .*torch's own forward.* {next(iter(options))}"
    ):
        module(x.view(64, 64))
    assert list(restore(module).left.values()) == [f"torch.nn.RMSNorm has no {next(iter(options))}"]


def test_the_module_takes_what_the_op_takes() -> None:
    with pytest.raises(ValueError, match="RMSNorm: casting: expected one of 'none'"):
        RMSNorm(4, casting="after")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="RMSNorm: offset: expected a number from"):
        RMSNorm(4, offset=float("inf"))
    own = torch.nn.RMSNorm(4)
    replace(own)
    assert isinstance(own, RMSNorm)
    assert (own.offset, own.casting, "offset" in repr(own)) == (0.0, "none", False)
    assert RMSNorm(4, elementwise_affine=False, offset=1.0).weight is None
