"""``python -m baracuda bench``: each op beside what one would write without it, in one run."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.testing import device_costs, report, timing
from baracuda.testing.peers import expression_of
from baracuda.testing.problems import Row, device_rows, host_rows, ideal_bytes
from baracuda.tools import CannotRun, can_plot, chosen, needs, one_line, progress, table

DTYPES = ("bfloat16", "float32")
SMALL = (2**10, 2**13, 2**16)
# What is measured beside the rows.
FIGURES = {"host": "host cost, µs", "watched": "host cost with gradients, µs", "small":
           "small, swiglu_backward float32, µs", "across": "share of the ceiling, by library",
           "jax": "JAX", "cold": "cold start, ms"}  # fmt: skip
# One row of each, from the arrays of every library that the kernels take.
ACROSS = ("swiglu_backward", "rope", "lp_pool2d_backward", "gather_backward")


@dataclass(frozen=True)
class Timing:
    """What was measured of one row: medians in seconds, and the spread of ours."""

    op: str
    label: str
    dtype: str
    sku: str
    ideal_bytes: int
    ours: float
    spread: float
    plan: float
    peers: dict[str, float] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The fastest peer."""
        return min(self.peers, key=lambda name: self.peers[name], default="none")

    @property
    def beside(self) -> float:
        """What the best peer takes; NaN where none can do the row."""
        return self.peers.get(self.best, math.nan)

    @property
    def ratio(self) -> float:
        """How many times as fast as the best peer."""
        return self.beside / self.ours

    def share(self, ceiling: float) -> float:
        """Ideal bytes over time, as a part of the copy ceiling."""
        return self.ideal_bytes / self.ours / ceiling


def time_row(
    row: Row,
    dtype: str,
    arrays: Sequence[Any],
    peers: dict[str, Callable[[], Any]],
    measure: Callable[[Callable[[], Any], float], tuple[float, float]],
    seconds: float,
) -> Timing:
    """Ours through the function and through a plan, then every peer."""
    op = registry[row.op]
    plan = op.plan(*arrays, **row.keywords)
    scalars = {k: v for k, v in row.options.items() if k in op.spec.scalars}
    ours, spread = measure(lambda: op(*arrays, **row.keywords), seconds)
    planned, _ = measure(lambda: plan(*arrays, **scalars), seconds)
    out = Timing(
        row.op, row.label, dtype, str(plan.sku), ideal_bytes(plan.problem), ours, spread, planned
    )
    for name, task in peers.items():
        try:
            out.peers[name], _ = measure(task, seconds)
        except Exception as error:
            # A peer that cannot do the row is part of the result.
            out.errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    return out


Report: TypeAlias = tuple[list[Timing], float | None, dict[str, Any]]
"""What was timed, the ceiling where there is one, and all figures as they are written."""


# -- on the CPU ----------------------------------------------------------------------------------


def host(arguments: argparse.Namespace, seconds: float) -> Report:
    """All rows beside the plain NumPy expression, and the cost of a call."""
    name = report.machine(gpu=False)
    print(f"{name}, NumPy {np.__version__}; times in ms, medians")
    found: list[Timing] = []
    rows = _wanted(host_rows(arguments.quick), arguments)
    with progress(len(rows)) as show:
        for row in rows:
            show(f"{row.op} {row.label}")
            found.append(_host_row(row, seconds))
    table(
        ("op", "problem", "call", "±", "plan", "NumPy", "ratio"),
        [
            (t.op, t.label, *_ms(t.ours, t.spread, t.plan, t.peers["numpy"]), f"{t.ratio:.2f}x")
            for t in found
        ],
    )
    costs = host_costs()
    table(("host cost", "µs"), [(name, f"{value:.2f}") for name, value in costs.items()])
    return found, None, {"device": name, "rows": [asdict(t) for t in found], "host": costs}


def _host_row(row: Row, seconds: float) -> Timing:
    arrays = row.arrays(np.random.default_rng(0), np.float32)
    expression = expression_of(row.op)

    def plain() -> Any:
        with np.errstate(all="ignore"):
            return expression(np, *arrays, **row.options)

    return time_row(row, "float32", arrays, {"numpy": plain}, timing.on_host, seconds)


def host_costs() -> dict[str, float]:
    """What a cached call costs on arrays so small that nothing else counts."""
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    bc.plan_cache.clear()
    for step in range(500):
        bc.lerp(x, x, weight=step / 500)
    misses = bc.plan_cache.info().misses
    plan, expression = bc.swiglu.plan(x), expression_of("swiglu")
    return {
        "swiglu, the bare expression": timing.per_call(lambda: expression(np, x)),
        "swiglu, cached call": timing.per_call(lambda: bc.swiglu(x)),
        "swiglu, plan call": timing.per_call(lambda: plan(x)),
        "misses of lerp with 500 weights": misses,
    }


