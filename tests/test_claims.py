"""What the package claims is what the tests execute, combination by combination."""

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
# By the first op of a kind all that are of it; by any other op itself.
ALIKE = {op: (op,) for op in registry} | {k: tuple(v) for k, v in FIRST.items()}


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
    """Every combination on which all laws are tried; a brief subject stands for its kind."""
    found: set[Claim] = set()
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if "::test_laws[" in item.nodeid and not list(item.iter_markers("skip")):
            s = params["subject"]
            for op in ALIKE[s.op] if s.brief else (s.op,):
                found.add((op, s.backend, s.library, s.dtype))
    return found


def unproved(claims: set[Claim], items: Iterable[pytest.Item]) -> list[Claim]:
    """Claims that no test is about."""
    return sorted(claims - executed(items))


@pytest.mark.skipif(lanes.LANE == "quick", reason="the laws are tried on two libraries")
def test_every_claim_is_executed(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    if not any("::test_laws[" in item.nodeid for item in items):
        pytest.skip("the laws are not part of this run")
    claims = {claim for claim in claimed() if claim[0] in lanes.ops()}
    assert unproved(claims, items) == [], "no subject of test_laws.py is of these, or of their kind"


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
    assert unproved({missing}, request.session.items) == [missing]


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
