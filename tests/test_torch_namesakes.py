"""Functions of torch in the places of bodies keep the contract: roundings, edges, tails, SKUs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import baracuda as bc
from baracuda.backends.torch import blocks, norms
from baracuda.backends.torch.namesakes import NAMESAKES
from baracuda.calls.op import registry
from baracuda.testing.cases import many

POINTWISE = [name for name in NAMESAKES if registry[name].spec.pointwise]
HALVES = [torch.float16, torch.bfloat16]
# No 16-bit number is any of these: an op that rounded its options first would be found.
ODD = {
    "negative_slope": 0.3, "threshold": 0.1, "value": -2.3, "min_val": -0.3, "max_val": 0.7,
    "lambd": 0.3, "alpha": 0.7, "beta": 0.7, "weight": 0.3,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def scalars(name: str) -> dict[str, float]:
    return {option: ODD[option] for option in registry[name].spec.scalars}


def same(got: torch.Tensor, want: torch.Tensor, room: torch.Tensor) -> None:
    """Within `room`, NaN and infinities in the same places."""
    got, want = got.double(), want.double()
    fits = (got == want) | (got.isnan() & want.isnan()) | ((got - want).abs() <= room)
    assert fits.all(), (got[~fits][:4], want[~fits][:4], int((~fits).sum()))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_every_number_of_16_bits_is_rounded_once(name: str, dtype: torch.dtype) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    spec, options = registry[name].spec, scalars(name)
    # What is beyond the square root of the largest number overflows on the way.
    every = every[~(every.double().abs() > 1e18) | every.isinf()]
    for fixed in (1.0, -0.7):
        arrays = [torch.full_like(every, fixed)] * (len(spec.arrays) - 1) + [every]
        plan = registry[name].plan(*arrays, **options)
        assert plan.sku.kernel == f"aten::{NAMESAKES[name].name}"
        want = registry[name](*[x.double() for x in arrays], **options, backend="array_api")
        body = registry[name](*arrays, **options, backend="array_api")
        eps = torch.finfo(dtype).eps
        size = want.abs() + (abs(fixed) if len(arrays) > 1 else 0)
        room = 0.5 * eps * (1 + eps) * want.abs() + 2.0**-20 * size
        room += 2.0**-24 if dtype == torch.float16 else 2.0**-126
        sharp = want.double() - body.double()
        # At a bend the scalar in float32 decides, as in the body.
        bend = sharp.abs() > room
        # torch takes neighbours as vectors, and elements apart one by one.
        apart = [torch.stack([x, x], 1)[:, 0] for x in arrays]
        for got in (plan(*arrays, **options), registry[name](*apart, **options)):
            same(got[~bend], want[~bend], room[~bend])
            same(got[bend], body[bend], torch.zeros(()))


def test_skus_name_what_runs() -> None:
    x = torch.randn(3, 8)
    for op, kernel, variant in (
        (bc.relu, "aten::relu", ""),
        (bc.gelu, "aten::erfc", ""),
        (bc.geglu, "aten::erfc", "corrected"),
        (bc.softmax, "aten::_softmax", "corrected"),
        (bc.tanhshrink, "body", ""),
    ):
        sku = op.plan(x).sku
        assert (sku.backend, sku.kernel, sku.variant) == ("torch", kernel, variant)
        assert torch.equal(op(x, sku=sku), op(x))
    assert bc.softmax.plan(x, causal=True).sku.kernel == "body"
    assert bc.softmax.plan(x[:0]).sku.kernel == "body"
    assert bc.gelu.plan(x.numpy(), backend="torch").sku.kernel == "aten::erfc"
    # 1/6 is one of float32 in torch.
    assert bc.hardsigmoid_backward.plan(x.double(), x.double()).sku.kernel == "body"


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
@pytest.mark.parametrize("name", [name for name in POINTWISE if NAMESAKES[name].corrected])
def test_nan_and_infinities_are_those_of_the_body_wherever_they_stand(name: str, size: int) -> None:
    op, options = registry[name], scalars(name)
    for special in (math.nan, math.inf, -math.inf):
        x = torch.linspace(-3, 3, size)
        x[::3] = special
        arrays = [torch.ones(size)] * (len(op.spec.arrays) - 1) + [x]
        want = op(*arrays, **options, backend="array_api")
        same(op(*arrays, **options), want, 1e-5 + 1e-5 * want.abs())


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("huge", [1e30, 3e38, math.inf])
def test_slopes_of_gelu_at_huge_numbers_are_those_of_the_body(size: int, huge: float) -> None:
    """torch's tanh form has cubes, which overflow."""
    x = torch.linspace(-1, 1, size)
    x[::3] = huge
    one, more = torch.ones(size), {"approximate": "tanh"}
    for op, given in ((bc.gelu_backward, (one, x)), (bc.geglu_backward, (one, one, x))):
        got, want = op(*given, **more), op(*given, **more, backend="array_api")
        torch.testing.assert_close(got, want, equal_nan=True)
        assert (
            huge == math.inf
            or not torch.cat(got if isinstance(got, tuple) else (got,)).isnan().any()
        )


