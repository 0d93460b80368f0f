"""How a model whose gradient is written by hand is trained, on any array library.

Read it from top to bottom: how an op is planned once, the settings, one update of the weights, and
two kinds of training. `Training` makes new arrays in each step. `OnDevice` makes the same step in
place, as a function of arrays on a device alone, so that a CUDA graph can hold all of it.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias

from array_api_compat import array_namespace, device

import baracuda as bc

Array: TypeAlias = Any
Weights: TypeAlias = dict[str, Array]
Mask: TypeAlias = Mapping[str, Any]
Gradient: TypeAlias = Callable[..., tuple[Array, Weights]]
Compiler: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
Recorder: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]
Product: TypeAlias = Callable[[Array, Array], Array]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train: what is dropped, AdamW's numbers, the largest norm, the average of weights."""

    dropout: float = 0.0
    learning_rate: float = 2e-3
    warmup: int = 100
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    max_norm: float = 1.0
    average: float = 0.99


class Plans:
    """The plan of each op and slot: made by the first call, reused by every later one.

    A plan fixes the shapes and the options, so one slot serves all layers. A scalar is no part of
    it: the learning rate changes at every step and is handed to the plan with the arrays.

    Attributes
    ----------
    dot : callable
        The product of two arrays of matrices: `operator.matmul`, unless another is given.
    """

    def __init__(self, dot: Product = operator.matmul) -> None:
        self.dot = dot
        self.plans: dict[tuple[str, str], Any] = {}
        self.calls: Counter[tuple[str, str]] = Counter()

    def __call__(
        self,
        op: Any,
        *arrays: Any,
        slot: str = "",
        scalars: Mapping[str, Any] = {},
        out: Any = None,
        **options: Any,
    ) -> Any:
        key = op.__name__, slot
        self.calls[key] += 1
        if key not in self.plans:
            self.plans[key] = op.plan(*arrays, **options)
        return self.plans[key](*arrays, out=out, **scalars)

    def skus(self, *keys: tuple[str, str]) -> list[bc.KernelSku]:
        """What the plans of some slots run, or of all: of lists of arrays one choice or more."""
        plans = [self.plans[key] for key in keys or self.plans]
        return [sku for plan in plans for sku in getattr(plan, "skus", None) or (plan.sku,)]


# -- one step ------------------------------------------------------------------------------------

NO_MASKS: Iterator[Mask] = repeat({})


def masks_of(config: Settings, seed: Array | int, step: Array | int) -> Iterator[Mask]:
    """One mask after another of a step of training: each is a rate, a seed and an offset."""
    if not config.dropout:
        return NO_MASKS
    return ({"p": config.dropout, **place} for place in bc.seeds(seed, step=step))


def rates(steps: Any, config: Settings) -> tuple[Any, Any]:
    """Of the step after so many: the learning rate, and what the average of weights keeps.

    Both follow from float64 by operators alone, so they have the same bits for a number and for an
    array on a device.
    """

    def at_most(x: Any, most: float) -> Any:
        return x * (x < most) + most * (x >= most)

    t = steps + 1.0
    rate = config.learning_rate * at_most(t / config.warmup, 1.0)
    return rate, at_most((1 + t) / (10 + t), config.average)  # a young average forgets quickly


def joint_squares(gradient: Sequence[Array], plans: Plans) -> Array:
    """The squares of all elements of all gradients, summed."""
    return plans(bc.sum_of_squares, gradient)


def update(
    weights: Weights,
    mean: Weights,
    square: Weights,
    average: Weights,
    gradient: Weights,
    step: Any,
    rate: Any,
    keep: Any,
    config: Settings,
    plans: Plans,
    squares: Callable[[Sequence[Array], Plans], Array] = joint_squares,
    in_place: bool = False,
) -> tuple[Weights, ...]:
    """Clip the gradient by its norm, and make a step of AdamW and of the average of weights.

    `step`, `rate` and `keep` are numbers, or arrays on the device. All arrays of a kind go to a
    plan as one list. The weights, two moments and average after it are new arrays, unless they are
    to be in place.
    """
    states = [[some[name] for name in weights] for some in (weights, mean, square, average)]
    w, m, s, a = states
    g = [gradient[name] for name in weights]
    _, scale, found_inf = plans(
        bc.clip_scale, squares(g, plans), scalars={"max_norm": config.max_norm}
    )
    numbers = {
        "lr": rate, "beta1": config.beta1, "beta2": config.beta2, "eps": config.epsilon,
        "weight_decay": config.weight_decay, "step": step, "grad_scale": scale,
        "found_inf": found_inf,
    }  # fmt: skip
    w, m, s = plans(bc.adamw, w, g, m, s, scalars=numbers, out=(w, m, s) if in_place else None)
    a = plans(bc.ema, a, w, scalars={"decay": keep}, out=a if in_place else None)
    return tuple([dict(zip(weights, some, strict=True)) for some in (w, m, s, a)])


