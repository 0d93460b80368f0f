"""The laws and more on an NVIDIA GPU: ``pytest -m gpu``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from device import EVERY, MARKS, SHORT, close, each_kernel, each_op, many, one_or_many, randn
from holding import hold

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.testing.cases import Subject

pytestmark = MARKS


@pytest.mark.parametrize("subject", EVERY, ids=str)
def test_laws(subject: Subject) -> None:
    hold(subject)


# Layouts.


def moved(x: torch.Tensor | None, by: int) -> torch.Tensor | None:
    """The same values and strides, `by` elements behind an aligned address."""
    if x is None:
        return None
    room = x.new_empty(x.numel() + by)
    view = room[by:].as_strided(x.shape, x.stride(), room.storage_offset() + by)
    return view.copy_(x)


@pytest.mark.parametrize("by", [1, 2, 4])
@each_kernel
def test_misaligned_views_give_what_copies_give(subject: Subject, by: int) -> None:
    for call in subject.calls():
        plain = call.given()
        views = [x if x is None else moved(x, by) for x in plain]
        close(call, call.run(views))
        # One plan for one alignment; both serve the other.
        close(call, call.plan(plain)(*views, **call.scalars))
        close(call, call.plan(views)(*plain, **call.scalars))
        # Only one of them.
        close(call, call.run([views[0], *plain[1:]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("offset", "step"), [(0, 64), (3, 67), (8, 72), (1, 200)])
def test_rows_apart_are_taken_as_they_lie(dtype: torch.dtype, offset: int, step: int) -> None:
    room = randn(33, step, dtype=dtype)
    # The last row may end before a whole step.
    x = room.flatten()[offset:].as_strided((32, 64), (step, 1), offset)
    bc.swiglu(x)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = bc.swiglu(x)
    assert torch.cuda.max_memory_allocated() - before <= max(y.nbytes, 512)
    assert torch.equal(y, bc.swiglu(x.contiguous()))
    if step != 64:
        assert bc.swiglu.plan(x).sku.layout == "strided"


def laid(x: torch.Tensor, layout: str) -> torch.Tensor:
    """An empty tensor like `x`, lying in another way."""
    if layout == "misaligned":
        return x.new_empty(x.numel() + 1)[1:].view(x.shape)
    if layout == "turned":
        return x.new_empty(tuple(reversed(x.shape))).permute(tuple(reversed(range(x.ndim))))
    room = x.new_empty((*x.shape[:-1], 2 * x.shape[-1] + 3)) if x.ndim else x.new_empty(3)
    return room[..., 1 : 1 + x.shape[-1]] if x.ndim else room[1]


@pytest.mark.parametrize("layout", ["misaligned", "turned", "rows apart"])
@pytest.mark.parametrize("subject", SHORT, ids=str)
def test_outputs_may_lie_in_any_way(subject: Subject, layout: str) -> None:
    for call in subject.calls():
        arrays = call.given()
        plan = call.plan(arrays)
        outs = [laid(x, layout) for x in call.run(arrays)]
        for x in outs:
            x.fill_(float("nan") if x.is_floating_point() else -9)
        plan(*arrays, out=one_or_many(outs), **call.scalars)
        close(call, tuple(outs))
        if not subject.spec.accumulates:
            continue
        plan(*arrays, out=one_or_many(outs), accumulate=True, **call.scalars)
        close(call, tuple(outs), times=2)
        for x in outs:
            x.fill_(0.5)
        plan(*arrays, out=one_or_many(outs), accumulate=True, **call.scalars)
        close(call, tuple(outs), plus=0.5)


@each_op
def test_what_lies_around_an_output_stays(subject: Subject) -> None:
    for call in subject.calls():
        arrays = call.given()
        plan = call.plan(arrays)
        for add in (False, True)[: 1 + subject.spec.accumulates]:
            rooms, outs = [], []
            for x in call.run(arrays):
                rooms.append(torch.full((x.numel() + 128,), 7.0, device="cuda", dtype=x.dtype))
                outs.append(rooms[-1][64:-64].view(x.shape))
            plan(*arrays, out=one_or_many(outs), accumulate=add, **call.scalars)
            for room in rooms:
                assert bool((room[:64] == 7).all() & (room[-64:] == 7).all())


# Past 2^31 elements.


# Past the caches kernels prefetch: positions that fill no block, rows ahead of one another, two
# dimensions of rows. And what they write passes by the L2.
PAST_CACHES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("lerp_backward", (8, (1 << 22) + 3), {"weight": 0.3}),
    ("gelu", (8, (1 << 22) + 3), {}),
    ("softmax", (8, 1021, 4096), {}),
    ("layer_norm", (8, 1021, 8192), {}),
    ("rope", (8, 16, 1021, 128), {}),
    ("rope", (8, 4096, 17, 32), {"interleaved": False}),
    ("rope_backward", (8, 1024, 16, 128), {"seq_axis": 1}),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "shape", "options"), PAST_CACHES)
def test_large_arrays_give_what_their_parts_give(
    name: str, shape: tuple[int, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    op, x = getattr(bc, name), randn(*shape, dtype=dtype)
    whole = many(op(x, **options))
    for i in range(len(x)):
        for got, want in zip(whole, many(op(x[i : i + 1], **options)), strict=True):
            assert torch.equal(got[i : i + 1], want)


@pytest.fixture
def large() -> Iterator[Callable[[], torch.Tensor]]:
    """Makes arrays of 2^31 + 2^20 elements; freed behind the test."""
    torch.cuda.empty_cache()
    size = 2**31 + 2**20
    if torch.cuda.mem_get_info()[0] < 8 * size:
        pytest.skip("needs 17 GB of free GPU memory")
    yield lambda: torch.empty(size, device="cuda", dtype=torch.bfloat16).uniform_(-1, 1)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("skip", [0, 1])
def test_past_2_to_the_31_elements(large: Callable[[], torch.Tensor], skip: int) -> None:
    a, b = large()[skip:], large()[skip:]
    y = bc.lerp(a, b, weight=0.25, backend="cuda")
    size = len(a)
    near = [torch.arange(at - 4096, at + 4096) for at in (4096, 2**30, 2**31, size - 4096)]
    at = torch.cat([*near, torch.randint(0, size, (1 << 20,))]).cuda()
    want = torch.lerp(a[at].double(), b[at].double(), 0.25)
    assert bool(((y[at].double() - want).abs() <= 2.0**-8 * want.abs() + 1e-6).all())


def test_few_elements_that_lie_far_apart(large: Callable[[], torch.Tensor]) -> None:
    room = large()
    x = room.as_strided((3, 96), (2**30, 1))
    assert torch.equal(bc.geglu(x, backend="cuda"), bc.geglu(x.contiguous(), backend="cuda"))
    dy = randn(3, 48, dtype=torch.bfloat16)
    want = bc.geglu_backward(dy, x.contiguous())
    assert torch.equal(bc.geglu_backward(dy, x), want)
    plan = bc.geglu_backward.plan(dy, x.contiguous())
    copy = x.contiguous()
    plan(dy, copy, out=x)
    assert torch.equal(x, want)


# Rope at large positions.


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("position", [1_000_000, 2**31 - 1, -(2**31 - 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["rope", "rope_backward"])
def test_rope_is_accurate_at_large_positions(
    name: str, dtype: torch.dtype, position: int, interleaved: bool
) -> None:
    from mpmath import mp, mpf

    mp.dps = 60
    pairs = 64
    x = torch.randn(2, 4, 2 * pairs, device="cuda", dtype=torch.float64).to(dtype)
    at = torch.full((4,), position, device="cuda", dtype=torch.int64)
    op: Any = registry[name]
    angles = [position * mpf(10000) ** (-mpf(i) / pairs) for i in range(pairs)]
    cos, sin = (
        np.array([np.longdouble(mp.nstr(f(angle), 25)) for angle in angles])
        for f in (mp.cos, mp.sin)
    )
    if name == "rope_backward":
        sin = -sin
    first = slice(0, None, 2) if interleaved else slice(0, pairs)
    second = slice(1, None, 2) if interleaved else slice(pairs, None)
    host = x.double().cpu().numpy().astype(np.longdouble)
    a, b = host[..., first], host[..., second]
    norm = np.hypot(a, b)
    for positions in (at, at.int()):
        got = op(x, positions, interleaved=interleaved, backend="cuda")
        y = got.double().cpu().numpy().astype(np.longdouble)
        for part, want in ((first, a * cos - b * sin), (second, a * sin + b * cos)):
            error = np.abs(y[..., part] - want) / (norm * torch.finfo(dtype).eps)
            assert error.max() <= 4, error.max()


# Tensors that are watched.

WATCHED: dict[str, Callable[[Any], Any]] = {
    "swiglu": lambda x: bc.swiglu(x),
    "geglu": lambda x: bc.geglu(x, axis=0, approximate="tanh"),
    "rope": lambda x: bc.rope(x),
    "lp_pool2d": lambda x: bc.lp_pool2d(x, norm_type=3, kernel_size=2),
    "lerp": lambda x: bc.lerp(x, torch.ones_like(x), weight=0.3),
    "gather": lambda x: bc.gather(x, x.new_zeros((4, 3), dtype=torch.int64), axis=1),
}


@pytest.mark.parametrize("name", list(WATCHED))
def test_gradients_by_finite_differences(name: str) -> None:
    x = randn(4, 8, dtype=torch.float64).requires_grad_()
    y = WATCHED[name](x)
    assert y.requires_grad
    assert torch.equal(y.detach(), WATCHED[name](x.detach()))
    assert torch.autograd.gradcheck(WATCHED[name], x, nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(WATCHED[name], x, nondet_tol=1e-12)


def test_watched_tensors_run_the_kernels() -> None:
    x, dy = randn(64, 256).requires_grad_(), randn(64, 128)
    assert bc.swiglu.plan(x).sku == bc.swiglu.plan(x.detach()).sku
    assert bc.swiglu.plan(x).sku.backend == "cuda"
    y = bc.swiglu(x, backend="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        aside = x.detach().requires_grad_()
        z = bc.swiglu(aside)
    torch.cuda.current_stream().wait_stream(stream)
    want = bc.swiglu_backward(dy, x.detach(), backend="cuda")
    for out, leaf in ((y, x), (z, aside)):
        assert torch.equal(torch.autograd.grad(out, leaf, dy)[0], want)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        assert bc.swiglu.plan(dual).sku.backend == "array_api"
        what = "cuda: forward-mode arrays need functions that can be differentiated"
        with pytest.raises(NotImplementedError, match=what):
            bc.swiglu(dual, backend="cuda")
    with torch.no_grad():
        assert not bc.swiglu(x).requires_grad


def test_a_plan_for_plain_tensors_serves_watched_ones() -> None:
    x = randn(64, 256)
    plan = bc.swiglu.plan(x)
    assert plan.sku.backend == "cuda"
    watched = x.clone().requires_grad_()
    assert plan(watched).requires_grad
    assert not plan(x).requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("norm_type", [0.5, 1.5, 2.5])
def test_a_window_of_one_subnormal_has_a_slope_of_one(norm_type: float, dtype: Any) -> None:
    x = torch.tensor([[1e-40, -3e-39, 9e-41, 1e-38, -2.0, 0.0]], dtype=dtype, device="cuda")
    got = bc.lp_pool1d_backward(
        torch.ones_like(x), x, x.abs(), norm_type=norm_type, kernel_size=1, stride=1
    )
    torch.testing.assert_close(got, x.sign())
