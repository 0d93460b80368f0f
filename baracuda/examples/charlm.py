"""A character-level transformer, forward and backward by hand, on any array library.

Read it from top to bottom: the parts of the model with each backward pass below its forward, and
the gradient of the whole. There is no autograd engine, and nothing here knows which library its
arrays come from. `baracuda.examples.training` plans each op once, and makes the steps.

Tokens are flat, [batch * context], and so are the activations, [batch * context, width]; only
attention looks at them as [batch, head, position, size]. `python -m baracuda train` runs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace

import baracuda as bc
from baracuda.examples.training import NO_MASKS, Array, Mask, Plans, Settings, Weights

Saved: TypeAlias = tuple[Array, ...]
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
class Config(Settings):
    """Sizes of the model, beside the settings of its training."""

    vocabulary: int
    context: int = 64
    batch: int = 8
    width: int = 96
    heads: int = 4
    hidden: int = 192
    layers: int = 2


EPS = {"eps": 1e-5}


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
    xp, dot = array_namespace(x), plans.dot
    size = config.width // config.heads
    h = plans(bc.rms_norm, x, scalars=EPS)
    qkv = xp.reshape(dot(h, w_qkv), (-1, config.context, 3, config.heads, size))
    qkv = xp.permute_dims(qkv, (2, 0, 3, 1, 4))  # [3, batch, head, position, size]
    qk, v = plans(bc.rope, qkv[:2, ...]), qkv[2, ...]
    q, k = qk[0, ...], qk[1, ...]

    scores = dot(q, xp.matrix_transpose(k))
    p = plans(bc.softmax, scores, causal=True, scalars={"scale": 1 / math.sqrt(size)})
    mixed = xp.reshape(xp.permute_dims(dot(p, v), (0, 2, 1, 3)), x.shape)
    return added(dot(mixed, w_out), x, mask), (x, h, q, k, v, p, mixed, mask)


def attention_backward(
    dy: Array, saved: Saved, w_qkv: Array, w_out: Array, config: Config, plans: Plans
) -> tuple[Array, Array, Array]:
    x, h, q, k, v, p, mixed, mask = saved
    xp, dot = array_namespace(dy), plans.dot
    size = config.width // config.heads
    dbranch = added_backward(dy, mask)
    dmixed = xp.reshape(dot(dbranch, w_out.T), (-1, config.context, config.heads, size))
    dmixed = xp.permute_dims(dmixed, (0, 2, 1, 3))
    dv = dot(xp.matrix_transpose(p), dmixed)
    dp = dot(dmixed, xp.matrix_transpose(v))
    dscores = plans(bc.softmax_backward, dp, p, scalars={"scale": 1 / math.sqrt(size)})
    dq, dk = dot(dscores, k), dot(xp.matrix_transpose(dscores), q)

    dqk = plans(bc.rope_backward, xp.stack([dq, dk]))
    dqkv = xp.permute_dims(xp.concat([dqk, dv[None, ...]]), (1, 3, 0, 2, 4))
    dqkv = xp.reshape(dqkv, (-1, 3 * config.width))
    # x goes on beside the attention: its own gradient, and the one through the norm.
    dx = plans(bc.add_rms_norm_backward, dot(dqkv, w_qkv.T), dy, x, scalars=EPS)
    return dx, dot(h.T, dqkv), dot(mixed.T, dbranch)


def mlp(x: Array, w_up: Array, w_down: Array, mask: Mask, plans: Plans) -> tuple[Array, Saved]:
    h = plans(bc.rms_norm, x, scalars=EPS)
    up = plans.dot(h, w_up)  # the value and its gate, side by side
    gated = plans(bc.swiglu, up)
    return added(plans.dot(gated, w_down), x, mask), (x, h, up, gated, mask)


def mlp_backward(
    dy: Array, saved: Saved, w_up: Array, w_down: Array, plans: Plans
) -> tuple[Array, Array, Array]:
    x, h, up, gated, mask = saved
    dot = plans.dot
    dbranch = added_backward(dy, mask)
    dup = plans(bc.swiglu_backward, dot(dbranch, w_down.T), up)
    dx = plans(bc.add_rms_norm_backward, dot(dup, w_up.T), dy, x, scalars=EPS)
    return dx, dot(h.T, dup), dot(gated.T, dbranch)


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


def forward(
    w: Weights,
    tokens: Array,
    config: Config,
    plans: Plans,
    masks: Iterator[Mask] = NO_MASKS,
) -> tuple[Array, list[Saved]]:
    """The logits, [batch * context, vocabulary], and a stack of what the backward needs."""
    x = plans(bc.embedding, tokens, w["embedding"])
    saved: list[Saved] = [(tokens,)]
    for i in range(config.layers):
        x, part = attention(x, w[f"qkv{i}"], w[f"out{i}"], next(masks), config, plans)
        saved.append(part)
        x, part = mlp(x, w[f"up{i}"], w[f"down{i}"], next(masks), plans)
        saved.append(part)
    h = plans(bc.rms_norm, x, scalars=EPS)
    return plans.dot(h, w["head"]), [*saved, (x, h)]


def backward(
    dlogits: Array, saved: list[Saved], w: Weights, config: Config, plans: Plans
) -> Weights:
    """The gradient of every weight; takes `saved` from its end, as the forward filled it."""
    x, h = saved.pop()
    dw = {"head": plans.dot(h.T, dlogits)}
    dx = plans(bc.rms_norm_backward, plans.dot(dlogits, w["head"].T), x, scalars=EPS)
    for i in reversed(range(config.layers)):
        up, down, qkv, out = f"up{i}", f"down{i}", f"qkv{i}", f"out{i}"
        dx, dw[up], dw[down] = mlp_backward(dx, saved.pop(), w[up], w[down], plans)
        dx, dw[qkv], dw[out] = attention_backward(dx, saved.pop(), w[qkv], w[out], config, plans)
    (tokens,) = saved.pop()
    shape = tuple(w["embedding"].shape)
    dw["embedding"] = plans(bc.embedding_backward, dx, tokens, weight_shape=shape)
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
