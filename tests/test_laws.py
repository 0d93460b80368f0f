"""Every law over every op, on every backend, library and dtype that the package claims."""

from __future__ import annotations

import pytest

from baracuda.testing.cases import Subject, subjects
from baracuda.testing.laws import LAWS


@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize("subject", list(subjects()), ids=str)
def test_law(subject: Subject, law: str) -> None:
    with subject.context():
        LAWS[law](subject)
