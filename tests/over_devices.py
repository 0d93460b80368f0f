"""Ops over several devices, checked by a program of its own: jax_devices.py."""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from functools import cache

from children import ROOT, environment


def works(op: str, where: str) -> None:
    """Shards run where they are, right under jit and shard_map, and without a collective."""
    with_devices = _program(where)
    assert with_devices.stdin
    assert with_devices.stdout
    try:
        with_devices.stdin.write(f"{op}\n")
        with_devices.stdin.flush()
        found = json.loads(with_devices.stdout.readline())
    except (BrokenPipeError, json.JSONDecodeError):
        _program.cache_clear()
        raise
    names = ("eager", "collectives", "shard_map", "replicated", "masks")
    assert found == {name: [] for name in names}, found


@cache
def _program(where: str) -> subprocess.Popen[str]:
    """The one that takes all ops of this process, as starting it takes as long as an op does."""
    started = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "jax_devices.py"), where],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment(),
    )  # fmt: skip
    # Its input ends, and so does it.
    atexit.register(started.communicate)
    return started
