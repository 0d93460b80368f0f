"""Run-time values that are arrays: read on the host, left where they are on a device."""

from __future__ import annotations

import ctypes
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
import torch
from stub_device import install

import baracuda as bc
from baracuda import libraries
from baracuda.backends import load
from baracuda.calls.op import registry
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import Case
from baracuda.libraries.torch import Torch
from baracuda.testing.bounds import close
from baracuda.testing.cases import Call, Subject, many

X = np.random.default_rng(0).standard_normal((4, 6))
STEP = 1e-6


def numbers(op: str) -> list[str]:
    """Its run-time values that an array may stand for."""
    return [n for n, f in registry[op].spec.scalars.items() if hasattr(f, "dtypes")]


VALUED = [op for op in registry if numbers(op)]


def held(op: str, name: str, value: float) -> float:
    """A number as an array has it: in the first floating dtype, or in the bits of int64."""
    if isinstance(value, int):
        return value - (value >> 63 << 64)
    first = registry[op].spec.scalars[name].dtypes[0]  # type: ignore[attr-defined]
    return float(np.dtype(first).type(value))


def last_call(op: str) -> tuple[Call, dict[str, float]]:
    """The last form of an op, with run-time values of the first dtype that an array may have."""
    call = list(Subject(op, "array_api", "torch", "float32", brief=True).calls())[-1]
    values = {name: held(op, name, call.scalars[name]) for name in numbers(op)}
    case = Case(call.case.axes, **{**call.case.options, **values})
    return replace(call, case=case), values


@contextmanager
def unread() -> Iterator[None]:
    """Tensors of the CPU are taken for tensors of a device: whoever reads one fails."""

    def read(x: Any, *_: Any) -> Any:
        raise AssertionError("it was read")

    # Loading it reads tensors of its own.
    load("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Torch, "readable", lambda self, x: False)
        for name in ("__bool__", "__float__", "__int__", "__index__", "item", "tolist", "numpy"):
            patch.setattr(torch.Tensor, name, read)
        bc.plan_cache.clear()
        yield
    bc.plan_cache.clear()


@pytest.mark.parametrize("op", VALUED)
def test_a_body_computes_with_what_nobody_may_read(op: str) -> None:
    call, values = last_call(op)
    arrays = call.given()
    held = {name: torch.tensor(v) for name, v in values.items()}
    with unread():
        got, plan = call.subject.function.planned(*arrays, **{**call.options, **held})
        again = plan(*arrays, **{**call.scalars, **held})
    assert plan.problem.reads
    assert plan.sku.backend == "torch"
    assert plan.why[0][0] == "cuda"
    close(call, many(got), op)
    close(call, many(again), op)


def test_other_devices_of_a_namespace_are_not_read() -> None:
    device = strict.Device("device1")
    a, w = strict.asarray(X, device=device), strict.asarray(0.25, device=device)
    got, plan = bc.lerp.planned(a, a + 1, weight=w)
    assert plan.problem.reads == ("float64",)
    there = strict.asarray(got, device=strict.Device("CPU_DEVICE"))
    np.testing.assert_allclose(np.from_dlpack(there), X + 0.25, rtol=1e-15)


DIFFERENTIATED = {
    "lerp": (bc.lerp, "weight", 0.3, (X, X[::-1].copy())),
    "softmax": (bc.softmax, "scale", 0.7, (X,)),
    "elu": (bc.elu, "alpha", 1.3, (X,)),
    "rms_norm": (bc.rms_norm, "eps", 0.1, (X,)),
    "offset": (bc.rms_norm, "offset", 0.4, (X, X[0].copy())),
    "softcap": (bc.cross_entropy, "softcap", 1.5, (X, np.array([1, 0, 5, 3]))),
    "beta": (bc.smooth_l1_loss, "beta", 0.5, (X, X[::-1].copy())),
}


@pytest.mark.parametrize("which", DIFFERENTIATED)
@pytest.mark.parametrize("watched", [False, True])
def test_a_value_has_its_true_gradient(which: str, watched: bool) -> None:
    op, name, value, arrays = DIFFERENTIATED[which]
    given = [torch.tensor(x) for x in arrays]
    given[0].requires_grad_(watched)
    held = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    y = op(*given, **{name: held})
    pull = np.random.default_rng(1).standard_normal(y.shape)
    (y * torch.tensor(pull)).sum().backward()
    ends = [(op(*arrays, **{name: value + sign * STEP}) * pull).sum() for sign in (1, -1)]
    assert held.grad is not None
    np.testing.assert_allclose(held.grad, (ends[0] - ends[1]) / (2 * STEP), rtol=1e-6, atol=1e-8)
    if watched:
        alone = torch.tensor(arrays[0], requires_grad=True)
        (op(alone, *given[1:], **{name: value}) * torch.tensor(pull)).sum().backward()
        np.testing.assert_allclose(given[0].grad, alone.grad, rtol=1e-9, atol=1e-12)


def test_a_transform_differentiates_a_value() -> None:
    a, b = torch.tensor(X), torch.tensor(X[::-1].copy())
    held = torch.tensor(0.3, dtype=torch.float64)
    grad = torch.func.grad(lambda w: bc.lerp(a, b, weight=w).sum())(held)
    np.testing.assert_allclose(grad, (b - a).sum(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("op", ["rms_norm", "lerp", "elu"])
def test_the_gradient_is_that_at_the_value_of_the_call(op: str) -> None:
    call, values = last_call(op)
    name, value = next(iter(values.items()))
    given, alone = call.given(), call.given()
    for x in (*given, *alone):
        x.requires_grad_()
    held = torch.tensor(value)
    with unread():
        y = call.subject.function(*given, **{**call.options, name: held})
        held.fill_(3.0)
        grads = torch.autograd.grad(y, given, torch.ones_like(y))
    want = call.subject.function(*alone, **call.options)
    for got, x in zip(grads, torch.autograd.grad(want.sum(), alone), strict=True):
        torch.testing.assert_close(got, x)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.ones(3), "expected a number, or an array without axes of float32 or float64"),
        (torch.tensor(1), "expected a number, or an array without axes of float32 or float64"),
        (torch.tensor(0.5, dtype=torch.float16), ".*got float16 of shape"),
        (torch.empty((), device="meta"), r"expected device cpu \(as a\), got meta"),
        (np.array(0.5), r"expected a real number, got a numpy.ndarray .*float\(x\)"),
    ],
)
def test_what_cannot_stand_for_a_number_is_refused(value: Any, said: str) -> None:
    a = torch.ones(3)
    plan = bc.lerp.plan(a, a)
    calls: list[Callable[..., Any]] = [bc.lerp, bc.lerp.plan, bc.lerp.planned, plan]
    for call in calls:
        with pytest.raises(TypeError, match=f"lerp: weight: {said}"):
            call(a, a, weight=value)


