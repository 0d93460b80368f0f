"""The benchmark compares like with like, and runs."""

from __future__ import annotations

import argparse
import gc
import io
import json
import sys
import time
import weakref
from contextlib import redirect_stdout
from dataclasses import replace
from importlib import import_module
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import lanes
import numpy as np
import pytest
import torch
from kinds import COVERING

from baracuda.__main__ import main
from baracuda.calls.op import registry
from baracuda.testing import device_costs, host_bench, timing
from baracuda.testing.peers import EXPRESSIONS
from baracuda.testing.problems import OPTIMISERS, device_rows, host_rows
from baracuda.testing.timed_row import Row, ideal_bytes
from baracuda.testing.timing import Queued, on_device, on_host, uncollected
from baracuda.tools import bench, progress
from baracuda.tools.bench import Timing, save_plot, time_row

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
        if op.startswith("index_select"):
            shapes = {"src": (4, 5), "index": (6,), "dout": (4, 6)}
            options |= {"src_shape": (4, 5)} if op.endswith("backward") else {}
        if op.startswith(("index_add", "scatter")):
            shapes = dict.fromkeys(("x", "dout"), (4, 5)) | {"source": (4, 6), "index": (6,)}
            if op.startswith("scatter"):
                shapes |= dict.fromkeys(("src", "index"), (4, 6)) | {"out": (4, 5)}
                options |= {"reduction": "mean"} if "reduce" in op else {}
        if "ids" in spec.arrays:
            shapes = {"ids": (3, 2), "weight": (4, 5), "dy": (3, 2, 5)}
            options = {"weight_shape": (4, 5)} if op.endswith("backward") else {}
            options = {"num_embeddings": 9} if op.endswith("rows") else options
            if "bag" in op:
                shapes |= dict.fromkeys(("dy", "y"), (3, 5))
                options = {"reduction": "sum"}
        if "segment_ids" in spec.arrays:
            shapes = {"data": (9, 5), "segment_ids": (9,), **dict.fromkeys(("dout", "out"), (4, 5))}
            shapes |= dict.fromkeys(("dy", "y"), (9, 5))
            options = {"num_segments": 4}
        if "row_map" in spec.arrays:
            shapes = {**dict.fromkeys(("row_map", "probs"), (4, 2)), "x": (4, 5), "y": (8, 5)}
            shapes["dout"] = (8, 5) if op == "permute_rows_backward" else (4, 5)
            options = {}
    elif spec.category in ("norm", "softmax"):
        shapes = {**dict.fromkeys(spec.arrays, (3, 4)), "weight": (4,), "bias": (4,)}
        shapes.pop("mask", None)
        if spec.category == "softmax":
            shapes.pop("bias")
        shapes["dout"] = (3,)
    elif spec.category == "channel_norm":
        shapes = {**dict.fromkeys(spec.arrays, (4,)), "dy": (2, 4, 3), "x": (2, 4, 3)}
        options = {"num_groups": 2} if "num_groups" in spec.options else {}
    elif spec.category == "cross_entropy":
        shapes = {"dloss": (), "logits": (3, 4), "hidden": (3, 5), "weight": (4, 5), "target": (3,)}
        shapes |= {"teacher_logits": (3, 4), "teacher_hidden": (3, 2), "teacher_weight": (4, 2)}
        shapes |= dict.fromkeys(("teacher_ids", "teacher_probs"), (3, 2))
        if op.startswith("soft"):
            shapes["target"] = (3, 4)
        if op.endswith("with_gradient"):
            shapes.pop("dloss")
        if "hidden" not in spec.arrays:
            shapes.pop("weight")
        if op.startswith("nll"):
            shapes = {"dloss": (), "x": (3, 4), "target": (3,)}
            options = {"x_shape": (3, 4)} if op.endswith("backward") else {}
    elif spec.category == "log_prob":
        shapes = dict.fromkeys(("dlog_prob", "dentropy", "target"), (3,))
        shapes |= {"logits": (3, 4), "hidden": (3, 5), "weight": (4, 5)}
        options = {"entropy": True} if "entropy" in spec.options else {}
    elif spec.category == "loss":
        shapes = dict.fromkeys(spec.arrays, (3, 4)) | {"dloss": (), "target": (3,)}
    elif spec.category == "optimiser":
        shapes, options = dict.fromkeys(spec.arrays, (3, 4)), OPTIMISERS[op]
    elif spec.category == "qk_norm_rope":
        shapes = dict.fromkeys(("q", "dq_out"), (2, 3, 4, 8)) | dict.fromkeys(
            ("k", "dk_out"), (2, 3, 1, 8)
        )
        shapes |= dict.fromkeys(("q_weight", "k_weight"), (8,))
        shapes |= dict.fromkeys(("cos", "sin"), (1, 3, 4))
    elif spec.category == "rope":
        shapes = dict.fromkeys(("x", "q", "dy"), (2, 5, 8)) | dict.fromkeys(("k", "dz"), (1, 5, 8))
        shapes |= dict.fromkeys(("cos", "sin"), (5, 4))
    else:
        shapes, options = dict.fromkeys(("a", "b", "dy"), (3, 4)), {"weight": 0.3}
    drawn = "once" if "row_map" in shapes or "num_embeddings" in options else "uniform"
    if op in ("scatter", "scatter_backward"):
        shapes, drawn = dict.fromkeys(shapes, (1, 5)), "once"
    return Row(op, "small", tuple(shapes[n] for n in spec.arrays if n in shapes), options, drawn)


