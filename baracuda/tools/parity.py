"""``python -m baracuda parity``: hold every op on every backend to the laws, on this machine."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.util import find_spec
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import baracuda as bc
from baracuda import backends
from baracuda.declaration.dtypes import FLOATS, named
from baracuda.errors import UnsupportedError
from baracuda.forks import cached_property
from baracuda.testing import report
from baracuda.testing.bounds import worst
from baracuda.testing.cases import LIBRARIES, Call, Subject, subjects
from baracuda.testing.laws import LAWS
from baracuda.tools import CannotRun, can_write, chosen, emit, progress, table

ACCURACY = "matches_the_body_in_float64"
DEVICES = {"cpu": LIBRARIES, "cuda": ("torch", "cupy", "jax")}
OTHERS = "others"


@dataclass(frozen=True)
class Taken(Subject):
    """A subject at the cases that its backend takes; a backend may refuse what it likes."""

    @cached_property
    def split(self) -> tuple[list[Call], list[str]]:
        """The calls that are taken, and why each other one is not."""
        taken, refused = [], []
        for call in super().calls():
            try:
                call.plan()
            except UnsupportedError as error:
                refused.append(str(error))
            except Exception:
                # No refusal: a law meets it again, and it is a failure there.
                taken.append(call)
            else:
                taken.append(call)
        return taken, refused

    def calls(self) -> Iterator[Call]:
        """Every call that is taken."""
        return iter(self.split[0])


@dataclass(frozen=True)
class Result:
    """What the laws say of one subject.

    Attributes
    ----------
    op, backend, library, dtype : str
    cases : int
        Calls that every law was tried at.
    refused : tuple of str
        The backend's reasons, one for each call that it does not take.
    error : float or None
        The worst error in units of the tolerance; None where there is no such number.
    where : str
        The case that has it.
    silent : dict
        The laws that do not apply, each with the reason.
    failures : dict
        The laws that do not hold, each with its message.
    """

    op: str
    backend: str
    library: str
    dtype: str
    cases: int
    refused: tuple[str, ...]
    error: float | None = None
    where: str = ""
    silent: dict[str, str] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op}, {self.backend}, {self.library} {self.dtype}"

    @property
    def column(self) -> str:
        """Where it stands in the matrix: dtypes of which elements are only moved share one."""
        return named(self.dtype).short if self.dtype in FLOATS else OTHERS

    @property
    def size(self) -> float:
        """The error, infinite where a law is broken in another way."""
        beyond = self.error if self.error is not None and self.error > 1 else inf
        return beyond if self.failures else self.error or 0.0


def examine(subject: Subject) -> Result:
    """Try every law on one subject."""
    taken = Taken(subject.op, subject.backend, subject.library, subject.dtype, subject.device)
    error, where = None, ""
    silent: dict[str, str] = {}
    failures: dict[str, str] = {}
    with taken.context():
        calls, refused = taken.split
        if not calls:
            failures[ACCURACY] = f"takes no case of what it claims: {refused[0]}"
            silent = dict.fromkeys(LAWS.keys() - failures, "no case is taken")
        for name, law in LAWS.items() if calls else ():
            try:
                if name == ACCURACY:
                    found = worst(taken)
                    error, where = (found.ratio if found.ratio < inf else None), found.where
                    found.check()
                elif (reason := law(taken)) is not None:
                    silent[name] = reason
                bc.check_errors()
            except Exception as fault:
                # Whatever a backend raises is a law that it breaks.
                kind = "" if type(fault) is AssertionError else f"{type(fault).__name__}: "
                failures[name] = (kind + str(fault)).strip() or "does not hold"
    return Result(
        subject.op, subject.backend, subject.library, subject.dtype,
        len(calls), tuple(refused), error, where, silent, failures,
    )  # fmt: skip


def examine_all(every: Sequence[Subject], jobs: int, show: Callable[[str], None]) -> list[Result]:
    """The result of each, worst first."""
    found: list[Result] = []

    def collect(results: Iterator[Result]) -> None:
        for subject in every:
            show(str(subject))
            found.append(next(results))

    if jobs == 1:
        collect(map(examine, every))
    else:
        # A forked process could use neither JAX nor a GPU.
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            collect(pool.map(examine, every))
    return sorted(found, key=lambda r: (-r.size, r.op, r.backend, r.library, r.dtype))


# -- what is asked for ---------------------------------------------------------------------------


def wanted(arguments: argparse.Namespace, device: str) -> list[Subject]:
    """The subjects that the options name, or `CannotRun`."""
    ops = chosen(arguments.ops)
    _known("--backends", arguments.backends, backends.names())
    _known("--libraries", arguments.libraries, DEVICES[device])
    for name in arguments.backends or ():
        try:
            backends.load(name)
        except ImportError as error:
            raise CannotRun(f"backend {name!r} cannot be loaded: {error}") from error
    missing = [name for name in arguments.libraries or () if not find_spec(name)]
    if missing:
        raise CannotRun(f"--libraries: {', '.join(missing)} not installed")
    libraries = arguments.libraries or [n for n in DEVICES[device] if find_spec(n)]
    if device == "cuda" and "jax" in libraries and import_module("jax").default_backend() != "gpu":
        libraries = [name for name in libraries if name != "jax"]
    every = list(subjects(ops, libraries, arguments.backends, device))
    _known("--dtypes", arguments.dtypes, sorted({subject.dtype for subject in every}))
    if arguments.dtypes:
        every = [subject for subject in every if subject.dtype in arguments.dtypes]
    if not every:
        raise CannotRun(f"no backend claims any of this for arrays of {', '.join(libraries)}")
    return every


def _known(option: str, given: Sequence[str] | None, known: Sequence[str]) -> None:
    for name in given or ():
        if name not in known:
            raise CannotRun(f"{option}: {name!r} is none of {', '.join(known)}")


def _device(asked: str | None) -> str:
    there = asked != "cpu" and report.has_gpu()
    if asked == "cuda" and not there:
        raise CannotRun("--device cuda: torch sees no GPU here")
    return "cuda" if there else "cpu"


# -- what is said --------------------------------------------------------------------------------


def _columns(found: Sequence[Result]) -> list[str]:
    there = {result.column for result in found}
    return [c for c in (*(named(d).short for d in FLOATS), OTHERS) if c in there]


def _cell(results: Sequence[Result]) -> str:
    """The worst of some results; what is broken is at least 1, or has no number."""
    size = max((result.size for result in results), default=-1)
    if size < 0:
        return "-"
    return "broken" if size == inf else f"{size:.2f}"


def matrix(found: Sequence[Result]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: an op on a backend in each, the worst first, a column for each dtype."""
    columns = _columns(found)
    rows: dict[tuple[str, str], list[Result]] = {}
    for result in found:
        rows.setdefault((result.op, result.backend), []).append(result)
    body = [
        [op, backend, *(_cell([r for r in of_it if r.column == c]) for c in columns),
         f"{of_it[0].library} {of_it[0].dtype}"]
        for (op, backend), of_it in rows.items()
    ]  # fmt: skip
    return ["op", "backend", *columns, "worst in"], body


