"""Weights of elements and of positive targets in binary cross entropies, beside torch and JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import lanes
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch_lists import torchs

import baracuda as bc
import baracuda.nn as bn

PLAIN, LOGITS = "binary_cross_entropy", "binary_cross_entropy_with_logits"
REDUCTIONS = ("mean", "sum", "none")
# Which weights are given, of each op.
GIVEN = [(PLAIN, "w"), (LOGITS, "w"), (LOGITS, "p"), (LOGITS, "wp")]
each_given = pytest.mark.parametrize(("op", "given"), GIVEN)


def close(got: Any, want: Any, most: float = 1e-12) -> None:
    torch.testing.assert_close(got, want, rtol=most, atol=most, equal_nan=True)


def drawn(op: str, given: str, dtype: torch.dtype = torch.float64) -> list[Any]:
    """x, target, and the weights in their places; weights of rows, or of classes."""
    g = torch.Generator().manual_seed(len(op) + len(given))
    x = torch.rand(6, 5, generator=g) if op == PLAIN else torch.randn(6, 5, generator=g)
    target = torch.rand(6, 5, generator=g).to(dtype)
    weight = (torch.rand(6, 1, generator=g) + 0.5).to(dtype).expand(6, 5)
    positive = (3 * torch.rand(5, generator=g) + 0.2).to(dtype).expand(6, 5)
    some = [weight if "w" in given else None, positive if "p" in given else None]
    return [x.to(dtype), target, *some[: 1 if op == PLAIN else 2]]


def formula(op: str, x: Any, target: Any, weight: Any, positive: Any = None) -> Any:
    """Each loss by the definition; torch's own takes no slope along a weight."""
    on, off = (-x.log(), -torch.log1p(-x)) if op == PLAIN else (F.softplus(-x), F.softplus(x))
    each = (1 - target) * off + (target if positive is None else target * positive) * on
    return each if weight is None else each * weight


def of_torch(op: str, arrays: list[Any], **more: Any) -> Any:
    x, target, weight, *positive = arrays
    positive = {"pos_weight": positive[0]} if positive else {}
    return getattr(F, op)(x, target, weight, **positive, **more)


@pytest.mark.slow("imports torch's list of functions, and all that it imports")
def test_torchs_samples() -> None:
    ops, seen = torchs("common_methods_invocations", "op_db"), 0
    for op in (PLAIN, LOGITS):
        theirs = next(o for o in ops if o.name == f"nn.functional.{op}")
        for sample in theirs.sample_inputs("cpu", torch.float64, requires_grad=True):
            x, (target,) = sample.input, sample.args
            named = {n: v.detach() for n, v in sample.kwargs.items() if "weight" in n}
            more = {n: v for n, v in sample.kwargs.items() if n not in named}
            x, target = x.detach().requires_grad_(), target.detach()
            want = getattr(F, op)(x, target, **named, **more)
            names = getattr(bc, op).spec.optional
            spread = [named[n].expand(x.shape) if n in named else None for n in names]
            got = getattr(bc, op)(x, target, *spread, **more)
            close(got, want)
            dout = torch.randn_like(want)
            (have,), (slope,) = (torch.autograd.grad(y, x, dout) for y in (got, want))
            close(have, slope)
            seen += bool(named)
    assert seen >= 15


@each_given
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("backend", ["array_api", "torch"])
def test_losses_and_gradients_are_torchs(op: str, given: str, reduction: str, backend: str) -> None:
    x, target, *weights = drawn(op, given)
    # Right and wrong ones, far out.
    x[0, :2], target[0, :2] = torch.tensor([0.0, 1.0] if op == PLAIN else [-60.0, 60.0]), 1
    own, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    want = of_torch(op, [other, target, *weights], reduction=reduction)
    got = getattr(bc, op)(own, target, *weights, reduction=reduction, backend=backend)
    close(got, want)
    g = torch.randn_like(want)
    (slope,) = torch.autograd.grad(want, other, g)
    # torch's least denominator is 1e-12 in float32, and its slope of a right logit cancels.
    most = 1e-8 if op == PLAIN else 1e-12
    close(torch.autograd.grad(got, own, g)[0], slope, most)
    backward = partial(getattr(bc, f"{op}_backward"), reduction=reduction, backend=backend)
    close(backward(g, x, target, *weights), slope, most)


