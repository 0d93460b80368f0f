"""Array-API numerics that the standard lacks: activations, angles, roots, scatter-add, windows.

Everything here is pure array API: no assignment into arrays, no dtype wider than the arrays', no
Python branch on values but those of an index that can be read. It traces, batches and
differentiates wherever its namespace does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import product
from typing import Any

from baracuda.layouts import Shape
from baracuda.libraries import Array, library_of

_stored: ContextVar[tuple[str, ...]] = ContextVar("stored", default=())
_narrow: ContextVar[bool] = ContextVar("narrow", default=False)
_unread: ContextVar[bool] = ContextVar("unread", default=False)
_of_values: ContextVar[bool] = ContextVar("of_values", default=False)


class _Within(AbstractContextManager[None]):
    """A block in which a variable has a value; every call of a body enters one or two."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[Any], value: Any) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *raised: object) -> None:
        self._variable.reset(self._token)


def stored_as(*dtypes: str, primal: str) -> AbstractContextManager[None]:
    """A block in which `stored` rounds to the dtypes of the results; an outer one counts."""
    return _Within(_stored, _stored.get() or (*dtypes, primal))


def stored_name(number: int) -> str:
    """The dtype of the result of this number, where bodies compute in a wider one; else ""."""
    names = _stored.get()
    return names[number] if names else ""


PRIMAL = -1
"""In `stored`, the primal in the place of a result."""


def stored(x: Array, number: int) -> Array:
    """`x` as the result of this number holds it: rounded to its dtype, in the dtype of `x`."""
    library, names = library_of(x), _stored.get()
    if not names or library.dtype(names[number]) == x.dtype:
        return x
    return library.rounded(x, names[number])


def narrow() -> AbstractContextManager[None]:
    """A block in which a composite's results are rounded to their dtypes by whoever runs it."""
    return _Within(_narrow, True)


def are_narrow() -> bool:
    """Whether no sum of a composite is asked for as it is, unrounded."""
    return _narrow.get()


def of_values() -> AbstractContextManager[None]:
    """A block in which bodies are run for their values alone: their derivatives come otherwise."""
    return _Within(_of_values, True)


def has_slopes(x: Array) -> bool:
    """Whether derivatives may be taken through what is done to `x`."""
    return library_of(x).differentiates and not _of_values.get()


def scaled(x: Array, factor: Any) -> Array:
    """`x` times a run-time value; `x` itself where that is a number, and 1."""
    return x if isinstance(factor, (int, float)) and factor == 1 else x * factor


def shifted(x: Array, by: Any) -> Array:
    """`x` and a run-time value; `x` itself where that is a number, and 0."""
    return x if isinstance(by, (int, float)) and by == 0 else x + by


def plus(x: Array, y: Array, factor: Any) -> Array:
    """`x` and a run-time value times `y`."""
    if isinstance(factor, (int, float)):
        own = library_of(x).plus
        return own(x, y, factor) if own else x + scaled(y, factor)
    return x + y * factor


def masked(x: Array, mask: Array, none: float = 0) -> Array:
    """`x` where a mask holds, else `none`; `x` itself where the mask is known to hold."""
    library = library_of(mask)
    if library.readable(mask) and bool(library.xp.all(mask)):
        return x
    return library.xp.where(mask, x, none)


def sides(b: Array) -> tuple[Array, Array]:
    """1 where `b` is at or above 0, and 1 where it is below or NaN; else 0."""
    # What follows selects by products with these: NumPy's `where` stalls on masks that no branch
    # predictor can follow, and unlike abs they leave the slope at 0 right.
    above = library_of(b).xp.astype(b >= 0, b.dtype)
    return above, 1 - above


def relu(b: Array) -> Array:
    """The larger of `b` and 0, with slope 0 at 0; NaN at NaN."""
    library = library_of(b)
    if has_slopes(b):
        # Libraries give half a slope to each side of a tie.
        return library.xp.where(b <= 0, 0, b)
    return library.xp.maximum(b, library.xp.asarray(0, dtype=b.dtype))


def sigmoid(b: Array) -> Array:
    """The logistic function; ``sigmoid(-b)`` is its complement without cancellation."""
    return library_of(b).sigmoid(b)


def sigmoids(b: Array) -> tuple[Array, Array]:
    """The logistic function at `b` and at ``-b``."""
    library = library_of(b)
    if not library.fuses:
        return library.sigmoid(b), library.sigmoid(-b)
    # One exponential for both, and one quotient.
    xp, up = library.xp, b >= 0
    power = xp.exp(xp.where(up, -b, b))
    near = 1 / (1 + power)
    far = power * near
    return xp.where(up, near, far), xp.where(up, far, near)


