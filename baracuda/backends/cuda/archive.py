"""Machine code of many kernels in one file, found by the digest of its source and architecture.

Kernels that are alike are compressed together, in groups of at most `GROUP` bytes. Alone each takes
more than twice as much; in one stream for all, the first use of a kernel would unpack all of them.
The same kernels make the same bytes, whoever packs them and when.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from baracuda.backends.cuda import store
from baracuda.instruments import logger

GROUP = 1 << 17
"""Bytes of machine code that are compressed together; a longer kernel is a group of its own."""

_MARK = b"barapack"
# Mark of this format, digest of all that stands before the groups, length of the description,
# number of kernels and of groups.
_HEAD = struct.Struct("<8s32sIII")
# Digest of source and architecture, digest of the code, its group, where it begins there, length.
_KERNEL = struct.Struct("<32s32sIII")
# Where a group begins in the file; its bytes there, and unpacked.
_GROUP = struct.Struct("<QII")
# A description, an index and groups that are larger than these are not of a file that we wrote.
_MOST_KERNELS, _MOST_BYTES = 1 << 20, 64 << 20


class Kernel(NamedTuple):
    """One kernel to pack: its name, the digest that it is found by, and its machine code."""

    name: str
    digest: bytes
    code: bytes


def _codec() -> tuple[Any, Any]:
    """lzma and its filters; imported late, as some builds of Python lack it.

    The decoder takes as much memory as the dictionary has, so that is not the preset's 64 MiB.
    """
    import lzma

    preset = 9 | lzma.PRESET_EXTREME
    return lzma, [{"id": lzma.FILTER_LZMA2, "preset": preset, "dict_size": 1 << 20}]


def packed(description: Mapping[str, str], kernels: Iterable[Kernel]) -> bytes:
    """The bytes of an archive: neighbours by name are compressed together.

    Parameters
    ----------
    description : mapping
        What the archive says of itself.
    kernels : iterable of Kernel
        In any order; of those with the same digest one is kept.
    """
    lzma, filters = _codec()
    groups: list[list[Kernel]] = []
    room = 0
    for kernel in sorted({kernel.digest: kernel for kernel in kernels}.values()):
        if len(kernel.code) > room:
            groups.append([])
            room = GROUP
        groups[-1].append(kernel)
        room -= len(kernel.code)
    index, raws = [], []
    for number, group in enumerate(groups):
        begin = 0
        for _, digest, code in group:
            sum_ = hashlib.sha256(code).digest()
            index.append(_KERNEL.pack(digest, sum_, number, begin, len(code)))
            begin += len(code)
        raws.append(b"".join([kernel.code for kernel in group]))
    # Compression is most of the work, and runs beside other threads.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compress = partial(lzma.compress, format=lzma.FORMAT_RAW, filters=filters)
        blobs = list(pool.map(compress, raws))
    text = json.dumps(dict(description), sort_keys=True).encode()
    at = _HEAD.size + len(text) + _KERNEL.size * len(index) + _GROUP.size * len(raws)
    places = []
    for blob, raw in zip(blobs, raws, strict=True):
        places.append(_GROUP.pack(at, len(blob), len(raw)))
        at += len(blob)
    front = b"".join([text, *sorted(index), *places])
    counts = (len(text), len(index), len(groups))
    head = _HEAD.pack(_MARK, hashlib.sha256(struct.pack("<3I", *counts) + front).digest(), *counts)
    return b"".join([head, front, *blobs])


class Archive:
    """An archive on disk. Its index is read once, a group of kernels when one of them is needed.

    Parameters
    ----------
    path : Path
    like : os.stat_result, optional
        Of a file that is trusted already: whoever could write that may write the archive too.

    Attributes
    ----------
    path : Path
    description : dict
        What the archive says of itself.
    identity : bytes
        Digest of the description and the index, and thereby of all code.

    Raises
    ------
    OSError
        Where the file cannot be read, or others could have written it.
    ValueError
        Where it is damaged, or no archive.
    """

    def __init__(self, path: Path, like: os.stat_result | None = None) -> None:
        self.path, self._like = path, like
        with store.opened(path, like) as (handle, info):
            head = os.read(handle, _HEAD.size)
            try:
                mark, identity, *counts = _HEAD.unpack(head)
            except struct.error:
                raise ValueError(f"{path}: damaged: no archive of kernels") from None
            text, kernels, groups = counts
            size = text + _KERNEL.size * kernels + _GROUP.size * groups
            if mark != _MARK or max(kernels, groups) > _MOST_KERNELS or size > info.st_size:
                raise ValueError(f"{path}: damaged: no archive of kernels")
            front = _exactly(handle, size)
        if hashlib.sha256(struct.pack("<3I", *counts) + front).digest() != identity:
            raise ValueError(f"{path}: damaged: its index has another digest")
        self.identity: bytes = identity
        # The digest holds, so what follows was written by `packed`.
        self.description: dict[str, str] = json.loads(front[:text])
        self._index = front[text : text + _KERNEL.size * kernels]
        self._groups = front[text + _KERNEL.size * kernels :]
        # The group that was unpacked last: a kernel's neighbours are often the next.
        self._last: tuple[int, bytes] = (-1, b"")

    def __len__(self) -> int:
        return len(self._index) // _KERNEL.size

    def _found(self, digest: bytes) -> tuple[bytes, int, int, int] | None:
        """The entry of a kernel, by bisection."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            at = _KERNEL.size * middle
            if self._index[at : at + len(digest)] < digest:
                low = middle + 1
            else:
                high = middle
        if low == len(self):
            return None
        have, *rest = _KERNEL.unpack_from(self._index, _KERNEL.size * low)
        return (rest[0], rest[1], rest[2], rest[3]) if have == digest else None

    def has(self, digest: bytes) -> bool:
        """Whether there is machine code for a digest of source and architecture."""
        return self._found(digest) is not None

    def get(self, digest: bytes) -> bytes | None:
        """The machine code for a digest; None where there is none, or it is damaged."""
        found = self._found(digest)
        if found is None:
            return None
        sum_, number, begin, length = found
        try:
            code = self._group(number)[begin : begin + length]
        except (OSError, ValueError, ImportError) as error:
            logger.info("a packed kernel is ignored: %s", error)
            return None
        if hashlib.sha256(code).digest() != sum_:
            logger.info("a packed kernel is ignored: %s: damaged", self.path)
            return None
        return code

    def _group(self, number: int) -> bytes:
        last, data = self._last
        if last != number:
            at, size, raw = _GROUP.unpack_from(self._groups, _GROUP.size * number)
            lzma, filters = _codec()
            with store.opened(self.path, self._like) as (handle, info):
                # The file may have been replaced since its index was read.
                if max(size, raw) > _MOST_BYTES or at + size > info.st_size:
                    raise ValueError(f"{self.path}: damaged")
                os.lseek(handle, at, os.SEEK_SET)
                blob = _exactly(handle, size)
            decoder = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)
            try:
                data = decoder.decompress(blob, max_length=raw)
            except lzma.LZMAError as error:
                raise ValueError(f"{self.path}: damaged: {error}") from None
            self._last = number, data
        return data


def _exactly(handle: int, size: int) -> bytes:
    """So many bytes from where a file stands; fewer only at its end."""
    parts = []
    while size and (part := os.read(handle, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