# -- on a GPU ------------------------------------------------------------------------------------


def device(arguments: argparse.Namespace, seconds: float) -> Report:
    """All rows beside every peer, small sizes, and the cost of a call and of a first one."""
    torch = import_module("torch")
    cold = device_costs.cold_start(torch)
    peers = import_module("baracuda.testing.device_peers")
    ceiling = timing.copy_ceiling(seconds)
    name = report.machine(gpu=True)
    print(f"{name}, torch {torch.__version__}; copy ceiling {ceiling / 1e9:.0f} GB/s; times in ms")
    found: list[Timing] = []
    rows = [(row, dtype) for dtype in DTYPES for row in _wanted(device_rows(dtype), arguments)]
    with progress(len(rows)) as show:
        for row, dtype in rows:
            show(f"{row.op} {row.label} {dtype}")
            arrays = peers.arrays_of(row, getattr(torch, dtype))
            tasks = peers.peers(row, arrays, compiled=bool(arguments.ops) or not row.derived)
            found.append(time_row(row, dtype, arrays, tasks, timing.on_device, seconds))
            del arrays, tasks
            torch.cuda.empty_cache()
    across = across_libraries(torch, peers, arguments, ceiling, seconds)
    costs, watched = device_costs.tiny(torch), device_costs.watched(torch)
    small = small_sizes(torch, peers)
    jax = jax_figures(torch, peers, ceiling, found, rows)
    table(
        ("op", "problem", "dtype", "call", "±", "share", "best peer", "its ms", "ratio"),
        [
            (
                t.op, t.label, t.dtype, *_ms(t.ours, t.spread), f"{t.share(ceiling):.3f}",
                t.best, *_ms(t.beside), f"{t.ratio:.2f}x",
            )
            for t in found
        ],
    )  # fmt: skip
    if across:
        libraries = list(next(iter(across.values())))
        table(
            ("share of the ceiling from", *libraries),
            [(k, *[f"{v[name]:.3f}" for name in libraries]) for k, v in across.items()],
        )
    table(("small, swiglu_backward float32", "µs"), [(k, f"{v:.2f}") for k, v in small.items()])
    table(("host cost", "µs"), [(k, f"{v:.2f}") for k, v in costs.items()])
    table(("host cost with gradients", "µs"), [(k, f"{v:.2f}") for k, v in watched.items()])
    for title, figures in jax.items():
        table((f"JAX: {title}", ""), [(k, f"{v:.3f}") for k, v in figures.items()])
    table(("cold start", "ms"), [(k, f"{v:.2f}") for k, v in cold.items()])
    return found, ceiling, {
        "device": name, "torch": torch.__version__, "ceiling": ceiling, "host": costs,
        "watched": watched, "rows": [asdict(t) | {"share": t.share(ceiling)} for t in found],
        "small": small, "cold": cold, "across": across, "jax": jax,
    }  # fmt: skip


def across_libraries(
    torch: Any, peers: Any, arguments: argparse.Namespace, ceiling: float, seconds: float
) -> dict[str, dict[str, float]]:
    """The share of the copy ceiling that some rows reach from the arrays of each library."""
    out: dict[str, dict[str, float]] = {}
    for dtype in DTYPES:
        first = {row.op: row for row in reversed(_wanted(device_rows(dtype), arguments))}
        for row in [first[op] for op in ACROSS if op in first]:
            tensors, op = peers.arrays_of(row, getattr(torch, dtype)), registry[row.op]
            size = ideal_bytes(op.plan(*tensors, **row.keywords).problem)
            shares = out[f"{row.op} {row.label} {dtype}"] = {}
            for name, take in device_costs.takers().items():
                task = partial(op, *[take(x) for x in tensors], **row.keywords)
                shares[name] = size / timing.on_device(task, seconds)[0] / ceiling
                del task
            del tensors
            torch.cuda.empty_cache()
    return out


def jax_figures(
    torch: Any, peers: Any, ceiling: float, found: Sequence[Timing], rows: Sequence[tuple[Row, str]]
) -> dict[str, dict[str, float]]:
    """What JAX's calls cost, and the share of the ceiling beside torch's; none without JAX."""
    programs = import_module("baracuda.testing.device_jax")
    if not programs.available():
        return {}
    shares: dict[str, float] = {}
    done = set()
    for ours, (row, dtype) in zip(found, rows, strict=True):
        # The first problem of each op; an index that is broadcast is no array of JAX.
        if row.derived or registry[row.op].spec.category == "indexing" or (row.op, dtype) in done:
            continue
        done.add((row.op, dtype))
        arrays = peers.arrays_of(row, getattr(torch, dtype))
        seconds = programs.seconds(row, arrays)
        shares[f"{ours.op} {ours.label} {dtype}"] = ours.ideal_bytes / seconds / ceiling
        del arrays
        torch.cuda.empty_cache()
    figures = {"host cost, µs": programs.costs(), "share of the ceiling": shares}
    return {title: of_it for title, of_it in figures.items() if of_it}


