"""Every law over every op, on every backend, library and dtype that the package claims.

XLA compiles every case of every op anew, which takes longer than all else together. So outside of
the full lane JAX tries all dtypes of one op of each kind (`kinds`) and float32 of every op, each
form at one case. Parameters wider than activations are tried in bfloat16, of one op of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import lanes
import pytest
from holding import hold
from kinds import FIRST

from baracuda.testing.cases import LIBRARIES, Subject, subjects

_LIBRARIES = ("numpy", "torch") if lanes.LANE == "quick" else LIBRARIES


def tried() -> Iterator[Subject]:
    """The subjects of this lane, by op, so that all of an op share its references."""
    for op in lanes.ops():
        for subject in subjects([op], _LIBRARIES):
            if subject.library != "jax" or lanes.FULL:
                yield subject
            elif op in FIRST or subject.dtype == "float32":
                yield replace(subject, brief=True)


def usual(subject: Subject) -> bool:
    if subject.mixed and not (subject.op in FIRST and subject.dtype == "bfloat16"):
        return False
    return subject.library != "jax" or subject.brief


@pytest.mark.parametrize("subject", lanes.cases(tried(), usual), ids=str)
def test_laws(subject: Subject) -> None:
    hold(subject)
