"""torch: every op on DTensors over 4 processes, by a program of its own: torch_devices.py."""

from __future__ import annotations

import json
from typing import Any

import lanes
import pytest
import torch.distributed
from children import ROOT
from forks import printed
from kinds import one_of_category

from baracuda.calls import adjoint
from baracuda.calls.op import registry

CHECKS = (
    "over_each_axis", "over_two_axes", "sums_that_wait", "networks", "refused", "compiled",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)


def report(device: str, processes: int) -> Any:
    """What the program found wrong, by op and check."""
    program, forked = ROOT / "tests/torch_devices.py", device == "cpu"
    return json.loads(printed(program, device, ranks=processes, forked=forked))


@pytest.fixture(scope="module")
def on_processors() -> Any:
    return report("cpu", 4)


@pytest.mark.slow("the first waits for all that four processes do")
@pytest.mark.parametrize("op", lanes.cases(lanes.registry, one_of_category))
def test_every_op_on_shards(op: str, on_processors: Any) -> None:
    assert on_processors[op] == {check: [] for check in CHECKS}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
def test_every_op_on_shards_on_gpus() -> None:
    found = report("cuda", 2)
    assert found == {op: {check: [] for check in CHECKS} for op in found}
    assert found or lanes.ops() != tuple(registry)


def test_a_result_that_lacks_an_axis_that_is_cut_is_a_partial_sum() -> None:
    from torch.distributed.tensor import Partial, Replicate, Shard

    from baracuda.calls.partitioning import Shares
    from baracuda.frameworks.torch.operators import problem_of
    from baracuda.frameworks.torch.sharding import cuts

    x = torch.ones(8, 4)
    problem = problem_of(registry["rms_norm_backward"], (x, x, torch.ones(4)), {})
    shares = Shares(problem, adjoint.summed(problem.spec, problem.signature))
    found = list(cuts(problem, shares, [Shard(0), Shard(0), Replicate()]))
    # The gradients of rows stay where these are; that of the weight is a sum over them.
    assert found[0][:2] == ((Shard(0), Shard(0), Replicate()), (Shard(0), Partial()))
    assert found[-1][:2] == ((Replicate(),) * 3, (Replicate(),) * 2)
