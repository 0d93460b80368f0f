"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Before JAX is imported: no search for accelerators, and quiet about finding none.
os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture
def nothing_is_pending() -> Iterator[None]:
    """No test leaves an index error to the next one."""
    import baracuda as bc

    yield
    bc.check_errors()
