"""A CUDA device that is not there: what is planned, compiled for it and launched is written down.

Tensors of the CPU pass for tensors on it. Results hold whatever their memory held.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from baracuda.backends import cuda
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.spec import Problem
from baracuda.libraries import Facts, library


def on_gpu(op: str, *shapes: tuple[int, ...], **options: Any) -> Problem:
    """A problem of torch tensors on a GPU; there is none behind it."""
    arrays = [np.zeros(s, np.int64 if i and "gather" in op else np.float32)
              for i, s in enumerate(shapes)]  # fmt: skip
    problem = check.problem(registry[op].spec, arrays, options, DEFAULT)
    return replace(problem, library=library("torch"), device="cuda:0")


@dataclass
class StubDevice:
    """What happened on it."""

    loaded: list[Any] = field(default_factory=list)
    launched: list[Any] = field(default_factory=list)
    cleared: list[int] = field(default_factory=list)
    """Bytes of each array that was filled with zeros."""
    times: dict[str, float] = field(default_factory=dict)
    """Seconds that a kernel takes, by a part of its symbol."""
    measured: int = 0
    capturing: bool = False

    def load(self, entry: Any, facts: Any, shared: int) -> Any:
        """The entry stands for its function."""
        self.loaded.append(entry)
        return entry

    def launch(self, function: Any, *rest: Any) -> tuple[int]:
        self.launched.append(function)
        return (0,)

    def clear(self, address: int, value: int, nbytes: int, stream: Any) -> tuple[int]:
        self.cleared.append(nbytes)
        return (0,)

    @contextmanager
    def stopwatch(self, *where: Any) -> Iterator[Any]:
        """Reads the time of the kernel that was launched last."""

        def seconds(task: Any) -> float:
            self.measured += 1
            task()
            symbol = self.launched[-1].symbol
            return next(t for part, t in self.times.items() if part in symbol)

        yield seconds


def install(monkeypatch: pytest.MonkeyPatch) -> StubDevice:
    """Put the device in the place of the driver."""
    pytest.importorskip("cuda.core", reason="needs pip install 'baracuda[cuda]'")
    pytest.importorskip("cuda.bindings", reason="needs pip install 'baracuda[cuda]'")
    from baracuda.backends.cuda import fast_call, launch, launch_plan, runner, tune
    from baracuda.backends.cuda import torch as arrays
    from baracuda.libraries.torch import Torch

    device = StubDevice()
    listener = SimpleNamespace(address=0, state=memoryview(bytearray(4)).cast("I"))
    describe = Torch.describe

    def on_device(self: Any, x: Any) -> Facts:
        return describe(self, x)._replace(device="cuda:0")

    class Arrays:
        """What the runner asks of torch, on the CPU."""

        POINTER, STRIDES = arrays.POINTER, arrays.STRIDES
        EMPTY = WORKSPACE = "{like}.new_empty_strided({shape}, {strides}, dtype={dtype})"
        names, pointer = staticmethod(arrays.names), arrays.pointer
        strides_as_told = staticmethod(arrays.strides_as_told)
        ordinal_of = current_device = current_stream = staticmethod(lambda *where: 0)

        @staticmethod
        def refuses() -> None:
            return None

        @staticmethod
        def empty(shape: Any, strides: Any, dtype: str, ordinal: int) -> Any:
            return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype))

        @staticmethod
        def workspace(shape: Any, dtype: str, ordinal: int) -> Any:
            return torch.empty(shape, dtype=getattr(torch, dtype))

    monkeypatch.setattr(Torch, "describe", on_device)
    monkeypatch.setattr(cuda, "unavailable", lambda: None)
    monkeypatch.setattr(cuda, "_arrays", lambda name: Arrays)
    monkeypatch.setattr(
        launch, "device_facts", lambda ordinal: launch_plan.DeviceFacts(0, "sm_90", 132, 232448)
    )
    monkeypatch.setattr(launch, "loaded", device.load)
    for module in (launch, fast_call):
        monkeypatch.setattr(module, "launch_kernel", device.launch)
        monkeypatch.setattr(module, "clear", device.clear)
    monkeypatch.setattr(fast_call, "_binder", lru_cache(fast_call._binder.__wrapped__))
    monkeypatch.setattr(tune, "while_capturing", nullcontext)
    monkeypatch.setattr(runner.index_errors, "listener", lambda ordinal: listener)
    monkeypatch.setattr(tune, "stopwatch", device.stopwatch)
    monkeypatch.setattr(tune, "_captured", lambda *stream: device.capturing)
    return device


@dataclass
class Memory:
    """What is copied to the device."""

    copies: int = 0
    words: int = 0
    capturing: bool = False
    busy: bool = False
    kept: list[np.ndarray] = field(default_factory=list)


def install_copies(monkeypatch: pytest.MonkeyPatch, memory: Memory) -> None:
    """Let the tables of lists be copied within the memory of the host."""
    from baracuda.backends.cuda import lists

    class Staging:
        def __init__(self, size: int) -> None:
            self.words = np.zeros(size, np.uint64)

        @property
        def free(self) -> bool:
            return not memory.busy

        def send(self, to: int, count: int, stream: Any) -> None:
            memory.copies += 1
            memory.words += count
            ctypes.memmove(to, self.words.ctypes.data, 8 * count)

    class Room:
        def __init__(self, nbytes: int) -> None:
            self.words = np.zeros(nbytes // 8, np.uint64)
            self.address = int(self.words.ctypes.data)

    def at_once(words: np.ndarray) -> Room:
        room = Room(words.nbytes)
        room.words[:] = words
        memory.kept.append(room.words)
        return room

    monkeypatch.setattr(lists, "Staging", Staging)
    monkeypatch.setattr(lists, "Memory", Room)
    monkeypatch.setattr(lists, "at_once", at_once)
    monkeypatch.setattr(lists, "capturing", lambda stream, ordinal: memory.capturing)