def test_what_the_host_reads_is_checked_as_a_number_is() -> None:
    for x, value in ((X, np.array(-1.0)), (torch.tensor(X), torch.tensor(-1.0))):
        with pytest.raises(ValueError, match="rms_norm: eps: expected a finite number >= 0"):
            bc.rms_norm(x, eps=value)
    with pytest.raises(TypeError, match="kl_div: log_target: expected True or False"):
        bc.kl_div(X, X, log_target=np.array(True))


def test_a_graph_of_torch_names_a_value_that_it_does_not_take() -> None:
    a, w = torch.ones(3), torch.tensor(0.5)
    whole = torch.compile(lambda w: bc.lerp(a, a, weight=w), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=r"lerp: weight: torch's graphs take a number"):
        whole(w)
    broken = torch.compile(lambda w: bc.lerp(a, a * 3, weight=w), backend="eager")
    torch.testing.assert_close(broken(w), a * 2)


def test_plans_of_numbers_and_of_arrays_take_each_others_values() -> None:
    a, w = torch.ones(3), torch.tensor(0.5)
    with unread():
        reading, plain = bc.lerp.plan(a, a * 3, weight=w), bc.lerp.plan(a, a * 3)
        assert (reading.problem.reads, plain.problem.reads) == (("float32",), ())
        assert bc.lerp.plan(a, a * 3, weight=torch.tensor(0.25)) is reading
        out = torch.empty(3)
        results = [plan(a, a * 3, weight=v) for plan in (reading, plain) for v in (0.5, w)]
        assert plain(a, a * 3, out=out, weight=w) is out
        with pytest.raises(ValueError, match="as planned"):
            plain(torch.ones(4), torch.ones(4), weight=w)
        loaded = pickle.loads(pickle.dumps(reading))
        assert loaded.problem.key == reading.problem.key
        results.append(loaded(a, a * 3, weight=w))
    for x in (*results, out):
        torch.testing.assert_close(x, a * 2)


