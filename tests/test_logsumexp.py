"""logsumexp beside torch, JAX and SciPy: at infinities, NaN and nothing, and in 16 bits."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import torch
from torch_lists import torchs

import baracuda as bc

INF, NAN = np.inf, np.nan
ROWS = np.asarray([
    [-INF, -INF, -INF], [INF, 1.0, -INF], [INF, INF, 0.0], [NAN, 1.0, 2.0], [INF, NAN, 0.0],
    [-INF, 2.0, 1.0], [1e308, 1e308, -1e308], [-1e308, -1e308, -1e308], [710.0, 709.0, -745.0],
    [INF, 1e300, 800.0], [0.0, -0.0, 5e-324], [-1e308, 1e308, 0.0],
])  # fmt: skip
BACKENDS = ("numpy", "torch", "array_api")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def given(x: Any, backend: str) -> Any:
    return torch.from_numpy(x) if backend == "torch" else x


@pytest.mark.parametrize("backend", BACKENDS)
def test_edges_are_those_of_torch_and_scipy(backend: str) -> None:
    theirs = torch.from_numpy(ROWS).requires_grad_()
    want = torch.logsumexp(theirs, -1)
    dout = np.linspace(-2, 3, len(ROWS))
    (slope,) = torch.autograd.grad(want, theirs, torch.from_numpy(dout))
    # torch's exp(x - out) forgets the logarithm beside the largest numbers.
    large = np.abs(want.detach().numpy()) == 1e308
    shares = torch.softmax(theirs.detach()[large], -1)
    slope[large] = shares * torch.from_numpy(dout[large])[:, None]
    got = bc.logsumexp(given(ROWS, backend), backend=backend)
    np.testing.assert_allclose(got, want.detach(), rtol=1e-15)
    np.testing.assert_allclose(got, scipy.special.logsumexp(ROWS, axis=-1), rtol=1e-15)
    dx = bc.logsumexp_backward(*[given(x, backend) for x in (dout, ROWS)], backend=backend)
    np.testing.assert_allclose(dx, slope, rtol=1e-13)


def test_jax_has_the_same_edges() -> None:
    small = np.asarray(np.clip(ROWS, -1e38, 1e38), np.float32)
    small[np.isinf(ROWS)] = ROWS[np.isinf(ROWS)]
    for i, row in enumerate(small):
        want, slope = jax.value_and_grad(jax.nn.logsumexp)(jnp.asarray(row))
        got, dx = jax.value_and_grad(bc.logsumexp)(jnp.asarray(row))
        np.testing.assert_allclose(got, want, rtol=2e-6, err_msg=str(i))
        # JAX has NaN throughout where an exponential overflows beside inf.
        if not np.isnan(slope).all() or i in (0, 3):
            np.testing.assert_allclose(dx, slope, rtol=2e-5, atol=1e-37, err_msg=str(i))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("keepdims", [False, True])
def test_rows_of_nothing_and_no_rows(backend: str, keepdims: bool) -> None:
    for shape, axis in itertools.product(((3, 0), (0, 4), (0, 0), (2, 0, 3)), (0, 1)):
        x = torch.ones(shape)
        want = torch.logsumexp(x, axis, keepdim=keepdims)
        x = given(x.numpy(), backend)
        got = bc.logsumexp(x, axis=axis, keepdims=keepdims, backend=backend)
        np.testing.assert_array_equal(got, want)
        dx = bc.logsumexp_backward(got, x, axis=axis, keepdims=keepdims, backend=backend)
        assert dx.shape == shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("axis", [-1, 0])
def test_16_bits_are_rounded_once_and_not_where_a_wider_result_is_asked(
    dtype: torch.dtype, axis: int
) -> None:
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)).mul(8).to(dtype)
    exact = torch.logsumexp(x.double(), axis)
    wide = bc.logsumexp(x, axis=axis, dtype=torch.float32)
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide.double(), exact, rtol=1e-6, atol=1e-6)
    assert torch.equal(bc.logsumexp(x, axis=axis), wide.to(dtype))
    dx = bc.logsumexp_backward(wide, x, axis=axis)
    want = torch.softmax(x.double(), axis) * wide.double().unsqueeze(axis)
    assert dx.dtype == dtype
    torch.testing.assert_close(dx.double(), want, rtol=torch.finfo(dtype).eps, atol=1e-7)


def test_torchs_own_samples_have_its_values_and_gradients() -> None:
    ops, seen = torchs("common_methods_invocations", "op_db"), 0
    theirs = next(op for op in ops if op.name == "logsumexp")
    for sample in theirs.sample_inputs("cpu", torch.float64, requires_grad=True):
        (axis, *others), keepdims = sample.args
        x = sample.input
        # Several axes at once are not one row, and a number has none.
        if others or not x.ndim:
            continue
        want = torch.logsumexp(x, axis, keepdims)
        got = bc.logsumexp(x, axis=axis, keepdims=keepdims)
        torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)
        dout = torch.randn_like(want)
        for ours, theirs in zip(
            torch.autograd.grad(got, x, dout), torch.autograd.grad(want, x, dout), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-13, atol=1e-14)
        seen += 1
    assert seen
