"""Kernels as custom calls of JAX programs, without a device: NumPy computes in their place."""

from __future__ import annotations

import gc
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import lanes
import numpy as np
import pytest
from emulator import compiler
from kinds import COVERING, USUAL, one_of_category
from over_devices import works
from test_jax import batches, close, given

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.declaration.dtypes import named

pytest.importorskip("cuda.core", reason="needs pip install 'baracuda[cuda]'")
import jax_stand_in

from baracuda.backends.cuda import xla
from baracuda.calls.partitioning import Shares, batch
from baracuda.examples.charlm import Config
from baracuda.testing import device_jax
from baracuda.testing.cases import Call
from baracuda.testing.timed_row import Row
from baracuda.tools.train import Text, fit, python_reference


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What was launched; plans made here are forgotten afterwards."""
    bc.plan_cache.clear()
    yield jax_stand_in.install(monkeypatch)
    bc.plan_cache.clear()


@pytest.fixture
def launched_eagerly(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same for calls that nothing traces."""
    bc.plan_cache.clear()
    yield jax_stand_in.install(monkeypatch, eager=True)
    bc.plan_cache.clear()


# What is composed of other ops launches theirs.
KERNELS = [name for name, op in registry.items() if op.spec.kernel]
PAIRS = [(registry[name].spec.adjoint_of, name) for name in KERNELS]
# Cases of each form.
MOST = None if lanes.FULL else 1
each_kernel = pytest.mark.parametrize("op", lanes.cases(KERNELS, COVERING.__contains__))
one_forward_of_each_category = pytest.mark.parametrize("op", lanes.cases(KERNELS, one_of_category))
each_pair = pytest.mark.parametrize(
    ("forward", "backward"),
    lanes.cases([p for p in PAIRS if p[0]], lambda p: p[0] in USUAL),
)


def launches(call: Call, got: Any) -> list[str]:
    """The kernels behind a result: none of an empty one, and of an option that they lack."""
    spec = call.subject.spec
    lacks = spec.kernel and spec.kernel.lacks in call.options.items()
    return [] if lacks or any(x.size == 0 for x in jax.tree.leaves(got)) else [spec.name]


def same(got: Any, want: Any, label: Any) -> None:
    close(got, want, label, 2e-5)


# The interface.


