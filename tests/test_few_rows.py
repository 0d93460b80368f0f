"""The gradient of an embedding as its few rows: torch's sparse gradients, `unique`, and a step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import baracuda as bc

RNG = np.random.default_rng(4)
N, D = 50, 3
IDS = RNG.integers(0, N // 2, (4, 9))
DY = RNG.standard_normal((4, 9, D))
LIBRARIES = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}


@pytest.mark.parametrize("padding", [None, int(IDS[0, 0])])
def test_rows_are_those_of_the_coalesced_gradient_of_torch(padding: int | None) -> None:
    weight = torch.zeros(N, D, dtype=torch.float64, requires_grad=True)
    y = F.embedding(torch.tensor(IDS), weight, padding_idx=padding, sparse=True)
    y.backward(torch.tensor(DY))
    want = weight.grad.coalesce()
    options: dict[str, Any] = {"num_embeddings": N, "padding_idx": padding}
    rows, values = bc.embedding_backward_rows(torch.tensor(DY), torch.tensor(IDS), **options)
    many = want.indices().shape[1]
    assert torch.equal(rows[:many], want.indices()[0])
    torch.testing.assert_close(values[:many], want.values())
    assert (rows[many:] == N).all()
    assert (values[many:] == 0).all()


def test_rows_are_those_of_unique_of_a_fixed_size() -> None:
    call = jax.jit(lambda dy, ids: bc.embedding_backward_rows(dy, ids, num_embeddings=N))
    want = jnp.unique(jnp.asarray(IDS), size=IDS.size, fill_value=N)
    assert jnp.array_equal(call(jnp.asarray(DY), jnp.asarray(IDS))[0], want)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("scale", [1.0, -1.75])
def test_added_to_a_table_they_are_the_whole_gradient(library: str, scale: float) -> None:
    """What is left over is no row, and ids out of range are none of any."""
    array: Any = LIBRARIES[library]
    ids = IDS.copy()
    ids[1, 2:5] = N, -1, N + 7
    options: dict[str, Any] = {"scale": scale, "padding_idx": int(ids[0, 0]), "mode": "drop"}
    dy, ids = array(DY), array(ids)
    rows, values = bc.embedding_backward_rows(dy, ids, num_embeddings=N, **options)
    found = bc.index_add(0 * array(RNG.random((N, D))), rows, values, axis=0, mode="drop")
    want = bc.embedding_backward(dy, ids, weight_shape=(N, D), **options)
    np.testing.assert_allclose(np.asarray(found), np.asarray(want), rtol=1e-6, atol=1e-6)
    assert np.all(np.diff(np.asarray(rows)) >= 0)


def test_sums_may_be_float32_beside_16_bits() -> None:
    ids, dy = (
        torch.zeros(3000, dtype=torch.int64),
        torch.full((3000, 2), 1.01, dtype=torch.bfloat16),
    )
    values = torch.empty(3000, 2)
    bc.embedding_backward_rows.plan(dy, ids, num_embeddings=9)(dy, ids, out=(None, values))
    assert values[0, 0] == 3000 * dy[0, 0].float()


def test_the_second_gradient_is_that_of_the_definition() -> None:
    dy = torch.tensor(DY, requires_grad=True)
    rows, values = bc.embedding_backward_rows(dy, torch.tensor(IDS), num_embeddings=N)
    weights = torch.tensor(RNG.standard_normal((N, D)))
    (weights[rows.clamp(max=N - 1)] * values).sum().backward()
    torch.testing.assert_close(dy.grad, weights[torch.tensor(IDS)])


@pytest.mark.parametrize("n", [-1, 1 << 31])
def test_a_table_has_a_number_of_rows(n: int) -> None:
    said = "embedding_backward_rows: num_embeddings: expected an integer"
    with pytest.raises(ValueError, match=said):
        bc.embedding_backward_rows(DY, IDS, num_embeddings=n)
