"""The benchmark compares like with like, and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baracuda.__main__ import main
from baracuda.op import registry
from baracuda.testing.peers import EXPRESSIONS
from baracuda.testing.problems import Row, device_rows, host_rows

POOL = {"norm_type": 3.0, "kernel_size": 3, "stride": 2}


def small(op: str) -> Row:
    """A problem of a few elements."""
    spec, options, shapes = registry[op].spec, {}, {}
    if spec.category == "gated":
        shapes = {"dy": (3, 4), "x": (3, 8)}
    elif spec.category == "pooling":
        shapes, options = {"dy": (2, 3, 3), "x": (2, 7, 7), "y": (2, 3, 3)}, POOL
    elif spec.category == "indexing":
        shapes, options = dict.fromkeys(("src", "index", "dout"), (4, 5)), {"axis": 1}
        if op == "gather_backward":
            options["src_shape"] = (4, 5)
    elif spec.category == "rope":
        shapes = {"x": (2, 5, 8), "dy": (2, 5, 8)}
    else:
        shapes, options = dict.fromkeys(("a", "b", "dy"), (3, 4)), {"weight": 0.3}
    return Row(op, "small", tuple(shapes[n] for n in spec.arrays if n in shapes), options)


@pytest.mark.parametrize("xp", [np, torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("op", EXPRESSIONS)
def test_peers_compute_what_they_are_compared_with(op: str, xp: Any) -> None:
    row = small(op)
    arrays = row.arrays(np.random.default_rng(0), np.float64)
    want = registry[op](*arrays, **row.options)
    given = arrays if xp is np else [torch.from_numpy(x) for x in arrays]
    got = EXPRESSIONS[op](xp, *given, **row.options)
    for x, y in zip(
        got if isinstance(got, tuple) else (got,),
        want if isinstance(want, tuple) else (want,),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(x), y, rtol=1e-5, atol=1e-5)


def test_every_op_but_the_1d_pools_has_a_row_and_a_peer() -> None:
    for rows in (host_rows(quick=True), device_rows("bfloat16"), device_rows("float32")):
        covered = {row.op for row in rows}
        assert covered == set(EXPRESSIONS)
    assert set(registry) - covered == {"lp_pool1d", "lp_pool1d_backward"}


def test_bench_prints_a_table_and_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    assert main(["bench", "--quick", "--ops", "lerp", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "CPU only" in printed
    assert "lerp" in printed
    record = json.loads(path.read_text())
    (row,) = record["rows"]
    assert row["op"] == "lerp"
    assert row["ideal_bytes"] == 3 * 4 * 1024 * 1024
    assert row["ours"] > 0
    assert record["host"]["misses of lerp with 500 weights"] == 1
