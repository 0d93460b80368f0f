"""Kernels that are installed: a wheel for each family of architectures, with an archive in it.

`baracuda-kernels-sm80` has the package `baracuda_kernels_sm80`, whose file `kernels.pack` is the
archive. Code for the first architecture of a family runs on the others. A kernel is found by the
digest of its source and of that architecture: what another version of baracuda has compiled is
found as long as the source is the same, whatever NVRTC compiled it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import sys
import zipfile
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path

from baracuda.backends.cuda.archive import Archive
from baracuda.instruments import logger

FAMILIES = {
    "sm_80": ("sm_80", "sm_86", "sm_89"),
    "sm_90": ("sm_90",),
    "sm_100": ("sm_100", "sm_103"),
    "sm_120": ("sm_120", "sm_121"),
}
"""Which architectures run code that was compiled for the first of them.

sm_87 is not one of them: code for other devices does not run on those of Tegra.
"""

FILE = "kernels.pack"
# Part of every digest: another number where kernels are compiled with other options.
_OPTIONS = b"baracuda kernels 1: c++17, minimal\0"


class Wheel:
    """The kernels of one installed wheel.

    Parameters
    ----------
    family : str
        One of `FAMILIES`.
    archive : Archive
    """

    def __init__(self, family: str, archive: Archive) -> None:
        self.family, self.archive = family, archive

    def __str__(self) -> str:
        return f"{distribution(self.family)} {self.archive.description['version']}"

    def get(self, digest: bytes) -> bytes | None:
        """The machine code for a digest of `digest`; None where the wheel has none."""
        return self.archive.get(digest)

    def key(self, digest: bytes) -> bytes:
        """The key of such code in the cache on disk: that of another wheel is another's."""
        return b"wheel" + self.archive.identity + digest


def distribution(family: str) -> str:
    """The name of a family's wheel."""
    return f"baracuda-kernels-{family.replace('_', '')}"


def _package(family: str) -> str:
    return distribution(family).replace("-", "_")


def family_of(arch: str) -> str | None:
    """The family of an architecture; None where no code for another runs on it."""
    return next((family for family, members in FAMILIES.items() if arch in members), None)


def digest(source: str, family: str) -> bytes:
    """What a kernel is found by: its whole source, and the architecture that it is compiled for."""
    return hashlib.sha256(_OPTIONS + family.encode() + b"\0" + source.encode()).digest()


def place(family: str) -> Path | None:
    """Where the archive of a family is installed, if it is. The package is not imported."""
    # Not `find_spec`: `import baracuda` may have been given import hooks that are slow or fail.
    found = PathFinder.find_spec(_package(family), sys.path)
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder) / FILE
        if path.exists():
            return path
    return None


def _own() -> os.stat_result:
    """Of this very file: who can write it can make the process run anything already."""
    return os.stat(__file__)


def opened(family: str) -> Wheel | None:
    """The installed wheel of a family, None where there is none.

    Raises
    ------
    OSError, ValueError
        Where it is damaged, or those could have written it who could not write this package.
    """
    path = place(family)
    if path is None:
        return None
    archive = Archive(path, _own())
    if archive.description.get("arch") != family or "version" not in archive.description:
        raise ValueError(f"{path}: damaged: it is not for {family}")
    return Wheel(family, archive)


@cache
def of(arch: str) -> Wheel | None:
    """The installed wheel for an architecture; None, and a reason in the log, where it is no use.

    Looked for once in a process.
    """
    family = family_of(arch)
    try:
        return opened(family) if family is not None else None
    except (OSError, ValueError) as error:
        logger.warning("a wheel of kernels is ignored: %s", error)
        return None


def installed() -> bool:
    """Whether there is a wheel for any architecture."""
    return any(place(family) is not None for family in FAMILIES)


# -- making one ------------------------------------------------------------------------------------


def write(folder: Path, family: str, archive: bytes, version: str) -> Path:
    """Write the wheel of a family, and return its path. The same archive makes the same file."""
    name, package = distribution(family), _package(family)
    info = f"{package}-{version}.dist-info"
    archs = ", ".join(FAMILIES[family])
    files = {
        f"{package}/__init__.py": f'"""Compiled kernels of baracuda for {archs}."""\n'.encode(),
        f"{package}/{FILE}": archive,
        f"{info}/METADATA": (
            f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
            f"Summary: Compiled CUDA kernels of baracuda for {archs}\n"
            "License-Expression: Apache-2.0\nRequires-Python: >=3.11\n"
            "Description-Content-Type: text/plain\n\n"
            f"baracuda finds these kernels where they are installed, and compiles the rest.\n"
        ).encode(),
        f"{info}/WHEEL": (
            b"Wheel-Version: 1.0\nGenerator: baracuda\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    lines = []
    for path, data in files.items():
        sum_ = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={sum_},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*lines, f"{info}/RECORD,,\n"]).encode()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as out:
        for path, data in files.items():
            # The date is the first that there can be: a wheel does not say when it was made.
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            out.writestr(entry, data)
    to = folder / f"{package}-{version}-py3-none-any.whl"
    to.write_bytes(whole.getvalue())
    return to