def sign(x: Array) -> Array:
    """-1, 0 or 1, without a slope; NaN at NaN. Not every library's own can be batched."""
    library, xp = library_of(x), library_of(x).xp
    if not has_slopes(x) and library.readable(x):
        return xp.sign(x)
    return xp.where(x == x, xp.astype(x > 0, x.dtype) - xp.astype(x < 0, x.dtype), x)


def parts(b: Array) -> tuple[Array, Array]:
    """What of `b` is above 0, and what is not; at 0 the second has the slope, and NaN at NaN."""
    xp = library_of(b).xp
    if has_slopes(b):
        up = b > 0
        return xp.where(up, b, 0), xp.where(up, 0, b)
    zero = xp.asarray(0, dtype=b.dtype)
    return xp.maximum(b, zero), xp.minimum(b, zero)


def softplus(b: Array) -> Array:
    """``log(1 + exp(b))``: nothing overflows, and far below 0 the relative accuracy is kept."""
    (above, below), xp = parts(b), library_of(b).xp
    return above + xp.log1p(xp.exp(below - above))


# With u = (z - k)/(z + k), the normal upper tail is exp(-z*z/2) P(u)/(z + k): the form of Shepherd
# and Laframboise (Math. Comp. 36, 1981). P is fitted in relative error on 0 <= z <= end, to 2^-27
# and 2^-56.6; beyond `end` the exponential is 0. Highest power first.
_TAIL_F32 = (15.0, 4.25, (
    -0.00023730119089375844, -0.00036966268885632147, 0.002185157512937553,
    -0.0007470031722397262, -0.0193663460294703, 0.08527114081696635, -0.2205154199051285,
    0.4182276251312367, -0.6251297864848382, 0.7595542069623962,
))  # fmt: skip
_TAIL_F64 = (40.0, 5.5, (
    -2.6089786072799307e-09, -5.741271549765598e-09, 2.2933730888048783e-08,
    5.0471537980641335e-08, -1.7745106516978097e-07, -2.679978329902207e-07,
    1.4836476894253894e-06, 4.4646680155067967e-07, -1.2118743512648596e-05,
    1.6319949812801757e-05, 7.141478739249692e-05, -0.0003245226482919879,
    0.0002696040163971622, 0.0024429826748350683, -0.013923510567905448, 0.04509758081477901,
    -0.10970308995854398, 0.21787243285796895, -0.3670490652936261, 0.5355964890624945,
    -0.685183420574338, 0.7737696342764068,
))  # fmt: skip


def normal(b: Array) -> tuple[Array, Array]:
    """The standard normal distribution function and density at `b`, sharing one exponential.

    Far below 0 both keep their relative accuracy; 0, 1 and 0, 0 at -inf and inf, NaN at NaN.
    """
    library, xp = library_of(b), library_of(b).xp
    wide = b.dtype == xp.float64
    end, k, coefficients = _TAIL_F64 if wide else _TAIL_F32
    if selects := library.differentiates:
        up = b >= 0
        z = xp.where(up, b, -b)
    else:
        above, below = sides(b)
        side = above - below
        z = b * side
    z = library.clip(z, None, end)
    # z*z rounded once would cost z*z/4 eps: the head squares exactly, the rest is small. Their
    # powers never meet as factors, which XLA would make the power of a sum.
    steps = 16 if not library.fuses else 1 << 20 if wide else 256
    head = xp.round(z * steps) * (1 / steps)
    power, rest = xp.exp(head * head * -0.5), (head - z) * (head + z) * 0.5
    # Of so small a rest the series needs no more terms, and is shorter where it is no pass each.
    rest = 1 + rest * (1 + rest * (0.5 + rest * (1 / 6))) if library.fuses else xp.exp(rest)
    r = 1 / (z + k)
    u = (z - k) * r
    tail = u * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        tail = tail * u + c
    density = power * (1 / math.sqrt(2 * math.pi)) * rest
    tail = power * (tail * r) * rest
    return xp.where(up, 1 - tail, tail) if selects else above - side * tail, density


_TANH_SCALE, _TANH_CUBE = math.sqrt(8 / math.pi), 0.044715


