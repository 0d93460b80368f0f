"""Segments without a GPU: sums, means, maxima and softmax, of ids in any order and in order."""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import product
from typing import Any

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from test_emulated_embedding import call_of, cut

from baracuda.backends.cuda import index_errors
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call
from baracuda.backends.cuda.schedules import plan

Array = NDArray[Any]
DTYPES = ("float32", "bfloat16", "float16", "float64")
SHAPES = {
    "rows": ((300, 40), 23),
    "odd rows": ((300, 3, 3), 90),
    "numbers": ((200,), 7),
    "one segment": ((300, 16), 1),
    "no rows": ((0, 8), 5),
}
PAIRS = lanes.turns(SHAPES, DTYPES, DTYPES[:2])
REDUCED = ("segment_sum", "segment_mean", "segment_max")
SOFTMAX = ("segment_softmax", "segment_softmax_backward")
SPREAD = ("segment_sum_backward", "segment_mean_backward", "segment_max_backward")


def drawn(name: str, kind: str, ascending: bool = False) -> tuple[Array, Array]:
    """Rows, and ids of which some repeat often, some never occur and some are out of range."""
    (e, *d), n = SHAPES[name]
    rng = np.random.default_rng(len(name))
    ids = np.minimum(rng.zipf(1.3, e) - 1, n - 1)
    ids[3::41], ids[5::37] = n, -1
    data = rng.standard_normal((e, *d)).astype(getattr(ml_dtypes, kind, kind))
    return data, np.sort(ids) if ascending else ids


def calls(name: str, kind: str) -> list[tuple[Call, list[Array]]]:
    """Each reduction, of ids in any order and in order."""
    found = []
    for ascending in (False, True):
        arrays = [*drawn(name, kind, ascending)]
        options = {"num_segments": SHAPES[name][1], "sorted": ascending}
        found += [(call_of(op, arrays, **options), arrays) for op in REDUCED]
    return found


@cache
def entries(kind: str) -> tuple[Entry, ...]:
    """Every kernel of a dtype, compiled together."""
    names = lanes.tried_with(kind, PAIRS)
    every = [call for name in names for call, _ in calls(name, kind)]
    every += [call for name in names for call, _ in spread(name, kind)]
    every += [call for name in names for call, *_ in softmax(name, kind)]
    every += [call_of("segment_sum", apart(kind), num_segments=23)]
    found = {s.entry.symbol: s.entry for call in every for s in plan(call).kernels}
    return tuple(found.values())


def spread(name: str, kind: str) -> list[tuple[Call, list[Array]]]:
    """Each gradient, of ids in any order and in order; of few values, so that some tie."""
    found = []
    for ascending in (False, True):
        data, ids = drawn(name, kind, ascending)
        n, dtype = SHAPES[name][1], data.dtype
        data = np.round(data.astype(np.float32)).astype(dtype)
        dout = np.random.default_rng(1).standard_normal((n, *data.shape[1:])).astype(dtype)
        out = reduced("segment_max", data, ids, n)[0].astype(dtype)
        given = {"segment_max_backward": [dout, data, out, ids]}
        for op, add in product(SPREAD, (False, True)):
            arrays = given.get(op, [dout, ids])
            call = call_of(op, arrays, num_segments=n, sorted=ascending)
            found.append((call._replace(add=add), arrays))
    return found


