"""Divergences of a linear layer's outputs from the likeliest classes of a teacher.

Composites of other ops, as `linear_kl_div` is one: chunks of rows go through the caller's own
matrix products and through `topk_kl_div_with_logits`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Unpack

from baracuda.calls.op import op, registry
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case
from baracuda.declaration.values import choice, optional, sizes
from baracuda.families.chunks import Chunk, Rows, differentiated
from baracuda.families.composites import over_logits
from baracuda.families.divergences import OPTIONS, SCALARS, TAUGHT, WEIGHT, number
from baracuda.families.losses import COTANGENT, LOSS
from baracuda.libraries import A, Array

__all__ = ["linear_topk_kl_div", "linear_topk_kl_div_backward", "linear_topk_kl_div_with_gradient"]

_ROLES = {**TAUGHT, **WEIGHT}
_SUMMED = {**_ROLES, "dweight": roles.total()}

_linear = partial(
    op,
    category="cross_entropy",
    dtypes=FLOATS,
    options={
        "reduction": OPTIONS["reduction"],
        "chunk": optional(lambda op, name, value: sizes(1)(op, name, value)[0]),
        "mode": choice("raise", "drop"),
    },
    scalars={"temperature": SCALARS["temperature"]},
    products=True,
    composite=True,
    cases=(
        Case({"b": (5,), "d": 4, "v": 9, "k": 3}, chunk=3, temperature=2.0),
        Case({"b": (2, 3), "d": 3, "v": 7, "k": 2}, reduction="none", mode="drop"),
    ),
)


class _Student:
    """A student's rows, and the likeliest classes of its teacher."""

    def __init__(self, arrays: tuple[Any, ...], chunk: int | None, mode: str, temperature: Any):
        hidden, weight, ids, probs, row_weight = arrays
        self.rows = rows = Rows(hidden, weight, row_weight, None, chunk)
        flat = (*rows.hidden.shape[:-1], ids.shape[-1])
        self.taught = [rows.xp.reshape(x, flat) for x in (ids, probs)]
        self.options = {"temperature": temperature, "reduction": "none", "mode": mode}

    def _at(self, chunk: Chunk) -> tuple[Array, ...]:
        """What the teacher says of a chunk."""
        return tuple([x[chunk.rows, ...] for x in self.taught])

    def losses(self, chunk: Chunk) -> Array:
        given = chunk.logits, *self._at(chunk), chunk.numbers
        return registry["topk_kl_div_with_logits"](*given, **self.options)

    def both(self, chunk: Chunk) -> tuple[Array, Array]:
        """The losses of a chunk, and their slopes."""
        name = "topk_kl_div_with_logits_with_gradient"
        return over_logits(self.rows, name, chunk, self._at(chunk), self.options)

    def gradients(self, dloss: Array | None, reduction: str) -> tuple[Array, ...]:
        """The loss, and the gradients for a cotangent, of 1 if there is none."""
        count = number(self.rows, reduction)
        return differentiated(self.rows, self.both, dloss, reduction, count)


_ARRAYS = "hidden[*b d], weight[v d], teacher_ids[*b k], teacher_probs[*b k]"


