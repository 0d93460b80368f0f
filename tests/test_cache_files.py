"""Files of the plan cache: bounded, complete, as private as they were, and counted truly."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import baracuda as bc
from baracuda.calls.cache import PlanCache, plan_cache


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Path]:
    """A file with one record."""
    plan_cache.clear()
    bc.relu.plan(np.ones((2, 3)))
    path = tmp_path / "plans.json"
    plan_cache.save(path)
    plan_cache.clear()
    yield path
    plan_cache.clear()


def edited(path: Path, change: Callable[[list[Any]], Any]) -> Path:
    content = json.loads(path.read_text())
    content["plans"] = change(content["plans"])
    path.write_text(json.dumps(content))
    return path


def many(count: int) -> Callable[[list[Any]], list[Any]]:
    """Records of as many shapes."""

    def change(plans: list[Any]) -> list[Any]:
        (plan,) = plans
        op, library, device, mode, ((name, dtype, _, *rest),), *more = plan["key"]
        return [
            {**plan, "key": [op, library, device, mode, [[name, dtype, [n, 3], *rest]], *more]}
            for n in range(1, count + 1)
        ]

    return change


def extents(path: Path) -> list[int]:
    """The first extents of what a file has records of."""
    return [plan["key"][4][0][2][0] for plan in json.loads(path.read_text())["plans"]]


def test_as_many_records_are_kept_as_plans(saved: Path) -> None:
    edited(saved, many(50))
    cache = PlanCache(maxsize=8)
    assert cache.load(saved) == 8
    assert list(cache._records) == list(cache._records)[-8:]
    cache.save(saved)
    assert extents(saved) == list(range(43, 51))
    # Of two files, those of the second.
    assert cache.load(edited(saved, lambda plans: plans[:5])) == 5
    cache.save(saved)
    assert extents(saved) == [48, 49, 50, 43, 44, 45, 46, 47]
    assert PlanCache(maxsize=0).load(saved) == 0
    # Of two that have nothing in common no more than of one.
    assert cache.load(edited(saved, lambda plans: many(3)(plans[:1]))) == 3
    cache.save(saved)
    assert extents(saved) == [43, 44, 45, 46, 47, 1, 2, 3]


def test_records_that_were_not_used_are_saved_again(saved: Path) -> None:
    edited(saved, many(4))
    assert plan_cache.load(saved) == 4
    bc.relu.plan(np.ones((2, 3)))
    bc.relu.plan(np.ones((9, 3)))
    plan_cache.save(saved)
    assert extents(saved) == [1, 3, 4, 2, 9]
    plan_cache.clear()
    assert plan_cache.load(saved) == 5


def test_a_choice_that_was_made_otherwise_replaces_its_record(saved: Path) -> None:
    def elsewhere(plans: list[Any]) -> list[Any]:
        plans[0]["sku"]["variant"] = "of another library"
        return plans

    plan_cache.load(edited(saved, elsewhere))
    sku = bc.relu.plan(np.ones((2, 3))).sku
    plan_cache.save(saved)
    (plan,) = json.loads(saved.read_text())["plans"]
    assert plan["sku"] == json.loads(sku.to_json())


def test_what_was_made_from_a_sku_is_no_record(saved: Path) -> None:
    sku = bc.relu.plan(np.ones((2, 3))).sku
    plan_cache.clear()
    bc.relu.plan(np.ones((2, 3)), sku=sku)
    plan_cache.save(saved)
    assert json.loads(saved.read_text())["plans"] == []


@pytest.mark.skipif(os.name == "nt", reason="files have no mode here")
def test_a_file_keeps_its_mode_and_its_place(saved: Path, tmp_path: Path) -> None:
    for mode in (0o600, 0o640, 0o444):
        saved.chmod(mode)
        plan_cache.save(saved)
        assert stat.S_IMODE(saved.stat().st_mode) == mode
    link = tmp_path / "link.json"
    link.symlink_to(saved)
    bc.relu.plan(np.ones((7, 3)))
    plan_cache.save(link)
    assert link.is_symlink()
    assert extents(saved) == [7]
    mask = os.umask(0o027)
    try:
        plan_cache.save(tmp_path / "new.json")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new.json").stat().st_mode) == 0o640


def at(*path: Any, value: Any) -> Callable[[list[Any]], list[Any]]:
    """One record with something else at a place of it."""

    def change(plans: list[Any]) -> list[Any]:
        here: Any = plans[0]
        for step in path[:-1]:
            here = here[step]
        here[path[-1]] = value
        return plans

    return change


USELESS = {
    "another version": at("sku", "version", value="0.0.0"),
    "another machine": at("sku", "arch", value="sm_90"),
    "another op": at("sku", "op", value="gelu"),
    "another dtype": at("sku", "dtype", value="float16"),
    "an index where there is none": at("sku", "index_dtype", value="int64"),
    "another layout": at("sku", "layout", value="strided"),
    "a backend that is not here": at("sku", "backend", value="nobody"),
    "a backend for others": at("sku", "backend", value="cupy"),
    "another backend than was forced": at("key", 6, 0, value="array_api"),
    "a problem with a SKU": at("key", 8, value="{}"),
    "no problem": at("key", value=5),
    "half a problem": at("key", 4, value=[["x"]]),
}


@pytest.mark.parametrize("change", USELESS)
def test_only_records_that_can_be_used_are_counted(
    change: str, saved: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "baracuda"):
        assert plan_cache.load(edited(saved, USELESS[change])) == 0
    assert "is ignored: " in caplog.text


def test_records_of_kernels_are_not_counted_where_there_is_no_driver(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from baracuda.backends import cuda

    reason: str | None = "for sm_80, cuda:0 is sm_90"
    monkeypatch.setattr(cuda, "foreign", lambda arch, device: reason)

    def on_gpu(plans: list[Any]) -> list[Any]:
        plans[0]["key"][1:3] = "torch", "cuda:0"
        plans[0]["sku"] |= {"backend": "cuda", "arch": "sm_80"}
        return plans

    assert plan_cache.load(edited(saved, on_gpu)) == 0
    reason = None
    assert plan_cache.load(saved) == 1


def test_a_file_is_replaced_at_once_or_stays(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()
    bc.relu.plan(np.ones((7, 3)))

    def full(*paths: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        plan_cache.save(saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]
