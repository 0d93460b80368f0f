"""The code of a document, and what it defines."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from children import ROOT

DOCS = ROOT / "docs"
NEEDS_GPU = "# needs an NVIDIA GPU\n"


def program(page: Path, gpu: bool) -> str:
    """The code of a page, each line at its own number; blocks that need a GPU only where `gpu`."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
        if gpu or not block[1].startswith(NEEDS_GPU):
            first = text.count("\n", 0, block.start(1))
            for at, line in enumerate(block[1].splitlines(), first):
                lines[at] = line
    return "\n".join(lines)


def defined(page: str) -> SimpleNamespace:
    """What a page of `docs` defines, once its code has run."""
    found: dict[str, Any] = {}
    exec(compile(program(DOCS / page, gpu=False), page, "exec"), found)
    return SimpleNamespace(**found)
