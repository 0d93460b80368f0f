"""``python -m baracuda explain``: what a call would run, what it costs at best, and why."""

from __future__ import annotations

import argparse
import ast
import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any

import numpy as np

from baracuda.calls.plan import Plan
from baracuda.declaration.dtypes import INDICES, numpy_dtype
from baracuda.declaration.spec import OpSpec
from baracuda.errors import BaracudaError
from baracuda.layouts import Shape, contiguous
from baracuda.libraries import Array, library
from baracuda.testing import timing
from baracuda.testing.cases import Subject, positional
from baracuda.testing.timed_row import ideal_bytes
from baracuda.tools import LIBRARIES, CannotRun, emit, known, one_line, place, table

# Seconds that the copy is measured for, and bytes that NumPy copies: well past its caches.
_SECONDS, _COPIED = 0.1, 1 << 26


# -- what is asked ---------------------------------------------------------------------------------


def shapes(text: str) -> list[Shape | None]:
    """``8192x8192,-,()`` as shapes; None for an array that is left out."""
    out: list[Shape | None] = []
    for part in text.split(","):
        word = part.strip()
        if word == "-":
            out.append(None)
            continue
        try:
            shape = () if word == "()" else tuple(int(n) for n in word.split("x"))
        except ValueError:
            shape = (-1,)
        if min(shape, default=0) < 0:
            expected = "a shape such as 8192x8192, () or -"
            raise argparse.ArgumentTypeError(f"expected {expected}, got {word!r}")
        out.append(shape)
    return out


