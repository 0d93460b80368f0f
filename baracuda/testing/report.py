"""One self-contained page of tables and dots, and the machine that its figures are of."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from math import ceil, inf, isfinite, log10
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias


class Number(NamedTuple):
    """A cell that is sorted by its value."""

    value: float
    text: str


Cell: TypeAlias = str | Number


@dataclass(frozen=True)
class Table:
    """A table; rows below a first head of "op" are found by the filter."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]


class Mark(NamedTuple):
    """One dot: the line that it is on, the series that colours it, its value and hover title."""

    line: str
    series: str
    value: float
    title: str
    hollow: bool = False


@dataclass(frozen=True)
class Plot:
    """Dots on a line for each op, a lane for each series, beside a limit at 1."""

    title: str
    unit: str
    series: Sequence[str]
    marks: Sequence[Mark]


def number(value: float | None, digits: int = 3) -> Number:
    """A cell that shows so many decimals; nothing for None, which is sorted first."""
    return Number(-inf, "") if value is None else Number(value, f"{value:.{digits}f}")


def parsed(text: str) -> Cell:
    """A printed cell, a number where it is one."""
    try:
        return Number(float(text), text)
    except ValueError:
        return text


# -- the machine ---------------------------------------------------------------------------------


def has_gpu() -> bool:
    """Whether torch is there and sees a GPU."""
    try:
        return bool(import_module("torch").cuda.is_available())
    except ImportError:
        return False


def machine(gpu: bool) -> str:
    """The name of the GPU that torch uses, or of the processor with its number of cores."""
    if gpu:
        return str(import_module("torch").cuda.get_device_name())
    name = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"CPU only: {name}, {os.cpu_count()} cores"


# -- the page ------------------------------------------------------------------------------------


def page(title: str, facts: Sequence[str], plots: Sequence[Plot], tables: Sequence[Table]) -> str:
    """The page: nothing in it is loaded from elsewhere."""
    body = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p class=fact>{escape(fact)}</p>" for fact in facts),
        '<label class=filter>Filter by op <input id=filter type=search autocomplete=off '
        'placeholder="rope"></label> <span id=count aria-live=polite></span>',
        *(_plot(plot) for plot in plots if plot.marks),
        *(_table(table) for table in tables if table.rows),
    ]  # fmt: skip
    return _PAGE.format(title=escape(title), style=_STYLE, script=_SCRIPT, body="\n".join(body))


def _table(table: Table) -> str:
    numeric = [all(isinstance(c, Number) or c in ("", "-") for c in column)
               for column in zip(*table.rows, strict=True)]  # fmt: skip
    head = "".join(
        f"<th{' class=n' if n else ''}><button type=button>{escape(name)}</button></th>"
        for name, n in zip(table.head, numeric, strict=True)
    )
    by_op = table.head[0] == "op"
    rows = "\n".join(
        f"<tr{_op(_text(row[0])) if by_op else ''}>"
        + "".join(_cell(cell, n) for cell, n in zip(row, numeric, strict=True))
        + "</tr>"
        for row in table.rows
    )
    return (
        f"<section><h2>{escape(table.title)}</h2><div class=scroll><table><thead><tr>{head}</tr>"
        f"</thead><tbody>\n{rows}\n</tbody></table></div></section>"
    )


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Number) else cell


def _op(name: str) -> str:
    return f' data-op="{escape(name)}"'


def _cell(cell: Cell, numeric: bool) -> str:
    kind = " class=n" if numeric else ""
    key = f' data-key="{cell.value!r}"' if isinstance(cell, Number) and isfinite(cell.value) else ""
    return f"<td{kind}{key}>{escape(_text(cell))}</td>"


# Pixels of a line for each series, the axis above all lines.
_LANE, _GAP, _AXIS = 9, 9, 22
# What lies beyond is drawn at the edge, so that one figure does not squeeze all others.
_FAR = 10.0


