"""Pictures of recorded benchmarks, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple


def bars(title: str, rows: Sequence[tuple[str, Sequence[tuple[float, str]]]], names: Sequence[str],
         line: float | None = None) -> str:  # fmt: skip
    """Horizontal bars as an SVG picture: for each row a bar for each of `names`, with its text."""
    left, width, step, top = 430, 420, 10 * len(names) + 6, 48
    most = max(value for _, values in rows for value, _ in values)
    colours, high = ("#2f6db5", "#9aa4ad"), top + step * len(rows) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 90} {high}" '
        'font-family="sans-serif" font-size="10">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]

    def write(x: float, y: float, text: str, more: str = "") -> None:
        out.append(f'<text x="{x:.1f}" y="{y:g}"{more}>{escape(text)}</text>')

    def fill(y: float, long: float, which: int, text: str, x: float = left) -> None:
        shape = f'x="{x}" y="{y}" width="{long:.1f}" height="9" fill="{colours[which]}"'
        out.append(f"<rect {shape}/>")
        write(x + long + 4, y + 8, text)

    if line is not None:
        x = left + width * line / most
        out.append(f'<path d="M{x:.1f} {top - 4}V{high - 8}" stroke="#888888"/>')
    write(8, 16, title, ' font-size="13"')
    for i, name in enumerate(names):
        fill(26, 9, i, name, left + 110 * i)
    for i, (label, values) in enumerate(rows):
        y = top + step * i
        write(left - 6, y + step / 2 + 1, label, ' text-anchor="end"')
        for j, (value, text) in enumerate(values):
            fill(y + 10 * j, width * value / most, j, text)
    return "\n".join([*out, "</svg>\n"])


# -- the picture of the README -------------------------------------------------------------------


@dataclass(frozen=True)
class Palette:
    """The colours of a picture."""

    page: str
    text: str
    quiet: str
    ours: str
    theirs: str


# The colours of GitHub's pages. The background is drawn too: a reader may have set the page and
# the system to different schemes.
PALETTES = {
    "light": Palette("#ffffff", "#1f2328", "#59636e", "#0969da", "#8c959f"),
    "dark": Palette("#0d1117", "#f0f6fc", "#9198a1", "#4493f8", "#59636e"),
}
# One problem of each kind: a forward that a compiler fuses as well, gradients of elementwise ops,
# of rows and of an indexed table, and a loss of a large vocabulary.
SHOWN = (
    ("swiglu", "[8192, 2·14336]"),
    ("swiglu_backward", "[8192, 2·14336]"),
    ("rope", "[4, 32, 8192, 128] half-split"),
    ("rms_norm_backward", "[8192, 8192]"),
    ("cross_entropy_with_gradient", "[8192, 128256]"),
    ("gather_backward", "[65536, 1024] from 32768 rows, uniform"),
)
# Names of peers in the record, by what they are to a reader; of each kind the fastest is shown.
KINDS = {
    "torch.compile": ("compile", "compile, table"),
    "Liger": ("liger",),
    "QuACK": ("quack",),
    "torch eager": ("eager", "autograd", "index_add_", "embedding"),
}
DTYPE = "bfloat16"


class Bar(NamedTuple):
    """One of a group: how long, as a part of the width, and the texts behind it."""

    name: str
    long: float
    texts: tuple[str, ...]
    ours: bool


def panel(
    title: str, about: str, groups: Sequence[tuple[str, str, Sequence[Bar]]], heads: Sequence[str],
    line: tuple[float, str], palette: Palette,
) -> str:  # fmt: skip
    """Groups of bars, each with a name and what it is; a line, and columns of texts."""
    left, width, bar, top, column = 310, 380, 16, 66, 62
    mark = left + width * line[0]
    ends = [left + width + 14 + column * (i + 1) for i in range(len(heads))]
    out: list[str] = []

    def write(x: float, y: float, text: str, fill: str, *more: str) -> None:
        head = " ".join([f'<text x="{x:g}" y="{y:g}" fill="{fill}"', *more])
        out.append(f"{head}>{escape(text)}</text>")

    bold, end = 'font-weight="600"', 'text-anchor="end"'
    write(12, 22, title, palette.text, bold, 'font-size="15"')
    write(12, 42, about, palette.quiet)
    write(mark, top - 6, line[1], palette.quiet, 'text-anchor="middle"')
    for x, head in zip(ends, heads, strict=True):
        write(x, top - 6, head, palette.quiet, end)
    y = top + 4
    for name, what, some in groups:
        write(12, y + 12, name, palette.text, bold)
        write(12, y + 12 + bar, what, palette.quiet)
        for each in some:
            more = [bold] * each.ours
            text, fill = (
                (palette.text, palette.ours) if each.ours else (palette.quiet, palette.theirs)
            )
            write(left - 8, y + 12, each.name, text, end, *more)
            out.append(
                f'<rect x="{left}" y="{y + 2:g}" width="{width * each.long:.1f}" '
                f'height="{bar - 4}" fill="{fill}"/>'
            )
            for x, shown in zip(ends, each.texts, strict=True):
                write(x, y + 12, shown, text, end, *more)
            y += bar
        y += bar
    page = f'<rect width="100%" height="100%" fill="{palette.page}"/>'
    rule = f'<path d="M{mark:g} {top}V{y - 10:g}" stroke="{palette.quiet}"/>'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {ends[-1] + 14} {y:g}" '
        'font-family="system-ui, sans-serif" font-size="12">'
    )
    return "\n".join([head, page, rule, *out, "</svg>\n"])


def headline(record: Mapping[str, Any], palette: Palette) -> str:
    """A few problems of a benchmark: how fast baracuda and others are, beside a copy."""
    found = {(row["op"], row["label"], row["dtype"]): row for row in record["rows"]}
    groups = []
    for op, label in SHOWN:
        row = found[op, label, DTYPE]
        ideal, peers = row["ideal_bytes"] / record["ceiling"], row["peers"]
        times = [
            (min(peers[name] for name in names if name in peers), kind)
            for kind, names in KINDS.items()
            if not peers.keys().isdisjoint(names)
        ]
        some = [
            Bar(name, ideal / seconds, (f"{seconds * 1e3:.3f}",), name == "baracuda")
            for seconds, name in [(row["ours"], "baracuda"), *sorted(times)]
        ]
        groups.append((op, label.split(" from ")[0], some))
    title = f"Speed on one {record['device']}, {DTYPE}: longer is faster"
    about = "The line is the speed at which the GPU copies as many bytes as the op has to move"
    return panel(title, about, groups, ("ms",), (1, "copy"), palette)


# -- the picture of whole models -----------------------------------------------------------------

# Variants of `bench --model`, by what they are to a reader.
STEPS = {
    "baracuda": "baracuda, bc.optim.AdamW",
    "baracuda, compiled": "baracuda, bc.optim.AdamW, torch.compile, causal kernel",
    "torch.compile": "torch.compile, causal kernel",
    "Liger": "Liger",
    "transformers": "eager",
}
MODELS = {"llama": "Llama", "qwen3": "Qwen 3", "gemma3": "Gemma 3"}


def models(records: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Of each record of `bench --model`: the model, its sizes, and the variants of `STEPS`."""
    for record in records:
        key = next(iter(MODELS.keys() & record))
        found = {each["name"]: each for each in record[key]["variants"]}
        sizes = record[key]["sizes"]
        about = f"{sizes['layers']} layers, {sizes['hidden']}/{sizes['ffn']}"
        yield MODELS[key], about, {shown: found[name] for shown, name in STEPS.items()}


def steps(records: Sequence[Mapping[str, Any]], palette: Palette) -> str:
    """How fast models train with baracuda and with others, beside the model as it is."""
    every = list(models(records))
    most = max(
        found["transformers"]["seconds"] / each["seconds"]
        for _, _, found in every
        for each in found.values()
    )
    groups = []
    for name, about, found in every:
        whole = found["transformers"]["seconds"] / most
        some = [
            Bar(shown, whole / each["seconds"],
                (f"{each['seconds'] * 1e3:.1f}", f"{each['peak']:.1f}"), "baracuda" in shown)
            for shown, each in sorted(found.items(), key=lambda item: float(item[1]["seconds"]))
        ]  # fmt: skip
        groups.append((name, about, some))
    title = f"Training steps on one {records[0]['device']}, bfloat16: longer is faster"
    about = "The line is the speed of the model as transformers has it; GiB is the peak memory"
    return panel(title, about, groups, ("ms", "GiB"), (1 / most, "plain"), palette)
