"""What is compiled ahead is what calls then look for, on a device that need not be there."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import stub_device
import torch
from kinds import OPS

import baracuda as bc
from baracuda.__main__ import main
from baracuda.backends.cuda import compiler, precompile
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import DeviceFacts
from baracuda.calls.op import registry
from baracuda.declaration.dtypes import FLOATS
from baracuda.tools import Gpu, warmup
from baracuda.tools.warmup import Task, problems, tasks

try:
    version("cuda-core"), version("nvidia-cuda-nvrtc")
except PackageNotFoundError as error:
    pytest.skip(f"needs {error.name}: pip install 'baracuda[cuda]'", allow_module_level=True)

ARCH = "sm_90"
# Schedules of rows of logits, whose kernels count in one width.
LOGITS = ("cross_entropy", "log_prob", "kl_div", "topk_kl_div")


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The sources that are compiled from here on, into a cache of this test's own."""
    import cuda.core as core

    seen: list[str] = []
    program = core.Program

    def counted(source: str, *rest: Any) -> Any:
        seen.append(source)
        return program(source, *rest)

    monkeypatch.setattr(core, "Program", counted)
    monkeypatch.setenv("BARACUDA_CACHE_DIR", str(tmp_path))
    compiler._disk.cache_clear()
    yield seen
    compiler._disk.cache_clear()


