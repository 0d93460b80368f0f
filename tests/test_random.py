"""Random masks: the generator, which element has which word, and what the masks are like."""

from __future__ import annotations

import itertools
from typing import Any

import emulator
import jax
import jax.numpy as jnp
import lanes
import ml_dtypes
import numpy as np
import pytest
import torch
from fuzz.philox import dropped, masks, whole
from fuzz.philox import philox as reference
from scipy import special
from torch.fx.experimental.proxy_tensor import make_fx

import baracuda as bc
from baracuda.families.philox import philox, quantile, words_of

# The known answers of Random123 (kat_vectors, philox4x32 with 10 rounds): counter, key, words.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def hexadecimal(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "want"), KNOWN)
def test_words_are_those_of_random123(counter: str, key: str, want: str) -> None:
    assert philox(hexadecimal(counter), hexadecimal(key)) == hexadecimal(want)
    arrays = [np.asarray([k], np.int64) for k in hexadecimal(counter)]
    got = philox(tuple(arrays), hexadecimal(key))
    assert tuple(int(x[0]) for x in got) == hexadecimal(want)
    known = reference([hexadecimal(counter)], hexadecimal(key))
    assert tuple(known[0].tolist()) == hexadecimal(want)


def test_a_compiler_multiplies_no_number_of_a_place_as_an_index() -> None:
    """Inductor makes products of `arange` and constants in 32 bits, whatever the dtype says."""

    def traced(x: torch.Tensor) -> torch.Tensor:
        return words_of((4, 16), 7, 2, x)

    graph = make_fx(traced)(torch.ones(4, 16)).graph
    places = [node for node in graph.nodes if "arange" in str(node.target)]
    used = {str(user.target) for node in places for user in node.users}
    assert places
    assert used == {"aten.bitwise_and.Scalar"}


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.25, 1 - 2.0**-30, 1.0])
def test_an_element_is_dropped_where_its_word_is_small(p: float) -> None:
    x = np.random.default_rng(0).standard_normal((7, 9))
    x[0, :2] = np.nan, np.inf
    seed, offset = 2**64 - 3, 2**33 + 5
    want = dropped(x, p, seed, offset)
    got = bc.dropout(x, p=p, seed=seed, offset=offset)
    np.testing.assert_allclose(got, want, rtol=1e-15)
    np.testing.assert_array_equal(got == 0, want == 0)


def test_a_mask_follows_from_the_seed_and_the_places_alone() -> None:
    x = np.ones((6, 40), np.float32)
    how = {"seed": 2**64 - 5, "offset": 2**63 + 2, "p": 0.25}
    want = bc.dropout(x, **how) != 0
    assert 0.6 < want.mean() < 0.9
    for given in (
        torch.ones(6, 40),
        jnp.ones((6, 40)),
        torch.ones(40, 6).T,
        torch.ones(6, 40).bfloat16(),
        torch.ones(1).expand(6, 40),
    ):
        same = {**how, "seed": -5, "offset": 2 - 2**63}
        np.testing.assert_array_equal(bc.dropout(given, **same) != 0, want)
    held = torch.tensor(2**64 - 5, dtype=torch.uint64)
    given = bc.dropout(torch.ones(6, 40), **{**how, "seed": held})
    np.testing.assert_array_equal(given != 0, want)
    # Both words of a seed and of an offset count.
    for other in ({"seed": 6}, {"seed": 2**64 - 5 - 2**32}, {"offset": 2}, {"offset": 2**62 + 2}):
        assert (bc.dropout(x, **{**how, **other}) != 0).tolist() != want.tolist()


