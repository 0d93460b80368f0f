"""``python -m baracuda warmup``: kernels compiled into the cache on disk, or into wheels."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from baracuda import __version__, layouts
from baracuda.backends.cuda import archive, compiler, precompile, wheels
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import DeviceFacts
from baracuda.backends.cuda.precompile import Phantom
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dtypes import FLOATS, INDICES, named
from baracuda.declaration.roles import Wide
from baracuda.declaration.shapes import Axes, Signature
from baracuda.declaration.spec import Case, OpSpec, Problem
from baracuda.errors import ArgumentValueError
from baracuda.layouts import Shape
from baracuda.testing.cases import mixtures, options_of, tried
from baracuda.testing.problems import device_rows
from baracuda.testing.timed_row import Row
from baracuda.tools import CannotRun, chosen, emit, folder, gpus, needs, one_line, progress

# Extents are multiples of the widest access from here on, and of so many bytes behind a row.
_EVEN = 16
# Small extents times this are rows that a block takes.
_ROW = 256
# What a wheel may have: package indexes take no larger files.
_MOST_BYTES = 100_000_000
# Run-time values that loops keep on the device: what clips a norm or undoes a scale of the loss,
# and in a CUDA graph what a schedule changes.
_ON_DEVICE = ({"grad_scale", "found_inf"}, {"grad_scale", "found_inf", "lr", "step"})
# So many rows have more elements than 32 bits count, in no more blocks than one launch has.
_MANY = 1 << 26

X = TypeVar("X")
Y = TypeVar("Y")


class Task(NamedTuple):
    """One kernel to have for one architecture."""

    entry: Entry
    arch: str
    label: str


class Each(Protocol):
    """`map`, in this process or in others."""

    def __call__(self, of: Callable[[X], Y], every: Iterable[X], /) -> Iterator[Y]:
        """What a function makes of each, in order."""


@contextmanager
def processes(jobs: int) -> Iterator[Each]:
    """Several processes, as NVRTC compiles one kernel at a time; none beside this one for 1 job."""
    if jobs < 2:
        yield map
        return
    # A process that was forked would have the locks of threads that it does not have.
    with ProcessPoolExecutor(
        jobs,
        mp_context=get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    ) as pool:
        yield pool.map


# -- which problems --------------------------------------------------------------------------------


def sizes(case: Case) -> Iterator[Axes]:
    """The axes of a case: small and odd as they are, even, with a very large batch, long."""
    for one, first in ((1, 1), (_EVEN, _EVEN), (_EVEN, _MANY), (_ROW, _EVEN)):
        yield {
            name: tuple([n * (one if i else first) for i, n in enumerate(extent)])
            if isinstance(extent, tuple)
            else extent * one
            for name, extent in case.axes.items()
        }


def c_order(shape: Shape) -> Shape | None:
    """As arrays are made."""
    return None


def padded(shape: Shape) -> Shape:
    """With room behind each axis, rows still a multiple of the widest access apart."""
    step, out = 1, []
    for extent in reversed(shape):
        out.append(step)
        step = step * extent + _EVEN
    return tuple(reversed(out))


def stepped(shape: Shape) -> Shape:
    """Every other element of an array."""
    return tuple([2 * step for step in layouts.contiguous(shape)])


def shared(shape: Shape) -> Shape:
    """Broadcast along all axes but the first."""
    return (*layouts.contiguous(shape)[:1], *[0 for _ in shape[1:]])


# How the arrays of a call lie: the floating ones, the integer one.
_LAYOUTS = ((c_order, c_order), (padded, padded), (stepped, stepped), (c_order, shared))


def problems(spec: OpSpec, dtype: str) -> Iterator[Problem]:
    """The benchmark's problems of an op, then those of every form at the cases of its block."""
    for row in device_rows(dtype) if dtype in FLOATS else ():
        if row.op == spec.name:
            for index in INDICES:
                plain = _of_row(spec, row, dtype, index, ())
                yield plain
                for mixed in mixtures(spec, plain.signature, dtype)[1:]:
                    yield _of_row(spec, row, dtype, index, mixed)
    for case, form in tried(spec, spec.cases):
        integer = any(p.name in spec.integers for p in form.inputs)
        kinds, lying = INDICES[: 1 + integer], _LAYOUTS[: 3 + integer]
        for axes in sizes(case):
            try:
                options, axes = _completed(spec, case, form, axes)
            except ArgumentValueError:
                continue  # an option of the case fits its own axes alone
            for layout, index, fixed in product(lying, kinds, (False, True)):
                # Parameters and residual streams beside 16 bits lie as they are made.
                some = mixtures(spec, form, dtype) if layout is lying[0] else ((),)
                for mixed in some:
                    arrays = _arrays(spec, form, axes, dtype, index, layout, mixed)
                    yield precompile.problem(spec, arrays, options, fixed)


