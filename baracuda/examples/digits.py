"""A vision transformer for the handwritten digits of scikit-learn, forward and backward by hand.

An image of 8 x 8 is 8 patches of one row, each a token. `baracuda.examples.training` plans each op
once, and makes the steps. `python -m baracuda train --example digits` runs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import array_namespace

import baracuda as bc
from baracuda.examples.training import NO_MASKS, Array, Mask, Plans, Settings, Weights

Saved: TypeAlias = tuple[Array, ...]
Numbers: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Digits:
    """Images of 8 x 8, from -1 to 1, and what they show, for training and for testing."""

    images: Numbers
    labels: Numbers
    test_images: Numbers
    test_labels: Numbers

    def batch(self, rng: np.random.Generator, size: int) -> tuple[Numbers, Numbers]:
        """Some images, [size, 8, 8], and their labels; two in five are moved by a pixel, by axis.

        There are too few images to learn from without it.
        """
        which = rng.integers(0, len(self.labels), size)
        down, right = rng.choice(3, (2, size), p=(0.2, 0.6, 0.2))
        wide = np.pad(self.images[which], ((0, 0), (1, 1), (1, 1)), constant_values=-1)
        every = np.lib.stride_tricks.sliding_window_view(wide, (8, 8), axis=(1, 2))
        return every[np.arange(size), down, right], self.labels[which]


def handwritten() -> Digits:
    """The 1,797 images of `sklearn.datasets.load_digits`, one in five of them for testing.

    They are shuffled once, the same way each time: the file is in the order of its writers.
    """
    found = import_module("sklearn.datasets").load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images, labels = found.images[order] / 8 - 1, found.target[order].astype(np.int32)
    cut = len(labels) // 5
    images = images.astype(np.float32)
    return Digits(images[cut:], labels[cut:], images[:cut], labels[:cut])


@dataclass(frozen=True)
class Config(Settings):
    """Sizes of the model, beside the settings of its training."""

    tokens: int = 8
    inputs: int = 8
    classes: int = 10
    batch: int = 32
    width: int = 64
    heads: int = 4
    hidden: int = 128
    layers: int = 2
    dropout: float = 0.1
    learning_rate: float = 3e-3


EPS = {"eps": 1e-5}


def initial_weights(config: Config, rng: np.random.Generator) -> dict[str, Numbers]:
    """The weights as NumPy arrays, so that every library can start from the same ones."""
    c, residual = config, 1 / math.sqrt(2 * config.layers)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Numbers:
        return gain / math.sqrt(rows) * rng.standard_normal((rows, columns))

    def norm(name: str) -> dict[str, Numbers]:
        return {f"{name}_weight": np.ones(c.width), f"{name}_bias": np.zeros(c.width)}

    weights = {"patches": matrix(c.inputs, c.width)}
    weights["places"] = 0.5 * rng.standard_normal((c.tokens, c.width))
    for i in range(c.layers):
        weights |= norm(f"before{i}") | norm(f"after{i}")
        weights[f"qkv{i}"] = matrix(c.width, 3 * c.width)
        weights[f"out{i}"] = matrix(c.width, c.width, residual)
        weights[f"up{i}"] = matrix(c.width, c.hidden)
        weights[f"down{i}"] = matrix(c.hidden, c.width, residual)
    return weights | norm("last") | {"head": matrix(c.width, c.classes, 0.1)}


# -- the parts: a forward also returns what its backward needs -----------------------------------


def normed(x: Array, w: Weights, name: str, plans: Plans) -> Array:
    return plans(bc.layer_norm, x, w[f"{name}_weight"], w[f"{name}_bias"], scalars=EPS)


def branch_backward(
    dh: Array, dy: Array, x: Array, w: Weights, dw: Weights, name: str, plans: Plans
) -> Array:
    """The gradient to a stream that goes on beside a norm, and those of the norm's weights."""
    dx, dw[f"{name}_weight"], dw[f"{name}_bias"] = plans(
        bc.add_layer_norm_backward, dh, dy, x, w[f"{name}_weight"], scalars=EPS
    )
    return dx


def added(branch: Array, x: Array, mask: Mask) -> Array:
    """The stream behind a branch, some of whose elements are dropped; a mask is but numbers."""
    return bc.dropout_add(branch, x, **mask) if mask else x + branch


def added_backward(dy: Array, mask: Mask) -> Array:
    """The gradient to the branch. That to the stream is `dy` itself."""
    return bc.dropout_add_backward(dy, **mask) if mask else dy


def attention(
    x: Array, w: Weights, i: int, mask: Mask, config: Config, plans: Plans
) -> tuple[Array, Saved]:
    """``x`` is [batch * tokens, width], and so is the result."""
    xp, dot, c = array_namespace(x), plans.dot, config
    size = c.width // c.heads
    h = normed(x, w, f"before{i}", plans)
    qkv = xp.reshape(dot(h, w[f"qkv{i}"]), (-1, c.tokens, 3, c.heads, size))
    qkv = xp.permute_dims(qkv, (2, 0, 3, 1, 4))  # [3, batch, head, token, size]
    q, k, v = qkv[0, ...], qkv[1, ...], qkv[2, ...]
    scores = dot(q, xp.matrix_transpose(k))
    p = plans(bc.softmax, scores, scalars={"scale": 1 / math.sqrt(size)})
    mixed = xp.reshape(xp.permute_dims(dot(p, v), (0, 2, 1, 3)), x.shape)
    return added(dot(mixed, w[f"out{i}"]), x, mask), (x, h, q, k, v, p, mixed, mask)


