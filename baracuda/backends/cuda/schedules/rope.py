"""Rope: rows that share a position are walked by the threads that know its angles."""

from __future__ import annotations

import decimal
from functools import lru_cache
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Dim, Packer, View, count, merged, reach, wide
from baracuda.backends.cuda.launch_plan import MOST_ROWS, Call, Step, Steps, blocks, flag
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dtypes import named

# common/rotate.cuh
_MOST_PAIRS = 160
# Launches of a call, at most.
_MOST_PARTS = 64
_PI = decimal.Decimal("3.14159265358979323846264338327950288419716939937510582097494459230782")


class Tuning(NamedTuple):
    """What rope takes of an architecture.

    Attributes
    ----------
    prefetch_bytes : int
        From what a block loads to what it asks the L2 for.
    rows, rows_of_16_bits : int
        Rows of a thread, all in flight at once; of pairs of 16 bits, and of 16 bits where the walk
        is the general one. See `_depth`.
    """

    prefetch_bytes: int
    rows: int
    rows_of_16_bits: int


SM_90 = Tuning(
    # 1 to 3 MiB are all within 0.01 of the copy ceiling of an H200. The prefetch stays: without it
    # [4, 32, 8192, 128] takes 1.4 to 2.3 % longer.
    prefetch_bytes=3 << 19,
    rows=2,
    rows_of_16_bits=4,
)
TUNINGS = {"sm_90": SM_90}


def plan(call: Call) -> Steps:
    """One launch for every 160 pairs."""
    pairs = call.problem.options["rotary_dim"] // 2
    if pairs > _MOST_PAIRS * _MOST_PARTS:
        raise Refusal(f"turns at most {_MOST_PAIRS * _MOST_PARTS} pairs")
    parts = []
    for first in range(0, max(pairs, 1), _MOST_PAIRS):
        number = min(pairs - first, _MOST_PAIRS)
        parts.append(_part(call, first, number, first + number == pairs))
    return Steps(tuple(parts))


