"""What the documents show is what happens."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import baracuda as bc
from baracuda.op import registry

ROOT = Path(__file__).parents[1]
MODULES = (
    "dispatch",
    *(f"ops.{n}" for n in ("elementwise", "gated", "indexing", "pooling", "rope")),
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_docstrings_run(name: str) -> None:
    module = importlib.import_module(f"baracuda.{name}")
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    # Ops are no plain functions, so the finder has to be shown each of them.
    for op in [op for op in registry.values() if op.__module__ == module.__name__] or [bc.options]:
        tests = [t for t in finder.find(op, op.__name__, globs={}) if t.examples]
        assert tests, op
        for test in tests:
            runner.run(test)
    assert runner.summarize().failed == 0


def test_the_code_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "swiglu_backward" in capsys.readouterr().out


def test_the_readme_names_every_op() -> None:
    text = (ROOT / "README.md").read_text()
    for name in registry:
        assert name.removesuffix("_backward") in text, name


@pytest.mark.parametrize("name", sorted(registry))
def test_docstrings_give_shapes_errors_and_determinism(name: str) -> None:
    text = registry[name].__doc__ or ""
    for section in ("Parameters", "Returns", "Raises", "Notes", "Examples"):
        assert re.search(rf"^ *{section}\n *-+$", text, re.M), section
    assert re.search("bit-stable|deterministic", text, re.I), "determinism"
    parameters = text.split("Parameters\n", 1)[1].split("Returns\n", 1)[0]
    for parameter in (*registry[name].spec.arrays, *registry[name].spec.options):
        assert re.search(rf"\b{parameter}\b", parameters), parameter
