"""Steps of optimisers: against torch.optim in float64, published formulas, and themselves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest
import torch

import baracuda as bc

STEPS = 100
RNG = np.random.default_rng(3)
Step = Callable[[int, torch.Tensor, torch.Tensor, list[torch.Tensor]], Any]


def gradients(dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    return [torch.tensor(RNG.standard_normal((5, 7)), dtype=dtype) for _ in range(STEPS)]


def adam_step(op: Any, **options: Any) -> Step:
    return lambda n, p, g, state: op(p, g, *state, step=n, **options)


def sgd_step(**options: Any) -> Step:
    def step(n: int, p: torch.Tensor, g: torch.Tensor, state: list[torch.Tensor]) -> Any:
        # torch begins with the gradient itself.
        first = {"dampening": 0.0} if n == 1 else {}
        return bc.sgd(p, g, *state, **{**options, **first})

    return step


ADAM = {"lr": 0.02, "weight_decay": 0.1}
BETAS = {"beta1": 0.8, "beta2": 0.95}
MOMENTUM = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}
TORCH = {
    "adamw": (torch.optim.AdamW, ADAM, adam_step(bc.adamw, **ADAM), 2),
    "adamw-betas": (
        torch.optim.AdamW, {"betas": (0.8, 0.95), "eps": 1e-3},
        adam_step(bc.adamw, **BETAS, eps=1e-3), 2,
    ),
    "adam": (torch.optim.Adam, ADAM, adam_step(bc.adam, **ADAM), 2),
    "sgd": (torch.optim.SGD, {"lr": 0.05, "weight_decay": 0.1},
            sgd_step(lr=0.05, weight_decay=0.1), 0),
    "momentum": (torch.optim.SGD, MOMENTUM, sgd_step(**MOMENTUM), 1),
    "nesterov": (torch.optim.SGD, {**MOMENTUM, "nesterov": True},
                 sgd_step(**MOMENTUM, nesterov=True), 1),
    "dampening": (torch.optim.SGD, {**MOMENTUM, "dampening": 0.3},
                  sgd_step(**MOMENTUM, dampening=0.3), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", TORCH)
def test_a_hundred_steps_are_those_of_torch(name: str) -> None:
    optimiser, options, step, states = TORCH[name]
    start = torch.tensor(RNG.standard_normal((5, 7)))
    theirs = start.clone().requires_grad_()
    other = optimiser([theirs], **options)
    mine, state = start, [torch.zeros_like(start) for _ in range(states)]
    for n, grad in enumerate(gradients(), 1):
        theirs.grad = grad
        other.step()
        result = step(n, mine, grad, state)
        mine, *state = result if isinstance(result, tuple) else (result,)
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-12, atol=1e-12)
    assert (mine - start).abs().max() > 0.01


def test_lion_is_the_algorithm_of_its_paper() -> None:
    theta, m = RNG.standard_normal((2, 40))
    mine, average = theta, m
    for grad in RNG.standard_normal((STEPS, 40)):
        # Algorithm 2 of arXiv:2302.06675.
        update = np.sign(0.9 * m + 0.1 * grad)
        theta = theta - 0.01 * (update + 0.2 * theta)
        m = 0.99 * m + 0.01 * grad
        mine, average = bc.lion(mine, grad, average, lr=0.01, weight_decay=0.2)
        np.testing.assert_allclose(mine, theta, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(average, m, rtol=1e-12, atol=1e-12)


def test_an_average_is_that_of_torch() -> None:
    update = torch.optim.swa_utils.get_ema_avg_fn(0.97)
    theirs = mine = torch.zeros(9, dtype=torch.float64)
    for value in torch.tensor(RNG.standard_normal((STEPS, 9))):
        theirs, mine = update(theirs.clone(), value, 0), bc.ema(mine, value, decay=0.97)
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)


def arguments(name: str, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    op = getattr(bc, name)
    return [torch.rand(6, 5, dtype=dtype) + 0.1 for _ in op.spec.arrays]


NAMED = {
    "adamw": {"step": 7}, "adam": {"step": 7}, "sgd": {"momentum": 0.9}, "lion": {},
}  # fmt: skip
each_step = pytest.mark.parametrize("name", NAMED)


@each_step
def test_a_step_without_finite_gradients_is_skipped(name: str) -> None:
    op, arrays = getattr(bc, name), arguments(name)
    arrays[1][2, 3] = torch.inf
    kept = [arrays[0], *arrays[2:]]
    for found in (1.0, torch.tensor(1.0), np.nan):
        for x, was in zip(op(*arrays, found_inf=found, **NAMED[name]), kept, strict=True):
            assert torch.equal(x, was)
            assert x.data_ptr() != was.data_ptr()


@each_step
def test_gradients_are_divided_by_their_scale(name: str) -> None:
    op, arrays = getattr(bc, name), arguments(name)
    want = op(*arrays, **NAMED[name])
    arrays[1] = arrays[1] * 1024
    for x, y in zip(op(*arrays, grad_scale=1024.0, **NAMED[name]), want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-14, atol=0)


@each_step
def test_a_master_copy_is_rounded_once_more(name: str) -> None:
    op = getattr(bc, name)
    param, grad, *states = arguments(name, torch.float32)
    want = op(param, grad.bfloat16().float(), *states, **NAMED[name])
    *got, rounded = op(param, grad.bfloat16(), *states, copy=True, **NAMED[name])
    for x, y in zip(got, want, strict=True):
        assert x.dtype == torch.float32
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-7)
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, got[0].bfloat16())


@each_step
def test_a_plan_steps_in_place(name: str) -> None:
    op, arrays = getattr(bc, name), arguments(name, torch.bfloat16)
    arrays[2:] = [x.float() for x in arrays[2:]]
    want = op(*arrays, **NAMED[name])
    own = (arrays[0], *arrays[2:])
    got = op.plan(*arrays)(*arrays, out=own, **NAMED[name])
    for x, y, z in zip(got, want, own, strict=True):
        assert x is z
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("name", "state"),
    lanes.cases(
        product(NAMED, ("float32", "bfloat16")),
        lambda given: (list(NAMED).index(given[0]) + (given[1] == "float32")) % 2,
    ),
)
def test_a_kernel_reads_and_writes_states_as_they_are(name: str, state: str) -> None:
    op, bf16 = getattr(bc, name), np.dtype(ml_dtypes.bfloat16)
    for size, param in ((1, bf16), (33, bf16), (1024, bf16), (1024, np.float32)):
        kinds = [param, bf16, *[np.float32 if state == "float32" else bf16] * 2]
        kinds = kinds[: len(op.spec.arrays)]
        drawn = [
            RNG.random(size).astype(kind) for _, kind in zip(op.spec.arrays, kinds, strict=False)
        ]
        options = {**NAMED[name], "grad_scale": 0.7, "copy": size == 33}
        got = emulator.launched(op, [emulator.placed(x) for x in drawn], options)
        want = op(*[x.astype(np.float64) for x in drawn], **options)
        for x, y in zip(got, want, strict=True):
            eps = 2.0**-22 if x.dtype == np.float32 else 2.0**-8
            np.testing.assert_allclose(x.astype(np.float64), y, rtol=2 * eps, atol=eps)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_numbers_of_a_program_keep_their_digits(library: str) -> None:
    """1 - beta2 of a float64 array is formed in float64: in float32 it is off by 3e-5 of itself."""
    p, g, m, v = np.ones((4, 8), np.float32)
    m, v = 0 * m, 0 * v
    for step in (1, 10, 20_000):
        want = bc.adamw(*[x.astype(np.float64) for x in (p, g, m, v)], beta2=0.9999, step=step)
        if library == "torch":
            arrays = [torch.from_numpy(x) for x in (p, g, m, v)]
            body = torch.func.vmap(
                lambda *x: bc.adamw(*x[:4], beta2=x[4], step=x[5]),
                in_dims=(0, 0, 0, 0, None, None),
            )
            beta2, number = torch.tensor(0.9999, dtype=torch.float64), torch.tensor(step)
            got = body(*arrays, beta2, number)
        else:
            jax = pytest.importorskip("jax")
            with jax.enable_x64(True):
                run = jax.jit(lambda *x: bc.adamw(*x[:4], beta2=x[4], step=x[5]))
                got = run(*map(jax.numpy.asarray, (p, g, m, v)), np.float64(0.9999), step)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(np.asarray(x), y, rtol=1e-6)


def test_what_is_no_number_of_a_step_is_refused() -> None:
    arrays = arguments("adamw")
    with pytest.raises(
        TypeError, match=r"adamw: (missing a required argument: 'step'|step: expected a value)"
    ):
        bc.adamw(*arrays)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="adamw: step: expected an integer from 1"):
        bc.adamw(*arrays, step=0)
    with pytest.raises(ValueError, match="adamw: beta2: expected a number from 0 to below 1"):
        bc.adamw(*arrays, step=1, beta2=1.0)
    with pytest.raises(ValueError, match="sgd: lr: expected a finite number >= 0"):
        bc.sgd(*arrays[:2], lr=-1.0)
    with pytest.raises(TypeError, match="adamw: exp_avg_sq: expected"):
        bc.adamw(*arrays[:3], arrays[3].float(), step=1)
