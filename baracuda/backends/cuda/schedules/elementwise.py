"""Elementwise: views merged into the fewest dimensions, then as wide as they allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import NamedTuple

from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.geometry import (
    Dim,
    Packer,
    by_stride,
    count,
    divisor,
    merged,
    reach,
    split,
    wide,
)
from baracuda.backends.cuda.launch_plan import (
    THREADS,
    Call,
    Step,
    Steps,
    added,
    bits,
    blocks,
    entry_of,
    flag,
    strides_of,
)
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.families.reductions import parts
from baracuda.layouts import Shape, numbers_of

LAYOUTS = {0: "strided", 1: "flat", 2: "rows"}


class Tuning(NamedTuple):
    """What elementwise kernels take of an architecture.

    Attributes
    ----------
    vectors : tuple of int
        Vectors of each input in flight in a thread: that of the rule, then those that
        `autotune=True` measures beside it.
    vectors_at_most : int
        Vectors of all inputs in flight in a thread, beyond which some kernels spill and none is
        measured.
    threads_of_several : int
        Threads of a block that has several inputs.
    prefetch_bytes : int
        From what a block loads to what it asks the L2 for (EARLY in common/elementwise.cuh).
    """

    vectors: tuple[int, ...]
    vectors_at_most: int
    threads_of_several: int
    prefetch_bytes: int


# Shares and times are of an H200.
SM_90 = Tuning(
    # Of lerp_backward 1, 2 and 4 have 0.957, 0.925, 0.917 of the copy ceiling in bf16. Of lerp,
    # swiglu and relu_backward, with two inputs, 1 and 2 are the same within 0.2 %.
    vectors=(1, 2),
    vectors_at_most=4,
    # relu_backward of 2^27 in f32 takes 374.0 us for 376.2 with twice as many, kl_div_backward in
    # bf16 131.5 for 134.9; one input takes 0.5 more.
    threads_of_several=THREADS // 2,
    # With 2 to 3 MiB lerp_backward has 0.973, in f32 0.984; 0.956 and 0.970 without. The prefetch
    # stays: without it lerp_backward takes 2 % longer. Policies of eviction, bulk copies through
    # shared memory, persistent blocks and one output after the other are all below that.
    prefetch_bytes=5 << 19,
)
TUNINGS = {"sm_90": SM_90}


class Operand(NamedTuple):
    """Which array of a call, and the first element and the strides of what is meant of it.

    `one`: it has one element for all, or one of the numbers that elements share for several.
    """

    slot: int
    offset: int
    strides: Shape
    one: bool = False


class Way(NamedTuple):
    """How operands are walked over: `items` vectors of `width` elements, and a `tail`.

    Attributes
    ----------
    dims : list of Dim
    kind : int
        That of the walk in common/index.cuh.
    """

    dims: list[Dim]
    kind: int
    width: int
    items: int
    tail: int

    def packer(self) -> Packer:
        """For the argument struct, with indices as wide as this takes."""
        return Packer(wide(count(self.dims), reach(self.dims)))

    def pack(self, packer: Packer) -> bytes:
        """The struct, with the walk at its end."""
        operands = len(self.dims[0].strides) if self.dims else 0
        return packer.walk(split(self.dims, self.width), operands, self.kind).done()


def way(call: Call, shape: Shape, operands: Sequence[Operand]) -> Way:
    """The fewest dimensions, in the widest accesses that all allow."""
    strides = [o.strides for o in operands]
    # The last operand decides, but for one that is broadcast: it has no order of its own.
    leading = min(reversed(strides), key=lambda along: along.count(0), default=())
    dims = merged(shape, strides, by_stride(shape, [*strides, leading]))
    # Side by side along the innermost dimension, so that vectors can be loaded.
    inner = dims[0].strides if dims else ()
    beside = all(s == 1 for s, o in zip(inner, operands, strict=False) if not o.one)
    kind = 0 if not beside or len(dims) > 2 else max(len(dims), 1)
    if dims and operands[-1].slot < 0 and operands[-1].one:
        # Numbers that elements share: those of a vector have to be one.
        kind, beside = 0, beside and not inner[-1]
    width = _width(call, operands, dims, kind) if beside else 1
    return Way(dims, kind, width, *divmod(count(dims), width))


class _Form(NamedTuple):
    """What tells apart the kernels of an op."""

    functor: str
    ends: tuple[str, ...]
    dtype: str
    width: int
    depth: int
    kind: int
    integer: str
    adds: tuple[bool, ...]
    ones: int
    wider: int
    threads: int
    numbered: bool


def plan(call: Call) -> Steps:
    """One kernel over all views."""
    shape, inputs, outputs = operands_of(call)
    operands, itemsize = [*inputs, *outputs], call.itemsize
    every = (*call.problem.given, *call.problem.outputs)
    numbered, spec = call.problem.spec.numbers(call.problem.signature), call.problem.spec
    shared = spec.numbered if callable(spec.numbered) else None
    strides, first = numbers_of(shape, call.problem.options, shared)
    # Vectors of numbers that elements share need not begin anywhere.
    own = [Operand(-1, 0 if shared else first, strides, one=bool(shared))] * numbered
    over = way(call, shape, [*operands, *own])
    _, kind, width, items, tail = over
    variant, scalars = call.variant or _depths(call, inputs)[0], call.problem.spec.codes
    depth = int(variant.removeprefix("depth "))
    packer = over.packer()
    read = sum([not o.one for o in inputs])
    wider = sum([
        (every[o.slot].dtype != call.problem.dtype) << k for k, o in enumerate(operands)
    ])  # fmt: skip
    early = read <= len(outputs) and kind == 1 and not any(call.adds) and call.past_caches
    tuning = call.facts.tuned(TUNINGS)
    ahead = tuning.prefetch_bytes // (width * itemsize) if early else items
    packer.pointers(len(operands)).scalars(scalars)
    ones = sum([o.one << k for k, o in enumerate(inputs)])
    if ones:
        packer.add("d", share(call.problem, shape))
    if numbered:
        packer.add("q", first)
    packer.indices(items, tail, ahead, 0)
    arguments = over.pack(packer)
    given = call.problem.options.items()
    chosen = call.problem.spec.conditions
    named_options = [v for k, v in given if isinstance(v, str) and k not in chosen]
    threads = tuning.threads_of_several if len(inputs) > 1 else THREADS
    # The halves of a packed output are its own.
    adds = call.adds if len(outputs) == len(call.outs) else call.adds * len(outputs)
    # The options that choose among functors are named ones other than "none".
    ends = tuple([name.title() for name in named_options if name != "none"])
    ends += (call.form_end,) if call.form_end else ()
    form = _Form(
        call.functor, ends, call.type, width, depth, kind, packer.type, adds, ones, wider, threads,
        numbered,
    )  # fmt: skip
    entry = _entry(call.problem.spec, form, len(arguments))
    front = [(o.slot, o.offset * named(every[o.slot].dtype).itemsize) for o in operands]
    grid = blocks(items + tail, depth, threads), 1
    return Steps((Step(entry, grid, arguments, front, scalars),), variant=variant)


@lru_cache(maxsize=4096)
def _entry(spec: OpSpec, form: _Form, nbytes: int) -> Entry:
    """The kernel of a form; new shapes ask for the same ones again and again."""
    functor, ends, dtype, width, depth, kind, integer, adds, ones, wider, threads, numbered = form
    more = [ones, wider, flag(numbered)]
    while more and more[-1] in (0, "false"):
        more.pop()
    arguments = (functor + "".join(ends), dtype, width, depth, kind, integer, bits(adds), *more)
    schedule = f"Elementwise<{', '.join(map(str, arguments))}>"
    tags = (*ends, LAYOUTS[kind], f"v{width}", f"d{depth}", integer, *added(adds))
    if ones:
        tags += ("one",)
    if wider:
        tags += (f"wide{wider}",)
    return entry_of(spec, dtype, schedule, nbytes, *tags, threads=threads)


def variants(call: Call) -> tuple[str, ...]:
    """The depths, the rule's first."""
    return _depths(call, operands_of(call)[1])


