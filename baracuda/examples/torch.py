"""One model trained by several processes: torch.distributed, with DDP or FSDP2 as the engine.

`joined` makes this process one of a group, `Ranks` is what it then knows of the others. What is
trained is any function that gives a loss of named weights: `Model` makes a module of it, so that
autograd runs its backward, and baracuda's ops in it have their explicit backward as the gradient.
The weights are updated outside, as plain tensors: of what a process has, be it all or a shard.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import baracuda as bc

Weights: TypeAlias = dict[str, torch.Tensor]
Loss: TypeAlias = Callable[..., torch.Tensor]

# What torchrun tells each process of itself and the others.
FROM_TORCHRUN = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class Model(torch.nn.Module):
    """Weights, and a function that takes them and a batch to the loss.

    Parameters
    ----------
    weights : dict of str to Tensor
        What the parameters start from.
    loss : callable
        ``(weights, *batch) -> loss``, through functions that autograd can follow.
    """

    def __init__(self, weights: Weights, loss: Loss) -> None:
        super().__init__()
        for name, w in weights.items():
            self.register_parameter(name, torch.nn.Parameter(w.clone()))
        self._loss = loss
        # On a CPU autograd would differentiate the definitions: a forced backend has the explicit
        # gradients there too.
        on_cpu = all(w.device.type == "cpu" for w in weights.values())
        self._backend: Literal["torch"] | None = "torch" if on_cpu else None

    def forward(self, *batch: Any) -> torch.Tensor:
        """The loss of a batch."""
        with bc.options(backend=self._backend):
            return self._loss(dict(self.named_parameters()), *batch)


def place(device: str | None, batch: int, command: str = "train --distributed") -> str:
    """The device of this process: the CPU, or of the GPUs of its host one for each process.

    Parameters
    ----------
    device : str or None
        ``"cpu"`` or ``"cuda"``; the CPU by default.
    batch : int
        Rows that the processes are to share.
    command : str
        What torchrun is to start.

    Returns
    -------
    str
        ``"cpu"``, or a GPU by its number.

    Raises
    ------
    ValueError
        Where the processes cannot train together, or are none that torchrun started.
    """
    missing = [name for name in FROM_TORCHRUN if name not in os.environ]
    if missing:
        raise ValueError(
            f"no {missing[0]} in the environment; start it as "
            f"torchrun --nproc-per-node 2 -m baracuda {command}"
        )
    size, here = (int(os.environ[name]) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if batch % size:
        raise ValueError(f"{size} processes cannot share a batch of {batch} rows equally")
    if device in (None, "cpu"):
        return "cpu"
    if device != "cuda":
        raise ValueError(f"--device cpu or cuda, one GPU for each process; got {device}")
    if here > (gpus := torch.cuda.device_count()):
        raise ValueError(f"{here} processes need as many GPUs, this host has {gpus}")
    return f"cuda:{os.environ['LOCAL_RANK']}"


class Ranks:
    """This process among those that train one model, each on rows of its own.

    Every method but `mine` and `share` is called by all processes at once.

    Parameters
    ----------
    engine : str
        ``"ddp"``: each has all weights, gradients are averaged. ``"fsdp"``: each has a shard of
        the weights, of their gradients and of what the optimizer keeps.
    device : str
        Of the weights.

    Attributes
    ----------
    first : bool
        Whether this process is the one that speaks for all.
    size : int
        How many there are.
    """

    def __init__(self, engine: str, device: str) -> None:
        self.engine, self.rank, self.size = engine, dist.get_rank(), dist.get_world_size()
        self.first = self.rank == 0
        self._mesh: DeviceMesh = init_device_mesh(torch.device(device).type, (self.size,))
        self._parameters: dict[str, torch.nn.Parameter] = {}

    def __str__(self) -> str:
        through = "gloo" if self._mesh.device_type == "cpu" else "NCCL"
        return f"{self.size}, {self.engine} over {through}"

    def mine(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The rows of a global batch that are this process's: as many as any other's."""
        return np.split(rows, self.size)[self.rank]

    def share(self, weights: Weights, loss: Loss) -> tuple[Weights, Callable[..., Any]]:
        """What this process keeps of `weights`, and the function that gives their gradient.

        Parameters
        ----------
        weights, loss
            See `Model`; every process gives the same weights.

        Returns
        -------
        kept : dict of str to Tensor
        loss_and_gradient : callable
            ``(kept, *batch)`` to the loss of this process's batch and, of what it keeps, the
            gradient of the mean loss over all processes.
        """
        model = Model(weights, loss)
        module: torch.nn.Module = model
        if self.engine == "fsdp":
            sharded = fully_shard(model, mesh=self._mesh)
            # Over gloo some versions of torch sum where they are to average.
            sharded.set_force_sum_reduction_for_comms(self._mesh.device_type == "cpu")
        else:
            module = DistributedDataParallel(model)
        # Of the engine's own tensors: FSDP2 puts others in the place of those it was given.
        self._parameters = parameters = dict(model.named_parameters())

        def loss_and_gradient(kept: Weights, *batch: Any) -> tuple[torch.Tensor, Weights]:
            with torch.no_grad():
                for name, w in kept.items():
                    _local(parameters[name]).copy_(w)
            value = module(*batch)
            value.backward()
            gradient = {name: _local(_gradient(p)) for name, p in parameters.items()}
            module.zero_grad()
            return value.detach(), gradient

        return {name: _local(p).clone() for name, p in parameters.items()}, loss_and_gradient

    def whole(self, kept: Weights) -> Weights:
        """All of the weights, from what each process keeps of them."""
        out = dict(kept)
        for name, p in self._parameters.items():
            if isinstance(p, DTensor):
                # Shards may differ by a row, so the shape is that of the parameter.
                out[name] = DTensor.from_local(
                    kept[name], self._mesh, p.placements, shape=p.shape, stride=p.stride()
                ).full_tensor()
        return out

    def mean(self, values: Sequence[torch.Tensor]) -> list[float]:
        """Each of some numbers, averaged over the processes."""
        if not values:
            return []
        total = torch.stack(list(values))
        dist.all_reduce(total)
        return [value / self.size for value in total.tolist()]

    def most(self, value: float) -> float:
        """The largest that any process gives, of a number that is on the host."""
        among = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(among, dist.ReduceOp.MAX)
        return float(among.item())

    def squares(self, gradient: Sequence[torch.Tensor], plans: Any) -> torch.Tensor:
        """The squares of all elements of the whole gradient, summed; `plans` are `Plans`."""
        total: torch.Tensor = plans(bc.sum_of_squares, gradient)
        if self.engine == "fsdp":  # under DDP each process has the whole
            dist.all_reduce(total)
        return total

    def gradients(self) -> Counter[str]:
        """How many plans of gradients the plan cache has, by SKU: autograd keeps them to itself."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "plans.json"
            bc.plan_cache.save(path)
            records = json.loads(path.read_text(encoding="utf-8"))["plans"]
        skus = [bc.KernelSku.from_json(record["sku"]) for record in records]
        return Counter(str(sku) for sku in skus if sku.op.endswith("_backward"))


def _local(x: torch.Tensor) -> torch.Tensor:
    """What this process has of a tensor, on the same memory and outside autograd."""
    x = x.detach()
    return x.to_local() if isinstance(x, DTensor) else x


def _gradient(p: torch.nn.Parameter) -> torch.Tensor:
    if p.grad is None:
        raise RuntimeError("a weight without a gradient: the loss does not depend on it")
    return p.grad


@contextmanager
def joined(engine: str, device: str) -> Iterator[Ranks]:
    """Be one of the processes that torchrun started, until the end of the block.

    Parameters
    ----------
    engine, device : str
        See `Ranks`. gloo connects CPUs, NCCL GPUs.
    """
    on_gpu = device != "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    # With GPUs the hosts are connected too: a number there is exchanged without waiting for them.
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    try:
        yield Ranks(engine, device)
    finally:
        dist.destroy_process_group()
        # gloo's threads drop their last tensors under the GIL, and abort where Python is gone.
        time.sleep(0.1)
