"""Divergences from k classes of a teacher, against torch and plain formulas in float64."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import baracuda as bc

OPS: tuple[Any, ...] = (
    bc.linear_topk_kl_div,
    bc.linear_topk_kl_div_backward,
    bc.linear_topk_kl_div_with_gradient,
)


def drawn(*batch: int, d: int = 4, v: int = 9, k: int = 3) -> list[torch.Tensor]:
    """Hidden states, a layer, classes of which some repeat in a row, probabilities, weights."""
    torch.manual_seed(5)
    hidden, weight = torch.randn(*batch, d).double(), torch.randn(v, d).double()
    ids, probs = torch.randint(0, v, (*batch, k)), torch.rand(*batch, k).double() / k
    ids.view(-1, k)[1], probs.view(-1, k)[0, 1] = 2, 0
    rows = torch.rand(batch).double() + 0.5
    rows.view(-1)[2] = 0
    return [hidden, weight, ids, probs, rows]


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, probs: torch.Tensor,
    rows: torch.Tensor | None, temperature: float, reduction: str,
) -> torch.Tensor:  # fmt: skip
    """By a sparse teacher that is made dense, of all classes."""
    log = torch.log_softmax(hidden @ weight.T / temperature, -1)
    dense = torch.zeros_like(log).scatter_add(-1, ids, probs)
    each = torch.xlogy(probs, probs).sum(-1) - (dense * log).sum(-1)
    number: Any = each.numel()
    if rows is not None:
        each, number = each * rows, rows.sum()
    return each if reduction == "none" else each.sum() / (number if reduction == "mean" else 1)


def close(got: Any, want: Any, rtol: float = 1e-11, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(
        np.asarray(got), np.asarray(torch.as_tensor(want).detach()), rtol=rtol, atol=atol
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_values_and_gradients_are_those_of_a_dense_teacher(reduction: str, weighted: bool) -> None:
    hidden, weight, ids, probs, rows = drawn(2, 5)
    leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
    beside = (ids, probs, rows) if weighted else (ids, probs)
    want = plain(*leaves, ids, probs, rows if weighted else None, 1.5, reduction)
    g = torch.randn(want.shape).double()
    grads = torch.autograd.grad(want, leaves, g, retain_graph=True)
    unit = torch.autograd.grad(want.sum(), leaves)
    for chunk, make in product((None, 4), (torch.asarray, lambda x: x.numpy())):
        forward, backward, both = (
            partial(f, temperature=1.5, reduction=reduction, chunk=chunk) for f in OPS
        )
        given = [make(x) for x in (hidden, weight, *beside)]
        close(forward(*given), want)
        for one, other in zip(backward(make(g), *given), grads, strict=True):
            close(one, other)
        loss, *ones = both(*given)
        close(loss, want)
        for one, other in zip(ones, unit, strict=True):
            close(one, other)
        own = [x.clone().requires_grad_() for x in (hidden, weight)]
        loss = forward(*own, *beside)
        for one, other in zip(torch.autograd.grad(loss, own, g), grads, strict=True):
            close(one, other)


def test_all_classes_of_a_teacher_are_the_forward_divergence() -> None:
    hidden, weight, *_ = drawn(6)
    taught, layer = torch.randn(6, 3).double(), torch.randn(9, 3).double()
    probs = torch.softmax(taught @ layer.T, -1)
    ids = torch.arange(9).expand(6, 9).flip(-1)
    got = bc.linear_topk_kl_div_with_gradient(hidden, weight, ids, probs.flip(-1))
    want = bc.linear_kl_div_with_gradient(hidden, weight, taught, layer)
    for one, other in zip(got, want, strict=True):
        close(one, other)


def test_derivatives_along_all_that_floats_are_those_of_the_formula() -> None:
    hidden, weight, ids, probs, rows = drawn(4)
    found = []
    for function in (
        lambda h, w, p, r, t: bc.linear_topk_kl_div(h, w, ids, p, r, temperature=t, chunk=3),
        lambda h, w, p, r, t: plain(h, w, ids, p, r, t, "mean"),
    ):
        given = (hidden, weight, probs + 0.1, rows + 0.1, torch.tensor(1.7).double())
        leaves = [x.clone().requires_grad_() for x in given]
        first = torch.autograd.grad(function(*leaves), leaves, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves)
        found.append((*first, *second))
    for one, other in zip(*found, strict=True):
        close(one.detach(), other, 1e-9, 1e-10)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_classes_out_of_range_cost_nothing_or_are_an_error(library: str) -> None:
    hidden, weight, ids, probs, _ = drawn(5)
    some = ids.clone()
    some[0, 2], some[1, 0], some[3] = 9, -1, -7
    kept = torch.where((some < 0) | (some > 8), 0, probs)
    make = {"numpy": lambda x: x.numpy(), "torch": torch.asarray}[library]
    given = [make(x) for x in (hidden, weight, some, probs)]
    want = bc.linear_topk_kl_div_with_gradient(hidden, weight, ids, kept)
    got = bc.linear_topk_kl_div_with_gradient(*given, mode="drop")
    for one, other in zip(got, want, strict=True):
        close(one, other)
    assert bc.linear_topk_kl_div(*given, mode="drop", reduction="none")[3] == 0
    with pytest.raises(IndexError, match="linear_topk_kl_div: teacher_ids"):
        bc.linear_topk_kl_div(*given)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_row_of_weight_0_may_hold_nan(library: str) -> None:
    hidden, weight, ids, probs, rows = drawn(6)
    there = rows != 0
    assert not there.all()
    bad = hidden.clone()
    bad[~there] = 1e200
    make = {"numpy": lambda x: x.numpy(), "torch": torch.asarray}[library]
    more = weight * 1e200
    for chunk in (None, 4):
        got = bc.linear_topk_kl_div(
            *[make(x) for x in (bad, more, ids, probs, rows)], reduction="none", chunk=chunk
        )
        assert got[~make(there)] == 0
        slopes = bc.linear_topk_kl_div_backward(
            make(torch.tensor(1.0).double()),
            *[make(x) for x in (bad, weight, ids, probs, rows)], chunk=chunk,
        )  # fmt: skip
        exact = bc.linear_topk_kl_div_backward(
            torch.tensor(1.0).double(), *[x[there] for x in (hidden,)], weight,
            *[x[there] for x in (ids, probs, rows)],
        )  # fmt: skip
        close(slopes[0][make(there)], exact[0])
        assert not np.asarray(slopes[0])[~there.numpy()].any()


def test_rows_of_nothing_have_the_losses_of_their_definition() -> None:
    hidden, weight, ids, probs, _ = drawn(4)
    loss, dhidden, dweight = bc.linear_topk_kl_div_with_gradient(
        hidden, weight, ids[:, :0], probs[:, :0]
    )
    assert loss == 0
    assert not dhidden.any()
    assert not dweight.any()
    assert math.isnan(bc.linear_topk_kl_div(hidden[:0], weight, ids[:0], probs[:0]))
    ruled_out = bc.linear_topk_kl_div(
        torch.tensor([[1.0]]), torch.tensor([[0.0], [-math.inf]]), torch.tensor([[1]]),
        torch.tensor([[0.5]]),
    )  # fmt: skip
    assert ruled_out == math.inf


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_student_near_its_teacher_has_slopes_that_are_rounded_once(dtype: torch.dtype) -> None:
    """Of the difference of two probabilities that are all but equal."""
    torch.manual_seed(1)
    eye = torch.eye(16).to(dtype)
    logits = (2 * torch.randn(16, 40)).to(dtype)
    wide = logits.double().requires_grad_()
    taught, ids = torch.softmax(logits.double() + 0.01 * torch.randn(16, 40), -1).topk(8)
    probs = taught.float()
    log = torch.log_softmax(wide, -1).gather(-1, ids)
    loss = (probs.double() * (probs.double().log() - log)).sum()
    (exact,) = torch.autograd.grad(loss, wide)
    got = bc.linear_topk_kl_div_with_gradient(
        eye, logits.T.contiguous(), ids, probs, reduction="sum"
    )
    close(got[0], loss, 1e-5, 1e-6)
    # By rows that are those of the identity, the gradient of the layer is that of the logits.
    eps = torch.finfo(dtype).eps
    close(got[2].T.double(), exact, 2 * eps, 1e-6 if dtype is torch.float32 else 2.0**-23)


def test_gradients_are_made_forward_also_in_a_graph_and_in_jax() -> None:
    hidden, weight, ids, probs, rows = drawn(6)
    leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
    want = plain(*leaves, ids, probs, rows, 1.0, "mean")
    grads = torch.autograd.grad(want, leaves)
    graph = torch.compile(bc.linear_topk_kl_div, fullgraph=True, backend="aot_eager")
    own = [x.clone().requires_grad_() for x in (hidden, weight)]
    for one, other in zip(
        torch.autograd.grad(graph(*own, ids, probs, rows), own), grads, strict=True
    ):
        close(one, other)
    with jax.enable_x64(True):
        given = [jnp.asarray(x.numpy()) for x in (hidden, weight, ids, probs, rows)]
        slopes = jax.value_and_grad(bc.linear_topk_kl_div, (0, 1))
        assert str(jax.make_jaxpr(slopes)(*given)).count("dot_general") == 3
        loss, found = jax.jit(slopes)(*given)
        close(loss, want)
        for one, other in zip(found, grads, strict=True):
            close(one, other)
