"""Log-probabilities of listed rows: those of an index by the caller, and nothing of the others."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import baracuda as bc

N, D, V = 7, 4, 9
AT = torch.tensor([5, 0, 3])


def drawn() -> list[torch.Tensor]:
    """Hidden states that are NaN where nothing is listed, a layer, targets and a bias."""
    torch.manual_seed(2)
    hidden = torch.full((N, D), math.nan).double()
    hidden[AT] = torch.randn(len(AT), D).double()
    return [hidden, torch.randn(V, D).double(), torch.randint(0, V, (N,)), torch.randn(V).double()]


def plain(hidden: Any, weight: Any, target: Any, bias: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Of some rows by torch."""
    log = torch.log_softmax(hidden @ weight.T + bias, -1)
    return log.gather(-1, target[:, None])[:, 0], -(log.exp() * log).sum(-1)


def spread(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(N, *x.shape[1:], dtype=x.dtype).index_add(0, AT, x)


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_listed_rows_are_computed_and_others_are_0(library: str, chunk: int | None) -> None:
    hidden, weight, target, bias = drawn()
    leaves = [x.clone().requires_grad_() for x in (hidden[AT], weight, bias)]
    want = plain(leaves[0], leaves[1], target[AT], leaves[2])
    pulls = torch.randn(N).double(), torch.randn(N).double()
    total = sum((x * pull[AT]).sum() for x, pull in zip(want, pulls, strict=True))
    dhidden, *others = torch.autograd.grad(total, leaves)
    expected = [*map(spread, want), spread(dhidden), *others]

    def make(x: torch.Tensor) -> Any:
        return x.numpy() if library == "numpy" else x

    given = [make(x) for x in (hidden, weight, target, bias, AT)]
    found = [
        *bc.linear_log_prob(*given, entropy=True, chunk=chunk),
        *bc.linear_log_prob_backward(*map(make, pulls), *given, chunk=chunk),
    ]
    both = bc.linear_log_prob_with_gradient(*map(make, pulls), *given, chunk=chunk)
    for got in (found, both):
        for x, y in zip(got, expected, strict=True):
            np.testing.assert_allclose(np.asarray(x), y.detach().numpy(), 1e-12, 1e-13)


def test_a_loss_of_listed_rows_is_differentiated() -> None:
    hidden, weight, target, bias = drawn()
    leaves = [x.requires_grad_() for x in (hidden.nan_to_num(0), weight, bias)]
    got = bc.linear_log_prob(leaves[0], leaves[1], target, leaves[2], AT, chunk=2)
    want = spread(plain(leaves[0][AT], leaves[1], target[AT], leaves[2])[0])
    torch.testing.assert_close(got, want)
    slopes = [torch.autograd.grad(x.square().sum(), leaves, create_graph=True) for x in (got, want)]
    second = [torch.autograd.grad(sum(x.square().sum() for x in s), leaves) for s in slopes]
    for x, y in zip((*slopes[0], *second[0]), (*slopes[1], *second[1]), strict=True):
        torch.testing.assert_close(x, y)


def test_no_product_is_taken_of_others() -> None:
    hidden, weight, target, bias = drawn()
    leaves = hidden.requires_grad_(), weight.requires_grad_()
    with FlopCounterMode(display=False) as counter:
        bc.linear_log_prob(*leaves, target, bias, AT).sum().backward()
    assert counter.get_total_flops() == (1 + 3) * 2 * len(AT) * D * V


def test_a_row_that_is_listed_twice_counts_twice() -> None:
    hidden, weight, target, bias = drawn()
    once, twice = (torch.tensor(x) for x in ([5, 0], [5, 0, 5]))
    dlog_prob = torch.ones(N).double()
    given = dlog_prob, None, hidden, weight, target, bias
    single, both = (bc.linear_log_prob_with_gradient(*given, at) for at in (once, twice))
    factor = torch.ones(N).double()
    factor[5] = 2
    torch.testing.assert_close(both[0], single[0] * factor)
    torch.testing.assert_close(both[1], single[1] * factor[:, None])


@pytest.mark.parametrize("bad", [-1, N])
def test_what_is_no_row_is_an_error_or_left_out(bad: int) -> None:
    given = [x.numpy() for x in drawn()]
    at = np.asarray([5, bad, 0])
    got = bc.linear_log_prob(*given, at, mode="drop")
    np.testing.assert_array_equal(got, bc.linear_log_prob(*given, at[[0, 2]]))
    with pytest.raises(IndexError, match=r"linear_log_prob: rows: expected 0 <= i < 7"):
        bc.linear_log_prob(*given, at)
    assert not bc.linear_log_prob(*given, at[:0]).any()


def test_a_traced_mask_lists_rows_by_a_padded_index() -> None:
    hidden, weight, target, bias = (x.numpy() for x in drawn())
    mask = np.zeros(N, bool)
    mask[AT.numpy()] = True

    @jax.jit
    def loss(hidden: Any, weight: Any, mask: Any) -> Any:
        at = jnp.nonzero(mask, size=5, fill_value=N)[0]
        more = jnp.asarray(target), jnp.asarray(bias), at
        return bc.linear_log_prob(hidden, weight, *more, mode="drop").sum()

    with jax.enable_x64(True):
        got, slopes = jax.value_and_grad(loss, (0, 1))(*map(jnp.asarray, (hidden, weight, mask)))
        ones = np.ones(N)
        want = bc.linear_log_prob_with_gradient(
            ones, None, hidden, weight, target, bias, AT.numpy()
        )
        np.testing.assert_allclose(got, want[0].sum(), 1e-12)
        for x, y in zip(slopes, want[1:3], strict=True):
            np.testing.assert_allclose(x, y, 1e-11, 1e-12)
