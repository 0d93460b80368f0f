"""The loop of ``baracuda train``: batches, steps, losses, validation, and what plans were made."""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import baracuda as bc
from baracuda.examples.charlm import (
    Config,
    Text,
    Tokens,
    initial_weights,
    loss_and_gradient,
    loss_of,
)
from baracuda.examples.curves import Curves
from baracuda.examples.training import (
    EAGER,
    Array,
    Compiler,
    Gradient,
    OnDevice,
    Plans,
    Product,
    Recorder,
    Training,
    Weights,
    as_it_is,
    joint_squares,
)

if TYPE_CHECKING:
    from baracuda.examples.torch import Loss, Ranks

FLUSH_EVERY = 10
FIRST = EAGER + 1


class Alone:
    """A process that trains by itself: what `baracuda.examples.torch.Ranks` is for several."""

    first = True

    def __str__(self) -> str:
        return ""

    def mine(self, rows: Any) -> Any:
        return rows

    def share(self, weights: Weights, loss: Loss) -> tuple[Weights, Gradient]:
        return weights, loss_and_gradient

    def whole(self, kept: Weights) -> Weights:
        return kept

    def mean(self, values: Sequence[Array]) -> list[float]:
        return list(map(float, values))

    def most(self, value: float) -> float:
        return value

    def squares(self, gradient: Sequence[Array], plans: Plans) -> Array:
        return joint_squares(gradient, plans)

    def gradients(self) -> Mapping[str, int]:
        return {}


@dataclass(kw_only=True)
class Trained(Curves):
    """A training under way, and its plans."""

    training: Training
    first_calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def steps(self) -> int:
        return self.training.steps

    def compiled(self, slot: tuple[str, str]) -> bool:
        """Whether a plan is part of a program: called in the first step, and not since."""
        passes, calls = self.training.passes, self.training.plans.calls
        return passes > 1 and calls[slot] == self.first_calls[slot]


@dataclass(kw_only=True)
class Run(Trained):
    """A training on text, and what it has left behind so far."""

    text: Text
    config: Config
    loss: Callable[..., Array]
    to_library: Callable[[Any], Array]
    team: Alone | Ranks
    validate_every: int = 250
    first_misses: int = 0
    validation_misses: int = 0
    later_misses: int = 0
    calls_per_step: int = 0
    first_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        config = self.config
        return self.steps * config.batch * config.context / max(self.seconds, 1e-9)

    @property
    def steady_tokens_per_second(self) -> float:
        """Without the first steps, which compile, plan and record."""
        first = self.config.batch * self.config.context * FIRST
        rest = self.tokens_per_second * max(self.seconds, 1e-9) - first
        return max(rest, 0.0) / max(self.seconds - self.first_seconds, 1e-9)

    def batch(self, ids: Tokens, starts: Any) -> tuple[Array, Array]:
        """Of the windows at `starts` this process's, and what follows each character, flat."""
        mine = self.team.mine(np.asarray(starts))
        windows = ids[mine[:, None] + np.arange(self.config.context + 1)]
        return (
            self.to_library(windows[:, :-1].reshape(-1)),
            self.to_library(windows[:, 1:].reshape(-1)),
        )

    def validate(self, weights: Weights) -> float:
        """The mean loss over the held-out text, cut into windows; a last short batch is left."""
        config, ids = self.config, self.text.validation
        starts = np.arange(0, ids.size - config.context, config.context)
        losses = []
        for i in range(0, starts.size - config.batch + 1, config.batch):
            tokens, targets = self.batch(ids, starts[i : i + config.batch])
            losses.append(self.loss(weights, tokens, targets))
        return float(np.mean(self.team.mean(losses)))

    def hold_out(self) -> None:
        """Validate the averaged weights; only the first time may make plans of its own."""
        before = bc.plan_cache.info().misses
        loss = self.validate(self.team.whole(self.training.average))
        self.validations.append((self.steps, loss))
        if len(self.validations) == 1:
            self.validation_misses = bc.plan_cache.info().misses - before


def fit(
    xp: Any,
    text: Text,
    config: Config,
    *,
    seed: int = 0,
    steps: int | None = None,
    seconds: float | None = None,
    device: str | None = None,
    team: Alone | Ranks | None = None,
    compiler: Compiler = as_it_is,
    record: Recorder | None = None,
    dot: Product = operator.matmul,
    validate_every: int = Run.validate_every,
    report: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Train until `steps` or `seconds` are reached, whichever is first.

    Parameters
    ----------
    xp : namespace
        Of the array library.
    text : Text
        What to learn.
    config : Config
        Of the model.
    seed : int, optional
        Of the initial weights, the batches, and what is dropped.
    steps : int, optional
        The most steps.
    seconds : float, optional
        The most seconds in steps; validation does not count.
    device : str, optional
        Where the arrays live; the library's own choice by default.
    team : Ranks, optional
        The processes that train this model together, if it is several.
    compiler : callable, optional
        What the gradient, the step of AdamW and the loss go through once: `jax.jit`.
    record : callable, optional
        Steps are in place, on the device alone, and are recorded by this. See `OnDevice`.
    dot : callable, optional
        The product of arrays of matrices.
    validate_every : int, optional
        Steps from one validation to the next.
    report : callable, optional
        Called after every step.

    Returns
    -------
    Run
    """
    where = {} if device is None else {"device": device}
    rng = np.random.default_rng(seed)
    initial = initial_weights(config, rng)
    weights = {k: xp.asarray(w.astype(np.float32), **where) for k, w in initial.items()}
    team = team or Alone()
    kept, gradient = team.share(weights, loss_of)
    training = Training(kept, config, gradient, compiler, seed, Plans(dot), team.squares)
    step = OnDevice(training, gradient, record).step if record else training.step
    run = Run(
        text=text, config=config, training=training, team=team,
        to_library=lambda ids: xp.asarray(ids, **where),
        loss=compiler(partial(loss_of, config=config, plans=Plans(dot))),
        validate_every=validate_every,
    )  # fmt: skip
    misses = bc.plan_cache.info().misses
    pending: list[Array] = []  # read now and then: reading a loss waits for the device
    # All between steps counts but validation, as a device computes meanwhile.
    clock = time.perf_counter()
    while (steps is None or run.steps < steps) and (seconds is None or run.seconds < seconds):
        starts = rng.integers(0, text.training.size - config.context, config.batch)
        tokens, targets = run.batch(text.training, starts)
        pending.append(step(tokens, targets))
        if run.steps == 1:
            run.first_misses = bc.plan_cache.info().misses - misses
            run.first_calls = training.plans.calls.copy()
        if run.steps <= 2:  # the second makes none of what the first has compiled
            run.calls_per_step = training.plans.calls.total() - run.calls_per_step
        if len(pending) == FLUSH_EVERY or run.steps == steps:
            run.losses += team.mean(pending)
            pending.clear()
        clock, last = time.perf_counter(), clock
        run.seconds += clock - last
        run.first_seconds = run.seconds if run.steps <= FIRST else run.first_seconds
        if seconds is not None:
            run.seconds = team.most(run.seconds)  # all have to stop at the same step
        if run.steps % run.validate_every == 0:
            run.hold_out()
            clock = time.perf_counter()
        report(run)
    run.losses += team.mean(pending)
    if not run.validations or run.validations[-1][0] != run.steps:
        run.hold_out()
    misses = bc.plan_cache.info().misses - misses
    run.later_misses = round(team.most(misses - run.first_misses - run.validation_misses))
    return run
