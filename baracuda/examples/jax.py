"""A Llama-style language model in flax.nnx, with baracuda's ops or in plain `jax.numpy`.

The two differ in `Ops` alone: the embedding, norms, residual adds, rotations, gates, and the head
with its loss.
Parameters, products and attention (`jax.nn.dot_product_attention`) are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import baracuda as bc

Array: TypeAlias = Any

EPS = 1e-5
BASE = 5e5


@dataclass(frozen=True)
class Sizes:
    """The model."""

    layers: int = 6
    hidden: int = 2048
    ffn: int = 8192
    head: int = 128
    vocabulary: int = 32000
    dtype: str = "bfloat16"

    @property
    def heads(self) -> int:
        """The heads of q, k and v."""
        return max(self.hidden // self.head, 1)


class Ops(NamedTuple):
    """What a layer computes beside products and attention.

    Attributes
    ----------
    embed : callable
        ``(weight, ids) -> rows``.
    norm : callable
        ``(x, weight) -> y``.
    add_norm : callable
        ``(x, residual, weight) -> (y, s)``: the norm of a sum, and the sum.
    rope : callable
        ``(q, k) -> (q, k)``, both of shape [b, s, h, d].
    swiglu : callable
        ``(value, gate) -> y``.
    loss : callable
        ``(hidden, weight, target) -> loss``, the weight of shape [vocabulary, hidden].
    """

    embed: Callable[[Array, Array], Array]
    norm: Callable[[Array, Array], Array]
    add_norm: Callable[[Array, Array, Array], tuple[Array, Array]]
    rope: Callable[[Array, Array], tuple[Array, Array]]
    swiglu: Callable[[Array, Array], Array]
    loss: Callable[[Array, Array, Array], Array]


# -- as people write it --------------------------------------------------------------------------


def _norm(x: Array, weight: Array) -> Array:
    wide = x.astype(jnp.float32)
    normal = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + EPS)
    return normal.astype(x.dtype) * weight


def _add_norm(x: Array, residual: Array, weight: Array) -> tuple[Array, Array]:
    s = x + residual
    return _norm(s, weight), s


def _rope(q: Array, k: Array) -> tuple[Array, Array]:
    half = q.shape[-1] // 2
    turns = BASE ** -(jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.arange(q.shape[1], dtype=jnp.float32)[:, None, None] * turns
    cos, sin = jnp.cos(angles), jnp.sin(angles)

    def rotated(x: Array) -> Array:
        a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)

    return rotated(q), rotated(k)


def _loss(hidden: Array, weight: Array, target: Array) -> Array:
    logits = (hidden @ weight.T).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, target).mean()


PLAIN = Ops(
    lambda weight, ids: jnp.take(weight, ids, axis=0),
    _norm,
    _add_norm,
    _rope,
    lambda value, gate: value * nnx.silu(gate),
    _loss,
)
"""In `jax.numpy`, which XLA fuses as it sees fit."""


# -- with baracuda's ops -------------------------------------------------------------------------


FUSED = Ops(
    lambda weight, ids: bc.embedding(ids, weight),
    lambda x, weight: bc.rms_norm(x, weight, eps=EPS),
    lambda x, residual, weight: bc.add_rms_norm(x, residual, weight, eps=EPS),
    lambda q, k: bc.rope_qk(q, k, base=BASE, interleaved=False, seq_axis=1),
    bc.swiglu,
    bc.linear_cross_entropy,
)
"""By baracuda's functions."""


# -- the model -----------------------------------------------------------------------------------


def _linear(n: int, m: int, sizes: Sizes, rngs: nnx.Rngs) -> nnx.Linear:
    dtype = jnp.dtype(sizes.dtype)
    return nnx.Linear(n, m, use_bias=False, dtype=dtype, param_dtype=dtype, rngs=rngs)


def _ones(sizes: Sizes) -> nnx.Param[Array]:
    return nnx.Param(jnp.ones(sizes.hidden, sizes.dtype))


class Layer(nnx.Module):  # type: ignore[misc]
    """Attention and a gated MLP, each behind a norm that makes the add before it."""

    def __init__(self, sizes: Sizes, ops: Ops, rngs: nnx.Rngs) -> None:
        hidden, ffn = sizes.hidden, sizes.ffn
        self.ops, self.heads = ops, sizes.heads
        self.before, self.after = _ones(sizes), _ones(sizes)
        self.q, self.k, self.v, self.o = (_linear(hidden, hidden, sizes, rngs) for _ in range(4))
        self.up, self.gate = (_linear(hidden, ffn, sizes, rngs) for _ in range(2))
        self.down = _linear(ffn, hidden, sizes, rngs)

    def __call__(self, x: Array | None, stream: Array) -> tuple[Array, Array]:
        """The MLP's branch, and the stream that it belongs to; `x` is the branch before."""
        if x is None:
            y = self.ops.norm(stream, self.before[...])
        else:
            y, stream = self.ops.add_norm(x, stream, self.before[...])
        y = self.o(self._attention(y))
        y, stream = self.ops.add_norm(y, stream, self.after[...])
        return self.down(self.ops.swiglu(self.up(y), self.gate(y))), stream

    def _attention(self, y: Array) -> Array:
        q, k, v = (w(y).reshape(*y.shape[:2], self.heads, -1) for w in (self.q, self.k, self.v))
        q, k = self.ops.rope(q, k)
        where = "cudnn" if jax.default_backend() == "gpu" else "xla"
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=where)
        return out.reshape(y.shape)


class Model(nnx.Module):  # type: ignore[misc]
    """A decoder: ``model(ids, target)`` is the mean loss of the next tokens.

    Parameters
    ----------
    sizes : Sizes
    ops : Ops
        `FUSED` or `PLAIN`.
    rngs : nnx.Rngs
    """

    def __init__(self, sizes: Sizes, ops: Ops, rngs: nnx.Rngs) -> None:
        self.ops = ops
        self.layers = nnx.List([Layer(sizes, ops, rngs) for _ in range(sizes.layers)])
        self.norm = _ones(sizes)
        shape, draw = (sizes.vocabulary, sizes.hidden), nnx.initializers.lecun_normal(1, 0)
        self.embedding, self.head = (
            nnx.Param(draw(rngs.params(), shape, jnp.dtype(sizes.dtype))) for _ in range(2)
        )

    def __call__(self, ids: Array, target: Array) -> Array:
        """The mean cross entropy.

        Parameters
        ----------
        ids, target : integer arrays of shape [b, s]

        Returns
        -------
        scalar of float32
        """
        x, stream = None, self.ops.embed(self.embedding[...], ids)
        for layer in self.layers:
            x, stream = layer(x, stream)
        y, _ = self.ops.add_norm(x, stream, self.norm[...])
        return self.ops.loss(y.reshape(-1, y.shape[-1]), self.head[...], target.reshape(-1))


def step(model: Model, optimizer: nnx.Optimizer, ids: Array, target: Array) -> Array:
    """Train a model by one batch, in place; to be called under `nnx.jit`.

    Parameters
    ----------
    model : Model
    optimizer : nnx.Optimizer
    ids, target : integer arrays of shape [b, s]

    Returns
    -------
    scalar of float32
        The loss before the step.
    """
    loss, gradients = nnx.value_and_grad(lambda model: model(ids, target))(model)
    optimizer.update(model, gradients)
    return loss