@pytest.mark.parametrize(
    ("op", "library"),
    lanes.cases(
        product(EXPRESSIONS, ("numpy", "torch", "jax")),
        lambda given: given[1] != "jax" or given[0] in COVERING,
    ),
)
def test_peers_compute_what_they_are_compared_with(op: str, library: str) -> None:
    xp = {"numpy": np, "torch": torch, "jax": jnp}[library]
    row = small(op)
    arrays = row.arrays(np.random.default_rng(0), np.float64)
    want = registry[op](*arrays, **row.options)
    take = {np: np.asarray, torch: torch.from_numpy, jnp: jnp.asarray}[xp]
    given = [take(x) for x in arrays]
    got = EXPRESSIONS[op](xp, *given, **row.options)
    for x, y in zip(
        got if isinstance(got, tuple) else (got,),
        want if isinstance(want, tuple) else (want,),
        strict=True,
    ):
        # JAX computes in float32.
        tolerance = 1e-4 if xp is jnp else 1e-5
        np.testing.assert_allclose(np.asarray(x), y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("op", [row.op for row in host_rows(32) if row.derived])
def test_functions_of_jax_compute_what_they_are_compared_with(op: str) -> None:
    function, spec = host_bench._function_of_jax(jax, op), registry[op].spec
    if function is None:
        return
    forward = registry[spec.adjoint_of or op]
    # Without 0, where slopes are a convention.
    x = jnp.linspace(-4, 4, 32)
    want = forward(x) if spec.adjoint_of is None else jax.vjp(forward, x)[1](x + 1)[0]
    got = function(x) if spec.adjoint_of is None else function(x + 1, x)[0]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_memory_is_that_beside_results() -> None:
    x = np.ones(1 << 16)
    assert timing.extra_bytes(lambda: x + 1) < 1 << 12
    assert timing.extra_bytes(lambda: np.exp(np.exp(x))) == pytest.approx(x.nbytes, abs=1 << 12)


def test_tasks_take_turns() -> None:
    calls: list[str] = []
    found = timing.in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 0.0)
    # Once to warm up, then each comes first in its turn.
    assert "".join(calls) == "ab" + "abbaabbaab"
    assert set(found) == {"a", "b"}


def test_every_op_but_the_1d_pools_has_a_row_and_a_peer() -> None:
    named = {n for n, o in registry.items() if registry[o.spec.adjoint_of or n].spec.namesake}
    for rows in (host_rows(32), device_rows("bfloat16"), device_rows("float32")):
        covered = {row.op for row in rows}
        by_hand = {row.op for row in rows if not row.derived}
        assert by_hand - named <= set(EXPRESSIONS) <= covered
    assert set(registry) - covered == {"lp_pool1d", "lp_pool1d_backward"}


SCATTERS = {
    row.label: row
    for row in device_rows("float32")
    if row.op == "gather_backward" and row.deterministic is None
}


def test_gradients_of_gathers_are_timed_as_called_by_default_and_deterministic() -> None:
    for dtype in ("bfloat16", "float32"):
        rows = [row for row in device_rows(dtype) if row.op == "gather_backward"]
        usual, fixed = ([r for r in rows if r.deterministic is how] for how in (None, True))
        assert len(usual) == 8
        for one, other in zip(usual, fixed, strict=True):
            assert other.label == f"{one.label}, deterministic"
            assert replace(other, label=one.label, deterministic=None) == one


