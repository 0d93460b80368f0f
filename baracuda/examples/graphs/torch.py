"""A step as a CUDA graph of torch's, which has the memory of the graph in a pool of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

Recorder = Callable[[Callable[[], None]], Callable[[], None]]


def record(step: Callable[[], None]) -> Callable[[], None]:
    """Capture what a step launches on the current device; returns what launches it again.

    Parameters
    ----------
    step : callable
        Takes and returns nothing. It has run before, so that no kernel is compiled meanwhile.
    """
    graph = torch.cuda.CUDAGraph()
    # What capture forbids is an error on this thread. Other libraries' threads free when they like.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step()
    return graph.replay


@contextmanager
def recording() -> Iterator[Recorder]:
    """A block whose steps can be recorded; gives `record`."""
    yield record


def product() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A product of matrices that a graph can hold: torch's own."""
    return torch.matmul
