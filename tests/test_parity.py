"""``python -m baracuda parity``: what it counts, what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from baracuda.__main__ import main
from baracuda.backends import numpy as numpy_backend
from baracuda.errors import UnsupportedError
from baracuda.testing import bounds
from baracuda.testing.bounds import Worst, worst
from baracuda.testing.cases import Subject, subjects
from baracuda.testing.laws import LAWS
from baracuda.tools.parity import ACCURACY, Result, examine, matrix, summary

SMALL = ["parity", "--device", "cpu", "--libraries", "numpy", "--backends", "numpy"]
SUBJECT = Subject("lerp_backward", "numpy", "numpy", "float32")


def test_the_worst_error_is_a_number_that_the_law_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    found = worst(SUBJECT)
    assert 0 < found.ratio < 1
    LAWS[ACCURACY](SUBJECT)
    monkeypatch.setattr(bounds, "_worst", lambda *_: Worst(1.5, "here"))
    with pytest.raises(AssertionError, match=r"^here: 1\.50 x the tolerance"):
        LAWS[ACCURACY](SUBJECT)


@pytest.mark.parametrize(("op", "dtype"), [("glu", "float32"), ("gather", "int32")])
def test_the_worst_error_is_that_of_the_worst_case(
    monkeypatch: pytest.MonkeyPatch, op: str, dtype: str
) -> None:
    subject = Subject(op, "numpy", "numpy", dtype)
    last = list(subject.calls())[-1]
    run = type(last).run

    def spoilt(self, *args, **more):  # type: ignore[no-untyped-def]
        results = run(self, *args, **more)
        if self.case is last.case and self.form is last.form:
            results[0].flat[0] = np.nan if dtype == "float32" else 77
        return results

    monkeypatch.setattr(type(last), "run", spoilt)
    assert worst(subject) == Worst(np.inf, f"{last.case} {last.form.text}")


def test_a_law_that_does_not_apply_says_why() -> None:
    result = examine(SUBJECT)
    assert result.failures == {}
    assert result.refused == ()
    assert result.cases == len(list(SUBJECT.calls()))
    assert result.silent == {
        "indices_obey_their_policy": "no input is an index",
        "sums_may_be_wider": "the dtype is its own accumulate dtype",
        "traces_as_it_runs": "the library traces nothing, or not on this backend",
    }
    forward = examine(replace(SUBJECT, op="lerp"))
    assert forward.silent["is_the_gradient_of_its_forward"] == "the op is no gradient"


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    from baracuda import plan_cache

    plan_cache.clear()
    yield monkeypatch
    plan_cache.clear()


def test_refused_cases_are_counted_apart(refusing: pytest.MonkeyPatch) -> None:
    backend = type(numpy_backend.BACKEND)
    whole = examine(Subject("glu", "numpy", "numpy", "float32"))
    refusing.setattr(
        backend, "refuses", lambda self, p: "no gate first" if p.options["gate_first"] else None
    )
    from baracuda import plan_cache

    plan_cache.clear()
    some = examine(Subject("glu", "numpy", "numpy", "float32"))
    assert some.failures == {}
    assert len(some.refused) > 0
    assert some.cases + len(some.refused) == whole.cases
    assert "no gate first" in some.refused[0]
    refusing.setattr(backend, "refuses", lambda self, p: "never")
    plan_cache.clear()
    none = examine(Subject("glu", "numpy", "numpy", "float32"))
    assert none.cases == 0
    assert list(none.failures) == [ACCURACY]
    assert "takes no case of what it claims" in none.failures[ACCURACY]
    assert set(none.silent) == set(LAWS) - {ACCURACY}


def test_whatever_is_raised_breaks_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(subject: Subject) -> str | None:
        raise ZeroDivisionError("by nought")

    def refuses(subject: Subject) -> str | None:
        raise UnsupportedError("not this layout")

    monkeypatch.setitem(LAWS, "layouts_agree", raises)
    monkeypatch.setitem(LAWS, "skus_are_honest", refuses)
    result = examine(SUBJECT)
    assert result.failures == {
        "layouts_agree": "ZeroDivisionError: by nought",
        "skus_are_honest": "UnsupportedError: not this layout",
    }
    assert result.error is not None
    assert result.size == np.inf


def result(op: str, dtype: str, error: float | None, **more: object) -> Result:
    return Result(op, "numpy", "numpy", dtype, 3, (), error, **more)  # type: ignore[arg-type]


def test_the_matrix_has_the_worst_of_each_kind() -> None:
    found = [
        result("rope", "float32", None, failures={"layouts_agree": "other"}),
        result("glu", "float16", 2.5, failures={ACCURACY: "2.50 x"}),
        result("glu", "float32", 0.5),
        result("gather", "int8", 0.0, silent={"traces_as_it_runs": "no"}),
        result("gather", "bool", 0.0),
    ]
    head, rows = matrix(found)
    assert head == ["op", "backend", "f32", "f16", "others", "worst in"]
    assert rows == [
        ["rope", "numpy", "broken", "-", "-", "numpy float32"],
        ["glu", "numpy", "0.50", "2.50", "-", "numpy float16"],
        ["gather", "numpy", "-", "-", "0.00", "numpy int8"],
    ]
    laws_tried = 5 * len(LAWS)
    assert summary(found, 2.0) == [
        "15 cases of 5 combinations of op, backend, library and dtype",
        f"{laws_tried} laws tried in 2 s: {laws_tried - 3} hold, 1 do not apply, 2 broken",
        "numpy: at most 2.50 x the tolerance (glu, numpy, numpy float16)",
    ]


def test_it_prints_a_matrix_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--ops", "lerp", "gather", "--dtypes", "float32", "int8"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert "3/3 gather-numpy-numpy-i8" in lines
    head = next(i for i, line in enumerate(lines) if line.startswith("op "))
    assert lines[head].split() == ["op", "backend", "f32", "others", "worst", "in"]
    assert lines[head + 1].split()[:2] == ["lerp", "numpy"]
    assert lines[head + 2].split()[:4] == ["gather", "numpy", "0.00", "0.00"]
    assert "0 broken" in said.out


def test_json_alone_is_on_standard_output_and_processes_agree(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    records = []
    for jobs in ("1", "2"):
        html = tmp_path / f"{jobs}.html"
        asked = [*SMALL, "--ops", "lerp", "--json", "--jobs", jobs, "--html", str(html)]
        assert main(asked) == 0
        records.append(json.loads(capsys.readouterr().out))
        assert "lerp" in html.read_text(encoding="utf-8")
    one, other = records
    assert one["results"] == other["results"]
    assert one["laws"] == list(LAWS)
    assert one["broken"] == 0
    assert {r["dtype"] for r in one["results"]} == {
        s.dtype for s in subjects(["lerp"], ["numpy"], ["numpy"])
    }


def test_a_broken_law_is_told_and_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baracuda.tools.parity.worst", lambda subject: Worst(3.25, "n=3"))
    assert main([*SMALL, "--ops", "lerp", "--dtypes", "float32"]) == 1
    said = capsys.readouterr()
    assert "3.25" in said.out
    assert said.err == (
        f"baracuda parity: lerp, numpy, numpy float32: {ACCURACY}: n=3: 3.25 x the tolerance\n"
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--ops", "swigli"], "no op is called 'swigli'; close to it: swiglu"),
        (["--backends", "tpu"], "--backends: 'tpu' is none of cuda, cupy, torch, numpy, array_api"),
        (["--libraries", "cupy"], "--libraries: 'cupy' is none of numpy, torch, jax, array_api_"),
        (["--dtypes", "float8"], "--dtypes: 'float8' is none of "),
        (["--ops", "glu", "--dtypes", "int8"], "--dtypes: 'int8' is none of "),
        (["--jobs", "0"], "--jobs: expected at least 1, got 0"),
        (["--html", "not/there/x.html"], "--html: no directory not/there"),
        (["--backends", "torch", "--libraries", "array_api_strict"], "no backend claims any of"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    capsys: pytest.CaptureFixture[str], asked: list[str], said: str
) -> None:
    assert main(["parity", "--device", "cpu", *asked]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"baracuda parity: {said}")
    assert printed.err.count("\n") == 1


def test_no_gpu_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baracuda.testing.report.has_gpu", lambda: False)
    assert main(["parity", "--device", "cuda"]) == 2
    assert capsys.readouterr().err == "baracuda parity: --device cuda: torch sees no GPU here\n"
