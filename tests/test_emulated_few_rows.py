"""The rows form of an embedding's gradient without a GPU: the rows, their order, and their sums."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import emulator
import lanes
import numpy as np
import pytest
from test_emulated_embedding import DTYPES, PADDING, SCALE, Array, call_of, close, drawn, sums

from baracuda.backends.cuda import index_errors
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, Steps
from baracuda.backends.cuda.schedules import plan

OP = "embedding_backward_rows"
# Lookups, and the rows of a table: for one block that numbers them, and for several.
LOOKUPS = {
    "ids in a row": 40, "ids of two axes": 100_000, "one id": 5, "numbers": 7, "both cut": 12,
    "ids turned": 70_000,
}  # fmt: skip


def given(name: str, kind: str) -> tuple[list[Array], int]:
    """Cotangents, and ids over the whole table."""
    ids, _, dy = drawn(name, kind)
    n = LOOKUPS[name]
    if n > 1000:
        ids = np.where((ids > 0) & (ids < 8), ids * (n // 8), np.where(ids == 9, n, ids))
    return [dy, ids], n


def call(arrays: list[Array], n: int, **options: Any) -> Call:
    return call_of(OP, arrays, num_embeddings=n, **options)


def dense(ids: Array, dy: Array, n: int, padding: int | None) -> list[Array]:
    """The distinct rows with `n` behind them, their sums, and how large what is added up is."""
    want, size = sums(ids, dy, n, padding)
    rows = np.unique(ids[(ids >= 0) & (ids < n) & (ids != (-1 if padding is None else padding))])
    rows = np.concatenate([rows, np.full(ids.size - len(rows), n)])
    there = (rows < n)[:, None]
    return [rows, *(np.where(there, x[np.minimum(rows, n - 1)], 0) for x in (want, size))]


@cache
def entries(kind: str) -> tuple[Entry, ...]:
    """Every kernel of a dtype, compiled together."""
    found = {s.entry.symbol: s.entry for name in LOOKUPS
             for s in plan(call(*given(name, kind))).kernels}  # fmt: skip
    return tuple(found.values())


def run(steps: Steps, arrays: list[Array], seed: int, compiled: tuple[Entry, ...] = ()) -> None:
    kernels = tuple(dict.fromkeys(s.entry for s in steps.kernels))
    emulator.run(compiled or kernels, steps, arrays, seed, (SCALE,))


@pytest.mark.parametrize("kind", lanes.cases(DTYPES, "float32".__eq__))
@pytest.mark.parametrize("name", list(LOOKUPS))
@pytest.mark.parametrize("padding", [None, PADDING])
def test_rows_are_found_and_added_up(name: str, kind: str, padding: int | None) -> None:
    """Twice with the same bits, the threads in another order."""
    (dy, ids), n = given(name, kind)
    made = call([dy, ids], n, padding_idx=padding)
    steps, found = plan(made), []
    for seed in (1, 2):
        outs = emulator.outputs(made)
        run(steps, [dy, ids, *outs], seed, entries(kind))
        rows, want, size = dense(ids, dy, n, padding)
        assert np.array_equal(outs[0], rows)
        close(outs[1], want, size, kind)
        found.append(outs[1].tobytes())
    assert steps.deterministic
    assert found[0] == found[1]


def test_results_go_where_they_are_given() -> None:
    """Rows apart, sums of float32 beside 16 bits and not in C order."""
    (dy, ids), n = given("ids in a row", "bfloat16")
    rows = np.zeros(2 * ids.size, np.int64)[::2]
    values = np.zeros((dy.shape[1], ids.size), np.float32).T
    made = call([dy, ids], n)._replace(outs=((2,), (1, ids.size)), wide=(False, True))
    run(plan(made), [dy, ids, rows, values], 1)
    wanted, want, size = dense(ids, dy, n, None)
    assert np.array_equal(rows, wanted)
    close(values, want, size, "float32")


def test_the_place_of_an_id_out_of_range_is_reported() -> None:
    """That of the id, once, though entries of no row are left out of the lists as well."""
    (dy, ids), n = given("both cut", "float32")
    ids[...] = 1
    ids[4, 17] = -1
    made = call([dy, ids], n, mode="raise")
    ticket, record = index_errors.Ticket(made.problem), index_errors.Record()
    made = made._replace(listener=ctypes.addressof(record), ticket=ticket.number)
    run(plan(made), [dy, ids, *emulator.outputs(made)], 1)
    text = index_errors._explain(record.ticket, record.value, record.position)
    assert text == f"{OP}: ids: expected 0 <= i < 12, got -1 at position (4, 17)"
