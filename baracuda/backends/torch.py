"""torch tensors on any device, and NumPy arrays on request, without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from baracuda import body
from baracuda.errors import UnsupportedError
from baracuda.libraries import Array, library
from baracuda.spec import OpSpec, Prepared, Problem, Runner

# torch computes with these only in part: no arithmetic, no gather, no comparison.
_STORAGE_ONLY = ("uint16", "uint32", "uint64")


class TorchBackend:
    """The body through torch's functions, outside autograd, into tensors of the right layout."""

    name = "torch"

    def claims(self, spec: OpSpec, library: str) -> Sequence[str]:
        return [d for d in spec.dtypes if _refused_dtype(d, library) is None]

    def refuses(self, problem: Problem) -> str | None:
        if problem.mode:
            return f"{problem.mode} tensors need functions that torch can differentiate and trace"
        reason = _refused_dtype(problem.dtype, problem.library.name)
        if reason is None and problem.library.name == "numpy":
            negative = [x.name for x in problem.given if x.strides and min(x.strides) < 0]
            reason = f"{negative[0]}: torch has no negative strides" if negative else None
        if reason is None and problem.choices.deterministic and not body.ordered(problem):
            reason = f"scatter_add on {problem.device} adds in no fixed order"
        return reason

    def prepare(self, problem: Problem) -> Prepared:
        foreign = problem.library.name == "numpy"
        return Prepared(
            run=_numpy_runner(problem) if foreign else _runner(problem),
            kernel="body",
            variant="from_numpy" if foreign else "",
            arch=problem.library.arch(problem.device),
            precision=body.precision(problem),
        )


def _refused_dtype(dtype: str, library: str) -> str | None:
    if dtype in _STORAGE_ONLY:
        return f"torch only stores {dtype}"
    if dtype == "bfloat16" and library == "numpy":
        return "torch.from_numpy has no bfloat16"
    return None


def _runner(problem: Problem) -> Runner:
    run = body.runner(problem)

    def run_outside_autograd(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: bool,
        scalars: Mapping[str, Any],
    ) -> Any:
        with torch.no_grad():
            return run(arrays, outs, accumulate, scalars)

    return run_outside_autograd


def _numpy_runner(problem: Problem) -> Runner:
    run, op = _runner(replace(problem, library=library("torch"))), problem.spec.name

    def run_on_views(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: bool,
        scalars: Mapping[str, Any],
    ) -> Any:
        tensors = [x if x is None else _view(op, x) for x in arrays]
        if outs is not None:
            run(tensors, tuple(_view(op, x) for x in outs), accumulate, scalars)
            return outs if len(outs) > 1 else outs[0]
        result = run(tensors, None, accumulate, scalars)
        return tuple(x.numpy() for x in result) if type(result) is tuple else result.numpy()

    return run_on_views


def _view(op: str, x: Array) -> Any:
    """A tensor on the memory of `x`; refuses what torch.from_numpy would copy or misread."""
    x = np.asarray(x)
    broken = any(step % x.itemsize for step in x.strides)
    for bad, what in (
        (not x.flags.aligned or broken, "unaligned"),
        (not x.flags.writeable, "read-only"),
        (min(x.strides, default=0) < 0, "negative-stride"),
    ):
        if bad:
            raise UnsupportedError(f"{op}: backend 'torch' refuses: takes no {what} NumPy array")
    return torch.from_numpy(x)


BACKEND = TorchBackend()
