"""``python -m tests.fuzz --cases N --jobs J``: random calls, compared; what was, and what failed.

A case is wholly given by its device, its seed and its number. ``--device cuda`` takes torch's
tensors on a GPU: ``python -m tests.fuzz --device cuda --cases 50000 --jobs 8``. With one job all
runs in this process, as a memory checker wants it, which sees more where torch keeps no memory::

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck \
        python -m tests.fuzz --device cuda --cases 500 --jobs 1
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence

# Before JAX is imported: no search for accelerators. Small arrays gain nothing from more threads.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from .check import Tally, block
from .draw import OPS

BLOCK = 200
"""Cases that a worker takes at a time."""


def blocks(seed: int, numbers: Sequence[int], device: str, jobs: int) -> Iterator[Tally]:
    """All cases, in blocks; in this process where there is one job."""
    parts = [numbers[i : i + BLOCK] for i in range(0, len(numbers), BLOCK)]
    if jobs == 1:
        yield from (block(seed, part, device) for part in parts)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    # A process that was forked cannot use CUDA: each has a context of its own.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        waiting = [pool.submit(block, seed, part, device) for part in parts]
        yield from (done.result() for done in as_completed(waiting))


def command(seed: int, number: int, device: str) -> str:
    """What repeats one case."""
    where = "" if device == "cpu" else f" --device {device}"
    return f"python -m tests.fuzz --seed {seed} --case {number}{where}"


def main(arguments: list[str] | None = None) -> int:
    """Run, and print; 1 where something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, default=20000, help="how many")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="this number alone")
    parser.add_argument("--ops", nargs="*", choices=OPS, metavar="OP", help="of all, theirs alone")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args(arguments)
    first, cases = (given.first, given.cases) if given.case is None else (given.case, 1)
    numbers = [n for n in range(first, first + cases) if OPS[n % len(OPS)] in (given.ops or OPS)]
    total, started, told = Tally(), time.monotonic(), 0.0
    for part in blocks(given.seed, numbers, given.device, given.jobs):
        total.add(part)
        for number, op, text in part.failures:
            print(f"FAILED {op}: {text}\n    {command(given.seed, number, given.device)}")
        if (now := time.monotonic() - started) > told + 30:
            told = now
            found = f"{sum(total.kinds.values())} comparisons, {len(total.failures)} failures"
            print(f"{now:.0f} s: {found}", file=sys.stderr, flush=True)
    report(total, time.monotonic() - started)
    return bool(total.failures)


def report(total: Tally, seconds: float) -> None:
    """Counts by op and by kind."""
    width = max(map(len, (*total.ops, *total.kinds)), default=0)
    for counts in (total.ops, total.kinds):
        for name, count in sorted(counts.items()):
            print(f"{name:{width}} {count:9}")
        print()
    print(
        f"{sum(total.kinds.values())} comparisons of {len(total.ops)} ops in {seconds:.0f} s,"
        f" {len(total.failures)} failures"
    )


if __name__ == "__main__":
    sys.exit(main())
