"""A program of several processes: cross entropy of DTensors whose classes are cut.

It is started with RANK, WORLD_SIZE, the path of a file that the processes meet at, and the kind of
device: cpu, over gloo, or cuda, over NCCL, where each process has a GPU. The first prints what each
check found wrong in each process, as JSON. The references are torch's own functions of whole
tensors, in float64.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, product
from typing import Any

import torch
import torch.distributed as dist
from test_vocabulary import OPTIONS, of_torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils._python_dispatch import TorchDispatchMode

import baracuda as bc

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ROWS, CLASSES, DEPTH = 6, 37, 4
WHOLE = Replicate()
SENDS = ("all_", "reduce_", "broadcast")
TARGET = torch.tensor([0, 36, 12, -100, 20, 5])


class Sent(TorchDispatchMode):
    """Lists the collectives: each by its name, and how many numbers this process gives to it."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            # Once more, as what it does on local tensors.
            return NotImplemented
        if func.namespace == "_c10d_functional" and func.__name__.startswith(SENDS):
            self.all.append((func.__name__, args[0].numel()))
        return func(*args, **(kwargs or {}))


def drawn(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def near(got: Any, want: Any, label: str, tolerance: float = 1e-12) -> Iterator[str]:
    whole = got.full_tensor().double().cpu()
    if whole.shape != want.shape or not torch.allclose(whole, want, tolerance, tolerance):
        yield f"{label}: apart {(whole - want).abs().max()}"


def slopes(loss: Any, inputs: Sequence[Any], along: torch.Tensor) -> Any:
    cotangent = along.to(loss.dtype)
    if isinstance(loss, DTensor):
        cotangent = distribute_tensor(cotangent, loss.device_mesh, loss.placements)
    return torch.autograd.grad(loss, inputs, cotangent)


def placed(x: torch.Tensor, mesh: DeviceMesh, *places: Any) -> Any:
    return distribute_tensor(x, mesh, places)


def hold(
    mesh: DeviceMesh, places: Sequence[Any], logits: torch.Tensor, weight: Any, axis: int = 1,
    dtype: torch.dtype = torch.float64, target: torch.Tensor = TARGET, **options: Any,
) -> Iterator[str]:  # fmt: skip
    """The loss and its gradient are those of the whole, and few numbers are sent for each."""
    label = f"{places} {dtype} {list(logits.shape)} {options} {weight is not None}"
    logits = logits.to(dtype).double()
    wide = logits.clone().requires_grad_()
    moved = wide.movedim(axis, 1)
    want = of_torch(moved, target, weight, **options)
    along = torch.cos(torch.arange(want.numel(), dtype=torch.float64)).reshape(want.shape)
    (gradient,) = slopes(want, [wide], along)
    nowhere = [WHOLE] * mesh.ndim
    rows = [p if p == Shard(0) and axis else WHOLE for p in places]
    cut = placed(logits.to(dtype), mesh, *places).requires_grad_()
    given = [cut, placed(target, mesh, *rows)]
    if weight is not None:
        given.append(placed(weight.to(dtype), mesh, *nowhere))
    with Sent() as sent:
        loss = bc.cross_entropy(*given, axis=axis, **options)
        forward = len(sent.all)
        (got,) = slopes(loss, [cut], along.to(loss.dtype))
    if not options:
        yield from metrics(given, wide, target, axis, label)
    over = sum(p == Shard(axis) and mesh.size(i) > 1 for i, p in enumerate(places))
    most = (5 if options.get("label_smoothing") else 3) * target.numel() * RANKS
    if forward != over or len(sent.all) != 2 * over:
        yield f"{label}: {sent.all}"
    if any("all_gather" not in name or count > most for name, count in sent.all):
        yield f"{label}: {sent.all}"
    if loss.placements != (tuple(rows) if loss.ndim else tuple(nowhere)):
        yield f"{label}: the loss lies {loss.placements}"
    if got.placements != tuple(places) or got.dtype != dtype:
        yield f"{label}: the gradient lies {got.placements}"
    tolerance = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 1e-2}[dtype]
    yield from near(loss, want, f"{label}: loss", min(tolerance, 1e-5))
    yield from near(got, gradient, f"{label}: gradient", tolerance)