def test_gelu_takes_a_window_whose_elements_share_memory() -> None:
    x = torch.randn(200, dtype=torch.bfloat16).as_strided((5, 3, 7), (1, 2, 2), 1)
    dy = torch.randn_like(x)
    for call in (bc.gelu, lambda x: bc.gelu_backward(dy, x), lambda x: bc.gelu_backward(x, dy)):
        torch.testing.assert_close(call(x), call(x.contiguous()), rtol=0, atol=0)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=str)
def test_gelu_keeps_its_digits_in_the_tail(dtype: torch.dtype, approximate: str) -> None:
    x = torch.linspace(-9, 1, 2001, dtype=torch.float64).to(dtype)
    want = bc.gelu(x.numpy() if dtype == torch.float64 else x.double().numpy(),
                   approximate=approximate)  # fmt: skip
    eps = torch.finfo(dtype).eps
    room = torch.from_numpy((0.51 if dtype in HALVES else 100) * eps * np.abs(want))
    for given in (x, torch.stack([x, x], 1)[:, 0]):
        same(bc.gelu(given, approximate=approximate), torch.from_numpy(want), room + 2.0**-24
             * (dtype == torch.float16))  # fmt: skip


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=str)
def test_geglu_keeps_its_digits_in_the_tail(
    dtype: torch.dtype, approximate: Any, gate_first: bool
) -> None:
    """Of two arrays and of one, along any axis, also where halves lie apart; as the body does."""
    more: dict[str, Any] = {"approximate": approximate, "gate_first": gate_first}
    dy, a = torch.randn(2, 20, 40, dtype=torch.float64).to(dtype)
    b = torch.linspace(-9, 2, 800, dtype=torch.float64).reshape(20, 40).to(dtype)
    wide = [x.double() for x in (dy, a, b)]
    body = {"backend": "array_api", **more}
    want = bc.geglu(*wide[1:], **body), *bc.geglu_backward(*wide, **body)
    eps = torch.finfo(dtype).eps * (0.51 if dtype in HALVES else 100)
    halves = [b, a] if gate_first else [a, b]
    found = [(bc.geglu(a, b, **more), *bc.geglu_backward(dy, a, b, **more))]
    for axis in (0, 1):
        both = torch.cat(halves, axis)
        both = torch.stack([both, both], -1)[..., 0] if axis else both
        dx = bc.geglu_backward(dy, both, axis=axis, **more).chunk(2, axis)
        found.append((bc.geglu(both, axis=axis, **more), *(dx[::-1] if gate_first else dx)))
    for got in found:
        for x, y in zip(got, want, strict=True):
            tiny = 2.0**-24 * (dtype == torch.float16)
            # A slope crosses 0 above the tail: terms of a fourth of its factors cancel there.
            crosses = (b > -2) if y is want[2] else torch.zeros_like(b)
            same(x, y, eps * (y.abs() + crosses * 0.02 * (wide[0] * a).abs()) + tiny)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_geglu_has_the_edges_of_the_body(special: float) -> None:
    dy, a, b = torch.randn(3, 50)
    b[::7] = special
    a[::5] = special
    for op, given in ((bc.geglu, (a, b)), (bc.geglu_backward, (dy, a, b))):
        results = [op(*given), op(*given, backend="array_api")]
        for x, y in zip(*[r if isinstance(r, tuple) else (r,) for r in results], strict=True):
            torch.testing.assert_close(x, y, equal_nan=True)


@pytest.mark.parametrize("far", [1e4, 1e6])
@pytest.mark.parametrize("name", ["layer_norm", "group_norm", "instance_norm"])
def test_rows_far_from_0_keep_their_digits(name: str, far: float) -> None:
    near = torch.arange(64.0).reshape(2, 4, 8).sin().mul(64).round()
    options = {"num_groups": 2} if name == "group_norm" else {}
    op, backward = registry[name], registry[f"{name}_backward"]
    same(op(near + far, **options), op(near, **options), torch.tensor(1e-5))
    dy = torch.cos(near)
    same(backward(dy, near + far, **options), backward(dy, near, **options), torch.tensor(1e-5))


