"""``python -m baracuda train``: a small transformer on one array library, step by step.

The text is that of CPython's own reference (`pydoc_data.topics`), its last tenth held out. Batches
and initial weights are drawn by NumPy from the seed, so every library trains on the same numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import baracuda as bc
from baracuda.examples.charlm import Array, Config, Plans, Training, Weights
from baracuda.examples.charlm import cross_entropy, forward, initial_weights

LIBRARIES = {"numpy": "numpy", "torch": "torch", "cupy": "cupy", "jax": "jax.numpy"}
STEPS, SECONDS = 3000, 60.0  # when neither is asked for
VALIDATE_EVERY = 250
REPORT_EVERY = 10

Tokens = np.ndarray[Any, np.dtype[np.int32]]
Report = Callable[["Run"], None]


@dataclass
class Text:
    """A text as token ids, its last tenth held out."""

    training: Tokens
    validation: Tokens
    alphabet: str


def python_reference() -> Text:
    """CPython's topics, in the order of their names."""
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics))
    characters, ids = np.unique(np.array(list(text)), return_inverse=True)
    cut = len(text) - len(text) // 10
    ids = ids.astype(np.int32)
    return Text(ids[:cut], ids[cut:], "".join(characters))


@dataclass
class Run:
    """What a training leaves behind: curves, counts, plans."""

    config: Config
    training: Training
    losses: list[float] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    misses: list[int] = field(default_factory=list)
