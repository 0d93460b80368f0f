"""``python -m baracuda bench``: each op beside what one would write without it, in one run."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.testing import device_costs, host_bench, report, timing
from baracuda.testing.problems import device_rows, host_rows
from baracuda.testing.timed import Timing, time_row
from baracuda.testing.timed_row import Row, ideal_bytes
from baracuda.tools import CannotRun, can_plot, can_write, chosen, needs, one_line, progress, table

DTYPES = ("bfloat16", "float32")
SMALL = (2**10, 2**13, 2**16)
# What is measured beside the rows.
FIGURES = {"host": "host cost, µs", "watched": "host cost with gradients, µs", "small":
           "small, swiglu_backward float32, µs", "across": "share of the ceiling, by library",
           "jax": "JAX", "cold": "cold start, ms"}  # fmt: skip
# Of a model, by its option.
SIZES = ("layers", "hidden", "ffn", "tokens", "vocabulary", "steps")
MODELS = ("llama", "qwen3", "gemma3", "jax")
# One row of each, from the arrays of every library that the kernels take.
ACROSS = ("swiglu_backward", "rope", "lp_pool2d_backward", "gather_backward")


Report: TypeAlias = tuple[list[Timing], float | None, dict[str, Any]]
"""What was timed, the ceiling where there is one, and all figures as they are written."""


# -- on the CPU ----------------------------------------------------------------------------------


def host(arguments: argparse.Namespace, seconds: float) -> Report:
    """All rows beside what one would write without the library, and the cost of a call."""
    asked = arguments.libraries or host_bench.available()
    for name in asked:
        needs(name, f"--libraries {name}", name)
    sizes = arguments.sizes or list(host_bench.SIDES)[: 2 if arguments.quick else None]
    name, versions = report.machine(gpu=False), host_bench.versions(asked)
    print(f"{name}; {versions}; float32; times in ms, medians of calls in turns")
    found: list[Timing] = []
    rows = [
        (row, library)
        for size in sizes
        for row in _wanted(host_rows(host_bench.SIDES[size]), arguments)
        for library in asked
    ]
    with progress(len(rows)) as show:
        for row, library in rows:
            show(f"{row.op} {row.label} {library}")
            found.append(host_bench.measure(row, library, seconds))
    table(*host_bench.cells(found))
    costs = host_bench.host_costs()
    table(("host cost", "µs"), [(k, f"{value:.2f}") for k, value in costs.items()])
    record = {"device": name, "rows": [asdict(t) for t in found], "host": costs}
    if arguments.out:
        text = host_bench.markdown(f"{name}; {versions}", found, costs)
        arguments.out.write_text(text, encoding="utf-8")
    return found, None, record


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


# -- a block, a model ----------------------------------------------------------------------------


def block(on_gpu: bool) -> tuple[dict[str, Any], int]:
    """Train a Llama-style block with each variant; all figures, and the exit status."""
    training = import_module("baracuda.testing.block")
    sizes = training.Sizes() if on_gpu else training.SMALL
    return _trained("block", training, partial(training.measure, training.VARIANTS), sizes, on_gpu)


def model(arguments: argparse.Namespace, on_gpu: bool) -> tuple[dict[str, Any], int]:
    """Train a model of transformers or flax with each variant; all figures, the exit status."""
    of_jax = arguments.model == "jax"
    training = import_module(f"baracuda.testing.{'jax_model' if of_jax else 'model'}")
    given = {name: getattr(arguments, name) for name in SIZES}
    if arguments.tokens:
        given["batch"], given["tokens"] = arguments.tokens
    sizes = replace(
        training.Sizes() if on_gpu else training.SMALL,
        **{name: value for name, value in given.items() if value},
    )
    if of_jax:
        return _trained("jax", training, training.measure, sizes, on_gpu)
    # Compiled as one graph a model cannot be gathered layer by layer.
    every = [v for v in training.VARIANTS if not (arguments.fsdp and v.compiled)]
    some = partial(training.measure, arguments.model, every)
    with _together(on_gpu) if arguments.fsdp else nullcontext(True) as first:
        if first:
            return _trained(arguments.model, training, some, sizes, on_gpu)
        arguments.json = None
        with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
            return _trained(arguments.model, training, some, sizes, on_gpu)


@contextmanager
def _together(on_gpu: bool) -> Iterator[bool]:
    """Be one of torchrun's processes; whether it is the one that speaks for all."""
    ranks = import_module("baracuda.examples.torch")
    try:
        device = ranks.place("cuda" if on_gpu else "cpu", 0, "bench --model llama --fsdp")
    except ValueError as error:
        raise CannotRun(f"--fsdp: {error}") from error
    with ranks.joined("fsdp", device) as team:
        if team.first:
            print(f"processes: {team}")
        yield team.first


def _trained(
    what: str, training: Any, measure: Any, sizes: Any, on_gpu: bool
) -> tuple[dict[str, Any], int]:
    """Print the table of some variants of a training; all figures, and the exit status."""
    torch = import_module("torch")
    name = torch.cuda.get_device_name() if on_gpu else "CPU only"
    print(f"{name}, torch {torch.__version__}; bfloat16, {sizes}")
    with progress(len(training.VARIANTS)) as show:
        found = measure(sizes, "cuda" if on_gpu else "cpu", show)
    table(*training.cells(found))
    faults = [f"{each.name}: {fault}" for each in found for fault in each.faults]
    for fault in faults:
        print(f"baracuda bench: {fault}", file=sys.stderr)
    figures = {"device": name, "torch": torch.__version__}
    every = import_module("baracuda.testing.block").figures(sizes, found)
    return figures | {what: every}, int(bool(faults))


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
    parser.add_argument("--cpu", action="store_true", help="on the CPU, also where a GPU is")
    parser.add_argument(
        "--libraries", nargs="+", choices=host_bench.LIBRARIES, help="on a CPU: only these"
    )
    parser.add_argument(
        "--sizes", nargs="+", choices=host_bench.SIDES, help="on a CPU: only arrays of such sizes"
    )
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="on a CPU: also write Markdown")
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
    either.add_argument(
        "--model",
        choices=MODELS,
        help="train a model of transformers, or of flax (jax), instead (tiny on a CPU)",
    )
    parser.add_argument("--fsdp", action="store_true", help="of --model: FSDP2, under torchrun")
    for name in SIZES:
        both = name == "tokens"
        parser.add_argument(
            f"--{name}", type=int, nargs=2 if both else None, help=f"of --model: its {name}",
            metavar=("BATCH", "LENGTH") if both else "N",
        )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure or read, print, and return the exit status."""
    shown = arguments.html or arguments.compare or arguments.given
    instead = "--block" if arguments.block else "--model" if arguments.model else ""
    if instead:
        needs("torch", instead, "torch")
        if shown:
            raise CannotRun(f"{instead} goes with none of --html, --compare and --from")
    if arguments.model:
        needs("transformers", instead, "transformers")
        if arguments.model == "jax":
            needs("flax", instead, "flax")
            if arguments.fsdp:
                raise CannotRun("--fsdp goes with models of torch")
    elif given := [f"--{name}" for name in (*SIZES, "fsdp") if getattr(arguments, name)]:
        raise CannotRun(f"{', '.join(given)}: give --model too")
    if arguments.plot:
        can_plot(arguments.plot)
    for option in ("html", "out"):
        path = getattr(arguments, option)
        if path:
            can_write(path, f"--{option}")
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
    elif arguments.model:
        record, status = model(arguments, on_gpu)
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
