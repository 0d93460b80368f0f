"""Divergences of a student from a teacher, against torch's functions and plain float64 formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Categorical, kl_divergence

import baracuda as bc
from baracuda.calls.op import Op
from baracuda.families import chunks

KINDS, REDUCTIONS, BETA = ("forward", "reverse", "jsd"), ("mean", "sum", "none"), 0.3
LINEAR_OPS: tuple[Any, ...] = (
    bc.linear_kl_div,
    bc.linear_kl_div_backward,
    bc.linear_kl_div_with_gradient,
)


def drawn(*shapes: tuple[int, ...], scale: float = 2.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    kind = {"generator": generator, "dtype": torch.float64}
    return [scale * torch.randn(shape, **kind) for shape in shapes]  # type: ignore[call-overload]


def losses(x: torch.Tensor, y: torch.Tensor, kind: str, temperature: float = 1.0) -> torch.Tensor:
    """By `torch.nn.functional.kl_div`, whose first argument is the second of KL; as TRL's GKD."""
    student, teacher = (F.log_softmax(v / temperature, -1) for v in (x, y))
    kl = partial(F.kl_div, reduction="none", log_target=True)
    if kind == "forward":
        return kl(student, teacher).sum(-1)
    if kind == "reverse":
        return kl(teacher, student).sum(-1)
    both = torch.stack([teacher + math.log(BETA), student + math.log1p(-BETA)])
    mixture = torch.logsumexp(both, 0)
    return (BETA * kl(mixture, teacher) + (1 - BETA) * kl(mixture, student)).sum(-1)


def whole(each: torch.Tensor, weight: torch.Tensor | None, reduction: str) -> torch.Tensor:
    """What becomes of the losses of rows."""
    number: Any = each.numel()
    if weight is not None:
        each, number = each * weight, weight.sum()
    return each if reduction == "none" else each.sum() / (number if reduction == "mean" else 1)


def close(got: Any, want: Any, rtol: float = 1e-11, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=rtol, atol=atol)


def plain(x: Any) -> Any:
    return x.detach().numpy()


@pytest.mark.parametrize(
    ("kind", "reduction", "weighted"), list(product(KINDS, REDUCTIONS, (False, True)))
)
def test_values_and_gradients_are_those_of_kl_div_of_log_softmax(
    kind: str, reduction: str, weighted: bool
) -> None:
    logits, teacher, weight, g = drawn((3, 4, 7), (3, 4, 7), (3, 4), (3, 4))
    rows = [weight.abs()] if weighted else []
    g = g if reduction == "none" else g[0, 0]
    for temperature in (1.0, 0.01, 100.0):
        leaf = logits.clone().requires_grad_()
        each = losses(leaf, teacher, kind, temperature)
        want = whole(each, rows[0] if rows else None, reduction)
        (slopes,) = torch.autograd.grad(want, leaf, g, retain_graph=True)
        more: dict[str, Any] = {
            "kind": kind, "beta": BETA, "temperature": temperature, "reduction": reduction,
        }  # fmt: skip
        own = logits.clone().requires_grad_()
        got = bc.kl_div_with_logits(own, teacher, *rows, **more)
        close(plain(got), plain(want))
        close(torch.autograd.grad(got, own, g)[0], slopes, 1e-9)
        given = [x.numpy() for x in (logits, teacher, *rows)]
        close(bc.kl_div_with_logits(*given, **more), plain(want))
        close(bc.kl_div_with_logits_backward(g.numpy(), *given, **more), slopes, 1e-9)
        loss, unit = bc.kl_div_with_logits_with_gradient(*given, **more)
        close(loss, plain(want))
        close(unit, torch.autograd.grad(want.sum(), leaf)[0], 1e-9)


