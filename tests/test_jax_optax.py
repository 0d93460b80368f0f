"""Transformations for optax: steps, states and what may stand around them are optax's own."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp  # noqa: E402

import baracuda as bc  # noqa: E402
from baracuda.integrations import optax as ours  # noqa: E402

STEPS = 100
MASK = {"layer": {"weight": True, "bias": False}, "table": True}


def rate(count: Any) -> Any:
    """A schedule in the widest dtype; optax's own are rounded to float32."""
    return 0.05 * jnp.cos(count.astype(float) / 70)


def decay(count: Any) -> Any:
    return rate(count) + 0.1


def matrices(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.ndim > 1, tree)


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("adamw", {"learning_rate": 0.02, "weight_decay": 0.1}),
    "adamw-schedules": ("adamw", {"learning_rate": rate, "b1": 0.8, "b2": 0.95, "eps": 1e-3,
                                  "weight_decay": decay}),
    "adamw-mask": ("adamw", {"learning_rate": rate, "weight_decay": 0.1, "mask": MASK}),
    "adamw-prefix": ("adamw", {"learning_rate": 0.02, "weight_decay": 0.1,
                               "mask": {"layer": False, "table": True}}),
    "adamw-no-decay": ("adamw", {"learning_rate": rate, "weight_decay": 0.0}),
    "adam": ("adam", {"learning_rate": rate}),
    "sgd": ("sgd", {"learning_rate": 0.05}),
    "momentum": ("sgd", {"learning_rate": rate, "momentum": 0.9}),
    "nesterov": ("sgd", {"learning_rate": 0.05, "momentum": 0.9, "nesterov": True}),
    "lion": ("lion", {"learning_rate": 0.01, "weight_decay": 0.1}),
    "lion-masks": ("lion", {"learning_rate": rate, "b1": 0.8, "b2": 0.95, "mask": matrices,
                            "weight_decay": decay}),
}  # fmt: skip


@pytest.fixture
def wide() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def drawn(seed: int, dtype: Any = None) -> Any:
    normal = np.random.default_rng(seed).standard_normal
    shapes = {"layer": {"weight": (3, 4), "bias": (4,)}, "table": (7, 3)}
    return jax.tree.map(
        lambda s: jnp.asarray(normal(s), dtype), shapes, is_leaf=lambda x: isinstance(x, tuple)
    )


def plain(transform: Any) -> Any:
    """A step as a loop of optax makes it."""

    @jax.jit
    def step(params: Any, grads: Any, state: Any) -> Any:
        updates, state = transform.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return step


def close(got: Any, want: Any, room: float = 1e-12) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(
            np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=room, atol=room
        )


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("wide")
def test_a_hundred_steps_are_those_of_optax(case: str) -> None:
    """By updates, by new parameters, and with a state that goes from one to the other and back."""
    name, options = CASES[case]
    theirs, mine = getattr(optax, name)(**options), getattr(ours, name)(**options)
    steps = plain(theirs), plain(mine), jax.jit(mine.apply)
    params = [drawn(0)] * 4
    states = [t.init(params[0]) for t in (theirs, mine, mine, theirs)]
    for n in range(STEPS):
        grads = drawn(n + 1)
        for i, step in enumerate([*steps, steps[n % 3]]):
            params[i], states[i] = step(params[i], grads, states[i])
    for i in (1, 2, 3):
        close((params[i], states[i]), (params[0], states[0]))
    assert np.abs(params[0]["table"] - drawn(0)["table"]).max() > 0.01


def test_states_keep_their_dtype_and_are_computed_with_in_float32() -> None:
    params, grads = drawn(0, jnp.bfloat16), drawn(1, jnp.bfloat16)
    for options in ({}, {"mu_dtype": jnp.float32}):
        mine = ours.adamw(0.1, weight_decay=0.1, **options)
        state = mine.init(params)
        assert jax.tree.map(jnp.dtype, state) == jax.tree.map(
            jnp.dtype, optax.adamw(0.1, **options).init(params)
        )
        new, after = jax.jit(mine.apply)(params, grads, state)
        floats = [jax.tree.map(lambda x: x.astype(jnp.float32), x) for x in (params, grads)]
        exact = optax.adamw(0.1, weight_decay=0.1)
        right, then = plain(exact)(*floats, exact.init(floats[0]))
        # In float32 optax is off by 6e-6 of a first step itself, so what is near a tie may differ.
        close(new, jax.tree.map(lambda x: x.astype(jnp.bfloat16), right), 2**-7)
        close(after[0].nu, jax.tree.map(lambda x: x.astype(jnp.bfloat16), then[0].nu), 0)
        kind = options.get("mu_dtype", jnp.bfloat16)
        close(after[0].mu, jax.tree.map(lambda x, to=kind: x.astype(to), then[0].mu), 1e-7)


def test_masters_are_stepped_and_rounded_at_once() -> None:
    masters, grads = drawn(0, jnp.float32), drawn(1, jnp.bfloat16)
    mine, theirs = ours.adamw(0.1), optax.adamw(0.1)
    new, state, copied = jax.jit(mine.apply, static_argnames="copy")(
        masters, grads, mine.init(masters), copy=True
    )
    exact = jax.tree.map(lambda x: x.astype(jnp.float32), grads)
    right = plain(theirs)(masters, exact, theirs.init(masters))
    close((new, state), right, 1e-6)
    close(copied, jax.tree.map(lambda x: x.astype(jnp.bfloat16), new), 0)


