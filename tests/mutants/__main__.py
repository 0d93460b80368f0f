"""Run the mutants: `python -m tests.mutants [--jobs N] [--only NAME...] [--list]`."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from . import ROOT, Mutant, every

# What a copy has no use for, or makes anew.
_LEFT_OUT = (
    ".git", ".venv", ".*_cache", "__pycache__", "_build", "dist", "*.egg-info", "node_modules"
)  # fmt: skip
# A run of a mutant's tests that takes longer has hung.
LIMIT = 240.0
KILLED, SURVIVED, BROKEN = "killed", "survived", "broken"
# What pytest ends with.
_STATES = {0: SURVIVED, 1: KILLED}


def copied(source: Path, to: Path, left_out: Sequence[str] = ()) -> Path:
    """A copy of the tree, of the same times."""
    return Path(shutil.copytree(source, to, ignore=shutil.ignore_patterns(*left_out)))


def ran(
    root: Path, tests: Iterable[str], *words: str, limit: float | None = LIMIT, **more: str
) -> tuple[int, str]:
    """Exit status of pytest on some tests of a copy, and what it printed; -1 past the limit."""
    env = os.environ | {
        "PYTHONPATH": str(root), "BARACUDA_CACHE_DIR": str(root / ".cache"),
        "BARACUDA_LANE": "test", **more,
    }  # fmt: skip
    for name in ("BARACUDA_OPS", "PYTEST_ADDOPTS"):
        env.pop(name, None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
    command += [f"tests/{test}" for test in tests]
    process = subprocess.Popen(
        command, cwd=root, env=env, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        # With all that the tests have started.
        os.killpg(process.pid, 9)
        text, _ = process.communicate()
        return -1, f"{text}\nlonger than {limit:.0f} s"
    return process.returncode, text


def state_of(root: Path, one: Mutant) -> tuple[str, str]:
    """What becomes of a mutant in a copy, which is as before afterwards; and what pytest said."""
    path = root / one.file
    before, info = path.read_text(encoding="utf-8"), path.stat()
    path.write_text(one.changed(before), encoding="utf-8")
    # Bytecode is told from its source by whole seconds and the length alone.
    os.utime(path, (info.st_atime, info.st_mtime + 10))
    try:
        status, text = ran(root, one.tests, "-x", PYTHONDONTWRITEBYTECODE="1")
    finally:
        path.write_text(before, encoding="utf-8")
        os.utime(path, (info.st_atime, info.st_mtime))
    return _STATES.get(status, BROKEN), text


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
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        first = copied(ROOT, Path(folder) / "0", _LEFT_OUT)
        tests = sorted({test for m in mutants for test in m.tests})
        # What is red anyway kills nothing.
        status, text = ran(first, tests, limit=None)
        print(f"{time.monotonic() - start:.0f} s for the tests as they are", flush=True)
        if status != 0:
            print(text, "the tests fail without a mutant", sep="\n")
            return 2
        free: SimpleQueue[Path] = SimpleQueue()
        for i in range(given.jobs):
            free.put(copied(first, Path(folder) / str(i + 1)))

        def tried(one: Mutant) -> str:
            root, began = free.get(), time.monotonic()
            try:
                state, text = state_of(root, one)
            finally:
                free.put(root)
            who = next((x for x in text.splitlines() if x.startswith("FAILED ")), "")
            took, who = time.monotonic() - began, who.removeprefix("FAILED ").partition(" - ")[0]
            print(f"{state:8} {one.name} ({took:.0f} s) {who}".rstrip(), flush=True)
            if state == BROKEN:
                print(text[-2000:])
            return state

        with ThreadPoolExecutor(given.jobs) as pool:
            counts = Counter(pool.map(tried, mutants))
    print(
        f"{len(mutants)} mutants:", *[f"{counts[s]} {s}," for s in (KILLED, SURVIVED, BROKEN)],
        f"{time.monotonic() - start:.0f} s",
    )  # fmt: skip
    return int(counts[KILLED] < len(mutants))


if __name__ == "__main__":
    raise SystemExit(main())
