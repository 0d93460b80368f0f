"""Calls of one op that take turns (forms, shapes, dtypes, options) find their plans without a key.

What a call looks up is counted, not timed: a key is made of facts of every array, a problem of
everything that a call says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
import stub_device
import torch

import baracuda as bc
from baracuda.calls import check
from baracuda.calls.op import Op, registry
from baracuda.declaration.backend import Misfit
from baracuda.libraries import FACTS, alignment, library
from baracuda.testing.cases import Subject, to_library

Task = Callable[[], Any]
LIBRARIES = ("numpy", "torch")


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every key and every problem that is made, by op."""
    notes: list[str] = []
    alias, problem = Op._alias, check.problem

    def noted(self: Any, *given: Any) -> Any:
        notes.append(f"key of {self.spec.name}")
        return alias(self, *given)

    def planned(spec: Any, *given: Any) -> Any:
        notes.append(f"problem of {spec.name}")
        return problem(spec, *given)

    monkeypatch.setattr(Op, "_alias", noted)
    monkeypatch.setattr(check, "problem", planned)
    bc.plan_cache.clear()
    yield notes
    bc.plan_cache.clear()


def in_turns(tasks: Sequence[Task], looked_up: list[str], ops: Sequence[str]) -> None:
    """After the first turn none makes a problem, after the second none makes a key."""
    for task in tasks:
        task()
    looked_up.clear()
    for task in tasks:
        task()
    assert not [note for note in looked_up if note.startswith("problem")]
    order = list(tasks)
    looked_up.clear()
    for seed in range(2):
        for task in order:
            task()
        # Any order will do: what follows what is only the first guess.
        random.Random(seed).shuffle(order)
    assert not {f"key of {op}" for op in ops} & set(looked_up)


def tensors(name: str, *shapes: tuple[int, ...], dtype: str = "float32") -> list[Any]:
    return [to_library(np.ones(shape, dtype), name) for shape in shapes]


def kinds(name: str) -> dict[str, list[Task]]:
    """What a program may alternate between."""
    make = partial(tensors, name)
    dy, x, a, b, w = make((4, 8), (4, 16), (4, 8), (4, 8), (16,))
    split, norm = bc.swiglu_backward, bc.rms_norm
    pairs = [make((4, i), (4, 2 * i)) for i in range(1, 21)]
    columns = [make((4, i), (4, 2 * i))[::-1] for i in range(1, 21)]
    wide = make((4, 8), (4, 16), dtype="float64")
    return {
        "forms": [partial(split, dy, x), partial(split, dy, a, b)],
        "with and without weight": [partial(norm, x), partial(norm, x, w), partial(norm, x, None)],
        "shapes": [partial(split, *pair) for pair in pairs],
        "shapes of the second": [partial(bc.gather, c[0], _index(name, n), axis=1)
                                 for n, c in enumerate([columns[-1]] * 20, 1)],
        "dtypes": [partial(split, dy, x), partial(split, *wide)],
        "options": [partial(split, dy, x), partial(split, dy, x, axis=1),
                    partial(split, dy, x, gate_first=True), partial(split, dy[:, :4], a)],
        "layouts": [partial(split, dy, x), partial(split, make((8, 4))[0].T, x)],
    }  # fmt: skip


def _index(name: str, count: int) -> Any:
    return to_library(np.zeros((4, count), np.int64), name)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("kind", list(kinds("numpy")))
def test_calls_in_turns_make_no_key(kind: str, name: str, looked_up: list[str]) -> None:
    tasks = kinds(name)[kind]
    in_turns(tasks, looked_up, ["swiglu_backward", "rms_norm", "gather"])


@pytest.mark.parametrize("kind", list(kinds("numpy")))
def test_kernels_in_turns_make_no_key(
    kind: str, looked_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = stub_device.install(monkeypatch)
    tasks = kinds("torch")[kind]
    in_turns(tasks, looked_up, ["swiglu_backward", "rms_norm", "gather"])
    # Each launched its own kernel each time.
    device.launched.clear()
    for task in tasks:
        task()
    assert len(device.launched) >= len(tasks)


@pytest.mark.parametrize("op", list(registry))
def test_all_forms_and_cases_of_an_op_in_turns(op: str, looked_up: list[str]) -> None:
    for name in LIBRARIES:
        tasks: list[Task] = []
        for dtype, most in (("float32", None), ("float64", 1)):
            subject = Subject(op, "", name, dtype)
            for call in islice(subject.calls(), most):
                tasks.append(partial(subject.function, *call.given(), **call.options))
        in_turns(tasks, looked_up, [op])


def test_watched_tensors_and_plain_ones_in_turns(looked_up: list[str]) -> None:
    x, w = torch.ones(4, 8), torch.ones(4, 8, requires_grad=True)

    def unwatched() -> None:
        with torch.no_grad():
            assert not bc.tanhshrink(w).requires_grad

    def watched() -> None:
        assert bc.tanhshrink(w).requires_grad

    frozen = torch.nn.Parameter(x, requires_grad=False)
    tasks = [partial(bc.tanhshrink, x), partial(bc.tanhshrink, frozen), watched, unwatched]
    in_turns(tasks, looked_up, ["tanhshrink"])


def test_one_array_in_two_places_and_two_arrays_in_turns(looked_up: list[str]) -> None:
    """Guards of torch want each tensor once."""
    x, y, w, b = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8), torch.randn(8)
    tasks = [
        partial(bc.relu_backward, x, y), partial(bc.relu_backward, x, x),
        partial(bc.layer_norm, x, w, b), partial(bc.layer_norm, x, w, w),
        partial(bc.layer_norm, x, w), partial(bc.layer_norm_backward, x, x, w),
    ]  # fmt: skip
    in_turns(tasks, looked_up, ["relu_backward", "layer_norm", "layer_norm_backward"])
    torch.testing.assert_close(bc.layer_norm(x, w, w), torch.layer_norm(x, (8,), w, w))
    torch.testing.assert_close(bc.relu_backward(x, x), x.clamp(min=0))