def summary(found: Sequence[Result], seconds: float) -> list[str]:
    """The counts, and the worst error of each backend, in lines."""
    laws = len(LAWS) * len(found)
    silent, broken = (sum(len(getattr(r, n)) for r in found) for n in ("silent", "failures"))
    cases, refused = sum(r.cases for r in found), sum(len(r.refused) for r in found)
    lines = [
        f"{cases} cases of {len(found)} combinations of op, backend, library and dtype"
        + (f"; {refused} more refused" if refused else ""),
        f"{laws} laws tried in {seconds:.0f} s: {laws - silent - broken} hold, "
        f"{silent} do not apply, {broken} broken",
    ]
    for backend in dict.fromkeys(r.backend for r in found):
        errors = [r for r in found if r.backend == backend and r.error is not None]
        if errors:
            most = max(errors, key=lambda r: r.error or 0.0)
            lines.append(f"{backend}: at most {most.error:.2f} x the tolerance ({most})")
    return lines


def page(found: Sequence[Result], device: str, lines: Sequence[str]) -> str:
    """The results as a page for a browser."""
    head, rows = matrix(found)
    marks = [
        report.Mark(r.op, named(r.dtype).short if r.dtype in FLOATS else OTHERS, r.error,
                    f"{r}: {r.error:.3f} x the tolerance; {r.where}")
        for r in found if r.error is not None
    ]  # fmt: skip
    every = [
        (r.op, r.backend, r.library, r.dtype, report.number(r.cases, 0), report.number(r.error),
         "; ".join(r.failures) or "hold")
        for r in found
    ]  # fmt: skip
    failures = [(r.op, r.backend, f"{r.library} {r.dtype}", *f) for r, f in _failures(found)]
    tables = [
        report.Table("Broken laws", ("op", "backend", "arrays", "law", "message"), failures),
        report.Table("Worst error in units of the tolerance", head,
                     [tuple(map(report.parsed, row)) for row in rows]),
        report.Table("Every combination",
                     ("op", "backend", "library", "dtype", "cases", "error", "laws"), every),
    ]  # fmt: skip
    plot = report.Plot(
        "Error over tolerance", "error in units of the tolerance", _columns(found), marks
    )
    return report.page("baracuda parity", [device, *lines], [plot], tables)


