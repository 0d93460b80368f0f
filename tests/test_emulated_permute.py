"""Rows of tokens, sent and taken back, without a GPU: maps of all kinds, any layout."""

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
from test_emulated_embedding import call_of, cut
from test_emulated_segments import close

from baracuda.backends.cuda import index_errors
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, Steps, strides_of
from baracuda.backends.cuda.schedules import plan

Array = NDArray[Any]
DTYPES = ("float32", "bfloat16", "float16", "float64")
# Tokens, choices, the rest of a row; rows that they go to.
SHAPES = {
    "each row once": ((20, 2), (40,), 40),
    "padded": ((13, 9), (8,), 200),
    "odd rows": ((9, 3), (3, 3), 40),
    "long rows": ((3, 2), (2600,), 9),
    "numbers": ((30, 2), (), 64),
    "some rows often": ((40, 3), (16,), 7),
    "no tokens": ((0, 2), (8,), 5),
    "no columns": ((4, 2), (0,), 9),
    "no choices": ((5, 0), (8,), 5),
}
PAIRS = lanes.turns(SHAPES, DTYPES, DTYPES[:2])
OPS = ("permute_rows", "permute_rows_backward", "unpermute_rows", "unpermute_rows_backward")


def drawn(name: str, kind: str) -> dict[str, Array]:
    """Rows of both kinds, and a map: each row at most once where there are enough of them."""
    (t, k), d, n = SHAPES[name]
    rng = np.random.default_rng(len(name))
    entries = rng.permutation(n)[: t * k] if n >= t * k else rng.integers(0, n, t * k)
    entries[3::11], entries[5::17] = n, -1
    dtype = getattr(ml_dtypes, kind, kind)
    tokens, rows, probs = (rng.standard_normal(s) for s in ((t, *d), (n, *d), (t, k)))
    found = {"tokens": tokens, "rows": rows, "probs": probs}
    return {**{x: v.astype(dtype) for x, v in found.items()}, "map": entries.reshape(t, k)}


def call(op: str, t: dict[str, Array]) -> tuple[Call, list[Array]]:
    tokens, rows, at, probs = (t[name] for name in ("tokens", "rows", "map", "probs"))
    arrays = {
        "permute_rows": [tokens, at],
        "permute_rows_backward": [rows, at],
        "unpermute_rows": [rows, at, probs],
        "unpermute_rows_backward": [tokens, rows, at, probs],
    }[op]
    options = {} if op.startswith("un") else {"num_rows": len(rows)}
    return call_of(op, arrays, **options), arrays


def wanted(op: str, t: dict[str, Array]) -> list[tuple[Array, Array]]:
    """Entry by entry in float64; and how large what is added up is."""
    tokens, rows, probs = (t[name].astype(np.float64) for name in ("tokens", "rows", "probs"))
    to_tokens, to_rows, products = np.zeros((2, *tokens.shape)), *[
        np.zeros((2, *x.shape)) for x in (rows, probs)
    ]  # fmt: skip
    weights = probs if op.startswith("un") else np.ones_like(probs)
    for (token, choice), row in np.ndenumerate(t["map"]):
        if not 0 <= row < len(rows):
            continue
        weight, product = weights[token, choice], tokens[token] * rows[row]
        to_rows[:, row] += weight * tokens[token], abs(weight * tokens[token])
        to_tokens[:, token] += weight * rows[row], abs(weight * rows[row])
        products[:, token, choice] = product.sum(), abs(product).sum()
    found = {
        "permute_rows": [to_rows],
        "unpermute_rows_backward": [to_rows, products],
    }
    return [(x[0], x[1]) for x in found.get(op, [to_tokens])]


@cache
def entries(kind: str) -> tuple[Entry, ...]:
    """Every kernel of a dtype, compiled together."""
    names = lanes.tried_with(kind, PAIRS)
    every = [call(op, drawn(name, kind))[0] for name in names for op in OPS]
    found = {s.entry.symbol: s.entry for each in every for s in plan(each).kernels}
    return tuple(found.values())