def test_a_residual_is_added_as_it_is() -> None:
    rng, how = np.random.default_rng(0), {"p": 0.3, "seed": 11, "offset": 2}
    x, residual = rng.standard_normal((2, 6, 40)).astype(np.float16)
    got = bc.dropout_add(x, residual, **how)
    want = residual.astype(np.float64) + dropped(x.astype(np.float64), **how)
    np.testing.assert_array_equal(got[bc.dropout(x, **how) == 0], residual[want == residual])
    np.testing.assert_allclose(got, want, rtol=2.0**-11, atol=2.0**-24)
    wide = bc.dropout_add(torch.from_numpy(x), torch.from_numpy(residual).float(), **how)
    assert wide.dtype == torch.float32
    np.testing.assert_allclose(wide, want, rtol=1e-6, atol=1e-6)


def test_an_array_that_would_be_cut_into_blocks_has_one_mask() -> None:
    x = np.ones((300, 1001), np.float32)
    want = masks(x.size, 3, 1).reshape(x.shape) >= 2**31
    for given in (x, torch.from_numpy(x), jnp.asarray(x)):
        np.testing.assert_array_equal(bc.dropout(given, p=0.5, seed=3, offset=1) != 0, want)


def test_a_batch_of_masks_is_that_of_each_one() -> None:
    x = jnp.ones((3, 5, 8))
    got = jax.vmap(lambda one: bc.dropout(one, p=0.5, seed=9))(x)
    for one in got:
        np.testing.assert_array_equal(one, bc.dropout(x[0], p=0.5, seed=9))


def test_seeds_and_offsets_may_be_traced_as_two_words() -> None:
    x, numbers = jnp.ones((4, 16)), (3, 2**40 + 7, 2**64 - 1)
    traces = []

    @jax.jit
    def run(x: Any, seed: Any, offset: Any) -> Any:
        traces.append(seed)
        return bc.dropout(x, p=0.5, seed=seed, offset=offset)

    def pair(number: int) -> Any:
        return jnp.asarray([number & 0xFFFFFFFF, number >> 32], jnp.uint32)

    for seed, offset in zip(numbers, numbers[::-1], strict=True):
        want = bc.dropout(x, p=0.5, seed=seed, offset=offset)
        np.testing.assert_array_equal(run(x, pair(seed), pair(offset)), want)
    assert len(traces) == 1
    with pytest.raises(TypeError, match="seed: expected an integer of no axes, or two words"):
        run(x, jnp.asarray([3, 0, 0]), pair(0))


@pytest.mark.parametrize("seed", [5, 2**63 + 11])
def test_torch_trains_and_compiles_with_seeds(seed: int) -> None:
    x = torch.randn(4, 16, requires_grad=True)
    y = bc.dropout(x, p=0.5, seed=seed, offset=seed)
    (dx,) = torch.autograd.grad(y.sum(), x)
    np.testing.assert_array_equal(dx.numpy(), 2.0 * (y != 0).numpy())
    run = torch.compile(
        lambda x: bc.dropout(x, p=0.5, seed=seed, offset=seed), fullgraph=True,
        backend="aot_eager",
    )  # fmt: skip
    np.testing.assert_array_equal(run(x).detach().numpy(), y.detach().numpy())


@pytest.mark.parametrize("bad", [2**64, -(2**63) - 1, 1.0, True, "1"])
@pytest.mark.parametrize("name", ["seed", "offset"])
def test_what_is_no_seed_is_refused(name: str, bad: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=f"dropout: {name}: expected an integer"):
        bc.dropout(np.ones(3), **{"p": 0.5, "seed": 1, name: bad})


# Offsets.


def test_each_call_of_a_step_has_an_offset_of_its_own() -> None:
    def some(step: Any) -> list[dict[str, Any]]:
        return list(itertools.islice(bc.seeds(7, step=step), 3))

    offsets = {draw["offset"] for step in (0, 1, 2**32 - 1) for draw in some(step)}
    assert len(offsets) == 9
    assert max(offsets) < 2**64
    assert some(5) == some(np.int32(5)) == [{"seed": 7, "offset": 5 + k * 2**32} for k in range(3)]
    for bad in (-1, 2**32):
        with pytest.raises(ValueError, match=r"seeds: step: expected an integer from 0 to 2\*\*32"):
            bc.seeds(7, step=bad)


