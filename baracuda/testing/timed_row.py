"""One problem of the benchmark: an op at a size, with its inputs and the bytes that it moves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from baracuda import layouts
from baracuda.calls.op import registry
from baracuda.declaration.dtypes import named
from baracuda.declaration.shapes import Binder
from baracuda.declaration.spec import Problem
from baracuda.layouts import Shape

Shapes = tuple[Shape, ...]


@dataclass(frozen=True)
class Row:
    """One problem: an op, the shapes of its inputs, its options.

    Attributes
    ----------
    op, label : str
    shapes : tuple of tuple of int
        That of an index may have an extent of 1 where the gradient beside it has more: it is
        broadcast, and lies in memory once.
    options : dict
        Structural options and run-time values.
    indices : str
        How an index is drawn from its axis: "uniform", "equal" (all the same), "once" (none
        twice), or "zipf": the r-th entry as often as ``r**-1.2``.
    deterministic : bool or None
        The dispatch option.
    derived : bool
        Made from the declaration alone. Unless it is asked for by name, such a row is timed
        without what has to be compiled for it: there are many.
    zeros : tuple of str
        Inputs that are 0, as cotangents of results that a training step does not use.
    """

    op: str
    label: str
    shapes: Shapes
    options: dict[str, Any]
    indices: str = "uniform"
    deterministic: bool | None = None
    derived: bool = False
    zeros: tuple[str, ...] = ()

    @property
    def keywords(self) -> dict[str, Any]:
        """What a call is given beside its arrays."""
        return self.options | {"deterministic": self.deterministic}

    @property
    def own(self) -> Shape:
        """The shape of the index."""
        spec = registry[self.op].spec
        names = zip(spec.arrays, self.shapes, strict=False)
        return next(shape for name, shape in names if name in spec.integers)

    @property
    def broadcast(self) -> Shape:
        """The shape that an index gets: in a gradient it has an entry for each element."""
        beside = "src_shape" in self.options and len(self.own) == len(self.shapes[0])
        return self.shapes[0] if beside else self.own

    @property
    def extent(self) -> int:
        """What an index is below."""
        spec = registry[self.op].spec
        options = {**spec.usual, **self.options}
        shapes = dict(zip(spec.arrays, self.shapes, strict=False))
        form = next(s for s in spec.forms(options) if s.takes(shapes))
        name, axis = next((n, spec.role(n).below) for n in spec.indices if n in shapes)
        shapes[name] = self.broadcast
        extent = Binder(self.op, options, {}).bind(form, shapes, spec.resolve)[axis]
        assert isinstance(extent, int)
        return extent

    def index(self, rng: np.random.Generator) -> Any:
        """A random index, not yet broadcast."""
        extent, shape = self.extent, self.own
        if self.indices == "equal":
            return np.full(shape, rng.integers(extent))
        if self.indices == "once":
            return rng.permutation(extent)[: math.prod(shape)].reshape(shape)
        if self.indices == "zipf":
            ends = np.cumsum(np.arange(1.0, extent + 1) ** -1.2)
            return np.searchsorted(ends, rng.random(shape) * ends[-1], side="right")
        return rng.integers(0, extent, shape)

    def arrays(self, rng: np.random.Generator, dtype: Any) -> list[Any]:
        """Random inputs; saved outputs are those of the forward."""
        spec = registry[self.op].spec
        forms = registry[spec.adjoint_of].spec.signatures if spec.adjoint_of else ()
        made = {p.name for form in forms for p in form.outputs} & {"y"}
        out: list[Any] = []
        for name, shape in zip(spec.arrays, self.shapes, strict=False):
            role = spec.role(name)
            if name in self.zeros:
                out.append(np.zeros(shape, dtype))
            elif name in spec.integers and role.between:
                low, high = map(int, role.between)
                out.append(rng.integers(low, high, shape, endpoint=True))
            elif name in spec.integers:
                index = self.index(rng)
                same = index.shape == self.broadcast
                out.append(index if same else np.broadcast_to(index, self.broadcast))
            elif name in made:
                out.append(None)
            elif role.between:
                drawn = rng.uniform(*role.between, shape)
                out.append(np.asarray(drawn, np.float32).astype(dtype))
            else:
                normal = rng.standard_normal(shape, dtype=np.float32)
                out.append(np.asarray(normal).astype(dtype))
        given = dict(zip(spec.arrays, out, strict=False))
        if made & given.keys():
            forward, at = registry[spec.adjoint_of or ""], spec.arrays.index("y")
            first, *more = forward.spec.arrays
            # A gradient that reads nothing but the result has no input beside it.
            x, rest = given.get(first, out[at - 1]), [given[n] for n in more if n in given]
            out[at] = forward(x, *rest, **self.options)
        return out


# Inputs of which an element is read for each index alone.
PICKED = {"nll_loss": "x"}
# Inputs of which as much is read as the result has.
LOOKED_UP = {"embedding": "weight", "index_select": "src", "index_add_backward": "dout"}


def ideal_bytes(problem: Problem) -> int:
    """Each input read once and each output written once; what is broadcast lies there once."""
    total, picked = 0, PICKED.get(problem.spec.name)
    for x in (*problem.given, *problem.outputs):
        if x.name == LOOKED_UP.get(problem.spec.name):
            total += problem.outputs[0].nbytes
            continue
        if x.name == picked:
            indices = next(i for i in problem.given if i.name in problem.spec.integers)
            total += indices.size * named(x.dtype).itemsize
            continue
        strides = x.strides or layouts.contiguous(x.shape)
        there = [n for n, s in zip(x.shape, strides, strict=True) if s]
        total += math.prod(there) * named(x.dtype).itemsize
    return total
