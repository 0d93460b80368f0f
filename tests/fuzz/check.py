"""Runs a drawn call in every way that its op allows, and compares."""

from __future__ import annotations

import math
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.declaration.dtypes import named
from baracuda.errors import UnsupportedError
from baracuda.testing.cases import adapter, many, to_numpy

from . import activations, draw, illegal, indexed, joined, layouts, losses, moves, optimisers, rows  # noqa: F401
from .draw import Drawn
from .layouts import Memory
from .room import reference, within


@dataclass
class Tally:
    """What was compared, and what was wrong."""

    ops: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.ops += other.ops
        self.kinds += other.kinds
        self.failures += other.failures


class Wrong(AssertionError):
    """A result that is not the expected one."""


class _Checks:
    """One call, and the counts of what was compared of it."""

    def __init__(self, drawn: Drawn, tally: Tally) -> None:
        self.drawn, self.tally = drawn, tally
        self.truth = {n: m.values() for n, m in drawn.arrays.items()}

    def count(self, kind: str, results: int = 1) -> None:
        self.tally.ops[self.drawn.op] += results
        self.tally.kinds[kind] += results

    def same(self, kind: str, got: Any, want: Any, label: str) -> None:
        """The same bits; but for the payload of NaN."""
        self.count(kind, len(want))
        for i, (x, y) in enumerate(zip(got, want, strict=True)):
            x, y = to_numpy(x), to_numpy(y)
            if x.shape != y.shape or not np.array_equal(x, y, equal_nan=x.dtype.kind in "fc"):
                raise Wrong(f"{label}: result {i}: {_difference(x, y)}")

    def close(self, kind: str, got: Any, want: Any, most: Any, label: str) -> None:
        self.count(kind, len(want))
        drawn = self.drawn
        results = zip(got, want, most, drawn.form.outputs, strict=True)
        for i, (x, value, room, pattern) in enumerate(results):
            facts = adapter_of(drawn).describe(x)
            dtype = drawn.spec.role(pattern.name).result(drawn.dtype, {}, drawn.options)
            if facts.dtype != dtype or tuple(x.shape) != value.shape:
                raise Wrong(f"{label}: {facts.dtype}{tuple(x.shape)} for {value.shape}")
            have = to_numpy(x)
            bad = ~within(have, value, room, drawn.dtype)
            if "norm" in drawn.op or drawn.spec.role(pattern.name).total:
                # Of sums of infinities it is not promised which of them come first.
                bad &= np.isfinite(have) | np.isfinite(value)
            if bad.any():
                at = tuple(int(k) for k in np.argwhere(bad)[0])
                raise Wrong(
                    f"{label}: result {i} at {at} ({int(bad.sum())} of {bad.size}): got"
                    f" {have[at]!r}, expected {value[at]!r}"
                    f" +- {np.broadcast_to(room, bad.shape)[at]}"
                )


def adapter_of(drawn: Drawn) -> Any:
    return adapter(drawn.library)


def _difference(x: Any, y: Any) -> str:
    if x.shape != y.shape:
        return f"shape {x.shape} for {y.shape}"
    bad = x != y
    if x.dtype.kind in "fc":
        bad &= ~(np.isnan(x) & np.isnan(y))
    at = tuple(int(k) for k in np.argwhere(bad)[0])
    return f"at {at} ({int(bad.sum())} of {bad.size}): got {x[at]!r}, expected {y[at]!r}"


def one(seed: int, number: int, device: str = "cpu", tally: Tally | None = None) -> Tally:
    """Draw the call of this number, and compare."""
    tally = Tally() if tally is None else tally
    drawn = None
    try:
        drawn = draw.case(seed, number, device)
        with _context(drawn), warnings.catch_warnings():
            warnings.simplefilter("error")
            if drawn.rng.random() < 0.12:
                illegal.check(drawn, tally)
            else:
                _legal(_Checks(drawn, tally))
    except Wrong as error:
        tally.failures.append((number, drawn.op if drawn else "?", f"{error}\n    {drawn}"))
    except Exception as error:
        last = traceback.format_exc(limit=-4)
        text = f"raised {type(error).__name__}: {str(error)[:400]}\n    {drawn}\n{last}"
        tally.failures.append((number, drawn.op if drawn else "?", text))
    if device != "cpu":
        # No case leaves an index error to the next one.
        with suppress(IndexError):
            bc.check_errors()
    return tally


