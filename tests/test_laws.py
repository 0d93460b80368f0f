"""Every law over every op, on every backend, library and dtype that the package claims.

In the full lane that is each of them at every case. Elsewhere an op is tried at every case in one
dtype on NumPy and in one on torch. On each backend of each library its dtypes take turns, and it
is tried in its last form; an op of the covering set in its first form too. XLA compiles each form
of each op anew, which takes longer than all else together: on JAX each op is tried in float32 and
in its last form, those of the covering set in another dtype too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import lanes
import pytest
from holding import hold
from kinds import COVERING

from baracuda.testing.cases import LIBRARIES, Subject, subjects, turn
from baracuda.testing.laws import LAWS

_LIBRARIES = ("numpy", "torch") if lanes.LANE == "quick" else LIBRARIES
# Runs that have the same bits.
RUNS = 20 if lanes.FULL else 2
# Where every case is tried: on a library's own backend, in a dtype of 32 bits and in one of 16.
WHOLE = {"numpy": "float32", "torch": "bfloat16"}
# How arrays lie, where a problem is cut, what its plan is found by and what an index may be is the
# same in every dtype. Run-time values are not here: their precision is the accumulate dtype's.
ALIKE = (
    "layouts_agree",
    "broadcast_inputs_agree",
    "inputs_stay_as_they_are",
    "plans_are_reused",
    "declared_determinism_holds",
    "parts_make_the_whole",
    "indices_obey_their_policy",
)
# What is derived from the declaration alone, and compiles each program once more on JAX.
DERIVED = ("traces_as_it_runs", "arrays_may_be_run_time_values")


def tried() -> Iterator[Subject]:
    """The subjects of this lane, by op, so that all of an op share its references."""
    for op in lanes.ops():
        for subject in subjects([op], _LIBRARIES):
            subject = replace(subject, runs=RUNS)
            if lanes.FULL or whole(subject):
                yield subject
            elif has_its_turn(subject):
                both = op in COVERING and subject.library != "jax"
                yield replace(subject, ends=2 if both else 1)


def whole(subject: Subject) -> bool:
    """Whether an op is tried at every case in every lane; one made of others on NumPy alone."""
    if subject.spec.composite and subject.library != "numpy":
        return False
    dtypes, own = subject.spec.dtypes, WHOLE.get(subject.library, "")
    dtype = own if own in dtypes else dtypes[0]
    return subject.backend == subject.library and subject.dtype == dtype and not subject.mixed


@cache
def claims(op: str) -> dict[tuple[str, str], list[str]]:
    """The dtypes of an op, by backends and the libraries whose arrays they take."""
    found: dict[tuple[str, str], list[str]] = {}
    for subject in subjects([op]):
        if not subject.mixed:
            found.setdefault((subject.backend, subject.library), []).append(subject.dtype)
    return found


def has_its_turn(subject: Subject) -> bool:
    """Whether an op is tried there outside of the full lane."""
    op, dtype, here = subject.op, subject.dtype, (subject.backend, subject.library)
    places = claims(op)
    if subject.mixed:
        # Each mixture of an op in one of these.
        mixing = [place for place, dtypes in places.items() if "bfloat16" in dtypes]
        own = mixing[turn("-".join([op, *subject.mixed])) % len(mixing)]
        return dtype == "bfloat16" and here == own
    if subject.spec.moves:
        # Its dtypes are many, and its calls cheap.
        return True
    if subject.library == "jax":
        others = [d for d in places[here] if d != "float32"]
        return dtype == "float32" or (op in COVERING and dtype == others[turn(op) % len(others)])
    number = turn(op) + [*places].index(here)
    return dtype == places[here][number % len(places[here])]


def usual(subject: Subject) -> bool:
    return whole(subject) or not lanes.FULL


def left_out(subject: Subject) -> tuple[str, ...]:
    """The laws that the op is under in other dtypes or places, and here in the full lane alone.

    Each op is under all of them on NumPy, those of the covering set in every place.
    """
    if whole(subject) and (subject.library == "numpy" or subject.op in COVERING):
        return ()
    if subject.op not in COVERING:
        return ALIKE if whole(subject) else (*ALIKE, *DERIVED)
    other = set(lanes.registry[subject.op].spec.dtypes) - {subject.dtype}
    if "float32" not in other:
        return ()
    # A program that is traced is compiled once more.
    traced = () if subject.library != "jax" else ("traces_as_it_runs",)
    return traced if lanes.common(subject.dtype) else (*traced, *ALIKE)


def test_no_law_is_left_out_in_every_dtype() -> None:
    assert {*ALIKE, *DERIVED} <= {*LAWS}
    under_all = {s.op for s in tried() if s.library == "numpy" and not left_out(s)}
    assert under_all == {*lanes.ops()}
    for subject in tried():
        if subject.op in COVERING:
            assert subject.dtype != "float32" or not left_out(subject)
            assert not (whole(subject) and left_out(subject))


@pytest.mark.parametrize("subject", lanes.cases(tried(), usual), ids=str)
def test_laws(subject: Subject) -> None:
    hold(subject, () if lanes.FULL else left_out(subject))
