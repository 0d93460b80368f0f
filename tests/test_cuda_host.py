"""The CUDA backend on a machine that need not have a GPU: refusals, the disk cache, indices."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import stub_device
from hypothesis import given
from hypothesis import strategies as st
from stub_device import on_gpu

import baracuda as bc
from baracuda.backends import cuda
from baracuda.backends.cuda import BACKEND, compiler, geometry, precompile, unavailable
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, Zero, strides_of
from baracuda.backends.cuda.precompile import Phantom
from baracuda.backends.cuda.schedules import plan, variants
from baracuda.calls import body, check
from baracuda.calls.op import registry
from baracuda.declaration.backend import Misfit, Refusal
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import Problem
from baracuda.layouts import Shape, contiguous
from baracuda.libraries.torch import _materialised

torch = pytest.importorskip("torch")
INSTALL = "pip install 'baracuda[cuda]'"
PRESENT = {"cuda-core": "1.2.0", "cuda-bindings": "13.0.1", "nvidia-cuda-nvrtc": "13.0.48"}


def installed(versions: dict[str, str]) -> Callable[[str], str]:
    def version(package: str) -> str:
        if package not in versions:
            raise PackageNotFoundError(package)
        return versions[package]

    return version


@pytest.fixture
def fresh() -> Iterator[None]:
    """What was found out about this machine is forgotten, before and after."""
    unavailable.cache_clear()
    yield
    unavailable.cache_clear()


# Refusals.


@pytest.mark.parametrize("package", list(PRESENT))
@pytest.mark.usefixtures("fresh")
def test_a_missing_package_is_named_with_its_extra(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    have = {name: version for name, version in PRESENT.items() if name != package}
    monkeypatch.setattr(cuda, "version", installed(have))
    assert BACKEND.refuses(on_gpu("glu", (2, 4))) == f"needs {package}: {INSTALL}"


@pytest.mark.parametrize(
    ("package", "old", "least"),
    [
        ("cuda-core", "1.1.9", "1.2"),
        ("cuda-core", "0.9.0", "1.2"),
        ("cuda-bindings", "12.9.4", "13.0"),
        ("nvidia-cuda-nvrtc", "12.8.93", "13.0"),
    ],
)
@pytest.mark.usefixtures("fresh")
def test_an_old_package_is_named_with_what_is_needed(
    package: str, old: str, least: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "version", installed({**PRESENT, package: old}))
    want = f"needs {package} >= {least}, found {old}: {INSTALL}"
    assert BACKEND.refuses(on_gpu("glu", (2, 4))) == want


@pytest.mark.parametrize(
    "newer",
    [
        "1.10.0",
        "2.0.0",
        "1.3.0rc1",
        "1.2.0.post1",
        "1.3rc1",
    ],
)
@pytest.mark.usefixtures("fresh")
def test_newer_packages_do(newer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "version", installed({**PRESENT, "cuda-core": newer}))
    assert "cuda-core" not in (unavailable() or "")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (RuntimeError("libcuda.so.1: no such file\nmore"), "cannot load the NVIDIA driver: "
         "libcuda.so.1: no such file"),
        ("CUDA_ERROR_NO_DEVICE", "the NVIDIA driver does not start: CUDA_ERROR_NO_DEVICE"),
        ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "the NVIDIA driver does not start: "
         "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
        ("CUDA_SUCCESS", None),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("fresh")
def test_what_the_driver_says_is_passed_on(
    answer: Any, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = pytest.importorskip("cuda.bindings.driver", reason=f"needs {INSTALL}")

    def init(flags: int) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return (getattr(driver.CUresult, answer),)

    monkeypatch.setattr(cuda, "version", installed(PRESENT))
    monkeypatch.setattr(driver, "cuInit", init)
    assert unavailable() == reason


@pytest.mark.usefixtures("fresh")
def test_bindings_that_do_not_import_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "version", installed(PRESENT))
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert (unavailable() or "").startswith("cannot load the NVIDIA driver: ")


def test_arrays_elsewhere_are_refused() -> None:
    x = torch.ones(2, 4)
    plan = bc.swiglu.plan(x)
    assert dict(plan.why)["cuda"] == "takes arrays on NVIDIA devices, not on cpu"
    with pytest.raises(NotImplementedError, match="cuda: takes arrays on NVIDIA devices, not on"):
        bc.swiglu(x, backend="cuda")
    with pytest.raises(NotImplementedError, match=r"cuda: takes arrays of [a-z, ]+, not of numpy"):
        bc.swiglu(np.ones((2, 4)), backend="cuda")


@pytest.mark.parametrize("mode", ["autograd", "traced"])
def test_tensors_that_are_watched_are_refused(mode: str) -> None:
    problem = replace(on_gpu("glu", (2, 4)), mode=mode)
    want = f"{mode} arrays need functions that can be differentiated and traced"
    assert BACKEND.refuses(problem) == want


def test_an_op_without_kernel_is_refused() -> None:
    problem = on_gpu("glu", (2, 4))
    problem = replace(problem, spec=replace(problem.spec, kernel=None))
    assert BACKEND.refuses(problem) == "has no kernel for glu"


@pytest.mark.parametrize(
    ("hip", "version", "reason"),
    [
        ("6.0", None, "this torch is built for AMD devices"),
        (None, None, "this torch is built without CUDA"),
        (None, "13.0", None),
    ],
)
def test_a_torch_for_other_devices_is_refused(
    hip: str | None, version: str | None, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(cuda, "unavailable", lambda: None)
    assert BACKEND.refuses(on_gpu("glu", (2, 4))) == reason


@pytest.fixture
def willing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lacks nothing."""
    monkeypatch.setattr(cuda, "unavailable", lambda: None)
    monkeypatch.setattr(cuda, "_arrays", lambda name: SimpleNamespace(refuses=lambda: None))


