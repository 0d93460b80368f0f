"""Kernels that read run-time values from memory give the bits that they give for the numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import emulator
import lanes
import numpy as np
import pytest
from plannable import FACTS, OLD, phantom

from baracuda.backends.cuda import compiler
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import cross_entropy, plan
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.spec import Problem
from baracuda.testing.cases import Subject

# Few multiprocessors make few blocks.
FEW = FACTS._replace(multiprocessors=4)
# Of each schedule that takes run-time values an op; of elementwise ones walks of two kinds.
USUAL = ("lerp", "hardtanh", "huber_loss", "rms_norm", "softmax", "cross_entropy", "group_norm",
         "batch_norm", "triplet_margin_loss", "embedding", "embedding_backward")  # fmt: skip
# Their arguments are longer than those that a block copies.
LONG = ("batch_norm_inference", "triplet_margin_loss_backward")
VALUED = [
    name
    for name, op in registry.items()
    if op.spec.kernel and any(hasattr(f, "dtypes") for f in op.spec.scalars.values())
    if name not in LONG
]


def drawn(op: str) -> tuple[Problem, list[Any], list[Any]]:
    """A problem of the last form at its first case, its arrays and run-time values."""
    call = list(Subject(op, "cuda", "numpy", "float32", brief=True).calls())[-1]
    spec = call.subject.spec
    options = {k: v for k, v in call.options.items() if k in spec.options}
    arrays = [None if x is None else emulator.placed(x) for x in call.given()]
    problem = check.problem(spec, arrays, options, DEFAULT)
    return problem, [x for x in arrays if x is not None], list(call.scalars.values())


def steps_of(problem: Problem, facts: DeviceFacts, reads: tuple[str, ...]) -> Steps:
    outs = tuple(strides_of(x) for x in problem.outputs)
    return plan(Call(replace(problem, reads=reads), facts, outs))


@pytest.mark.parametrize("op", lanes.cases(VALUED, USUAL.__contains__))
def test_a_value_in_memory_is_the_number(op: str) -> None:
    problem, arrays, values = drawn(op)
    takes = [hasattr(f, "dtypes") for f in problem.spec.scalars.values()]
    # Seeds are held by their bits.
    words = [*zip(problem.spec.scalars.values(), problem.spec.codes, strict=True)]
    reads = {
        how: tuple(["int64" if c == "Q" else getattr(f, "dtypes", ("", ""))[i] for f, c in words])
        for i, how in enumerate(("narrow", "wide"))
    }
    # Numbers beside it stay numbers.
    reads["the last alone"] = (*[""] * (len(takes) - 1), reads["wide"][-1]) if takes[-1] else ()
    planned = {"": steps_of(problem, FEW, ())}
    planned |= {how: steps_of(problem, FEW, kinds) for how, kinds in reads.items() if kinds}
    entries = tuple(dict.fromkeys(s.entry for some in planned.values() for s in some.kernels))
    # A number that float32 has; a count stays whole.
    single = [v if isinstance(v, int) else float(np.float32(v)) for v in values]
    results = {}
    for how, steps in planned.items():
        held = [
            emulator.placed(np.asarray(v - (v >> 63 << 64) if kind == "int64" else v, kind))
            if kind
            else None
            for v, kind in zip(single, reads.get(how, ("",) * len(values)), strict=True)
        ]
        words = [v if x is None else x.ctypes.data for v, x in zip(single, held, strict=True)]
        outs = [emulator.empty(x.shape, x.dtype) for x in problem.outputs]
        emulator.run(entries, steps, [*arrays, *outs], 0, words)
        results[how] = [x.tobytes() for x in outs]
    assert len(results) >= 3
    for how, found in results.items():
        assert found == results[""], how


@pytest.mark.parametrize("op", LONG)
def test_values_beside_too_many_arguments_are_refused(op: str) -> None:
    problem, _, _ = drawn(op)
    reads = tuple("float32" if hasattr(f, "dtypes") else "" for f in problem.spec.scalars.values())
    assert any(len(step.arguments) > 1024 for step in steps_of(problem, FEW, ()).kernels)
    with pytest.raises(Refusal, match="beside at most 1024 bytes of arguments"):
        steps_of(problem, FEW, reads)


def test_what_fills_a_chip_leaves_room_for_the_arguments() -> None:
    fixed, rows = cross_entropy._FIXED, phantom((6, 1 << 17), "dense", "float32")
    spec, target = registry["cross_entropy_with_gradient"].spec, np.zeros(6, np.int64)
    problem = check.problem(spec, [rows, target], {}, DEFAULT)
    most = max(s.shared for s in steps_of(problem, OLD, ()).kernels) + fixed
    full = OLD._replace(shared_per_block=most)
    assert max(s.shared for s in steps_of(problem, full, ()).kernels) == most - fixed
    steps = steps_of(problem, full, ("float32",) * len(spec.scalars))
    assert max(s.shared for s in steps.kernels) + fixed + 1024 <= most


@pytest.mark.parametrize("op", lanes.cases(VALUED, USUAL[::2].__contains__))
def test_what_reads_a_value_spills_no_register(op: str) -> None:
    problem, _, _ = drawn(op)
    reads = tuple("float32" if hasattr(f, "dtypes") else "" for f in problem.spec.scalars.values())
    for step in steps_of(problem, FACTS, reads).kernels:
        if step.entry.reads:
            used = compiler.usage(step.entry, "sm_90")
            assert (used.stack, used.spilled) == (0, 0), step.entry.symbol
