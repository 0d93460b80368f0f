"""Rotary position embedding."""

from __future__ import annotations

from typing import Any, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case, Kernel, Normaliser
from baracuda.declaration.values import (
    Numbers,
    flag,
    integer,
    numbers,
    optional,
    positive,
)
from baracuda.families import rotation
from baracuda.libraries import A, Array

__all__ = ["rope", "rope_backward"]

OPTIONS: dict[str, Normaliser] = {
    "base": positive(),
    "frequencies": optional(numbers),
    "attention_factor": positive(),
    "interleaved": flag,
    "rotary_dim": optional(integer),
    "seq_axis": integer,
}
HINTS = {
    "positions": "positions are [S], or have one axis for each of x but the last: "
    "one set per batch entry is positions[:, None] for x of [B, H, S, D]"
}
CASES = (
    Case({"b": (2, 3), "s": 7, "h": (), "d": 8}),
    Case({"b": (2,), "s": 5, "h": (3,), "d": 6}, seq_axis=-3, interleaved=False),
    Case({"b": (), "s": 9, "h": (), "d": 10}, rotary_dim=4, base=500.0),
    Case({"b": (), "s": 3, "h": (), "d": 6}, frequencies=(0.7, -2.5), attention_factor=1.25),
)


def _rotate(
    x: Array, positions: Array | None, frequencies: rotation.Frequencies, interleaved: bool,
    size: Any, axis: int, back: bool,
) -> Array:  # fmt: skip
    """Rotate the pairs of the first `size` entries of `x` by their angles, or `back`."""
    angles = rotation.computed(x, positions, frequencies, size, axis)
    return rotation.turned(x, angles, interleaved, size, back)


@op(
    "x[*b s@seq_axis *h d] -> y[*b s *h d]",
    "x[*b s@seq_axis *h d], positions[s] -> y[*b s *h d]",
    "x[*b s@seq_axis *h d], positions[*b? s? *h?] -> y[*b s *h d]",
    category="rope",
    dtypes=FLOATS,
    options=OPTIONS,
    roles={"positions": roles.counter("s")},
    resolve=rotation.rotary_dim,
    hints=HINTS,
    inplace=True,
    keeps_layout=True,
    kernel=Kernel("rope.cu", "Rope", schedule="rope"),
    cases=CASES,
)
def rope(
    x: A,
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
) -> A:
    """Rotate pairs of the last axis by angles proportional to the position.

    Pair i turns by ``positions * base**(-2*i/rotary_dim)``, or by ``positions * frequencies[i]``.

    Parameters
    ----------
    x : array of shape [*b, s, *h, d]
        float16, bfloat16, float32 or float64.
    positions : array, optional
        int32 or int64, at most 2^31 - 1 in size; 0, 1, ... by default. Of shape [s], or of rank
        ``x.ndim - 1`` and broadcasting to ``x.shape[:-1]``.
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
    array of shape [*b, s, *h, d]
        dtype of `x`, layout of a dense `x`.

    Raises
    ------
    TypeError
        `positions` neither int32 nor int64; an option of the wrong type; mixed libraries.
    ValueError
        `positions` of any other shape, `rotary_dim` odd or more than d, not half as many
        `frequencies` or one that is not finite, `base` or `attention_factor` not positive and
        finite, `seq_axis` the last axis.

    Notes
    -----
    Su et al., RoFormer (arXiv:2104.09864). Below float64 the angle is reduced in integers, so that
    the result stays within 4 eps of the pair's norm at every position. In float64 the angle is
    itself rounded, which adds 2^-51 of it. Bit-stable. torch has no counterpart.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.rope(np.ones((2, 2), np.float32)).round(4)
    array([[ 1.    ,  1.    ],
           [-0.3012,  1.3818]], dtype=float32)
    """
    own = rotation.Frequencies(base, frequencies, attention_factor)
    return _rotate(x, positions, own, interleaved, rotary_dim, seq_axis, back=False)


@op(
    "dy[*b s@seq_axis *h d] -> dx[*b s *h d]",
    "dy[*b s@seq_axis *h d], positions[s] -> dx[*b s *h d]",
    "dy[*b s@seq_axis *h d], positions[*b? s? *h?] -> dx[*b s *h d]",
    category="rope",
    adjoint_of="rope",
    dtypes=FLOATS,
    options=OPTIONS,
    roles={"positions": roles.counter("s")},
    resolve=rotation.rotary_dim,
    hints=HINTS,
    inplace=True,
    keeps_layout=True,
    kernel=Kernel("rope.cu", "RopeBackward", schedule="rope"),
    cases=CASES,
)
def rope_backward(
    dy: A,
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
) -> A:
    """Gradient of `rope`: rotate by the negative angles. Nothing is saved.

    Parameters
    ----------
    dy : array of shape [*b, s, *h, d]
        Gradient of the result.
    positions : array, optional
    base, frequencies, attention_factor, **dispatch
        As in `rope`.
    interleaved, rotary_dim, seq_axis
        As in `rope`.

    Returns
    -------
    array of shape [*b, s, *h, d]
        dtype of `dy`, layout of a dense `dy`.

    Raises
    ------
    TypeError, ValueError
        As `rope`.

    Notes
    -----
    Linear in `dy`; with an `attention_factor` of 1 the inverse of `rope` up to rounding. Accuracy
    as of `rope`; bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> x = np.ones((3, 4))
    >>> np.allclose(bc.rope_backward(bc.rope(x)), x)
    True
    """
    own = rotation.Frequencies(base, frequencies, attention_factor)
    return _rotate(dy, positions, own, interleaved, rotary_dim, seq_axis, back=True)
