"""Where formulas saturate, cancel or count nothing: values and gradients keep their digits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional

import baracuda as bc


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_small_loss_of_a_logit_keeps_its_digits(dtype: str) -> None:
    x = np.asarray([10.0, 15.0, 20.0, 50.0], dtype)
    want = np.log1p(np.exp(-x.astype(np.float64)))
    for sign, target in ((1, np.ones_like(x)), (-1, np.zeros_like(x))):
        loss = bc.binary_cross_entropy_with_logits(sign * x, target, reduction="none")
        np.testing.assert_allclose(loss, want, rtol=4 * np.finfo(dtype).eps)


def test_an_infinite_logit_is_infinitely_wrong_and_undefined_where_right() -> None:
    x, t = np.asarray([np.inf, np.inf, -np.inf, -np.inf]), np.asarray([0.0, 1.0, 0.0, 1.0])
    loss = bc.binary_cross_entropy_with_logits(x, t, reduction="none")
    np.testing.assert_array_equal(loss, [np.inf, np.nan, np.nan, np.inf])


@pytest.mark.parametrize("x", [-3.0, 0.0, 0.25, 2.0])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_the_slope_of_a_logit_is_the_same_forwards(x: float, t: float) -> None:
    def loss(x: Any) -> Any:
        return bc.binary_cross_entropy_with_logits(x, jnp.asarray([t]), reduction="sum")

    _, slope = jax.jvp(loss, (jnp.asarray([x]),), (jnp.ones(1),))
    np.testing.assert_allclose(slope, 1 / (1 + np.exp(-x)) - t, atol=1e-6)


SLOPES = {
    "binary_cross_entropy": ([0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0], {"reduction": "sum"}),
    "huber_loss": ([0.001, 0.5, 3.0], [0.0, 0.0, 0.0], {"reduction": "sum", "delta": 1e4}),
    "smooth_l1_loss": ([1e-8, 0.5, 3.0], [0.0, 0.0, 0.0], {"reduction": "sum"}),
    "elu": ([-10.0, -17.0, -20.0, 1.0], None, {}),
    "celu": ([-10.0, -17.0, -20.0, 1.0], None, {}),
    "selu": ([-10.0, -17.0, -20.0, 1.0], None, {}),
    "softsign": ([1e4, -1e4, 1e7], None, {}),
}


@pytest.mark.parametrize("name", list(SLOPES))
def test_autograd_of_a_cpu_gives_the_explicit_gradient(name: str) -> None:
    values, targets, options = SLOPES[name]
    x = torch.tensor(values, requires_grad=True)
    given = [x] if targets is None else [x, torch.tensor(targets)]
    getattr(bc, name)(*given, **options).sum().backward()
    wide = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    exact = [wide] if targets is None else [wide, torch.tensor(targets, dtype=torch.float64)]
    getattr(functional, name)(*exact, **options).sum().backward()
    assert x.grad is not None
    assert wide.grad is not None
    np.testing.assert_allclose(x.grad, wide.grad, rtol=2e-6)


@pytest.mark.parametrize("name", ["l1_loss", "tanhshrink"])
def test_a_body_of_a_cpu_has_its_explicit_gradient(name: str) -> None:
    """Not that of each of its steps."""
    x, targets = torch.ones(3), [torch.zeros(3)] * (name == "l1_loss")
    op = getattr(bc, name)
    assert op.plan(x, *targets).sku.kernel == "body"
    assert type(op(x.requires_grad_(), *targets).grad_fn).__name__ == "FusedBackward"


def test_gradients_of_targets_flow_beside_explicit_ones() -> None:
    x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64, requires_grad=True)
    t = torch.tensor([0.2, 0.9, 1.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(bc.binary_cross_entropy_with_logits, (x, t))


@pytest.mark.parametrize("rows", [0, 3])
def test_where_no_row_counts_the_gradients_of_a_linear_layer_are_0(rows: int) -> None:
    hidden, weight, target = np.ones((rows, 4)), np.ones((5, 4)), np.full(rows, -100)
    one, bias = np.asarray(1.0), np.ones(5)
    for found in (
        bc.linear_cross_entropy_backward(one, hidden, weight, target, bias),
        bc.linear_cross_entropy_with_gradient(hidden, weight, target, bias)[1:],
    ):
        for x, like in zip(found, (hidden, weight, bias), strict=True):
            assert np.array_equal(x, np.zeros_like(like))
    h = torch.ones(rows, 4, requires_grad=True)
    w = torch.ones(5, 4, requires_grad=True)
    loss: Any = bc.linear_cross_entropy(h, w, torch.full((rows,), -100))
    loss.backward()
    assert loss.isnan()
    for y in (h, w):
        assert y.grad is not None
        assert not y.grad.any()


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_a_row_that_is_ignored_has_no_gradient_whatever_it_holds(softcap: float) -> None:
    logits = np.asarray([[np.nan, 1.0, np.inf], [1.0, 2.0, 3.0]])
    dlogits = bc.cross_entropy_backward(
        np.asarray(1.0), logits, np.asarray([-100, 1]), softcap=softcap
    )
    assert np.array_equal(dlogits[0], np.zeros(3))
    assert np.isfinite(dlogits).all()


@pytest.mark.parametrize("ignored", [2**31, 2**40, -(2**63)])
def test_what_targets_cannot_hold_is_no_target(ignored: int) -> None:
    logits = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)
    target = np.arange(4, dtype=np.int32)
    want = bc.cross_entropy(logits, target)
    linear = np.eye(5, dtype=np.float32)
    for like in (np.asarray, torch.tensor, jnp.asarray):
        given = like(logits), like(target)  # type: ignore[operator]
        np.testing.assert_allclose(
            np.asarray(bc.cross_entropy(*given, ignore_index=ignored)), want, rtol=1e-6
        )
        found = bc.linear_cross_entropy(
            given[0], like(linear), given[1], ignore_index=ignored  # type: ignore[operator]
        )  # fmt: skip
        np.testing.assert_allclose(np.asarray(found), want, rtol=1e-5)


@pytest.mark.parametrize(("state", "slope"), [(0.0031, 1 / 2048), (20.0, 1e4)])
def test_sums_of_slopes_keep_their_digits_in_half_precision(state: float, slope: float) -> None:
    rows = 2048 if slope < 1 else 4
    given = [
        torch.full((rows,), slope, dtype=torch.float16),
        torch.full((rows, 8), state, dtype=torch.float16),
        torch.tensor([0.0, 0.03], dtype=torch.float16)[:, None].expand(2, 8),
    ]
    target, bias = torch.ones(rows, dtype=torch.int32), torch.tensor([0.01, 0.0]).half()
    wide = [x.double() for x in given]
    want = bc.linear_cross_entropy_backward(*wide, target, bias.double(), reduction="none")
    found = bc.linear_cross_entropy_backward(*given, target, bias, reduction="none")
    np.testing.assert_allclose(found[2], want[2], rtol=4e-3)
    # In a row the gradients of states are as small as float16 has them.
    np.testing.assert_allclose(found[1], want[1], rtol=4e-3)
    np.testing.assert_allclose(found[0], want[0], rtol=4e-3, atol=np.finfo(np.float16).tiny)


def test_slopes_of_a_mean_keep_their_digits_in_half_precision() -> None:
    given = torch.ones(4096, 1).half(), torch.tensor([[-9.0], [0.0]]).half()
    target, one = torch.ones(4096, dtype=torch.int32), torch.tensor(1.0).half()
    for bias in ((), (torch.tensor([0.25, 0.0]).half(),)):
        wide = [x.double() for x in given]
        want = bc.linear_cross_entropy_with_gradient(*wide, target, *[x.double() for x in bias])
        for found in (
            bc.linear_cross_entropy_with_gradient(*given, target, *bias)[1:],
            bc.linear_cross_entropy_backward(one, *given, target, *bias),
        ):
            for x, y in zip(found[1:], want[2:], strict=True):
                np.testing.assert_allclose(x, y, rtol=4e-3)
