"""Parameters in float32 beside 16-bit activations: dtypes in and out, in every framework."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import lanes
import numpy as np
import pytest
import torch

import baracuda as bc
from baracuda import backends
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT

NARROW = (torch.bfloat16, torch.float16)
# Ops, and how many parameters each has.
NORMS = {"rms_norm": 1, "layer_norm": 2, "add_rms_norm": 1, "add_layer_norm": 2,
         "group_norm": 2, "instance_norm": 2, "batch_norm": 2}  # fmt: skip
SOME = ("layer_norm", "add_rms_norm", "group_norm")
SHAPE = (3, 4, 6)


def inputs(name: str, dtype: torch.dtype) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Activations and parameters that watch, and options."""
    torch.manual_seed(len(name))
    many = 1 + name.startswith("add")
    channels = SHAPE[1] if registry[name].spec.category == "channel_norm" else SHAPE[-1]
    some = [torch.randn(SHAPE, dtype=dtype) for _ in range(many)]
    some += [torch.randn(channels) for _ in range(NORMS[name])]
    options = {"num_groups": 2} if name == "group_norm" else {}
    return [x.requires_grad_() for x in some], options


def first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", NORMS)
def test_torch_trains_parameters_in_their_own_dtype(name: str, dtype: torch.dtype) -> None:
    op, (arrays, options) = registry[name], inputs(name, dtype)
    y = first(op(*arrays, **options))
    assert y.dtype == dtype
    pull = torch.randn(SHAPE).to(dtype)
    y.backward(pull)
    wide = [x.detach().double().requires_grad_() for x in arrays]
    if name.startswith("add"):
        # The sum is stored in its dtype; the norm is one of that.
        rounded = (arrays[0] + arrays[1]).detach().double()
        exact = first(op(rounded.requires_grad_(), torch.zeros_like(rounded), *wide[2:]))
    else:
        exact = first(op(*wide, **options))
    exact.backward(pull.double())
    for x, want in zip(arrays, wide, strict=True):
        assert x.grad is not None
        assert x.grad.dtype == x.dtype
        if x.dtype == torch.float32:
            # No digit is lost to the dtype of the activations.
            torch.testing.assert_close(x.grad.double(), want.grad, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", lanes.cases(NORMS, SOME.__contains__))
def test_torch_compiles_them(name: str) -> None:
    op, (arrays, options) = registry[name], inputs(name, torch.bfloat16)
    want = first(op(*arrays, **options))
    run = torch.compile(
        lambda *some: first(op(*some, **options)), fullgraph=True, backend="aot_eager"
    )
    got = run(*arrays)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    for x, y in zip(
        torch.autograd.grad(got.sum(), arrays), torch.autograd.grad(want.sum(), arrays), strict=True
    ):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("name", lanes.cases(NORMS, SOME.__contains__))
def test_jax_differentiates_them(name: str) -> None:
    op, (arrays, options) = registry[name], inputs(name, torch.bfloat16)
    some = [
        jnp.asarray(x.detach().float().numpy(), str(x.dtype).removeprefix("torch.")) for x in arrays
    ]

    def loss(*given: Any) -> Any:
        return first(op(*given, **options)).astype(jnp.float32).sum()

    y = jax.jit(lambda *given: first(op(*given, **options)))(*some)
    assert y.dtype == jnp.bfloat16
    found = jax.jit(jax.grad(loss, argnums=tuple(range(len(some)))))(*some)
    torch_loss = first(op(*arrays, **options)).float().sum()
    for x, got, want in zip(some, found, torch.autograd.grad(torch_loss, arrays), strict=True):
        assert got.dtype == x.dtype
        eps = 0.02 if x.dtype == jnp.bfloat16 else 1e-5
        np.testing.assert_allclose(
            np.asarray(got, np.float64), want.double().numpy(), rtol=eps, atol=8 * eps
        )


def test_gradients_are_added_into_float32_buffers() -> None:
    x, dy = torch.randn(2, 64, 128).bfloat16()
    weight, total = torch.randn(128), torch.full((128,), 1e-3)
    dx = torch.zeros_like(x)
    plan = bc.rms_norm_backward.plan(dy, x, weight)
    apart = plan(dy, x, weight)[1]
    plan(dy, x, weight, out=(dx, total), accumulate=True)
    torch.testing.assert_close(total, apart + 1e-3)
    with pytest.raises(ValueError, match=r"out \(dweight\): expected dtype float32, got bfloat16"):
        plan(dy, x, weight, out=(dx, total.bfloat16()))


ONES = {name: torch.ones(4, dtype=getattr(torch, name)) for name in
        ("bfloat16", "float16", "float32", "float64")}  # fmt: skip


@pytest.mark.parametrize(
    ("x", "weight", "bias", "said"),
    [
        ("bfloat16", "float64", None, "weight: expected bfloat16 (as x) or float32, got float64"),
        ("bfloat16", "float16", None, "weight: expected bfloat16 (as x) or float32, got float16"),
        ("float32", "bfloat16", None, "weight: expected float32 (as x), got bfloat16"),
        ("float64", "float32", None, "weight: expected float64 (as x), got float32"),
        ("bfloat16", "float32", "bfloat16", "bias: expected float32 (as weight), got bfloat16"),
        ("bfloat16", "bfloat16", "float32", "bias: expected bfloat16 (as weight), got float32"),
    ],
)
def test_other_mixtures_are_refused(x: str, weight: str, bias: str | None, said: str) -> None:
    arrays = [ONES[x][None], ONES[weight], *([ONES[bias]] if bias else [])]
    with pytest.raises(TypeError, match=re.escape(f"layer_norm: {said}")):
        bc.layer_norm(*arrays)


def test_a_backend_that_mixes_nothing_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backends.mixes(registry["rms_norm"].spec, "cuda", "bfloat16")
    assert backends.mixes(registry["group_norm"].spec, "cuda", "bfloat16")
    assert not backends.mixes(registry["rms_norm"].spec, "cuda", "float32")
    assert not backends.mixes(registry["softmax"].spec, "cuda", "bfloat16")
    monkeypatch.setattr(type(backends.load("cuda")), "mixes", lambda self, spec: False)
    arrays = [torch.ones(2, 4, 3).bfloat16(), torch.ones(4)]
    problem = check.problem(bc.group_norm.spec, arrays, {"num_groups": 2}, DEFAULT)
    assert problem.mixed
    said = "has nothing for float32 beside bfloat16"
    assert backends._reason("cuda", problem, forced=True) == said
    with pytest.raises(NotImplementedError, match=said):
        bc.group_norm(*arrays, num_groups=2, backend="cuda")
