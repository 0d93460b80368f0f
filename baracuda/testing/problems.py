"""The problems of the benchmark: ops at sizes well past every cache, with their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from baracuda.calls.op import registry
from baracuda.layouts import Shape
from baracuda.testing.cases import options_of
from baracuda.testing.timed_row import Row, Shapes


def host_rows(n: int) -> list[Row]:
    """Problems for a CPU, whose arrays have about `n` x `n` elements; n is a multiple of 32."""
    gated: Shapes = ((n, 2 * n),)
    rows = [Row(op, f"[{n}, 2·{n}]", gated, {}) for op in ("glu", "reglu", "swiglu", "geglu")]
    rows += [Row(f"{row.op}_backward", row.label, ((n, n), (n, 2 * n)), {}) for row in tuple(rows)]
    rows += [
        Row("lerp", f"[{n}, {n}]", ((n, n), (n, n)), {"weight": 0.3}),
        Row("lerp_backward", f"[{n}, {n}]", ((n, n),), {"weight": 0.3}),
    ]
    heads, channels, side = (8, 64, 128) if n >= 512 else (1, 4, 16)
    x = (1, heads, n * n // (heads * side), side)
    rows += _ropes(x, "", {})
    rows += _heads((1, x[2], heads, side), max(heads // 4, 1))
    image = (n * n // (channels * side**2), channels, side, side)
    for k, s, p in ((2, 2, 2.0), (3, 2, 2.0), (3, 1, 3.0)):
        rows += _pools(image, k, s, p)
    rows += _channel_norms(image, channels // 4) + _batch_norms((n, n))
    rows += _norms((n, n)) + _softmaxes((n, n))
    rows += _softmaxes((n, n), 0, ("softmax", "softmax_backward"))
    rows += _prelus(image, channels) + _prelus((n, n), n)
    rows += _steps((n, n))
    rows += _losses((n, n)) + _rowwise((n, n)) + _entropies(n // 4, 8 * n, ENTROPIES[:3])
    rows += _likelihoods((n // 4, 8 * n)) + _soft_targets((n // 4, 2 * n))
    rows += _entropies(n // 4, 2 * n, ENTROPIES[3:], n // 16)
    rows += _entropies(n // 4, 2 * n, ENTROPIES[3:], n // 16, bias=True)
    rows += _log_probs(n // 4, 8 * n, LOG_PROBS[:2])
    rows += _log_probs(n // 4, 2 * n, LOG_PROBS[2:], n // 16)
    rows += _distillations(n // 4, 2 * n, n // 32, n // 16)
    square, table = (n, n), (4 * n, n)
    for axis in (1, 0):
        label = f"[{n}, {n}] uniform, axis {axis}"
        rows.append(Row("gather", label, (square, square), {"axis": axis}))
        rows += _writes(square, label, axis)
        rows.append(
            Row("gather_backward", label, (square,) * 2, {"axis": axis, "src_shape": square})
        )
    rows.append(
        Row(
            "gather_backward",
            f"{list(table)} from {n} rows",
            (square, (n, 1)),
            {"axis": 0, "src_shape": table},
        )
    )
    rows += _embeddings((n,), (4 * n, n), ("uniform",))
    rows += _bags(n, 4, (4 * n, n)) + _selections((4 * n, n), n)
    rows += _segments(4 * n, n, n // 8, ("uniform",))
    rows += _experts(n, 2, n // 2)
    return rows + _others(rows, f"[{n}, {n}]", square)


def _ropes(x: Shape, name: str, options: dict[str, Any]) -> list[Row]:
    """Rotations by angles that are computed and by tables, of one array and with a quarter as many
    heads of keys beside it."""
    tables, k = ((x[-2], x[-1] // 2),) * 2, (*x[:-3], max(x[-3] // 4, 1), *x[-2:])
    kinds = (
        ("rope", (x,)), ("rope_with_tables", (x, *tables)),
        ("rope_qk", (x, k)), ("rope_qk_with_tables", (x, k, *tables)),
    )  # fmt: skip
    return [
        Row(f"{op}{end}", f"{list(x)}{name}", shapes, options)
        for op, shapes in kinds
        for end in ("", "_backward")
    ]


def _embeddings(ids: Shape, table: Shape, drawn: Sequence[str]) -> list[Row]:
    """Rows of a table, and its gradient, by how often ids repeat."""
    label, options = f"{list(table)} from {ids[0]} ids", {"weight_shape": table}
    rows = [Row("embedding", f"{label}, {how}", (ids, table), {}, how) for how in drawn[:1]]
    dy = (*ids, table[1])
    rows += [Row("embedding_backward", f"{label}, {how}", (dy, ids), options, how) for how in drawn]
    few = {"num_embeddings": table[0]}
    return rows + [
        Row("embedding_backward_rows", f"{label}, {how}", (dy, ids), few, how) for how in drawn
    ]


def _bags(bags: int, each: int, table: Shape) -> list[Row]:
    """Rows of a table added up bag by bag, and its gradient, as recommendations have them."""
    label, y, ids = f"{list(table)}, {bags} bags of {each}", (bags, table[1]), (bags, each)
    kinds = (("embedding_bag", (ids, table)), ("embedding_bag_backward", (y, ids, table, y)))
    return [Row(op, label, shapes, {"reduction": "sum"}) for op, shapes in kinds]


def _selections(src: Shape, many: int) -> list[Row]:
    """Rows of an array, and its gradient."""
    label, out = f"{list(src)}, {many} rows", (many, src[1])
    options: dict[str, Any] = {"axis": 0}
    return [
        Row("index_select", label, (src, (many,)), options),
        Row("index_select_backward", label, (out, (many,)), {**options, "src_shape": src}),
        Row("index_add", label, (src, (many,), out), options),
        Row("index_add_backward", label, (src, (many,)), options),
    ]


def _writes(x: Shape, label: str, axis: int) -> list[Row]:
    """Elements added or written to an array, as many as it has."""
    rows = [
        Row(op, label, (x,) * many, {"axis": axis})
        for op, many in (
            ("scatter_add", 3), ("scatter_add_backward", 2), ("scatter", 3), ("scatter_backward", 2)
        )
    ]  # fmt: skip
    return rows + [
        Row(
            f"scatter_reduce{end}", f"{label}, {how}", (x,) * many, {"axis": axis, "reduction": how}
        )
        for how in ("max", "mean")
        for end, many in (("", 3), ("_backward", 5))
    ]


def _segments(e: int, n: int, d: int, drawn: Sequence[str]) -> list[Row]:
    """Rows of segments, by how often ids repeat, and gradients of the first kind."""
    rows: list[Row] = []
    for kind, many in zip(drawn, (3, *[1] * len(drawn)), strict=False):
        label, options = f"[{e}, {d}] to {n} segments, {kind}", {"num_segments": n}
        data, out, ids = (e, d), (n, d), (e,)
        for op in ("segment_sum", "segment_mean", "segment_max")[:many]:
            back = (out, data, out, ids) if op == "segment_max" else (out, ids)
            rows.append(Row(op, label, (data, ids), options, kind))
            rows.append(Row(f"{op}_backward", label, back, options, kind))
    # As attention over a graph has it: a number for each edge and head.
    heads: Shape = (e, max(d // 16, 1))
    label, options = f"{list(heads)} in {n} segments", {"num_segments": n}
    rows.append(Row("segment_softmax", label, (heads, (e,)), options))
    rows.append(Row("segment_softmax_backward", label, (heads, heads, (e,)), options))
    return rows


def _experts(tokens: int, choices: int, d: int) -> list[Row]:
    """Rows of tokens sent to experts in groups, and taken back."""
    label, at, n = f"[{tokens}, {d}] to {choices} experts each", (tokens, choices), tokens * choices
    one, each = (tokens, d), (n, d)
    return [
        Row(op, label, shapes, {}, "once")
        for op, shapes in (
            ("permute_rows", (one, at)),
            ("permute_rows_backward", (each, at)),
            ("unpermute_rows", (each, at, at)),
            ("unpermute_rows_backward", (one, each, at, at)),
        )
    ]


def device_rows(dtype: str) -> list[Row]:
    """Problems for a GPU: a large language model's step, a vision model's first layers."""
    n = 14336 if dtype == "bfloat16" else 7168
    gated: Shapes = ((8192, 2 * n),)
    rows: list[Row] = []
    for op in ("glu", "reglu", "swiglu", "geglu"):
        label = f"[8192, 2·{n}]"
        rows.append(Row(op, label, gated, {}))
        rows.append(Row(f"{op}_backward", label, ((8192, n), *gated), {}))
    flat = (2**27,)
    rows.append(Row("lerp", "[2^27]", (flat, flat), {"weight": 0.3}))
    rows.append(Row("lerp_backward", "[2^27]", (flat,), {"weight": 0.3}))
    x = (4, 32, 8192, 128)
    for interleaved, name in ((True, "interleaved"), (False, "half-split")):
        rows += _ropes(x, f" {name}", {"interleaved": interleaved})
    # As Qwen 3 of 8 billion parameters has them, and Gemma 3 of 12.
    rows += _heads((4, 4096, 32, 128), 8) + _heads((4, 4096, 16, 256), 8)
    image = (32, 64, 224, 224)
    for k, s, p in ((2, 2, 2.0), (3, 2, 2.0), (3, 1, 3.0)):
        rows += _pools(image, k, s, p)
    rows += _channel_norms(image, 32) + _channel_norms((32, 512, 28, 28), 32)
    rows += _batch_norms((8192, 4096))
    square = (8192, 8192)
    for axis in (1, 0):
        label = f"[8192, 8192] uniform, axis {axis}"
        rows.append(Row("gather", label, (square,) * 2, {"axis": axis}))
        rows += _writes(square, label, axis)
    for n in (1024, 4096, 8192, 16384):
        rows += _norms((8192, n)) + _softmaxes((8192, n))
    rows += _softmaxes(square, 0, ("softmax", "softmax_backward"))
    rows += _prelus(image, 64) + _prelus((8192, 8192), 8192) + _prelus(flat, 1)
    rows += _losses(flat) + _steps(flat)
    # Embeddings of a sentence, and of a face.
    for n in (1024, 128):
        rows += _rowwise((2**27 // n, n))
    for v in (32000, 128256):
        rows += _entropies(8192, v, ENTROPIES[:3]) + _likelihoods((8192, v))
        rows += _log_probs(8192, v, LOG_PROBS[:2])
    rows += _likelihoods((32, 21, 512, 512), 1) + _soft_targets((8192, 32000))
    large = dtype == "bfloat16"
    head = (16384, 128256) if large else (4096, 32000)
    rows += _entropies(*head, ENTROPIES[3:], 4096)
    rows += _entropies(*head, ENTROPIES[5:], 4096, bias=True)
    rows += _log_probs(*head, LOG_PROBS[2:], 4096)
    rows += _distillations(4096, 32000, 2048, 4096)
    # The vocabulary of Llama 3, for one sequence and for a batch.
    for ids in (8192, 65536):
        rows += _embeddings((ids,), (128256, 4096), ("uniform", "zipf", "equal"))
    rows += _bags(2**16, 32, (10**6, 128)) + _selections((2**17, 1024), 2**18)
    rows += _segments(2**21, 2**17, 128, ("uniform", "zipf", "equal"))
    # As Mixtral 8x7B has them, and DeepSeek-V3.
    rows += _experts(16384, 2, 4096) + _experts(8192, 8, 7168)
    for row in _scatters():
        rows.append(row)
        label = f"{row.label}, deterministic"
        rows.append(replace(row, label=label, deterministic=True))
    return rows + _others(rows, "[2^27]", flat)


OPTIMISERS: dict[str, dict[str, Any]] = {
    "adamw": {"step": 3}, "adam": {"step": 3}, "sgd": {"momentum": 0.9}, "lion": {},
    "ema": {"decay": 0.999}, "sum_of_squares": {}, "clip_scale": {"max_norm": 1.0},
    "scale_by": {"factor": 0.5},
}  # fmt: skip


def _steps(x: Shape) -> list[Row]:
    """Steps of optimisers with all of their states, and what clips gradients."""
    return [
        Row(op, _listed(x), (x,) * len(registry[op].spec.arrays), options)
        for op, options in OPTIMISERS.items()
    ]


def _others(rows: Sequence[Row], label: str, shape: Shape) -> list[Row]:
    """A row for each pointwise op that has none, and masks of 64 examples."""
    done, out = {row.op for row in rows}, []
    for name, op in registry.items():
        spec = op.spec
        if spec.pointwise and name not in done:
            given = options_of(spec, spec.cases[0])
            required = {k: v for k, v in given.items() if k not in spec.defaults}
            out.append(Row(name, label, (shape,) * len(spec.arrays), required, derived=True))
    examples, rate = (64, prod(shape) // 64), {"p": 0.1, "seed": 1}
    for name in ("stochastic_depth", "stochastic_depth_backward"):
        out.append(Row(name, f"[64, {examples[1]}]", (examples,), rate, derived=True))
    return out


def _scatters() -> list[Row]:
    """Gradients of gathers: dense along either axis, label picking, embeddings, histograms."""

    def row(label: str, src: Shape, dout: Shape, axis: int = 0, **how: Any) -> Row:
        shapes = (dout, how.pop("index", dout))
        return Row("gather_backward", label, shapes, {"axis": axis, "src_shape": src}, **how)

    square, table, taken, long = (8192, 8192), (65536, 1024), (32768, 1024), (2**24,)
    image, rows = (4, 512, 64, 512), "[65536, 1024] from 32768 rows"
    return [
        *(row(f"[8192, 8192] uniform, axis {axis}", square, square, axis) for axis in (1, 0)),
        row("[8192, 32000] one a row", (8192, 32000), (8192, 1), 1),
        row(f"{rows}, uniform", table, taken, index=(32768, 1)),
        row(f"{rows}, Zipf(1.2)", table, taken, index=(32768, 1), indices="zipf"),
        row("[131072] from 2^24, uniform", (131072,), long),
        row("[131072] from 2^24, all equal", (131072,), long, indices="equal"),
        row("[4, 512, 64, 512] uniform, axis 1", image, image, 1),
    ]


def _pools(image: Shape, k: int, s: int, p: float) -> list[Row]:
    """A pooling and its gradient."""
    out = (image[-1] - k) // s + 1
    y, options = (*image[:2], out, out), {"norm_type": p, "kernel_size": k, "stride": s}
    label = f"{list(image)} k{k} s{s} p{p:g}"
    return [
        Row("lp_pool2d", label, (image,), options),
        Row("lp_pool2d_backward", label, (y, image, y), options),
    ]


PAIRED = (
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div",
)  # fmt: skip
# Arrays of rows, and of one number for each.
ROWWISE = {"cosine_embedding_loss": (2, 1), "triplet_margin_loss": (3, 0)}
ENTROPIES = (
    "cross_entropy", "cross_entropy_backward", "cross_entropy_with_gradient",
    "linear_cross_entropy", "linear_cross_entropy_backward", "linear_cross_entropy_with_gradient",
)  # fmt: skip


def _heads(q: Shape, heads: int) -> list[Row]:
    """Norms and rotations of q, and of k with so many `heads`, by tables of a model."""
    b, s, _, d = q
    k, table, options = (b, s, heads, d), (1, s, d // 2), {"interleaved": False}
    label, more = f"{list(q)} and {heads} heads of k", ((d,), (d,), table, table)
    return [
        Row("qk_norm_rope", label, (q, k, *more), options),
        Row("qk_norm_rope_backward", label, (q, k, q, k, *more), options),
    ]


def _prelus(x: Shape, slopes: int) -> list[Row]:
    """PReLU with a slope of each channel, or one of all, and its gradients."""
    label = f"{_listed(x)} and [{slopes}]"
    shapes: Shapes = (x, (slopes,))
    return [Row("prelu", label, shapes, {}), Row("prelu_backward", label, (x, *shapes), {})]


def _listed(x: Shape) -> str:
    return f"{list(x)}" if len(x) > 1 else f"[2^{x[0].bit_length() - 1}]"


def _losses(x: Shape) -> list[Row]:
    """The means of losses of pairs, and their gradients."""
    label = _listed(x)
    return [
        Row(op, label, shapes, {})
        for loss in PAIRED
        for op, shapes in ((loss, (x, x)), (f"{loss}_backward", ((), x, x)))
    ]


def _rowwise(x: Shape) -> list[Row]:
    """The means of losses of rows, and their gradients."""
    out = []
    for loss, (rows, numbers) in ROWWISE.items():
        shapes: Shapes = (x,) * rows + (x[:-1],) * numbers
        out.append(Row(loss, f"{list(x)}", shapes, {}))
        out.append(Row(f"{loss}_backward", f"{list(x)}", ((), *shapes), {}))
    return out


def _entropies(rows: int, v: int, ops: Sequence[str], d: int = 0, bias: bool = False) -> list[Row]:
    """Mean cross entropies of rows of logits or, with `d`, of hidden states and a layer."""
    label = f"[{rows}, {d}] x [{v}, {d}]" if d else f"[{rows}, {v}]"
    shapes: Shapes = ((rows, d), (v, d), (rows,)) if d else ((rows, v), (rows,))
    label, shapes = (f"{label} and bias", (*shapes, (v,))) if bias else (label, shapes)
    return [Row(op, label, ((), *shapes) if op.endswith("_backward") else shapes, {}) for op in ops]


LOG_PROBS = (
    "log_prob", "log_prob_backward",
    "linear_log_prob", "linear_log_prob_backward", "linear_log_prob_with_gradient",
)  # fmt: skip


def _log_probs(rows: int, v: int, ops: Sequence[str], d: int = 0) -> list[Row]:
    """Log-probabilities and entropies of rows of logits or, with `d`, of a layer's outputs."""
    label = f"[{rows}, {d}] x [{v}, {d}]" if d else f"[{rows}, {v}]"
    shapes: Shapes = ((rows, d), (v, d), (rows,)) if d else ((rows, v), (rows,))
    forward, pulled = {"entropy": True}, ((rows,), (rows,), *shapes)
    return [
        Row(op, label, *((shapes, forward) if op.endswith("log_prob") else (pulled, {})))
        for op in ops
    ]