def softmax(name: str, kind: str) -> list[tuple[Call, list[Array], Array, Array]]:
    """Softmax and its gradient, of ids in any order and in order: in float64, and its size."""
    found = []
    for ascending in (False, True):
        data, ids = drawn(name, kind, ascending)
        n, wide = SHAPES[name][1], data.astype(np.float64)
        y, pulled, size = np.zeros((3, *data.shape))
        dy = np.random.default_rng(1).standard_normal(data.shape).astype(data.dtype)
        for s in range(n):
            if (where := ids == s).any():
                powers = np.exp(wide[where] - wide[where].max(0))
                y[where] = powers / powers.sum(0)
        saved = y.astype(data.dtype)
        for s in range(n):
            where = ids == s
            kept, along = saved[where].astype(np.float64), dy[where].astype(np.float64)
            pulled[where] = kept * (along - (kept * along).sum(0))
            size[where] = kept * (abs(along) + abs(kept * along).sum(0))
        options = {"num_segments": n, "sorted": ascending}
        for op, arrays, want, much in (
            (SOFTMAX[0], [data, ids], y, y),
            (SOFTMAX[1], [dy, saved, ids], pulled, size),
        ):
            found.append((call_of(op, arrays, **options), arrays, want, much))
    return found


def apart(kind: str) -> list[Array]:
    """Rows and ids that do not lie side by side."""
    data, ids = drawn("rows", kind)
    return [cut(data), np.repeat(ids, 2)[::2]]


def reduced(op: str, data: Array, ids: Array, n: int) -> tuple[Array, Array]:
    """In float64, row by row; and how large what is added up is."""
    wide = data.astype(np.float64)
    out, size = np.zeros((2, n, *data.shape[1:]))
    for s in range(n):
        rows = wide[ids == s]
        if op == "segment_max":
            out[s] = rows.max(0, initial=-np.inf)
        elif len(rows):
            out[s], size[s] = rows.sum(0), abs(rows).sum(0)
            out[s] /= len(rows) if op == "segment_mean" else 1
    return out, size


def close(got: Array, want: Array, size: Array, kind: str) -> None:
    own = float(ml_dtypes.finfo(got.dtype).eps)
    sums = 2.0**-52 if kind == "float64" else 2.0**-23
    finite = np.isfinite(want)
    assert np.array_equal(got.astype(np.float64)[~finite], want[~finite])
    gap = abs(got.astype(np.float64)[finite] - want[finite])
    # float16 has so few exponents that small quotients keep few digits.
    least = max(float(ml_dtypes.finfo(got.dtype).smallest_subnormal), 1e-37)
    assert np.all(gap <= (abs(want) * own + size * sums * 64 + least)[finite])


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_rows_of_segments_are_reduced(name: str, kind: str) -> None:
    """Twice with the same bits, the threads in another order."""
    n = SHAPES[name][1]
    for call, (data, ids) in calls(name, kind):
        steps, found = plan(call), []
        for seed in (1, 2):
            found.append(emulator.empty((n, *data.shape[1:]), kind))
            emulator.run(entries(kind), steps, [data, ids, found[-1]], seed, ())
        close(found[0], *reduced(call.problem.spec.name, data, ids, n), kind)
        assert steps.deterministic
        assert found[0].tobytes() == found[1].tobytes()


def shared(op: str, arrays: list[Array], n: int) -> Array:
    """The gradients in float64, row by row."""
    dout, ids = arrays[0].astype(np.float64), arrays[-1]
    out = np.zeros((len(ids), *dout.shape[1:]))
    for s in range(n):
        where = ids == s
        if op == "segment_max_backward":
            hit = arrays[1][where] == arrays[2][s]
            out[where] = hit * dout[s] / np.maximum(hit.sum(0), 1)
        else:
            out[where] = dout[s] / (max(where.sum(), 1) if op == "segment_mean_backward" else 1)
    return out


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_rows_get_their_share_of_the_gradient(name: str, kind: str) -> None:
    for call, arrays in spread(name, kind):
        want = shared(call.problem.spec.name, arrays, SHAPES[name][1])
        for seed in (1, 2):
            out = emulator.empty(want.shape, kind)
            out[...] = call.add  # ones, where it adds
            emulator.run(entries(kind), plan(call), [*arrays, out], seed, ())
            close(out, want + call.add, abs(want), kind)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_rows_of_segments_add_up_to_one(name: str, kind: str) -> None:
    for call, arrays, want, size in softmax(name, kind):
        found = []
        for seed in (1, 2):
            found.append(emulator.empty(want.shape, kind))
            emulator.run(entries(kind), plan(call), [*arrays, found[-1]], seed, ())
            close(found[-1], want, size, kind)
        assert found[0].tobytes() == found[1].tobytes()