def metrics(
    given: Sequence[Any], logits: torch.Tensor, target: torch.Tensor, axis: int, label: str
) -> Iterator[str]:
    """The top class of each row and how often it is right, while the loss flows back."""
    top = torch.where(target == -100, -1, logits.argmax(axis))
    loss, accuracy, first = bc.cross_entropy(*given, axis=axis, reduction="sum", metrics=True)
    share = torch.ones(logits.shape[axis], dtype=torch.float64)
    if len(given) > 2:
        share = given[2].full_tensor().double().cpu()
    hits = torch.where(top == target, share[target.clamp(0)], 0).sum()
    yield from near(accuracy, hits, f"{label}: accuracy", 1e-5)
    yield from near(first, top.double(), f"{label}: top", 0)
    if not loss.requires_grad or accuracy.requires_grad or first.requires_grad:
        yield f"{label}: what flows"


def over_one_axis(flat: DeviceMesh, grid: DeviceMesh) -> Iterator[str]:
    """Four devices, and two of a grid: all options, weights, dtypes and an empty part."""
    logits, weight = drawn(1, ROWS, CLASSES) * 3, drawn(2, CLASSES).abs() + 0.5
    for options, some in product(OPTIONS, (None, weight)):
        yield from hold(flat, [Shard(1)], logits, some, **options)
    for dtype in (torch.float32, torch.bfloat16):
        yield from hold(flat, [Shard(1)], logits, None, dtype=dtype, softcap=2.0)
    yield from hold(flat, [Shard(1)], logits[:, :5], None, target=TARGET % 5)
    yield from hold(flat, [Shard(1)], drawn(3, 2, CLASSES, 3), None, target=TARGET.reshape(2, 3))
    yield from hold(flat, [Shard(0)], drawn(4, CLASSES, ROWS).T.contiguous().T, None, axis=0)
    yield from hold(grid["classes"], [Shard(1)], logits, weight, z_loss=0.1)


def over_two_axes(flat: DeviceMesh, grid: DeviceMesh) -> Iterator[str]:
    """The classes over both axes of a grid, or the rows over one of them."""
    logits = drawn(1, ROWS, CLASSES) * 3
    yield from hold(grid, [Shard(1), Shard(1)], logits, None, z_loss=0.1)
    yield from hold(grid, [WHOLE, Shard(1)], logits, None)
    yield from hold(grid, [Shard(0), Shard(1)], logits, None, reduction="none")


def masked(flat: DeviceMesh, grid: DeviceMesh) -> Iterator[str]:
    """Logits of -inf, in one part all of a row, as those of classes that only pad are."""
    logits = drawn(1, ROWS, CLASSES)
    logits[:, 30:] = -torch.inf
    yield from hold(flat, [Shard(1)], logits, None, target=TARGET % 30)
    far = drawn(1, ROWS, CLASSES) + torch.arange(ROWS)[:, None] * 1e4
    yield from hold(flat, [Shard(1)], far, None, dtype=torch.float32, reduction="none")


def as_loss_parallel(flat: DeviceMesh, grid: DeviceMesh) -> Iterator[str]:
    """What torch's own parallel loss gives."""
    logits, target = drawn(1, ROWS, CLASSES), placed(TARGET, flat, WHOLE)
    for reduction in ("mean", "sum"):
        theirs, ours = (placed(logits, flat, Shard(1)).requires_grad_() for _ in "ab")
        with loss_parallel():
            want = torch.nn.functional.cross_entropy(theirs, target, reduction=reduction)
            want.backward()
        got = bc.cross_entropy(ours, target, reduction=reduction)
        got.backward()
        yield from near(got, want.full_tensor().cpu(), reduction)
        if ours.grad.placements != theirs.grad.placements:
            yield f"{ours.grad.placements}"
        yield from near(ours.grad, theirs.grad.full_tensor().cpu(), reduction)


