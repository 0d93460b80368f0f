"""Norms and softmax at the ends of their range: empty, far from 0, not finite, nothing kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import baracuda as bc
from baracuda.backends.numpy import blocks
from baracuda.calls.op import registry

BACKENDS = [("numpy", np.asarray), ("torch", torch.from_numpy), ("array_api", np.asarray)]
on_each = pytest.mark.parametrize(("backend", "given"), BACKENDS, ids=[b for b, _ in BACKENDS])


def host(x: Any) -> Any:
    return np.asarray(x)


@on_each
def test_rows_of_nothing_and_no_rows(backend: str, given: Any) -> None:
    for shape in ((3, 0), (0, 4), (0, 0)):
        x, w = given(np.ones(shape, np.float32)), given(np.ones(shape[-1:], np.float32))
        assert bc.rms_norm(x, w, backend=backend).shape == shape
        assert bc.softmax(x, backend=backend).shape == shape
        assert bc.log_softmax(x, axis=0, backend=backend).shape == shape
        dx, dw, db = bc.layer_norm_backward(x, x, w, backend=backend)
        assert dx.shape == shape
        np.testing.assert_array_equal(host(dw), np.zeros(shape[-1:]))
        np.testing.assert_array_equal(host(db), np.zeros(shape[-1:]))


@on_each
def test_one_nan_makes_one_row_nan(backend: str, given: Any) -> None:
    x = np.ones((2, 5), np.float32)
    x[0, 3] = np.nan
    for op in (bc.rms_norm, bc.layer_norm, bc.softmax, bc.log_softmax):
        y = host(op(given(x), backend=backend))
        assert np.isnan(y[0]).all(), op
        assert np.isfinite(y[1]).all(), op


@on_each
def test_rows_far_from_zero_keep_their_accuracy(backend: str, given: Any) -> None:
    rng = np.random.default_rng(0)
    x = (1e4 + rng.standard_normal((4, 1000))).astype(np.float32)
    want = F.layer_norm(torch.from_numpy(x).double(), (1000,)).numpy()
    ours = np.abs(host(bc.layer_norm(given(x), backend=backend)) - want).max()
    theirs = np.abs(F.layer_norm(torch.from_numpy(x), (1000,)).numpy() - want).max()
    assert ours <= max(theirs, 2e-6)
    want = F.log_softmax(torch.from_numpy(x).double(), -1).numpy()
    ours = np.abs(host(bc.log_softmax(given(x), backend=backend)) - want).max()
    assert ours <= 2e-6


@on_each
def test_rows_of_which_nothing_counts(backend: str, given: Any) -> None:
    x, mask = np.ones((2, 3), np.float32), np.asarray([[False], [True]])
    y = bc.softmax(given(x), given(mask), backend=backend)
    np.testing.assert_allclose(host(y), [[0, 0, 0], [1 / 3] * 3], rtol=1e-6)
    log = bc.log_softmax(given(x), given(mask), backend=backend)
    assert (host(log)[0] == -np.inf).all()
    dy = given(np.asarray([[1, 2, 3], [1, 2, 3]], np.float32))
    for dx in (bc.softmax_backward(dy, y), bc.log_softmax_backward(dy, log)):
        np.testing.assert_array_equal(host(dx)[0], 0)
        np.testing.assert_allclose(host(dx)[1].sum(), 0, atol=1e-6)
    # More queries than keys: the first rows keep none.
    y = bc.softmax(given(np.zeros((4, 2), np.float32)), causal=True, backend=backend)
    np.testing.assert_array_equal(host(y), [[0, 0], [0, 0], [1, 0], [0.5, 0.5]])


def test_the_sum_is_rounded_before_it_is_normalised() -> None:
    x, r = torch.randn(5, 64).bfloat16(), torch.randn(5, 64).bfloat16() * 100
    y, s = bc.add_layer_norm(x, r)
    assert torch.equal(s, x + r)
    assert torch.equal(y, bc.layer_norm(s))


def test_what_does_not_fit_is_an_error() -> None:
    x = np.ones((2, 3))
    with pytest.raises(TypeError, match="softmax: mask: expected bool, got float64"):
        bc.softmax(x, x)
    with pytest.raises(ValueError, match=r"softmax: mask: expected 3 or 1 along axis 1"):
        bc.softmax(x, np.ones((2, 2), bool))
    with pytest.raises(ValueError, match="softmax: causal: expected axis=-1"):
        bc.softmax(x, causal=True, axis=0)
    with pytest.raises(ValueError, match="softmax: causal: expected axis=-1"):
        bc.softmax(np.ones(3), causal=True)
    with pytest.raises(ValueError, match="rms_norm: weight: expected 3 along axis 0"):
        bc.rms_norm(x, np.ones(2))
    with pytest.raises(TypeError, match="layer_norm: arrays"):
        bc.layer_norm(x, None, np.ones(3))


@pytest.mark.parametrize("shape", [(6, 300, 300), (2, 600, 600)])
def test_a_diagonal_knows_its_place_in_blocks(shape: tuple[int, ...]) -> None:
    """The NumPy backend cuts batches, and not the axis along which a diagonal runs."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    got = bc.softmax(x, causal=True)
    assert "blocks" in bc.softmax.plan(x, causal=True).sku.variant
    np.testing.assert_array_equal(np.triu(got, 1), 0)
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)


def test_rows_longer_than_a_block_stay_whole() -> None:
    x = np.random.default_rng(0).standard_normal((3, 300_000)).astype(np.float32)
    assert "blocks" in bc.softmax.plan(x).sku.variant
    np.testing.assert_array_equal(bc.softmax(x), [bc.softmax(row) for row in x])
    np.testing.assert_allclose(bc.softmax(x).sum(-1), 1, rtol=1e-4)


@pytest.mark.parametrize("name", ["layer_norm_backward", "rms_norm_backward", "prelu_backward"])
def test_sums_over_rows_are_added_block_by_block(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", 1 << 8)
    monkeypatch.setattr(blocks, "_WORKERS", 4)
    bc.plan_cache.clear()
    rng, op = np.random.default_rng(0), registry[name]
    # The last block is shorter.
    dy, x = rng.standard_normal((2, 67, 64))
    weight = rng.standard_normal(64)
    plan = op.plan(dy, x, weight)
    assert plan.sku.variant == "blocks of 256"
    got, want = plan(dy, x, weight), op(dy, x, weight, backend="array_api")
    for mine, whole in zip(got, want, strict=True):
        np.testing.assert_allclose(mine, whole, rtol=1e-12, atol=1e-12)
    for _ in range(20):
        assert all(map(np.array_equal, plan(dy, x, weight), got))
    twice = plan(dy, x, weight, out=tuple(r.copy() for r in got), accumulate=True)
    for both, once in zip(twice, got, strict=True):
        np.testing.assert_allclose(both, 2 * once, rtol=1e-12)
    bc.plan_cache.clear()


def test_what_blocks_leave_is_added_in_their_order() -> None:
    total, in_order = np.zeros(1, np.float32), blocks._InOrder()
    # In another order the small ones would be lost.
    in_order.add(2, [(total, np.float32(1e8))])
    in_order.add(1, [(total, np.float32(3))])
    assert total[0] == 0
    in_order.add(0, [(total, np.float32(3))])
    assert total[0] == np.float32(1e8) + np.float32(6) != np.float32(1e8) + np.float32(3)
