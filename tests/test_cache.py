"""The plan cache: counts, bounds, threads, forks, and what another process reads."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import baracuda as bc
from baracuda import backends
from baracuda.backends import numpy as numpy_backend

X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    bc.plan_cache.clear()


def counts() -> tuple[int, int, int]:
    info = bc.plan_cache.info()
    return info.hits, info.misses, info.size


def test_a_problem_is_missed_once() -> None:
    for _ in range(5):
        bc.swiglu(X)
    assert counts() == (4, 1, 1)


def test_spellings_of_one_problem_share_a_plan() -> None:
    plan = bc.swiglu.plan(X)
    assert bc.swiglu.plan(X, axis=1) is plan
    assert bc.swiglu.plan(X, axis=-1, gate_first=False) is plan
    assert bc.swiglu.plan(X, None) is plan
    assert bc.swiglu.plan(X, backend=None) is plan
    assert bc.plan_cache.info().misses == 1


def test_500_weights_are_one_plan() -> None:
    for step in range(500):
        bc.lerp(X, X, weight=step / 500)
    assert counts() == (499, 1, 1)


def test_plan_calls_leave_the_counts_alone() -> None:
    plan = bc.lerp.plan(X, X)
    before = counts()
    for weight in (0.1, 0.2):
        plan(X, X, weight=weight)
    assert counts() == before


def test_what_differs_gets_its_own_plan() -> None:
    variants = [
        bc.swiglu.plan(X),
        bc.swiglu.plan(X.astype(np.float64)),
        bc.swiglu.plan(X[:2]),
        bc.swiglu.plan(np.asfortranarray(X)),
        bc.swiglu.plan(X, gate_first=True),
        bc.swiglu.plan(X, backend="array_api"),
        bc.swiglu.plan(X, deterministic=True),
        bc.swiglu.plan(X, X),
        bc.glu.plan(X),
    ]
    assert len(set(map(id, variants))) == len(variants) == bc.plan_cache.info().size


def test_the_least_recently_used_plan_goes_first() -> None:
    cache = bc.PlanCache(maxsize=3)
    made = []

    def make(problem: object) -> object:
        made.append(problem)
        return type("P", (), {"problem": problem, "provisional": False})()

    problems = [bc.swiglu.plan(np.ones((n, 2))).problem for n in range(1, 5)]
    for i, problem in enumerate(problems[:3]):
        cache.get(i, problem, make)  # type: ignore[arg-type]
    cache.find(0)
    cache.get(3, problems[3], make)  # type: ignore[arg-type]
    assert cache.find(1) is None
    assert [cache.find(i) is not None for i in (0, 2, 3)] == [True] * 3
    assert cache.info().size == 3


def test_a_full_cache_drops_a_sixteenth_at_once() -> None:
    cache = bc.PlanCache(maxsize=32)
    problems = [bc.swiglu.plan(np.ones((n, 2))).problem for n in range(1, 35)]

    def make(problem: object) -> object:
        return type("P", (), {"problem": problem, "provisional": False})()

    for i, problem in enumerate(problems[:33]):
        cache.get(i, problem, make)  # type: ignore[arg-type]
        if i == 31:
            assert cache.info().size == 32
            cache.find(0)
    assert [i for i in range(33) if cache.find(i) is None] == [1, 2]
    assert cache.info().size == 31
    cache.get(33, problems[33], make)  # type: ignore[arg-type]
    assert cache.info().size == 32


def test_threads_that_miss_together_make_one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    started, prepared = threading.Barrier(8), []
    real = numpy_backend.BACKEND.prepare

    def slow(problem: object) -> object:
        prepared.append(problem)
        threading.Event().wait(0.05)
        return real(problem)  # type: ignore[arg-type]

    monkeypatch.setattr(type(numpy_backend.BACKEND), "prepare", lambda self, problem: slow(problem))

    def miss(_: int) -> object:
        started.wait()
        return bc.swiglu.plan(X)

    with ThreadPoolExecutor(8) as pool:
        plans = set(pool.map(miss, range(8)))
    assert len(plans) == 1
    assert len(prepared) == 1
    assert bc.plan_cache.info().misses == 1


def test_a_failed_plan_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object, problem: object) -> object:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(type(numpy_backend.BACKEND), "prepare", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="out of luck"):
                bc.swiglu(X)
    assert bc.swiglu(X).shape == (3, 4)


def test_clear_forgets_everything() -> None:
    bc.swiglu(X)
    bc.plan_cache.clear()
    assert bc.plan_cache.info() == (0, 0, 0, bc.plan_cache.info().maxsize)


def test_another_process_makes_the_same_choices(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    sku = bc.swiglu.plan(X).sku
    wide = bc.lp_pool1d.plan(X, norm_type=float("inf"), kernel_size=2).sku
    bc.plan_cache.save(path)
    bc.plan_cache.clear()
    assert bc.plan_cache.load(path) == 2
    assert bc.swiglu.plan(X).sku == sku
    assert bc.lp_pool1d.plan(X, norm_type=float("inf"), kernel_size=2).sku == wide


def test_a_loaded_choice_is_made_rather_than_the_first_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    bc.swiglu.plan(X)
    bc.plan_cache.save(path)
    content = json.loads(path.read_text())
    content["plans"][0]["sku"] |= {"backend": "array_api", "variant": ""}
    path.write_text(json.dumps(content))
    bc.plan_cache.clear()
    bc.plan_cache.load(path)
    assert bc.swiglu.plan(X).sku.backend == "array_api"


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"version": "0.0.0"}, "version 0.0.0"), ({"arch": "sm_90"}, "sm_90")],
)
def test_a_record_that_no_longer_fits_is_ignored_with_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, str], reason: str
) -> None:
    path = tmp_path / "plans.json"
    sku = bc.swiglu.plan(X).sku
    bc.plan_cache.save(path)
    content = json.loads(path.read_text())
    content["plans"][0]["sku"] |= change
    path.write_text(json.dumps(content))
    bc.plan_cache.clear()
    with caplog.at_level(logging.INFO, "baracuda"):
        bc.plan_cache.load(path)
        assert bc.swiglu.plan(X).sku == sku
    assert "ignored" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize(
    "text",
    ["", "not json", "[]", "{}", '{"format": 99, "plans": []}', '{"format": 1, "plans": [{}]}'],
)
def test_a_damaged_file_is_an_error_and_changes_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plans.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="not a plan-cache file"):
        bc.plan_cache.load(path)


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    bc.swiglu.plan(X)
    bc.plan_cache.save(path)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match="not a plan-cache file"):
        bc.plan_cache.load(path)


def test_save_leaves_no_other_file(tmp_path: Path) -> None:
    bc.swiglu.plan(X)
    for _ in range(2):
        bc.plan_cache.save(tmp_path / "plans.json")
    assert [p.name for p in tmp_path.iterdir()] == ["plans.json"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
def test_a_forked_child_computes_on_threads_of_its_own() -> None:
    script = """
