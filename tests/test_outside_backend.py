"""A backend of another package: found by its entry point, held to the laws, never in the way."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from children import environment

HERE = Path(__file__).parent
PACKAGE = HERE / "outside_backend"


def by_hand(pyproject: str, source: Path | None, target: Path) -> None:
    """What an installer leaves behind of a package of one module."""
    project = tomllib.loads(pyproject)["project"]
    name = f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    (target / name).mkdir(parents=True)
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (target / name / "METADATA").write_text(head)
    points = [
        "\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in of_it.items())])
        for group, of_it in project["entry-points"].items()
    ]
    (target / name / "entry_points.txt").write_text("\n".join(points) + "\n")
    if source is not None:
        shutil.copy(source, target)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package is installed."""
    target = tmp_path_factory.mktemp("outside")
    try:
        # By their records: looking for pip as a module makes setuptools give up its own distutils,
        # which torch's compiler then trips over.
        version("setuptools"), version("pip")
    except PackageNotFoundError:
        by_hand((PACKAGE / "pyproject.toml").read_text(), PACKAGE / "outside_backend.py", target)
        return target
    # Building leaves files beside the source.
    source = shutil.copytree(PACKAGE, tmp_path_factory.mktemp("source") / "package")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", "--disable-pip-version-check", "--target", str(target), str(source)],
        check=True, capture_output=True,
    )  # fmt: skip
    return target


def python(path: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A process of its own in which what is installed at `path` is there."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True,
        env=environment(path, **more),
    )  # fmt: skip


PARITY = ("-m", "baracuda", "parity", "--device", "cpu", "--libraries", "numpy", "--backends")


def test_the_laws_hold_a_backend_from_outside(installed: Path) -> None:
    done = python(installed, *PARITY, "outside", "--json")
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert {(r["op"], r["dtype"]) for r in record["results"]} == {
        (op, dtype) for op in ("glu", "reglu") for dtype in ("float32", "float64")
    }
    for result in record["results"]:
        assert result["backend"] == "outside"
        assert result["cases"] >= 4
        assert result["refused"]
        assert "takes no gate before the values" in result["refused"][0]
        assert 0 <= result["error"] <= 1
        assert result["failures"] == {}
    assert record["broken"] == 0


def test_a_wrong_backend_is_found_out(installed: Path) -> None:
    done = python(installed, *PARITY, "outside", "--ops", "glu", OUTSIDE_FACTOR="1.001")
    assert done.returncode == 1
    worst = next(line for line in done.stdout.splitlines() if line.startswith("glu"))
    assert worst.split()[:2] == ["glu", "outside"]
    assert float(worst.split()[2]) > 100
    assert "glu, outside, numpy float32: matches_the_body_in_float64:" in done.stderr
    assert "x the tolerance" in done.stderr


CHOOSES = """
import numpy as np
import baracuda as bc
from baracuda import backends
assert not backends._done
x = np.ones((2, 8), np.float32)
plan = bc.glu.plan(x)
print(plan.sku.backend, bc.glu.plan(x, backend="outside").sku.backend, *backends.names())
"""


def test_it_is_asked_behind_the_others_and_read_by_the_first_plan(installed: Path) -> None:
    done = python(installed, "-c", CHOOSES)
    assert done.stderr == ""
    assert done.stdout.split() == [
        "numpy", "outside", "cuda", "cupy", "torch", "numpy", "array_api", "outside",
    ]  # fmt: skip


ENTRIES = """
import logging
logging.basicConfig()
import numpy as np
import baracuda as bc
from baracuda import backends
print(*backends.names())
x = np.ones((2, 8), np.float32)
plan = bc.glu.plan(x)
print(plan.sku.backend, dict(plan.why).get("early"))
for name in ("absent", "empty", "nobody", "misplaced"):
    try:
        bc.glu(x, backend=name)
    except NotImplementedError as error:
        print(str(error).partition("refuses: ")[2].partition(";")[0])
bc.check_errors()
"""
BROKEN = """
[project]
name = "broken"
version = "1"
[project.entry-points."baracuda.backends"]
absent = "not_there_at_all:ENTRY [extra]"
empty = "broken_module:NOTHING"
nobody = "broken_module:NOBODY"
misplaced = "broken_module:MISPLACED"
early = "broken_module:EARLY"
numpy = "broken_module:EARLY"
"""
MODULE = """
from baracuda.backends import Entry
NOTHING = 3
NOBODY = Entry("broken_module", None)
MISPLACED = Entry("broken_module", None, before="nowhere")
EARLY = Entry("broken_kernels", ("numpy",), before="numpy")
"""


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Packages of which none brings a backend that works."""
    (tmp_path / "broken_module.py").write_text(MODULE)
    (tmp_path / "broken_kernels.py").write_text("raise OSError('no such library')\n")
    by_hand(BROKEN, None, tmp_path)
    return tmp_path


def test_broken_ones_say_why_and_break_nothing(broken: Path) -> None:
    done = python(broken, "-c", ENTRIES)
    assert done.returncode == 0, done.stderr
    assert "a second backend called 'numpy' is ignored" in done.stderr
    names, chosen, *reasons = done.stdout.splitlines()
    order = names.split()
    assert order.index("early") == order.index("numpy") - 1
    assert set(order[-4:]) == {"absent", "empty", "nobody", "misplaced"}
    assert chosen == "numpy cannot be loaded: OSError: no such library"
    assert reasons == [
        "absent: cannot be loaded: ModuleNotFoundError: No module named 'not_there_at_all'",
        "empty: cannot be loaded: TypeError: broken_module:NOTHING: expected a "
        "baracuda.backends.Entry, got int",
        "nobody: cannot be loaded: AttributeError: module 'broken_module' has no attribute "
        "'BACKEND'",
        "misplaced: cannot be loaded: ValueError: before: expected one of cuda, "
        "cupy, torch, numpy, array_api, got 'nowhere'",
    ]


def test_parity_of_a_broken_one_cannot_be_asked_for(broken: Path) -> None:
    done = python(broken, *PARITY, "absent")
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = [x for x in done.stderr.splitlines() if "second backend" not in x]
    assert line.startswith("baracuda parity: backend 'absent' cannot be loaded: ModuleNotFound")
