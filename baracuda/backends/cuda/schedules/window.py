"""Windows: sizes at compile time and strips of rows per thread where the layout allows it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from baracuda.backends.cuda.geometry import Dim, Packer, View, count, divisor, merged, reach, wide
from baracuda.backends.cuda.launch_plan import THREADS, Call, Front, Step, Steps, blocks, flag

# Bits of the exponent that the fast form may use, of the 126 and 1022 there are.
_BITS = {"f32": 60.0, "f64": 480.0}


class Tuning(NamedTuple):
    """What windows take of an architecture.

    Attributes
    ----------
    kernel, kernel_of_maxima : int
        Cells of a window up to which strips are written out at compile time, and up to which those
        are that look for the largest cells of windows.
    stride : int
        Stride up to which strips are written out.
    cells : int
        Cells that a thread owns side by side, at most.
    over : int
        Windows over one cell along an axis, at most, for strips.
    rows, rows_of_two : int
        Rows of windows of a thread forward, where windows overlap; in 16 bits, where at most two
        are over a cell.
    rows_of_maxima : int
        Rows of windows of a thread that looks for the largest cells, where at most two are over a
        cell.
    rows_kernel : int
        Rows of a window up to which a thread takes several rows of windows.
    waves, waves_of_16_bits, waves_apart : int
        Rows of windows of a thread backward, as work for so many threads for each that the chip
        holds, where windows overlap; in 16 bits, for each window over a cell but one; where windows
        do not overlap.
    steps : int
        Rows of windows of a thread backward for each window over a cell but one, at most.
    """

    kernel: int
    kernel_of_maxima: int
    stride: int
    cells: int
    over: int
    rows: int
    rows_of_two: int
    rows_of_maxima: int
    rows_kernel: int
    waves: int
    waves_of_16_bits: int
    waves_apart: int
    steps: int


# Shares of the copy ceiling of an H200; kN sM: kernels of N x N and strides of M.
SM_90 = Tuning(
    kernel=64,
    kernel_of_maxima=16,
    stride=8,
    cells=16,
    over=5,
    # With 2, 3 and 4 rows: k3 s2 bf16 0.84, 0.86, 0.86 and f32 0.96, 0.96, 0.96; k3 s1 bf16 0.75,
    # 0.84, 0.74 and f32 0.85, 0.91, 0.91. One row is as good as several where none overlap.
    rows=3,
    rows_of_two=4,
    # With 1 and 2 rows of k3 s2: bf16 0.53 and 0.63, f32 0.83 and 0.91 (general kernel: 0.04).
    rows_of_maxima=2,
    rows_kernel=3,
    # f32 at 8, 16 and 24: k3 s2 0.94, 0.96, 0.87, k3 s1 0.89, 0.95, 0.92.
    waves=16,
    # bf16 at 4, 8 and 16: k3 s2 0.90, 0.84, 0.58; k3 s1 0.83, 0.86, 0.67.
    waves_of_16_bits=4,
    waves_apart=32,
    steps=16,
)
TUNINGS = {"sm_90": SM_90}


@dataclass(frozen=True, slots=True)
class _Windows:
    """A problem as planes of height and width; all views in one order, windows and cells."""

    planes: list[Dim]
    cells: tuple[int, int]
    windows: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    rows: tuple[int, ...]
    columns: tuple[int, ...]


def forward(call: Call) -> Steps:
    """The norm of every window."""
    (x,), y = (call.view(x.name) for x in call.problem.given), call.out()
    form = _form(call, [x], [y], [x, y])
    p = call.problem.options["norm_type"]
    front = [(x.slot, 0), (y.slot, 0)]
    return Steps((_window_tile(call, form, p, front) or _window_any(call, form, p, front),))


def backward(call: Call) -> Steps:
    """The gradient that every cell collects."""
    (dy, x, y), dx = (call.view(x.name) for x in call.problem.given), call.out()
    form = _form(call, [x, dx], [dy, y], [dy, x, y, dx])
    p = call.problem.options["norm_type"]
    front = [(v.slot, 0) for v in (dy, x, y, dx)]
    return Steps((_backward_strip(call, form, p, front) or _backward_any(call, form, p, front),))


def _form(call: Call, cells: list[View], windows: list[View], views: list[View]) -> _Windows:
    """One axis of windows is a height of rows that windows do not span."""
    options = call.problem.options
    kernel, stride = options["kernel_size"], options["stride"]
    rank = len(cells[0].shape)
    lead = rank - len(kernel)
    strides = [v.strides for v in views]
    planes = merged(cells[0].shape[:lead], [s[:lead] for s in strides])
    columns = tuple(s[-1] for s in strides)
    if len(kernel) == 2:
        rows = tuple(s[-2] for s in strides)
        extents, counts = cells[0].shape[-2:], windows[0].shape[-2:]
        return _Windows(planes, extents, counts, kernel, stride, rows, columns)  # type: ignore[arg-type]
    first = planes[0] if planes else Dim(1, (0,) * len(views))
    width, count_w = cells[0].shape[-1], windows[0].shape[-1]
    return _Windows(
        planes[1:], (first.extent, width), (first.extent, count_w), (1, kernel[0]),
        (1, stride[0]), first.strides, columns,
    )  # fmt: skip


def _norm(call: Call, p: float, backward: bool) -> tuple[str, list[float]]:
    """The functor with its power, and the members of `Norm`."""
    bits = _BITS[call.accumulate]
    small = {1: "1", 2: "2", 3: "3", 4: "4", math.inf: "INFINITE"}
    coarse = flag(call.itemsize == 2)
    functor = f"{call.functor}<{call.accumulate}, {small.get(p, 'REAL')}, {coarse}>"
    if not backward:
        low, high, last = -1.5 * bits, 2 * bits, 2 * bits + 6
        cells = [2.0 ** max(-last, min(last, e / p)) for e in (low, high)]
        # The logarithm of the coarse power takes subnormal cells for 0: sums show what that loses.
        lost = bits * 2 + 6
        return functor, [p, 1 / p, 2.0**low, 2.0**high, *cells, min(-low, lost * p - 24)]
    # The reciprocal needs its argument normal.
    reach = min(bits / max(abs(p - 1), 1e-9), 2 * bits + 2)
    return functor, [p, 1 / p, 2.0**-reach, 2.0**reach]


def _label(p: float) -> str:
    return f"p{int(p)}" if p in (1, 2, 3, 4) else "pinf" if p == math.inf else "preal"


def _pair(values: tuple[int, int]) -> str:
    return f"{values[0]}x{values[1]}"


def _code(call: Call) -> str:
    return "d" if call.accumulate == "f64" else "f"


def _strip(call: Call, form: _Windows) -> int:
    """Cells that a thread owns side by side, 0 where the strip does not apply."""
    wide, tuning = 16 // call.itemsize, call.facts.tuned(TUNINGS)
    while wide > 1 and math.lcm(wide, form.stride[1]) > tuning.cells:
        wide //= 2
    cells = math.lcm(wide, form.stride[1])
    over = max(-(-k // s) for k, s in zip(form.kernel, form.stride, strict=True))
    small = cells <= tuning.cells and over <= tuning.over and max(form.stride) <= tuning.stride
    flat = len(form.planes) < 2 and all(s == 1 for s in form.columns)
    return cells if small and flat and math.prod(form.kernel) <= tuning.kernel else 0


def _planes(form: _Windows) -> tuple[int, tuple[int, ...]]:
    if not form.planes:
        return 1, (0,) * len(form.rows)
    return form.planes[0].extent, form.planes[0].strides


def _reach(form: _Windows) -> int:
    extents = zip(form.rows, form.columns, strict=True)
    return reach(form.planes) + max(
        abs(r) * form.cells[0] + abs(c) * form.cells[1] for r, c in extents
    )


def _steps(call: Call, form: _Windows, threads: int, lines: int) -> int:
    """Rows of windows that a thread walks backward: many share work, few fill the chip."""
    shared, tuning = -(-form.kernel[0] // form.stride[0]) - 1, call.facts.tuned(TUNINGS)
    waves = tuning.waves if shared else tuning.waves_apart
    if shared and call.itemsize == 2:
        waves = tuning.waves_of_16_bits * shared
    wanted = call.facts.multiprocessors * 2048 * waves
    return min(max(threads * lines // wanted, 1), tuning.steps * max(shared, 1), lines)


def _rows_at_once(call: Call, form: _Windows) -> int:
    """Rows of windows per thread forward, all in flight at once."""
    over, tuning = -(-form.kernel[0] // form.stride[0]), call.facts.tuned(TUNINGS)
    if over == 1 or form.kernel[0] > tuning.rows_kernel or call.itemsize == 8:
        return 1
    return tuning.rows if over > 2 or call.itemsize == 4 else tuning.rows_of_two


def _rows_of_maxima(call: Call, form: _Windows) -> int:
    """Rows of windows per thread where their largest cells are looked for."""
    shared, tuning = form.kernel[0] > 2 * form.stride[0], call.facts.tuned(TUNINGS)
    if shared or form.kernel[0] > tuning.rows_kernel or call.itemsize == 8:
        return 1
    return tuning.rows_of_maxima


def _window_tile(call: Call, form: _Windows, p: float, front: Front) -> Step | None:
    cells = _strip(call, form)
    if not cells:
        return None
    width = cells // form.stride[1]
    planes, steps = _planes(form)
    aligned = call.elements()
    xa = divisor([form.cells[1], steps[0], form.rows[0]], min(aligned, cells & -cells))
    ya = divisor([form.windows[1], steps[1], form.rows[1]], min(aligned, width & -width))
    groups, lines = -(-form.windows[1] // width), form.windows[0]
    rows = _rows_at_once(call, form)
    strips = -(-lines // rows)
    items = planes * strips * groups
    functor, members = _norm(call, p, backward=False)
    packer = Packer(wide(items, _reach(form))).pointers(2).add(_code(call), *members)
    packer.indices(items, *form.cells, *form.windows, 0, *steps, *form.rows)
    arguments = packer.extents(groups, strips).done()
    warps = THREADS // 32 if ya < width else 0
    schedule = (
        f"WindowTile<{functor}, {call.type}, {form.kernel[0]}, {form.kernel[1]}, "
        f"{form.stride[0]}, {form.stride[1]}, {rows}, {width}, {xa}, {ya}, {warps}, {packer.type}>"
    )
    entry = call.entry(
        schedule, len(arguments), _label(p), f"k{_pair(form.kernel)}", f"s{_pair(form.stride)}",
        f"r{rows}", f"v{width}", f"a{xa}", f"a{ya}", packer.type,
    )  # fmt: skip
    return Step(entry, (blocks(items), 1), arguments, front)


def _window_any(call: Call, form: _Windows, p: float, front: Front) -> Step:
    items = count(form.planes) * form.windows[0] * form.windows[1]
    functor, members = _norm(call, p, backward=False)
    packer = Packer(wide(items, _reach(form))).pointers(2).add(_code(call), *members)
    packer.indices(items, *form.cells, *form.kernel, *form.stride, *form.rows, *form.columns)
    packer.extents(*form.windows).add(packer.unsigned, 0).walk(form.planes, 2)
    arguments = packer.done()
    schedule = f"WindowAny<{functor}, {call.type}, {packer.type}>"
    entry = call.entry(schedule, len(arguments), _label(p), "any", packer.type)
    return Step(entry, (blocks(items), 1), arguments, front)


def _backward_strip(call: Call, form: _Windows, p: float, front: Front) -> Step | None:
    cells = _strip(call, form)
    maxima = p == math.inf
    most = call.facts.tuned(TUNINGS).kernel_of_maxima
    if not cells or (maxima and math.prod(form.kernel) > most):
        return None
    planes, steps = _planes(form)
    aligned, windows = call.elements(), cells // form.stride[1]
    most = min(aligned, cells & -cells)
    xa = divisor([form.cells[1], steps[1], steps[3], form.rows[1], form.rows[3]], most)
    # No wider than the windows that a thread needs from before its own.
    along = -(-form.kernel[1] // form.stride[1])
    most = min(aligned, windows & -windows, 1 << (along - 2).bit_length() if along > 1 else aligned)
    wa = divisor([form.windows[1], steps[0], steps[2], form.rows[0], form.rows[2]], most)
    groups, lines = -(-form.cells[1] // cells), -(-form.cells[0] // form.stride[0])
    rows = _rows_of_maxima(call, form) if maxima else _steps(call, form, planes * groups, lines)
    strips = -(-lines // rows)
    items = planes * strips * groups
    functor, members = _norm(call, p, backward=True)
    packer = Packer(wide(items, _reach(form))).pointers(4).add(_code(call), *members)
    packer.indices(items, *form.cells, *form.windows, rows, *steps, *form.rows)
    arguments = packer.extents(groups, strips).done()
    sizes = f"{form.kernel[0]}, {form.kernel[1]}, {form.stride[0]}, {form.stride[1]}"
    name, written = ("CoveringMost", [rows]) if maxima else ("CoveringStrip", [])
    numbers = ", ".join(map(str, [*written, cells, xa, wa]))
    schedule = (
        f"{name}<{functor}, {call.type}, {sizes}, {numbers}, {packer.type}, {flag(call.add)}>"
    )
    entry = call.entry(
        schedule, len(arguments), _label(p), f"k{_pair(form.kernel)}", f"s{_pair(form.stride)}",
        *[f"r{n}" for n in written], f"v{cells}", f"a{xa}", f"a{wa}", packer.type,
        *["add"] * call.add,
    )  # fmt: skip
    return Step(entry, (blocks(items), 1), arguments, front)


def _backward_any(call: Call, form: _Windows, p: float, front: Front) -> Step:
    items = count(form.planes) * form.cells[0] * form.cells[1]
    functor, members = _norm(call, p, backward=True)
    packer = Packer(wide(items, _reach(form))).pointers(4).add(_code(call), *members)
    packer.indices(items, *form.windows, *form.kernel, *form.stride, 0, *form.rows, *form.columns)
    packer.extents(*form.cells).add(packer.unsigned, 0, 0).walk(form.planes, 4)
    arguments = packer.done()
    schedule = f"CoveringAny<{functor}, {call.type}, {packer.type}, {flag(call.add)}>"
    entry = call.entry(schedule, len(arguments), _label(p), "any", packer.type, *["add"] * call.add)
    return Step(entry, (blocks(items), 1), arguments, front)
