"""The example model and `python -m baracuda train`: gradient, sameness, counts, command line."""

import ctypes
import dataclasses
import importlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import torch

import baracuda as bc
from baracuda.__main__ import main
from baracuda.examples.charlm import Config, initial_weights, loss_and_gradient, loss_of
from baracuda.examples.curves import Curves
from baracuda.examples.training import (
    EAGER,
    OnDevice,
    Plans,
    Settings,
    Training,
    as_it_is,
    masks_of,
)
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
    losses = {name: fit(name, text, steps=6).losses for name in LIBRARIES if name != "cupy"}
    assert losses["numpy"][-1] < losses["numpy"][0]
    for name, of_library in losses.items():
        np.testing.assert_allclose(of_library, losses["numpy"], rtol=0, atol=1e-5, err_msg=name)


def test_a_compiled_step_is_the_same_step(text):
    bc.plan_cache.clear()
    run = fit("jax", text, steps=6, compiler=jax.jit)
    assert run.losses == pytest.approx(fit("numpy", text, steps=6).losses, rel=0, abs=1e-5)
    assert (run.validation_misses, run.later_misses) == (1, 0)
    calls = run.training.plans.calls
    assert all(map(run.compiled, calls))
    words, kept = train.summary(run)
    assert kept
    assert calls == run.first_calls
    assert "0 a step x 6 steps = 0" in words
    assert f"beside {calls.total()} in compiled programs" in words
    assert words.count("compiled  ") == len(calls)


def test_all_libraries_drop_the_same(text, one_torch_thread):
    losses = {
        name: fit(name, text, dropout=0.2, steps=4, compiler=jax.jit if name == "jax" else as_it_is)
        for name in ("numpy", "torch", "jax")
    }
    losses = {name: run.losses for name, run in losses.items()}
    assert losses["numpy"] != fit("numpy", text, steps=4).losses
    for name, of_library in losses.items():
        np.testing.assert_allclose(of_library, losses["numpy"], rtol=0, atol=1e-5, err_msg=name)


def test_a_step_on_the_device_alone_has_the_same_bits(text, one_torch_thread):
    def passed(step):
        kept.append(step)
        return step

    for library in ("numpy", "torch"):
        for dropout in (0.0, 0.2):
            kept = []
            # Past the warm-up, and into steps that a graph would replay.
            held = fit(library, text, dropout, steps=8, record=passed)
            plain = fit(library, text, dropout, steps=8)
            assert held.losses == plain.losses
            assert held.validations == plain.validations
            for name, w in plain.training.weights.items():
                np.testing.assert_array_equal(held.training.weights[name], w, err_msg=name)
            assert len(kept) == 1
            assert held.training.passes == held.steps == 8
            assert held.later_misses == 0


def test_weights_and_their_average_share_no_memory():
    start = {"w": np.ones(3, np.float32)}
    training = Training(start, Settings(warmup=1), lambda w, *rest: (w["w"].sum(), w))
    OnDevice(training, lambda w, *rest: (w["w"].sum(), w), as_it_is).step(np.ones(1))
    assert start["w"].tolist() == [1, 1, 1]
    arrays = [training.weights, training.average, training.mean, training.square, start]
    assert len({x["w"].ctypes.data for x in arrays}) == 5


def test_a_replay_is_counted_as_a_step_and_not_as_calls(text):
    class Paper:
        """Runs a step as a graph would: nothing of it is asked for by name again."""

        def __init__(self, step):
            self.step = step

        def __call__(self):
            run = self.step.__self__._training
            passes, calls = run.passes, run.plans.calls.copy()
            self.step()
            run.passes, run.plans.calls = passes, calls

    def record(step):
        step.__self__._training.passes += 1
        step.__self__._training.plans.calls.update(first)
        return Paper(step)

    first = fit("numpy", text, steps=1).first_calls
    run = fit("numpy", text, steps=9, record=record)
    words, kept = train.summary(run)
    assert kept
    assert run.training.passes == EAGER + 1
    assert f"{EAGER + 1} steps = {run.calls_per_step * (EAGER + 1)}, replayed in 6 steps" in words


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
    ops = {op for op, _ in run.training.plans.plans}
    assert ops == {
        *("embedding", "embedding_backward", "rope", "rope_backward"),
        *("swiglu", "swiglu_backward", "rms_norm", "rms_norm_backward"),
        *("sum_of_squares", "clip_scale", "adamw", "ema"),
        *("add_rms_norm_backward", "softmax", "softmax_backward"),
        "cross_entropy_with_gradient",
    }
    words, kept = train.summary(run)
    assert kept
    assert f"{run.first_misses} misses in the first step, 0 in the 5 after it" in words
    assert f"{run.calls_per_step} a step x 6 steps = {6 * run.calls_per_step}" in words
    assert all(str(sku) in words for sku in run.training.plans.skus())


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
        (["--graph", "--xp", "numpy"], None, "--graph goes with --xp torch or cupy"),
        (["--graph", "--xp", "jax"], None, "--graph goes with --xp torch or cupy"),
        (["--graph", "--device", "cpu"], None, "--graph goes with --device cuda, got cpu"),
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


