"""The language model of `baracuda.examples.jax`, trained in plain `jax.numpy` and with the ops."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from flax import nnx

from baracuda.examples import jax as example
from baracuda.examples.charlm import python_reference
from baracuda.testing import block
from baracuda.testing.block import Outcome
from baracuda.testing.model import cells

__all__ = ["SMALL", "VARIANTS", "Sizes", "cells", "measure"]

VARIANTS = {"jax.numpy": example.PLAIN, "baracuda": example.FUSED}
"""The ops that the model is made of. Both are jitted as a whole."""


@dataclass(frozen=True)
class Sizes:
    """The model and its training."""

    layers: int = 6
    hidden: int = 2048
    ffn: int = 8192
    batch: int = 2
    tokens: int = 4096
    vocabulary: int = 32000
    steps: int = 25
    untimed: int = 5
    rate: float = 1e-4

    def __str__(self) -> str:
        return (
            f"[{self.batch}, {self.tokens}] tokens, {self.layers} layers, hidden {self.hidden}, "
            f"FFN {self.ffn}, vocabulary {self.vocabulary}, {self.steps} steps of AdamW"
        )

    @property
    def model(self) -> example.Sizes:
        """Those of the model alone."""
        head = min(128, self.hidden // 2)
        return example.Sizes(self.layers, self.hidden, self.ffn, head, self.vocabulary)


SMALL = Sizes(layers=2, hidden=64, ffn=160, batch=2, tokens=32, vocabulary=128, steps=4, untimed=2)
"""What a CPU trains in a moment."""


def _batches(sizes: Sizes) -> Iterator[tuple[Any, Any]]:
    """The text of `help()`, character by character, without end: ids, and those that follow."""
    text = python_reference().training.astype("int32") % sizes.vocabulary
    size, at = sizes.batch * sizes.tokens, 0
    while True:
        taken = np.take(text, range(at, at + size + 1), mode="wrap")
        shape = sizes.batch, sizes.tokens
        yield jnp.asarray(taken[:-1].reshape(shape)), jnp.asarray(taken[1:].reshape(shape))
        at += size


def train(name: str, ops: example.Ops, sizes: Sizes) -> tuple[Outcome, list[Any]]:
    """Train with some ops; what came of it, and the first gradients, on the host."""
    model = example.Model(sizes.model, ops, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(sizes.rate), wrt=nnx.Param)
    text = _batches(sizes)
    ids, target = next(text)
    slopes = nnx.jit(nnx.grad(lambda model, ids, target: model(ids, target)))(model, ids, target)
    # XLA adds rows of bfloat16 in bfloat16, and so is off itself where a text repeats its tokens.
    slopes.pop("embedding")
    gradients = [torch.from_numpy(np.asarray(x, "float32")) for x in jax.tree.leaves(slopes)]
    del slopes
    step = nnx.jit(example.step, donate_argnums=(0, 1))
    out, times = Outcome(name), []
    for _ in range(sizes.steps):
        began = time.perf_counter()
        out.losses.append(float(step(model, optimizer, ids, target)))
        times.append(time.perf_counter() - began)
        ids, target = next(text)
    out.first, out.seconds = times[0], statistics.median(times[sizes.untimed :])
    return out, gradients


def measure(sizes: Sizes, _: str, show: Callable[[str], None]) -> Sequence[Outcome]:
    """Train with each of `VARIANTS`, and compare with the first one."""
    tasks = {name: partial(train, name, ops, sizes) for name, ops in VARIANTS.items()}
    return block.compare(tasks, show)
