"""l2_normalize beside torch: below eps, at eps, at 0, infinities and NaN, and in 16 bits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import baracuda as bc

ROWS = torch.tensor([
    [0.0, 0.0], [1e-13, 0.0], [1e-200, 1e-200], [3.0, -4.0], [0.6, 0.8], [math.inf, 1.0],
    [math.nan, 1.0], [3e200, 4e200], [-math.inf, math.inf], [1e-6, -1e-6],
], dtype=torch.float64)  # fmt: skip
BACKENDS = ("numpy", "torch", "array_api")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def given(x: torch.Tensor, backend: str) -> Any:
    return x if backend == "torch" else x.numpy()


@pytest.mark.parametrize("eps", [1e-12, 1.0, 5.0, 0.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_edges_are_those_of_torch(backend: str, eps: float) -> None:
    x = ROWS.clone().requires_grad_()
    y = F.normalize(x, eps=eps)
    dy = torch.linspace(-2, 3, x.numel(), dtype=torch.float64).reshape(x.shape)
    (want,) = torch.autograd.grad(y, x, dy)
    ours = bc.l2_normalize(given(ROWS, backend), eps=eps, backend=backend)
    np.testing.assert_allclose(ours, y.detach(), rtol=1e-15)
    both = [given(t, backend) for t in (dy, ROWS)]
    dx = bc.l2_normalize_backward(*both, eps=eps, backend=backend)
    # Two terms cancel, each as large as dy over the divisor.
    size = dy.abs().amax(-1, keepdim=True) / x.detach().norm(dim=-1, keepdim=True).clamp_min(eps)
    fits = np.isclose(dx, want, rtol=1e-12, atol=1e-15 * size.nan_to_num(0), equal_nan=True)
    # Squares that vanish leave a quotient by 0, of which infinities and NaN are alike nothing.
    fits[2] |= eps == 0
    assert fits.all(), (dx, want)


@pytest.mark.parametrize("eps", [1e-12, 1.0, 5.0])
def test_autograd_of_the_composite_has_them_too(eps: float) -> None:
    theirs, ours = (ROWS.clone().requires_grad_() for _ in range(2))
    dy = torch.linspace(-2, 3, ROWS.numel(), dtype=torch.float64).reshape(ROWS.shape)
    F.normalize(theirs, eps=eps).backward(dy)
    bc.l2_normalize(ours, eps=eps).backward(dy)
    # NaN beside an infinity is for every library to place.
    finite = ROWS.isfinite().all(-1)
    torch.testing.assert_close(ours.grad[finite], theirs.grad[finite], rtol=1e-12, atol=1e-15)
    assert ours.grad[~finite].isnan().all() == theirs.grad[~finite].isnan().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_of_nothing_and_no_rows(backend: str) -> None:
    for shape in ((3, 0), (0, 4), (0, 0), (2, 0, 3)):
        x = given(torch.ones(shape), backend)
        assert bc.l2_normalize(x, axis=1, backend=backend).shape == shape
        assert bc.l2_normalize_backward(x, x, axis=1, backend=backend).shape == shape


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("axis", [-1, 0])
def test_16_bits_are_rounded_once(dtype: torch.dtype, axis: int) -> None:
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)).mul(40).to(dtype)
    x[3] = 0
    want = F.normalize(x.double(), dim=axis)
    y = bc.l2_normalize(x, axis=axis)
    assert y.dtype == dtype
    smallest = 2.0**-25 if dtype == torch.float16 else 0.0
    torch.testing.assert_close(y.double(), want, rtol=0.501 * torch.finfo(dtype).eps, atol=smallest)