def test_rows_of_which_nothing_counts_are_those_of_the_definition() -> None:
    x = torch.tensor([[-math.inf] * 3, [0.0, 1.0, -math.inf], [1.0, math.nan, 2.0]])
    for op, backward in (
        (bc.softmax, bc.softmax_backward), (bc.log_softmax, bc.log_softmax_backward)
    ):  # fmt: skip
        y = op(x, backend="array_api")
        same(op(x), y, torch.tensor(1e-6))
        dy = torch.tensor([[1.0, -2.0, 4.0]] * 3)
        same(backward(dy, y), backward(dy, y, backend="array_api"), torch.tensor(1e-6))


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
def test_classes_out_of_range_are_dropped(
    axis: int, index: torch.dtype, reduction: str, smoothing: float, weighted: bool
) -> None:
    x = torch.arange(60.0).reshape(3, 5, 4).sin()
    shape = [n for i, n in enumerate(x.shape) if i != axis % 3]
    target = (torch.arange(math.prod(shape)).reshape(shape) - 2).to(index)
    options: dict[str, Any] = {"axis": axis, "mode": "drop", "reduction": reduction,
                               "ignore_index": 1}  # fmt: skip
    weight = torch.arange(x.shape[axis]).cos() + 2 if weighted else None
    for op, more in (
        (bc.nll_loss, {}),
        (bc.cross_entropy, {"label_smoothing": smoothing}),
        (bc.cross_entropy_with_gradient, {"label_smoothing": smoothing}),
    ):
        assert op.plan(x, target, weight, **options, **more).sku.kernel.startswith("aten::")
        got = many(op(x, target, weight, **options, **more))
        want = many(op(x, target, weight, **options, **more, backend="array_api"))
        for a, b in zip(got, want, strict=True):
            same(a, b, 1e-6 + 1e-6 * b.abs())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *HALVES], ids=str)
def test_the_slope_of_a_bend_of_no_width_is_0_in_it(dtype: torch.dtype) -> None:
    x = torch.tensor([-2.0, 0.0, 3.0, math.nan], dtype=dtype)
    one, zero = torch.ones(4, dtype=dtype), torch.zeros(4, dtype=dtype)
    want = torch.tensor([-1.0, 0.0, 1.0, math.nan])
    options: dict[str, Any] = {"reduction": "none"}
    same(bc.smooth_l1_loss_backward(one, x, zero, **options, beta=0), want, torch.tensor(0))
    same(bc.l1_loss_backward(one, x, zero, **options), want, torch.tensor(0))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_is_added_in_16_bits_is_rounded_once(dtype: torch.dtype) -> None:
    x = torch.linspace(-3, 3, 999).to(dtype)
    start = torch.linspace(0.5, 2, 999).to(dtype)
    out = start.clone()
    bc.silu_backward.plan(x, x)(x, x, out=out, accumulate=True)
    want = start.float() + bc.silu_backward(x.float(), x.float())
    assert torch.equal(out, want.to(dtype))


def test_into_another_layout_go_the_same_bits() -> None:
    x = torch.randn(64, 33).T
    plan = bc.mish.plan(x)
    for out in (torch.empty(33, 64), torch.empty(64, 33).T, torch.empty(33, 130)[:, ::2][:, :64]):
        plan(x, out=out)
        assert torch.equal(out, plan(x))


def test_the_gradient_of_a_watched_call_is_the_explicit_one() -> None:
    x, dy = torch.randn(5, 16, requires_grad=True), torch.randn(5, 16)
    for op, backward in ((bc.gelu, bc.gelu_backward), (bc.silu, bc.silu_backward)):
        y = op(x)
        assert y.grad_fn.name() == "FusedBackward"
        (dx,) = torch.autograd.grad(y, x, dy)
        assert torch.equal(dx, backward(dy, x.detach()))
    assert torch.autograd.gradgradcheck(bc.gelu, x.detach().double().requires_grad_())


