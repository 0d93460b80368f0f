"""``python -m baracuda doctor``: what is installed here, what works, and what mends the rest."""

from __future__ import annotations

import argparse
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from baracuda import __version__, backends
from baracuda.backends.cuda import compiler, precompile, unavailable, wheels
from baracuda.calls.op import registry
from baracuda.testing.cases import Subject, to_numpy
from baracuda.tools import (
    LIBRARIES,
    CannotRun,
    emit,
    folder,
    gpus,
    one_line,
    place,
    table,
    why_not,
)

# What is compiled and run to prove that it can be, and for which devices where there are none.
EXAMPLE, ARCH = "swiglu", "sm_90"
_TOLERANCE = 1e-5
# What a machine without a GPU says, which is no fault of it.
_NO_GPU = ("cannot load the NVIDIA driver", "CUDA_ERROR_NO_DEVICE")


class Package(NamedTuple):
    """What baracuda can use: its distribution, its module, and the extra that installs it."""

    name: str
    module: str
    extra: str


PACKAGES = (
    Package("numpy", "numpy", ""),
    Package("array-api-compat", "array_api_compat", ""),
    Package("torch", "torch", "torch"),
    Package("cupy-cuda13x", "cupy", "cupy"),
    Package("jax", "jax", "jax"),
    Package("cuda-core", "cuda.core", "cuda"),
    Package("cuda-bindings", "cuda.bindings.driver", "cuda"),
    Package("nvidia-cuda-nvrtc", "cuda.bindings.nvrtc", "cuda"),
    Package("ml-dtypes", "ml_dtypes", "bf16"),
    Package("rich", "rich", "cli"),
)


class Finding(NamedTuple):
    """One line of the report: what was looked at, what was found, and whether it is a fault."""

    name: str
    state: str
    text: str = ""

    @property
    def fault(self) -> bool:
        """Whether something that is installed does not work."""
        return self.state == "broken"


# -- what is installed -----------------------------------------------------------------------------


def libraries() -> list[Finding]:
    """Every package with its version, or what installs it."""
    return [_library(package) for package in PACKAGES]


def _library(package: Package) -> Finding:
    name, install = package.name, f"pip install 'baracuda[{package.extra}]'"
    try:
        have = version(name)
    except PackageNotFoundError:
        try:
            # Built from source, or for another CUDA.
            have = str(import_module(package.module).__version__)
        except Exception:
            return Finding(name, "missing", install)
    wanted = least(name)
    if _numbers(have) < _numbers(wanted):
        return Finding(name, "broken", f"{have}, where {wanted} is needed: {install}")
    try:
        import_module(package.module)
    except Exception as error:
        return Finding(name, "broken", f"{have} cannot be imported: {one_line(error)}: {install}")
    if package.module in LIBRARIES:
        try:
            place(package.module)
        except CannotRun as error:
            # CuPy has arrays on GPUs alone.
            if package.module != "cupy" or gpus():
                return Finding(name, "broken", f"{have}: {error}")
    return Finding(name, "ok", have)


def least(package: str) -> str:
    """The oldest version that baracuda's own metadata allow."""
    with suppress(PackageNotFoundError):
        for line in requires("baracuda") or ():
            found = re.match(r"([\w-]+)\s*(?:\[.*\])?[^;]*?>=\s*([\d.]+)", line)
            if found and found[1] == package:
                return found[2]
    return "0"


def _numbers(text: str) -> tuple[int, ...]:
    """The leading digits of each part: 1.3rc1 is a 1.3."""
    parts = (re.match(r"\d*", part) for part in text.split("+")[0].split("."))
    return tuple(int(part[0] or 0) for part in parts if part)


# -- what works ------------------------------------------------------------------------------------


def devices() -> list[Finding]:
    """The NVIDIA devices with their driver, or why there are none."""
    reason = unavailable()
    if reason is None:
        driver = import_module("cuda.bindings.driver")
        number = driver.cuDriverGetVersion()[1]
        found = [Finding("driver", "ok", f"CUDA {number // 1000}.{number % 1000 // 10}")]
        for gpu in gpus():
            text = f"{gpu.name}, {gpu.arch}, {gpu.multiprocessors} multiprocessors"
            found.append(
                Finding(f"cuda:{gpu.ordinal}", "ok", f"{text}, {gpu.memory / 2**30:.0f} GiB")
            )
        return found
    if reason.startswith("needs "):
        return [Finding("driver", "not asked", reason)]
    return [Finding("driver", "none" if any(s in reason for s in _NO_GPU) else "broken", reason)]


