"""Elements joined by an index, without a GPU: every reduction, any layout, and the gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import Any

import emulator
import lanes
import numpy as np
import pytest
from test_emulated_embedding import ALONE, FACTS, call_of
from test_emulated_index_add import DTYPES, SCATTERS, Array, drawn, index, values
from test_emulated_segments import close

from baracuda.backends.cuda import index_errors
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts
from baracuda.backends.cuda.schedules import plan

NAMES = [name for name in SCATTERS if name != "few a row"]
# Where states are: on chip where each multiprocessor has a block.
PLACES = {"in memory": FACTS, "on chip": ALONE}
HOWS = [*product(("sum", "mean", "max", "min"), (True, False))]


def given(name: str, kind: str) -> tuple[list[Array], Array, int]:
    """x, an index and elements, of which some are equal, and NaN; a cotangent; the axis."""
    (x, at, src), axis = drawn(name, kind)
    dout = x[..., ::-1].copy()
    x, src = (np.asarray(np.round(y.astype(np.float64) * 2) / 2).astype(x.dtype) for y in (x, src))
    x.reshape(-1)[3::19], src.reshape(-1)[7::53] = np.nan, np.nan
    return [x, at, src], dout, axis


def lines(arrays: list[Array], axis: int) -> Iterator[tuple[tuple[int, ...], list[Any]]]:
    """Each place, and the places of the elements that go there."""
    x, at, _ = arrays
    found: dict[tuple[int, ...], list[Any]] = {place: [] for place in np.ndindex(x.shape)}
    for place, to in np.ndenumerate(at):
        if 0 <= to < x.shape[axis]:
            there = list(place)
            there[axis] = to
            found[tuple(there)].append(place)
    yield from found.items()


def wanted(arrays: list[Array], dout: Array, axis: int, how: str, mine: bool) -> list[Any]:
    """The result and its size, and both gradients, element by element in float64."""
    x, _, src = (y.astype(np.float64) for y in arrays)
    out, size, dx, dsrc = x.copy(), abs(x), dout.astype(np.float64), np.zeros(src.shape)
    for there, places in lines(arrays, axis):
        if not places:
            continue
        every = np.asarray([*[x[there]] * mine, *[src[p] for p in places]])
        joined = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}[how](every)
        shares = np.ones(len(every)) / (len(every) if how == "mean" else 1)
        if how in ("max", "min"):
            hit = (every == joined) | (np.isnan(every) & np.isnan(joined))
            shares = hit / hit.sum()
        out[there], size[there] = joined, abs(every).sum()
        shares = shares * dx[there]
        dx[there] = shares[0] if mine else 0
        for place, share in zip(places, shares[int(mine) :], strict=True):
            dsrc[place] = share
    return [out, size, dx, dsrc]


def calls(
    name: str, kind: str, how: str, mine: bool, facts: DeviceFacts = FACTS
) -> tuple[Call, Call]:
    arrays, dout, axis = given(name, kind)
    options = {"axis": axis, "reduction": how, "include_self": mine}
    x, at, src = arrays
    forward = call_of("scatter_reduce", arrays, **options)
    backward = call_of("scatter_reduce_backward", [dout, x, at, src, x], **options)
    return forward._replace(facts=facts), backward._replace(facts=facts)


@cache
def entries(kind: str) -> tuple[Entry, ...]:
    """Every kernel of a dtype, compiled together."""
    every = [
        c for n in NAMES for how in HOWS for f in PLACES.values() for c in calls(n, kind, *how, f)
    ]
    every += [call._replace(add=True) for call in every if call.problem.spec.adjoint_of]
    found = {s.entry.symbol: s.entry for call in every for s in plan(call).kernels}
    return tuple(found.values())


def run(call: Call, arrays: list[Array], seed: int, compiled: tuple[Entry, ...] = ()) -> None:
    steps = plan(call)
    kernels = tuple(dict.fromkeys(s.entry for s in steps.kernels))
    emulator.run(compiled or kernels, steps, arrays, seed, ())
    assert steps.deterministic


def near(got: Array, want: Array, size: Array, kind: str) -> None:
    """NaN where it is wanted, and close elsewhere."""
    there = ~np.isnan(want)
    assert np.array_equal(np.isnan(got.astype(np.float64)), ~there)
    close(got[there], want[there], size[there], kind)


@pytest.mark.parametrize("kind", lanes.cases(DTYPES, "float32".__eq__))
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", HOWS, ids=lambda how: f"{how[0]} {how[1]}")
@pytest.mark.parametrize("where", PLACES)
def test_elements_are_joined(where: str, name: str, how: tuple[str, bool], kind: str) -> None:
    """Twice with the same bits, the threads in another order; and gradients that are added."""
    arrays, dout, axis = given(name, kind)
    out, size, *gradients = wanted(arrays, dout, axis, *how)
    forward, backward = calls(name, kind, *how, PLACES[where])
    if where == "on chip" and name in ("rows", "whole columns") and how[0] != "sum":
        assert any(s.entry.schedule.startswith("TellTiles<") for s in plan(forward).kernels)
    found = [emulator.empty(out.shape, kind) for _ in range(2)]
    for seed, made in enumerate(found):
        run(forward, [*arrays, made], seed + 1, entries(kind))
        near(made, out, size, kind)
    assert found[0].tobytes() == found[1].tobytes()
    x, at, src = arrays
    outs = emulator.outputs(backward)
    run(backward, [dout, x, at, src, found[0], *outs], 1, entries(kind))
    added = [np.ones(y.shape, x.dtype) for y in (x, src)]
    run(backward._replace(add=True), [dout, x, at, src, found[0], *added], 2, entries(kind))
    for got, more, want in zip(outs, added, gradients, strict=True):
        near(got, want, abs(want), kind)
        near(more, want + 1, abs(want) + 1, kind)


@pytest.mark.parametrize("places", ["one", "many"])
@pytest.mark.parametrize("how", ["max", "mean"])
def test_each_thread_has_several_entries_of_a_lane(how: str, places: str) -> None:
    x, src = values("float32", (1, 40), (1, 2000))
    arrays = [x, np.full(src.shape, 3) if places == "one" else index(40, src.shape), src]
    out, size, *_ = wanted(arrays, x, 1, how, True)
    call = call_of("scatter_reduce", arrays, axis=1, reduction=how)._replace(facts=ALONE)
    made = emulator.empty(x.shape, "float32")
    run(call, [*arrays, made], 1)
    near(made, out, size, "float32")


@pytest.mark.parametrize("how", HOWS, ids=lambda how: f"{how[0]} {how[1]}")
def test_arrays_may_lie_anywhere_and_x_be_the_result(how: tuple[str, bool]) -> None:
    (x, at, src), dout, axis = given("columns", "bfloat16")
    out, size, *_ = wanted([x, at, src], dout, axis, *how)
    src, at = np.repeat(src, 2, 0)[::2], np.asfortranarray(at)
    x = np.asfortranarray(x)
    options = {"axis": axis, "reduction": how[0], "include_self": how[1]}
    run(call_of("scatter_reduce", [x, at, src], x, **options), [x, at, src, x], 1)
    near(x, out, size, "bfloat16")


@pytest.mark.parametrize("how", ["max", "mean", "sum"])
@pytest.mark.parametrize("gradient", [False, True], ids=["forward", "backward"])
def test_the_place_of_an_entry_out_of_range_is_reported(gradient: bool, how: str) -> None:
    (x, at, src), dout, axis = given("rows", "float32")
    at[...] = 3
    at[4, 7] = 30
    op, arrays = "scatter_reduce", [x, at, src]
    if gradient:
        op, arrays = "scatter_reduce_backward", [dout, x, at, src, x]
    call = call_of(op, arrays, axis=axis, reduction=how, mode="raise")
    ticket, record = index_errors.Ticket(call.problem), index_errors.Record()
    call = call._replace(listener=ctypes.addressof(record), ticket=ticket.number)
    run(call, [*arrays, *emulator.outputs(call)], 1)
    text = index_errors._explain(record.ticket, record.value, record.position)
    assert text == f"{op}: index: expected 0 <= i < 30, got 30 at position (4, 7)"


def test_of_two_zeros_the_larger_is_that_above_and_infinities_stay() -> None:
    x, at = np.asarray([-np.inf, np.inf, 0.0]), np.asarray([0, 0, 1, 2, 2])
    src = np.asarray([-np.inf, -np.inf, -1e30, -0.0, 1e-45])
    for kind in ("float32", "float64"):
        given = [x.astype(kind), at, src.astype(kind)]
        for how, want in (("max", [-np.inf, np.inf, given[2][4]]),
                          ("min", [-np.inf, given[2][2], 0.0])):  # fmt: skip
            call = call_of("scatter_reduce", given, axis=0, reduction=how)
            out = emulator.empty((3,), kind)
            run(call, [*given, out], 1)
            assert np.array_equal(out, want)


@pytest.mark.parametrize("mine", [True, False])
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_means_of_16_bits_are_sums_on_chip_of_wider_elements(kind: str, mine: bool) -> None:
    x, src = values(kind, (70, 40), (70, 64))
    x, src, at = np.asfortranarray(x), np.asfortranarray(src), index(40, (70, 64))
    out, size, *_ = wanted([x, at, src], x, 1, "mean", mine)
    call = call_of("scatter_reduce", [x, at, src], axis=1, reduction="mean", include_self=mine)
    assert any(s.entry.schedule.startswith("ScatterTiles<f32") for s in plan(call).kernels)
    made = emulator.empty(out.shape, kind)
    run(call, [x, at, src, made], 1)
    near(made, out, size, kind)


def test_an_index_may_lie_anywhere_beside_widened_elements() -> None:
    x, src = values("bfloat16", (70, 40), (70, 64))
    at = emulator.empty((70 * 64 + 1,), "int64")[1:].reshape(70, 64)
    at[...] = index(40, at.shape)
    out, size, *_ = wanted([x, at, src], x, 1, "mean", True)
    made = emulator.empty(out.shape, "bfloat16")
    call = call_of("scatter_reduce", [x, at, src], axis=1, reduction="mean")
    run(call._replace(alignment=8), [x, at, src, made], 1)
    near(made, out, size, "bfloat16")
