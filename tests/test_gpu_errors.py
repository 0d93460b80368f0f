"""Indices out of range and determinism on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device import MARKS, randint, randn, run_at_once

import baracuda as bc

pytestmark = MARKS


def test_lazily_conjugated_and_negated_views_are_read_as_what_they_are() -> None:
    z, index = torch.randn(64, 128, dtype=torch.complex64, device="cuda"), randint(64, 64, 128)
    for x in (z, z.conj()):
        want = torch.gather(x.resolve_conj(), 0, index.long())
        assert torch.equal(bc.gather(x, index, axis=0), want)
    negated = z.conj().imag
    assert negated.is_neg()
    assert torch.equal(bc.relu(negated), torch.relu(negated.resolve_neg()))
    plan = bc.relu.plan(z.imag)
    assert plan.sku.backend == "cuda"
    assert torch.equal(plan(negated), torch.relu(negated.resolve_neg()))
    assert bc.relu.plan(negated).sku.backend != "cuda"
    with pytest.raises(ValueError, match="a lazily conjugated or negated view"):
        plan(z.imag, out=negated)


def test_autograd_knows_what_a_kernel_has_written() -> None:
    x = randn(4, 8)
    plan, y = bc.relu.plan(x), torch.exp(x.clone().requires_grad_())
    plan(x, out=y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    with torch.inference_mode():
        hidden = torch.empty(4, 8, device="cuda")
    assert plan(x, out=hidden) is hidden


# Indices out of range.


@pytest.fixture
def table() -> tuple[torch.Tensor, torch.Tensor]:
    """64 rows of 128 elements, and an index into them."""
    return randn(64, 128), randint(128, 64, 128)


BAD = [
    (-1, torch.int32),
    (128, torch.int32),
    (2**31 - 1, torch.int32),
    (-(2**31), torch.int32),
    (-1, torch.int64),
    (128, torch.int64),
    (2**40, torch.int64),
    (2**63 - 1, torch.int64),
    (-(2**63), torch.int64),
]


@pytest.mark.parametrize("backend", ["cupy", "torch", "array_api"])
@pytest.mark.parametrize(("bad", "dtype"), BAD)
def test_a_body_skips_an_index_out_of_range_and_raises_it_later(
    bad: int, dtype: torch.dtype, backend: str, table: tuple[torch.Tensor, torch.Tensor]
) -> None:
    src, index = table[0], table[1].to(dtype)
    want = torch.gather(src, 1, index.long())
    index[3, 5], want[3, 5] = bad, 0
    y = bc.gather(src, index, axis=1, backend=backend)
    with pytest.raises(IndexError, match=rf"gather: index: .* got {bad} at position \(3, 5\)"):
        bc.check_errors()
    assert torch.equal(y, want)
    bc.check_errors()


def test_products_without_a_kernel_raise_an_index_out_of_range() -> None:
    x, src = randn(4), randn(3)
    index = torch.tensor([0, 7, 1], device="cuda")
    for call in (
        lambda: bc.scatter_reduce(x, index, src, axis=0, reduction="prod"),
        lambda: bc.scatter_reduce_backward(x, x, index, src, x, axis=0, reduction="prod"),
    ):
        call()
        with pytest.raises(IndexError, match=r"index: expected 0 <= i < 4, got 7 at position \(1,"):
            bc.check_errors()


@pytest.mark.parametrize("surfaces", ["next call", "next plan call", "check_errors"])
@pytest.mark.parametrize(("bad", "dtype"), BAD)
def test_an_index_out_of_range_is_skipped_and_raised_later(
    bad: int, dtype: torch.dtype, surfaces: str, table: tuple[torch.Tensor, torch.Tensor]
) -> None:
    src, index = table[0], table[1].to(dtype)
    want = torch.gather(src, 1, index.long())
    plan = bc.swiglu.plan(src)
    index[3, 5], want[3, 5] = bad, 0
    y = bc.gather(src, index, axis=1)
    message = rf"gather: index: expected 0 <= i < 128, got {bad} at position \(3, 5\)"
    if surfaces != "check_errors":
        torch.cuda.synchronize()
    with pytest.raises(IndexError, match=message):
        {"next call": lambda: bc.swiglu(src), "next plan call": lambda: plan(src),
         "check_errors": bc.check_errors}[surfaces]()  # fmt: skip
    # It is raised once, and the context lives.
    bc.check_errors()
    assert torch.equal(y, want)
    assert torch.equal(plan(src), bc.swiglu(src))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["raise", "drop"])
def test_what_is_out_of_range_adds_nothing(mode: str, dtype: torch.dtype, axis: int) -> None:
    dout, index = randn(64, 128, dtype=dtype), randint(64, 64, 128)
    bad = torch.zeros_like(index, dtype=torch.bool)
    bad[3, 5], bad[0, 0], bad[63, 127] = True, True, True
    valid = index.clone()
    index[bad] = torch.tensor([-1, 64, 2**50], device="cuda")
    shape = (64, 128) if axis == 0 else (64, 64)
    want = torch.zeros(shape, device="cuda", dtype=torch.float64)
    want.scatter_add_(axis, valid, dout.double().masked_fill(bad, 0))
    room = torch.full((shape[0] * shape[1] + 128,), 7.0, device="cuda", dtype=dtype)
    out = room[64:-64].view(shape)
    plan = bc.gather_backward.plan(dout, index, axis=axis, src_shape=shape, mode=mode)
    plan(dout, index, out=out)
    torch.cuda.synchronize()
    if mode == "raise":
        with pytest.raises(IndexError, match=r"gather_backward: index: expected 0 <= i < 64, got"):
            bc.check_errors()
    bc.check_errors()
    torch.testing.assert_close(out.double(), want, rtol=8e-3, atol=1e-4)
    assert bool((room[:64] == 7).all() & (room[-64:] == 7).all())


def test_drop_gives_zeros_and_no_error(table: tuple[torch.Tensor, torch.Tensor]) -> None:
    src, index = table
    index[3] = -1
    index[5] = 128
    y = bc.gather(src, index, axis=1, mode="drop")
    bc.check_errors()
    assert not y[[3, 5]].any()
    assert torch.equal(y[6:], torch.gather(src, 1, index.clamp(0, 127))[6:])


def test_an_error_found_while_others_run_is_raised_by_one_of_them(
    table: tuple[torch.Tensor, torch.Tensor],
) -> None:
    src, index = table
    good = index.clone()
    index[0, 0] = -7
    raised = []

    def task() -> None:
        for i in range(100):
            try:
                bc.gather(src, index if i == 50 else good, axis=1)
            except IndexError as error:
                raised.append(str(error))

    run_at_once([task] * 8)
    try:
        bc.check_errors()
    except IndexError as error:
        raised.append(str(error))
    assert 1 <= len(raised) <= 8
    assert all("got -7 at position (0, 0)" in text for text in raised)


# Determinism.


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Under torch's global switch."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


# Bins that do not fit on chip, so that it matters what is asked for.
SCATTER: dict[str, Any] = {"axis": 0, "src_shape": (90000,)}


def test_determinism_is_there_where_it_is_asked_for() -> None:
    dout, index = randn(5000), randint(90000, 5000)
    free = bc.gather_backward.plan(dout, index, **SCATTER)
    assert free.sku.variant.startswith("atomics, ")
    assert not free.sku.precision.deterministic
    asked = bc.gather_backward.plan(dout, index, **SCATTER, deterministic=True)
    assert asked.sku.variant.startswith("fixed point, ")
    assert asked.sku.precision.bit_stable
    torch.testing.assert_close(asked(dout, index), free(dout, index))


@pytest.mark.usefixtures("deterministic")
def test_the_global_switch_is_respected() -> None:
    dout, index = randn(5000), randint(90000, 5000)
    plan = bc.gather_backward.plan(dout, index, **SCATTER)
    assert plan.sku.backend == "cuda"
    assert plan.sku.precision.deterministic
    free = bc.gather_backward.plan(dout, index, **SCATTER, deterministic=False)
    assert not free.sku.precision.deterministic


def test_the_switch_counts_when_it_is_thrown() -> None:
    dout, index = randn(5000), randint(90000, 5000)
    want, plan = bc.gather_backward.planned(dout, index, **SCATTER)
    assert not plan.sku.precision.deterministic
    torch.use_deterministic_algorithms(True)
    try:
        got, plan = bc.gather_backward.planned(dout, index, **SCATTER)
        assert plan.sku.precision.deterministic
    finally:
        torch.use_deterministic_algorithms(False)
    torch.testing.assert_close(got, want)
    assert bc.gather_backward.plan(dout, index, **SCATTER).sku.variant.startswith("atomics, ")


@pytest.mark.parametrize("backend", ["cupy", "torch"])
def test_a_search_that_goes_on_ends_no_capture(
    backend: str, table: tuple[torch.Tensor, torch.Tensor]
) -> None:
    """Of a body, whose next call is recorded while nobody knows what was found."""
    src, index = table
    want = bc.gather(src, index, axis=1, backend=backend)
    bc.check_errors()
    torch.cuda._sleep(200_000_000)
    bc.gather(src, index, axis=1, backend=backend)
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        y = bc.gather(src, index, axis=1, backend="torch")
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, want)