def test_more_kinds_than_are_remembered_are_right(looked_up: list[str]) -> None:
    arrays = [np.linspace(-1, 1, n, dtype=np.float32) for n in range(1, 200)]
    want = [x - np.tanh(x) for x in arrays]
    for _ in range(3):
        for x, y in zip(arrays, want, strict=True):
            np.testing.assert_allclose(bc.tanhshrink(x), y, atol=1e-6)
    assert sum(note.startswith("problem") for note in looked_up) == len(arrays)


def test_what_was_remembered_is_forgotten_with_the_cache() -> None:
    dy, x, a, b = tensors("torch", (4, 8), (4, 16), (4, 8), (4, 8))
    for _ in range(3):
        bc.swiglu_backward(dy, x)
        bc.swiglu_backward(dy, a, b)
    bc.plan_cache.clear()
    bc.swiglu_backward(dy, a, b)
    bc.swiglu_backward(dy, x)
    assert bc.plan_cache.info()[:3] == (0, 2, 2)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[stub_device.StubDevice]:
    """A device on which the alignment of an array is that of its address."""
    device = stub_device.install(monkeypatch)
    adapter: Any = type(library("torch"))
    facts, describe = adapter.facts, adapter.describe
    aligned = lambda x: alignment(x.data_ptr())  # noqa: E731
    monkeypatch.setattr(adapter, "facts", lambda self, x: (*facts(self, x), aligned(x)))
    monkeypatch.setattr(
        adapter, "describe", lambda self, x: describe(self, x)._replace(alignment=aligned(x))
    )
    monkeypatch.setitem(FACTS, torch.Tensor, library("torch").facts)
    bc.plan_cache.clear()
    yield device
    bc.plan_cache.clear()


@pytest.fixture
def misfits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every run that found arrays less aligned than planned."""
    from baracuda.backends.cuda import runner

    notes: list[str] = []

    class Noted(Misfit):
        def __init__(self) -> None:
            notes.append("misfit")

    monkeypatch.setattr(runner, "Misfit", Noted)
    return notes


def test_arrays_aligned_less_do_not_take_the_plan_of_others(
    device: stub_device.StubDevice, misfits: list[str]
) -> None:
    """A plan for any alignment fits arrays of the widest too; they keep the kernel of their own."""
    room = torch.ones(33)
    x, off = room[:32].reshape(4, 8), room[1:].reshape(4, 8)
    assert x.data_ptr() % 16 == 0

    def kernel(y: Any) -> str:
        device.launched.clear()
        bc.glu(y)
        return str(device.launched[-1].symbol)

    other = torch.ones(2, 8)
    for _ in range(3):
        for y, width in ((off, "_v1_"), (other, "_v4_"), (x, "_v4_"), (off, "_v1_"), (x, "_v4_")):
            assert width in kernel(y)
        bc.glu(other)
    # In turns each is found without a run that fails, once that was learned.
    misfits.clear()
    for y in (off, x) * 4:
        bc.glu(y)
    assert len(misfits) <= 1


def test_chunks_aligned_less_find_their_plan_at_once(
    device: stub_device.StubDevice, misfits: list[str], looked_up: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from baracuda.backends.cuda import schedules

    hidden, weight = torch.ones(9, 7), torch.ones(5, 7)
    target = torch.zeros(9, dtype=torch.int64)
    assert target.data_ptr() % 16 == 0
    # The targets of the second chunk begin at 8 bytes from a multiple of 16, and are taken for
    # arrays of which kernels read vectors.
    monkeypatch.setattr(schedules, "ENTRIES", frozenset())
    tasks = [
        partial(bc.linear_cross_entropy, hidden, weight, target, chunk=3),
        partial(bc.linear_cross_entropy_with_gradient, hidden, weight, target, chunk=3),
    ]
    for task in tasks:
        for _ in range(2):
            task()
        misfits.clear()
        looked_up.clear()
        device.launched.clear()
        task()
        assert not misfits
        assert not looked_up
        assert len(device.launched) >= 3


def test_what_is_remembered_is_bounded() -> None:
    arrays = [np.ones((n, 2), np.float32) for n in range(1, 400)]
    for x in arrays:
        bc.tanhshrink(x)
    op: Any = bc.tanhshrink
    _, kinds = op._recent._kinds
    assert 0 < len(kinds) < 100
    for _ in range(50):
        bc.tanhshrink(arrays[0].astype(np.float64))
        bc.tanhshrink(arrays[0])
    assert max(map(len, op._recent._kinds[1].values())) < 10
