"""Gather and scatter-add on NumPy: `bincount` for dense indices, sorted segments for sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from baracuda.calls import body
from baracuda.calls.ranges import out_of_range, outside
from baracuda.declaration.backend import Adds, Prepared, each
from baracuda.declaration.indexed import indexed
from baracuda.declaration.sku import PrecisionGuarantee
from baracuda.declaration.spec import Operand, Problem
from baracuda.libraries import Array, near
from baracuda.libraries.numpy import places, row_sums

# Entries per bincount: its bins, twice as wide as float32, stay in the cache.
_ENTRIES = 1 << 14
# With fewer than one entry for this many bins, sorting the entries is less than zeroing the bins.
_SPARSE = 8


def _check(problem: Problem, index: Array) -> None:
    """IndexError for an entry out of range."""
    if not problem.raising or not index.size:
        return
    if not problem.library.spans(problem.library.once(index), _bins(problem)):
        (name,) = problem.raising
        raise out_of_range(problem, name, index, np.nonzero(outside(problem, name, index)))


def _bins(problem: Problem) -> int:
    """The extent that the index points into."""
    return int(problem.extent_of(*problem.spec.indices))


def _index(problem: Problem) -> Operand:
    return next(x for x in problem.given if x.name in problem.spec.indices)


def _one_index_per_row(problem: Problem) -> bool:
    """Whether the index varies along its axis alone, as in an embedding."""
    x, axis = _index(problem), problem.options["axis"]
    if x.strides is None:
        return all(n == 1 for i, n in enumerate(x.shape) if i != axis)
    return all(s == 0 for i, s in enumerate(x.strides) if i != axis)


def _line(index: Array, axis: int) -> Array:
    """The entries of an index that varies along `axis` alone."""
    return index[tuple(slice(None) if i == axis else 0 for i in range(index.ndim))]


def gather(problem: Problem) -> Prepared:
    """Without the body's masks where the range is checked: whole rows, or element by element."""
    index = _index(problem)
    checked = bool(problem.raising) and index.size > 0
    rows = checked and _one_index_per_row(problem)
    axis = problem.options["axis"]
    region = near(index.shape, axis)

    def run(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        src, at = arrays
        _check(problem, at)
        if rows:
            # The range was checked above; numpy's own check would run once more over a copy.
            result = np.take(src[region], _line(at, axis), axis=axis, mode="clip")
        else:
            result = np.take_along_axis(src[region], at, axis)
        if outs is None:
            return np.asarray(result, order="C")
        if accumulate:
            result = result.astype(problem.library.dtype(problem.compute_dtype)) + outs[0]
        outs[0][...] = result
        return outs[0]

    return Prepared(
        run=run if checked else body.runner(problem),
        kernel="take" if rows else "take_along_axis" if checked else "body",
        variant="rows" if rows else "",
        arch=problem.library.arch(problem.device),
        precision=body.precision(problem),
    )


def rows(problem: Problem) -> Prepared:
    """The body at once: in blocks each would take a table of its own."""
    return Prepared(
        run=body.runner(problem),
        kernel="body",
        variant="rows",
        arch=problem.library.arch(problem.device),
        precision=body.precision(problem),
    )


def last_write(problem: Problem) -> Prepared:
    """Along one axis NumPy writes entries in their order: the last of several stays."""

    def write(arrays: Sequence[Array], at: Array, keep: Array | None) -> tuple[Array, ...]:
        x, _, src = arrays
        result, values = np.array(x, order="C"), np.ravel(src)
        if keep is not None:
            at, values = at[keep], values[keep]
        result.reshape(-1)[at] = values
        return (result,)

    return _by_place(problem, write)


def last_write_backward(problem: Problem) -> Prepared:
    """The number of each entry is written, so that of the last stays."""

    def give(arrays: Sequence[Array], at: Array, keep: Array | None) -> tuple[Array, ...]:
        dx = np.array(arrays[0], order="C")
        left, numbers = dx.reshape(-1), np.arange(at.size)
        if keep is not None:
            at, numbers = at[keep], numbers[keep]
        last = np.empty(left.size, np.intp)
        last[at] = numbers
        found = np.where(last[at] == numbers, left[at], dx.dtype.type(0))
        left[at] = 0
        dsrc = found if keep is None else np.zeros(arrays[1].size, dx.dtype)
        if keep is not None:
            dsrc[numbers] = found
        return dx, dsrc.reshape(arrays[1].shape)

    return _by_place(problem, give)


def _by_place(
    problem: Problem, work: Callable[[Sequence[Array], Array, Array | None], tuple[Array, ...]]
) -> Prepared:
    """Work on the place of each entry, of which it keeps those in range; None: all."""
    library, axis = problem.library, problem.options["axis"]

    def run(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        index = arrays[1]
        _check(problem, index)
        keep = None if problem.raising else np.ravel(_valid(problem, index))
        results = work(arrays, places(index, axis, arrays[0].shape), keep)
        if outs is not None:
            for out, value, add in zip(outs, results, each(accumulate, len(outs)), strict=True):
                library.assign(out, value, add)
            results = outs
        return results if len(results) > 1 else results[0]

    return Prepared(
        run=run,
        kernel="assignment",
        variant="entries",
        arch=library.arch(problem.device),
        precision=body.precision(problem),
    )


def scatter(problem: Problem) -> Prepared:
    """Bins where the index is dense, segments of sorted entries where it is sparse or in rows."""
    index, axis = _index(problem), problem.options["axis"]
    entries, bins = index.shape[axis], _bins(problem)
    rows = _one_index_per_row(problem)
    segments = rows or entries * _SPARSE <= bins
    adds = _add_rows if rows else _add_segments if segments else _add_bins
    library, out, of = problem.library, problem.outputs[0], indexed(problem)
    accumulator = problem.compute_dtype if segments else "float64"

    def run(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Array:
        given = dict(zip([x.name for x in problem.given], arrays, strict=True))
        values, at = given[of.asked], given[of.index]
        _check(problem, at)
        start = given.get(of.start)
        if outs is not None:
            (result,) = outs
            if not accumulate:
                result[...] = 0 if start is None else start
        elif start is not None:
            result = np.array(start, order="C")
        else:
            result = np.zeros(out.shape, library.dtype(out.dtype))
        adding = bool(accumulate) or start is not None
        region = near(at.shape, axis)
        with np.errstate(all="ignore"):
            adds(problem, values, at, result[region], axis, adding)
        return result

    return Prepared(
        run=run,
        kernel="reduceat" if segments else "bincount",
        variant="rows" if rows else "entries" if segments else f"blocks of {_ENTRIES}",
        arch=library.arch(problem.device),
        precision=PrecisionGuarantee(accumulator, accumulator, True, True),
    )


def _segments(ids: Array, values: Array, dtype: Any) -> tuple[Array, Array]:
    """The distinct `ids` and the sum of the `values` of each, in their given order."""
    order = np.argsort(ids, kind="stable")
    ids = ids[order]
    starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
    return ids[starts], np.add.reduceat(values[order].astype(dtype, copy=False), starts, axis=0)


def _valid(problem: Problem, index: Array) -> Array:
    return (index >= 0) & (index < _bins(problem))


def _add_rows(
    problem: Problem, values: Array, at: Array, out: Array, axis: int, adding: bool
) -> None:
    """One index for a whole row: add up the rows of each entry, then store."""
    if not at.size:
        return
    ids, rows = _line(at, axis), np.moveaxis(values, axis, 0)
    keep = _valid(problem, ids)
    if not keep.all():
        ids, rows = ids[keep], rows[keep]
    if ids.size:
        hit, sums = row_sums(ids, rows, problem.library.dtype(problem.compute_dtype))
        target = np.moveaxis(out, axis, 0)
        target[hit] = target[hit].astype(sums.dtype) + sums if adding else sums


def _blocks(values: Array, at: Array, out: Array, axis: int, width: int) -> Iterator[Any]:
    """Blocks of `[rows, along the axis, columns]`; `width` elements for each row and column."""
    if not at.size:
        return
    if axis == at.ndim - 1:
        values, at, out = values[..., None], at[..., None], out[..., None]
    values, at, out = (np.moveaxis(x, axis, -2) for x in (values, at, out))
    if at.ndim == 2:
        values, at, out = values[None], at[None], out[None]
    *lead, last, _, columns = at.shape
    # Neighbouring columns share cache lines: never fewer than 16 of them.
    across = min(columns, max(16, _ENTRIES // max(width, 1)))
    down = max(1, _ENTRIES // max(width * across, 1))
    for outer in np.ndindex(*lead):
        for row in range(0, last, down):
            for column in range(0, columns, across):
                rows, cut = slice(row, row + down), slice(column, column + across)
                block = (*outer, rows, slice(None), cut)
                yield values[block], at[block], out[block]


def _flat(problem: Problem, at: Array) -> tuple[Array, int]:
    """The bins of a block, numbered through; entries out of range go to one bin past all."""
    bins = _bins(problem)
    rows, _, columns = at.shape
    total = rows * bins * columns
    flat = at.astype(np.intp, order="C")
    if columns > 1:
        flat *= columns
        flat += np.arange(columns)
    if rows > 1:
        flat += (np.arange(rows) * (bins * columns))[:, None, None]
    if not problem.raising:
        flat = np.where(_valid(problem, at), flat, total)
    return flat.reshape(-1), total


def _add_bins(
    problem: Problem, values: Array, at: Array, out: Array, axis: int, adding: bool
) -> None:
    """Count into bins in float64, a few lines at a time."""
    width = max(_bins(problem), at.shape[axis])
    for part, index, target in _blocks(values, at, out, axis, width):
        flat, total = _flat(problem, index)
        weights = part.astype(np.float64, order="C", copy=False).reshape(-1)
        sums = np.bincount(flat, weights, total + 1)[:total].reshape(target.shape)
        target[...] = target.astype(np.float64) + sums if adding else sums


def _add_segments(
    problem: Problem, values: Array, at: Array, out: Array, axis: int, adding: bool
) -> None:
    """Sort the few entries of many lines, touch only the elements that they hit."""
    dtype = problem.library.dtype(problem.compute_dtype)
    for part, index, target in _blocks(values, at, out, axis, at.shape[axis]):
        flat, total = _flat(problem, index)
        hit, sums = _segments(flat, part.reshape(-1), dtype)
        if hit[-1] == total:
            hit, sums = hit[:-1], sums[:-1]
        hits = np.unravel_index(hit, target.shape)
        target[hits] = target[hits].astype(dtype) + sums if adding else sums
