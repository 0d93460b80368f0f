"""The benchmark compares like with like, and runs."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baracuda.__main__ import main
from baracuda.op import registry
from baracuda.testing.peers import EXPRESSIONS
from baracuda.testing.problems import Row, device_rows, host_rows
from baracuda.tools import progress
from baracuda.tools.bench import Timing, save_plot

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
    assert main(["bench", "--cpu", "--quick", "--ops", "lerp", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "CPU only" in printed
    assert "1/1 lerp [1024, 1024]" in printed
    assert "lerp" in printed
    record = json.loads(path.read_text())
    (row,) = record["rows"]
    assert row["op"] == "lerp"
    assert row["ideal_bytes"] == 3 * 4 * 1024 * 1024
    assert row["ours"] > 0
    assert record["host"]["misses of lerp with 500 weights"] == 1


def timed(op: str, dtype: str, ours: float, **peers: float) -> Timing:
    """A row that took so many seconds."""
    return Timing(op, "[8]", dtype, "", 10**6, ours, 0.0, ours, peers)


@pytest.mark.parametrize("ceiling", [None, 1e12])
def test_bench_draws_its_figures(tmp_path: Path, ceiling: float | None) -> None:
    image = pytest.importorskip("matplotlib.image")
    path = tmp_path / "bench.png"
    rows = [timed("glu", "float32", 1e-6, eager=2e-6, compile=1e-6), timed("lerp", "float32", 1e-6,
            eager=1e-6), timed("glu", "bfloat16", 1e-6, compile=3e-6)]  # fmt: skip
    save_plot(rows[:1], ceiling, path)
    small = image.imread(path).shape
    save_plot(rows, ceiling, path)
    # A line for each row of a dtype, a panel for each dtype.
    assert image.imread(path).shape[0] > small[0]
    assert image.imread(path).shape[1] == 2 * small[1]


def test_what_a_plot_lacks_is_said_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["bench", "--plot", str(tmp_path / "no" / "x.png")]) == 2
    assert "baracuda bench: --plot: no directory" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["bench", "--plot", str(tmp_path / "x.png")]) == 2
    said = capsys.readouterr()
    assert (
        "--plot needs matplotlib, which is not installed: pip install 'baracuda[plot]'" in said.err
    )
    assert said.out == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    console = pytest.importorskip("rich.console").Console(
        file=io.StringIO(), force_terminal=True, width=80
    )
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    with progress(3) as show:
        for text in ("one", "two"):
            show(text)
        console.print("between")
    assert "1/3" in console.file.getvalue()
