"""What rows of tokens that are sent and taken back are compared with: indexing, in any library."""

from __future__ import annotations

from typing import Any

from baracuda.libraries import Array


def _written(xp: Any, rows: Array, at: Array, n: int) -> Array:
    """`rows` where `at` says, each place at most once; 0 elsewhere."""
    shape = (n, *rows.shape[1:])
    if hasattr(rows, "new_zeros"):
        out = rows.new_zeros(shape)
    else:
        out = xp.zeros(shape, dtype=rows.dtype)
    if hasattr(out, "at"):
        return out.at[at].set(rows)
    out[at] = rows
    return out


def permute_rows(xp: Any, x: Array, row_map: Array, *, num_rows: int | None = None) -> Array:
    tokens, choices = row_map.shape
    n = tokens * choices if num_rows is None else num_rows
    repeat = getattr(xp, "repeat_interleave", None) or xp.repeat
    return _written(xp, repeat(x, choices, 0), row_map.reshape(-1), n)


def permute_rows_backward(
    xp: Any, dout: Array, row_map: Array, *, num_rows: int | None = None
) -> Array:
    return dout[row_map].sum(1)


def unpermute_rows(xp: Any, y: Array, row_map: Array, probs: Array) -> Array:
    return (y[row_map] * probs[..., None]).sum(1)


def unpermute_rows_backward(
    xp: Any, dout: Array, y: Array, row_map: Array, probs: Array
) -> tuple[Array, Array]:
    shares = (dout[:, None] * probs[..., None]).reshape(-1, *dout.shape[1:])
    dy = _written(xp, shares, row_map.reshape(-1), y.shape[0])
    return dy, (dout[:, None] * y[row_map]).sum(-1)


EXPRESSIONS = (permute_rows, permute_rows_backward, unpermute_rows, unpermute_rows_backward)