def test_a_step_on_a_device_or_traced_is_the_number() -> None:
    def run(x: Any, step: Any) -> list[Any]:
        return [bc.dropout(x, p=0.5, **k) for k in itertools.islice(bc.seeds(7, step=step), 2)]

    x = np.ones((4, 16), np.float32)
    want = run(x, 1200)
    for got in (
        run(x, np.asarray(1200)),
        run(torch.from_numpy(x), torch.tensor(1200, dtype=torch.int32)),
        run(jnp.asarray(x), jnp.asarray(1200)),
        jax.jit(run)(jnp.asarray(x), 1200),
    ):
        np.testing.assert_array_equal(np.asarray([*map(np.asarray, got)]), want)


# Kernels, in the emulator.


@pytest.mark.parametrize("how", ["dense", "padded", "odd", "turned"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_kernel_numbers_elements_as_they_lie_in_the_whole(dtype: str, how: str) -> None:
    kind = getattr(ml_dtypes, dtype, dtype)
    values = np.random.default_rng(0).standard_normal((6, 37)).astype(kind)
    x = emulator.placed(values.T).T if how == "turned" else emulator.lying(values, how)
    options = {"seed": 2**63 + 12345, "offset": 2**35 + 1, "p": 0.4}
    (got,) = emulator.launched(bc.dropout, [x], options)
    want = bc.dropout(values, **options)
    np.testing.assert_array_equal(got == 0, want == 0)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2.0**-7)


@pytest.mark.parametrize("stream", ["bfloat16", "float32"])
def test_a_kernel_adds_a_residual(stream: str) -> None:
    rng, options = np.random.default_rng(0), {"seed": 5, "offset": 1, "p": 0.4}
    x, residual = rng.standard_normal((2, 4, 50))
    x, residual = x.astype(ml_dtypes.bfloat16), residual.astype(getattr(ml_dtypes, stream, stream))
    placed = [emulator.placed(x), emulator.placed(residual)]
    (got,) = emulator.launched(bc.dropout_add, placed, options)
    want = bc.dropout_add(x, residual, **options)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_kernel_drops_none_or_all(p: float) -> None:
    x = emulator.placed(np.asarray([np.nan, np.inf, 1.0, -2.5, 0.0] * 5))
    (got,) = emulator.launched(bc.dropout, [x], {"seed": 1, "offset": 0, "p": p})
    np.testing.assert_array_equal(got, np.zeros_like(x) if p else x)


# Parts of arrays.

PARTS = [
    ((16, 24), (4, 0), (12, 24)), ((16, 24), (0, 6), (16, 14)), ((6, 5, 7), (2, 0, 3), (5, 5, 7)),
    ((16, 24), (3, 8), (9, 24)), ((40,), (16,), (37,)), ((4, 3, 16), (1, 1, 0), (2, 2, 16)),
]  # fmt: skip
OF_PARTS: list[tuple[Any, dict[str, Any]]] = [
    (bc.dropout, {"p": 0.4}), (bc.bernoulli, {"p": 0.3}), (bc.uniform, {}), (bc.normal, {}),
    (bc.stochastic_depth, {"p": 0.5}), (bc.stochastic_depth, {"p": 0.5, "mode": "batch"}),
]  # fmt: skip


@pytest.mark.parametrize(("whole", "first", "end"), lanes.cases(PARTS, PARTS[:3].__contains__))
def test_a_part_has_the_words_of_its_places(whole: Any, first: Any, end: Any) -> None:
    x = np.random.default_rng(0).standard_normal(whole).astype(np.float32)
    at = tuple(itertools.starmap(slice, zip(first, end, strict=True)))
    for op, options in OF_PARTS:
        how = {**options, "seed": 2**63 + 5, "offset": 2**33 + 1}
        want = op(x, **how)[at]
        for to in (np.ascontiguousarray, torch.tensor, jnp.asarray):
            got = np.asarray(op(to(x[at]), part=(*whole, *first), **how))
            np.testing.assert_allclose(got, want, rtol=2e-6)
        placed = emulator.placed(np.ascontiguousarray(x[at]))
        (got,) = emulator.launched(op, [placed], {**how, "part": (*whole, *first)})
        np.testing.assert_allclose(got, want, rtol=2e-6)


@pytest.mark.parametrize("part", [(16, 24), (16, 24, 1, 0), (16, 12, 0, 0), (16, 24, 0)])
def test_a_part_beyond_its_whole_is_refused(part: Any) -> None:
    with pytest.raises(ValueError, match="dropout: part: expected the extents of the whole"):
        bc.dropout(np.ones((16, 24)), p=0.1, seed=1, part=part)


# Examples that share a word.


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_an_example_is_dropped_as_an_element_of_dropout_is(mode: str) -> None:
    rng, how = np.random.default_rng(0), {"p": 0.4, "seed": 2**64 - 5, "offset": 2**33 + 2}
    x = rng.standard_normal((24, 3, 5)).astype(np.float32)
    x[:4, 0, 0] = np.nan
    scale = bc.dropout(np.ones(24 if mode == "row" else 1, np.float32), **how)
    assert mode == "batch" or 0 < (scale == 0).sum() < 24
    want = np.where(scale[:, None, None] == 0, 0, x * scale[:, None, None])
    for given in (
        x, torch.from_numpy(x), jnp.asarray(x), np.asfortranarray(x),
        torch.from_numpy(x.transpose(2, 1, 0).copy()).permute(2, 1, 0),
    ):  # fmt: skip
        got = bc.stochastic_depth(given, mode=mode, **how)
        np.testing.assert_array_equal(np.asarray(got), want)
        back = bc.stochastic_depth_backward(given, mode=mode, **how)
        np.testing.assert_array_equal(np.asarray(back), want)
    with pytest.raises(ValueError, match="stochastic_depth: x"):
        bc.stochastic_depth(np.ones(()), **how)


def test_torch_trains_and_jax_traces_through_dropped_examples() -> None:
    x = torch.randn(16, 4, requires_grad=True)
    y = bc.stochastic_depth(x, p=0.5, seed=5)
    (dx,) = torch.autograd.grad(y.sum(), x)
    np.testing.assert_array_equal(dx.numpy(), 2.0 * (y != 0).numpy())
    run = jax.jit(jax.grad(lambda x, at: bc.stochastic_depth(x, p=0.5, seed=5, offset=at).sum()))
    at = jnp.asarray([0, 0], jnp.uint32)
    np.testing.assert_array_equal(run(jnp.asarray(x.detach().numpy()), at), dx.numpy())


# Numbers in the shape of an array.

STREAM = {"seed": 2**64 - 3, "offset": 2**35 + 9}


def test_numbers_follow_from_the_seed_and_the_places_alone() -> None:
    word = whole(6 * 40, **STREAM).reshape(6, 40)
    want = ((word >> np.uint64(8)).astype(float) * 2.0**-24).astype(np.float32)
    ones = (masks(6 * 40, **STREAM) < 2**30).reshape(6, 40)
    for like in (
        np.full((6, 40), np.nan, np.float32), np.empty((6, 40)), torch.empty(6, 40),
        torch.empty(40, 6).T, torch.empty(1).expand(6, 40), torch.empty(6, 40).half(),
        jnp.zeros((6, 40)),
    ):  # fmt: skip
        got = bc.uniform(like, **STREAM)
        assert (got.dtype, tuple(got.shape)) == (like.dtype, (6, 40))
        np.testing.assert_array_equal(np.asarray(got), want.astype(np.asarray(got).dtype))
        np.testing.assert_array_equal(np.asarray(bc.bernoulli(like, p=0.25, **STREAM)), ones)
    ends = bc.uniform(np.empty((6, 40)), low=-2.0, high=6.0, **STREAM)
    np.testing.assert_array_equal(ends, 8 * want.astype(float) - 2)
    assert bc.uniform(np.empty(3), low=2.0, high=2.0, seed=1).tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="uniform: high: expected"):
        bc.uniform(np.empty(3), low=2.0, high=1.0, seed=1)


