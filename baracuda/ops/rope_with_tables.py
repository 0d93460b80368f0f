"""Rotary position embedding by tables of cosines and sines."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case, Kernel, Normaliser
from baracuda.declaration.values import choice, flag, integer, optional
from baracuda.families import rotation
from baracuda.libraries import A, Array

__all__ = ["rope_with_tables", "rope_with_tables_backward"]

OPTIONS: dict[str, Normaliser] = {
    "interleaved": flag,
    "rotary_dim": optional(integer),
    "seq_axis": integer,
    "mode": choice("raise", "drop"),
}
ROLES = {
    "cos": roles.parameter(-1.0, 1.0),
    "sin": roles.parameter(-1.0, 1.0),
    "positions": roles.index("p"),
}
HINTS = {
    "cos": "without positions tables are [S, R], or have all axes of x: one set per batch entry is "
    "cos[:, None] for x of [B, H, S, D]",
    "positions": "positions are [S], or have one axis for each of x but the last: "
    "one set per batch entry is positions[:, None] for x of [B, H, S, D]",
}
CASES = (
    Case({"b": (2, 3), "s": 7, "h": (), "d": 8, "r": 4, "p": 9}),
    Case({"b": (2,), "s": 5, "h": (3,), "d": 6, "r": 6, "p": 4}, seq_axis=-3, interleaved=False),
    Case({"b": (), "s": 9, "h": (), "d": 10, "r": 4, "p": 9}, rotary_dim=4, mode="drop"),
)


def _rotate(
    x: Array, cos: Array, sin: Array, positions: Array | None, interleaved: bool, size: Any,
    axis: int, mode: str, back: bool,
) -> Array:  # fmt: skip
    angles = rotation.read(x, (cos, sin), positions, interleaved, size, axis, mode == "raise")
    return rotation.turned(x, angles, interleaved, size, back)


@op(
    "x[*b s@seq_axis *h d], cos[s r], sin[s r] -> y[*b s *h d]",
    "x[*b s@seq_axis *h d], cos[*b? s? *h? r], sin[*b? s? *h? r] -> y[*b s *h d]",
    "x[*b s@seq_axis *h d], cos[p r], sin[p r], positions[s] -> y[*b s *h d]",
    "x[*b s@seq_axis *h d], cos[p r], sin[p r], positions[*b? s? *h?] -> y[*b s *h d]",
    category="rope",
    dtypes=FLOATS,
    options=OPTIONS,
    roles={**ROLES, "y": roles.typed_as("x")},
    resolve=rotation.table_dim,
    hints=HINTS,
    batches=("b", "s", "h"),
    inplace=True,
    keeps_layout=True,
    kernel=Kernel("rope.cu", "Rope", schedule="rope"),
    cases=CASES,
)
def rope_with_tables(
    x: A,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    /,
    *,
    interleaved: bool = True,
    rotary_dim: int | None = None,
    seq_axis: int = -2,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Rotate pairs of the last axis by angles whose cosines and sines are given.

    A pair ``(a, b)`` becomes ``(a*cos - b*sin, a*sin + b*cos)``. Scaled ropes (linear, YaRN,
    Llama 3, LongRoPE), angles of several sections and learned ones are tables.

    Parameters
    ----------
    x : array of shape [*b, s, *h, d]
        float16, bfloat16, float32 or float64.
    cos, sin : array of shape [s, r], [*b, s, *h, r] or, beside positions, [p, r]
        dtype of `x`, or float32 beside 16 bits. r is ``rotary_dim/2``: an entry for each pair. Or
        it is ``rotary_dim``: an entry for each element, as in transformers, of which that of the
        first element of a pair counts. A table of the rank of `x` broadcasts to all axes but the
        last.
    positions : array, optional
        int32 or int64: the row of both tables. Of shape [s], or of rank ``x.ndim - 1`` and
        broadcasting to ``x.shape[:-1]``. Valid entries are ``0 <= i < p``.
    interleaved : bool
        Pairs are ``(2i, 2i + 1)`` (GPT-J), else ``(i, i + rotary_dim/2)`` (GPT-NeoX, HF Llama).
    rotary_dim : int, optional
        Even; entries from here on pass through unchanged. By default all of d.
    seq_axis : int
        Which axis is the sequence; any but the last.
    mode : {"raise", "drop"}
        What a position out of range does: raise, or count as a row of zeros. On a GPU the error
        comes with the next call on that device or from `check_errors`. Under transforms of JAX and
        `torch.func` "raise" acts as "drop".
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*b, s, *h, d]
        dtype of `x`, layout of a dense `x`.

    Raises
    ------
    IndexError
        A position out of range under ``mode="raise"``; names the first and where it stands.
    TypeError
        `positions` neither int32 nor int64; tables of another dtype; mixed libraries.
    ValueError
        Tables or `positions` of any other shape, `rotary_dim` odd or more than d, `seq_axis` the
        last axis.

    Notes
    -----
    Su et al., RoFormer (arXiv:2104.09864); ONNX RotaryEmbedding. Entries of tables are widened,
    never rounded; the result is rounded once. The gradient along the tables is that of the body:
    there is no kernel for it. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> angles = np.asarray([[0.0], [np.pi / 2]], np.float32)
    >>> bc.rope_with_tables(np.ones((2, 2), np.float32), np.cos(angles), np.sin(angles)).round(4)
    array([[ 1.,  1.],
           [-1.,  1.]], dtype=float32)
    """
    return _rotate(x, cos, sin, positions, interleaved, rotary_dim, seq_axis, mode, back=False)


