"""Divergences of logits from k classes of a teacher, against torch and formulas in float64."""

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
    bc.topk_kl_div_with_logits,
    bc.topk_kl_div_with_logits_backward,
    bc.topk_kl_div_with_logits_with_gradient,
)
MAKE = {"numpy": lambda x: x.numpy(), "torch": torch.asarray}


def drawn(*batch: int, v: int = 9, k: int = 3) -> list[torch.Tensor]:
    """Logits, classes of which some repeat in a row, their probabilities, weights of rows."""
    torch.manual_seed(6)
    logits, ids = 3 * torch.randn(*batch, v).double(), torch.randint(0, v, (*batch, k))
    probs, rows = torch.rand(*batch, k).double() / k, torch.rand(batch).double() + 0.5
    ids.view(-1, k)[1], probs.view(-1, k)[0, 1], rows.view(-1)[2] = 2, 0, 0
    return [logits, ids, probs, rows]


def plain(
    logits: torch.Tensor, ids: torch.Tensor, probs: torch.Tensor, rows: torch.Tensor | None,
    temperature: float = 1.0, reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    """By a sparse teacher that is made dense, of all classes."""
    log = torch.log_softmax(logits / temperature, -1)
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


@pytest.mark.parametrize(
    ("reduction", "weighted"), list(product(("mean", "sum", "none"), (False, True)))
)
def test_values_and_gradients_are_those_of_a_dense_teacher(reduction: str, weighted: bool) -> None:
    logits, *taught, rows = drawn(2, 5)
    beside = (*taught, rows) if weighted else taught
    for temperature in (1.0, 0.01, 100.0):
        leaf = logits.clone().requires_grad_()
        want = plain(leaf, *taught, rows if weighted else None, temperature, reduction)
        g = torch.randn(want.shape).double()
        (grad,) = torch.autograd.grad(want, leaf, g, retain_graph=True)
        (unit,) = torch.autograd.grad(want.sum(), leaf)
        forward, backward, both = (
            partial(f, temperature=temperature, reduction=reduction) for f in OPS
        )
        for make in MAKE.values():
            given = [make(x) for x in (logits, *beside)]
            close(forward(*given), want, 1e-10)
            close(backward(make(g), *given), grad, 1e-9, 1e-10)
            loss, one = both(*given)
            close(loss, want, 1e-10)
            close(one, unit, 1e-9, 1e-10)
        own = logits.clone().requires_grad_()
        close(torch.autograd.grad(forward(own, *beside), own, g)[0], grad, 1e-9, 1e-10)


def test_all_classes_of_a_teacher_are_the_forward_divergence() -> None:
    logits, *_ = drawn(6)
    taught = torch.randn(6, 9).double()
    ids, probs = torch.arange(9).expand(6, 9).flip(-1), torch.softmax(taught, -1).flip(-1)
    for one, other in zip(
        bc.topk_kl_div_with_logits_with_gradient(logits, ids, probs),
        bc.kl_div_with_logits_with_gradient(logits, taught), strict=True,
    ):  # fmt: skip
        close(one, other)


def test_derivatives_along_all_that_floats_are_those_of_the_formula() -> None:
    logits, ids, probs, rows = drawn(4)
    found = []
    for function in (
        lambda x, p, r, t: bc.topk_kl_div_with_logits(x, ids, p, r, temperature=t),
        lambda x, p, r, t: plain(x, ids, p, r, t),
    ):
        given = (logits, probs + 0.1, rows + 0.1, torch.tensor(1.7).double())
        leaves = [x.clone().requires_grad_() for x in given]
        first = torch.autograd.grad(function(*leaves), leaves, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves)
        found.append((*first, *second))
    for one, other in zip(*found, strict=True):
        close(one.detach(), other, 1e-9, 1e-10)


def test_gradients_in_jax_and_in_a_graph_are_those_of_torch() -> None:
    logits, ids, probs, rows = drawn(6)
    leaf = logits.clone().requires_grad_()
    want = plain(leaf, ids, probs, rows)
    (grad,) = torch.autograd.grad(want, leaf)
    own = logits.clone().requires_grad_()
    graph = torch.compile(bc.topk_kl_div_with_logits, fullgraph=True, backend="aot_eager")
    close(torch.autograd.grad(graph(own, ids, probs, rows), own)[0], grad)
    with jax.enable_x64(True):
        given = [jnp.asarray(x.numpy()) for x in (logits, ids, probs, rows)]
        loss, found = jax.jit(jax.value_and_grad(bc.topk_kl_div_with_logits))(*given)
        close(loss, want)
        close(found, grad)


@pytest.mark.parametrize("library", MAKE)
def test_classes_out_of_range_cost_nothing_or_are_an_error(library: str) -> None:
    logits, ids, probs, _ = drawn(5)
    some = ids.clone()
    some[0, 2], some[1, 0], some[3] = 9, -1, -7
    kept = torch.where((some < 0) | (some > 8), 0, probs)
    given = [MAKE[library](x) for x in (logits, some, probs)]
    for one, other in zip(
        bc.topk_kl_div_with_logits_with_gradient(*given, mode="drop"),
        bc.topk_kl_div_with_logits_with_gradient(logits, ids, kept), strict=True,
    ):  # fmt: skip
        close(one, other)
    assert bc.topk_kl_div_with_logits(*given, mode="drop", reduction="none")[3] == 0
    with pytest.raises(IndexError, match=r"topk_kl_div_with_logits: teacher_ids.* 9 .*\(0, 2\)"):
        bc.topk_kl_div_with_logits(*given)


@pytest.mark.parametrize("library", MAKE)
def test_a_row_of_weight_0_may_hold_nan(library: str) -> None:
    logits, *taught, rows = drawn(6)
    there = rows != 0
    assert not there.all()
    bad = logits.clone()
    bad[~there] = math.nan
    given = [MAKE[library](x) for x in (bad, *taught, rows)]
    assert bc.topk_kl_div_with_logits(*given, reduction="none")[MAKE[library](~there)] == 0
    one = MAKE[library](torch.tensor(1.0).double())
    slopes = np.asarray(bc.topk_kl_div_with_logits_backward(one, *given))
    exact = bc.topk_kl_div_with_logits_with_gradient(
        *[x[there] for x in (logits, *taught, rows)]
    )  # fmt: skip
    close(bc.topk_kl_div_with_logits(*given), exact[0])
    close(slopes[there.numpy()], exact[1])
    assert not slopes[~there.numpy()].any()
    if library == "torch":
        leaf = given[0].requires_grad_()
        loss = bc.topk_kl_div_with_logits(leaf, *given[1:], backend="array_api")
        close(torch.autograd.grad(loss, leaf)[0], slopes)


def test_rows_of_nothing_have_the_losses_of_their_definition() -> None:
    logits, ids, probs, _ = drawn(4)
    loss, slopes = bc.topk_kl_div_with_logits_with_gradient(logits, ids[:, :0], probs[:, :0])
    assert loss == 0
    assert not slopes.any()
    assert math.isnan(bc.topk_kl_div_with_logits(logits[:0], ids[:0], probs[:0]))
    assert bc.topk_kl_div_with_logits(logits[:, :0], ids, probs, mode="drop") == 0
    ruled_out = torch.tensor([[0.0, -math.inf]]), torch.tensor([[1]])
    assert bc.topk_kl_div_with_logits(*ruled_out, torch.tensor([[0.5]])) == math.inf
    assert bc.topk_kl_div_with_logits(*ruled_out, torch.tensor([[0.0]])) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_have_float32_losses_and_slopes_that_are_rounded_once(dtype: torch.dtype) -> None:
    """Of a student near its teacher: the difference of two probabilities that are all but equal."""
    torch.manual_seed(1)
    logits = (2 * torch.randn(16, 40)).to(dtype)
    taught, ids = torch.softmax(logits.double() + 0.01 * torch.randn(16, 40), -1).topk(8)
    leaf = logits.double().requires_grad_()
    for probs in (taught.float(), taught.to(dtype)):
        want = plain(leaf, ids, probs.double(), None, 1.0, "sum")
        loss, slopes = bc.topk_kl_div_with_logits_with_gradient(
            logits, ids.int(), probs, reduction="sum"
        )
        assert (loss.dtype, slopes.dtype) == (torch.float32, dtype)
        close(loss, want, 1e-5, 1e-6)
        (exact,) = torch.autograd.grad(want, leaf)
        eps = torch.finfo(dtype).eps
        close(slopes.double(), exact, 0.51 * eps, 2e-7 if dtype is torch.bfloat16 else 2.0**-24)


def test_the_gradient_may_take_the_place_of_the_logits() -> None:
    logits, *taught, rows = drawn(6)
    want = bc.topk_kl_div_with_logits_with_gradient(logits, *taught, rows)
    place, loss = logits.clone(), torch.empty((), dtype=torch.float64)
    plan = bc.topk_kl_div_with_logits_with_gradient.plan(place, *taught, rows)
    assert plan(place, *taught, rows, out=(loss, place))[1] is place
    close(loss, want[0])
    close(place, want[1])
