"""Sequences of arrays in the places of arrays: sets of one array of each, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import add
from typing import Any, Protocol

from baracuda.calls import check
from baracuda.declaration.spec import OpSpec
from baracuda.errors import type_error, value_error
from baracuda.libraries import UNFIT, Array, library_of

Lists = Sequence[Sequence[Array] | None]
"""For each array that the op takes a sequence of them, all of one length."""


class Owner(Protocol):
    """What a plan over lists asks of its op."""

    spec: OpSpec

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        """One call."""

    def plan(self, *arrays: Any, **options: Any) -> Any:
        """The plan of one call, or of lists."""


def summed(spec: OpSpec) -> bool:
    """Whether results are sums over all elements, of a list over those of all its arrays."""
    return not any(p.terms for f in spec.signatures for p in f.outputs)


def taken_by(spec: OpSpec) -> bool:
    """Whether an op takes lists: elementwise ones of which all arrays have one shape, and sums."""
    sides = [f.inputs if summed(spec) else (*f.inputs, *f.outputs) for f in spec.signatures]
    every = [{p.terms for p in side} for side in sides]
    alike = all(len(terms) == 1 and len(next(iter(terms))) == 1 for terms in every)
    return spec.elementwise and alike


def are(arrays: Sequence[Any]) -> bool:
    """Whether these are sequences of arrays."""
    # Not `bool`, which not every torch.compile reads of a tuple.
    return len(arrays) > 0 and type(arrays[0]) in (list, tuple)


def watched(arrays: Lists) -> bool:
    """Whether a framework traces or differentiates what is done with some of the arrays."""
    flat = joined(arrays)
    try:
        state = library_of(flat[0]).state(flat) if flat else None
    except UNFIT:
        # What is no array, or one of another library: a plan says which.
        return False
    return bool(state and state[0])


def joined(arrays: Lists) -> list[Array]:
    """All arrays that are there, one operand after the other."""
    return [*chain.from_iterable([some for some in arrays if some is not None])]


def each(op: Owner, arrays: Lists, options: Mapping[str, Any]) -> Any:
    """The op on each set of arrays: for frameworks that see every call."""
    sets = enumerate(rows(op.spec, arrays))
    results = [op(*row, **own(op.spec, row[0], options, i)) for i, row in sets]
    return total(op.spec, results) if summed(op.spec) else columns(results)


def rows(spec: OpSpec, arrays: Lists) -> list[tuple[Array, ...]]:
    """The sets of arrays.

    Raises
    ------
    TypeError, ValueError
        For what is no sequence, and for sequences of other lengths than the first.
    """
    count = len(arrays[0] or ())
    for name, some in zip(spec.arrays, arrays, strict=False):
        if some is None:
            continue
        if type(some) not in (list, tuple):
            expected = f"a list of arrays (as {spec.arrays[0]})"
            raise type_error(spec.name, name, expected, type(some).__name__)
        if len(some) != count:
            expected = f"{count} arrays (as {spec.arrays[0]})"
            raise value_error(spec.name, name, expected, len(some))
    return list(zip(*[(None,) * count if x is None else x for x in arrays], strict=True))


def of_one_library(spec: OpSpec, arrays: Lists) -> None:
    """Raise the op's own TypeError for what is no array, and for one of another library."""
    first = None
    for name, some in zip(spec.arrays, arrays, strict=False):
        for x in some or ():
            library, _ = check.described(spec.name, name, x)
            first = first or library
            if library is not first:
                expected = f"an array of library {first.name} (as the first of {spec.arrays[0]})"
                raise type_error(spec.name, name, expected, library.name)


def own(spec: OpSpec, like: Array, values: Mapping[str, Any], i: int) -> Mapping[str, Any]:
    """The values for the set of this number: where elements are numbered, random words of its own.

    It is what kernels of lists do.
    """
    if not (spec.numbered and i):
        return values
    offset = values.get("offset", spec.defaults["offset"])
    library = library_of(like)
    if hasattr(offset, "dtype"):
        return {**values, "offset": library.joined(offset, i)}
    whole = (offset + (i << 32)) % 2**64
    return {**values, "offset": whole}


def columns(results: Sequence[Any]) -> Any:
    """The results of sets of arrays as a list of each result."""
    if results and type(results[0]) is not tuple:
        return list(results)
    return tuple(map(list, zip(*results, strict=True)))


def total(spec: OpSpec, results: Sequence[Array]) -> Array:
    """The sum of the results of sets of arrays, in their order."""
    if not results:
        raise value_error(spec.name, spec.arrays[0], "at least one array", 0)
    # NumPy makes scalars of sums of arrays without axes.
    xp = library_of(results[0]).xp
    return xp.reshape(reduce(add, [xp.reshape(x, (1,)) for x in results]), ())