@op(
    "dy[*b s@seq_axis *h d], cos[s r], sin[s r] -> dx[*b s *h d]",
    "dy[*b s@seq_axis *h d], cos[*b? s? *h? r], sin[*b? s? *h? r] -> dx[*b s *h d]",
    "dy[*b s@seq_axis *h d], cos[p r], sin[p r], positions[s] -> dx[*b s *h d]",
    "dy[*b s@seq_axis *h d], cos[p r], sin[p r], positions[*b? s? *h?] -> dx[*b s *h d]",
    category="rope",
    adjoint_of="rope_with_tables",
    dtypes=FLOATS,
    options=OPTIONS,
    roles={**ROLES, "dx": roles.typed_as("dy")},
    resolve=rotation.table_dim,
    hints=HINTS,
    batches=("b", "s", "h"),
    inplace=True,
    keeps_layout=True,
    kernel=Kernel("rope.cu", "RopeBackward", schedule="rope"),
    cases=CASES,
)
def rope_with_tables_backward(
    dy: A,
    cos: Array,
    sin: Array,
    positions: Array | None = None,
    /,
    *,
    interleaved: bool = True,
    rotary_dim: int | None = None,
    seq_axis: int = -2,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `rope_with_tables`: rotate by the negative angles.

    Parameters
    ----------
    dy : array of shape [*b, s, *h, d]
        Gradient of the result.
    cos, sin : array of shape [s, r], [*b, s, *h, r] or [p, r]
        The tables, as in `rope_with_tables`.
    positions : array, optional
    interleaved, rotary_dim, seq_axis, mode, **dispatch
        As in `rope_with_tables`.

    Returns
    -------
    array of shape [*b, s, *h, d]
        dtype of `dy`, layout of a dense `dy`.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `rope_with_tables`.

    Notes
    -----
    The gradient of `x` alone: ``(da*cos + db*sin, db*cos - da*sin)``. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> angle = np.linspace(0, 3, 6).reshape(3, 2)
    >>> cos, sin, x = np.cos(angle), np.sin(angle), np.ones((3, 4))
    >>> np.allclose(bc.rope_with_tables_backward(bc.rope_with_tables(x, cos, sin), cos, sin), x)
    True
    """
    return _rotate(dy, cos, sin, positions, interleaved, rotary_dim, seq_axis, mode, back=True)
