"""How far results may be from the definition in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from baracuda.declaration.dtypes import DType, named
from baracuda.libraries import Array
from baracuda.testing.cases import Call, Subject, apart, to_numpy

Host = np.ndarray[Any, Any]
# Rounding steps of the accumulate dtype that an evaluation may take beyond the rounding of its
# inputs; a body is a dozen operations, most of them well conditioned.
STEPS = 8


def tolerance(call: Call, stored: bool = True) -> list[Host]:
    """How far each output may be from the float64 body, element by element.

    One rounding to the storage dtype, and as much as `STEPS` roundings of the accumulate dtype
    move the result when they are made to the inputs (its conditioning) or to the output. What is
    not `stored` in its declared dtype goes without that rounding.
    """
    _, whole = steps(call, stored)
    return whole


def steps(call: Call, stored: bool = True) -> Iterator[list[Host]]:
    """The tolerance without the conditioning, which takes three more calls, then with it.

    Most results are within the first.
    """
    least = _roundings(call, stored)
    yield least
    if call.subject.spec.moves:
        yield least
        return
    moved = [call.reference(noise=_compute(call).eps, seed=seed) for seed in range(3)]
    yield [
        most + STEPS * np.max([np.abs(apart(m[i], value)) for m in moved], axis=0)
        for i, (most, value) in enumerate(zip(least, call.reference(), strict=True))
    ]


def _compute(call: Call) -> DType:
    """What it is computed in; composites round to their own dtype in between, too."""
    own = named(call.subject.dtype)
    return own if call.subject.spec.composite else named(own.accumulate)


def _roundings(call: Call, stored: bool) -> list[Host]:
    spec, compute = call.subject.spec, _compute(call)
    if spec.moves:
        return [np.zeros(x.shape) for x in call.reference()]
    out = []
    for i, (value, dtype) in enumerate(zip(call.reference(), call.dtypes, strict=True)):
        store = named(dtype)
        value = np.where(np.isinf(value), 0.0, value)
        size = np.max(np.abs(value), initial=0.0)
        # At random, it is to either neighbour.
        half = 1.0 if i == 0 and spec.rounds(call.form) else 0.5
        rounding = half * store.eps * np.abs(value) if stored and store is not compute else 0.0
        smallest = 2.0**-24 if dtype == "float16" else 2.0**-126
        # An element that cancels has the error of its neighbours' size, not of its own; the terms
        # of a product are larger still, and roundings of slopes are among them.
        errors = compute.eps * (
            STEPS * np.abs(value) + (2 * STEPS if spec.products else 0.25) * size
        )
        out.append(rounding * (1 + store.eps) + errors + smallest)
    return out


class Worst(NamedTuple):
    """The largest error of some results in units of the tolerance, and the case that has it."""

    ratio: float
    where: str

    def check(self) -> None:
        """Raise AssertionError beyond the tolerance."""
        assert self.ratio <= 1, f"{self.where}: {self.ratio:.2f} x the tolerance"


def _worst(call: Call, got: Sequence[Array], bounds: Sequence[Host], label: str = "") -> Worst:
    where, ratios = f"{label} {call.case} {call.form.text}".lstrip(), [0.0]
    for x, want, most in zip(got, call.reference(), bounds, strict=True):
        have = to_numpy(x)
        assert have.shape == want.shape, f"{where}: {have.shape} for {want.shape}"
        if call.subject.spec.moves:
            ratios.append(0.0 if np.array_equal(have, want) else np.inf)
            continue
        error = np.max(np.abs(apart(have, want)) / most, initial=0.0)
        ratios.append(np.inf if np.isnan(error) else float(error))
    return Worst(max(ratios), where)


def close(call: Call, got: Sequence[Array], label: str = "") -> None:
    """Raise AssertionError where results are not those of the definition, rounded once."""
    every = (_worst(call, got, bounds, label) for bounds in steps(call))
    first = next(every)
    (first if first.ratio <= 1 else next(every)).check()


def near(call: Call, got: Host, want: Host, i: int, label: str, parts: Sequence[Host] = ()) -> None:
    """Raise AssertionError where output `i` of two calls is further apart than each may be.

    Of a sum of `parts` each part may.
    """
    if np.array_equal(got, want):
        return
    more = np.zeros(())
    for part in parts:
        more = more + named(call.subject.dtype).eps * np.abs(part.astype(np.float64))
    error, times = np.abs(apart(got, want)), 2 + len(parts)
    within = any(np.all(error <= times * bounds[i] + more) for bounds in steps(call))
    assert within, f"{label}: apart"


def worst(subject: Subject) -> Worst:
    """The largest error of a subject's results over all cases; infinite for a NaN."""
    every = (_worst(call, call.run(), tolerance(call)) for call in subject.calls())
    return max(every, key=lambda one: one.ratio, default=Worst(0.0, ""))


def same_bits(a: Sequence[Array], b: Sequence[Array], label: str) -> None:
    for x, y in zip(a, b, strict=True):
        same = np.array_equal(to_numpy(x), to_numpy(y), equal_nan=to_numpy(x).dtype.kind in "fc")
        assert same, f"{label}: other bits"