def _soft_targets(x: Shape) -> list[Row]:
    """Mean cross entropies of rows of logits and of probabilities, and their gradients."""
    return _three("soft_target_cross_entropy", f"{list(x)}", (x, x))


def _distillations(rows: int, v: int, d: int, e: int) -> list[Row]:
    """Mean divergences of rows of logits, and of layers of two sizes, and their gradients."""
    logits: Shapes = ((rows, v), (rows, v))
    layers: Shapes = ((rows, d), (v, d), (rows, e), (v, e))
    label = f"[{rows}, {d}] x [{v}, {d}], teacher {e}"
    classes: Shapes = ((rows, 64), (rows, 64))
    few, likely = ((rows, v), *classes), ((rows, d), (v, d), *classes)
    taught = f"[{rows}, {d}] x [{v}, {d}], 64 classes"
    return [
        *_three("kl_div_with_logits", f"[{rows}, {v}]", logits),
        *_three("topk_kl_div_with_logits", f"[{rows}, {v}], 64 classes", few),
        *_three("linear_kl_div", label, layers),
        *_three("linear_topk_kl_div", taught, likely),
    ]


def _three(op: str, label: str, shapes: Shapes) -> list[Row]:
    """A loss, its gradient, and both at once."""
    return [
        Row(op, label, shapes, {}),
        Row(f"{op}_backward", label, ((), *shapes), {}),
        Row(f"{op}_with_gradient", label, shapes, {}),
    ]