@each_given
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_every_operand_has_its_true_gradient(op: str, given: str, reduction: str) -> None:
    arrays = [a if a is None else a.clone().requires_grad_() for a in drawn(op, given)]
    watched = [a for a in arrays if a is not None]
    want = formula(op, *arrays)
    want = {"mean": want.mean(), "sum": want.sum(), "none": want}[reduction]
    got = getattr(bc, op)(*arrays, reduction=reduction)
    g = torch.randn_like(want)
    close(got, want)
    pairs = zip(*(torch.autograd.grad(y, watched, g) for y in (got, want)), strict=True)
    for have, slope in pairs:
        assert slope.abs().sum() > 0
        close(have, slope)


@pytest.mark.parametrize(
    ("op", "given", "reduction"),
    lanes.cases(
        [(*some, reduction) for some in GIVEN for reduction in REDUCTIONS],
        lambda case: case[2] == REDUCTIONS[GIVEN.index(case[:2]) % len(REDUCTIONS)],
    ),
)
def test_compiled_losses_have_the_gradients_of_operands(
    op: str, given: str, reduction: str
) -> None:
    arrays = [a if a is None else a.clone().requires_grad_() for a in drawn(op, given)]
    watched = [a for a in arrays if a is not None]
    g = torch.randn_like(formula_of(op, arrays, reduction))
    torch.compiler.reset()
    whole = torch.compile(partial(getattr(bc, op), reduction=reduction), fullgraph=True,
                          backend="aot_eager")  # fmt: skip
    for have, slope in zip(
        torch.autograd.grad(whole(*arrays), watched, g),
        torch.autograd.grad(formula_of(op, arrays, reduction), watched, g),
        strict=True,
    ):
        close(have, slope)


def formula_of(op: str, arrays: list[Any], reduction: str) -> Any:
    each = formula(op, *arrays)
    return {"mean": each.mean(), "sum": each.sum(), "none": each}[reduction]


@each_given
def test_second_derivatives_by_finite_differences(op: str, given: str) -> None:
    x, target, *weights = [a if a is None else a[:2, :3].clone() for a in drawn(op, given)]

    def loss(x: Any) -> Any:
        return getattr(bc, op)(x, target, *weights)

    assert torch.autograd.gradgradcheck(loss, x.requires_grad_())


@each_given
def test_batches_of_problems_by_vmap(op: str, given: str) -> None:
    x, target, *weights = drawn(op, given)
    present = [w for w in weights if w is not None]

    def one(x: Any, target: Any, *some: Any) -> Any:
        left = iter(some)
        places = [None if w is None else next(left) for w in weights]
        return getattr(bc, op)(x, target, *places, reduction="sum")

    got = torch.func.vmap(one)(x, target, *present)
    close(got, of_torch(op, [x, target, *weights], reduction="none").sum(1))
    # One set of weights for all problems.
    shared = [w[0] for w in present]
    got = torch.func.vmap(one, in_dims=(0, 0, *[None] * len(shared)))(x, target, *shared)
    again = [None if w is None else w[0].expand(6, 5) for w in weights]
    close(got, of_torch(op, [x, target, *again], reduction="none").sum(1))


@each_given
def test_jax_differentiates_all_and_maps_over_batches(op: str, given: str) -> None:
    arrays = [a if a is None else a.clone().requires_grad_() for a in drawn(op, given)]
    watched = [a for a in arrays if a is not None]
    slopes = torch.autograd.grad(formula(op, *arrays).mean(), watched)
    with jax.enable_x64(True):
        own = [jnp.asarray(a.detach().numpy()) for a in watched]

        def loss(*some: Any) -> Any:
            left = iter(some)
            return getattr(bc, op)(*[None if a is None else next(left) for a in arrays])

        every = tuple(range(len(own)))
        for have, want in zip(jax.jit(jax.grad(loss, every))(*own), slopes, strict=True):
            np.testing.assert_allclose(have, want.numpy(), rtol=1e-11, atol=1e-14)
        text = str(jax.make_jaxpr(jax.grad(loss))(*own))
        assert f"{op}_backward" in text
        rows = jax.vmap(jax.grad(loss))(*own)
        np.testing.assert_allclose(rows / len(rows), slopes[0].numpy(), rtol=1e-11, atol=1e-14)


