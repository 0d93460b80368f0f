"""The example of digits: its images, its gradient, equal steps by all libraries, its accuracy."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import jax
import lanes
import numpy as np
import pytest

from baracuda.__main__ import main
from baracuda.examples.digits import (
    Config,
    Digits,
    Plans,
    forward,
    handwritten,
    initial_weights,
    loss_and_gradient,
)
from baracuda.examples.training import as_it_is, masks_of
from baracuda.tools.train import NAMESPACES, images

TINY = {"batch": 3, "width": 16, "heads": 2, "hidden": 24}


@pytest.fixture(scope="module")
def digits() -> Digits:
    pytest.importorskip("sklearn")
    return handwritten()


def fit(library: str, digits: Digits, **options: Any) -> images.Seen:
    compiler = jax.jit if library == "jax" else as_it_is
    xp = import_module(NAMESPACES[library])
    config = options.pop("config", Config())
    return images.fit(xp, digits, config, compiler=compiler, **options)


def test_images_are_split_once_and_moved_by_a_pixel(digits: Digits) -> None:
    assert (len(digits.labels), len(digits.test_labels)) == (1438, 359)
    seen = {x.tobytes() for x in digits.images}
    assert not [x for x in digits.test_images if x.tobytes() in seen]
    assert digits.images.min() == -1
    assert digits.images.max() == 1
    batch, labels = digits.batch(np.random.default_rng(0), 200)
    moved = np.pad(digits.images, ((0, 0), (1, 1), (1, 1)), constant_values=-1)
    which = np.zeros((3, 3), int)
    for x, label in zip(batch, labels, strict=True):
        places = [
            (down, right)
            for down in range(3)
            for right in range(3)
            if label
            in digits.labels[(moved[:, down : down + 8, right : right + 8] == x).all(axis=(1, 2))]
        ]
        assert places
        which[places[0]] += 1
    assert which.min() > 0
    assert 40 < which[1, 1] < 110


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_gradient_is_that_of_the_loss(dropout: float) -> None:
    config = Config(**TINY, dropout=dropout)
    rng, plans = np.random.default_rng(5), Plans()
    weights = initial_weights(config, rng)
    seen, labels = rng.standard_normal((3, 8, 8)), rng.integers(0, 10, 3)

    def loss(w: Any) -> Any:
        logits, _ = forward(w, seen, config, plans, masks_of(config, 3, 5))
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return -log_p[np.arange(3), labels].mean()

    value, gradient = loss_and_gradient(
        weights, seen, labels, config, plans, masks_of(config, 3, 5)
    )
    assert float(value) == pytest.approx(loss(weights))
    assert gradient.keys() == weights.keys()
    for name, g in gradient.items():
        assert g.shape == weights[name].shape
        direction = rng.standard_normal(g.shape)
        direction *= 1e-5 / np.linalg.norm(direction)
        ends = [loss({**weights, name: weights[name] + sign * direction}) for sign in (1, -1)]
        expected = 2 * np.sum(g * direction)
        assert ends[0] - ends[1] == pytest.approx(expected, rel=1e-5, abs=1e-12), name


def test_every_library_takes_the_same_steps(digits: Digits) -> None:
    runs = {name: fit(name, digits, steps=6) for name in ("numpy", "torch", "jax")}
    want = runs["numpy"]
    for name, run in runs.items():
        np.testing.assert_allclose(run.losses, want.losses, rtol=0, atol=2e-5, err_msg=name)
        np.testing.assert_allclose(run.validations, want.validations, rtol=0, atol=2e-5)
        assert run.accuracies == want.accuracies


@pytest.mark.parametrize(
    ("library", "steps", "least"),
    lanes.cases(
        [("numpy", 150, 0.9), *[(name, 600, 0.97) for name in ("numpy", "torch", "jax")]],
        lambda case: case[1] < 600,
    ),
)
def test_digits_are_told_apart(library: str, steps: int, least: float, digits: Digits) -> None:
    run = fit(library, digits, steps=steps)
    assert run.accuracies[-1] > least
    assert len(run.losses) == run.validations[-1][0] == steps


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    assert main(["train", "--example", "digits", "--steps", "50"]) == 0
    words = capsys.readouterr().out
    assert "step 50  loss " in words
    assert "1,438 to train on, 359 to test" in words
    assert "add_layer_norm_backward[f32 contiguous numpy" in words


@pytest.mark.parametrize(
    ("arguments", "gone", "message"),
    [
        ([], "sklearn.datasets", "--example digits needs scikit-learn, which is not installed: "
         "pip install scikit-learn"),
        (["--graph"], None, "--distributed and --graph go with --example text"),
        (["--distributed"], None, "--distributed and --graph go with --example text"),
    ],
)  # fmt: skip
def test_what_a_run_lacks_is_told_before_it_starts(
    arguments: list[str],
    gone: str | None,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if gone:
        monkeypatch.setitem(sys.modules, gone, None)  # type: ignore[arg-type]
    assert main(["train", "--example", "digits", "--steps", "1", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"baracuda train: {message}\n"