@pytest.mark.parametrize("op", VALUED)
def test_a_kernel_is_given_the_address(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, values = last_call(op)
    if call.subject.spec.kernel is None:
        pytest.skip("a composite of others")
    device = install(monkeypatch)
    monkeypatch.setattr(Torch, "readable", lambda self, x: False)
    from baracuda.backends.cuda import fast_call, launch

    launched: list[tuple[Any, bytes]] = []

    def record(function: Any, *rest: Any) -> tuple[int]:
        # The last but one is the array that points to the arguments.
        at = ctypes.c_void_p.from_address(rest[-2]).value or 0
        launched.append((function, ctypes.string_at(at, function.nbytes)))
        return device.launch(function)

    for module in (launch, fast_call):
        monkeypatch.setattr(module, "launch_kernel", record)
    fast_call._binder.cache_clear()
    bc.plan_cache.clear()
    arrays = call.given()
    held = {name: torch.tensor(v) for name, v in values.items()}
    _, plan = call.subject.function.planned(*arrays, **{**call.options, **held})
    if plan.sku.backend != "cuda":
        assert any("bytes of arguments" in reason for _, reason in plan.why)
        return
    # Where results begin one element later, a call goes the general way.
    for begin in (0, 1):
        outs = tuple(
            torch.empty(prod(x.shape) + begin, dtype=getattr(torch, x.dtype))[begin:].view(x.shape)
            for x in plan.problem.outputs
        )
        plan(*arrays, out=outs if len(outs) > 1 else outs[0], **{**call.scalars, **held})
    reading = [(e, words) for e, words in launched if e.reads]
    assert len(reading) >= 3
    for entry, words in reading:
        first, *kinds = entry.reads.split(", ")
        shorts = {n: named(str(x.dtype).removeprefix("torch.")).short for n, x in held.items()}
        assert kinds == [shorts.get(n, "ByValue") for n in call.subject.spec.scalars]
        for i, name in enumerate(call.subject.spec.scalars):
            at = int(first) + 8 * i
            if name in held:
                assert int.from_bytes(words[at : at + 8], "little") == held[name].data_ptr()
            else:
                assert np.frombuffer(words, np.float64, 1, at)[0] == call.scalars[name]
    assert "_reads_" in plan.sku.kernel
    # The kernels for numbers are as they were.
    _, plain = call.subject.function.planned(*arrays, **call.options)
    assert "_reads_" not in plain.sku.kernel
    bc.plan_cache.clear()


@pytest.mark.gpu
def test_a_graph_replays_with_the_values_of_then() -> None:
    a, b, w = torch.zeros(64, device="cuda"), torch.ones(64, device="cuda"), torch.tensor(0.25)
    w = w.cuda()
    bc.lerp(a, b, weight=w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = bc.lerp(a, b, weight=w)
    for value in (0.5, 0.75):
        w.fill_(value)
        graph.replay()
        torch.testing.assert_close(y, torch.full_like(y, value), rtol=0, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("op", VALUED)
def test_nothing_waits_for_a_device(op: str) -> None:
    call, values = last_call(op)
    arrays = [x if x is None else x.cuda() for x in call.given()]
    held = {name: torch.tensor(v).cuda() for name, v in values.items()}
    call.subject.function(*arrays, **{**call.options, **held})
    try:
        with warnings.catch_warnings():
            # torch says that this mode is a prototype, after it has set it.
            warnings.simplefilter("ignore", UserWarning)
            torch.cuda.set_sync_debug_mode("error")
        call.subject.function(*arrays, **{**call.options, **held})
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_value_that_is_an_array_may_stand_beside_a_type_not_met_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = torch.ones(3), torch.nn.Parameter(torch.zeros(3))
    for known in (libraries.FACTS, libraries._BY_TYPE):
        monkeypatch.delitem(known, torch.nn.Parameter, raising=False)
    got = bc.lerp(a, b, weight=torch.tensor(0.25))
    assert torch.equal(got, torch.full((3,), 0.75))
