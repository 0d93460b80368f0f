"""DTensors: every op runs on the shards, and moves data only where its shape string says it must.

Along each axis of a mesh the inputs are cut along one axis of the op, or not at all: whichever
moves the fewest bytes. What may be cut is read off the declaration
(`baracuda.calls.partitioning`), and

- an axis over which a gradient adds up: the result is then a partial sum;
- an axis that is counted where no positions are given: every shard gets its own;
- an axis of random words: every shard is told where it lies in the whole;
- a linear op leaves a sum that is still to be made to whoever needs it;
- an axis of which an op says how its parts are joined (`OpSpec.collective`): small arrays are sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from baracuda.calls import adjoint, check, ranges
from baracuda.calls.op import Op
from baracuda.calls.partitioning import Shares, joined, placed
from baracuda.declaration.collective import Collective, Part
from baracuda.declaration.spec import Problem
from baracuda.errors import type_error, value_error
from baracuda.frameworks.torch.ahead import NAMESPACE
from baracuda.frameworks.torch.operators import (
    Once,
    library,
    overloads,
    plain,
    problem_of,
)
from baracuda.layouts import Shape, contiguous
from baracuda.libraries import Array

Placement: TypeAlias = Any

WHOLE = Replicate()
_SUMS = ("sum", "avg")


class Cut(NamedTuple):
    """What lies where along one axis of a mesh."""

    inputs: tuple[Placement, ...]
    outputs: tuple[Placement, ...]
    name: str = ""


def cuts(problem: Problem, shares: Shares, here: Sequence[Placement]) -> Iterator[Cut]:
    """All that could be, for inputs that lie `here`; the last one always can."""
    spec, joint = problem.spec, joined(problem.spec)
    named = {
        row[p.dim]: None
        for row, p in zip(shares.inputs, here, strict=True)
        if type(p) is Shard and row[p.dim]
    }
    for name in named:
        inputs = tuple([Shard(row.index(name)) if name in row else WHOLE for row in shares.inputs])
        outputs: list[Placement] = []
        for x, row in zip(problem.outputs, shares.outputs, strict=True):
            # Of a gradient, what lacks the axis is a sum over it.
            sums = name not in joint or x.name[1:] in spec.arrays
            other = Partial() if sums else WHOLE
            outputs.append(Shard(row.index(name)) if name in row else other)
        yield Cut(inputs, tuple(outputs), name)
    floats = {p for x, p in zip(problem.given, here, strict=True) if x.name not in spec.discrete}
    if adjoint.partner(spec)[1] and len(floats) == 1:
        (waits,) = floats
        if type(waits) is Partial and waits.reduce_op in _SUMS:
            given = tuple([WHOLE if x.name in spec.discrete else waits for x in problem.given])
            yield Cut(given, (waits,) * len(shares.outputs))
    yield Cut((WHOLE,) * len(shares.inputs), (WHOLE,) * len(shares.outputs))


def moved(here: Placement, there: Placement, parts: int) -> float:
    """How much of an array its way over an axis of so many parts takes, about."""
    if here == there or (here == WHOLE and type(there) is Shard):
        return 0.0
    if here.is_partial():
        return 1.0 if type(there) is Shard else 2.0
    return 1.0 / parts if type(there) is Shard else 1.0


def chosen(
    problem: Problem, shares: Shares, here: Sequence[Sequence[Placement]], mesh: Sequence[int]
) -> list[Cut]:
    """For each axis of the mesh the cut for which the fewest bytes move."""

    def cost(cut: Cut, at: int) -> float:
        return sum(
            x.nbytes * moved(p[at], q, mesh[at])
            for x, p, q in zip(problem.given, here, cut.inputs, strict=True)
        )

    return [
        min(cuts(problem, shares, [p[at] for p in here]), key=partial(cost, at=at))
        for at in range(len(mesh))
    ]


class Spread(NamedTuple):
    """How a call runs on the shards of this process.

    Attributes
    ----------
    inputs : tuple of tuple of Placement
        Where the inputs have to be.
    arrays : tuple of (str or None)
        What is given there, in the places of what the op takes.
    shares : Shares
        Says which options a share has.
    outputs : tuple
        The placements, shape and strides of each whole result.
    counted : tuple
        For each input that was left out and has to be there: its name, extent and placements.
    problem : Problem
        The whole one.
    over : tuple of int
        The axes of the mesh over which the op itself joins parts.
    part : tuple of int
        Where the shard of this process lies in the whole, where random words follow from that.
    """

    inputs: tuple[tuple[Placement, ...], ...]
    arrays: tuple[str | None, ...]
    shares: Shares
    outputs: tuple[tuple[tuple[Placement, ...], torch.Size, Shape], ...]
    counted: tuple[tuple[str, int, tuple[Placement, ...]], ...]
    problem: Problem
    over: tuple[int, ...]
    part: Shape


def spread(op: Op[Any, Any], args: Sequence[Array], keywords: Mapping[str, Any]) -> Spread:
    """Decide how a call on DTensors runs."""
    problem, spec = problem_of(op, args, keywords), op.spec
    given = [x for x in args if x is not None]
    mesh = _mesh(problem, given)
    there = {x.name for x in problem.given}
    uncounted = spec.uncounted(there)
    joint = joined(spec)
    numbered = placed(spec, problem.signature)
    more = {*uncounted.values()} | adjoint.summed(spec, problem.signature) | joint | numbered
    shares = Shares(problem, more)
    along = chosen(problem, shares, [x.placements for x in given], mesh.shape)
    inputs = tuple(zip(*[cut.inputs for cut in along], strict=True))
    counted = tuple([
        (name, cast(int, problem.axes[axis]), _along(axis, along))
        for name, axis in uncounted.items()
        if any(cut.name == axis for cut in along)
    ])  # fmt: skip
    there |= {name for name, _, _ in counted}
    last = max(map(spec.arrays.index, there))
    arrays = tuple([name if name in there else None for name in spec.arrays[: last + 1]])
    places = zip(*[cut.outputs for cut in along], strict=True)
    outputs = tuple([
        (to, torch.Size(x.shape), x.strides or contiguous(x.shape))
        for to, x in zip(places, problem.outputs, strict=True)
    ])  # fmt: skip
    over = tuple([at for at, cut in enumerate(along) if cut.name in joint])
    part = _lies(problem, inputs[0], mesh) if numbered else ()
    return Spread(inputs, arrays, shares, outputs, counted, problem, over, part)


def _lies(problem: Problem, places: Sequence[Placement], mesh: Any) -> Shape:
    """Where the shard of the first array lies in the whole, which may itself be a part."""
    shape = problem.given[0].shape
    part = problem.options["part"] or (*shape, *(0,) * len(shape))
    firsts = [
        _part(extent, [at for at, p in enumerate(places) if p == Shard(dim)], mesh).first
        for dim, extent in enumerate(shape)
    ]
    begins = [a + b for a, b in zip(part[len(shape) :], firsts, strict=True)]
    return (*part[: len(shape)], *begins)


def _along(axis: str, along: Sequence[Cut]) -> tuple[Placement, ...]:
    """Where an array of this one axis lies."""
    return tuple([Shard(0) if cut.name == axis else WHOLE for cut in along])


_known: dict[Any, Spread] = {}
_MOST = 4096


def _spread(op: Op[Any, Any], args: Sequence[Array], keywords: Mapping[str, Any]) -> Spread:
    """What has been decided before for a call like this."""
    try:
        tensors = [
            x if x is None else (x.dtype, x.shape, x.stride(), x.placements, x.device_mesh)
            for x in args
        ]
        key = op.spec.name, tuple(tensors), tuple(keywords.items())
        found = _known.get(key)
    except (AttributeError, TypeError):  # no DTensor, or symbolic extents
        return spread(op, args, keywords)
    if found is None:
        if len(_known) >= _MOST:
            _known.clear()
        found = _known[key] = spread(op, args, keywords)
    return found


def _on_shards(
    op: Op[Any, Any], cls: Any, func: Any, types: Any, args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
) -> Any:  # fmt: skip
    """The operator on DTensors, below autograd."""
    keywords = plain(kwargs or {})
    with torch.no_grad():
        how = _spread(op, args, keywords)
        given = [x for x in args if x is not None]
        mesh = given[0].device_mesh
        parts = [_placed(x, to).to_local() for x, to in zip(given, how.inputs, strict=True)]
        options = how.shares.options_of([x.shape for x in parts])
        if how.part:
            options["part"] = how.part
        names = [name for name, x in zip(op.spec.arrays, args, strict=False) if x is not None]
        known = dict(zip(names, parts, strict=True))
        for name, extent, places in how.counted:
            known[name] = _count(extent, places, mesh, parts[0])
        more = {k: v for k, v in keywords.items() if k not in op.spec.options}
        arrays = [name and known[name] for name in how.arrays]
        run = partial(_join, how, mesh) if how.over else func
        found = run(*arrays, **options, **more)
        found = found if isinstance(found, tuple) else (found,)
        out = [
            DTensor.from_local(part, mesh, places, shape=shape, stride=strides)
            for part, (places, shape, strides) in zip(found, how.outputs, strict=True)
        ]
    return tuple(out) if len(out) > 1 else out[0]


def _join(how: Spread, mesh: Any, *arrays: Array, **keywords: Any) -> Any:
    """The op on the parts of its own that are joined; what is not cut is checked as a whole."""
    problem, spec = how.problem, how.problem.spec
    ranges.check(problem, arrays)
    scalars = {k: v for k, v in keywords.items() if k in spec.scalars}
    keywords |= check.scalars(spec, problem.compute_dtype, scalars)
    joint = cast(Collective, spec.collective)
    part = _part(cast(int, problem.axes[joint.axis]), how.over, mesh)
    found = joint.run(part, *arrays, **keywords)
    results = zip(found if isinstance(found, tuple) else (found,), problem.outputs, strict=True)
    return tuple([x.to(problem.library.dtype(out.dtype)) for x, out in results])


def _part(extent: int, over: Sequence[int], mesh: Any) -> Part:
    """What this process has of an axis, cut as `Shard` does over some axes of a mesh in turn."""
    first, left, widest = 0, extent, extent
    places: list[Placement] = [WHOLE] * mesh.ndim
    for at in over:
        size, places[at] = -(-left // mesh.size(at)), Shard(0)
        begins = min(size * mesh.get_local_rank(at), left)
        first, left = first + begins, min(size, left - begins)
        widest = -(-widest // mesh.size(at))

    def gathered(x: Array) -> Any:
        return DTensor.from_local(x[None], mesh, places).full_tensor()

    return Part(first, extent, widest, gathered)


def _placed(x: Any, placements: tuple[Placement, ...]) -> Any:
    if x.placements == placements:
        return x
    # Below autograd a watched result would be detached in place, for which DTensor has no rule.
    return x.detach().redistribute(placements=placements)


def _mesh(problem: Problem, given: Sequence[Any]) -> Any:
    """The mesh of all."""
    op, mesh = problem.spec.name, None
    for operand, x in zip(problem.given, given, strict=True):
        if not isinstance(x, DTensor):
            hint = "distribute_tensor or DTensor.from_local makes one"
            raise type_error(op, operand.name, "a DTensor as the others", type(x).__name__, hint)
        if mesh is not None and x.device_mesh != mesh:
            raise value_error(op, operand.name, f"{mesh} as of the others", x.device_mesh)
        mesh = x.device_mesh
    return mesh


def _count(extent: int, places: Sequence[Placement], mesh: Any, like: Array) -> Array:
    """The positions of this shard; cutting what all have moves nothing."""
    positions = torch.arange(extent, device=like.device)
    whole = DTensor.from_local(positions, mesh, [WHOLE] * len(places))
    return whole.redistribute(placements=places).to_local()


def _give_rule(op: Op[Any, Any]) -> None:
    for name in overloads(op):
        torch.library.register_torch_dispatch(
            f"{NAMESPACE}::{name}", DTensor, partial(_on_shards, op), lib=library
        )


known = Once(_give_rule)
known()


def _scaled(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """A gradient that was made forward, times a number: torch's own rule knows partial sums."""
    made, factor = args
    return made * factor.to(made.dtype)


torch.library.register_torch_dispatch(
    f"{NAMESPACE}::scaled_gradient", DTensor, _scaled, lib=library
)
