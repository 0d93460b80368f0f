"""How Sphinx builds these pages: ``make docs``, with every warning an error."""

import re
from typing import Any

import baracuda

project = "baracuda"
author = "the authors of baracuda"
version = release = baracuda.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.mathjax", "numpydoc", "myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"baracuda {release}"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"
numpydoc_show_class_members = False

_SHAPE = re.compile(r"\[\*?[a-z]\w*(?:, \*?\w+)*\]")


def shapes_are_code(app: Any, what: str, name: str, obj: Any, options: Any, lines: Any) -> None:
    """Keep the asterisk of ``[*b, n]`` from beginning an emphasis."""
    lines[:] = [x if ">>>" in x else _SHAPE.sub(r"``\g<0>``", x) for x in lines]


def setup(app: Any) -> None:
    """Read docstrings before numpydoc does."""
    app.connect("autodoc-process-docstring", shapes_are_code, priority=100)