@_linear(
    f"{_ARRAYS} -> loss[*b] if reduction=none",
    f"{_ARRAYS} -> loss[] if reduction!=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[*b] if reduction=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[] if reduction!=none",
    roles={**_ROLES, **LOSS},
)
def linear_topk_kl_div(
    hidden: A,
    weight: Array,
    teacher_ids: Array,
    teacher_probs: Array,
    row_weight: Array | None = None,
    /,
    *,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    chunk: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Forward divergence of ``hidden @ weight.T`` from the k likeliest classes of a teacher.

    With s the softmax of ``logits / temperature`` over all classes, and t the teacher's
    probabilities, a row costs ``sum(t * log(t / s[ids]))`` over its k classes.

    Parameters
    ----------
    hidden : array of shape [*b, d]
        Hidden states of the student, before its last layer. Any floating dtype.
    weight : array of shape [v, d]
        That layer: dtype of `hidden`.
    teacher_ids : array of shape [*b, k]
        The teacher's classes of each row: int32 or int64, ``0 <= teacher_ids < v``. A class that
        a row has twice costs twice.
    teacher_probs : array of shape [*b, k]
        Their probabilities, not below 0, at the teacher's own temperature: of the dtype of
        `hidden`, or float32 beside 16 bits. They need not sum up to 1. One of 0 costs 0.
    row_weight : array of shape [*b], optional
        Weight of each row, 1 by default: dtype of `teacher_probs`. Rows of weight 0 cost exactly 0,
        also where their logits are NaN.
    temperature : float
        Above 0: the student's logits are divided by it. A run-time value.
    reduction : {"mean", "sum", "none"}
        The sum of the losses, each times its `row_weight`, by that of the weights, the sum alone,
        or the loss of each row.
    chunk : int, optional
        Rows of which there are logits at once. By default as many as have 2**28 of them.
    mode : {"raise", "drop"}
        What a class out of range does, as in `gather`: raise, or cost 0.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*b]
        float32 of 16-bit inputs, else their dtype.

    Raises
    ------
    IndexError
        A class out of range under ``mode="raise"``; names the first and its position. On a GPU the
        late error names `topk_kl_div_with_logits`, and counts from the first row of the chunk.
    TypeError
        `teacher_ids` neither int32 nor int64; mixed libraries, devices or dtypes.
    ValueError
        Shapes that do not fit, an option out of its range.

    Notes
    -----
    The truncated forward divergence of offline distillation. Reverse and Jensen-Shannon kinds take
    what a teacher says of every class: `linear_kl_div` has them. Takes the memory of a chunk's
    logits beside its operands, and what `topk_kl_div_with_logits` needs for these. Products are
    those of the caller's library, and logits are in the dtype of `hidden`; losses and sums are kept
    in float32 for 16 bits. Deterministic where those products are, but not bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight = np.ones((3, 4)), np.zeros((2, 4))
    >>> ids, probs = np.asarray([[1], [0], [1]]), np.asarray([[0.5], [0.5], [1.0]])
    >>> bc.linear_topk_kl_div(hidden, weight, ids, probs, reduction="none").round(6)
    array([0.      , 0.      , 0.693147])
    """
    arrays = hidden, weight, teacher_ids, teacher_probs, row_weight
    student = _Student(arrays, chunk, mode, temperature)
    losses = [student.losses(part) for part in student.rows.chunks()]
    return student.rows.reduced(losses, reduction, number(student.rows, reduction))


@_linear(
    f"dloss[*b], {_ARRAYS} -> dhidden[*b d], dweight[v d] if reduction=none",
    f"dloss[], {_ARRAYS} -> dhidden[*b d], dweight[v d] if reduction!=none",
    f"dloss[*b], {_ARRAYS}, row_weight[*b] -> dhidden[*b d], dweight[v d] if reduction=none",
    f"dloss[], {_ARRAYS}, row_weight[*b] -> dhidden[*b d], dweight[v d] if reduction!=none",
    adjoint_of="linear_topk_kl_div",
    roles={**_SUMMED, **COTANGENT},
)
def linear_topk_kl_div_backward(
    dloss: Array,
    hidden: A,
    weight: Array,
    teacher_ids: Array,
    teacher_probs: Array,
    row_weight: Array | None = None,
    /,
    *,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    chunk: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Gradients of `linear_topk_kl_div` to the student's arrays, from logits computed again.

    Along a row's logits it is ``dloss * (s * sum(t) - t) / temperature``, t being 0 of classes
    that are not the teacher's.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result: dtype of `hidden`, or float32 beside 16 bits.
    hidden, weight : arrays of shape [*b, d] and [v, d]
        Those of the student. Any floating dtype.
    teacher_ids, teacher_probs : arrays of shape [*b, k]
        The teacher's classes, int32 or int64, and their probabilities, of the dtype of `hidden` or
        float32 beside 16 bits.
    row_weight : array of shape [*b], optional
        Weight of each row: dtype of `teacher_probs`.
    temperature, reduction, chunk, mode, **dispatch
        As in `linear_topk_kl_div`.

    Returns
    -------
    dhidden, dweight : arrays of shape [*b, d] and [v, d]
        dtype of `hidden`.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `linear_topk_kl_div`; `dloss` of another shape than the result.

    Notes
    -----
    Takes, beside the memory of the forward, that of `weight` in float32, where its gradient is
    added up. Gradients of a chunk's logits take the place of these, and are rounded once in 16
    bits, `dhidden` at most twice, `dweight` once, and not at all into a float32 `out`.
    Deterministic where the library's products are.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight = np.ones((1, 1)), np.zeros((2, 1))
    >>> taught = np.asarray([[1]]), np.asarray([[0.75]])
    >>> bc.linear_topk_kl_div_backward(np.asarray(1.0), hidden, weight, *taught)[1]
    array([[ 0.375],
           [-0.375]])
    """
    arrays = hidden, weight, teacher_ids, teacher_probs, row_weight
    return _Student(arrays, chunk, mode, temperature).gradients(dloss, reduction)[1:]


@_linear(
    f"{_ARRAYS} -> loss[*b], dhidden[*b d], dweight[v d] if reduction=none",
    f"{_ARRAYS} -> loss[], dhidden[*b d], dweight[v d] if reduction!=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[*b], dhidden[*b d], dweight[v d] if reduction=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[], dhidden[*b d], dweight[v d] if reduction!=none",
    ahead_of="linear_topk_kl_div",
    roles={**_SUMMED, **LOSS},
)
def linear_topk_kl_div_with_gradient(
    hidden: A,
    weight: Array,
    teacher_ids: Array,
    teacher_probs: Array,
    row_weight: Array | None = None,
    /,
    *,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    chunk: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A, A]:
    """`linear_topk_kl_div` and its gradients for a cotangent of 1, each logit computed once.

    Parameters
    ----------
    hidden, weight : arrays of shape [*b, d] and [v, d]
        Those of the student. Any floating dtype.
    teacher_ids, teacher_probs : arrays of shape [*b, k]
        The teacher's classes, int32 or int64, and their probabilities, of the dtype of `hidden` or
        float32 beside 16 bits.
    row_weight : array of shape [*b], optional
        Weight of each row: dtype of `teacher_probs`.
    temperature, reduction, chunk, mode, **dispatch
        As in `linear_topk_kl_div`.

    Returns
    -------
    loss : array of shape [] or, with ``reduction="none"``, [*b]
        float32 of 16-bit inputs, else their dtype.
    dhidden, dweight : arrays of shape [*b, d] and [v, d]
        dtype of `hidden`.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `linear_topk_kl_div`.

    Notes
    -----
    Three matrix products where the forward and the gradient apart take four; memory and roundings
    as in `linear_topk_kl_div_backward`. Deterministic where the library's products are.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight = np.ones((1, 1)), np.zeros((2, 1))
    >>> taught = np.asarray([[1]]), np.asarray([[0.75]])
    >>> loss, _, dweight = bc.linear_topk_kl_div_with_gradient(hidden, weight, *taught)
    >>> loss.round(6), dweight
    (np.float64(0.304099), array([[ 0.375],
           [-0.375]]))
    """
    arrays = hidden, weight, teacher_ids, teacher_probs, row_weight
    return _Student(arrays, chunk, mode, temperature).gradients(None, reduction)