def shrunk(row: Row, n: int) -> Row:
    """The same problem with every extent at most `n`."""
    shapes = tuple(tuple(min(extent, n) for extent in shape) for shape in row.shapes)
    src = tuple(min(extent, n) for extent in row.options["src_shape"])
    return replace(row, shapes=shapes, options=row.options | {"src_shape": src})


@pytest.mark.parametrize("label", SCATTERS)
def test_the_ways_to_scatter_agree(label: str) -> None:
    device_peers = import_module("baracuda.testing.device_peers")
    jnp = pytest.importorskip("jax.numpy")
    row = shrunk(SCATTERS[label], 24)
    dout, index = row.arrays(np.random.default_rng(0), np.float32)
    assert index.shape == dout.shape
    want = registry[row.op](dout, index, **row.keywords)
    # Broadcast as a tensor too.
    own = index[tuple(map(slice, row.shapes[1]))].copy()
    given = [torch.from_numpy(dout), torch.from_numpy(own).expand(index.shape)]
    found = {name: task() for name, task in device_peers.row_scatters(row, given).items()}
    if "from" not in label:
        assert found == {}
    else:
        assert set(found) == ({"index_add_", "embedding"} if dout.ndim == 2 else {"index_add_"})
    places = own[:, 0] if "rows" in label else own
    found["jax"] = device_peers.jax_scatter(jnp.asarray(dout), jnp.asarray(places), **row.options)
    for name, got in found.items():
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-5, err_msg=name)


def test_indices_are_drawn_as_a_row_says() -> None:
    draw = np.random.default_rng(0)
    zipf = SCATTERS["[65536, 1024] from 32768 rows, Zipf(1.2)"].index(draw)
    assert zipf.shape == (32768, 1)
    assert 0 <= zipf.min() <= zipf.max() < 65536
    most, second = np.bincount(zipf[:, 0])[:2]
    # Of 65536 entries the first has 0.205 of the weight.
    assert 0.19 < most / 32768 < 0.22
    assert most / second == pytest.approx(2**1.2, rel=0.1)
    equal = SCATTERS["[131072] from 2^24, all equal"].index(draw)
    assert equal.shape == (2**24,)
    assert np.ptp(equal) == 0
    uniform = SCATTERS["[65536, 1024] from 32768 rows, uniform"].index(draw)
    assert len(np.unique(uniform)) > 20000
    assert uniform.dtype == zipf.dtype == equal.dtype == np.int64


@pytest.mark.parametrize("index", [(6, 1), (6, 5)])
def test_ideal_bytes_count_what_is_broadcast_once(index: tuple[int, ...]) -> None:
    options = {"axis": 0, "src_shape": (9, 5)}
    row = Row("gather_backward", "small", ((6, 5), index), options)
    arrays = row.arrays(np.random.default_rng(0), np.float32)
    plan = registry[row.op].plan(*arrays, **row.keywords)
    assert ideal_bytes(plan.problem) == 4 * (30 + 45) + 8 * index[0] * index[1]


