"""Modules of the losses, with torch's names.

Each has the constructor, attributes, buffers and ``repr`` of torch's class, the deprecated
``size_average`` and ``reduce`` included. Inputs are float16, bfloat16, float32 or float64 and of
one shape; those that broadcast, mix dtypes or have another layout run torch's own forward. Classes
are along the second axis, or the first of a single row, as in torch.

What the ops do not have runs torch's own forward too: in `CrossEntropyLoss` weights of classes
beside probabilities.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from baracuda.calls.op import Op
from baracuda.nn.namesakes import Namesake, taken
from baracuda.ops.cross_entropy import cross_entropy
from baracuda.ops.distance_loss import cosine_embedding_loss, triplet_margin_loss
from baracuda.ops.divergence import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    kl_div,
)
from baracuda.ops.loss import huber_loss, l1_loss, mse_loss, smooth_l1_loss
from baracuda.ops.nll_loss import nll_loss
from baracuda.ops.soft_target_cross_entropy import soft_target_cross_entropy

__all__ = [
    "BCELoss",
    "BCEWithLogitsLoss",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "MSELoss",
    "NLLLoss",
    "SmoothL1Loss",
    "TripletMarginLoss",
]


def _spreads(weight: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether `weight` broadcasts to the shape of `x`."""
    axes = zip(reversed(weight.shape), reversed(x.shape), strict=False)
    return weight.ndim <= x.ndim and all(n in (1, most) for n, most in axes)


