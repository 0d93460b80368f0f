"""Rope: rows that share a position are walked by the threads that know its angles."""

from __future__ import annotations

import decimal
from functools import lru_cache

from baracuda.backends.cuda.geometry import Dim, Packer, View, count, merged, reach, wide
from baracuda.backends.cuda.steps import MOST_ROWS, Call, Step, Steps, flag
from baracuda.dtypes import named

# common/rotate.cuh
_MOST_PAIRS = 160
# Half-split bf16 has 0.94 of the copy ceiling on an H200 with 128 threads, 0.93 with 256; pairs do
# not care.
_THREADS = 128

_PI = decimal.Decimal("3.14159265358979323846264338327950288419716939937510582097494459230782")


def plan(call: Call) -> Steps:
    """One launch for every 160 pairs."""
    pairs = call.problem.options["rotary_dim"] // 2
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
    positions = call.given("positions")
    place, row = _rows(call, x, out, positions)
    length = int(axes["d"])  # type: ignore[arg-type]
    half = 1 if interleaved else turning // 2
    rest = length - turning if last else 0
    width, vector = _width(call, x, out, (*place, *row), turning, length)
    per_chunk = width // 2 if interleaved else width
    start = 2 * first if interleaved else first
    chunks = pairs // per_chunk, -(-rest // width)
    places, free = sum(chunks) * count(place), count(row)
    depth = _depth(call)
    rows = min(max(depth, -(-free // MOST_ROWS)), free)
    packer = Packer(wide(places, free, reach(place) + reach(row) + _span(x) + _span(out)))
    packer.pointers(3).indices(
        places, free, rows, half, start, chunks[0], turning - start, length - start,
        x.strides[-1], out.strides[-1],
    )  # fmt: skip
    packer.extents(sum(chunks)).add(packer.unsigned, 0)
    packer.walk(place, 3).walk(row, 2)
    for table in _turns(options["base"], turning // 2, call.accumulate == "f64"):
        part = table[first : first + pairs]
        packer.add("Q", *part, *[0] * (_MOST_PAIRS - len(part)))
    arguments = packer.done()
    index = named(call.problem.index_dtype).short if positions is not None else "void"  # type: ignore[arg-type]
    schedule = (
        f"Rotate<{call.functor}, {call.type}, {index}, {flag(interleaved)}, {width}, "
        f"{flag(vector)}, {depth}, {packer.type}, {flag(call.add)}>"
    )
    tags = ("pairs" if interleaved else "halves", index, f"v{width}", *["loose"] * (not vector))
    entry = call.entry(
        schedule, len(arguments), *tags, packer.type, *["add"] * call.add, threads=_THREADS
    )
    front = [(x.slot, 0), (out.slot, 0), (positions.slot if positions else x.slot, 0)]
    grid = -(-places // _THREADS), -(-free // rows)
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


def _depth(call: Call) -> int:
    """Rows per thread, all in flight at once: enough to be worth the price of an angle.

    Share of the copy ceiling on an H200 at [4, 32, 8192, 128]:

    ============== ===== ===== ===== =============
    rows             1     2     4    8 (4 at once)
    ============== ===== ===== ===== =============
    bf16 pairs     0.67  0.88  0.95  0.90
    bf16 halves    0.76  0.92  0.94  0.91
    f32 pairs      0.93  0.98  0.97  0.95
    f32 halves     0.98  0.97  0.96  0.95
    ============== ===== ===== ===== =============
    """
    if call.itemsize == 4:
        return 2 if call.problem.options["interleaved"] else 1
    return 4 if call.itemsize == 2 or call.problem.options["interleaved"] else 2


def _span(view: View) -> int:
    return (view.shape[-1] - 1) * abs(view.strides[-1])


@lru_cache(maxsize=64)
def _turns(base: float, count: int, double: bool) -> tuple[tuple[int, ...], ...]:
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
