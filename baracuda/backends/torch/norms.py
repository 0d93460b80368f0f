"""Norms of rows, groups and channels, by torch's functions of rows or few passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from baracuda.backends.torch.adapters import Serve, function, whole
from baracuda.declaration.spec import Problem
from baracuda.libraries import Array

_layer_norm, _layer_norm_backward = (
    function("native_layer_norm"), function("native_layer_norm_backward")
)  # fmt: skip
_group_norm, _group_norm_backward = (
    function("native_group_norm"), function("native_group_norm_backward")
)  # fmt: skip
_batch_norm, _batch_norm_backward = (
    function("native_batch_norm"), function("native_batch_norm_backward")
)  # fmt: skip


def _centred(x: Array) -> Array:
    """Less the mean of the last axis: torch's factors of a row far from 0 lose its digits."""
    return x - x.mean(-1, keepdim=True)


def _near(x: Array, mean: Array, rate: Array) -> bool:
    """Whether rows are near 0: torch's factors lose no more of them than a rounding of x does.

    In 16 bits rows that are not have no more digits than torch keeps in float32.
    """
    return x.itemsize == 2 or bool((mean * rate).abs_().max().item() <= 1)


# Elements of a block of rows, and of how many on: its temporaries stay in a cache of 2 MiB and are
# not new memory.
_BLOCK, _LARGE = 1 << 18, 1 << 21
# Of so many elements torch's norm loses no more than a sum does; it adds up in a few numbers.
_SHORT = 1 << 13
# Torch's gradients of parameters add up so many rows one by one, or so many elements of a plane in
# vectors: of more a loss would show.
_FEW, _PLANE = 1 << 11, 1 << 14