def _failures(found: Sequence[Result]) -> list[tuple[Result, tuple[str, str]]]:
    return [(result, item) for result in found for item in result.failures.items()]


def _record(found: Sequence[Result], device: str, seconds: float) -> dict[str, Any]:
    silent = Counter(name for result in found for name in result.silent)
    return {
        "version": bc.__version__, "device": device, "seconds": seconds,
        "cases": sum(r.cases for r in found), "refused": sum(len(r.refused) for r in found),
        "laws": list(LAWS), "does not apply": dict(silent), "broken": len(_failures(found)),
        "results": [asdict(result) for result in found],
    }  # fmt: skip


# -- the command ---------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``baracuda parity``."""
    parser.add_argument("--ops", nargs="+", metavar="OP", help="only these ops, or families")
    parser.add_argument("--backends", nargs="+", metavar="NAME", help="only these backends")
    parser.add_argument("--libraries", nargs="+", metavar="NAME", help="only arrays of these")
    parser.add_argument("--dtypes", nargs="+", metavar="DTYPE", help="only these dtypes")
    parser.add_argument("--device", choices=list(DEVICES), help="cuda where a GPU is, else cpu")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead")
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write them as a page")


def run(arguments: argparse.Namespace) -> int:
    """Try the laws, print what they say, and return the exit status."""
    if arguments.jobs < 1:
        raise CannotRun(f"--jobs: expected at least 1, got {arguments.jobs}")
    if arguments.html:
        can_write(arguments.html, "--html")
    device = _device(arguments.device)
    if device == "cpu":
        # Before JAX is loaded, which would choose an accelerator.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    every = wanted(arguments, device)
    start = time.perf_counter()
    with redirect_stdout(sys.stderr if arguments.json else sys.stdout), progress(len(every)) as bar:
        found = examine_all(every, arguments.jobs, bar)
    seconds, name = time.perf_counter() - start, report.machine(device == "cuda")
    lines = summary(found, seconds)
    if arguments.json:
        emit(_record(found, name, seconds))
    else:
        print(f"{name}; errors in units of the tolerance, worst first")
        table(*matrix(found))
        print(*lines, sep="\n")
    for result, (law, message) in _failures(found):
        print(f"baracuda parity: {result}: {law}: {message}", file=sys.stderr)
    if arguments.html:
        arguments.html.write_text(page(found, name, lines), encoding="utf-8")
    return int(bool(_failures(found)))
