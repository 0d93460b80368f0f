"""Which cases a run tries: those of the lane ``quick``, ``test`` (the default) or ``full``.

``BARACUDA_LANE`` names the lane. ``BARACUDA_OPS`` limits a run to some ops: names of ops, of
categories, or of files in `baracuda/ops`, with commas; ``touched`` stands for what changed since
the commit ``BARACUDA_SINCE``. The Makefile sets all three.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

import baracuda.ops  # noqa: F401
from baracuda.backends.cuda.compiler import INCLUDE, beside
from baracuda.calls.op import registry

ROOT = Path(__file__).parents[1]
T = TypeVar("T")
LANE = os.environ.get("BARACUDA_LANE", "test")
FULL = LANE == "full"
# What every op goes through: a change here touches all of them.
DECLARATIONS = ("declaration/", "calls/", "families/numerics.py", "layouts.py")

if LANE not in ("quick", "test", "full"):
    raise pytest.UsageError(f"BARACUDA_LANE: expected quick, test or full, got {LANE!r}")


def _git(*words: str) -> list[str]:
    """The lines that git prints; none where there is no checkout."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.splitlines()


@cache
def changed() -> frozenset[str]:
    """The files that differ from the commit ``BARACUDA_SINCE``.

    By default that is the last commit, or the one before it where nothing has changed since.
    """
    since = os.environ.get("BARACUDA_SINCE")
    untracked = _git("ls-files", "--others", "--exclude-standard")
    for base in (since,) if since else ("HEAD", "HEAD~1"):
        if found := [*_git("diff", "--name-only", base), *untracked]:
            return frozenset(found)
    return frozenset()


@cache
def included(file: str) -> frozenset[str]:
    """A file of `baracuda/cuda_src`, and all files that it includes, by their paths."""
    seen: set[Path] = set()
    waiting = [(ROOT / "baracuda/cuda_src" / file).resolve()]
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            waiting += [beside(path, name) for name in INCLUDE.findall(path.read_text())]
    return frozenset(str(path.relative_to(ROOT)) for path in seen)


def family(op: str) -> str:
    """The file in `baracuda/ops` that an op is declared in, without its ending."""
    return registry[op].__module__.rpartition(".")[2]


def _is_touched(op: str) -> bool:
    kernel = registry[op].spec.kernel
    sources = {f"baracuda/ops/{family(op)}.py", *(included(kernel.file) if kernel else ())}
    every = tuple(f"baracuda/{name}" for name in DECLARATIONS)
    return bool(sources & changed()) or any(name.startswith(every) for name in changed())


@cache
def ops() -> tuple[str, ...]:
    """The ops of this run, in the order of the registry.

    Raises
    ------
    pytest.UsageError
        For a word of ``BARACUDA_OPS`` that names nothing.
    """
    words = os.environ.get("BARACUDA_OPS", "").replace(",", " ").split()
    if not words:
        return tuple(registry)
    known = {name: {name, family(name), op.spec.category} for name, op in registry.items()}
    if unknown := set(words) - {"touched"}.union(*known.values()):
        raise pytest.UsageError(
            f"BARACUDA_OPS: {', '.join(sorted(unknown))}: expected an op, a category or a file of "
            f"baracuda/ops, such as {', '.join(sorted({family(name) for name in registry}))}"
        )
    return tuple(
        name
        for name, names in known.items()
        if names & {*words} or ("touched" in words and _is_touched(name))
    )


def of_kernels() -> tuple[str, ...]:
    """The ops whose kernels are compiled: in the quick lane those that were touched, or named."""
    if LANE == "quick" and not os.environ.get("BARACUDA_OPS"):
        return tuple(name for name in registry if _is_touched(name))
    return ops()


def chosen(*names: str | None) -> bool:
    """Whether this run is about one of some ops."""
    return any(name in ops() for name in names)


def common(dtype: str) -> bool:
    """Whether it is one of the two dtypes, of 32 and of 16 bits, that stand for the others."""
    return dtype in ("float32", "bfloat16")


def cases(values: Iterable[Any], usual: Callable[[Any], bool]) -> list[Any]:
    """Values for `parametrize`: the usual ones, and in the full lane the others, marked so."""
    others = pytest.mark.full
    return [
        v if usual(v) else pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=others)
        for v in values
        if FULL or usual(v)
    ]


def ends(values: Iterable[T]) -> list[T]:
    """The first and the last of an op's forms, without and with what is optional; or all of them.

    For what compiles each form anew, where another test has all forms without compiling them.
    """
    every = list(values)
    return every if FULL else every[:1] + every[1:][-1:]


def last(values: Iterable[T]) -> list[T]:
    """The last of an op's forms, with all that is optional; or all of them."""
    every = list(values)
    return every if FULL else every[-1:]


def thinned(usual: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """`usual`, for tests of which the full lane has more: there all are marked, as `cases` does.

    So `make test-touched`, which runs what is marked, tries the whole of what changed.
    """
    return lambda value: usual(value) and not FULL
