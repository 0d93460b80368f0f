"""The code of docs/jax_models.md trains, and its models are those of plain `jax.numpy`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from children import ROOT, environment


@pytest.mark.full("docs/jax_models.md", "baracuda/frameworks/jax", "baracuda/integrations/optax")
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("flax", "optax", "equinox")),
    reason="needs flax, optax and equinox",
)
@pytest.mark.slow("three models are compiled, forward and backward, also over 4 devices")
def test_models_of_three_libraries_are_those_of_plain_jax() -> None:
    program = [sys.executable, str(ROOT / "tests" / "models_of_jax.py")]
    known = environment(ROOT / "tests", OMP_NUM_THREADS="1")
    out = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, env=known, timeout=400)
    assert out.returncode == 0, out.stderr[-3000:]
    assert json.loads(out.stdout) == []
