"""Variants of a kernel: chosen by a rule, by measurement, or as a record says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import stub_device
from plannable import call
from stub_device import StubDevice, on_gpu

import baracuda as bc
from baracuda.backends.cuda import schedules
from baracuda.backends.cuda.launch_plan import Call, Steps, Zero
from baracuda.backends.cuda.schedules import elementwise
from baracuda.declaration.backend import Refusal

torch = pytest.importorskip("torch")
X = torch.ones(64, 128)
RULE, OTHER = "depth 1, 256 threads", "depth 2, 256 threads"


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubDevice]:
    """Where depth 2 is the fastest; the rule says 1 for one input."""
    bc.plan_cache.clear()
    made = stub_device.install(monkeypatch)
    made.times = {"_d1_": 2e-6, "_d2_": 1e-6}
    yield made
    bc.plan_cache.clear()


def tuned(**options: Any) -> bc.Plan:
    return bc.lerp_backward.plan(X, autotune=True, **options)


def test_the_default_never_measures(device: StubDevice) -> None:
    assert bc.lerp_backward.plan(X).sku.variant == RULE
    assert device.measured == len(device.launched) == 0


def test_the_fastest_is_taken_and_recorded(device: StubDevice) -> None:
    plan = tuned()
    assert plan.sku.variant == OTHER
    assert device.measured > 2
    device.launched.clear()
    plan(X, weight=0.3)
    assert [e.symbol for e in device.launched] == [plan.sku.kernel]
    assert "_d2_" in plan.sku.kernel


def test_a_problem_is_measured_once(device: StubDevice) -> None:
    tuned()
    before = device.measured
    assert tuned() is tuned()
    with bc.options(autotune=True):
        bc.lerp_backward(X, weight=0.3)
    assert device.measured == before


@pytest.mark.parametrize(
    ("op", "shapes", "depths"),
    [("lerp_backward", 1, (1, 2)), ("lerp", 2, (1, 2)), ("swiglu_backward", 3, (1,))],
)
def test_the_rule_is_one_vector_of_each_input(
    op: str, shapes: int, depths: tuple[int, ...]
) -> None:
    """More are measured where registers have room."""
    problem = on_gpu(op, *[(4, 8)] * shapes)
    assert schedules.variants(call(problem)) == tuple(f"depth {depth}" for depth in depths)


def test_noise_does_not_overrule_the_rule(device: StubDevice) -> None:
    device.times = {"_d1_": 1e-6, "_d2_": 0.99e-6}
    assert tuned().sku.variant == RULE


def test_what_is_measured_writes_to_arrays_of_its_own(device: StubDevice) -> None:
    out = (torch.zeros_like(X), torch.zeros_like(X))
    plan = bc.lerp_backward.plan(X, autotune=True)
    plan(X, out=out, weight=0.3)
    assert not out[0].any()
    assert bool((X == 1).all())


def test_a_captured_stream_is_not_measured(device: StubDevice) -> None:
    device.capturing = True
    assert tuned().sku.variant == RULE
    assert device.measured == 0


def test_a_record_is_made_again_without_measuring(device: StubDevice) -> None:
    sku = tuned().sku
    before = device.measured
    for autotune in (False, True):
        plan = bc.lerp_backward.plan(X, autotune=autotune, sku=sku.to_json())
        assert plan.sku == sku
    assert device.measured == before
    with pytest.raises(ValueError, match=r"variant depth 7, 256 threads, got .*, depth 1"):
        bc.lerp_backward.plan(X, sku=replace(sku, variant="depth 7, 256 threads"))


def test_a_loaded_choice_wins_over_measuring(device: StubDevice, tmp_path: Path) -> None:
    sku = tuned().sku
    bc.plan_cache.save(tmp_path / "plans.json")
    bc.plan_cache.clear()
    before = device.measured
    device.times = {"_d1_": 1e-6, "_d2_": 2e-6}
    assert bc.plan_cache.load(tmp_path / "plans.json") == 1
    assert tuned().sku == sku
    assert device.measured == before


def test_a_loaded_choice_that_does_not_fit_is_measured(device: StubDevice, tmp_path: Path) -> None:
    sku = tuned().sku
    path = tmp_path / "plans.json"
    bc.plan_cache.save(path)
    content = json.loads(path.read_text())
    content["plans"][0]["sku"]["variant"] = "depth 7, 256 threads"
    path.write_text(json.dumps(content))
    bc.plan_cache.clear()
    bc.plan_cache.load(path)
    before = device.measured
    assert tuned().sku == sku
    assert device.measured > before


def test_what_has_one_variant_is_not_measured(device: StubDevice) -> None:
    plan = bc.rope.plan(torch.ones(2, 4, 8), autotune=True)
    assert plan.sku.variant.endswith("threads")
    assert device.measured == 0


def test_every_kind_of_call_runs_the_variant(device: StubDevice) -> None:
    plan = tuned()
    device.launched.clear()
    plan(X, out=(torch.ones(128, 64).T, torch.ones_like(X)), accumulate=True, weight=0.3)
    assert all("_d2_" in entry.symbol for entry in device.launched)
    assert len(device.launched) == 1


# What a schedule says of a plan.


@pytest.fixture
def schedule(device: StubDevice, monkeypatch: pytest.MonkeyPatch) -> dict[str, Steps | Refusal]:
    """Answers for the variants of an elementwise op, "" is the rule's choice."""
    answers: dict[str, Steps | Refusal] = {}

    def plan(call: Call) -> Steps:
        answer = answers[call.variant or next(iter(answers))]
        if isinstance(answer, Refusal):
            raise answer
        return answer

    monkeypatch.setitem(schedules.PLANNERS, "elementwise", plan)
    monkeypatch.setitem(schedules.VARIANTS, "elementwise", lambda call: tuple(answers))
    return answers