def test_directions_are_those_of_distributions() -> None:
    logits, teacher = drawn((5, 7), (5, 7))
    student, taught = (Categorical(logits=x / 2) for x in (logits, teacher))
    more: dict[str, Any] = {"reduction": "none", "temperature": 2.0}
    forward, reverse = (bc.kl_div_with_logits(logits, teacher, kind=k, **more) for k in KINDS[:2])
    close(forward, kl_divergence(taught, student))
    close(reverse, kl_divergence(student, taught))


@pytest.mark.parametrize("beta", [2.0**-20, 0.1, 0.5, 0.9])
def test_the_mixture_is_one_of_probabilities(beta: float) -> None:
    """The definition of the paper, in NumPy: the share `beta` of the mixture is the teacher's."""
    logits, teacher = (x.numpy() for x in drawn((6, 7), (6, 7)))
    t, s = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (teacher, logits))
    m = beta * t + (1 - beta) * s
    want = (beta * t * np.log(t / m) + (1 - beta) * s * np.log(s / m)).sum(-1)
    more: dict[str, Any] = {"kind": "jsd", "beta": beta, "reduction": "none"}
    close(bc.kl_div_with_logits(logits, teacher, **more), want)
    # Divided by a small share it is the forward divergence, as in the paper.
    if beta < 1e-3:
        forward = bc.kl_div_with_logits(logits, teacher, reduction="none")
        close(bc.kl_div_with_logits(logits, teacher, **more) / beta, forward, 1e-4)
    swapped = {**more, "beta": 1 - beta}
    close(bc.kl_div_with_logits(teacher, logits, **swapped), want)


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.5, math.nan])
def test_a_mixture_without_one_of_both_is_refused(beta: float) -> None:
    x = np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"beta: expected a number > 0 and < 1"):
        bc.kl_div_with_logits(x, x, kind="jsd", beta=beta)


def test_derivatives_along_all_that_floats_are_those_of_the_formula() -> None:
    logits, teacher, weight = drawn((4, 6), (4, 6), (4,))
    for kind in KINDS:
        found = []
        for function in (
            lambda x, y, w, t, k=kind: bc.kl_div_with_logits(
                x, y, w, kind=k, beta=BETA, temperature=t
            ),
            lambda x, y, w, t, k=kind: whole(losses(x, y, k, t), w, "mean"),
        ):
            t = torch.tensor(1.7, dtype=torch.float64)
            leaves = [x.clone().requires_grad_() for x in (logits, teacher, weight.abs(), t)]
            first = torch.autograd.grad(function(*leaves), leaves, create_graph=True)
            second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves)
            found.append([plain(x) for x in (*first, *second)])
        for one, other in zip(*found, strict=True):
            close(one, other, 1e-9, 1e-10)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_weight_0_are_not_looked_at(kind: str, library: str) -> None:
    logits, teacher = (x.float() for x in drawn((5, 7), (5, 7)))
    weight = torch.tensor([1.0, 0.0, 0.5, 0.0, 2.0])
    there = weight != 0
    bad = [x.clone() for x in (logits, teacher)]
    bad[0][1], bad[1][3], bad[0][3, 2] = math.nan, math.nan, math.inf
    make = {"numpy": plain, "torch": lambda x: x, "jax": lambda x: jnp.asarray(plain(x))}[library]
    # XLA compiles each program.
    for reduction in REDUCTIONS if library != "jax" else REDUCTIONS[:1]:
        more: dict[str, Any] = {"kind": kind, "reduction": reduction}
        given = [make(x) for x in (*bad, weight)]
        got = np.asarray(bc.kl_div_with_logits(*given, **more))
        kept = [x[there] for x in (logits, teacher, weight)]
        want = np.asarray(bc.kl_div_with_logits(*kept, **more))
        close(got[plain(there)] if got.ndim else got, want, 1e-6, 1e-7)
        if got.ndim:
            assert not got[~plain(there)].any()
        g = make(torch.ones(got.shape))
        slopes = [np.asarray(bc.kl_div_with_logits_backward(g, *given, **more))]
        if library == "torch":
            # The explicit gradient, and the body differentiated.
            for backend in (None, "array_api"):
                leaf = bad[0].clone().requires_grad_()
                loss = bc.kl_div_with_logits(leaf, *given[1:], **more, backend=backend)
                slopes.append(np.asarray(torch.autograd.grad(loss.sum(), leaf)[0]))
        if library == "jax":
            function = partial(bc.kl_div_with_logits, **more)
            slopes.append(np.asarray(jax.grad(lambda *x, f=function: f(*x).sum())(*given)))
        exact = bc.kl_div_with_logits_backward(g[plain(there)] if got.ndim else g, *[
            make(x) for x in kept], **more)  # fmt: skip
        for slope in slopes:
            assert not slope[~plain(there)].any()
            close(slope[plain(there)], np.asarray(exact), 1e-5, 1e-6)


