"""Cotangents of results that nobody used: None counts as zeros."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from baracuda.declaration.shapes import Pattern
from baracuda.declaration.spec import OpSpec
from baracuda.libraries import Array, library_of


def completed(
    spec: OpSpec, registry: Mapping[str, Any], arrays: Sequence[Any], torch: Any = None
) -> Sequence[Any]:
    """The arrays, with zeros for each cotangent that is None where no form goes without it.

    They stay as they are where all cotangents are None, and where nothing says how large one is.

    Parameters
    ----------
    spec : OpSpec
        A gradient, or any other op.
    registry : dict of str to Op
        Every op by its name.
    arrays : sequence of array or None
        As the op takes them.
    torch : module, optional
        Makes the zeros, where torch traces the call.

    Returns
    -------
    sequence of array or None
    """
    if all(x is not None for x in arrays):
        return arrays
    # Of ops that are no gradient themselves, but compute one, the role says it.
    cotangents = {name for name in spec.arrays if spec.role(name).wide == "cotangent"}
    if spec.adjoint_of:
        cotangents.update(registry[spec.adjoint_of].adjoint.cotangents.values())
    pairs = [*zip(spec.arrays, arrays, strict=False)]
    given = {name: x for name, x in pairs if x is not None}
    missing = [name for name, x in pairs if x is None and name in cotangents]
    if not missing or cotangents.isdisjoint(given) or _takes(spec, given):
        return arrays
    form = _takes(spec, [*given, *missing])
    if form is None:
        return arrays
    zeros = {name: _zeros(spec, form, name, given, torch) for name in missing}
    if any(x is None for x in zeros.values()):
        return arrays
    return [zeros.get(name) if x is None else x for name, x in pairs]


def _takes(spec: OpSpec, names: Collection[str]) -> dict[str, Pattern] | None:
    """The axes of the arrays of a form that takes just these; None where none does."""
    form = next((f for f in spec.signatures if f.takes(names)), None)
    return {p.name: p for p in form.inputs} if form is not None else None


def _zeros(
    spec: OpSpec,
    form: Mapping[str, Pattern],
    name: str,
    given: Mapping[str, Array],
    torch: Any,
) -> Array | None:
    """Zeros for a cotangent; None where its extents are those of no array that is given."""
    role, own = spec.role(name), form[name].terms
    # Those of its own role first: they say which of two dtypes it has.
    values = [n for n in form if n in given and n not in spec.discrete]
    values.sort(key=lambda n: spec.role(n) != role)
    for other in values:
        if form[other].terms == own:
            like = given[other]
            return (torch or library_of(like).xp).zeros_like(like)
    extents = dict[str, int]()
    for other, x in given.items():
        extents |= _extents(form[other], x)
    if not values or not all(t.name in extents for t in own):
        return None
    like, shape = given[values[0]], tuple([extents[t.name] for t in own])
    if torch is not None:
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    library = library_of(like)
    return library.xp.zeros(shape, dtype=like.dtype, device=library.device_of(like))


def _extents(pattern: Pattern, x: Array) -> dict[str, int]:
    """The extents of the axes before the first group of axes, and behind the last."""
    found = dict[str, int]()
    terms, shape = pattern.terms, tuple(x.shape)
    for ordered, extents in ((terms, shape), (terms[::-1], shape[::-1])):
        for term, extent in zip(ordered, extents, strict=False):
            if term.group:
                break
            if term.factor == 1 and not term.or_one:
                found[term.name] = extent
    return found
