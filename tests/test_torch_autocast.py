"""Autocast regions of torch: dtypes beside those of torch's functions, plans, graphs, training."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import baracuda as bc
import baracuda.nn
from baracuda.calls.op import registry
from baracuda.declaration.dtypes import name_of
from baracuda.testing import regions

NARROW = (torch.bfloat16, torch.float16)
# Ops whose result may be wider than their input.
WIDENED = [
    name
    for name, op in registry.items()
    if op.spec.autocast == "float32" and any(role.chosen for role in op.spec.roles.values())
]
TARGET = torch.tensor([0, 2, 4, 1, 3, 5])


def region(
    dtype: torch.dtype = torch.bfloat16, enabled: bool = True
) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=dtype, enabled=enabled)


def called(name: str) -> partial[Any]:
    """An op with the run-time values that it has to be given."""
    spec = registry[name].spec
    first = spec.cases[0].options
    needed = {n: first[n] for n in spec.scalars if n not in spec.defaults}
    return partial(registry[name], **needed)


def arguments(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """An input that watches, and float32 parameters where the op has some."""
    torch.manual_seed(3)
    # What broadcasts to the input is no parameter.
    others = [p for p in registry[name].spec.signatures[-1].inputs[1:] if not p.broadcasts]
    weights = [torch.randn(8, requires_grad=True) for _ in others]
    return [torch.randn(4, 8, dtype=dtype, requires_grad=True), *weights]


def test_the_declarations_say_what_a_region_does() -> None:
    norms, shares = WIDENED[:3], WIDENED[3:]
    assert norms == ["logsumexp", "rms_norm", "layer_norm"]
    assert shares == ["softmax", "log_softmax", "softmax_dropout"]
    kinds = {name: op.spec.autocast for name, op in registry.items()}
    products = [name for name, kind in kinds.items() if kind == "region"]
    assert products == [
        "linear_cross_entropy",
        "linear_kl_div",
        "linear_log_prob",
        "linear_topk_kl_div",
    ]
    for name, op in registry.items():
        if op.spec.adjoint_of or op.spec.ahead_of:
            assert kinds[name] == ""
    losses = [n for n, op in registry.items() if op.spec.category == "loss"]
    assert {kinds[n] for n in losses if not registry[n].spec.adjoint_of} == {"float32"}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("backend", [None, "torch", "array_api"])
@pytest.mark.parametrize("name", WIDENED)
def test_a_wider_result_was_never_rounded(
    name: str, backend: str | None, dtype: torch.dtype
) -> None:
    op, (x, *others) = called(name), arguments(name, dtype)
    backend = None if backend == "torch" and x.requires_grad else backend
    y = op(x, *others, dtype=torch.float32, backend=backend)
    wide = [v.detach().double().requires_grad_() for v in (x, *others)]
    want = op(*wide)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), want, rtol=2e-6, atol=2e-6)
    pull = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, *others), pull)
    exact = torch.autograd.grad(want, wide, pull.double())
    for have, value, given in zip(found, exact, (x, *others), strict=True):
        assert have.dtype == given.dtype
        eps = 2e-6 if given.dtype == torch.float32 else torch.finfo(dtype).eps
        torch.testing.assert_close(have.double(), value, rtol=eps, atol=8e-6)
    with torch.no_grad():
        for place in ("torch", "array_api"):
            again = op(x, *others, dtype="float32", backend=place)
            torch.testing.assert_close(again.double(), want, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", WIDENED)
def test_a_result_has_the_dtype_of_the_input_or_its_accumulate_dtype(name: str) -> None:
    op, arrays = called(name), arguments(name, torch.float32)
    with pytest.raises(ValueError, match=r"dtype: expected float32 or its accumulate dtype"):
        op(*arrays, dtype="bfloat16")
    with pytest.raises(ValueError, match=r"dtype: expected bfloat16 or its accumulate dtype"):
        op(arrays[0].bfloat16(), *arrays[1:], dtype=torch.float16)


WAYS = pytest.mark.parametrize(
    ("name", "dtype", "of"), [*product(WIDENED, NARROW, NARROW)], ids=str
)


@WAYS
def test_a_region_for_a_cpu_leaves_results_as_narrow_as_torch_does(
    name: str, dtype: torch.dtype, of: torch.dtype
) -> None:
    op, arrays = called(name), arguments(name, dtype)
    want = op(*arrays)
    with region(of):
        inside = [op(*arrays) for _ in range(3)]
        assert op(*arrays, dtype=torch.float32).dtype == torch.float32
    for y in inside:
        assert y.dtype == dtype
        assert torch.equal(y, want)
    # The backward runs outside of the region.
    found = torch.autograd.grad(inside[-1].square().sum(), arrays)
    exact = torch.autograd.grad(want.square().sum(), arrays)
    for x, g, same in zip(arrays, found, exact, strict=True):
        assert g.dtype == x.dtype
        assert torch.equal(g, same)


def widened(name: str, arrays: list[torch.Tensor], of: torch.dtype) -> None:
    """A region for CUDA makes results float32 where torch's are, and nothing else does."""
    op, dtype = called(name), arrays[0].dtype
    with torch.no_grad(), regions.region("cuda", name_of(of)):
        # The first call may make a plan, which the others find in one way or another.
        assert {op(*arrays).dtype for _ in range(3)} == {torch.float32}
        with regions.region("cuda", ""):
            assert op(*arrays).dtype == dtype
        assert op(*arrays, dtype=dtype).dtype == dtype
        assert op(*[x.double() for x in arrays]).dtype == torch.float64
    with torch.no_grad():
        assert op(*arrays).dtype == dtype
        with region(of):
            assert op(*arrays).dtype == dtype


