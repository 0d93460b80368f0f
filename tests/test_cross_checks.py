"""Against code that is not ours: torch's functions and autograd, JAX's, in float64 and float32.

Where baracuda and torch part ways, and why:

==========  ===================================================  ==================================
op          torch                                                baracuda
==========  ===================================================  ==================================
lp_pool*    sums ``x**p``: NaN, or a norm of another sign, for   sums ``abs(x)**p``: a norm for any
            negative x unless p is an even integer               x and p
lp_pool*    rescales a window clipped by `ceil_mode` to the      sums what the window has: padding
            size of a whole one                                  by zeros changes no norm
lp_pool*    has no p = inf of its own (`max_pool` of `abs`       ties share the gradient: it does
            gives the gradient to one of several ties)           not depend on the order of cells
lp_pool*    gradient NaN where a window is 0                     0, the smallest subgradient
geglu       gelu loses its digits below -5 by cancellation       the erfc branch keeps them
gather      an index out of range is an error only               raises, or drops by
                                                                 ``mode="drop"``
gather      adds float16 and bfloat16 in their own precision     adds in float32, rounds once
rope        has none                                             RoFormer, both pairings
lerp        broadcasts, takes a tensor of weights                one shape, one weight
dropout     draws from a state; NaN stays where it drops         a mask by seed, offset and place
softmax     NaN where nothing counts, or all is -inf             0, and -inf as a logarithm
softmax     a mask is added, or filled in, by the caller         a boolean array, or `causal`
rms_norm    eps is by default that of the dtype                  1e-6
batch_norm  updates running statistics in place, and returns no  returns those of the batch, which
            others; refuses a channel of one element             then is its own mean
==========  ===================================================  ==================================

The comparisons below stay where both agree: positive x or even p, windows that are whole.
"""

import functools
import math
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fuzz.philox import dropped

import baracuda as bc

RNG = np.random.default_rng(0)


def normal(*shape):
    return torch.tensor(RNG.normal(size=shape))


def positive(*shape):
    return normal(*shape).abs() + 0.1


def index(high, *shape):
    return torch.tensor(RNG.integers(0, high, size=shape))


