"""torch tensors on any device, and NumPy arrays on request, without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from baracuda.backends.torch import blocks, namesakes
from baracuda.calls import body
from baracuda.declaration.backend import Adds, Prepared, Runner
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.errors import UnsupportedError
from baracuda.families.numerics import of_values
from baracuda.libraries import Array, library


class TorchBackend:
    """torch's own function of the op, or the body through torch's functions; outside autograd."""

    name = "torch"
    reads = "dqQ"

    def claims(self, spec: OpSpec, library: str) -> Sequence[str]:
        return [d for d in spec.dtypes if not (d == "bfloat16" and library == "numpy")]

    def mixes(self, spec: OpSpec) -> bool:
        return True

    def check_errors(self) -> None:
        """Nothing is reported later."""

    def refuses(self, problem: Problem) -> str | None:
        if problem.mode:
            return f"{problem.mode} tensors need functions that torch can differentiate and trace"
        if problem.library.name == "numpy":
            if problem.dtype == "bfloat16":
                return "torch.from_numpy has no bfloat16"
            for x in problem.given:
                if x.strides and min(x.strides) < 0:
                    return f"{x.name}: torch has no negative strides"
        if problem.choices.deterministic and not body.ordered(problem):
            return f"scatter_add on {problem.device} adds in no fixed order"
        return None

    def prepare(self, problem: Problem) -> Prepared:
        foreign = problem.library.name == "numpy"
        found = namesakes.namesake(problem)
        variant = ("corrected" if found.corrected else "") if found else blocks.variant(problem)
        return Prepared(
            run=_numpy_runner(problem) if foreign else _runner(problem),
            kernel=f"aten::{found.name}" if found else body.kernel(problem),
            variant="from_numpy" if foreign else variant,
            arch=problem.library.arch(problem.device),
            precision=body.precision(problem),
        )


def _runner(problem: Problem) -> Runner:
    run, found = _valued(blocks.runner(problem)), namesakes.namesake(problem)
    if found:
        run = namesakes.runner(problem, found, run)

    def run_outside_autograd(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        if not torch.is_grad_enabled():
            return run(arrays, outs, accumulate, scalars)
        # What `torch.no_grad` does, at a tenth of its cost.
        torch._C._set_grad_enabled(False)
        try:
            return run(arrays, outs, accumulate, scalars)
        finally:
            torch._C._set_grad_enabled(True)

    return run_outside_autograd


def _valued(run: Runner) -> Runner:
    """The body, in the form that nobody differentiates."""

    def run_for_values(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        with of_values():
            return run(arrays, outs, accumulate, scalars)

    return run_for_values


def _numpy_runner(problem: Problem) -> Runner:
    run = _runner(replace(problem, library=library("torch")))
    return body.on_views(run, partial(_view, problem.spec.name), torch.Tensor.numpy)


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
            raise UnsupportedError(
                f"{op}: backend 'torch' refuses: takes no {what} NumPy array; give x.copy()"
            )
    return torch.from_numpy(x)


BACKEND = TorchBackend()