# Forms of gather_backward for shapes of dout and src along the last axis, by default and where
# determinism is asked for.
FORMS = [
    ((2, 4), (2, 8), "few a row", "few a row"),
    ((20, 40), (20, 80), "tiles", "tiles"),
    ((2000,), (90000,), "atomics", "fixed point"),
    ((1 << 20,), (1 << 18,), "partition", "partition"),
    ((1 << 18,), (1 << 18,), "atomics", "partition"),
    (((1 << 18) - 1,), (1 << 18,), "atomics", "fixed point"),
    ((1 << 20,), ((1 << 18) + 1,), "atomics", "fixed point"),
]


@pytest.mark.parametrize(("dout", "src", "usual", "fixed"), FORMS)
def test_determinism_chooses_a_form_that_has_it(
    dout: Shape, src: Shape, usual: str, fixed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub_device.install(monkeypatch)
    problem = on_gpu("gather_backward", dout, dout, axis=-1, src_shape=src)
    free = BACKEND.prepare(problem)
    assert free.variant.startswith(f"{usual}, ")
    assert free.precision.deterministic == (usual == fixed)
    problem = replace(problem, choices=replace(problem.choices, deterministic=True))
    asked = BACKEND.prepare(problem)
    assert asked.variant.startswith(f"{fixed}, ")
    assert asked.precision.deterministic
    assert asked.precision.bit_stable
    assert asked.tuned is None


def test_a_form_that_needs_too_much_room_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_device.install(monkeypatch)
    problem = on_gpu("gather_backward", (2000,), (2000,), axis=0, src_shape=(90000,))
    for fixed, limit, room in ((False, 0, 0), (True, 90000 * 12, 90000 * 12)):
        choices = replace(problem.choices, deterministic=fixed, max_workspace_bytes=limit)
        assert BACKEND.prepare(replace(problem, choices=choices)).workspace_size == room
    large = on_gpu("gather_backward", (1 << 20,), (1 << 20,), axis=0, src_shape=(90000,))
    room = BACKEND.prepare(large).workspace_size
    for limit, form in ((room, "partition"), (room - 1, "atomics")):
        choices = replace(large.choices, max_workspace_bytes=limit)
        assert BACKEND.prepare(replace(large, choices=choices)).variant.startswith(f"{form}, ")
    choices = replace(problem.choices, deterministic=True, max_workspace_bytes=90000 * 12 - 1)
    with pytest.raises(
        Refusal, match=r"^needs 1080000 bytes of workspace, max_workspace_bytes is 1079999$"
    ):
        BACKEND.prepare(replace(problem, choices=choices))


# Shapes of src and index, and the axis: embeddings, with repeats and without; a permutation of the
# tokens of each batch.
TABLES: list[tuple[Shape, Shape, int]] = [
    ((65536, 1024), (32768, 1024), 0),
    ((32768, 1024), (65536, 1024), 0),
    ((8192, 8192), (8192, 8192), 0),
    ((1024, 1 << 16), (8192, 1 << 16), 0),
    ((2048, 196, 768), (2048, 196, 768), 1),
]


def gather_forms(dtype: str, src: Shape, index: Phantom, axis: int) -> tuple[str, ...]:
    """The forms of a gather on an H200, that of the rule first; the kernel says so."""
    arrays = [Phantom(dtype, src), index]
    problem = precompile.problem(registry["gather"].spec, arrays, {"axis": axis})
    outs = tuple([strides_of(x) for x in problem.outputs])
    call = Call(problem, DeviceFacts(0, "sm_90", 132, 232448), outs)
    (step,) = plan(call).kernels
    names = variants(call)
    assert plan(call).variant == names[0]
    assert step.entry.schedule.startswith("GatherTiles<") == (names[0] == "tiles")
    return names


@pytest.mark.parametrize(("src", "shape", "axis"), TABLES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_lookup_reads_the_rows_that_are_asked_for(
    dtype: str, src: Shape, shape: Shape, axis: int
) -> None:
    """One index for each row: tiles would read all of the table, in lines of a few bytes."""
    one_each = (*contiguous((*shape[:-1], 1))[:-1], 0)
    assert gather_forms(dtype, src, Phantom("int64", shape, one_each), axis)[0] == "straight"


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_indices_of_neighbours_are_handed_out_on_chip(dtype: str, axis: int) -> None:
    square = (8192, 8192)
    assert gather_forms(dtype, square, Phantom("int64", square), axis) == ("tiles", "straight")


def test_rows_shorter_than_a_sector_are_handed_out_on_chip() -> None:
    """Straight from memory, each index would read 32 bytes."""
    for dtype, n, form in (("float32", 4, "tiles"), ("float32", 8, "straight"),
                           ("bfloat16", 8, "tiles"), ("bfloat16", 16, "straight")):  # fmt: skip
        shape = (2048, 4096, n)
        index = Phantom("int64", shape, (4096, 1, 0))
        assert gather_forms(dtype, shape, index, 1)[0] == form


@pytest.mark.parametrize("limit", [None, 0])
def test_a_deterministic_choice_holds_for_outputs_it_cannot_write(limit: int | None) -> None:
    """Out of line or apart, an output gets fixed point or an error, never atomics."""
    arrays = [np.zeros((2, 900, 64), np.float32), np.zeros((2, 900, 64), np.int64)]
    for extent, form in ((3000, "transposed"), (40, "tiles")):
        if form == "transposed" and limit == 0:
            continue  # it needs a stage
        options = {"axis": 1, "src_shape": (2, extent, 64)}
        problem = check.problem(registry["gather_backward"].spec, arrays, options, DEFAULT)
        choices = replace(problem.choices, max_workspace_bytes=limit)
        problem = replace(problem, choices=choices)
        facts = DeviceFacts(0, "sm_90", 132, 232448)
        call = Call(problem, facts, ((extent * 64, 64, 1),))
        assert plan(call).kernels[0].entry.schedule.startswith(f"Scatter{form.title()}<")
        apart = call._replace(outs=((extent * 128, 128, 2),), add=True)
        if limit is None:
            assert plan(apart).deterministic
            assert plan(apart).kernels[-1].entry.schedule.startswith("SettleFixed<")
        else:
            with pytest.raises(Refusal, match="workspace"):
                plan(apart)


def test_an_index_of_any_length_is_inverted_where_a_block_has_room() -> None:
    index = np.broadcast_to(np.zeros((1 << 21, 1), np.int32), (1 << 21, 64))
    dout = np.broadcast_to(np.zeros((1, 64), np.float32), index.shape)
    options = {"axis": 0, "src_shape": (9000, 64)}
    problem = check.problem(registry["gather_backward"].spec, [dout, index], options, DEFAULT)
    for room, variant in ((232448, "lists"), (101376, "lists"), (48 << 10, "atomics")):
        call = Call(problem, DeviceFacts(0, "sm_90", 132, room), ((64, 1),))
        steps = plan(call)
        assert steps.variant == variant
        assert all(step.shared <= room for step in steps.kernels)


@pytest.mark.parametrize("n", [4096, 5000, 8192, 16384, 1 << 17])
def test_sums_of_rows_ask_for_no_more_than_a_block_has(n: int) -> None:
    x, weight = np.broadcast_to(np.zeros(1, np.float32), (64, n)).copy(), np.zeros(n, np.float32)
    problem = check.problem(registry["layer_norm_backward"].spec, [x, x, weight], {}, DEFAULT)
    outs = tuple(strides_of(y) for y in problem.outputs)
    for room in (232448, 166912, 101376, 48 << 10):
        steps = plan(Call(problem, DeviceFacts(0, "sm_90", 132, room), outs))
        assert all(step.shared <= room for step in steps.kernels)


def test_shared_memory_is_asked_for_and_never_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is static has its part of the 48 KiB that are free."""
    pytest.importorskip("cuda.bindings")
    from baracuda.backends.cuda import launch

    asked: list[int] = []
    monkeypatch.setattr(launch, "_kernels", {})
    monkeypatch.setattr(launch, "_granted", {}, raising=False)
    monkeypatch.setattr(launch, "while_capturing", nullcontext)
    monkeypatch.setattr(launch, "_load", lambda entry, arch: (None, SimpleNamespace(handle=1)))
    monkeypatch.setattr(
        launch.driver, "cuKernelSetAttribute", lambda *a: (asked.append(a[1]), (launch.OK,))[1]
    )
    entry, facts = compiler.Entry("a.cu", "k", "K<>", 256, 8), DeviceFacts(0, "sm_90", 1, 232448)
    for shared in (0, 40000, 49152, 200000, 60000, 210000):
        launch.loaded(entry, facts, shared)
    assert asked == [49152, 200000, 210000]
    launch.loaded(entry, facts._replace(ordinal=1), 60000)
    assert asked[3:] == [60000]


@pytest.mark.usefixtures("willing")
def test_memory_that_does_not_have_the_values_is_left_to_others() -> None:
    problem = on_gpu("glu", (2, 4))
    inputs = (problem.inputs[0]._replace(alignment=0), None)  # type: ignore[union-attr]
    want = "reads memory as it is, not lazily conjugated or negated views"
    assert BACKEND.refuses(replace(problem, inputs=inputs)) == want
    z = torch.ones(3, dtype=torch.complex64)
    assert [_materialised(x) for x in (z, z.conj(), z.conj().imag)] == [True, False, False]


@pytest.mark.usefixtures("willing")
def test_only_dimensions_that_do_not_merge_count() -> None:
    dense = on_gpu("reglu", (2,) * 14)
    assert BACKEND.refuses(dense) is None
    apart = tuple(3**i for i in reversed(range(14)))
    problem = replace(dense, inputs=(dense.inputs[0]._replace(strides=apart), None))  # type: ignore[type-var]
    want = "x: takes at most 10 dimensions of strides that do not merge, not 14"
    assert BACKEND.refuses(problem) == want


def test_nothing_of_cuda_is_needed_for_other_arrays() -> None:
    code = """
import sys
sys.modules["cuda"] = None
import torch, baracuda as bc
assert bc.reglu(torch.ones(2, 4)).tolist() == [[1.0, 1.0]] * 2
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_where_nothing_was_launched_there_is_no_error() -> None:
    BACKEND.check_errors()
    bc.check_errors()


# The cache on disk.

ENTRY = compiler.Entry(
    "elementwise.cu", "k", "Elementwise<LerpBackward, f32, 4, 4, 1, i32, false>", 256, 56
)
ARCH = "sm_90"


class Compilations(list[str]):
    """What was compiled: entries of the list are sources."""


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilations]:
    """Compilations from here on, into a cache of this test's own."""
    core = pytest.importorskip("cuda.core", reason=f"needs {INSTALL}")
    pytest.importorskip("cuda.bindings.nvrtc", reason=f"needs {INSTALL}")
    seen, program = Compilations(), core.Program

    def counted(source: str, *args: Any) -> Any:
        seen.append(source)
        return program(source, *args)

    monkeypatch.setattr(core, "Program", counted)
    monkeypatch.setenv("BARACUDA_CACHE_DIR", str(tmp_path))
    compiler._disk.cache_clear()
    yield seen
    compiler._disk.cache_clear()


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_second_look_reads_the_disk(compiled: Compilations, tmp_path: Path) -> None:
    code = compiler.cubin(ENTRY, ARCH)
    assert code[:4] == b"\x7fELF"
    # Another process would start like this.
    compiler._disk.cache_clear()
    assert compiler.cubin(ENTRY, ARCH) == code
    assert len(compiled) == 1
    assert files(tmp_path / "kernels") == files(tmp_path) != []


@pytest.mark.parametrize("damage", [b"", b"garbage" * 100], ids=["empty", "garbage"])
def test_a_damaged_file_is_a_miss(damage: bytes, compiled: Compilations, tmp_path: Path) -> None:
    code = compiler.cubin(ENTRY, ARCH)
    for path in files(tmp_path):
        path.write_bytes(damage)
    assert compiler.cubin(ENTRY, ARCH) == code
    assert len(compiled) == 2
    assert compiler.cubin(ENTRY, ARCH) == code
    assert len(compiled) == 2


def test_machine_code_that_does_not_load_is_compiled_again(
    compiled: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baracuda.backends.cuda import launch

    code = compiler.cubin(ENTRY, ARCH)
    store = compiler._disk()
    assert store is not None
    store.put(compiler._key(ENTRY, ARCH), code[:64])

    class Loaded:
        def __init__(self, data: bytes) -> None:
            self.data = data

        @classmethod
        def from_cubin(cls, data: bytes, name: str) -> Loaded:
            return cls(data)

        def get_kernel(self, name: str) -> str:
            if self.data != code:
                raise RuntimeError("CUDA_ERROR_INVALID_IMAGE")
            return name

    monkeypatch.setattr(launch, "ObjectCode", Loaded)
    assert launch._load(ENTRY, ARCH)[1] == "k"
    assert len(compiled) == 2

    class Broken(Loaded):
        def get_kernel(self, name: str) -> str:
            raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY")

    # What is no fault of the file is not tried for ever.
    monkeypatch.setattr(launch, "ObjectCode", Broken)
    with pytest.raises(RuntimeError, match="OUT_OF_MEMORY"):
        launch._load(ENTRY, ARCH)


def test_forgetting_what_is_not_there_is_no_error(compiled: Compilations) -> None:
    compiler.forget(ENTRY, ARCH)
    compiler.cubin(ENTRY, ARCH)
    compiler.forget(ENTRY, ARCH)
    compiler.cubin(ENTRY, ARCH)
    assert len(compiled) == 2


def test_two_processes_share_the_folder(compiled: Compilations, tmp_path: Path) -> None:
    code = f"""
import hashlib
from baracuda.backends.cuda import compiler
for symbol in "abc":
    entry = compiler.Entry({ENTRY.file!r}, symbol, {ENTRY.schedule!r}, 256, {ENTRY.nbytes})
    print(hashlib.sha256(compiler.cubin(entry, {ARCH!r})).hexdigest())
"""
    start = [sys.executable, "-c", code]
    both = [subprocess.Popen(start, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[0].split() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0] == said[1]
    assert len(set(said[0])) == 3
    compiler._disk.cache_clear()
    for symbol in "abc":
        compiler.cubin(ENTRY._replace(symbol=symbol), ARCH)
    assert compiled == []


def test_a_folder_that_cannot_be_used_costs_a_compilation(
    compiled: Compilations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BARACUDA_CACHE_DIR", str(tmp_path / "file"))
    compiler._disk.cache_clear()
    assert compiler.cubin(ENTRY, ARCH) == compiler.cubin(ENTRY, ARCH)
    assert len(compiled) == 2


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"BARACUDA_CACHE_DIR": "own", "XDG_CACHE_HOME": "xdg"}, "own/kernels"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/baracuda/kernels"),
        ({"LOCALAPPDATA": "local"}, "local/baracuda/kernels"),
        ({}, "home/.cache/baracuda/kernels"),
    ],
)
def test_where_the_cache_is(
    variables: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BARACUDA_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    assert compiler.cache_directory() == Path(folder)


def test_the_key_is_that_of_the_sources_that_are_read(
    compiled: Compilations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "cuda_src"
    for path in files(compiler.SOURCES):
        copy = sources / path.relative_to(compiler.SOURCES)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())

    def key(entry: compiler.Entry = ENTRY, arch: str = ARCH) -> bytes:
        compiler.flattened.cache_clear()
        return compiler._key(entry, arch)

    try:
        before = key()
        monkeypatch.setattr(compiler, "SOURCES", sources)
        assert key() == before
        with (sources / "pooling.cu").open("a") as file:
            file.write("// elsewhere\n")
        assert key() == before
        with (sources / "common" / "types.cuh").open("a") as file:
            file.write("// here\n")
        assert key() != before
        assert len({key(), key(arch="sm_80"), key(ENTRY._replace(threads=128))}) == 3
    finally:
        compiler.flattened.cache_clear()


def test_a_source_is_flattened_with_each_header_once() -> None:
    for path in compiler.SOURCES.glob("*.cu"):
        text = compiler.flattened(path.name)
        assert '#include "' not in text
        assert text.count("using bf16 =") + text.count("struct bf16 {") == 1


# Indices, as the host describes them to kernels.

extents = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@st.composite
def views(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two views of one shape: each permuted, stepped, reversed and broadcast in its own way.

    Their values are their offsets.
    """
    shape = draw(extents)

    def one() -> np.ndarray[Any, Any]:
        order = draw(st.permutations(range(len(shape))))
        steps = [draw(st.sampled_from([1, 1, 1, 2, 3, -1])) for _ in shape]
        room = [draw(st.sampled_from([0, 0, 0, 1])) for _ in shape]
        flat = [draw(st.sampled_from([False, False, False, True])) for _ in shape]
        sizes = [1 if f else n * abs(s) + r for n, s, r, f in zip(shape, steps, room, flat)]  # noqa: B905
        memory = np.arange(int(np.prod(sizes))).reshape([sizes[i] for i in order])
        x = memory.transpose(np.argsort(order))
        for axis, (n, s, f) in enumerate(zip(shape, steps, flat, strict=True)):
            if not f:
                x = x[(slice(None),) * axis + (slice(None, None, s),)]
                x = x[(slice(None),) * axis + (slice(0, n),)]
        return np.broadcast_to(x, shape)

    return one(), one()


def steps_of(x: np.ndarray[Any, Any]) -> tuple[int, ...]:
    return tuple(s // x.itemsize for s in x.strides)


def offsets(x: np.ndarray[Any, Any]) -> list[int]:
    return (x - x.ravel()[0]).ravel().tolist()


@given(views())
def test_merged_dimensions_visit_the_same_elements(
    pair: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
) -> None:
    steps = [steps_of(x) for x in pair]
    dims = geometry.merged(pair[0].shape, steps)
    assert [geometry.visited(dims, k) for k in (0, 1)] == [offsets(x) for x in pair]
    assert geometry.count(dims) == pair[0].size
    assert all(dim.extent > 1 for dim in dims)
    # In another order the same pairs are visited.
    dims = geometry.merged(pair[0].shape, steps, geometry.by_stride(pair[0].shape, steps))
    both = zip(geometry.visited(dims, 0), geometry.visited(dims, 1), strict=True)
    assert sorted(both) == sorted(zip(*map(offsets, pair), strict=True))


@given(views())
def test_no_offset_is_beyond_the_reach(
    pair: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]],
) -> None:
    dims = geometry.merged(pair[0].shape, [steps_of(x) for x in pair])
    spans = [sum(abs(s) * (n - 1) for s, n in zip(steps_of(x), x.shape, strict=True)) for x in pair]
    assert geometry.reach(dims) == max(spans)
    assert max(max(map(abs, offsets(x))) for x in pair) <= geometry.reach(dims)


@given(views(), st.sampled_from([2, 4, 8]))
def test_runs_cover_the_elements(
    pair: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]], most: int
) -> None:
    dims = geometry.merged(pair[0].shape, [steps_of(x) for x in pair])
    if not dims:
        return
    width, step = geometry.divisor([dims[0].extent], most), dims[0].strides[0]
    runs = geometry.visited(geometry.split(dims, width), 0)
    assert [at + i * step for at in runs for i in range(width)] == geometry.visited(dims, 0)


@given(st.lists(st.integers(-(2**40), 2**40)), st.integers(0, 5))
def test_the_divisor_is_the_largest_that_divides_all(numbers: list[int], power: int) -> None:
    found = geometry.divisor(numbers, 1 << power)
    powers = [1 << i for i in range(power + 1)]
    assert found == max(p for p in powers if all(n % p == 0 for n in numbers))


@given(st.booleans(), st.data())
def test_division_by_multiplication_is_exact(wide: bool, data: st.DataObject) -> None:
    bits = 64 if wide else 32
    size = data.draw(st.integers(1, 2 ** (bits - 2)))
    n = data.draw(st.one_of(
        st.integers(0, 2 ** (bits - 1) - 1),
        st.integers(0, 2 ** (bits - 1) // size - 1).map(lambda q: q * size),
        st.integers(1, 2 ** (bits - 1) // size - 1).map(lambda q: q * size - 1),
    ))  # fmt: skip
    packed = geometry.Packer(wide).extents(size)
    extent, magic, shift = np.frombuffer(packed.done()[: 3 * bits // 8], f"<u{bits // 8}").tolist()
    assert extent == size
    assert (((n * magic) >> bits) + n) >> shift == n // size


@given(st.lists(st.sampled_from("bhiqfd"), min_size=1, max_size=12), st.booleans())
def test_fields_are_packed_as_cpp_aligns_them(codes: list[str], wide: bool) -> None:
    import ctypes

    kinds = {"b": "int8", "h": "int16", "i": "int32", "q": "int64", "f": "float", "d": "double"}
    fields = [(f"f{i}", getattr(ctypes, f"c_{kinds[c]}")) for i, c in enumerate(codes)]
    struct = type("Struct", (ctypes.Structure,), {"_fields_": [("p", ctypes.c_void_p), *fields]})
    packer = geometry.Packer(wide).pointers(1)
    for i, code in enumerate(codes):
        packer.add(code, i + 1)
    read = struct.from_buffer_copy(packer.done())
    assert len(packer.done()) == ctypes.sizeof(struct)
    assert [getattr(read, name) for name, _ in fields] == [i + 1 for i in range(len(codes))]


def test_64_bits_are_used_before_32_overflow() -> None:
    assert not geometry.wide(0, 2**30)
    for number in (2**31 - 1, 2**31, 2**40):
        assert geometry.wide(1, number)


@pytest.fixture
def apart() -> Iterator[None]:
    """Plans made here are forgotten afterwards: the tensors are those of the CPU."""
    bc.plan_cache.clear()
    yield
    bc.plan_cache.clear()


def test_a_watched_tensor_launches_both_kernels(
    apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = stub_device.install(monkeypatch)
    x = torch.randn(4, 8, requires_grad=True)
    assert bc.swiglu.plan(x).sku.backend == "cuda"
    y = bc.swiglu(x)
    torch.autograd.grad(y, x, torch.ones(4, 4))
    forward, backward = (entry.symbol for entry in device.launched)
    assert forward.startswith("swiglu_f32_")
    assert backward.startswith("swiglu_backward_f32_")


# Calls.


def test_a_body_on_a_device_scatters_in_no_fixed_order() -> None:
    scatters = on_gpu("gather_backward", (2, 4), (2, 4), axis=0, src_shape=(4, 4))
    assert not body.ordered(scatters)
    assert not body.precision(scatters).deterministic
    assert body.precision(replace(scatters, device="cpu")).deterministic
    assert body.precision(on_gpu("gather", (2, 4), (2, 4), axis=0)).deterministic


def test_atomics_are_refused_where_determinism_is_asked_for() -> None:
    problem = on_gpu("gather_backward", (2000,), (2000,), axis=0, src_shape=(90000,))
    call = Call(problem, DeviceFacts(0, "sm_90", 132, 232448), ((1,),), variant="atomics")
    # Also where sums are kept apart, as the output is another one.
    assert not plan(call).deterministic
    assert not plan(call._replace(outs=((2,),))).deterministic
    choices = replace(problem.choices, deterministic=True)
    with pytest.raises(Refusal, match="adds by atomics, in no fixed order"):
        plan(call._replace(problem=replace(problem, choices=choices)))


@pytest.mark.parametrize("op", ["swiglu", "rms_norm_backward"])
def test_arrays_aligned_less_are_no_business_of_a_plan(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the short way of one kernel, and by that of several."""
    device = stub_device.install(monkeypatch)
    shapes = [(4, 8)] if op == "swiglu" else [(4, 8), (4, 8), (8,)]
    run = BACKEND.prepare(on_gpu(op, *shapes)).run
    arrays = [torch.ones(s) for s in shapes]
    run(arrays, None, False, dict.fromkeys(registry[op].spec.scalars, 0.5))
    launched = len(device.launched)
    arrays[0] = torch.ones(33)[1:].reshape(4, 8)
    with pytest.raises(Misfit):
        run(arrays, None, False, dict.fromkeys(registry[op].spec.scalars, 0.5))
    assert len(device.launched) == launched > 0


@pytest.mark.parametrize("op", ["cross_entropy", "cross_entropy_with_gradient", "log_prob"])
def test_labels_that_were_shifted_by_one_cost_no_vectors(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view from the second label on begins within 16 bytes, and so does another at each call."""
    device = stub_device.install(monkeypatch)
    from baracuda.backends.cuda import runner

    longer = list[Any]()
    whole = runner.CudaRunner.__call__
    monkeypatch.setattr(
        runner.CudaRunner, "__call__", lambda self, *a: (longer.append(a), whole(self, *a))[1]
    )
    logits, labels = torch.randn(64, 4096), torch.zeros(66, dtype=torch.int64)
    usual = check.problem(registry[op].spec, [logits, labels[:64]], {}, DEFAULT)
    x, index = usual.given
    problem = replace(usual, inputs=(x, index._replace(alignment=8)))
    names = registry[op].spec.usual
    values = {name: names[name] for name in problem.spec.scalars}
    found = []
    for some, target in ((usual, labels[:64]), (problem, labels[1:65]), (usual, labels[1:65])):
        device.launched.clear()
        run = BACKEND.prepare(some).run
        run([logits, target], None, False, values)
        found.append([function.symbol for function in device.launched])
    assert "_wide" in "".join(found[0])
    assert found[1:] == found[:1] * 2
    # All went the short way.
    assert not longer
    # The logits are read in vectors, so theirs still counts.
    with pytest.raises(Misfit):
        run([torch.randn(64 * 4096 + 1)[1:].reshape(64, 4096), labels[:64]], None, False, values)


@pytest.mark.parametrize(
    ("op", "rows", "kernels"),
    [
        ("mse_loss", 512, 1), ("mse_loss", 513, 2), ("nll_loss", 256, 1), ("nll_loss", 257, 2),
        ("cross_entropy", 4096, 2), ("cross_entropy", 4097, 3),
    ],
)  # fmt: skip
def test_few_rows_have_their_sum_from_fewer_kernels(op: str, rows: int, kernels: int) -> None:
    x, target = torch.zeros(rows, 16), torch.zeros(rows, dtype=torch.int64)
    given = [x, x if op == "mse_loss" else target]
    problem = check.problem(registry[op].spec, given, {}, DEFAULT)
    facts = DeviceFacts(0, "sm_90", 132, 232448)
    assert len(plan(Call(problem, facts, ((),))).kernels) == kernels


@pytest.mark.parametrize(
    ("rows", "dtype", "how", "kernels"),
    [
        (16, torch.float32, {}, 1), (16, torch.bfloat16, {}, 2), (1 << 16, torch.float32, {}, 2),
        (16, torch.float32, {"add": True}, 2), (16, torch.float32, {"alignment": 4}, 2),
    ],
)  # fmt: skip
def test_one_block_leaves_its_sums_in_an_output_of_their_type(
    rows: int, dtype: torch.dtype, how: dict[str, Any], kernels: int
) -> None:
    x, weight = torch.zeros(rows, 64, dtype=dtype), torch.zeros(64, dtype=dtype)
    problem = check.problem(registry["prelu_backward"].spec, [x, x, weight], {"axis": 1}, DEFAULT)
    outs = tuple(strides_of(x) for x in problem.outputs)
    call = Call(problem, DeviceFacts(0, "sm_90", 132, 232448), outs)._replace(**how)
    assert len(plan(call).kernels) == kernels


def several(what: str) -> tuple[Problem, list[Any]]:
    """Calls that launch more than one kernel: the problem and its arrays."""
    x, dy = torch.randn(64, 128), torch.randn(64, 128)
    index = torch.zeros(2000, dtype=torch.int64)
    scatters = [torch.ones(2000), index], {"axis": 0, "src_shape": (90000,)}
    halves = [torch.cat([each.bfloat16()] * 64) for each in (dy, x)] + [torch.ones(128)]
    images = [torch.randn(4, 8, 6, 6), torch.ones(8), None]
    op, (arrays, options) = {
        "workspaces": ("cross_entropy", ([x, index[:64], torch.ones(128)], {})),
        "two kernels": ("huber_loss", ([torch.cat([x, dy]), torch.cat([dy, x])], {})),
        "three outputs": ("batch_norm", (images, {})),
        "two dtypes": ("rms_norm_backward", (halves, {})),
        "zeros": ("gather_backward", scatters),
        "zeros in workspaces": ("gather_backward", scatters),
    }[what]
    problem = check.problem(registry[op].spec, arrays, options, DEFAULT)
    if what == "zeros in workspaces":
        problem = replace(problem, choices=replace(problem.choices, deterministic=True))
    return problem, arrays


SEVERAL = ["workspaces", "two kernels", "three outputs", "two dtypes", "zeros",
           "zeros in workspaces"]  # fmt: skip


@dataclass
class Calls:
    """What reaches the device, what goes the general way, and where the thread is."""

    made: list[tuple[str, int, list[int]]] = field(default_factory=list)
    """Of each launch the symbol, its stream and its pointers; of zeros the address."""
    fronts: dict[str, Any] = field(default_factory=dict)
    general: list[Any] = field(default_factory=list)
    device: int = 0
    failing: int = -1
    """The launch that fails, of all that are made."""

    def launch(self, entry: Any, *rest: Any) -> tuple[int]:
        *_, stream, pointer, _ = rest
        address = ctypes.c_void_p.from_address(pointer).value or 0
        words = list((ctypes.c_uint64 * len(self.fronts[entry.symbol])).from_address(address))
        return self._noted(entry.symbol, int(stream), words)

    def clear(self, address: int, value: int, nbytes: int, stream: Any) -> tuple[int]:
        assert value == 0
        return self._noted(f"zeros {nbytes}", int(stream), [address])

    def checked(self, result: tuple[int]) -> None:
        if result[0]:
            raise RuntimeError("a launch failed")

    def _noted(self, what: str, stream: int, words: list[int]) -> tuple[int]:
        self.made.append((what, stream, words))
        return (int(len(self.made) - 1 == self.failing),)


@pytest.fixture(params=SEVERAL)
def short(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A runner of several launches, its short way, the arrays of a call and what is made of it."""
    stub_device.install(monkeypatch)
    from baracuda.backends.cuda import fast_call, launch, runner

    calls, arrays = Calls(), cuda._arrays("torch")
    for module in (launch, fast_call):
        monkeypatch.setattr(module, "launch_kernel", calls.launch)
        monkeypatch.setattr(module, "clear", calls.clear)
        monkeypatch.setattr(module, "checked", calls.checked)
    monkeypatch.setattr(arrays, "current_device", staticmethod(lambda: calls.device))
    monkeypatch.setattr(arrays, "current_stream", staticmethod(lambda ordinal: 7))
    problem, given = several(request.param)
    general = runner.CudaRunner(problem, launch.device_facts(0), arrays)
    calls.fronts = {step.entry.symbol: step.front for step in general.steps.kernels}
    assert len(general.steps.steps) > 1
    whole = runner.CudaRunner.__call__

    def entered(self: Any, *given: Any) -> Any:
        calls.general.append(given)
        return whole(self, *given)

    monkeypatch.setattr(runner.CudaRunner, "__call__", entered)
    names = registry[problem.spec.name].spec.usual
    scalars = {name: names[name] for name in problem.spec.scalars}
    return general, general.shortest(), calls, given, scalars


def follows(steps: Steps, made: list[Any], arrays: list[Any], results: Any) -> None:
    """Each step was launched in turn, on these arrays and on workspaces that lie apart."""
    results = results if isinstance(results, tuple) else (results,)
    known = [x.data_ptr() for x in (*arrays, *results) if x is not None]
    works: dict[int, int] = {}
    for step, (what, stream, words) in zip(steps.steps, made, strict=True):
        zeros = isinstance(step, Zero)
        assert what == (f"zeros {step.nbytes}" if zeros else step.entry.symbol)
        assert stream == 7
        front = [(step.slot, 0)] if zeros else step.front
        for word, (slot, offset) in zip(words, front, strict=True):
            base = word - offset
            assert base == (
                known[slot] if slot < len(known) else works.setdefault(slot - len(known), base)
            )
    assert sorted(works) == list(range(len(steps.workspaces)))
    room = sorted(
        (works[i], works[i] + named(dtype).itemsize * math.prod(shape))
        for i, (shape, dtype) in enumerate(steps.workspaces)
    )
    assert all(base % 16 == 0 for base, _ in room)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(room))


def new_outputs(problem: Problem) -> tuple[Any, ...]:
    return tuple([torch.empty(x.shape, dtype=getattr(torch, x.dtype)) for x in problem.outputs])


def test_outputs_as_planned_go_the_short_way(short: Any) -> None:
    general, run, calls, arrays, scalars = short
    outs = new_outputs(general.problem)
    for _ in range(2):
        calls.made.clear()
        results = run(arrays, outs, False, scalars)
        many = results if isinstance(results, tuple) else (results,)
        assert all(x is y for x, y in zip(many, outs, strict=True))
        assert not calls.general
        follows(general.steps, calls.made, arrays, results)


def test_no_call_begins_again_into_outputs_that_may_be_inputs(short: Any) -> None:
    general, run, calls, arrays, scalars = short
    outs = new_outputs(general.problem)
    for failing in range(1, len(general.steps.steps)):
        calls.made.clear()
        calls.failing = failing
        with pytest.raises(RuntimeError, match="a launch failed"):
            run(arrays, outs, False, scalars)
        assert not calls.general
        assert len(calls.made) == failing + 1


def test_several_launches_go_the_short_way(short: Any) -> None:
    general, run, calls, arrays, scalars = short
    for way, times in ((run, 0), (general, 1), (run, 1)):
        calls.made.clear()
        results = way(arrays, None, False, scalars)
        assert len(calls.general) == times
        follows(general.steps, calls.made, arrays, results)
        made = results if isinstance(results, tuple) else (results,)
        for x, planned in zip(made, general.problem.outputs, strict=True):
            assert (str(x.dtype), x.shape) == (f"torch.{planned.dtype}", planned.shape)


@pytest.mark.parametrize("why", ["addresses", "out", "accumulate", "device", "error"])
def test_what_is_not_as_planned_goes_the_general_way(
    why: str, short: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    general, run, calls, arrays, scalars = short
    outs, add = None, why == "accumulate"
    if why == "addresses":
        room = torch.empty(arrays[0].numel() + 1, dtype=arrays[0].dtype)
        arrays = [room[1:].view(arrays[0].shape), *arrays[1:]]
    elif why == "out":
        outs = tuple([torch.empty(*x.shape, 2, dtype=getattr(torch, x.dtype))[..., 0]
                      for x in general.problem.outputs])  # fmt: skip
        if not any(x.shape for x in general.problem.outputs):
            # Of rank 0 there is one layout, but another alignment.
            outs = tuple([torch.empty(3)[1] for _ in outs])
    elif why == "accumulate":
        outs = new_outputs(general.problem)
    elif why == "device":
        calls.device = 1
    else:
        general._state[0] = 2
    monkeypatch.setattr(type(general), "__call__", lambda *given: given[1:])
    assert run(arrays, outs, add, scalars) == (arrays, outs, add, scalars)
    assert calls.made == []


def test_a_call_of_which_a_launch_fails_begins_again(short: Any) -> None:
    general, run, calls, arrays, scalars = short
    for failing in range(len(general.steps.steps)):
        calls.made.clear()
        calls.failing = failing
        results = run(arrays, None, False, scalars)
        assert len(calls.general) == failing + 1
        follows(general.steps, calls.made[failing + 1 :], arrays, results)


def test_a_chunk_of_a_composite_goes_the_short_way(
    apart: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = stub_device.install(monkeypatch)
    from baracuda.backends.cuda import runner

    arrays = torch.randn(8, 4), torch.randn(16, 4), torch.randint(0, 16, (8,))
    bc.linear_cross_entropy(*arrays)
    monkeypatch.setattr(runner.CudaRunner, "__call__", None)
    device.launched.clear()
    bc.linear_cross_entropy(*arrays)
    # The mean as well is one of kernels.
    kernels = bc.cross_entropy.plan(arrays[0] @ arrays[1].T, arrays[2]).sku.kernel
    assert "+".join(entry.symbol for entry in device.launched) == kernels


def test_outputs_of_another_layout_are_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    device = stub_device.install(monkeypatch)
    run, x = BACKEND.prepare(on_gpu("relu", (64, 32))).run, torch.ones(64, 32)
    for out, layout in ((torch.ones(64, 32), "_flat_"), (torch.ones(32, 64).T, "_strided_")):
        run((x,), (out,), False, {})
        assert layout in device.launched[-1].symbol


def test_sums_that_are_wider_or_added_to_are_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of the rows is that of a plain call; the one that adds up knows its outputs."""
    device = stub_device.install(monkeypatch)
    arrays = [torch.ones(64, 32).bfloat16()] * 2 + [torch.ones(32).bfloat16()]
    plan = bc.layer_norm_backward.plan(*arrays)
    assert plan.sku.backend == "cuda"
    wide, narrow = torch.ones(32), torch.ones(32).bfloat16()
    for outs, adds, how in (
        ((None, None, None), (False, False, False), 0),
        ((None, wide, None), (False, False, False), 2),
        ((None, wide, None), (False, True, False), 3),
        ((None, wide, narrow), (False, True, True), 7),
        ((None, narrow, wide), (False, False, True), 12),
        ((None, wide, wide.clone()), (False, True, True), 15),
    ):
        plan(*arrays, out=outs, accumulate=adds)
        rows, sums = device.launched[-2:]
        assert (rows.symbol, sums.schedule) == (
            "layer_norm_backward_bf16_lanes_c1_vectors", f"SumRows<bf16, 2, {how}>"
        )  # fmt: skip


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The record of a device, in memory of the host."""
    pytest.importorskip("cuda.bindings")
    from baracuda.backends.cuda import index_errors, runner

    room = index_errors.Record(7, 7, 7, 7)
    driver = SimpleNamespace(
        CU_MEMHOSTALLOC_PORTABLE=1, CU_MEMHOSTALLOC_DEVICEMAP=2,
        cuMemHostAlloc=lambda *_: ctypes.addressof(room), cuCtxSynchronize=lambda: None,
    )  # fmt: skip
    for name, value in (
        ("driver", driver), ("checked", lambda result: result),
        ("while_capturing", nullcontext), ("on_primary", lambda ordinal: nullcontext()),
    ):  # fmt: skip
        monkeypatch.setattr(index_errors, name, value)
    stub_device.install(monkeypatch)
    listener = index_errors.Listener(0)
    monkeypatch.setattr(runner.index_errors, "listener", lambda ordinal: listener)
    assert (room.state, room.ticket, room.value, room.position) == (0, 0, 0, 0)
    return room


def test_the_next_call_raises_what_a_kernel_reported(heard: Any) -> None:
    from baracuda.backends.cuda import index_errors

    gather = BACKEND.prepare(on_gpu("gather", (4, 5), (4, 3), axis=1)).run
    others = {
        "one kernel": (BACKEND.prepare(on_gpu("swiglu", (4, 8))).run, (torch.ones(4, 8),), {}),
        "several": (
            BACKEND.prepare(on_gpu("rms_norm_backward", (4, 8), (4, 8), (8,))).run,
            (torch.ones(4, 8), torch.ones(4, 8), torch.ones(8)), {"eps": 1e-6, "offset": 0.0},
        ),
    }  # fmt: skip
    (ticket,) = [
        n for n, t in index_errors._tickets.items() if (t.op, t.shape) == ("gather", (4, 3))
    ]
    assert gather
    for run, arrays, scalars in others.values():
        run(arrays, None, False, scalars)
        heard.ticket, heard.value, heard.position = ticket, -5, 7
        # While a kernel writes it, there is nothing to be read yet.
        heard.state = 1
        run(arrays, None, False, scalars)
        heard.state = 2
        want = r"^gather: index: expected 0 <= i < 5, got -5 at position \(2, 1\)$"
        with pytest.raises(IndexError, match=want):
            run(arrays, None, False, scalars)
        assert heard.state == 0
        run(arrays, None, False, scalars)


def test_a_record_of_another_device_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    from baracuda.backends.cuda import launch

    facts = DeviceFacts(0, "sm_90", 132, 232448)
    monkeypatch.setattr(driver, "cuDeviceGetCount", lambda: (driver.CUresult.CUDA_SUCCESS, 1))
    monkeypatch.setattr(launch, "device_facts", lambda ordinal: facts)
    assert cuda.foreign("sm_90", "cuda:0") is None
    assert cuda.foreign("sm_80", "cuda:0") == "for sm_80, cuda:0 is sm_90"
    assert cuda.foreign("sm_90", "cuda:3") == "there is no cuda:3"