@WAYS
def test_a_region_for_cuda_widens_what_torch_computes_in_float32(
    name: str, dtype: torch.dtype, of: torch.dtype
) -> None:
    shapes = [(x.shape, x.dtype) for x in arguments(name, dtype)]
    with FakeTensorMode():
        arrays = [torch.empty(shape, dtype=kind, device="cuda") for shape, kind in shapes]
        widened(name, arrays, of)


def test_a_plan_means_what_it_was_made_for() -> None:
    x = torch.randn(4, 8).bfloat16()
    outside = bc.softmax.plan(x)
    with region():
        assert bc.softmax.plan(x) is outside
        wide = bc.softmax.plan(x, dtype="float32")
        assert wide is not outside
        assert outside(x).dtype == torch.bfloat16
        assert outside(x.T.contiguous().T).dtype == torch.bfloat16
        assert wide(x).dtype == torch.float32
    assert wide(x.T.contiguous().T).dtype == torch.float32
    assert wide is bc.softmax.plan(x, dtype="float32")


LOSSES = {
    "mse_loss": functional.mse_loss, "l1_loss": functional.l1_loss,
    "smooth_l1_loss": functional.smooth_l1_loss, "huber_loss": functional.huber_loss,
    "binary_cross_entropy_with_logits": functional.binary_cross_entropy_with_logits,
}  # fmt: skip


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_take_mixed_inputs_in_a_region_as_torch_does(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, target = torch.randn(6, 5, dtype=dtype, requires_grad=True), torch.rand(6, 5)
    with region(dtype):
        have, want = registry[name](x, target), LOSSES[name](x, target)
    assert have.dtype == want.dtype == torch.float32
    torch.testing.assert_close(have, want)
    torch.testing.assert_close(torch.autograd.grad(have, x), torch.autograd.grad(want, x))
    with pytest.raises(TypeError, match=f"target: expected {str(dtype)[6:]}"):
        registry[name](x, target)


def test_a_norm_takes_a_narrow_weight_in_a_region_as_torch_does() -> None:
    x, weight = torch.randn(6, 8), torch.randn(8).bfloat16()
    with region():
        have = bc.layer_norm(x, weight, weight)
        want = functional.layer_norm(x, (8,), weight.float(), weight.float())
    assert have.dtype == torch.float32
    torch.testing.assert_close(have, want)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize(
    "kinds",
    [
        ("float32", "float32"), ("float32", "own"), ("own", "float32"), ("own", "own"),
        ("float32", "float32", "float32"), ("own", "own", "float32"), ("own", "float32", "own"),
    ],
)  # fmt: skip
def test_the_head_multiplies_in_the_dtype_of_the_region(
    kinds: tuple[str, ...], dtype: torch.dtype
) -> None:
    """Also where the third is a bias."""
    torch.manual_seed(2)
    leaves = [
        torch.randn(*n, dtype=dtype if kind == "own" else torch.float32, requires_grad=True)
        for n, kind in zip(((6, 16), (11, 16), (11,)), kinds, strict=False)
    ]

    def loss(hidden: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        return bc.linear_cross_entropy(hidden, weight, TARGET, *bias)

    with region(dtype):
        have = loss(*leaves)
        want = functional.cross_entropy(functional.linear(*leaves), TARGET)
        narrow = loss(*[x.to(dtype) for x in leaves])
    assert have.dtype == torch.float32
    assert torch.equal(have, narrow)
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)
    found = torch.autograd.grad(have, leaves)
    exact = torch.autograd.grad(want, leaves)
    for x, g, w in zip(leaves, found, exact, strict=True):
        assert g.dtype == x.dtype
        torch.testing.assert_close(g, w, rtol=0.02, atol=2e-3)
    whole = [x.detach().float() for x in leaves]
    with region(dtype if dtype == torch.float16 else torch.bfloat16):
        other = loss(*whole)
    assert torch.equal(other, have.detach())
    assert not torch.equal(loss(*whole), other)


def test_two_regions_of_one_device_are_told_apart() -> None:
    hidden, weight = torch.randn(6, 16).bfloat16(), torch.randn(11, 16).bfloat16()
    with region(torch.bfloat16):
        first = [bc.linear_cross_entropy(hidden, weight, TARGET) for _ in range(3)]
    with region(torch.float16):
        second = [bc.linear_cross_entropy(hidden, weight, TARGET) for _ in range(3)]
    want = bc.linear_cross_entropy(hidden.half(), weight.half(), TARGET)
    assert all(torch.equal(x, want) for x in second)
    assert not torch.equal(first[-1], want)


def every(x: Any, w: Any, hidden: Any, weight: Any) -> tuple[torch.Tensor, ...]:
    return (
        bc.softmax(x), bc.layer_norm(x, w, w), bc.mse_loss(x, x.detach().float()),
        bc.linear_cross_entropy(hidden, weight, TARGET),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("within", [True, False], ids=["within", "around"])
def test_graphs_have_the_region_in_them(within: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    given = [
        torch.randn(4, 8, dtype=dtype, requires_grad=True), torch.randn(8, requires_grad=True),
        torch.randn(6, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True),
    ]  # fmt: skip

    def inside(*arrays: Any) -> tuple[torch.Tensor, ...]:
        with region(dtype):
            return every(*arrays)

    want = inside(*given)
    exact = torch.autograd.grad(sum(y.sum() for y in want), given)
    if within:
        got = torch.compile(inside, fullgraph=True, backend="aot_eager")(*given)
    else:
        run = torch.compile(every, fullgraph=True, backend="aot_eager")
        with region(dtype):
            got = run(*given)
        with pytest.raises((RuntimeError, TypeError), match="mse_loss"):
            run(*given)
    kinds = [dtype, dtype, torch.float32, torch.float32]
    for have, value, kind in zip(got, want, kinds, strict=True):
        assert have.dtype == value.dtype == kind
        assert torch.equal(have, value)
    for have, value in zip(torch.autograd.grad(sum(y.sum() for y in got), given), exact,
                           strict=True):  # fmt: skip
        assert have.dtype == value.dtype
        torch.testing.assert_close(have, value)


def test_the_operator_itself_knows_regions() -> None:
    x = torch.randn(4, 8).bfloat16()
    torch.compile(lambda x: bc.softmax(x), fullgraph=True, backend="aot_eager")(x)
    softmax, loss = torch.ops.baracuda.softmax, torch.ops.baracuda.mse_loss
    with region():
        assert loss(x, x.float()).dtype == torch.float32
        assert softmax(x).dtype == torch.bfloat16
        assert softmax(x, dtype="float32").dtype == torch.float32
    with pytest.raises(TypeError, match="target: expected bfloat16"):
        loss(x, x.float())
    with FakeTensorMode(), regions.region("cuda", "float16"):
        on_device = torch.empty(4, 8, dtype=torch.bfloat16, device="cuda")
        assert softmax(on_device).dtype == torch.float32
        assert softmax(on_device, dtype="bfloat16").dtype == torch.bfloat16


def test_modules_follow() -> None:
    x = torch.randn(4, 8).bfloat16()
    with region():
        assert baracuda.nn.Softmax(-1)(x).dtype == torch.bfloat16
        assert baracuda.nn.LayerNorm(8)(x).dtype == torch.bfloat16
        assert baracuda.nn.MSELoss()(x, x.float()).dtype == torch.float32
        assert baracuda.nn.SiLU()(x).dtype == torch.bfloat16


# -- training ------------------------------------------------------------------------------------


class Ours(torch.nn.Module):
    """What a block takes from a library: a norm, an activation, a softmax and a loss."""

    norm, softmax, act, loss = bc.layer_norm, bc.softmax, bc.gelu, bc.linear_cross_entropy


class Theirs(torch.nn.Module):
    """The same by torch's functions."""

    norm: Any = staticmethod(lambda x, w, b: functional.layer_norm(x, w.shape, w, b))
    softmax: Any = staticmethod(lambda x, causal: functional.softmax(
        x.masked_fill(~torch.ones(x.shape[-2:], dtype=torch.bool).tril(), -torch.inf), -1
    ))  # fmt: skip
    act: Any = staticmethod(functional.gelu)
    loss: Any = staticmethod(lambda h, w, t: functional.cross_entropy(functional.linear(h, w), t))


class Transformer(torch.nn.Module):
    """One block over tokens, with float32 parameters."""

    def __init__(self, of: Any, width: int = 16, tokens: int = 12) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.of = of
        self.embed = torch.nn.Embedding(tokens, width)
        self.mix = torch.nn.Linear(width, 3 * width, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)
        self.weights = torch.nn.ParameterList([torch.ones(width) for _ in range(3)])
        self.biases = torch.nn.ParameterList([torch.zeros(width) for _ in range(3)])

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        of, (a, b, c) = self.of, zip(self.weights, self.biases, strict=True)
        h = self.embed(x)
        q, k, v = self.mix(of.norm(h, *a)).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
        h = h + self.out(of.softmax(scores, causal=True) @ v)
        h = h + self.down(of.act(self.up(of.norm(h, *b))))
        h = of.norm(h, *c)
        return of.loss(h.flatten(0, 1), self.embed.weight, target.flatten())  # type: ignore[no-any-return]


def trained(
    of: Any, dtype: torch.dtype, steps: int, wrap: Callable[..., Any] = lambda m: m
) -> list[float]:
    """The losses of some steps in a region, with a scaler in float16."""
    model = wrap(Transformer(of))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, enabled=dtype == torch.float16)
    order = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(steps):
        first = torch.randint(12, (4, 1), generator=order)
        tokens = (first + torch.arange(9) ** 2) % 12
        with region(dtype):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_training_goes_as_with_functions_of_torch(dtype: torch.dtype) -> None:
    ours, theirs = (trained(of, dtype, 20) for of in (Ours, Theirs))
    assert ours[-1] < ours[0] - 0.3
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("loss", ["cross_entropy", "linear_cross_entropy"])
def test_a_scaled_loss_has_finite_gradients_at_the_first_step(loss: str) -> None:
    torch.manual_seed(4)
    linear, x = torch.nn.Linear(16, 11, bias=False), torch.randn(6, 16)
    scaler = torch.amp.GradScaler("cpu")
    found = []
    for ours in (True, False):
        linear.weight.grad = None
        with region(torch.float16):
            if not ours:
                y = functional.cross_entropy(linear(x), TARGET)
            elif loss == "cross_entropy":
                y = bc.cross_entropy(linear(x), TARGET)
            else:
                y = bc.linear_cross_entropy(x, linear.weight, TARGET)
        scaler.scale(y).backward()
        assert linear.weight.grad is not None
        found.append(linear.weight.grad / scaler.get_scale())
    assert all(torch.isfinite(g).all() for g in found)
    torch.testing.assert_close(*found, rtol=0.01, atol=1e-4)


# -- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("name", WIDENED)
def test_kernels_write_wider_results_in_a_region(name: str, dtype: torch.dtype) -> None:
    op, values = called(name), called(name).keywords
    arrays = [x.detach().cuda() for x in arguments(name, dtype)]
    widened(name, arrays, dtype)
    plan_of = registry[name].plan
    outside = plan_of(*arrays)
    with torch.autocast("cuda", dtype=dtype):
        inside = plan_of(*arrays)
    assert inside is plan_of(*arrays, dtype="float32")
    assert outside(*arrays, **values).dtype == dtype
    arrays = [x.requires_grad_() for x in arrays]
    with torch.autocast("cuda", dtype=dtype):
        y, plan = registry[name].planned(*arrays, **values)
    assert (y.dtype, plan.sku.backend) == (torch.float32, "cuda")
    wide = [x.detach().double().requires_grad_() for x in arrays]
    want = op(*wide, backend="array_api")
    torch.testing.assert_close(y.double(), want, rtol=4e-6, atol=4e-6)
    pull = torch.randn_like(y)
    found = torch.autograd.grad(y, arrays, pull)
    for x, have, value in zip(
        arrays, found, torch.autograd.grad(want, wide, pull.double()), strict=True
    ):
        assert have.dtype == x.dtype
        torch.testing.assert_close(have.double(), value, rtol=2 * torch.finfo(x.dtype).eps,
                                   atol=8e-6)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_a_region_on_a_gpu_does_as_torch_does(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(6, 64, device="cuda", requires_grad=True)
    weight, target = torch.randn(11, 64, device="cuda", requires_grad=True), TARGET.cuda()
    with torch.autocast("cuda", dtype=dtype):
        have = bc.linear_cross_entropy(hidden, weight, target)
        want = functional.cross_entropy(functional.linear(hidden, weight), target)
        scores = torch.randn(4, 8, device="cuda", dtype=dtype)
        assert bc.softmax(scores).dtype == functional.softmax(scores, -1).dtype
        # A region of another device has no say.
        assert bc.softmax(scores.cpu()).dtype == dtype
    torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)
    for a, b in zip(*[torch.autograd.grad(x, (hidden, weight)) for x in (have, want)], strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("compiled", [False, True])
def test_no_call_asks_whether_a_device_has_regions(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch.compile does not trace the question in every version."""

    def asked(kind: str) -> bool:
        raise AssertionError(f"a call asked about {kind}")

    def loss(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return bc.linear_cross_entropy(hidden, weight, TARGET)

    hidden, weight = torch.randn(6, 8), torch.randn(6, 8)
    run = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    with region():
        want = loss(hidden, weight)
        monkeypatch.setattr(torch.amp, "is_autocast_available", asked)
        assert torch.equal(run(hidden, weight), want)
