"""Parameters and residual streams in float32 beside 16-bit activations, in every framework."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import lanes
import numpy as np
import plannable
import pytest
import torch

import baracuda as bc
from baracuda import backends
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration import roles
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.spec import OpSpec
from baracuda.testing.cases import mixtures_of

NARROW = (torch.bfloat16, torch.float16)
# Ops, and how many parameters each has.
NORMS = {"rms_norm": 1, "layer_norm": 2, "add_rms_norm": 1, "add_layer_norm": 2,
         "group_norm": 2, "instance_norm": 2, "batch_norm": 2}  # fmt: skip
SHAPE = (3, 4, 6)
# Ops with what is wider.
FORMS = [f"{name}-{'-'.join(kinds)}" for name in NORMS
         for kinds in mixtures_of(registry[name].spec.wide) if kinds]  # fmt: skip
SOME = ("layer_norm-parameter", "add_rms_norm-residual", "add_layer_norm-residual-parameter",
        "group_norm-parameter")  # fmt: skip


def inputs(form: str, dtype: torch.dtype) -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Activations and parameters that watch, and options."""
    name, *kinds = form.split("-")
    torch.manual_seed(len(form))
    channels = SHAPE[1] if registry[name].spec.category == "channel_norm" else SHAPE[-1]
    wide = {kind: torch.float32 if kind in kinds else dtype for kind in ("residual", "parameter")}
    some = [torch.randn(SHAPE, dtype=dtype)]
    some += [torch.randn(SHAPE, dtype=wide["residual"])] * name.startswith("add")
    some += [torch.randn(channels, dtype=wide["parameter"]) for _ in range(NORMS[name])]
    options = {"num_groups": 2} if name == "group_norm" else {}
    return [x.requires_grad_() for x in some], options


def op_of(form: str) -> Any:
    return registry[form.partition("-")[0]]


def first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_torch_trains_each_input_in_its_own_dtype(form: str, dtype: torch.dtype) -> None:
    op, (arrays, options) = op_of(form), inputs(form, dtype)
    results = op(*arrays, **options)
    assert first(results).dtype == dtype
    wide = [x.detach().double().requires_grad_() for x in arrays]
    if form.startswith("add"):
        assert results[1].dtype == arrays[1].dtype
        # The sum is stored in its dtype; the norm is one of that.
        rounded = (arrays[0] + arrays[1]).detach().double()
        wide[0] = wide[1] = rounded.requires_grad_()
        exact = op(rounded, torch.zeros_like(rounded), *wide[2:])
    else:
        exact, results = first(op(*wide, **options)), first(results)
    pulls = [torch.randn_like(y) for y in results] if form.startswith("add") else None
    pulls = pulls or torch.randn_like(results)
    torch.autograd.backward(results, pulls)
    exact_pulls = [p.double() for p in pulls] if form.startswith("add") else pulls.double()
    torch.autograd.backward(exact, exact_pulls)
    for x, want in zip(arrays, wide, strict=True):
        assert x.grad is not None
        assert x.grad.dtype == x.dtype
        # No digit is lost to the dtype of the activations.
        eps = 2e-5 if x.dtype == torch.float32 else 3 * torch.finfo(x.dtype).eps
        torch.testing.assert_close(x.grad.double(), want.grad, rtol=eps, atol=eps)


@pytest.mark.parametrize("form", lanes.cases(FORMS, SOME.__contains__))
def test_torch_compiles_them(form: str) -> None:
    op, (arrays, options) = op_of(form), inputs(form, torch.bfloat16)
    want = first(op(*arrays, **options))
    # Every form compiles this lambda again, and there is a limit.
    torch._dynamo.reset()
    run = torch.compile(
        lambda *some: first(op(*some, **options)), fullgraph=True, backend="aot_eager"
    )
    got = run(*arrays)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    for x, y in zip(
        torch.autograd.grad(got.sum(), arrays), torch.autograd.grad(want.sum(), arrays), strict=True
    ):
        assert x.dtype == y.dtype
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("form", lanes.cases(FORMS, SOME.__contains__))
def test_jax_differentiates_them(form: str) -> None:
    op, (arrays, options) = op_of(form), inputs(form, torch.bfloat16)
    some = [
        jnp.asarray(x.detach().float().numpy(), str(x.dtype).removeprefix("torch.")) for x in arrays
    ]

    def loss(*given: Any) -> Any:
        return first(op(*given, **options)).astype(jnp.float32).sum()

    y = jax.jit(lambda *given: first(op(*given, **options)))(*some)
    assert y.dtype == jnp.bfloat16
    found = jax.jit(jax.grad(loss, argnums=tuple(range(len(some)))))(*some)
    torch_loss = first(op(*arrays, **options)).float().sum()
    for x, got, want in zip(some, found, torch.autograd.grad(torch_loss, arrays), strict=True):
        assert got.dtype == x.dtype
        eps = 0.02 if x.dtype == jnp.bfloat16 else 1e-5
        np.testing.assert_allclose(
            np.asarray(got, np.float64), want.double().numpy(), rtol=eps, atol=8 * eps
        )


def test_gradients_are_added_into_float32_buffers() -> None:
    x, dy = torch.randn(2, 64, 128).bfloat16()
    weight, total = torch.randn(128), torch.full((128,), 1e-3)
    dx = torch.zeros_like(x)
    plan = bc.rms_norm_backward.plan(dy, x, weight)
    apart = plan(dy, x, weight)[1]
    plan(dy, x, weight, out=(dx, total), accumulate=True)
    torch.testing.assert_close(total, apart + 1e-3)
    with pytest.raises(ValueError, match=r"out \(dweight\): expected dtype float32, got bfloat16"):
        plan(dy, x, weight, out=(dx, total.bfloat16()))