def _part(call: Call, first: int, pairs: int, last: bool) -> Step:
    """The launch for `pairs` pairs from `first` on; the last one moves what does not turn."""
    options, axes = call.problem.options, call.problem.axes
    interleaved, turning = options["interleaved"], options["rotary_dim"]
    x, out = call.view(call.problem.spec.arrays[0]), call.out()
    positions = next((call.given(name) for name in call.problem.spec.integers), None)
    place, row = _rows(call, x, out, positions)
    length = int(axes["d"])  # type: ignore[arg-type]
    half = 1 if interleaved else turning // 2
    rest = length - turning if last else 0
    width, vector = _width(call, x, out, (*place, *row), turning, length)
    per_chunk = width // 2 if interleaved else width
    start = 2 * first if interleaved else first
    chunks = pairs // per_chunk, -(-rest // width)
    places, free = sum(chunks) * count(place), count(row)
    dims = max(len(place), len(row), 1)
    if dims > 2 or chunks[1]:
        dims = 0
    depth = _depth(call, dims)
    rows = min(max(depth, -(-free // MOST_ROWS)), free)
    # The distance to what is prefetched: in threads of the same rows, and in rows.
    bytes_each = rows * width * call.itemsize * (1 if interleaved else 2)
    prefetched = call.facts.tuned(TUNINGS).prefetch_bytes
    further, ahead = divmod(prefetched // bytes_each, places)
    # Where rows end within a line, with something else behind them, a prefetch would read that too.
    whole = x.strides[-2] == length or not length * call.itemsize % 128
    ahead_rows = further * rows if whole and call.past_caches else free
    packer = Packer(wide(places, free, reach(place) + reach(row) + _span(x) + _span(out)))
    packer.pointers(3).indices(
        places, free, rows, half, start, chunks[0], turning - start, length - start,
        x.strides[-1], out.strides[-1], ahead, ahead_rows,
    )  # fmt: skip
    packer.extents(sum(chunks)).add(packer.unsigned, 0)
    packer.walk(place, 3).walk(row, 2)
    for table in turns(options["base"], turning // 2, call.accumulate == "f64"):
        part = table[first : first + pairs]
        packer.add("Q", *part, *[0] * (_MOST_PAIRS - len(part)))
    arguments = packer.done()
    index = named(call.problem.index_dtype).short if positions is not None else "void"  # type: ignore[arg-type]
    schedule = (
        f"Rotate<{call.functor}, {call.type}, {index}, {flag(interleaved)}, {width}, "
        f"{flag(vector)}, {dims}, {depth}, {packer.type}, {flag(call.add)}>"
    )
    loose, add = ["loose"] * (not vector), ["add"] * call.add
    tags = ("pairs" if interleaved else "halves", index, f"v{width}", *loose, f"d{dims}")
    entry = call.entry(schedule, len(arguments), *tags, packer.type, *add)
    front = [(x.slot, 0), (out.slot, 0), (positions.slot if positions else x.slot, 0)]
    grid = blocks(places), -(-free // rows)
    return Step(entry, grid, arguments, front)


def _rows(call: Call, x: View, out: View, positions: View | None) -> tuple[list[Dim], list[Dim]]:
    """The dimensions along which the position changes, and the others."""
    shape, axis = x.shape[:-1], call.problem.options["seq_axis"]
    if positions is None:
        steps = [int(i == axis) for i in range(len(shape))]
    elif len(positions.shape) == 1 and len(shape) > 1:
        steps = [positions.strides[0] if i == axis else 0 for i in range(len(shape))]
    else:
        steps = [s if n > 1 else 0 for s, n in zip(positions.strides, positions.shape, strict=True)]
    moving = [i for i, (s, n) in enumerate(zip(steps, shape, strict=True)) if s and n > 1]
    still = [i for i in range(len(shape)) if i not in moving]
    strides = (x.strides[:-1], out.strides[:-1], tuple(steps))
    return merged(shape, strides, moving), merged(shape, strides[:2], still)


def _width(
    call: Call, x: View, out: View, dims: tuple[Dim, ...], turning: int, length: int
) -> tuple[int, bool]:
    """Elements per chunk, and whether each chunk is one aligned access."""
    interleaved = call.problem.options["interleaved"]
    numbers = [turning if interleaved else turning // 2, length]
    numbers += [s for d in dims for s in d.strides[:2]]
    width = call.elements()
    while width > 1 and any(n % width for n in numbers):
        width //= 2
    dense = x.strides[-1] == 1 and out.strides[-1] == 1
    if dense and width > 1:
        return width, True
    return (2, False) if interleaved else (1, False)


def _depth(call: Call, dims: int) -> int:
    """Rows per thread, all in flight at once: enough to be worth the price of an angle.

    Share of the copy ceiling on an H200 at [4, 32, 8192, 128]; a plain copy of the bf16 size has
    0.97 to 0.98:

    ============== ===== ===== =====
    rows             1     2     4
    ============== ===== ===== =====
    bf16 pairs     0.76  0.97  0.97
    bf16 halves    0.77  0.97  0.96
    f32 pairs      0.79  0.99  0.98
    f32 halves     0.99  0.99  0.98
    f64 pairs      0.72  1.00  0.99
    f64 halves     0.99  1.00  0.99
    ============== ===== ===== =====

    Pairs in bf16 take 4: where x is not [..., S, D] in C order, 2 have 0.90 and 4 have 0.93. So
    does all of bf16 that walks in the general way.
    """
    dear = call.problem.options["interleaved"] or not dims
    tuning = call.facts.tuned(TUNINGS)
    return tuning.rows_of_16_bits if call.itemsize == 2 and dear else tuning.rows


def _span(view: View) -> int:
    return (view.shape[-1] - 1) * abs(view.strides[-1])


@lru_cache(maxsize=64)
def turns(base: float, count: int, double: bool) -> tuple[tuple[int, ...], ...]:
    """``base**(-i/count) / 2pi`` modulo 1 in units of 2^-64, and for float64 64 bits more."""
    exact, bits = decimal.Decimal(base), 128 if double else 64
    out = []
    # A base below 1 has frequencies with that many digits before the point.
    with decimal.localcontext(decimal.Context(prec=70 + max(0, -exact.adjusted()))):
        log = exact.ln()
        for i in range(count):
            turn = (-log * i / count).exp() / (2 * _PI)
            out.append(int(turn * (1 << bits) + decimal.Decimal("0.5")) % (1 << bits))
    if not double:
        return (tuple(out),)
    return tuple(t >> 64 for t in out), tuple(t % (1 << 64) for t in out)
