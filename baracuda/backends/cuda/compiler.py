"""From an entry point to a cubin: one text without includes; a wheel, a cache on disk, or NVRTC.

The sources include each other only, so an entry point compiles from a single text. That text is the
key of the cache, together with options and compiler: no stale header can hide behind it. A wheel of
kernels is asked first, so that NVRTC need not even be loaded where it has the kernel.
"""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from baracuda.backends.cuda import wheels
from baracuda.backends.cuda.store import Store
from baracuda.declaration.backend import Refusal
from baracuda.instruments import logger

SOURCES = Path(__file__).parents[2] / "cuda_src"
INCLUDE = re.compile(r'#include "(.+)"$', re.MULTILINE)
_USAGE = re.compile(
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)
# Each report begins with the name of its kernel.
_REPORT = re.compile(r"entry function '(\w+)'(.*?)(?=entry function|\Z)", re.DOTALL)


class Entry(NamedTuple):
    """One kernel: a schedule with all its template arguments.

    Attributes
    ----------
    file : str
        The family's source file.
    symbol : str
        Name of the entry point.
    schedule : str
        The instantiated schedule, in C++.
    threads : int
        Threads per block.
    nbytes : int
        Size of its arguments as the host packs them; the compiler checks it.
    cluster : int
        Blocks that stand together; more than one needs compute capability 9.0.
    reads : str
        What `Reading` in common/reading.cuh takes besides: where run-time values are that lie on
        the device, and their types; "" where all are numbers.
    """

    file: str
    symbol: str
    schedule: str
    threads: int
    nbytes: int
    cluster: int = 1
    reads: str = ""

    @property
    def runs(self) -> str:
        """What the entry point runs, in C++."""
        return f"Reading<{self.schedule}, {self.reads}>" if self.reads else self.schedule

    @property
    def text(self) -> str:
        """The sources that it is compiled from."""
        files = (self.file, "common/reading.cuh") if self.reads else (self.file,)
        return "".join(map(flattened, files))

    @property
    def kernel(self) -> str:
        """What makes the schedule a kernel, behind the sources."""
        numbers = f"{self.symbol}, {self.threads}, {self.nbytes}"
        if self.cluster > 1:
            return f"KERNEL_IN_CLUSTERS({numbers}, {self.cluster}, {self.runs})"
        return f"KERNEL({numbers}, {self.runs})"

    @property
    def source(self) -> str:
        """The whole text that is compiled."""
        return f"{self.text}\nusing namespace baracuda;\n{self.kernel}\n"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a kernel takes of a multiprocessor, in registers and bytes per thread."""

    registers: int
    stack: int
    spilled: int


@cache
def flattened(file: str) -> str:
    """A source file with everything that it includes, each once."""
    seen: set[Path] = set()

    def text(path: Path) -> str:
        if path in seen:
            return ""
        seen.add(path)
        inner = path.read_text(encoding="utf-8").replace("#pragma once\n", "")
        return INCLUDE.sub(lambda match: text(beside(path, match[1])), inner)

    return text((SOURCES / file).resolve())


def beside(path: Path, name: str) -> Path:
    """The file that `path` includes as `name`: one of its own folder, or one of the package."""
    own = (path.parent / name).resolve()
    return own if own.is_file() else (SOURCES / name).resolve()


def cache_directory() -> Path | None:
    """Where cubins are kept: `BARACUDA_CACHE_DIR`, or the user's own cache folder.

    None where the user has no home.
    """
    own = os.environ.get("BARACUDA_CACHE_DIR")
    if own:
        return Path(own) / "kernels"
    root = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "baracuda" / "kernels"
    except RuntimeError:
        return None


@lru_cache(maxsize=1)
def _disk() -> Store | None:
    """The cache on disk; None, which is said once, where there can be none."""
    folder, reason = cache_directory(), "there is no home directory"
    if folder is not None:
        try:
            return Store(folder)
        except OSError as error:
            reason = str(error)
    logger.warning(
        "compiled kernels are not kept: %s; BARACUDA_CACHE_DIR names a folder for them", reason
    )
    return None


def _options(arch: str, **more: Any) -> Any:
    from cuda.core import ProgramOptions

    # minimal: nothing here uses textures, surfaces or the device runtime.
    return ProgramOptions(name="baracuda", arch=arch, std="c++17", minimal=True, **more)


def _key(entry: Entry, arch: str) -> bytes:
    from cuda.core.utils import make_program_cache_key

    key: bytes = make_program_cache_key(
        code=entry.source, code_type="c++", options=_options(arch), target_type="cubin"
    )
    return key


@cache
def missing() -> str | None:
    """What to install to compile kernels that no wheel has; None where NVRTC is there."""
    try:
        version("nvidia-cuda-nvrtc")
    except PackageNotFoundError:
        return "NVRTC is not installed: pip install 'baracuda[cuda]'"
    return None


@cache
def nvrtc_version() -> str:
    """Of the NVRTC that compiles here; the cache keeps apart what different ones have compiled.

    Raises
    ------
    ImportError, RuntimeError
        Where there is none.
    """
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC does not say its version: {status.name}")
    return f"{major}.{minor}"


# Where the machine code is from that this process was given.
_origins: dict[tuple[Entry, str], str] = {}
# Kernels whose code from a wheel the driver did not take.
_unfit: set[tuple[Entry, str]] = set()


def origin(entries: Iterable[Entry], arch: str) -> str:
    """Where the code of kernels is from: wheels by name and version, NVRTC; "" for no kernel."""
    found = [_origins.get((entry, arch), "") for entry in entries]
    return " + ".join(dict.fromkeys(filter(None, found)))


def cubin(entry: Entry, arch: str) -> bytes:
    """The machine code of `entry` for `arch` (``sm_90``): of a wheel, from the disk, or compiled.

    Raises
    ------
    Refusal
        Where it is in no wheel, and NVRTC is not installed.
    """
    wheel = wheels.of(arch)
    if wheel is not None and (entry, arch) not in _unfit:
        code = _unpacked(wheel, entry, arch)
        if code is not None:
            _origins[entry, arch] = str(wheel)
            return code
    if (reason := missing()) is not None:
        raise Refusal(f"has no compiled kernel {entry.symbol} for {arch}, and {reason}")
    code = compiled(entry, arch)
    _origins[entry, arch] = f"NVRTC {nvrtc_version()}"
    return code


def _unpacked(wheel: wheels.Wheel, entry: Entry, arch: str) -> bytes | None:
    """The code that a wheel has for `entry`, which is kept on the disk once it is unpacked."""
    disk, digest = _disk(), wheels.digest(entry.source, wheel.family)
    key = wheel.key(digest)
    found = disk.get(key) if disk is not None else None
    if found is None:
        found = wheel.get(digest)
        if found is not None:
            logger.debug("unpacked %s for %s from %s", entry.symbol, arch, wheel)
            _keep(key, found, entry, arch)
    return found


def compiled(entry: Entry, arch: str) -> bytes:
    """What NVRTC makes of `entry` for `arch`, from the disk where it is there."""
    from cuda.core import Program

    disk = _disk()
    key = _key(entry, arch) if disk is not None else b""
    found = disk.get(key) if disk is not None else None
    if found is not None:
        logger.debug("read %s for %s from the disk", entry.symbol, arch)
        return found
    start = time.perf_counter()
    code = bytes(Program(entry.source, "c++", _options(arch)).compile("cubin").code)
    took = (time.perf_counter() - start) * 1e3
    logger.debug("compiled %s for %s in %.0f ms", entry.symbol, arch, took)
    _keep(key, code, entry, arch)
    return code


def _keep(key: bytes, code: bytes, entry: Entry, arch: str) -> None:
    """Put code on the disk. A full or read-only one costs the next process time, no more."""
    disk = _disk()
    if disk is not None:
        try:
            disk.put(key, code)
        except OSError as error:
            logger.info("%s for %s is not kept: %s", entry.symbol, arch, error)


def usable() -> bool:
    """Whether there is a cache on disk."""
    return _disk() is not None


def kept(entry: Entry, arch: str) -> bool:
    """Whether the cache on disk has what NVRTC made of `entry`."""
    disk = _disk()
    return disk is not None and disk.get(_key(entry, arch)) is not None


def packed(entry: Entry, arch: str) -> bool:
    """Whether an installed wheel has the machine code of `entry`."""
    wheel = wheels.of(arch)
    return wheel is not None and wheel.archive.has(wheels.digest(entry.source, wheel.family))


def forget(entry: Entry, arch: str) -> None:
    """Look for other code of `entry`, in this process and on the disk: it could not be loaded."""
    disk, wheel = _disk(), wheels.of(arch)
    if wheel is not None and (entry, arch) not in _unfit and packed(entry, arch):
        _unfit.add((entry, arch))
        if disk is not None:
            disk.drop(wheel.key(wheels.digest(entry.source, wheel.family)))
    elif disk is not None:
        disk.drop(_key(entry, arch))


def usage(entry: Entry, arch: str) -> Usage:
    """Compile, past the cache, and read the assembler's report."""
    return usages([entry], arch)[entry]


def usages(entries: Sequence[Entry], arch: str) -> dict[Entry, Usage]:
    """`usage` of kernels of one source, which is read once for all."""
    from cuda.core import Program

    log, (first, *others) = io.StringIO(), entries
    source = first.source + "".join(f"{entry.kernel}\n" for entry in others)
    Program(source, "c++", _options(arch, ptxas_options=["-v"])).compile("cubin", logs=log)
    found = re.sub(r"ptxas\s+\.", "", log.getvalue())
    reports = dict(_REPORT.findall(found))
    used = {}
    for entry in entries:
        match = _USAGE.search(reports.get(entry.symbol, ""))
        if match is None:
            raise RuntimeError(f"{entry.symbol}: no resource report in {found!r}")
        spilled = int(match["stores"]) + int(match["loads"])
        used[entry] = Usage(int(match["registers"]), int(match["stack"]), spilled)
    return used
