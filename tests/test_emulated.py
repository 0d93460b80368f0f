"""Gather and its gradient without a GPU: every form on fibers, in several orders of threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tuning import retuned

from baracuda.backends.cuda import geometry
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.index_errors import Record
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import plan
from baracuda.backends.cuda.schedules.indexed import partition
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT

Array = NDArray[Any]
Shape = tuple[int, ...]
# Few multiprocessors make few blocks.
FACTS = DeviceFacts(0, "sm_90", 4, 232448)
DTYPES = ("float32", "bfloat16", "float16", "float64")


def uniform(rng: np.random.Generator, high: int, shape: Shape) -> Array:
    return rng.integers(0, high, shape)


def rows(rng: np.random.Generator, high: int, shape: Shape) -> Array:
    """One index for each row, some of them often."""
    drawn = np.minimum(rng.zipf(1.3, (shape[0], 1)) - 1, high - 1)
    return np.broadcast_to(drawn, shape)


def one(rng: np.random.Generator, high: int, shape: Shape) -> Array:
    """All elements in one bin."""
    return np.full(shape, high - 1)


def one_row(rng: np.random.Generator, high: int, shape: Shape) -> Array:
    """Two thirds of all elements in one row."""
    drawn = np.where(rng.random((shape[0], 1)) < 2 / 3, 5, rng.integers(0, high, (shape[0], 1)))
    return np.broadcast_to(drawn, shape)


# Form, shape of dout, of src, axis, how the index is drawn.
PROBLEMS: dict[str, tuple[str, Shape, Shape, int, Callable[..., Array]]] = {
    "a row in a tile": ("tiles", (2, 3000), (2, 1000), 1, uniform),
    "rows in a tile": ("tiles", (5, 70), (5, 40), 1, uniform),
    "odd rows": ("tiles", (2, 3, 33), (2, 3, 7), -1, uniform),
    "slices": ("tiles", (2, 50), (2, 40000), 1, uniform),
    "as many as a digit takes": ("tiles", (3, 4095), (3, 1), 1, one),
    "columns in a tile": ("tiles", (2, 60, 32), (2, 40, 32), 1, uniform),
    "columns, some left over": ("tiles", (40, 21), (30, 21), 0, uniform),
    "columns transposed": ("transposed", (2, 300, 80), (2, 200, 80), 1, uniform),
    "odd columns transposed": ("transposed", (140, 21), (330, 21), 0, uniform),
    "few a row": ("few a row", (9, 2), (9, 64), 1, uniform),
    "lists": ("lists", (2600, 72), (40, 72), 0, rows),
    "long lists": ("lists", (2600, 40), (9, 40), 0, one_row),
    "odd lists": ("lists", (300, 71), (700, 71), 0, rows),
    "parts": ("partition", (45000,), (40000,), 0, uniform),
    "parts of columns": ("partition", (3, 2001, 3), (4, 3000, 5), 1, uniform),
    "parts, one bin": ("partition", (30001,), (20000,), 0, one),
    "fixed point": ("fixed point", (3000,), (40000,), 0, uniform),
    "atomics": ("atomics", (3000,), (40000,), 0, uniform),
    "atomics, one bin": ("atomics", (3000,), (9,), 0, one),
}


def call_of(name: str, dtype: str, index: Array, dout: Array, add: bool) -> Call:
    form, _, src, axis, _ = PROBLEMS[name]
    choices = DEFAULT
    spec = registry["gather_backward"].spec
    options = {"axis": axis, "src_shape": src, "mode": "drop"}
    problem = check.problem(spec, [dout, index], options, choices)
    outs = tuple(strides_of(x) for x in problem.outputs)
    return Call(problem, FACTS, outs, add, 16, variant=form)


def made(
    name: str, dtype: str, kind: str, add: bool = False, bad: bool = True
) -> tuple[Array, Array, Steps]:
    """Inputs and steps; a few indices are out of range."""
    rng = np.random.default_rng(len(name))
    _, shape, src, axis, draw = PROBLEMS[name]
    dout = rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))
    index = draw(rng, src[axis], shape).astype(kind)
    if draw is uniform and bad:
        index.reshape(-1)[::97] = src[axis]
        index.reshape(-1)[5::101] = -1
    elif bad and index.ndim == 1:
        index[7::50] = -3
    elif bad:
        index = np.broadcast_to(
            np.where(np.arange(len(index))[:, None] % 50 == 7, -3, index[:, :1]), shape
        ).astype(kind)[:, :1]
    if index.strides[-1] == 0 or index.shape != shape:
        index = np.broadcast_to(emulator.placed(index[:, :1]), shape)
    else:
        index = emulator.placed(index)
    dout = emulator.placed(dout)
    return dout, index, plan(call_of(name, dtype, index, dout, add))


def whole(dtype: str) -> bool:
    """Whether this run tries all of a dtype, and not sums alone."""
    return lanes.FULL or dtype == DTYPES[0]


@pytest.fixture(scope="module", params=lanes.cases(DTYPES, lanes.common))
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def entries(dtype: str) -> tuple[Entry, ...]:
    """Every kernel of a dtype, compiled together."""
    found: dict[str, Entry] = {}
    for name in PROBLEMS:
        for kind, add in (("int64", False), ("int32", True))[: 1 + whole(dtype)]:
            for entry in (s.entry for s in made(name, dtype, kind, add)[2].kernels):
                assert found.setdefault(entry.symbol, entry) == entry
    return tuple(found.values())


def together(every: Iterable[Steps]) -> tuple[Entry, ...]:
    """The kernels of several calls, each once."""
    return tuple(dict.fromkeys(step.entry for steps in every for step in steps.kernels))


def close(got: Array, dout: Array, index: Array, axis: int) -> None:
    """Within the error of a sum in the accumulate type, rounded once."""
    n, exact = got.shape[axis], dout.astype(np.float64)
    good = (index >= 0) & (index < n)
    where = np.indices(index.shape)
    where[axis] = np.where(good, index, 0)
    sums = []
    for x in (exact * good, abs(exact) * good, good * 1.0):
        out = np.zeros(got.shape)
        np.add.at(out, tuple(where), x)
        sums.append(out)
    want, size, many = sums
    eps = 2.0**-52 if got.dtype == np.float64 else 2.0**-23
    own = float(ml_dtypes.finfo(got.dtype).eps)
    allowed = abs(want) * own / 2 + size * eps * (many + 1)
    allowed += float(ml_dtypes.finfo(got.dtype).smallest_subnormal)
    assert np.all(abs(got.astype(np.float64) - want) <= allowed)


def out_of(name: str, dtype: str) -> Array:
    return emulator.empty(PROBLEMS[name][2], dtype)


FIRST = pytest.mark.parametrize("dtype", DTYPES[:1], indirect=True)
WHOLE = pytest.mark.parametrize("dtype", lanes.cases(DTYPES, DTYPES[0].__eq__), indirect=True)


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_a_form_adds_up_in_any_order_of_threads(
    name: str, dtype: str, entries: tuple[Entry, ...]
) -> None:
    dout, index, steps = made(name, dtype, "int64")
    found = []
    for seed in (1, 2):
        out = out_of(name, dtype)
        emulator.run(entries, steps, [dout, index, out], seed)
        close(out, dout, index, PROBLEMS[name][3])
        found.append(out.tobytes())
    assert steps.variant == PROBLEMS[name][0]
    if steps.deterministic:
        assert found[0] == found[1]


@pytest.mark.parametrize("name", list(PROBLEMS))
@WHOLE
def test_a_form_adds_to_what_is_there(name: str, dtype: str, entries: tuple[Entry, ...]) -> None:
    dout, index, steps = made(name, dtype, "int32", add=True)
    out = np.ones(PROBLEMS[name][2], dout.dtype)
    emulator.run(entries, steps, [dout, index, out])
    alone, wide = out_of(name, dtype), dout.astype(np.float64)
    dout, index, steps = made(name, dtype, "int64")
    emulator.run(entries, steps, [dout, index, alone])
    eps = float(ml_dtypes.finfo(dout.dtype).eps)
    assert np.allclose(
        out.astype(np.float64), 1 + alone.astype(np.float64), rtol=2 * eps, atol=4 * eps
    ), wide.shape


@pytest.mark.parametrize("name", list(PROBLEMS))
@WHOLE
def test_values_of_any_range_add_up(name: str, dtype: str, entries: tuple[Entry, ...]) -> None:
    """Too far apart for one scale, hardly any, none, and infinities that stay where they are."""
    dout, index, steps = made(name, dtype, "int64")
    info, rng = ml_dtypes.finfo(dout.dtype), np.random.default_rng(3)
    far = {"float16": 2.0**-12, "float64": 2.0**-600}.get(dtype, 2.0**-60)
    for factor in (
        np.where(rng.random(dout.shape) < 0.5, 1.0, far), float(info.smallest_normal), 0.0
    ):  # fmt: skip
        values, out = (dout.astype(np.float64) * factor).astype(dout.dtype), out_of(name, dtype)
        emulator.run(entries, steps, [values, index, out])
        if steps.deterministic:
            close(out, values, index, PROBLEMS[name][3])
    special, out = dout.copy(), out_of(name, dtype)
    flat = special.reshape(-1)
    flat[1 :: dout.size // 3] = (np.inf, -np.inf, np.nan, np.inf)[: len(flat[1 :: dout.size // 3])]
    emulator.run(entries, steps, [special, index, out])
    axis, n = PROBLEMS[name][3], PROBLEMS[name][2][PROBLEMS[name][3]]
    where = np.indices(index.shape)
    good = (index >= 0) & (index < n)
    where[axis] = np.where(good, index, 0)
    want = np.zeros(out.shape)
    with np.errstate(invalid="ignore"):
        np.add.at(want, tuple(where), np.where(good, special.astype(np.float64), 0.0))
    bad = ~np.isfinite(want)
    assert np.array_equal(out[bad].astype(np.float64), want[bad], equal_nan=True)
    assert np.all(np.isfinite(out[~bad].astype(np.float64)))


@pytest.mark.parametrize("name", ["as many as a digit takes", "parts, one bin", "fixed point"])
def test_digits_do_not_carry(name: str, dtype: str, entries: tuple[Entry, ...]) -> None:
    """Elements that all round up to the next power of 2, on both sides of 0."""
    dout, index, steps = made(name, dtype, "int64", bad=False)
    for sign in (1, -1):
        values = np.full_like(dout, sign * (2 - float(ml_dtypes.finfo(dout.dtype).eps)))
        out = out_of(name, dtype)
        emulator.run(entries, steps, [values, index, out])
        close(out, values, index, PROBLEMS[name][3])


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float64"], indirect=True)
@pytest.mark.parametrize("name", ["odd rows", "columns transposed", "parts", "fixed point"])
@pytest.mark.parametrize("large", [1.0, 2.0**-1060])
def test_bins_of_the_least_numbers_are_not_empty(
    name: str, large: float, dtype: str, entries: tuple[Entry, ...]
) -> None:
    """Of these the upper half of a float64 is 0, beside bins of others and alone."""
    _, index, steps = made(name, dtype, "int64")
    values, out = np.where(index % 2 == 0, large, 2.0**-1060), out_of(name, dtype)
    emulator.run(entries, steps, [values, index, out])
    close(out, values, index, PROBLEMS[name][3])


@FIRST
@pytest.mark.parametrize("value", [2 - 2.0**-23, 1 + 2.0**-14, -1 - 2.0**-14])
def test_a_whole_unit_in_one_bin_does_not_carry(
    value: float, dtype: str, entries: tuple[Entry, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many elements as a unit has, with the largest first and the largest second digit."""
    monkeypatch.setitem(PROBLEMS, "unit", ("partition", (partition._LARGE,), (9000,), 0, one))
    with retuned(partition, unit_elements=partition._LARGE):
        dout, index, steps = made("unit", dtype, "int64", bad=False)
    values, out = np.full_like(dout, value), out_of("unit", dtype)
    emulator.run(entries, steps, [values, index, out])
    assert out[-1] == np.float32(np.float64(np.float32(value)) * dout.size)


