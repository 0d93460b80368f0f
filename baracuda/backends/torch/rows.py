"""Softmax and losses of classes, by torch's functions of rows."""

from __future__ import annotations

import math
from typing import Any

import torch

from baracuda.backends.torch.adapters import REDUCTIONS, Serve, function, has_nan, whole, wide
from baracuda.declaration.spec import Problem
from baracuda.families.reductions import classes, share, shares
from baracuda.libraries import Array

_softmax, _log_softmax = function("_softmax"), function("_log_softmax")
_logsumexp = function("logsumexp")
_glu = function("glu")
_nll, _nll_of_planes = function("nll_loss_forward"), function("nll_loss2d_forward")
_entropy_backward = function("binary_cross_entropy_backward")


def last(problem: Problem) -> bool:
    """Whether rows of 16 bits lie in C order along the last axis: torch rounds others twice."""
    end = problem.options["axis"] in (-1, len(problem.outputs[0].shape) - 1)
    dense = end and all(x.strides is None for x in problem.given)
    return whole(problem) and (dense or problem.dtype == problem.compute_dtype)


def unmasked(problem: Problem) -> bool:
    """Whether all entries of a softmax count besides."""
    return len(problem.given) == 1 and not problem.options["causal"] and last(problem)


def unraised(problem: Problem) -> bool:
    """Whether positive targets have no weight of their own."""
    return whole(problem) and "pos_weight" not in {x.name for x in problem.given}


def countable(problem: Problem) -> bool:
    """Whether there are classes, and rows."""
    return whole(problem) and bool(problem.outputs[0].size)


def unmeasured(problem: Problem) -> bool:
    """Whether nothing but the loss of rows is asked for, and its gradient."""
    return not problem.options["metrics"] and whole(problem)


def softmax(name: str) -> Serve:
    """A softmax, or its logarithm."""
    new = function(name)

    def serve(x: Array, *_: None, axis: int, causal: bool, scale: float) -> Any:
        y = new(x if scale == 1 else wide(x) * scale, axis, False)
        # A row of -inf is one of NaN in torch, as is a row that has one: the first entry tells.
        return None if has_nan(y.select(axis, 0)) else y

    return serve


def softmax_backward(name: str) -> Serve:
    """The gradient of either, from the result."""
    new = function(name)

    def serve(dy: Array, y: Array, *, axis: int, scale: float) -> Any:
        # The cotangent of a class that was left out counts in torch's sum.
        if "log" in name and not y.min().item() > -torch.inf:
            return None
        if scale == 1:
            return new(dy, y, axis, dy.dtype)
        dy = wide(dy)
        return new(dy, wide(y), axis, dy.dtype).mul_(scale)

    return serve


def logsumexp(x: Array, /, *, axis: int, keepdims: bool) -> Any:
    """The logarithm of the sum of exponentials."""
    return _logsumexp(x, [axis], keepdims)


def logsumexp_backward(dout: Array, x: Array, /, *, axis: int, keepdims: bool) -> Any:
    """Its gradient, by a softmax; a row with inf is NaN throughout there."""
    y = _softmax(x, axis, False)
    if has_nan(y.select(axis, 0)):
        return None
    return y.mul_(dout if keepdims else dout.unsqueeze(axis))


def packed(problem: Problem) -> bool:
    """Whether one array has both halves, the gate behind."""
    spec = problem.spec
    assert spec.packed is not None
    both = problem.inputs[spec.arrays.index(spec.packed.other)] is None
    return both and not problem.options[spec.packed.first] and whole(problem)


def glu(x: Array, *_: None, axis: int, gate_first: bool) -> Any:
    """Of one array."""
    return _glu(x, axis)


def binary_cross_entropy_backward(
    dloss: Array, x: Array, target: Array, weight: Any = None, /, *, reduction: str
) -> Any:
    """With the weights of elements."""
    return _entropy_backward(dloss, x, target, weight, REDUCTIONS[reduction])


def _total(each: Array, weight: Any, reduction: str) -> Array:
    """Losses by the weights of elements, and what becomes of them."""
    each = each if weight is None else each.mul_(weight)
    if reduction == "none":
        return each
    total = each.sum()
    return total.div_(each.numel()) if reduction == "mean" else total


def binary_cross_entropy(
    x: Array, target: Array, weight: Any = None, /, *, reduction: str
) -> Array:
    """Between the logarithms of both probabilities, of one sign: nothing cancels."""
    on = x.log().clamp_min_(-100)
    off = x.neg().log1p_().clamp_min_(-100)
    return _total(off.lerp_(on, target).neg_(), weight, reduction)


