"""What a backend must answer, and what it makes of a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from baracuda.declaration.sku import PrecisionGuarantee
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.libraries import Array

Adds: TypeAlias = bool | tuple[bool, ...]
"""Whether to add into given outputs; one for each where they differ, as `each` reads it."""

Runner: TypeAlias = Callable[
    [Sequence[Array], "tuple[Array, ...] | None", Adds, Mapping[str, Any]], Any
]
"""``(arrays, outs, accumulate, scalars) -> result``; ``outs=None`` allocates."""


def each(accumulate: Adds, count: int) -> tuple[bool, ...]:
    """Whether to add into each of `count` outputs."""
    return accumulate if isinstance(accumulate, tuple) else (accumulate,) * count


class Prepared(NamedTuple):
    """What a backend made of a problem: the runner, and the facts of it that go into the SKU."""

    run: Runner
    kernel: str
    variant: str
    arch: str
    precision: PrecisionGuarantee
    workspace_size: int = 0
    tuned: Callable[[Sequence[Array]], Prepared] | None = None
    """Measures the variants on these arrays and prepares the fastest; None where there is one."""
    provisional: bool = False
    """Set by `backends.choose`: a backend ahead of this one could not be loaded."""
    code: str = ""
    """Where the machine code of the kernels is from."""


class Refusal(Exception):
    """Found while preparing: why the backend does not take the problem after all."""


class Misfit(Exception):
    """A runner met arrays less aligned than planned; they have a plan of their own."""


class Backend(Protocol):
    """Whoever can compute. Stateless as seen from outside; asked in the registry's order."""

    name: str

    def claims(self, spec: OpSpec, library: str) -> Sequence[str]:
        """The dtypes for which this backend takes `spec` on plain arrays of `library`."""

    def refuses(self, problem: Problem) -> str | None:
        """Why this backend does not take `problem`, None when it does."""

    def check_errors(self) -> None:
        """Wait for what was launched, and raise what it found wrong."""

    def prepare(self, problem: Problem) -> Prepared:
        """Do all that does not depend on values: choose the kernel, compile.

        `Refusal` says what only then turns out to be in the way.
        """