def test_offsets_are_those_of_the_header() -> None:
    offsets = {
        "offsetof(XLA_FFI_CallFrame, extension_start)": 8,
        "offsetof(XLA_FFI_CallFrame, api)": 16,
        "offsetof(XLA_FFI_CallFrame, ctx)": 24,
        "offsetof(XLA_FFI_CallFrame, args) + offsetof(XLA_FFI_Args, size)": 56,
        "offsetof(XLA_FFI_CallFrame, args) + offsetof(XLA_FFI_Args, types)": 64,
        "offsetof(XLA_FFI_CallFrame, args) + offsetof(XLA_FFI_Args, args)": 72,
        "offsetof(XLA_FFI_CallFrame, rets) + offsetof(XLA_FFI_Rets, size)": 96,
        "offsetof(XLA_FFI_CallFrame, rets) + offsetof(XLA_FFI_Rets, types)": 104,
        "offsetof(XLA_FFI_CallFrame, rets) + offsetof(XLA_FFI_Rets, rets)": 112,
        "offsetof(XLA_FFI_CallFrame, attrs) + offsetof(XLA_FFI_Attrs, size)": 136,
        "offsetof(XLA_FFI_CallFrame, attrs) + offsetof(XLA_FFI_Attrs, types)": 144,
        "offsetof(XLA_FFI_CallFrame, attrs) + offsetof(XLA_FFI_Attrs, attrs)": 160,
        "offsetof(XLA_FFI_Buffer, dtype)": xla.BUFFER,
        "offsetof(XLA_FFI_Buffer, data)": xla.BUFFER + 8,
        "offsetof(XLA_FFI_Array, dtype)": 0,
        "offsetof(XLA_FFI_Array, size)": 8,
        "offsetof(XLA_FFI_Array, data)": 16,
        "offsetof(XLA_FFI_Extension_Base, type)": xla.EXTENSION_TYPE,
        "offsetof(XLA_FFI_Extension_Base, next)": xla.EXTENSION_NEXT,
        "offsetof(XLA_FFI_Metadata_Extension, metadata)": xla.EXTENSION_METADATA,
        "offsetof(XLA_FFI_Metadata, api_version.major_version)": xla.METADATA_VERSION,
        "offsetof(XLA_FFI_Metadata, traits)": xla.METADATA_TRAITS,
        "offsetof(XLA_FFI_Api, api_version.major_version)": xla.API_VERSION,
        "offsetof(XLA_FFI_Api, XLA_FFI_Error_Create)": xla.API_ERROR_CREATE,
        "offsetof(XLA_FFI_Api, XLA_FFI_Stream_Get)": xla.API_STREAM_GET,
        "offsetof(XLA_FFI_Stream_Get_Args, stream)": xla._StreamGet.stream.offset,
        "offsetof(XLA_FFI_Error_Create_Args, errc)": xla._ErrorCreate.code.offset,
        "XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE": xla.COMMAND_BUFFER_COMPATIBLE,
        "XLA_FFI_API_MAJOR": xla.MAJOR,
        "XLA_FFI_Error_Code_INTERNAL": xla.INTERNAL_ERROR,
        "XLA_FFI_Error_Code_CANCELLED": xla.CANCELLED,
        "XLA_FFI_Error_Code_INVALID_ARGUMENT": xla.INVALID_ARGUMENT,
        "XLA_FFI_ArgType_BUFFER": xla.IS_BUFFER,
        "XLA_FFI_RetType_BUFFER": xla.IS_BUFFER,
        "XLA_FFI_AttrType_ARRAY": xla.IS_ARRAY,
        "XLA_FFI_DataType_PRED": xla.DTYPES["bool"],
    }
    for name, code in xla.DTYPES.items():
        kind = named(name).short.upper().replace("I", "S", named(name).kind == "int")
        if name != "bool":
            offsets[f"XLA_FFI_DataType_{kind}"] = code
    assert xla.FRAME_SIZE == 160 + 8
    checks = "\n".join(f'static_assert({a} == {b}, "{b}");' for a, b in offsets.items())
    with TemporaryDirectory() as folder:
        file = Path(folder, "offsets.cpp")
        file.write_text(f'#include "xla/ffi/api/c_api.h"\n{checks}\n')
        command = [*compiler(), "-std=c++17", "-fsyntax-only", "-I", jax.ffi.include_dir(), file]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_exception_is_the_error_of_the_program(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from baracuda.backends.cuda.jax import Program

    def broken(program: Any, words: Any, scalars: Any, stream: int) -> None:
        raise ValueError("no such luck")

    monkeypatch.setattr(Program, "launch", broken)
    x = jnp.ones((3, 10))
    with pytest.raises(Exception, match="ValueError: no such luck"):
        jax.block_until_ready(jax.jit(bc.reglu)(x))


def test_a_target_is_named_by_all_that_is_launched(launched: list[str]) -> None:
    from baracuda.backends.cuda.jax import _programs

    x = jnp.ones((2, 8))

    def targets(function: Any) -> set[str]:
        text = jax.jit(function).lower(x).as_text()
        return {name for name in _programs if f"@{name}(" in text}

    first = targets(lambda x: bc.swiglu(x))
    bc.plan_cache.clear()
    assert targets(lambda x: bc.swiglu(x)) == first
    assert len(first) == 1
    for other in (lambda x: bc.swiglu(x, gate_first=True), lambda x: bc.swiglu(x[:1]), bc.reglu):
        found = targets(other)
        assert len(found) == 1
        assert found != first
    # Run-time values are attributes: no target for each.
    assert targets(lambda x: bc.lerp(x, x, weight=0.1)) == targets(
        lambda x: bc.lerp(x, x, weight=0.2)
    )


# Programs.


@each_kernel
def test_a_program_launches_the_kernel(op: str, launched: list[str]) -> None:
    for g in lanes.last(given(op, "float32", MOST)):
        got = jax.jit(g.op)(*g.arrays)
        assert launched == launches(g.call, got), g.call.case
        same(got, g.plain(*g.arrays), g.call.form.text)
        # Untraced gradients, and the like, are as eager as they were.
        launched.clear()


@one_forward_of_each_category
def test_a_batch_is_one_launch(op: str, launched: list[str]) -> None:
    for g in lanes.last(given(op, "float32", most=2 if lanes.FULL else 1)):
        for axes, operands, want in batches(g, 0):
            label = f"{g.call.case} {g.call.form.text} {axes}"
            launched.clear()
            got = jax.jit(jax.vmap(g.op, axes))(*operands)
            # Where a parameter differs from one to another, or has a sum over them, it is the body.
            fits = batch(g.problem, 3, [axis == 0 for axis in axes]) is not None
            assert launched == [op] * fits, label
            same(got, want, label)


@one_forward_of_each_category
def test_nested_batches_along_any_axis(op: str, launched: list[str]) -> None:
    every = list(given(op, "float32"))
    fits = [g for g in every if batch(g.problem, 3, [True] * len(g.arrays)) is not None]
    g = [*fits, *every][0]
    at = [min(x.ndim, 1) for x in g.arrays]
    arrays = [
        jnp.stack([jnp.stack([x, jnp.roll(x, 1)], -1)] * 3, i)
        for x, i in zip(g.arrays, at, strict=True)
    ]
    way = jax.vmap(jax.vmap(g.op, at), -1)
    same(jax.jit(way)(*arrays), jax.vmap(jax.vmap(g.plain, at), -1)(*arrays), op)
    # Without a group that leads there is no room for a batch: its body runs.
    assert launched == [op] * bool(fits)


@each_pair
def test_a_gradient_launches_the_backward(forward: str, backward: str, launched: list[str]) -> None:
    for g in lanes.last(given(forward, "float32", most=2 if lanes.FULL else 1)):
        got, want = (jax.jit(g.grad(f))(*g.inputs) for f in (g.op, g.plain))
        same(got, want, g.call.form.text)
        assert backward in launched
        launched.clear()


def test_second_derivatives_are_those_of_the_body(launched: list[str]) -> None:
    for op in ("swiglu", "lp_pool1d", "rope"):
        g = next(given(op, "float32"))
        got, want = (jax.jit(g.second(f))(*g.inputs) for f in (g.op, g.plain))
        same(got, want, op)


@pytest.mark.parametrize("op", ["rope", "dropout", "index_select"])
def test_a_program_of_nothing_but_what_is_linear_is_lowered(op: str, launched: list[str]) -> None:
    g = next(given(op, "float32"))
    f = g.of_floats(g.op)
    along = jax.linearize(f, *g.inputs)[1]
    launched.clear()
    same(along(*g.inputs), f(*g.inputs), op)
    assert op in launched


def test_run_time_values_keep_their_precision(launched: list[str]) -> None:
    with jax.enable_x64(True):
        a, b = jnp.zeros(3, jnp.float64), jnp.ones(3, jnp.float64)
        got = jax.jit(lambda a, b: bc.lerp(a, b, weight=0.1))(a, b)
    assert launched == ["lerp"]
    assert got.tolist() == [0.1] * 3


def test_loops_launch_each_time(launched: list[str]) -> None:
    x = jnp.linspace(-1, 1, 16).reshape(2, 8)
    jax.block_until_ready(jax.jit(lambda x: jax.lax.fori_loop(0, 7, lambda i, c: bc.rope(c), x))(x))
    assert launched == ["rope"] * 7


def test_an_index_out_of_range_is_dropped_while_traced(launched: list[str]) -> None:
    src, bad = jnp.ones((2, 3)), jnp.asarray([[0], [7]])
    got = jax.jit(lambda s, i: bc.gather(s, i, axis=1))(src, bad)
    np.testing.assert_array_equal(got, [[1.0], [0.0]])
    assert launched == ["gather"]


# Eager calls.


@each_kernel
def test_an_eager_call_launches_the_kernel(op: str, launched_eagerly: list[str]) -> None:
    for g in lanes.last(given(op, "float32", MOST)):
        got = g.op(*g.arrays)
        jax.block_until_ready(got)
        assert launched_eagerly == launches(g.call, got), g.call.case
        same(got, g.plain(*g.arrays), g.call.form.text)
        launched_eagerly.clear()


def test_run_time_values_compile_nothing(launched_eagerly: list[str]) -> None:
    from baracuda.backends.cuda.jax import _programs

    a, b = jnp.zeros(10), jnp.ones(10)
    plan = bc.lerp.plan(a, b)
    bc.lerp(a, b, weight=0.5)
    targets, misses = len(_programs), bc.plan_cache.info().misses
    got = [plan(a, b, weight=k / 300) for k in range(300)]
    np.testing.assert_allclose(np.stack(got)[:, 7], np.arange(300) / 300, rtol=1e-6)
    assert (len(_programs), bc.plan_cache.info().misses) == (targets, misses)
    assert plan.sku.backend == "cuda"
    assert launched_eagerly == ["lerp"] * 301


def test_training_on_kernels_is_training_without(launched_eagerly: list[str]) -> None:
    text, config = python_reference(), Config(64, context=16, batch=2, width=32, hidden=48)
    text = Text(text.training[:4096] % 64, text.validation[:256] % 64, 64)
    run = fit(jnp, text, config, steps=20)
    assert {sku.backend for sku in run.training.plans.skus()} == {"cuda"}
    assert run.later_misses == 0
    assert set(launched_eagerly) >= {"embedding", "embedding_backward", "rope_backward", "ema"}
    want = fit(np, text, config, steps=20)
    np.testing.assert_allclose(run.losses, want.losses, rtol=0, atol=1e-4)


# Who runs, and why.


def test_what_is_compiled_for_the_host_says_so() -> None:
    bc.plan_cache.clear()
    plans = []
    jax.jit(lambda x: plans.append(bc.swiglu.plan(x)) or x)(jnp.ones((2, 4)))
    host = str(jax.devices()[0])
    assert plans[0].sku.backend == "array_api"
    assert dict(plans[0].why)["cuda"] == f"takes arrays on NVIDIA devices, not on {host}"
    with pytest.raises(NotImplementedError, match="cuda: takes arrays on NVIDIA devices, not on"):
        jax.jit(lambda x: bc.swiglu(x, backend="cuda"))(jnp.ones((2, 4)))


def test_another_platform_runs_the_body_unless_the_backend_is_forced(
    launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from baracuda.backends.cuda import jax as kernels

    # The kernels are on a device, the program is for the host.
    monkeypatch.setattr(kernels, "PLATFORM", "cuda")
    monkeypatch.setattr(kernels.jax, "local_device_count", lambda backend: 1)
    x = jnp.linspace(-1, 1, 24).reshape(3, 8)
    same(jax.jit(lambda x: bc.geglu(x))(x), bc.geglu(np.asarray(x)), "body")
    assert launched == []
    with pytest.raises(NotImplementedError, match="cpu"):
        jax.jit(lambda x: bc.geglu(x, backend="cuda"))(x)


def test_what_calls_cost_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(device_jax, "LOOP", 5)
    assert not device_jax.available()
    found = device_jax.costs()
    assert found["swiglu, plan call"] > 0
    row = Row("lerp_backward", "", ((4, 8),), {"weight": 0.3})
    assert np.isfinite(device_jax.seconds(row, [torch.ones(4, 8)]))


def test_memory_may_be_freed_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector frees what a cycle holds on whichever thread it runs."""
    from cuda.bindings import driver

    from baracuda.backends.cuda.launch import Memory

    ok, modes = driver.CUresult.CUDA_SUCCESS, driver.CUstreamCaptureMode
    strict, relaxed = (
        modes.CU_STREAM_CAPTURE_MODE_GLOBAL,
        modes.CU_STREAM_CAPTURE_MODE_RELAXED,
    )
    mode, freed = [strict], []

    def exchange(other: Any) -> Any:
        before, mode[0] = mode[0], other
        return ok, before

    monkeypatch.setattr(driver, "cuMemAlloc", lambda nbytes: (ok, 64))
    monkeypatch.setattr(driver, "cuMemFree", lambda address: freed.append((address, mode[0])))
    monkeypatch.setattr(driver, "cuThreadExchangeStreamCaptureMode", exchange)
    monkeypatch.setattr(driver, "cuCtxGetCurrent", lambda: (ok, 7))
    monkeypatch.setattr(driver, "cuCtxPushCurrent", lambda context: (ok,))
    monkeypatch.setattr(driver, "cuCtxPopCurrent", lambda: (ok, 7))
    cycle: list[Any] = [Memory(4)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert freed == [(64, relaxed)]
    assert mode == [strict]


# The shape string.


def traced_problem(op: str, *shapes: tuple[int, ...], **options: Any) -> Any:
    arrays = [
        jnp.zeros(s, jnp.int32 if i and op in ("gather", "gather_backward", "rope") else None)
        for i, s in enumerate(shapes)
    ]
    return registry[op].plan(*arrays, **options).problem


def test_batches_by_the_shape_string() -> None:
    problem = traced_problem("gather_backward", (2, 5), (2, 5), axis=1, src_shape=(2, 9))
    shapes, options = batch(problem, 7, (True, False))
    assert shapes == [(7, 2, 5), (7, 2, 5)]
    assert (options["axis"], options["src_shape"]) == (2, (7, 2, 9))
    # Positions that all share stay as they are; those that differ have a form of their own.
    problem = traced_problem("rope", (2, 3, 5, 4), (5,))
    assert batch(problem, 7, (True, False))[0] == [(7, 2, 3, 5, 4), (5,)]
    assert batch(problem, 7, (True, True))[0] == [(7, 2, 3, 5, 4), (7, 1, 1, 5)]
    problem = traced_problem("rms_norm", (2, 5), (5,))
    assert batch(problem, 7, (True, False))[0] == [(7, 2, 5), (5,)]
    assert batch(problem, 7, (True, True)) is None
    assert batch(traced_problem("rms_norm_backward", (2, 5), (2, 5), (5,)), 7, (True,) * 3) is None
    assert batch(traced_problem("softmax", (2, 5)), 7, (True,))[0] == [(7, 2, 5)]
    problem = traced_problem("rope", (2, 3, 5, 4), (1, 3, 5))
    assert batch(problem, 7, (True, False))[0] == [(7, 2, 3, 5, 4), (1, 1, 3, 5)]


def test_shares_by_the_shape_string() -> None:
    def rule(*arguments: Any, **options: Any) -> str:
        return Shares(traced_problem(*arguments, **options)).rule()[0]

    assert rule("swiglu", (2, 8)) == "b0 whole0 -> b0 whole1"
    assert rule("swiglu", (2, 8), (2, 8)) == "b0 n, b0 n -> b0 n"
    # Tokens are looked up one by one; a table of another size is not cut with them.
    assert rule("gather", (9, 4), (5, 4), axis=0) == "whole0 c0, k c0 -> k c0"
    assert rule("gather", (9, 4), (5, 2), axis=0) == "whole0 whole1, k whole2 -> k whole3"
    # Positions that are counted begin at 0 on each device: so the sequence stays whole.
    assert rule("rope", (2, 5, 4)) == "b0 whole0 whole1 -> b0 whole2 whole3"
    assert rule("rope", (2, 5, 4), (5,)) == "b0 s whole0, s -> b0 s whole1"
    assert rule("rope", (2, 5, 4), (1, 5)) == "b0 s whole0, whole1 s -> b0 s whole2"


def test_a_share_has_smaller_options_and_each_mesh_axis_once() -> None:
    problem = traced_problem("gather_backward", (4, 5, 2), (4, 5, 2), axis=1, src_shape=(4, 9, 2))
    shares = Shares(problem)
    places = shares.places((*shares.outputs, *shares.inputs), [("x", None, None), (), ("y", "x")])
    assert places == {"b0": "x"}
    apart = Shares(traced_problem("swiglu", (4, 8), (4, 8)))
    assert apart.places(apart.inputs, [("x", None), (None, "x")]) == {"b0": "x"}
    assert apart.places(apart.inputs, [("x", None), (None, "y")]) == {"b0": "x", "n": "y"}
    assert shares.options(places, {"x": 2, "y": 3})["src_shape"] == (2, 9, 2)
    assert shares.options({"c0": ("x", "y")}, {"x": 2, "y": 3})["src_shape"] == (4, 9, 1)


@pytest.mark.parametrize("op", lanes.cases(registry, lanes.thinned(one_of_category)))
def test_over_four_devices(op: str) -> None:
    """Opaque as a custom call is, shards run where they are, without a collective."""
    works(op, "kernels")
