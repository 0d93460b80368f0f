"""``python -m baracuda bench``: each op beside what one would write without it, in one run."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import baracuda as bc
from baracuda.op import registry
from baracuda.spec import Problem
from baracuda.testing.peers import EXPRESSIONS
from baracuda.tools import table

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Row:
    """One problem: an op, the shapes of its inputs, its options."""

    op: str
    label: str
    shapes: Shapes
    options: dict[str, Any]

    def arrays(self, rng: np.random.Generator, dtype: Any) -> list[Any]:
        """Random inputs; indices uniform over their axis, saved outputs by the forward."""
        spec, out = registry[self.op].spec, []
        for name, shape in zip(spec.arrays, self.shapes, strict=False):
            if name == "index":
                axis = self.options["axis"]
                extent = self.options.get("src_shape", self.shapes[0])[axis]
                out.append(rng.integers(0, extent, shape))
            elif name == "y":
                forward = registry[spec.adjoint_of or ""]
                out.append(forward(out[-1], **self.options))
            else:
                out.append(rng.standard_normal(shape, dtype=np.float32).astype(dtype))
        return out


@dataclass(frozen=True)
class Timing:
    """What was measured of one row: medians in seconds, with the spread of each."""

    op: str
    label: str
    dtype: str
    sku: str
    ideal_bytes: int
    ours: float
    plan: float
    peers: dict[str, float]
    spread: float

    @property
    def ratio(self) -> float:
        """How many times as fast as the best peer."""
        return min(self.peers.values()) / self.ours


def host_rows(quick: bool) -> list[Row]:
    """Problems for a CPU: well past its caches, or small for a quick look."""
    n = 1024 if quick else 4096
    gated: Shapes = ((n, 2 * n),)
    rows = [Row(op, f"[{n}, 2·{n}]", gated, {}) for op in ("glu", "reglu", "swiglu", "geglu")]
    rows += [Row(f"{row.op}_backward", row.label, ((n, n), (n, 2 * n)), {}) for row in tuple(rows)]
    rows += [
        Row("lerp", f"[{n}, {n}]", ((n, n), (n, n)), {"weight": 0.3}),
        Row("lerp_backward", f"[{n}, {n}]", ((n, n),), {"weight": 0.3}),
    ]
    x = (4, 32, n // 4, 128)
    rows += [Row(op, f"{list(x)}", (x,), {}) for op in ("rope", "rope_backward")]
    image = (n // 256, 64, 112, 112)
    for k, s, p in ((2, 2, 2.0), (3, 2, 2.0), (3, 1, 3.0)):
        options = {"norm_type": p, "kernel_size": k, "stride": s}
        out = (112 - k) // s + 1
        y = (*image[:2], out, out)
        label = f"{list(image)} k{k} s{s} p{p:g}"
        rows.append(Row("lp_pool2d", label, (image,), options))
        rows.append(Row("lp_pool2d_backward", label, (y, image, y), options))
    square = (n, n)
    for axis in (1, 0):
        label = f"[{n}, {n}] uniform, axis {axis}"
        rows.append(Row("gather", label, (square, square), {"axis": axis}))
        rows.append(
            Row("gather_backward", label, (square,) * 2, {"axis": axis, "src_shape": square})
        )
    return rows


def measure(task: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """Median time of a call, and the half-width of the middle half of the calls."""
    task()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or (time.perf_counter() < end and len(times) < 1000):
        start = time.perf_counter()
        task()
        times.append(time.perf_counter() - start)
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, (high - low) / 2


def ideal_bytes(problem: Problem) -> int:
    """Each input read once and each output written once."""
    return sum(x.nbytes for x in (*problem.given, *problem.outputs))


def time_row(row: Row, seconds: float) -> Timing:
    """Ours through the function and through a plan, and the plain NumPy expression."""
    rng = np.random.default_rng(0)
    arrays = row.arrays(rng, np.float32)
    op, expression = registry[row.op], EXPRESSIONS[row.op]
    plan = op.plan(*arrays, **row.options)
    scalars = {k: v for k, v in row.options.items() if k in op.spec.scalars}
    ours, spread = measure(lambda: op(*arrays, **row.options), seconds)
    planned, _ = measure(lambda: plan(*arrays, **scalars), seconds)
    with np.errstate(all="ignore"):
        peer, _ = measure(lambda: expression(np, *arrays, **row.options), seconds)
    return Timing(
        row.op, row.label, "float32", str(plan.sku), ideal_bytes(plan.problem), ours, planned,
        {"numpy": peer}, spread,
    )  # fmt: skip


def per_call(task: Callable[[], Any], calls: int = 20_000) -> float:
    """Microseconds of host time per call: the best of five runs."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(calls // 5):
            task()
        best = min(best, time.perf_counter() - start)
    return best / (calls // 5) * 1e6


def overheads() -> dict[str, float]:
    """Host cost of a cached call on arrays so small that nothing else counts, in microseconds."""
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    before = bc.plan_cache.info().misses
    for step in range(500):
        bc.lerp(x, x, weight=step / 500)
    misses = bc.plan_cache.info().misses - before
    plan, expression = bc.swiglu.plan(x), EXPRESSIONS["swiglu"]
    return {
        "swiglu, the bare expression": per_call(lambda: expression(np, x)),
        "swiglu, cached call": per_call(lambda: bc.swiglu(x)),
        "swiglu, plan call": per_call(lambda: plan(x)),
        "misses of lerp with 500 weights": misses,
    }


def timings(rows: Sequence[Row], seconds: float) -> Iterator[Timing]:
    for row in rows:
        yield time_row(row, seconds)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="small problems, a few seconds")
    parser.add_argument("--ops", nargs="*", help="only these ops")
    parser.add_argument("--seconds", type=float, default=1.0, help="per measurement (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; 0."""
    rows = [r for r in host_rows(arguments.quick) if not arguments.ops or r.op in arguments.ops]
    print(f"CPU only: {platform.machine()}, NumPy {np.__version__}; times in ms, medians")
    seconds = 0.1 if arguments.quick else arguments.seconds
    found: list[Timing] = []
    for timing in timings(rows, seconds):
        found.append(timing)
    table(
        ("op", "problem", "call", "±", "plan", "NumPy", "ratio"),
        [
            (
                t.op, t.label, f"{t.ours * 1e3:.2f}", f"{t.spread * 1e3:.2f}",
                f"{t.plan * 1e3:.2f}", f"{t.peers['numpy'] * 1e3:.2f}", f"{t.ratio:.2f}x",
            )
            for t in found
        ],
    )  # fmt: skip
    costs = overheads()
    table(("host cost", "µs"), [(name, f"{value:.2f}") for name, value in costs.items()])
    if arguments.json:
        record = {"rows": [asdict(t) for t in found], "host": costs, "version": bc.__version__}
        arguments.json.write_text(json.dumps(record, indent=1))
    return 0
