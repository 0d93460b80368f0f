"""The commands of ``python -m baracuda``, a module each, and what they share in the terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from baracuda import backends
from baracuda.backends.cuda import compiler, unavailable
from baracuda.calls.op import Op, registry
from baracuda.errors import nearest

LIBRARIES = ("numpy", "torch", "cupy", "jax")
"""The array libraries that baracuda has adapters for; each but NumPy is the name of its extra."""


class CannotRun(Exception):
    """What was asked for is not possible here, and why."""


def needs(module: str, option: str, extra: str) -> None:
    """Import `module`, or say which extra of baracuda to install for `option`."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        raise CannotRun(
            f"{option} needs {module}, which is not installed: pip install 'baracuda[{extra}]'"
        ) from error


def can_write(path: Path, option: str) -> None:
    """Look before the work whether a file can be written behind it."""
    folder = path.parent
    if not folder.absolute().is_dir():
        raise CannotRun(f"{option}: no directory {folder}; mkdir -p {folder} makes it")


def can_plot(path: Path) -> None:
    """The same of the picture of ``--plot``."""
    needs("matplotlib", "--plot", "plot")
    can_write(path, "--plot")


# -- what is here ----------------------------------------------------------------------------------


def known(name: str) -> Op[..., Any]:
    """The op called `name`, or the names that are close to it."""
    if name in registry:
        return registry[name]
    close = ", ".join(nearest(name, registry, 0.0))
    raise CannotRun(
        f"no op is called {name!r}; close to it: {close}; python -m baracuda ops lists all"
    )


def chosen(names: Sequence[str] | None) -> list[str]:
    """The ops that names of ops and of families ask for; all where there are none."""
    families: dict[str, list[str]] = {}
    for name, op in registry.items():
        families.setdefault(op.spec.category, []).append(name)
    out: dict[str, None] = {}
    for name in names or registry:
        one = name in registry or name not in families
        out |= dict.fromkeys([known(name).spec.name] if one else families[name])
    return list(out)


class Gpu(NamedTuple):
    """An NVIDIA device, as its driver describes it."""

    ordinal: int
    name: str
    arch: str
    multiprocessors: int
    memory: int


def gpus() -> list[Gpu]:
    """The NVIDIA devices that kernels can be launched on."""
    if unavailable() is not None:
        return []
    core = import_module("cuda.core")
    driver = import_module("cuda.bindings.driver")
    found = []
    for ordinal in range(driver.cuDeviceGetCount()[1]):
        device = core.Device(ordinal)
        count, memory = device.properties.multiprocessor_count, driver.cuDeviceTotalMem(ordinal)[1]
        found.append(Gpu(ordinal, device.name, f"sm_{device.arch}", count, int(memory)))
    return found


def place(library: str) -> str:
    """The device on which arrays of a library are made here: ``cuda`` where it can.

    Raises
    ------
    CannotRun
        Where it is not installed, or cannot make an array.
    """
    if library == "jax":
        # Else JAX takes three quarters of the GPU for itself.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    needs(library, f"an array of {library}", library)
    xp = import_module(library)
    try:
        if library == "jax":
            return "cuda" if xp.default_backend() == "gpu" else "cpu"
        if library == "torch":
            device = "cuda" if xp.cuda.is_available() else "cpu"
            xp.zeros(1, device=device)
            return device
        xp.zeros(1)
    except Exception as error:
        raise CannotRun(f"{library} cannot make an array: {one_line(error)}") from error
    return "cuda" if library == "cupy" else "cpu"


def why_not(name: str) -> str | None:
    """Why a backend can compute nothing here, and what mends it; None where it can."""
    try:
        backends.load(name)
    except ImportError as error:
        missing = (error.name or name).partition(".")[0]
        return f"needs {missing}: pip install 'baracuda[{name}]'"
    if name == "cuda" and (reason := unavailable()) is not None:
        return reason
    spec, reasons = registry["swiglu"].spec, []
    for library in LIBRARIES:
        if name not in backends.claims(spec, library, "cuda"):
            continue
        try:
            if name in backends.claims(spec, library, "cpu") or place(library) == "cuda":
                return None
            reasons.append(f"{library} has no arrays on a GPU here")
        except CannotRun as error:
            reasons.append(str(error))
    return "; ".join(reasons) if reasons else None


class Folder(NamedTuple):
    """The cache on disk: its kernels, a file each, and their bytes; no path without a home."""

    path: Path | None
    files: tuple[Path, ...]
    nbytes: int

    def __str__(self) -> str:
        if self.path is None:
            return "no folder, as there is no home directory; BARACUDA_CACHE_DIR names one"
        return f"{self.path}: {len(self.files)} kernels, {self.nbytes:,} bytes"

    def record(self) -> dict[str, Any]:
        """What ``--json`` says of it."""
        path = None if self.path is None else str(self.path)
        return {"folder": path, "entries": len(self.files), "bytes": self.nbytes}


def folder() -> Folder:
    """The cache on disk as it is now."""
    path, sizes = compiler.cache_directory(), {}
    for file in sorted(path.glob("entries/*/*")) if path is not None else ():
        # Another process may have dropped it since.
        with suppress(FileNotFoundError):
            sizes[file] = file.lstat().st_size
    return Folder(path, tuple(sizes), sum(sizes.values()))


# -- what it shows ---------------------------------------------------------------------------------


def one_line(error: BaseException) -> str:
    """What an error says, without the lines that explain it further."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def emit(record: Any) -> None:
    """Print what ``--json`` is asked for."""
    print(json.dumps(record, indent=1, allow_nan=False))


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Say what is worked on next: by a bar in a terminal that has rich, else in lines."""
    done, last = 0, ""

    def line(text: str) -> None:
        nonlocal done, last
        done += 1
        if text != last:
            print(f"{done}/{total} {text}", flush=True)
        last = text

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
    console, tables, markup = map(import_module, ("rich.console", "rich.table", "rich.markup"))
    out = tables.Table()
    for name, to_right in zip(head, right, strict=True):
        out.add_column(name, justify="right" if to_right else "left", overflow="fold")
    for row in rows:
        # An index in brackets is no style.
        out.add_row(*map(markup.escape, row))
    console.Console().print(out)
