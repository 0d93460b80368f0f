"""On a CPU: each op from arrays of NumPy, torch and JAX, beside what one would write without it.

JAX is timed as compiled programs, ours and the peer's; the gradient of a function of `jax.nn` is
its `jax.vjp`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.testing import timing
from baracuda.testing.peers import EXPRESSIONS, expression_of
from baracuda.testing.timed import Timing
from baracuda.testing.timed_row import Row, ideal_bytes

Task: TypeAlias = Callable[[], Any]

LIBRARIES = ("numpy", "torch", "jax")
SIDES = {"1k": 32, "1M": 1024, "32M": 5632}
"""Elements of an array, and the side of the square that has about so many."""


def available() -> list[str]:
    """The libraries that are installed."""
    return [name for name in LIBRARIES if find_spec(name)]


def versions(libraries: Sequence[str]) -> str:
    """The libraries with their versions."""
    return ", ".join(f"{name} {import_module(name).__version__}" for name in libraries)


def measure(row: Row, library: str, seconds: float) -> Timing:
    """Ours through the function and through a plan, and every peer, in turns."""
    op, given = registry[row.op], row.arrays(np.random.default_rng(0), np.float32)
    arrays, tasks, finish = _WAYS[library](row, given)
    plan = op.plan(*arrays, **row.keywords)
    scalars = {k: v for k, v in row.options.items() if k in op.spec.scalars}
    ours = tasks.pop("ours")
    works, errors = {}, {}
    for name, task in tasks.items():
        try:
            task()
            works[name] = task
        except Exception as error:
            # A peer that cannot do the row is part of the result.
            errors[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    both = {"ours": ours, "plan": lambda: finish(plan(*arrays, **scalars))}
    found = timing.in_turns({**both, **works}, seconds)
    (median, spread), (planned, _) = found.pop("ours"), found.pop("plan")
    extra = {}
    if library == "numpy":
        least = sum(x.nbytes for x in (*plan.problem.given, *plan.problem.outputs))
        extra = {k: timing.extra_bytes(v) / least for k, v in {"ours": ours, **works}.items()}
    return Timing(
        op=row.op, label=f"{row.label} {library}", dtype="float32", sku=str(plan.sku),
        ideal_bytes=ideal_bytes(plan.problem), ours=median, spread=spread, plan=planned,
        peers={name: taken for name, (taken, _) in found.items()}, errors=errors, extra=extra,
    )  # fmt: skip


def _same(x: Any) -> Any:
    return x


def _numpy(row: Row, arrays: list[Any]) -> tuple[list[Any], dict[str, Task], Callable[..., Any]]:
    expression = expression_of(row.op)

    def plain() -> Any:
        with np.errstate(all="ignore"):
            return expression(np, *arrays, **row.options)

    ours = partial(registry[row.op], *arrays, **row.keywords)
    return arrays, {"ours": ours, "numpy": plain}, _same


def _torch(row: Row, arrays: list[Any]) -> tuple[list[Any], dict[str, Task], Callable[..., Any]]:
    torch, peers = import_module("torch"), import_module("baracuda.testing.device_peers")
    # An index that is broadcast stays so.
    own = [x[tuple(slice(1 if s == 0 else None) for s in x.strides)] for x in arrays]
    tensors = [
        torch.from_numpy(np.ascontiguousarray(x)).reshape(x.shape).expand(y.shape)
        for x, y in zip(own, arrays, strict=True)
    ]
    ours = partial(registry[row.op], *tensors, **row.keywords)
    return tensors, {"ours": ours, **peers.eager(row, tensors)}, _same


def _jax(row: Row, arrays: list[Any]) -> tuple[list[Any], dict[str, Task], Callable[..., Any]]:
    jax, peers = import_module("jax"), import_module("baracuda.testing.device_peers")
    given = [jax.numpy.asarray(x) for x in arrays]

    def program(function: Callable[..., Any], *args: Any) -> Task:
        compiled = jax.jit(function)
        return lambda: jax.block_until_ready(compiled(*args))

    tasks = {"ours": program(partial(registry[row.op], **row.keywords), *given)}
    if row.op in EXPRESSIONS:
        plain = partial(EXPRESSIONS[row.op], jax.numpy, **row.options)
        tasks["jax"] = program(plain, *given)
    elif function := _function_of_jax(jax, row.op):
        tasks["jax"] = program(partial(function, **row.options), *given)
    if row.op == "gather_backward" and row.own != row.broadcast:
        rows = partial(peers.jax_scatter, **row.options)
        tasks["jax, rows"] = program(rows, given[0], given[1][:, 0])
    return given, tasks, jax.block_until_ready


def _function_of_jax(jax: Any, op: str) -> Callable[..., Any] | None:
    """The function of `jax.nn` or `jax.numpy` that is called as an op, or its gradient."""
    forward = registry[op].spec.adjoint_of or op
    spelled = (forward, re.sub("^(hard|soft)", r"\1_", forward))
    places = (jax.nn, jax.numpy)
    found = [f for place in places for name in spelled if (f := getattr(place, name, None))]
    if not found:
        return None
    function = partial(found[0], approximate=False) if forward == "gelu" else found[0]
    if forward == op:
        return function
    return lambda dy, *at: jax.vjp(function, *at)[1](dy)


_WAYS = {"numpy": _numpy, "torch": _torch, "jax": _jax}


def host_costs() -> dict[str, float]:
    """What a cached call costs on arrays so small that nothing else counts."""
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    bc.plan_cache.clear()
    for step in range(500):
        bc.lerp(x, x, weight=step / 500)
    misses = bc.plan_cache.info().misses
    plan, expression = bc.swiglu.plan(x), expression_of("swiglu")
    return {
        "swiglu, the bare expression": timing.per_call(lambda: expression(np, x)),
        "swiglu, cached call": timing.per_call(lambda: bc.swiglu(x)),
        "swiglu, plan call": timing.per_call(lambda: plan(x)),
        "misses of lerp with 500 weights": misses,
    }


def cells(found: Sequence[Timing]) -> tuple[tuple[str, ...], list[list[str]]]:
    """The head and the lines of the table; memory is a part of inputs and results."""
    head = ("op", "problem", "call", "±", "plan", "best peer", "its ms", "ratio", "extra", "its")
    lines = []
    for t in found:
        times = [_ms(x) for x in (t.ours, t.spread, t.plan)]
        ratio = "-" if math.isnan(t.ratio) else f"{t.ratio:.2f}x"
        beside = "-" if math.isnan(t.beside) else _ms(t.beside)
        extra = [f"{t.extra[k]:.2f}" if k in t.extra else "-" for k in ("ours", t.best)]
        lines.append([t.op, t.label, *times, t.best, beside, ratio, *extra])
    return head, lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.{3 if seconds < 0.01 else 1}f}"


def markdown(title: str, found: Sequence[Timing], costs: dict[str, float]) -> str:
    """What was measured as a page."""

    def block(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
        every = [head, ["---"] * len(head), *lines]
        return [f"| {' | '.join(line)} |" for line in every] + [""]

    slower = [t for t in found if t.ratio < 1]
    text = ["# On a CPU", "", f"{title}; float32.", ""]
    text += [f"Of {len(found)} rows {len(slower)} are slower than the best peer.", ""]
    text += block(*cells(found))
    text += block(("host cost", "µs"), [(k, f"{v:.2f}") for k, v in costs.items()])
    return "\n".join(text)
