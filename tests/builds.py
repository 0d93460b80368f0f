"""What tests compile, kept by the digest of all that it depends on: nothing is compiled twice.

Kept in ``tests`` beside the kernels of the user's cache folder, which ``BARACUDA_CACHE_DIR`` moves.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from baracuda.backends.cuda.compiler import cache_directory


def folder() -> Path:
    """Where builds are kept."""
    return cache_directory().parent / "tests"


@cache
def _file(path: Path) -> bytes:
    return path.read_bytes()


def place(*parts: str | bytes | Path, suffix: str) -> Path:
    """Where what is made of some parts is kept; of a path the content counts."""
    digest = hashlib.sha256()
    for part in parts:
        part = _file(part) if isinstance(part, Path) else part
        part = part.encode() if isinstance(part, str) else part
        digest.update(len(part).to_bytes(8, "little") + part)
    name = digest.hexdigest()
    return folder() / name[:2] / f"{name}{suffix}"


def built(make: Callable[[Path], None], *parts: str | bytes | Path, suffix: str) -> Path:
    """The file that `make` writes, made once for its parts."""
    path = place(*parts, suffix=suffix)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(suffix, dir=path.parent)
        os.close(handle)
        try:
            make(Path(draft))
            # Another process may have made the same meanwhile.
            os.replace(draft, path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    return path
