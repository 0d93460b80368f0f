"""Everything at once: threads, forks, spawned processes, timers, small caches, damage, full disks.

Each result is known, and whoever waits for ever is found. `tests/stress.py` is the program.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import lanes
import pytest
from children import environment

# The whole of it; `BARACUDA_STRESS` is another number of seconds.
SECONDS = float(os.environ.get("BARACUDA_STRESS", 60 if lanes.FULL else 3))
KINDS = ("first_calls", "plans", "signals", "forks", "store")
HERE = Path(__file__).parent

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has neither forks nor timers"),
    pytest.mark.slow("the full lane looks for races for a minute"),
]


def stressed(kind: str, seconds: float, seed: int) -> None:
    """One process; what it prints is part of the failure."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "stress.py"), kind, str(seconds), str(seed)],
        env=environment(HERE), capture_output=True, text=True,
        timeout=seconds + 120,
    )  # fmt: skip
    assert done.returncode == 0, f"{kind}, seed {seed}: {done.stderr[-6000:]}"


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_waits_and_every_result_is_right(kind: str) -> None:
    if kind == "store":
        pytest.importorskip("cuda.core")
    end, seed = time.monotonic() + SECONDS / len(KINDS), 0
    # First calls are made once a process; the others take turns within one.
    while seed == 0 or (kind == "first_calls" and time.monotonic() < end):
        stressed(kind, max(end - time.monotonic(), 0.3), seed)
        seed += 1