class _Pairs(Namesake):
    """An op of an input, a target and weights, and the attributes that are options of the op."""

    _op: ClassVar[Op[..., Any]]
    _options: ClassVar[tuple[str, ...]] = ("reduction",)

    def _computed(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
        weights = [getattr(self, name) for name in self._op.spec.optional]
        if input.shape != target.shape or not taken(input, target, *weights):
            return None
        if not all(w is None or _spreads(w, input) for w in weights):
            return None
        beside = [None if w is None else w.expand(input.shape) for w in weights]
        options = {name: getattr(self, name) for name in self._options}
        return self._op(input, target, *beside, **options)  # type: ignore[no-any-return]


class L1Loss(_Pairs, torch.nn.L1Loss):
    """`torch.nn.L1Loss` by `baracuda.l1_loss`: ``abs(input - target)``."""

    _op = l1_loss


class MSELoss(_Pairs, torch.nn.MSELoss):
    """`torch.nn.MSELoss` by `baracuda.mse_loss`: ``(input - target)**2``."""

    _op = mse_loss


class SmoothL1Loss(_Pairs, torch.nn.SmoothL1Loss):
    """`torch.nn.SmoothL1Loss` by `baracuda.smooth_l1_loss`: a parabola below `beta`."""

    _op = smooth_l1_loss
    _options = ("reduction", "beta")


class HuberLoss(_Pairs, torch.nn.HuberLoss):
    """`torch.nn.HuberLoss` by `baracuda.huber_loss`: a parabola up to `delta`, linear beyond."""

    _op = huber_loss
    _options = ("reduction", "delta")


class BCELoss(_Pairs, torch.nn.BCELoss):
    """`torch.nn.BCELoss` by `baracuda.binary_cross_entropy`.

    An input that is no probability gives NaN, where torch raises. A `weight` that does not
    broadcast to the input runs torch's own.
    """

    _op = binary_cross_entropy


class BCEWithLogitsLoss(_Pairs, torch.nn.BCEWithLogitsLoss):
    """`torch.nn.BCEWithLogitsLoss` by `baracuda.binary_cross_entropy_with_logits`.

    A `weight` or `pos_weight` that does not broadcast to the input runs torch's own.
    """

    _op = binary_cross_entropy_with_logits


class KLDivLoss(_Pairs, torch.nn.KLDivLoss):
    """`torch.nn.KLDivLoss` by `baracuda.kl_div`: ``target * (log(target) - input)``.

    It does not warn of ``reduction="mean"``, which divides by the number of elements.
    """

    _op = kl_div
    _options = ("reduction", "log_target")

    def _computed(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
        # A single element has no batch to divide by.
        if not input.ndim and self.reduction == "batchmean":
            return None
        return super()._computed(input, target)


def _classes(input: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None) -> int | None:
    """The axis of the classes; None where torch's own is to look at input, target and weight."""
    axis = min(input.ndim - 1, 1)
    if axis < 0 or not taken(input, weight) or target.device != input.device:
        return None
    if weight is not None and weight.shape != input.shape[axis : axis + 1]:
        return None
    rows = (*input.shape[:axis], *input.shape[axis + 1 :])
    return axis if tuple(target.shape) == rows and target.dtype is torch.int64 else None


class NLLLoss(Namesake, torch.nn.NLLLoss):
    """`torch.nn.NLLLoss` by `baracuda.nll_loss`: ``-weight[target] * input[target]``."""

    def _computed(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
        axis = _classes(input, target, self.weight)
        if axis is None:
            return None
        options: dict[str, Any] = {"ignore_index": self.ignore_index, "reduction": self.reduction}
        return nll_loss(input, target, self.weight, axis=axis, **options)


class CrossEntropyLoss(Namesake, torch.nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` by `baracuda.cross_entropy`.

    Probabilities as targets are `baracuda.soft_target_cross_entropy`. Weights of classes beside
    probabilities run torch's own.

    Examples
    --------
    >>> import torch
    >>> from baracuda.nn import CrossEntropyLoss
    >>> CrossEntropyLoss()(torch.zeros(1, 2), torch.tensor([1]))
    tensor(0.6931)
    """

    def _kept(self) -> str:
        fits = 0 <= self.label_smoothing <= 1
        return "" if fits else "torch refuses this label_smoothing"

    def _computed(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
        options: dict[str, Any] = {"reduction": self.reduction}
        if target.is_floating_point():
            fits = input.ndim and input.shape == target.shape and taken(input, target)
            # torch refuses an index that is ignored.
            if not fits or self.weight is not None or self.ignore_index >= 0:
                return None
            options |= {"axis": min(input.ndim - 1, 1), "label_smoothing": self.label_smoothing}
            return soft_target_cross_entropy(input, target, **options)
        axis = _classes(input, target, self.weight)
        if axis is None:
            return None
        options |= {"ignore_index": self.ignore_index, "label_smoothing": self.label_smoothing}
        return cross_entropy(input, target, self.weight, axis=axis, **options)


class CosineEmbeddingLoss(Namesake, torch.nn.CosineEmbeddingLoss):
    """`torch.nn.CosineEmbeddingLoss` by `baracuda.cosine_embedding_loss`.

    A floating target is read as 1, -1, or neither.
    """

    def _computed(
        self: Any, input1: torch.Tensor, input2: torch.Tensor, target: torch.Tensor
    ) -> torch.Tensor | None:
        rows = input1.shape[:-1]
        fits = input1.ndim in (1, 2) and input1.shape == input2.shape and target.shape == rows
        if not (fits and taken(input1, input2) and target.device == input1.device):
            return None
        if target.dtype not in (torch.int32, torch.int64):
            target = (target == 1).to(torch.int32) - (target == -1).to(torch.int32)
        return cosine_embedding_loss(
            input1, input2, target, margin=self.margin, reduction=self.reduction
        )


class TripletMarginLoss(Namesake, torch.nn.TripletMarginLoss):
    """`torch.nn.TripletMarginLoss` by `baracuda.triplet_margin_loss`."""

    def _computed(
        self: Any, anchor: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor
    ) -> torch.Tensor | None:
        fits = anchor.ndim and anchor.shape == positive.shape == negative.shape
        if not (fits and taken(anchor, positive, negative)) or self.p <= 0 or self.eps < 0:
            return None
        return triplet_margin_loss(
            anchor,
            positive,
            negative,
            margin=self.margin,
            p=self.p,
            eps=self.eps,
            swap=self.swap,
            reduction=self.reduction,
        )
