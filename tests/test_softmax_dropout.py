"""Softmax with dropout: one op behind the other, on every library and through autograd."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import baracuda as bc

HOW: dict[str, Any] = {"p": 0.4, "seed": 2**64 - 5, "offset": 2**33 + 2}


def scores(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("p", [0.0, 0.4, 1.0])
def test_it_is_the_one_op_behind_the_other(p: float) -> None:
    x, how = scores(2, 3, 5, 16), {**HOW, "p": p}
    mask = np.arange(5 * 16).reshape(1, 1, 5, 16) % 7 > 0
    bias = scores(1, 3, 1, 16)
    own = {"scale": 0.5, "causal": True}
    for to in (np.asarray, torch.from_numpy, jnp.asarray):
        given = [to(a) for a in (x, mask, bias)]
        want = bc.dropout(bc.softmax(*given, **own), **how)
        got = bc.softmax_dropout(*given, **own, **how)
        np.testing.assert_array_equal(np.asarray(got) == 0, np.asarray(want) == 0)
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-6, atol=1e-30)


def test_a_dropped_share_has_a_gradient() -> None:
    x = torch.from_numpy(scores(3, 4, 9)).double().requires_grad_()
    bias = torch.from_numpy(scores(1, 4, 9)).double().requires_grad_()
    dy = torch.from_numpy(scores(3, 4, 9)[::-1].copy()).double()
    stays = bc.dropout(torch.ones_like(x), **HOW)
    want = torch.autograd.grad(((x + bias).softmax(-1) * stays * dy).sum(), (x, bias))
    explicit = bc.softmax_dropout_backward(dy, x.detach(), None, bias.detach(), **HOW)
    torch.testing.assert_close(explicit, want[0])
    assert ((stays == 0) & (explicit != 0)).any()
    y = bc.softmax_dropout(x, None, bias, **HOW)
    for got, right in zip(torch.autograd.grad((y * dy).sum(), (x, bias)), want, strict=True):
        torch.testing.assert_close(got, right)


def test_jax_differentiates_at_traced_seeds() -> None:
    x, dy = jnp.asarray(scores(3, 16)), jnp.asarray(scores(3, 16)[::-1])

    def pulled(x: Any, offset: Any) -> Any:
        return (bc.softmax_dropout(x, **{**HOW, "offset": offset}) * dy).sum()

    words = jnp.asarray([HOW["offset"] & 0xFFFFFFFF, HOW["offset"] >> 32], jnp.uint32)
    want = bc.softmax_dropout_backward(dy, x, **HOW)
    for got in (jax.grad(pulled)(x, HOW["offset"]), jax.jit(jax.grad(pulled))(x, words)):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_rows_of_a_part_have_its_mask() -> None:
    x = scores(4, 6, 9)
    want = bc.softmax_dropout(x, **HOW)[1:3, 2:5]
    got = bc.softmax_dropout(x[1:3, 2:5], part=(4, 6, 9, 1, 2, 0), **HOW)
    np.testing.assert_array_equal(got, want)
    with pytest.raises(ValueError, match="softmax_dropout: part: expected rows that are whole"):
        bc.softmax_dropout(x[..., :5], part=(4, 6, 9, 0, 0, 0), **HOW)


def test_dropped_rows_of_nothing_or_nan_are_zeros_where_they_are_dropped() -> None:
    x = scores(4, 16)
    x[0], x[1, 3] = -np.inf, np.nan
    y = bc.softmax_dropout(x, **HOW)
    stays = bc.dropout(np.ones_like(x), **HOW) != 0
    assert np.all(y[0] == 0)
    np.testing.assert_array_equal(np.isnan(y[1]), stays[1])
    dropped = np.where(stays, 1.0, np.nan).astype(np.float32)
    assert np.isfinite(bc.softmax_dropout_backward(dropped, scores(4, 16), **HOW)).all()
