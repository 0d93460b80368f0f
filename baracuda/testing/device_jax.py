"""JAX on a GPU, timed: what a call costs around and inside a compiled program, large problems."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.testing.peers import EXPRESSIONS
from baracuda.testing.timed_row import Row

Task = Callable[[], Any]

LOOP = 1000
"""Turns of the compiled loop."""
ROWS = 4, 20
"""Calls in a short row and in a long one."""


def available() -> bool:
    """Whether there is a JAX that sees a GPU; it is kept from taking all of its memory."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        return bool(import_module("jax").default_backend() == "gpu")
    except (ImportError, RuntimeError):
        return False


def costs() -> dict[str, float]:
    """Microseconds of tiny calls: from Python without waiting, and inside a compiled loop."""
    jax, jnp = import_module("jax"), import_module("jax.numpy")
    x = jnp.linspace(-1, 1, 256, dtype="float32").reshape(4, 64)
    plan = bc.swiglu.plan(x)
    tasks: dict[str, Callable[[Any], Any]] = {
        "the plain expression, jitted": jax.jit(lambda x: EXPRESSIONS["swiglu"](jnp, x)),
        "swiglu, jitted": jax.jit(bc.swiglu),
        "swiglu, cached call": bc.swiglu,
        "swiglu, plan call": plan,
        "lerp, a new weight each time": _with_new_weights(),
    }
    out = {name: _per_call(jax, task, x) for name, task in tasks.items()}
    for name, one in (("rope", bc.rope), ("jnp.sort", jnp.sort)):
        turns = {k: _per_turn(jax, one, x, k) for k in (1, 3)}
        out[f"{name}, each further call in a turn of a loop"] = (turns[3] - turns[1]) / 2
    out["rope, 8 calls in a turn of a loop, each"] = _per_turn(jax, bc.rope, x, 8) / 8
    return out


def _with_new_weights() -> Callable[[Any], Any]:
    step = iter(range(10**9))
    return lambda x: bc.lerp(x, x, weight=next(step) * 1e-9)


def _per_call(jax: Any, task: Callable[[Any], Any], x: Any, calls: int = 200) -> float:
    times = []
    for _ in range(20):
        jax.block_until_ready(task(x))
        start = time.perf_counter()
        for _ in range(calls):
            last = task(x)
        times.append((time.perf_counter() - start) / calls)
        jax.block_until_ready(last)
    return statistics.median(times) * 1e6


def _per_turn(jax: Any, one: Callable[[Any], Any], x: Any, calls: int) -> float:
    def turn(_: Any, x: Any) -> Any:
        for _ in range(calls):
            x = one(x)
        return x

    loop = jax.jit(lambda x: jax.lax.fori_loop(0, LOOP, turn, x))
    return _median(jax, lambda: loop(x), 20) / LOOP * 1e6


def _median(jax: Any, task: Task, times: int) -> float:
    jax.block_until_ready(task())
    found = []
    for _ in range(times):
        start = time.perf_counter()
        jax.block_until_ready(task())
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def seconds(row: Row, arrays: Sequence[Any]) -> float:
    """Seconds of a jitted call in a row of others, on copies of torch's arrays.

    The time of a long row less that of a short one: free of the wait at its end.
    """
    jax, op = import_module("jax"), registry[row.op]
    given = [jax.numpy.array(jax.dlpack.from_dlpack(x)) for x in arrays]
    program = jax.jit(lambda *given: op(*given, **row.options))

    def calls(count: int) -> Any:
        for _ in range(count):
            last = program(*given)
        return last

    short, long = (_median(jax, partial(calls, count), 9) for count in ROWS)
    return (long - short) / (ROWS[1] - ROWS[0])