def binary_cross_entropy_with_logits(
    x: Array, target: Array, weight: Any = None, pos_weight: None = None, /, *, reduction: str
) -> Any:
    """Between what a logit is above 0 and below, and the rest of a softplus: nothing cancels."""
    above = torch.relu(x)
    size = torch.sub(x, above, alpha=2)
    each = above.lerp_(above - x, target).add_(size.exp_().log1p_())
    loss = _total(each, weight, reduction)
    # Of an infinite logit the definition has a loss, and this none.
    return None if has_nan(loss) else loss


def binary_cross_entropy_with_logits_backward(
    dloss: Array, x: Array, target: Array, weight: Any = None, pos_weight: None = None, /, *,
    reduction: str,
) -> Array:  # fmt: skip
    """Its gradient, in the memory of the sigmoid."""
    dx = torch.sigmoid(x).sub_(target)
    return (dx if weight is None else dx.mul_(weight)).mul_(share(dloss, x, reduction))


def l1_loss_backward(dloss: Array, x: Array, target: Array, /, *, reduction: str) -> Any:
    """By signs, of which torch gives NaN none."""
    d = x - target
    return None if has_nan(d) else d.sign_().mul_(share(dloss, x, reduction))


def nll_loss(
    x: Array,
    target: Array,
    weight: Any = None,
    /,
    *,
    axis: int,
    ignore_index: int,
    reduction: str,
    mode: str = "raise",
) -> Any:
    """Rows along any axis as planes of torch."""
    axis, v = axis % x.ndim, x.shape[axis]
    at = target.long()
    if mode == "drop":
        at = torch.where((at < 0) | (at >= v), ignore_index, at)
    rows, columns = math.prod(x.shape[:axis]), math.prod(x.shape[axis + 1 :])
    code = REDUCTIONS[reduction]
    if columns == 1:
        found = _nll(x.reshape(rows, v), at.reshape(rows), weight, code, ignore_index)
    else:
        planes, shape = x.reshape(rows, v, columns, 1), (rows, columns, 1)
        found = _nll_of_planes(planes, at.reshape(shape), weight, code, ignore_index)
    return found[0].reshape(target.shape) if reduction == "none" else found[0]


def nll_loss_backward(
    dloss: Array,
    target: Array,
    weight: Any = None,
    /,
    *,
    x_shape: Any,
    axis: int,
    ignore_index: int,
    reduction: str,
    mode: str,
) -> Array:
    """Its gradient: one number in each row."""
    counts, at = classes(target, x_shape[axis], ignore_index)
    share, number = shares(weight, counts, at, dloss.dtype)
    if reduction == "mean":
        share, dloss = (share, dloss / number) if weight is None else (share / number, dloss)
    slopes = torch.where(counts, -dloss * share, 0).unsqueeze(axis)
    return dloss.new_zeros(x_shape).scatter_(axis, at.unsqueeze(axis), slopes)


def _smoothed(
    log: Array, target: Array, weight: Any, axis: int, smoothing: float, **options: Any
) -> Array:
    """The loss of a target that shares with all classes."""
    loss = nll_loss(log, target, weight, axis=axis, **options)
    if not smoothing:
        return loss
    if weight is None:
        # Each class of a row that counts, as if it were its target.
        mean = log.mean(axis, keepdim=True).expand(log.shape)
        return loss * (1 - smoothing) + nll_loss(mean, target, axis=axis, **options) * smoothing
    counts, at = classes(target.unsqueeze(axis), log.shape[axis], options["ignore_index"])
    mean = (log * _along_classes(weight, log, axis)).sum(axis, keepdim=True) / log.shape[axis]
    each = mean.mul_(-smoothing).masked_fill_(~counts, 0).squeeze(axis)
    if options["reduction"] != "none":
        each = each.sum()
    if options["reduction"] == "mean":
        each = each / shares(weight, counts, at, log.dtype)[1]
    return loss * (1 - smoothing) + each


def _along_classes(weight: Array, x: Array, axis: int) -> Array:
    return weight.view(-1, *[1] * (x.ndim - 1 - axis % x.ndim))


