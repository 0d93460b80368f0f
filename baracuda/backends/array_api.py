"""The op's own body through the array's own namespace: any conforming library, any device.

It also serves tensors under differentiation, transforms and tracing, since the body consists of
the library's own functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from baracuda.calls import body
from baracuda.declaration.backend import Prepared
from baracuda.declaration.spec import OpSpec, Problem


class ArrayAPIBackend:
    """Takes everything."""

    name = "array_api"
    reads = "dqQ"

    def claims(self, spec: OpSpec, library: str) -> Sequence[str]:
        return spec.dtypes

    def mixes(self, spec: OpSpec) -> bool:
        return True

    def check_errors(self) -> None:
        """Nothing is reported later."""

    def refuses(self, problem: Problem) -> str | None:
        if problem.choices.deterministic and not body.ordered(problem):
            return f"the scatter of {problem.library.name} on {problem.device} has no fixed order"
        return None

    def prepare(self, problem: Problem) -> Prepared:
        return Prepared(
            run=body.runner(problem),
            kernel=body.kernel(problem),
            variant=problem.mode,
            arch=problem.library.arch(problem.device),
            precision=body.precision(problem),
        )


BACKEND = ArrayAPIBackend()
