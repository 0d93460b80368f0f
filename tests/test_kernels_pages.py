"""The pages of the kernels name files, types and schedules that are there, and leave none out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from children import ROOT

PAGES = sorted((ROOT / "docs" / "kernels").glob("*.md"))
FOLDERS = (ROOT / "baracuda", ROOT / "tests")
SOURCES = [x for at in FOLDERS for x in at.rglob("*") if x.suffix in (".py", ".cu", ".cuh")]
# Of Python, and of the frameworks and tools that the pages compare with.
THEIRS = {"True", "MemoryAccess.cuh", "Function", "Program", "Tensor"}


@cache
def declared() -> frozenset[str]:
    """The types that the sources declare."""
    declaration = re.compile(r"\b(?:struct|class|using|enum)(?: alignas\(.*\))? (\w+)")
    return frozenset(n for x in SOURCES for n in declaration.findall(x.read_text(encoding="utf-8")))


def foreign(text: str) -> Iterator[str]:
    """The files and types in the code of a page that are not in these sources."""
    files = {x.name for x in SOURCES}
    for code in re.findall(r"`([^`\n]+)`", text):
        for file in re.findall(r"[\w*]+\.(?:cuh?|py)\b", code):
            if "*" not in file and file not in files | THEIRS:
                yield file
        for name in re.findall(r"(?<![\w./-])[A-Z][a-z]+(?:[A-Z][a-z]*)*(?![\w.])", code):
            if name not in declared() | THEIRS:
                yield name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_is_there(page: Path) -> None:
    assert list(foreign(page.read_text(encoding="utf-8"))) == []


def test_a_file_and_a_type_that_are_gone_are_found() -> None:
    text = "`schedules.cuh` and `common/rows.cuh`, `Covering`, `Rows<F, T>`, `vec`"
    assert list(foreign(text)) == ["schedules.cuh", "Covering"]


def test_every_schedule_and_header_is_on_a_page() -> None:
    planners = (ROOT / "baracuda/backends/cuda/schedules/__init__.py").read_text(encoding="utf-8")
    schedules = re.findall(r'^    "(\w+)": \w+\.\w+,$', planners, re.M)
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert len(schedules) > 20
    assert [s for s in {*schedules} if f"`{s}`" not in text] == []
    headers = {x.stem for x in SOURCES if x.suffix == ".cuh"}
    assert [h for h in sorted(headers) if not re.search(rf"`([\w/]+/)?{h}(\.cuh)?`", text)] == []
