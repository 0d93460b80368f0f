"""torch's own lists of what it tests, with their inputs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch


def torchs(module: str, name: str) -> Any:
    """A list of `torch.testing._internal`, which wants packages that torch itself does not."""
    # The import forbids changes of backends' flags to the rest of the process.
    free = torch.backends.__allow_nonbracketed_mutation_flag
    try:
        return getattr(import_module(f"torch.testing._internal.{module}"), name)
    finally:
        torch.backends.__allow_nonbracketed_mutation_flag = free
