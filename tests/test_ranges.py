"""Entries out of range where a device computes a body: searched for, and raised later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import baracuda as bc
from baracuda.calls import body, check, ranges
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.libraries import library


class Device:
    """A library of arrays whose values nobody reads; a search ends when it is told to."""

    def __init__(self) -> None:
        self.ended, self.begun = False, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(library("numpy"), name)

    def readable(self, x: Any) -> bool:
        return False

    def search(self, x: Any, bad: Any) -> Any:
        self.begun += 1
        strange = np.ravel(bad(x))
        first = int(np.argmax(strange))
        found = [int(strange[first]), first, int(np.ravel(x)[first])]
        return lambda: self.ended, lambda: setattr(self, "ended", True), lambda: found


@pytest.fixture
def device() -> Iterator[Device]:
    yield Device()
    ranges.begun.clear()


def problem(device: Device, op: str, *arrays: Any, **options: Any) -> Any:
    found = check.problem(registry[op].spec, arrays, options, DEFAULT)
    return replace(found, library=device)


def test_a_search_is_raised_by_a_later_call(device: Device) -> None:
    x, at = np.ones((2, 4)), np.array([[0, 1, 2], [3, 7, 0]])
    one = problem(device, "gather", x, at, axis=1)
    ranges.check(one, [x, at])
    ranges.check(one, [x, at])
    device.ended = True
    with pytest.raises(IndexError, match=r"gather: index: .* < 4, got 7 at position \(1, 1\)"):
        ranges.check(one, [x, at])
    assert device.begun == 2


def test_check_errors_waits_for_a_search(device: Device) -> None:
    arrays = np.ones((2, 4)), np.full((2, 3), -1)
    ranges.check(problem(device, "gather", *arrays, axis=1), arrays)
    with pytest.raises(IndexError, match=r"got -1 at position \(0, 0\)"):
        bc.check_errors()
    bc.check_errors()


def test_any_body_raises_what_a_search_found(device: Device) -> None:
    arrays = np.ones((2, 4)), np.full((2, 3), 4)
    ranges.check(problem(device, "gather", *arrays, axis=1), arrays)
    run = body.runner(problem(device, "relu", np.ones(3)))
    run([np.ones(3)], None, False, {})
    device.ended = True
    with pytest.raises(IndexError, match=r"got 4 at position \(0, 0\)"):
        run([np.ones(3)], None, False, {})
    run([np.ones(3)], None, False, {})


def test_nothing_is_searched_where_nothing_raises(device: Device) -> None:
    arrays = np.ones((2, 4)), np.full((2, 3), 9)
    ranges.check(problem(device, "gather", *arrays, axis=1, mode="drop"), arrays)
    arrays = np.ones((2, 4)), np.ones((2, 0), np.int64)
    ranges.check(problem(device, "gather", *arrays, axis=1), arrays)
    assert device.begun == 0


def test_a_composite_leaves_it_to_the_ops_inside(device: Device) -> None:
    arrays = np.ones((2, 4)), np.ones((3, 4)), np.array([9, 9])
    one = problem(device, "linear_cross_entropy", *arrays)
    assert one.spec.composite
    ranges.check(one, arrays)
    assert device.begun == 0