def test_a_mean_over_no_weight_is_nan_and_has_no_slopes() -> None:
    logits, teacher = (x.numpy() for x in drawn((3, 4), (3, 4)))
    none = np.zeros(3)
    assert np.isnan(bc.kl_div_with_logits(logits, teacher, none))
    assert bc.kl_div_with_logits(logits, teacher, none, reduction="sum") == 0
    assert not bc.kl_div_with_logits_backward(np.asarray(1.0), logits, teacher, none).any()
    nothing = np.zeros((0, 4))
    assert np.isnan(bc.kl_div_with_logits(nothing, nothing))
    assert bc.kl_div_with_logits(np.zeros((3, 0)), np.zeros((3, 0))) == 0


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_classes_that_are_ruled_out_count_as_nothing(dtype: str, library: str) -> None:
    inf, third, half = math.inf, math.log(1 / 3), math.log(0.5)
    rows = {
        # Student, teacher: by both, by the teacher, by the student.
        "both": ([0.0, 0.0, -inf], [math.log(3.0), 0.0, -inf]),
        "teacher": ([0.0, 0.0, 0.0], [0.0, 0.0, -inf]),
        "student": ([0.0, 0.0, -inf], [0.0, 0.0, 0.0]),
    }
    s, t = (np.asarray(x, dtype) for x in zip(*rows.values(), strict=True))
    of = {  # forward, reverse, and the mixture's, by hand
        "both": (0.75 * math.log(1.5) + 0.25 * half, -half * 0.5 - 0.5 * math.log(1.5)),
        "teacher": (-third + half, inf),
        "student": (inf, -third + half),
    }
    p, q = np.exp(s), np.exp(t)
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    m = BETA * q + (1 - BETA) * p
    with np.errstate(all="ignore"):
        terms = [a * np.where(a == 0, 0, np.log(a / m)) for a in (q, p)]
        mixed = np.nansum(BETA * terms[0] + (1 - BETA) * terms[1], -1)
    with jax.enable_x64(True):
        make = {"numpy": np.asarray, "torch": torch.asarray, "jax": jnp.asarray}[library]
        given, g = [make(x) for x in (s, t)], make(np.ones(3, dtype))
        tiny = 1e-6 if dtype == "float32" else 1e-12
        for at, kind in enumerate(KINDS):
            more: dict[str, Any] = {"kind": kind, "beta": BETA, "reduction": "none"}
            want = mixed if kind == "jsd" else [of[name][at] for name in rows]
            close(bc.kl_div_with_logits(*given, **more), want, tiny, tiny)
            slopes = np.asarray(bc.kl_div_with_logits_backward(g, *given, **more))
            finite = np.isfinite(want)
            assert np.isfinite(slopes[finite]).all()
            # What moves all logits of a row alike changes nothing.
            close(slopes[finite].sum(-1), 0, 0, tiny)
            if library == "torch" and kind == "jsd":
                leaf = given[0].clone().requires_grad_()
                loss = bc.kl_div_with_logits(leaf, given[1], **more, backend="array_api")
                close(torch.autograd.grad(loss.sum(), leaf)[0], slopes, 0, tiny)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_logits_of_any_size_are_those_of_float64(kind: str, temperature: float) -> None:
    """Of 1e4, and beyond what float32 holds once they are divided."""
    logits, teacher = (x.float() for x in drawn((6, 9), (6, 9)))
    for scale in (1.0, 1e4, 1e37):
        more: dict[str, Any] = {
            "kind": kind, "beta": BETA, "temperature": temperature, "reduction": "none",
        }  # fmt: skip
        x, y = (scale * v for v in (logits, teacher))
        got = bc.kl_div_with_logits(x, y, **more)
        wide = bc.kl_div_with_logits(x.double(), y.double(), **more)
        leaf = x.double().requires_grad_()
        want = losses(leaf, y.double(), kind, temperature)
        close(wide, plain(want), 1e-10, 1e-12)
        # A logarithm may be larger than the largest float32.
        calm = wide.abs() < 1e38
        close(got[calm], wide[calm], 1e-4, 1e-6)
        assert not got.isnan().any()
        slopes = bc.kl_div_with_logits_backward(torch.ones(6), x, y, **more)
        (exact,) = torch.autograd.grad(want[calm].sum(), leaf)
        most = float(exact.abs().max()) + 1 / temperature
        close(slopes[calm], exact[calm], 1e-3, 1e-6 * most)


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_student_that_is_all_but_its_teacher_no_digits_cancel(kind: str) -> None:
    """A divergence of 1e-4, of logarithms of which each is about 10: float32 has 1e-6 of them."""
    teacher, move = drawn((4, 20000), (4, 20000), scale=1.0)
    teacher, logits = teacher.float(), (teacher + 0.01 * move).float()
    more: dict[str, Any] = {"kind": kind, "beta": BETA, "reduction": "none"}
    got = bc.kl_div_with_logits(logits, teacher, **more)
    close(got, losses(logits.double(), teacher.double(), kind), 1e-3, 0)
    same = bc.kl_div_with_logits(teacher, teacher.clone(), **more)
    assert not same.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_16_bits_are_float32_with_float32_weights(kind: str, dtype: torch.dtype) -> None:
    logits, teacher, weight = (x.to(dtype) for x in drawn((16, 40), (16, 40), (16,)))
    more: dict[str, Any] = {"kind": kind, "beta": BETA}
    for rows in (weight.abs(), weight.abs().float() + 1e-3):
        wide = [x.double() for x in (logits, teacher, rows)]
        want = whole(losses(wide[0], wide[1], kind), wide[2], "mean")
        got = bc.kl_div_with_logits(logits, teacher, rows, **more)
        assert got.dtype == torch.float32
        close(got, want, 1e-6)
        leaf = wide[0].requires_grad_()
        (exact,) = torch.autograd.grad(whole(losses(leaf, wide[1], kind), wide[2], "mean"), leaf)
        g = torch.tensor(3.0)
        slopes = bc.kl_div_with_logits_backward(g, logits, teacher, rows, **more)
        assert slopes.dtype == dtype
        close(slopes.double(), 3 * exact, torch.finfo(dtype).eps, 2.0**-23)


