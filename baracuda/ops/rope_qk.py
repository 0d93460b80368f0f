"""Rotary position embedding of queries and keys in one launch."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.shapes import Axes
from baracuda.declaration.spec import Case, Kernel, Normaliser
from baracuda.declaration.values import (
    Numbers,
    choice,
    flag,
    integer,
    numbers,
    optional,
    positive,
)
from baracuda.families import rotation
from baracuda.libraries import A, Array

__all__ = [
    "rope_qk", "rope_qk_backward", "rope_qk_with_tables", "rope_qk_with_tables_backward",
]  # fmt: skip

SHARED: dict[str, Normaliser] = {
    "interleaved": flag, "rotary_dim": optional(integer), "seq_axis": integer,
}  # fmt: skip
OPTIONS: dict[str, Normaliser] = {
    "base": positive(), "frequencies": optional(numbers), "attention_factor": positive(), **SHARED,
}  # fmt: skip
TABLE_OPTIONS: dict[str, Normaliser] = {**SHARED, "mode": choice("raise", "drop")}
RESULTS = {"y": roles.typed_as("q"), "z": roles.typed_as("k")}
GRADIENTS = {"dq": roles.typed_as("dy"), "dk": roles.typed_as("dz")}
COUNTED = {"positions": roles.counter("s")}
TABLES = {
    "cos": roles.parameter(-1.0, 1.0),
    "sin": roles.parameter(-1.0, 1.0),
    "positions": roles.index("p"),
}
HINTS = {
    "positions": "positions are [S], or have one axis for each of q but the last: "
    "one set per batch entry is positions[:, None] for q of [B, H, S, D]",
}
CASES = (
    Case({"b": (2, 3), "c": (2, 1), "i": (2, 1), "u": (1, 1), "s": 5, "h": (), "g": (), "j": (),
          "v": (), "d": 8, "r": 4, "p": 9}),
    Case({"b": (2,), "c": (2,), "i": (2,), "u": (2,), "s": 4, "h": (3,), "g": (2,), "j": (1,),
          "v": (1,), "d": 6, "r": 4, "p": 5}, seq_axis=-3, interleaved=False, rotary_dim=4),
)  # fmt: skip


def _pair(name: str, axes: Axes, options: dict[str, Any]) -> dict[str, int]:
    rotation.paired(name, axes)
    return rotation.rotary_dim(name, axes, options)


def _pair_of_tables(name: str, axes: Axes, options: dict[str, Any]) -> dict[str, int]:
    rotation.paired(name, axes)
    return rotation.table_dim(name, axes, options)


def _rotate(
    q: Array, k: Array, positions: Array | None, frequencies: rotation.Frequencies,
    interleaved: bool, size: Any, axis: int, back: bool,
) -> tuple[Array, Array]:  # fmt: skip
    angles = rotation.computed(q, positions, frequencies, size, axis)
    y, z = (rotation.turned(x, angles, interleaved, size, back) for x in (q, k))
    return y, z


def _rotate_by_tables(
    q: Array, k: Array, tables: tuple[Array, Array], positions: Array | None, interleaved: bool,
    size: Any, axis: int, mode: str, back: bool,
) -> tuple[Array, Array]:  # fmt: skip
    angles = rotation.read(q, tables, positions, interleaved, size, axis, mode == "raise")
    y, z = (rotation.turned(x, angles, interleaved, size, back) for x in (q, k))
    return y, z


@op(
    "q[*b s@seq_axis *h d], k[*c<=b s *g<=h d] -> y[*b s *h d], z[*c<=b s *g<=h d]",
    "q[*b s@seq_axis *h d], k[*c<=b s *g<=h d], positions[s] -> y[*b s *h d], z[*c<=b s *g<=h d]",
    "q[*b s@seq_axis *h d], k[*c<=b s *g<=h d], positions[*i?<=b s? *j?<=h] "
    "-> y[*b s *h d], z[*c<=b s *g<=h d]",
    category="rope",
    dtypes=FLOATS,
    options=OPTIONS,
    roles={**COUNTED, **RESULTS},
    resolve=_pair,
    hints=HINTS,
    inplace=True,
    keeps_layout=True,
    kernel=Kernel("rope.cu", "Rope", schedule="rope"),
    cases=CASES,
)
def rope_qk(
    q: A,
    k: Array,
    positions: Array | None = None,
    /,
    *,
    base: float = 10000.0,
    frequencies: Numbers | None = None,
    attention_factor: float = 1.0,
    interleaved: bool = True,
    rotary_dim: int | None = None,
    seq_axis: int = -2,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Rotate pairs of queries and keys as `rope` does, both in one launch.

    Parameters
    ----------
    q : array of shape [*b, s, *h, d]
        float16, bfloat16, float32 or float64.
    k : array of shape [*c, s, *g, d]
        dtype of `q`. It has the extents of `q` but for one axis, that of heads, which may be less.
    positions : array, optional
        int32 or int64, at most 2^31 - 1 in size; 0, 1, ... by default. Of shape [s], or of rank
        ``q.ndim - 1`` and broadcasting to ``q.shape[:-1]``, of extent 1 along heads.
    base : float
        Above 0: pair i turns by ``base**(-2*i/rotary_dim)`` radians a position.
    frequencies : sequence of float or NumPy array of shape [rotary_dim/2], optional
        Angle of each pair from one position to the next, in radians, in place of those of `base`:
        what `rope_frequencies` returns. Under torch.compile a tuple of floats.
    attention_factor : float
        Factor of the rotated pairs, above 0.
    interleaved : bool
        Pairs are ``(2i, 2i + 1)`` (GPT-J), else ``(i, i + rotary_dim/2)`` (GPT-NeoX, HF Llama).
    rotary_dim : int, optional
        Even; entries from here on pass through unchanged. By default two for each of `frequencies`,
        without these all of d.
    seq_axis : int
        Which axis is the sequence; any but the last.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    y : array of shape [*b, s, *h, d]
        The rotated `q`: dtype of `q`, layout of a dense `q`.
    z : array of shape [*c, s, *g, d]
        The rotated `k`: dtype of `k`, layout of a dense `k`.

    Raises
    ------
    TypeError
        `positions` neither int32 nor int64; `k` of another dtype; mixed libraries.
    ValueError
        `k` of more heads than `q`, or unlike it along another axis; what `rope` refuses.

    Notes
    -----
    Bits and accuracy are those of `rope`. A plan works in place: ``plan(q, k, out=(q, k))``.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> q, k = np.ones((4, 7, 8)), np.ones((2, 7, 8))
    >>> y, z = bc.rope_qk(q, k)
    >>> np.array_equal(y, bc.rope(q)) and np.array_equal(z, bc.rope(k))
    True
    """
    own = rotation.Frequencies(base, frequencies, attention_factor)
    return _rotate(q, k, positions, own, interleaved, rotary_dim, seq_axis, back=False)


