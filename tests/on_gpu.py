"""A program for a machine with a GPU: the `gpu` tests in many processes, under a sanitizer or not.

`python tests/on_gpu.py --jobs 16 -- tests/test_gpu.py -k norm`: what is behind ``--`` goes to
pytest. With ``--sanitizer memcheck`` (or racecheck, initcheck, synccheck) each process runs under
compute-sanitizer; with ``--gpus 2`` every other process begins with the second of two GPUs. Ends
with what every process found, and with 1 where one found something.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

ENVIRONMENT = {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
_QUIET = ("-q", "--no-header", "--tb=short", "-p", "no:cacheprovider")
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")
_LAST = re.compile(r"^.* in [\d.]+s.*$", re.MULTILINE)


def collected(pytest: list[str], environment: dict[str, str]) -> list[str]:
    """The names of the tests that pytest would run."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", *_QUIET, *pytest],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return [line for line in done.stdout.splitlines() if "::" in line]


def wait(running: list[subprocess.Popen[bytes]], limit: float | None) -> None:
    """Until all have ended; after `limit` seconds they are told to, and say what they found."""
    for seconds, end in ((limit, signal.SIGINT), (15, signal.SIGKILL), (None, None)):
        until = None if seconds is None else time.monotonic() + seconds
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(None if until is None else max(until - time.monotonic(), 0))
        for process in running:
            if end and process.poll() is None:
                process.send_signal(end)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--sanitizer", metavar="TOOL", help="memcheck, racecheck, ...")
    parser.add_argument("--gpus", type=int, help="GPUs that take turns to be the first")
    parser.add_argument("--limit", type=float, help="seconds after which what still runs is ended")
    parser.add_argument("pytest", nargs="*", default=["-m", "gpu"])
    arguments = parser.parse_args(argv)
    environment = {**ENVIRONMENT, **os.environ}
    started, bad, totals = time.monotonic(), 0, dict[str, int]()
    tests = collected(arguments.pytest, environment)
    under = []
    if arguments.sanitizer:
        under = ["compute-sanitizer", "--tool", arguments.sanitizer, "--error-exitcode", "9"]
        if arguments.sanitizer == "memcheck":
            # Libraries ask the driver for functions that it may not have.
            under += ["--report-api-errors", "no"]
    with TemporaryDirectory() as folder:
        running = []
        for job in range(min(arguments.jobs, len(tests))):
            # Neighbours cost alike, so each process gets every so-manieth test.
            names, log = Path(folder, f"{job}.tests"), Path(folder, f"{job}.log")
            names.write_text("\n".join(tests[job :: arguments.jobs]))
            command = [*under, sys.executable, "-m", "pytest", *_QUIET, f"@{names}"]
            if arguments.gpus:
                # Each sees all, as some tests need two.
                order = ((job + i) % arguments.gpus for i in range(arguments.gpus))
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, order))
            with log.open("w") as out:
                process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
            running.append((log, process))
        # Collecting takes its share of the time.
        left = arguments.limit and max(arguments.limit - (time.monotonic() - started), 0)
        wait([process for _, process in running], left)
        for log, process in running:
            code = process.returncode
            text = log.read_text(errors="replace")
            last = _LAST.findall(text)[-1:]
            for count, kind in _COUNT.findall("".join(last)):
                totals[kind] = totals.get(kind, 0) + int(count)
            if code:
                bad += 1
                # The first failure may have caused the others.
                cut = text if len(text) < 12000 else f"{text[:8000]}\n...\n{text[-4000:]}"
                print(f"---- {log.stem} ended with {code}\n{cut}")
    found = ", ".join(f"{count} {kind}" for kind, count in totals.items())
    print(
        f"{len(tests)} tests in {len(running)} processes, {time.monotonic() - started:.0f} s: "
        f"{found}; {bad} processes found something"
    )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
