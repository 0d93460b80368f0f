"""The forwards that run in the place of a model's own, each for one thing that was found.

`was` is the class's own forward. It runs for what an op does not take: mixed dtypes, quantised or
wrapped projections, modules with hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers.loss.loss_utils import ForCausalLMLoss

from baracuda.integrations.transformers.code import Decoder, Head, Heads, Rope
from baracuda.integrations.transformers.modules import Branch, Embedding, Layer, Mlp, Norm
from baracuda.libraries.torch import transforms
from baracuda.nn.namesakes import taken
from baracuda.ops.embedding import embedding as lookup
from baracuda.ops.linear_cross_entropy import linear_cross_entropy
from baracuda.ops.qk_norm_rope import qk_norm_rope
from baracuda.ops.rope_qk import rope_qk_with_tables

__all__ = [
    "Pair", "attention", "causal", "decoder", "embedding", "heads", "layer", "mlp", "norm",
    "rotation",
]  # fmt: skip

Forward = Callable[..., Any]
Pair: TypeAlias = tuple[torch.Tensor, torch.Tensor]

OPEN = "open_residual"
"""The keyword by which a decoder lets its layers return a `Sum`."""


class Sum(NamedTuple):
    """An add that the next norm makes: the last branch, and the stream that it belongs to."""

    branch: torch.Tensor
    stream: torch.Tensor


def _of_one(was: Forward, forward: Forward) -> Forward:
    """A forward of one input; the class's own runs where more is given, such as a gate."""

    def either(self: Any, *inputs: Any, **keywords: Any) -> Any:
        if len(inputs) == 1 and not keywords:
            return forward(self, *inputs)
        return was(self, *inputs, **keywords)

    return either


# -- norms and residuals -------------------------------------------------------------------------