class OfDevice(np.ndarray):
    """An array that says where it lies as CuPy's do."""

    data = property(lambda x: SimpleNamespace(ptr=x.ctypes.data))


class Blas:
    """What is called of cuBLAS, by its definition: matrices whose columns lie together."""

    def __getattr__(self, name):
        return lambda *arguments: 0

    def cublasSgemmStridedBatched(
        self, handle, turn_a, turn_b, m, n, k, one, a, lda, by_a, b, ldb, by_b, zero, c, ldc, by_c,
        count,
    ):  # fmt: skip
        def matrix(pointer, rows, columns, step, by, turned, i):
            if turned:
                rows, columns = columns, rows
            assert step >= rows
            words = (ctypes.c_float * (step * (columns - 1) + rows)).from_address(
                pointer.value + 4 * by.value * i
            )
            flat = np.frombuffer(words, np.float32)
            found = np.lib.stride_tricks.as_strided(flat, (rows, columns), (4, 4 * step))
            return found.T if turned else found

        for i in range(count):
            left = matrix(a, m, k, lda, by_a, turn_a, i)
            right = matrix(b, k, n, ldb, by_b, turn_b, i)
            matrix(c, m, n, ldc, by_c, 0, i)[...] = left @ right
        return 0


def test_products_of_cupy_are_those_of_the_definition(monkeypatch):
    pytest.importorskip("cupy")
    graphs = importlib.import_module("baracuda.examples.graphs.cupy")
    stream = SimpleNamespace(ptr=0)
    stand_in = SimpleNamespace(
        empty=lambda *how: np.empty(*how).view(OfDevice), swapaxes=np.swapaxes, float32=np.float32,
        ascontiguousarray=lambda x: np.ascontiguousarray(x).view(OfDevice),
        cuda=SimpleNamespace(get_current_stream=lambda: stream),
    )  # fmt: skip
    monkeypatch.setattr(graphs, "cupy", stand_in)
    dot = object.__new__(graphs.Products)
    dot._blas, dot._handle, dot._workspace = Blas(), None, SimpleNamespace(ptr=0)
    dot._one, dot._zero = ctypes.c_float(1), ctypes.c_float(0)
    rng = np.random.default_rng(0)

    def some(*shape):
        return rng.standard_normal(shape).astype(np.float32).view(OfDevice)

    heads = some(2, 5, 3, 4, 6).transpose(2, 0, 3, 1, 4)  # [3, batch, head, position, size]
    for a, b in (
        (some(5, 7), some(7, 3)),
        (some(7, 5).T, some(7, 3)),
        (some(5, 7), some(3, 7).T),
        (some(7, 5).T, some(3, 7).T),
        (some(9, 8)[::2, :7], some(7, 3)),
        (some(2, 4, 5, 7), some(2, 4, 7, 3)),
        (heads[0], heads[1].swapaxes(-1, -2)),
        (some(2, 4, 7, 5).swapaxes(-1, -2), some(2, 4, 3, 7).swapaxes(-1, -2)),
        (some(1, 6), some(6, 1)),
    ):
        np.testing.assert_allclose(dot(a, b), np.asarray(a) @ np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a run without a GPU lacks")
@pytest.mark.parametrize(
    ("library", "message"),
    [("torch", "--graph needs an NVIDIA GPU, and torch sees none"),
     ("cupy", "cupy cannot make an array")],
)  # fmt: skip
def test_a_graph_needs_a_gpu(library, message, capsys):
    pytest.importorskip(library)
    assert main(["train", "--steps", "1", "--graph", "--xp", library]) == 2
    assert message in capsys.readouterr().err


def test_losses_that_differ_from_those_without_a_graph_are_told(text):
    run, plain = (fit("numpy", text, steps=n) for n in (6, 5))
    words, same = train.beside(run, plain)
    assert same
    assert "losses of 5 steps the same bit for bit" in words
    plain.losses[4] += 1e-7
    words, same = train.beside(run, plain)
    assert not same
    assert "NOT the same" in words


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
    with train.progress(2, None) as report:
        fit("numpy", text, steps=2, validate_every=2, report=report)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("step 2  loss ")
    assert "validation" in line
    assert "tokens/s" in line