def gelu_weight(b: Array, approximate: str) -> tuple[Array, Array]:
    """The weight of `b` in ``gelu(b)``, and the slope of that weight."""
    if approximate == "none":
        return normal(b)
    # Past 40 the weight is 0 or 1 in any dtype, while the cube would go on to infinity.
    b = library_of(b).clip(b, -40, 40)
    square = b * b
    # (1 + tanh(v))/2 as the sigmoid of 2v does not cancel below 0.
    v = _TANH_SCALE * (b + _TANH_CUBE * (square * b))
    on, off = sigmoids(v)
    return on, on * off * (_TANH_SCALE * (1 + 3 * _TANH_CUBE * square))


def unit(largest: Array) -> Array:
    """`largest` to 2^-12, finite and normal, as a constant to whoever differentiates."""
    xp = library_of(largest).xp
    finite = xp.where(xp.isfinite(largest), largest, 1)
    tiny = xp.finfo(largest.dtype).smallest_normal
    return 2.0 ** (xp.floor(xp.log2(xp.where(finite < tiny, tiny, finite)) * 4096) / 4096)


def square_unit(largest: Array) -> Array:
    """A power of 2 by which numbers are divided, so that no sum of their squares overflows.

    Nor does one underflow as far as it counts beside the square of `largest`.
    """
    xp = library_of(largest).xp
    end, high, low = (40, 80, -100) if largest.dtype == xp.float32 else (320, 640, -800)
    small = xp.where(largest < 2.0**-end, 2.0**low, xp.ones_like(largest))
    return xp.where(largest > 2.0**end, 2.0**high, small)


def usual(size: Array, p: float) -> bool:
    """Whether all sizes are known to be 0, or to have p-th powers that lie far within the range."""
    library = library_of(size)
    if has_slopes(size) or not library.readable(size):
        return False
    xp = library.xp
    end = 2.0 ** ((100 if size.dtype == xp.float32 else 800) / p)
    if 0 in size.shape or not xp.max(size) <= end:
        return 0 in size.shape
    # Where no size is 0 two passes tell that write nothing.
    return bool(xp.min(size) >= 1 / end) or bool(xp.all((size >= 1 / end) | (size == 0)))


def root(total: Array, p: float) -> Array:
    """The p-th root, with slope 0 at 0."""
    xp = library_of(total).xp
    if not has_slopes(total):
        return xp.sqrt(total) if p == 2 else total ** (1 / p)
    zero = total == 0
    safe = xp.where(zero, 1, total)
    return xp.where(zero, 0, xp.sqrt(safe) if p == 2 else safe ** (1 / p))


def unread() -> AbstractContextManager[None]:
    """A block in which a body has one form for all run-time values, as nobody can read them."""
    return _Within(_unread, True)


def traced(value: object) -> bool:
    """Whether a run-time value is an array that a body may not look at.

    Elsewhere a body looks, so that a program which is made for one value has no more in it.
    """
    return _unread.get() and hasattr(value, "dtype")


def scatter_add(values: Array, index: Array, axis: int, shape: Shape) -> Array:
    """Zeros of `shape` with `values` added where `index` points along `axis`.

    Entries out of range contribute nothing, not even a NaN. `values` and `index` have one shape,
    which off the axis may be smaller than `shape`. The sum is taken in a fixed order unless the
    library has a scatter of its own.
    """
    library = library_of(values)
    xp, n = library.xp, shape[axis]
    once = library.once(index)
    # A pass over the index is short beside one over the values.
    if not (library.readable(once) and library.spans(once, n)):
        valid = (once >= 0) & (once < n)
        values, once = xp.where(valid, values, 0), xp.where(valid, once, 0)
    if n == 0 or values.shape[axis] == 0:
        return xp.zeros(shape, dtype=values.dtype, device=library.device_of(values))
    index = xp.broadcast_to(once, index.shape)
    out = library.scatter_add(values, index, axis, shape)
    return joined(values, index, axis, shape, library.xp.add, 0) if out is None else out