def test_normal_numbers_are_quantiles_of_words() -> None:
    ends = [0, 1, 2, 58, 59, 60, 2**26, int(0.075 * 2**32), 2**31 - 2, 2**31 - 1]
    word = np.asarray([*ends, *[2**32 - 1 - k for k in ends], *whole(5000, **STREAM).tolist()])
    end = np.minimum(word, 2**32 - 1 - word)
    want = special.ndtri((end + 0.5) * 2.0**-32) * np.where(word < 2**31, 1, -1)
    drawn = bc.normal(np.empty(5000), mean=3.0, std=2.0, **STREAM)
    np.testing.assert_allclose(drawn, 3 + 2 * want[20:], rtol=1e-6, atol=1e-6)
    for dtype, rtol in ((np.float32, 1e-6), (np.float64, 3e-7)):
        for held in (word, word.astype(np.uint32)):
            np.testing.assert_allclose(quantile(held, np.empty(0, dtype)), want, rtol=rtol)


def test_nothing_flows_back_from_random_numbers() -> None:
    x = torch.ones(8, requires_grad=True)
    y = bc.normal(x, seed=3)
    assert not y.requires_grad
    slope = jax.grad(lambda x: (x * bc.uniform(x, seed=3)).sum())(jnp.ones(8))
    np.testing.assert_array_equal(slope, bc.uniform(jnp.ones(8), seed=3))
    into = np.ones(8)
    plan = bc.uniform.plan(into, seed=3)
    assert plan(into, out=into, seed=3) is into
    np.testing.assert_array_equal(into, bc.uniform(np.empty(8), seed=3))


