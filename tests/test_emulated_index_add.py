"""Slices and elements added or written to an array, without a GPU: every form, and in place."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from test_emulated_embedding import ALONE, FACTS, call_of
from test_emulated_segments import close

from baracuda.backends.cuda import index_errors
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call
from baracuda.backends.cuda.schedules import plan, variants

Array = NDArray[Any]
DTYPES = ("float32", "bfloat16", "float16", "float64")
# Shapes of x and of the index, and the axis.
SCATTERS = {
    "numbers": ((40,), (300,), 0),
    "few a row": ((9, 64), (9, 2), 1),
    "rows": ((6, 30), (6, 90), -1),
    "columns": ((5, 20, 18), (4, 50, 18), 1),
    "whole columns": ((2, 9, 7), (2, 40, 7), 1),
    "nothing to add": ((5, 4), (0, 4), 0),
}
SLICES = {
    "rows": ((20, 40), 0),
    "columns": ((3, 7, 5), 1),
    "last": ((2, 9), -1),
}

ADDED = lanes.turns(SCATTERS, DTYPES, DTYPES[:2])
SLICED = lanes.turns(SLICES, DTYPES, DTYPES[:2])


def values(kind: str, *shapes: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(3)
    return [rng.standard_normal(s).astype(getattr(ml_dtypes, kind, kind)) for s in shapes]


def index(n: int, shape: tuple[int, ...]) -> Array:
    """Some entries repeat often, some are out of range."""
    return np.minimum(np.random.default_rng(5).zipf(1.5, shape) - 2, n)


def scattered(x: Array, at: Array, src: Array, axis: int) -> tuple[Array, Array]:
    """In float64, element by element; and how large what is added up is."""
    out, size = x.astype(np.float64), abs(x.astype(np.float64))
    for place, to in np.ndenumerate(at):
        if 0 <= to < x.shape[axis]:
            there = list(place)
            there[axis] = to
            out[tuple(there)] += float(src[place])
            size[tuple(there)] += abs(float(src[place]))
    return out, size


def drawn(name: str, kind: str) -> tuple[list[Array], int]:
    shape, entries, axis = SCATTERS[name]
    x, src = values(kind, shape, entries)
    return [x, index(shape[axis], entries), src], axis


def sliced(name: str, kind: str, turned: bool) -> tuple[list[Array], int, Array, Array]:
    """x, an index and slices, of which halves are added; the axis, the result and its size."""
    shape, axis = SLICES[name]
    entries = tuple(50 if i == axis % len(shape) else n for i, n in enumerate(shape))
    x, source = values(kind, shape, entries)
    at = index(shape[axis], (50,))
    where: list[Any] = [np.newaxis] * len(shape)
    where[axis] = slice(None)
    halves = (source.astype(np.float64) / 2).astype(source.dtype)
    want, size = scattered(x, np.broadcast_to(at[tuple(where)], source.shape), halves, axis)
    return [np.asfortranarray(x) if turned else x, at, source], axis, want, size


def forms(name: str, kind: str) -> list[Call]:
    arrays, axis = drawn(name, kind)
    call = call_of("scatter_add", arrays, axis=axis)
    return [call._replace(variant=variant) for variant in variants(call)]


@cache
def entries(kind: str) -> tuple[Entry, ...]:
    """Every kernel of a dtype, compiled together."""
    every = [
        call for name, each in lanes.tried(ADDED) if each == kind for call in forms(name, kind)
    ]
    for name in lanes.tried_with(kind, SLICED):
        for turned in (False, True):
            arrays, axis, *_ = sliced(name, kind, turned)
            every.append(call_of("index_add", arrays, axis=axis))
    found = {s.entry.symbol: s.entry for call in every for s in plan(call).kernels}
    return tuple(found.values())


def run(call: Call, arrays: list[Array], seed: int) -> None:
    steps = plan(call)
    kernels = tuple(dict.fromkeys(s.entry for s in steps.kernels))
    emulator.run(kernels, steps, arrays, seed, ())


@pytest.mark.parametrize(("name", "kind"), ADDED)
def test_every_form_adds_elements_to_an_array(name: str, kind: str) -> None:
    """Those that are deterministic twice with the same bits, the threads in another order."""
    arrays, axis = drawn(name, kind)
    want, size = scattered(*arrays, axis)
    for call in forms(name, kind):
        steps, found = plan(call), []
        for seed in (1, 2):
            found.append(emulator.empty(want.shape, kind))
            emulator.run(entries(kind), steps, [*arrays, found[-1]], seed, ())
            close(found[-1], want, size, kind)
        if steps.deterministic:
            assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("turned", [False, True])
def test_an_array_is_added_to_in_place(turned: bool) -> None:
    arrays, axis = drawn("rows", "bfloat16")
    want, size = scattered(*arrays, axis)
    if turned:
        arrays[0] = np.asfortranarray(arrays[0])
    run(call_of("scatter_add", arrays, arrays[0], axis=axis), [*arrays, arrays[0]], 1)
    close(arrays[0], want, size, "bfloat16")


@pytest.mark.parametrize(("name", "kind"), SLICED)
def test_slices_are_added_along_any_axis(name: str, kind: str) -> None:
    for turned in (False, True):
        arrays, axis, want, size = sliced(name, kind, turned)
        steps = plan(call_of("index_add", arrays, axis=axis))
        out = emulator.empty(want.shape, kind)
        emulator.run(entries(kind), steps, [*arrays, out], 1, (0.5,))
        close(out, want, size, kind)
        assert steps.deterministic


def written(x: Array, at: Array, src: Array, axis: int) -> tuple[Array, Array]:
    """Element by element; and the number of the element that each place has, -1 for none."""
    out, which = x.copy(), np.full(x.shape, -1)
    for number, (place, to) in enumerate(np.ndenumerate(at)):
        if 0 <= to < x.shape[axis]:
            there = list(place)
            there[axis] = to
            out[tuple(there)], which[tuple(there)] = src[place], number
    return out, which


@pytest.mark.parametrize(("name", "kind"), lanes.turns(SCATTERS, DTYPES[:2]))
def test_the_last_of_several_elements_stays(name: str, kind: str) -> None:
    """Whatever the order of threads; into the array itself, and as gradients that are added."""
    (x, at, src), axis = drawn(name, kind)
    want, which = written(x, at, src, axis)
    dsrc = np.zeros(src.shape, x.dtype).reshape(-1)
    dsrc[which[which >= 0]] = x[which >= 0]
    dx = np.where(which < 0, x, np.zeros_like(x))
    given = {"axis": axis}
    calls = call_of("scatter", [x, at, src], **given), call_of("scatter_backward", [x, at], **given)
    for seed, facts in ((1, FACTS), (2, FACTS), (3, ALONE), (4, ALONE)):
        forward, backward = (call._replace(facts=facts) for call in calls)
        out, given = emulator.empty(x.shape, kind), x.copy()
        run(forward, [x, at, src, out], seed)
        run(forward, [given, at, src, given], seed)
        assert np.array_equal(out, want)
        assert np.array_equal(given, want)
        for add in (0, 1):
            outs = [np.full(s.shape, add, x.dtype) for s in (x, src)]
            run(backward._replace(add=bool(add)), [x, at, *outs], seed)
            for got, right in zip(outs, (dx, dsrc.reshape(src.shape)), strict=True):
                assert np.array_equal(got, (right.astype(np.float32) + add).astype(x.dtype))


def test_the_place_of_an_entry_out_of_range_is_reported() -> None:
    (x, at, src), axis = drawn("rows", "float32")
    at[...] = 3
    at[4, 7] = 30
    call = call_of("scatter", [x, at, src], axis=axis, mode="raise")
    ticket, record = index_errors.Ticket(call.problem), index_errors.Record()
    call = call._replace(listener=ctypes.addressof(record), ticket=ticket.number)
    run(call, [x, at, src, emulator.empty(x.shape, "float32")], 1)
    text = index_errors._explain(record.ticket, record.value, record.position)
    assert text == "scatter: index: expected 0 <= i < 30, got 30 at position (4, 7)"