def _likelihoods(x: Shape, axis: int = -1) -> list[Row]:
    """Mean negative log-likelihoods of classes along an axis, and their gradients."""
    label, options = f"{list(x)}", {} if axis == -1 else {"axis": axis}
    label += "".join(f" axis {axis}" for axis in options.values())
    target = tuple(n for at, n in enumerate(x) if at != axis % len(x))
    return [
        Row("nll_loss", label, (x, target), options),
        Row("nll_loss_backward", label, ((), target), {**options, "x_shape": x}),
    ]


def _norms(x: Shape) -> list[Row]:
    """The norms with all of their parameters, and their gradients."""
    shapes = {"weight": x[-1:], "bias": x[-1:]}
    kinds = ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm", "rms_norm_add",
             "l2_normalize")  # fmt: skip
    return [
        Row(op, f"{list(x)}", tuple([shapes.get(name, x) for name in registry[op].spec.arrays]), {})
        for kind in kinds
        for op in (kind, f"{kind}_backward")
    ]


def _channel_norms(x: Shape, groups: int) -> list[Row]:
    """The norms of planes with all of their parameters, and their gradients."""
    apart = [
        Row(op, f"{list(x)} {groups} groups", shapes, {"num_groups": groups})
        for op, shapes in (
            ("group_norm", (x, x[1:2], x[1:2])),
            ("group_norm_backward", (x, x, x[1:2])),
        )
    ]
    apart += [replace(r, op=r.op.replace("group", "instance"), label=f"{list(x)}", options={})
              for r in apart]  # fmt: skip
    return apart + _batch_norms(x)


