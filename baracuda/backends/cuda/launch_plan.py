"""What a schedule makes of a problem: the launches of a call, still without device and pointers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from baracuda import layouts
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.geometry import View
from baracuda.declaration.dtypes import named
from baracuda.declaration.roles import Kind
from baracuda.declaration.shapes import Pattern
from baracuda.declaration.spec import Operand, OpSpec, Problem
from baracuda.layouts import Shape

THREADS = 256
# What the grid may have in x, and in y and z.
MOST_BLOCKS, MOST_ROWS = 2**31 - 1, 65535
# Bytes of the widest access.
WIDEST = 16

Record = TypeVar("Record")
Front: TypeAlias = Sequence[tuple[int, int]]
"""The pointers of a step: which array, and how many bytes into it."""


class DeviceFacts(NamedTuple):
    """What schedules ask of a device."""

    ordinal: int
    arch: str
    multiprocessors: int
    shared_per_block: int

    @property
    def compute_capability(self) -> int:
        """Ten times what it is called: 90 of sm_90."""
        return _capability(self.arch)

    @property
    def clusters(self) -> bool:
        """Whether blocks may be clusters, and reach each other's shared memory."""
        return self.compute_capability >= 90

    def tuned(self, records: Mapping[str, Record]) -> Record:
        """The tuning record of the architecture, of records by architecture.

        An architecture without one has that of the latest before it, or else the first.
        """
        return records[_tuned(self.arch, *records)]


def _capability(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("a"))


@cache
def _tuned(arch: str, *known: str) -> str:
    """The one of the `known` architectures whose record `arch` has."""
    before = [name for name in known if _capability(name) <= _capability(arch)]
    return max(before, key=_capability) if before else min(known, key=_capability)


class Tuning(NamedTuple):
    """What all schedules take of an architecture.

    Attributes
    ----------
    past_caches : int
        Bytes past which the arrays of a call do not fit in an L2. Beyond, prefetching is worth its
        price.
    """

    past_caches: int


SM_90 = Tuning(past_caches=1 << 26)
TUNINGS = {"sm_90": SM_90}


class Step(NamedTuple):
    """One kernel launch of a call; blocks may have fewer threads than the entry allows.

    A call fills in the pointers of `front`, then the run-time values, as `struct` has `scalars`.
    """

    entry: Entry
    grid: tuple[int, int]
    arguments: bytes
    front: Front
    scalars: str = ""
    shared: int = 0
    fewer: int = 0

    def reading(self, dtypes: Sequence[str]) -> Step:
        """The same with run-time values of these dtypes on the device; "" for a number."""
        if not self.scalars:
            return self
        kinds = [named(x).short if x else "ByValue" for x in dtypes]
        # Behind the pointers, each in 8 bytes; what is fetched is 8 bytes of address.
        reads = ", ".join([str(8 * len(self.front)), *kinds])
        symbol = "_".join([self.entry.symbol, "reads", *[x.lower() for x in kinds]])
        codes = [c if x == "" else "Q" for c, x in zip(self.scalars, dtypes, strict=True)]
        entry = self.entry._replace(symbol=symbol, reads=reads)
        return self._replace(entry=entry, scalars="".join(codes))

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.fewer or self.entry.threads


class Zero(NamedTuple):
    """Zeros into one array."""

    slot: int
    nbytes: int


class Steps(NamedTuple):
    """All launches of a call, in order, and what is true of them together.

    Attributes
    ----------
    steps : tuple of Step or Zero
    workspaces : tuple of (tuple of int, str)
        Shape and dtype of each.
    variant : str
        Which one this is, where the schedule has several.
    deterministic : bool
        The same bits on every run, for every call of the problem.
    stable : bool
        The same bits from every variant.
    """

    steps: tuple[Step | Zero, ...]
    workspaces: tuple[tuple[Shape, str], ...] = ()
    variant: str = ""
    deterministic: bool = True
    stable: bool = True

    @property
    def workspace_size(self) -> int:
        """Bytes of all workspaces."""
        return sum([named(dtype).itemsize * math.prod(shape) for shape, dtype in self.workspaces])

    @property
    def kernels(self) -> tuple[Step, ...]:
        """The steps that launch a kernel."""
        return tuple([s for s in self.steps if isinstance(s, Step)])

    def reading(self, dtypes: Sequence[str]) -> Steps:
        """The same with run-time values of these dtypes on the device; "" for a number."""
        every = [s.reading(dtypes) if isinstance(s, Step) else s for s in self.steps]
        return self._replace(steps=tuple(every))


