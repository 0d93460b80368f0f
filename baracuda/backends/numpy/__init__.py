"""NumPy arrays: bodies in cache-sized blocks on threads, gathers and scatters of its own."""

from __future__ import annotations

from collections.abc import Sequence

from baracuda.backends.numpy import blocks, indexed
from baracuda.declaration.backend import Prepared
from baracuda.declaration.spec import OpSpec, Problem


class NumPyBackend:
    """Always there, deterministic, and independent of strides."""

    name = "numpy"

    def claims(self, spec: OpSpec, library: str) -> Sequence[str]:
        return spec.dtypes

    def mixes(self, spec: OpSpec) -> bool:
        return True

    def check_errors(self) -> None:
        """Nothing is reported later."""

    def refuses(self, problem: Problem) -> str | None:
        return None

    def prepare(self, problem: Problem) -> Prepared:
        schedule = problem.spec.kernel.schedule if problem.spec.kernel else ""
        make = {"scatter": indexed.scatter, "gather": indexed.gather}.get(schedule, blocks.prepare)
        return make(problem)


BACKEND = NumPyBackend()
