"""Losses whose gradients are made forward: three products, not four, and the same derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import lanes
import numpy as np
import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.utils import fresh_cache
from torch.utils.checkpoint import checkpoint

import baracuda as bc
from baracuda.frameworks.torch import ahead
from baracuda.libraries.torch import ADAPTER


def drawn(*watched: bool, dtype: torch.dtype = torch.float64) -> tuple[Any, ...]:
    """Hidden states, weights, targets of which one is ignored, and a bias if three are watched."""
    torch.manual_seed(1)
    hidden, weight, bias = (torch.randn(*n, dtype=dtype) for n in ((7, 5), (11, 5), (11,)))
    target = torch.randint(0, 11, (7,))
    target[2] = -100
    given = (hidden, weight, target, bias)[: len(watched) + 1]
    for x, wanted in zip(floats(given), watched, strict=True):
        x.requires_grad_(wanted)
    return given


def floats(given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [x for x in given if x.is_floating_point()]


def plain(
    hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, *bias: torch.Tensor
) -> torch.Tensor:
    logits = torch.nn.functional.linear(hidden, weight, *bias)
    return torch.nn.functional.cross_entropy(logits, target)


# Whether the layer has a bias.
BIASED = pytest.mark.parametrize("all_watched", [(True,) * 2, (True,) * 3], ids=["plain", "bias"])


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


@BIASED
@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("factor", [1.0, -2.5])
def test_gradients_are_scaled_backward_and_may_be_asked_for_twice(
    chunk: int | None, factor: float, all_watched: tuple[bool, ...]
) -> None:
    given = drawn(*all_watched)
    loss = bc.linear_cross_entropy(*given, chunk=chunk) * factor
    want = torch.autograd.grad(plain(*given) * factor, floats(given))
    for again in (True, False):
        got = torch.autograd.grad(loss, floats(given), retain_graph=again)
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y)


@pytest.mark.parametrize(("factor", "passes"), [(1.0, 0), (-2.5, 2)])
def test_a_cotangent_of_1_costs_no_pass(factor: float, passes: int) -> None:
    given = drawn(True, True)
    loss = bc.linear_cross_entropy(*given)
    cotangent = torch.tensor(factor, dtype=loss.dtype)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        got = torch.autograd.grad(loss, floats(given), cotangent)
    assert sum("aten::mul" in event.name for event in seen.events()) == passes
    for x, y in zip(got, torch.autograd.grad(plain(*given) * factor, floats(given)), strict=True):
        torch.testing.assert_close(x, y)


@BIASED
@pytest.mark.parametrize("metrics", [False, True])
def test_there_are_three_products(
    products: list[str], all_watched: tuple[bool, ...], metrics: bool
) -> None:
    found = bc.linear_cross_entropy(*drawn(*all_watched), metrics=metrics)
    loss = found[0] if metrics else found
    assert len(products) == 3
    loss.backward()
    assert len(products) == 3


@pytest.mark.parametrize(
    ("watched", "dtype", "reduction"),
    [
        ((False, False), torch.float64, "mean"),
        ((True, False), torch.float64, "mean"),
        ((False, True), torch.float64, "mean"),
        ((True, True, False), torch.float64, "mean"),
        ((False, False, True), torch.float64, "mean"),
        ((True, True), torch.float16, "mean"),
        ((True, True), torch.float64, "none"),
    ],
)
def test_nothing_is_made_that_may_not_be_asked_for(
    products: list[str], watched: tuple[bool, ...], dtype: torch.dtype, reduction: Any
) -> None:
    given = drawn(*watched, dtype=dtype)
    loss = bc.linear_cross_entropy(*given, reduction=reduction)
    assert len(products) == 1
    if dtype is torch.float64 and any(watched) and reduction == "mean":
        asked = [x for x in given if x.requires_grad]
        want = torch.autograd.grad(plain(*given), asked)
        for x, y in zip(torch.autograd.grad(loss, asked), want, strict=True):
            torch.testing.assert_close(x, y)


def test_no_grad_takes_one_product(products: list[str]) -> None:
    with torch.no_grad():
        bc.linear_cross_entropy(*drawn(True, True))
    assert len(products) == 1


@pytest.mark.parametrize(
    ("how", "forward", "both"),
    [("taken away", 1, 5), ("reentrant", 1, 4), ("in a program", 3, 6), ("of a program", 3, 6)],
)
def test_a_checkpoint_takes_the_products_that_the_docs_say(
    products: list[str], how: str, forward: int, both: int
) -> None:
    """Nothing is made where saved tensors are taken away, if that is to be seen."""
    given = drawn(True, True)
    compiled = partial(torch.compile, fullgraph=True, backend="aot_eager")

    def loss(function: Callable[..., Any], *given: torch.Tensor) -> Any:
        return checkpoint(function, *given, use_reentrant=how == "reentrant")

    function: Callable[..., Any] = bc.linear_cross_entropy
    if how == "of a program":
        function = compiled(bc.linear_cross_entropy)
    elif how == "in a program":
        loss = compiled(loss)
    found = loss(function, *given)
    assert len(products) == forward
    found.backward()
    assert len(products) == both
    want = torch.autograd.grad(plain(*given), floats(given))
    for x, y in zip(floats(given), want, strict=True):
        torch.testing.assert_close(x.grad, y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_sum_in_the_dtype_of_the_weight_is_rounded_after_each_chunk(dtype: torch.dtype) -> None:
    """By half a unit in the last place of the largest sum each time, and never for one chunk."""
    generator = torch.Generator().manual_seed(4)
    hidden, weight = (
        torch.randn(size, generator=generator).to(dtype) for size in ((96, 16), (24, 16))
    )
    target = torch.randint(0, 24, (96,), generator=generator)
    leaf = weight.double().requires_grad_()
    (exact,) = torch.autograd.grad(plain(hidden.double(), leaf, target), leaf)
    eps, largest, errors = torch.finfo(dtype).eps, float(exact.abs().max()), []
    for how in ("accumulate", "weight"):
        # Slopes of logits are rounded in both ways.
        call = partial(bc.linear_cross_entropy_with_gradient, hidden, weight, target)
        found = call(chunk=4, grad_dtype=how)[2].double()
        errors.append(float((found - exact).abs().max()) / (eps * largest))
        leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
        loss = bc.linear_cross_entropy(*leaves, target, chunk=4, grad_dtype=how)
        (again,) = torch.autograd.grad(loss, leaves[1])
        torch.testing.assert_close(again.double(), found, rtol=2 * eps, atol=eps * largest)
        whole = call(chunk=96, grad_dtype=how)[2]
        torch.testing.assert_close(whole.double(), exact, rtol=4 * eps, atol=4 * eps * largest)
    assert errors[1] <= errors[0] + 24 / 2
    if dtype is torch.bfloat16:
        assert errors[0] < 1 < errors[1]


@BIASED
def test_second_derivatives_are_those_of_the_loss(all_watched: tuple[bool, ...]) -> None:
    given = drawn(*all_watched)

    def loss(hidden: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        return bc.linear_cross_entropy(hidden, weight, given[2], *bias)

    # Without a tolerance: what is asked for again has the same bits.
    assert torch.autograd.gradcheck(loss, floats(given))
    assert torch.autograd.gradgradcheck(loss, floats(given), nondet_tol=1e-12)


@BIASED
def test_transforms_differentiate_along_batches(all_watched: tuple[bool, ...]) -> None:
    """Of losses and of gradients: each array may have batches."""
    given = tuple(x.detach() for x in drawn(*all_watched))
    along = [i for i, x in enumerate(given) if x.is_floating_point()]
    for batched in along:
        some = [torch.stack([x, -x]) if i == batched else x for i, x in enumerate(given)]
        dims = tuple([0 if i == batched else None for i in range(len(given))])
        pair = [torch.func.grad(f, tuple(along)) for f in (bc.linear_cross_entropy, plain)]
        got, want = (torch.func.vmap(f, dims)(*some) for f in pair)
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y)


@BIASED
def test_a_compiled_program_has_the_op_that_is_ahead(all_watched: tuple[bool, ...]) -> None:
    hidden, weight, target, *bias = drawn(*all_watched)
    given = hidden, weight, *bias
    graphs: list[list[str]] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append([str(n.target) for n in graph.graph.nodes])
        return torch._functorch.aot_autograd.make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep)

    def loss(hidden: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        return bc.linear_cross_entropy(hidden * 1, weight, target, *(bias or (None,))) * 2

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    got = torch.autograd.grad(compiled(*given), given)
    want = torch.autograd.grad(loss(*given), given)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y)
    name = "baracuda.linear_cross_entropy"
    forward, backward = graphs
    assert f"{name}_with_gradient.{'bias' if bias else 'default'}" in forward
    assert not any("linear" in word for word in backward)
    graphs.clear()
    compiled(*[x.detach() for x in given])
    assert f"{name}.default" in graphs[0]


@pytest.mark.slow("Inductor compiles C++")
@pytest.mark.parametrize(
    "dtype",
    lanes.cases([torch.float32, torch.bfloat16], lambda dtype: dtype is torch.float32),
    ids=str,
)
def test_a_compiled_program_scales_in_place_what_it_returns(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an operator that leaves it alone for a factor of 1; the rest costs no pass of its own."""
    hidden, weight, target = drawn(True, True, dtype=dtype)
    written: list[tuple[tuple[int, ...], bool]] = []

    def scale(made: list[torch.Tensor], factor: torch.Tensor) -> None:
        before = [x._version for x in made]
        own(made, factor)
        written.extend((*x.shape, x._version > n) for x, n in zip(made, before, strict=True))

    own = ahead.scale
    monkeypatch.setattr(ahead, "scale", scale)

    def loss(hidden: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return bc.linear_cross_entropy(hidden.sin(), weight, target) * factor

    compiled = torch.compile(loss, fullgraph=True)
    for factor in (1.0, -2.5, 1.001):
        by = torch.tensor(factor)
        # Else Inductor may find code of an earlier run, which other rules have made.
        with fresh_cache():
            got = torch.autograd.grad(compiled(hidden, weight, by), (hidden, weight))
        # The gradient along the weight; that of the sine is made of the one along its result.
        assert written == [(11, 5, factor != 1)]
        written.clear()
        want = torch.autograd.grad(loss(hidden, weight, by), (hidden, weight))
        for x, y in zip(got, want, strict=True):
            torch.testing.assert_close(x, y)
        written.clear()


def test_gradients_of_a_program_are_scaled_by_numbers_that_16_bits_do_not_hold() -> None:
    made, factor = torch.full((2, 3), 3.0, dtype=torch.bfloat16), torch.tensor(1.003)
    ops, want = torch.ops.baracuda, (made.float() * factor).bfloat16()
    assert not torch.equal(want, made * factor.bfloat16())
    assert torch.equal(ops.scaled_gradient(made, factor), want)
    torch.library.opcheck(ops.scaled_gradient.default, (made, factor))
    torch.library.opcheck(ops.scale_gradient_.default, (made, factor))
    ops.scale_gradient_(made, factor)
    assert torch.equal(made, want)


@BIASED
def test_jax_takes_three_products_and_has_all_derivatives(all_watched: tuple[bool, ...]) -> None:
    rng = np.random.default_rng(2)
    shapes = ((7, 5), (11, 5), (11,))[: len(all_watched)]
    at = tuple(jnp.asarray(rng.normal(size=n), jnp.float32) for n in shapes)
    target, places = jnp.asarray(rng.integers(0, 11, 7)), tuple(range(len(at)))

    def loss(hidden: Any, weight: Any, *bias: Any) -> Any:
        return 2.5 * bc.linear_cross_entropy(hidden, weight, target, *bias)

    def formula(hidden: Any, weight: Any, *bias: Any) -> Any:
        logits = hidden @ weight.T + sum(bias)
        hit = jnp.take_along_axis(logits, target[:, None], 1)[:, 0]
        return 2.5 * jnp.mean(jax.nn.logsumexp(logits, -1) - hit)

    along = tuple(x * (0.3 - 0.1 * i) for i, x in enumerate(at))
    alone = (None,) * (len(at) - 1)
    for differentiated, count in (
        (jax.grad(loss, places), 3),
        (jax.grad(jax.checkpoint(loss), places), 6),
        (lambda *some: jax.jvp(loss, some, along), 3),
        (lambda *some: jax.jvp(formula, some, along), 3),
    ):
        assert str(jax.make_jaxpr(differentiated)(*at)).count("dot_general") == count
    for transform in (
        lambda f: jax.jit(jax.grad(f, places))(*at),
        lambda f: jax.jit(lambda *some: jax.jvp(f, some, along))(*at),
        lambda f: jax.jit(jax.hessian(f, places))(*at),
        lambda f: jax.jit(jax.grad(jax.checkpoint(f)))(*at),
        lambda f: jax.jit(jax.vmap(jax.grad(f, places), (0, *alone)))(
            jnp.stack([at[0], -at[0]]), *at[1:]
        ),
        lambda f: jax.jit(jax.vmap(jax.grad(f), (*alone, 0)))(
            *at[:-1], jnp.stack([at[-1], -at[-1]])
        ),
    ):
        got, want = transform(loss), transform(formula)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-4, atol=1e-5), got, want)
