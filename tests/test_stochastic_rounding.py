"""Stochastic rounding: which numbers it gives, by which words, and that their mean is right."""

from __future__ import annotations

import copy
from typing import Any

import emulator
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from fuzz.philox import masks
from numpy.typing import NDArray
from stochastic_rounding import bias

import baracuda as bc

HOW: dict[str, Any] = {"stochastic_rounding": True, "seed": 2**64 - 3, "offset": 2**33 + 5}
KINDS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
# A power of two, so that the only rounding before the one at random is that of a difference.
LR = 2.0**-9


def drawn(kind: str, size: int = 1000) -> list[NDArray[Any]]:
    """Parameters and gradients of many sizes, some of them not finite."""
    rng, dtype = np.random.default_rng(0), KINDS[kind]
    low = -30 if kind == "bfloat16" else -22
    sizes = [rng.standard_normal(size) * 2.0 ** rng.integers(low, 12, size) for _ in range(2)]
    param, grad = [x.astype(dtype) for x in sizes]
    largest = float(ml_dtypes.finfo(dtype).max)
    param[:6] = np.asarray([np.nan, 1.0, 1.0, 0.0, -0.0, largest]).astype(dtype)
    grad[:6] = np.asarray([0.0, np.inf, -np.inf, 0.0, 0.0, -largest]).astype(dtype)
    return [param, grad]


def rounded(x: NDArray[Any], kind: str, seed: int, offset: int) -> NDArray[Any]:
    """By the neighbours of `x` in float64: upwards where fraction and random number reach 1."""
    dtype, bits = KINDS[kind], 16 if kind == "bfloat16" else 13
    words = (masks(x.size, seed, offset) >> np.uint64(16)).astype(np.int64)
    out = np.empty(x.shape, dtype)
    info = ml_dtypes.finfo(dtype)
    for i, value in enumerate(x.astype(np.float64)):
        size = abs(value)
        if not np.isfinite(value) or size == 0:
            out[i] = value
            continue
        step = 2.0 ** (max(np.floor(np.log2(size)), info.minexp) - info.nmant)
        if kind == "float16" and size < float(info.smallest_normal):
            fraction = size / step % 1 + words[i] / 2**16 >= 1
        else:
            fraction = np.floor(size / step % 1 * 2**bits) + (words[i] >> (16 - bits)) >= 2**bits
        out[i] = np.copysign((np.floor(size / step) + fraction) * step, value)
    return out


def same(got: Any, want: Any) -> None:
    """The same bits; one NaN is as good as another."""
    got, want = (np.asarray(x.float() if hasattr(x, "float") else x) for x in (got, want))
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_every_library_and_the_kernel_round_as_the_definition_says(kind: str) -> None:
    arrays = drawn(kind)
    param, grad = [x.astype(np.float32) for x in arrays]
    with np.errstate(invalid="ignore", over="ignore"):
        want = rounded(param - np.float32(LR) * grad, kind, HOW["seed"], HOW["offset"])
    options = {"lr": LR, **HOW}
    same(bc.sgd(*arrays, **options), want)
    tensors = [torch.from_numpy(x.astype(np.float32)).to(getattr(torch, kind)) for x in arrays]
    same(bc.sgd(*tensors, **options), want)
    same(bc.sgd(*map(jnp.asarray, arrays), **options), want)
    same(jax.jit(lambda *x: bc.sgd(*x, **options))(*map(jnp.asarray, arrays)), want)
    (got,) = emulator.launched(bc.sgd, [emulator.placed(x) for x in arrays], options)
    same(got, want)
    assert not np.array_equal(np.asarray(bc.sgd(*arrays, lr=LR)), want)


def test_other_seeds_and_offsets_are_other_words_and_wide_numbers_are_left_alone() -> None:
    arrays = [x[6:] for x in drawn("bfloat16")]
    first = bc.sgd(*arrays, lr=LR, **HOW)
    for other in ({"seed": 6}, {"offset": 6}):
        assert not np.array_equal(first, bc.sgd(*arrays, lr=LR, **{**HOW, **other}))
    wide = [x.astype(np.float32) for x in arrays]
    same(bc.sgd(*wide, lr=LR, **HOW), bc.sgd(*wide, lr=LR))
    with pytest.raises(ValueError, match="sgd: copy and stochastic_rounding: expected copy=False"):
        bc.sgd(*arrays, copy=True, **HOW)


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_is_the_number_that_is_rounded(kind: str) -> None:
    assert abs(bias(kind, 1 << 19)) < 4


def test_arrays_of_a_list_have_words_of_their_own() -> None:
    p, g = [torch.from_numpy(x.astype(np.float32)).bfloat16() for x in drawn("bfloat16")]
    got = bc.sgd([p, p], [g, g], lr=LR, **HOW)
    same(got[0], bc.sgd(p, g, lr=LR, **HOW))
    same(got[1], bc.sgd(p, g, lr=LR, **{**HOW, "offset": HOW["offset"] + 2**32}))
    offset = jnp.asarray([6, 2], jnp.uint32)
    p, g = [jnp.asarray(x.float().numpy()).astype(jnp.bfloat16) for x in (p, g)]
    run = jax.jit(lambda p, g, o: bc.sgd([p, p], [g, g], lr=LR, **{**HOW, "offset": o}))
    more = run(p, g, offset)
    same(more[1], bc.sgd(p, g, lr=LR, **{**HOW, "offset": 6 + 2**33 + 2**32}))


OPTIMISERS = {"AdamW": {"weight_decay": 0.0}, "SGD": {"momentum": 0.5}, "Lion": {}}


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_an_optimiser_moves_what_rounding_to_nearest_leaves(kind: str) -> None:
    def run(steps: int, params: Any = None, given: Any = None, **options: Any) -> Any:
        if params is None:
            params = [torch.nn.Parameter(torch.ones(4000).bfloat16()) for _ in range(2)]
        made = getattr(bc.optim, kind)(params, lr=2.0**-12, **OPTIMISERS[kind], **options)
        if given is not None:
            made.load_state_dict(given)
        for _ in range(steps):
            for group in made.param_groups:
                for p in group["params"]:
                    p.grad = torch.ones_like(p)
            made.step()
        return params, made

    still, _ = run(8)
    assert all((p == 1).all() for p in still)
    (a, b), made = run(8, stochastic_rounding=True, seed=3)
    assert made.state[a]["step"] == 8
    # Momentum of 0.5 goes almost twice as far.
    far = 8 * 2.0**-12 * (1.7522 if kind == "SGD" else 1.0)
    for p in (a, b):
        assert 0.8 < (1 - p.double().mean()) / far < 1.2
    assert not torch.equal(a, b)
    again, _ = run(8, stochastic_rounding=True, seed=3)
    assert torch.equal(again[0], a)
    assert torch.equal(again[1], b)
    other, _ = run(8, stochastic_rounding=True, seed=4)
    assert not torch.equal(other[0], a)
    # From a checkpoint, the words go on.
    half, before = run(4, stochastic_rounding=True, seed=3)
    saved = copy.deepcopy(before.state_dict())
    rest, _ = run(4, half, saved, stochastic_rounding=True, seed=3)
    assert torch.equal(rest[0], a)
    # A group may have no parameters, and others words of their own.
    groups = [{"params": some} for some in ([], run(0)[0], run(0)[0][:1])]
    more, _ = run(2, groups, stochastic_rounding=True, seed=3)
    assert not torch.equal(more[1]["params"][0], more[2]["params"][0])
    with pytest.raises(ValueError, match=f"{kind}: stochastic_rounding: expected False beside"):
        run(0, stochastic_rounding=True, master_weights=True)