def _gradient(
    powers: Array,
    target: Array,
    weight: Any,
    dloss: Any,
    axis: int,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> Array:
    """The gradient, over the shares of the classes."""
    v = powers.shape[axis]
    counts, at = classes(target.unsqueeze(axis), v, ignore_index)
    share, number = shares(weight, counts, at, powers.dtype)
    if reduction == "none" and not isinstance(dloss, int):
        dloss = dloss.unsqueeze(axis)
    if weight is None:
        powers.scatter_(axis, at, smoothing - 1, reduce="add")
        if smoothing:
            powers.sub_(smoothing / v)
        powers.mul_(dloss / number if reduction == "mean" else dloss)
    else:
        # A weight by the sum: a quotient by a sum that is tiny, as weights may be, overflows.
        number = number if reduction == "mean" else 1
        hit = share / number * (1 - smoothing)
        if smoothing:
            spread = weight / number * (smoothing / v)
            powers.mul_(hit + spread.sum()).sub_(_along_classes(spread, powers, axis))
        else:
            powers.mul_(hit)
        powers.scatter_add_(axis, at, -hit)
        powers.mul_(dloss)
    return powers if counts.all() else powers.masked_fill_(~counts, 0)


def log_prob(
    logits: Array,
    target: Array,
    /,
    *,
    temperature: float,
    softcap: float,
    ignore_index: int,
    entropy: bool,
    mode: str,
) -> Any:
    """Of one class in each row, and the entropies."""
    if softcap or temperature != 1:
        return None
    counts, at = classes(target.unsqueeze(-1), logits.shape[-1], ignore_index)
    log = _log_softmax(logits, -1, False)
    found = [log.gather(-1, at)]
    if entropy:
        total = log.exp().mul_(log).sum(-1, keepdim=True)
        if has_nan(total):
            # Nothing of an infinite logit is nothing.
            total = log.exp().mul_(log.clamp_(min=-1e30)).sum(-1, keepdim=True)
        found.append(total.neg_())
    first, *more = [x.masked_fill_(~counts, 0).squeeze(-1) for x in found]
    return (first, more[0]) if more else first


def log_prob_backward(
    dlog_prob: Array,
    dentropy: Array | None,
    logits: Array,
    target: Array,
    /,
    *,
    temperature: float,
    softcap: float,
    ignore_index: int,
    mode: str,
) -> Any:
    """Its gradient, from a softmax; rows of NaN have one where they are pulled at."""
    if softcap or temperature != 1:
        return None
    if dentropy is None:
        powers = _softmax(logits, -1, False)
        if has_nan(powers.select(-1, 0)):
            return None
        return _gradient(powers, target, None, -dlog_prob, -1, ignore_index, "none", 0)
    # Below the largest: logits that are alike differ by nothing from their mean.
    below, powers = logits - logits.amax(-1, keepdim=True), _softmax(logits, -1, False)
    room = powers * below
    mean = room.sum(-1, keepdim=True)
    if has_nan(mean):
        return None
    counts, at = classes(target.unsqueeze(-1), logits.shape[-1], ignore_index)
    pull, spread = dlog_prob.unsqueeze(-1), dentropy.unsqueeze(-1)
    apart = torch.sub(mean, below, out=below)
    dx = torch.addcmul(pull.neg(), apart, spread, out=room).mul_(powers)
    dx.scatter_add_(-1, at, pull)
    return dx if counts.all() else dx.masked_fill_(~counts, 0)


def cross_entropy(
    logits: Array,
    target: Array,
    weight: Any = None,
    /,
    *,
    axis: int,
    ignore_index: int,
    reduction: str,
    mode: str,
    metrics: bool,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
) -> Any:
    """From the logarithm of a softmax."""
    if z_loss or softcap:
        return None
    log = _log_softmax(logits, axis, False)
    return _smoothed(log, target, weight, axis, label_smoothing, ignore_index=ignore_index,
                     reduction=reduction, mode=mode)  # fmt: skip


def cross_entropy_backward(
    dloss: Array,
    logits: Array,
    target: Array,
    weight: Any = None,
    /,
    *,
    axis: int,
    ignore_index: int,
    reduction: str,
    mode: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
) -> Any:
    """From a softmax, of which the gradient takes the memory."""
    if z_loss or softcap:
        return None
    powers = _softmax(logits, axis, False)
    return _gradient(powers, target, weight, dloss, axis, ignore_index, reduction, label_smoothing)


def cross_entropy_with_gradient(
    logits: Array,
    target: Array,
    weight: Any = None,
    dloss: Array | int | None = None,
    /,
    *,
    axis: int,
    ignore_index: int,
    reduction: str,
    mode: str,
    metrics: bool,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
) -> Any:
    """Both from the logarithm of a softmax."""
    if z_loss or softcap:
        return None
    log = _log_softmax(logits, axis, False)
    loss = _smoothed(log, target, weight, axis, label_smoothing, ignore_index=ignore_index,
                     reduction=reduction, mode=mode)  # fmt: skip
    given = 1 if dloss is None else dloss
    return loss, _gradient(
        log.exp_(), target, weight, given, axis, ignore_index, reduction, label_smoothing
    )
