"""Elementwise: views merged into the fewest dimensions, then as wide as they allow."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from baracuda.backends.cuda.geometry import (
    Dim,
    Packer,
    View,
    by_stride,
    count,
    divisor,
    merged,
    reach,
    split,
    wide,
)
from baracuda.backends.cuda.steps import PAST_CACHES, Call, DeviceFacts, Step, Steps, blocks, flag

# Vectors of each input in flight per thread, by the number of inputs. Of lerp_backward 1, 2 and 4
# have 0.957, 0.925, 0.917 of the copy ceiling of an H200 in bf16.
_DEPTH = {2: 2}
# What else may be measured: beyond so many vectors in flight some kernels spill.
_DEPTHS, _MOST_VECTORS = (1, 2), 4
# Bytes from what a block loads to what it prefetches (EARLY in common/elementwise.cuh). With 2 to 3
# MiB lerp_backward has 0.973 on an H200, 0.978 with 4 blocks on a multiprocessor, in f32 0.984 and
# 0.989; 0.956 and 0.970 without. Policies of eviction, bulk copies through shared memory,
# persistent blocks and one output after the other are all below that.
_AHEAD = 5 << 19
_LAYOUTS = {0: "strided", 1: "flat", 2: "rows"}


def plan(call: Call) -> Steps:
    """One kernel over all views."""
    inputs, outputs = _views(call)
    views = [*inputs, *outputs]
    shape, strides = views[0].shape, [v.strides for v in views]
    dims = merged(shape, strides, by_stride(shape, strides))
    flat = len(dims) < 2 and all(s == 1 for d in dims for s in d.strides)
    width = _width(call, views, dims, flat)
    rows = len(dims) == 2 and all(s == 1 for s in dims[0].strides)
    kind = 1 if flat else 2 if rows else 0
    items, tail = divmod(count(dims), width)
    variant, scalars = call.variant or _names(len(inputs))[0], len(call.problem.spec.scalars)
    depth = int(variant.removeprefix("depth "))
    packer = Packer(wide(count(dims), reach(dims)))
    early = len(inputs) < len(outputs) and flat and not call.add and call.nbytes > PAST_CACHES
    ahead = _AHEAD // (width * call.itemsize) if early else items
    packer.pointers(len(views)).add("d", *[0.0] * scalars).indices(items, tail, ahead, 0)
    arguments = packer.walk(split(dims, width), len(views), kind).done()
    options = _options(call)
    schedule = (
        f"Elementwise<{call.functor}{''.join(options)}, {call.type}, {width}, {depth}, {kind}, "
        f"{packer.type}, {flag(call.add)}>"
    )
    tags = (_LAYOUTS[kind], f"v{width}", f"d{depth}", packer.type, *["add"] * call.add)
    entry = call.entry(schedule, len(arguments), *options, *tags)
    front = [(v.slot, v.offset * call.itemsize) for v in views]
    grid = blocks(items + tail, depth), 1
    shared = _reserved(call.facts) if early else 0
    return Steps((Step(entry, grid, arguments, front, scalars, shared),), variant=variant)


def variants(call: Call) -> tuple[str, ...]:
    """The depths, the rule's first."""
    return _names(len(_views(call)[0]))


@cache
def _names(inputs: int) -> tuple[str, ...]:
    rule = _DEPTH.get(inputs, 1)
    depths = [depth for depth in _DEPTHS if depth * inputs <= _MOST_VECTORS]
    return tuple(f"depth {depth}" for depth in sorted(depths, key=lambda d: (d != rule, d)))


def _reserved(facts: DeviceFacts) -> int:
    """Shared memory that nobody uses: with it a multiprocessor takes 4 blocks and no more."""
    return max((facts.shared_per_block + 1024) // 4 - 1024, 0)


def _width(call: Call, views: Sequence[View], dims: Sequence[Dim], flat: bool) -> int:
    """Elements per access: as many as the addresses and strides of all views allow."""
    if any(s != 1 for d in dims[:1] for s in d.strides):
        return 1
    numbers = [v.offset for v in views]
    if not flat:
        numbers += [dims[0].extent, *(s for d in dims[1:] for s in d.strides)]
    return divisor(numbers, call.elements())


def _options(call: Call) -> list[str]:
    """The options that choose among functors: named ones other than "none"."""
    values = call.problem.options.values()
    return [v.title() for v in values if isinstance(v, str) and v != "none"]


def _views(call: Call) -> tuple[list[View], list[View]]:
    """Inputs and outputs of the functor: a packed array as its halves."""
    spec, options = call.problem.spec, call.problem.options
    outs = [call.out(i) for i in range(len(call.problem.outputs))]
    known = {name: call.given(name) for name in spec.arrays}
    packed = spec.packed
    if packed is not None and known[packed.other] is None:
        axis, order = options[packed.axis], packed.order(options)
        known.update(zip(order, _halves(call.view(packed.array), axis), strict=True))
        if spec.adjoint_of is not None:
            halves = dict(zip(order, _halves(outs[0], axis), strict=True))
            outs = [halves[packed.array], halves[packed.other]]
    return [v for v in known.values() if v is not None], outs


def _halves(view: View, axis: int) -> tuple[View, View]:
    n = view.shape[axis] // 2
    shape = (*view.shape[:axis], n, *view.shape[axis + 1 :])
    first = View(view.slot, view.offset, shape, view.strides)
    return first, View(view.slot, view.offset + n * view.strides[axis], shape, view.strides)
