"""The loop of ``baracuda train --example digits``, and what it shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from baracuda.examples.digits import (
    Config,
    Digits,
    initial_weights,
    loss_and_accuracy,
    loss_and_gradient,
)
from baracuda.examples.training import Compiler, Plans, Training, Weights, as_it_is
from baracuda.tools.train.fitting import FLUSH_EVERY, Trained
from baracuda.tools.train.report import sku_table

STEPS = 600
TEST_EVERY = 50


@dataclass(kw_only=True)
class Seen(Trained):
    """A training on images.

    Attributes
    ----------
    accuracies : list of float
        Of the averaged weights on the images for testing, with each of `validations`.
    """

    digits: Digits
    tested: Callable[[Weights], tuple[float, float]]
    accuracies: list[float] = field(default_factory=list)

    def test(self) -> None:
        """Loss and accuracy of the averaged weights."""
        loss, accuracy = self.tested(self.training.average)
        self.validations.append((self.steps, loss))
        self.accuracies.append(accuracy)


def fit(
    xp: Any,
    digits: Digits,
    config: Config,
    *,
    seed: int = 0,
    steps: int | None = None,
    seconds: float | None = None,
    device: str | None = None,
    compiler: Compiler = as_it_is,
    report: Callable[[Seen], None] = lambda run: None,
) -> Seen:
    """Train until `steps` or `seconds` are reached, whichever is first.

    Parameters
    ----------
    xp : namespace
        Of the array library.
    digits : Digits
        What to learn.
    config : Config
        Of the model.
    seed : int, optional
        Of the initial weights, the batches, and what is dropped.
    steps : int, optional
        The most steps.
    seconds : float, optional
        The most seconds in steps; testing does not count.
    device : str, optional
        Where the arrays live; the library's own choice by default.
    compiler : callable, optional
        What the gradient, the update and the test go through once: `jax.jit`.
    report : callable, optional
        Called after every test.

    Returns
    -------
    Seen
    """
    where = {} if device is None else {"device": device}
    rng = np.random.default_rng(seed)
    initial = initial_weights(config, rng)
    weights = {k: xp.asarray(w.astype(np.float32), **where) for k, w in initial.items()}
    held_out = [xp.asarray(x, **where) for x in (digits.test_images, digits.test_labels)]
    measure = compiler(partial(loss_and_accuracy, config=config, plans=Plans()))

    def tested(weights: Weights) -> tuple[float, float]:
        loss, accuracy = measure(weights, *held_out)
        return float(loss), float(accuracy)

    training = Training(weights, config, loss_and_gradient, compiler, seed)
    run = Seen(training=training, digits=digits, tested=tested, unit="nats per image")
    pending: list[Any] = []
    while (steps is None or run.steps < steps) and (seconds is None or run.seconds < seconds):
        clock = time.perf_counter()
        batch = [xp.asarray(x, **where) for x in digits.batch(rng, config.batch)]
        pending.append(training.step(*batch))
        if run.steps == 1:
            run.first_calls = training.plans.calls.copy()
        if len(pending) == FLUSH_EVERY or run.steps == steps:
            run.losses += map(float, pending)
            pending.clear()
        run.seconds += time.perf_counter() - clock
        if run.steps % TEST_EVERY == 0:
            run.test()
            report(run)
    run.losses += map(float, pending)
    if not run.validations or run.validations[-1][0] != run.steps:
        run.test()
    return run


def line(run: Seen) -> None:
    """Say how far a training is."""
    print(
        f"step {run.steps}  loss {np.mean(run.losses[-50:]):.3f}  test {run.validations[-1][1]:.3f}"
        f"  accuracy {run.accuracies[-1]:.4f}  {run.seconds:.1f} s",
        flush=True,
    )


def summary(run: Seen) -> str:
    """Loss, accuracy and SKUs in words."""
    weights, digits = run.training.weights, run.digits
    size = sum(int(np.prod(w.shape)) for w in weights.values())
    return "\n".join([
        f"images           sklearn.datasets.load_digits: {len(digits.labels):,} to train on,"
        f" {len(digits.test_labels)} to test",
        f"model            {size:,} weights, {run.steps:,} steps in {run.seconds:.1f} s",
        f"training loss    {np.mean(run.losses[-100:]):.3f} nats per image, last 100 steps",
        f"test accuracy    {run.accuracies[-1]:.4f} with averaged weights,"
        f" {run.tested(weights)[1]:.4f} with the last ones",
        "",
        sku_table(run),
    ])  # fmt: skip
