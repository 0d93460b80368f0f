"""``python -m baracuda cache``: the compiled kernels on disk, counted or dropped."""

from __future__ import annotations

import argparse
import sys

from baracuda.tools import Folder, emit, folder, one_line


def clear(found: Folder) -> dict[str, str]:
    """Drop every kernel; what was in the way of each that is left."""
    left = {}
    for file in found.files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            left[str(file)] = one_line(error)
    return left


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``baracuda cache``."""
    parser.description = (
        "Look at the compiled kernels that are kept on disk, or drop them all: each is compiled "
        "again when it is next needed. BARACUDA_CACHE_DIR moves the folder."
    )
    parser.add_argument("action", choices=("info", "clear"))
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Look or clear, and return the exit status: 1 where a kernel could not be dropped."""
    before = folder()
    if arguments.action == "info" or before.path is None:
        if arguments.json:
            emit(before.record())
        else:
            print(before)
        return 0
    left = clear(before)
    after = folder()
    kernels, nbytes = len(before.files) - len(after.files), before.nbytes - after.nbytes
    if arguments.json:
        emit(after.record() | {"dropped": kernels, "dropped_bytes": nbytes, "left": left})
    else:
        print(f"{before.path}: dropped {kernels} kernels, {nbytes:,} bytes")
    for file, reason in left.items():
        print(f"baracuda cache: {file}: {reason}", file=sys.stderr)
    return int(bool(left))
