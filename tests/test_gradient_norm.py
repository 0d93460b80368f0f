"""The joint norm of gradients and clipping by it, against torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import baracuda as bc

RNG = np.random.default_rng(5)


def gradients(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.tensor(RNG.standard_normal(s)).to(dtype) for s in ((5, 7), (), (300,), (0, 2))]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_norm_of_a_list_is_that_of_torch(library: str) -> None:
    grads = gradients()
    want = torch.nn.utils.get_total_norm(grads)
    given: list[Any] = [x.numpy() for x in grads] if library == "numpy" else grads
    norm = bc.clip_scale(bc.sum_of_squares(given), max_norm=1.0)[0]
    torch.testing.assert_close(torch.as_tensor(norm), want, rtol=1e-13, atol=0)


@pytest.mark.parametrize("max_norm", [0.5, 1e3])
@pytest.mark.parametrize("loss_scale", [1.0, 1024.0])
def test_a_step_by_the_scale_is_that_of_clipped_gradients(
    max_norm: float, loss_scale: float
) -> None:
    params, grads = gradients(), gradients()
    theirs = [x.clone().requires_grad_() for x in params]
    for p, g in zip(theirs, grads, strict=True):
        p.grad = g.clone()
    total = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    torch.optim.SGD(theirs, lr=0.1).step()
    scaled = [x * loss_scale for x in grads]
    squares = bc.sum_of_squares(scaled)
    norm, scale, found_inf = bc.clip_scale(squares, max_norm=max_norm, grad_scale=loss_scale)
    moved = bc.sgd(params, scaled, lr=0.1, grad_scale=scale, found_inf=found_inf)
    torch.testing.assert_close(norm, total, rtol=1e-13, atol=0)
    for x, y in zip(moved, theirs, strict=True):
        torch.testing.assert_close(x, y.detach(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_step_is_skipped_where_a_gradient_is_no_finite_number(bad: float) -> None:
    params, grads = gradients(), gradients()
    grads[2][7] = bad
    _, scale, found_inf = bc.clip_scale(bc.sum_of_squares(grads), max_norm=1.0)
    assert found_inf == 1
    moved = bc.sgd(params, grads, lr=0.1, grad_scale=scale, found_inf=found_inf)
    for x, y in zip(moved, params, strict=True):
        assert torch.equal(x, y)
    assert bc.clip_scale(bc.sum_of_squares(gradients()), max_norm=1.0)[2] == 0


def test_the_sum_of_a_list_is_differentiated() -> None:
    x, y = (g.requires_grad_() for g in gradients()[:2])
    dx, dy = torch.autograd.grad(bc.sum_of_squares([x, y]), [x, y])
    torch.testing.assert_close(dx, 2 * x.detach())
    torch.testing.assert_close(dy, 2 * y.detach())


def test_lists_of_other_dtypes_are_summed_in_the_widest() -> None:
    halves, doubles = gradients(torch.bfloat16), gradients()
    got = bc.sum_of_squares([*halves, *doubles])
    want = sum((x.double() ** 2).sum() for x in [*halves, *doubles])
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, want, rtol=1e-6, atol=0)
    assert bc.sum_of_squares(halves).dtype == torch.float32


def test_what_is_no_list_of_arrays_is_refused() -> None:
    with pytest.raises(ValueError, match="sum_of_squares: x: expected at least one array, got 0"):
        bc.sum_of_squares([])
    grads = gradients()
    with pytest.raises(ValueError, match="sum_of_squares: out: expected None"):
        bc.sum_of_squares.plan(grads)(grads, out=torch.ones(()))
