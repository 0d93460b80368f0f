"""Build the wheel and the source distribution, and check them: ``make dist``.

Metadata, contents, and an install into a clean environment of every Python from 3.11 to 3.14 that
is found here, free-threaded ones too: `import baracuda`, the README's example in NumPy, `doctor`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from packaging.metadata import Metadata

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
# What people need who build, test or read what a source distribution holds.
_SOURCES = (
    "pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
    "CITATION.cff", "LICENSE", "tests/conftest.py", "docs/conf.py", "docs/index.md",
)  # fmt: skip
_FACTS = (
    "import json, sys, sysconfig, venv; print(json.dumps([sys.version_info[:2], sys.prefix, "
    "bool(sysconfig.get_config_var('Py_GIL_DISABLED'))]))"
)
# Run by the new environment: what is imported is the installed package.
_IMPORTED = """
import sys, baracuda
assert sys.prefix in baracuda.__file__, baracuda.__file__
{code}
print("without the GIL" if not getattr(sys, "_is_gil_enabled", lambda: True)() else "ok")
"""


class Python(NamedTuple):
    """An interpreter: its name, such as ``3.13t``, and where it is."""

    name: str
    path: Path


# -- what is in them -------------------------------------------------------------------------------


def package(root: Path = ROOT) -> set[str]:
    """The files of the package, from the root of the repository."""
    files = (p for p in (root / "baracuda").rglob("*") if p.is_file())
    return {p.relative_to(root).as_posix() for p in files if "__pycache__" not in p.parts}


def wheel_faults(names: Iterable[str], wanted: Iterable[str]) -> Iterator[str]:
    """What a wheel of these files lacks, and what does not belong into it."""
    have = set(names)
    yield from (f"the wheel lacks {name}" for name in sorted({*wanted} - have))
    for name in sorted(have - set(wanted)):
        if not re.match(r"baracuda-[^/]+\.dist-info/", name):
            yield f"the wheel has {name}"


def sdist_faults(names: Iterable[str], wanted: Iterable[str]) -> Iterator[str]:
    """What a source distribution of these files lacks."""
    have = {name.partition("/")[2] for name in names}
    yield from (f"the sdist lacks {name}" for name in sorted({*wanted, *_SOURCES} - have))
    yield from (f"the sdist has {n}" for n in sorted(have) if "__pycache__" in n or "_build/" in n)


def metadata_faults(text: bytes) -> Iterator[str]:
    """What is wrong with the metadata, by the rules of packaging, and what people would miss."""
    try:
        found = Metadata.from_email(text, validate=True)
    except ExceptionGroup as group:
        yield from (f"metadata: {error}" for error in group.exceptions)
        return
    for field in ("summary", "description", "license_expression", "requires_python", "keywords"):
        if not getattr(found, field):
            yield f"metadata: no {field}"


def faults(wheel: Path, sdist: Path) -> list[str]:
    """All that is wrong with what was built, without installing it."""
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if not name.endswith("/")]
        out = list(wheel_faults(names, package()))
        (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        out += metadata_faults(file.read(metadata))
    with tarfile.open(sdist) as tar:
        out += sdist_faults((m.name for m in tar.getmembers() if m.isfile()), package())
    if find_spec("twine"):
        command = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            out.append(f"twine check: {done.stdout.strip()}")
    return out


# -- whether they install --------------------------------------------------------------------------


def pythons() -> list[Python]:
    """The interpreters found here, one of each version: on the path, and those of pyenv."""
    names = [f"python{version}{t}" for version in VERSIONS for t in ("", "t")]
    found = [Path(path) for path in map(shutil.which, names) if path]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += [path for name in names for path in sorted(versions.glob(f"*/bin/{name}"))]
    out: dict[str, Python] = {}
    for path in (Path(sys.executable), *found):
        done = subprocess.run([path, "-c", _FACTS], capture_output=True, text=True)
        if done.returncode == 0:  # pyenv puts names on the path of versions that it has not
            (major, minor), _, free = json.loads(done.stdout)
            name = f"{major}.{minor}"
            if name in VERSIONS:
                name += "t" * free
                out.setdefault(name, Python(name, path))
    return [out[name] for name in sorted(out, key=lambda n: (int(n[2:].rstrip("t")), n))]


def example(readme: str) -> str:
    """The README's example in NumPy, which needs nothing else."""
    blocks = re.findall(r"```python\n(.*?)```", readme, re.S)
    return next(b for b in blocks if not re.search(r"import (torch|jax|cupy)", b))


def tried(python: Python, wheel: Path, folder: Path) -> tuple[bool, str]:
    """Install into a clean environment, import, run the example and `doctor`: how it went."""
    own = folder / python.name
    run = [own / "bin/python", "-I"]
    code = _IMPORTED.format(code=example((ROOT / "README.md").read_text(encoding="utf-8")))
    steps: list[tuple[str, Sequence[str | Path]]] = [
        ("venv", [python.path, "-m", "venv", own]),
        ("pip", [*run, "-m", "pip", "install", "--quiet", "--only-binary=:all:", wheel]),
        ("the example", [*run, "-c", code]),
        ("doctor", [*run, "-m", "baracuda", "doctor"]),
    ]
    said = ""
    for name, command in steps:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
            return False, f"{name}: {lines[-1]}"
        if name == "the example":
            said = done.stdout.split("\n")[-2]
    return True, said


def main() -> int:
    """Build, check, and say what was found; 1 where something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.dist", description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="where to build (dist)")
    to: Path = parser.parse_args().to
    for old in to.glob("baracuda-*"):
        old.unlink()
    subprocess.run([sys.executable, "-m", "build", "--outdir", to, ROOT], check=True)
    (wheel,), (sdist,) = to.glob("baracuda-*.whl"), to.glob("baracuda-*.tar.gz")
    wrong = faults(wheel, sdist)
    for path in (wheel, sdist):
        print(f"{path.name}: {path.stat().st_size:,} bytes")
    for fault in wrong:
        print(fault)
    with tempfile.TemporaryDirectory() as folder:
        found = pythons()
        for python in found:
            ok, text = tried(python, wheel, Path(folder))
            wrong += [] if ok else [text]
            print(f"Python {python.name}: {text}", flush=True)
    missing = [name for name in VERSIONS if name not in {python.name for python in found}]
    if missing:
        print(f"not found here: {', '.join(missing)}")
    if not any(python.name.endswith("t") for python in found):
        print("not found here: a free-threaded Python")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
