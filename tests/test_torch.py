"""torch: watched tensors run the op as plain ones do, and the gradient is the explicit op."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import lanes
import numpy as np
import pytest
import torch
from kinds import COVERING, SLOPING
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import baracuda as bc
from baracuda.calls import adjoint
from baracuda.calls.op import registry
from baracuda.frameworks.torch.autograd import Link
from baracuda.testing.cases import Call, Subject

DIFFERENTIABLE = [name for name, op in registry.items() if adjoint.partner(op.spec)[0]]
DTYPES = ("float64", "float32", "bfloat16")


def calls(op: str, dtype: str = "float64") -> list[Call]:
    return list(Subject(op, "torch", "torch", dtype).calls())


class Watched:
    """A call as a function of its floating tensors, which are watched."""

    def __init__(self, call: Call) -> None:
        self.spec, self.options, self.form = call.subject.spec, call.options, call.form
        self.function = call.subject.function
        self.chosen = {role.chosen for role in self.spec.roles.values()}
        self.arrays = call.given()
        self.at = [i for i, n in enumerate(self.spec.arrays) if n in call.watched]
        self.floats = tuple(self.arrays[i].requires_grad_() for i in self.at)

    def __call__(
        self, *floats: torch.Tensor, backend: str | None = "torch"
    ) -> tuple[torch.Tensor, ...]:
        # Constants are as wide as what is differentiated.
        arrays = [
            x.to(floats[0].dtype) if x is not None and x.is_floating_point() else x
            for x in self.arrays
        ]
        for i, x in zip(self.at, floats, strict=True):
            arrays[i] = x
        options = self.options
        if floats[0].dtype == torch.float64:
            # So are results of which an option says the dtype.
            options = {**options, **dict.fromkeys(self.chosen & {*options}, "float64")}
        out = self.function(*arrays, **options, backend=backend)
        out = out if isinstance(out, tuple) else (out,)
        # Nothing flows back from the others.
        roles = [self.spec.role(p.name) for p in self.form.outputs]
        return tuple([y for y, role in zip(out, roles, strict=True) if role.flows])

    def along(self, factor: float) -> tuple[torch.Tensor, ...]:
        """Cotangents of all results."""
        with torch.no_grad():
            return tuple(factor * torch.cos(y * 3 + 1) for y in self(*self.floats))


def close(got: Any, want: Any, dtype: torch.dtype) -> None:
    eps = torch.finfo(dtype).eps
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=16 * eps, atol=16 * eps)


@pytest.mark.parametrize(
    ("op", "dtype"),
    lanes.cases(
        itertools.product(DIFFERENTIABLE, DTYPES),
        lambda given: given[1] == DTYPES[DIFFERENTIABLE.index(given[0]) % len(DTYPES)],
    ),
)
def test_the_gradient_is_that_of_the_body(op: str, dtype: str) -> None:
    for call in calls(op, dtype):
        watched = Watched(call)
        out = watched(*watched.floats)
        names = ("FusedBackward", "FusedEarlyBackward")
        assert all(y.requires_grad and y.grad_fn.name() in names for y in out)
        along = tuple(torch.cos(y.detach() * 3 + 1) for y in out)
        got = torch.autograd.grad(out, watched.floats, along)
        plain = tuple(x.detach().double() for x in watched.floats)
        # Transforms go through the body.
        definition = functools.partial(watched, backend=None)
        want = torch.func.vjp(definition, *plain)[1](tuple(x.double() for x in along))
        for x, y, z in zip(got, want, watched.floats, strict=True):
            assert (x.dtype, x.shape) == (z.dtype, z.shape)
            scale = float(y.abs().max()) if y.numel() else 0.0
            eps = torch.finfo(z.dtype).eps
            torch.testing.assert_close(x.double(), y, rtol=16 * eps, atol=16 * eps * (1 + scale))


# First derivatives of all are by finite differences in the laws.
@pytest.mark.parametrize(
    ("op", "way"),
    lanes.cases(
        itertools.product(SLOPING, ("along a direction", "by element")),
        lambda given: given[0] in COVERING and given[1] == "along a direction",
    ),
)
def test_first_and_second_derivatives_by_finite_differences(op: str, way: str) -> None:
    seen = set()
    for call in calls(op):
        if call.form.text in seen or any(x.size == 0 for x in call.arrays.values()):
            continue
        seen.add(call.form.text)
        if call.subject.spec.pointwise and "y" in call.arrays:
            # Results may lie on kinks, where differences say nothing; any other values do as well.
            call = replace(call, arrays={**call.arrays, "y": np.cos(call.arrays["dy"])})
        watched = Watched(call)
        # What has no explicit gradient is its body to autograd, on no backend in particular.
        call_it = functools.partial(watched, backend="torch" if op in DIFFERENTIABLE else None)

        def function(*floats: Any, call_it: Any = call_it) -> Any:
            # A logarithm of 0 stays what it is.
            return tuple([torch.where(torch.isinf(y), 0, y) for y in call_it(*floats)])

        more = {"atol": 1e-4, "fast_mode": way != "by element"}
        assert torch.autograd.gradcheck(function, watched.floats, **more)
        assert torch.autograd.gradgradcheck(function, watched.floats, **more)


def test_a_plan_says_what_runs() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    plan = bc.swiglu.plan(x, backend="torch")
    assert plan.sku == bc.swiglu.plan(x.detach(), backend="torch").sku
    assert plan(x).requires_grad
    assert plan is bc.swiglu.plan(x, backend="torch")
    assert bc.swiglu.plan(x, sku=plan.sku).sku == plan.sku
    assert bc.swiglu(x, backend="array_api").grad_fn.name() == "FusedBackward"
    # The body by choice is differentiated itself: nothing is computed twice.
    assert bc.swiglu.plan(x).sku.variant == "autograd"
    assert bc.swiglu(x).grad_fn.name() != "FusedBackward"
    with forward_ad.dual_level():
        assert bc.swiglu.plan(forward_ad.make_dual(x, x)).sku.variant == "forward-mode"
    # And so is that of what has no adjoint.
    assert bc.swiglu_backward.plan(x[:, :4], x).sku.backend == "array_api"


def test_only_the_fused_ops_run(monkeypatch: pytest.MonkeyPatch) -> None:
    x, ran = torch.randn(4, 8, requires_grad=True), []
    gradients = Link.gradients

    def counted(self: Link, *args: Any) -> Any:
        ran.append(self)
        return gradients(self, *args)

    monkeypatch.setattr(Link, "gradients", counted)
    y = bc.swiglu(x, backend="torch")
    (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert len(ran) == 1
    assert torch.equal(dx, bc.swiglu_backward(torch.ones_like(y), x.detach()))
    assert ran[0]._explicit.plan.sku.backend == "torch"
    before = bc.plan_cache.info().misses
    for _ in range(5):
        bc.swiglu(x, backend="torch").sum().backward()
    assert bc.plan_cache.info().misses <= before + 1  # cotangents of stride 0


def test_a_choice_holds_for_the_gradient_too() -> None:
    x, found = torch.randn(4, 8, requires_grad=True), []
    with bc.options(backend="array_api"):
        y = bc.swiglu(x)
    thread = threading.Thread(target=lambda: found.append(torch.autograd.grad(y.sum(), x)[0]))
    thread.start()
    thread.join()
    link, _ = y.grad_fn.call
    assert link._explicit.plan.sku.backend == "array_api"
    close(found, [bc.swiglu_backward(torch.ones(4, 4), x.detach())], x.dtype)


def test_a_block_around_the_gradient_does_not_choose() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    y = bc.swiglu(x, backend="torch")
    z = bc.swiglu(x, backend="torch", deterministic=True)
    with bc.options(backend="array_api", max_workspace_bytes=5):
        torch.autograd.grad(y.sum() + z.sum(), x)
    for out, fixed in ((y, False), (z, True)):
        choices = out.grad_fn.call[0]._explicit.plan.problem.choices
        assert (choices.backend, choices.deterministic) == ("torch", fixed)
        assert choices.max_workspace_bytes is None


PARTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "one of two results": lambda x: bc.lerp_backward(x, weight=0.3)[1],
    "the second of two arrays": lambda x: bc.lerp(torch.ones(4, 8).double(), x, weight=0.3),
    "an array twice": lambda x: bc.swiglu(x, x),
    "a gate alone": lambda x: bc.swiglu(torch.ones(4, 8).double(), x),
    "a view": lambda x: bc.swiglu(x.t(), axis=0),
    "a row": lambda x: bc.rope(x[1:3]),
}
each_way = pytest.mark.parametrize("backend", ["torch", None])


@each_way
@pytest.mark.parametrize("name", list(PARTS))
def test_parts_of_a_call_may_be_watched(name: str, backend: str | None) -> None:
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)

    def part(x: torch.Tensor) -> torch.Tensor:
        with bc.options(backend=backend):
            return PARTS[name](x)

    assert torch.autograd.gradcheck(part, x)
    assert torch.autograd.gradgradcheck(part, x)


def test_what_is_saved_must_stay_as_it_is() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    y = bc.swiglu(x, backend="torch")
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    # A rotation is linear: nothing of it is needed.
    z = bc.rope(x, backend="torch")
    with torch.no_grad():
        x.mul_(2)
    z.sum().backward()


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_results_are_the_callers_to_write_to(op: str) -> None:
    """No memory of an input is in them, and autograd takes what is done to them in place."""
    forms = {call.form: call for call in calls(op, "float32")}
    partner: Any = adjoint.partner(registry[op].spec)[0]
    for call in forms.values():
        watched = Watched(call)
        want = torch.autograd.grad(watched(*watched.floats), watched.floats, watched.along(2.0))
        out = watched(*watched.floats)
        storages = [x.untyped_storage().data_ptr() for x in watched.arrays if x is not None]
        for y in out:
            assert not y.numel() or y.untyped_storage().data_ptr() not in storages
            y.mul_(2)
        # A gradient that is made from a result takes it as it was.
        if {p.name for p in call.form.outputs} & {*partner.arrays}:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(out, watched.floats, watched.along(1.0))
        else:
            got = torch.autograd.grad(out, watched.floats, watched.along(1.0))
            close(got, want, torch.float32)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_compute_again(reentrant: bool) -> None:
    x = torch.randn(4, 8, dtype=torch.float64, requires_grad=True)

    def block(x: torch.Tensor) -> torch.Tensor:
        return bc.rope(bc.swiglu(x, backend="torch"), backend="torch") * 2

    (want,) = torch.autograd.grad(block(x).sum(), x)
    checkpoint(block, x, use_reentrant=reentrant).sum().backward()
    torch.testing.assert_close(x.grad, want)


def test_an_index_out_of_range_is_an_error_before_anything_is_recorded() -> None:
    src = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(IndexError, match="gather: index: expected 0 <= i < 4, got 4"):
        bc.gather(src, torch.tensor([[0], [4], [1]]), axis=1)


def test_integers_and_blocks_without_gradients_are_not_watched() -> None:
    x = torch.randn(4, 8, requires_grad=True)
    for block in (torch.no_grad, torch.inference_mode):
        with block():
            assert bc.swiglu(x).grad_fn is None
    assert (
        bc.gather(torch.arange(6).reshape(2, 3), torch.zeros(2, 1).long(), axis=1).grad_fn is None
    )


def test_the_global_switch_is_part_of_a_plan() -> None:
    x = torch.randn(4, 8)
    for _ in range(3):
        bc.tanhshrink(x)
    assert bc.tanhshrink.plan(x).problem.choices.deterministic is False
    misses = bc.plan_cache.info().misses
    torch.use_deterministic_algorithms(True)
    try:
        bc.tanhshrink(x)
        assert bc.plan_cache.info().misses == misses + 1
        assert bc.tanhshrink.plan(x).problem.choices.deterministic is True
    finally:
        torch.use_deterministic_algorithms(False)
    bc.tanhshrink(x)
    assert bc.plan_cache.info().misses == misses + 1
