"""The recipe of a mixture of experts, against all experts for all tokens, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from documents import defined

import baracuda as bc

EXPERTS, CHOICES = 4, 2
PAGE = defined("recipes/experts.md")


def drawn(*shape: int, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def dense(
    x: torch.Tensor, router: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Each expert for each token, those that are not chosen times 0."""
    shares = F.linear(x, router).softmax(-1)
    chosen = shares >= shares.topk(CHOICES).values[:, -1:]
    first, second = torch.einsum("td,efd->tef", x, up).chunk(2, -1)
    each = torch.einsum("tef,edf->ted", first * F.silu(second), down)
    return (each * (shares * chosen)[:, :, None]).sum(1)


@pytest.mark.parametrize("multiple", [1, 8])
def test_a_mixture_is_the_sum_of_the_chosen_experts(multiple: int) -> None:
    arrays = [
        drawn(13, 6), drawn(EXPERTS, 6, seed=4),
        drawn(EXPERTS, 16, 6, seed=5), drawn(EXPERTS, 6, 8, seed=6),
    ]  # fmt: skip
    got, want = PAGE.mixture(*arrays, multiple=multiple), dense(*arrays)
    torch.testing.assert_close(got, want)
    slope = torch.cos(want.detach())
    for mine, theirs in zip(
        torch.autograd.grad(got, arrays, slope),
        torch.autograd.grad(want, arrays, slope),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_groups_are_sorted_and_padded() -> None:
    experts = torch.tensor([[2, 0], [2, 3], [0, 2]])
    row_map, ends = PAGE.sorted_rows(experts, EXPERTS, 2)
    assert row_map.tolist() == [[2, 0], [3, 6], [1, 4]]
    assert ends.tolist() == [2, 2, 6, 8]


def test_an_expert_takes_no_more_than_it_has_room_for() -> None:
    experts = torch.tensor([[2, 0], [2, 3], [0, 2]])
    row_map = PAGE.rows_within(experts, EXPERTS, 2)
    assert row_map.tolist() == [[4, 0], [5, 6], [1, -1]]
    x = torch.arange(3.0)[:, None] + 1
    rows = bc.permute_rows(x, row_map, num_rows=8, mode="drop")
    assert rows[:, 0].tolist() == [1, 3, 0, 0, 1, 2, 2, 0]
    back = bc.unpermute_rows(rows, row_map, torch.ones(3, 2), mode="drop")
    assert back[:, 0].tolist() == [2, 4, 3]
