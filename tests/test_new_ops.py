"""Ops of other kinds than those of the package: seeds and places, states, positions as results.

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

from baracuda.testing.cases import LIBRARIES, Subject, subjects

NAMES = ("dropout", "dropout_backward", "max_pool2d", "max_pool2d_backward")


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


# Seeds, and the places of elements.


def test_a_mask_follows_from_the_seed_and_the_places_alone() -> None:
    x = np.ones((6, 40), np.float32)
    want = new_ops.dropout(x, seed=2**64 - 5, p=0.25) != 0
    assert 0.6 < want.mean() < 0.9
    for given in (
        torch.ones(6, 40),
        jnp.ones((6, 40)),
        torch.ones(40, 6).T,
        torch.ones(6, 40).bfloat16(),
    ):
        np.testing.assert_array_equal(new_ops.dropout(given, seed=-5, p=0.25) != 0, want)
    assert (new_ops.dropout(x, seed=6, p=0.25) != 0).tolist() != want.tolist()
    # Both words of a seed count, and it is that of a known generator.
    assert (new_ops.dropout(x, seed=1 << 32) != new_ops.dropout(x, seed=0)).any()


def test_an_array_that_would_be_cut_into_blocks_has_one_mask() -> None:
    x = np.ones((300, 1001), np.float32)
    want = new_ops.dropout(torch.from_numpy(x), seed=3).numpy()
    np.testing.assert_array_equal(new_ops.dropout(x, seed=3), want)


def test_a_batch_of_masks_is_that_of_each_one() -> None:
    x = jnp.ones((3, 5, 8))
    got = jax.vmap(lambda one: new_ops.dropout(one, seed=9))(x)
    for one in got:
        np.testing.assert_array_equal(one, new_ops.dropout(x[0], seed=9))


def test_a_seed_may_be_traced_as_two_words() -> None:
    x, seeds = jnp.ones((4, 16)), (3, 2**40 + 7, 2**64 - 1)
    traces = []

    @jax.jit
    def run(x: Any, seed: Any) -> Any:
        traces.append(seed)
        return new_ops.dropout(x, seed=seed)

    for seed in seeds:
        pair = jnp.asarray([seed & 0xFFFFFFFF, seed >> 32], jnp.uint32)
        np.testing.assert_array_equal(run(x, pair), new_ops.dropout(x, seed=seed))
    assert len(traces) == 1
    with pytest.raises(TypeError, match="dropout: seed: expected two words of uint32"):
        run(x, jnp.asarray(3))


@pytest.mark.parametrize("seed", [5, 2**63 + 11])
def test_torch_trains_and_compiles_with_seeds(seed: int) -> None:
    x = torch.randn(4, 16, requires_grad=True)
    y = new_ops.dropout(x, seed=seed)
    (dx,) = torch.autograd.grad(y.sum(), x)
    np.testing.assert_array_equal(dx.numpy(), 2.0 * (y != 0).numpy())
    run = torch.compile(
        lambda x: new_ops.dropout(x, seed=seed), fullgraph=True, backend="aot_eager"
    )
    np.testing.assert_array_equal(run(x).detach().numpy(), y.detach().numpy())


@pytest.mark.parametrize("bad", [2**64, -(2**63) - 1, 1.0, True, "1"])
def test_what_is_no_seed_is_refused(bad: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="dropout: seed: expected an integer"):
        new_ops.dropout(np.ones(3), seed=bad)


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


@pytest.mark.parametrize("how", ["dense", "padded", "odd", "turned"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_kernel_numbers_elements_as_they_lie_in_the_whole(dtype: str, how: str) -> None:
    kind = getattr(ml_dtypes, dtype, dtype)
    values = np.random.default_rng(0).standard_normal((6, 37)).astype(kind)
    x = emulator.placed(values.T).T if how == "turned" else emulator.lying(values, how)
    seed = {"seed": 2**63 + 12345, "p": 0.4}
    (got,) = emulator.launched(new_ops.dropout, [x], seed)
    want = new_ops.dropout(values, **seed)
    np.testing.assert_array_equal(got == 0, want == 0)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2.0**-7)
