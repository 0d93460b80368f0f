"""Run-time values that JAX traces: one program for all of them, and their true gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import kinds
import lanes
import numpy as np
import pytest

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.declaration import values
from baracuda.testing.cases import many, subjects

STEP = 1e-6


def numbers(op: str) -> list[str]:
    """Its run-time values that are numbers."""
    scalars = registry[op].spec.scalars
    return [name for name, f in scalars.items() if isinstance(f, values.Number)]


VALUED = [op for op in registry if numbers(op)]


@pytest.fixture(autouse=True)
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_a_traced_seed_is_the_seed(dtype: str) -> None:
    # As every program that takes a seed gives it, and as words, the low one first.
    x, at = jnp.ones((4, 16)), jax.jit(lambda x, seed: bc.dropout(x, p=0.5, seed=seed))
    wide = 2 ** (36 if "64" in dtype else 3)
    for seed in (5, wide + 1, -3)[: 2 if dtype[0] == "u" else 3]:
        want = bc.dropout(x, p=0.5, seed=seed)
        traced = jnp.asarray(seed, dtype)
        words = jnp.asarray([seed % 2**32, (seed >> 32) % 2**32], jnp.uint32)
        for given in (traced, words):
            np.testing.assert_array_equal(at(x, given), want)
        np.testing.assert_array_equal(bc.dropout(x, p=0.5, seed=traced), want)
    seeds = jnp.arange(3, dtype=dtype)
    many = jax.vmap(at, (None, 0))(x, seeds)
    for seed in range(3):
        np.testing.assert_array_equal(many[seed], bc.dropout(x, p=0.5, seed=seed))


@pytest.mark.parametrize("op", lanes.cases(VALUED, kinds.USUAL.__contains__))
def test_a_traced_value_is_the_value(op: str) -> None:
    subject = next(s for s in subjects([op], ["jax"]) if s.dtype == "float64")
    function, first = registry[op], next(subject.calls())
    for name in numbers(op):
        for call in subject.calls() if lanes.FULL else [first]:
            arrays, options = call.given(), dict(call.options)
            value = float({**function.spec.usual, **options}[name])

            def run(v: Any, *some: Any, name: str = name, options: Any = options) -> Any:
                return many(function(*some, **{**options, name: v}))

            got = jax.jit(run)(jnp.asarray(value), *arrays)
            for x, y in zip(got, run(value, *arrays), strict=True):
                np.testing.assert_allclose(x, y, 1e-9, 1e-12, err_msg=f"{name}, {call.case}")


def test_thirty_values_are_one_program() -> None:
    traces = []

    @jax.jit
    def step(a: Any, b: Any, weight: Any) -> Any:
        traces.append(weight)
        return bc.lerp(a, b, weight=weight)

    a, b = jnp.zeros(8), jnp.ones(8)
    for weight in np.linspace(0, 1, 30):
        np.testing.assert_allclose(step(a, b, weight), weight, rtol=1e-15)
    assert len(traces) == 1


X = np.random.default_rng(0).standard_normal((4, 6))
TARGET = np.array([1, 0, 5, 3])
DIFFERENTIATED = {
    "lerp below a half": (bc.lerp, "weight", 0.3, (X, X[::-1].copy())),
    "lerp above": (bc.lerp, "weight", 0.7, (X, X[::-1].copy())),
    "softmax": (bc.softmax, "scale", 0.7, (X,)),
    "elu": (bc.elu, "alpha", 1.3, (X,)),
    "rms_norm": (bc.rms_norm, "eps", 0.1, (X,)),
    "label_smoothing": (bc.cross_entropy, "label_smoothing", 0.1, (X, TARGET)),
    "z_loss": (bc.cross_entropy, "z_loss", 0.1, (X, TARGET)),
    "softcap": (bc.cross_entropy, "softcap", 1.5, (X, TARGET)),
    "beta": (bc.smooth_l1_loss, "beta", 0.5, (X, X[::-1].copy())),
}


@pytest.mark.parametrize("which", DIFFERENTIATED)
@pytest.mark.parametrize("watched", ["the value alone", "arrays too"])
def test_a_value_has_its_true_gradient(which: str, watched: str) -> None:
    op, name, value, arrays = DIFFERENTIATED[which]
    some = [jnp.asarray(x) for x in arrays]
    pull = np.random.default_rng(1).standard_normal(op(*arrays, **{name: value}).shape)

    def loss(v: Any, x: Any) -> Any:
        return (op(x, *some[1:], **{name: v}) * pull).sum()

    ends = [float(loss(value + sign * STEP, some[0])) for sign in (1, -1)]
    if watched == "the value alone":
        got = jax.grad(loss)(value, some[0])
    else:
        # That of the arrays is the explicit one all the same, as soon as only they move.
        got, dx = jax.grad(loss, argnums=(0, 1))(value, some[0])
        alone = jax.jit(jax.grad(loss, argnums=1))
        assert f"{op.spec.name}_backward" in str(jax.make_jaxpr(alone)(value, some[0]))
        np.testing.assert_allclose(dx, alone(value, some[0]), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(got, (ends[0] - ends[1]) / (2 * STEP), rtol=1e-6, atol=1e-8)


def test_no_smoothing_of_an_infinite_logit_is_none() -> None:
    x = jnp.asarray(X).at[:, 2].set(-jnp.inf)
    at = jnp.asarray(TARGET)
    run = jax.jit(lambda v: bc.cross_entropy(x, at, label_smoothing=v, softcap=v, z_loss=v))
    np.testing.assert_allclose(run(0.0), bc.cross_entropy(x, at), rtol=1e-12)


def test_values_are_batched() -> None:
    a, b, weights = jnp.zeros(3), jnp.ones(3), jnp.linspace(0, 1, 5)
    got = jax.vmap(lambda w: bc.lerp(a, b, weight=w))(weights)
    np.testing.assert_allclose(got, np.repeat(weights[:, None], 3, axis=1))


def test_bfloat16_computes_with_the_value_in_float32() -> None:
    x = jnp.ones(4, jnp.bfloat16)
    got = jax.jit(lambda v: bc.lerp(x, x * 3, weight=v))(0.123456)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, bc.lerp(x, x * 3, weight=0.123456))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (jnp.ones(3), "lerp: weight: expected a real number, or a floating array of no axes, got"),
        (jnp.ones((), jnp.int32), "lerp: weight: expected a real number, or a floating array"),
    ],
)
def test_what_is_no_number_is_refused(value: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        jax.jit(lambda v: bc.lerp(X, X, weight=v))(value)


def test_what_chooses_a_formula_is_no_traced_value() -> None:
    with pytest.raises(TypeError, match="kl_div: log_target: expected a real number"):
        jax.jit(lambda x, v: bc.kl_div(x, x, log_target=v))(X, True)


def test_an_array_outside_of_a_program_is_read_where_that_waits_for_no_device() -> None:
    got = bc.lerp(jnp.zeros(3), jnp.ones(3), weight=jnp.asarray(0.5))
    np.testing.assert_array_equal(got, 0.5)
    with pytest.raises(ValueError, match="elu: alpha: expected a finite number, got nan"):
        bc.elu(jnp.zeros(3), alpha=jnp.asarray(np.nan))
