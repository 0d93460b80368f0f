"""The law that parts make the whole: it fails for an op that says it can be cut and cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack

import lanes
import numpy as np
import pytest

from baracuda.calls import sets
from baracuda.calls.cache import plan_cache
from baracuda.calls.op import op, registry
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case
from baracuda.libraries import A, library_of
from baracuda.testing import cuts
from baracuda.testing.cases import Subject
from baracuda.testing.laws import LAWS

CASES = (Case({"s": (5, 7)}), Case({"s": (1, 3)}))


def parts_of_all(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Each element as a part of the sum of all."""
    return x / library_of(x).xp.sum(x)


def numbered(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Each element times its place along the last axis."""
    return x * library_of(x).xp.arange(x.shape[-1], dtype=x.dtype)


def rounded_apart(x: A, /, **dispatch: Unpack[Dispatch]) -> A:
    """Each element, off by one bit where there are few: within bounds, and other bits."""
    return x * (1 + 2.0**-23 * (x.shape[0] < 3))


@pytest.fixture
def declared() -> Iterator[Any]:
    made: list[str] = []

    def declare(function: Any, *forms: str, **more: Any) -> Any:
        made.append(function.__name__)
        return op(*forms, category="activation", cases=CASES, **more)(function)

    yield declare
    for name in made:
        del registry[name]
    # Of the next op of this name.
    plan_cache.clear()


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("function", [parts_of_all, numbered])
def test_an_op_that_is_wrongly_cut_breaks_it(declared: Any, function: Any, library: str) -> None:
    made = declared(function, "x[*s] -> y[*s]")
    subject = Subject(made.spec.name, library, library, "float32")
    with pytest.raises(AssertionError, match=r"cut along s[01]: s=\(5,7\)|member"):
        LAWS["parts_make_the_whole"](subject)


def test_an_op_of_few_elements_that_rounds_otherwise_breaks_it(declared: Any) -> None:
    made = declared(rounded_apart, "x[*s] -> y[*s]", elementwise=True)
    with pytest.raises(AssertionError, match="other bits"):
        LAWS["parts_make_the_whole"](Subject(made.spec.name, "numpy", "numpy", "float32"))


def test_what_says_that_its_group_is_not_to_be_cut_keeps_it(declared: Any) -> None:
    made = declared(parts_of_all, "x[*s] -> y[*s]", batches=())
    assert (
        LAWS["parts_make_the_whole"](Subject(made.spec.name, "numpy", "numpy", "float32")) is None
    )


def test_parts_are_uneven_and_of_one_element_too() -> None:
    lengths = [piece.stop - piece.start for piece in cuts._pieces(9)]
    assert lengths == [1, 3, 4, 1]
    assert [piece.stop - piece.start for piece in cuts._pieces(2)] == [1, 1]


# A part does not say which elements it has; a sum of all elements has no axis that is cut.
CUT = [
    name
    for name in lanes.ops()
    # Its rows are numbered among all ids.
    if name != "embedding_backward_rows"
    and not (all(map(registry[name].spec.numbers, registry[name].spec.signatures))
            or sets.summed(registry[name].spec))
]  # fmt: skip


class Cut(Exception):
    """A part is about to be computed, which the law itself tries."""


@pytest.mark.parametrize("name", CUT)
def test_every_op_is_cut_or_batched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any) -> None:
        raise Cut

    monkeypatch.setattr(cuts, "_run", stop)
    calls = Subject(name, "array_api", "numpy", "float32", brief=True).calls()
    # Where nothing stops, no axis of any form can be cut: say so above.
    with pytest.raises(Cut):
        list(map(cuts.hold, calls))


def test_positions_are_given_to_parts_that_do_not_begin_at_the_first() -> None:
    call = next(iter(Subject("rope", "array_api", "numpy", "float32", brief=True).calls()))
    given: list[Any] = []
    run = cuts._run

    def seen(one: Any, arrays: Any, options: Any) -> Any:
        given.append(arrays.get("positions"))
        return run(one, arrays, options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "_run", seen)
        cuts.hold(call)
    assert any(x is not None and np.min(x) > 0 for x in given)
