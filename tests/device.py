"""What the tests on an NVIDIA GPU share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from baracuda.declaration.dtypes import named
from baracuda.testing.bounds import tolerance
from baracuda.testing.cases import Call, apart, subjects, to_numpy

MARKS = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("at_rest"),
]

LIBRARIES = [name for name in ("torch", "cupy") if find_spec(name)]
EVERY = list(subjects(libraries=LIBRARIES, device="cuda"))
KERNELS = [s for s in EVERY if s.backend == "cuda" and s.library == "torch"]
SINGLE = [s for s in KERNELS if s.dtype == "float32"]
SHORT = [s for s in KERNELS if s.dtype in ("float32", "bfloat16")]
each_kernel = pytest.mark.parametrize("subject", KERNELS, ids=str)
each_op = pytest.mark.parametrize("subject", SINGLE, ids=str)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def randint(high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.randint(0, high, shape, device="cuda", dtype=dtype)


def many(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def one_or_many(results: Sequence[torch.Tensor]) -> Any:
    return tuple(results) if len(results) > 1 else results[0]


def close(call: Call, got: Any, times: float = 1.0, plus: float = 0.0) -> None:
    """Whether `got` is `times` the reference and `plus` a number."""
    eps = named(call.subject.dtype).eps
    for x, want, most in zip(many(got), call.reference(), tolerance(call), strict=True):
        have, what = to_numpy(x), f"{call.case} {call.form.text}"
        if call.subject.spec.moves:
            assert np.array_equal(have, want), what
            continue
        want = times * want + plus
        # A sum rounds once more.
        rounded = 2 * eps * (np.abs(want) + plus) if times != 1 or plus else 0.0
        assert np.all(np.abs(apart(have, want)) <= times * most + rounded), what


def run_at_once(tasks: Sequence[Callable[[], None]]) -> None:
    """Each in a thread of its own, started together; the first failure is raised."""
    barrier, failures = threading.Barrier(len(tasks)), []

    def guarded(task: Callable[[], None]) -> None:
        try:
            barrier.wait()
            task()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