@pytest.mark.parametrize("threshold", [20.0, 1e3, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_softplus_of_any_threshold_has_finite_slopes(
    dtype: torch.dtype, threshold: float
) -> None:
    x = torch.tensor([-1000.0, -50.0, 0.0, 19.0, 30.0, 90.0, 800.0, 1e5], dtype=dtype)
    one = torch.ones_like(x)
    same(bc.softplus(x, threshold=threshold), x.clamp(0) + torch.log1p(torch.exp(-x.abs())),
         1e-6 * one)  # fmt: skip
    same(bc.softplus_backward(one, x, threshold=threshold), torch.sigmoid(x), 1e-6 * one)


@pytest.mark.parametrize("shape", [(7, 9, 16), (130, 3), (1, 400), (400,)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_in_blocks_are_rows_at_once(
    monkeypatch: pytest.MonkeyPatch, dtype: str, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    dy, x = torch.randn(2, *shape, dtype=kind)
    x += 100
    weight, bias = torch.randn(2, shape[-1], dtype=kind)

    apart = torch.stack([x, x], -1)[..., 0]

    def every() -> list[torch.Tensor]:
        forward, backward = bc.layer_norm, bc.layer_norm_backward
        given = torch.full_like(x, torch.nan)
        forward.plan(x, weight, bias)(x, weight, bias, out=given)
        return [
            forward(x), forward(x, weight, bias), given, forward(apart, weight),
            backward(dy, x), *backward(dy, x, weight),
        ]  # fmt: skip

    calls = list[str]()
    whole = every()
    monkeypatch.setattr(norms, "_BLOCK", 32)
    monkeypatch.setattr(norms, "_LARGE", 256)
    for name in ("_layer_norm", "_layer_norm_backward"):
        serve = getattr(norms, name)
        counted = lambda *some, of=serve, name=name: calls.append(name) or of(*some)  # noqa: E731
        monkeypatch.setattr(norms, name, counted)
    *cut, dw, db = every()
    for have, want in zip(cut, whole[:-2], strict=True):
        assert torch.equal(have, want)
    many = x.numel() // shape[-1]
    for have, want in zip((dw, db), whole[-2:], strict=True):
        room = 4 * torch.finfo(kind).eps * many**0.5 * max(1.0, float(want.abs().max()))
        assert torch.all((have - want).abs() <= room)
    # Rows near 0 would be served by the first call of each.
    blocks = -(-many // max(32 // shape[-1], 1))
    assert calls.count("_layer_norm") == 4 * (1 + blocks)
    assert calls.count("_layer_norm_backward") == 2 * blocks
    calls.clear()
    bc.layer_norm(x - x.mean(-1, keepdim=True))
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["swiglu", "swiglu_backward", "softsign_backward", "tanhshrink"])
def test_bodies_in_blocks_give_what_they_give_at_once(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed along any axis and in any order, into given arrays and added to them."""
    op, packed = registry[name], registry[name].spec.packed
    choices = [{"axis": a, "gate_first": g} for a in (0, 1, 2) for g in (False, True)]
    for options in choices if packed else [{}]:
        shape, both = (4, 6, 10), [4, 6, 10]
        both[options.get("axis", 0)] *= 2
        given = [
            torch.randn(both if packed and n == "x" else shape).to(dtype)
            for n in op.spec.arrays
            if packed is None or n != "gate"
        ]
        want = op(*given, **options, backend="array_api")
        monkeypatch.setattr(blocks, "BLOCK", 40)
        bc.plan_cache.clear()
        plan = op.plan(*given, **options)
        assert plan.sku.variant == "blocks of 40"
        results = plan(*given)
        wanted = want if isinstance(want, tuple) else (want,)
        found = results if isinstance(results, tuple) else (results,)
        for have, x in zip(found, wanted, strict=True):
            torch.testing.assert_close(have, x)
        outs = tuple([torch.ones_like(x) for x in wanted])
        plan(*given, out=outs if len(outs) > 1 else outs[0])
        for have, x in zip(outs, wanted, strict=True):
            torch.testing.assert_close(have, x)
        if op.spec.adjoint_of:
            plan(*given, out=outs[0], accumulate=True)
            twice = 2 * wanted[0].float()
            torch.testing.assert_close(outs[0].float(), twice, rtol=1e-2, atol=1e-2)
        monkeypatch.undo()
    bc.plan_cache.clear()


MANY = {"layer_norm": (1 << 15, 4), "batch_norm": (1 << 15, 4), "instance_norm": (1, 2, 512, 512)}


@pytest.mark.parametrize("op", MANY)
def test_gradients_of_parameters_are_sums_of_many_numbers(op: str) -> None:
    # Numbers of one sign, which lose digits where they are added up one by one.
    torch.manual_seed(0)
    dy, x = torch.rand(2, *MANY[op])
    weight, zero = torch.ones(x.shape[1]), torch.zeros(x.shape[1])
    zeros = (zero, zero) if op == "batch_norm" else ()
    *_, dbias = bc.__dict__[f"{op}_backward"](dy, *zeros, x, weight)
    want = dy.double().sum([0, *range(2, x.ndim)])
    assert ((dbias - want).abs() <= 3e-7 * want).all()
