"""The kernels on disk: what is damaged, foreign or no plain file is never served, and no bound is
passed."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from baracuda.__main__ import main
from baracuda.backends.cuda import compiler, precompile, store
from baracuda.backends.cuda.store import Store
from baracuda.tools import doctor, folder

ENTRY = compiler.Entry("elementwise.cu", "k", "Elementwise<Lerp, f32, 4, 4, 1, i32>", 256, 56)
OTHER = ENTRY._replace(symbol="other")
ARCH = "sm_90"
POSIX = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owner here")


def code_of(source: str) -> bytes:
    """What the stand-in of NVRTC makes of a source."""
    return b"\x7fELF" + hashlib.sha256(source.encode()).digest() * 100


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is compiled from here on, by a stand-in, into a cache of this test's own."""
    core = pytest.importorskip("cuda.core")
    seen: list[str] = []

    class Program:
        def __init__(self, source: str, *rest: Any) -> None:
            seen.append(source)

        def compile(self, target: str) -> Any:
            return SimpleNamespace(code=code_of(seen[-1]))

    monkeypatch.setattr(core, "Program", Program)
    monkeypatch.setenv("BARACUDA_CACHE_DIR", str(tmp_path / "own"))
    compiler._disk.cache_clear()
    yield seen
    compiler._disk.cache_clear()


def only_file(root: Path) -> Path:
    (path,) = (p for p in root.rglob("*") if p.is_file())
    return path


def linked(path: Path) -> None:
    """The very file, but somewhere else."""
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def sparse(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(60 << 30)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "stub": lambda path: path.write_bytes(b"\x7fELF" + bytes(196)),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "one bit": flipped,
    "bare code": lambda path: path.write_bytes(code_of(ENTRY.source)),
    "link": linked,
    "pipe": piped,
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "sparse": sparse,
    "for others to write": lambda path: path.chmod(0o602),
    "for a group to write": lambda path: path.chmod(0o620),
}


@POSIX
@pytest.mark.parametrize("damage", DAMAGE)
def test_what_does_not_prove_itself_is_compiled_again(
    damage: str, compiled: list[str], tmp_path: Path
) -> None:
    code = compiler.cubin(ENTRY, ARCH)
    DAMAGE[damage](only_file(tmp_path))
    assert not compiler.kept(ENTRY, ARCH)
    assert compiler.cubin(ENTRY, ARCH) == code
    assert len(compiled) == 2
    # And is replaced, but for a folder.
    assert compiler.kept(ENTRY, ARCH) == (damage != "folder")


def test_the_code_of_another_kernel_is_not_served(compiled: list[str], tmp_path: Path) -> None:
    code = compiler.cubin(ENTRY, ARCH)
    path = only_file(tmp_path)
    whole = path.read_bytes()
    path.unlink()
    compiler.cubin(OTHER, ARCH)
    only_file(tmp_path).write_bytes(whole)
    assert compiler.cubin(OTHER, ARCH) == code_of(OTHER.source) != code
    assert len(compiled) == 3