def real(depth: int) -> Steps:
    """The steps of a real variant."""
    usual = call(on_gpu("lerp_backward", (64, 128)))
    return elementwise.plan(usual._replace(variant=f"depth {depth}"))


def test_a_refusal_is_the_reason_of_the_backend(
    device: StubDevice, schedule: dict[str, Any]
) -> None:
    schedule["depth 1"] = Refusal("likes no lerps")
    with pytest.raises(NotImplementedError, match="backend 'cuda' refuses: cuda: likes no lerps"):
        bc.lerp_backward.plan(X, backend="cuda")


def test_variants_that_refuse_or_need_too_much_are_not_measured(
    device: StubDevice, schedule: dict[str, Any]
) -> None:
    schedule["depth 1"] = real(1)
    schedule["depth 2"] = Refusal("not today")
    schedule["large"] = real(2)._replace(workspaces=(((1000,), "float32"),))
    assert tuned(max_workspace_bytes=3999).sku.variant == RULE
    assert device.measured == 0
    assert tuned(max_workspace_bytes=4000).workspace_size == 4000


@pytest.mark.parametrize(("deterministic", "stable"), [(True, True), (True, False), (False, False)])
def test_the_guarantee_is_that_of_the_steps(
    deterministic: bool, stable: bool, device: StubDevice, schedule: dict[str, Any]
) -> None:
    schedule["depth 1"] = real(1)._replace(deterministic=deterministic, stable=stable)
    precision = bc.lerp_backward.plan(X).sku.precision
    assert (precision.deterministic, precision.bit_stable) == (deterministic, stable)
    if not deterministic:
        with pytest.raises(NotImplementedError, match="cuda: adds by atomics, in no fixed order"):
            bc.lerp_backward.plan(X, deterministic=True, backend="cuda")


def test_workspaces_are_counted_in_bytes() -> None:
    steps = Steps((Zero(0, 4),), (((2, 3), "float32"), ((5,), "float64")))
    assert steps.workspace_size == 64
    assert Steps(()).workspace_size == 0