ONES = {name: torch.ones(4, dtype=getattr(torch, name)) for name in
        ("bfloat16", "float16", "float32", "float64")}  # fmt: skip


@pytest.mark.parametrize(
    ("x", "weight", "bias", "said"),
    [
        ("bfloat16", "float64", None, "weight: expected bfloat16 (as x) or float32, got float64"),
        ("bfloat16", "float16", None, "weight: expected bfloat16 (as x) or float32, got float16"),
        ("float32", "bfloat16", None, "weight: expected float32 (as x), got bfloat16"),
        ("float64", "float32", None, "weight: expected float64 (as x), got float32"),
        ("bfloat16", "float32", "bfloat16", "bias: expected float32 (as weight), got bfloat16"),
        ("bfloat16", "bfloat16", "float32", "bias: expected bfloat16 (as weight), got float32"),
    ],
)
def test_other_mixtures_are_refused(x: str, weight: str, bias: str | None, said: str) -> None:
    arrays = [ONES[x][None], ONES[weight], *([ONES[bias]] if bias else [])]
    with pytest.raises(TypeError, match=re.escape(f"layer_norm: {said}")):
        bc.layer_norm(*arrays)


@pytest.mark.parametrize(
    ("op", "dtypes", "said"),
    [
        (bc.add_rms_norm, ("bfloat16", "float64"),
         "residual: expected bfloat16 (as x) or float32, got float64"),
        (bc.add_rms_norm, ("float32", "bfloat16"),
         "residual: expected float32 (as x), got bfloat16"),
        (bc.add_rms_norm_backward, ("bfloat16", "float32", "bfloat16"),
         "s: expected float32 (as ds), got bfloat16"),
        (bc.add_layer_norm_backward, ("float16", "float16", "float32"),
         "s: expected float16 (as ds), got float32"),
        (bc.rms_norm_backward, ("bfloat16", "float32"),
         "dy: expected float32 (as x), got bfloat16"),
    ],
)  # fmt: skip
def test_a_residual_stream_has_one_dtype(op: Any, dtypes: tuple[str, ...], said: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{op.spec.name}: {said}")):
        op(*[ONES[dtype] for dtype in dtypes])


@pytest.mark.parametrize("kinds", mixtures_of(bc.add_rms_norm.spec.wide), ids=str)
def test_an_engine_gets_gradients_in_the_dtypes_of_the_inputs(kinds: tuple[str, ...]) -> None:
    arrays, _ = inputs("-".join(("add_rms_norm", *kinds)), torch.bfloat16)
    plain, pair = [x.detach() for x in arrays], bc.add_rms_norm.adjoint
    assert pair is not None
    results = bc.add_rms_norm(*plain)
    kept = pair.keep(plain, results, {})
    # That of s counts as zeros of its dtype.
    found = pair.pull(kept, [torch.ones_like(results[0]), None])
    assert [found[n].dtype for n in pair.inputs] == [x.dtype for x in arrays]
    want = torch.autograd.grad(bc.add_rms_norm(*arrays)[0].sum(), arrays)
    for name, x in zip(pair.inputs, want, strict=True):
        torch.testing.assert_close(found[name], x)


def streaming(op: Any, name: str) -> OpSpec:
    """The declaration of an op with one more residual stream."""
    return replace(op.spec, roles={**op.spec.roles, name: roles.residual()})


def test_schedules_say_which_wider_values_they_take() -> None:
    assert backends.mixes(streaming(bc.softmax_backward, "y"), "cuda", "bfloat16")
    assert not backends.mixes(streaming(bc.group_norm, "x"), "cuda", "bfloat16")
    narrow, wide = (plannable.phantom((64, 64), "dense", d) for d in ("bfloat16", "float32"))
    spec = streaming(bc.softmax_backward, "y")
    problem = check.problem(spec, [narrow, wide], {"axis": 0}, DEFAULT)
    (kernel,) = plannable.steps(plannable.call(problem)).kernels
    assert kernel.entry.schedule.startswith("Rows<")
    rows = [plannable.phantom((64,), "dense", "int64")]
    spec = streaming(bc.cosine_embedding_loss, "x2")
    problem = check.problem(spec, [narrow, wide, *rows], {}, DEFAULT)
    with pytest.raises(Refusal, match="losses of rows that are wider"):
        plannable.steps(plannable.call(problem))


def test_a_backend_that_mixes_nothing_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backends.mixes(registry["rms_norm"].spec, "cuda", "bfloat16")
    assert backends.mixes(registry["group_norm"].spec, "cuda", "bfloat16")
    assert not backends.mixes(registry["rms_norm"].spec, "cuda", "float32")
    assert not backends.mixes(registry["l2_normalize"].spec, "cuda", "bfloat16")
    monkeypatch.setattr(type(backends.load("cuda")), "mixes", lambda self, spec: False)
    arrays = [torch.ones(2, 4, 3).bfloat16(), torch.ones(4)]
    problem = check.problem(bc.group_norm.spec, arrays, {"num_groups": 2}, DEFAULT)
    assert problem.mixed
    with pytest.raises(NotImplementedError, match="has nothing for float32 beside bfloat16"):
        bc.group_norm(*arrays, num_groups=2, backend="cuda")