def test_the_width_of_an_access_changes_no_bits() -> None:
    """Nor does the type of the index, or how an output lies."""
    found, planned = [], []
    calls = (("int64", 16, 1), ("int32", 16, 1), ("int64", 4, 1), ("int64", 16, 2))
    for kind, alignment, step in calls:
        dout, index, _ = made("parts", "float32", kind)
        out = out_of("parts", "float32").repeat(step)
        call = call_of("parts", "float32", index, dout, add=False)
        planned.append(plan(call._replace(alignment=alignment, outs=((step,),))))
        found.append(([dout, index, out], step))
    for steps, (arrays, _) in zip(planned, found, strict=True):
        emulator.run(together(planned), steps, arrays)
    assert len({arrays[-1][::step].tobytes() for arrays, step in found}) == 1


@pytest.mark.parametrize("kind", lanes.cases(DTYPES, "float16".__eq__))
def test_the_width_of_an_access_changes_no_bits_of_a_tile(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same elements give the scale, though some behind them are too large for it."""
    monkeypatch.setitem(PROBLEMS, "row", ("tiles", (1, 6000), (1, 400), 1, uniform))
    dout, index, steps = made("row", kind, "int64")
    dout[0, 2048:] *= 1000
    found, call = [], call_of("row", kind, index, dout, add=False)
    planned = [plan(call._replace(alignment=alignment)) for alignment in (16, dout.itemsize)]
    for steps in planned:
        out = out_of("row", kind)
        emulator.run(together(planned), steps, [dout, index, out])
        found.append((steps.kernels[0].entry.symbol, out.tobytes()))
    assert found[0][0] != found[1][0]
    assert found[0][1] == found[1][1]


@FIRST
@pytest.mark.parametrize("name", list(PROBLEMS))
def test_the_place_of_an_index_out_of_range_is_reported(
    name: str, dtype: str, entries: tuple[Entry, ...]
) -> None:
    dout, index, _ = made(name, dtype, "int64", bad=False)
    lone, record = (index[:, :1] if name.endswith("lists") else index).copy(), Record()
    lone.reshape(-1)[lone.size * 2 // 3] = -5
    index = np.broadcast_to(lone, index.shape)
    call = call_of(name, dtype, index, dout, add=False)
    steps = plan(call._replace(listener=ctypes.addressof(record), ticket=9))
    emulator.run(entries, steps, [dout, index, out_of(name, dtype)])
    assert (record.state, record.ticket, record.value) == (2, 9, -5)
    assert index[np.unravel_index(record.position, index.shape)] == -5


@FIRST
@pytest.mark.parametrize(("arch", "length"), [("sm_80", 8500), ("sm_80", 500), ("sm_90", 66000)])
def test_an_index_of_many_rounds_is_inverted(arch: str, length: int, dtype: str) -> None:
    """By one block for each team, or a cluster of them; the places of lists differ."""
    rng = np.random.default_rng(length)
    dout = rng.standard_normal((length, 16)).astype(dtype)
    index = np.broadcast_to(rng.integers(-1, 300, (length, 1)), dout.shape)
    spec, options = registry["gather_backward"].spec, {"axis": 0, "src_shape": (299, 16)}
    problem = check.problem(spec, [dout, index], {**options, "mode": "drop"}, DEFAULT)
    outs = tuple(strides_of(x) for x in problem.outputs)
    steps = plan(Call(problem, FACTS._replace(arch=arch), outs, variant="lists"))
    out = emulator.empty((299, 16), dtype)
    emulator.run(tuple(s.entry for s in steps.kernels), steps, [dout, index, out], 3)
    close(out, dout, index, 0)


@FIRST
def test_atomics_add_into_an_output_in_reverse(dtype: str, entries: tuple[Entry, ...]) -> None:
    dout, index, _ = made("atomics", dtype, "int64")
    dout = np.round(dout * 9)
    out = np.ones(PROBLEMS["atomics"][2], dtype)[::-1]
    steps = plan(call_of("atomics", dtype, index, dout, add=True)._replace(outs=((-1,),)))
    emulator.run(entries, steps, [dout, index, out])
    close(out - 1, dout, index, 0)


# As many as a digit takes are few; of each form the last stands for all.
FAR = [name for name in PROBLEMS if "as many" not in name]
_LAST = {PROBLEMS[name][0]: name for name in FAR}


@pytest.mark.parametrize("name", lanes.cases(FAR, [*_LAST.values()].__contains__))
def test_offsets_of_64_bits_lead_to_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, narrow = made(name, "bfloat16", "int64")
    monkeypatch.setattr(geometry, "_NARROW", 0)
    dout, index, wide = made(name, "bfloat16", "int64")
    results = []
    for steps in (wide, narrow):
        results.append(out_of(name, "bfloat16"))
        emulator.run(together([narrow, wide]), steps, [dout, index, results[-1]])
    assert any("i64" in s.entry.symbol for s in wide.kernels) or name.endswith("lists")
    if wide.deterministic:
        assert results[0].tobytes() == results[1].tobytes()


GATHERS: dict[str, tuple[Shape, Shape, int]] = {
    "a row in a tile": ((2, 1000), (2, 3000), 1),
    "rows in a tile": ((5, 40), (5, 70), 1),
    "odd rows": ((2, 3, 7), (2, 3, 33), -1),
    "columns in a tile": ((2, 40, 32), (2, 60, 32), 1),
    "columns, some left over": ((30, 21), (40, 21), 0),
}


@cache
def gathering(kind: str, name: str, variant: str) -> tuple[Array, Array, Steps]:
    """Inputs and steps; a few indices are out of range."""
    rng, (src, shape, axis) = np.random.default_rng(1), GATHERS[name]
    x = (rng.standard_normal(src) * 9).astype(kind)
    index = uniform(rng, src[axis], shape)
    index.reshape(-1)[::13], index.reshape(-1)[5::29] = src[axis], -1
    x, index = emulator.placed(x), emulator.placed(index)
    options = {"axis": axis, "mode": "drop"}
    problem = check.problem(registry["gather"].spec, [x, index], options, DEFAULT)
    outs = tuple(strides_of(y) for y in problem.outputs)
    return x, index, plan(Call(problem, FACTS, outs, variant=variant))


@pytest.mark.parametrize("variant", ["straight", "tiles"])
@pytest.mark.parametrize("name", list(GATHERS))
@pytest.mark.parametrize("kind", ["int8", "float16", "float32", "complex64", "complex128"])
def test_gather_moves_what_is_asked_for(kind: str, name: str, variant: str) -> None:
    every = (gathering(kind, n, v)[2] for n in GATHERS for v in ("straight", "tiles"))
    entries = {e.symbol: e for steps in every for e in (s.entry for s in steps.kernels)}
    x, index, steps = gathering(kind, name, variant)
    assert steps.variant == variant
    src, shape, axis = GATHERS[name]
    out = emulator.empty(shape, kind)
    emulator.run(tuple(entries.values()), steps, [x, index, out], 7)
    good = (index >= 0) & (index < src[axis])
    cut = tuple(slice(None) if a == axis % len(src) else slice(n) for a, n in enumerate(shape))
    want = np.take_along_axis(x[cut], np.where(good, index, 0), axis)
    assert np.array_equal(out, np.where(good, want, 0))
