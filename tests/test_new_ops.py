"""Ops of another kind than those of the package: positions as results.

They are declared in new_ops.py, each in one block.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import new_ops
import numpy as np
import pytest
import torch
from holding import hold

from baracuda.testing.cases import LIBRARIES, Subject, subjects

NAMES = ("max_pool2d", "max_pool2d_backward")


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
    assert "cuda" not in {s.backend for s in found}
    for subject in found:
        with subject.context():
            hold(subject)


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
