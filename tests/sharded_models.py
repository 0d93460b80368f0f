"""A program of two processes: each family of `test_transformers`, patched and cut by FSDP2.

The processes meet as those of torchrun do. Each has a row of its own. The first prints a line for
each family: "equal", or what is not.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from test_transformers import FAMILIES, IDS, LABELS, assert_same_step, step, twins

from baracuda.testing.model import shard

Step = tuple[torch.Tensor, dict[str, torch.Tensor]]


def row(number: int) -> dict[str, torch.Tensor]:
    """One row of the batch, as inputs of a model."""
    rows = slice(number, number + 1)
    return {"input_ids": IDS[rows], "labels": LABELS[rows]}


def mean(steps: list[Step]) -> Step:
    """What several rows give together."""
    names = steps[0][1]
    loss = torch.stack([loss for loss, _ in steps]).mean()
    return loss, {k: torch.stack([grads[k] for _, grads in steps]).mean(0) for k in names}


def sharded(family: str) -> str:
    plain, patched = twins(family)
    shard(patched, "cpu")
    loss, grads = step(patched, **row(dist.get_rank()))
    dist.all_reduce(loss)
    parts: dict[str, Any] = {**grads}
    whole = {name: grad.full_tensor() for name, grad in parts.items()}
    want = mean([step(plain, **row(rank)) for rank in range(dist.get_world_size())])
    try:
        assert_same_step((loss / dist.get_world_size(), whole), want)
    except AssertionError as error:
        return f"not equal: {error}"
    return "equal"


def main() -> None:
    dist.init_process_group("gloo")
    for family in sys.argv[1:] or FAMILIES:
        said = sharded(family)
        if dist.get_rank() == 0:
            print(family, said, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
