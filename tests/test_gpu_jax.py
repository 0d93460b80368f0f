"""JAX arrays on an NVIDIA GPU, eagerly and in compiled programs: ``pytest -m gpu``.

JAX has to see the device: ``JAX_PLATFORMS=cuda,cpu``, and other processes have to be left memory:
``XLA_PYTHON_CLIENT_PREALLOCATE=false``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import lanes
import numpy as np
import pytest
from device import close
from holding import hold
from kinds import OPS
from over_devices import works
from test_laws import has_its_turn

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.testing.cases import Call, Subject, subjects, to_library


def has_gpu() -> bool:
    try:
        return jax.default_backend() == "gpu"
    except RuntimeError:
        return False


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not has_gpu(), reason="needs an NVIDIA GPU that JAX sees"),
    pytest.mark.usefixtures("at_rest"),
]

EVERY = list(subjects(libraries=["jax"], device="cuda"))
KERNELS = [s for s in EVERY if s.backend == "cuda"]
# XLA compiles each form of a body for the GPU for as long as all else takes.
BODIES = [
    replace(s, ends=not lanes.FULL)
    for s in EVERY
    if s.backend != "cuda" and (lanes.FULL or has_its_turn(s))
]
SINGLE = [s for s in KERNELS if s.dtype == "float32"]
PAIRS = [(o.spec.adjoint_of, n) for n, o in registry.items() if o.spec.adjoint_of and o.spec.kernel]
each_kernel = pytest.mark.parametrize("subject", KERNELS, ids=str)
each_op = pytest.mark.parametrize("subject", SINGLE, ids=str)


def there(call: Call) -> list[Any]:
    return [x for x in call.given() if x is not None]


def run_on(call: Call, *some: Any) -> tuple[Any, ...]:
    """The op forced onto the subject's backend, on the arrays that are there."""
    left = iter(some)
    return call.run(
        [None if n not in call.arrays else next(left) for n in call.subject.spec.arrays]
    )


@pytest.mark.parametrize("subject", KERNELS + BODIES, ids=str)
def test_laws(subject: Subject) -> None:
    hold(subject)


@each_kernel
def test_a_compiled_program_calls_the_kernel(subject: Subject) -> None:
    with subject.context():
        for call in subject.calls():
            function = jax.jit(functools.partial(run_on, call))
            arrays = there(call)
            text = function.lower(*arrays).compile().as_text()
            empty = any(x.size == 0 for x in call.run())
            assert (f"baracuda_{subject.op}_" in text) != empty
            close(call, function(*arrays))


@each_op
def test_a_batch_is_one_launch(subject: Subject) -> None:
    for call in subject.calls():
        arrays = there(call)
        twice = [jnp.stack([x, x]) for x in arrays]
        function = jax.jit(jax.vmap(functools.partial(run_on, call)))
        text = function.lower(*twice).compile().as_text()
        assert text.count('custom_call_target="baracuda_') <= 1
        assert "while" not in text
        for k in range(2):
            close(call, tuple(y[k] for y in function(*twice)))


@pytest.mark.parametrize(("forward", "backward"), PAIRS)
def test_a_gradient_launches_the_backward_kernel(forward: str, backward: str) -> None:
    for call in Subject(forward, "cuda", "jax", "float32", "cuda").calls():
        arrays = there(call)
        names = [name for name in call.subject.spec.arrays if name in call.arrays]
        floats = [i for i, name in enumerate(names) if name in call.watched]

        def loss(*some: Any, arrays: Any = arrays, floats: Any = floats, call: Call = call) -> Any:
            args = dict(enumerate(arrays)) | dict(zip(floats, some, strict=True))
            return sum(jnp.sum(jnp.sin(y)) for y in run_on(call, *args.values()))

        at = [arrays[i] for i in floats]
        slope = jax.jit(jax.grad(loss, argnums=tuple(range(len(at)))))
        text = slope.lower(*at).compile().as_text()
        assert f"baracuda_{backward}_" in text


def test_a_loop_launches_each_time() -> None:
    x = jnp.linspace(-1, 1, 64).reshape(4, 16)
    rolled = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda i, c: bc.rope(c), x))(x)
    want = x
    for _ in range(50):
        want = bc.rope(want)
    np.testing.assert_allclose(rolled, want, rtol=1e-5, atol=1e-6)
    scanned = jax.jit(lambda x: jax.lax.scan(lambda c, _: (bc.rope(c), None), x, None, length=50))
    np.testing.assert_array_equal(scanned(x)[0], rolled)


