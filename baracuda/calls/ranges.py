"""Entries of an index that are out of range: raised at once on a host, found later on a device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from baracuda.declaration.spec import Problem
from baracuda.errors import IndexOutOfRangeError
from baracuda.layouts import Shape
from baracuda.libraries import Array, library_of


class Look(NamedTuple):
    """A search for an entry out of range, under way on a device.

    Attributes
    ----------
    ended : callable
        Whether what was found may be read. It asks no driver: that would end a capture.
    wait : callable
        Returns when it may.
    found : callable
        Whether there is an entry out of range, the place of the first one, and its value.
    problem : Problem
    name : str
        The argument.
    shape : tuple of int
        Its shape.
    """

    ended: Callable[[], bool]
    wait: Callable[[], None]
    found: Callable[[], Sequence[int]]
    problem: Problem
    name: str
    shape: Shape


begun: deque[Look] = deque()
"""Searches whose results nobody has seen yet."""


def check(problem: Problem, arrays: Sequence[Array]) -> None:
    """Look for entries out of range that are to raise.

    Where values can be read at once, that is now. On a device a search begins, for which nobody
    waits: a later call raises what it finds, as kernels report it.

    Raises
    ------
    IndexError
        Naming the first bad value and where it stands.
    """
    raise_found()
    for name, x in zip(problem.spec.arrays, arrays, strict=False):
        if name not in problem.raising:
            continue
        if not problem.library.readable(x):
            # The ops that a composite is made of look at their own.
            if not problem.spec.composite:
                _begin(problem, name, x)
            continue
        read = problem.library.values(x)
        x, xp = library_of(read).once(read), library_of(read).xp
        if library_of(read).spans(x, problem.extent_of(name)):
            continue
        bad = outside(problem, name, x)
        if bool(xp.any(bad)):
            # Namespaces have no `nonzero` of an array without axes.
            raise out_of_range(problem, name, x, xp.nonzero(bad) if bad.ndim else ())


def outside(problem: Problem, name: str, x: Array) -> Array:
    """Which entries of an index are out of range, but for one that stands for none."""
    bad = (x < 0) | (x >= problem.extent_of(name))
    ignored = problem.ignored_by(name)
    return bad if ignored is None else bad & problem.library.differs(x, ignored)


def out_of_range(problem: Problem, name: str, x: Array, where: Sequence[Any]) -> IndexError:
    """The error for the first of the bad entries whose coordinates are `where`."""
    position = tuple(int(axis[0]) for axis in where)
    return IndexOutOfRangeError(
        f"{problem.spec.name}: {name}: expected 0 <= i < {problem.extent_of(name)}, "
        f"got {int(x[position])} at position {position}"
    )


def _begin(problem: Problem, name: str, index: Array) -> None:
    """Begin a search, where the library can and the index has entries.

    A library's `search` returns the first three of a `Look`, or None.
    """
    search = problem.library.search
    if search is None or 0 in index.shape:
        return
    with problem.library.running(problem.device):
        look = search(index, partial(outside, problem, name))
    if look:
        ended, done, found = look
        begun.append(Look(ended, done, found, problem, name, tuple(index.shape)))


def raise_found() -> None:
    """Raise what the searches that have ended found.

    Raises
    ------
    IndexError
        For the first index out of range.
    """
    while begun:
        try:
            look = begun.popleft()
        except IndexError:  # another thread was first
            return
        if not look.ended():
            begun.appendleft(look)
            return
        there, place, value = look.found()
        if there:
            where = [[i] for i in np.unravel_index(place, look.shape)]
            everywhere = np.broadcast_to(value, look.shape)
            raise out_of_range(look.problem, look.name, everywhere, where)


def wait() -> None:
    """Wait for all searches, then raise what they found."""
    for look in tuple(begun):
        look.wait()
    raise_found()