def layers(*batch: int) -> list[torch.Tensor]:
    return drawn((*batch, 4), (7, 4), (*batch, 3), (7, 3), batch, scale=1.0)


@pytest.mark.parametrize(
    ("kind", "reduction", "weighted"), list(product(KINDS, REDUCTIONS, (False, True)))
)
def test_layers_are_products_and_a_divergence_of_torch(
    kind: str, reduction: str, weighted: bool
) -> None:
    hidden, weight, *teacher, rows = layers(2, 5)
    rows = rows.abs()
    rows[0, 1] = 0
    beside = [*teacher, rows] if weighted else teacher
    more: dict[str, Any] = {
        "kind": kind, "beta": BETA, "temperature": 1.5, "reduction": reduction,
    }  # fmt: skip
    leaves = [v.clone().requires_grad_() for v in (hidden, weight)]
    each = losses(leaves[0] @ leaves[1].T, teacher[0] @ teacher[1].T, kind, 1.5)
    want = whole(each, rows if weighted else None, reduction)
    g = torch.randn(want.shape, dtype=torch.float64)
    grads = torch.autograd.grad(want, leaves, g, retain_graph=True)
    unit = torch.autograd.grad(want.sum(), leaves)
    forward, backward, both = LINEAR_OPS
    for chunk in (None, 1, 3):
        own = [v.clone().requires_grad_() for v in (hidden, weight)]
        got = forward(*own, *beside, chunk=chunk, **more)
        close(plain(got), plain(want))
        for one, other in zip(torch.autograd.grad(got, own, g), grads, strict=True):
            close(one, other, 1e-9)
        for make in (torch.asarray, plain):
            arrays = [make(x) for x in (hidden, weight, *beside)]
            close(forward(*arrays, chunk=chunk, **more), plain(want))
            for one, other in zip(
                backward(make(g), *arrays, chunk=chunk, **more), grads, strict=True
            ):
                close(one, other, 1e-9)
            loss, *ones = both(*arrays, chunk=chunk, **more)
            close(loss, plain(want))
            for one, other in zip(ones, unit, strict=True):
                close(one, other, 1e-9)


