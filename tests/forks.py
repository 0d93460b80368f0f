"""Programs in processes of their own, forked from one that has imported torch.

Importing torch and its compiler takes longer than most of what these programs try. What they import
of this package, and all else, they import themselves.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from children import ROOT, environment

IMPORTS = (
    "functorch.compile", "torch._inductor.compile_fx", "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
)  # fmt: skip


def printed(
    program: Path, *arguments: str, at: Path = ROOT, ranks: int = 0, forked: bool = True
) -> str:
    """What a program prints, once it has ended well.

    With `ranks` it is so many processes, told of each other in the variables of torchrun. Those
    that use a GPU are not `forked`: to import torch's compiler takes hold of it, for one process.
    """
    server = _server()
    assert server.stdin
    assert server.stdout
    try:
        given = {"words": [str(program), *arguments], "at": str(at), "ranks": ranks}
        given["forked"] = forked
        server.stdin.write(json.dumps(given) + "\n")
        server.stdin.flush()
        out, errors, failed = json.loads(server.stdout.readline())
    except (BrokenPipeError, json.JSONDecodeError):
        _server.cache_clear()
        raise
    assert not failed, f"{program}: {errors[-4000:]}"
    return str(out)


@cache
def _server() -> subprocess.Popen[str]:
    """The process that forks, which ends with its input."""
    started = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=ROOT, env=environment(ROOT / "tests", OMP_NUM_THREADS="1"),
    )  # fmt: skip
    atexit.register(started.communicate)
    return started


def _be(words: list[str], at: str, variables: dict[str, str], files: list[Any]) -> int:
    """Run a program in this process, which was forked for it."""
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, file in enumerate(files, 1):
        os.dup2(file.fileno(), number)
    os.chdir(at)
    os.environ.update(variables)
    sys.argv = words
    sys.path[0] = str(Path(words[0]).parent)
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _variables(ranks: int) -> list[dict[str, str]]:
    """What torchrun would tell each of some processes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    size = str(ranks)
    return [
        {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port),
        }
        for rank in range(ranks)
    ]  # fmt: skip


def _run(words: list[str], at: str, ranks: int, forked: bool) -> tuple[str, str, bool]:
    """Output and errors of a program, and whether a process of it failed."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
        failed = _fails(words, at, ranks, files, forked)
        for file in files:
            file.seek(0)
        return files[0].read(), files[1].read(), failed


def _fails(words: list[str], at: str, ranks: int, files: list[Any], forked: bool) -> bool:
    """Run the processes of a program, and say whether one failed."""
    left, failed = set[int](), False
    for variables in _variables(ranks) or [{}]:
        if not forked:
            started = subprocess.Popen(
                [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=files[0],
                stderr=files[1], cwd=at, env={**os.environ, **variables},
            )  # fmt: skip
            left.add(started.pid)
            # Its end is waited for below.
            started.returncode = 0
            continue
        if (process := os.fork()) == 0:
            sys.exit(_be(words, at, variables, files))
        left.add(process)
    while left:
        process, status = os.wait()
        left.remove(process)
        if status and not failed:
            failed = True
            # The others would wait for this one.
            for other in left:
                os.kill(other, signal.SIGTERM)
    return failed


if __name__ == "__main__":
    for name in IMPORTS:
        import_module(name)
    for line in sys.stdin:
        print(json.dumps(_run(**json.loads(line))), flush=True)