def roped(x, positions=None, *, base=10000.0, interleaved=True, size=None, seq_axis=-2):
    """RoFormer's rotation as a product of complex numbers."""
    size = x.shape[-1] if size is None else size
    theta = base ** (-2.0 * torch.arange(size // 2, dtype=torch.float64) / size)
    if positions is None:
        positions = torch.arange(x.shape[seq_axis])
    if positions.ndim == 1:
        positions = positions.reshape(-1, *[1] * (-2 - (seq_axis - x.ndim if seq_axis > 0 else
                                                        seq_axis)))  # fmt: skip
    angle = positions.double()[..., None] * theta
    turn = torch.polar(torch.ones_like(angle), angle)
    part = x[..., :size]
    if interleaved:
        z = torch.view_as_complex(part.unflatten(-1, (-1, 2)).contiguous()) * turn
        y = torch.view_as_real(z).flatten(-2)
    else:
        z = torch.complex(part[..., : size // 2], part[..., size // 2 :]) * turn
        y = torch.cat([z.real, z.imag], -1)
    return torch.cat([y, x[..., size:]], -1)


def headed(q, k, q_weight, k_weight, offset=0.0, **turns):
    """Norms of heads, and their rotations."""
    pairs = (q, q_weight + offset), (k, k_weight + offset)
    normal = [F.rms_norm(x, x.shape[-1:], w, 1e-6) for x, w in pairs]
    return torch.stack([roped(x, seq_axis=-3, **turns) for x in normal])


def gated(act, swap=False):
    def apply(x, gate=None, axis=-1):
        a, b = x.chunk(2, axis) if gate is None else (x, gate)
        return b * act(a) if swap else a * act(b)

    return apply


ACTS = {
    "glu": torch.sigmoid,
    "reglu": F.relu,
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu tanh": functools.partial(F.gelu, approximate="tanh"),
}
INF = math.inf


def rows():
    """(id, op, arrays, options, the same in torch)."""
    for name, act in ACTS.items():
        op, *tanh = name.split()
        more = {"approximate": "tanh"} if tanh else {}
        yield name, op, [normal(3, 8)], more, gated(act)
        yield f"{name} apart", op, [normal(3, 4), normal(3, 4)], more, gated(act)
        yield f"{name} axis", op, [normal(2, 6, 3)], {**more, "axis": 1}, (
            functools.partial(gated(act), axis=1)
        )  # fmt: skip
        yield f"{name} first", op, [normal(3, 8)], {**more, "gate_first": True}, gated(act, True)
    yield "F.glu", "glu", [normal(4, 2, 10)], {}, F.glu
    yield "F.glu axis", "glu", [normal(4, 2, 10)], {"axis": 0}, functools.partial(F.glu, dim=0)
    for weight in (0.0, 0.3, 0.5, 1.0, 1.75, -2.0):
        yield f"lerp {weight}", "lerp", [normal(5, 3), normal(5, 3)], {"weight": weight}, (
            functools.partial(torch.lerp, weight=weight)
        )  # fmt: skip
    for p in (0.0, 0.3, 0.5):
        keep = torch.from_numpy(dropped(np.ones((5, 9)), p, 7, 2**40))
        yield f"dropout {p}", "dropout", [normal(5, 9)], {"p": p, "seed": 7, "offset": 2**40}, (
            lambda x, keep=keep: x * keep
        )  # fmt: skip
        given = [normal(5, 9), normal(5, 9)]
        yield f"dropout_add {p}", "dropout_add", given, {"p": p, "seed": 7, "offset": 2**40}, (
            lambda x, residual, keep=keep: residual + x * keep
        )  # fmt: skip
        shared = torch.from_numpy(dropped(np.ones(5), p, 7, 2**40))[:, None]
        for mode, scale in (("row", shared), ("batch", shared[:1])):
            how = {"p": p, "seed": 7, "offset": 2**40, "mode": mode}
            yield f"stochastic_depth {p} {mode}", "stochastic_depth", [normal(5, 9)], how, (
                lambda x, scale=scale: x * scale
            )  # fmt: skip
    for shape, at, axis in [((7, 5), (9, 5), 0), ((4, 6, 3), (2, 8, 3), 1), ((4, 6), (4, 6), -1)]:
        yield f"gather {axis}", "gather", [normal(*shape), index(shape[axis], *at)], (
            {"axis": axis}
        ), lambda src, i, axis=axis: torch.gather(src, axis, i)  # fmt: skip
    for shape, axis in [((7, 5), 0), ((4, 6, 3), 1), ((4, 6), -1)]:
        yield f"index_select {axis}", "index_select", [normal(*shape), index(shape[axis], 9)], (
            {"axis": axis}
        ), lambda src, i, axis=axis: torch.index_select(src, axis, i)  # fmt: skip
    for shape, axis, alpha in [((7, 5), 0, 1.0), ((4, 6, 3), 1, -1.5), ((4, 6), -1, 0.25)]:
        source = normal(*[9 if i == axis % len(shape) else n for i, n in enumerate(shape)])
        arrays = [normal(*shape), index(shape[axis], 9), source]
        yield f"index_add {axis}", "index_add", arrays, {"axis": axis, "alpha": alpha}, (
            lambda x, i, source, axis=axis, alpha=alpha: torch.index_add(
                x, axis, i, source, alpha=alpha
            )
        )  # fmt: skip
    for shape, at, axis in [((7, 5), (9, 5), 0), ((4, 6, 3), (2, 8, 3), 1), ((4, 6), (4, 6), -1)]:
        arrays = [normal(*shape), index(shape[axis], *at), normal(*at)]
        yield f"scatter_add {axis}", "scatter_add", arrays, {"axis": axis}, (
            lambda x, i, src, axis=axis: torch.scatter_add(x, axis, i, src)
        )  # fmt: skip
    for shape, k, axis in [((7, 5), 4, 0), ((4, 6, 3), 5, 1), ((4, 6), 6, -1)]:
        at = torch.tensor(np.argsort(RNG.random(shape), axis)).narrow(axis, 0, k)
        yield f"scatter {axis}", "scatter", [normal(*shape), at, normal(*at.shape)], (
            {"axis": axis}
        ), lambda x, i, src, axis=axis: torch.scatter(x, axis, i, src)  # fmt: skip
    theirs = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin", "prod": "prod"}
    for (how, named), mine in product(theirs.items(), (True, False)):
        options = {"axis": 1, "reduction": how, "include_self": mine}
        arrays = [normal(4, 6, 3), index(6, 4, 5, 3), normal(4, 5, 3)]
        yield f"scatter_reduce {how} {mine}", "scatter_reduce", arrays, options, (
            lambda x, i, src, named=named, mine=mine: torch.scatter_reduce(
                x, 1, i, src, named, include_self=mine
            )
        )  # fmt: skip
    for name, scale, padding in [("", 1.0, None), (" scaled", -1.75, None), (" padded", 1.0, 2)]:
        options = {"scale": scale, "padding_idx": padding}
        yield f"embedding{name}", "embedding", [index(5, 4, 6), normal(5, 3)], options, (
            lambda ids, weight, scale=scale, padding=padding: F.embedding(ids, weight, padding)
            * scale
        )  # fmt: skip
    for how, padding in product(("sum", "mean", "max"), (None, 2)):
        apart, weights = [index(6, 20), normal(6, 3), torch.tensor([0, 3, 3, 11, 20])], normal(20)
        for kind, arrays in (
            ("rows", [index(6, 4, 5), normal(6, 3)]),
            ("offsets", apart),
            *[("weights", [*apart, weights])] * (how == "sum"),
        ):
            options = {"reduction": how, "padding_idx": padding}
            yield f"embedding_bag {kind} {how} {padding}", "embedding_bag", arrays, options, (
                lambda ids, table, offsets=None, weights=None, how=how, padding=padding: (
                    F.embedding_bag(ids, table, offsets, mode=how, padding_idx=padding,
                                    per_sample_weights=weights)
                )
            )  # fmt: skip
    for reduce in ("sum", "mean", "amax"):
        ids, name = index(4, 9), f"segment_{reduce.removeprefix('a')}"
        yield name, name, [normal(9, 3), ids], {"num_segments": 4}, (
            lambda data, ids, reduce=reduce: data.new_full(
                (4, 3), -torch.inf if reduce == "amax" else 0
            ).scatter_reduce(0, ids[:, None].expand(-1, 3), data, reduce, include_self=False)
        )  # fmt: skip
    yield "segment_softmax", "segment_softmax", [normal(9, 3), index(4, 9)], {"num_segments": 4}, (
        lambda data, ids: sum((
            torch.softmax(torch.where(ids[:, None] == s, data, -torch.inf), 0).nan_to_num()
            for s in set(ids.tolist())
        ), torch.zeros_like(data))
    )  # fmt: skip
    for name, n in (("", 14), (" meeting", 3)):
        entries = torch.tensor(RNG.permutation(14)) if n == 14 else index(3, 14)
        at, probs = entries.reshape(7, 2), normal(7, 2)
        yield f"permute_rows{name}", "permute_rows", [normal(7, 3), at], {"num_rows": n}, (
            lambda x, at, n=n: x.new_zeros(n, 3).index_add(
                0, at.reshape(-1), x.repeat_interleave(2, 0)
            )
        )  # fmt: skip
        yield f"unpermute_rows{name}", "unpermute_rows", [normal(n, 3), at, probs], {}, (
            lambda y, at, probs: (y[at] * probs[..., None]).sum(1)
        )  # fmt: skip
    for p, k, s in [(2, 3, None), (2, 3, 1), (4, 2, 3), (6, 3, 2)]:
        options = {"norm_type": p, "kernel_size": k, "stride": s}
        yield f"lp_pool1d even {p} {k} {s}", "lp_pool1d", [normal(2, 3, 11)], options, (
            lambda x, p=p, k=k, s=s: F.lp_pool1d(x, float(p), k, s)
        )  # fmt: skip
    for p in (0.5, 1, 1.5, 3, 3.5):
        options = {"norm_type": p, "kernel_size": 3, "stride": 2}
        yield f"lp_pool1d positive {p}", "lp_pool1d", [positive(2, 11)], options, (
            lambda x, p=p: F.lp_pool1d(x, float(p), 3, 2)
        )  # fmt: skip
    for p, k, s in [(2, 2, None), (4, (2, 3), (1, 2)), (2, (3, 1), 2)]:
        options = {"norm_type": p, "kernel_size": k, "stride": s}
        yield f"lp_pool2d even {p} {k}", "lp_pool2d", [normal(2, 3, 6, 7)], options, (
            lambda x, p=p, k=k, s=s: F.lp_pool2d(x, float(p), k, s)
        )  # fmt: skip
    # The definition itself, differentiated by torch: any sign, any p.
    for p in (0.7, 1, 2.5, 3):
        options = {"norm_type": p, "kernel_size": 3, "stride": 2}
        yield f"lp_pool1d any sign {p}", "lp_pool1d", [normal(2, 11)], options, (
            lambda x, p=p: (x.unfold(-1, 3, 2).abs() ** p).sum(-1) ** (1 / p)
        )  # fmt: skip
    yield "max_pool1d", "lp_pool1d", [normal(2, 3, 11)], (
        {"norm_type": INF, "kernel_size": 3, "stride": 1}
    ), lambda x: F.max_pool1d(x.abs(), 3, 1)  # fmt: skip
    yield "max_pool2d ceil", "lp_pool2d", [normal(2, 3, 7, 8)], (
        {"norm_type": INF, "kernel_size": 3, "stride": 2, "ceil_mode": True}
    ), lambda x: F.max_pool2d(x.abs(), 3, 2, ceil_mode=True)  # fmt: skip
    yield "lp_pool1d ceil", "lp_pool1d", [normal(2, 3, 8)], (
        {"norm_type": 2, "kernel_size": 3, "stride": 2, "ceil_mode": True}
    ), lambda x: F.lp_pool1d(F.pad(x, (0, 1)), 2.0, 3, 2)  # fmt: skip
    yield "lp_pool2d ceil", "lp_pool2d", [normal(2, 3, 6, 7)], (
        {"norm_type": 4, "kernel_size": (3, 2), "stride": (2, 2), "ceil_mode": True}
    ), lambda x: F.lp_pool2d(F.pad(x, (0, 1, 0, 1)), 4.0, (3, 2), 2)  # fmt: skip
    x = normal(2, 3, 5, 8)
    yield "rope", "rope", [x], {}, roped
    yield "rope halves", "rope", [x], {"interleaved": False, "base": 50.0}, (
        functools.partial(roped, interleaved=False, base=50.0)
    )  # fmt: skip
    yield "rope positions", "rope", [x, index(10**6, 5)], {"rotary_dim": 4}, (
        functools.partial(roped, size=4)
    )  # fmt: skip
    # The angle of the plain formula is off by 2^-52 of itself: no larger positions than these.
    yield "rope batched", "rope", [x, index(10**3, 2, 1, 5)], {}, roped
    yield "rope axis", "rope", [x, index(10**3, 3)], {"seq_axis": 1}, (
        functools.partial(roped, seq_axis=1)
    )  # fmt: skip
    heads = [normal(2, 3, 2, 8), normal(2, 3, 2, 8), normal(8), normal(8)]
    yield "qk_norm_rope", "qk_norm_rope", heads, {"offset": 1.0, "rotary_dim": 4}, (
        functools.partial(headed, offset=1.0, size=4)
    )  # fmt: skip
    yield "qk_norm_rope halves", "qk_norm_rope", heads, {"interleaved": False, "base": 50.0}, (
        functools.partial(headed, interleaved=False, base=50.0)
    )  # fmt: skip

    n = 6
    x, r, w, b = normal(3, 4, n), normal(3, 4, n), normal(n), normal(n)
    rms = lambda x, w=None, *_: F.rms_norm(x, (n,), w, 1e-6)  # noqa: E731
    layer = lambda x, w=None, b=None: F.layer_norm(x, (n,), w, b)  # noqa: E731
    yield "rms_norm plain", "rms_norm", [x], {}, rms
    yield "rms_norm", "rms_norm", [x, w], {}, rms
    yield "rms_norm eps", "rms_norm", [normal(n), w], {"eps": 0.5}, (
        lambda x, w: F.rms_norm(x, (n,), w, 0.5)
    )  # fmt: skip
    yield "layer_norm plain", "layer_norm", [x], {}, layer
    yield "layer_norm weight", "layer_norm", [x, w], {}, layer
    yield "layer_norm", "layer_norm", [normal(5, n) + 100, w, b], {}, layer
    for norm, theirs, parameters in (("rms", rms, [w]), ("layer", layer, [w, b])):
        yield f"add_{norm}_norm plain", f"add_{norm}_norm", [x, r], {}, added(theirs)
        yield f"add_{norm}_norm", f"add_{norm}_norm", [x, r, *parameters], {}, added(theirs)
    yield "rms_norm_add plain", "rms_norm_add", [x, r], {}, lambda x, r: r + rms(x)
    yield "rms_norm_add", "rms_norm_add", [x, r, w], {}, lambda x, r, w: r + rms(x, w)
    x, w, b = normal(3, 6, 2, 5), normal(6), normal(6)
    for groups in (1, 3, 6):
        yield f"group_norm {groups}", "group_norm", [x + 100, w, b], {"num_groups": groups}, (
            lambda x, w, b, g=groups: F.group_norm(x, g, w, b)
        )  # fmt: skip
    yield "group_norm plain", "group_norm", [normal(4, 6)], {"num_groups": 2, "eps": 0.5}, (
        lambda x: F.group_norm(x, 2, eps=0.5)
    )  # fmt: skip
    yield "group_norm weight", "group_norm", [normal(2, 6, 3), w], {"num_groups": 3}, (
        lambda x, w: F.group_norm(x, 3, w)
    )  # fmt: skip
    instance = lambda x, w=None, b=None: F.instance_norm(x, weight=w, bias=b)  # noqa: E731
    yield "instance_norm plain", "instance_norm", [x], {}, instance
    yield "instance_norm", "instance_norm", [normal(2, 6, 7) - 30, w, b], {}, instance
    yield "batch_norm plain", "batch_norm", [x], {}, batch_statistics
    yield "batch_norm weight", "batch_norm", [x, w], {}, batch_statistics
    yield "batch_norm", "batch_norm", [normal(9, 6) + 100, w, b], {}, batch_statistics
    x = normal(3, 4, n)
    for axis in (-1, 0, 1):
        # Some rows are below the largest eps.
        for eps in (1e-12, 2.5):
            options = {"axis": axis, "eps": eps}
            yield f"l2_normalize axis {axis} {eps}", "l2_normalize", [x], options, (
                functools.partial(F.normalize, dim=axis, eps=eps)
            )  # fmt: skip
    for name, theirs in (("softmax", F.softmax), ("log_softmax", F.log_softmax)):
        for axis in (-1, 0, 1):
            yield f"{name} axis {axis}", name, [x], {"axis": axis}, (
                functools.partial(theirs, dim=axis)
            )  # fmt: skip
        yield f"{name} scale", name, [x], {"scale": -2.5}, (
            lambda x, f=theirs: f(-2.5 * x, -1)
        )  # fmt: skip
        kept = torch.ones(4, n, dtype=torch.bool).tril(n - 4)
        yield f"{name} causal", name, [x], {"causal": True, "scale": 0.3}, (
            lambda x, f=theirs, kept=kept: hidden(f, 0.3 * x, kept)
        )  # fmt: skip
        mask = torch.arange(4 * n).reshape(1, 4, n) % 3 > 0
        yield f"{name} mask", name, [x, mask], {}, (
            lambda x, mask, f=theirs: hidden(f, x, mask)
        )  # fmt: skip

    how = {"p": 0.4, "seed": 7, "offset": 2**40}
    stays = torch.from_numpy(dropped(np.ones((3, 4, n)), **how))
    yield "softmax_dropout", "softmax_dropout", [x], {**how, "scale": -2.5}, (
        lambda x: F.softmax(-2.5 * x, -1) * stays
    )  # fmt: skip
    yield "softmax_dropout causal", "softmax_dropout", [x, mask], {**how, "causal": True}, (
        lambda x, mask: hidden(F.softmax, x, mask & kept) * stays
    )  # fmt: skip

    for axis in (-1, 0, 1):
        for keep in (False, True):
            options = {"axis": axis, "keepdims": keep}
            yield f"logsumexp axis {axis} {keep}", "logsumexp", [x], options, (
                functools.partial(torch.logsumexp, dim=axis, keepdim=keep)
            )  # fmt: skip


def hidden(act, x, kept):
    """Without what is not kept, in the result too, where its gradient then does not count."""
    y = act(x.masked_fill(~kept, -INF), -1)
    return y.masked_fill(~kept, 0 if act is F.softmax else -INF)


def batch_statistics(x, w=None, b=None):
    """The norm of a batch, its means and its biased variances, one behind the other."""
    others = (0, *range(2, x.ndim))
    y = F.batch_norm(x, None, None, w, b, training=True)
    return torch.cat([y.ravel(), x.mean(others), x.var(others, unbiased=False)])


def added(norm):
    """A norm of a sum, and the sum, as one tensor."""

    def apply(x, residual, *parameters):
        s = x + residual
        return torch.stack([norm(s, *parameters), s])

    return apply


TABLE = {name: row for name, *row in rows()}
# Not every floating input has an explicit gradient: test_rope.py holds these to transformers.
ELSEWHERE = {"rope_qk", "rope_qk_with_tables", "rope_with_tables",
             "bernoulli", "normal", "uniform"}  # fmt: skip
every_row = pytest.mark.parametrize("row", TABLE)
SEVERAL = ["swiglu", "geglu apart", "F.glu axis", "reglu first", "geglu tanh", "lerp 0.3",
           "gather 1", "lp_pool1d even 2 3 None", "lp_pool1d any sign 2.5", "lp_pool2d ceil",
           "max_pool1d", "rope batched", "rope halves", "rms_norm", "rms_norm_add",
           "layer_norm weight", "add_rms_norm", "softmax axis 1", "log_softmax scale",
           "softmax causal", "l2_normalize axis 1 2.5", "logsumexp axis 1 False",
           "logsumexp axis 0 True", "group_norm weight", "instance_norm plain",
           "batch_norm weight"]  # fmt: skip
several_rows = pytest.mark.parametrize("row", SEVERAL)


def forward(op, *arrays, **options):
    """The result; of several, all in one array."""
    result = getattr(bc, op)(*arrays, **options)
    if not isinstance(result, tuple):
        return result
    xp = {torch.Tensor: torch, np.ndarray: np}.get(type(result[0]), jnp)
    if op == "batch_norm":
        return xp.concatenate([x.reshape(-1) for x in result])
    return xp.stack(result)


def backward(op, dy, arrays, options):
    """The gradients by the explicit function, one for each floating input."""
    call = getattr(bc, f"{op}_backward")
    if op in ("gather", "index_select"):
        src, at = arrays
        return (call(dy, at, src_shape=tuple(src.shape), **options),)
    if op == "embedding":
        ids, weight = arrays
        return (call(dy, ids, weight_shape=tuple(weight.shape), **options),)
    if op == "embedding_bag":
        ids, weight, *more = arrays
        return many(call(dy, ids, weight, forward(op, *arrays, **options), *more, **options))
    if op in ("segment_sum", "segment_mean", "permute_rows"):
        return (call(dy, arrays[1], **options),)
    if op in ("index_add", "scatter_add"):
        return dy, call(dy, arrays[1], **options)
    if op == "scatter":
        return call(dy, arrays[1], **options)
    if op == "scatter_reduce":
        return call(dy, *arrays, forward(op, *arrays, **options), **options)
    if op == "unpermute_rows":
        return many(call(dy, *arrays, **options))
    if op == "segment_softmax":
        return (call(dy, forward(op, *arrays, **options), arrays[1], **options),)
    if op == "segment_max":
        return (call(dy, arrays[0], bc.segment_max(*arrays, **options), arrays[1], **options),)
    if op in ("lerp", "dropout", "stochastic_depth"):
        return many(call(dy, **options))
    if op == "rope":
        return (call(dy, *arrays[1:], **options),)
    if op.startswith("lp_pool"):
        return (call(dy, *arrays, getattr(bc, op)(*arrays, **options), **options),)
    if op.endswith("softmax"):
        own = {k: v for k, v in options.items() if k != "causal"}
        return (call(dy, forward(op, *arrays, **options), **own),)
    if op == "qk_norm_rope":
        return call(dy[0], dy[1], *arrays, **options)
    if op.startswith("add_"):
        found = many(call(dy[0], dy[1], arrays[0] + arrays[1], *arrays[2:3], **options))
        return (found[0], *found)[: len(arrays)]
    if op == "batch_norm":
        x, c = arrays[0], arrays[0].shape[1]
        dy, dmean, dvar = dy[: -2 * c].reshape(x.shape), dy[-2 * c : -c], dy[-c:]
        return many(call(dy, dmean, dvar, *arrays[:2], **options))[: len(arrays)]
    if op == "dropout_add":
        return (call(dy, **options), dy)
    if op == "rms_norm_add":
        dx, *dweight = many(call(dy, arrays[0], *arrays[2:], **options))
        return (dx, dy, *dweight)
    if op.endswith("_norm"):
        return many(call(dy, *arrays[:2], **options))[: len(arrays)]
    return many(call(dy, *arrays, **options))


def many(result):
    return result if isinstance(result, tuple) else (result,)


def floating(arrays):
    return [i for i, x in enumerate(arrays) if x.is_floating_point()]


def leaves(arrays):
    return [x.clone().requires_grad_() if x.is_floating_point() else x for x in arrays]


def same(got, want, rtol=1e-11, atol=1e-12):
    assert tuple(got.shape) == tuple(want.shape)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=rtol, atol=atol)


@every_row
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_forward_and_backward_are_torchs(row, library):
    op, arrays, options, theirs = TABLE[row]
    own = leaves(arrays)
    y = theirs(*own)
    dy = torch.tensor(np.random.default_rng(1).normal(size=y.shape))
    want = torch.autograd.grad(y, [own[i] for i in floating(arrays)], dy)
    cast = (lambda x: x.numpy()) if library == "numpy" else (lambda x: x)
    given = [cast(x) for x in arrays]
    same(forward(op, *given, **options), y.detach())
    got = backward(op, cast(dy), given, options)
    for ours, expected in zip(got, want, strict=True):
        same(ours, expected)


# Losses of logits are in test_losses, steps of optimisers in test_optimisers.
KINDS_ELSEWHERE = ("cross_entropy", "log_prob", "optimiser")


def test_the_table_has_every_op_that_names_no_function_of_torch():
    """Those that do are tested by that in test_namesakes."""
    rows = {op for op, *_ in TABLE.values()}
    every = {name: getattr(bc, name) for name in bc.__all__}
    public = {
        name: op
        for name, op in every.items()
        if isinstance(op, bc.Op) and op.spec.category not in KINDS_ELSEWHERE
    }
    forwards = {name for name in public if "_backward" not in name}
    missing = {name for name in forwards - rows - ELSEWHERE if not public[name].spec.namesake}
    assert not missing, (
        f"no code of others says what {sorted(missing)} should compute. If torch has the same "
        'function, declare namesake="nn.functional.NAME"; else add a row to rows() in this file.'
    )
    assert not rows - forwards, f"rows of ops that are not public: {sorted(rows - forwards)}"
    sloping = {
        name for name in forwards
        if any(public[name].spec.role(p.name).flows for f in public[name].forms for p in f.outputs)
    }  # fmt: skip
    # Of `embedding` there is a gradient of another form too, which test_few_rows.py holds to torch.
    pairs = forwards | {f"{name}_backward" for name in sloping} | {"embedding_backward_rows"}
    lonely = public.keys() ^ pairs
    assert not lonely, f"an op without its gradient, or a gradient without its op: {sorted(lonely)}"


# where the table of the docstring says that they differ


def test_lp_pool_takes_the_norm_where_torch_takes_a_root_of_a_sum_of_signs():
    x = torch.tensor([[[1.0, -2.0]]], dtype=torch.float64)
    options = {"norm_type": 3, "kernel_size": 2}
    assert F.lp_pool1d(x, 3.0, 2).item() != pytest.approx(9 ** (1 / 3))
    assert bc.lp_pool1d(x, **options).item() == pytest.approx(9 ** (1 / 3))


def test_lp_pool_does_not_rescale_clipped_windows_as_torch_does():
    x = torch.ones(1, 1, 3, dtype=torch.float64)
    options = {"norm_type": 1, "kernel_size": 2, "ceil_mode": True}
    assert F.lp_pool1d(x, 1.0, 2, ceil_mode=True).tolist() == [[[2, 2]]]
    assert bc.lp_pool1d(x, **options).tolist() == [[[2, 1]]]


def test_gather_backward_keeps_sums_that_float16_loses():
    ones, at = torch.ones(4096, dtype=torch.float16), torch.zeros(4096, dtype=torch.int64)
    assert bc.gather_backward(ones, at, axis=0, src_shape=(1,)).item() == 4096


@pytest.mark.parametrize("interleaved", [False, True])
def test_heads_turn_by_tables_as_those_of_a_model_do(interleaved):
    """By the code of transformers, for one table of all batches, and one for each, of each size."""
    q, k = (normal(2, heads, 3, 8).transpose(1, 2) for heads in (4, 1))
    w, v, angles = normal(8), normal(8), normal(2, 3, 4)

    def other(x):
        a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        return torch.stack([-b, a], -1).flatten(-2) if interleaved else torch.cat([-b, a], -1)

    for some in (angles, angles[:1]):
        double = some.repeat_interleave(2, -1) if interleaved else torch.cat([some, some], -1)
        given = [x.detach().requires_grad_() for x in (q, k, w, v)]
        heads = [F.rms_norm(x, (8,), y, 0.5) for x, y in zip(given[:2], given[2:], strict=True)]
        cos, sin = double.cos()[:, :, None], double.sin()[:, :, None]
        want = [x * cos + other(x) * sin for x in heads]
        options = {"eps": 0.5, "interleaved": interleaved}
        dy = [torch.randn_like(x) for x in want]
        gradients = torch.autograd.grad(want, given, dy)
        plain = [x.detach() for x in given]
        for tables in ((some.cos(), some.sin()), (double.cos(), double.sin())):
            for ours, x in zip(bc.qk_norm_rope(*plain, *tables, **options), want, strict=True):
                same(ours, x.detach())
            found = bc.qk_norm_rope_backward(*dy, *plain, *tables, **options)
            for ours, x in zip(found, gradients, strict=True):
                same(ours, x)


# autograd, transforms and forward mode through our own forward


@every_row
def test_torch_autograd_through_our_forward_is_our_backward(row):
    op, arrays, options, _ = TABLE[row]
    own = leaves(arrays)
    y = forward(op, *own, **options)
    dy = torch.tensor(np.random.default_rng(2).normal(size=y.shape))
    got = torch.autograd.grad(y, [own[i] for i in floating(arrays)], dy)
    for ours, expected in zip(got, backward(op, dy, arrays, options), strict=True):
        same(ours, expected)


@several_rows
def test_torch_autograd_checks_our_forward_by_finite_differences(row):
    op, arrays, options, _ = TABLE[row]
    assert torch.autograd.gradcheck(
        lambda *x: forward(op, *x, **options), leaves(arrays), eps=1e-6, atol=1e-6
    )


@several_rows
def test_torch_func_grad_is_our_backward(row):
    op, arrays, options, _ = TABLE[row]
    where = floating(arrays)
    dy = torch.tensor(np.random.default_rng(3).normal(size=forward(op, *arrays, **options).shape))

    def loss(*x):
        return (forward(op, *x, **options) * dy).sum()

    got = torch.func.grad(loss, argnums=tuple(where))(*arrays)
    for ours, expected in zip(got, backward(op, dy, arrays, options), strict=True):
        same(ours, expected)


@several_rows
@pytest.mark.parametrize("explicit", [False, True])
def test_torch_func_vmap_is_a_loop(row, explicit):
    op, arrays, options, _ = TABLE[row]
    if explicit:

        def call(*x):
            return backward(op, forward(op, *x, **options) + 1, x, options)
    else:

        def call(*x):
            return (forward(op, *x, **options),)

    batch = [torch.stack([x, x.flip(0), x.roll(1, -1)]) for x in arrays]
    got = torch.func.vmap(call)(*batch)
    for i in range(3):
        for ours, expected in zip(got, call(*(x[i] for x in batch)), strict=True):
            same(ours[i], expected)


@several_rows
def test_forward_mode_is_the_transpose_of_our_backward(row):
    op, arrays, options, _ = TABLE[row]
    where = floating(arrays)
    rng = np.random.default_rng(4)

    def call(*x):
        full = list(arrays)
        for i, v in zip(where, x, strict=True):
            full[i] = v
        return forward(op, *full, **options)

    primals = tuple(arrays[i] for i in where)
    tangents = tuple(torch.tensor(rng.normal(size=x.shape)) for x in primals)
    y, ydot = torch.func.jvp(call, primals, tangents)
    same(y, call(*primals))
    dy = torch.tensor(rng.normal(size=y.shape))
    gradients = backward(op, dy, arrays, options)
    want = sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
    same((dy * ydot).sum(), want, rtol=1e-10)
    with torch.autograd.forward_ad.dual_level():
        dual = [torch.autograd.forward_ad.make_dual(x, t)
                for x, t in zip(primals, tangents, strict=True)]  # fmt: skip
        same(torch.autograd.forward_ad.unpack_dual(call(*dual)).tangent, ydot)


@several_rows
def test_the_explicit_backward_can_itself_be_differentiated(row):
    op, arrays, options, theirs = TABLE[row]
    if op == "gather":
        arrays = [arrays[0].clone(), arrays[1]]
    dy = torch.tensor(
        np.random.default_rng(5).normal(size=forward(op, *arrays, **options).shape)
    ).requires_grad_()
    own = leaves(arrays)
    got = backward(op, dy, own, options)
    y = theirs(*(other := leaves(arrays)))
    want = torch.autograd.grad(y, [other[i] for i in floating(arrays)], dy, create_graph=True)
    for a, b in zip(got, want, strict=True):
        (first,) = torch.autograd.grad((a**2).sum(), dy, retain_graph=True)
        (second,) = torch.autograd.grad((b**2).sum(), dy, retain_graph=True)
        same(first, second, rtol=1e-9)
    depends = [own[i] for i in floating(arrays)] if op not in ("gather", "lerp", "rope") else []
    if depends and not op.startswith("lp_pool"):
        inputs = [other[i] for i in floating(arrays)]
        # A residual that is added after a norm is in no gradient.
        unused = {"allow_unused": True, "materialize_grads": True}
        first = torch.autograd.grad(sum((a**2).sum() for a in got), depends, **unused)
        second = torch.autograd.grad(sum((b**2).sum() for b in want), inputs, **unused)
        for a, b in zip(first, second, strict=True):
            same(a, b, rtol=1e-9)


def test_gradients_at_the_kinks_are_finite_and_torchs():
    """Where a branch is not taken, its slope must not come through as NaN."""
    at = torch.tensor([0.0, -0.0, 1e4, -1e4, 89.0, -89.0])
    for name, act in ACTS.items():
        op, *tanh = name.split()
        more = {"approximate": "tanh"} if tanh else {}
        for dtype in (torch.float64, torch.float32):
            a, b = torch.full((6,), 2.0, dtype=dtype), at.to(dtype)
            pairs = []
            for call in (functools.partial(getattr(bc, op), **more), gated(act)):
                x = [a.clone().requires_grad_(), b.clone().requires_grad_()]
                pairs.append(torch.autograd.grad(call(*x).sum(), x))
            for ours, theirs in zip(*pairs, strict=True):
                same(ours, theirs, rtol=1e-5, atol=1e-6)
    x = torch.tensor([0.0, 0.0, 3.0, 0.0], dtype=torch.float64, requires_grad=True)
    for p in (0.5, 1, 1.5, 2, 3, INF):
        y = bc.lp_pool1d(x, norm_type=p, kernel_size=2)
        (got,) = torch.autograd.grad(y.sum(), x)
        same(got, torch.tensor([0.0, 0, 1, 0]))


# JAX, in its default float32


def jaxed(arrays):
    return [jnp.asarray(x.numpy(), jnp.float32 if x.is_floating_point() else jnp.int32)
            for x in arrays]  # fmt: skip


# Of each family one: JAX compiles every function of every shape anew.
@pytest.mark.parametrize(
    "row",
    ["swiglu", "geglu tanh", "lerp 0.3", "gather 1", "lp_pool1d any sign 2.5", "max_pool1d",
     "rope batched", "add_rms_norm", "layer_norm weight", "softmax axis 1", "batch_norm weight"],
)  # fmt: skip
def test_jax_gradients_through_our_forward_are_our_backward_jitted_and_batched(row):
    op, arrays, options, _ = TABLE[row]
    where = tuple(floating(arrays))
    given = jaxed(arrays)
    call = functools.partial(forward, op, **options)
    y = call(*given)
    dy = jnp.asarray(np.random.default_rng(6).normal(size=y.shape), jnp.float32)
    want = backward(op, np.asarray(dy, float), [x.numpy() for x in arrays], options)

    def loss(*x):
        return (call(*x) * dy).sum()

    grad = jax.grad(loss, argnums=where)
    for transformed in (grad, jax.jit(grad)):
        for ours, expected in zip(transformed(*given), want, strict=True):
            assert ours.dtype == jnp.float32
            same(ours, expected, rtol=2e-4, atol=2e-5)
    same(jax.jit(call)(*given), y, rtol=1e-5, atol=1e-6)
    batch = [jnp.stack([x, x[::-1]]) for x in given]
    got = jax.vmap(call)(*batch)
    same(got[0], y, rtol=1e-5, atol=1e-6)
    same(got[1], call(*(x[1] for x in batch)), rtol=1e-5, atol=1e-6)
    explicit = jax.jit(lambda dy, *x: backward(op, dy, x, options))(dy, *given)
    for ours, expected in zip(explicit, want, strict=True):
        same(ours, expected, rtol=2e-4, atol=2e-5)


def test_traced_arrays_meet_concrete_ones():
    """What a traced function closes over, or is not differentiated by, is no tracer."""
    a, b = (jnp.asarray(normal(3, 4).numpy(), jnp.float32) for _ in range(2))
    want = bc.lerp(a, b, weight=0.3)
    same(jax.jit(lambda a: bc.lerp(a, b, weight=0.3))(a), want, rtol=1e-6, atol=1e-6)
    same(jax.jit(lambda b: bc.lerp(a, b, weight=0.3))(b), want, rtol=1e-6, atol=1e-6)
    at = jnp.zeros((3, 2), jnp.int32)
    slope = jax.grad(lambda a: bc.gather(a, at, axis=1).sum())(a)
    same(slope, bc.gather_backward(jnp.ones((3, 2)), at, axis=1, src_shape=(3, 4)))


@pytest.mark.parametrize(
    ("op", "act"),
    [("glu", jax.nn.sigmoid), ("reglu", jax.nn.relu), ("swiglu", jax.nn.silu),
     ("geglu", functools.partial(jax.nn.gelu, approximate=False))],
)  # fmt: skip
def test_gated_ops_are_jaxs(op, act):
    a, b, dy = (jnp.asarray(x.numpy(), jnp.float32) for x in (normal(5, 4) for _ in range(3)))
    y, pull = jax.vjp(lambda a, b: a * act(b), a, b)
    same(getattr(bc, op)(a, b), y, rtol=1e-5, atol=1e-6)
    got = getattr(bc, f"{op}_backward")(dy, a, b)
    for ours, expected in zip(got, pull(dy), strict=True):
        same(ours, expected, rtol=1e-5, atol=1e-6)


def test_gather_is_jaxs():
    src = jnp.asarray(normal(4, 6).numpy(), jnp.float32)
    at = jnp.asarray(index(6, 4, 9).numpy(), jnp.int32)
    y, pull = jax.vjp(lambda s: jnp.take_along_axis(s, at, axis=1), src)
    same(bc.gather(src, at, axis=1), y, rtol=0, atol=0)
    same(bc.gather_backward(y, at, axis=1, src_shape=src.shape), pull(y)[0], rtol=1e-6, atol=1e-6)