def _plot(plot: Plot) -> str:
    """The dots of a plot; places across are percents, so that it fits any width undistorted."""
    lines: dict[str, list[Mark]] = {}
    for mark in plot.marks:
        lines.setdefault(mark.line, []).append(mark)
    most = max(1.0, *(mark.value for mark in plot.marks))
    step = _step(min(most, _FAR))
    # A dot that is hardly beyond the last rule needs no further one; one far out lies at the edge.
    end = step * ceil(min(most, _FAR) / step * 0.98)
    height = _LANE * len(plot.series) + _GAP
    rules = [_rule(i * step, end) for i in range(round(end / step))]
    rules.append(_rule(end, end, f"≥ {end:g}" if most > _FAR else f"{end:g}"))
    if step > 1:
        rules.append(_rule(1.0, end, ""))
    names, groups = [], []
    for i, (name, marks) in enumerate(lines.items()):
        dots = "".join(_dot(mark, plot.series.index(mark.series), end) for mark in marks)
        names.append(f'<div{_op(name)} style="height:{height}px">{escape(name)}</div>')
        groups.append(
            f'<g{_op(name)} transform="translate(0 {_AXIS + i * height})">'
            f'<line class=tick x1=0 x2="100%" y1=0 y2=0 />{dots}</g>'
        )
    legend = "".join(
        f"<span><i class=s{i % 6}></i>{escape(name)}</span>" for i, name in enumerate(plot.series)
    )
    if any(mark.hollow for mark in plot.marks):
        legend += "<span><i class=hollow></i>best peer</span>"
    return (
        f"<section><h2>{escape(plot.title)}</h2><p class=legend>{legend}</p><div class=plot>"
        f'<div class=names style="padding-top:{_AXIS}px">{"".join(names)}</div>'
        f'<svg role=img aria-label="{escape(plot.unit)}" data-axis={_AXIS} data-line={height} '
        f"height={_AXIS + height * len(lines)}>{''.join(rules)}{''.join(groups)}</svg></div>"
        f"<p class=unit>{escape(plot.unit)}</p></section>"
    )


def _rule(value: float, end: float, text: str | None = None) -> str:
    """A line from the axis down, with its value above."""
    at, kind = f"{value / end:.2%}", "limit" if value == 1 else "tick"
    return (
        f'<line class={kind} x1="{at}" x2="{at}" y1={_AXIS - 4} y2="100%" />'
        f'<text x="{at}" y=12>{f"{value:g}" if text is None else text}</text>'
    )


def _dot(mark: Mark, lane: int, end: float) -> str:
    x = min(mark.value / end, 1.02)
    y, kind = _GAP / 2 + _LANE * (lane + 0.5), f"s{lane % 6}" + " hollow" * mark.hollow
    return (
        f'<circle class="{kind}" cx="{x:.2%}" cy="{y:g}" r=4>'
        f"<title>{escape(mark.title)}</title></circle>"
    )


def _step(most: float) -> float:
    """A round distance at which at most six fit below `most`."""
    size: float = 10.0 ** (ceil(log10(most)) - 1)
    return next(size * k for k in (0.2, 0.25, 0.5, 1, 2, 5) if most <= 6 * size * k)


def figures(title: str, of_it: Mapping[str, Any]) -> Table:
    """A table of named figures; those of a group are named behind it."""
    rows: list[tuple[str, Number]] = []
    for name, value in of_it.items():
        group = value if isinstance(value, Mapping) else {"": value}
        rows += [(f"{name}, {k}" if k else name, number(v)) for k, v in group.items()]
    return Table(title[0].upper() + title[1:], ("figure", "value"), rows)