def test_a_padded_row_of_layers_may_hold_nan() -> None:
    hidden, weight, *teacher, rows = layers(6)
    rows = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    there = rows != 0
    bad, taught = hidden.clone(), teacher[0].clone()
    bad[1], taught[4] = 300.0, math.nan
    exact = bc.linear_kl_div_with_gradient(hidden[there], weight, teacher[0][there], teacher[1])
    for chunk in (None, 2):
        given = bad, weight, taught, teacher[1], rows
        loss, dhidden, dweight = bc.linear_kl_div_with_gradient(*given, chunk=chunk)
        close(loss, exact[0])
        close(dhidden[there], exact[1])
        assert not dhidden[~there].any()
        close(dweight, exact[2])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_chunks_of_any_dtype_are_near_the_whole_in_float64(
    dtype: torch.dtype, reduction: str
) -> None:
    torch.manual_seed(0)
    rows, eps = 256, torch.finfo(dtype).eps * (64 if dtype is torch.float32 else 4)
    given = [torch.randn(rows, 8), torch.randn(64, 8) / 4, torch.randn(rows, 4), torch.randn(64, 4)]
    given = [x.to(dtype) for x in given]
    weight = torch.rand(rows)
    wide = [x.double() for x in (*given, weight)]
    for kind, chunk in product(KINDS, (None, 100)):
        more: dict[str, Any] = {"kind": kind, "reduction": reduction}
        found = bc.linear_kl_div_with_gradient(*given, weight, chunk=chunk, **more)
        exact = bc.linear_kl_div_with_gradient(*wide, **more)
        assert found[0].dtype == torch.float32
        for one, other in zip(found, exact, strict=True):
            most = float(other.abs().max())
            assert float((one.double() - other).abs().max()) < 2 * eps * most