def small_sizes(torch: Any, peers: Any) -> dict[str, float]:
    """Microseconds of small problems, back to back in a CUDA graph and from Python."""
    out = {}
    for elements in SMALL:
        shapes = ((elements // 64, 32), (elements // 64, 64))
        row = Row("swiglu_backward", "", shapes, {})
        arrays = peers.arrays_of(row, torch.float32)
        tasks = {"ours": partial(bc.swiglu_backward, *arrays)} | peers.peers(row, arrays)
        for name in ("ours", "eager", "compile"):
            out[f"{elements} elements, {name}, graph"] = timing.by_replay(tasks[name]) * 1e6
            out[f"{elements} elements, {name}, calls"] = timing.per_call(tasks[name], 2000)
            torch.cuda.synchronize()
    return out


# -- a block -------------------------------------------------------------------------------------


def block(on_gpu: bool) -> tuple[dict[str, Any], int]:
    """Train a Llama-style block with each variant; all figures, and the exit status."""
    torch, training = import_module("torch"), import_module("baracuda.testing.block")
    device, sizes = ("cuda", training.Sizes()) if on_gpu else ("cpu", training.SMALL)
    name = torch.cuda.get_device_name() if on_gpu else "CPU only"
    print(f"{name}, torch {torch.__version__}; bfloat16, {sizes}")
    with progress(len(training.VARIANTS)) as show:
        found = training.measure(training.VARIANTS, sizes, device, show)
    table(*training.cells(found))
    faults = [f"{each.name}: {fault}" for each in found for fault in each.faults]
    for fault in faults:
        print(f"baracuda bench: {fault}", file=sys.stderr)
    figures = {"device": name, "torch": torch.__version__}
    return figures | {"block": training.figures(sizes, found)}, int(bool(faults))


# -- pictures ------------------------------------------------------------------------------------


def save_plot(found: Sequence[Timing], ceiling: float | None, path: Path) -> None:
    """Draw ours beside the best peer, a panel per dtype: shares of the ceiling, or ratios."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: dict[str, list[Timing]] = {}
    for row in found:
        panels.setdefault(row.dtype, []).append(row)
    tallest = max(map(len, panels.values()))
    figure = Figure(figsize=(8 * len(panels), 1.2 + 0.36 * tallest), layout="constrained")
    FigureCanvasAgg(figure)
    every = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (dtype, rows) in zip(every, panels.items(), strict=True):
        ours = [t.share(ceiling) if ceiling else t.ratio for t in rows]
        theirs = [value / t.ratio for value, t in zip(ours, rows, strict=True)]
        at = np.arange(len(rows))
        axes.barh(at - 0.2, ours, 0.4, label="baracuda")
        bars = axes.barh(at + 0.2, theirs, 0.4, color="0.7", label="best peer")
        axes.bar_label(bars, [t.best for t in rows], fontsize=6, padding=2)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_yticks(at, [f"{t.op} {t.label}" for t in rows], fontsize=7)
        axes.invert_yaxis()
        axes.set(title=dtype, xlabel="share of the copy ceiling" if ceiling else "times as fast")
        axes.margins(x=0.15, y=0.01)
    figure.legend(*every[0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
    figure.savefig(path, dpi=120)


# -- written figures -----------------------------------------------------------------------------


def read(path: Path) -> tuple[dict[str, Any], list[Timing]]:
    """The figures that ``--json`` wrote, and the rows among them."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        names = {each.name for each in fields(Timing)}
        rows = [Timing(**{k: v for k, v in row.items() if k in names}) for row in record["rows"]]
        return record, rows
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotRun(f"{path} holds no figures of bench: {one_line(error)}") from error


def compare(old: Sequence[Timing], new: Sequence[Timing]) -> None:
    """Print the rows whose times differ by more than the spread of both, the largest first."""
    before = {(t.op, t.label, t.dtype): t for t in old}
    both = [(before[key], t) for t in new if (key := (t.op, t.label, t.dtype)) in before]
    moved = [(a, b) for a, b in both if abs(b.ours - a.ours) > a.spread + b.spread]
    moved.sort(key=lambda pair: -abs(math.log(pair[1].ours / pair[0].ours)))
    if moved:
        table(
            ("op", "problem", "dtype", "old", "±", "new", "±", "new/old"),
            [
                (b.op, b.label, b.dtype, *_ms(a.ours, a.spread), *_ms(b.ours, b.spread),
                 f"{b.ours / a.ours:.3f}")
                for a, b in moved
            ],
        )  # fmt: skip
    alone = f"{len(old) - len(both)} only in the old, {len(new) - len(both)} only in the new"
    print(f"{len(moved)} of {len(both)} rows moved beyond the noise of both; {alone}")


def page(record: dict[str, Any], found: Sequence[Timing]) -> str:
    """The figures as a page for a browser."""
    ceiling = record.get("ceiling")
    marks: list[report.Mark] = []
    rows: list[list[report.Cell]] = []
    for t in found:
        value = t.share(ceiling) if ceiling else t.ratio
        what, peer = f"{t.op} {t.label} {t.dtype}", value / t.ratio
        if not math.isnan(peer):
            marks.append(report.Mark(t.op, t.dtype, peer, f"{what}, {t.best}: {peer:.3f}", True))
        if not math.isnan(value):
            marks.append(report.Mark(t.op, t.dtype, value, f"{what}: {value:.3f}"))
        numbers = (value if ceiling else None, t.ours * 1e3, t.spread * 1e3, t.plan * 1e3)
        beside = (None, None) if t.best == "none" else (t.beside * 1e3, t.ratio)
        rows.append([t.op, t.label, t.dtype, *map(report.number, numbers), t.best,
                     *map(report.number, beside), t.sku])  # fmt: skip
    head = ("op", "problem", "dtype", "share", "call, ms", "±", "plan, ms", "best peer", "its ms",
            "times as fast", "SKU")  # fmt: skip
    others = [report.figures(of_it, record[k]) for k, of_it in FIGURES.items() if record.get(k)]
    unit = "share of the copy ceiling" if ceiling else "times as fast as the best peer"
    facts = [f"{record.get('device', 'no device named')}, baracuda {record.get('version', '?')}"]
    if ceiling:
        facts.append(f"torch {record['torch']}; copy ceiling {ceiling / 1e9:.0f} GB/s")
    plot = report.Plot(unit.capitalize(), unit, sorted({t.dtype for t in found}), marks)
    return report.page("baracuda bench", facts, [plot], [report.Table("Rows", head, rows), *others])


# -- the command ---------------------------------------------------------------------------------


def _wanted(rows: Sequence[Row], arguments: argparse.Namespace) -> list[Row]:
    ops = chosen(arguments.ops)
    return [row for row in rows if row.op in ops]


def _ms(*seconds: float) -> list[str]:
    return [f"{t * 1e3:.3f}" if t < 0.01 else f"{t * 1e3:.2f}" for t in seconds]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``baracuda bench``."""
    parser.add_argument("--quick", action="store_true", help="short measurements")
    parser.add_argument("--ops", nargs="*", metavar="OP", help="only these ops, or families")
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement (0.5)")
    parser.add_argument("--cpu", action="store_true", help="NumPy alone, also where a GPU is")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page there")
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="show what moved since")
    parser.add_argument(
        "--from",
        dest="given",
        type=Path,
        metavar="NEW.json",
        help="take these figures, for --html and --compare, instead of measuring",
    )
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw them there")
    either.add_argument(
        "--block", action="store_true", help="train a Llama-style block instead (tiny on a CPU)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure or read, print, and return the exit status."""
    shown = arguments.html or arguments.compare or arguments.given
    if arguments.block:
        needs("torch", "--block", "torch")
        if shown:
            raise CannotRun("--block goes with none of --html, --compare and --from")
    if arguments.plot:
        can_plot(arguments.plot)
    if arguments.html and (reason := report.unwritable(arguments.html)):
        raise CannotRun(reason)
    if arguments.given and not (arguments.html or arguments.compare):
        raise CannotRun("--from: give --html or --compare too")
    old, before = read(arguments.compare) if arguments.compare else ({}, [])
    record, found = read(arguments.given) if arguments.given else ({}, [])
    on_gpu = not arguments.cpu and not arguments.given and report.has_gpu()
    if arguments.compare:
        here = record.get("device") if arguments.given else report.machine(on_gpu)
        print(f"old: {old.get('device')}\nnew: {here}")
        if here is None or old.get("device") != here:
            raise CannotRun(f"--compare: {old.get('device')} and {here} are not to be compared")
    status, ceiling = 0, record.get("ceiling")
    seconds = 0.05 if arguments.quick else arguments.seconds
    if arguments.block:
        record, status = block(on_gpu)
    elif not arguments.given:
        found, ceiling, record = (device if on_gpu else host)(arguments, seconds)
        record["version"] = bc.__version__
    if arguments.json:
        arguments.json.write_text(json.dumps({"version": bc.__version__} | record, indent=1) + "\n")
    if arguments.plot:
        save_plot(found, ceiling, arguments.plot)
    if arguments.compare:
        compare(before, found)
    if arguments.html:
        arguments.html.write_text(page(record, found), encoding="utf-8")
    return status
