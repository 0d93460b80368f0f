"""Cross entropy whose classes are cut over devices: its parts, joined by threads of one process."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import ROOT, environment
from forks import printed

from baracuda.calls.op import registry
from baracuda.declaration.collective import Part

ROWS, CLASSES = 6, 11
SIZES = ((4, 4, 3), (6, 5), (4, 4, 3, 0), (1, 10))
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"reduction": "none", "z_loss": 0.1},
    {"reduction": "sum", "softcap": 2.0},
    {"label_smoothing": 0.3},
    {"label_smoothing": 0.3, "softcap": 2.0, "z_loss": 0.1, "reduction": "none"},
)


def over(sizes: Sequence[int], run: Any) -> list[Any]:
    """What `run` gives for each part of an axis, all at once; it takes the part and where it is."""
    barrier, given = threading.Barrier(len(sizes), timeout=20), dict[int, Any]()
    ends = np.cumsum([0, *sizes]).tolist()

    def one(i: int) -> Any:
        def gathered(x: Any) -> Any:
            given[i] = x
            barrier.wait()
            every = torch.stack([given[k] for k in range(len(sizes))])
            barrier.wait()
            return every

        part = Part(ends[i], ends[-1], max(sizes), gathered)
        try:
            with torch.no_grad():
                return run(part, slice(ends[i], ends[i + 1]))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(sizes)) as pool:
        return list(pool.map(one, range(len(sizes))))


def drawn(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64) * 3
    target = torch.tensor([0, 10, 4, -100, 7, 5])
    weight = torch.rand(CLASSES, generator=generator, dtype=torch.float64) + 0.5
    return logits.to(dtype), target, weight.to(dtype)


def of_torch(
    logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, **options: Any
) -> torch.Tensor:
    """torch's own, in float64."""
    softcap, z_loss = options.get("softcap", 0), options.get("z_loss", 0)
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    reduction = options.get("reduction", "mean")
    loss = torch.nn.functional.cross_entropy(
        logits, target, weight, label_smoothing=options.get("label_smoothing", 0),
        reduction=reduction,
    )  # fmt: skip
    counts = target != -100
    share = torch.where(counts, 1 if weight is None else weight[target.clamp(0)], 0)
    norms = z_loss * torch.logsumexp(logits, 1).square() * share
    if reduction == "none":
        return loss + norms
    return loss + (norms.sum() / share.sum() if reduction == "mean" else norms.sum())


def in_parts(
    sizes: Sequence[int], logits: torch.Tensor, target: torch.Tensor, weight: Any, dloss: Any,
    **options: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The loss of each part, and the gradient of all."""
    forward, backward = (registry[n].spec for n in ("cross_entropy", "cross_entropy_backward"))
    assert forward.collective is not None
    assert backward.collective is not None
    filled = {**forward.defaults, "axis": 1, **options}
    losses = over(
        sizes, lambda p, at: forward.collective.run(p, logits[:, at], target, weight, **filled)
    )
    parts = over(
        sizes,
        lambda p, at: backward.collective.run(p, dloss, logits[:, at], target, weight, **filled),
    )
    return losses, torch.cat(parts, 1)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_parts_give_the_loss_and_the_gradient(
    options: dict[str, Any], weighted: bool, sizes: Sequence[int]
) -> None:
    logits, target, weight = drawn()
    weight = weight if weighted else None
    want = of_torch(logits.requires_grad_(), target, weight, **options)
    dloss = torch.cos(torch.arange(float(want.numel()), dtype=want.dtype)).reshape(want.shape)
    (slopes,) = torch.autograd.grad(want, logits, dloss)
    losses, got = in_parts(sizes, logits.detach(), target, weight, dloss, **options)
    for loss in losses:
        torch.testing.assert_close(loss, want.detach(), rtol=1e-12, atol=1e-12)
        assert torch.equal(loss, losses[0])
    torch.testing.assert_close(got, slopes, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_parts_give_the_metrics(reduction: str, sizes: Sequence[int]) -> None:
    """Ties within a part and between two are won by the first, under a cap that makes more."""
    logits, target, weight = drawn()
    logits[0, [0, 5, 10]], logits[1, [3, 9, 10]], logits[4, 7] = 400.0, 500.0, 401.0
    logits[4, 2] = 400.0
    top = torch.where(target == -100, -1, logits.argmax(1))
    hits = torch.where(top == target, weight[target.clamp(0)], 0)
    total = weight[target[target != -100]].sum()
    want = {"mean": hits.sum() / total, "sum": hits.sum(), "none": hits}[reduction]
    forward = registry["cross_entropy"].spec
    assert forward.collective is not None
    options = {**forward.defaults, "axis": 1, "softcap": 2.0, "reduction": reduction}
    run = partial(forward.collective.run, metrics=True)
    del options["metrics"]
    found = over(sizes, lambda p, at: run(p, logits[:, at], target, weight, **options))
    for _, accuracy, first in found:
        torch.testing.assert_close(accuracy, want)
        assert torch.equal(first, top)


def wrong(path: Path, ranks: int, kind: str) -> list[dict[str, list[str]]]:
    """What each process over devices of a kind found wrong, by the name of the check."""
    program, forked = ROOT / "tests/vocabulary_devices.py", kind == "cpu"
    out = printed(program, str(path), kind, ranks=ranks, forked=forked)
    found: list[dict[str, list[str]]] = json.loads(out)
    return found


CHECKED = ("over_one_axis", "over_two_axes", "masked", "as_loss_parallel", "linear")


# Of the full lane and of what is touched: the threads above have the same parts and joins.
OF_FRAMEWORKS = pytest.mark.full(
    "baracuda/declaration/collective", "baracuda/families/", "baracuda/frameworks/", "baracuda/nn/",
    "tests/vocabulary",
)  # fmt: skip


@OF_FRAMEWORKS
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_dtensors_of_four_processes(tmp_path: Path) -> None:
    assert wrong(tmp_path / "at", 4, "cpu") == [{name: [] for name in (*CHECKED, "refused")}] * 4


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
@pytest.mark.slow("two processes import torch.distributed and compile kernels")
def test_dtensors_of_two_gpus(tmp_path: Path) -> None:
    assert wrong(tmp_path / "at", 2, "cuda") == [{name: [] for name in CHECKED}] * 2


@OF_FRAMEWORKS
@pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX")
def test_jax_over_four_devices() -> None:
    """What is sent, where the results lie, what runs and what it gives: a program of its own."""
    program = [sys.executable, str(ROOT / "tests" / "vocabulary_jax.py")]
    known = environment(ROOT / "tests", OMP_NUM_THREADS="1")
    out = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, env=known, timeout=240)
    assert out.returncode == 0, out.stderr[-3000:]
    assert json.loads(out.stdout) == []
