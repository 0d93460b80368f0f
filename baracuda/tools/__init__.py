"""The commands of ``python -m baracuda``, a module each, and what they share in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path


class CannotRun(Exception):
    """What was asked for is not possible here, and why."""


def needs(module: str, option: str, extra: str) -> None:
    """Import `module`, or say which extra of baracuda to install for `option`."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module:
            raise
        raise CannotRun(
            f"{option} needs {module}, which is not installed: pip install 'baracuda[{extra}]'"
        ) from error


def can_plot(path: Path) -> None:
    """Look before the work whether ``--plot`` can be done behind it."""
    needs("matplotlib", "--plot", "plot")
    if not path.absolute().parent.is_dir():
        raise CannotRun(f"--plot: no directory {path.parent}")


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Say what is worked on next: by a bar in a terminal that has rich, else in lines."""
    done = 0

    def line(text: str) -> None:
        nonlocal done
        done += 1
        print(f"{done}/{total} {text}", flush=True)

    try:
        rich = import_module("rich.progress")
    except ModuleNotFoundError:
        yield line
        return
    bar = rich.Progress(
        rich.BarColumn(), rich.MofNCompleteColumn(), rich.TimeRemainingColumn(),
        rich.TextColumn("{task.description}"), transient=True,
    )  # fmt: skip
    if not bar.console.is_terminal:
        yield line
        return
    with bar:
        task = bar.add_task("", total=total, completed=-1)
        yield lambda text: bar.update(task, advance=1, description=text)


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
