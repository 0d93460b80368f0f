"""Run the steps of a call on the CPU: the very sources, with fibers in place of threads."""

from __future__ import annotations

import ctypes
import math
import mmap
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from builds import built
from numpy.typing import NDArray

from baracuda.backends.cuda.compiler import SOURCES, Entry
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Step, Steps, strides_of
from baracuda.backends.cuda.schedules import plan
from baracuda.calls import check
from baracuda.calls.op import Op
from baracuda.declaration.dispatch import DEFAULT

HERE = Path(__file__).parent
# Few multiprocessors make few blocks.
FACTS = DeviceFacts(0, "sm_90", 4, 232448)
# What a host compiler does not know, and what stands for it.
_INSTEAD = (
    (r"#define HD __host__.*", "#define HD inline"),
    (r'_Pragma\("unroll[^"]*"\)', ""),
    (r"extern __shared__ __align__\(16\) (\w+) (\w+)\[\];", r"\1* \2 = emulated::shared<\1>();"),
    (r"__shared__ (\w+) (\w+)((?:\[\d+\])+);", r"auto& \2 = *emulated::fixed<\1\3>();"),
    # Behind what the schedule itself has there.
    (r"__shared__ Args (\w+);", r"auto& \1 = *emulated::copied<Args>();"),
    (r"__shared__ ([\w<>]+) (\w+);", r"auto& \2 = *emulated::fixed<\1>();"),
    (
        r"__shared__ (typename [\w:]+) (\w+)\[(.+)\];",
        r"using \2_array = \1[\3]; auto& \2 = *emulated::fixed<\2_array>();",
    ),
    (r'asm\("cvt\.f32\.f16 [^;]*;"[^;]*;', "y = emulated::from_f16(x.bits);"),
    (r'asm\("cvt\.rn\.bf16\.f32 [^;]*;"[^;]*;', "y.bits = emulated::to_bf16(x);"),
    (r'asm\("cvt\.rn\.f16\.f32 [^;]*;"[^;]*;', "y.bits = emulated::to_f16(x);"),
    (
        r'asm\("cvt\.rn\.(b?f16)x2\.f32 [^;]*;"[^;]*;',
        r"y = emulated::to_\1(low) | unsigned(emulated::to_\1(high)) << 16;",
    ),
    (
        r'asm\("max\.NaN\.(b?f16)x2 [^;]*;"[^;]*;',
        r"y = emulated::larger(a, b, emulated::from_\1);",
    ),
    # An access of a device traps where its address is no multiple of its size.
    (r"return \*(reinterpret_cast<const Vec<T, N>\*>\(p\));", r"return *emulated::at(\1);"),
    (r"\*(reinterpret_cast<Vec<T, N>\*>\(p\)) = v;", r"*emulated::at(\1) = v;"),
    (r'asm volatile\("ld\.acquire[^;]*;"[^;]*;', "x = *p;"),
    (r'asm volatile\("red\.release[^;]*;"[^;]*;', "++*p;"),
    (r'asm volatile\("createpolicy[^;]*;"[^;]*;', "policy = 0;"),
    (r'asm volatile\("ld\.global\.L1[^;]*;"[^;]*;', "std::memcpy(&v, p, sizeof v);"),
    (r'asm volatile\("st\.global\.(?:L2|cs)[^;]*;"[^;]*;', "std::memcpy(p, &v, sizeof v);"),
    (r"const u32 at = u32\(__cvta_generic_to_shared\(to\)\);", ""),
    (r'asm volatile\("cp\.async\.ca[^;]*;"[^;]*;', "std::memcpy(to, from, BYTES);"),
    (r'asm volatile\("cp\.async\.wait_all[^;]*;"[^;]*;', ""),
    (r'asm volatile\("prefetch[^;]*;"[^;]*;', ""),
    (r'asm volatile\("prefetch[^;]*;', ""),
)


@cache
def compiler() -> tuple[str, ...]:
    """A C++ compiler for the host."""
    for name in ("g++", "clang++", "c++"):
        if shutil.which(name):
            return (name,)
    if find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "c++")
    pytest.skip("needs a C++ compiler: g++, clang++, or pip install ziglang")