def block(seed: int, numbers: Iterable[int], device: str) -> Tally:
    """The cases of these numbers; run in a worker."""
    # Small arrays gain nothing from more.
    import_module("torch").set_num_threads(1)
    tally = Tally()
    for number in numbers:
        one(seed, number, device, tally)
    return tally


def _context(drawn: Drawn) -> Any:
    if drawn.library == "jax":
        return import_module("jax").enable_x64(True)
    return nullcontext()


def _strict(drawn: Drawn) -> Any:
    """NumPy's warnings as errors, which no call may let out; JAX's own constants underflow."""
    return nullcontext() if drawn.library == "jax" else np.errstate(all="raise")


def _legal(checks: _Checks) -> None:
    drawn, rng = checks.drawn, checks.drawn.rng
    want, most = reference(drawn, checks.truth)
    backends = [None]
    forced = [b for b, d in draw.claimed(drawn.op, drawn.library, drawn.device).items()
              if drawn.dtype in d]  # fmt: skip
    # CuPy compiles its kernels so that they take subnormals for 0.
    if drawn.style in ("tiny", "wild"):
        forced = [b for b in forced if b != "cupy"]
    if rng.random() < 0.4:
        backends.append(str(rng.choice(forced)))
    for backend in backends:
        dispatch = {} if backend is None else {"backend": backend}
        try:
            _compare(checks, want, most, dispatch)
        except UnsupportedError:
            # Only a forced backend may refuse: torch has no arrays that run backwards.
            if backend is None:
                raise
            checks.count("refused")
    checks.count("inputs kept")
    for name, memory in drawn.arrays.items():
        if not memory.unharmed():
            raise Wrong(f"input {name} was changed")
    if drawn.device != "cpu":
        bc.check_errors()


def _compare(checks: _Checks, want: Any, most: Any, dispatch: Any) -> None:
    drawn = checks.drawn
    with _strict(drawn):
        got = many(registry[drawn.op](*drawn.given, **drawn.options, **dispatch))
    label = ", ".join(["values", *dispatch.values()])
    checks.close(label, got, want, most, label)
    _plan(checks, got, most, dispatch, label)
    if adapter_of(drawn).writable:
        _outputs(checks, got, want, most, dispatch, label)


def _repeats(checks: _Checks, plan: Any) -> bool:
    """Whether a second run gives the same bits: all but products of a library do on a host."""
    return bool(plan.sku.precision.deterministic) and not checks.drawn.spec.composite


def _plan(checks: _Checks, got: Any, most: Any, dispatch: Any, label: str) -> None:
    drawn = checks.drawn
    plan = registry[drawn.op].plan(*drawn.given, **drawn.options, **dispatch)
    with _strict(drawn):
        again = many(plan(*drawn.given, **drawn.scalars))
    if _repeats(checks, plan):
        checks.same("plan", again, got, f"plan, {label}")
    else:
        values = [to_numpy(x).astype(np.float64) for x in got]
        checks.close("plan", again, values, [2 * m for m in most], f"plan, {label}")


def _blank(drawn: Drawn, like: Any, fill: Any) -> Memory:
    layout = layouts.draw(drawn.rng, tuple(like.shape), drawn.library, repeat=False)
    dtype = adapter_of(drawn).describe(like).dtype
    return Memory(layout, dtype, drawn.library, drawn.device, fill)


def _pack(memories: list[Memory]) -> Any:
    return memories[0].array if len(memories) == 1 else tuple(m.array for m in memories)


