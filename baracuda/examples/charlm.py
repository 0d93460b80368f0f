"""A character-level transformer, forward and backward by hand, on any array library.

Read it from top to bottom: how an op is planned once, the parts of the model with each backward
pass below its forward, the gradient of the whole, and one step of training. There is no autograd
engine, and nothing here knows which library its arrays come from.

Tokens are flat, [batch * context], and so are the activations, [batch * context, width]; only
attention looks at them as [batch, head, position, size]. `python -m baracuda train` runs it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace

import baracuda as bc

Array: TypeAlias = Any
Weights: TypeAlias = dict[str, Array]
Saved: TypeAlias = tuple[Array, ...]
Mask: TypeAlias = Mapping[str, Any]
Gradient: TypeAlias = Callable[..., tuple[Array, Weights]]
Compiler: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
Tokens: TypeAlias = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True)
class Text:
    """Character ids, and how many different characters there are."""

    training: Tokens
    validation: Tokens
    vocabulary: int


def python_reference() -> Text:
    """The topics of `help()` in the order of their names, the last tenth for validation."""
    from pydoc_data.topics import topics

    text = "".join(topics[name] for name in sorted(topics))
    alphabet, inverse = np.unique(np.array(list(text)), return_inverse=True)
    ids = inverse.astype(np.int32)
    cut = ids.size - ids.size // 10
    return Text(ids[:cut], ids[cut:], alphabet.size)


@dataclass(frozen=True)
class Config:
    """Sizes of the model and settings of its training."""

    vocabulary: int
    context: int = 64
    batch: int = 8
    width: int = 96
    heads: int = 4
    hidden: int = 192
    layers: int = 2
    dropout: float = 0.0
    learning_rate: float = 2e-3
    warmup: int = 100
    beta1: float = 0.9
    beta2: float = 0.99
    epsilon: float = 1e-8
    average: float = 0.99


EPS = {"eps": 1e-5}
NO_MASKS: Iterator[Mask] = repeat({})


class Plans:
    """The plan of each op and slot: made by the first call, reused by every later one.

    A plan fixes the shapes and the options, so one slot serves all layers. A scalar is no part of
    it: the weight of `lerp` changes at every step and is handed to the plan with the arrays.
    """

    def __init__(self) -> None:
        self.plans: dict[tuple[str, str], Any] = {}
        self.calls: Counter[tuple[str, str]] = Counter()

    def __call__(
        self,
        op: Any,
        *arrays: Array,
        slot: str = "",
        scalars: Mapping[str, float] = {},
        **options: Any,
    ) -> Array:
        key = op.__name__, slot
        self.calls[key] += 1
        if key not in self.plans:
            result, self.plans[key] = op.planned(*arrays, **options, **scalars)
            return result
        return self.plans[key](*arrays, **scalars)


# -- the parts: a forward also returns what its backward needs -----------------------------------


def added(branch: Array, x: Array, mask: Mask) -> Array:
    """The stream behind a branch, some of whose elements are dropped; a mask is but numbers."""
    return bc.dropout_add(branch, x, **mask) if mask else x + branch


def added_backward(dy: Array, mask: Mask) -> Array:
    """The gradient to the branch. That to the stream is `dy` itself."""
    return bc.dropout_add_backward(dy, **mask) if mask else dy


def attention(
    x: Array, w_qkv: Array, w_out: Array, mask: Mask, config: Config, plans: Plans
) -> tuple[Array, Saved]:
    xp = array_namespace(x)
    size = config.width // config.heads
    h = plans(bc.rms_norm, x, scalars=EPS)
    qkv = xp.reshape(h @ w_qkv, (-1, config.context, 3, config.heads, size))
    qkv = xp.permute_dims(qkv, (2, 0, 3, 1, 4))  # [3, batch, head, position, size]
    qk, v = plans(bc.rope, qkv[:2, ...]), qkv[2, ...]
    q, k = qk[0, ...], qk[1, ...]

    scores = q @ xp.matrix_transpose(k)
    p = plans(bc.softmax, scores, causal=True, scalars={"scale": 1 / math.sqrt(size)})
    mixed = xp.reshape(xp.permute_dims(p @ v, (0, 2, 1, 3)), x.shape)
    return added(mixed @ w_out, x, mask), (x, h, q, k, v, p, mixed, mask)


def attention_backward(
    dy: Array, saved: Saved, w_qkv: Array, w_out: Array, config: Config, plans: Plans
) -> tuple[Array, Array, Array]:
    x, h, q, k, v, p, mixed, mask = saved
    xp = array_namespace(dy)
    size = config.width // config.heads
    dbranch = added_backward(dy, mask)
    dmixed = xp.reshape(dbranch @ w_out.T, (-1, config.context, config.heads, size))
    dmixed = xp.permute_dims(dmixed, (0, 2, 1, 3))
    dv = xp.matrix_transpose(p) @ dmixed
    dp = dmixed @ xp.matrix_transpose(v)
    dscores = plans(bc.softmax_backward, dp, p, scalars={"scale": 1 / math.sqrt(size)})
    dq, dk = dscores @ k, xp.matrix_transpose(dscores) @ q

    dqk = plans(bc.rope_backward, xp.stack([dq, dk]))
    dqkv = xp.permute_dims(xp.concat([dqk, dv[None, ...]]), (1, 3, 0, 2, 4))
    dqkv = xp.reshape(dqkv, (-1, 3 * config.width))
    # x goes on beside the attention: its own gradient, and the one through the norm.
    dx = plans(bc.add_rms_norm_backward, dqkv @ w_qkv.T, dy, x, scalars=EPS)
    return dx, h.T @ dqkv, mixed.T @ dbranch


def mlp(x: Array, w_up: Array, w_down: Array, mask: Mask, plans: Plans) -> tuple[Array, Saved]:
    h = plans(bc.rms_norm, x, scalars=EPS)
    up = h @ w_up  # the value and its gate, side by side
    gated = plans(bc.swiglu, up)
    return added(gated @ w_down, x, mask), (x, h, up, gated, mask)


def mlp_backward(
    dy: Array, saved: Saved, w_up: Array, w_down: Array, plans: Plans
) -> tuple[Array, Array, Array]:
    x, h, up, gated, mask = saved
    dbranch = added_backward(dy, mask)
    dup = plans(bc.swiglu_backward, dbranch @ w_down.T, up)
    dx = plans(bc.add_rms_norm_backward, dup @ w_up.T, dy, x, scalars=EPS)
    return dx, h.T @ dup, gated.T @ dbranch


# -- the model -----------------------------------------------------------------------------------


def initial_weights(config: Config, rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    """The weights as NumPy arrays, so that every library can start from the same ones."""

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray[Any, Any]:
        return gain / math.sqrt(rows) * rng.standard_normal((rows, columns))

    width, hidden, residual = config.width, config.hidden, 1 / math.sqrt(2 * config.layers)
    weights = {"embedding": rng.standard_normal((config.vocabulary, width))}
    for i in range(config.layers):
        weights[f"qkv{i}"] = matrix(width, 3 * width)
        weights[f"out{i}"] = matrix(width, width, residual)
        weights[f"up{i}"] = matrix(width, 2 * hidden)
        weights[f"down{i}"] = matrix(hidden, width, residual)
    return weights | {"head": matrix(width, config.vocabulary, 0.1)}


def masks_of(config: Config, seed: int, step: Array | int) -> Iterator[Mask]:
    """One mask after another of a step of training: each is a rate, a seed and an offset."""
    if not config.dropout:
        return NO_MASKS
    return ({"p": config.dropout, **place} for place in bc.seeds(seed, step=step))


def forward(
    w: Weights,
    tokens: Array,
    config: Config,
    plans: Plans,
    masks: Iterator[Mask] = NO_MASKS,
) -> tuple[Array, list[Saved]]:
    """The logits, [batch * context, vocabulary], and a stack of what the backward needs."""
    xp = array_namespace(tokens)
    # One index for all columns of a row: where the library has views, no index is ever copied.
    index = xp.broadcast_to(tokens[:, None], (tokens.shape[0], config.width))
    x = plans(bc.gather, w["embedding"], index, axis=0, slot="embed")
    saved: list[Saved] = [(index,)]
    for i in range(config.layers):
        x, part = attention(x, w[f"qkv{i}"], w[f"out{i}"], next(masks), config, plans)
        saved.append(part)
        x, part = mlp(x, w[f"up{i}"], w[f"down{i}"], next(masks), plans)
        saved.append(part)
    h = plans(bc.rms_norm, x, scalars=EPS)
    return h @ w["head"], [*saved, (x, h)]


def backward(
    dlogits: Array, saved: list[Saved], w: Weights, config: Config, plans: Plans
) -> Weights:
    """The gradient of every weight; takes `saved` from its end, as the forward filled it."""
    x, h = saved.pop()
    dw = {"head": h.T @ dlogits}
    dx = plans(bc.rms_norm_backward, dlogits @ w["head"].T, x, scalars=EPS)
    for i in reversed(range(config.layers)):
        up, down, qkv, out = f"up{i}", f"down{i}", f"qkv{i}", f"out{i}"
        dx, dw[up], dw[down] = mlp_backward(dx, saved.pop(), w[up], w[down], plans)
        dx, dw[qkv], dw[out] = attention_backward(dx, saved.pop(), w[qkv], w[out], config, plans)
    (index,) = saved.pop()
    shape = w["embedding"].shape
    dw["embedding"] = plans(bc.gather_backward, dx, index, axis=0, src_shape=shape, slot="embed")
    return dw


def loss_of(
    w: Weights,
    tokens: Array,
    targets: Array,
    config: Config,
    plans: Plans,
    masks: Iterator[Mask] = NO_MASKS,
) -> Array:
    logits, _ = forward(w, tokens, config, plans, masks)
    return plans(bc.cross_entropy, logits, targets)


def loss_and_gradient(
    w: Weights,
    tokens: Array,
    targets: Array,
    config: Config,
    plans: Plans,
    masks: Iterator[Mask] = NO_MASKS,
) -> tuple[Array, Weights]:
    logits, saved = forward(w, tokens, config, plans, masks)
    loss, dlogits = plans(bc.cross_entropy_with_gradient, logits, targets)
    return loss, backward(dlogits, saved, w, config, plans)


# -- training ------------------------------------------------------------------------------------


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """The compiler of libraries that have none."""
    return function


def adam(
    w: Weights,
    mean: Weights,
    square: Weights,
    dw: Weights,
    rate: float,
    unbias: float,
    config: Config,
) -> tuple[Weights, Weights, Weights]:
    """One step of Adam: the weights and their two moments after it."""
    c, after = config, (w.copy(), mean.copy(), square.copy())
    for name, g in dw.items():
        xp = array_namespace(g)
        m = c.beta1 * mean[name] + (1 - c.beta1) * g
        s = c.beta2 * square[name] + (1 - c.beta2) * g * g
        new = w[name] - rate * m / (xp.sqrt(s / unbias) + c.epsilon)
        after[0][name], after[1][name], after[2][name] = new, m, s
    return after


class Training:
    """Weights, their exponential moving average, and the two moments of Adam.

    What `compiler` is given takes and returns arrays only, so that it may be `jax.jit`: a plan that
    is called meanwhile becomes part of the program. The average is left outside, as the weight of
    its `lerp` is another number at every step.
    """

    def __init__(
        self,
        weights: Weights,
        config: Config,
        gradient: Gradient = loss_and_gradient,
        compiler: Compiler = as_it_is,
        seed: int = 0,
    ) -> None:
        def of_step(step: Array | int, *batch: Any) -> tuple[Array, Weights]:
            return gradient(*batch, config, self.plans, masks_of(config, seed, step))

        xp = array_namespace(*weights.values())
        self.config, self.plans, self.steps = config, Plans(), 0
        self.gradient = compiler(of_step)
        self.adam = compiler(partial(adam, config=config))
        self.weights, self.average = dict(weights), dict(weights)
        self.mean = {name: xp.zeros_like(w) for name, w in weights.items()}
        self.square = {name: xp.zeros_like(w) for name, w in weights.items()}

    def step(self, tokens: Array, targets: Array) -> Array:
        """One step of Adam on one batch; its loss, before the step."""
        loss, gradient = self.gradient(self.steps, self.weights, tokens, targets)
        self.steps = t = self.steps + 1
        c = self.config
        rate = c.learning_rate * min(1.0, t / c.warmup) / (1 - c.beta1**t)
        keep = min(c.average, (1 + t) / (10 + t))  # a young average forgets its start quickly
        self.weights, self.mean, self.square = self.adam(
            self.weights, self.mean, self.square, gradient, rate, 1 - c.beta2**t
        )
        for name, w in self.weights.items():
            self.average[name] = self.plans(
                bc.lerp, self.average[name], w, slot=name, scalars={"weight": 1 - keep}
            )
        return loss