@cache
def _version() -> str:
    return subprocess.run([*compiler(), "--version"], capture_output=True, text=True).stdout


def _made(source: Path, flags: Sequence[str], kind: str, *headers: Path) -> Path:
    """A source that is compiled once for all that use it: `kind` is ``.hpp.gch`` or ``.o``."""

    def compiled(to: Path) -> None:
        how = ["-x", "c++-header"] if kind == ".hpp.gch" else ["-c"]
        command = [*compiler(), *flags, "-fPIC", *how, str(source), "-o", str(to)]
        subprocess.run(command, check=True, capture_output=True)

    return built(compiled, " ".join(flags), _version(), source, *headers, suffix=kind)


def shared_object(
    text: str,
    flags: Sequence[str],
    *headers: Path,
    first: Path | None = None,
    runs: Path | None = None,
) -> ctypes.CDLL:  # fmt: skip
    """C++ text that includes some headers, compiled for the host, and loaded.

    `first` is a header that every such text begins with, `runs` a source that is linked to it.
    """
    every = [path for path in (*headers, first, runs) if path]

    def compiled(to: Path) -> None:
        whole = to.with_suffix(".cpp")
        whole.write_text(text)
        command = [*compiler(), *flags, "-shared", "-fPIC", "-o", str(to), str(whole)]
        # Most of a header is the library's, of which g++ reads what it once compiled.
        if first and compiler() == ("g++",):
            command += ["-include", str(_made(first, flags, ".hpp.gch").with_suffix(""))]
        if runs:
            command.append(str(_made(runs, [*flags, "-O2"], ".o", *every)))
        done = subprocess.run(command, capture_output=True, text=True)
        whole.unlink()
        assert done.returncode == 0, done.stderr[:4000]

    # Headers count by what they say, wherever they are.
    own = " ".join(flag for flag in flags if not flag.startswith("-I"))
    return ctypes.CDLL(str(built(compiled, text, own, _version(), *every, suffix=".so")))


def source(entries: Sequence[Entry]) -> str:
    """A C function for each entry of one file."""
    (_,) = {entry.file for entry in entries}
    # What reads run-time values has one header more, behind all others.
    text = max([entry.text for entry in entries], key=len)
    # What blocks of a cluster do together, and copies in bulk, are instructions: the whole headers
    # are stood in for.
    for name in ("cluster", "bulk"):
        text = text.replace(
            (SOURCES / f"common/{name}.cuh").read_text().partition('#include "vec.cuh"\n')[2],
            (HERE / f"emulated_{name}.hpp").read_text().replace("#pragma once\n", ""),
        )
    for pattern, instead in _INSTEAD:
        text = re.sub(pattern, instead, text)
    parts = ['#include "emulator.hpp"', text, "using namespace baracuda;"]
    parts += [
        f"using {e.symbol}_s = {e.runs};\n"
        f'static_assert(sizeof(typename {e.symbol}_s::Args) == {e.nbytes}, "packed otherwise");\n'
        f"static void {e.symbol}_runs(const void* args) {{\n"
        f"  {e.symbol}_s::run(*static_cast<const typename {e.symbol}_s::Args*>(args));\n}}\n"
        f'extern "C" void {e.symbol}(const void* args, unsigned x, unsigned y, unsigned threads,'
        f" unsigned shared, unsigned seed) {{\n"
        f"  emulated::launch({e.symbol}_runs, args, {{x, y, 1}}, threads, "
        f"{e.cluster}, shared, seed);\n}}"
        for e in entries
    ]
    return "\n".join(parts)


@cache
def library(entries: tuple[Entry, ...]) -> ctypes.CDLL:
    """The entries in a shared object of their own."""
    flags = ["-std=c++17", "-O0", "-w", "-ffp-contract=off", f"-I{HERE}"]
    # Vectors are read through pointers of other types; zig checks what is undefined by default.
    flags += ["-fno-strict-aliasing", "-fno-sanitize=all"]
    # Jumps between fibers are not what a hardened libc expects of a jump.
    flags += ["-U_FORTIFY_SOURCE"]
    first, runs = HERE / "emulator.hpp", HERE / "emulator.cpp"
    return shared_object(source(entries), flags, first=first, runs=runs)


