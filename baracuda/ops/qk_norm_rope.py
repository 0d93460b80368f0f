"""Queries and keys, normalised head by head and rotated by their positions, in one op."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.shapes import Axes
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import between, flag, integer, optional, positive
from baracuda.families import norms, rotation
from baracuda.libraries import A, Array

__all__ = ["qk_norm_rope", "qk_norm_rope_backward"]

GIVEN = "q[*b s h d], k[*b s g d], q_weight[d], k_weight[d]"
# What angles come from: places, positions, tables.
ANGLES = ("", ", positions[s]", ", positions[*b? s]", ", cos[*b? s r], sin[*b? s r]")
MADE = "q_out[*b s h d], k_out[*b s g d]"
PULLED = "dq_out[*b s h d], dk_out[*b s g d]"
GRADIENTS = "dq[*b s h d], dk[*b s g d], dq_weight[d], dk_weight[d]"
SCALED = {
    "q_weight": roles.parameter(),
    "k_weight": roles.parameter(),
    "cos": roles.table(),
    "sin": roles.table(),
    "positions": roles.counter("s"),
}
HINTS = {
    "positions": "positions are [S], or have one axis for each of q but the last two",
    **{
        name: f"tables have one axis for each of q but the heads: one for all of a batch is "
        f"{name}[None]"
        for name in ("cos", "sin")
    },
}


def _rotary_dim(name: str, axes: Axes, options: dict[str, Any]) -> dict[str, int]:
    """Complete `rotary_dim` by the extent of a head, beside tables or without."""
    find = rotation.table_dim if "r" in axes else rotation.rotary_dim
    return find(name, axes, options)


qk = partial(
    op,
    category="qk_norm_rope",
    dtypes=FLOATS,
    options={
        **norms.CASTING,
        "base": positive(),
        "interleaved": flag,
        "rotary_dim": optional(integer),
    },
    scalars={"eps": positive(zero=True), "offset": between(-1e30, 1e30)},
    resolve=_rotary_dim,
    hints=HINTS,
    keeps_layout=True,
    cases=(
        Case({"b": (2,), "s": 3, "h": 2, "g": 1, "d": 8, "r": 4}, interleaved=False),
        Case(
            {"b": (), "s": 2, "h": 1, "g": 2, "d": 6, "r": 4},
            eps=0.5, offset=1.0, rotary_dim=4, casting="before_weight",
        ),
    ),
)  # fmt: skip
"""Declares the op, or its gradient."""


def _angles(
    q: Array, cos: Array | None, sin: Array | None, positions: Array | None, base: float,
    interleaved: bool, size: Any,
) -> tuple[Array, Array]:  # fmt: skip
    """Cosines and sines along an axis of the angles, to broadcast along that of the heads."""
    axis = q.ndim - 3
    if cos is not None and sin is not None:
        tables = cos[..., None, :], sin[..., None, :]
        return rotation.read(q, tables, None, interleaved, size, axis, checked=True)
    if positions is not None and positions.ndim > 1:
        positions = positions[..., None]
    return rotation.computed(q, positions, rotation.Frequencies(base), size, axis)


@qk(
    *[f"{GIVEN}{angles} -> {MADE}" for angles in ANGLES],
    roles={**SCALED, "q_out": roles.typed_as("q"), "k_out": roles.typed_as("k")},
    kernel=Kernel("qk_norm_rope.cu", "QkNormRope", schedule="heads"),
)
def qk_norm_rope(
    q: A,
    k: Array,
    q_weight: Array,
    k_weight: Array,
    cos: Array | None = None,
    sin: Array | None = None,
    positions: Array | None = None,
    /,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: Literal["none", "before_weight"] = "none",
    base: float = 10000.0,
    interleaved: bool = True,
    rotary_dim: int | None = None,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Normalise each head of q and k by its root mean square, scale it, and rotate it.

    That is `rope` of `rms_norm` over the last axis, for q and for k, as Qwen 3 and Gemma 3 have it.

    Parameters
    ----------
    q : array of shape [*b, s, h, d]
        float16, bfloat16, float32 or float64. Any strides: q of [b, h, s, d] is given, and the
        result taken, as ``transpose(1, 2)``.
    k : array of shape [*b, s, g, d]
        dtype of `q`.
    q_weight, k_weight : arrays of shape [d]
        dtype of `q`, or both float32 beside 16 bits.
    cos, sin : arrays of shape [*b, s, rotary_dim/2] or [*b, s, rotary_dim], optional
        The angles; dtype of `q`, or both float32 beside 16 bits. An axis of b may have extent 1.
        In tables of rotary_dim entries, as transformers makes them, each angle is there twice: as
        two halves, or side by side if `interleaved`. One of the two is read.
    positions : array of shape [s] or [*b, s], optional
        int32 or int64, at most 2^31 - 1 in size; 0, 1, ... by default. An axis of b may have
        extent 1. Pair i turns by ``positions * base**(-2*i/rotary_dim)``. Not beside tables.
    eps : float
        Added to the mean square, not below 0; a run-time value.
    offset : float
        Added to both weights, at most 1e30 in size; a run-time value. Gemma has 1.
    casting : {"none", "before_weight"}
        Whether what is normalised is rounded to the dtype of `q` before it is scaled, as Qwen does.
    base : float
        Above 0: pair i turns by ``base**(-2*i/rotary_dim)`` radians a position. Not used with
        tables.
    interleaved : bool
        Pairs are ``(2i, 2i + 1)``, else ``(i, i + rotary_dim/2)`` (transformers).
    rotary_dim : int, optional
        Even; entries from here on are not rotated. By default all of d.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    q_out, k_out : arrays of shapes [*b, s, h, d] and [*b, s, g, d]
        dtype of `q`; the layouts of a dense `q` and `k`.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices or dtypes; tables beside positions,
        or one of two tables; an option of the wrong type.
    ValueError
        Shapes that do not fit; `rotary_dim` odd or more than d; `base` not positive and finite;
        `eps` negative, infinite or NaN; `offset` above 1e30 in size or NaN; another `casting`.

    Notes
    -----
    Zhang and Sennrich (arXiv:1910.07467) and Su et al. (arXiv:2104.09864), after Henry et al.
    (arXiv:2010.04245). All is computed in the accumulate dtype and rounded once. Models in 16 bits
    round the norm, each product with a table and their sum: their results differ by a few units in
    the last place of the larger entry of a pair. Angles from positions are as exact as those of
    `rope`. A NaN makes its head NaN. There is no gradient along tables but by the definition.
    Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> q, k, w = np.ones((2, 1, 2)), np.ones((2, 1, 2)), np.ones(2)
    >>> q_out, k_out = bc.qk_norm_rope(q, k, w, 2 * w, eps=0.0)
    >>> q_out.round(4)[:, 0], k_out.round(4)[:, 0]
    (array([[ 1.    ,  1.    ],
           [-0.3012,  1.3818]]), array([[ 2.    ,  2.    ],
           [-0.6023,  2.7635]]))
    """
    size: Any = rotary_dim
    angles = _angles(q, cos, sin, positions, base, interleaved, size)

    def made(x: Array, weight: Array) -> Array:
        y = norms.rms_norm(x, weight, eps, offset, casting)
        return rotation.turned(y, angles, interleaved, size, back=False)

    return made(q, q_weight), made(k, k_weight)


