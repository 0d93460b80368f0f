"""Rows and elements by an index, and what is joined where one points, by torch's functions.

Where nothing else is said, torch's functions refuse entries out of range. Those that collide are
taken in the order of their line, whose elements one thread has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from baracuda.backends.torch.adapters import Namesake, Serve, function, has_nan, whole, wide
from baracuda.declaration.dtypes import ANY, FLOATS
from baracuda.declaration.spec import Problem
from baracuda.libraries import Array
from baracuda.libraries.torch import ADAPTER

_bags, _table_gradient = function("_embedding_bag"), function("embedding_dense_backward")
MOVED = tuple([name for name in ANY if name not in ADAPTER.stored_as])
"""The dtypes that torch moves."""

_HOW = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin"}


def checked(problem: Problem) -> bool:
    """Whether no array is empty, and an index out of range is an error."""
    return whole(problem) and bool(problem.raising)


def indexed(
    name: str,
    serve: Serve,
    dtypes: tuple[str, ...] = FLOATS,
    suits: Callable[[Problem], bool] = checked,
    checks: bool = True,
) -> Namesake:
    """What `serve` makes of arrays that are not empty, where entries out of range are to raise."""
    return Namesake(name, lambda problem: serve, dtypes, suits=suits, checks=checks)


def take(x: Array, index: Array, /, *, axis: int, **_: Any) -> Array:
    """An element for each entry."""
    return ADAPTER.take(x, index, axis)


def sums(values: Array, index: Array, /, *, axis: int, src_shape: Any, **_: Any) -> Array:
    """Of elements, where each points."""
    return ADAPTER.scatter_add(values, index, axis, src_shape)


def scatter_add(x: Array, index: Array, src: Array, /, *, axis: int, **_: Any) -> Array:
    """To an array."""
    return x.scatter_add(axis, index.long(), src)


def scatter(x: Array, index: Array, src: Array, /, *, axis: int, **_: Any) -> Array:
    """Into an array."""
    return x.scatter(axis, index.long(), src)


def scatter_backward(dout: Array, index: Array, /, *, axis: int, **_: Any) -> tuple[Array, Array]:
    """Its gradients: an entry has one where its number is still there after all are written."""
    index = index.long()
    number = torch.arange(index.shape[axis], dtype=torch.int32)
    number = number.view(-1, *[1] * (index.ndim - axis % index.ndim - 1)).expand(index.shape)
    last = torch.empty(dout.shape, dtype=torch.int32).scatter_(axis, index, number)
    still = last.gather(axis, index) == number
    return dout.scatter(axis, index, 0), ADAPTER.masked(dout.gather(axis, index), still)


def reduced(problem: Problem) -> bool:
    """Whether a product is not asked for: that of 0 and what overflows depends on the order."""
    return checked(problem) and problem.options["reduction"] in _HOW


def scatter_reduce(
    x: Array,
    index: Array,
    src: Array,
    /,
    *,
    axis: int,
    reduction: str,
    include_self: bool,
    **_: Any,
) -> Array:
    """Sums, means and extremes of what lands in each place."""
    return x.scatter_reduce(axis, index.long(), src, _HOW[reduction], include_self=include_self)


def scatter_reduce_backward(
    dout: Array,
    x: Array,
    index: Array,
    src: Array,
    out: Array,
    /,
    *,
    axis: int,
    reduction: str,
    include_self: bool,
    **_: Any,
) -> tuple[Array, Array]:
    """Their gradients; elements that are the extreme share it."""
    index, extreme = index.long(), reduction in ("max", "min")
    hit = _same(src, out.gather(axis, index)) if extreme else None
    own = _same(x, out) if extreme and include_self else None
    share, many = dout, None
    if reduction == "sum":
        # A result is no argument.
        share = dout.clone() if include_self else dout
    else:
        start = torch.full_like(dout, include_self) if own is None else own.to(dout.dtype)
        shares = torch.ones((), dtype=dout.dtype) if hit is None else hit.to(dout.dtype)
        many = start.scatter_add_(axis, index, shares.expand(index.shape))
        share = dout / many.clamp(min=1)
    dsrc = share.gather(axis, index)
    if hit is not None:
        dsrc = ADAPTER.masked(dsrc, hit)
    if own is not None:
        share = ADAPTER.masked(share, own)
    if include_self:
        return share, dsrc
    # An extreme that no element is has no gradient to share.
    none = dout.scatter(axis, index, 0) if many is None else dout.masked_fill(many > 0, 0)
    return none, dsrc


def _same(x: Array, y: Array) -> Array:
    """Where two are equal, or both NaN."""
    same = x == y
    return same | ((x != x) & (y != y)) if has_nan(y) else same


def select(x: Array, index: Array, /, *, axis: int, alpha: float = 1.0, **_: Any) -> Array:
    """Slices along an axis."""
    slices = x.index_select(axis, index)
    return slices if alpha == 1 else slices.mul_(alpha)


def sums_of_slices(values: Array, index: Array, /, *, axis: int, src_shape: Any, **_: Any) -> Array:
    """Of slices along an axis, where each points."""
    return values.new_zeros(src_shape).index_add_(axis, index, values)


def index_add(
    x: Array, index: Array, source: Array, /, *, axis: int, alpha: float, **_: Any
) -> Array:
    """To an array."""
    return x.index_add(axis, index, source, alpha=alpha)


def embedding(
    ids: Array, weight: Array, /, *, padding_idx: int | None, scale: float, mode: str
) -> Array:
    """Rows of a table as it lies, multiplied in the accumulate dtype."""
    rows = torch.embedding(weight, ids)
    return rows if scale == 1 else (wide(rows) * scale).to(weight.dtype)


def embedding_backward(
    dy: Array, ids: Array, /, *, weight_shape: Any, padding_idx: Any, scale: float, mode: str
) -> Array:
    """The gradient of the table."""
    padding = -1 if padding_idx is None else padding_idx
    table = _table_gradient(dy, ids, weight_shape[0], padding, False)
    return table if scale == 1 else table.mul_(scale)


def side_by_side(problem: Problem) -> bool:
    """Whether bags have one length, and what joins them is a sum: torch's maximum has no NaN."""
    return (
        checked(problem)
        and problem.options["reduction"] != "max"
        and len(problem.given[0].shape) == 2
    )