@pytest.fixture
def apart() -> Iterator[None]:
    """Plans made here are forgotten afterwards: the tensors are those of the CPU."""
    bc.plan_cache.clear()
    yield
    bc.plan_cache.clear()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Some kernels stand for all that there are."""
    found = tasks(["lerp"], ["float32"], {ARCH: precompile.devices(ARCH)})[:4]
    monkeypatch.setattr(warmup, "tasks", lambda *given: found)
    return found


def warmed(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> dict[str, Any]:
    """What a warmup in this process says."""
    assert main(["warmup", "--jobs", "1", "--json", *argv]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.usefixtures("apart")
def test_what_is_warm_is_not_compiled_again(
    compiled: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    argv = ["--ops", "swiglu", "--dtypes", "float32", "--arch"]
    first = warmed(capsys, *argv, ARCH)
    assert first["compiled"] == len(compiled) == len(files(tmp_path)) > 4
    assert (first["there"], first["failed"]) == (0, {})
    assert first["kernels"] == {f"swiglu float32 {ARCH}": first["compiled"]}
    assert first["folder"] == str(tmp_path / "kernels")
    assert first["bytes"] == sum(path.stat().st_size for path in files(tmp_path))
    assert first["nvrtc"] == compiler.nvrtc_version()

    from baracuda.backends.cuda import launch

    # Calls on a device of this kind find all that they load, as another process would.
    device, compiled[:] = stub_device.install(monkeypatch), []
    compiler._disk.cache_clear()
    loaded: list[Entry] = []

    def load(entry: Entry, facts: Any, shared: int) -> Entry:
        loaded.append(entry)
        assert compiler.cubin(entry, facts.arch)[:4] == b"\x7fELF"
        return entry

    monkeypatch.setattr(launch, "loaded", load)
    for x in (
        torch.zeros(3, 16),
        torch.zeros(48, 256),
        torch.zeros(2, 80, 48),
        torch.zeros(48, 257)[:, :256],
        torch.zeros(32, 160, 96)[:, :, ::2],
    ):
        assert bc.swiglu.plan(x).sku.backend == "cuda"
        bc.swiglu(x)
    bc.swiglu(torch.zeros(48, 256), torch.zeros(48, 256))
    # Less aligned than it is allocated.
    x, out = torch.zeros(48, 256), torch.zeros(48 * 128 + 1)[1:].view(48, 128)
    bc.swiglu.plan(x)(x, out=out)
    assert len(set(loaded)) > 3
    assert device.launched
    assert compiled == []

    second = warmed(capsys, *argv, ARCH)
    assert (second["compiled"], second["there"], compiled) == (0, first["compiled"], [])
    other = warmed(capsys, *argv, "sm_80")
    assert other["compiled"] == len(compiled) == first["compiled"]
    assert other["entries"] == 2 * first["entries"]


def test_it_ends_with_what_there_is_in_words(
    compiled: list[str], few: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warmup", "--jobs", "1", "--arch", ARCH]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"1/4 lerp float32 {ARCH}"
    nvrtc = compiler.nvrtc_version()
    assert lines[1].startswith(f"4 kernels compiled by NVRTC {nvrtc} for {ARCH} in ")
    assert lines[1].endswith(" s, 0 were there")
    nbytes = sum(path.stat().st_size for path in files(tmp_path))
    assert lines[2:] == [f"{tmp_path / 'kernels'}: 4 kernels, {nbytes:,} bytes"]
    assert len(compiled) == len(few)


def test_several_processes_compile_the_same(
    compiled: list[str], few: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = warmed(capsys, "--arch", ARCH, "--jobs", "2")
    assert found["compiled"] == found["entries"] == len(files(tmp_path)) == len(few)
    assert compiled == []
    assert warmed(capsys, "--arch", ARCH)["there"] == len(few)


def test_what_does_not_compile_is_named(
    compiled: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Entry("elementwise.cu", "k", "Elementwise<Nothing>", 256, 56)
    monkeypatch.setattr(warmup, "tasks", lambda *given: [Task(broken, ARCH, "k")])
    found = warmed(capsys, "--arch", ARCH, status=1)
    assert list(found["failed"]) == [f"k for {ARCH}"]
    assert (found["compiled"], found["there"], found["entries"]) == (0, 0, 0)
    assert main(["warmup", "--jobs", "1", "--arch", ARCH]) == 1
    assert f"k for {ARCH} does not compile: " in capsys.readouterr().out


@pytest.mark.usefixtures("compiled", "few")
def test_a_shared_cache_is_for_everybody_to_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warmed(capsys, "--arch", ARCH)
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in files(tmp_path)} == {0}
    warmed(capsys, "--arch", ARCH, "--share")
    kernels = tmp_path / "kernels"
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in files(kernels))
    folders = [kernels, *(path for path in kernels.rglob("*") if path.is_dir())]
    assert kernels / "tmp" in folders
    assert all(path.stat().st_mode & 0o555 == 0o555 for path in folders)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--ops", "swiglue", "--arch", ARCH], "no op is called 'swiglue'; close to it: swiglu"),
        ([], "there is no NVIDIA device here: name one, such as --arch sm_90"),
    ],
)
def test_what_cannot_be_warmed_is_one_line(
    argv: list[str], line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warmup, "gpus", list)
    assert main(["warmup", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    start, _, rest = captured.err.partition(line)
    assert (start, rest.count("\n")) == ("baracuda warmup: ", 1)


@pytest.mark.parametrize("argv", [["--arch", "sm_42"], ["--dtypes", "float33"]])
def test_what_there_is_no_such_thing_of_is_usage(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["warmup", *argv])
    assert ended.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


def test_a_folder_that_cannot_be_used_is_said(
    compiled: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BARACUDA_CACHE_DIR", str(tmp_path / "file"))
    compiler._disk.cache_clear()
    assert main(["warmup", "--arch", ARCH]) == 2
    where = tmp_path / "file" / "kernels"
    assert capsys.readouterr().err == f"baracuda warmup: the cache cannot be written: {where}\n"
    assert compiled == []


def test_without_an_arch_it_is_for_the_devices_here(
    compiled: list[str], few: list[Task], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from baracuda.backends.cuda import launch

    here = [Gpu(i, "a GPU", ARCH, 132, 1 << 36) for i in range(2)]
    monkeypatch.setattr(warmup, "gpus", lambda: here)
    monkeypatch.setattr(launch, "device_facts", lambda i: DeviceFacts(i, ARCH, 132, 232448))
    assert [facts.ordinal for facts in warmup._devices(None)[ARCH]] == [0, 1]
    assert warmed(capsys)["archs"] == [ARCH]
    assert len(compiled) == len(few)


# Which kernels.


@pytest.mark.parametrize("name", OPS)
def test_every_form_is_planned_wide_and_narrow(name: str) -> None:
    spec = registry[name].spec
    every = list(problems(spec, "float32"))
    assert {p.signature for p in every} == set(spec.signatures)
    if spec.integers:
        indices = {p.index_dtype for p in every} - {None}
        assert indices == {"int32", "int64"}
    if spec.kernel is None:
        return
    symbols = {
        entry.symbol for p in every for entry in precompile.entries(p, precompile.devices(ARCH))
    }
    # Rows and planes count in 64 bits, and their elements in 32.
    if spec.kernel.schedule in ("rows", "planes"):
        assert any("_vectors" in s for s in symbols)
        assert any("_steps" in s for s in symbols)
    elif spec.kernel.schedule == "heads":
        assert {"loose" in s for s in symbols} == {True, False}
    elif spec.kernel.schedule not in LOGITS and name != "nll_loss":
        assert any(s.endswith(("_i32", "_i32_add")) for s in symbols)
        # Bags are counted in 32 bits, their elements in 64.
        some = "lp_pool1d" in name or spec.kernel.schedule == "bags"
        assert any("_i64" in s for s in symbols) or some
    # Three ops add to a copy of x.
    adds = spec.accumulates or name in ("index_add", "scatter_add", "scatter_reduce")
    assert any(s.endswith("_add") for s in symbols) == adds
    assert all(s.startswith(f"{name}_f32_") for s in symbols)


def test_kernels_of_clusters_are_for_devices_that_have_them() -> None:
    spec = registry["gather_backward"].spec
    every = list(problems(spec, "bfloat16"))
    clusters = {
        arch: {e.cluster for p in every for e in precompile.entries(p, precompile.devices(arch))}
        for arch in ("sm_80", ARCH)
    }
    assert max(clusters["sm_80"]) == 1
    assert max(clusters[ARCH]) > 1


def test_each_kernel_is_asked_for_once() -> None:
    devices = {arch: precompile.devices(arch) for arch in ("sm_80", "sm_120")}
    found = tasks(["lerp", "gather"], FLOATS, devices)
    pairs = [(task.entry, task.arch) for task in found]
    assert len(set(pairs)) == len(pairs)
    assert {task.label for task in found} == {
        f"{op} {dtype} {arch}"
        for op in ("lerp", "gather") for dtype in FLOATS for arch in devices
    }  # fmt: skip
    assert tasks(["lerp"], ["int8"], devices) == []


def symbols(op: str, dtype: str) -> set[str]:
    return {t.entry.symbol for t in tasks([op], [dtype], {ARCH: precompile.devices(ARCH)})}


def test_parameters_wider_than_rows_are_planned_too() -> None:
    for op, kinds in (("rms_norm", ("bfloat16", "float32")), ("adamw", ("bfloat16",) * 2)):
        shapes = [(4096, 1024), (1024,)] if op == "rms_norm" else [(1024,)] * 2
        arrays = [precompile.Phantom(k, s) for k, s in zip(kinds, shapes, strict=True)]
        if op == "adamw":
            arrays += [precompile.Phantom("float32", (1024,))] * 2
        made = precompile.problem(registry[op].spec, arrays, {"step": 1} if op == "adamw" else {})
        wanted = {e.symbol for e in precompile.entries(made, precompile.devices(ARCH))}
        assert made.mixed
        assert wanted <= symbols(op, "bfloat16"), op


def test_what_a_kernel_does_not_do_is_left_out() -> None:
    assert symbols("scatter_reduce", "float32")
    assert not any("none" in symbol for symbol in symbols("scatter_reduce", "float32"))


def test_the_largest_arguments_beside_values_on_the_device_compile() -> None:
    """Nine strided arrays of a step, and numbers that its kernel reads."""
    found = tasks(["adam"], ["float32"], {ARCH: precompile.devices(ARCH)})
    largest = max((t for t in found if t.entry.reads), key=lambda task: task.entry.nbytes)
    assert largest.entry.nbytes > 1024
    assert warmup.failure(largest) is None


def test_lists_of_arrays_are_planned_too() -> None:
    assert "adamw_f32_lists" in symbols("adamw", "float32")
    assert {"sum_of_squares_f32_list_totals", "sum_of_squares_f32_total"} <= symbols(
        "sum_of_squares", "float32"
    )
    assert not any("lists" in symbol for symbol in symbols("swiglu", "float32"))


def test_a_phantom_makes_the_problem_that_an_array_makes() -> None:
    spec, x = registry["swiglu"].spec, torch.zeros(48, 256)
    real = bc.swiglu.plan(x).problem
    made = precompile.problem(spec, [precompile.Phantom("float32", (48, 256))], {})
    assert (made.inputs, made.outputs, made.options) == (real.inputs, real.outputs, real.options)
    huge = precompile.problem(spec, [precompile.Phantom("bfloat16", (1 << 40, 64))], {})
    assert huge.outputs[0].shape == (1 << 40, 32)
    with pytest.raises(ValueError, match="expected an even extent"):
        precompile.problem(spec, [precompile.Phantom("float32", (48, 7))], {})


def test_a_step_that_is_clipped_on_the_device_is_warm() -> None:
    """The norm and the flag of `clip_scale` stay where they are, and so may the learning rate."""
    tasks = warmup.tasks(["adamw"], ["float32"], {"sm_90": precompile.devices("sm_90")})
    scalars = registry["adamw"].spec.scalars
    reads = {tuple(t.entry.reads.split(", ")[1:]) for t in tasks if t.entry.reads}
    found = {frozenset(n for n, x in zip(scalars, r, strict=True) if x == "f32") for r in reads}
    assert found == {
        frozenset({"grad_scale", "found_inf"}),
        frozenset({"grad_scale", "found_inf", "lr", "step"}),
    }
    assert any("Lists<" in t.entry.schedule and t.entry.reads for t in tasks)


def test_a_row_of_a_block_is_warm() -> None:
    tasks = warmup.tasks(["cross_entropy"], ["float32"], {"sm_90": precompile.devices("sm_90")})
    assert any("BLOCK" in task.entry.schedule for task in tasks)
