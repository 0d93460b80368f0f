"""Embeddings of bags without a GPU: every reduction, both layouts of ids, and the gradients."""

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
from test_emulated_embedding import DTYPES, Array, call_of
from test_emulated_scatter_reduce import run
from test_emulated_segments import close

from baracuda.backends.cuda import index_errors
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call
from baracuda.backends.cuda.schedules import plan

OP, PADDING = "embedding_bag", 3
# Shapes of ids and of the table, and offsets.
BAGS: dict[str, tuple[tuple[int, ...], tuple[int, int], list[int] | None]] = {
    "rows": ((9, 5), (40, 72), None),
    "odd": ((4, 7), (9, 33), None),
    "offsets": ((60,), (12, 16), [0, 0, 7, 30, 30, 59, 60, 60]),
    "numbers": ((200,), (7, 1), [0, 90, 100]),
    "late": ((20,), (5, 8), [4, 9, 25]),
    "no bags": ((6,), (5, 8), []),
    "no ids": ((3, 0), (5, 8), None),
}
# How rows are joined, and whether each has a weight.
HOWS = [("sum", False), ("sum", True), ("mean", False), ("max", False)]
CASES = {
    f"{how}{' weighted' * weighted}-{name}": (name, how, weighted)
    for (how, weighted), name in product(HOWS, BAGS)
}
PAIRS = lanes.turns(CASES, DTYPES, DTYPES[:2])


def given(name: str, kind: str, weighted: bool) -> tuple[list[Array], Array]:
    """ids of which some are out of range, the table, offsets, weights; and a cotangent."""
    shape, (n, d), offsets = BAGS[name]
    rng = np.random.default_rng(len(name))
    ids = rng.integers(0, n, shape)
    ids.reshape(-1)[3::41], ids.reshape(-1)[5::37] = n, -1
    dtype = getattr(ml_dtypes, kind, kind)
    # Of a few values, some are the same.
    table = (np.round(rng.standard_normal((n, d)) * 4) / 4).astype(dtype)
    arrays: list[Any] = [ids, table, None if offsets is None else np.asarray(offsets, np.int32)]
    arrays += [rng.standard_normal(shape).astype(dtype)] * weighted
    bags = shape[0] if offsets is None else len(offsets)
    return arrays, rng.standard_normal((bags, d)).astype(dtype)


def bag_of(ids: Array, offsets: Array | None, place: tuple[int, ...]) -> int:
    if offsets is None:
        return place[0]
    return max(int(np.sum(offsets <= place[0])) - 1, 0) if len(offsets) else -1


def wanted(arrays: list[Any], dy: Array, how: str, padding: int | None) -> list[Array]:
    """The result, the gradients of the table and of weights, and how large what is added up is."""
    ids, table, offsets, *weights = arrays
    x, g = table.astype(np.float64), dy.astype(np.float64)
    y, size, dx, most, dots = (np.zeros(v.shape) for v in (g, g, x, x, ids))
    bags: dict[int, list[Any]] = {}
    for place, row in np.ndenumerate(ids):
        bag = bag_of(ids, offsets, place)
        if 0 <= row < len(x) and row != padding and bag >= 0:
            w = float(weights[0][place]) if weights else 1.0
            bags.setdefault(bag, []).append((place, row, w))
    for bag, entries in bags.items():
        rows = np.stack([w * x[row] for _, row, w in entries])
        y[bag] = {"sum": np.sum, "mean": np.mean, "max": np.max}[how](rows, axis=0)
        size[bag] = abs(rows).sum(0)
        hit = rows == y[bag] if how == "max" else np.ones(rows.shape)
        shares = hit / (1 if how == "sum" else hit.sum(0)) * g[bag]
        for (place, row, w), share in zip(entries, shares, strict=True):
            dx[row] += w * share
            most[row] += abs(w * share)
            dots[place] = x[row] @ g[bag]
    return [y, size, dx, most, dots]


def calls(name: str, kind: str, how: str, weighted: bool, padding: int | None) -> tuple[Call, Call]:
    arrays, dy = given(name, kind, weighted)
    options = {"reduction": how, "padding_idx": padding}
    ids, table, *rest = arrays
    return (call_of(OP, arrays, **options),
            call_of(f"{OP}_backward", [dy, ids, table, dy, *rest], **options))  # fmt: skip


