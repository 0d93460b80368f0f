"""Gather and its gradient on an NVIDIA GPU: every form, against float64 and against itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from device import MARKS, randint, randn

import baracuda as bc

pytestmark = MARKS

Shape = tuple[int, ...]


def zipf(high: int, *shape: int) -> torch.Tensor:
    """A few indices most of the time."""
    drawn = np.random.default_rng().zipf(1.2, size=4 * shape[0])
    drawn = np.resize(drawn[drawn <= high] - 1, shape[0])
    return torch.from_numpy(drawn).cuda().reshape(shape[0], *(1 for _ in shape[1:])).expand(shape)


def rows(high: int, *shape: int) -> torch.Tensor:
    """One index for each row."""
    return randint(high, shape[0], *(1 for _ in shape[1:])).expand(shape)


def ascending(high: int, *shape: int) -> torch.Tensor:
    """In order."""
    return randint(high, *shape).sort().values


def skewed(high: int, *shape: int) -> torch.Tensor:
    """Half of all in one bin, the others in a few parts."""
    return torch.where(randint(2, *shape) == 0, high // 3, randint(high // 9, *shape))


def one(high: int, *shape: int) -> torch.Tensor:
    """All indices the same."""
    return torch.full(shape, high // 2, device="cuda")


def one_row(high: int, *shape: int) -> torch.Tensor:
    """All rows the same."""
    return torch.full((shape[0], 1), high // 2, device="cuda").expand(shape)


def outside(high: int, *shape: int) -> torch.Tensor:
    """Nothing in range."""
    return torch.where(
        randint(2, *shape) == 0, -1 - randint(99, *shape), high + randint(99, *shape)
    )


# Form, shape of dout, of src, axis, how the index is drawn.
PROBLEMS: dict[str, tuple[str, Shape, Shape, int, Callable[..., torch.Tensor]]] = {
    "rows on chip": ("tiles", (300, 1000), (300, 700), 1, randint),
    "long rows": ("tiles", (70, 9000), (70, 8192), 1, randint),
    "48 KiB in float32": ("tiles", (70, 5000), (70, 4092), 1, randint),
    "rows in slices": ("tiles", (70, 3000), (70, 40000), 1, randint),
    "odd rows": ("tiles", (3, 5, 333), (3, 5, 77), -1, randint),
    "one bin a row": ("tiles", (100, 500), (100, 64), 1, one),
    "columns on chip": ("tiles", (4, 100, 8, 32), (4, 65, 8, 32), 1, randint),
    "columns, not a multiple": ("tiles", (3, 50, 41), (3, 30, 41), 1, randint),
    "columns transposed": ("transposed", (2, 900, 64), (2, 3000, 64), 1, randint),
    "many columns transposed": ("transposed", (1500, 1500), (4100, 1500), 0, randint),
    "odd columns transposed": ("transposed", (3, 777, 333), (3, 8001, 333), 1, randint),
    "as many as fit": ("transposed", (8192, 32), (8192, 32), 0, randint),
    "labels": ("few a row", (500, 1), (500, 3200), 1, randint),
    "four a row": ("few a row", (50, 4), (50, 64), 1, randint),
    "embedding": ("lists", (3000, 96), (5000, 96), 0, rows),
    "embedding, odd": ("lists", (777, 333), (1000, 333), 0, rows),
    "embedding, few rows": ("lists", (3000, 128), (3, 128), 0, rows),
    "embedding, Zipf": ("lists", (9000, 264), (5000, 264), 0, zipf),
    "embedding, one row": ("lists", (5000, 64), (50, 64), 0, one_row),
    "rank 1": ("atomics", (200000,), (40000,), 0, randint),
    "rank 1, one bin": ("atomics", (200000,), (40000,), 0, one),
    "parts": ("partition", (1500000,), (131072,), 0, randint),
    "parts, odd": ("partition", (1100001,), (100003,), 0, randint),
    "parts, one bin": ("partition", (1100000,), (100000,), 0, one),
    "parts, sorted": ("partition", (1100000,), (100000,), 0, ascending),
    "parts, skewed": ("partition", (1100000,), (100000,), 0, skewed),
    "parts of rows": ("partition", (3, 400000), (3, 40000), 1, randint),
    "parts of an index smaller than src": ("partition", (2, 200000, 3), (3, 9000, 4), 1, randint),
    "index smaller than src": ("atomics", (20, 30), (40, 50), 0, randint),
}
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
each_problem = pytest.mark.parametrize("name", list(PROBLEMS))
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def made(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """The arrays and options of a problem; the order of `one` is not random, its values are."""
    _, shape, src, axis, draw = PROBLEMS[name]
    options = {"axis": axis, "src_shape": src}
    return randn(*shape, dtype=dtype), draw(src[axis], *shape), options


def close(
    got: torch.Tensor, dout: torch.Tensor, index: torch.Tensor, axis: int, start: float = 0.0
) -> None:
    """Within the error of a sum in the accumulate type, from `start`, rounded once."""
    good = (index >= 0) & (index < got.shape[axis])
    x, at = dout.double() * good, index.clamp(0, got.shape[axis] - 1)
    zeros = torch.zeros(got.shape, device="cuda", dtype=torch.float64)
    want, size = (start + zeros.scatter_add(axis, at, y) for y in (x, x.abs()))
    most = zeros.scatter_add(axis, at, good.double())
    eps = torch.finfo(torch.float64 if got.dtype == torch.float64 else torch.float32).eps
    allowed = want.abs() * torch.finfo(got.dtype).eps / 2 + size * eps * (most + 1).clamp(max=64)
    # The reference adds in float64 itself.
    allowed += size * 2.0**-52 * most + torch.finfo(got.dtype).smallest_normal
    assert bool(((got.double() - want).abs() <= allowed).all())


def narrow(index: torch.Tensor) -> torch.Tensor:
    """The same as int32, with the same strides."""
    if index.stride(-1):
        return index.int()
    return index[:, :1].int().expand(index.shape)


def poisoned(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan"), device="cuda", dtype=dtype)


@each_dtype
@each_problem
def test_the_form_that_is_chosen_adds_up(name: str, dtype: torch.dtype) -> None:
    dout, index, options = made(name, dtype)
    plan = bc.gather_backward.plan(dout, index, **options)
    wide = dtype == torch.float64 and name in ("long rows", "as many as fit", "rows in slices")
    if not wide:
        assert plan.sku.variant.startswith(PROBLEMS[name][0] + ",")
    out = poisoned(options["src_shape"], dtype)
    plan(dout, index, out=out)
    close(out, dout, index, options["axis"])
    again = bc.gather_backward(dout, narrow(index), **options)
    close(again, dout, index, options["axis"])
    if plan.sku.precision.deterministic:
        assert torch.equal(out, again)


@each_dtype
@each_problem
def test_what_is_deterministic_is_so_under_load(name: str, dtype: torch.dtype) -> None:
    dout, index, options = made(name, dtype)
    plan = bc.gather_backward.plan(dout, index, deterministic=True, **options)
    assert plan.sku.precision.deterministic
    assert plan.sku.precision.bit_stable
    first = plan(dout, index)
    close(first, dout, index, options["axis"])
    other, busy = torch.cuda.Stream(), randn(1 << 22)
    for i in range(100):
        with torch.cuda.stream(other):
            busy.mul_(1.0 + i % 2)
        assert torch.equal(plan(dout, index), first)


@each_dtype
@each_problem
def test_every_form_adds_up_at_every_range(name: str, dtype: torch.dtype) -> None:
    """Values so far apart that one scale cannot hold them, and values that are hardly any."""
    dout, index, options = made(name, dtype)
    tiny = torch.finfo(dtype).smallest_normal
    far = {torch.float16: 2.0**-12, torch.float64: 2.0**-600}.get(dtype, 2.0**-60)
    scale = torch.where(randint(2, *dout.shape) == 0, 1.0, far).double()
    for x in (dout.double() * scale, dout.double() * tiny, dout.double() * 0):
        values = x.to(dtype)
        got = bc.gather_backward(values, index, **options, deterministic=True)
        close(got, values, index, options["axis"])


@each_dtype
@each_problem
def test_infinities_and_nans_stay_in_their_bins(name: str, dtype: torch.dtype) -> None:
    dout, index, options = made(name, dtype)
    flat = dout.view(-1)
    for i, x in enumerate((float("inf"), float("-inf"), float("nan"), float("inf"))):
        flat[(i * 7919) % flat.numel()] = x
    zeros = torch.zeros(options["src_shape"], device="cuda", dtype=torch.float64)
    want = zeros.scatter_add(options["axis"], index, dout.double())
    for fixed in (True, False):
        got = bc.gather_backward(dout, index, **options, deterministic=fixed)
        bad = ~want.isfinite()
        assert torch.equal(got.double()[bad].nan_to_num(7.0), want[bad].nan_to_num(7.0))
        assert bool(got[~bad].isfinite().all())


@each_dtype
@each_problem
def test_nothing_in_range_gives_zeros(name: str, dtype: torch.dtype) -> None:
    dout, index, options = made(name, dtype)
    high = options["src_shape"][options["axis"]]
    first = index[(slice(None), *(slice(0, 1) for _ in index.shape[1:]))]
    bad = outside(high, *first.shape) if index.stride(-1) == 0 else outside(high, *index.shape)
    out = poisoned(options["src_shape"], dtype)
    plan = bc.gather_backward.plan(dout, bad.expand(index.shape), **options, mode="drop")
    plan(dout, bad.expand(index.shape), out=out)
    assert not out.any()
    bc.check_errors()
    bc.gather_backward(dout, bad.expand(index.shape), **options)
    with pytest.raises(IndexError, match="gather_backward: index: expected 0 <= i <"):
        bc.check_errors()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@each_problem
def test_sums_are_added_into_an_output_of_any_layout(name: str, dtype: torch.dtype) -> None:
    dout, index, options = made(name, dtype)
    shape, axis = options["src_shape"], options["axis"]
    plan = bc.gather_backward.plan(dout, index, **options, deterministic=True)
    want = plan(dout, index)
    apart = torch.ones((*shape[:-1], 2 * shape[-1]), device="cuda", dtype=dtype)[..., ::2]
    for out in (torch.ones(shape, device="cuda", dtype=dtype), apart):
        plan(dout, index, out=out, accumulate=True)
        close(out, dout, index, axis, 1.0) if dtype == torch.float32 else None
        torch.testing.assert_close(out.float(), 1 + want.float(), rtol=2e-2, atol=2e-2)
    plan(dout, index, out=apart)
    close(apart, dout, index, axis)


def test_a_workspace_is_declared_and_bounded() -> None:
    dout, index, options = made("embedding", torch.bfloat16)
    plan = bc.gather_backward.plan(dout, index, **options)
    assert plan.workspace_size > 4 * len(dout)
    less = bc.gather_backward.plan(dout, index, **options, max_workspace_bytes=0)
    assert less.workspace_size == 0
    close(less(dout, index), dout, index, 0)


def test_a_plan_runs_after_another_that_takes_less_shared_memory() -> None:
    made = []
    for extent in (16000, 6000):
        dout, index = randn(70, 5000), randint(extent, 70, 5000)
        plan = bc.gather_backward.plan(dout, index, axis=1, src_shape=(70, extent))
        made.append((plan, dout, index, plan(dout, index)))
    plan, dout, index, first = made[0]
    assert torch.equal(plan(dout, index), first)


def test_offsets_past_32_bits() -> None:
    rows = 2**31 // 8192 + 1
    dout = torch.ones((rows, 1), device="cuda", dtype=torch.float16)
    index = randint(8192, rows, 1)
    got = bc.gather_backward(dout, index, axis=1, src_shape=(rows, 8192))
    assert torch.equal(got.argmax(1), index[:, 0])
    assert float(got[:1000].sum()) == 1000
    assert float(got[-1000:].sum()) == 1000
    del got
    wide = torch.ones((rows, 8192), device="cuda", dtype=torch.bfloat16)
    got = bc.gather_backward(wide, index.expand(-1, 8192), axis=0, src_shape=(rows, 8192))
    counts = torch.bincount(index[:, 0], minlength=rows).to(torch.bfloat16)
    assert torch.equal(got[:, 0], counts)
    assert torch.equal(got[:, -1], counts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
@pytest.mark.parametrize(
    ("src", "shape", "axis"),
    [((300, 700), (300, 1000), 1), ((4, 65, 8, 32), (4, 100, 8, 32), 1), ((77, 41), (90, 41), 0)],
)
def test_gather_over_the_chip(
    src: Shape, shape: Shape, axis: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baracuda.backends.cuda import tune

    monkeypatch.setattr(tune, "least", lambda tasks, timer: "tiles")
    x, index = randint(99, *src).to(dtype), randint(src[axis], *shape)
    y, plan = bc.gather.planned(x, index, axis=axis, autotune=True)
    assert plan.sku.variant.startswith("tiles,")
    assert torch.equal(y, torch.gather(x, axis, index))
    index.view(-1)[3] = -1
    y = plan(x, index, out=torch.full_like(y, 7))
    assert y.view(-1)[3] == 0
    with pytest.raises(IndexError, match="gather: index: expected 0 <= i <"):
        bc.check_errors()
    bc.plan_cache.clear()