class Call(NamedTuple):
    """One kind of call of a problem: which layout the outputs have, how all arrays are aligned.

    Attributes
    ----------
    problem : Problem
    facts : DeviceFacts
    outs : tuple of tuple of int
        Strides of the outputs, in elements.
    add : bool
        Add into the outputs.
    alignment : int
        Power of two up to 16 that divides every address.
    listener : int
        Where out-of-range indices are reported, 0 for nowhere.
    ticket : int
        Under what number.
    variant : str
        Which of the schedule's variants to plan; "" leaves it to the schedule's rule.
    wide : tuple of bool
        The outputs that have the accumulate dtype where theirs is narrower; () for none.
    some : tuple of bool
        The outputs that are added to, where that is not the same for all; () where it is.
    """

    problem: Problem
    facts: DeviceFacts
    outs: tuple[Shape, ...]
    add: bool = False
    alignment: int = WIDEST
    listener: int = 0
    ticket: int = 0
    variant: str = ""
    wide: tuple[bool, ...] = ()
    some: tuple[bool, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(x.nbytes for x in (*self.problem.given, *self.problem.outputs))

    @property
    def past_caches(self) -> bool:
        """Whether the arrays do not fit in an L2."""
        return self.nbytes > self.facts.tuned(TUNINGS).past_caches

    @property
    def functor(self) -> str:
        """The op's functor."""
        kernel = self.problem.spec.kernel
        return kernel.functor if kernel else ""

    @property
    def form_end(self) -> str:
        """The end of the functor's name on an elementwise schedule."""
        return self.problem.spec.form_end(self.problem.signature)

    @property
    def schedule(self) -> str:
        """The schedule that maps the functor."""
        kernel = self.problem.spec.kernel
        return kernel.schedule if kernel else ""

    @property
    def itemsize(self) -> int:
        """Bytes per element of the primal."""
        return named(self.problem.dtype).itemsize

    @property
    def type(self) -> str:
        """The primal's dtype as the sources spell it."""
        return named(self.problem.dtype).short

    @property
    def column_type(self) -> str:
        """The type of parameters, which may be wider than the primal, as the sources spell it."""
        return named(self.problem.dtype_of("parameter")).short

    @property
    def column_size(self) -> int:
        """Bytes per element of a parameter."""
        return named(self.problem.dtype_of("parameter")).itemsize

    @property
    def column_tags(self) -> tuple[str, ...]:
        """What tells kernels of wider parameters apart."""
        return (self.column_type,) if self.column_type != self.type else ()

    @property
    def column_argument(self) -> str:
        """The template argument for them, behind others."""
        return "".join(f", {kind}" for kind in self.column_tags)

    @property
    def row(self) -> Pattern:
        """The input that has whole rows: of those with the most axes the one that has the axis."""
        inputs = self.problem.signature.inputs
        return max(inputs, key=lambda p: (len(p.names), p.marker is not None))

    @property
    def row_arrays(self) -> tuple[Operand, ...]:
        """The inputs and outputs that have whole rows, but for what broadcasts to them."""
        problem = self.problem
        form, discrete, row = problem.signature, problem.spec.discrete, self.row.names
        every = [p for p in (*form.inputs, *form.outputs) if not p.broadcasts]
        whole = {p.name for p in every if p.names == row} - discrete
        return tuple([x for x in (*problem.given, *problem.outputs) if x.name in whole])

    @property
    def row_dtypes(self) -> tuple[str, ...]:
        """The dtypes of these arrays, the widest first."""
        found = {x.dtype for x in self.row_arrays}
        return tuple(sorted(found, key=lambda name: -named(name).itemsize))

    @property
    def row_dtype(self) -> str:
        """dtype of rows: the widest of the arrays that have whole rows."""
        return self.row_dtypes[0]

    @property
    def mixed_rows(self) -> bool:
        """Whether some of the arrays that have whole rows are narrower than others."""
        return len(self.row_dtypes) > 1

    @property
    def row_type(self) -> str:
        """The same, as the sources spell it."""
        return named(self.row_dtype).short

    @property
    def row_size(self) -> int:
        """Bytes per element of a row."""
        return named(self.row_dtype).itemsize

    @property
    def row_tags(self) -> tuple[str, ...]:
        """What tells kernels apart whose rows or parameters are wider than the primal."""
        if not self.mixed_rows:
            return self.column_tags
        spec, problem = self.problem.spec, self.problem
        # The dtypes of arrays that have whole rows: those of a residual stream, or any others.
        others = [x.dtype for x in problem.given if spec.role(x.name).wide == "cotangent"]
        others += [x.dtype for x in problem.outputs if spec.role(x.name).chosen]
        if all(dtype == problem.dtype for dtype in others):
            return self.column_type, "residual"
        return self.column_type, "rows", *[named(x.dtype).short for x in self.row_arrays]

    def row_arguments(self, views: Sequence[View]) -> str:
        """The template arguments for them, behind others; `views` are the loads and outputs."""
        if not self.mixed_rows:
            return self.column_argument
        narrow = named(self.row_dtypes[1]).short
        return f", {self.column_type}, {narrow}, {self.narrow(views)}"

    def narrow(self, views: Sequence[View]) -> int:
        """Which of these arrays are narrower than rows, as bits."""
        every = (*self.problem.given, *self.problem.outputs)
        return bits([every[v.slot].dtype != self.row_dtype for v in views])

    @property
    def accumulate_dtype(self) -> str:
        """The accumulate dtype."""
        return named(self.problem.dtype).accumulate

    @property
    def accumulate(self) -> str:
        """The accumulate type as the sources spell it."""
        return named(self.accumulate_dtype).short

    def given(self, name: str) -> View | None:
        """An input, None where it was not given."""
        for slot, x in enumerate(self.problem.given):
            if x.name == name:
                return View(slot, 0, x.shape, strides_of(x))
        return None

    def view(self, name: str) -> View:
        """An input that has to be there."""
        found = self.given(name)
        if found is None:
            raise KeyError(name)
        return found

    def is_wide(self, slot: int) -> bool:
        """Whether an array of the call has the accumulate dtype beside a narrower primal."""
        every = (*self.problem.given, *self.problem.outputs)
        return slot < len(every) and every[slot].dtype != self.problem.dtype

    def of_kind(self, kind: Kind) -> View:
        """The first input of a kind."""
        spec = self.problem.spec
        return self.view(next(x.name for x in self.problem.given if spec.role(x.name).kind == kind))

    @property
    def ignored(self) -> int:
        """The entry of the index that is in range everywhere, 0 where there is none."""
        found = [self.problem.ignored_by(name) for name in self.problem.spec.indices]
        return next((n for n in found if n is not None), 0)

    def out(self, number: int = 0) -> View:
        """An output."""
        x = self.problem.outputs[number]
        return View(len(self.problem.given) + number, 0, x.shape, self.outs[number])

    @property
    def sum_type(self) -> str:
        """The last argument of kernels whose one output has the accumulate type instead."""
        return f", {self.accumulate}" if any(self.wide) else ""

    @property
    def adds(self) -> tuple[bool, ...]:
        """Whether to add into each output."""
        return self.some or (self.add,) * len(self.outs)

    def how(self, numbers: Sequence[int]) -> int:
        """How the outputs that are sums are delivered, as `deliver` in common/vec.cuh reads it."""
        adds, wide = self.adds, self.wide or (False,) * len(self.outs)
        return sum([adds[i] << 2 * k | wide[i] << 2 * k + 1 for k, i in enumerate(numbers)])

    def workspace(self, number: int = 0) -> int:
        """The slot of a workspace."""
        return len(self.problem.given) + len(self.problem.outputs) + number

    def elements(self, itemsize: int | None = None) -> int:
        """How many elements of `itemsize` bytes every address is a multiple of."""
        return max(self.alignment // (itemsize or self.itemsize), 1)

    def entry(
        self, schedule: str, nbytes: int, *tags: object, threads: int = 0, cluster: int = 1
    ) -> Entry:
        """The entry point of `schedule`; `tags` are what tells its variants apart."""
        spec, sizes = self.problem.spec, {"threads": threads, "cluster": cluster}
        return entry_of(spec, self.type, schedule, nbytes, *tags, **sizes)


Planner: TypeAlias = Callable[[Call], Steps]
"""A schedule: what to launch for a call, or a `Refusal` of its problem."""

Variants: TypeAlias = Callable[[Call], tuple[str, ...]]
"""The names of the variants that a schedule has for a call, that of its rule first."""


def entry_of(
    spec: OpSpec,
    dtype: str,
    schedule: str,
    nbytes: int,
    *tags: object,
    threads: int = 0,
    cluster: int = 1,
) -> Entry:
    """The entry point of a schedule for an op; `tags` are what tells its variants apart."""
    symbol = "_".join([spec.name, dtype, *map(str, tags)])
    file = spec.kernel.file if spec.kernel else ""
    return Entry(file, symbol, schedule, threads or THREADS, nbytes, cluster)


def strides_of(x: Operand) -> Shape:
    """The strides of an operand in elements."""
    return x.strides if x.strides is not None else layouts.contiguous(x.shape)


def flag(value: Any) -> str:
    """A C++ bool."""
    return "true" if value else "false"


def bits(values: Sequence[bool]) -> int:
    """Bools as the bits of a number, the first one the lowest."""
    return sum([value << i for i, value in enumerate(values)])


def added(values: Sequence[bool]) -> list[str]:
    """What names kernels that add into outputs: all of them, or those of some bits."""
    return ["add" if all(values) else f"add{bits(values)}"] if any(values) else []


def delivered(how: int, many: int) -> list[str]:
    """What names kernels that deliver `many` sums so: added to all, or as the bits of `how` say."""
    every = sum([1 << 2 * k for k in range(many)])
    return ["add"] if how == every else [f"how{how}"] if how else []


def blocks(items: int, per_thread: int = 1, threads: int = THREADS) -> int:
    """How many blocks cover `items`."""
    return -(-items // (threads * per_thread))
