"""``python -m baracuda <command>``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from baracuda.tools import CannotRun

COMMANDS = {
    "doctor": "say what is installed, what works, and what mends the rest",
    "ops": "show which backend takes which op in which dtypes, or all about one op",
    "explain": "show what a call would run, and why",
    "parity": "run the laws on this machine",
    "bench": "time each op beside what one would write without it",
    "warmup": "compile kernels into the cache on disk before they are needed",
    "cache": "look at the cache on disk, or empty it",
    "train": "train a small transformer on text or digits, on one array library",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: all is well; 1: something was found wrong; 2: it cannot be asked so here.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="baracuda", description="Fused ML primitives over any array library.",
        epilog="Exit status: 0 all is well, 1 something is wrong, 2 it cannot be asked so.",
    )  # fmt: skip
    commands = parser.add_subparsers(metavar="command", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
        if argv[:1] == [name]:  # a command's module is imported only when it runs
            module = import_module(f"baracuda.tools.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    try:
        status: int = arguments.run(arguments)
    except CannotRun as error:
        print(f"baracuda {argv[0]}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever reads has enough; Python would say so once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return status


if __name__ == "__main__":
    sys.exit(main())
