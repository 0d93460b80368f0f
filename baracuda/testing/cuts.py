"""Whether the parts of a problem make the whole, cut wherever a backend or framework may cut it.

Where that is says `calls.partitioning`: along the axes of `Shares` blocks and shards are cut, by
`batch` a call on a batch is one call. Both are tried at every axis that has room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from baracuda.calls.adjoint import summed
from baracuda.calls.partitioning import Shares, added_up, batch
from baracuda.declaration.spec import Problem
from baracuda.testing.bounds import near, same_bits
from baracuda.testing.cases import Call, draw, positional, to_library, to_numpy

Host = np.ndarray[Any, Any]
Row = Sequence[str]
# Members of a batch.
_SIZE = 3


def hold(call: Call) -> None:
    """See that shards and blocks of a call, and batches of such calls, give what it gives."""
    problem, whole = call.plan().problem, [to_numpy(x) for x in call.run()]
    there = {x.name for x in problem.given}
    counted = {axis: name for name, axis in problem.spec.uncounted(there).items()}
    sums = added_up(problem.spec, problem.signature) | summed(problem.spec, problem.signature)
    shares = Shares(problem, sums | counted.keys())
    for name, extent in _extents(problem, shares).items():
        if extent > 1:
            _cut(call, problem, shares, name, extent, whole, counted.get(name))
    members = [_member(call, seed) for seed in range(_SIZE)]
    for along in _alongs(len(problem.given)):
        _batched(call, problem, members, along)


def _extents(problem: Problem, shares: Shares) -> dict[str, int]:
    """The extent of every axis that may be cut."""
    rows = zip((*shares.inputs, *shares.outputs), (*problem.given, *problem.outputs), strict=True)
    return {n: e for row, x in rows for n, e in zip(row, x.shape, strict=True) if n}


def _pieces(extent: int) -> Iterator[slice]:
    """Parts of unequal extents, of 1 among them."""
    ends = sorted({0, 1, extent // 2, extent - 1, extent})
    yield from map(slice, ends, ends[1:])


def _cut(
    call: Call,
    problem: Problem,
    shares: Shares,
    name: str,
    extent: int,
    whole: Sequence[Host],
    counts: str | None,
) -> None:
    label = f"cut along {name}: {call.case} {call.form.text}"
    found = []
    for piece in _pieces(extent):
        parts = {
            x.name: _part(call.arrays[x.name], row, name, piece)
            for x, row in zip(problem.given, shares.inputs, strict=True)
        }
        options = shares.options_of([x.shape for x in parts.values()])
        if counts:
            # Where a part begins, only positions say.
            parts[counts] = np.arange(extent)[piece]
        found.append(_run(call, parts, options))
    for i, row in enumerate(shares.outputs):
        pieces = [some[i] for some in found]
        if name in row:
            got = np.concatenate(pieces, axis=row.index(name))
            _alike(call, got, whole, i, label)
        else:
            got = np.sum([x.astype(np.float64) for x in pieces], axis=0)
            near(call, got, whole[i], i, label, pieces)


def _part(x: Host, row: Row, name: str, piece: slice) -> Host:
    return x[tuple([piece if axis == name else slice(None) for axis in row])]


def _run(call: Call, arrays: Mapping[str, Host], options: Mapping[str, Any]) -> list[Host]:
    """The results of other arrays, under the structural options of a part."""
    subject = call.subject
    given = [
        to_library(arrays[name], subject.library, subject.device) if name in arrays else None
        for name in subject.spec.arrays
    ]
    found = call.run(positional(given), **options)
    return [to_numpy(x) for x in found]


def _member(call: Call, seed: int) -> Call:
    """The call on other values."""
    some = call.subject
    drawn = draw(some.spec, call.case, call.form, some.dtype, seed, some.mixed)
    return replace(call, arrays=drawn)


def _alongs(count: int) -> Iterator[tuple[bool, ...]]:
    """Which inputs differ between the members of a batch: all, each alone, all but one."""
    every = range(count)
    yield (True,) * count
    if count > 1:
        yield from [tuple([i == k for i in every]) for k in every]
    if count > 2:
        yield from [tuple([i != k for i in every]) for k in every]


def _batched(call: Call, problem: Problem, members: Sequence[Call], along: Sequence[bool]) -> None:
    found = batch(problem, _SIZE, along)
    if found is None:
        return
    shapes, options = found
    differs = {x.name: d for x, d in zip(problem.given, along, strict=True)}
    whole: dict[str, Host] = {}
    for x, shape in zip(problem.given, shapes, strict=True):
        some = [m.arrays[x.name] for m in members]
        every = np.stack(some) if differs[x.name] else np.broadcast_to(some[0], shape)
        whole[x.name] = every.reshape(shape)
    got = _run(call, whole, options)
    for number, member in enumerate(members):
        own = {n: (member if d else members[0]).arrays[n] for n, d in differs.items()}
        one = replace(call, arrays=own)
        want = [to_numpy(x) for x in one.run()]
        label = f"member {number} of a batch along {[n for n, d in differs.items() if d]}"
        for i, (y, z) in enumerate(zip(got, want, strict=True)):
            _alike(one, y[number].reshape(z.shape), want, i, f"{label}: {call.case}")


def _alike(call: Call, got: Host, want: Sequence[Host], i: int, label: str) -> None:
    """The same bits where every element is computed alike wherever it stands, else within bounds.

    A part is a problem of another shape, for which sums may have another order. Functions of a
    library may round otherwise where no full vector is left, as torch's on a CPU do.
    """
    plan = call.plan()
    ours = call.subject.backend in ("cuda", "numpy")
    if ours and plan.problem.pointwise and plan.sku.precision.bit_stable:
        same_bits([got], [want[i]], label)
    else:
        near(call, got, want[i], i, label)