def _hooked(module: torch.nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _added(module: Any, found: Norm, x: Sum) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of a sum, and the sum."""
    if type(module) is found.kind and not _hooked(module):
        parameters = found.parameters(module)
        if taken(x.branch, x.stream, *parameters):
            y, s = found.adding(x.branch, x.stream, *parameters, **found.options)
            return y, s
    s = x.stream + x.branch
    return module(s), s


def norm(was: Forward, found: Norm, alone: bool) -> Forward:
    """A norm by its op where it stands `alone`, and that of a `Sum` by the op that adds first."""

    def forward(self: Any, x: Any) -> Any:
        if isinstance(x, Sum):
            return _added(self, found, x)[0]
        if alone and taken(x, *found.parameters(self)):
            return found.op(x, *found.parameters(self), **found.options)
        return was(self, x)

    return _of_one(was, forward)


def layer(was: Forward, found: Layer) -> Forward:
    """A decoder layer whose adds are made by the norms before or behind them."""

    def entered(self: Any, branch: Branch, x: Any) -> tuple[Any, Any]:
        """What a branch begins with, and the stream that its end is added to."""
        if not branch.norm:
            return x, x
        module = getattr(self, branch.norm)
        if isinstance(x, Sum):
            return _added(module, branch.computes, x)
        return module(x), x

    def ended(self: Any, branch: Branch, y: Any, stream: torch.Tensor) -> Any:
        """The stream behind a branch: a sum of both, or with the last norm an op."""
        y = y[0] if branch.first else y
        for name in branch.after if branch.norm else branch.after[:-1]:
            y = getattr(self, name)(y)
        if branch.norm:
            return Sum(y, stream)
        module, computes = getattr(self, branch.after[-1]), branch.computes
        parameters = computes.parameters(module)
        if not _hooked(module) and taken(y, stream, *parameters):
            return computes.added(y, stream, *parameters, **computes.options)
        return stream + module(y)

    def forward(self: Any, x: Any, *more: Any, **keywords: Any) -> Any:
        is_open = keywords.pop(OPEN, False)
        keywords |= zip(found.defaults, more, strict=False)
        if not found.forwards:
            keywords = {name: keywords[name] for name in found.defaults if name in keywords}
        normed, stream = entered(self, found.attention, x)
        keywords = {found.entry: normed, **found.defaults, **keywords}
        y = getattr(self, found.attention.body)(**keywords)
        x = ended(self, found.attention, y, stream)
        normed, stream = entered(self, found.mlp, x)
        x = ended(self, found.mlp, getattr(self, found.mlp.body)(normed), stream)
        return x if is_open or not isinstance(x, Sum) else x.stream + x.branch

    return forward


def decoder(was: Forward, found: Decoder) -> Forward:
    """A decoder whose layers leave their last add to the next norm.

    Not where someone looks at what a layer returns, and not where it is kept for a checkpoint.
    """

    def closed(each: Any, training: bool) -> bool:
        return _hooked(each) or (training and getattr(each, "gradient_checkpointing", False))

    def forward(self: Any, *inputs: Any, **keywords: Any) -> Any:
        shown = keywords.get("output_hidden_states")
        if shown is None:
            shown = getattr(self.config, "output_hidden_states", False)
        if not (shown or any(closed(each, self.training) for each in getattr(self, found.layers))):
            keywords[OPEN] = True
        return was(self, *inputs, **keywords)

    return forward


# -- what is within a layer ----------------------------------------------------------------------


def _may_recompute() -> bool:
    """Whether something may be computed again backward; within torch.func nothing is."""
    kept = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return kept and transforms() is None


def mlp(was: Forward, found: Mlp, recompute: bool) -> Forward:
    """A gated MLP whose activation and product are one op, made again backward to `recompute`."""
    names = (found.packed,) if found.packed else (found.up, found.gate)

    def forward(self: Any, x: torch.Tensor) -> Any:
        parts = [self.get_submodule(name)(x) for name in names]
        down = self.get_submodule(found.down)

        def end(*parts: torch.Tensor) -> Any:
            return down(found.op(*parts, **found.options))

        # A compiler chooses by itself what it keeps; what is in others' modules may be random.
        plain = type(down) is torch.nn.Linear and not _hooked(down) and down.weight.requires_grad
        if recompute and plain and _may_recompute():
            # This stops before the product.
            return checkpoint(end, *parts, use_reentrant=False, preserve_rng_state=False)
        return end(*parts)

    return _of_one(was, forward)


def attention(was: Forward, found: Rope) -> Forward:
    """An attention that rotates q and k by one op and its model's tables, in their layouts."""
    rotate = found.inner.__globals__[found.function]

    def rotated(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Pair:
        turned = rotation(q, k, (cos, sin), (found.interleaved, found.copies))
        if turned is None:
            theirs: Pair = rotate(q, k, cos, sin)
            return theirs
        return turned

    return _with_globals(found.inner, **{found.function: rotated})


def rotation(
    q: torch.Tensor, k: torch.Tensor, tables: Pair, way: tuple[bool, int], heads: int = 1
) -> Pair | None:
    """q and k, whose axis of `heads` is 1 or 2, by tables of [B, S, R].

    `way` is whether they are interleaved and how often the tables have each entry. None where no op
    takes them.
    """
    (cos, _), (interleaved, copies) = tables, way
    pairs = cos.shape[-1] // copies
    if cos.ndim != 3 or q.ndim != 4 or not taken(q, k, parameters=tables):
        return None
    y, z = rope_qk_with_tables(
        q.transpose(heads, 2), k.transpose(heads, 2),
        *(table[:, :, None, :pairs] for table in tables),
        interleaved=interleaved, rotary_dim=2 * pairs, seq_axis=-3,
    )  # fmt: skip
    return y.transpose(heads, 2), z.transpose(heads, 2)


def heads(was: Forward, found: Heads) -> Forward:
    """An attention whose norms of q and k are made with their rotation, by the model's tables."""
    rotate = found.inner.__globals__[found.function]

    def rotated(
        q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, more: tuple[Any, ...]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        sin, *norms = more
        parameters = [p for norm in norms for p in found.computes.parameters(norm)]
        same = all(type(norm) is found.computes.kind and not _hooked(norm) for norm in norms)
        wide = cos.dtype in (q.dtype, torch.float32) and sin.dtype is cos.dtype and cos.ndim == 3
        if not (same and wide and taken(q, k, *parameters)):
            turned: tuple[torch.Tensor, torch.Tensor] = rotate(norms[0](q), norms[1](k), cos, sin)
            return turned
        q_weight, k_weight = parameters
        y, z = qk_norm_rope(
            q.transpose(1, 2), k.transpose(1, 2), q_weight, k_weight, cos, sin,
            interleaved=found.interleaved, rotary_dim=cos.shape[-1], **found.computes.options,
        )  # fmt: skip
        return y.transpose(1, 2), z.transpose(1, 2)

    inner = _with_globals(found.inner, **{found.function: rotated})

    def forward(self: Any, *inputs: Any, **keywords: Any) -> Any:
        tables = keywords.get(found.tables)
        if tables is None:
            return was(self, *inputs, **keywords)
        cos, sin = tables
        keywords[found.tables] = cos, (sin, *[getattr(self, name) for name in found.norms])
        # The rotation makes them.
        seen = _View(self, **dict.fromkeys(found.norms, lambda x: x))
        return inner(seen, *inputs, **keywords)

    return forward


def _with_globals(function: FunctionType, **instead: Any) -> FunctionType:
    """A function with other global names, which no other function sees."""
    names = {**function.__globals__, **instead}
    # By this name torch.compile would look the others up in the module itself.
    del names["__name__"]
    # torch.compile keeps its results with a code object, and their names in one function's globals.
    code = function.__code__.replace()
    other = FunctionType(
        code, names, function.__name__, function.__defaults__, function.__closure__
    )
    other.__kwdefaults__ = function.__kwdefaults__
    return other


# -- embedding and head --------------------------------------------------------------------------


def embedding(was: Forward, found: Embedding) -> Forward:
    """An embedding by its op, whose gradient needs no atomics."""

    def forward(self: Any, ids: torch.Tensor) -> Any:
        weight = self.weight
        if not taken(weight) or ids.dtype not in (torch.int32, torch.int64):
            return was(self, ids)
        rows: torch.Tensor = lookup(ids, weight, padding_idx=self.padding_idx)
        # A scale on a device is no number that a kernel takes, and a graph may not look at it.
        return rows * getattr(self, found.scale).to(weight.dtype) if found.scale else rows

    return _of_one(was, forward)


class _View:
    """An object with some attributes instead of its own."""

    def __init__(self, seen: Any, **instead: Any) -> None:
        self._seen = seen
        for name, value in instead.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._seen, name)


class _Through(_View):
    """A module that hands on what it is given, with the attributes of another one."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


def _loss(
    head: Any, options: Mapping[str, Any], hidden: torch.Tensor, labels: torch.Tensor,
    vocab_size: int, num_items_in_batch: Any = None, ignore_index: int = -100,
    shift_labels: torch.Tensor | None = None, **_: Any,
) -> Any:  # fmt: skip
    """As transformers' `ForCausalLMLoss` of the logits."""
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    target = shift_labels.reshape(-1).to(hidden.device)
    parameters = (head.weight, target) if head.bias is None else (head.weight, target, head.bias)
    loss = linear_cross_entropy(
        hidden.reshape(-1, hidden.shape[-1]), *parameters, ignore_index=ignore_index,
        reduction="mean" if num_items_in_batch is None else "sum", **options,
    )  # fmt: skip
    if num_items_in_batch is None:
        return loss
    if isinstance(num_items_in_batch, torch.Tensor):
        num_items_in_batch = num_items_in_batch.to(loss.device)
    return loss / num_items_in_batch


def causal(was: Forward, found: Head, grad_dtype: str) -> Forward:
    """A language model whose loss in training is made from the hidden states, without logits."""

    def unlike(model: Any, keywords: dict[str, Any]) -> bool:
        """Whether the logits are asked for, or are not those of a plain head and loss."""
        head = getattr(model, found.head)
        return (
            not model.training
            or keywords.get("labels") is None
            or keywords.get("return_dict") is False
            or model.loss_function is not ForCausalLMLoss
            or type(head) is not torch.nn.Linear
            or _hooked(head)
            or not taken(head.weight)
        )

    def forward(self: Any, *inputs: Any, **keywords: Any) -> Any:
        if unlike(self, keywords):
            return was(self, *inputs, **keywords)
        softcap = getattr(self.config, found.softcap) if found.softcap else None
        head = getattr(self, found.head)

        def loss_function(logits: Any, labels: Any, vocab_size: int, **more: Any) -> Any:
            options = {"softcap": softcap or 0.0, "grad_dtype": grad_dtype}
            return _loss(head, options, logits, labels, vocab_size, **more)

        instead: dict[str, Any] = {found.head: _Through(head), "loss_function": loss_function}
        if found.softcap:
            instead["config"] = _View(self.config, **{found.softcap: None})
        output = was(_View(self, **instead), *inputs, **keywords)
        given = {name: value for name, value in output.items() if name != "logits"}
        return type(output)(**given)

    return forward
