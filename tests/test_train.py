"""The example model and `python -m baracuda train`: gradient, sameness, counts, command line."""

import dataclasses
import importlib
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import torch

import baracuda as bc
from baracuda.__main__ import main
from baracuda.examples.charlm import (
    Config,
    Plans,
    as_it_is,
    initial_weights,
    loss_and_gradient,
    loss_of,
    masks_of,
)
from baracuda.examples.curves import Curves
from baracuda.tools import train

TINY = {"context": 8, "batch": 3, "width": 16, "heads": 2, "hidden": 24}
LIBRARIES = {**train.NAMESPACES, "array_api_strict": "array_api_strict"}


@pytest.fixture(scope="module")
def text():
    whole = train.python_reference()
    return dataclasses.replace(whole, validation=whole.validation[:200])


@pytest.fixture
def one_torch_thread():
    """Arrays this small only lose to threads, most where other tests keep the cores busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def fit(library, text, dropout=0.0, **options):
    xp = importlib.import_module(LIBRARIES[library])
    config = Config(text.vocabulary, **TINY, warmup=4, dropout=dropout)
    return train.fit(xp, text, config, **options)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_gradient_is_that_of_the_loss(dropout):
    config = Config(vocabulary=11, **TINY, dropout=dropout)
    rng = np.random.default_rng(5)
    weights = initial_weights(config, rng)
    tokens, targets = rng.integers(0, 11, (2, config.batch * config.context)).astype(np.int32)
    plans = Plans()

    def masks():
        return masks_of(config, 3, 5)

    _, gradient = loss_and_gradient(weights, tokens, targets, config, plans, masks())
    assert gradient.keys() == weights.keys()

    def loss(name, change):
        moved = {**weights, name: weights[name] + change}
        return loss_of(moved, tokens, targets, config, plans, masks())

    for name, g in gradient.items():
        for _ in range(3):
            direction = rng.standard_normal(g.shape)
            direction *= 1e-5 / np.linalg.norm(direction)
            slope = loss(name, direction) - loss(name, -direction)
            expected = 2 * np.sum(g * direction)
            assert slope == pytest.approx(expected, rel=1e-5, abs=1e-12), name


def test_every_library_takes_the_same_steps(text, one_torch_thread):
    losses = {name: fit(name, text, steps=12).losses for name in LIBRARIES if name != "cupy"}
    assert losses["numpy"][-1] < losses["numpy"][0]
    for name, of_library in losses.items():
        np.testing.assert_allclose(of_library, losses["numpy"], rtol=0, atol=1e-5, err_msg=name)


def test_a_compiled_step_is_the_same_step(text):
    bc.plan_cache.clear()
    run = fit("jax", text, steps=6, compiler=jax.jit)
    assert run.losses == pytest.approx(fit("numpy", text, steps=6).losses, rel=0, abs=1e-5)
    assert (run.validation_misses, run.later_misses) == (1, 0)
    calls = run.training.plans.calls
    outside = {slot for slot in calls if not run.compiled(slot)}
    assert outside == {("lerp", name) for name in run.training.weights}
    words, kept = train.summary(run)
    assert kept
    traced = calls.total() - 6 * len(outside)
    assert traced == run.first_calls.total() - len(outside) > 0
    assert f"{len(outside)} a step x 6 steps = {6 * len(outside)}" in words
    assert f"beside {traced} in compiled programs" in words
    assert words.count("compiled  ") == len(run.training.plans.plans) - len(outside)


def test_all_libraries_drop_the_same(text, one_torch_thread):
    losses = {
        name: fit(name, text, dropout=0.2, steps=4, compiler=jax.jit if name == "jax" else as_it_is)
        for name in ("numpy", "torch", "jax")
    }
    losses = {name: run.losses for name, run in losses.items()}
    assert losses["numpy"] != fit("numpy", text, steps=4).losses
    for name, of_library in losses.items():
        np.testing.assert_allclose(of_library, losses["numpy"], rtol=0, atol=1e-5, err_msg=name)


def test_the_seed_decides(text):
    first, again, other = (fit("numpy", text, steps=3, seed=s).losses for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_only_the_first_step_plans(text):
    bc.plan_cache.clear()
    seen = []
    run = fit("numpy", text, steps=6, report=lambda r: seen.append(r.training.plans.calls.total()))
    assert run.first_misses > 0
    # Only a validation wants the loss without its gradient.
    assert (run.validation_misses, run.later_misses) == (1, 0)
    assert seen == [run.calls_per_step * step for step in range(1, 7)]
    ops = {plan.sku.op for plan in run.training.plans.plans.values()}
    assert ops == {
        *("gather", "gather_backward", "rope", "rope_backward"),
        *("swiglu", "swiglu_backward", "lerp", "rms_norm", "rms_norm_backward"),
        *("add_rms_norm_backward", "softmax", "softmax_backward"),
        "cross_entropy_with_gradient",
    }
    words, kept = train.summary(run)
    assert kept
    assert f"{run.first_misses} misses in the first step, 0 in the 5 after it" in words
    assert f"{run.calls_per_step} a step x 6 steps = {6 * run.calls_per_step}" in words
    assert all(str(plan.sku) in words for plan in run.training.plans.plans.values())


def test_a_late_miss_is_told(text):
    shapes = iter(range(1, 10))
    run = fit("numpy", text, steps=2, report=lambda r: bc.swiglu(np.ones((next(shapes), 1234))))
    words, kept = train.summary(run)
    assert not kept
    assert "NOT what the plans promise" in words


def test_seconds_end_a_run(text):
    run = fit("numpy", text, seconds=1e-9)
    assert run.steps == len(run.losses) == 1
    assert [step for step, _ in run.validations] == [1]


def test_the_text_is_split_once():
    text = train.python_reference()
    assert text.validation.size == (text.training.size + text.validation.size) // 10
    assert max(text.training.max(), text.validation.max()) == text.vocabulary - 1


def test_text_plot_marks_both_curves():
    rows = Curves([4.0, 3.0, 2.0], [(3, 1.0)]).in_text(width=5, height=4).splitlines()
    assert rows[1:5] == ["  4.00 |.    ", "       |  .  ", "       |    .", "  1.00 |    o"]
    assert rows[5].endswith("step 3")


def test_command(tmp_path):
    pytest.importorskip("matplotlib")
    picture, record = tmp_path / "curves.png", tmp_path / "curves.json"
    files = ["--plot", str(picture), "--json", str(record)]
    done = subprocess.run(
        [sys.executable, "-m", "baracuda", "train", "--steps", "3", *files],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONWARNINGS": "error", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "nats per character" in done.stdout
    assert "0 in the 2 after it" in done.stdout
    assert "swiglu_backward[f32 contiguous numpy" in done.stdout
    assert "\x1b" not in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    curves = json.loads(record.read_text())
    assert curves.keys() == {"losses", "validations", "seconds"}
    assert len(curves["losses"]) == curves["validations"][0][0] == 3
    assert "processes" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "gone", "message"),
    [
        (["--xp", "torch"], "torch", "--xp torch needs torch, which is not installed: "
         "pip install 'baracuda[torch]'"),
        (["--xp", "cupy"], "cupy", "pip install 'baracuda[cupy]'"),
        (["--plot", "x.png"], "matplotlib", "--plot needs matplotlib"),
        (["--plot", "nowhere/x.png"], None, "--plot: no directory nowhere"),
        (["--json", "nowhere/x.json"], None, "--json: no directory nowhere"),
        (["--device", "cuda"], None, "--device goes with --xp torch"),
        (["--xp", "torch", "--device", "nonsense"], None, "torch cannot make an array"),
    ],
)  # fmt: skip
def test_what_a_run_lacks_is_told_before_it_starts(
    arguments, gone, message, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    if gone:
        monkeypatch.setitem(sys.modules, gone, None)
    assert main(["train", "--steps", "1", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("baracuda train: ")
    assert message in err


@pytest.mark.parametrize(
    "arguments", [[], ["nothing"], ["train", "--steps", "0"], ["train", "--seconds", "nan"]]
)
def test_bad_arguments_exit_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: baracuda" in capsys.readouterr().err


def test_without_rich_there_are_plain_lines(text, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.progress", None)
    monkeypatch.setattr(train, "VALIDATE_EVERY", 2)
    with train.progress(2, None) as report:
        fit("numpy", text, steps=2, report=report)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("step 2  loss ")
    assert "validation" in line
    assert "tokens/s" in line
