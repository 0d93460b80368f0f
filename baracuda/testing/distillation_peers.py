"""Expressions for divergences of a student from its teacher."""

from __future__ import annotations

from typing import Any

from baracuda.libraries import Array
from baracuda.testing.row_peers import log_softmax, softmax


def kl_div_with_logits(xp: Any, logits: Array, teacher_logits: Array) -> Array:
    student, teacher = (log_softmax(xp, x) for x in (logits, teacher_logits))
    if hasattr(xp, "nn"):
        how = {"reduction": "batchmean", "log_target": True}
        return xp.nn.functional.kl_div(student, teacher, **how)
    return xp.sum(xp.exp(teacher) * (teacher - student)) / logits.shape[0]


def kl_div_with_logits_backward(
    xp: Any, dloss: Array, logits: Array, teacher_logits: Array
) -> Array:
    return (softmax(xp, logits) - softmax(xp, teacher_logits)) * (dloss / logits.shape[0])


def kl_div_with_logits_with_gradient(
    xp: Any, logits: Array, teacher_logits: Array
) -> tuple[Array, Array]:
    one, both = xp.ones_like(logits[0, 0]), (logits, teacher_logits)
    return kl_div_with_logits(xp, *both), kl_div_with_logits_backward(xp, one, *both)


def linear_kl_div(xp: Any, hidden: Array, weight: Array, *teacher: Array) -> Array:
    return kl_div_with_logits(xp, *_both(hidden, weight, *teacher))


def linear_kl_div_backward(
    xp: Any, dloss: Array, hidden: Array, weight: Array, *teacher: Array
) -> tuple[Array, ...]:
    d = kl_div_with_logits_backward(xp, dloss, *_both(hidden, weight, *teacher))
    return d @ weight, d.T @ hidden


def linear_kl_div_with_gradient(
    xp: Any, hidden: Array, weight: Array, *teacher: Array
) -> tuple[Array, ...]:
    loss, d = kl_div_with_logits_with_gradient(xp, *_both(hidden, weight, *teacher))
    return loss, d @ weight, d.T @ hidden


def topk_kl_div_with_logits_with_gradient(
    xp: Any, logits: Array, ids: Array, probs: Array
) -> tuple[Array, Array]:
    log = log_softmax(xp, logits)
    if hasattr(xp, "gather"):
        hits = xp.zeros_like(log).scatter_add(-1, ids.long(), probs)
    else:
        every = xp.arange(log.shape[-1])
        hits = xp.where(ids[:, :, None] == every, probs[:, :, None], 0).sum(1)
    slopes = (xp.exp(log) * probs.sum(-1)[:, None] - hits) / logits.shape[0]
    return _cost(xp, log, ids, probs), slopes


def topk_kl_div_with_logits(xp: Any, logits: Array, ids: Array, probs: Array) -> Array:
    return _cost(xp, log_softmax(xp, logits), ids, probs)


def topk_kl_div_with_logits_backward(
    xp: Any, dloss: Array, logits: Array, ids: Array, probs: Array
) -> Array:
    return topk_kl_div_with_logits_with_gradient(xp, logits, ids, probs)[1] * dloss


def _cost(xp: Any, log: Array, ids: Array, probs: Array) -> Array:
    """A mean divergence from k classes of a teacher."""
    if hasattr(xp, "gather"):
        own = xp.gather(log, -1, ids.long())
    else:
        own = xp.take_along_axis(log, ids, -1)
    return (probs * (xp.log(probs) - own)).sum() / log.shape[0]


def linear_topk_kl_div(xp: Any, hidden: Array, weight: Array, ids: Array, probs: Array) -> Array:
    return topk_kl_div_with_logits(xp, hidden @ weight.T, ids, probs)


def linear_topk_kl_div_backward(
    xp: Any, dloss: Array, hidden: Array, weight: Array, ids: Array, probs: Array
) -> tuple[Array, ...]:
    d = topk_kl_div_with_logits_backward(xp, dloss, hidden @ weight.T, ids, probs)
    return d @ weight, d.T @ hidden


def linear_topk_kl_div_with_gradient(
    xp: Any, hidden: Array, weight: Array, ids: Array, probs: Array
) -> tuple[Array, ...]:
    loss, d = topk_kl_div_with_logits_with_gradient(xp, hidden @ weight.T, ids, probs)
    return loss, d @ weight, d.T @ hidden


def _both(*factors: Array) -> tuple[Array, Array]:
    """The logits of a student and of its teacher."""
    hidden, weight, teacher_hidden, teacher_weight = factors
    return hidden @ weight.T, teacher_hidden @ teacher_weight.T


EXPRESSIONS = (
    kl_div_with_logits, kl_div_with_logits_backward, kl_div_with_logits_with_gradient,
    linear_kl_div, linear_kl_div_backward, linear_kl_div_with_gradient,
    topk_kl_div_with_logits, topk_kl_div_with_logits_backward,
    topk_kl_div_with_logits_with_gradient,
    linear_topk_kl_div, linear_topk_kl_div_backward, linear_topk_kl_div_with_gradient,
)  # fmt: skip
