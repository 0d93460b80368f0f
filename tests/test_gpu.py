"""The laws and more on an NVIDIA GPU: ``pytest -m gpu``."""

from __future__ import annotations

import pytest
import torch

from baracuda.testing.cases import Subject, subjects
from baracuda.testing.laws import LAWS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.mark.parametrize("law", list(LAWS))
@pytest.mark.parametrize("subject", list(subjects(libraries=["torch"], device="cuda")), ids=str)
def test_law(subject: Subject, law: str) -> None:
    LAWS[law](subject)
