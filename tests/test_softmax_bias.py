"""An additive bias of softmax and of its logarithm: beside torch, with gradients, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import baracuda as bc

INF = float("inf")
PAIRS = {"softmax": (bc.softmax, torch.softmax), "log_softmax": (bc.log_softmax, torch.log_softmax)}
both = pytest.mark.parametrize("name", PAIRS)
# Scores of two sequences in three heads: slopes of ALiBi, positions of all sequences, padding,
# and as many as scores.
SHAPES = [(1, 3, 1, 7), (1, 3, 5, 7), (2, 1, 1, 7), (2, 3, 5, 7), (1, 1, 5, 1)]
BACKENDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda x: x.numpy(),
    "torch": lambda x: x,
    "array_api": lambda x: x.numpy(),
}


def scores(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(4)).to(dtype)


def bias_of(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5)).to(dtype)


@both
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axis", [-1, 1])
def test_a_bias_is_added_behind_the_scale(
    name: str, backend: str, shape: tuple[int, ...], axis: int
) -> None:
    ours, theirs = PAIRS[name]
    x, bias, given = scores(), bias_of(shape), BACKENDS[backend]
    got = ours(given(x), None, given(bias), axis=axis, scale=-0.3, backend=backend)
    torch.testing.assert_close(torch.as_tensor(got), theirs(x * -0.3 + bias, axis))


@both
def test_slopes_of_alibi(name: str) -> None:
    """Heads of other slopes, of as many keys, beside a diagonal (arXiv:2108.12409)."""
    ours, theirs = PAIRS[name]
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    slopes = 2.0 ** -torch.arange(2, 10, 2)[:, None, None]
    bias = (slopes * torch.arange(6)).double()[None]
    later = torch.ones(6, 6, dtype=torch.bool).triu(1)
    want = theirs((x * 0.5 + bias).masked_fill(later, -INF), -1)
    torch.testing.assert_close(ours(x, None, bias, scale=0.5, causal=True), want)


@both
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_bias_of_minus_infinity_is_a_mask(name: str, backend: str) -> None:
    op, given = PAIRS[name][0], BACKENDS[backend]
    x, mask = scores(), torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[0, 0, 2] = False
    # What does not count may hold anything.
    x[0, 1, 2, 3], x[0, :, 0, 1], mask[0, 0, 0, 1] = INF, torch.nan, False
    bias = torch.where(mask, 0.0, -INF).double()
    want = op(given(x), given(mask), backend=backend)
    np.testing.assert_array_equal(op(given(x), None, given(bias), backend=backend), want)
    nothing = 0 if name == "softmax" else -INF
    assert (np.asarray(want)[0, :, 2] == nothing).all()
    assert not np.isnan(np.asarray(want)).any()
    # Beside a mask either leaves out.
    half = mask | (torch.arange(7) > 2)
    rest = torch.where(mask | (torch.arange(7) < 3), 0.0, -INF).double()
    got = op(given(x), given(half), given(rest), backend=backend)
    np.testing.assert_array_equal(got, want)


@both
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_not_a_number_makes_its_row_so(name: str, backend: str) -> None:
    op, given = PAIRS[name][0], BACKENDS[backend]
    for value in (torch.nan, INF):
        bias = torch.zeros(1, 3, 5, 7, dtype=torch.float64)
        bias[0, 1, 2, 3] = value
        y = np.asarray(op(given(scores()), None, given(bias), backend=backend))
        assert np.isnan(y[:, 1, 2, 3]).all()
        assert np.isnan(y[:, 1, 2]).all() or (name == "log_softmax" and value == INF)
        assert np.isnan(y).sum() <= 14


@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wide", [False, True])
def test_16_bits_are_rounded_once(name: str, dtype: torch.dtype, wide: bool) -> None:
    ours, theirs = PAIRS[name]
    x, bias = scores(dtype), bias_of((1, 3, 1, 7), torch.float32 if wide else dtype)
    want = theirs(x.double() * 0.7 + bias.double(), -1)
    got = ours(x, None, bias, scale=0.7)
    assert got.dtype is dtype
    torch.testing.assert_close(got, want.to(dtype))
    whole = ours(x, None, bias, scale=0.7, dtype="float32")
    torch.testing.assert_close(whole, want.float(), rtol=1e-6, atol=1e-6)


@both
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_those_of_torch(name: str, shape: tuple[int, ...]) -> None:
    ours, theirs = PAIRS[name]
    for scale in (0.7, 0.0):
        x, bias = scores().requires_grad_(), bias_of(shape).requires_grad_()
        got, want = ours(x, None, bias, scale=scale), theirs(x * scale + bias, -1)
        dy = torch.randn(want.shape, dtype=torch.float64)
        found, known = (torch.autograd.grad(y, (x, bias), dy) for y in (got, want))
        for mine, other in zip(found, known, strict=True):
            torch.testing.assert_close(mine, other)
        # Of x alone, by the explicit gradient.
        (alone,) = torch.autograd.grad(ours(x, None, bias.detach(), scale=scale), x, dy)
        torch.testing.assert_close(alone, known[0])
    assert torch.autograd.gradcheck(lambda b: ours(x.detach(), None, b), bias)


@both
def test_what_a_bias_leaves_out_has_no_gradient(name: str) -> None:
    op = PAIRS[name][0]
    x, bias = scores(), bias_of((1, 3, 1, 7))
    bias[..., 2], bias[0, 1] = -INF, -INF
    given = (x.requires_grad_(), bias.requires_grad_())
    y = op(given[0], None, given[1])
    dx, dbias = torch.autograd.grad(y, given, torch.ones_like(y).cumsum(-1))
    (explicit,) = torch.autograd.grad(op(x, None, bias.detach()), x, torch.ones_like(y).cumsum(-1))
    torch.testing.assert_close(dx, explicit)
    assert not dbias[..., 2].any()
    assert not dbias[0, 1].any()
    assert dbias[0, 0, 0, 0]


@both
def test_transforms_of_torch(name: str) -> None:
    ours, theirs = PAIRS[name]
    x, bias = scores(torch.float32), bias_of((3, 1, 7), torch.float32)
    many = torch.func.vmap(lambda x, b: ours(x, None, b), in_dims=(0, None))(x, bias)
    torch.testing.assert_close(many, theirs(x + bias, -1))
    each = torch.func.vmap(lambda x, b: ours(x, None, b), in_dims=(1, 0))(x, bias[:, None])
    torch.testing.assert_close(each.movedim(0, 1), theirs(x + bias, -1))

    def loss(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return ours(x, None, bias, scale=0.5).square().sum()

    x, bias = x.requires_grad_(), bias[None].requires_grad_()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    want = torch.autograd.grad(loss(x, bias), (x, bias))
    for mine, other in zip(torch.autograd.grad(compiled(x, bias), (x, bias)), want, strict=True):
        torch.testing.assert_close(mine, other)


@both
def test_transforms_of_jax(name: str) -> None:
    op = PAIRS[name][0]
    theirs = {"softmax": jax.nn.softmax, "log_softmax": jax.nn.log_softmax}[name]
    x, bias = (jnp.asarray(a.numpy()) for a in (scores(torch.float32), bias_of((1, 3, 1, 7))))
    bias = bias.astype(x.dtype)

    def mine(x: Any, bias: Any) -> Any:
        return (op(x, None, bias, scale=0.5) ** 2).sum()

    def other(x: Any, bias: Any) -> Any:
        return (theirs(x * 0.5 + bias) ** 2).sum()

    for both_of in (jax.grad(f, (0, 1)) for f in (mine, jax.jit(mine))):
        for got, want in zip(both_of(x, bias), jax.grad(other, (0, 1))(x, bias), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    many = jax.vmap(lambda x: op(x, None, bias[0]))(x)
    np.testing.assert_allclose(many, theirs(x + bias), rtol=1e-5, atol=1e-6)


def test_a_bias_that_does_not_fit_is_an_error() -> None:
    x = np.ones((2, 3, 4))
    with pytest.raises(ValueError, match=r"softmax: bias: .*write bias\[None\]"):
        bc.softmax(x, None, np.ones((3, 4)))
    with pytest.raises(ValueError, match="softmax: bias: expected 4 or 1 along axis 2"):
        bc.softmax(x, None, np.ones((1, 1, 3)))
    with pytest.raises(TypeError, match="softmax: bias"):
        bc.softmax(x, None, np.ones((1, 1, 4), np.float32))
    with pytest.raises(TypeError, match="softmax: mask: expected bool"):
        bc.softmax(x, np.ones((1, 1, 4)))


FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("other", [*FLOATS, torch.float64], ids=str)
def test_a_bias_has_the_dtypes_of_a_mask_of_attention(
    dtype: torch.dtype, other: torch.dtype
) -> None:
    """Those that torch's `scaled_dot_product_attention` takes beside queries of a dtype."""
    q, bias = scores(dtype), bias_of((1, 3, 5, 5), other)
    attend = torch.nn.functional.scaled_dot_product_attention
    if other not in (dtype, torch.float32):
        with pytest.raises(RuntimeError, match="Expected attn_mask dtype"):
            attend(q, q, q, bias)
        with pytest.raises(bc.ArgumentTypeError, match="softmax: bias: expected"):
            bc.softmax(scores(dtype), None, bias_of((1, 3, 1, 7), other))
        return
    want = attend(q.double(), q.double(), q.double(), bias.double())
    weights = bc.softmax(q @ q.mT, None, bias, scale=7**-0.5, dtype="float32").double()
    torch.testing.assert_close(weights @ q.double(), want, rtol=2e-2, atol=2e-2)
    assert attend(q, q, q, bias).dtype is bc.softmax(q @ q.mT, None, bias).dtype is dtype