def compiles() -> Finding:
    """One kernel, compiled past the cache: for the first device here, else for `ARCH`."""
    here = gpus()
    arch = here[0].arch if here else ARCH
    spec = registry[EXAMPLE].spec
    problem = precompile.problem(spec, [precompile.Phantom("float32", (64, 256))], {})
    entry = next(precompile.entries(problem, precompile.devices(ARCH)))
    try:
        nvrtc = compiler.nvrtc_version()
        start = time.perf_counter()
        use = compiler.usage(entry, arch)
    except Exception as error:
        return Finding("NVRTC", "broken", f"does not compile {entry.symbol}: {one_line(error)}")
    took = (time.perf_counter() - start) * 1e3
    there = "" if here else ", though no such device is here"
    text = f"compiled {entry.symbol} for {arch}{there} in {took:.0f} ms, {use.registers} registers"
    return Finding("NVRTC", "ok", f"{nvrtc}, {text}")


def packed() -> list[Finding]:
    """The installed wheels of kernels, and what is in each."""
    found = []
    for family, archs in wheels.FAMILIES.items():
        name = wheels.distribution(family)
        try:
            wheel = wheels.opened(family)
        except (OSError, ValueError) as error:
            found.append(Finding(name, "broken", f"{error}: pip install --force-reinstall {name}"))
            continue
        if wheel is not None:
            facts, count = wheel.archive.description, len(wheel.archive)
            text = f"{facts['version']}, {count:,} kernels for {', '.join(archs)}"
            found.append(Finding(name, "ok", f"{text}, compiled by NVRTC {facts['nvrtc']}"))
    return found or [Finding("wheels", "none", "each kernel is compiled when it is first called")]


def disk() -> Finding:
    """The cache folder, and whether it can be written."""
    found = folder()
    if found.path is None:
        return Finding("cache", "broken", str(found))
    nearest = next(p for p in (found.path, *found.path.parents) if p.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK):
        return Finding("cache", "ok", str(found))
    return Finding("cache", "broken", f"{found}: cannot be written; BARACUDA_CACHE_DIR moves it")


def available() -> list[Finding]:
    """Every backend: what it computes here, or why it cannot."""
    return [_backend(name) for name in backends.names()]


def _backend(name: str) -> Finding:
    reason = why_not(name)
    if reason is not None:
        return Finding(name, "not here", reason)
    proved: list[str] = []
    for subject in _subjects(name):
        where = f"{subject.library} ({subject.device})"
        try:
            _prove(subject)
        except Exception as error:
            return Finding(name, "broken", f"{EXAMPLE} on {where}: {one_line(error)}")
        proved.append(where)
    return Finding(name, "ok", f"ran {EXAMPLE} on arrays of {', '.join(proved)}")


def _subjects(name: str) -> Iterator[Subject]:
    """The example on the arrays of every library that the backend takes here."""
    for library in LIBRARIES:
        with suppress(CannotRun):
            device = place(library)
            claims = backends.claims(registry[EXAMPLE].spec, library, device)
            # A library that was built for the CPU has no arrays for a backend on GPUs.
            if "float32" in claims.get(name, ()):
                yield Subject(EXAMPLE, name, library, "float32", device)


def _prove(subject: Subject) -> None:
    """Run the example, and compare with the definition in float64."""
    call = next(subject.calls())
    for got, want in zip(call.run(), call.reference(), strict=True):
        if not np.allclose(to_numpy(got), want, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise RuntimeError("the result is wrong")


# -- the command -----------------------------------------------------------------------------------


def examine() -> dict[str, list[Finding]]:
    """All findings, by chapter."""
    found = {"libraries": libraries(), "devices": devices()}
    states = {finding.name: finding.state for finding in found["libraries"]}
    needed = [package.name for package in PACKAGES if package.extra == "cuda"]
    kernel = Finding("NVRTC", "missing", "pip install 'baracuda[cuda]'")
    if all(states[name] == "ok" for name in needed):
        kernel = compiles()
    return found | {"kernels": [kernel, *packed(), disk()], "backends": available()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``baracuda doctor``."""
    parser.description = (
        "Say what is installed here, what works, and what mends the rest. Runs an op on every "
        "backend, and compiles a kernel, also without a GPU. Exit status 1 where something that "
        "is installed does not work; an extra that is missing is no fault."
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Examine, report, and return the exit status."""
    found = examine()
    faults = [finding for findings in found.values() for finding in findings if finding.fault]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    if arguments.json:
        chapters = {k: [finding._asdict() for finding in v] for k, v in found.items()}
        emit(
            {"version": __version__, "python": python, "machine": platform.platform(), **chapters,
             "cache": folder().record(), "faults": [finding.name for finding in faults]}
        )  # fmt: skip
        return int(bool(faults))
    root = Path(import_module("baracuda").__file__ or "").parent
    print(f"baracuda {__version__} at {root}, {python}, {platform.platform()}\n")
    for chapter, findings in found.items():
        table((chapter, "", ""), findings)
    for finding in faults:
        print(f"baracuda doctor: {finding.name}: {finding.text}", file=sys.stderr)
    if not faults:
        print("all that is installed works")
    return int(bool(faults))
