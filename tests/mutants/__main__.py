"""Run the mutants: `python -m tests.mutants [--jobs N] [--only NAME...] [--list]`."""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from . import ROOT, Mutant, every

# What a copy has no use for, or makes anew.
_LEFT_OUT = (
    ".git", ".venv", ".*_cache", "__pycache__", "_build", "dist", "*.egg-info", "node_modules"
)  # fmt: skip
# A run of a mutant's tests that takes longer has hung.
LIMIT = 240.0
KILLED, SURVIVED, BROKEN = "killed", "survived", "broken"
# What takes long to import, and is nobody's to change.
_LOADED = (
    "numpy", "torch", "torch.distributed.tensor", "jax", "jax.numpy", "array_api_strict",
    "array_api_compat.torch", "ml_dtypes", "mpmath", "cuda.core",
)  # fmt: skip
# What pytest ends with.
_STATES = {0: SURVIVED, 1: KILLED}


def copied(source: Path, to: Path, left_out: Sequence[str] = ()) -> Path:
    """A copy of the tree, of the same times."""
    return Path(shutil.copytree(source, to, ignore=shutil.ignore_patterns(*left_out)))


def started(root: Path, tests: Iterable[str], output: Path, *words: str, last: bool = True) -> int:
    """The number of a child that runs pytest on some tests of a copy.

    It is forked, so that what takes long to import is there already. Only what is not the last to
    run in a copy leaves bytecode there.
    """
    number = os.fork()
    if number:
        return number
    try:
        # All that the tests start ends with them.
        os.setsid()
        os.chdir(root)
        os.environ |= {
            "PYTHONPATH": str(root), "BARACUDA_CACHE_DIR": str(root / ".cache"),
            "BARACUDA_LANE": "test",
        }  # fmt: skip
        for name in ("BARACUDA_OPS", "PYTEST_ADDOPTS"):
            os.environ.pop(name, None)
        sys.dont_write_bytecode = last
        sys.path[:] = [str(root), *[x for x in sys.path if x not in ("", str(ROOT))]]
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        files = [f"tests/{test}" for test in tests]
        status = int(pytest.main(["-q", "-p", "no:cacheprovider", *words, *files]))
        sys.stdout.flush()
        os._exit(status)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(99)


def ended(number: int, limit: float = math.inf) -> int:
    """The exit status of a child; -1 where it takes longer and is killed."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found, status = os.waitpid(number, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(number, signal.SIGKILL)
    os.waitpid(number, 0)
    return -1


def state_of(root: Path, one: Mutant) -> tuple[str, str]:
    """What becomes of a mutant in a copy, which is as before afterwards; and what pytest said."""
    path, output = root / one.file, root / ".mutant"
    before, info = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(one.changed(before), encoding="utf-8")
    # Bytecode is told from its source by whole seconds and the length alone.
    os.utime(path, (info.st_atime, info.st_mtime + 10))
    try:
        status = ended(started(root, one.tests, output, "-x"), LIMIT)
    finally:
        path.write_text(before, encoding="utf-8")
        os.utime(path, (info.st_atime, info.st_mtime))
    return _STATES.get(status, BROKEN), output.read_text(encoding="utf-8", errors="replace")


_copy: Path


def _takes(copies: Any) -> None:
    """One process, one copy."""
    global _copy
    _copy = copies.get()


def _tried(one: Mutant) -> tuple[Mutant, str, str, float]:
    began = time.monotonic()
    return one, *state_of(_copy, one), time.monotonic() - began


def tried(mutants: Sequence[Mutant], jobs: int, folder: Path) -> int:
    """Run the tests as they are, and then with each mutant; the exit status."""
    # The only thread there is forks.
    warnings.filterwarnings("ignore", ".*fork")
    for name in _LOADED:
        with suppress(ImportError):
            import_module(name)
    start, first = time.monotonic(), copied(ROOT, folder / "0", _LEFT_OUT)
    tests = sorted({test for one in mutants for test in one.tests})
    # What is red anyway kills nothing.
    status = ended(started(first, tests, folder / "output", "-n", str(jobs), last=False))
    print(f"{time.monotonic() - start:.0f} s for the tests as they are", flush=True)
    if status != 0:
        print((folder / "output").read_text(), "the tests fail without a mutant", sep="\n")
        return 2
    forked = multiprocessing.get_context("fork")
    copies = forked.SimpleQueue()
    for i in range(jobs):
        copies.put(copied(first, folder / str(i + 1)))
    counts = Counter[str]()
    with forked.Pool(jobs, _takes, (copies,)) as pool:
        for one, state, text, took in pool.imap_unordered(_tried, mutants):
            counts[state] += 1
            who = next((x for x in text.splitlines() if x.startswith("FAILED ")), "FAILED ")
            name = who.removeprefix("FAILED ").partition(" - ")[0]
            print(f"{state:8} {one.name} ({took:.0f} s) {name}".rstrip(), flush=True)
            if state == BROKEN:
                print(text[-2000:])
    print(
        f"{len(mutants)} mutants:", *[f"{counts[s]} {s}," for s in (KILLED, SURVIVED, BROKEN)],
        f"{time.monotonic() - start:.0f} s",
    )  # fmt: skip
    return int(counts[KILLED] < len(mutants))


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0 where all are killed, 1 where not, 2 where tests fail without a mutant."""
    parser = argparse.ArgumentParser("python -m tests.mutants", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="so many mutants at once")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="those with this in their name")
    parser.add_argument("--list", action="store_true", help="print the mutants, and run nothing")
    given = parser.parse_args(arguments)
    mutants = [m for m in every() if not given.only or any(name in m.name for name in given.only)]
    if not mutants:
        parser.error("no mutant is called so")
    if given.list:
        print(*[f"{m.name}: {m.file}" for m in mutants], f"{len(mutants)} mutants", sep="\n")
        return 0
    for one in mutants:
        one.changed((ROOT / one.file).read_text(encoding="utf-8"))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        return tried(mutants, given.jobs, Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