def test_many_calls_in_a_program_may_be_replayed_as_a_graph() -> None:
    x = jnp.linspace(-1, 1, 4096).reshape(4, 1024)

    @jax.jit
    def deep(x: Any) -> Any:
        for _ in range(12):
            x = bc.lerp(bc.rope(x), jnp.concatenate([bc.swiglu(x)] * 2, -1), weight=0.3)
        return x

    first = deep(x)
    for k in range(5):
        np.testing.assert_array_equal(deep(x), first)
        deep(x + k)


def test_run_time_values_compile_nothing() -> None:
    a, b = jnp.zeros(1000), jnp.ones(1000)
    plan = bc.lerp.plan(a, b)
    bc.lerp(a, b, weight=0.5)
    before = bc.plan_cache.info().misses
    got = [plan(a, b, weight=k / 500) for k in range(500)]
    assert bc.plan_cache.info().misses == before
    np.testing.assert_allclose(np.stack(got)[:, 7], np.arange(500) / 500, rtol=1e-6)


def test_variants_are_measured_on_arrays_and_not_while_traced() -> None:
    dout, index = jnp.ones((64, 512)), jnp.zeros((64, 512), jnp.int32)
    options = {"axis": 1, "src_shape": (64, 4096)}
    plan = bc.gather_backward.plan(dout, index, **options, autotune=True)
    want = np.zeros((64, 4096))
    want[:, 0] = 512
    np.testing.assert_array_equal(plan(dout, index), want)
    assert bc.gather_backward.plan(dout, index, **options, sku=plan.sku).sku == plan.sku
    tuned = jax.jit(lambda d, i: bc.gather_backward(d, i, **options, autotune=True))
    np.testing.assert_array_equal(tuned(dout, index), want)


def test_an_index_out_of_range_surfaces_later() -> None:
    src, bad = jnp.ones((2, 3)), jnp.asarray([[0], [7]])
    out = bc.gather(src, bad, axis=1)
    np.testing.assert_array_equal(out, [[1.0], [0.0]])
    with pytest.raises(IndexError, match=r"gather: index: expected 0 <= i < 3, got 7 at"):
        bc.check_errors()
    traced = jax.jit(lambda s, i: bc.gather(s, i, axis=1))(src, bad)
    np.testing.assert_array_equal(traced, [[1.0], [0.0]])
    bc.check_errors()


@pytest.mark.skipif(not has_gpu() or len(jax.devices()) < 2, reason="needs two NVIDIA GPUs")
@pytest.mark.parametrize("op", OPS)
def test_over_all_devices(op: str) -> None:
    works(op, "gpus")


def test_a_program_for_the_host_is_the_body() -> None:
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    on_host = jax.device_put(x, jax.devices("cpu")[0])
    want = bc.swiglu(x)
    got = jax.jit(bc.swiglu)(on_host)
    assert got.devices() == on_host.devices()
    np.testing.assert_allclose(got, want, rtol=1e-5)
    with pytest.raises(Exception, match="cpu"):
        jax.jit(lambda x: bc.swiglu(x, backend="cuda"))(on_host)


@pytest.fixture
def torch() -> Iterator[Any]:
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("torch sees no GPU")
    return found


@each_kernel
def test_a_record_of_torch_forces_the_same_kernel(subject: Subject, torch: Any) -> None:
    with subject.context():
        for call in subject.calls():
            try:
                arrays = [
                    None if n not in call.arrays else to_library(
                        np.asarray(x), "torch", "cuda")
                    for n, x in zip(subject.spec.arrays, call.given(), strict=False)
                ]  # fmt: skip
            except TypeError:
                pytest.skip("torch has no such dtype")
            theirs = call.plan(arrays)
            sku, own = theirs.sku, call.plan()
            kinds = [[x.dtype for x in p.problem.outputs] for p in (theirs, own)]
            if kinds[0] != kinds[1] and sku.kernel != own.sku.kernel:
                # JAX without x64 holds int64 as int32. Some kernels take both, others one.
                with pytest.raises(ValueError, match="sku: expected kernel"):
                    call.plan(sku=sku)
                continue
            plan = call.plan(sku=sku)
            assert plan.sku == sku
            assert plan.problem.device == call.plan(arrays).problem.device
            close(call, plan(*call.given(), **call.scalars))
