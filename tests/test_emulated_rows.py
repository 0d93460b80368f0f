"""Norms and softmax without a GPU: every way of sharing a row, in two orders of threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import emulator
import lanes
import ml_dtypes
import numpy as np
import plannable
import pytest
from numpy.typing import NDArray
from tuning import retuned

from baracuda.backends.cuda import launch_plan
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import kept_rows, plan
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import named
from baracuda.declaration.roles import Wide
from baracuda.families.numerics import stored_as
from baracuda.testing.cases import mixtures_of

Array = NDArray[Any]
Shape = tuple[int, ...]
# The kinds of inputs that are wider than the others.
Mixed = tuple[Wide, ...]
FACTS = DeviceFacts(0, "sm_90", 4, 232448)
# Shared memory for the sums of rows that are not quite as long: adding these up takes its time.
SMALL = DeviceFacts(0, "sm_90", 4, 19 << 10)
DTYPES = ("float32", "bfloat16", "float64")
# Lengths of rows: a lane, lanes, a warp, a block, and what a block does not hold; of sums with less
# shared memory.
LENGTHS = {"float32": (1, 7, 64, 1000, 4096, 20004), "bfloat16": (1, 7, 64, 1000, 4096, 40008),
           "float64": (1, 7, 300, 1000, 5002)}  # fmt: skip
LENGTHS["float16"] = LENGTHS["bfloat16"]
SUMMED = {"float32": 5004, "bfloat16": 5008, "float64": 2502}
NORMS = [
    name
    for name, op in registry.items()
    if op.spec.category == "norm" and "axis" not in op.spec.options
]
NORMALIZE = ["l2_normalize", "l2_normalize_backward"]
# One column and two, one sum and two.
MIXED = ["layer_norm", "rms_norm_backward", "layer_norm_backward", "add_layer_norm",
         "add_rms_norm_backward", "add_layer_norm_backward"]  # fmt: skip
DROPOUTS = ["softmax_dropout", "softmax_dropout_backward"]
SOFTMAXES = ["softmax", "softmax_backward", "log_softmax", "log_softmax_backward"]
LOGSUMEXPS = ["logsumexp", "logsumexp_backward"]


class Trial(NamedTuple):
    """A call on arrays that lie in some way."""

    op: str
    arrays: tuple[Array | None, ...]
    scalars: dict[str, float]
    call: Call
    steps: Steps
    label: str
    # What it is about: how arrays lie, what is given, values that are special.
    about: tuple[Any, ...] = ()


def trial(
    op: str, shapes: dict[str, Shape], dtype: str, /, how: str = "dense", add: bool = False,
    facts: DeviceFacts = FACTS, mixed: Mixed = (), **options: Any,
) -> Trial:  # fmt: skip
    spec = registry[op].spec
    rng = np.random.default_rng(len(op) + sum(next(iter(shapes.values()))))
    arrays: list[Array | None] = []
    for name in spec.arrays:
        if name not in shapes:
            arrays.append(None)
        elif name in spec.masks:
            arrays.append(emulator.lying(rng.integers(0, 3, shapes[name]) > 0, how))
        else:
            x = rng.standard_normal(shapes[name])
            if name == "y":
                axis = options.get("axis", -1)
                x = np.exp(x) / np.exp(x).sum(axis, keepdims=True)
                x = np.log(x) if "log" in op else x
            kind = named(dtype).accumulate if spec.role(name).wide in mixed else dtype
            x = x.astype(getattr(ml_dtypes, kind, kind))
            one = how == "shared" and name == "dout"
            lies = emulator.lying(x[..., :1] if one else x, "dense" if how == "shared" else how)
            arrays.append(np.broadcast_to(lies, x.shape) if one else lies)
    problem = check.problem(spec, arrays, options, DEFAULT)
    given = [x for x in arrays if x is not None]
    alignment = 16 if how != "odd" else 1
    assert all(x.ctypes.data % alignment == 0 for x in given)
    outs = tuple(strides_of(x) for x in problem.outputs)
    call = Call(problem, facts, outs, add, alignment)
    usual = {"scale": 0.7, "eps": 1e-5, "offset": 0.25}
    if spec.numbered:
        usual |= {"seed": 2**63 + 12345, "offset": 2**35 + 1, "p": 0.4}
    scalars = {name: usual[name] for name in spec.scalars}
    label = f"{op} {shapes} {how} {options} {mixed}"
    about = (how, add, mixed, *options, *shapes)
    return Trial(op, tuple(arrays), scalars, call, plan(call), label, about)


def features(one: Trial) -> set[Any]:
    """What a trial tells: all that its kernels are; of its op, all ways that have names."""
    found: set[Any] = {(one.op, about) for about in one.about}
    for step in one.steps.kernels:
        every = plannable.arguments(step.entry)
        found |= every | {(one.op, value) for _, _, value in every if value.isupper()}
    return found | {one.call.problem.given[-1].shape}


def few(every: Iterable[Trial]) -> tuple[Trial, ...]:
    """Trials that tell all that all of them tell, of equals the cheaper; in the full lane all."""
    if lanes.FULL:
        return tuple(every)
    known = sorted(every, key=lambda one: emulator.work(one.steps))
    return tuple(known[at] for at in lanes.covering(dict(enumerate(map(features, known)))))


def odd(one: Trial) -> Trial:
    """With rows that hold a NaN, an infinity, and nothing but -inf."""
    x = one.arrays[0]
    assert x is not None
    x[0, 0, 3], x[0, 1, 5], x[1, 2, :] = np.nan, np.inf, -np.inf
    return one._replace(about=(*one.about, "odd"))


def misled(one: Trial) -> Trial:
    """With rows of which some begin far from their mean, and lie far from 0."""
    x = next(x for x in reversed(one.arrays) if x is not None and x.ndim > 1)
    x += np.asarray(20, x.dtype)
    x[..., ::2, :4] += np.asarray(40, x.dtype)
    return one._replace(about=(*one.about, "misled"))


def norm_trials(op: str, dtype: str) -> Iterator[Trial]:
    spec = registry[op].spec
    *usual, long = LENGTHS[dtype]
    for n in (*usual, SUMMED[dtype] if spec.accumulates else long):
        rows = (3, 5) if n < 100 else (1, 3) if n in usual else (2,)
        hows = ("dense", "padded", "odd", "stepped") if n in (64, 300) else ("dense",)
        facts = SMALL if n == SUMMED[dtype] else FACTS
        for form in (spec.signatures[-1], *spec.signatures[:-1][: n in (7, 1000)]):
            shapes = {p.name: p.shape({"b": rows, "n": n}) for p in form.inputs}
            yield from (trial(op, shapes, dtype, how, facts=facts) for how in hows)
            if spec.accumulates and n in (7, 1000):
                yield trial(op, shapes, dtype, add=True)
    if not spec.accumulates:
        shapes = {p.name: p.shape({"b": (2, 3), "n": 80}) for p in spec.signatures[-1].inputs}
        yield odd(trial(op, shapes, dtype))
    if spec.accumulates and dtype != "float64":
        yield from kept_trials(op, dtype)
        yield from streamed_trials(op, dtype)
    if "layer" in op:
        for n in (40, 300, 1000):
            shapes = {p.name: p.shape({"b": (7,), "n": n}) for p in spec.signatures[-1].inputs}
            yield misled(trial(op, shapes, dtype))
    # More rows than blocks that keep sums.
    if spec.accumulates and dtype == "bfloat16":
        shapes = {p.name: p.shape({"b": (1300,), "n": 20}) for p in spec.signatures[-1].inputs}
        yield trial(op, shapes, dtype)


def mixed_trials(op: str, dtype: str) -> Iterator[Trial]:
    """Columns, residual streams, or both, wider than the rest, in every way of sharing a row."""
    every = [mixed for mixed in mixtures_of(registry[op].spec.wide) if mixed]
    # Rows that are kept, or come in bulk, are widened as others are. Columns that alone are wide
    # may lie on chip.
    kept = dict.fromkeys((("parameter",), every[-1]))
    for mixed in every if lanes.FULL else dict.fromkeys((every[0], *kept)):
        yield from mixture_trials(op, dtype, mixed, lanes.FULL or mixed in kept)


def mixture_trials(op: str, dtype: str, mixed: Mixed, kept: bool) -> Iterator[Trial]:
    form = registry[op].spec.signatures[-1]
    for n in (1, 7, 64, 1000, 4096, SUMMED[dtype]):
        facts = SMALL if n == SUMMED[dtype] else FACTS
        shapes = {p.name: p.shape({"b": (3, 5) if n < 100 else (2,), "n": n}) for p in form.inputs}
        for how in ("dense", "padded", "odd", "stepped") if n == 64 else ("dense",):
            yield trial(op, shapes, dtype, how, facts=facts, mixed=mixed)
    if registry[op].spec.accumulates and kept:
        yield from kept_trials(op, dtype, mixed)
        yield from streamed_trials(op, dtype, mixed)
    elif not registry[op].spec.accumulates:
        shapes = {p.name: p.shape({"b": (2,), "n": LENGTHS[dtype][-1]}) for p in form.inputs}
        yield trial(op, shapes, dtype, mixed=mixed)


def kept_trials(op: str, dtype: str, mixed: Mixed = (), **options: Any) -> Iterator[Trial]:
    """Rows of just what a block holds, more than there are blocks: near, and as if far."""
    form = registry[op].spec.signatures[-1]
    shapes = {p.name: p.shape({"b": (2, 137), "n": 1024}) for p in form.inputs}
    tuning = kept_rows.SM_90
    far = tuning.vectors_far | {(4, 2, 1): 4, (2, 3, 1): 2}
    others = {"vectors_far": far, "vectors_far_long": 0, "vectors_streamed": {}}
    hows = (("dense", False), ("dense", True), ("odd", False), ("padded", False))
    for way, near in (("_kept_", tuning.vectors), ("_far_", {})):
        with retuned(kept_rows, vectors=near, **others):
            every = [trial(op, shapes, dtype, *how, mixed=mixed, **options) for how in hows]
        assert all(way in one.steps.kernels[0].entry.symbol for one in every)
        yield from every


def streamed_trials(op: str, dtype: str, mixed: Mixed = (), **options: Any) -> Iterator[Trial]:
    """Rows that come in bulk, more of a block than it has places for, of one block and of more."""
    form = registry[op].spec.signatures[-1]
    # What is mixed is cut as what is not, and by eight blocks as by four.
    most = 8 if lanes.FULL else 2 if mixed else 4
    for parts, slots, held in ((1, 2, 4), (1, 3, 2), (2, 3, 4), (most, 2, 4)):
        size = named("float32" if {"residual", "cotangent"} & {*mixed} else dtype).itemsize
        n = parts * 64 * held * 16 // size
        shapes = {p.name: p.shape({"b": (2, 13), "n": n}) for p in form.inputs}
        ways = retuned(
            kept_rows, vectors={}, vectors_streamed={2: held, 4: held}, threads_streamed=64,
            clusters={parts: 3}, slots_early=slots,
        )  # fmt: skip
        with ways, patch.object(kept_rows, "_THREADS", 64):
            hows = (("dense", False), ("dense", True), ("padded", False))
            # What is mixed lies as what is not.
            hows = hows[1 if mixed and not lanes.FULL else 0 :]
            every = [trial(op, shapes, dtype, *how, mixed=mixed, **options) for how in hows]
        for one in every:
            kernel = one.steps.kernels[0].entry
            assert f", {held}, {slots}, {parts}, " in kernel.schedule
            assert kernel.cluster == parts
            # Wider columns lie on chip.
            assert ("_chip" in kernel.symbol) == ("parameter" in mixed and size == 2)
        yield from (misled(one) if "layer" in op and one.call.add else one for one in every)


def softmax_trials(op: str, dtype: str) -> Iterator[Trial]:
    spec = registry[op].spec
    forms = spec.signatures
    for n in LENGTHS[dtype]:
        rows = (3, 5) if n < 100 else (1, 3) if n < 5000 else (2,)
        hows = ("dense", "padded", "odd", "stepped") if n in (64, 300) else ("dense",)
        shapes = {p.name: (*rows, n) for p in forms[0].inputs}
        yield from (trial(op, shapes, dtype, how) for how in hows)
        if spec.accumulates:
            yield trial(op, shapes, dtype, add=True)
        elif n > 1:
            yield trial(op, shapes, dtype, causal=True)
            yield trial(op, {**shapes, "mask": (*rows[:-1], 1, n)}, dtype)
            yield from biased_trials(op, (*rows, n), dtype)
    if not spec.accumulates:
        yield odd(trial(op, {"x": (2, 3, 80)}, dtype))
        yield odd(trial(op, {"x": (2, 3, 80), "bias": (1, 3, 80)}, dtype))
        yield odd(trial(op, {"x": (2, 3, 80)}, dtype, axis=1))
        yield trial(op, {"x": (2, 30, 8), "bias": (1, 30, 1)}, dtype, axis=1)
        yield trial(op, {"x": (2, 30, 8), "bias": (2, 1, 8)}, dtype, axis=1)
        # More queries than keys: rows of which nothing counts.
        yield trial(op, {"x": (2, 11, 6), "mask": (1, 11, 6)}, dtype, "odd", causal=True)
    # Columns: held, of odd length, more than a block holds; others that lie apart.
    for shape, axis in (((3, 40, 64), 1), ((33, 7), 0), ((2, 700, 9), 1), ((8200, 2, 4), 0)):
        shapes = {p.name: shape for p in forms[0].inputs}
        yield trial(op, shapes, dtype, axis=axis)
        yield trial(op, shapes, dtype, "odd", axis=axis)
        yield trial(op, shapes, dtype, axis=axis, add=spec.accumulates)
    yield trial(op, {p.name: (3, 5, 9) for p in forms[0].inputs}, dtype, "stepped", axis=1)


def dropped_trials(op: str, dtype: str) -> Iterator[Trial]:
    """Every way of sharing a row, with all that may stand beside it; then other dtypes."""
    spec = registry[op].spec
    own = [p.name for p in spec.signatures[0].inputs]
    for n in LENGTHS[dtype]:
        rows = (3, 5) if n < 100 else (1, 3) if n < 5000 else (2,)
        hows = ("dense", "padded", "odd", "stepped") if n in (64, 300) else ("dense",)
        shapes: dict[str, Shape] = dict.fromkeys(own, (*rows, n))
        yield from (trial(op, shapes, dtype, how) for how in hows)
        if spec.accumulates:
            yield trial(op, shapes, dtype, add=True)
        if n > 1:
            yield trial(op, shapes, dtype, causal=True)
            yield trial(op, {**shapes, "mask": (*rows[:-1], 1, n)}, dtype)
            yield from biased_trials(op, (*rows, n), dtype)
    yield odd(trial(op, dict.fromkeys(own, (2, 3, 80)), dtype))
    # Nothing stays.
    one = trial(op, dict.fromkeys(own, (2, 3, 64)), dtype)
    yield one._replace(scalars={**one.scalars, "p": 1.0}, about=(*one.about, "all dropped"))
    for n in (7, 64):
        yield trial(op, dict.fromkeys(own, (2, 3, n)), dtype, part=(4, 5, n, 1, 2, 0))
    yield trial(op, {**dict.fromkeys(own, (2, 11, 6)), "mask": (1, 11, 6)}, dtype, causal=True)
    if named(dtype).accumulate == dtype:
        return
    for n in (7, 64, 1000, LENGTHS[dtype][-1]):
        shapes = dict.fromkeys(own, (2, 3, n))
        if spec.accumulates:
            yield trial(op, shapes, dtype, mixed=("cotangent",))
            yield trial(op, {**shapes, "bias": (1, 3, n)}, dtype, mixed=("cotangent",))
        else:
            yield trial(op, shapes, dtype, dtype=named(dtype).accumulate)


def biased_trials(op: str, shape: Shape, dtype: str, /, **options: Any) -> Iterator[Trial]:
    """A bias of rows, as ALiBi has one, beside a mask, and of all elements, some of them -inf."""
    own = [p.name for p in registry[op].spec.signatures[0].inputs]
    *rows, n = shape
    for number, bias in enumerate([(*rows[:-1], 1, n), (*[1] * len(rows), n), shape]):
        hows = ("dense", "padded", "odd", "stepped") if n == 64 else ("dense",)
        shapes = {**dict.fromkeys(own, shape), "bias": bias}
        yield from (hidden(trial(op, shapes, dtype, how, **options)) for how in hows)
        if n < 5000 or number == 0:
            shapes = {**shapes, "mask": (1, *rows[1:], n)}
            yield hidden(trial(op, shapes, dtype, causal=number == 0, **options))
        if named(dtype).accumulate != dtype:
            shapes.pop("mask", None)
            one = trial(op, shapes, dtype, mixed=("parameter",), **options)
            yield hidden(one)


def hidden(one: Trial) -> Trial:
    """With entries of the bias that are -inf, in one row all of them."""
    bias = one.arrays[registry[one.op].spec.arrays.index("bias")]
    assert bias is not None
    bias[..., 1::3] = -np.inf
    bias[..., -1, :] = bias[..., -1, :] if bias.shape[-2] == 1 else -np.inf
    return one._replace(about=(*one.about, "hidden"))


def wide_trials(op: str, dtype: str) -> Iterator[Trial]:
    """A result in float32 of 16 bits, and back from one: in every way of sharing a row."""
    spec = registry[op].spec
    form = spec.signatures[0 if spec.category == "softmax" else -1]
    if spec.accumulates:
        dtype, options = "float32", {"x_dtype": dtype}
    else:
        options = {"dtype": "float32"}
    shapes: dict[str, Shape]
    for n in (1, 7, 64, 1000, 4096, LENGTHS[dtype][-1]):
        rows = (3, 5) if n < 100 else (1, 3)
        axes = {"b": rows, "n": n, "c": ()}
        shapes = {p.name: p.shape(axes) for p in form.inputs if p.name not in spec.masks}
        for how in ("dense", "padded", "odd", "stepped") if n == 64 else ("dense",):
            yield trial(op, shapes, dtype, how, **options)
        if spec.accumulates:
            yield trial(op, shapes, dtype, add=True, **options)
        elif spec.category == "softmax":
            yield trial(op, shapes, dtype, causal=n > 1, **options)
            yield trial(op, {**shapes, "mask": (*rows[:-1], 1, n)}, dtype, **options)
            yield from biased_trials(op, (*rows, n), dtype, **options)
    if spec.category == "softmax":
        yield trial(op, dict.fromkeys(shapes, (3, 40, 8)), dtype, axis=1, **options)


def logsumexp_trials(op: str, dtype: str) -> Iterator[Trial]:
    """Rows in every way of sharing them, then columns; the axis is kept or not."""
    spec = registry[op].spec
    back = spec.accumulates
    wide: Mixed = ("cotangent",) if back else ()
    more: dict[str, Any] = {} if back else {"dtype": named(dtype).accumulate}
    usual = [((3, 5) if n < 100 else (1, 3) if n < 5000 else (2,), n, ()) for n in LENGTHS[dtype]]
    beside = [((3,), 40, (64,)), ((), 33, (7,)), ((2,), 700, (9,)), ((), 8200, (2, 4))]
    for number, (b, n, c) in enumerate([*usual, *beside, ((3,), 5, (9, 2))]):
        options = {"axis": len(b), "keepdims": number % 2 == 1}
        form = next(f for f in spec.signatures if f.allowed(options))
        axes: Any = {"b": b, "n": n, "c": c, "one": 1}
        shapes = {p.name: p.shape(axes) for p in form.inputs}
        hows = ["dense", *["odd"] * (c != ()), *["padded", "odd", "stepped"] * (n in (64, 300))]
        hows = hows if c != (9, 2) else ["stepped"]
        # The cotangent of a sum is one number for all.
        hows += ["shared"] * (back and c in ((64,), (7,)))
        yield from (trial(op, shapes, dtype, how, **options) for how in hows)
        if dtype != "float64" and n in (64, 1000, 40, 33):
            yield trial(op, shapes, dtype, mixed=wide, **options, **more)
        if back:
            yield trial(op, shapes, dtype, add=True, **options)
    # Some rows hold a NaN, infinities, or nothing but -inf; some have no elements.
    for b, n, c in (((2, 3), 80, ()), ((2,), 9, (5,)), ((2,), 0, ()), ((2,), 0, (3,))):
        form = spec.signatures[0]
        shapes = {p.name: p.shape({"b": b, "n": n, "c": c}) for p in form.inputs}
        yield edged(trial(op, shapes, dtype, axis=len(b)))


def edged(one: Trial) -> Trial:
    """With rows that hold a NaN, an infinity, both infinities, a NaN beside one, or only -inf."""
    x = one.arrays[-1]
    axis = one.call.problem.options["axis"]
    if x is not None and x.size:
        rows = np.moveaxis(x, axis, -1)
        flat = [rows[at] for at in np.ndindex(rows.shape[:-1])]
        flat[0][3], flat[1][5], flat[4][:] = np.nan, np.inf, -np.inf
        flat[2][1:3] = np.inf, -np.inf
        flat[3][4:6] = np.inf, np.nan
    return one._replace(about=(*one.about, "edged"))


def normalize_trials(op: str, dtype: str) -> Iterator[Trial]:
    """Rows in every way of sharing them, then columns."""
    spec = registry[op].spec
    shapes = [(*((3, 5) if n < 100 else (1, 3) if n < 5000 else (2,)), n) for n in LENGTHS[dtype]]
    shapes += [(3, 40, 64), (1, 33, 7), (2, 700, 9), (1, 8200, 8), (3, 5, 9)]
    for shape in shapes:
        inner = len(shape) == 3 and shape[-1] in (64, 7, 9, 8)
        axis = 1 if inner else -1
        each = dict.fromkeys(spec.arrays, shape)
        hows = ["dense", "odd"] if inner else ["dense"]
        hows += ["padded", "stepped"] if shape in ((3, 5, 64), (3, 5, 9)) else []
        yield from (trial(op, each, dtype, how, axis=axis) for how in hows)
        if spec.accumulates:
            yield trial(op, each, dtype, add=True, axis=axis)
    # Rows of zeros, below eps, with a NaN, and with an infinity; beside them, columns of these.
    for axis in (-1, 0):
        one = trial(op, dict.fromkeys(spec.arrays, (5, 5)), dtype, axis=axis)
        x = one.arrays[-1]
        assert x is not None
        rows = np.moveaxis(x, axis, -1)
        rows[0], rows[1], rows[2, 1], rows[3, 2] = (
            0,
            rows[1] * np.asarray(1e-6, x.dtype),
            np.nan,
            np.inf,
        )
        yield one


@cache
def trials(category: str, dtype: str) -> tuple[Trial, ...]:
    every, of = {
        "norm": (NORMS, norm_trials),
        "mixed norm": (NORMS if lanes.FULL else MIXED, mixed_trials),
        "softmax": (SOFTMAXES, softmax_trials),
        "wide softmax": (SOFTMAXES, wide_trials),
        "softmax dropout": (DROPOUTS, dropped_trials),
        "logsumexp": (LOGSUMEXPS, logsumexp_trials),
        "normalize": (NORMALIZE, normalize_trials),
        "wide norm": (["rms_norm", "layer_norm"], wide_trials),
    }[category]
    return few(one for op in every for one in of(op, dtype))


@cache
def entries(category: str, dtype: str) -> tuple[Entry, ...]:
    """Every kernel of these, compiled together."""
    found = {s.entry.symbol: s.entry for one in trials(category, dtype) for s in one.steps.kernels}
    return tuple(found.values())


def reference(one: Trial) -> tuple[Array, ...]:
    """The body in float64, what is stored in between rounded as the dtype has it."""
    wide = [x if x is None or x.dtype == bool else x.astype(np.float64) for x in one.arrays]
    while wide[-1] is None:
        wide.pop()
    problem = one.call.problem
    chosen = {role.chosen: "float64" for role in registry[one.op].spec.roles.values()}
    options = {k: chosen.get(k, value) for k, value in problem.options.items()}
    with stored_as(*[x.dtype for x in problem.outputs], primal=problem.dtype):
        found = registry[one.op](*wide, **options, **one.scalars, backend="array_api")
    return found if isinstance(found, tuple) else (found,)


def pulled(one: Trial) -> float:
    """How large what cancels in the gradient of a norm may be."""
    if one.op == "l2_normalize_backward":
        dy, x = [np.asarray(a, np.float64) for a in one.arrays]
        norm = np.sqrt(np.sum(x * x, one.call.problem.options["axis"]))
        most = np.abs(dy).max() / np.maximum(norm, 1e-5)
        return float(np.max(most, initial=0.0, where=np.isfinite(most)))
    if not one.op.endswith("norm_backward"):
        return 0.0
    dy, *_, x = [a.astype(np.float64) for a in one.arrays if a is not None and a.ndim > 1]
    weight = one.arrays[-1]
    least = np.min(x.var(-1) if "layer" in one.op else (x * x).mean(-1))
    pull = abs(dy).max() * (1 if weight is None else abs(weight.astype(np.float64)).max())
    return float(pull / (least + 1e-5) ** 0.5)


def computed(one: Trial, compiled: tuple[Entry, ...], seed: int) -> list[Array]:
    outs = [emulator.empty(x.shape, x.dtype) for x in one.call.problem.outputs]
    if one.call.add:
        for x in outs:
            x[...] = 0.5
    given = [x for x in one.arrays if x is not None]
    scalars = list(one.scalars.values())
    emulator.run(compiled, one.steps, [*given, *outs], seed, scalars)
    return outs


@pytest.mark.slow("kernels for every length of a row, thread by thread")
@pytest.mark.parametrize(
    ("category", "dtype"),
    lanes.cases(
        [
            *itertools.product(
                ("norm", "softmax", "softmax dropout", "logsumexp", "normalize"), DTYPES
            ),
            ("mixed norm", "bfloat16"),
            *itertools.product(("wide softmax", "wide norm"), ("bfloat16", "float16")),
        ],
        lanes.thinned(
            {
                ("norm", "float32"),
                ("softmax", "bfloat16"),
                ("softmax dropout", "bfloat16"),
                ("logsumexp", "bfloat16"),
                ("normalize", "bfloat16"),
                ("mixed norm", "bfloat16"),
                ("wide softmax", "bfloat16"),
                ("wide norm", "bfloat16"),
            }.__contains__
        ),
    ),
)
def test_rows_are_the_body_in_any_order_of_threads(category: str, dtype: str) -> None:
    small = named(named(dtype).accumulate).eps
    compiled = entries(category, dtype)
    seen = set[tuple[str, ...]]()
    for one in trials(category, dtype):
        kernels = tuple(step.entry.symbol for step in one.steps.kernels)
        first = computed(one, compiled, 0)
        # Another order once for the same kernels.
        second = first if kernels in seen else computed(one, compiled, 1)
        if not lanes.FULL:
            seen.add(kernels)
        outs = one.call.problem.outputs
        for x, again, want, out in zip(first, second, reference(one), outs, strict=True):
            assert x.tobytes() == again.tobytes(), one.label
            kind = named(out.dtype)
            want = want + 0.5 * one.call.add
            got = x.astype(np.float64)
            finite = np.isfinite(want)
            assert np.array_equal(got[~finite], want[~finite], equal_nan=True), one.label
            rows = math.prod(one.arrays[0].shape[:-1])
            got, want = got[finite], want[finite]
            size = np.max(np.abs(want), initial=pulled(one)) + 0.5 * one.call.add
            most = kind.eps * (0.51 if kind.accumulate != out.dtype else 1) * np.abs(want)
            most += small * (16 * size + 2 * rows**0.5)
            error = np.abs(got - want)
            assert np.all(error <= most), (one.label, float(error.max()))


@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_what_passes_by_the_caches_is_the_same(op: str) -> None:
    known = {"x": (1, 3, 4096), "weight": (4096,), "bias": (4096,)}
    shapes = {name: known[name] for name in registry[op].spec.arrays}
    with retuned(launch_plan, past_caches=0):
        passing = trial(op, shapes, "float32")
    plain = trial(op, shapes, "float32")
    compiled = tuple(step.entry for step in plain.steps.kernels)
    (first,), (second,) = (computed(one, compiled, 0) for one in (passing, plain))
    assert passing.steps.kernels[0].arguments != plain.steps.kernels[0].arguments
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [0.3, -2.5, 1e-37, 0.0])
def test_the_largest_is_one_beside_itself_at_any_size(scale: float, dtype: str) -> None:
    """What a scale makes of large elements is rounded by more than an exponent may be off."""
    huge = {"float32": 3e38, "float64": 1e300}[dtype]
    some = huge * np.array([1, -1, 0.875, -0.875, 0.01, 3e-29, 0])
    for op in ("softmax", "log_softmax"):
        for shape, axis in (((3, 5, 7), -1), ((9, 1), -1), ((2, 1000), -1), ((3, 40, 64), 1)):
            one = trial(op, {"x": shape}, dtype, axis=axis)
            (x,) = one.arrays[:1]
            assert x is not None
            x[...] = np.random.default_rng(2).choice(some, shape)
            wide = x.astype(np.longdouble) * np.asarray(scale, dtype)
            wide -= wide.max(axis, keepdims=True)
            total = np.exp(wide).sum(axis, keepdims=True)
            want = wide - np.log(total) if "log" in op else np.exp(wide) / total
            out = emulator.empty(shape, dtype)
            kernels = tuple(s.entry for s in one.steps.kernels)
            emulator.run(kernels, one.steps, [x, out], 0, [scale])
            # An exponent's roundings are some of its own size; it may exceed the type itself.
            size = 1 + abs(want) if "log" in op else want * (1 + np.minimum(abs(wide), 1000))
            most = 4 * named(dtype).eps * size
            past = abs(want) > float(np.finfo(dtype).max)
            assert np.all(np.where(past, np.isneginf(out), abs(out - want) <= most)), one.label
