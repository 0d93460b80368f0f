"""The kernels of JAX programs without a device: the CPU's own custom calls, computed by NumPy.

All is as on an NVIDIA device, the plan, the custom call, its rules for batches and for several
devices, but for the launch itself.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from baracuda.calls.op import registry
from baracuda.declaration.dtypes import named
from baracuda.testing.cases import adapter

calls: list[str] = []
"""The ops that were launched."""


def _array(address: int, shape: Sequence[int], dtype: str) -> Any:
    raw = (ctypes.c_char * (math.prod(shape) * named(dtype).itemsize)).from_address(address)
    return np.frombuffer(raw, adapter("numpy").dtype(dtype)).reshape(shape)


def _launch(program: Any, words: list[int], scalars: Sequence[float], stream: int) -> None:
    problem = program._first.problem
    calls.append(problem.spec.name)
    left = iter(words)
    arrays = [x and _array(next(left), x.shape, x.dtype) for x in problem.inputs]
    outs = [_array(next(left), x.shape, x.dtype) for x in problem.outputs]
    # A kernel skips what is out of range.
    options = {k: "drop" if v == "raise" else v for k, v in problem.options.items()}
    # A kernel has flags as numbers too.
    values = {
        name: bool(x) if isinstance(problem.spec.usual.get(name), bool) else x
        for name, x in zip(problem.spec.scalars, scalars, strict=True)
    }
    plan = registry[problem.spec.name].plan(*arrays, **options, backend="array_api")
    # JAX may hold integers of 32 bits where NumPy makes them of 64.
    own = [np.empty(x.shape, np.int64) if x.dtype == np.int32 else x for x in outs]
    plan(*arrays, out=tuple(own), **values)
    for x, y in zip(outs, own, strict=True):
        if x is not y:
            x[...] = y


def install(monkeypatch: pytest.MonkeyPatch, eager: bool = False) -> list[str]:
    """Put NumPy in the place of the driver; the ops launched are listed in what it returns.

    Where `eager`, arrays of the CPU pass for arrays on a device, else only what is traced does.
    """
    pytest.importorskip("cuda.core", reason="needs pip install 'baracuda[cuda]'")
    from baracuda.backends import cuda
    from baracuda.backends.cuda import jax as arrays
    from baracuda.backends.cuda import launch, launch_plan, runner, xla
    from baracuda.libraries.jax import Jax

    listener = SimpleNamespace(address=0, state=memoryview(bytearray(4)).cast("I"), ahead=set())
    facts = launch_plan.DeviceFacts(0, "sm_90", 132, 232448)
    if eager:
        describe = Jax.describe
        monkeypatch.setattr(
            Jax, "describe", lambda self, x: describe(self, x)._replace(device="cuda:0")
        )
    monkeypatch.setattr(Jax, "compiled_for", lambda self: "cuda:0")
    monkeypatch.setattr(cuda, "unavailable", lambda: None)
    monkeypatch.setattr(launch, "device_facts", lambda ordinal: facts)
    monkeypatch.setattr(launch, "loaded", lambda entry, facts, shared: entry)
    monkeypatch.setattr(runner.index_errors, "listener", lambda ordinal: listener)
    monkeypatch.setattr(arrays, "PLATFORM", "cpu")
    monkeypatch.setattr(arrays, "TARGETS", "cpu")
    monkeypatch.setattr(arrays, "ordinal_of", lambda device: 0)
    monkeypatch.setattr(arrays.Program, "launch", _launch)
    monkeypatch.setattr(xla.Handler, "_stream", lambda self, api, ctx: 0)
    calls.clear()
    return calls
