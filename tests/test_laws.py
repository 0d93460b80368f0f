"""Every law over every op, on every backend, library and dtype that the package claims.

XLA compiles every case of every op anew, which takes longer than all else together. So outside of
the full lane JAX tries all dtypes of one op of each kind (`kinds`) and float32 of every op, each
form at one case. Parameters wider than activations are tried in bfloat16, of one op of each kind,
on JAX of each category. Laws that no dtype matters to are tried in two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import lanes
import pytest
from holding import hold
from kinds import FIRST, USUAL

from baracuda.testing.cases import LIBRARIES, Subject, subjects
from baracuda.testing.laws import LAWS

_LIBRARIES = ("numpy", "torch") if lanes.LANE == "quick" else LIBRARIES
# Runs that have the same bits.
RUNS = 20 if lanes.FULL else 5
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


def tried() -> Iterator[Subject]:
    """The subjects of this lane, by op, so that all of an op share its references."""
    for op in lanes.ops():
        for subject in subjects([op], _LIBRARIES):
            subject = replace(subject, runs=RUNS)
            if subject.library != "jax" or lanes.FULL:
                yield subject
            elif op in FIRST or subject.dtype == "float32":
                yield replace(subject, brief=True)


def usual(subject: Subject) -> bool:
    some = USUAL if subject.library == "jax" else FIRST
    if subject.mixed and not (subject.op in some and subject.dtype == "bfloat16"):
        return False
    if lanes.FULL and left_out(subject):
        return False
    return subject.library != "jax" or subject.brief


def left_out(subject: Subject) -> tuple[str, ...]:
    """The laws that are tried in other dtypes of the op, and in this one in the full lane alone."""
    other = set(lanes.registry[subject.op].spec.dtypes) - {subject.dtype}
    if "float32" not in other:
        return ()
    # A program that is traced is compiled once more.
    traced = () if subject.library != "jax" else ("traces_as_it_runs",)
    return traced if lanes.common(subject.dtype) else (*traced, *ALIKE)


def test_no_law_is_left_out_in_every_dtype() -> None:
    assert {*ALIKE, "traces_as_it_runs"} <= {*LAWS}
    for subject in tried():
        assert subject.dtype != "float32" or not left_out(subject)


@pytest.mark.parametrize("subject", lanes.cases(tried(), usual), ids=str)
def test_laws(subject: Subject) -> None:
    hold(subject, () if lanes.FULL else left_out(subject))
