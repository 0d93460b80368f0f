"""Plans as records: pickled and made again, planned from descriptions, compiled by `jax.jit`."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import stub_device
import torch
from kinds import OPS

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.testing.cases import Subject, many, to_library, to_numpy

LIBRARIES = ("numpy", "torch", "jax", "array_api_strict")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    bc.plan_cache.clear()
    yield
    bc.plan_cache.clear()


@pytest.mark.parametrize("op", list(registry))
def test_every_plan_is_made_again(op: str) -> None:
    for call in Subject(op, "", "numpy", "float32").calls():
        arrays = call.given()
        plan = registry[op].plan(*arrays, **call.options)
        text, want = pickle.dumps(plan), many(plan(*arrays, **call.scalars))
        assert pickle.loads(text) is plan
        bc.plan_cache.clear()
        made = pickle.loads(text)
        assert (made.sku, made.problem.key) == (plan.sku, plan.problem.key)
        for got, x in zip(many(made(*arrays, **call.scalars)), want, strict=True):
            assert np.array_equal(got, x, equal_nan=True)
        # From the first arrays on it is as fast as any plan; and it is a record again.
        assert made.matches(arrays)
        assert pickle.loads(pickle.dumps(made)) is made


@pytest.mark.parametrize("library", LIBRARIES)
def test_plans_of_every_library(library: str) -> None:
    x = to_library(np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8), library)
    plan = bc.swiglu.plan(x, axis=0, backend="array_api")
    text, want = pickle.dumps(plan), to_numpy(plan(x))
    bc.plan_cache.clear()
    made = pickle.loads(text)
    np.testing.assert_array_equal(to_numpy(made(x)), want)
    assert made.problem.library is plan.problem.library
    assert copy.copy(made) is made
    assert copy.deepcopy(made) is made
    with pytest.raises(ValueError, match="shape"):
        made(x[:2, :])


def test_watched_and_strided_tensors() -> None:
    x = torch.ones(8, 4).T.requires_grad_()
    for given in (x, x.detach()):
        plan = bc.swiglu.plan(given)
        text = pickle.dumps(plan)
        bc.plan_cache.clear()
        made = pickle.loads(text)
        assert made(given).requires_grad == given.requires_grad
        # Another layout has a plan of its own, as ever.
        np.testing.assert_allclose(to_numpy(made(given.contiguous())), to_numpy(made(given)))
        assert made.matches((given,))


def test_a_variant_that_was_measured_is_made_without_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = stub_device.install(monkeypatch)
    device.times = {"_d1_": 2e-6, "_d2_": 1e-6}
    x = torch.ones(64, 64)
    usual = bc.lerp_backward.plan(x).sku
    plan = bc.lerp_backward.plan(x, autotune=True)
    assert plan.sku != usual
    text, device.measured = pickle.dumps(plan), 0
    # Whether such a problem has no plan here, or the one that was chosen without measuring.
    for before in (False, True):
        bc.plan_cache.clear()
        if before:
            with monkeypatch.context() as quiet:
                quiet.setattr(device, "times", {"_d1_": 1e-6, "_d2_": 2e-6})
                assert bc.lerp_backward.plan(x, autotune=True).sku == usual
                device.measured = 0
        made = pickle.loads(text)
        assert made.sku == plan.sku
        device.launched.clear()
        made(x, weight=0.5)
        assert [entry.symbol for entry in device.launched] == [plan.sku.kernel]
        assert not device.measured


OTHER = """
import pickle, sys
import numpy as np
plan = pickle.load(open(sys.argv[1], "rb"))
print(plan.sku.op, float(plan(np.ones((2, 8)))[0, 0]))
"""


def test_another_process_makes_it_again(tmp_path: Path) -> None:
    plan = bc.swiglu.plan(np.ones((2, 8)))
    file = tmp_path / "plan"
    file.write_bytes(pickle.dumps(plan))
    done = subprocess.run(
        [sys.executable, "-c", OTHER, str(file)], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["swiglu", str(float(plan(np.ones((2, 8)))[0, 0]))], done.stderr


def test_what_cannot_be_made_here_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from baracuda.calls import records

    plan = bc.swiglu.plan(np.ones((2, 8)))
    whole = records.record
    for change, error, text in (
        ({"op": "swigloo"}, ValueError, "known op, got swigloo"),
        ({"library": "no_such"}, ImportError, "no_such"),
        ({"sku": replace(plan.sku, version="0").to_json()}, ValueError, "sku: .*version"),
        ({"sku": replace(plan.sku, arch="sm_1").to_json()}, ValueError, "sku: .*sm_1"),
        ({"sku": replace(plan.sku, backend="cuda").to_json()}, NotImplementedError, "'cuda' ref"),
        ({"options": {"axis": 7, "gate_first": False}}, ValueError, "axis"),
    ):
        monkeypatch.setattr(records, "record", lambda p, c=change: {**whole(p), **c})
        made = pickle.dumps(plan)
        bc.plan_cache.clear()
        with pytest.raises(error, match=text):
            pickle.loads(made)


def test_plans_of_tracers_do_not_pickle() -> None:
    def traced(x: Any) -> Any:
        with pytest.raises(TypeError, match=r"swiglu: plan: .*traced arrays"):
            pickle.dumps(bc.swiglu.plan(x))
        return x

    jax.jit(traced)(jnp.ones((2, 8)))


# JAX.


@pytest.mark.parametrize("op", OPS)
def test_descriptions_plan_as_arrays_do(op: str) -> None:
    for call in islice(Subject(op, "", "jax", "float32").calls(), 2):
        arrays = call.given()
        structs = [x if x is None else jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays]
        plan = registry[op].plan(*structs, **call.options)
        assert plan is registry[op].plan(*arrays, **call.options)
        assert plan.matches(arrays)


def test_a_description_may_have_a_sharding() -> None:
    x = jnp.ones((4, 8))
    placed = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
    assert bc.swiglu.plan(placed).matches((x,))
    index = jax.ShapeDtypeStruct((4, 2), jnp.int32)
    with pytest.raises(TypeError, match="ShapeDtypeStruct"):
        bc.swiglu(placed)
    with pytest.raises(TypeError, match="ShapeDtypeStruct"):
        bc.gather(x, index, axis=1)


def test_a_plan_compiles_and_is_differentiated_as_the_op_is() -> None:
    x, y = jnp.linspace(-1, 1, 32).reshape(4, 8), jnp.ones((4, 8))
    plan = bc.swiglu.plan(jax.ShapeDtypeStruct(x.shape, x.dtype))
    assert weakref.ref(plan)() is plan
    np.testing.assert_allclose(jax.jit(plan)(x), bc.swiglu(x), rtol=1e-6)
    got = jax.grad(lambda x: jax.jit(plan)(x).sum())(x)
    np.testing.assert_allclose(got, jax.grad(lambda x: bc.swiglu(x).sum())(x), rtol=1e-6)
    assert "baracuda_linear" in str(jax.make_jaxpr(jax.jacfwd(plan))(x))
    many = jax.vmap(plan)(jnp.stack([x, y]))
    np.testing.assert_allclose(many[0], plan(x), rtol=1e-6)
    weighted = bc.lerp.plan(x, y)
    run = jax.jit(weighted, static_argnames="weight")
    np.testing.assert_allclose(run(x, y, weight=0.25), bc.lerp(x, y, weight=0.25), rtol=1e-6)
    with pytest.raises(ValueError, match="shape"):
        jax.jit(plan)(x[:2])


def test_a_plan_keeps_what_was_chosen_for_it() -> None:
    x = np.ones((3, 4))
    plan = bc.relu.plan(x, deterministic=True, max_workspace_bytes=1 << 20, backend="numpy")
    assert pickle.loads(pickle.dumps(plan)).problem.choices == plan.problem.choices