@op(
    "dy[*b s@seq_axis *h d], dz[*c<=b s *g<=h d] -> dq[*b s *h d], dk[*c<=b s *g<=h d]",
    "dy[*b s@seq_axis *h d], dz[*c<=b s *g<=h d], positions[s] "
    "-> dq[*b s *h d], dk[*c<=b s *g<=h d]",
    "dy[*b s@seq_axis *h d], dz[*c<=b s *g<=h d], positions[*i?<=b s? *j?<=h] "
    "-> dq[*b s *h d], dk[*c<=b s *g<=h d]",
    category="rope",
    adjoint_of="rope_qk",
    dtypes=FLOATS,
    options=OPTIONS,
    roles={**COUNTED, **GRADIENTS},
    resolve=_pair,
    hints=HINTS,
    inplace=True,
    keeps_layout=True,
    kernel=Kernel("rope.cu", "RopeBackward", schedule="rope"),
    cases=CASES,
)
def rope_qk_backward(
    dy: A,
    dz: Array,
    positions: Array | None = None,
    /,
    *,
    base: float = 10000.0,
    frequencies: Numbers | None = None,
    attention_factor: float = 1.0,
    interleaved: bool = True,
    rotary_dim: int | None = None,
    seq_axis: int = -2,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Gradient of `rope_qk`: rotate by the negative angles. Nothing is saved.

    Parameters
    ----------
    dy : array of shape [*b, s, *h, d]
        Gradient of the rotated q.
    dz : array of shape [*c, s, *g, d]
        Gradient of the rotated k.
    positions : array, optional
    base, frequencies, attention_factor, **dispatch
        As in `rope_qk`.
    interleaved, rotary_dim, seq_axis
        As in `rope_qk`.

    Returns
    -------
    dq : array of shape [*b, s, *h, d]
        dtype of `dy`, layout of a dense `dy`.
    dk : array of shape [*c, s, *g, d]
        dtype of `dz`, layout of a dense `dz`.

    Raises
    ------
    TypeError
        `positions` neither int32 nor int64; `dz` of another dtype; mixed libraries.
    ValueError
        `dz` of more heads than `dy`, or unlike it along another axis; what `rope` refuses.

    Notes
    -----
    Linear in `dy` and `dz`. Accuracy as of `rope`; bit-stable; in place as `rope_qk`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> q, k = np.ones((4, 7, 8)), np.ones((2, 7, 8))
    >>> dq, dk = bc.rope_qk_backward(*bc.rope_qk(q, k))
    >>> np.allclose(dq, q) and np.allclose(dk, k)
    True
    """
    own = rotation.Frequencies(base, frequencies, attention_factor)
    return _rotate(dy, dz, positions, own, interleaved, rotary_dim, seq_axis, back=True)


@op(
    "q[*b s@seq_axis *h d], k[*c<=b s *g<=h d], cos[s r], sin[s r] "
    "-> y[*b s *h d], z[*c<=b s *g<=h d]",
    "q[*b s@seq_axis *h d], k[*c<=b s *g<=h d], cos[*i?<=b s? *j?<=h r], sin[*u?<=b s? *v?<=h r] "
    "-> y[*b s *h d], z[*c<=b s *g<=h d]",
    "q[*b s@seq_axis *h d], k[*c<=b s *g<=h d], cos[p r], sin[p r], positions[s] "
    "-> y[*b s *h d], z[*c<=b s *g<=h d]",
    "q[*b s@seq_axis *h d], k[*c<=b s *g<=h d], cos[p r], sin[p r], positions[*i?<=b s? *j?<=h] "
    "-> y[*b s *h d], z[*c<=b s *g<=h d]",
    category="rope",
    dtypes=FLOATS,
    options=TABLE_OPTIONS,
    roles={**TABLES, **RESULTS},
    resolve=_pair_of_tables,
    hints=HINTS,
    batches=("b", "s", "h"),
    inplace=True,
    keeps_layout=True,
    kernel=Kernel("rope.cu", "Rope", schedule="rope"),
    cases=CASES,
)
def rope_qk_with_tables(
    q: A,
    k: Array,
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
) -> tuple[A, A]:
    """Rotate queries and keys as `rope_with_tables` does, both in one launch.

    Parameters
    ----------
    q : array of shape [*b, s, *h, d]
        float16, bfloat16, float32 or float64.
    k : array of shape [*c, s, *g, d]
        dtype of `q`. It has the extents of `q` but for one axis, that of heads, which may be less.
    cos, sin : array of shape [s, r], [*b, s, *h, r] or, beside positions, [p, r]
        dtype of `q`, or float32 beside 16 bits. r is ``rotary_dim/2`` or ``rotary_dim``, as in
        `rope_with_tables`. A table of the rank of `q` broadcasts to its axes but the last, and has
        extent 1 along heads.
    positions : array, optional
        int32 or int64: the row of both tables. Of shape [s], or of rank ``q.ndim - 1`` and
        broadcasting to ``q.shape[:-1]``, of extent 1 along heads.
    interleaved, rotary_dim, seq_axis, mode, **dispatch
        As in `rope_with_tables`.

    Returns
    -------
    y : array of shape [*b, s, *h, d]
        The rotated `q`: dtype of `q`, layout of a dense `q`.
    z : array of shape [*c, s, *g, d]
        The rotated `k`: dtype of `k`, layout of a dense `k`.

    Raises
    ------
    IndexError, TypeError
        As `rope_with_tables`.
    ValueError
        `k` of more heads than `q`, or unlike it along another axis; what `rope_with_tables`
        refuses.

    Notes
    -----
    Bits are those of `rope_with_tables`. A plan works in place: ``plan(q, k, cos, sin, out=(q,
    k))``. The gradient along the tables is that of the body. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> angles = np.linspace(0, 3, 28).reshape(7, 4)
    >>> cos, sin, q, k = np.cos(angles), np.sin(angles), np.ones((4, 7, 8)), np.ones((2, 7, 8))
    >>> y, z = bc.rope_qk_with_tables(q, k, cos, sin)
    >>> np.array_equal(z, bc.rope_with_tables(k, cos, sin))
    True
    """
    return _rotate_by_tables(
        q, k, (cos, sin), positions, interleaved, rotary_dim, seq_axis, mode, back=False
    )


@op(
    "dy[*b s@seq_axis *h d], dz[*c<=b s *g<=h d], cos[s r], sin[s r] "
    "-> dq[*b s *h d], dk[*c<=b s *g<=h d]",
    "dy[*b s@seq_axis *h d], dz[*c<=b s *g<=h d], cos[*i?<=b s? *j?<=h r], "
    "sin[*u?<=b s? *v?<=h r] -> dq[*b s *h d], dk[*c<=b s *g<=h d]",
    "dy[*b s@seq_axis *h d], dz[*c<=b s *g<=h d], cos[p r], sin[p r], positions[s] "
    "-> dq[*b s *h d], dk[*c<=b s *g<=h d]",
    "dy[*b s@seq_axis *h d], dz[*c<=b s *g<=h d], cos[p r], sin[p r], "
    "positions[*i?<=b s? *j?<=h] -> dq[*b s *h d], dk[*c<=b s *g<=h d]",
    category="rope",
    adjoint_of="rope_qk_with_tables",
    dtypes=FLOATS,
    options=TABLE_OPTIONS,
    roles={**TABLES, **GRADIENTS},
    resolve=_pair_of_tables,
    hints=HINTS,
    batches=("b", "s", "h"),
    inplace=True,
    keeps_layout=True,
    kernel=Kernel("rope.cu", "RopeBackward", schedule="rope"),
    cases=CASES,
)
def rope_qk_with_tables_backward(
    dy: A,
    dz: Array,
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
) -> tuple[A, A]:
    """Gradient of `rope_qk_with_tables`: rotate by the negative angles.

    Parameters
    ----------
    dy : array of shape [*b, s, *h, d]
        Gradient of the rotated q.
    dz : array of shape [*c, s, *g, d]
        Gradient of the rotated k.
    cos, sin : array of shape [s, r], [*b, s, *h, r] or [p, r]
        The tables, as in `rope_qk_with_tables`.
    positions : array, optional
    interleaved, rotary_dim, seq_axis, mode, **dispatch
        As in `rope_qk_with_tables`.

    Returns
    -------
    dq : array of shape [*b, s, *h, d]
        dtype of `dy`, layout of a dense `dy`.
    dk : array of shape [*c, s, *g, d]
        dtype of `dz`, layout of a dense `dz`.

    Raises
    ------
    IndexError, TypeError
        As `rope_with_tables`.
    ValueError
        `dz` of more heads than `dy`, or unlike it along another axis; what `rope_with_tables`
        refuses.

    Notes
    -----
    Gradients of `q` and `k` alone. Bit-stable; in place as `rope_qk_with_tables`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> angles = np.linspace(0, 3, 28).reshape(7, 4)
    >>> cos, sin, q, k = np.cos(angles), np.sin(angles), np.ones((4, 7, 8)), np.ones((2, 7, 8))
    >>> y, z = bc.rope_qk_with_tables(q, k, cos, sin)
    >>> dq, dk = bc.rope_qk_with_tables_backward(y, z, cos, sin)
    >>> np.allclose(dq, q) and np.allclose(dk, k)
    True
    """
    return _rotate_by_tables(
        dy, dz, (cos, sin), positions, interleaved, rotary_dim, seq_axis, mode, back=True
    )