def joined(
    values: Array, index: Array, axis: int, shape: Shape, join: Callable[..., Array], none: float
) -> Array:
    """`none` in `shape`, joined with `values` where `index` points along `axis`, in range.

    By sorting: no duplicate is ever written to, so nothing has to be atomic.
    """
    library = library_of(values)
    xp, n, device = library.xp, shape[axis], library.device_of(values)
    values, index = xp.moveaxis(values, axis, -1), xp.moveaxis(index, axis, -1)
    lead, k = values.shape[:-1], values.shape[-1]
    # One sentinel per target: equal keys sort stably, so it ends its segment and meets the sum.
    targets = xp.broadcast_to(xp.arange(n, dtype=index.dtype, device=device), (*lead, n))
    keys = xp.concat([index, targets], axis=-1)
    order = xp.argsort(keys, axis=-1, stable=True)
    keys = xp.take_along_axis(keys, order, axis=-1)
    padding = xp.full((*lead, n), none, dtype=values.dtype, device=device)
    sums = xp.take_along_axis(xp.concat([values, padding], axis=-1), order, axis=-1)
    step = 1
    # Doubling adds within a segment only: differences of a running sum would spread a NaN.
    while step < k + 1:
        same = keys[..., step:] == keys[..., :-step]
        ahead = join(sums[..., step:], xp.where(same, sums[..., :-step], none))
        sums = xp.concat([sums[..., :step], ahead], axis=-1)
        step *= 2
    places = xp.argsort(order, axis=-1)[..., k:]
    out = xp.moveaxis(xp.take_along_axis(sums, places, axis=-1), -1, axis)
    for other, extent in enumerate(shape):
        out = _padded(out, other, 0, extent - out.shape[other], none)
    return out


def _padded(x: Array, axis: int, before: int, after: int, value: float) -> Array:
    """`x` with that many times `value` before and after it along `axis`."""
    parts = [x]
    library = library_of(x)
    for at, extent in ((0, before), (2, after)):
        if extent > 0:
            shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
            device = library.device_of(x)
            parts.insert(at, library.xp.full(shape, value, dtype=x.dtype, device=device))
    return library.xp.concat(parts, axis=axis) if len(parts) > 1 else x


def windows(
    x: Array, kernel: Sequence[int], stride: Sequence[int], counts: Sequence[int]
) -> Iterator[Array]:
    """Slide over the last axes: for each offset in the kernel, what every window has there.

    `counts` is the number of windows per axis; one that reaches beyond `x` has zeros there.
    """
    first = x.ndim - len(kernel)
    for axis, (k, s, n) in enumerate(zip(kernel, stride, counts, strict=True), first):
        x = _padded(x, axis, 0, (n - 1) * s + k - x.shape[axis], 0.0)
    for offsets in product(*map(range, kernel)):
        steps = (
            slice(at, at + (n - 1) * s + 1, s)
            for at, s, n in zip(offsets, stride, counts, strict=True)
        )
        yield x[(..., *steps)]


def coverings(
    arrays: Sequence[Array],
    fills: Sequence[float],
    extents: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    axis: int = -1,
) -> Iterator[Sequence[Array]]:
    """The transpose of `windows`: for each cell, what the windows that contain it hold.

    Parameters
    ----------
    arrays, fills : sequences of arrays and numbers
        Arrays over the windows, and for each what stands for a window that is not there.
    extents : sequence of int
        Number of cells along the last axes.
    kernel, stride : sequence of int
    axis : int
        Where to begin; the axes before it follow.

    Yields
    ------
    sequence of arrays
        `arrays` over the cells, once for each of the ``ceil(k/s)`` windows per axis that a cell
        may be in.
    """
    if -axis > len(extents):
        yield arrays
        return
    at = axis % arrays[0].ndim
    extent, k, s = extents[axis], kernel[axis], stride[axis]
    rows = -(-extent // s)
    for back in range(min(-(-k // s), rows)):
        cells = [
            _spread(x, at, back, rows, k, s, fill) for x, fill in zip(arrays, fills, strict=True)
        ]
        cut = (slice(None),) * at + (slice(extent), ...)
        yield from coverings([x[cut] for x in cells], fills, extents, kernel, stride, axis - 1)


def _spread(x: Array, axis: int, back: int, rows: int, k: int, s: int, fill: float) -> Array:
    """What the window `back` before its own row holds for each of ``rows * s`` cells."""
    xp, lead, rest = library_of(x).xp, x.shape[:axis], x.shape[axis + 1 :]
    held = min(x.shape[axis], rows - back)
    x = x[(slice(None),) * axis + (slice(held), ...)]
    x = _padded(x, axis, back, rows - back - held, fill)
    if s == 1:
        return x
    # The cell s*row + phase is in that window while phase + s*back < k.
    inside = min(k - s * back, s)
    phases = [x] * inside
    if inside < s:
        phases += [xp.full_like(x, fill)] * (s - inside)
    return xp.reshape(xp.stack(phases, axis=axis + 1), (*lead, rows * s, *rest))
