"""Wheels of kernels: what is packed is what a plan finds, without NVRTC; what is damaged, foreign
or for another compiler's source is never served."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stub_device
import torch
from children import ROOT, environment

import baracuda as bc
from baracuda.__main__ import main
from baracuda.backends import cuda
from baracuda.backends.cuda import archive, compiler, precompile, store, wheels
from baracuda.backends.cuda.archive import Archive, Kernel
from baracuda.backends.cuda.compiler import Entry
from baracuda.declaration.backend import Refusal
from baracuda.declaration.sku import KernelSku
from baracuda.errors import UnsupportedError
from baracuda.tools import doctor, warmup
from baracuda.tools.warmup import Task

try:
    version("cuda-core"), version("nvidia-cuda-nvrtc")
except PackageNotFoundError as error:
    pytest.skip(f"needs {error.name}: pip install 'baracuda[cuda]'", allow_module_level=True)

ARCH, NAME = "sm_90", f"baracuda-kernels-sm90 {bc.__version__}"
ENTRY = Entry("elementwise.cu", "k", "Elementwise<Lerp, f32, 4, 4, 1, i32>", 256, 56)
POSIX = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owner here")


def forget_what_is_installed() -> None:
    for found in (compiler._disk, wheels.of, compiler.missing):
        found.cache_clear()
    compiler._origins.clear()
    compiler._unfit.clear()


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache, and a folder to install into, of this test's own."""
    monkeypatch.setenv("BARACUDA_CACHE_DIR", str(tmp_path / "cache"))
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    forget_what_is_installed()
    yield site
    forget_what_is_installed()


def packed(codes: dict[Entry, bytes], arch: str = ARCH, **description: str) -> bytes:
    facts = {"arch": arch, "version": bc.__version__, "nvrtc": "13.0"} | description
    return archive.packed(
        facts, [Kernel(e.symbol, wheels.digest(e.source, arch), code) for e, code in codes.items()]
    )


def installed(site: Path, data: bytes) -> Path:
    """Unpack a wheel for `ARCH`, as pip does."""
    with zipfile.ZipFile(wheels.write(site.parent, ARCH, data, bc.__version__)) as wheel:
        wheel.extractall(site)
    forget_what_is_installed()
    return site / "baracuda_kernels_sm90" / wheels.FILE


# -- from the command to a plan --------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of two ops, made by the command."""
    to = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BARACUDA_CACHE_DIR", str(to / "cache"))
        forget_what_is_installed()
        argv = ["--ops", "swiglu", "lerp", "--dtypes", "float32", "--arch", ARCH, "--jobs", "1"]
        assert main(["warmup", "--json", "--pack", str(to), *argv]) == 0
    forget_what_is_installed()
    (found,) = to.glob("*.whl")
    return found


