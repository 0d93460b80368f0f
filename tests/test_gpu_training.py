"""On an NVIDIA GPU: the text example, whose steps are recorded as a CUDA graph and replayed."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from device import LIBRARIES, MARKS

from baracuda.__main__ import main
from baracuda.examples.charlm import Config
from baracuda.examples.training import EAGER
from baracuda.tools import train

pytestmark = MARKS

each_library = pytest.mark.parametrize("library", LIBRARIES)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@each_library
def test_a_replayed_training_has_the_losses_of_one_that_launches(
    library: str, dropout: float
) -> None:
    text = train.python_reference()
    text = replace(text, validation=text.validation[:2000])
    graphs = import_module(f"baracuda.examples.graphs.{library}")
    xp = import_module(train.NAMESPACES[library])
    config = Config(text.vocabulary, dropout=dropout)
    how: dict[str, Any] = {"steps": 40, "device": "cuda" if library == "torch" else None}
    with graphs.recording() as record:
        how["dot"] = graphs.product()
        held = train.fit(xp, text, config, record=record, **how)
        plain = train.fit(xp, text, config, **how)
    assert held.training.passes == EAGER + 1
    assert held.losses == plain.losses
    assert held.validations == plain.validations
    for name, w in plain.training.weights.items():
        assert bool((held.training.weights[name] == w).all()), name
    on_host = train.fit(np, text, config, steps=40)
    np.testing.assert_allclose(held.losses, on_host.losses, rtol=0, atol=1e-4)


@each_library
def test_the_command_compares_both(library: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--graph", "--xp", library, "--steps", "60", "--dropout", "0.1"]) == 0
    words = capsys.readouterr().out
    assert f"{EAGER + 1} steps = " in words
    assert "losses of 60 steps the same bit for bit" in words