def test_rows_may_lie_anywhere() -> None:
    data, ids = apart("float32")
    steps = plan(call_of("segment_sum", [data, ids], num_segments=23))
    out = emulator.empty((23, data.shape[1]), "float32")
    emulator.run(entries("float32"), steps, [data, ids, out], 1, ())
    close(out, *reduced("segment_sum", data, ids, 23), "float32")


def test_the_largest_is_nan_where_a_row_has_one() -> None:
    data, ids = drawn("one segment", "float32")
    data[150, 3], data[7, 5] = np.nan, np.nan
    ids[150], ids[7] = 0, 5
    out = emulator.empty((1, 16), "float32")
    steps = plan(call_of("segment_max", [data, ids], num_segments=1))
    emulator.run(entries("float32"), steps, [data, ids, out], 1, ())
    assert np.flatnonzero(np.isnan(out[0])).tolist() == [3]


def test_ids_that_do_not_ascend_stay_within_bounds() -> None:
    """Where `sorted=True` promises what is not so, results mean nothing; pages around hold."""
    data, ids = drawn("rows", "float32")
    steps = plan(call_of("segment_sum", [data, ids], num_segments=23, sorted=True))
    for seed in (1, 2):
        out = emulator.empty((23, data.shape[1]), "float32")
        emulator.run(entries("float32"), steps, [data, ids, out], seed, ())


@pytest.mark.parametrize("ascending", [False, True])
def test_the_place_of_an_id_out_of_range_is_reported(ascending: bool) -> None:
    data, ids = drawn("rows", "float32")
    ids[...] = 1
    ids[-1] = 25
    call = call_of("segment_sum", [data, ids], num_segments=23, sorted=ascending, mode="raise")
    ticket, record = index_errors.Ticket(call.problem), index_errors.Record()
    steps = plan(call._replace(listener=ctypes.addressof(record), ticket=ticket.number))
    out = np.empty((23, data.shape[1]), np.float32)
    emulator.run(entries("float32"), steps, [data, ids, out], 1, ())
    text = index_errors._explain(record.ticket, record.value, record.position)
    assert text == "segment_sum: segment_ids: expected 0 <= i < 23, got 25 at position (299,)"


@pytest.mark.parametrize(("shape", "axis"), [((23, 16), 0), ((3, 7, 5), 1), ((2, 9), -1)])
def test_slices_are_taken_and_added_along_any_axis(shape: tuple[int, ...], axis: int) -> None:
    rng, many = np.random.default_rng(4), 150
    index = rng.integers(-1, shape[axis] + 1, many)
    good = (index >= 0) & (index < shape[axis])
    src = rng.standard_normal(shape).astype(np.float32)
    rows = np.moveaxis(src, axis, 0)[np.where(good, index, 0)]
    taken = np.moveaxis(rows * good.reshape(-1, *[1] * (len(shape) - 1)), 0, axis)
    dout = rng.standard_normal(taken.shape).astype(np.float32)
    sums = np.zeros(np.moveaxis(src, axis, 0).shape)
    np.add.at(sums, index[good], np.moveaxis(dout, axis, 0)[good].astype(np.float64))
    options = {"axis": axis, "src_shape": shape}
    for op, arrays, want in (
        ("index_select", [src, index], taken),
        ("index_select_backward", [dout, index], np.moveaxis(sums, 0, axis)),
    ):
        given = options if op.endswith("backward") else {"axis": axis}
        steps = plan(call_of(op, arrays, **given))
        out = emulator.empty(want.shape, "float32")
        emulator.run(tuple(s.entry for s in steps.kernels), steps, [*arrays, out], 1, ())
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5 if steps.workspaces else 0)
