"""How a problem falls into blocks, so that the temporaries of a body stay in the cache.

Along an axis that every output has, no element depends on another: such axes are cut. So are those
that some output lacks because it is a sum over them; sums of blocks are added in the blocks' order.
Axes that an input lacks are cut late, so that what broadcasts (a table of angles) is computed once
a block. The last axis comes after all others, as its elements lie side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from baracuda.calls.partitioning import added_up, independent, located
from baracuda.declaration.shapes import Label, Pattern
from baracuda.declaration.spec import Problem
from baracuda.libraries import Array

# Elements of a run along the last axis: functions begin anew with each.
_RUN = 512

Cut: TypeAlias = Mapping[str, slice]
"""A block, as a slice of each label."""

Part: TypeAlias = Callable[[Cut, Array], Array]
"""What takes a block's part out of one array."""


@dataclass(frozen=True, slots=True)
class _Half:
    """One half of a packed array."""

    axis: int
    extent: int
    second: bool

    def __call__(self, x: Array) -> Array:
        along = slice(self.extent, None) if self.second else slice(self.extent)
        return x[(slice(None),) * self.axis + (along,)]


class Form:
    """A problem without packing and without implied inputs: one pattern for every array.

    Attributes
    ----------
    problem : Problem
    signature : Signature
        The form that has all of them.
    counts : dict
        Inputs that count along an axis where they are not given, and its extent.
    """

    def __init__(self, problem: Problem) -> None:
        spec, given = problem.spec, set(problem.signature.names)
        self.problem = problem
        self.halves: dict[str, _Half] = {}
        counted = spec.uncounted(given)
        self.counts = {name: int(problem.axes[axis]) for name, axis in counted.items()}  # type: ignore[arg-type]
        wanted = given | set(self.counts)
        packed = spec.packed
        if packed is not None and packed.other not in given:
            wanted.add(packed.other)
            axis = problem.options[packed.axis]
            shape = next(x.shape for x in problem.given if x.name == packed.array)
            for second, name in enumerate(packed.order(problem.options)):
                self.halves[name] = _Half(axis, shape[axis] // 2, bool(second))
        forms = (problem.signature, *spec.signatures)
        self.signature = next(s for s in forms if set(s.names) == wanted)
        self.free = independent(spec, self.signature) | added_up(spec, self.signature)

    def arrays(self, given: Sequence[Array]) -> list[Array]:
        """The inputs, in the order of the op's parameters, absent ones None."""
        known = dict(zip(self.problem.spec.arrays, given, strict=False))
        if self.halves:
            packed = known[self.problem.spec.packed.array]  # type: ignore[union-attr]
            known.update({name: half(packed) for name, half in self.halves.items()})
        library = self.problem.library
        for name, extent in self.counts.items():
            known[name] = library.xp.arange(extent, dtype=library.dtype("int32"))
        return [known.get(name) for name in self.problem.spec.arrays]

    def outs(self, outs: Sequence[Array]) -> list[Array]:
        """The outputs, a packed one as its halves."""
        if len(outs) == len(self.signature.outputs):
            return list(outs)
        return [self.halves[p.name.removeprefix("d")](outs[0]) for p in self.signature.outputs]

    @property
    def records(self) -> bool:
        """Whether elements depend on those in their places, all in rows of C order."""
        problem = self.problem
        every = {p.names for p in (*self.signature.inputs, *self.signature.outputs)}
        plain = problem.spec.elementwise and len(every) == 1 and not self.counts
        dtypes = {x.dtype for x in (*problem.given, *problem.outputs)}
        in_order = all(x.strides is None for x in problem.outputs)
        return plain and in_order and dtypes == {problem.compute_dtype}

    def labels(self, pattern: Pattern) -> tuple[Label, ...]:
        return pattern.labels(self.problem.axes)

    def patterns(self) -> list[Pattern | None]:
        """The pattern of each of the op's parameters."""
        known = {p.name: p for p in self.signature.inputs}
        return [known.get(name) for name in self.problem.spec.arrays]

    def parts(self, steps: Iterable[str]) -> tuple[list[Part | None], list[Part], list[bool]]:
        """What takes a block's part of each parameter and of each output; which are sums."""
        names = set(steps)
        labels = [self.labels(p) for p in self.signature.outputs]
        return (
            [indexer(self.labels(p), names) if p else None for p in self.patterns()],
            [indexer(some, names) for some in labels],
            [not names <= {label.name for label in some} for some in labels],
        )

    def steps(self, block: int) -> dict[str, tuple[int, int]]:
        """Extent and step of every label that is cut, the outermost first; none for one block.

        A block has about so many elements.
        """
        shapes = {x.name: x.shape for x in self.problem.given}
        total = max(x.size for x in (*self.problem.given, *self.problem.outputs))
        if total < 2 * block or 0 in (x.size for x in self.problem.outputs):
            return {}
        extents: dict[str, int] = {}
        lacking: dict[str, bool] = {}
        first, fixed = self.signature.outputs[0], located(self.problem)
        # What arrays have different numbers of, as q and k of heads, lies elsewhere in the other.
        every = (*self.signature.inputs, *self.signature.outputs)
        bound = [term for pattern in every for term in pattern.terms if term.bound]
        free = self.free - {name for term in bound for name in (term.name, term.bound)}
        for label, extent in zip(self.labels(first), first.shape(self.problem.axes), strict=True):
            if label.term.name in free and label.name not in fixed:
                extents[label.name] = extent
                lacking[label.name] = False
        for pattern in self.signature.inputs:
            shape = shapes.get(pattern.name)
            have = {
                label.name
                for i, label in enumerate(self.labels(pattern))
                if not label.term.or_one or shape is None or shape[i] != 1
            }
            for name in lacking:
                lacking[name] |= name not in have
        out: dict[str, tuple[int, int]] = {}
        last = self.labels(first)[-1].name if extents else ""
        for name in sorted(extents, key=lambda n: (n == last, lacking[n])):
            if total <= block:
                break
            each = total // max(extents[name], 1)
            least = _RUN if name == last else 1
            step = min(max(least, block // max(each, 1)), max(extents[name], 1))
            out[name] = (extents[name], step)
            total = each * step
        return out


def cuts(steps: Mapping[str, tuple[int, int]]) -> Iterator[Cut]:
    """Every block of these steps."""
    names = list(steps)
    ranges = [range(0, extent, step) for extent, step in steps.values()]
    for starts in itertools.product(*ranges):
        yield {n: slice(at, at + steps[n][1]) for n, at in zip(names, starts, strict=True)}


def indexer(labels: Sequence[Label], cut_names: Collection[str]) -> Part:
    """What takes a block's part out of one array with these labels."""
    names = [label.name if label.name in cut_names else "" for label in labels]
    maybe = {i for i, label in enumerate(labels) if label.term.or_one}
    whole = slice(None)

    def part(cut: Cut, x: Array) -> Array:
        return x[
            tuple(
                [
                    whole if not name or (i in maybe and x.shape[i] == 1) else cut[name]
                    for i, name in enumerate(names)
                ]
            )
        ]

    return part