def _of_row(spec: OpSpec, row: Row, dtype: str, index: str, mixed: Sequence[Wide]) -> Problem:
    arrays = []
    for name, shape in zip(spec.arrays, row.shapes, strict=False):
        if name in spec.integers:
            pairs = zip(shape, row.broadcast, layouts.contiguous(shape), strict=True)
            steps = tuple([0 if have < want else step for have, want, step in pairs])
            arrays.append(Phantom(index, row.broadcast, steps))
        else:
            wide = spec.role(name).wide in mixed
            arrays.append(Phantom(named(dtype).accumulate if wide else dtype, shape))
    return precompile.problem(spec, arrays, row.options, row.deterministic)


def _completed(
    spec: OpSpec, case: Case, form: Signature, axes: Axes
) -> tuple[dict[str, Any], Axes]:
    """The options of a case at such axes, and the axes with those that are derived."""
    options = options_of(spec, case)
    options |= {p.name: p.shape(axes) for p in form.inputs if p.is_option}
    if spec.resolve is not None:
        normal = check.arguments(spec, spec.options, options)
        axes = {**axes, **spec.resolve(spec.name, dict(axes), normal)}
    return options, axes


def _arrays(
    spec: OpSpec,
    form: Signature,
    axes: Axes,
    dtype: str,
    index: str,
    layout: Sequence[Callable[[Shape], Shape | None]],
    mixed: Sequence[Wide],
) -> list[Phantom | None]:
    found = {}
    for pattern in form.inputs:
        if not pattern.is_option:
            integer, shape = pattern.name in spec.integers, pattern.shape(axes)
            kind = spec.dtype_of(pattern.name, dtype, index)
            if spec.role(pattern.name).wide in mixed:
                kind = named(dtype).accumulate
            found[pattern.name] = Phantom(kind, shape, layout[integer](shape))
    return [found.get(name) for name in spec.arrays]


Devices = Mapping[str, Sequence[DeviceFacts]]


def tasks(
    ops: Sequence[str], dtypes: Sequence[str], devices: Devices, each: Each = map
) -> list[Task]:
    """Every kernel of these ops for these dtypes and architectures, each once."""
    found: dict[tuple[Entry, str], Task] = {}
    for some in each(_of_one, [(op, dtype, devices) for op, dtype in product(ops, dtypes)]):
        for task in some:
            found.setdefault((task.entry, task.arch), task)
    return list(found.values())


def _of_one(of: tuple[str, str, Devices]) -> list[Task]:
    op, dtype, devices = of
    spec = registry[op].spec
    if dtype not in spec.dtypes or spec.kernel is None:
        return []
    every, reads = list(problems(spec, dtype)), _read(spec)
    found = (
        Task(entry, arch, f"{op} {dtype} {arch}")
        for (arch, facts), problem in product(devices.items(), every)
        for entry in precompile.entries(problem, facts, reads)
    )
    return list(dict.fromkeys(found))


