"""Embeddings and their gradients without a GPU: any layout of ids, cotangents and outputs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import emulator
import lanes
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from tuning import retuned

from baracuda.backends.cuda import index_errors
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.schedules import plan
from baracuda.backends.cuda.schedules.indexed import lists as indexed_lists
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT

Array = NDArray[Any]
FACTS = DeviceFacts(0, "sm_90", 4, 232448)
# A device of which every problem fills the multiprocessors.
ALONE = FACTS._replace(multiprocessors=1)
DTYPES = ("float32", "bfloat16", "float16", "float64")
SCALE, PADDING = -1.5, 3


class Lookup(NamedTuple):
    """Shapes of ids and of the table, and how ids and cotangents lie."""

    ids: tuple[int, ...]
    table: tuple[int, int]
    lies: Callable[[Array], Array] = lambda x: x
    dy: Callable[[Array], Array] = lambda x: x


def cut(x: Array) -> Array:
    """Without the last line of the second axis: what follows is not side by side."""
    wide = np.concatenate([x, x[:, :1]], axis=1)
    return wide[:, :-1]


LOOKUPS = {
    "ids in a row": Lookup((300,), (40, 72)),
    "ids of two axes": Lookup((6, 50), (9, 33)),
    "one id": Lookup((), (5, 8)),
    "numbers": Lookup((200,), (7, 1)),
    "ids cut": Lookup((6, 50), (12, 16), cut),
    "cotangents cut": Lookup((6, 50), (12, 16), lambda x: x, cut),
    "both cut": Lookup((6, 50), (12, 16), cut, cut),
    "columns apart": Lookup((70,), (8, 12), lambda x: x, lambda x: np.repeat(x, 2, -1)[:, ::2]),
    "ids apart": Lookup((70,), (8, 12), lambda x: np.repeat(x, 2)[::2]),
    "ids turned": Lookup((70,), (8, 12), lambda x: x[::-1].copy()[::-1]),
}

PAIRS = lanes.turns(LOOKUPS, DTYPES, DTYPES[:2])


def drawn(name: str, kind: str) -> tuple[Array, Array, Array]:
    """ids of which some are out of range, the table, and cotangents."""
    rng, look = np.random.default_rng(len(name)), LOOKUPS[name]
    n, d = look.table
    ids = np.asarray(np.minimum(rng.zipf(1.3, look.ids) - 1, n - 1), np.int64)
    if ids.ndim:
        ids.reshape(-1)[3::41], ids.reshape(-1)[5::37] = n, -1
    dtype = getattr(ml_dtypes, kind, kind)
    weight = rng.standard_normal((n, d)).astype(dtype)
    dy = np.asarray(rng.standard_normal((*look.ids, d)), dtype)
    return look.lies(ids), weight, look.dy(dy)


def call_of(op: str, arrays: list[Array], out: Array | None = None, **options: Any) -> Call:
    spec = registry[op].spec
    given = {"mode": "drop", **options}
    problem = check.problem(spec, arrays, given, DEFAULT)
    outs = tuple(strides_of(x) for x in problem.outputs)
    if out is not None:
        outs = (tuple(s // out.itemsize for s in out.strides),)
    alignment = min(x.alignment for x in problem.given)
    return Call(problem, FACTS, outs, alignment=alignment)


def given_outputs(wide: bool, turned: bool, shape: tuple[int, ...], dtype: Any) -> Array:
    """Ones of float32 or of 16 bits, in C order or not."""
    out = np.ones(shape[::-1] if turned else shape, np.float32 if wide else dtype)
    return out.T if turned else out


def into(ids: Array, weight: Array, dy: Array, wide: bool, turned: bool, add: bool) -> Call:
    out = given_outputs(wide, turned, weight.shape, dy.dtype)
    call = call_of("embedding_backward", [dy, ids], out, weight_shape=weight.shape)
    return call._replace(add=add, wide=(wide,) if wide else ())


@cache
def entries(kind: str) -> tuple[Entry, ...]:
    """Every kernel of a dtype, compiled together."""
    calls = []
    names = lanes.tried_with(kind, PAIRS)
    for name in (*names, "ids of two axes"):
        ids, weight, dy = drawn(name, kind)
        calls.append(call_of("embedding", [ids, weight]))
        calls.append(call_of("embedding_backward", [dy, ids], weight_shape=weight.shape))
    if kind == "bfloat16":
        for how in product((False, True), repeat=3):
            calls.append(into(*drawn("ids of two axes", kind), *how))
    found = {s.entry.symbol: s.entry for call in calls for s in plan(call).kernels}
    return tuple(found.values())


def run(steps: Steps, kind: str, arrays: list[Array], seed: int = 1) -> None:
    emulator.run(entries(kind), steps, arrays, seed, (SCALE,))


def sums(ids: Array, dy: Array, n: int, padding: int | None) -> tuple[Array, Array]:
    """In float64, and how large what is added up is."""
    flat = dy.reshape(-1, dy.shape[-1]).astype(np.float64)
    at = ids.reshape(-1)
    good = (at >= 0) & (at < n) & (at != padding)
    found = []
    for x in (flat, abs(flat)):
        out = np.zeros((n, dy.shape[-1]))
        np.add.at(out, at[good], x[good])
        found.append(out * (SCALE if x is flat else abs(SCALE)))
    return found[0], found[1]


def close(got: Array, want: Array, size: Array, kind: str) -> None:
    own = float(ml_dtypes.finfo(got.dtype).eps)
    sums = 2.0**-52 if kind == "float64" else 2.0**-23
    assert np.all(abs(got.astype(np.float64) - want) <= abs(want) * own + size * sums * 64 + 1e-37)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_rows_are_looked_up_in_any_layout(name: str, kind: str) -> None:
    ids, weight, _ = drawn(name, kind)
    out = emulator.empty((*ids.shape, weight.shape[1]), kind)
    run(plan(call_of("embedding", [ids, weight])), kind, [ids, weight, out])
    n = len(weight)
    good = (ids >= 0) & (ids < n)
    want = weight.astype(np.float64)[np.where(good, ids, 0)] * good[..., None] * SCALE
    close(out, want, abs(want), kind)


@pytest.mark.parametrize(("name", "kind"), PAIRS)
@pytest.mark.parametrize("padding", [None, PADDING])
def test_rows_are_added_up_in_any_layout(name: str, kind: str, padding: int | None) -> None:
    ids, weight, dy = drawn(name, kind)
    want, size = sums(ids, dy, len(weight), padding)
    options = {"weight_shape": weight.shape, "padding_idx": padding}
    steps, found = plan(call_of("embedding_backward", [dy, ids], **options)), []
    for seed in (1, 2):
        found.append(emulator.empty(weight.shape, kind))
        run(steps, kind, [dy, ids, found[-1]], seed)
        close(found[-1], want, size, kind)
    assert steps.deterministic
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("empty", [False, True])
def test_sums_go_into_an_output_that_is_given(
    turned: bool, add: bool, wide: bool, empty: bool
) -> None:
    """As it lies, of float32 beside 16 bits, added to; where there are no ids at all, too."""
    ids, weight, dy = drawn("ids of two axes", "bfloat16")
    if empty:
        ids, dy = ids[:0], dy[:0]
    out = given_outputs(wide, turned, weight.shape, dy.dtype)
    steps = plan(into(ids, weight, dy, wide, turned, add))
    run(steps, "bfloat16", [dy, ids, out])
    want, size = sums(ids, dy, len(weight), None)
    close(out, want + add, size + add, "float32")


def test_the_place_of_an_id_out_of_range_is_reported() -> None:
    """By both ops: the position is one of the ids, not of the rows."""
    ids, weight, dy = drawn("ids of two axes", "float32")
    ids[...] = 1
    ids[4, 17] = -7
    for op, arrays, options in (
        ("embedding", [ids, weight], {}),
        ("embedding_backward", [dy, ids], {"weight_shape": weight.shape}),
    ):
        call = call_of(op, arrays, mode="raise", **options)
        ticket, record = index_errors.Ticket(call.problem), index_errors.Record()
        address = ctypes.addressof(record)
        steps = plan(call._replace(listener=address, ticket=ticket.number))
        out = np.empty(call.problem.outputs[0].shape, np.float32)
        run(steps, "float32", [*arrays, out])
        text = index_errors._explain(record.ticket, record.value, record.position)
        assert text == f"{op}: ids: expected 0 <= i < 9, got -7 at position (4, 17)"


@pytest.mark.parametrize("rows", [13, 300, 3000])
@pytest.mark.parametrize("name", ["uniform", "mostly one", "ends"])
def test_a_long_index_is_sorted(name: str, rows: int) -> None:
    """Entries of a row keep their order: short lists have the bits of an index that is inverted."""
    rng, many = np.random.default_rng(3), 9000
    ids = {
        "uniform": rng.integers(-1, rows + 1, many),
        "mostly one": np.where(rng.random(many) < 0.9, 11, rng.integers(0, rows, many)),
        "ends": np.where(np.arange(many) < 8200, 2**32, rows - 1),
    }[name]
    padding = None if rows == 13 else PADDING
    ids[::50] = PADDING
    dy = rng.standard_normal((many, 16)).astype(np.float32)
    options = {"weight_shape": (rows, 16), "padding_idx": padding}
    record, found = index_errors.Record(), []
    call = call_of("embedding_backward", [dy, ids], mode="raise", **options)
    call = call._replace(listener=ctypes.addressof(record))
    strange = np.flatnonzero((ids < 0) | (ids >= rows))
    # Digits of at most 5 bits: one of 13 rows, two of 300, three of 3,000.
    for least in (many, many + 1):
        with retuned(indexed_lists, sorted=least), pytest.MonkeyPatch.context() as patch:
            patch.setattr(indexed_lists, "_DIGIT_BITS", 5)
            steps = plan(call)
        digits = -(-rows.bit_length() // 5)
        assert len(steps.kernels) == (2 + 3 * digits if least == many else 2)
        record.state, out = 0, emulator.empty((rows, 16), "float32")
        made = tuple(dict.fromkeys(s.entry for s in steps.kernels))
        emulator.run(made, steps, [dy, ids, out], 3, (SCALE,))
        close(out, *sums(ids, dy, rows, padding), "float32")
        found.append(out)
        assert record.state == (2 if strange.size else 0)
        if strange.size:
            # An entry stands for the elements of its row.
            place = record.position // dy.shape[1]
            assert place in strange
            assert record.value == ids[place]
    # Longer lists are cut at other places.
    short = np.bincount(ids[(ids >= 0) & (ids < rows)], minlength=rows) <= 64
    assert short.any() or rows == 13
    assert found[0][short].tobytes() == found[1][short].tobytes()