def _in_blocks(count: int) -> Callable[[Serve], Serve]:
    """Serve many rows of the first `count` arrays block by block.

    What is returned beside rows are sums over rows, which are added in the blocks' order.
    """

    def decorate(serve: Serve) -> Serve:
        def served(*arrays: Any, **options: Any) -> Any:
            x = arrays[0]
            # Of 16 bits nothing is made that is as long as they are.
            if x.numel() <= _LARGE or x.itemsize == 2:
                return serve(*arrays, **options)
            n, y = x.shape[-1], x.new_empty(x.shape)
            few = max(_BLOCK // n, 1)
            given = [a.reshape(-1, n).split(few) for a in (*arrays[:count], y)]
            sums = []
            for *block, part in zip(*given, strict=True):
                result = serve(*block, *arrays[count:], **options)
                rows, *others = result if type(result) is tuple else (result,)
                part.copy_(rows)
                sums.append(others)
            totals = [torch.stack(parts).sum(0) for parts in zip(*sums, strict=True)]
            return (y, *totals) if totals else y

        return served

    return decorate


def layer_norm(x: Array, weight: Any = None, bias: Any = None, /, *, eps: float) -> Any:
    """The norm of the last axis."""
    y, mean, rate = _layer_norm(x, x.shape[-1:], weight, bias, eps)
    return y if _near(x, mean, rate) else _layer_norm_far(x, weight, bias, eps=eps)


@_in_blocks(1)
def _layer_norm_far(x: Array, weight: Any, bias: Any, /, *, eps: float) -> Any:
    return _layer_norm(_centred(x), x.shape[-1:], weight, bias, eps)[0]


def _squares(x: Array) -> Array:
    """Sums of squares of the last axis, which stays; where runs divide it, nothing is written."""
    n = x.shape[-1]
    run = n if n <= _SHORT else min(n & -n, _SHORT)
    if run < min(n, 64):
        return (x * x).sum(-1, keepdim=True)
    lengths = torch.linalg.vector_norm(x.reshape(*x.shape[:-1], -1, run), dim=-1)
    return lengths.mul_(lengths).sum(-1, keepdim=True)


def _moments(x: Array, eps: float) -> tuple[Array, Array, Array]:
    """Rows, their means and rates; rows that are far from 0 are centred before."""
    centred = False
    while True:
        mean = x.mean(-1, keepdim=True)
        variance = _squares(x).div_(x.shape[-1]).addcmul_(mean, mean, value=-1)
        # Of elements that are all alike a rounding may be left, below 0.
        rate = variance.clamp_(min=0).add_(eps).rsqrt_()
        if centred or _near(x, mean, rate):
            return x, mean, rate
        x, centred = _centred(x), True


@_in_blocks(2)
def layer_norm_backward(dy: Array, x: Array, weight: Any = None, /, *, eps: float) -> Any:
    """Its gradient, from statistics that are made again."""
    x, mean, rate = _moments(x, eps)
    own = weight is not None and mean.numel() <= _FEW
    given = dy, x, x.shape[-1:], mean, rate, weight, weight
    found = _layer_norm_backward(*given, [True, own, own])
    if weight is None or own:
        return found if own else found[0]
    rows, normal = [*range(x.ndim - 1)], (x - mean).mul_(rate)
    return found[0], normal.mul_(dy).sum(rows), dy.sum(rows)


def wide_only(problem: Problem) -> bool:
    """Whether no array is empty, and nothing is rounded between sum and norm."""
    return whole(problem) and problem.dtype == problem.compute_dtype


def add_layer_norm(
    x: Array, residual: Array, weight: Any = None, bias: Any = None, /, *, eps: float
) -> tuple[Array, Array]:
    """The norm of a sum, and the sum."""
    total = x + residual
    return layer_norm(total, weight, bias, eps=eps), total


def add_layer_norm_backward(
    dy: Array, ds: Array, s: Array, weight: Any = None, /, *, eps: float
) -> Any:
    """The gradients, to both terms alike."""
    found = layer_norm_backward(dy, s, weight, eps=eps)
    (found if weight is None else found[0]).add_(ds)
    return found


def short(problem: Problem) -> bool:
    """Whether rows lie in C order, of which torch's norm loses no more than a sum does."""
    x = problem.outputs[0]
    end = problem.options["axis"] in (-1, len(x.shape) - 1)
    dense = end and all(y.strides is None for y in problem.given)
    return whole(problem) and dense and x.shape[-1] <= _SHORT


def _over_length(x: Array, eps: float) -> tuple[Array, Array]:
    """One over the Euclidean norm or, where that is less, over `eps`; and where it is less."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    small = length < eps
    return length.masked_fill_(small, eps).reciprocal_(), small


def l2_normalize(x: Array, /, *, axis: int, eps: float) -> Any:
    """Rows over their norms."""
    return x * _over_length(x, eps)[0]


def l2_normalize_backward(dy: Array, x: Array, /, *, axis: int, eps: float) -> Any:
    """The gradient, from norms that are made again."""
    inverse, small = _over_length(x, eps)
    room = dy * x
    along = room.sum(-1, keepdim=True).mul_(inverse).mul_(inverse).masked_fill_(small, 0)
    return torch.addcmul(dy, x, along, value=-1, out=room).mul_(inverse)


def several(problem: Problem) -> bool:
    """Whether sets have more than one element: torch's terms of one cancel to a rounding, not 0."""
    x = problem.outputs[0]
    groups = problem.options.get("num_groups", x.shape[1])
    return whole(problem) and x.size > x.shape[0] * groups


def _along(parameter: Any) -> Any:
    # torch reads it as if it were.
    return None if parameter is None else parameter.contiguous()


def _planes(x: Array) -> bool:
    """Whether each channel of an image lies together."""
    return x.ndim > 2 and bool(x.is_contiguous())


def _adds_up(x: Array) -> bool:
    """Whether torch's gradients of parameters of channels lose no more than a sum does."""
    if _planes(x):
        return bool(x.shape[0] <= _FEW and x[0, 0].numel() <= _PLANE)
    return bool(x.numel() // x.shape[1] <= _FEW)


def _groups(x: Array, groups: int) -> tuple[Array, tuple[int, ...]]:
    """Rows of the groups of `x`, which is in C order, and torch's extents."""
    return x.view(x.shape[0], groups, -1), (*x.shape[:2], x[0, 0].numel(), groups)


def group_norm(
    x: Array, weight: Any = None, bias: Any = None, /, *, eps: float, num_groups: int = 0
) -> Any:
    """The norm of groups of channels; of each channel where there is no number of groups."""
    x, affine = x.contiguous(), (_along(weight), _along(bias))
    rows, extents = _groups(x, num_groups or x.shape[1])
    y, mean, rate = _group_norm(x, *affine, *extents, eps)
    if not _near(x, mean, rate):
        y = _group_norm(_centred(rows).view(x.shape), *affine, *extents, eps)[0]
    return y


def group_norm_backward(
    dy: Array, x: Array, weight: Any = None, /, *, eps: float, num_groups: int = 0
) -> Any:
    """Its gradient, from statistics that are made again."""
    x = x.contiguous()
    rows, extents = _groups(x, num_groups or x.shape[1])
    rows, mean, rate = _moments(rows, eps)
    dy, x = dy.contiguous(), rows.view(x.shape)
    own = weight is not None and _adds_up(x)
    found = _group_norm_backward(
        dy, x, mean.squeeze(-1), rate.squeeze(-1), _along(weight), *extents, [True, own, own]
    )
    if weight is None or own:
        return found if own else found[0]
    normal, others = (rows - mean).mul_(rate).view(x.shape), [0, *range(2, x.ndim)]
    return found[0], normal.mul_(dy).sum(others), dy.sum(others)


def _products(a: Array, b: Array) -> Array:
    """The sums of products of channels. Blocks of many products stay in a cache."""
    channels, axes = a.shape[1], [0, *range(2, a.ndim)]
    planes = _planes(a) and _planes(b)
    if planes:
        a, b, axes = a.view(-1, a[0, 0].numel()), b.view(-1, a[0, 0].numel()), [1]
    few = max(_BLOCK // a[0].numel(), 1) if a.numel() > _LARGE else len(a)
    parts = [(p * q).sum(axes) for p, q in zip(a.split(few), b.split(few), strict=True)]
    found = torch.cat(parts).view(-1, channels) if planes else torch.stack(parts)
    return found.sum(0)


def _deviations(x: Array) -> tuple[Array, ...]:
    """What elements of channels differ from a number near the mean.

    And that number, what is left of the mean, and the variances. The number is 0 where a mean is
    no larger than the deviation: then the squares lose no digits.
    """
    others, count = [0, *range(2, x.ndim)], x.numel() // x.shape[1]
    mean = x.mean(others)
    variance = _products(x, x).div_(count).addcmul_(mean, mean, value=-1)
    if bool((mean * mean <= variance).all()):
        return x, torch.zeros_like(mean), mean, variance
    d = x - _beside(mean, x)
    rest = d.mean(others)
    variance = _products(d, d).div_(count).addcmul_(rest, rest, value=-1)
    # Of elements that are all alike a rounding may be left, below 0.
    return d, mean, rest, variance.clamp_(min=0)


def _beside(parameter: Array, x: Array) -> Array:
    """One of the channels, to broadcast with `x`."""
    return parameter.reshape(-1, *[1] * (x.ndim - 2))


def _line(x: Array, slope: Array, start: Array) -> Array:
    """Slopes of channels times `x`, from where they start: one pass, which broadcasts fast."""
    none, one = torch.zeros_like(slope), torch.ones_like(slope)
    return _batch_norm(x, slope, start, none, one, False, 0.0, 0.0)[0]


def batch_norm(
    x: Array, weight: Any = None, bias: Any = None, /, *, eps: float
) -> tuple[Array, Array, Array]:
    """The norm of channels, their means and variances."""
    d, near, rest, variance = _deviations(x)
    rate = (variance + eps).rsqrt_()
    rate = rate if weight is None else rate.mul_(weight)
    start = rest.mul(rate).neg_()
    start = start if bias is None else start.add_(bias)
    return _line(d, rate, start), near.add_(rest), variance


def batch_norm_backward(
    dy: Array, dmean: Array, dvar: Array, x: Array, weight: Any = None, /, *, eps: float
) -> Any:
    """Its gradients: that to x is a sum of three terms, with factors of the channels."""
    others, count = [0, *range(2, x.ndim)], x.numel() // x.shape[1]
    d, _, rest, variance = _deviations(x)
    rate = (variance + eps).rsqrt_()
    # torch's own gradient is that of the norm alone.
    if _adds_up(dy) and _adds_up(d) and not (dmean.any() or dvar.any()):
        given = dy, d, weight, None, None, rest, rate, True, eps, [True, True, True]
        found = _batch_norm_backward(*given)
        return found[0] if weight is None else found
    dbias = dy.sum(others)
    dweight = _products(dy, d).addcmul_(rest, dbias, value=-1).mul_(rate)
    scale = rate if weight is None else rate * weight
    slope = (2 * dvar - scale * rate * dweight).div_(count)
    start = (dmean - scale * dbias).div_(count).addcmul_(slope, rest, value=-1)
    dx = _line(d, slope, start).addcmul_(dy, _beside(scale, x))
    return dx if weight is None else (dx, dweight, dbias)


def batch_norm_inference(
    x: Array, mean: Array, var: Array, weight: Any = None, bias: Any = None, /, *, eps: float
) -> Any:
    """The norm by given statistics."""
    return _batch_norm(x, weight, bias, mean, var, False, 0.0, eps)[0]