def embedding_bag(
    ids: Array,
    weight: Array,
    offsets: None = None,
    each: Any = None,
    /,
    *,
    reduction: str,
    padding_idx: int | None,
    mode: str,
) -> Array:
    """Sums and means of rows of a table."""
    begins = torch.arange(0, ids.numel(), ids.shape[1], dtype=ids.dtype)
    # torch reads both in C order, however they lie.
    ids = ids.contiguous().view(-1)
    each = None if each is None else each.contiguous().view(-1)
    how, padding = int(reduction == "mean"), -1 if padding_idx is None else padding_idx
    return _bags(weight, ids, begins, False, how, False, each, False, padding)[0]


def _added(values: Array, ids: Array, n: int) -> Array:
    """Rows added up where an id points."""
    return values.new_zeros((n, *values.shape[1:])).index_add_(0, ids, values)


def _counts(ids: Array, n: int, like: Array) -> Array:
    """How many rows each segment has, at least 1, beside the trailing axes of `like`."""
    many = torch.bincount(ids, minlength=n).clamp_(min=1)
    return many.to(like.dtype).view(-1, *[1] * (like.ndim - 1))


def segment_sum(data: Array, ids: Array, /, *, num_segments: int, **_: Any) -> Array:
    """Sums of rows."""
    return _added(data, ids, num_segments)


def segment_sum_backward(dout: Array, ids: Array, /, **_: Any) -> Array:
    """Rows of the gradient."""
    return dout.index_select(0, ids)


def segment_mean(data: Array, ids: Array, /, *, num_segments: int, **_: Any) -> Array:
    """Means of rows."""
    return _added(data, ids, num_segments).div_(_counts(ids, num_segments, data))


def segment_mean_backward(dout: Array, ids: Array, /, *, num_segments: int, **_: Any) -> Array:
    """Shares of the gradient."""
    # Before they are counted, as what is far out of range would take memory.
    share = dout.index_select(0, ids)
    return share.div_(_counts(ids, num_segments, dout).index_select(0, ids))


def segment_max(data: Array, ids: Array, /, *, num_segments: int, **_: Any) -> Array:
    """The largest of the rows, for each element."""
    at = ids.long().view(-1, *[1] * (data.ndim - 1)).expand(data.shape)
    none = data.new_full((num_segments, *data.shape[1:]), -math.inf)
    return none.scatter_reduce_(0, at, data, "amax")


def segment_max_backward(
    dout: Array, data: Array, out: Array, ids: Array, /, *, num_segments: int, **_: Any
) -> Array:
    """Its gradient: elements that are the largest share it."""
    hit = _same(data, out.index_select(0, ids))
    ties = _added(hit.to(data.dtype), ids, num_segments)
    share = (dout / ties.clamp_(min=1)).index_select(0, ids)
    return ADAPTER.masked(share, hit)


def segment_softmax(data: Array, ids: Array, /, *, num_segments: int, **_: Any) -> Array:
    """Exponentials as parts of the sum of their segment."""
    top = segment_max(data, ids, num_segments=num_segments).index_select(0, ids)
    powers = torch.sub(data, top, out=top).exp_()
    return powers.div_(_added(powers, ids, num_segments).index_select(0, ids))


def segment_softmax_backward(
    dy: Array, y: Array, ids: Array, /, *, num_segments: int, **_: Any
) -> Array:
    """Its gradient."""
    total = _added(dy * y, ids, num_segments).index_select(0, ids)
    return torch.sub(dy, total, out=total).mul_(y)