def _batch_norms(x: Shape) -> list[Row]:
    """Batch norms of all kinds."""
    label, c = f"{list(x)}", x[1:2]
    return [
        Row("batch_norm", label, (x, c, c), {}),
        Row("batch_norm_backward", label, (x, c, c, x, c), {}, zeros=("dmean", "dvar")),
        Row("batch_norm_inference", label, (x, c, c, c, c), {}),
        Row("batch_norm_inference_backward", label, (x, x, c, c), {}),
    ]


def _softmaxes(x: Shape, axis: int = -1, ops: Sequence[str] = ()) -> list[Row]:
    """Softmax, dropped too, its logarithm and that of its sum, and gradients, without a mask."""
    kinds = ops or ("softmax", "softmax_backward", "log_softmax", "log_softmax_backward")
    label = f"{list(x)}{f' axis {axis}' * (axis != -1)}"
    options = {"axis": axis} if axis != -1 else {}
    rows = [Row(op, label, (x,) * (1 + op.endswith("_backward")), options) for op in kinds]
    for op, each in {"softmax_dropout": (x,), "softmax_dropout_backward": (x, x)}.items():
        rows += [Row(op, label, each, {"p": 0.1, "seed": 1}, derived=True)] * (not ops)
    out = tuple(n for at, n in enumerate(x) if at != axis % len(x))
    rows.append(Row("logsumexp", label, (x,), options))
    return [*rows, Row("logsumexp_backward", label, (out, x), options)]
