"""Bodies in blocks of a few elements give what whole ones give, in NumPy and in torch.

Sums over blocks too, also into outputs that are given and added to, and norms by torch's functions.
Blocks are as large as a cache otherwise, which no other test's arrays fill.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from holding import hold

import baracuda as bc
from baracuda.backends.numpy import blocks as numpy_blocks
from baracuda.backends.torch import blocks as torch_blocks
from baracuda.backends.torch import norms
from baracuda.calls.op import registry
from baracuda.testing.cases import Subject
from baracuda.testing.laws import LAWS

FEW = 8
TRIED = {"matches_the_body_in_float64", "outputs_may_be_given"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(numpy_blocks, "BLOCK", FEW)
    monkeypatch.setattr(torch_blocks, "ROWS", FEW)
    monkeypatch.setattr(torch_blocks, "LARGE", 0)
    monkeypatch.setattr(norms, "_BLOCK", FEW)
    # Nor does torch add up gradients of parameters of so many rows.
    for name in ("_LARGE", "_FEW", "_PLANE"):
        monkeypatch.setattr(norms, name, 0)
    bc.plan_cache.clear()
    yield
    bc.plan_cache.clear()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("op", registry)
def test_blocks_make_the_whole(op: str, library: str) -> None:
    spec = registry[op].spec
    dtype = "float32" if "float32" in spec.dtypes else spec.dtypes[0]
    hold(Subject(op, library, library, dtype), LAWS.keys() - TRIED)


@pytest.mark.parametrize("op", ["rms_norm_backward", "lp_pool2d", "lp_pool2d_backward"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_bodies_of_rows_are_cut(op: str, library: str) -> None:
    calls = list(Subject(op, library, library, "float32").calls())
    assert f"blocks of {FEW}" in [call.plan().sku.variant for call in calls]


def test_heads_of_which_there_are_fewer_are_not_cut_with_the_others() -> None:
    q, k = (np.random.default_rng(0).standard_normal((2, h, 3, 8)) for h in (4, 2))
    y, z = bc.rope_qk(q, k)
    np.testing.assert_array_equal(y, bc.rope(q))
    np.testing.assert_array_equal(z, bc.rope(k))
