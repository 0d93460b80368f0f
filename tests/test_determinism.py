"""What the documents say of determinism is what plans say, for every op."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import stub_device

from baracuda import backends
from baracuda.calls.op import registry
from baracuda.testing.cases import Subject

PAGE = Path(__file__).parents[1] / "docs" / "determinism.md"


def exceptions() -> dict[str, list[str]]:
    """The rows of the page's table, by op: whether it is deterministic, and bit-stable."""
    rows = re.findall(r"^\| (`\w+`.*?) \| (.*?) \| (.*?) \|$", PAGE.read_text("utf-8"), re.M)
    return {name: rest for ops, *rest in rows for name in re.findall(r"`(\w+)`", ops)}


def test_the_page_names_ops_that_exist() -> None:
    assert set(exceptions()) <= set(registry)
    assert "linear_cross_entropy_backward" in exceptions()


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
def test_every_plan_on_a_cpu_says_what_the_page_says(library: str) -> None:
    for name, op in registry.items():
        _, stable = exceptions().get(name, ["", ""])
        for backend in backends.claims(op.spec, library):
            for call in Subject(name, backend, library, "float32", brief=True).calls():
                precision = call.plan().sku.precision
                want = (True, not stable.startswith("no"))
                assert (precision.deterministic, precision.bit_stable) == want, call


def test_every_plan_of_a_kernel_says_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    stub_device.install(monkeypatch)
    for name, op in registry.items():
        if op.spec.kernel is None:
            continue
        for call in Subject(name, "cuda", "torch", "float32", brief=True).calls():
            precision = call.plan().sku.precision
            if name not in exceptions():
                assert (precision.deterministic, precision.bit_stable) == (True, True), call
            precision = call.plan(deterministic=True).sku.precision
            assert (precision.deterministic, precision.bit_stable) == (True, True), call


@pytest.mark.parametrize("name", list(registry))
def test_every_docstring_says_what_the_page_says(name: str) -> None:
    notes = (registry[name].__doc__ or "").partition("Notes\n")[2].partition("Examples\n")[0]
    says = "bit-stable" in notes.lower() and "not bit-stable" not in notes
    assert says == (name not in exceptions())