def passed(*arrays: Any) -> list[Array]:
    return [x for x in arrays if x is not None]


@cache
def entries(kind: str) -> tuple[Entry, ...]:
    """Every kernel of a dtype, compiled together."""
    chosen = [CASES[case] for case in lanes.tried_with(kind, PAIRS)]
    every = [c for name, how, weighted in chosen for c in calls(name, kind, how, weighted, None)]
    every += [call._replace(add=True) for call in every if call.problem.spec.adjoint_of]
    found = {s.entry.symbol: s.entry for call in every for s in plan(call).kernels}
    return tuple(found.values())


@pytest.mark.parametrize(("case", "kind"), PAIRS)
def test_bags_are_joined_and_shared(case: str, kind: str) -> None:
    """With a row of padding and without; twice with the same bits, and added to what is there."""
    name, how, weighted = CASES[case]
    for padding in (None, PADDING):
        (ids, table, *rest), dy = given(name, kind, weighted)
        y, size, dx, most, dots = wanted([ids, table, *rest], dy, how, padding)
        forward, backward = calls(name, kind, how, weighted, padding)
        found = [emulator.empty(y.shape, kind) for _ in range(2)]
        for seed, made in enumerate(found):
            run(forward, passed(ids, table, *rest, made), seed + 1, entries(kind))
            close(made, y, size, kind)
        assert found[0].tobytes() == found[1].tobytes()
        arrays = passed(dy, ids, table, found[0], *rest)
        outs, again = emulator.outputs(backward), emulator.outputs(backward)
        added = [np.ones(x.shape, table.dtype) for x in outs]
        run(backward, [*arrays, *outs], 1, entries(kind))
        run(backward, [*arrays, *again], 2, entries(kind))
        run(backward._replace(add=True), [*arrays, *added], 1, entries(kind))
        sizes = (most, abs(dots) + 100)
        for got, same, more, want, room in zip(outs, again, added, (dx, dots), sizes, strict=False):
            close(got, want, room, kind)
            close(more, want + 1, room + 1, kind)
            assert got.tobytes() == same.tobytes()


def test_arrays_may_lie_anywhere() -> None:
    """ids turned and of 32 bits, offsets and weights apart, results of float32 and turned."""
    (ids, table, offsets, weights), dy = given("offsets", "bfloat16", True)
    y, size, dx, most, dots = wanted([ids, table, offsets, weights], dy, "sum", None)
    ids, offsets = ids.astype(np.int32)[::-1].copy()[::-1], np.repeat(offsets.astype(np.int64), 2)
    weights, table = np.repeat(weights, 3)[::3], np.asfortranarray(table)
    arrays = [ids, table, offsets[::2], weights]
    call = call_of(OP, arrays, reduction="sum")
    out = np.zeros(y.shape[::-1], y.dtype).astype(table.dtype).T
    run(call._replace(outs=((1, len(y)),)), [*arrays, out], 1)
    close(out, y, size, "bfloat16")
    arrays = [dy, ids, table, out, *arrays[2:]]
    call = call_of(f"{OP}_backward", arrays, reduction="sum")
    outs = [np.zeros(dx.shape, np.float32), np.zeros(2 * len(ids), table.dtype)[::2]]
    run(call._replace(outs=(call.outs[0], (2,)), wide=(True, False)), [*arrays, *outs], 1)
    close(outs[0], dx, most, "float32")
    close(outs[1], dots, abs(dots) + 100, "bfloat16")


@pytest.mark.parametrize("end", ["", "_backward"])
def test_the_place_of_an_id_out_of_range_is_reported(end: str) -> None:
    (ids, table, *_), dy = given("rows", "float32", False)
    ids[...] = 1
    ids[4, 2] = 40
    arrays = [dy, ids, table, dy] if end else [ids, table]
    call = call_of(OP + end, arrays, reduction="sum", mode="raise")
    ticket, record = index_errors.Ticket(call.problem), index_errors.Record()
    call = call._replace(listener=ctypes.addressof(record), ticket=ticket.number)
    run(call, [*arrays, *emulator.outputs(call)], 1)
    text = index_errors._explain(record.ticket, record.value, record.position)
    assert text == f"{OP}{end}: ids: expected 0 <= i < 40, got 40 at position (4, 2)"