@pytest.mark.parametrize(
    ("op", "dtype", "how"),
    lanes.cases(
        [
            (*given, how)
            for given in (("uniform", "float32"), ("uniform", "bfloat16"), ("normal", "float32"),
                          ("bernoulli", "bfloat16"))
            for how in ("dense", "padded", "odd", "turned")
        ],
        lambda given: given[:2] == ("uniform", "bfloat16") or given[2] == "odd",
    ),
)  # fmt: skip
def test_a_kernel_draws_the_numbers_of_the_body(op: str, dtype: str, how: str) -> None:
    # What is there is not read.
    values = np.full((6, 37), np.nan, getattr(ml_dtypes, dtype, dtype))
    x = emulator.placed(values.T).T if how == "turned" else emulator.lying(values, how)
    options = {**STREAM, "p": 0.3} if op == "bernoulli" else STREAM
    (got,) = emulator.launched(getattr(bc, op), [x], options)
    want = getattr(bc, op)(values, **options)
    if op == "normal":
        np.testing.assert_allclose(got, want, rtol=2e-6)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("shape", "mode"),
    lanes.cases(
        itertools.product(
            [(9, 3, 8), (9, 5), (1, 16), (17,), (6, 2, 1, 4), (1,)], ("row", "batch")
        ),
        lambda given: given[1] == "row" or len(given[0]) == 3,
    ),
    ids=str,
)
def test_a_kernel_drops_examples(shape: tuple[int, ...], mode: str) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    options = {"seed": 2**63 + 1, "offset": 3, "p": 0.5, "mode": mode}
    want = bc.stochastic_depth(values, **options)
    for x in (emulator.placed(values), emulator.placed(values.T).T):
        (got,) = emulator.launched(bc.stochastic_depth, [x], options)
        np.testing.assert_array_equal(got, want)
