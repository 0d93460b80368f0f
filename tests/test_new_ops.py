"""Ops of other kinds than those of the package: states, and positions as results.

They are declared in new_ops.py, each in one block, with functors in new_ops.cu.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import emulator
import jax
import jax.numpy as jnp
import ml_dtypes
import new_ops
import numpy as np
import pytest
import torch
from holding import hold

from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, strides_of
from baracuda.backends.cuda.schedules import plan
from baracuda.calls import check
from baracuda.declaration.dispatch import DEFAULT
from baracuda.testing.cases import LIBRARIES, Subject, subjects

NAMES = ("adamw_step", "max_pool2d", "max_pool2d_backward")
FACTS = DeviceFacts(0, "sm_90", 4, 232448)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    with new_ops.registered(*NAMES):
        yield


def of(name: str, library: str) -> list[Subject]:
    return [s for s in subjects([name], [library]) if s.dtype in ("float32", "bfloat16")]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", NAMES)
def test_the_laws_hold(name: str, library: str) -> None:
    for subject in of(name, library):
        hold(subject)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_the_laws_hold_on_a_gpu(name: str) -> None:
    found = list(subjects([name], ["torch", "jax"], device="cuda"))
    assert ("cuda" in {s.backend for s in found}) == (not name.startswith("max"))
    for subject in found:
        with subject.context():
            hold(subject)


# States that are wider than what they belong to.


def test_a_step_is_that_of_torch() -> None:
    p, g = torch.randn(2, 50)
    mine, m, v = p.clone(), torch.zeros(50), torch.zeros(50)
    theirs = p.clone().requires_grad_()
    optimizer = torch.optim.AdamW([theirs], lr=0.01)
    for step in range(1, 4):
        theirs.grad = g * step
        optimizer.step()
        mine, m, v = new_ops.adamw_step(mine, g * step, m, v, lr=0.01, step=step)
    torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_states_keep_their_dtype_and_may_be_written_in_place() -> None:
    p, g = torch.randn(2, 50).bfloat16()
    m, v = torch.rand(2, 50)
    want = new_ops.adamw_step(p, g, m, v, step=7)
    assert [x.dtype for x in want] == [torch.bfloat16, torch.float32, torch.float32]
    step = new_ops.adamw_step.plan(p, g, m, v)
    got = step(p, g, m, v, out=(p, m, v), step=7)
    assert got[1] is m
    for x, y in zip((p, m, v), want, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


# Positions among the results.


def test_positions_are_those_of_torch_and_gradients_go_there() -> None:
    x = torch.randn(2, 3, 6, 9, requires_grad=True)
    theirs, where = torch.nn.functional.max_pool2d(x, (2, 3), return_indices=True)
    (want,) = torch.autograd.grad((theirs**2).sum(), x)
    y, at = new_ops.max_pool2d(x, kernel_size=(2, 3))
    assert at.dtype == torch.int64
    assert not at.requires_grad
    assert torch.equal(at, where)
    (dx,) = torch.autograd.grad((y**2).sum(), x)
    torch.testing.assert_close(dx, want)
    given = jnp.asarray(x.detach().numpy())
    run = jax.jit(
        jax.value_and_grad(lambda x: (new_ops.max_pool2d(x, kernel_size=(2, 3))[0] ** 2).sum())
    )
    np.testing.assert_allclose(run(given)[1], want, rtol=1e-5, atol=1e-6)
    assert new_ops.max_pool2d(given, kernel_size=(2, 3))[1].dtype == jnp.int32
    with jax.enable_x64(True):
        assert new_ops.max_pool2d(given[0], kernel_size=(2, 3))[1].dtype == jnp.int64


def test_torch_compiles_positions() -> None:
    x = torch.randn(2, 6, 9, requires_grad=True)
    run = torch.compile(
        lambda x: new_ops.max_pool2d(x, kernel_size=3), fullgraph=True, backend="aot_eager"
    )
    y, at = run(x)
    want = torch.nn.functional.max_pool2d(x, 3, return_indices=True)
    assert torch.equal(at, want[1])
    (dx,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(dx, torch.autograd.grad(want[0].sum(), x)[0])


# Kernels, in the emulator.


def launched(
    name: str, arrays: list[Any], options: dict[str, Any], facts: Any = FACTS
) -> list[Any]:
    op = getattr(new_ops, name)
    problem = check.problem(op.spec, arrays, options, DEFAULT)
    alignment = min(x.ctypes.data & -x.ctypes.data for x in arrays)
    outs = tuple(strides_of(x) for x in problem.outputs)
    steps = plan(Call(problem, facts, outs, alignment=min(alignment, 16)))
    made = [
        emulator.empty(x.shape[::-1], x.dtype).T if x.strides else emulator.empty(x.shape, x.dtype)
        for x in problem.outputs
    ]
    scalars = {**op.spec.usual, **options}
    values = [scalars[n] for n in op.spec.scalars]
    emulator.run(tuple(s.entry for s in steps.kernels), steps, [*arrays, *made], 0, values)
    return made


@pytest.mark.parametrize("size", [1, 33, 1024])
@pytest.mark.parametrize("state", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_kernel_reads_and_writes_states_as_they_are(dtype: str, state: str, size: int) -> None:
    kind = getattr(ml_dtypes, dtype, dtype)
    rng, wide = np.random.default_rng(1), np.float32 if state == "float32" else kind
    values = [rng.standard_normal(size).astype(kind) for _ in range(2)]
    values += [rng.random(size).astype(wide) for _ in range(2)]
    arrays = [emulator.placed(x) for x in values]
    options = {"step": 3, "lr": 0.1}
    got = launched("adamw_step", arrays, options)
    want = new_ops.adamw_step(*[x.astype(np.float64) for x in values], **options)
    for x, y in zip(got, want, strict=True):
        eps = 2.0**-22 if x.dtype == np.float32 else 2.0**-8
        np.testing.assert_allclose(x.astype(np.float64), y, rtol=2 * eps, atol=eps)
