"""What torch itself tries its indexing functions on: values and gradients in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch_lists import torchs

import baracuda as bc

Pair = tuple[tuple[Any, ...], Callable[..., Any], Callable[..., Any]]
REDUCTIONS = {"sum": "sum", "mean": "mean", "amax": "max", "amin": "min", "prod": "prod"}


def _fits(x: Any, index: Any) -> bool:
    """Whether ours takes them: an array and its index have as many axes, one at least."""
    return x.ndim == index.ndim > 0 and index.dtype == torch.int64


def _gather(x: Any, axis: int, index: Any) -> Iterator[Pair]:
    if _fits(x, index):
        yield (x,), lambda x: bc.gather(x, index, axis=axis), lambda x: x.gather(axis, index)


def _index_select(x: Any, axis: int, index: Any) -> Iterator[Pair]:
    if x.ndim:
        yield (x,), lambda x: bc.index_select(x, index, axis=axis), (
            lambda x: x.index_select(axis, index)
        )  # fmt: skip


def _index_add(x: Any, axis: int, index: Any, source: Any, alpha: float) -> Iterator[Pair]:
    if x.ndim:
        yield (x, source), lambda x, s: bc.index_add(x, index, s, axis=axis, alpha=alpha), (
            lambda x, s: x.index_add(axis, index, s, alpha=alpha)
        )  # fmt: skip


def _scatter_add(x: Any, axis: int, index: Any, src: Any) -> Iterator[Pair]:
    if _fits(x, index):
        src = src[tuple(map(slice, index.shape))]
        yield (x, src), lambda x, s: bc.scatter_add(x, index, s, axis=axis), (
            lambda x, s: x.scatter_add(axis, index, s)
        )  # fmt: skip


def _scatter(x: Any, axis: int, index: Any, src: Any) -> Iterator[Pair]:
    once = index.ndim and (index.sort(axis)[0].diff(dim=axis) > 0).all()
    if _fits(x, index) and once:
        yield (x, src), lambda x, s: bc.scatter(x, index, s, axis=axis), (
            lambda x, s: x.scatter(axis, index, s)
        )  # fmt: skip


def _scatter_reduce(
    x: Any, axis: int, index: Any, src: Any, how: str, include_self: bool = True
) -> Iterator[Pair]:
    if _fits(x, index):
        src = src[tuple(map(slice, index.shape))]
        options: dict[str, Any] = {"axis": axis, "reduction": REDUCTIONS[how]}
        yield (
            (x, src),
            (lambda x, s: bc.scatter_reduce(x, index, s, **options, include_self=include_self)),
            lambda x, s: x.scatter_reduce(axis, index, s, how, include_self=include_self),
        )


def _embedding(weight: Any, ids: Any, **options: Any) -> Iterator[Pair]:
    """Torch's sample has the table first."""
    if not options:
        yield (weight,), lambda w: bc.embedding(ids, w), lambda w: F.embedding(ids, w)


def _embedding_bag(weight: Any, ids: Any, offsets: Any = None, **options: Any) -> Iterator[Pair]:
    """Torch's sample has the table first; a last offset is the end."""
    weights = options.pop("per_sample_weights", None)
    if options.keys() <= {"mode", "include_last_offset", "padding_idx"}:
        known = {"reduction": options.get("mode", "mean")}
        if (padding := options.get("padding_idx")) is not None:
            known["padding_idx"] = padding % len(weight)
        starts = offsets[:-1] if options.get("include_last_offset") else offsets
        yield (
            (weight, *[weights] * (weights is not None)),
            (lambda w, *more: bc.embedding_bag(ids, w, starts, *more, **known)),
            lambda w, *more: F.embedding_bag(
                ids, w, offsets, per_sample_weights=more[0] if more else None, **options
            ),
        )


# By torch's name: what is made of a sample, and how many samples there are at least.
TRIED: dict[str, tuple[Callable[..., Iterator[Pair]], int]] = {
    "gather": (_gather, 2),
    "index_select": (_index_select, 2),
    "index_add": (_index_add, 6),
    "scatter_add": (_scatter_add, 6),
    "scatter": (_scatter, 3),
    "scatter_reduce": (_scatter_reduce, 90),
    "nn.functional.embedding": (_embedding, 3),
    "nn.functional.embedding_bag": (_embedding_bag, 10),
}


@pytest.mark.slow("imports torch's list of functions, and all that it imports")
def test_torchs_samples() -> None:
    ops = torchs("common_methods_invocations", "op_db")
    for name, (made, least) in TRIED.items():
        seen = 0
        for theirs in (op for op in ops if op.name == name):
            for sample in theirs.sample_inputs("cpu", torch.float64, requires_grad=True):
                for arrays, ours, torch_s in made(sample.input, *sample.args, **sample.kwargs):
                    given = [x.detach().requires_grad_() for x in arrays]
                    want, got = torch_s(*given), ours(*given)
                    torch.testing.assert_close(got, want)
                    dout = torch.randn_like(want)
                    slopes = [torch.autograd.grad(y, given, dout) for y in (got, want)]
                    for have, slope in zip(*slopes, strict=True):
                        torch.testing.assert_close(have, slope)
                    seen += 1
        assert seen >= least, (name, seen)