@POSIX
def test_only_this_user_and_root_are_believed(
    compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.cubin(ENTRY, ARCH)
    owner = only_file(tmp_path).stat().st_uid
    # What others may read is still only this user's.
    only_file(tmp_path).chmod(0o644)
    assert compiler.kept(ENTRY, ARCH)
    monkeypatch.setattr(os, "geteuid", lambda: owner + 4242)
    assert compiler.kept(ENTRY, ARCH) == (owner == 0)
    if owner == 0:
        os.chown(only_file(tmp_path), 4243, -1)
        assert not compiler.kept(ENTRY, ARCH)


@POSIX
def test_folders_and_files_are_for_this_user_alone(compiled: list[str], tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        compiler.cubin(ENTRY, ARCH)
    finally:
        os.umask(before)
    made = list((tmp_path / "own").rglob("*"))
    assert len(made) == 5
    modes = {p.is_dir(): stat.S_IMODE(p.stat().st_mode) for p in [tmp_path / "own", *made]}
    assert modes == {True: 0o700, False: 0o600}


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    kept = Store(tmp_path / "kernels", most=10_000)
    keys = [bytes([i]) for i in range(12)]
    for age, key in enumerate(keys[:9]):
        kept.put(key, key * 1000)
        os.utime(kept._place(key)[0], (1_000_000 + age, 1_000_000 + age))
    assert kept.get(keys[0]) == keys[0] * 1000
    # Another process, which has to look first.
    kept = Store(tmp_path / "kernels", most=10_000)
    for key in keys[9:]:
        kept.put(key, key * 1000)
    assert [i for i, key in enumerate(keys) if kept.get(key) is None] == [1, 2, 3, 4]
    sizes = [p.stat().st_size for p in tmp_path.rglob("*") if p.is_file()]
    assert sum(sizes) <= 10_000


def test_what_a_crash_left_goes_once_it_is_old(tmp_path: Path) -> None:
    kept = Store(tmp_path, most=5000)
    kept.put(b"a", bytes(100))
    young, old = tmp_path / "tmp" / "young", tmp_path / "tmp" / "old"
    for path in (young, old):
        path.write_bytes(bytes(2000))
    os.utime(old, (1, 1))
    Store(tmp_path, most=5000).put(b"b", bytes(4500))
    assert young.exists()
    assert not old.exists()


def test_a_full_disk_costs_a_compilation_and_leaves_nothing(
    compiled: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(store.os, "replace", full)
        for _ in range(2):
            assert compiler.cubin(ENTRY, ARCH) == code_of(ENTRY.source)
        # Who compiles for later is told.
        with pytest.raises(OSError, match="cannot be written"):
            precompile.keep(ENTRY, ARCH)
    assert len(compiled) == 3
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.fixture
def homeless(compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A user of whom the system knows nothing, as of ``docker run -u 54321``."""
    for name in ("BARACUDA_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)

    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nowhere)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_nothing_is_kept_and_that_is_said_once(
    compiled: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "baracuda"):
        for _ in range(2):
            assert compiler.cubin(ENTRY, ARCH) == code_of(ENTRY.source)
        compiler.forget(ENTRY, ARCH)
        assert not compiler.kept(ENTRY, ARCH)
    assert len(compiled) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "compiled kernels are not kept: there is no home directory; "
        "BARACUDA_CACHE_DIR names a folder for them"
    ]


@pytest.mark.usefixtures("homeless")
def test_commands_without_a_home_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    line = "no folder, as there is no home directory; BARACUDA_CACHE_DIR names one"
    for action in ("info", "clear"):
        assert main(["cache", action]) == 0
        assert capsys.readouterr().out == f"{line}\n"
    assert folder().record() == {"folder": None, "entries": 0, "bytes": 0}
    assert doctor.disk() == doctor.Finding("cache", "broken", line)
    assert main(["warmup", "--arch", ARCH]) == 2
    assert capsys.readouterr().err == f"baracuda warmup: the cache cannot be written: {line}\n"


@POSIX
def test_a_pipe_that_holds_code_is_no_kept_kernel(compiled: list[str], tmp_path: Path) -> None:
    compiler.cubin(ENTRY, ARCH)
    path = only_file(tmp_path)
    whole = path.read_bytes()
    piped(path)
    path.chmod(0o600)
    handle = os.open(path, os.O_RDWR)
    try:
        os.write(handle, whole)
        assert not compiler.kept(ENTRY, ARCH)
    finally:
        os.close(handle)


def test_a_file_longer_than_any_kernel_is_not_read(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    kept.put(b"a", bytes(100))
    sparse(only_file(tmp_path))
    with pytest.raises(OSError, match="longer than any kernel"):
        store._read(only_file(tmp_path))


def test_the_code_of_another_architecture_is_not_served(compiled: list[str]) -> None:
    for arch in (ARCH, "sm_80", ARCH, "sm_80"):
        compiler.cubin(ENTRY, arch)
    assert len(compiled) == 2


def test_a_kernel_is_there_at_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Store(tmp_path)
    kept.put(b"a", b"old" * 100)
    seen, replace = [], os.replace

    def looking(*paths: Any) -> None:
        # Written, and not yet in its place.
        seen.append(kept.get(b"a"))
        replace(*paths)

    monkeypatch.setattr(store.os, "replace", looking)
    kept.put(b"a", b"new" * 100)
    assert (seen, kept.get(b"a")) == ([b"old" * 100], b"new" * 100)