def test_quack_is_called_as_it_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its functions, played by torch: no machine without a GPU can import them."""
    device_peers = import_module("baracuda.testing.device_peers")
    monkeypatch.setattr(device_peers, "random_tensor", lambda s, dtype: torch.zeros(s, dtype=dtype))
    f = torch.nn.functional

    def rmsnorm(x: Any, w: Any, residual: Any = None, prenorm: bool = False) -> Any:
        both = x if residual is None else x + residual
        y = f.rms_norm(both, w.shape, w, 1e-6)
        return (y, both) if prenorm else y

    def layernorm_fwd(x: Any, w: Any, b: Any, eps: float, *known: bool) -> Any:
        assert w.dtype == torch.float32
        assert b is None or b.dtype == torch.float32
        y = f.layer_norm(x, w.shape, w, b, eps)
        var, mean = torch.var_mean(x, -1, correction=0)
        return (y, (var + eps).rsqrt(), mean) if known else y

    def layernorm_bwd(x: Any, w: Any, dy: Any, inverse: Any, mean: Any) -> Any:
        z, g = (x - mean[:, None]) * inverse[:, None], dy * w
        rest = g - g.mean(-1, True) - z * (g * z).mean(-1, True)
        return inverse[:, None] * rest, (dy * z).sum(0), dy.sum(0)

    def fwd(x: Any, target: Any, return_lse: bool = False, return_dx: bool = False) -> Any:
        assert return_lse != return_dx
        return f.cross_entropy(x, target), x.logsumexp(-1)

    def bwd(x: Any, target: Any, dloss: Any, lse: Any) -> Any:
        hit = f.one_hot(target, x.shape[-1])
        return ((x - lse[:, None]).exp() - hit) * dloss[:, None] / len(target)

    def linear(x: Any, w: Any, target: Any) -> Any:
        return f.cross_entropy(x @ w.T, target)

    modules = {
        "rmsnorm": {
            "rmsnorm": rmsnorm,
            "layernorm_fwd": layernorm_fwd,
            "layernorm_bwd": layernorm_bwd,
        },
        "softmax": {"softmax": lambda x: x.softmax(-1)},
        "cross_entropy": {
            "cross_entropy": f.cross_entropy,
            "cross_entropy_fwd": fwd,
            "cross_entropy_bwd": bwd,
        },
        "linear_cross_entropy": {"chunked_linear_cross_entropy": linear},
    }
    for name, members in modules.items():
        monkeypatch.setitem(sys.modules, f"quack.{name}", SimpleNamespace(**members))
    seen = set()
    for op in EXPRESSIONS:
        row = small(op)
        arrays = [torch.from_numpy(x) for x in row.arrays(np.random.default_rng(0), np.float32)]
        for task in device_peers.quack(row, arrays).values():
            seen.add(op)
            ours, theirs = (
                x if isinstance(x, tuple) else (x,) for x in (registry[op](*arrays), task())
            )
            # The rest of what they give is not alike. What a gradient goes without is drawn.
            if op not in ("add_rms_norm_backward", "softmax_backward"):
                torch.testing.assert_close(ours[0], theirs[0])
    assert {op.removesuffix("_backward").removesuffix("_with_gradient") for op in seen} == {
        "rms_norm", "add_rms_norm", "layer_norm", "softmax", "cross_entropy", "linear_cross_entropy"
    }  # fmt: skip


def test_peers_run_under_the_switch_of_torch_in_deterministic_rows_alone() -> None:
    device_peers = import_module("baracuda.testing.device_peers")
    row = shrunk(SCATTERS["[65536, 1024] from 32768 rows, uniform"], 24)
    given = [torch.from_numpy(x.copy()) for x in row.arrays(np.random.default_rng(0), np.float32)]
    given[1] = given[1][:, :1].expand(given[0].shape)
    fixed = device_peers.peers(replace(row, deterministic=True), given)
    assert set(fixed) == {"eager", "index_add_", "embedding"}
    seen = device_peers.in_order(torch.are_deterministic_algorithms_enabled)
    assert seen()
    assert not torch.are_deterministic_algorithms_enabled()
    assert set(device_peers.peers(row, given)) >= {*fixed, "compile"}


def test_a_row_without_a_peer_that_can_do_it_has_no_ratio() -> None:
    def fails() -> None:
        raise RuntimeError("not here\nnor there")

    row = replace(small("gather_backward"), deterministic=True)
    arrays = row.arrays(np.random.default_rng(0), np.float32)
    timing = time_row(row, "float32", arrays, {"eager": fails}, on_host, 0.0)
    assert timing.errors == {"eager": "RuntimeError: not here"}
    assert timing.best == "none"
    assert np.isnan(timing.ratio)


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_while_a_graph_is_captured(enabled: bool) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    def garbage() -> weakref.ref[Cycle]:
        return weakref.ref(Cycle())

    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        old = garbage()
        with uncollected():
            assert old() is None
            new = garbage()
            # More objects than start a collection.
            kept = [[] for _ in range(2 * gc.get_threshold()[0])]  # type: ignore[var-annotated]
            assert new() is not None
            assert kept
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_queued_work_is_timed_to_its_end() -> None:
    calls: list[str] = []
    queued = Queued(lambda: calls.append("task"), lambda result: calls.append("wait"))
    assert queued.timed(3) > 0
    assert calls == ["task", "task", "task", "wait"]


@pytest.mark.parametrize(("takes", "least", "most"), [(0.11, 3, 3), (0.001, 7, 60)])
def test_what_takes_long_is_repeated_little(takes: float, least: int, most: int) -> None:
    calls = []
    queued = Queued(lambda: calls.append(time.sleep(takes)), lambda result: result)
    middle, spread = on_device(queued, 0.05)
    assert middle >= takes
    assert spread >= 0
    assert least <= len(calls) <= most


def test_bench_prints_a_table_and_writes_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = tmp_path / "bench.json", tmp_path / "bench.md"
    asked = ["--ops", "lerp", "--sizes", "1k", "1M", "--json", str(path), "--out", str(page)]
    assert main(["bench", "--cpu", "--quick", *asked]) == 0
    printed, written = capsys.readouterr().out, page.read_text(encoding="utf-8")
    assert "CPU only" in printed
    assert "1/6 lerp [32, 32] numpy" in printed
    record = json.loads(path.read_text())
    assert record["rows"][0]["ideal_bytes"] == 3 * 4 * 1024
    places = [(f"[{n}, {n}] {xp}", peer) for n in (32, 1024)
              for xp, peer in (("numpy", "numpy"), ("torch", "eager"), ("jax", "jax"))]  # fmt: skip
    for row, (label, peer) in zip(record["rows"], places, strict=True):
        assert (row["op"], row["label"], list(row["peers"])) == ("lerp", label, [peer])
        assert row["ours"] > 0
        assert set(row["extra"]) == ({"ours", "numpy"} if peer == "numpy" else set())
        assert f"| lerp | {label} | " in written
    # Of the three arrays that the plain expression makes one is the result.
    assert record["rows"][3]["extra"]["numpy"] == pytest.approx(1 / 3, abs=0.01)
    assert record["host"]["misses of lerp with 500 weights"] == 1


def test_shares_are_taken_from_the_arrays_of_every_library(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[type] = []

    def on_device(task: Any, seconds: float) -> tuple[float, float]:
        seen.append(type(task()))
        return (2.0 if seen[-1] is torch.Tensor else 4.0), 0.0

    monkeypatch.setattr(
        device_costs, "takers", lambda: {"torch": torch.from_numpy, "numpy": lambda x: x}
    )
    rows = [small("rope"), small("rope_backward"), small("rope"), small("swiglu_backward")]
    monkeypatch.setattr(bench, "device_rows", lambda dtype: rows)
    monkeypatch.setattr(bench, "DTYPES", ("float32",))
    monkeypatch.setattr(bench.timing, "on_device", on_device)
    peers = SimpleNamespace(
        arrays_of=lambda row, dtype: row.arrays(np.random.default_rng(0), np.float32)
    )
    every = bench.across_libraries(torch, peers, argparse.Namespace(ops=None), 10.0, 0.1)
    # Read x, write y: 4 bytes for each of 2·2·5·8 elements, in 2 or 4 s at 10 bytes a second.
    assert every["rope small float32"] == {"torch": 32.0, "numpy": 16.0}
    assert list(every) == ["swiglu_backward small float32", "rope small float32"]
    assert seen == [torch.Tensor, np.ndarray] * 2
    only = bench.across_libraries(torch, peers, argparse.Namespace(ops=["rope"]), 10.0, 0.1)
    assert list(only) == ["rope small float32"]


def test_calls_that_are_recorded_are_timed_beside_those_of_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[Any] = []

    def per_call(task: Any) -> float:
        done.append(task())
        return float(len(done))

    monkeypatch.setattr(device_costs.timing, "per_call", per_call)
    found = device_costs.watched(torch, "cpu", backend="torch")
    assert list(found.values()) == [1.0, 2.0, 3.0, 4.0, 5.0]
    ours, gradient, backward, theirs, gradients = done
    assert ours.grad_fn.name() == "FusedBackward"
    assert theirs.grad_fn.name() == "MulBackward0"
    torch.testing.assert_close(*gradient, backward)
    assert [x.shape for x in gradients] == [(16, 32)] * 2


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


def test_a_block_is_not_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bench", "--block", "--plot", str(tmp_path / "x.png")])
    assert "--plot: not allowed with argument --block" in capsys.readouterr().err


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


# -- written figures ------------------------------------------------------------------------------

FIGURES = Path(__file__).parents[1] / "docs" / "benchmarks" / "h200.json"


def changed(path: Path, *, device: str | None = None, **factors: float) -> Path:
    """The committed figures, rows of some ops slower by a factor."""
    record = json.loads(FIGURES.read_text())
    for row in record["rows"]:
        row["ours"] *= factors.get(row["op"], 1.0)
    record["device"] = device or record["device"]
    record["rows"] = [row for row in record["rows"] if factors.get(row["op"]) != 0]
    path.write_text(json.dumps(record))
    return path


def test_what_moved_beyond_the_noise_is_shown_the_largest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = changed(tmp_path / "old.json", glu=0.9, swiglu=1.5, reglu=1.0001, lerp=0)
    assert main(["bench", "--from", str(FIGURES), "--compare", str(old)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["old: NVIDIA H200", "new: NVIDIA H200"]
    moved = [line.split() for line in lines if line.startswith(("glu", "swiglu", "reglu"))]
    assert [(row[0], row[-1]) for row in moved] == [
        ("swiglu", "0.667"), ("swiglu", "0.667"), ("glu", "1.111"), ("glu", "1.111"),
    ]  # fmt: skip
    both = len(json.loads(old.read_text())["rows"])
    assert lines[-1] == (
        f"4 of {both} rows moved beyond the noise of both; 0 only in the old, 2 only in the new"
    )
    assert main(["bench", "--from", str(FIGURES), "--compare", str(FIGURES)]) == 0
    assert f"\n0 of {both + 2} rows moved" in capsys.readouterr().out


def test_noise_is_the_spread_of_both() -> None:
    old, new = timed("glu", "float32", 1e-3), timed("glu", "float32", 1.1e-3)
    for spreads, moves in (((0.0, 0.0), 1), ((6e-5, 6e-5), 0), ((6e-5, 3e-5), 1)):
        out = io.StringIO()
        with redirect_stdout(out):
            bench.compare([replace(old, spread=spreads[0])], [replace(new, spread=spreads[1])])
        assert f"{moves} of 1 rows moved" in out.getvalue()


def test_different_devices_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = changed(tmp_path / "old.json", device="NVIDIA H100")
    assert main(["bench", "--from", str(FIGURES), "--compare", str(old)]) == 2
    said = capsys.readouterr()
    assert said.out == "old: NVIDIA H100\nnew: NVIDIA H200\n"
    assert "NVIDIA H100 and NVIDIA H200 are not to be compared" in said.err
    # Known before anything is measured.
    assert main(["bench", "--cpu", "--compare", str(FIGURES)]) == 2
    assert "new: CPU only: " in capsys.readouterr().out


def test_a_run_is_compared_with_its_own_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, html = tmp_path / "bench.json", tmp_path / "bench.html"
    quick = ["bench", "--cpu", "--quick", "--ops", "lerp", "--libraries", "numpy"]
    assert main([*quick, "--json", str(path)]) == 0
    assert main([*quick, "--compare", str(path), "--html", str(html)]) == 0
    assert "of 2 rows moved beyond the noise of both" in capsys.readouterr().out
    assert "times as fast as the best peer" in html.read_text(encoding="utf-8")


def test_a_page_has_every_figure_of_a_record(tmp_path: Path) -> None:
    path = tmp_path / "bench.html"
    assert main(["bench", "--from", str(FIGURES), "--html", str(path)]) == 0
    text, record = path.read_text(encoding="utf-8"), json.loads(FIGURES.read_text())
    assert text.count("<tr data-op=") == len(record["rows"])
    # Ours and the best peer of each row.
    assert text.count("<circle") == 2 * len(record["rows"])
    for row in record["rows"]:
        assert f"{row['op']} {row['label']} {row['dtype']}: {row['share']:.3f}" in text
    for part in ("host", "small", "cold"):
        for name, value in record[part].items():
            assert name in text
            assert f">{value:.3f}<" in text


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--from", "{old}"], "--from: give --html or --compare too"),
        (["--from", "{no}", "--html", "{old}"], "no.json holds no figures of bench: "),
        (["--compare", "{bad}"], "bad.json holds no figures of bench: "),
        (["--html", "not/there/x.html"], "--html: no directory not/there"),
        (["--block", "--compare", "{old}"], "--block goes with none of --html, --compare and"),
    ],
)
def test_figures_that_cannot_be_read_are_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], asked: list[str], said: str
) -> None:
    (tmp_path / "bad.json").write_text('{"rows": [{"op": "glu"}]}')
    paths = {name: str(tmp_path / f"{name}.json") for name in ("old", "no", "bad")}
    changed(Path(paths["old"]))
    assert main(["bench", *(text.format(**paths) for text in asked)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1
