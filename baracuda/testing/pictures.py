"""Pictures of recorded benchmarks, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


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


def headline(record: Mapping[str, Any], palette: Palette) -> str:
    """A few problems of a benchmark: how fast baracuda and others are, beside a copy."""
    left, width, bar, top = 310, 380, 16, 66
    copy, right = left + width, left + width + 76
    found = {(row["op"], row["label"], row["dtype"]): row for row in record["rows"]}
    out: list[str] = []

    def write(x: float, y: float, text: str, fill: str, *more: str) -> None:
        head = " ".join([f'<text x="{x:g}" y="{y:g}" fill="{fill}"', *more])
        out.append(f"{head}>{escape(text)}</text>")

    bold, end = 'font-weight="600"', 'text-anchor="end"'
    title = f"Speed on one {record['device']}, {DTYPE}: longer is faster"
    write(12, 22, title, palette.text, bold, 'font-size="15"')
    about = "The line is the speed at which the GPU copies as many bytes as the op has to move"
    write(12, 42, about, palette.quiet)
    write(copy, top - 6, "copy", palette.quiet, 'text-anchor="middle"')
    write(right, top - 6, "ms", palette.quiet, end)
    y = top + 4
    for op, label in SHOWN:
        row = found[op, label, DTYPE]
        ideal, peers = row["ideal_bytes"] / record["ceiling"], row["peers"]
        times = [
            (min(peers[name] for name in names if name in peers), kind)
            for kind, names in KINDS.items()
            if not peers.keys().isdisjoint(names)
        ]
        write(12, y + 12, op, palette.text, bold)
        write(12, y + 12 + bar, label.split(" from ")[0], palette.quiet)
        for seconds, name in [(row["ours"], "baracuda"), *sorted(times)]:
            ours = name == "baracuda"
            text, fill = (palette.text, palette.ours) if ours else (palette.quiet, palette.theirs)
            write(left - 8, y + 12, name, text, end, *[bold] * ours)
            out.append(
                f'<rect x="{left}" y="{y + 2:g}" width="{width * ideal / seconds:.1f}" '
                f'height="{bar - 4}" fill="{fill}"/>'
            )
            write(right, y + 12, f"{seconds * 1e3:.3f}", text, end, *[bold] * ours)
            y += bar
        y += bar
    page = f'<rect width="100%" height="100%" fill="{palette.page}"/>'
    line = f'<path d="M{copy} {top}V{y - 10:g}" stroke="{palette.quiet}"/>'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 14} {y:g}" '
        'font-family="system-ui, sans-serif" font-size="12">'
    )
    return "\n".join([head, page, line, *out, "</svg>\n"])
