"""How a problem is batched (vmap) and partitioned (blocks, shards).

All follows from the shape string and the roles, for whoever hides a kernel from the framework that
batches and divides its programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from baracuda.declaration.indexed import grouping, scatters
from baracuda.declaration.shapes import Pattern, Signature
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.layouts import Shape

Place: TypeAlias = str | tuple[str, ...] | None
"""The axes of a mesh of devices over which one axis of an array is spread."""


def independent(spec: OpSpec, form: Signature) -> frozenset[str]:
    """The axes and groups of all outputs along which no element depends on another.

    They are axes of every output. One that a cotangent lacks was summed over, perhaps to a mean,
    for which the whole extent counts. Groups are batches, or what `OpSpec.batches` says. Of single
    axes, those along which
    positions are given, those of which every index is looked up on its own, and those of
    elementwise ops where no array holds two halves. None that an index points along, and none
    where elements are numbered.
    """
    return frozenset() if spec.numbers(form) else _apart(spec, form)


def placed(spec: OpSpec, form: Signature) -> frozenset[str]:
    """The axes along which parts are like the whole if they are told where they lie in it."""
    return _apart(spec, form) if spec.numbers(form) and "part" in spec.options else frozenset()


def _apart(spec: OpSpec, form: Signature) -> frozenset[str]:
    given, terms = set(form.names), [t for p in (*form.inputs, *form.outputs) for t in p.terms]
    packed = {t.name for t in terms if t.factor != 1}
    counted = {axis for name, axis in spec.counted.items() if name in given}
    looked_up = {
        t.name
        for p in form.inputs
        if p.name in spec.indices and p.name not in grouping(spec)
        for t in p.terms
        if not t.group
    }
    pointed = {spec.role(name).below for name in given}
    shared = frozenset.intersection(*[p.reached for p in form.outputs], *_cotangents(spec, form))
    return shared & frozenset(
        t.name
        for p in form.outputs
        for t in p.terms
        if spec.batch(t)
        or t.name in (counted | looked_up) - pointed
        or (spec.elementwise and t.name not in packed)
    )


def _cotangents(spec: OpSpec, form: Signature) -> list[frozenset[str]]:
    """What the results had of which an op takes the gradients, and the groups inside of that."""
    given = [p for p in form.inputs if spec.adjoint_of and p.name.startswith("d")]
    inner = {t.name: t.bound for p in form.inputs for t in p.terms if t.bound}
    return [p.reached | {n for n, bound in inner.items() if bound in p.reached} for p in given]


def added_up(spec: OpSpec, form: Signature) -> frozenset[str]:
    """What some results have, and over which those that lack it are sums.

    Batches, and any axis of elementwise ops. The latter are gradients: other numbers may be means.
    Batches of a gradient that scatters are sums where no result has them.
    """
    given = {p.name for p in form.inputs}
    others = [p for p in form.outputs if not spec.adjoint_of and p.name[1:] not in given]
    terms = [t for p in form.outputs for t in p.terms]
    if spec.adjoint_of and scatters(spec):
        terms += [t for p in form.inputs if not p.is_option for t in p.terms]
    if spec.numbers(form):
        return frozenset()
    apart = frozenset(t.name for t in terms if spec.batch(t) or spec.elementwise)
    whole = apart.intersection(*[p.reached for p in others], *_cotangents(spec, form))
    return whole - frozenset.intersection(*[p.reached for p in form.outputs])


def joined(spec: OpSpec) -> frozenset[str]:
    """The axis of which the op itself joins parts, at the price of a collective."""
    return frozenset((spec.collective.axis,) if spec.collective else ())


def located(problem: Problem) -> frozenset[str]:
    """The axes of groups along which an element depends on its place: labels, as `Pattern` has."""
    on = [group for option, group in problem.spec.located.items() if problem.options[option]]
    return frozenset(f"{group}{len(problem.axes[group]) - 1}" for group in on)  # type: ignore[arg-type]


def batch(
    problem: Problem, size: int, along: Sequence[bool]
) -> tuple[list[Shape], dict[str, Any]] | None:
    """Shapes and options of a batch of `problem`, as the first axis of a group of the op.

    Parameters
    ----------
    problem : Problem
    size : int
        How many there are.
    along : sequence of bool
        Whether each input differs from one to another; it then begins with that axis.

    Returns
    -------
    shapes, options
        To what the inputs are to be reshaped, or broadcast where they do not differ. None where
        the forms of the op have no room for a batch.
    """
    form = problem.signature
    patterns = {p.name: p for p in form.inputs}
    first = {p.name: p.terms[0] if p.terms else None for p in (*form.inputs, *form.outputs)}
    bounds = _bounds(problem)
    groups = {bounds.get(t.name, t.name) for t in first.values() if t is not None and t.group}
    if len(groups) != 1 or not groups <= _free(problem.spec, problem):
        return None
    if not all((t := first[p.name]) and t.group for p in form.outputs):
        return None
    shapes: list[Shape] = []
    # Arrays of the same axes, as two tables, are both of the form that has batches, or neither is.
    differing = {patterns[x.name].terms for x, d in zip(problem.given, along, strict=True) if d}
    for x, differs in zip(problem.given, along, strict=True):
        term = first[x.name]
        if term is not None and term.group:
            shapes.append((size if differs or not term.or_one else 1, *x.shape))
        elif patterns[x.name].terms not in differing:
            shapes.append(x.shape)
        else:
            inner = _with_groups(problem, patterns[x.name]) if differs else None
            if inner is None:
                return None
            shapes.append((size, *inner))
    options = dict(problem.options)
    for pattern in form.inputs:
        if pattern.marker:
            options[pattern.marker] += 1
        if pattern.is_option:
            options[pattern.name] = (size, *options[pattern.name])
    return shapes, options


def _with_groups(problem: Problem, pattern: Pattern) -> Shape | None:
    """The shape of an input in the form in which it may have batch axes too, here of extent 1."""
    for signature in problem.spec.signatures:
        for wide in signature.inputs:
            groups = {t.name for t in wide.groups}
            known = wide.name == pattern.name and wide.names - groups == pattern.names
            if known and wide.terms[0].group and all(t.or_one for t in wide.groups):
                return tuple(
                    extent
                    for t in wide.terms
                    for extent in (
                        [1] * len(_group(problem, t.bound or t.name))
                        if t.group
                        else [_axis(problem, t.name)]
                    )
                )
    return None


def _group(problem: Problem, name: str) -> Shape:
    value = problem.axes[name]
    return value if isinstance(value, tuple) else (value,)


def _axis(problem: Problem, name: str) -> int:
    return math.prod(_group(problem, name))


class Shares:
    """The axes along which a problem falls apart into problems of the same op.

    Parameters
    ----------
    problem : Problem
    more : collection of str
        Axes that the caller can see to, beyond those along which nothing depends on anything.

    Attributes
    ----------
    inputs, outputs : tuple of tuple of str
        For every array a name for each axis. Axes of one name are cut together; "" stays whole.
        Of an axis whose parts are joined, the op says which inputs are cut.
    """

    def __init__(self, problem: Problem, more: Collection[str] = ()) -> None:
        form = problem.signature
        self._options = problem.options
        self._shapes = [p for p in form.inputs if p.is_option]
        shapes = {x.name: x.shape for x in (*problem.given, *problem.outputs)}
        shapes |= {p.name: problem.options[p.name] for p in self._shapes}
        free, bounds = _free(problem.spec, problem) | set(more), _bounds(problem)
        fixed, joint = located(problem), problem.spec.collective
        cut = {*joint.cut, *[x.name for x in problem.outputs]} if joint else set()
        extents: dict[str, int] = {}
        uneven: set[str] = set()
        rows: dict[str, list[str]] = {}
        for pattern in (*form.inputs, *form.outputs):
            rows[pattern.name] = row = []
            labels = pattern.labels(problem.axes)
            for label, extent in zip(labels, shapes[pattern.name], strict=True):
                outer = bounds.get(label.term.name, label.term.name)
                name = outer + label.name.removeprefix(label.term.name)
                shared = label.term.or_one and extent == 1
                shared |= joint is not None and name == joint.axis and pattern.name not in cut
                row.append("" if shared or outer not in free or name in fixed else name)
                # A group within another one is cut with it only where they are the same.
                if row[-1] and extents.setdefault(name, extent) != extent:
                    uneven.add(name)
        self._rows = {k: tuple(["" if n in uneven else n for n in v]) for k, v in rows.items()}
        self.inputs = tuple([self._rows[x.name] for x in problem.given])
        self.outputs = tuple([self._rows[x.name] for x in problem.outputs])

    def rule(self) -> tuple[str, tuple[str, ...]]:
        """In the notation of Shardy: a factor for every axis, and those that are not to be cut."""
        whole: list[str] = []

        def factor(axis: str) -> str:
            if axis:
                return axis
            whole.append(f"whole{len(whole)}")
            return whole[-1]

        sides = [
            ", ".join([" ".join(map(factor, row)) for row in rows])
            for rows in (self.inputs, self.outputs)
        ]
        return " -> ".join(sides), tuple(whole)

    def places(
        self, rows: Sequence[Sequence[str]], specs: Sequence[Sequence[Place]]
    ) -> dict[str, Place]:
        """Where each name is spread, by the partitions of arrays; the first that says so counts."""
        out: dict[str, Place] = {}
        taken: set[str] = set()
        for row, spec in zip(rows, specs, strict=True):
            for name, place in zip(row, spec, strict=False):
                over = {place} if isinstance(place, str) else set(place or ())
                if name and name not in out and over and not over & taken:
                    out[name] = place
                    taken |= over
        return out

    def lacks(self, row: Sequence[str], places: Mapping[str, Place]) -> tuple[str, ...]:
        """The axes of the mesh along which an array is a sum: its row has no part of them."""
        used = {name for some in self.inputs for name in some} - {"", *row}
        return tuple([
            at for name, place in places.items() if name in used
            for at in ((place,) if isinstance(place, str) else place or ())
        ])  # fmt: skip

    def options(self, places: Mapping[str, Place], mesh: Mapping[str, int]) -> dict[str, Any]:
        """The options of one share: shapes among them shrink."""
        return self._shrunk(lambda name, extent: -(-extent // _parts(places.get(name), mesh)))

    def options_of(self, shapes: Sequence[Shape]) -> dict[str, Any]:
        """The options of the share whose inputs have these shapes."""
        extents: dict[str, int] = {}
        for row, shape in zip(self.inputs, shapes, strict=True):
            extents |= zip(row, shape, strict=True)
        return self._shrunk(lambda name, extent: extents[name] if name else extent)

    def _shrunk(self, share: Callable[[str, int], int]) -> dict[str, Any]:
        options = dict(self._options)
        for pattern in self._shapes:
            whole, row = self._options[pattern.name], self._rows[pattern.name]
            options[pattern.name] = tuple(map(share, row, whole))
        return options


def _bounds(problem: Problem) -> dict[str, str]:
    form = problem.signature
    return {t.name: t.bound for p in (*form.inputs, *form.outputs) for t in p.terms if t.bound}


def _free(spec: OpSpec, problem: Problem) -> set[str]:
    bounds = _bounds(problem)
    return {bounds.get(name, name) for name in independent(spec, problem.signature)}


def _parts(place: Place, mesh: Mapping[str, int]) -> int:
    return math.prod(mesh[name] for name in ((place,) if isinstance(place, str) else place or ()))