_PAGE = mmap.PAGESIZE
_protect = ctypes.CDLL(None).mprotect


def outputs(call: Call) -> list[NDArray[Any]]:
    """Outputs of a call, each of its dtype, without values."""
    return [empty(x.shape, x.dtype) for x in call.problem.outputs]


def empty(shape: Sequence[int], dtype: str) -> NDArray[Any]:
    """An array full of what nobody should read, between pages that nobody can."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    nbytes = kind.itemsize * math.prod(shape)
    inner = -(-max(nbytes, 1) // _PAGE) * _PAGE
    whole = np.frombuffer(mmap.mmap(-1, inner + 2 * _PAGE), np.uint8)
    for page in (0, _PAGE + inner):
        assert _protect(ctypes.c_void_p(whole.ctypes.data + page), _PAGE, 0) == 0
    # As near to the end as an aligned address can be.
    first = _PAGE + inner - -(-nbytes // 16) * 16
    out = whole[first : first + nbytes]
    out.fill(0xCD)
    return out.view(kind).reshape(shape)


def placed(x: NDArray[Any]) -> NDArray[Any]:
    """A copy between such pages."""
    out = empty(x.shape, x.dtype.name)
    out[...] = x
    return out


def lying(x: NDArray[Any], how: str) -> NDArray[Any]:
    """A copy of `x`: dense, with room behind rows, every other element, or one element off."""
    if how == "dense" or x.ndim == 0:
        return placed(x)
    room = {"padded": 16, "stepped": x.shape[-1], "odd": 1}[how]
    wide = empty((*x.shape[:-1], x.shape[-1] + room), x.dtype.name)
    first, step = int(how == "odd"), 1 + (how == "stepped")
    view = wide[..., first::step][..., : x.shape[-1]]
    view[...] = x
    return view


def run(
    entries: tuple[Entry, ...],
    steps: Steps,
    arrays: Sequence[NDArray[Any]],
    seed: int = 0,
    scalars: Sequence[float] = (),
) -> None:
    """Run `steps` on inputs and outputs; `entries` are what is compiled together."""
    built = library(entries)
    every = [*arrays, *(empty(shape, dtype) for shape, dtype in steps.workspaces)]
    for step in steps.steps:
        if not isinstance(step, Step):
            ctypes.memset(every[step.slot].ctypes.data, 0, step.nbytes)
            continue
        words = [every[slot].ctypes.data + offset for slot, offset in step.front]
        front = np.asarray(words, np.uint64).tobytes()
        if step.scalars:
            front += struct.pack(f"<{step.scalars}", *scalars)
        arguments = ctypes.create_string_buffer(front + step.arguments[len(front) :])
        sizes = (*step.grid, step.threads, step.shared)
        getattr(built, step.entry.symbol)(arguments, *sizes, seed)
        wrong = ctypes.c_uint.in_dll(built, "emulated_misaligned")
        assert not wrong.value, f"{step.entry.symbol}: {wrong.value} misaligned accesses"


def work(steps: Steps) -> int:
    """So many threads are run, which is what takes time here."""
    return sum(math.prod(step.grid) * step.threads for step in steps.kernels)


def launched(
    op: Op[..., Any], arrays: Sequence[NDArray[Any]], options: dict[str, Any]
) -> list[NDArray[Any]]:
    """The outputs of a call of an elementwise op."""
    problem = check.problem(op.spec, arrays, options, DEFAULT)
    alignment = min(x.ctypes.data & -x.ctypes.data for x in arrays)
    outs = tuple(strides_of(x) for x in problem.outputs)
    steps = plan(Call(problem, FACTS, outs, alignment=min(alignment, 16)))
    made = [
        empty(x.shape[::-1], x.dtype).T if x.strides else empty(x.shape, x.dtype)
        for x in problem.outputs
    ]
    scalars = {**op.spec.usual, **options}
    values = [scalars[n] for n in op.spec.scalars]
    run(tuple(s.entry for s in steps.kernels), steps, [*arrays, *made], 0, values)
    return made
