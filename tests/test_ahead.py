"""Losses whose gradients are made forward: three products, not four, and the same derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

import baracuda as bc
from baracuda.libraries.torch import ADAPTER


def drawn(*watched: bool, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    """Hidden states and weights, watched or not, and targets of which one is ignored."""
    torch.manual_seed(1)
    hidden, weight = (torch.randn(n, 5, dtype=dtype) for n in (7, 11))
    target = torch.randint(0, 11, (7,))
    target[2] = -100
    for x, wanted in zip((hidden, weight), watched, strict=True):
        x.requires_grad_(wanted)
    return hidden, weight, target


def plain(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(hidden @ weight.T, target)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The matrix products that were taken."""
    taken: list[str] = []
    for name in ("product", "add_product"):
        own: Callable[..., Any] = getattr(type(ADAPTER), name)

        def counted(*arrays: Any, own: Callable[..., Any] = own, name: str = name) -> Any:
            taken.append(name)
            return own(*arrays)

        monkeypatch.setattr(type(ADAPTER), name, counted)
    return taken


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("factor", [1.0, -2.5])
def test_gradients_are_scaled_backward_and_may_be_asked_for_twice(
    chunk: int | None, factor: float
) -> None:
    hidden, weight, target = drawn(True, True)
    loss = bc.linear_cross_entropy(hidden, weight, target, chunk=chunk) * factor
    want = torch.autograd.grad(plain(hidden, weight, target) * factor, (hidden, weight))
    for again in (True, False):
        got = torch.autograd.grad(loss, (hidden, weight), retain_graph=again)
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y)


def test_there_are_three_products(products: list[str]) -> None:
    hidden, weight, target = drawn(True, True)
    loss = bc.linear_cross_entropy(hidden, weight, target)
    assert len(products) == 3
    loss.backward()
    assert len(products) == 3


@pytest.mark.parametrize(
    ("watched", "dtype", "reduction"),
    [
        ((False, False), torch.float64, "mean"),
        ((True, False), torch.float64, "mean"),
        ((False, True), torch.float64, "mean"),
        ((True, True), torch.float16, "mean"),
        ((True, True), torch.float64, "none"),
    ],
)
def test_nothing_is_made_that_may_not_be_asked_for(
    products: list[str], watched: tuple[bool, bool], dtype: torch.dtype, reduction: Any
) -> None:
    bc.linear_cross_entropy(*drawn(*watched, dtype=dtype), reduction=reduction)
    assert len(products) == 1


def test_nothing_is_made_where_saved_tensors_are_taken_away(products: list[str]) -> None:
    hidden, weight, target = drawn(True, True)
    with torch.no_grad():
        bc.linear_cross_entropy(hidden, weight, target)
    assert len(products) == 1
    products.clear()
    loss = checkpoint(bc.linear_cross_entropy, hidden, weight, target, use_reentrant=False)
    assert len(products) == 1
    loss.backward()
    want = torch.autograd.grad(plain(hidden, weight, target), (hidden, weight))
    for x, y in zip((hidden, weight), want, strict=True):
        torch.testing.assert_close(x.grad, y)


def test_second_derivatives_are_those_of_the_loss() -> None:
    hidden, weight, target = drawn(True, True)

    def loss(*some: torch.Tensor) -> torch.Tensor:
        return bc.linear_cross_entropy(*some, target)

    # Without a tolerance: what is asked for again has the same bits.
    assert torch.autograd.gradcheck(loss, (hidden, weight))
    assert torch.autograd.gradgradcheck(loss, (hidden, weight), nondet_tol=1e-12)


def test_a_compiled_program_has_the_op_that_is_ahead() -> None:
    hidden, weight, target = drawn(True, True)
    graphs: list[list[str]] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append([str(n.target) for n in graph.graph.nodes])
        return torch._functorch.aot_autograd.make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep)

    def loss(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return bc.linear_cross_entropy(hidden * 1, weight, target) * 2

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    got = torch.autograd.grad(compiled(hidden, weight), (hidden, weight))
    want = torch.autograd.grad(loss(hidden, weight), (hidden, weight))
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y)
    name = "baracuda.linear_cross_entropy"
    forward, backward = graphs
    assert f"{name}_with_gradient.default" in forward
    assert not any("linear" in word for word in backward)
    graphs.clear()
    compiled(hidden.detach(), weight.detach())
    assert f"{name}.default" in graphs[0]


def test_jax_takes_three_products_and_has_all_derivatives() -> None:
    rng = np.random.default_rng(2)
    hidden, weight = (jnp.asarray(rng.normal(size=(n, 5)), jnp.float32) for n in (7, 11))
    target = jnp.asarray(rng.integers(0, 11, 7))

    def loss(*some: Any) -> Any:
        return 2.5 * bc.linear_cross_entropy(*some, target)

    def formula(hidden: Any, weight: Any) -> Any:
        logits = hidden @ weight.T
        hit = jnp.take_along_axis(logits, target[:, None], 1)[:, 0]
        return 2.5 * jnp.mean(jax.nn.logsumexp(logits, -1) - hit)

    at, along = (hidden, weight), (hidden * 0.3, weight * 0.2)
    program = str(jax.make_jaxpr(jax.grad(loss, (0, 1)))(*at))
    assert program.count("dot_general") == 3
    for transform in (
        lambda f: jax.jit(jax.grad(f, (0, 1)))(*at),
        lambda f: jax.jit(lambda *some: jax.jvp(f, some, along))(*at),
        lambda f: jax.jit(jax.hessian(f))(*at),
        lambda f: jax.jit(jax.grad(jax.checkpoint(f)))(*at),
        lambda f: jax.jit(jax.vmap(jax.grad(f), (0, None)))(jnp.stack([hidden, -hidden]), weight),
    ):
        got, want = transform(loss), transform(formula)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-5), got, want)