def test_the_wheel_is_one_that_pip_installs(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name == f"baracuda_kernels_sm90-{bc.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
        (record,) = (file.read(n).decode() for n in names if n.endswith("/RECORD"))
        for line in record.splitlines()[:-1]:
            name, sum_, size = line.split(",")
            digest = base64.urlsafe_b64encode(hashlib.sha256(file.read(name)).digest())
            assert sum_ == f"sha256={digest.rstrip(b'=').decode()}"
            assert int(size) == len(file.read(name))
    assert [line.split(",")[0] for line in record.splitlines()] == names
    assert all(info.date_time == (1980, 1, 1, 0, 0, 0) for info in file.infolist())


def run(*first: Path, cache: Path) -> Any:
    """What the program without NVRTC prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/without_nvrtc.py")], capture_output=True, text=True,
        env=environment(*first, BARACUDA_CACHE_DIR=str(cache)), cwd=cache,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow("pip installs, and a process imports torch: 8 s on an idle machine")
def test_a_plan_runs_a_kernel_of_the_wheel_where_there_is_no_nvrtc(
    wheel: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
         "--disable-pip-version-check", "--target", str(site), str(wheel)],
        check=True, capture_output=True,
    )  # fmt: skip
    found = run(site, cache=tmp_path)
    assert "nvrtc" not in found["unavailable"]
    sku = found["swiglu"]
    assert (sku["backend"], sku["code"], found["asked"]) == ("cuda", NAME, [])
    assert found["launched"] == 1
    assert found["elf"]
    assert all(found["elf"])
    # What is not in the wheel has the next backend, and says why.
    install = "and NVRTC is not installed: pip install 'baracuda[cuda]'"
    backend, why = found["mish"]
    assert backend == "torch"
    assert why.startswith("has no compiled kernel mish_f32_")
    for text in (why, found["forced"]):
        assert install in text
    count = int(found["doctor"][0][2].split()[1])
    assert found["doctor"] == [
        ["baracuda-kernels-sm90", "ok", f"{bc.__version__}, {count} kernels for sm_90, "
         f"compiled by NVRTC {compiler.nvrtc_version()}"],
    ]  # fmt: skip
    assert count > 20
    # What was loaded is unpacked, and no more.
    kept = [p for p in (tmp_path / "kernels/entries").rglob("*") if p.is_file()]
    assert len(kept) == len(found["elf"]) < count


def test_without_nvrtc_and_without_a_wheel_there_is_nothing_to_run(
    apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(name: str) -> str:
        if name == "nvidia-cuda-nvrtc":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(cuda, "version", hidden)
    ask = cuda.unavailable.__wrapped__
    assert ask().startswith("needs nvidia-cuda-nvrtc: pip install")
    installed(apart, packed({ENTRY: CODE}))
    assert "nvidia-cuda-nvrtc" not in (ask() or "")


def test_a_plan_says_what_no_wheel_has_for_a_rarer_call(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_device.install(monkeypatch)
    from baracuda.backends.cuda import launch

    def loaded(entry: Entry, facts: Any, shared: int) -> Entry:
        if entry.symbol.endswith("_add"):
            raise Refusal(f"has no compiled kernel {entry.symbol}")
        return entry

    monkeypatch.setattr(launch, "loaded", loaded)
    dy, x = torch.zeros(48, 128), torch.zeros(48, 256)
    bc.plan_cache.clear()
    plan = bc.swiglu_backward.plan(dy, x)
    plan(dy, x, out=torch.zeros(48, 256))
    with pytest.raises(UnsupportedError, match="swiglu_backward: the planned kernel has no comp"):
        plan(dy, x, out=torch.zeros(48, 256), accumulate=True)
    bc.plan_cache.clear()


def test_lists_that_no_wheel_has_are_launched_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_device.install(monkeypatch)
    from baracuda.backends.cuda import launch

    def loaded(entry: Entry, facts: Any, shared: int) -> Entry:
        if "lists" in entry.symbol and not entry.reads:
            raise Refusal(f"has no compiled kernel {entry.symbol}")
        return entry

    monkeypatch.setattr(launch, "loaded", loaded)
    bc.plan_cache.clear()
    xs = [torch.zeros(48, 128), torch.zeros(7)]
    plan = bc.scale_by.plan(xs, factor=0.5)
    assert not any("lists" in sku.kernel for sku in plan.skus)
    assert {sku.backend for sku in plan.skus} == {"cuda"}
    plan(xs, factor=0.5)
    bc.plan_cache.clear()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Some kernels stand for all that there are."""
    found = warmup.tasks(["lerp"], ["float32"], {ARCH: precompile.devices(ARCH)})[:3]
    monkeypatch.setattr(warmup, "tasks", lambda *given: found)
    return found


def test_the_same_kernels_make_the_same_file(
    few: list[Task], apart: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    made = []
    for name in ("one", "other"):
        monkeypatch.setenv("BARACUDA_CACHE_DIR", str(apart / name))
        forget_what_is_installed()
        (apart / name).mkdir()
        argv = ["--arch", ARCH, "--jobs", "1", "--pack", str(apart / name)]
        assert main(["warmup", *argv]) == 0
        (path,) = (apart / name).glob("*.whl")
        made.append(path.read_bytes())
        few.reverse()
    assert made[0] == made[1]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"{path}: 3 kernels, {len(made[1]):,} bytes"


def test_each_architecture_has_a_wheel_or_none_runs_its_code() -> None:
    families = {arch: wheels.family_of(arch) for arch in precompile.ARCHS}
    assert {arch for arch, family in families.items() if family is None} == {"sm_87"}
    for arch, family in families.items():
        # Code runs on a later device of the same major version alone.
        if family is not None:
            assert (arch[:-1], arch[-1] >= family[-1]) == (family[:-1], True)
    facts = precompile.family("sm_80")
    assert {one.arch for one in facts} == {"sm_80", "sm_86", "sm_89"}


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--arch", "sm_89"], "there is no wheel for sm_89: that of sm_80 has its kernels"),
        (["--arch", "sm_87"], "there is no wheel for sm_87: each kernel compiles there"),
        (["--pack", "nowhere"], "no directory nowhere; mkdir -p nowhere makes it"),
    ],
)
def test_what_cannot_be_packed_is_one_line(
    argv: list[str], line: str, apart: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warmup", "--pack", str(apart), *argv]) == 2
    assert capsys.readouterr().err == f"baracuda warmup: --pack: {line}\n"


@pytest.mark.usefixtures("few")
def test_a_wheel_that_no_index_would_take_is_not_written(
    apart: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warmup, "_MOST_BYTES", 100)
    assert main(["warmup", "--pack", str(apart), "--arch", ARCH, "--jobs", "1"]) == 2
    assert "and a wheel may have 100: name fewer --ops or --dtypes" in capsys.readouterr().err
    assert not list(apart.glob("*.whl"))


def test_a_wheel_lacks_no_kernel_that_does_not_compile(
    few: list[Task], apart: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few.append(Task(Entry("elementwise.cu", "k", "Elementwise<Nothing>", 256, 56), ARCH, "k"))
    assert main(["warmup", "--pack", str(apart), "--arch", ARCH, "--jobs", "1"]) == 1
    assert "does not compile" in capsys.readouterr().out
    assert not list(apart.glob("*.whl"))


# -- what is served --------------------------------------------------------------------------------

CODE = b"\x7fELF" + os.urandom(5000)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that NVRTC is asked for, which a stand-in makes."""
    seen: list[str] = []

    def made(entry: Entry, arch: str) -> bytes:
        seen.append(f"{entry.symbol} {arch}")
        return b"compiled"

    monkeypatch.setattr(compiler, "compiled", made)
    return seen


def test_a_kernel_of_a_wheel_is_not_compiled(apart: Path, compiled: list[str]) -> None:
    path = installed(apart, packed({ENTRY: CODE}))
    assert compiler.cubin(ENTRY, ARCH) == CODE
    assert compiler.origin([ENTRY], ARCH) == NAME
    assert compiler.packed(ENTRY, ARCH)
    # Others are; of the wheel's another architecture, source, or number of threads.
    for entry in (ENTRY._replace(threads=128), ENTRY._replace(symbol="other")):
        assert compiler.cubin(entry, ARCH) == b"compiled"
        assert not compiler.packed(entry, ARCH)
    assert compiler.cubin(ENTRY, "sm_80") == b"compiled"
    assert compiled == [f"k {ARCH}", f"other {ARCH}", "k sm_80"]
    nvrtc = f"NVRTC {compiler.nvrtc_version()}"
    other = ENTRY._replace(symbol="other")
    assert compiler.origin([ENTRY, other, other], ARCH) == f"{NAME} + {nvrtc}"
    assert path.exists()


def test_a_family_runs_the_code_of_its_first(
    apart: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = apart / "baracuda_kernels_sm80"
    package.mkdir()
    (package / wheels.FILE).write_bytes(packed({ENTRY: CODE}, "sm_80"))
    assert compiler.cubin(ENTRY, "sm_89") == CODE
    assert compiler.cubin(ENTRY, "sm_87") == b"compiled"
    # Of another family, in the wrong place.
    forget_what_is_installed()
    (package / wheels.FILE).write_bytes(packed({ENTRY: CODE}))
    assert compiler.cubin(ENTRY, "sm_80") == b"compiled"
    assert doctor.packed()[0].state == "broken"


def test_what_is_unpacked_is_kept_for_this_wheel_alone(apart: Path, compiled: list[str]) -> None:
    path = installed(apart, packed({ENTRY: CODE}))
    assert compiler.cubin(ENTRY, ARCH) == CODE
    index = path.read_bytes()
    # The groups are gone: only what was unpacked before is left.
    path.write_bytes(index[:-500] + bytes(500))
    forget_what_is_installed()
    assert compiler.cubin(ENTRY, ARCH) == CODE
    assert compiled == []
    # A newer wheel of the same kernel is unpacked anew.
    installed(apart, packed({ENTRY: CODE[::-1]}))
    assert compiler.cubin(ENTRY, ARCH) == CODE[::-1]
    path.unlink()
    forget_what_is_installed()
    assert compiler.cubin(ENTRY, ARCH) == b"compiled"


def test_without_a_cache_kernels_are_unpacked_each_time(
    apart: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(apart, packed({ENTRY: CODE}))
    monkeypatch.setattr(compiler, "_disk", cache(lambda: None))
    assert [compiler.cubin(ENTRY, ARCH) for _ in range(2)] == [CODE, CODE]
    assert compiled == []


def test_code_that_the_driver_does_not_take_is_compiled(apart: Path, compiled: list[str]) -> None:
    installed(apart, packed({ENTRY: CODE}))
    assert compiler.cubin(ENTRY, ARCH) == CODE
    compiler.forget(ENTRY, ARCH)
    assert compiler.cubin(ENTRY, ARCH) == b"compiled"
    assert not [p for p in (apart.parent / "cache").rglob("*") if p.is_file()]


def changed(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


# Of a group no bit is changed here: the digest of the code finds it, tested below.
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "a mark": changed(0),
    "the digest of the index": changed(10),
    "a count": changed(44),
    "the description": changed(60),
    "the index": changed(140),
    "cut off in the index": lambda data: data[:150],
    "cut off in a group": lambda data: data[:-100],
    "longer counts than the file": lambda data: data[:44] + b"\xff\xff\x0f\0" + data[48:],
    "another file": lambda data: b"x" * 10_000,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_is_compiled(damage: str, apart: Path, compiled: list[str]) -> None:
    path = installed(apart, packed({ENTRY: CODE}))
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert compiler.cubin(ENTRY, ARCH) == b"compiled"
    assert (wheels.of(ARCH) is None) == (damage != "cut off in a group")


def test_no_bit_of_a_group_can_change(apart: Path) -> None:
    path = installed(apart, packed({ENTRY: CODE}))
    data, digest = path.read_bytes(), wheels.digest(ENTRY.source, ARCH)
    for at in range(len(data) - 4000, len(data), 97):
        path.write_bytes(changed(at)(data))
        assert Archive(path).get(digest) in (None, CODE)
    path.write_bytes(changed(len(data) - 2500)(data))
    assert Archive(path).get(digest) is None


@POSIX
def test_a_wheel_is_believed_that_those_wrote_who_wrote_this_package(
    apart: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, own = installed(apart, packed({ENTRY: CODE})), os.stat(wheels.__file__)

    def may(mode: int) -> bool:
        path.chmod(mode)
        forget_what_is_installed()
        return wheels.of(ARCH) is not None

    assert may(0o644)
    assert not may(0o646)
    # As pip leaves files where the user's mask is 002: then this package is so too.
    like = [*own]
    like[0], like[5] = own.st_mode & ~0o020, path.stat().st_gid
    monkeypatch.setattr(wheels, "_own", lambda: os.stat_result(like))
    assert not may(0o664)
    like[0] |= 0o020
    assert may(0o664)
    like[5] += 1
    assert not may(0o664)
    # A link could be anybody's.
    path.chmod(0o644)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))
    forget_what_is_installed()
    assert wheels.of(ARCH) is None


@POSIX
def test_a_file_of_another_user_is_read_where_that_user_wrote_this_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.touch(0o644)
    info = path.stat()
    if info.st_uid == 0:
        os.chown(path, 4243, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(OSError, match="another user could have written it"), store.opened(path):
        pass
    with store.opened(path, path.stat()) as (_, found):
        assert found.st_size == 0


def test_many_kernels_are_found_in_their_groups(tmp_path: Path) -> None:
    codes = {
        ENTRY._replace(symbol=f"k{i}"): os.urandom(8) * (100 * (i % 40 + 1)) for i in range(99)
    }
    path = tmp_path / "pack"
    path.write_bytes(packed(codes))
    found = Archive(path)
    assert len(found) == 99
    for entry, code in codes.items():
        assert found.get(wheels.digest(entry.source, ARCH)) == code
    assert found.get(bytes(32)) is found.get(b"\xff" * 32) is None
    groups = len(found._groups) // archive._GROUP.size
    assert 1 < sum(map(len, codes.values())) / archive.GROUP <= groups < 33


def test_the_doctor_says_what_is_installed(apart: Path) -> None:
    assert doctor.packed() == [
        doctor.Finding("wheels", "none", "each kernel is compiled when it is first called")
    ]
    path = installed(apart, packed({ENTRY: CODE}))
    (line,) = doctor.packed()
    assert line == doctor.Finding(
        "baracuda-kernels-sm90", "ok",
        f"{bc.__version__}, 1 kernels for sm_90, compiled by NVRTC 13.0",
    )  # fmt: skip
    path.write_bytes(b"")
    (line,) = doctor.packed()
    assert line.fault
    assert line.text.endswith("pip install --force-reinstall baracuda-kernels-sm90")


def test_what_a_wheel_has_is_not_compiled_by_warmup(
    apart: Path, few: list[Task], capsys: pytest.CaptureFixture[str]
) -> None:
    installed(apart, packed({task.entry: CODE for task in few[:2]}))
    argv = ["warmup", "--json", "--arch", ARCH, "--jobs", "1"]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["compiled"], found["there"]) == (1, 2)
    # But what is packed is NVRTC's own.
    assert main([*argv, "--pack", str(apart.parent)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["compiled"], found["there"]) == (2, 1)
    assert found["wheels"][0]["kernels"] == 3


def test_skus_that_differ_in_the_origin_of_the_code_are_equal() -> None:
    sku = bc.lerp.plan(np.ones(2), np.ones(2)).sku
    text = json.loads(sku.to_json())
    assert text["code"] == ""
    other = KernelSku.from_json(text | {"code": NAME})
    assert (other.code, other == sku, hash(other)) == (NAME, True, hash(sku))
    del text["code"]
    assert KernelSku.from_json(text) == sku
