"""What the library says of its work: the log, and ranges for profilers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import baracuda as bc
from baracuda import instruments

X = np.ones((3, 8), np.float32)


def test_what_is_planned_is_logged_with_every_reason(caplog: pytest.LogCaptureFixture) -> None:
    bc.plan_cache.clear()
    with caplog.at_level(logging.DEBUG, logger="baracuda"):
        plan = bc.swiglu.plan(X)
        bc.swiglu(X)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"planned {plan.sku} for x[3, 8]; not cuda: ")
    assert all(f"not {backend}: {reason}" in said for backend, reason in plan.why)


def test_nothing_is_said_unasked(capfd: pytest.CaptureFixture[str]) -> None:
    bc.plan_cache.clear()
    bc.swiglu(X)
    assert capfd.readouterr() == ("", "")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env={**os.environ, **environment},
    )  # fmt: skip


CALL = "import numpy as np, baracuda as bc; bc.glu(np.ones((2, 4)))"


def test_a_variable_prints_the_log() -> None:
    said = run(CALL, BARACUDA_LOG="debug").stderr
    assert " baracuda DEBUG planned glu[f64 contiguous numpy" in said
    assert run(CALL, BARACUDA_LOG="warning").stderr == ""
    assert "BARACUDA_LOG: expected " in run(CALL, BARACUDA_LOG="loud").stderr
    assert "got 'loud'" in run(CALL, BARACUDA_LOG="loud").stderr


class Domain:
    """Of a profiler that is not there: what was opened and closed."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.open = 0

    def get_event_attributes(self, message: str) -> str:
        return message

    def push_range(self, attributes: str) -> None:
        self.seen.append(attributes)
        self.open += 1

    def pop_range(self) -> None:
        self.open -= 1


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Domain]:
    watched = Domain()
    fake = types.SimpleNamespace(get_domain={"baracuda": watched}.__getitem__)
    monkeypatch.setitem(sys.modules, "nvtx", fake)  # type: ignore[arg-type]
    monkeypatch.setenv("BARACUDA_NVTX", "1")
    instruments.domain.cache_clear()
    bc.plan_cache.clear()
    yield watched
    instruments.domain.cache_clear()
    bc.plan_cache.clear()


def test_every_run_is_a_range_named_by_its_sku(profiled: Domain) -> None:
    plan = bc.swiglu.plan(X)
    assert profiled.seen == []
    plan(X)
    bc.swiglu(X)
    assert profiled.seen == [str(plan.sku)] * 2
    with pytest.raises(IndexError):
        bc.gather(X, np.asarray([[9]]), axis=0)
    assert len(profiled.seen) == 3
    assert profiled.open == 0


def test_gradients_have_ranges_too(profiled: Domain) -> None:
    torch = pytest.importorskip("torch")
    x: Any = torch.ones(3, 8, requires_grad=True)
    bc.swiglu(x, backend="torch").sum().backward()
    assert [name.partition("[")[0] for name in profiled.seen] == ["swiglu", "swiglu_backward"]


@pytest.mark.parametrize(
    ("environment", "there"),
    [
        ({}, False),
        ({"BARACUDA_NVTX": "1"}, True),
        ({"NVTX_INJECTION64_PATH": "/some/tool.so"}, True),
        ({"NVTX_INJECTION64_PATH": "/some/tool.so", "BARACUDA_NVTX": "0"}, False),
    ],
)
def test_ranges_are_for_whoever_looks(
    environment: dict[str, str], there: bool, profiled: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BARACUDA_NVTX")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    instruments.domain.cache_clear()
    assert (instruments.domain() is profiled) == there


def test_without_nvtx_there_is_a_word_and_no_error(
    profiled: Domain, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "nvtx", None)  # type: ignore[arg-type]
    instruments.domain.cache_clear()
    bc.swiglu(X)
    assert "pip install 'baracuda[profile]'" in caplog.text


def test_the_real_nvtx_takes_ranges() -> None:
    pytest.importorskip("nvtx")
    assert run(CALL, BARACUDA_NVTX="1").stderr == ""
