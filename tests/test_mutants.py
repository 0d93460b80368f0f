"""The list of mutants: no change is stale, and each names tests that are there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import lanes
import pytest
from mutants import ROOT, Mutant, every
from mutants import __main__ as runner

from baracuda.calls.op import registry

TESTS = ROOT / "tests"


def test_every_mutant_changes_what_stands_there_once() -> None:
    for one in every():
        text = (ROOT / one.file).read_text(encoding="utf-8")
        assert one.changed(text) != text, one.name


def test_the_tests_of_every_mutant_are_there() -> None:
    for one in every():
        assert one.tests, one.name
        for test in one.tests:
            file, _, name = test.partition("::")
            text = (TESTS / file).read_text(encoding="utf-8")
            assert f"def {name.partition('[')[0]}(" in text if name else "def test_" in text, test


def test_a_whole_run_has_the_cases_that_mutants_name(request: pytest.FixtureRequest) -> None:
    config = request.config
    part = config.args != config.getini("testpaths") or config.option.keyword
    if part or config.option.markexpr or lanes.LANE != "test" or lanes.ops() != (*registry,):
        pytest.skip("a part of the tests was collected")
    have = {item.nodeid for item in request.session.items}
    named = {f"tests/{test}" for one in every() for test in one.tests if "[" in test}
    assert named - have == set()


@pytest.mark.full
def test_the_cases_that_mutants_name_are_collected() -> None:
    named = sorted({test for one in every() for test in one.tests if "[" in test})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", *named]
    # Those of `make test`, of all ops, whatever this run is about.
    env = {name: x for name, x in os.environ.items() if name != "BARACUDA_OPS"}
    env["BARACUDA_LANE"] = "test"
    done = subprocess.run(command, cwd=TESTS, env=env, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout[-2000:]


def test_no_name_stands_for_two_and_there_are_as_many_as_promised() -> None:
    counts = Counter(one.name for one in every())
    assert max(counts.values()) == 1
    assert len(counts) >= 200
    said = re.search(r"(\d+) faults", (ROOT / "docs/testing.md").read_text(encoding="utf-8"))
    assert said
    assert int(said[1]) == len(counts)


@pytest.mark.parametrize(
    ("status", "state"),
    [(0, "survived"), (1, "killed"), (2, "broken"), (5, "broken"), (-1, "broken")],
)
def test_a_mutant_is_killed_by_a_failed_test_and_by_nothing_else(
    status: int, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, file = [], tmp_path / "code.py"

    def started(root: Path, tests: Iterable[str], output: Path, *words: str) -> int:
        seen.append((file.read_text(), *tests))
        output.write_text("said")
        return 4242

    file.write_text("x = 1\n")
    before = file.stat().st_mtime_ns
    monkeypatch.setattr(runner, "started", started)
    monkeypatch.setattr(runner, "ended", lambda *_: status)
    one = Mutant("x", "code.py", "x = 1", "x = 2", ("test_guard.py",))
    assert runner.state_of(tmp_path, one) == (state, "said")
    assert seen == [("x = 2\n", "test_guard.py")]
    assert (file.read_text(), file.stat().st_mtime_ns // 10**9) == ("x = 1\n", before // 10**9)
    with pytest.raises(ValueError, match="2 times, not once"):
        one.changed("x = 1\nx = 1\n")


def test_the_list_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner.main(["--list", "--only", "kept code proves its digest"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "kept code proves its digest: baracuda/backends/cuda/store.py",
        "1 mutants",
    ]