def option(text: str) -> tuple[str, Any]:
    """``name=value``; as Python reads it, else a number such as inf, a shape, or a word."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"expected name=value, got {text!r}")
    for read in (ast.literal_eval, float, lambda word: tuple(map(int, word.split("x")))):
        try:
            return name.strip(), read(value.strip())
        except (ValueError, SyntaxError):
            continue
    return name.strip(), value.strip()


def make(xp: str, shape: Shape, dtype: str, device: str | None) -> Array:
    """An array whose elements are never read; on a CPU it takes no memory where that can be."""
    if xp == "numpy":
        kind = numpy_dtype(dtype)
        steps = [step * kind.itemsize for step in contiguous(shape)]
        return np.lib.stride_tricks.as_strided(np.empty(1, kind), shape, steps, writeable=False)
    namespace = import_module("jax.numpy" if xp == "jax" else xp)
    where = {} if device is None else {"device": device}
    return namespace.empty(shape, dtype=library(xp).dtype(dtype), **where)


def _arrays(arguments: argparse.Namespace, spec: OpSpec, device: str | None) -> list[Array]:
    if len(arguments.shapes) > len(spec.arrays):
        takes = f"takes {', '.join(spec.arrays)}"
        raise CannotRun(f"{len(arguments.shapes)} shapes, where {spec.name} {takes}")
    out = []
    for name, shape in zip(spec.arrays, arguments.shapes, strict=False):
        dtype = spec.dtype_of(name, arguments.dtype, arguments.index_dtype)
        out.append(None if shape is None else make(arguments.xp, shape, dtype, device))
    return positional(out)


def planned(arguments: argparse.Namespace) -> Plan:
    """The plan of the call that is asked about.

    Raises
    ------
    CannotRun
        Where there is no such array here, or the op does not take such a call.
    """
    op, xp = known(arguments.op), arguments.xp
    device = arguments.device
    if device is not None and xp != "torch":
        raise CannotRun(f"--device goes with --xp torch, got --xp {xp}")
    here = place(xp)
    if xp == "torch":
        device = device or here
    with ExitStack() as stack:
        for dtype in (arguments.dtype, arguments.index_dtype):
            # JAX has 64 bits only when asked.
            stack.enter_context(Subject(op.spec.name, "", xp, dtype).context())
        try:
            arrays = _arrays(arguments, op.spec, device)
        except CannotRun:
            raise
        except Exception as error:
            raise CannotRun(f"{xp} cannot make such an array: {one_line(error)}") from error
        try:
            return op.plan(*arrays, **dict(arguments.option))
        except BaracudaError as error:
            raise CannotRun(one_line(error)) from error


# -- what it costs ---------------------------------------------------------------------------------


def ceiling(device: str) -> float:
    """Bytes per second that a copy reads and writes there.

    Raises
    ------
    CannotRun
        Where it cannot be measured.
    """
    if "cuda" not in device:
        x = np.zeros(_COPIED, np.uint8)
        y = np.zeros_like(x)
        return 2 * _COPIED / timing.on_host(lambda: np.copyto(y, x), _SECONDS)[0]
    try:
        return timing.copy_ceiling(_SECONDS)
    except Exception as error:
        raise CannotRun(f"the copy cannot be measured: {one_line(error)}") from error


def facts(plan: Plan) -> dict[str, Any]:
    """All that is said of a plan, as JSON has it."""
    problem = plan.problem
    nbytes = ideal_bytes(problem)
    record: dict[str, Any] = {
        "op": problem.spec.name,
        "signature": problem.signature.text,
        "inputs": {x.name: f"{x.dtype}{list(x.shape)}" for x in problem.given},
        "outputs": {x.name: f"{x.dtype}{list(x.shape)}" for x in problem.outputs},
        "options": {k: _finite(v) for k, v in problem.options.items()},
        "library": problem.library.name,
        "device": problem.device,
        "sku": json.loads(plan.sku.to_json()),
        "workspace_bytes": plan.workspace_size,
        "ideal_bytes": nbytes,
        "why": [{"backend": name, "reason": reason} for name, reason in plan.why],
    }
    try:
        speed = ceiling(problem.device)
    except CannotRun as error:
        return record | {"ceiling": None, "expected_seconds": None, "unmeasured": str(error)}
    return record | {"ceiling": speed, "expected_seconds": nbytes / speed, "unmeasured": None}


def _finite(value: Any) -> Any:
    """JSON has no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _rows(plan: Plan, found: dict[str, Any]) -> Sequence[tuple[str, str]]:
    def arrays(which: str) -> str:
        return ", ".join(f"{name} {what}" for name, what in found[which].items())

    copy, seconds = found["ceiling"], found["expected_seconds"]
    at_best = f"{seconds * 1e3:.4g} ms at {copy / 1e9:.0f} GB/s" if copy else found["unmeasured"]
    return [
        ("plan", str(plan.sku)),
        ("form", found["signature"]),
        ("inputs", arrays("inputs")),
        ("outputs", arrays("outputs")),
        ("options", ", ".join(f"{k}={v!r}" for k, v in plan.problem.options.items()) or "none"),
        ("ideal bytes", f"{found['ideal_bytes']:,}: inputs read once, outputs written once"),
        ("at best", f"{at_best}, as fast as a copy" if copy else at_best),
        ("workspace", f"{plan.workspace_size:,} bytes"),
    ]


# -- the command -----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``baracuda explain``."""
    parser.add_argument("op", metavar="OP")
    parser.add_argument(
        "--shapes", required=True, type=shapes, metavar="SHAPES",
        help="of the arrays in the op's order: 8192x8192,8192x8192; '-' leaves an optional one "
        "out, '()' is a scalar",
    )  # fmt: skip
    parser.add_argument("--dtype", default="float32", help="default: float32")
    parser.add_argument("--index-dtype", default="int64", choices=INDICES, help="default: int64")
    parser.add_argument("--xp", default="numpy", choices=LIBRARIES, help="default: numpy")
    parser.add_argument("--device", help="torch device (default: the GPU where there is one)")
    parser.add_argument(
        "--option", nargs="+", action="extend", default=[], type=option, metavar="name=value",
        help="options of the op, and dispatch options",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Explain, and return the exit status."""
    plan = planned(arguments)
    found = facts(plan)
    if arguments.json:
        emit(found)
        return 0
    for name, text in _rows(plan, found):
        print(f"{name:<12} {text}")
    if plan.why:
        print()
        table(("passed over", "because"), plan.why)
    return 0
