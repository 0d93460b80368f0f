"""Kernels that add to some outputs alone, and sums wider than the rest, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tuning import retuned

from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, strides_of
from baracuda.backends.cuda.schedules import kept_planes, plan, planes
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import named

Array = NDArray[Any]
FACTS = DeviceFacts(0, "sm_90", 4, 232448)
DTYPES = ("float32", "bfloat16")
START = 0.5
# Axes and options of ops; what of gather's forms runs. Channels of a plane's every element and of
# sets that stay on chip.
PROBLEMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "rms": ("rms_norm_backward", {"b": (5,), "n": 24}, {}),
    "layer": ("layer_norm_backward", {"b": (5,), "n": 24}, {}),
    "prelu": ("prelu_backward", {"n": 3, "c": 5, "s": (8,)}, {}),
    "group": ("group_norm_backward", {"n": 3, "c": 4, "s": (8,)}, {"num_groups": 2}),
    "batch": ("batch_norm_inference_backward", {"n": 3, "c": 4, "s": (8,)}, {}),
    "kept": ("batch_norm_backward", {"n": 3, "c": 4, "s": (1288,)}, {}),
    "triplet": ("triplet_margin_loss_backward", {"b": (5,), "n": 24}, {"reduction": "none"}),
    "halves": ("swiglu_backward", {"b": (3,), "n": 16, "c": ()}, {}),
    "lerp": ("lerp_backward", {"s": (3, 21)}, {}),
}
SCATTERED = {
    "lists": ((300, 72), (40, 72), 0),
    "long lists": ((300, 40), (2, 40), 0),
    "few a row": ((9, 2), (9, 64), 1),
    "partition": ((4500,), (4000,), 0),
    "fixed point": ((300,), (400,), 0),
    "atomics": ((300,), (400,), 0),
    # Without a way of its own to wider sums: `fixed point` runs.
    "tiles": ((6, 100), (6, 50), 1),
    "transposed": ((2, 300, 80), (2, 200, 80), 1),
}


class Trial(NamedTuple):
    """A call, its arrays, and what it adds to or keeps wider."""

    label: str
    arrays: list[Array]
    scalars: list[float]
    call: Call


def wider(call: Call) -> tuple[bool, ...]:
    """Every declared sum that may be wider than it is."""
    spec = call.problem.spec
    return tuple([
        spec.role(x.name).total and named(x.dtype).accumulate != x.dtype
        for x in call.problem.outputs
    ])  # fmt: skip


def forms(call: Call) -> Iterator[Call]:
    """Each output added to alone, sums also in the accumulate dtype, added to and not."""
    many = len(call.outs)
    alone = [tuple([i == k for i in range(many)]) for k in range(many)]
    if many > 1:
        yield from (call._replace(some=some) for some in alone)
    wide = wider(call)
    if any(wide):
        yield call._replace(wide=wide)
        yield call._replace(add=True, wide=wide)
        if many > 1:
            yield call._replace(wide=wide, some=wide)
            yield call._replace(wide=alone[-1], some=alone[1])


@cache
def trials(dtype: str) -> tuple[Trial, ...]:
    kind, found = np.dtype(getattr(ml_dtypes, dtype, dtype)), []
    for label, (op, axes, options) in PROBLEMS.items():
        spec = registry[op].spec
        form = max(spec.signatures, key=lambda form: len(form.inputs))
        rng = np.random.default_rng(len(label))
        arrays = {p.name: rng.standard_normal(p.shape(axes)) for p in form.inputs}
        if "var" in arrays:
            arrays["var"] = np.abs(arrays["var"]) + 0.25
        given = [arrays[n].astype(kind) if n in arrays else None for n in spec.arrays]
        given = [None if x is None else emulator.placed(x) for x in given]
        problem = check.problem(spec, given, options, DEFAULT)
        few = retuned(kept_planes, blocks=0)
        call = Call(problem, FACTS, tuple(map(strides_of, problem.outputs)))
        usual = {"eps": 1e-5, "offset": 0.25, "weight": 0.3}
        scalars = [usual[name] for name in spec.scalars if name in usual]
        if op == "triplet_margin_loss_backward":
            scalars = [spec.defaults[name] for name in spec.scalars]
        with few:
            some = [x for x in given if x is not None]
            found += [Trial(label, some, scalars, one) for one in forms(call)]
    for name, (shape, src, axis) in SCATTERED.items():
        rng = np.random.default_rng(len(name))
        dout = emulator.placed(rng.standard_normal(shape).astype(kind))
        index = rng.integers(0, src[axis], shape)
        if "lists" in name:
            index = np.broadcast_to(emulator.placed(index[:, :1]), shape)
        options = {"axis": axis, "src_shape": src, "mode": "drop"}
        problem = check.problem(registry["gather_backward"].spec, [dout, index], options, DEFAULT)
        call = Call(
            problem,
            FACTS,
            tuple(map(strides_of, problem.outputs)),
            variant=name.removeprefix("long "),
        )
        found += [Trial(name, [dout, index], [], one) for one in forms(call)]
    return tuple(found)


def steps_of(one: Trial) -> Any:
    with retuned(kept_planes, blocks=0):
        if one.label == "kept":
            with patch.object(planes, "_on_chip", lambda *_: None):
                return plan(one.call)
        return plan(one.call)


@cache
def entries(dtype: str, file: str) -> tuple[Entry, ...]:
    """Every kernel of these in a source file, compiled together."""
    found: dict[str, Entry] = {}
    for one in trials(dtype):
        kernel = one.call.problem.spec.kernel
        for step in () if kernel is None or kernel.file != file else steps_of(one).kernels:
            assert found.setdefault(step.entry.symbol, step.entry) == step.entry
    return tuple(found.values())


def exact(one: Trial) -> tuple[Array, ...]:
    problem = one.call.problem
    left = iter(one.arrays)
    arrays = [None if x is None else next(left) for x in problem.inputs]
    wide = [x if x is None or x.dtype.kind == "i" else x.astype(np.float64) for x in arrays]
    while wide[-1] is None:
        wide.pop()
    scalars = dict(zip(problem.spec.scalars, one.scalars, strict=True))
    out = registry[problem.spec.name](*wide, **problem.options, **scalars, backend="array_api")
    return out if isinstance(out, tuple) else (out,)


@pytest.mark.slow("kernels of every schedule with several outputs, thread by thread")
@pytest.mark.parametrize("dtype", lanes.cases(DTYPES, "bfloat16".__eq__))
def test_outputs_are_added_to_one_by_one_and_sums_may_be_wider(dtype: str) -> None:
    for one in trials(dtype):
        call, label = one.call, (one.label, one.call.add, one.call.some, one.call.wide)
        wide = call.wide or (False,) * len(call.outs)
        adds = call.adds
        outs = []
        for x, wider_, adding in zip(call.problem.outputs, wide, adds, strict=True):
            out = emulator.empty(x.shape, named(x.dtype).accumulate if wider_ else x.dtype)
            if adding:
                out[...] = START
            outs.append(out)
        steps = steps_of(one)
        every = entries(dtype, steps.kernels[0].entry.file)
        emulator.run(every, steps, [*one.arrays, *outs], 0, one.scalars)
        for got, value, adding in zip(outs, exact(one), adds, strict=True):
            want = value + START * adding
            size = np.max(np.abs(value)) + START * adding
            own = named(got.dtype.name)
            rounding = 0.51 * own.eps * np.abs(want) if own.accumulate != got.dtype.name else 0
            error = np.abs(got.astype(np.float64) - want)
            assert np.all(error <= rounding + 64 * 2.0**-23 * size), (label, float(error.max()))


@pytest.mark.parametrize("label", ["rms", "layer", "prelu", "group", "batch", "kept"])
def test_an_output_that_is_not_added_to_is_written_as_ever(label: str) -> None:
    """What writes all elements is the kernel of a plain call, whatever becomes of the sums."""
    usual, seen = None, 0
    for one in trials("bfloat16"):
        if one.label != label or one.call.adds[0]:
            continue
        call = one.call._replace(some=(), wide=(), add=False)
        usual = [s.entry for s in steps_of(one._replace(call=call)).kernels]
        found = [s.entry for s in steps_of(one).kernels]
        assert len(found) == len(usual)
        # Sums are added up behind it, but where a cluster keeps all that they are of.
        changed = {x.symbol for x, y in zip(found, usual, strict=True) if x != y}
        assert len(changed) == 1
        assert any(part in str(changed) for part in ("sum_rows", "join", "kept"))
        seen += 1
    assert seen > 2


def test_forms_of_scatter_that_have_no_wider_sums_have_one_that_is_as_deterministic() -> None:
    for one in trials("bfloat16"):
        if one.label in SCATTERED:
            steps = steps_of(one)
            settled = "settle" in steps.kernels[-1].entry.symbol
            assert settled == (one.label in ("fixed point", "tiles", "transposed"))
            assert steps.deterministic == (one.label != "atomics")