def _depths(call: Call, inputs: Sequence[Operand]) -> tuple[str, ...]:
    tuning, read = call.facts.tuned(TUNINGS), sum([not o.one for o in inputs])
    return _names(tuning.vectors, tuning.vectors_at_most // max(read, 1))


def share(problem: Problem, shape: Shape) -> float:
    """What each element has of the one cotangent of all: of a mean's, an equal part."""
    whole = parts(shape, problem.options.get("reduction", "sum"))
    return 1 / whole if whole else math.nan


@cache
def _names(depths: tuple[int, ...], most: int) -> tuple[str, ...]:
    rule, *others = depths
    return tuple([f"depth {depth}" for depth in (rule, *[d for d in others if d <= most])])


def _width(call: Call, operands: Sequence[Operand], dims: Sequence[Dim], kind: int) -> int:
    """Elements per access, as many as addresses, extents and strides allow."""
    offsets = [o.offset for o in operands]
    if kind == 1:
        return divisor(offsets, call.elements())
    steps = [s for d in dims[1:] for s, o in zip(d.strides, operands, strict=True) if not o.one]
    return divisor([*offsets, dims[0].extent, *steps], call.elements())


def operands_of(call: Call) -> tuple[Shape, list[Operand], list[Operand]]:
    """The shape of the functor's inputs and outputs, and both; a packed array is its two halves."""
    problem = call.problem
    spec, given = problem.spec, problem.given
    alone = {p.name for p in problem.signature.inputs if not p.terms}
    shape = next(x.shape for x in given if x.name not in alone)
    inputs = [
        Operand(slot, 0, (0,) * len(shape), one=True)
        if x.name in alone
        else Operand(slot, 0, strides_of(x))
        for slot, x in enumerate(given)
    ]
    outputs = [Operand(len(given) + i, 0, strides) for i, strides in enumerate(call.outs)]
    packed = spec.packed
    if packed is None or given[-1].name == packed.other:
        return shape, inputs, outputs
    # The packed array is the last one given.
    axis, whole = problem.options[packed.axis], given[-1].shape
    swapped = packed.order(problem.options)[0] == packed.other
    n = whole[axis] // 2

    def halves(operand: Operand) -> list[Operand]:
        slot, offset, strides, _ = operand
        both = [operand, Operand(slot, offset + n * strides[axis], strides)]
        return both[::-1] if swapped else both

    inputs[-1:] = halves(inputs[-1])
    if spec.adjoint_of is not None:
        outputs = halves(outputs[0])
    return (*whole[:axis], n, *whole[axis + 1 :]), inputs, outputs
