"""torch: every op on DTensors over 4 processes, by a program of its own: torch_devices.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import lanes
import pytest
import torch.distributed
from kinds import runs_both_ways

ROOT = Path(__file__).parents[1]
CHECKS = (
    "over_each_axis", "over_two_axes", "sums_that_wait", "networks", "refused", "compiled",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)


def report(device: str, processes: int) -> Any:
    """What the program found wrong, by op and check."""
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={processes}", str(ROOT / "tests" / "torch_devices.py"), device,
        ],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def on_processors() -> Any:
    return report("cpu", 4)


@pytest.mark.parametrize("op", lanes.cases(lanes.registry, runs_both_ways))
def test_every_op_on_shards(op: str, on_processors: Any) -> None:
    assert on_processors[op] == {check: [] for check in CHECKS}


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs")
def test_every_op_on_shards_on_gpus() -> None:
    found = report("cuda", 2)
    assert found == {op: {check: [] for check in CHECKS} for op in found}
    assert found
