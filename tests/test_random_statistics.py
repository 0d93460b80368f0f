"""The battery of statistics of the random words: they pass it, and weaker generators do not."""

from __future__ import annotations

from typing import Any

import pytest
from random_statistics import BATTERY

from baracuda.families import philox

# Seeds are fixed, so a result is the same on every run: it was not chosen among several.
LEAST = 1e-4
NUMBERS = ("whole bits", "whole pairs", "uniform", "normal", "bernoulli")


@pytest.mark.parametrize("name", BATTERY)
def test_words_look_random(name: str) -> None:
    assert BATTERY[name](1 << (20 if name in NUMBERS else 18)) > LEAST


@pytest.mark.full
@pytest.mark.slow("2^26 words for each statistic")
@pytest.mark.parametrize("name", BATTERY)
def test_many_words_look_random(name: str) -> None:
    assert BATTERY[name](1 << 26) > LEAST


@pytest.mark.parametrize("rounds", [3, 4])
def test_fewer_rounds_do_not(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ten are those of the paper; seven pass its authors' tests.
    monkeypatch.setattr(philox, "_ROUNDS", rounds)
    failed = {name for name, statistic in BATTERY.items() if statistic(1 << 18) < 1e-9}
    assert len(failed) > 5, failed


def test_words_that_share_bits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    words_of = philox.words_of

    def shared(*given: Any, whole: bool, part: Any = None) -> Any:
        return words_of(*given)

    monkeypatch.setattr(philox, "words_of", shared)
    assert BATTERY["whole pairs"](1 << 18) < 1e-9
    assert BATTERY["whole bits"](1 << 18) > LEAST


def test_words_that_a_stream_repeats_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(number: int) -> tuple[int, int]:
        """The low words of seeds and offsets alone."""
        return number & 0xFFFFFFFF, 0

    monkeypatch.setattr(philox, "words", lost)
    assert BATTERY["arrays"](1 << 18) < 1e-9
    assert BATTERY["seeds"](1 << 18) > LEAST
