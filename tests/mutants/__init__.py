"""Mutants: one guarantee at a time is broken in a copy, and the tests that guard it have to fail.

`python -m tests.mutants` makes the copies and runs the tests. The lists are in `host`, `cuda` and
`kernels`.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """One change, and who should notice.

    Attributes
    ----------
    name : str
        The guarantee that is broken.
    file : str
        Its file, from the root of the repository.
    old, new : str
        What stands there exactly once, and what is put in its place.
    tests : tuple of str
        Files or node ids below `tests`; one failed test is enough.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def changed(self, text: str) -> str:
        """The file's text with the fault in it.

        Raises
        ------
        ValueError
            Where `old` does not stand there exactly once.
        """
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: {self.file} has {self.old!r} {found} times, not once")
        return text.replace(self.old, self.new)


def mutant(name: str, file: str, old: str, new: str, *tests: str) -> Mutant:
    """A `Mutant` of a file below `baracuda`."""
    return Mutant(name, f"baracuda/{file}", old, new, tests)


def every() -> tuple[Mutant, ...]:
    """All mutants."""
    from . import cuda, host, kernels

    return (*host.MUTANTS, *cuda.MUTANTS, *kernels.MUTANTS)
