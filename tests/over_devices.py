"""An op over several devices, checked by a program of its own: jax_devices.py."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from baracuda.op import registry

ROOT = Path(__file__).parents[1]
# Of pointwise ops whose arrays are called alike one: how they are cut follows from that alone.
OPS = list({
    tuple(form.text for form in op.spec.signatures) if op.spec.pointwise else name: name
    for name, op in registry.items()
}.values())  # fmt: skip


def works(op: str, where: str) -> None:
    """Shards run where they are, right under jit and shard_map, and without a collective."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "jax_devices.py"), op, where],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found == {"eager": [], "collectives": [], "shard_map": [], "replicated": []}
