"""What the package claims is what the tests execute, combination by combination."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

import baracuda as bc
from baracuda import backends
from baracuda.op import Op, registry
from baracuda.testing.cases import LIBRARIES, holds
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
    """Every combination on which all laws were collected and none was skipped."""
    laws: dict[Claim, set[str]] = {}
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if {"subject", "law"} <= set(params) and not list(item.iter_markers("skip")):
            s = params["subject"]
            if s.device == "cpu":
                laws.setdefault((s.op, s.backend, s.library, s.dtype), set()).add(params["law"])
    return {claim for claim, names in laws.items() if names == set(LAWS)}


def unproved(claims: set[Claim], items: Iterable[pytest.Item]) -> list[Claim]:
    return sorted(claims - executed(items))


def test_every_claim_is_executed(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    if not any("test_laws" in item.nodeid for item in items):
        pytest.skip("the laws are not part of this run")
    assert unproved(claimed(), items) == []


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