import os, sys, threading
import numpy as np
import baracuda as bc
from baracuda.backends.numpy import blocks
blocks._WORKERS = 3
x = np.ones((2048, 2048), np.float32)
want = bc.swiglu(x)
assert "blocks" in bc.swiglu.plan(x).sku.variant
child = os.fork()
if child == 0:
    right = np.array_equal(bc.swiglu(x), want)
    # The parent's are not here: without others this thread would do it all.
    helpers = [t for t in threading.enumerate() if t.name.startswith("baracuda")]
    # One that is done before the next is asked for takes its place.
    os._exit(0 if right and 0 < len(helpers) < blocks._WORKERS else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)


def test_backends_are_asked_in_order_and_say_why_not() -> None:
    plan = bc.swiglu.plan(X)
    assert plan.sku.backend == "numpy"
    passed = [name for name, _ in plan.why]
    assert passed == list(backends.names())[: len(passed)]
    assert all(reason for _, reason in plan.why)


def test_spellings_of_a_problem_are_bounded() -> None:
    cache, problem = bc.PlanCache(), bc.swiglu.plan(X).problem
    plan = cache.get("first", problem, lambda problem: bc.swiglu.plan(X))
    for i in range(1000):
        assert cache.get(i, problem, lambda problem: bc.swiglu.plan(X)) is plan
    assert len(cache._aliases) < 100
    assert cache.find("first") is plan
