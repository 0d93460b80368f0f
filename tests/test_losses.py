"""Losses against torch's functions and autograd, and JAX's gradients of ours, in float64."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F

import baracuda as bc
from baracuda.calls.op import Op

REDUCTIONS = ("mean", "sum", "none")
PAIRS: dict[str, tuple[Any, dict[str, Any]]] = {
    "mse_loss": (F.mse_loss, {}),
    "l1_loss": (F.l1_loss, {}),
    "smooth_l1_loss": (F.smooth_l1_loss, {"beta": 0.7}),
    "smooth_l1_loss as l1": (F.smooth_l1_loss, {"beta": 0.0}),
    "huber_loss": (F.huber_loss, {"delta": 0.7}),
    "binary_cross_entropy": (F.binary_cross_entropy, {}),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, {}),
    "kl_div": (F.kl_div, {}),
    "kl_div of logarithms": (F.kl_div, {"log_target": True}),
}


def close(got: Any, want: Any, most: float = 1e-12) -> None:
    torch.testing.assert_close(got, want, rtol=most, atol=most, equal_nan=True)


def pair(name: str, *shape: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(len(name))
    draw = rng.random if name == "binary_cross_entropy" else rng.standard_normal
    target = rng.random if "entropy" in name or name == "kl_div" else rng.standard_normal
    return [torch.tensor(draw(shape)), torch.tensor(target(shape))]


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("reduction", [*REDUCTIONS, "batchmean"])
@pytest.mark.parametrize("name", list(PAIRS))
def test_pairs_are_torchs(name: str, reduction: str) -> None:
    if reduction == "batchmean" and "kl_div" not in name:
        pytest.skip("of divergences only")
    theirs, more = PAIRS[name]
    op = name.partition(" ")[0]
    x, target = pair(name, 4, 5)
    # What lies at an edge of a formula.
    x[0, :3], target[0, :3] = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([1.0, 0.0, 1.0])
    own = [v.clone().requires_grad_() for v in (x, target)]
    other = [v.clone().requires_grad_() for v in (x, target)]
    got = getattr(bc, op)(*own, reduction=reduction, **more)
    want = theirs(*other, reduction=reduction, **more)
    close(got, want)
    g = torch.randn_like(want)
    dx, dtarget = torch.autograd.grad(got, own, g)
    theirs_dx, theirs_dtarget = torch.autograd.grad(want, other, g)
    # With a target that is differentiated the body is; kinks are for the op itself to decide.
    calm = (x != target) if op in ("l1_loss", "smooth_l1_loss") else torch.ones_like(x, dtype=bool)
    calm &= (x != 0) & (x != 1)
    close(dx[calm], theirs_dx[calm])
    close(dtarget[calm], theirs_dtarget[calm])
    explicit = getattr(bc, f"{op}_backward")(g, x, target, reduction=reduction, **more)
    # torch's least denominator is 1e-12 in float32.
    close(explicit, theirs_dx, 1e-8 if op == "binary_cross_entropy" else 1e-12)


@pytest.mark.parametrize("op", ["mse_loss", "huber_loss", "kl_div"])
def test_targets_are_differentiated_and_never_silently_constant(op: str) -> None:
    x, target = pair(op, 6)
    plain = getattr(bc, op)
    want = torch.autograd.grad(plain(x, t := target.clone().requires_grad_()), t)[0]
    assert want.abs().sum() > 0
    whole = torch.compile(plain, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(whole(x, t := target.clone().requires_grad_()), t)[0]
    close(got, want)
    with jax.enable_x64(True):
        a, b = (jnp.asarray(v.numpy()) for v in (x, target))
        by_jax = jax.grad(plain, argnums=1)(a, b)
        np.testing.assert_allclose(by_jax, want.numpy(), rtol=1e-12)
        both = jax.grad(plain, argnums=(0, 1))(a, b)
        np.testing.assert_allclose(both[1], want.numpy(), rtol=1e-12)
        alone = jax.grad(plain)(a, b)
        np.testing.assert_allclose(both[0], alone, rtol=1e-12, atol=1e-15)
        text = str(jax.make_jaxpr(jax.grad(plain))(a, b))
        assert f"{op}_backward" in text


@pytest.mark.parametrize("op", [name for name in PAIRS if " " not in name])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_jax_takes_the_explicit_gradient(op: str, reduction: str) -> None:
    x, target = pair(op, 3, 4)
    dx = getattr(bc, f"{op}_backward")(
        torch.ones(3, 4).double() if reduction == "none" else torch.tensor(1.0).double(),
        x, target, reduction=reduction,
    )  # fmt: skip
    with jax.enable_x64(True):
        a, b = (jnp.asarray(v.numpy()) for v in (x, target))
        loss = partial(getattr(bc, op), reduction=reduction)
        got = jax.grad(lambda a: loss(a, b).sum())(a)
        np.testing.assert_allclose(got, dx.numpy(), rtol=1e-11, atol=1e-14)
        # A batch of means is a mean of each.
        many = jax.vmap(jax.grad(lambda a, b: loss(a, b).sum()))(jnp.stack([a, 2 * a]), b[None][
            jnp.array([0, 0])
        ])  # fmt: skip
        np.testing.assert_allclose(many[0], got, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("library", [np, jnp])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_end_of_logarithms_is_a_number_of_float32(library: Any, dtype: str) -> None:
    """A constant that underflows is an error where NumPy is told to raise."""
    x = library.asarray([0.5, 0.0, 1.0], dtype=dtype)
    with np.errstate(all="raise"):
        loss = bc.binary_cross_entropy(x, x, reduction="none")
    np.testing.assert_allclose(np.asarray(loss), [0.6931, 0.0, 0.0], rtol=1e-3)


def test_logarithms_end_at_minus_100() -> None:
    x = np.asarray([1e-45, 3e-44, 5e-44, 1e-320, 3.7e-44, 3.8e-44])
    for dtype in (np.float32, np.float64):
        loss = bc.binary_cross_entropy(x.astype(dtype), np.ones(6, dtype), reduction="none")
        with np.errstate(all="ignore"):
            want = np.minimum(-np.log(x.astype(dtype).astype(np.float64)), 100)
        np.testing.assert_allclose(loss, want, rtol=1e-6)


def test_nothing_has_no_mean() -> None:
    nothing = np.zeros((0, 3))
    assert np.isnan(bc.mse_loss(nothing, nothing))
    assert bc.mse_loss(nothing, nothing, reduction="sum") == 0
    assert bc.mse_loss_backward(np.asarray(1.0), nothing, nothing).shape == (0, 3)
    with np.errstate(all="raise"):
        assert np.isnan(bc.cross_entropy(nothing, np.zeros(0, np.int64)))


@pytest.mark.parametrize(
    ("weighted", "smoothing", "reduction", "ignored", "kind"),
    list(
        product(
            (False, True),
            (0.0, 0.1),
            REDUCTIONS,
            ("none", "some", "all"),
            ("usual", "large", "infinite"),
        )
    ),
)
def test_cross_entropy_is_torchs(
    weighted: bool, smoothing: float, reduction: str, ignored: str, kind: str
) -> None:
    rng = np.random.default_rng(5)
    x = torch.tensor(rng.normal(size=(6, 7))) * (1e4 if kind == "large" else 1)
    target = torch.tensor(rng.integers(0, 7, 6))
    if kind == "infinite":
        x[0, (target[0] + 1) % 7] = x[1, target[1]] = x[2, :] = -np.inf
        x[3, 0] = np.inf
    if ignored != "none":
        target[:: 2 if ignored == "some" else 1] = -100
    weight = torch.tensor(rng.uniform(0.5, 2, 7)) if weighted else None
    more = {"label_smoothing": smoothing, "reduction": reduction}
    x.requires_grad_()
    want = F.cross_entropy(x, target, weight, **more)
    g = torch.tensor(rng.normal(size=want.shape))
    (dx,) = torch.autograd.grad(want, x, g)
    # torch gives NaN where a row that does not count is infinite.
    dx[target == -100] = 0
    given = (x.detach(), target, weight)
    close(bc.cross_entropy(*given, **more), want.detach())
    close(bc.cross_entropy_backward(g, *given, **more), dx)
    got = bc.cross_entropy(x, target, weight, **more)
    close(torch.autograd.grad(got, x, g)[0], dx)
    loss, dlogits = bc.cross_entropy_with_gradient(*given, **more)
    close(loss, want.detach())
    ones = torch.ones_like(want)
    close(dlogits, bc.cross_entropy_backward(ones, *given, **more))


def z_and_cap(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    capped = 3.0 * torch.tanh(x / 3.0)
    norm = torch.logsumexp(capped, -1)
    share = torch.ones(len(x)).double() if weight is None else weight[target]
    each = (norm * norm * share).sum() / share.sum()
    return F.cross_entropy(capped, target, weight, label_smoothing=0.2) + 0.01 * each


@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_adds_a_z_loss_and_caps_logits(weighted: bool) -> None:
    x, target = torch.randn(6, 7).double().requires_grad_(), torch.arange(6)
    weight = torch.rand(7).double() + 0.5 if weighted else None
    more = {"z_loss": 0.01, "softcap": 3.0, "label_smoothing": 0.2}
    want = z_and_cap(x, target, weight)
    close(bc.cross_entropy(x.detach(), target, weight, **more), want.detach())
    (dx,) = torch.autograd.grad(want, x)
    close(bc.cross_entropy_with_gradient(x.detach(), target, weight, **more)[1], dx)
    third = torch.tensor(0.25).double()
    both = bc.cross_entropy_with_gradient(x.detach(), target, weight, third, **more)
    close(both[1], dx * 0.25)
    assert torch.autograd.gradgradcheck(lambda x: bc.cross_entropy(x, target, weight, **more), x)


def test_float32_weights_of_classes_beside_16_bits() -> None:
    x, target = torch.randn(6, 7).bfloat16(), torch.tensor([0, 3, -100, 3, 1, 6])
    weight = torch.rand(7) + 0.5
    for smoothing in (0.0, 0.1):
        want = F.cross_entropy(x.float(), target, weight, label_smoothing=smoothing)
        got = bc.cross_entropy(x, target, weight, label_smoothing=smoothing)
        assert got.dtype is torch.float32
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", ["torch", "array_api"])
def test_tiny_weights_of_classes_have_a_mean(dtype: torch.dtype, backend: str) -> None:
    x, target = torch.randn(4, 5, dtype=dtype), torch.tensor([0, 3, 1, 3])
    one = torch.ones((), dtype=dtype)
    tiny = torch.full((5,), torch.finfo(dtype).tiny / 16, dtype=dtype)
    more: dict[str, Any] = {"label_smoothing": 0.1, "backend": backend}
    got = bc.cross_entropy_backward(one, x, target, tiny, **more)
    torch.testing.assert_close(got, bc.cross_entropy_backward(one, x, target, **more))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_metrics_are_the_top_class_and_how_often_it_is_right(
    reduction: str, weighted: bool
) -> None:
    """The first of equals, also where a cap makes more of them; -1 in rows that do not count."""
    x = torch.randn(6, 5, 3, dtype=torch.float64)
    x[0, 1, 0] = x[0, 3, 0] = 300
    x[1, 2, 1], x[1, 4, 1], x[2, 4, 2] = 200, 201, float("nan")
    target = torch.randint(0, 5, (6, 3))
    target[0, 0], target[1, 1], target[2, 2], target[3, 0] = 1, 4, 4, -100
    weight = torch.rand(5, dtype=torch.float64) + 0.5 if weighted else None
    top = torch.where(target == -100, -1, x.argmax(1))
    share = torch.where(target == -100, 0, 1 if weight is None else weight[target.clamp(0)])
    hits = torch.where(top == target, share, 0)
    assert (hits > 0).sum() > 2
    want = {"mean": hits.sum() / share.sum(), "sum": hits.sum(), "none": hits}[reduction]
    more: dict[str, Any] = {"axis": 1, "softcap": 2.0, "reduction": reduction}
    alone = bc.cross_entropy(x, target, weight, **more)
    loss, accuracy, first = bc.cross_entropy(x, target, weight, metrics=True, **more)
    both = bc.cross_entropy_with_gradient(x, target, weight, metrics=True, **more)
    for result in ((loss, accuracy, first), both[:3]):
        torch.testing.assert_close(result[0], alone, equal_nan=True)
        torch.testing.assert_close(result[1], want.to(torch.float64))
        assert torch.equal(result[2], top)
    slopes = bc.cross_entropy_with_gradient(x, target, weight, **more)[1]
    torch.testing.assert_close(both[3], slopes, equal_nan=True)
    assert bc.cross_entropy(x[:, :0], target * 0 - 100, axis=1, metrics=True)[2].eq(-1).all()


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_metrics_of_a_linear_layer_are_those_of_its_logits(chunk: Any, reduction: Any) -> None:
    hidden, weight = torch.randn(2, 3, 4).double(), torch.randn(9, 4).double()
    logits = hidden @ weight.T
    target = logits.argmax(-1)
    target[0, 1], target[1, 2] = -100, (target[1, 2] + 1) % 9
    more: dict[str, Any] = {"reduction": reduction, "metrics": True}
    want = bc.cross_entropy(logits, target, **more)
    leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
    watched = bc.linear_cross_entropy(*leaves, target, chunk=chunk, **more)
    assert [x.requires_grad for x in watched] == [True, False, False]
    slopes = torch.autograd.grad(watched[0].sum(), leaves)
    both = bc.linear_cross_entropy_with_gradient(hidden, weight, target, chunk=chunk, **more)
    alone = bc.linear_cross_entropy(hidden, weight, target, chunk=chunk, **more)
    for found in (watched, both[:3], alone):
        for x, y in zip(found, want, strict=True):
            torch.testing.assert_close(x.detach(), y)
    for x, y in zip(slopes, both[3:], strict=True):
        torch.testing.assert_close(x, y)


def test_cross_entropy_of_classes_on_another_axis() -> None:
    x, target = torch.randn(2, 5, 3, 4).double(), torch.randint(0, 5, (2, 3, 4))
    close(bc.cross_entropy(x, target, axis=1), F.cross_entropy(x, target))


@pytest.mark.parametrize(
    ("smoothing", "reduction", "kind"),
    list(product((0.0, 0.1), REDUCTIONS, ("usual", "large", "infinite"))),
)
def test_soft_targets_are_torchs(smoothing: float, reduction: str, kind: str) -> None:
    rng = np.random.default_rng(7)
    x = torch.tensor(rng.normal(size=(6, 7, 2))) * (1e4 if kind == "large" else 1)
    target = torch.tensor(rng.random((6, 7, 2)))
    target[0, 3, 0] = 0
    if kind == "infinite":
        x[0, 3, 0] = x[1, 1, 1] = x[2, :, 0] = -np.inf
        x[3, 0, 0], x[4, 1, 0] = np.inf, np.nan
    more = {"label_smoothing": smoothing, "reduction": reduction}
    own = [v.clone().requires_grad_() for v in (x, target)]
    want = F.cross_entropy(*own, **more)
    g = torch.tensor(rng.normal(size=want.shape))
    dx, dtarget = torch.autograd.grad(want, own, g)
    op = bc.soft_target_cross_entropy
    close(op(x, target, axis=1, **more), want.detach())
    # torch differentiates 0 * -inf, where there is a slope.
    calm = torch.isfinite(x).all(1, keepdim=True).expand_as(x)
    explicit = bc.soft_target_cross_entropy_backward(g, x, target, axis=1, **more)
    close(explicit[calm], dx[calm])
    loss, unit = bc.soft_target_cross_entropy_with_gradient(x, target, axis=1, **more)
    close(loss, want.detach())
    ones = torch.ones_like(want)
    close(unit, bc.soft_target_cross_entropy_backward(ones, x, target, axis=1, **more))
    if kind == "usual":
        given = [v.clone().requires_grad_() for v in (x, target)]
        got = torch.autograd.grad(op(*given, axis=1, **more), given, g)
        close(got[0], dx)
        close(got[1], dtarget)


@pytest.mark.parametrize(
    ("weighted", "reduction", "ignored", "infinite"),
    list(product((False, True), REDUCTIONS, ("none", "some", "all"), (False, True))),
)
def test_nll_loss_is_torchs(weighted: bool, reduction: str, ignored: str, infinite: bool) -> None:
    rng = np.random.default_rng(6)
    x = torch.tensor(rng.normal(size=(6, 7, 2)))
    target = torch.tensor(rng.integers(0, 7, (6, 2)))
    if infinite:
        x[0, target[0, 0], 0], x[3, target[3, 1], 1] = -np.inf, np.nan
    if ignored != "none":
        target[:: 2 if ignored == "some" else 1] = 3
    weight = torch.tensor(rng.uniform(0.5, 2, 7)) if weighted else None
    more = {"ignore_index": 3 if ignored != "none" else -100, "reduction": reduction}
    want = F.nll_loss(x.requires_grad_(), target, weight, **more)
    g = torch.tensor(rng.normal(size=want.shape))
    (dx,) = torch.autograd.grad(want, x, g)
    close(bc.nll_loss(x.detach(), target, weight, axis=1, **more), want.detach())
    got = bc.nll_loss(x, target, weight, axis=1, **more)
    close(torch.autograd.grad(got, x, g)[0], dx)
    back = bc.nll_loss_backward(g, target, weight, x_shape=x.shape, axis=1, **more)
    close(back, dx)


def test_weights_of_classes_are_differentiated_through_the_body() -> None:
    x, target = torch.randn(5, 4).double(), torch.tensor([0, 3, -100, 3, 1])
    weight = torch.rand(4).double().requires_grad_()
    x.requires_grad_()
    smoothed = partial(bc.cross_entropy, label_smoothing=0.2, z_loss=0.01)
    for op in (bc.nll_loss, bc.cross_entropy, smoothed):
        assert torch.autograd.gradcheck(lambda w, op=op: op(x.detach(), target, w), weight)
        dx, _ = torch.autograd.grad(op(x, target, weight), (x, weight))
        (alone,) = torch.autograd.grad(op(x, target, weight.detach()), x)
        close(dx, alone)


def test_no_classes_to_choose_from() -> None:
    x, target = np.zeros((3, 0)), np.asarray([0, 1, -100])
    with pytest.raises(IndexError, match=r"target: expected 0 <= i < 0, got 0 at position \(0,\)"):
        bc.nll_loss(x, target)
    assert np.isnan(bc.nll_loss(x, target, mode="drop"))
    assert bc.nll_loss(x, target, np.zeros(0), reduction="sum", mode="drop") == 0


def test_a_target_out_of_range_is_an_error_on_the_host() -> None:
    x, target = np.zeros((3, 4)), np.asarray([0, 4, -100])
    with pytest.raises(IndexError, match=r"target: expected 0 <= i < 4, got 4 at position \(1,\)"):
        bc.cross_entropy(x, target)
    assert np.isclose(bc.cross_entropy(x, target, mode="drop"), np.log(4))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_of_16_bits_are_float32(reduction: str) -> None:
    x, target = torch.randn(64, 100), torch.randint(0, 100, (64,))
    x = x.bfloat16()
    want = F.cross_entropy(x.double(), target, reduction=reduction)
    got = bc.cross_entropy(x, target, reduction=reduction)
    assert got.dtype == torch.float32
    close(got.double(), want, 2.0**-20)
    # A sum that float16 does not hold.
    assert bc.mse_loss(300 * torch.ones(2, 8).half(), x[:2, :8].half()).isfinite()


LINEAR = ((0.0, 0.0), (0.1, 0.01))
LINEAR_OPS: tuple[Any, ...] = (
    bc.linear_cross_entropy,
    bc.linear_cross_entropy_backward,
    bc.linear_cross_entropy_with_gradient,
)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("smoothing", "z"), LINEAR)
def test_linear_cross_entropy_is_a_product_and_a_cross_entropy(
    reduction: str, smoothing: float, z: float
) -> None:
    hidden, weight = torch.randn(2, 5, 4).double(), torch.randn(7, 4).double()
    target = torch.randint(0, 7, (2, 5))
    target[0, 1] = -100
    more = {"reduction": reduction, "label_smoothing": smoothing, "z_loss": z}
    leaves = [v.clone().requires_grad_() for v in (hidden, weight)]
    want = bc.cross_entropy(leaves[0] @ leaves[1].T, target, **more)
    g = torch.randn_like(want)
    grads = torch.autograd.grad(want, leaves, g)
    for chunk in (None, 1, 3):
        own = [v.clone().requires_grad_() for v in (hidden, weight)]
        got = bc.linear_cross_entropy(*own, target, chunk=chunk, **more)
        close(got, want)
        for one, other in zip(torch.autograd.grad(got, own, g), grads, strict=True):
            close(one, other)
        loss, *unit = bc.linear_cross_entropy_with_gradient(
            hidden, weight, target, chunk=chunk, **more
        )
        close(loss, want.detach())
        ones = torch.ones_like(want)
        explicit = bc.linear_cross_entropy_backward(ones, hidden, weight, target, **more)
        for one, other in zip(unit, explicit, strict=True):
            close(one, other)
    assert bc.linear_cross_entropy.plan(*own, target).sku.kernel == "composite"


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_layer_with_a_bias_is_torchs(reduction: str, smoothing: float) -> None:
    hidden, weight = torch.randn(2, 5, 4).double(), torch.randn(7, 4).double()
    bias, target = torch.randn(7).double(), torch.randint(0, 7, (2, 5))
    target[0, 1] = -100
    more = {"reduction": reduction, "label_smoothing": smoothing}
    leaves = [v.clone().requires_grad_() for v in (hidden, weight, bias)]
    logits = F.linear(leaves[0], *leaves[1:])
    want = F.cross_entropy(logits.flatten(0, 1), target.flatten(), **more)
    want = want.reshape(target.shape) if reduction == "none" else want
    g = torch.randn_like(want)
    grads = torch.autograd.grad(want, leaves, g, retain_graph=True)
    unit = torch.autograd.grad(want.sum(), leaves)
    forward, backward, both = LINEAR_OPS
    for chunk in (None, 1, 3):
        own = [v.clone().requires_grad_() for v in (hidden, weight, bias)]
        got = forward(*own[:2], target, own[2], chunk=chunk, **more)
        close(got, want.detach())
        by_autograd = torch.autograd.grad(got, own, g)
        for make in (torch.asarray, lambda x: x.numpy()):
            arrays = [make(x) for x in (hidden, weight, target, bias)]
            close(torch.asarray(forward(*arrays, chunk=chunk, **more)), want.detach())
            explicit = backward(make(g), *arrays, chunk=chunk, **more)
            loss, *ones = both(*arrays, chunk=chunk, **more)
            close(torch.asarray(loss), want.detach())
            for found, exact in ((explicit, grads), (by_autograd, grads), (ones, unit)):
                for one, other in zip(found, exact, strict=True):
                    close(torch.asarray(one), other)


@pytest.mark.parametrize("chunk", [None, 3])
def test_a_layer_without_a_bias_has_the_bits_that_it_had(chunk: int | None) -> None:
    """The ops beside a product of the library, which nothing is added to."""
    hidden, weight = torch.randn(6, 16), torch.randn(50, 16)
    target = torch.randint(0, 50, (6,))
    for more in ({"reduction": "none"}, {"reduction": "sum"}):
        for given in ((hidden, weight, target), (hidden, weight, target, None)):
            loss, _, dweight = bc.linear_cross_entropy_with_gradient(*given, chunk=chunk, **more)
            parts = [
                bc.cross_entropy_with_gradient(torch.matmul(x, weight.T), t, **more)
                for x, t in zip(hidden.split(chunk or 6), target.split(chunk or 6), strict=True)
            ]
            losses = [one for one, _ in parts]
            want = torch.cat(losses) if losses[0].ndim else torch.stack(losses).sum()
            assert torch.equal(loss, want)
            pairs = zip(parts, hidden.split(chunk or 6), strict=True)
            terms = [slopes.T @ x for (_, slopes), x in pairs]
            assert torch.equal(dweight, sum(terms[1:], terms[0]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_bias_in_16_bits_is_rounded_once_with_its_logits(dtype: str) -> None:
    """A sum that is rounded before the bias and again after it leaves an eighth of them off."""
    kind = getattr(torch, dtype)
    hidden, weight = torch.randn(256, 16).to(kind), torch.randn(300, 16).to(kind)
    bias, target = (30 * torch.randn(300)).to(kind), torch.randint(0, 300, (256,))
    logits = F.linear(hidden.double(), weight.double(), bias.double()).to(kind)
    want = F.cross_entropy(logits.double(), target, reduction="none").numpy()
    given = [hidden, weight, target, bias]
    in_jax = [jnp.asarray((x.float() if x is not target else x).numpy()) for x in given]
    in_jax = [x.astype(dtype) if x.dtype == jnp.float32 else x for x in in_jax]
    for arrays in (given, in_jax):
        got = bc.linear_cross_entropy(*arrays, reduction="none")
        assert str(got.dtype).endswith("float32")
        # Sums in float32 round to another neighbour now and then.
        assert np.mean(np.abs(np.asarray(got) - want) < 1e-3) > 0.97


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chunk", [None, 512])
def test_the_gradient_of_a_bias_is_added_up_in_float32(
    dtype: torch.dtype, reduction: str, chunk: int | None
) -> None:
    """Of 4096 like rows: 16 bits would stop at 256 or 2048 times their slope."""
    hidden, weight = torch.zeros(4096, 2).to(dtype), torch.zeros(3, 2).to(dtype)
    bias = torch.tensor([0.0, 1.0, -0.5]).to(dtype)
    target, count = torch.zeros(4096, dtype=torch.int64), 1 if reduction == "mean" else 4096
    given = torch.ones(4096 if reduction == "none" else ()), hidden, weight, target, bias
    plan = bc.linear_cross_entropy_backward.plan(*given, reduction=reduction, chunk=chunk)
    dbias = torch.full((3,), 0.25)
    plan(*given, out=(None, None, dbias), accumulate=(False, False, True))
    want = count * (torch.softmax(bias.double(), 0) - torch.tensor([1.0, 0.0, 0.0]))
    # Each slope is rounded.
    room = torch.finfo(dtype).eps * count
    assert float((dbias.double() - 0.25 - want).abs().max()) < room


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_one_chunk_are_those_of_many(dtype: torch.dtype, reduction: str) -> None:
    torch.manual_seed(0)
    rows, eps = 512, torch.finfo(dtype).eps * (32 if dtype is torch.float32 else 2)
    hidden, weight = torch.randn(rows, 8).to(dtype), (torch.randn(64, 8) / 4).to(dtype)
    target = torch.randint(-1, 64, (rows,))
    more = {"reduction": reduction, "ignore_index": -1}
    scale = torch.tensor(0.37, dtype=dtype)
    for chunk in (None, 200):
        backward = partial(bc.linear_cross_entropy_backward, **more)
        with_gradient = partial(bc.linear_cross_entropy_with_gradient, **more)
        for function, first in ((backward, [scale]), (with_gradient, [])):
            wide = [x.double() for x in (*first, hidden, weight)]
            found = function(*first, hidden, weight, target, chunk=chunk)
            for one, other in zip(found, function(*wide, target), strict=True):
                room = eps * float(other.abs().max()) + torch.finfo(dtype).tiny
                assert one.dtype == (
                    dtype if one.ndim else torch.promote_types(dtype, torch.float32)
                )
                assert float((one.double() - other).abs().max()) < room


def test_a_repeated_chunk_makes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    plan = Op.plan

    def noted(self: Any, *given: Any, **options: Any) -> Any:
        made.append(self.spec.name)
        return plan(self, *given, **options)

    monkeypatch.setattr(Op, "plan", noted)
    arrays = torch.randn(5, 4), torch.randn(7, 4), torch.randint(0, 7, (5,))
    forward, backward, both = LINEAR_OPS
    first = True
    bc.plan_cache.clear()
    for z in (0.0, 0.1, 0.2):
        for chunk in (None, 3):
            more = {"chunk": chunk, "z_loss": z}
            forward(*arrays, **more)
            both(*arrays, **more)
            backward(torch.ones(()), *arrays, **more)
        # A run-time value is no part of a plan.
        assert bool(made) is first
        first = False
        made.clear()


def test_linear_cross_entropy_in_bfloat16_and_under_jit() -> None:
    rng = np.random.default_rng(0)
    hidden, weight = rng.standard_normal((30, 16)), rng.standard_normal((50, 16)) / 4
    target = rng.integers(0, 50, 30)
    want = bc.linear_cross_entropy_with_gradient(hidden, weight, target)
    for lib, kind in ((torch.tensor, torch.bfloat16), (jnp.asarray, jnp.bfloat16)):
        arrays = [lib(hidden).astype(kind) if lib is jnp.asarray else lib(hidden).to(kind)]
        arrays += [lib(weight).astype(kind) if lib is jnp.asarray else lib(weight).to(kind)]
        for got, exact in zip(
            bc.linear_cross_entropy_with_gradient(*arrays, lib(target), chunk=8), want, strict=True
        ):
            got = np.asarray(got.float() if lib is torch.tensor else got.astype(jnp.float32))
            assert np.abs(got - exact).max() < 0.03 * np.abs(exact).max()
    with jax.enable_x64(True):
        loss = partial(bc.linear_cross_entropy, chunk=8)
        arrays = [jnp.asarray(v) for v in (hidden, weight, target)]
        value, grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(*arrays)
        for got, exact in zip((value, *grads), want, strict=True):
            np.testing.assert_allclose(got, exact, rtol=1e-10, atol=1e-12)


def rows(count: int) -> list[torch.Tensor]:
    """Rows that are usual, equal, nothing, or of differences of one size."""
    rng = np.random.default_rng(count)
    out = [torch.tensor(rng.standard_normal((7, 5))) for _ in range(count)]
    out[1][0] = out[0][0]
    out[-1][1] = out[0][1]
    out[-1][2] = out[1][2]
    for x in out:
        x[3] = 0
        x[4] = torch.sign(x[4])
    return out


def rowwise_is_torchs(op: str, arrays: list[torch.Tensor], **options: Any) -> None:
    own, other = (
        [v.clone().requires_grad_(v.is_floating_point()) for v in arrays] for _ in range(2)
    )
    got, want = getattr(bc, op)(*own, **options), getattr(F, op)(*other, **options)
    close(got, want)
    g = torch.cos(torch.arange(want.numel(), dtype=want.dtype)).reshape(want.shape)
    theirs = torch.autograd.grad(want, [v for v in other if v.requires_grad], g)
    explicit = getattr(bc, f"{op}_backward")(g, *arrays, **options)
    by_autograd = torch.autograd.grad(got, [v for v in own if v.requires_grad], g)
    for ours, mine, x in zip(explicit, by_autograd, theirs, strict=True):
        # torch's least square is 1e-12 in float32, which counts where rows are nothing.
        close(ours, x, 1e-8 if op == "cosine_embedding_loss" else 1e-12)
        if not torch.any(arrays[0] == 0):
            close(mine, ours)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("margin", [-0.5, 0.0, 0.3])
def test_cosines_of_rows_are_torchs(margin: float, reduction: str) -> None:
    for labels in ([1] * 7, [-1] * 7, [1, -1, 0, 1, -1, 2, -1]):
        arrays = [*rows(2), torch.tensor(labels)]
        rowwise_is_torchs("cosine_embedding_loss", arrays, margin=margin, reduction=reduction)
    one = [x[5] for x in rows(2)]
    options = {"margin": margin, "reduction": reduction}
    rowwise_is_torchs("cosine_embedding_loss", [*one, torch.tensor(1)], **options)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, 7.5, np.inf])
def test_triplets_are_torchs(p: float, swap: bool, reduction: str) -> None:
    for eps in (0.0, 1e-6, 0.1):
        options = {"p": p, "swap": swap, "eps": eps, "reduction": reduction}
        # Which of two distances is the smaller one can be a matter of rounding.
        some = [x[[0, 1, 2, 3, 5, 6]] if swap and eps else x for x in rows(3)]
        rowwise_is_torchs("triplet_margin_loss", some, **options)
        # Just reached: both distances are the same, less the margin.
        a, b = torch.zeros(1, 2).double(), torch.tensor([[1.0, 0.0]]).double()
        options |= {"margin": 1.0, "eps": 0.0}
        rowwise_is_torchs("triplet_margin_loss", [a, a, b], **options)


def test_lengths_and_powers_stay_within_range() -> None:
    x = torch.tensor([[3e15, 4e15], [3e-15, 4e-15]])
    target = torch.tensor([-1, -1])
    got = bc.cosine_embedding_loss(x[:1], x[:1], target[:1])
    close(got, torch.tensor(1.0), 1e-6)
    for p in (3.0, 0.7, 20.0):
        want = bc.triplet_margin_loss(
            x.double(), 2 * x.double(), x.double(), p=p, eps=0, margin=1e-20
        )
        got = bc.triplet_margin_loss(x, 2 * x, x, p=p, eps=0, margin=1e-20)
        close(got.double(), want, 1e-5)
        (da, *_), (exact, *_) = (
            bc.triplet_margin_loss_backward(g, v, 2 * v, v, p=p, eps=0, margin=1e-20)
            for g, v in ((torch.tensor(1.0), x), (torch.tensor(1.0).double(), x.double()))
        )
        close(da.double(), exact, 1e-5)


def test_labels_are_integers() -> None:
    x = np.ones((2, 3))
    with pytest.raises(TypeError, match="target: expected int32 or int64, got float64"):
        bc.cosine_embedding_loss(x, x, np.ones(2))
    with pytest.raises(
        ValueError, match="triplet_margin_loss: margin: expected a finite number > 0"
    ):
        bc.triplet_margin_loss(x, x, x, margin=0.0)
    assert bc.cosine_embedding_loss(x, x, np.asarray([0, 7])) == 0
    assert np.isnan(bc.triplet_margin_loss(x[:0], x[:0], x[:0]))
    assert bc.triplet_margin_loss(x[:, :0], x[:, :0], x[:, :0], p=np.inf) == 1


@pytest.mark.parametrize("op", ["cosine_embedding_loss", "triplet_margin_loss"])
def test_jax_takes_the_explicit_gradients_of_rows(op: str) -> None:
    arrays = rows(3)
    if op == "cosine_embedding_loss":
        arrays[2] = torch.tensor([1, -1, 0, 1, -1, 1, -1])
    count = 2 + (op == "triplet_margin_loss")
    want = getattr(bc, f"{op}_backward")(torch.tensor(1.0).double(), *arrays)
    with jax.enable_x64(True):
        given = [jnp.asarray(x.numpy()) for x in arrays]
        got = jax.jit(jax.grad(getattr(bc, op), argnums=tuple(range(count))))(*given)
        for x, y in zip(got, want, strict=True):
            np.testing.assert_allclose(x, y.numpy(), rtol=1e-11, atol=1e-14)
