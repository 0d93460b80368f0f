"""What the documents show is what happens."""

from __future__ import annotations

import doctest
import importlib
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import lanes
import pytest
from children import ROOT, environment
from documents import DOCS, NEEDS_GPU, defined, program
from forks import printed

import baracuda as bc
from baracuda.calls.op import registry

# The contract shows code that is not complete; the pages of the ops have their docstrings'.
PAGES = [
    path.relative_to(DOCS).as_posix()
    for path in sorted(x for at in ("*.md", "start/*.md", "recipes/*.md") for x in DOCS.glob(at))
    if path.name != "design.md" and "```python" in path.read_text(encoding="utf-8")
]
# Run beside plain models, by tests/models_of_jax.py.
COMPARED = ("jax_models.md",)
# What these do is tested without their pages too, and takes longest. With the folders that they are
# about; a page is tried too where it changes itself.
LONG = {
    "adding-a-backend.md": "baracuda/backends/",
    "adding-an-op.md": "baracuda/declaration/",
    "determinism.md": "baracuda/frameworks/torch/",
    "jax.md": "baracuda/frameworks/jax",
    "torch.md": "baracuda/frameworks/torch/",
    "transformers.md": "baracuda/integrations/transformers",
}
MODULES = ["baracuda.declaration.dispatch", *sorted({op.__module__ for op in registry.values()})]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_the_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    # Ops are no plain functions, so the finder has to be shown each of them.
    for op in [op for op in registry.values() if op.__module__ == module.__name__] or [bc.options]:
        tests = [t for t in finder.find(op, op.__name__, globs={}) if t.examples]
        assert tests, op
        for test in tests:
            runner.run(test)
    assert runner.summarize().failed == 0


def test_the_code_of_the_readme_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})


def run(page: str, folder: Path, gpu: bool) -> None:
    """Run a page in a process and a folder of its own: some register ops or start others."""
    file = folder / "page.py"
    code = program(DOCS / page, gpu)
    if "destroy_process_group" in code:
        # Threads of gloo that outlive Python abort it, as the page says of torchrun.
        code += "\nimport time\ntime.sleep(0.5)\n"
    file.write_text(code, encoding="utf-8")
    if gpu:
        env = {name: value for name, value in environment().items() if name != "JAX_PLATFORMS"}
        done = subprocess.run(
            [sys.executable, str(file)], capture_output=True, text=True, cwd=folder, env=env
        )
        assert done.returncode == 0, f"docs/{page}: {done.stderr[-2000:]}"
    else:
        printed(file, at=folder)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.full(f"docs/{page}", LONG[page]))
        if page in LONG
        else page
        for page in PAGES
        if lanes.FULL or page not in LONG
    ],
)
def test_the_code_of_a_page_runs(page: str, tmp_path: Path) -> None:
    compile(program(DOCS / page, gpu=True), page, "exec")
    if page.startswith("recipes/"):
        # These start nothing, so they need no process of their own.
        defined(page)
    elif page not in COMPARED and program(DOCS / page, gpu=False).strip():
        run(page, tmp_path, gpu=False)


@pytest.mark.gpu
@pytest.mark.parametrize("page", [p for p in PAGES if NEEDS_GPU in (DOCS / p).read_text()])
def test_the_code_of_a_page_runs_on_a_gpu(page: str, tmp_path: Path) -> None:
    if not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("needs an NVIDIA GPU")
    needed = {"start/cupy.md": "cupy", "start/jax.md": "jax_cuda13_plugin"}.get(page, "torch")
    if find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    run(page, tmp_path, gpu=True)


def test_a_page_that_is_wrong_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "DOCS", tmp_path)
    (tmp_path / "bad.md").write_text(
        f"x\n```python\n{NEEDS_GPU}0 / 0\n```\n```python\n1 + 1\n```\n"
    )
    run("bad.md", tmp_path, gpu=False)
    with pytest.raises(AssertionError, match="line 4"):
        run("bad.md", tmp_path, gpu=True)


def test_the_readme_names_every_op_or_its_family() -> None:
    words = set(re.findall(r"\w+", (ROOT / "README.md").read_text()))
    for name, op in registry.items():
        assert {name.removesuffix("_backward"), op.spec.category} & words, name


@pytest.mark.parametrize("name", sorted(registry))
def test_docstrings_give_shapes_errors_and_determinism(name: str) -> None:
    text = registry[name].__doc__ or ""
    for section in ("Parameters", "Returns", "Raises", "Notes", "Examples"):
        assert re.search(rf"^ *{section}\n *-+$", text, re.M), section
    assert re.search("bit-stable|deterministic", text, re.I), "determinism"
    parameters = text.split("Parameters\n", 1)[1].split("Returns\n", 1)[0]
    for parameter in (*registry[name].spec.arrays, *registry[name].spec.options):
        assert re.search(rf"\b{parameter}\b", parameters), parameter
    for array in registry[name].spec.arrays:
        assert re.search(rf"^ *(\w+, )*{array}(, \w+)* : .", parameters, re.M), array