def _read(spec: OpSpec) -> list[tuple[str, ...]]:
    """Which run-time values of an op are read on the device, as `precompile.entries` takes it."""
    every = [tuple(["float32" * (x in names) for x in spec.scalars]) for names in _ON_DEVICE]
    return [each for each in dict.fromkeys(every) if any(each)]


# -- compiling -------------------------------------------------------------------------------------


def failure(task: Task) -> str | None:
    """Compile a kernel into the cache; why that did not work."""
    try:
        precompile.keep(task.entry, task.arch)
    except Exception as error:
        return one_line(error)
    return None


def compile_all(
    tasks: Sequence[Task], each: Each, show: Callable[[str], None]
) -> dict[Task, str | None]:
    """`failure` of every task."""
    out = {}
    found = each(failure, tasks)
    for task in tasks:
        show(task.label)
        out[task] = next(found)
    return out


# -- packing ---------------------------------------------------------------------------------------


class Packed(NamedTuple):
    """One wheel that was written."""

    path: Path
    kernels: int
    nbytes: int


def pack(to: Path, wanted: Sequence[Task]) -> list[Packed]:
    """Write the wheel of each architecture, of kernels that are in the cache on disk.

    Raises
    ------
    CannotRun
        Where a wheel would be larger than package indexes take; nothing is written of it.
    """
    out = []
    for arch in dict.fromkeys(task.arch for task in wanted):
        entries = [task.entry for task in wanted if task.arch == arch]
        data = archive.packed(
            {"arch": arch, "version": __version__, "nvrtc": compiler.nvrtc_version()},
            (
                archive.Kernel(e.symbol, wheels.digest(e.source, arch), compiler.compiled(e, arch))
                for e in entries
            ),
        )
        if len(data) > _MOST_BYTES:
            raise CannotRun(
                f"--pack: {len(entries)} kernels for {arch} take {len(data):,} bytes, and a wheel "
                f"may have {_MOST_BYTES:,}: name fewer --ops or --dtypes"
            )
        path = wheels.write(to, arch, data, __version__)
        out.append(Packed(path, len(entries), path.stat().st_size))
    return out


