"""The public API as a strict type checker sees it: what it accepts and what it refuses."""

import ast
import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import baracuda as bc
from baracuda.calls import sets
from baracuda.calls.op import registry

HERE = Path(__file__).parent / "typing"
ERROR = re.compile(r"^(.+?):(\d+)(?::\d+)?: error: (.*)$", re.MULTILINE)


def calls():
    """A program that calls every op with each of its keywords, of the first case or by default."""
    lines = ["from typing import Any", "import baracuda as bc", "x: Any = None"]
    for name, op in registry.items():
        given = {**op.spec.defaults, **op.spec.cases[0].options}
        keywords = {k: given[k] for k in (*op.spec.options, *op.spec.scalars) if k in given}
        keywords |= {p.name: () for f in op.spec.signatures for p in f.inputs if p.is_option}
        called = [*["x"] * len(op.spec.arrays), *(f"{k}={v!r}" for k, v in keywords.items())]
        lines.append(f"bc.{name}({', '.join(called)})")
    return "\n".join(lines) + "\n"


def mypy(tmp_path_factory, *command):
    """What mypy prints."""
    root, kept = HERE.parents[1], tmp_path_factory.getbasetemp().parent / "mypy"
    # A copy of what the linters know of torch and NumPy, which takes 30 s to read: they may be
    # running, and a cache has one writer.
    if (known := root / ".mypy_cache").is_dir() and not kept.exists():
        shutil.copytree(known, kept, ignore_dangling_symlinks=True)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir",
         str(kept), *map(str, command)],
        capture_output=True, text=True, cwd=root, env={**os.environ, "MYPYPATH": str(root)},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """mypy's errors by file, as line -> messages. One run, since loading NumPy is what costs."""
    every = tmp_path_factory.mktemp("typing") / "calls.py"
    every.write_text(calls())
    found = {}
    for path, line, text in ERROR.findall(
        mypy(tmp_path_factory, HERE / "uses.py", HERE / "misuses.py", every)
    ):
        found.setdefault(Path(path).name, {}).setdefault(int(line), []).append(text)
    return found


def test_mypy_accepts_every_use(errors):
    assert errors.get("uses.py", {}) == {}
    assert errors.get("calls.py", {}) == {}
    assert set(errors) <= {"uses.py", "misuses.py"}


def test_mypy_refuses_every_misuse_and_nothing_else(errors):
    lines = (HERE / "misuses.py").read_text().splitlines()
    marked = {n for n, line in enumerate(lines, 1) if line.endswith("# error")}
    found = errors.get("misuses.py", {})
    assert {n: lines[n - 1] for n in marked - set(found)} == {}
    assert {n: found[n] for n in set(found) - marked} == {}


@pytest.mark.full
@pytest.mark.slow("mypy reads torch and JAX")
def test_results_have_the_type_of_tensors_and_of_jax_arrays(tmp_path_factory):
    # Without the project's settings, which leave JAX out; of the package itself nothing is said.
    command = ("--config-file=", "--follow-imports=silent", HERE / "results.py")
    assert mypy(tmp_path_factory, *command) == ""


def test_a_misspelt_option_is_named(errors):
    lines = (HERE / "misuses.py").read_text().splitlines()
    at = next(n for n, line in enumerate(lines, 1) if "gatefirst" in line)
    assert any("gatefirst" in text for text in errors["misuses.py"][at])


def test_every_public_name_is_used():
    tree = ast.parse((HERE / "uses.py").read_text() + calls())
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert set(bc.__all__) <= used


def _keywords(node):
    """Keywords by the op that they go to, through `plan` and through plans as well."""
    given, everywhere = {}, set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            names = {k.arg for k in call.keywords}
            everywhere |= names
            if isinstance(call.func, ast.Attribute):
                given.setdefault(call.func.attr, set()).update(names)
    return given, everywhere


def test_every_option_of_every_family_is_used():
    given, everywhere = _keywords(ast.parse((HERE / "uses.py").read_text() + calls()))
    families = {}
    for name in bc.__all__:
        op = getattr(bc, name)
        if isinstance(op, bc.Op):
            options, used = families.setdefault(op.spec.category, (set(), set()))
            options |= {*op.spec.options, *op.spec.scalars}
            used |= given.get(name, set())
    for options, used in families.values():
        assert options <= used
    assert {*bc.Dispatch.__annotations__, "out", "accumulate"} <= everywhere


def test_the_uses_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(HERE / "uses.py"))
    bc.plan_cache.clear()


@pytest.mark.parametrize("name", list(registry))
def test_every_signature_ties_its_results_to_its_primal(name):
    op = registry[name]
    parameters = inspect.signature(op).parameters
    if sets.summed(op.spec):
        # Of an array and of a list it is an array.
        assert inspect.signature(op).return_annotation == "Array"
        return
    (primal,) = [p.name for p in parameters.values() if p.annotation == "A"]
    assert primal in op.spec.arrays
    assert primal not in op.spec.discrete
    result = inspect.signature(op).return_annotation
    forms, role = op.spec.signatures, op.spec.role
    alone = {len(f.outputs) for f in forms if all(role(p.name).flows for p in f.outputs)}
    # Metrics beside a loss would make a union for all who do not ask for them.
    counts = alone if alone == {1} else {len(form.outputs) for form in forms}
    lengths = counts - {1}
    # A type checker refuses to unpack a tuple of two or three: of several lengths, any is allowed.
    inside = ["..." if len(lengths) > 1 else ", ".join(["A"] * (n - 1)) for n in lengths]
    kinds = ["A"] * (1 in counts) + sorted({f"tuple[A, {rest}]" for rest in inside})
    assert result == " | ".join(kinds)


@pytest.mark.parametrize("name", list(registry))
def test_options_that_are_words_are_literals_of_what_is_taken(name):
    op = registry[name]
    for option, p in inspect.signature(op).parameters.items():
        assert p.annotation != "str", option
        if str(p.annotation).startswith("Literal["):
            words = ast.literal_eval(p.annotation.removeprefix("Literal"))
            assert [op.spec.options[option](name, option, word) for word in words] == words
            with pytest.raises(ValueError, match="one of " + ", ".join(map(repr, words))):
                op.spec.options[option](name, option, "no such word")
