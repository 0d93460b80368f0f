"""A program of two processes: replaced modules under FSDP2, and with DTensors as parameters.

It is started with RANK, WORLD_SIZE and the path of a file that the processes meet at. The first
prints what each check found wrong, as JSON.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

import baracuda.nn as bn

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.RMSNorm(8), nn.PReLU(8),
    ).double()  # fmt: skip


def whole(x: Any) -> Any:
    return x.full_tensor() if isinstance(x, DTensor) else x


def steps(module: nn.Module, x: torch.Tensor, target: torch.Tensor) -> list[torch.Tensor]:
    """The parameters after two steps."""
    for _ in range(2):
        module.zero_grad()
        bn.MSELoss()(module(x), target).backward()
        # By hand: `torch.optim` imports the compiler, which takes as long as all else here.
        with torch.no_grad():
            for p in module.parameters():
                p.sub_(0.1 * p.grad)
    return [whole(p).detach() for p in module.parameters()]


def sharded_models(mesh: DeviceMesh) -> Iterator[str]:
    """FSDP2 trains a replaced model as one process trains torch's, in either order of the two."""
    torch.manual_seed(2)
    x, target = torch.randn(2, 4, 8, dtype=torch.float64)
    want = steps(model(), x, target)
    rows = slice(4 // RANKS * RANK, 4 // RANKS * (RANK + 1))
    for first in (True, False):
        sharded = model()
        if first:
            bn.replace(sharded)
        fully_shard(sharded, mesh=mesh)
        report = bn.replace(sharded)
        if bool(report.replaced) is first:
            yield f"{report}"
        state = copy.deepcopy(sharded.state_dict())
        if list(state) != list(model().state_dict()):
            yield f"{list(state)}"
        for got, p in zip(steps(sharded, x[rows], target[rows]), want, strict=True):
            if not torch.allclose(got, p, rtol=1e-10, atol=1e-12):
                yield f"after FSDP2: {(got - p).abs().max()}"
    layer = fully_shard(nn.LayerNorm(8), mesh=mesh)
    if "subclass" not in bn.replace(layer).left.get("", ""):
        yield "a sharded layer was not left"


def narrow_models(mesh: DeviceMesh) -> Iterator[str]:
    """FSDP2 in bfloat16 with float32 parameters: as torch's modules train, but for roundings."""
    torch.manual_seed(4)
    x, target = torch.randn(2, 4, 8)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    found = []
    for ours in (True, False):
        module = model().float()
        if ours and len(bn.replace(module).replaced) != 4:
            yield "modules were left"
        fully_shard(module, mesh=mesh, mp_policy=policy)
        rows = slice(4 // RANKS * RANK, 4 // RANKS * (RANK + 1))
        found.append(steps(module, x[rows], target[rows].bfloat16()))
    for got, want in zip(*found, strict=True):
        if got.dtype != torch.float32 or not torch.allclose(got, want, atol=5e-3):
            yield f"{got.dtype}, apart {(got - want).abs().max()}"


def distributed_parameters(mesh: DeviceMesh) -> Iterator[str]:
    """Norms whose parameters are DTensors, of rows that are cut."""
    torch.manual_seed(3)
    for theirs, shape in (
        (nn.LayerNorm(8), (4, 6, 8)),
        (nn.RMSNorm(8), (4, 6, 8)),
        (nn.BatchNorm1d(8), (4, 8)),
        (nn.GroupNorm(2, 8), (4, 8, 3)),
    ):
        x = torch.randn(shape, dtype=torch.float64)
        theirs = theirs.double().eval()
        want = theirs(x)
        want.square().sum().backward()
        slopes = [p.grad.clone() for p in theirs.parameters()]
        theirs.zero_grad()
        ours = distribute_module(theirs, mesh)
        bn.replace(ours)
        rows = distribute_tensor(x, mesh, [Shard(0)])
        if ours._computed(rows) is None:
            yield f"{ours}: torch's own forward ran"
        y = ours(rows)
        y.redistribute(placements=[Replicate()]).square().sum().backward()
        for got, wanted in zip(
            (y, *(p.grad for p in ours.parameters())), (want, *slopes), strict=True
        ):
            if not torch.allclose(whole(got), wanted, rtol=1e-10, atol=1e-12):
                yield f"{ours}: {(whole(got) - wanted).abs().max()}"
        if type(ours).__module__ != "baracuda.nn.norms":
            yield f"{type(ours)}"


def main() -> None:
    store = dist.FileStore(sys.argv[1], RANKS)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    found = {}
    for check in (sharded_models, narrow_models, distributed_parameters):
        try:
            found[check.__name__] = list(check(mesh))
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
    main()