def test_a_graph_has_the_divergence_whole() -> None:
    hidden, weight, *teacher, rows = (x.float() for x in layers(6))
    logits, taught = hidden @ weight.T, teacher[0] @ teacher[1].T

    def both(x: Any, h: Any, w: Any) -> Any:
        one = bc.kl_div_with_logits(x * 1, taught, rows.abs(), kind="jsd", temperature=2.0)
        other = bc.linear_kl_div(h * 1, w, *teacher, rows.abs(), kind="reverse", chunk=4)
        return one + 2 * other

    graph = torch.compile(both, fullgraph=True, backend="aot_eager")
    found = []
    for function in (both, graph):
        leaves = [x.clone().requires_grad_() for x in (logits, hidden, weight)]
        loss = function(*leaves)
        found.append([plain(x) for x in (loss, *torch.autograd.grad(loss, leaves))])
    for one, other in zip(*found, strict=True):
        close(one, other, 1e-6, 1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_jax_differentiates_and_compiles_both(kind: str) -> None:
    hidden, weight, *teacher, rows = layers(6)
    leaves = [x.clone().requires_grad_() for x in (hidden, weight)]
    taught = teacher[0] @ teacher[1].T
    want = whole(losses(leaves[0] @ leaves[1].T, taught, kind), rows.abs(), "mean")
    grads = torch.autograd.grad(want, leaves)
    with jax.enable_x64(True):
        given = [jnp.asarray(plain(x)) for x in (hidden, weight, *teacher, rows.abs())]
        more: dict[str, Any] = {"kind": kind, "beta": BETA}

        def of_logits(h: Any, w: Any, th: Any, tw: Any, rows: Any) -> Any:
            return bc.kl_div_with_logits(h @ w.T, th @ tw.T, rows, **more)

        functions: list[Callable[..., Any]] = [of_logits, partial(bc.linear_kl_div, **more)]
        functions.append(partial(bc.linear_kl_div, chunk=4, **more))
        for function in functions:
            loss, slopes = jax.jit(jax.value_and_grad(function, (0, 1)))(*given)
            close(loss, plain(want))
            for one, other in zip(slopes, grads, strict=True):
                close(one, other, 1e-9)


def test_a_teacher_that_is_watched_has_gradients_too() -> None:
    given = layers(5)[:4]
    ours = partial(bc.linear_kl_div, kind="reverse", chunk=2)
    found = []
    for function in (
        ours,
        torch.compile(ours, fullgraph=True, backend="aot_eager"),
        lambda h, w, th, tw: losses(h @ w.T, th @ tw.T, "reverse").mean(),
    ):
        leaves = [x.clone().requires_grad_() for x in given]
        found.append(torch.autograd.grad(function(*leaves), leaves))
    for one, *others in zip(*found, strict=True):
        for other in others:
            close(one, other, 1e-9)


def test_gradients_are_made_ahead_in_four_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward and a backward, one after the other, have six."""
    shapes: list[tuple[int, ...]] = []
    cut = chunks.Rows._outputs

    def noted(self: Any, hidden: Any) -> Any:
        shapes.append(tuple(hidden.shape))
        return cut(self, hidden)

    monkeypatch.setattr(chunks.Rows, "_outputs", noted)
    hidden, weight, *teacher, _ = layers(5)
    leaves = [x.requires_grad_() for x in (hidden, weight)]
    bc.linear_kl_div(*leaves, *teacher).backward()
    assert shapes == [(5, 4), (5, 3)]
    shapes.clear()
    bc.linear_kl_div(*leaves, *teacher, chunk=2).backward()
    assert [rows for rows, _ in shapes] == [2, 2, 2, 2, 1, 1]


def test_a_region_multiplies_layers_in_its_dtype_and_keeps_weights_of_rows() -> None:
    hidden, weight, *teacher, rows = (x.float() for x in layers(6))
    rows = rows.abs()
    taught = [x.bfloat16() for x in teacher]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        have = bc.linear_kl_div(hidden, weight, *taught, rows)
        alone = bc.kl_div_with_logits(hidden.bfloat16(), hidden.bfloat16() / 2, rows)
    narrow = [x.bfloat16() for x in (hidden, weight)]
    assert torch.equal(have, bc.linear_kl_div(*narrow, *taught, rows))
    assert not torch.equal(have, bc.linear_kl_div(*narrow, *taught, rows.bfloat16()))
    assert have.dtype == alone.dtype == torch.float32


def test_a_chunk_that_repeats_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    plan = Op.plan

    def noted(self: Any, *given: Any, **options: Any) -> Any:
        made.append(self.spec.name)
        return plan(self, *given, **options)

    monkeypatch.setattr(Op, "plan", noted)
    hidden, weight, *teacher, _ = layers(6)
    for temperature in (1.0, 2.0):
        bc.linear_kl_div(hidden, weight, *teacher, chunk=2, temperature=temperature)
    assert made.count("kl_div_with_logits") <= 1
