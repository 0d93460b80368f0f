"""The code of docs/recipes/graphs.md, against dense matrices of edges in torch and float64."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from documents import defined

NODES, EDGES, WIDTH, HEADS, OUT = 9, 30, 5, 2, 3


@cache
def page() -> SimpleNamespace:
    return defined("recipes/graphs.md")


def graph() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sources and targets, and how many edges lead from each node (column) to each (row).

    Some edges are there twice, and none leads to the last node.
    """
    generator = torch.Generator().manual_seed(2)
    source = torch.randint(0, NODES, (EDGES,), generator=generator)
    target = torch.randint(0, NODES - 1, (EDGES,), generator=generator)
    edges = torch.zeros(NODES, NODES, dtype=torch.float64)
    edges.index_put_((target, source), torch.ones(EDGES, dtype=torch.float64), accumulate=True)
    assert edges.max() > 1
    return source, target, edges


def dense_means(nodes: Any, edges: Any, own: Any, other: Any) -> Any:
    mean = edges @ nodes / edges.sum(1, keepdim=True).clamp(min=1)
    return nodes @ own.T + mean @ other.T


def dense_maxima(nodes: Any, edges: Any, pool: Any, own: Any, other: Any) -> Any:
    there = edges[:, :, None] > 0
    most = torch.where(there, F.relu(nodes @ pool.T)[None], -torch.inf).amax(1)
    most = torch.where(there.any(1), most, 0)
    return nodes @ own.T + most @ other.T


def dense_attention(nodes: Any, edges: Any, weight: Any, of_source: Any, of_target: Any) -> Any:
    heads = (nodes @ weight.T).view(NODES, HEADS, OUT)
    left, right = (heads * of_source).sum(-1), (heads * of_target).sum(-1)
    scores = F.leaky_relu(left[None] + right[:, None], 0.2)
    powers = edges[:, :, None] * scores.exp()
    shares = powers / powers.sum(1, keepdim=True).clamp(min=1e-300)
    return torch.einsum("tsh,shk->thk", shares, heads)


LAYERS = {
    "of_means": (dense_means, [(OUT, WIDTH), (OUT, WIDTH)]),
    "of_maxima": (dense_maxima, [(7, WIDTH), (OUT, WIDTH), (OUT, 7)]),
    "attention": (dense_attention, [(HEADS * OUT, WIDTH), (HEADS, OUT), (HEADS, OUT)]),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_products_with_a_dense_matrix_of_edges(name: str) -> None:
    """Values, and the gradients to nodes and weights."""
    dense, shapes = LAYERS[name]
    source, target, edges = graph()
    torch.manual_seed(1)
    given = [torch.randn(s, dtype=torch.float64) for s in ((NODES, WIDTH), *shapes)]
    nodes, *weights = [x.requires_grad_() for x in given]
    got = getattr(page(), name)(nodes, source, target, *weights)
    want = dense(nodes, edges, *weights)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    dy = torch.randn_like(want)
    found = torch.autograd.grad(got, given, dy)
    for ours, theirs in zip(found, torch.autograd.grad(want, given, dy), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
