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
_batch_norm = function("native_batch_norm")


def _centred(x: Array) -> Array:
    """Less the mean of the last axis: torch's factors of a row far from 0 lose its digits."""
    return x - x.mean(-1, keepdim=True)


def _near(x: Array, mean: Array, rate: Array) -> bool:
    """Whether rows are near 0: torch's factors lose no more of them than a rounding of x does.

    In 16 bits rows that are not have no more digits than torch keeps in float32.
    """
    return x.itemsize == 2 or bool((mean * rate).abs_().max().item() <= 1)


# Elements of a block of rows: its temporaries stay in a cache of 2 MiB and are not new memory.
_BLOCK = 1 << 18
_SHORT = 1 << 13


def _in_blocks(count: int) -> Callable[[Serve], Serve]:
    """Serve many rows of the first `count` arrays block by block.

    What is returned beside rows are sums over rows, which are added in the blocks' order.
    """

    def decorate(serve: Serve) -> Serve:
        def served(*arrays: Any, **options: Any) -> Any:
            x = arrays[0]
            # Of 16 bits nothing is made that is as long as they are.
            if x.numel() <= 8 * _BLOCK or x.itemsize == 2:
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


@_in_blocks(2)
def layer_norm_backward(dy: Array, x: Array, weight: Any = None, /, *, eps: float) -> Any:
    """Its gradient, from statistics that are made again."""
    shape = x.shape[-1:]
    normal, mean, rate = _layer_norm(x, shape, None, None, eps)
    if not _near(x, mean, rate):
        x = _centred(x)
        normal, mean, rate = _layer_norm(x, shape, None, None, eps)
    dx = _layer_norm_backward(dy, x, shape, mean, rate, weight, None, [True, False, False])[0]
    return (dx, *_sums(dy, normal, [*range(x.ndim - 1)])) if weight is not None else dx


def _sums(dy: Array, normal: Array, others: list[int]) -> tuple[Array, Array]:
    """The gradients of parameters: torch adds up theirs one by one, which a long sum shows."""
    shares = normal.mul_(dy)
    if not others:
        return shares, dy.clone()
    return shares.sum(others), dy.sum(others)


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


def _grouped(x: Array, groups: int, eps: float, *affine: Any) -> tuple[Any, ...]:
    """The norm of groups, what it is of in C order, means and rates, and extents."""
    x = x.contiguous()
    extents = (*x.shape[:2], x[0, 0].numel(), groups)
    y, mean, rate = _group_norm(x, *affine, *extents, eps)
    if not _near(x, mean, rate):
        x = _centred(x.view(x.shape[0], groups, -1)).view(x.shape)
        y, mean, rate = _group_norm(x, *affine, *extents, eps)
    return y, x, mean, rate, extents


def group_norm(
    x: Array, weight: Any = None, bias: Any = None, /, *, eps: float, num_groups: int = 0
) -> Any:
    """The norm of groups of channels; of each channel where there is no number of groups."""
    return _grouped(x, num_groups or x.shape[1], eps, _along(weight), _along(bias))[0]


def group_norm_backward(
    dy: Array, x: Array, weight: Any = None, /, *, eps: float, num_groups: int = 0
) -> Any:
    """Its gradient, from statistics that are made again."""
    normal, x, mean, rate, extents = _grouped(x, num_groups or x.shape[1], eps, None, None)
    dy = dy.contiguous()
    dx = _group_norm_backward(dy, x, mean, rate, _along(weight), *extents, [True, False, False])[0]
    return (dx, *_sums(dy, normal, [0, *range(2, x.ndim)])) if weight is not None else dx


def _deviations(x: Array) -> tuple[Array, ...]:
    """What elements of channels differ from a number near the mean, and memory of that size.

    And that number, what is left of the mean, and the variances. The number is 0 where a mean is
    no larger than the deviation: then the squares lose no digits.
    """
    others = [0, *range(2, x.ndim)]
    mean, squares = x.mean(others), x * x
    variance = squares.mean(others).addcmul_(mean, mean, value=-1)
    if bool((mean * mean <= variance).all()):
        return x, squares, torch.zeros_like(mean), mean, variance
    d = x - _beside(mean, x)
    rest = d.mean(others)
    variance = torch.mul(d, d, out=squares).mean(others).addcmul_(rest, rest, value=-1)
    # Of elements that are all alike a rounding may be left, below 0.
    return d, squares, mean, rest, variance.clamp_(min=0)


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
    d, _, near, rest, variance = _deviations(x)
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
    d, room, _, rest, variance = _deviations(x)
    rate = (variance + eps).rsqrt_()
    dbias = dy.sum(others)
    dweight = torch.mul(dy, d, out=room).sum(others).addcmul_(rest, dbias, value=-1).mul_(rate)
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
