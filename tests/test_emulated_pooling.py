"""Pooling without a GPU: windows whose powers leave the range of the fast form, against float64."""

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
from baracuda.declaration.dtypes import numpy_dtype

FACTS = DeviceFacts(0, "sm_90", 4, 232448)
# Shapes and sizes of windows: clipped at the end, more than a thread has, and none at run time.
SHAPES: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "clipped": ("lp_pool2d", (2, 7, 11), {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    "one over the other": ("lp_pool2d", (2, 6, 9), {"kernel_size": 3, "stride": 1}),
    "rows": ("lp_pool1d", (3, 37), {"kernel_size": 2, "stride": 2}),
}


def pooled(op: str, x: Any, dtype: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """What the kernel makes of `x` in a dtype, and what the body in float64 makes of the same."""
    given = emulator.placed(x.astype(numpy_dtype(dtype)))
    problem = check.problem(registry[op].spec, [given], options, DEFAULT)
    steps = plan(Call(problem, FACTS, tuple(strides_of(y) for y in problem.outputs)))
    want = registry[op](given.astype(np.float64), **options)
    out = emulator.empty(want.shape, dtype)
    emulator.run(tuple(s.entry for s in steps.kernels), steps, [given, out])
    return out.astype(np.float64), want


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_subnormal_cells_count_where_small_ones_do(p: float) -> None:
    rng = np.random.default_rng(1)
    for size in (1e-35, 1e-37, 1.0):
        x = rng.standard_normal((7, 16)) * rng.choice([size, size * 1e-3, 1e-39], (7, 16))
        have, want = pooled("lp_pool1d", x, "bfloat16", {"norm_type": p, "kernel_size": 2})
        np.testing.assert_allclose(have, want, rtol=2.0**-8, atol=1e-38)


@pytest.mark.parametrize("p", [2, 3.5])
@pytest.mark.parametrize("name", list(SHAPES))
def test_windows_out_of_the_fast_range_are_those_of_the_body(name: str, p: float) -> None:
    op, shape, options = SHAPES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    # Powers of all of these leave the range of float32, alone and beside others.
    x *= rng.choice([1.0, 1e-30, 1e30], shape, p=[0.8, 0.1, 0.1])
    x[0] *= 1e-20
    x[-1, ..., -1] = 1e25
    options = {"norm_type": p, "ceil_mode": False, **options}
    have, want = pooled(op, x, "float32", options)
    np.testing.assert_allclose(have, want, rtol=2e-6)
