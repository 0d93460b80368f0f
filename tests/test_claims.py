"""What the package claims is what the tests execute.

In the full lane that is combination by combination: an op on a backend, for a library and a dtype.
Elsewhere it is by two of these: each op on each backend for each library, each op in each dtype,
and on each backend for each library each dtype of some op.
"""

from __future__ import annotations

from collections.abc import Iterable

import lanes
import pytest
from kinds import FIRST

import baracuda as bc
from baracuda import backends
from baracuda.calls.op import Op, registry
from baracuda.testing import cuts, values
from baracuda.testing.cases import LIBRARIES, Subject, holds
from baracuda.testing.laws import LAWS

Claim = tuple[str, str, str, str]


def claimed() -> set[Claim]:
    """Every combination that some backend says it takes, of libraries that have the dtype."""
    return {
        (op, backend, library, dtype)
        for op in registry
        for library in LIBRARIES
        for backend, dtypes in backends.claims(registry[op].spec, library).items()
        for dtype in dtypes
        if holds(library, dtype)
    }


def executed(items: Iterable[pytest.Item]) -> set[Claim]:
    """Every combination on which laws are tried."""
    found: set[Claim] = set()
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if "::test_laws[" in item.nodeid and not list(item.iter_markers("skip")):
            s = params["subject"]
            if not s.mixed:
                found.add((s.op, s.backend, s.library, s.dtype))
    return found


def by_two(claims: set[Claim]) -> set[tuple[str, ...]]:
    """What claims say of two of these: an op, a backend for a library, and a dtype."""
    found: set[tuple[str, ...]] = set()
    for op, backend, library, dtype in claims:
        found |= {(op, backend, library), (op, dtype)}
        # One op of a run that is about few need not be in each dtype everywhere.
        if len(lanes.ops()) == len(registry):
            found.add((backend, library, dtype))
    return found


def unproved(claims: set[Claim], items: Iterable[pytest.Item]) -> list[tuple[str, ...]]:
    """Claims that no test is about."""
    tried = executed(items)
    return sorted(claims - tried) if lanes.FULL else sorted(by_two(claims) - by_two(tried))


@pytest.mark.skipif(lanes.LANE == "quick", reason="the laws are tried on two libraries")
def test_every_claim_is_executed(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    if not any("::test_laws[" in item.nodeid for item in items):
        pytest.skip("the laws are not part of this run")
    claims = {claim for claim in claimed() if claim[0] in lanes.ops()}
    assert unproved(claims, items) == [], "no subject of test_laws.py is of these"


def test_every_op_is_of_a_kind_that_is_tried() -> None:
    assert sorted(op for ops in FIRST.values() for op in ops) == sorted(registry)


def test_parts_and_run_time_values_of_every_op_are_under_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On NumPy and torch; a law is silent about an op only where it has no such value."""
    tried: list[tuple[str, str]] = []
    for module in (cuts, values):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, "hold", lambda call, n=name: tried.append((n, call.subject.op)))
    for name, op in registry.items():
        for library in ("numpy", "torch"):
            tried.clear()
            subject = Subject(name, "array_api", library, op.spec.dtypes[-1], brief=True)
            for law in ("parts_make_the_whole", "arrays_may_be_run_time_values"):
                LAWS[law](subject)
            numbers = any(hasattr(f, "dtypes") for f in op.spec.scalars.values())
            assert {*tried} == {("cuts", name), *[("values", name)] * numbers}


def test_a_claim_without_a_test_is_found(request: pytest.FixtureRequest) -> None:
    missing = ("swiglu", "cuda", "torch", "float32")
    found = unproved({missing}, request.session.items)
    assert (missing if lanes.FULL else missing[:3]) in found


def test_every_public_op_is_registered_with_cases() -> None:
    public = {name for name in bc.__all__ if isinstance(getattr(bc, name), Op)}
    assert public == set(registry)
    assert len(public) >= 30
    for name, op in registry.items():
        assert op.spec.cases, name


def test_every_form_of_every_op_is_in_the_cases() -> None:
    for op in registry.values():
        for case in op.spec.cases:
            for form in op.spec.signatures:
                for pattern in (*form.inputs, *form.outputs):
                    names = {term.name for term in pattern.terms} - set(form.derived)
                    assert names <= set(case.axes), (op.spec.name, case, form.text)
