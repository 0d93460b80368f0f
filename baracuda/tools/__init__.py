"""The commands of ``python -m baracuda``, a module each, and the tables that they print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; columns of numbers to the right."""
    right = [all(row[i][:1].isdigit() for row in rows) for i in range(len(head))]
    if sys.stdout.isatty():
        try:
            return _rich(head, rows, right)
        except ImportError:
            pass
    widths = [max(len(line[i]) for line in (head, *rows)) for i in range(len(head))]
    for line in (head, *rows):
        cells = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        )
        print("  ".join(cells).rstrip())
    print()
    return None


def _rich(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    console, tables = import_module("rich.console"), import_module("rich.table")
    out = tables.Table()
    for name, to_right in zip(head, right, strict=True):
        out.add_column(name, justify="right" if to_right else "left")
    for row in rows:
        out.add_row(*row)
    console.Console().print(out)