def attention_backward(
    dy: Array, saved: Saved, w: Weights, dw: Weights, i: int, config: Config, plans: Plans
) -> Array:
    x, h, q, k, v, p, mixed, mask = saved
    xp, dot, c = array_namespace(dy), plans.dot, config
    size = c.width // c.heads
    dbranch = added_backward(dy, mask)
    dmixed = xp.reshape(dot(dbranch, w[f"out{i}"].T), (-1, c.tokens, c.heads, size))
    dmixed = xp.permute_dims(dmixed, (0, 2, 1, 3))
    dv, dp = dot(xp.matrix_transpose(p), dmixed), dot(dmixed, xp.matrix_transpose(v))
    dscores = plans(bc.softmax_backward, dp, p, scalars={"scale": 1 / math.sqrt(size)})
    dq, dk = dot(dscores, k), dot(xp.matrix_transpose(dscores), q)
    dqkv = xp.permute_dims(xp.stack([dq, dk, dv]), (1, 3, 0, 2, 4))
    dqkv = xp.reshape(dqkv, (-1, 3 * c.width))
    dw[f"qkv{i}"], dw[f"out{i}"] = dot(h.T, dqkv), dot(mixed.T, dbranch)
    return branch_backward(dot(dqkv, w[f"qkv{i}"].T), dy, x, w, dw, f"before{i}", plans)


def mlp(x: Array, w: Weights, i: int, mask: Mask, plans: Plans) -> tuple[Array, Saved]:
    h = normed(x, w, f"after{i}", plans)
    up = plans.dot(h, w[f"up{i}"])
    active = plans(bc.gelu, up)
    return added(plans.dot(active, w[f"down{i}"]), x, mask), (x, h, up, active, mask)


def mlp_backward(dy: Array, saved: Saved, w: Weights, dw: Weights, i: int, plans: Plans) -> Array:
    x, h, up, active, mask = saved
    dot, dbranch = plans.dot, added_backward(dy, mask)
    dup = plans(bc.gelu_backward, dot(dbranch, w[f"down{i}"].T), up)
    dw[f"up{i}"], dw[f"down{i}"] = dot(h.T, dup), dot(active.T, dbranch)
    return branch_backward(dot(dup, w[f"up{i}"].T), dy, x, w, dw, f"after{i}", plans)


# -- the model -----------------------------------------------------------------------------------


def forward(
    w: Weights, images: Array, config: Config, plans: Plans, masks: Iterator[Mask] = NO_MASKS
) -> tuple[Array, list[Saved]]:
    """The logits, [batch, classes], and a stack of what the backward needs."""
    xp = array_namespace(images)
    flat = xp.reshape(images, (-1, config.inputs))
    x = xp.reshape(plans.dot(flat, w["patches"]), (-1, config.tokens, config.width)) + w["places"]
    x = xp.reshape(x, (-1, config.width))
    saved: list[Saved] = [(flat,)]
    for i in range(config.layers):
        x, part = attention(x, w, i, next(masks), config, plans)
        saved.append(part)
        x, part = mlp(x, w, i, next(masks), plans)
        saved.append(part)
    h = xp.reshape(normed(x, w, "last", plans), (-1, config.tokens, config.width))
    pooled = xp.mean(h, axis=1)
    return plans.dot(pooled, w["head"]), [*saved, (x, pooled)]


def backward(
    dlogits: Array, saved: list[Saved], w: Weights, config: Config, plans: Plans
) -> Weights:
    """The gradient of every weight; takes `saved` from its end, as the forward filled it."""
    xp, c = array_namespace(dlogits), config
    x, pooled = saved.pop()
    dw = {"head": plans.dot(pooled.T, dlogits)}
    dh = plans.dot(dlogits, w["head"].T) / c.tokens
    dh = xp.broadcast_to(dh[:, None, :], (dh.shape[0], c.tokens, c.width))
    dx, dw["last_weight"], dw["last_bias"] = plans(
        bc.layer_norm_backward, xp.reshape(dh, x.shape), x, w["last_weight"], scalars=EPS
    )
    for i in reversed(range(c.layers)):
        dx = mlp_backward(dx, saved.pop(), w, dw, i, plans)
        dx = attention_backward(dx, saved.pop(), w, dw, i, c, plans)
    (flat,) = saved.pop()
    dw["places"] = xp.sum(xp.reshape(dx, (-1, c.tokens, c.width)), axis=0)
    dw["patches"] = plans.dot(flat.T, dx)
    return dw


def loss_and_accuracy(
    w: Weights, images: Array, labels: Array, config: Config, plans: Plans
) -> tuple[Array, Array]:
    """The mean cross entropy, and the share of images whose label is the largest logit."""
    logits, _ = forward(w, images, config, plans)
    loss, accuracy, _ = plans(bc.cross_entropy, logits, labels, metrics=True)
    return loss, accuracy


def loss_and_gradient(
    w: Weights,
    images: Array,
    labels: Array,
    config: Config,
    plans: Plans,
    masks: Iterator[Mask] = NO_MASKS,
) -> tuple[Array, Weights]:
    logits, saved = forward(w, images, config, plans, masks)
    loss, dlogits = plans(bc.cross_entropy_with_gradient, logits, labels)
    return loss, backward(dlogits, saved, w, config, plans)