@qk(
    *[f"{PULLED}, {GIVEN}{angles} -> {GRADIENTS}" for angles in ANGLES],
    adjoint_of="qk_norm_rope",
    roles={**SCALED, "dq_weight": roles.total("q_weight"), "dk_weight": roles.total("k_weight")},
    kernel=Kernel("qk_norm_rope.cu", "QkNormRopeBackward", schedule="heads"),
)
def qk_norm_rope_backward(
    dq_out: Array | None,
    dk_out: Array | None,
    q: A,
    k: Array,
    q_weight: Array,
    k_weight: Array,
    cos: Array | None = None,
    sin: Array | None = None,
    positions: Array | None = None,
    /,
    *,
    eps: float = 1e-6,
    offset: float = 0.0,
    casting: Literal["none", "before_weight"] = "none",
    base: float = 10000.0,
    interleaved: bool = True,
    rotary_dim: int | None = None,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A, A, A]:
    """Gradient of `qk_norm_rope`: cotangents are rotated back, then those of `rms_norm` follow.

    Parameters
    ----------
    dq_out : array of shape [*b, s, h, d] or None
        Gradient of q_out; dtype of `q`. None counts as zeros.
    dk_out : array of shape [*b, s, g, d] or None
        Gradient of k_out; dtype of `q`. None counts as zeros.
    q : array of shape [*b, s, h, d]
    k : array of shape [*b, s, g, d]
    q_weight : array of shape [d]
    k_weight : array of shape [d]
    cos : array of shape [*b, s, rotary_dim/2] or [*b, s, rotary_dim], optional
    sin : array of shape [*b, s, rotary_dim/2] or [*b, s, rotary_dim], optional
    positions : array of shape [s] or [*b, s], optional
    **dispatch
        As in `qk_norm_rope`.
    eps, offset, casting, base, interleaved, rotary_dim
        As in `qk_norm_rope`.

    Returns
    -------
    dq, dk, dq_weight, dk_weight : arrays of shapes [*b, s, h, d], [*b, s, g, d], [d] and [d]
        dtype of `q`, in the layouts of a dense `q` and `k`; dtype of the weights.

    Raises
    ------
    TypeError, ValueError
        As `qk_norm_rope`; cotangents of other shapes than `q` and `k`.

    Notes
    -----
    The roots are computed from `q` and `k` again: nothing else was saved. With
    ``casting="before_weight"`` the rounding counts as the identity in dq and dk. Sums over heads
    and positions are kept in the accumulate dtype and rounded once, in an order that the shapes
    alone decide. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> q, k, w = np.asarray([[[3.0, -3.0]]]), np.ones((1, 1, 2)), np.asarray([2.0, 2.0])
    >>> dq_out, dk_out = np.asarray([[[1.0, 0.0]]]), np.zeros((1, 1, 2))
    >>> dq, dk, dq_weight, dk_weight = bc.qk_norm_rope_backward(dq_out, dk_out, q, k, w, w)
    >>> dq.round(4), dq_weight.round(4)
    (array([[[0.3333, 0.3333]]]), array([1., 0.]))
    """
    size: Any = rotary_dim
    angles = _angles(q, cos, sin, positions, base, interleaved, size)

    def pulled(dy: Array, x: Array, weight: Array) -> tuple[Array, ...]:
        back = rotation.turned(dy, angles, interleaved, size, back=True)
        return norms.rms_norm_backward(back, x, weight, eps, offset, casting)

    (dq, dq_weight), (dk, dk_weight) = pulled(dq_out, q, q_weight), pulled(dk_out, k, k_weight)
    return dq, dk, dq_weight, dk_weight