_PAGE = """<!doctype html>
<html lang=en>
<head>
<meta charset=utf-8>
<meta name=viewport content="width=device-width, initial-scale=1">
<link rel=icon href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #5b6470; --line: #dfe3e8;
  --head: #f4f6f8; --limit: #b3261e; --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #aa4499;
  --s4: #6b5b00; --s5: #56616d; }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171a; --text: #e6e9ec; --soft: #9aa4af; --line: #2c333a; --head: #1d2227;
    --limit: #ff8a80; --s0: #56b4e9; --s1: #ff9f45; --s2: #3ddc97; --s3: #e29adf; --s4: #e8d44d;
    --s5: #b0bac5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 1.25rem 1rem 3rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
.fact { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
.filter { display: inline-block; margin: 1.25rem .5rem 0 0; }
input { font: inherit; color: inherit; background: var(--head); border: 1px solid var(--line);
  border-radius: 6px; padding: .3rem .5rem; width: 12rem; max-width: 100%; margin-left: .25rem; }
#count, .legend, .unit { color: var(--soft); font-size: .85rem; margin: 0; }
.legend span { display: inline-block; margin-right: 1rem; }
.legend i { display: inline-block; width: .65rem; height: .65rem; border-radius: 50%;
  margin-right: .35rem; border: 2px solid var(--c); background: var(--c); }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); }
.s3 { --c: var(--s3); } .s4 { --c: var(--s4); } .s5 { --c: var(--s5); }
.legend i.hollow { --c: var(--soft); background: none; }
.unit { text-align: right; }
.plot { display: grid; grid-template-columns: max-content 1fr; font-size: 12px;
  padding-right: .75rem; }
.names div { padding-right: .75rem; display: flex; align-items: center; }
.names div[hidden] { display: none; }
svg { display: block; width: 100%; overflow: visible; }
svg text { fill: var(--soft); text-anchor: middle; }
line.tick { stroke: var(--line); }
line.limit { stroke: var(--limit); stroke-width: 1.5; stroke-dasharray: 4 3; }
circle { fill: var(--c); fill-opacity: .75; stroke: var(--c); stroke-width: 1.5; }
circle.hollow { fill: var(--back); fill-opacity: .4; stroke-opacity: .7; stroke-width: 1; }
.scroll { overflow: auto; max-height: 34rem; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: separate; border-spacing: 0; width: 100%; font-size: .85rem; }
th { position: sticky; top: 0; background: var(--head); text-align: left; padding: 0; }
th button { font: inherit; font-weight: 600; color: inherit; background: none; border: 0;
  padding: .4rem .7rem; width: 100%; text-align: inherit; cursor: pointer; white-space: nowrap; }
th button::after { content: "\\2195"; color: var(--soft); opacity: .5; margin-left: .3em; }
th[aria-sort=ascending] button::after { content: "\\2191"; opacity: 1; }
th[aria-sort=descending] button::after { content: "\\2193"; opacity: 1; }
td { padding: .3rem .7rem; border-top: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--back); }
td:first-child { min-width: min(15rem, 36vw); white-space: normal; overflow-wrap: anywhere; }
th:first-child { background: var(--head); z-index: 1; }
td.n { font-variant-numeric: tabular-nums; }
.n { text-align: right; }
tbody tr:hover, tbody tr:hover td:first-child { background: var(--head); }
[hidden] { display: none; }
"""

_SCRIPT = """
"use strict";
const key = cell => cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key);
const order = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0)
  : typeof a === "number" ? 1 : -1;
for (const head of document.querySelectorAll("th")) {
  head.querySelector("button").addEventListener("click", () => {
    const body = head.closest("table").tBodies[0], at = head.cellIndex;
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...[...body.rows].sort((a, b) =>
      (up ? 1 : -1) * order(key(a.cells[at]), key(b.cells[at]))));
  });
}
const all = [...document.querySelectorAll("[data-op]")];
document.getElementById("filter").addEventListener("input", event => {
  const text = event.target.value.trim().toLowerCase();
  for (const one of all)
    one.toggleAttribute("hidden", !one.dataset.op.toLowerCase().includes(text));
  for (const plot of document.querySelectorAll(".plot svg")) {
    const axis = Number(plot.dataset.axis), line = Number(plot.dataset.line);
    const seen = [...plot.querySelectorAll("g:not([hidden])")];
    seen.forEach((one, i) => one.setAttribute("transform", `translate(0 ${axis + i * line})`));
    plot.setAttribute("height", axis + line * seen.length);
  }
  const rows = all.filter(one => one.localName === "tr");
  const left = rows.filter(one => !one.hidden).length;
  document.getElementById("count").textContent = text ? `${left} of ${rows.length} rows` : "";
});
"""
