"""What `make dist` looks for is found: files that lack or do not belong, metadata, interpreters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from children import ROOT

pytest.importorskip("packaging")
import dist

METADATA = b"""Metadata-Version: 2.4
Name: baracuda
Version: 0.1.0
Summary: s
License-Expression: Apache-2.0
Requires-Python: >=3.11
Keywords: a,b

Text.
"""


def test_a_wheel_has_the_package_and_nothing_else() -> None:
    wanted = dist.package()
    assert {"baracuda/py.typed", "baracuda/cuda_src/gated.cu", "baracuda/ops/gated.py"} <= wanted
    info = "baracuda-0.1.0.dist-info/METADATA"
    assert list(dist.wheel_faults([*wanted, info], wanted)) == []
    given = [*(wanted - {"baracuda/cuda_src/gated.cu"}), info, "tests/conftest.py"]
    assert list(dist.wheel_faults(given, wanted)) == [
        "the wheel lacks baracuda/cuda_src/gated.cu", "the wheel has tests/conftest.py",
    ]  # fmt: skip


def test_a_source_distribution_can_be_built_and_tested() -> None:
    wanted = [*dist.package(), *dist._SOURCES]
    assert all((ROOT / name).is_file() for name in wanted)
    have = [f"baracuda-0.1.0/{name}" for name in wanted]
    assert list(dist.sdist_faults(have, wanted)) == []
    have.remove("baracuda-0.1.0/SECURITY.md")
    extra = "baracuda-0.1.0/baracuda/__pycache__/x.pyc"
    assert list(dist.sdist_faults([*have, extra], wanted)) == [
        "the sdist lacks SECURITY.md", "the sdist has baracuda/__pycache__/x.pyc",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (b"", b"", ""),
        (b"Summary: s\n", b"", "no summary"),
        (b"Apache-2.0", b"none of it", "none of it"),
        (b"Version: 0.1.0\n", b"Version: one\n", "one"),
        (b"Name: baracuda\n", b"", "name"),
    ],
)  # fmt: skip
def test_metadata_that_are_wrong_are_found(old: bytes, new: bytes, fault: str) -> None:
    found = list(dist.metadata_faults(METADATA.replace(old, new, 1)))
    assert [text for text in found if fault in text] == found
    assert bool(found) == bool(fault)


def test_interpreters_are_found_by_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    for version, says in {
        "3.14.0": "[[3, 14], '/x', true]", "3.12.0": "[[3, 12], '/x', false]", "3.13.0": None,
        "3.14.1": "[[3, 9], '/x', false]",
    }.items():  # fmt: skip
        path = tmp_path / "versions" / version / f"bin/python{version[:4]}"
        path.parent.mkdir(parents=True)
        text = (says or "").replace("'", '"')
        path.write_text(f"#!/bin/sh\n{'exit 127' if says is None else f'echo {text!r}'}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", "/bin")
    found = {python.name: python.path for python in dist.pythons()}
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert found[own] == Path(sys.executable)
    assert found["3.14t"] == tmp_path / "versions/3.14.0/bin/python3.14"
    assert "3.12" in found
    assert not {"3.13t", "3.9", "3.14"} & {*found} - {own}


def test_the_example_needs_numpy_alone() -> None:
    code = dist.example((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "import numpy as np" in code
    assert len(code.splitlines()) <= 8
