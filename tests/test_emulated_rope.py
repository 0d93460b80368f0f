"""Rotations without a GPU, against the body: positions, tables, and what passes through."""

from __future__ import annotations

import ctypes
from typing import Any

import emulator
import numpy as np
import pytest

from baracuda.backends.cuda.index_errors import Record
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, strides_of
from baracuda.backends.cuda.schedules import plan
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.libraries import library

FACTS = DeviceFacts(0, "sm_90", 4, 232448)
POSITIONS = np.array([0, 1, -1, 77, -30000, 2**31 - 1, -(2**31 - 1)])


@pytest.mark.parametrize(
    ("op", "dtype", "d", "options"),
    [
        ("rope", "float64", 16, {}),
        ("rope_backward", "float64", 16, {"interleaved": False}),
        # Behind what turns there is a vector, and less than one.
        ("rope", "float32", 11, {"rotary_dim": 6}),
        # Whole turns, and pairs that turn back.
        ("rope", "float64", 8, {"frequencies": (7.5, -0.25, 0, 1e-9), "attention_factor": 1.25}),
    ],
)
def test_positions_of_both_signs_turn_as_the_body_does(
    op: str, dtype: str, d: int, options: dict[str, Any]
) -> None:
    x = np.random.default_rng(0).standard_normal((3, len(POSITIONS), d)).astype(dtype)
    given, positions = emulator.placed(x), emulator.placed(POSITIONS)
    problem = check.problem(registry[op].spec, [given, positions], options, DEFAULT)
    steps = plan(Call(problem, FACTS, tuple(strides_of(y) for y in problem.outputs)))
    out = emulator.empty(x.shape, dtype)
    emulator.run(tuple(s.entry for s in steps.kernels), steps, [given, positions, out])
    want = registry[op](x, POSITIONS, **options)
    np.testing.assert_allclose(out, want, atol=2e-6 if dtype == "float32" else 1e-6)
    if "rotary_dim" in options:
        np.testing.assert_array_equal(out[..., 6:], x[..., 6:])


def run(op: str, given: list[Any], options: dict[str, Any], **more: Any) -> list[Any]:
    """The results of an op's kernel, between pages that nobody may touch."""
    placed = [emulator.placed(x) for x in given]
    problem = check.problem(registry[op].spec, placed, options, DEFAULT)
    steps = plan(Call(problem, FACTS, tuple(strides_of(y) for y in problem.outputs), **more))
    outs = [emulator.empty(y.shape, y.dtype) for y in problem.outputs]
    emulator.run(tuple(s.entry for s in steps.kernels), steps, [*placed, *outs])
    return outs


@pytest.mark.parametrize(
    ("op", "dtype", "wide", "options"),
    [
        ("rope_with_tables", "bfloat16", "float32", {"interleaved": False}),
        ("rope_with_tables_backward", "float16", "float16", {"rotary_dim": 16}),
    ],
)
@pytest.mark.parametrize("entries", [8, 16])
def test_rows_turn_by_tables_as_the_body_does(
    op: str, dtype: str, wide: str, options: dict[str, Any], entries: int
) -> None:
    """More rows share an angle than are in flight; elements behind the pairs pass through."""
    rng, options = np.random.default_rng(1), {"rotary_dim": 16, **options}
    kinds = [library("numpy").dtype(name) for name in (dtype, wide)]
    x = rng.standard_normal((2, 11, 5, 24)).astype(kinds[0])
    tables = [rng.standard_normal((5, entries)).astype(kinds[1]) for _ in range(2)]
    (out,) = run(op, [x, *tables], options)
    want = registry[op](x, *tables, **options)
    np.testing.assert_array_equal(out[..., 16:], x[..., 16:])
    np.testing.assert_allclose(*[y.astype(np.float32) for y in (out, want)], rtol=2e-2, atol=1e-2)


def test_a_position_without_a_row_is_reported_and_turns_to_0() -> None:
    rng, record = np.random.default_rng(2), Record()
    x, tables = rng.standard_normal((2, 3, 4, 8)), [rng.standard_normal((6, 4)) for _ in range(2)]
    positions = rng.integers(0, 6, (2, 1, 4))
    positions[1, 0, 2] = 6
    given = [x, *tables, positions]
    heard = {"listener": ctypes.addressof(record), "ticket": 9}
    (out,) = run("rope_with_tables", given, {}, **heard)
    want = registry["rope_with_tables"](*given, mode="drop")
    np.testing.assert_allclose(out, want, rtol=1e-12)
    assert not out[1, :, 2].any()
    assert (record.state, record.ticket, record.value, record.position) == (2, 9, 6, 6)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("op", ["rope_qk", "rope_qk_with_tables_backward"])
def test_queries_and_keys_of_other_numbers_of_heads_turn_in_one_launch(op: str, dtype: str) -> None:
    rng, kind = np.random.default_rng(3), library("numpy").dtype(dtype)
    q, k = (rng.standard_normal((2, 5, heads, 16)).astype(kind) for heads in (7, 3))
    angles = [rng.standard_normal((5, 8)).astype(kind) for _ in range(2)]
    given = [q, k, *(angles if "tables" in op else ())]
    options = {"seq_axis": 1, "interleaved": "tables" in op}
    want = registry[op](*given, **options)
    tolerance = 1e-2 if dtype == "bfloat16" else 1e-12
    placed = [emulator.placed(x) for x in given]
    problem = check.problem(registry[op].spec, placed, options, DEFAULT)
    call = Call(problem, FACTS, tuple(strides_of(y) for y in problem.outputs))
    planned = {some: plan(call._replace(some=some)) for some in ((), (True, False), (False, True))}
    entries = tuple(dict.fromkeys(s.entry for steps in planned.values() for s in steps.kernels))
    for adds, steps in planned.items():
        assert len(steps.steps) == 1
        found = [emulator.placed(np.ones(y.shape).astype(kind)) for y in problem.outputs]
        emulator.run(entries, steps, [*placed, *found])
        for x, y, add in zip(found, want, adds or (False, False), strict=True):
            near = {"rtol": tolerance, "atol": 4 * tolerance}
            np.testing.assert_allclose(x.astype(float), y.astype(float) + add, **near)