# -- the command -----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``baracuda warmup``."""
    parser.description = (
        "Compile kernels into the cache on disk, for devices that need not be here, so that an "
        "image starts warm: those of the benchmark's problems, and of small, odd, strided and very "
        "large ones of every form. What else is called compiles when it is first called. NVRTC "
        "must be of the same version (major.minor) where the kernels are used, and so must "
        "baracuda: what others compiled is not found. BARACUDA_CACHE_DIR moves the cache; its "
        "files belong to the user who runs this, and nobody else may read them unless --share."
    )
    parser.add_argument("--ops", nargs="+", metavar="OP", help="only these ops, or families")
    parser.add_argument(
        "--dtypes", nargs="+", metavar="DTYPE", default=FLOATS, choices=sorted(_dtypes()),
        help=f"default: {' '.join(FLOATS)}",
    )  # fmt: skip
    parser.add_argument(
        "--arch", nargs="+", metavar="ARCH", choices=precompile.ARCHS,
        help=f"default: those of the devices here; any of {' '.join(precompile.ARCHS)}",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (all cores)"
    )
    parser.add_argument(
        "--share",
        action="store_true",
        help="let every user of the machine read the cache; they take it from root alone",
    )
    parser.add_argument(
        "--pack",
        type=Path,
        metavar="FOLDER",
        help="write wheels of these kernels there, one for each architecture and its family "
        f"(default: {' '.join(wheels.FAMILIES)}); where one is installed nothing in it is compiled",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _dtypes() -> set[str]:
    return {dtype for op in registry.values() for dtype in op.spec.dtypes}


def run(arguments: argparse.Namespace) -> int:
    """Compile, say what was, and return the exit status: 1 where a kernel does not compile."""
    ops = chosen(arguments.ops)
    for module in ("cuda.core", "cuda.bindings.nvrtc"):
        needs(module, "warmup", "cuda")
    try:
        version = compiler.nvrtc_version()
    except (ImportError, RuntimeError) as error:
        install = "pip install 'baracuda[cuda]'"
        raise CannotRun(f"NVRTC cannot be loaded: {one_line(error)}: {install}") from error
    to: Path | None = arguments.pack
    devices = _devices(arguments.arch) if to is None else _families(arguments.arch)
    if to is not None and not to.is_dir():
        raise CannotRun(f"--pack: no directory {to}; mkdir -p {to} makes it")
    if not compiler.usable():
        raise CannotRun(f"the cache cannot be written: {folder().path or folder()}")
    start = time.perf_counter()
    with processes(arguments.jobs) as each:
        wanted = tasks(ops, arguments.dtypes, devices, each)
        # What is packed is what NVRTC makes here, whatever wheels are installed.
        missing = [
            task
            for task in wanted
            if not compiler.kept(task.entry, task.arch)
            and (to is not None or not compiler.packed(task.entry, task.arch))
        ]
        quiet = nullcontext(lambda text: None)
        with quiet if arguments.json else progress(len(missing)) as show:
            results = compile_all(missing, each, show)
    failed = {f"{t.entry.symbol} for {t.arch}": why for t, why in results.items() if why}
    # A wheel without what should be in it would be found out much later.
    made = pack(to, wanted) if to is not None and not failed else []
    seconds = time.perf_counter() - start
    if arguments.share:
        share()
    compiled, there = len(missing) - len(failed), len(wanted) - len(missing)
    if arguments.json:
        emit(
            {"nvrtc": version, "archs": list(devices), "compiled": compiled, "there": there,
             "failed": failed, "kernels": dict(Counter(task.label for task in wanted)),
             "wheels": [one._asdict() | {"path": str(one.path)} for one in made],
             "seconds": seconds, **folder().record()}
        )  # fmt: skip
    else:
        for name, why in failed.items():
            print(f"{name} does not compile: {why}")
        print(
            f"{compiled} kernels compiled by NVRTC {version} for {', '.join(devices)} in "
            f"{seconds:.1f} s, {there} were there\n{folder()}"
        )
        for wheel in made:
            print(f"{wheel.path}: {wheel.kernels} kernels, {wheel.nbytes:,} bytes")
    return int(bool(failed))


def _families(archs: Sequence[str] | None) -> dict[str, Sequence[DeviceFacts]]:
    """What to pack for: of each family all devices, as schedules may choose otherwise on them."""
    for arch in archs or ():
        if arch not in wheels.FAMILIES:
            family = wheels.family_of(arch)
            hint = f"that of {family} has its kernels" if family else "each kernel compiles there"
            raise CannotRun(f"--pack: there is no wheel for {arch}: {hint}")
    return {arch: precompile.family(arch) for arch in archs or wheels.FAMILIES}


def _devices(archs: Sequence[str] | None) -> dict[str, Sequence[DeviceFacts]]:
    """What to compile for."""
    if archs:
        return {arch: precompile.devices(arch) for arch in archs}
    here = gpus()
    if not here:
        raise CannotRun("there is no NVIDIA device here: name one, such as --arch sm_90")
    from baracuda.backends.cuda.launch import device_facts

    found: dict[str, Sequence[DeviceFacts]] = {}
    for gpu in here:
        found[gpu.arch] = (*found.get(gpu.arch, ()), device_facts(gpu.ordinal))
    return found


def share() -> None:
    """Let everybody read what is in the cache, which is private to its owner otherwise."""
    found = folder()
    if found.path is None:
        return
    # Others pass through the folder above, which this user may have made for nobody else.
    with suppress(OSError):
        found.path.parent.chmod(found.path.parent.stat().st_mode | 0o111)
    for path in (found.path, *(p for p in found.path.rglob("*") if p.is_dir())):
        path.chmod(path.stat().st_mode | 0o555)
    for path in found.files:
        path.chmod(path.stat().st_mode | 0o444)
