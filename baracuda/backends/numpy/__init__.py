"""NumPy arrays: bodies in cache-sized blocks on threads, gathers and scatters of its own."""

from __future__ import annotations

from collections.abc import Sequence

from baracuda.backends.numpy import blocks, indexed
from baracuda.declaration.backend import Prepared
from baracuda.declaration.indexed import of_elements
from baracuda.declaration.spec import OpSpec, Problem

# By the schedules of kernels, of those without a functor.
_INDEXED = {
    "scatter": indexed.scatter, "gather": indexed.gather, "add_rows": indexed.rows,
    "segments": indexed.rows, "join_rows": indexed.rows, "spread_rows": indexed.rows,
    "last_write": indexed.last_write, "last_write_backward": indexed.last_write_backward,
    "bags": indexed.rows, "bags_backward": indexed.rows,
    "few_rows": indexed.rows, "combine": indexed.rows, "combine_backward": indexed.rows,
}  # fmt: skip


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
        kernel = problem.spec.kernel
        if kernel is None or kernel.schedule not in _INDEXED:
            return blocks.prepare(problem)
        # Those of its own take an index for each element.
        if kernel.functor or not of_elements(problem):
            return indexed.rows(problem)
        return _INDEXED[kernel.schedule](problem)


BACKEND = NumPyBackend()