def kernels(steps: Steps) -> tuple[Entry, ...]:
    return tuple(dict.fromkeys(s.entry for s in steps.kernels))


def run(op: str, t: dict[str, Array], seed: int, compiled: tuple[Entry, ...] = ()) -> list[Array]:
    made, arrays = call(op, t)
    steps = plan(made)
    outs = [emulator.empty(x.shape, x.dtype) for x in made.problem.outputs]
    emulator.run(compiled or kernels(steps), steps, [*arrays, *outs], seed, ())
    assert steps.deterministic
    return outs


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_rows_are_sent_and_taken_back(name: str, kind: str) -> None:
    """Twice with the same bits, the threads in another order."""
    t = drawn(name, kind)
    for op in OPS:
        first, again = (run(op, t, seed, entries(kind)) for seed in (1, 2))
        for got, same, (want, size) in zip(first, again, wanted(op, t), strict=True):
            close(got, want, size, kind)
            assert got.tobytes() == same.tobytes()


@pytest.mark.parametrize("op", OPS)
def test_arrays_may_lie_anywhere(op: str) -> None:
    """Rows, maps and probabilities that are not side by side; probabilities of float32."""
    t = drawn("each row once", "bfloat16")
    t = {name: cut(x) for name, x in t.items()}
    t["map"] = np.asfortranarray(t["map"])
    t["probs"] = np.repeat(t["probs"].astype(np.float32), 2, axis=0)[::2]
    for got, (want, size) in zip(run(op, t, 3), wanted(op, t), strict=True):
        close(got, want, size, "bfloat16")


@pytest.mark.parametrize("op", ["permute_rows_backward", "unpermute_rows_backward"])
@pytest.mark.parametrize("turned", [False, True])
def test_gradients_are_added_to_given_arrays(op: str, turned: bool) -> None:
    t = drawn("some rows often", "bfloat16")
    made, arrays = call(op, t)
    outs = [np.ones(x.shape[::-1] if turned else x.shape, t["rows"].dtype)
            for x in made.problem.outputs]  # fmt: skip
    outs = [x.T for x in outs] if turned else outs
    strides = tuple(tuple(s // x.itemsize for s in x.strides) for x in outs)
    steps = plan(made._replace(add=True, outs=strides))
    emulator.run(kernels(steps), steps, [*arrays, *outs], 1, ())
    for got, (want, size) in zip(outs, wanted(op, t), strict=True):
        close(got, want + 1, size + 1, "bfloat16")


def test_no_sum_depends_on_how_wide_accesses_are() -> None:
    t = drawn("long rows", "float32")
    made, arrays = call("unpermute_rows_backward", t)
    found = []
    for alignment in (4, 16):
        steps = plan(made._replace(alignment=alignment))
        outs = [emulator.empty(x.shape, x.dtype) for x in made.problem.outputs]
        emulator.run(kernels(steps), steps, [*arrays, *outs], 1, ())
        found.append([x.tobytes() for x in outs])
    assert found[0] == found[1]


@pytest.mark.parametrize("op", OPS)
def test_the_place_of_an_entry_out_of_range_is_reported(op: str) -> None:
    t = drawn("padded", "float32")
    t["map"] = np.arange(t["map"].size).reshape(t["map"].shape)
    t["map"][11, 4] = 233
    options = {} if op.startswith("un") else {"num_rows": 200}
    arrays = call(op, t)[1]
    made = call_of(op, arrays, mode="raise", **options)
    ticket, record = index_errors.Ticket(made.problem), index_errors.Record()
    made = made._replace(listener=ctypes.addressof(record), ticket=ticket.number)
    assert made.outs == tuple(strides_of(x) for x in made.problem.outputs)
    steps = plan(made)
    outs = [emulator.empty(x.shape, x.dtype) for x in made.problem.outputs]
    emulator.run(kernels(steps), steps, [*arrays, *outs], 1, ())
    text = index_errors._explain(record.ticket, record.value, record.position)
    assert text == f"{op}: row_map: expected 0 <= i < 200, got 233 at position (11, 4)"
