"""What all tests share."""

from __future__ import annotations

import os

# Before JAX is imported: no search for accelerators, and quiet about finding none.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
