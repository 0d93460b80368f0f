"""Machine code on disk: a file for each key, believed as far as it proves itself.

A file says what key it is for, how long its code is, and the digest of the code. What is no plain
file, and what another user could have written, is not read at all: its code would run as ours.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from baracuda.instruments import logger

MOST_BYTES = 2 << 30
"""What the folder may hold: all kernels for one architecture take a few hundred MB."""

# Far above any kernel: a longer file is none, and reading it could take all memory.
_LONGEST = 64 << 20
# What begins a file: a mark of this format, digest of the key, length and digest of the code.
_HEAD = struct.Struct("<8s32sQ32s")
_MARK = b"baracud1"
# Seconds after which nobody writes to a temporary file any more.
_STALE = 3600
_FLAGS = os.O_RDONLY
for _flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _FLAGS |= getattr(os, _flag, 0)


class Store:
    """A bounded folder of machine code, shared by any number of processes.

    Parameters
    ----------
    root : Path
        The folder; made for this user alone where it is missing.
    most : int, optional
        Bytes that it may hold. Past that the least recently used files go.

    Raises
    ------
    OSError
        Where the folder is missing and cannot be made.
    """

    def __init__(self, root: Path, most: int = MOST_BYTES) -> None:
        self._entries, self._temporary, self._most = root / "entries", root / "tmp", most
        # What the folder holds, as far as this process knows; None until it has looked.
        self._held: int | None = None
        _private(root.parent)
        _private(root)
        _private(self._entries)

    def get(self, key: bytes) -> bytes | None:
        """The code kept for `key`; None where there is none to be trusted."""
        path, digest = self._place(key)
        try:
            data = _read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.info("a kept kernel is ignored: %s", error)
            return None
        with suppress(struct.error):
            mark, of, length, sum_ = _HEAD.unpack_from(data)
            code = data[_HEAD.size :]
            proof = (_MARK, digest, len(code), hashlib.sha256(code).digest())
            if (mark, of, length, sum_) == proof:
                return code
        logger.info("a kept kernel is ignored: %s: damaged, or of another kernel", path)
        return None

    def put(self, key: bytes, code: bytes) -> None:
        """Keep `code` for `key`. Others see all of it or nothing.

        Raises
        ------
        OSError
            Where it cannot be written; nothing is left of it then.
        """
        from tempfile import mkstemp

        path, digest = self._place(key)
        for folder in (path.parent, self._temporary):
            _private(folder)
        handle, whole = mkstemp(dir=self._temporary)
        try:
            # Not waiting for the disk: what a crash leaves unfinished fails its digest.
            with open(handle, "wb") as file:
                proof = (_MARK, digest, len(code), hashlib.sha256(code).digest())
                file.write(_HEAD.pack(*proof) + code)
            os.replace(whole, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(whole)
            raise
        if self._held is None:
            self._held = sum(info.st_size for _, info in self._files())
        else:
            self._held += _HEAD.size + len(code)
        if self._held > self._most:
            self._shrink()

    def drop(self, key: bytes) -> None:
        """Forget what is kept for `key`, if anything is."""
        with suppress(OSError):
            self._place(key)[0].unlink()

    def _place(self, key: bytes) -> tuple[Path, bytes]:
        digest = hashlib.sha256(key)
        name = digest.hexdigest()
        return self._entries / name[:2] / name[2:], digest.digest()

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """What is in the folder; what others drop meanwhile is left out."""
        for pattern in (self._entries.glob("*/*"), self._temporary.glob("*")):
            for path in pattern:
                with suppress(OSError):
                    yield path, path.lstat()

    def _shrink(self) -> None:
        """Drop what was not used for longest, an eighth more than has to go."""
        found = sorted(self._files(), key=lambda file: file[1].st_mtime)
        held, now = sum(info.st_size for _, info in found), time.time()
        for path, info in found:
            under_way = path.parent == self._temporary and info.st_mtime > now - _STALE
            if held > self._most - self._most // 8 and not under_way:
                with suppress(OSError):
                    path.unlink()
                    held -= info.st_size
        self._held = held


@contextmanager
def opened(path: Path, like: os.stat_result | None = None) -> Iterator[tuple[int, os.stat_result]]:
    """A plain file that nobody else can have written: its handle, and what the system says of it.

    Parameters
    ----------
    path : Path
    like : os.stat_result, optional
        Of a file that is trusted already: its owner and its group, where they may write that file,
        may have written this one too.

    Raises
    ------
    OSError
        Where it is something else, or cannot be read.
    """
    # Not to wait for the writer of a pipe, nor to follow a link to somebody else's file.
    handle = os.open(path, _FLAGS)
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(f"{path}: is no plain file")
        owners, others = {0}, info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if like is not None:
            owners.add(like.st_uid)
            if like.st_gid == info.st_gid:
                others &= ~(like.st_mode & stat.S_IWGRP)
        if hasattr(os, "geteuid") and (info.st_uid not in {os.geteuid(), *owners} or others):
            raise OSError(f"{path}: another user could have written it")
        yield handle, info
    finally:
        os.close(handle)


def _read(path: Path) -> bytes:
    """The content of such a file of at most as many bytes as a kernel may have.

    Raises
    ------
    OSError
        As `opened` does, and for a longer file.
    """
    with opened(path) as (handle, info):
        if info.st_size > _LONGEST:
            raise OSError(f"{path}: longer than any kernel")
        # The time of the last use, by which the folder is kept small.
        with suppress(OSError):
            os.utime(handle if os.utime in os.supports_fd else path)
        with open(handle, "rb", closefd=False) as file:
            return file.read(_LONGEST)


def _private(folder: Path, mode: int = 0o700) -> None:
    """Make a folder that nobody else can look into, where there is none."""
    if not folder.is_dir():
        _private(folder.parent, 0o755)
        folder.mkdir(mode, exist_ok=True)