# -- training ------------------------------------------------------------------------------------


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiler of libraries that have none."""
    return function


class Training:
    """Weights, the two moments of AdamW, and the exponential moving average of the weights.

    What `compiler` is given takes and returns arrays and numbers only, so that it may be `jax.jit`:
    a plan that is called meanwhile becomes part of the program.

    Attributes
    ----------
    steps, passes : int
        How many steps were made, and how often the code of a step ran for them.
    """

    def __init__(
        self,
        weights: Weights,
        config: Settings,
        gradient: Gradient,
        compiler: Compiler = as_it_is,
        seed: int = 0,
        plans: Plans | None = None,
        squares: Callable[[Sequence[Array], Plans], Array] = joint_squares,
    ) -> None:
        self.plans = plans or Plans()
        self.config, self.seed, self.steps, self.passes = config, seed, 0, 0

        def of_step(step: Array | int, *batch: Any) -> tuple[Array, Weights]:
            return gradient(*batch, config, self.plans, masks_of(config, self.seed, step))

        xp = array_namespace(*weights.values())
        self.gradient = compiler(of_step)
        self.update = compiler(partial(update, config=config, plans=self.plans, squares=squares))
        self.weights = dict(weights)
        self.average = {name: xp.asarray(w, copy=True) for name, w in weights.items()}
        self.mean = {name: xp.zeros_like(w) for name, w in weights.items()}
        self.square = {name: xp.zeros_like(w) for name, w in weights.items()}

    def step(self, *batch: Array) -> Array:
        """One step on one batch; its loss, before the step."""
        loss, gradient = self.gradient(self.steps, self.weights, *batch)
        rate, keep = rates(self.steps, self.config)
        self.steps, self.passes = self.steps + 1, self.passes + 1
        self.weights, self.mean, self.square, self.average = self.update(
            self.weights, self.mean, self.square, self.average, gradient, self.steps, rate, keep
        )
        return loss


EAGER = 3
"""So many steps run before one is recorded: they compile kernels and make plans."""


class OnDevice:
    """A training whose every step is one function of arrays that stay where they are.

    The number of the step and the seed are arrays on the device; learning rate, offsets of masks
    and the factor of clipping follow from them there. So `run` takes and returns nothing, reads
    nothing back, and can be recorded once: what it has launched is then launched again.

    Parameters
    ----------
    training : Training
        What to go on from. Its weights and states are updated in place.
    gradient : callable
        As of `Training`.
    record : callable
        Takes `run`, and returns what replays it; `as_it_is` runs it each time.
    """

    def __init__(self, training: Training, gradient: Gradient, record: Recorder) -> None:
        self._training, self._gradient, self._record = training, gradient, record
        self._replay: Callable[[], None] | None = None
        self._batch: tuple[Array, ...] = ()
        weights = training.weights
        like = next(iter(weights.values()))
        xp = array_namespace(like)
        whole = {"dtype": xp.int64, "device": device(like)}
        # Not those that the caller goes on to use.
        training.weights = {name: xp.asarray(w, copy=True) for name, w in weights.items()}
        self._number = xp.asarray(training.steps, **whole)
        self._seed = xp.asarray(training.seed, **whole)
        self._loss = xp.zeros((), dtype=like.dtype, device=device(like))

    def run(self) -> None:
        """One step of AdamW on the batch that is there, whose loss it writes."""
        t = self._training
        xp, c = array_namespace(self._loss), t.config
        masks = masks_of(c, self._seed, self._number)
        loss, gradient = self._gradient(t.weights, *self._batch, c, t.plans, masks)
        self._loss[...] = loss
        rate, keep = rates(xp.astype(self._number, xp.float64), c)
        self._number += 1
        update(
            t.weights, t.mean, t.square, t.average, gradient, self._number, rate, keep, c, t.plans,
            in_place=True,
        )  # fmt: skip
        t.passes += 1

    def step(self, *batch: Array) -> Array:
        """One step on one batch; its loss, before the step."""
        t = self._training
        xp = array_namespace(self._loss)
        if not self._batch:
            self._batch = tuple([xp.asarray(x, copy=True) for x in batch])
        for held, x in zip(self._batch, batch, strict=True):
            held[...] = x
        if t.steps == EAGER:
            self._replay = self._record(self.run)
        (self._replay or self.run)()
        t.steps += 1
        return xp.asarray(self._loss, copy=True)