def test_gradients_are_clipped_and_steps_skipped_within_the_pass() -> None:
    params, grads = drawn(0, jnp.float32), drawn(1, jnp.float32)
    mine = ours.adamw(rate, weight_decay=0.1)
    usual = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(rate, weight_decay=0.1))

    @jax.jit
    def step(params: Any, grads: Any, state: Any) -> Any:
        squares = bc.sum_of_squares(jax.tree.leaves(grads))
        _, scale, found = bc.clip_scale(squares, max_norm=0.5, eps=0.0, grad_scale=8.0)
        return mine.apply(params, grads, state, grad_scale=scale, found_inf=found)

    @jax.jit
    def updated(grads: Any, state: Any, params: Any, found: Any) -> Any:
        return mine.update(grads, state, params, found_inf=found)

    state, other, theirs = mine.init(params), usual.init(params), params
    for _ in range(3):
        params, state = step(params, jax.tree.map(lambda x: 8 * x, grads), state)
        theirs, other = plain(usual)(theirs, grads, other)
    close((params, state), (theirs, other[1]), 1e-5)

    grads["table"] = grads["table"].at[2, 1].set(jnp.inf)
    close(step(params, grads, state), (params, state), 0)
    updates, after = updated(grads, state, params, jnp.float32(1))
    close(after, state, 0)
    assert not any(np.any(x) for x in jax.tree.leaves(updates))


def test_what_optax_puts_around_a_transformation_may_stand_around_these() -> None:
    params, grads = drawn(0, jnp.float32), drawn(1, jnp.float32)
    parts = {"layer": "a", "table": "b"}

    def around(own: Any) -> dict[str, Any]:
        return {
            "chain": optax.chain(optax.clip(0.3), own.adamw(0.1), optax.scale(0.5)),
            "multi": optax.MultiSteps(own.lion(0.1), 2),
            "inject": optax.inject_hyperparams(own.adamw)(
                learning_rate=rate, b1=0.9, weight_decay=0.1
            ),
            "frozen": optax.masked(own.sgd(0.1, 0.9), MASK),
            "partition": optax.partition({"a": own.adam(0.1), "b": optax.set_to_zero()}, parts),
        }

    for name, theirs in around(optax).items():
        mine, step = around(ours)[name], plain(theirs)
        state = theirs.init(params)
        for _ in range(3):
            _, state = step(params, grads, state)
        if name == "inject":
            own = mine.init(params)
            state = own._replace(
                count=state.count, inner_state=state.inner_state,
                hyperparams_states=state.hyperparams_states,
            )  # fmt: skip
            want = step(params, grads, theirs.init(params)._replace(
                count=state.count, inner_state=state.inner_state,
                hyperparams_states=state.hyperparams_states,
            ))[0]  # fmt: skip
            close(plain(mine)(params, grads, state)[0], want, 1e-6)
            continue
        close(plain(mine)(params, grads, state), step(params, grads, state), 1e-6)
    # What has no gradient stays; nothing at all is a tree as well.
    mine = ours.adamw(0.1)
    grads["layer"] = None
    params["layer"] = None
    new, _ = mine.apply(params, grads, mine.init(params))
    assert new["layer"] is None
    assert mine.apply({}, {}, mine.init({}))[0] == {}


def test_a_step_reads_and_writes_no_more_than_that_of_optax() -> None:
    """By XLA's own count for the host; one array is all that there is."""
    size = 1 << 14
    params, grads = jnp.ones(size), jnp.ones(size)
    for name, options in (
        ("adamw", {}), ("adam", {}), ("lion", {}), ("sgd", {}), ("sgd", {"momentum": 0.9}),
    ):  # fmt: skip
        theirs, mine = (getattr(m, name)(rate, **options) for m in (optax, ours))
        state = mine.init(params)
        counted = []
        for step in (plain(theirs), plain(mine), jax.jit(mine.apply)):
            program = step.lower(params, grads, state).compile()
            counted.append(program.cost_analysis()["bytes accessed"])
        assert max(counted) < 1.01 * counted[0], name
        # Of updates that are kept, one more array is written.
        assert min(counted) > 4 * 3 * size


def test_first_steps_in_float32_keep_their_digits() -> None:
    grads = jnp.linspace(0.1, 2, 1000)
    apart = []
    for own in (ours, optax):
        adam = own.adam(1.0, eps=0.0)
        updates, _ = jax.jit(adam.update)(grads, adam.init(grads))
        apart.append(float(np.abs(updates + 1).max()))
    assert apart[0] < 2e-7
    assert apart[1] > 5e-6


def test_what_cannot_be_is_said() -> None:
    params = drawn(0, jnp.float32)
    mine = ours.adamw(0.1)
    with pytest.raises(ValueError, match="adamw: params: expected the parameters, because"):
        mine.update(params, mine.init(params))
    with pytest.raises(ValueError, match="adamw: eps: expected a finite number >= 0, got -1"):
        ours.adam(0.1, eps=-1.0).update(params, mine.init(params))
    with pytest.raises(TypeError, match="eps_root"):
        ours.adamw(0.1, eps_root=0.1)
    # Without decay parameters are not needed, as in optax.
    adam = ours.adam(0.1)
    close(adam.update(params, adam.init(params)), optax.adam(0.1).update(
        params, adam.init(params)), 1e-6)  # fmt: skip


def test_the_examples_of_the_docstrings_run() -> None:
    found = doctest.testmod(ours)
    assert found.attempted > 0
    assert found.failed == 0