@each_given
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_16_bits_are_computed_in_float32(op: str, given: str, dtype: torch.dtype) -> None:
    arrays = drawn(op, given, dtype)
    exact = [a if a is None else a.double() for a in arrays]
    got = getattr(bc, op)(*arrays)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got.double(), of_torch(op, exact), rtol=1e-5, atol=1e-6)
    g = torch.ones((), dtype=torch.float32)
    dx = getattr(bc, f"{op}_backward")(g, *arrays)
    want = getattr(bc, f"{op}_backward")(g.double(), *exact)
    assert dx.dtype is dtype
    torch.testing.assert_close(dx.double(), want, rtol=torch.finfo(dtype).eps, atol=1e-7)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_right_logit_keeps_the_digits_of_loss_and_slope(dtype: str) -> None:
    x = np.asarray([10.0, 15.0, 20.0, 50.0], dtype)
    three, one = np.full_like(x, 3), np.ones_like(x)
    want = 3 * np.log1p(np.exp(-x.astype(np.float64)))
    loss = bc.binary_cross_entropy_with_logits(x, one, None, three, reduction="none")
    np.testing.assert_allclose(loss, want, rtol=6 * np.finfo(dtype).eps)
    slope = bc.binary_cross_entropy_with_logits_backward(one, x, one, None, three, reduction="none")
    exact = -3 / (1 + np.exp(x.astype(np.float64)))
    np.testing.assert_allclose(slope, exact, rtol=6 * np.finfo(dtype).eps)


def test_weights_of_another_shape_are_refused_with_what_to_write() -> None:
    x, weight = np.full((4, 3), 0.5), np.ones(3)
    with pytest.raises(ValueError, match=r"weight: expected 2 axes .*; broadcast it to the shape"):
        bc.binary_cross_entropy(x, x, weight)
    with pytest.raises(ValueError, match=r"pos_weight: expected 3 along axis 1 .*; broadcast it"):
        bc.binary_cross_entropy_with_logits(x, x, None, np.ones((4, 1)))
    with pytest.raises(TypeError, match=r"weight: expected float64 \(as x\), got float32"):
        bc.binary_cross_entropy(x, x, np.ones((4, 3), np.float32))
    whole = bc.binary_cross_entropy(x, x, np.broadcast_to(weight, x.shape))
    np.testing.assert_allclose(whole, np.log(2))


@pytest.mark.parametrize("shape", [(), (1,), (5,), (6, 1), (6, 5)])
def test_modules_broadcast_their_weights(shape: tuple[int, ...]) -> None:
    weight, positive = torch.rand(shape).double() + 0.5, torch.rand(5).double() + 0.5
    x, target, _ = drawn(PLAIN, "w")
    made = [(bn.BCELoss(weight), torch.nn.BCELoss(weight), x)]
    for pos_weight in (None, positive):
        pair = [m.BCEWithLogitsLoss(weight, pos_weight=pos_weight) for m in (bn, torch.nn)]
        made.append((*pair, torch.randn(6, 5).double()))
    for ours, theirs, given in made:
        assert ours._computed(given, target) is not None
        own, other = given.clone().requires_grad_(), given.clone().requires_grad_()
        have, want = ours(own, target), theirs(other, target)
        close(have, want)
        slope = torch.autograd.grad(want, other)[0]
        close(torch.autograd.grad(have, own)[0], slope)
        assert list(ours.state_dict()) == list(theirs.state_dict())


# Shapes without axes, and those that are broadcast along either.
@pytest.mark.parametrize("shape", [(), (5,), (6, 1)])
def test_compiled_modules_broadcast_their_weights(shape: tuple[int, ...]) -> None:
    weight, positive = torch.rand(shape).double() + 0.5, torch.rand(5).double() + 0.5
    x, target = torch.randn(6, 5).double().requires_grad_(), drawn(PLAIN, "w")[1]
    ours, theirs = (
        m.BCEWithLogitsLoss(weight, pos_weight=positive) for m in (bn, torch.nn)
    )  # fmt: skip
    torch.compiler.reset()
    whole = torch.compile(ours, fullgraph=True, backend="aot_eager")
    slopes = [torch.autograd.grad(loss(x, target), x)[0] for loss in (whole, theirs)]
    close(*slopes)


def test_modules_leave_to_torch_what_does_not_fit() -> None:
    x, target = torch.randn(1, 5).double(), torch.rand(1, 5).double()
    ours, theirs = (m.BCEWithLogitsLoss(torch.rand(5) + 0.5) for m in (bn, torch.nn))
    theirs.load_state_dict(ours.state_dict())
    assert ours._computed(x, target) is None
    close(ours(x, target), theirs(x, target))
    for weight in (torch.ones(6, 5), torch.ones(1, 1, 5)):
        ours = bn.BCEWithLogitsLoss(weight.double())
        assert ours._computed(x, target) is None
    with pytest.raises(RuntimeError, match="broadcast shape"):
        bn.BCEWithLogitsLoss(torch.ones(6, 5).double())(x, target)