def linear(flat: DeviceMesh, grid: DeviceMesh) -> Iterator[str]:
    """A head whose weight is cut along the vocabulary."""
    plain = [drawn(5, ROWS, DEPTH), drawn(6, CLASSES, DEPTH), drawn(7, CLASSES)]
    places, target = (WHOLE, Shard(0), Shard(0)), placed(TARGET, flat, WHOLE)
    for options, (bias, chunk) in zip(OPTIONS, cycle(((False, None), (True, 4))), strict=False):
        label, count = f"{options} {bias} {chunk}", 2 + bias
        wide = [x.clone().requires_grad_() for x in plain[:count]]
        want = of_torch(torch.nn.functional.linear(*wide), TARGET, None, **options)
        along = torch.cos(torch.arange(want.numel(), dtype=torch.float64)).reshape(want.shape)
        cut = [placed(x, flat, p) for x, p in zip(plain[:count], places, strict=False)]
        cut = [x.requires_grad_() for x in cut]
        with Sent() as sent:
            loss = bc.linear_cross_entropy(*cut[:2], target, *cut[2:], chunk=chunk, **options)
            got = slopes(loss, cut, along)
        chunks = 2 if chunk else 1
        most = 5 * ROWS
        if len(sent.all) != 2 * chunks or any(count > most for _, count in sent.all):
            yield f"{label}: {sent.all}"
        lies = [x.placements[0] for x in (loss, *got)]
        if lies != [WHOLE, Partial(), Shard(0), Shard(0)][: count + 1]:
            yield f"{label}: {lies}"
        yield from near(loss, want, f"{label}: loss")
        for x, y in zip(got, slopes(want, wide, along), strict=True):
            yield from near(x, y, f"{label}: gradient")


def refused(flat: DeviceMesh, grid: DeviceMesh) -> Iterator[str]:
    """Options out of bounds; targets that are no class anywhere, unless they are dropped."""
    logits = placed(drawn(1, ROWS, CLASSES), flat, Shard(1))
    target = placed(TARGET.where(TARGET != 20, 37), flat, WHOLE)
    for error, text, options in (
        (IndexError, "cross_entropy: target: expected 0 <= i < 37, got 37 at position (4,)", {}),
        (ValueError, "label_smoothing: expected", {"label_smoothing": 2.0, "mode": "drop"}),
    ):  # fmt: skip
        try:
            bc.cross_entropy(logits, target, **options)
            yield f"{options}: nothing was raised"
        except error as raised:
            if text not in str(raised):
                yield f"{raised}"
    dropped = bc.cross_entropy(logits, target, mode="drop")
    ignored = TARGET.where(TARGET != 20, -100)
    yield from near(dropped, of_torch(drawn(1, ROWS, CLASSES), ignored, None), "dropped")


CHECKS = (over_one_axis, over_two_axes, masked, as_loss_parallel, linear, refused)


def main() -> None:
    path, kind = sys.argv[1:]
    store, backend, checks = dist.FileStore(path, RANKS), "gloo", CHECKS
    if kind == "cuda":
        torch.cuda.set_device(RANK)
        backend = "cpu:gloo,cuda:nccl"
        # The error of a target comes late there.
        checks = tuple([check for check in CHECKS if check is not refused])
    dist.init_process_group(backend, store=store, rank=RANK, world_size=RANKS)
    flat = init_device_mesh(kind, (RANKS,))
    grid = init_device_mesh(kind, (RANKS // 2, 2), mesh_dim_names=("rows", "classes"))
    found = {}
    for check in checks:
        try:
            found[check.__name__] = list(check(flat, grid))
        except Exception as error:
            found[check.__name__] = [f"{type(error).__name__}: {error}"[:2000]]
    gathered: list[Any] = [None] * RANKS
    dist.all_gather_object(gathered, found)
    if RANK == 0:
        print(json.dumps(gathered))
    dist.destroy_process_group()
    # gloo's threads may still hold tensors when Python ends.
    time.sleep(0.1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
