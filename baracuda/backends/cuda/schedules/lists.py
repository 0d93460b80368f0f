"""Lists: a functor over any number of arrays in one launch, by a table of addresses.

The table is `uint64`: for each set of arrays the addresses of its inputs and outputs (of inputs
only, where elements are summed) and its number of elements; where elements are numbered, also its
place in the lists. Behind the rows of all sets the map
has, for each chunk, its row, and its place among the chunks of that row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baracuda.backends.cuda.geometry import Packer
from baracuda.backends.cuda.launch_plan import THREADS, Step, entry_of
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import Operand, Problem
from baracuda.layouts import dense_order

# Elements of a chunk. A block of 128 threads passes over 16 KiB of 16-bit elements in 16 steps: few
# enough for the last blocks to end together, many enough to hide the look into the table.
ELEMENTS = 1 << 14
# Of a chunk that is summed: few sums are left to add up.
SUMMED = 1 << 15
# Threads of the block that adds up what the others leave.
_ADDERS = 1024
VARIANTS = ("chunks", "wave")
"""A block for each chunk; or as many blocks as fit the device at once."""


class Form(NamedTuple):
    """What tells apart the kernels of a list."""

    functor: str
    dtype: str
    wider: int
    operands: int
    numbered: bool

    @staticmethod
    def of(problem: Problem) -> Form:
        """The form of one set of arrays."""
        spec, every = problem.spec, operands(problem)
        functor = spec.kernel.functor if spec.kernel else ""
        wider = sum([(x.dtype != problem.dtype) << k for k, x in enumerate(every)])
        end, numbered = spec.form_end(problem.signature), spec.numbers(problem.signature)
        return Form(functor + end, problem.dtype, wider, len(every), numbered)

    @property
    def row(self) -> int:
        """Numbers of a row of the table."""
        return self.operands + 1 + self.numbered


def sums(problem: Problem) -> bool:
    """Whether what is made of the elements is summed."""
    return not problem.signature.outputs[0].terms


def operands(problem: Problem) -> tuple[Operand, ...]:
    """The arrays of a set that the table has."""
    return problem.given if sums(problem) else (*problem.given, *problem.outputs)


def takes(problem: Problem) -> bool:
    """Whether all arrays of a set lie in one order without gaps."""
    every = operands(problem)
    first = every[0].strides
    dense = first is None or dense_order(every[0].shape, first) is not None
    return dense and all(x.strides == first for x in every)


class Layout(NamedTuple):
    """The table of sets of one form: how many rows it has, of what sizes, and its chunks."""

    sizes: tuple[int, ...]
    row: int
    chunks: NDArray[np.uint64]

    @property
    def rows_size(self) -> int:
        """Numbers of all rows."""
        return len(self.sizes) * self.row

    def write(
        self, into: NDArray[np.uint64], addresses: NDArray[np.uint64], members: NDArray[np.int64]
    ) -> None:
        """The rows; `addresses` has a row of these for each set, `members` its number."""
        rows, count = into.reshape(len(self.sizes), self.row), addresses.shape[1]
        rows[:, :count], rows[:, count] = addresses, self.sizes
        if self.row > count + 1:
            rows[:, count + 1] = members


def chunk(problem: Problem) -> int:
    """Elements of a chunk."""
    return SUMMED if sums(problem) else ELEMENTS


def layout(sizes: Sequence[int], row: int, elements: int = ELEMENTS) -> Layout:
    """The table of sets that have so many elements, with rows of so many numbers."""
    many = -(-np.asarray(sizes, np.int64) // elements)
    rows = np.repeat(np.arange(len(many), dtype=np.uint64), many)
    starts = np.repeat(np.cumsum(many) - many, many)
    parts = (np.arange(len(rows)) - starts).astype(np.uint64)
    return Layout(tuple(sizes), row, rows | parts << np.uint64(32))


def plan(problem: Problem, over: Layout, map_at: int, processors: int, variant: str) -> Step:
    """The launch for sets like `problem`, whose map is `map_at` numbers behind their first row.

    Its pointers are the table and, of sums, their place.
    """
    spec, form = problem.spec, Form.of(problem)
    width, short = max(16 // named(form.dtype).itemsize, 1), named(form.dtype).short
    front = ((0, 0), (1, 0)) if sums(problem) else ((0, 0),)
    packer = Packer(True).pointers(len(front)).scalars(spec.codes).indices(map_at)
    arguments = packer.add("i", len(over.chunks), chunk(problem)).done()
    if sums(problem):
        schedule = f"ListTotals<{form.functor}, {short}, {width}>"
        entry = entry_of(spec, short, schedule, len(arguments), "list_totals")
        return Step(entry, (len(over.chunks), 1), arguments, front, spec.codes)
    more = ", true" if form.numbered else ""
    schedule = f"Lists<{form.functor}, {short}, {width}, {form.wider}{more}>"
    tags = ("lists", *([spec.form_end(problem.signature)] * bool(spec.form_end(problem.signature))))
    tags += (f"wide{form.wider}",) if form.wider else ()
    threads = THREADS // 2
    entry = entry_of(spec, short, schedule, len(arguments), *tags, threads=threads)
    blocks = min(len(over.chunks), processors * 8) if variant == "wave" else len(over.chunks)
    return Step(entry, (blocks, 1), arguments, front, spec.codes)


def total(problem: Problem, count: int) -> Step:
    """Adds up what `count` blocks left; its pointers are these sums twice, and the result."""
    short, wide = named(problem.dtype).short, problem.outputs[0].dtype != problem.dtype
    packer = Packer(False).pointers(3).add("d", 1.0).add("i", count, 0, wide, 0)
    arguments, sizes = packer.done(), {"threads": _ADDERS}
    entry = entry_of(problem.spec, short, f"Total<{short}>", len(arguments), "total", **sizes)
    return Step(entry, (1, 1), arguments, ((0, 0), (0, 0), (1, 0)))
