"""The way of a call through the modules: what the page says of it, and no fact asked twice."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import pytest
import stub_device
from children import ROOT, environment
from life_of_a_call import climbs, lives, pair, traced, visits

import baracuda as bc

PAGE = ROOT / "docs" / "life-of-a-call.md"
ROW = re.compile(r"^\| (\w+), (call[^|]*|cached call|first call) \|.*\| (\d+), (\d+) \|$", re.M)


def test_a_climb_is_a_module_that_is_entered_again() -> None:
    steps = [("op", "a"), ("op", "b"), ("check", "c"), ("op", "d"), ("plan", "e"), ("check", "f")]
    assert visits(steps) == ["op", "check", "op", "plan", "check"]
    assert climbs(steps) == 2
    assert climbs(steps[:3]) == 0
    assert traced(lambda: bc.relu(pair("numpy")[0]))[0] == ("calls.op", "Op.__call__")


def test_calls_climb_as_often_as_the_page_says() -> None:
    """In a process of its own, as its command is: what is read once per process counts once."""
    rows = {(library, kind): (int(functions), int(again))
            for library, kind, functions, again in ROW.findall(PAGE.read_text())}  # fmt: skip
    assert len(rows) == 8
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "life_of_a_call.py"), "--counts"],
        capture_output=True, text=True, check=True, env=environment(), cwd=ROOT,
    )  # fmt: skip
    line = r"relu, (\w+), ([^:]+): (\d+) functions, \d+ visits, (\d+) climbs"
    found = re.findall(line, done.stdout)
    counted = {(lib, kind): (int(f), int(c)) for lib, kind, f, c in found}
    for (lib, kind), row in rows.items():
        if kind == "first call":
            # It asks every backend that is installed here.
            assert counted[lib, kind][0] == pytest.approx(row[0], rel=0.15)
        else:
            assert counted[lib, kind] == row


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_first_call_asks_each_fact_of_an_array_once(library: str) -> None:
    steps = lives("relu", library)["first call"]
    asked = Counter(name.rpartition(".")[2] for module, name in steps if "libraries" in module)
    for fact in ("facts", "describe", "state", "strides", "device_of"):
        assert asked[fact] <= 1, fact
    assert asked["describe"] == asked["facts"] == 1


def test_a_cached_call_of_a_kernel_climbs_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    device = stub_device.install(monkeypatch)
    steps = [s for s in lives("relu", "torch")["cached call"] if s[0] != "tests"]
    assert device.launched
    assert visits(steps) == [
        "calls.op", "libraries", "libraries.torch", "calls.cache", "plan, as written out"
    ]  # fmt: skip
    bc.plan_cache.clear()