def _outputs(checks: _Checks, got: Any, want: Any, most: Any, dispatch: Any, label: str) -> None:
    """`out=` between guard bytes, `accumulate`, and in place."""
    drawn = checks.drawn
    spec, rng = drawn.spec, drawn.rng
    plan = registry[drawn.op].plan(*drawn.given, **drawn.options, **dispatch)
    size = [math.prod(x.shape) for x in got]
    outs = [_blank(drawn, x, lambda n: np.ones(n)) for x in got]
    _run(plan, drawn.given, drawn.scalars, _pack(outs))
    _written(checks, "out", outs, got, most, plan, f"out, {label}")
    if spec.accumulates and rng.random() < 0.6:
        outs = [_blank(drawn, x, lambda n: rng.integers(-8, 9, n) / 4) for x in got]
        start = [m.values().astype(np.float64) for m in outs]
        _run(plan, drawn.given, drawn.scalars, _pack(outs), accumulate=True)
        eps = named(drawn.dtype).eps
        with np.errstate(all="ignore"):
            sums = [x + s for x, s in zip(want, start, strict=True)]
            room = [m + 2 * eps * np.where(np.isfinite(x), np.abs(x) + np.abs(s), 0.0)
                    for m, x, s in zip(most, want, start, strict=True)]  # fmt: skip
        checks.close("accumulate", [m.array for m in outs], sums, room, f"accumulate, {label}")
        _guards(checks, outs)
    if spec.inplace and max(size):
        _in_place(checks, got, most, dispatch, label)


def _run(plan: Any, given: Any, scalars: Any, out: Any, **more: Any) -> None:
    with np.errstate(all="raise"):
        plan(*given, out=out, **more, **scalars)


def _written(
    checks: _Checks, kind: str, outs: list[Memory], got: Any, most: Any, plan: Any, label: str
) -> None:
    # An output that lies otherwise is another call on a GPU, whose forms may differ in a bit.
    if _repeats(checks, plan) and (checks.drawn.device == "cpu" or checks.drawn.spec.moves):
        checks.same(kind, [m.array for m in outs], got, label)
    else:
        values = [to_numpy(x).astype(np.float64) for x in got]
        checks.close(kind, [m.array for m in outs], values, [2 * m for m in most], label)
    _guards(checks, outs)


def _guards(checks: _Checks, outs: list[Memory]) -> None:
    checks.count("guards", len(outs))
    for memory in outs:
        if not memory.unharmed(elements_too=False):
            raise Wrong(f"bytes beside an output {memory.layout} were written")


def _in_place(checks: _Checks, got: Any, most: Any, dispatch: Any, label: str) -> None:
    """Each result over an input of its shape."""
    drawn, rng, spec = checks.drawn, checks.drawn.rng, checks.drawn.spec
    names = [n for n in drawn.arrays if spec.dtype_of(n, "float", "index") == "float"]
    at = int(rng.integers(len(got)))
    if (like := spec.role(drawn.form.outputs[at].name).typed_as) and not spec.elementwise:
        names = [like]
    fits = [n for n in names if drawn.arrays[n].layout.shape == tuple(got[at].shape)]
    # A float32 loss takes the place of no 16-bit input.
    if not fits or adapter_of(drawn).describe(got[at]).dtype != drawn.dtype:
        return
    name = fits[rng.integers(len(fits))]
    layout = layouts.draw(rng, drawn.arrays[name].layout.shape, drawn.library, repeat=False)
    own = Memory(layout, drawn.dtype, drawn.library, drawn.device, checks.truth[name])
    given = [own.array if n == name else m for n, m in zip(drawn.spec.arrays, drawn.given,
                                                           strict=False)]  # fmt: skip
    outs = [own if i == at else _blank(drawn, x, lambda n: np.ones(n)) for i, x in enumerate(got)]
    plan = registry[drawn.op].plan(*given, **drawn.options, **dispatch)
    # These inputs may lie otherwise than those of the first call.
    with _strict(drawn):
        got = many(plan(*given, **drawn.scalars))
    _run(plan, given, drawn.scalars, _pack(outs))
    _written(checks, "in place", outs, got, most, plan, f"out over {name}, {label}")
