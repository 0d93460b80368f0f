"""Rotations without a GPU: positions of both signs, and what passes through, against the body."""

from __future__ import annotations

from typing import Any

import emulator
import numpy as np
import pytest

from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, strides_of
from baracuda.backends.cuda.schedules import plan
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT

FACTS = DeviceFacts(0, "sm_90", 4, 232448)
POSITIONS = np.array([0, 1, -1, 77, -30000, 2**31 - 1, -(2**31 - 1)])


@pytest.mark.parametrize(
    ("op", "dtype", "d", "options"),
    [
        ("rope", "float64", 16, {}),
        ("rope_backward", "float64", 16, {"interleaved": False}),
        # Behind what turns there is a vector, and less than one.
        ("rope", "float32", 11, {"rotary_dim": 6}),
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
