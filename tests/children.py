"""Programs of their own that tests start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def environment(*first: Path, **more: str) -> dict[str, str]:
    """That of this process, with the package and some folders before it on the path of imports."""
    paths = [*map(str, first), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}
