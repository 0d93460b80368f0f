"""Divergences of a linear layer's outputs from the likeliest classes of a teacher.

Composites of other ops, as `linear_kl_div` is one: the logits of all rows never lie in memory at
once. What a teacher says of the other classes is not stored, so there is the forward kind alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple, Unpack

from baracuda.calls.op import op, registry
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case
from baracuda.declaration.values import choice, optional, sizes
from baracuda.families.chunks import Chunk, Rows, differentiated
from baracuda.families.composites import run
from baracuda.families.divergences import OPTIONS, SCALARS, WEIGHT, log_softmax, number
from baracuda.families.losses import COTANGENT, LOSS
from baracuda.families.numerics import has_slopes
from baracuda.libraries import A, Array

__all__ = ["linear_topk_kl_div", "linear_topk_kl_div_backward", "linear_topk_kl_div_with_gradient"]

_ROLES = {
    "teacher_ids": roles.index("v"), "teacher_probs": roles.parameter(0.05, 0.3), **WEIGHT,
}  # fmt: skip
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


class _Taught(NamedTuple):
    """What a chunk knows of its teacher; the last axis is that of the teacher's classes.

    Attributes
    ----------
    ids
        As they were given.
    valid
        Which of them are classes.
    probs
        0 where they are not.
    weight
        Of each row, with an axis of extent 1; or None.
    """

    ids: Array
    valid: Array
    probs: Array
    weight: Array | None


class _Student:
    """A student's rows, and the likeliest classes of its teacher."""

    def __init__(self, arrays: tuple[Any, ...], chunk: int | None, mode: str, temperature: Any):
        hidden, weight, ids, probs, row_weight = arrays
        self.rows = rows = Rows(hidden, weight, row_weight, None, chunk)
        flat = (*rows.hidden.shape[:-1], ids.shape[-1])
        self.ids, self.probs = (rows.xp.reshape(x, flat) for x in (ids, probs))
        self.mode, self.temperature = mode, temperature
        # Kernels that others have, and entries that are written over.
        self.plain = rows.plain and rows.may_write(probs) and 0 not in (ids.shape[-1], rows.extent)

    def taught(self, chunk: Chunk) -> _Taught:
        rows, xp = self.rows, self.rows.xp
        ids, weight = self.ids[chunk.rows, ...], chunk.numbers
        valid = (ids >= 0) & (ids < rows.extent)
        probs = xp.where(valid, rows.widened(self.probs[chunk.rows, ...]), 0)
        if weight is not None:
            weight = xp.expand_dims(rows.widened(weight), axis=-1)
        return _Taught(ids, valid, probs, weight)

    def losses(self, chunk: Chunk) -> Array:
        taught = self.taught(chunk)
        if self.plain:
            return self._cost(taught, self._known(chunk, taught)[1])
        return self._cost(taught, self._picked(self._logs(chunk, taught), taught))

    def both(self, chunk: Chunk) -> tuple[Array, Array]:
        """The losses of a chunk, and their slopes, which may take the place of its logits."""
        taught, rows, xp = self.taught(chunk), self.rows, self.rows.xp
        if self.plain:
            target, logs = self._known(chunk, taught)
            return self._cost(taught, logs), self._over(chunk, taught, target, logs)
        logs = self._logs(chunk, taught)
        hits = registry["gather_backward"](
            taught.probs, taught.ids, axis=-1, src_shape=logs.shape, mode="drop"
        )
        mass = xp.sum(taught.probs, axis=-1, keepdims=True)
        slopes = self._scaled(taught, xp.exp(logs) * mass - hits)
        return self._cost(taught, self._picked(logs, taught)), rows.narrowed(slopes)

    def gradients(self, dloss: Array | None, reduction: str) -> tuple[Array, ...]:
        """The loss, and the gradients for a cotangent, of 1 if there is none."""
        count = number(self.rows, reduction)
        return differentiated(self.rows, self.both, dloss, reduction, count)

    def _logs(self, chunk: Chunk, taught: _Taught) -> Array:
        """Logarithms of the student's probabilities, of all classes."""
        logits = self.rows.widened(chunk.logits)
        if taught.weight is not None and has_slopes(logits):
            # NaN in rows that do not count is not to meet a slope of 0.
            logits = self.rows.xp.where(taught.weight != 0, logits, 0)
        return log_softmax(logits, self.temperature)

    def _picked(self, of: Array, taught: _Taught) -> Array:
        """Those of the teacher's classes."""
        return registry["gather"](of, taught.ids, axis=-1, mode=self.mode)

    def _cost(self, taught: _Taught, logs: Array) -> Array:
        """The loss of each row, times its weight."""
        xp, none = self.rows.xp, taught.probs == 0
        own = xp.log(xp.where(none, 1, taught.probs)) - xp.where(none, 0, logs)
        losses = xp.sum(taught.probs * own, axis=-1)
        if taught.weight is None:
            return losses
        weight = xp.squeeze(taught.weight, axis=-1)
        return xp.where(weight == 0, 0, losses * weight)

    def _scaled(self, taught: _Taught, slopes: Array) -> Array:
        if taught.weight is None:
            return slopes / self.temperature
        scaled = slopes * (taught.weight / self.temperature)
        return self.rows.xp.where(taught.weight == 0, 0, scaled)

    def _options(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature, "softcap": 0.0, "ignore_index": -1, "mode": "drop",
        }  # fmt: skip

    def _known(self, chunk: Chunk, taught: _Taught) -> tuple[Array, Array]:
        """The student's likeliest of the teacher's classes, and logarithms of all of these.

        Of one class a kernel finds it; of the others it is that, and how far below its logit
        theirs are.
        """
        xp = self.rows.xp
        options = {"axis": -1, "mode": self.mode}
        x = self.rows.widened(run("gather", (chunk.logits, taught.ids), None, options))
        likely = xp.where(taught.valid, x, -xp.inf)
        first = xp.argmax(likely, axis=-1, keepdims=True)
        target = xp.squeeze(xp.take_along_axis(taught.ids, first, axis=-1), axis=-1)
        options = {**self._options(), "entropy": False}
        log = run("log_prob", (chunk.logits, target), None, options)
        most = xp.take_along_axis(x, first, axis=-1)
        # What is no class takes the place of the likeliest, and its slope.
        below = xp.where(taught.valid & (x != most), x - most, 0) / self.temperature
        return target, xp.expand_dims(log, axis=-1) + below

    def _over(self, chunk: Chunk, taught: _Taught, target: Array, logs: Array) -> Array:
        """The slopes in the place of the logits.

        A kernel writes them as if `target` were the only class of the teacher, and then those of
        the teacher's classes are written over: each is rounded once.
        """
        rows, xp = self.rows, self.rows.xp
        mass = xp.sum(taught.probs, axis=-1, keepdims=True)
        pull = -mass if taught.weight is None else -mass * taught.weight
        given = xp.squeeze(pull, axis=-1), None, chunk.logits, target
        slopes = run("log_prob_backward", given, (chunk.logits,), self._options())
        at = xp.where(taught.valid, taught.ids, xp.expand_dims(target, axis=-1))
        # A row without a class has slopes of 0, also at its first.
        at = xp.where((at >= 0) & (at < rows.extent), at, 0)
        same = xp.expand_dims(at, axis=-1) == xp.expand_dims(at, axis=-2)
        hits = xp.sum(xp.where(same, xp.expand_dims(taught.probs, axis=-2), 0), axis=-1)
        exact = self._scaled(taught, xp.exp(logs) * mass - hits)
        return rows.library.put(slopes, at, rows.narrowed(exact), slopes.ndim - 1)


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
        A class out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `teacher_ids` neither int32 nor int64; mixed libraries, devices or dtypes.
    ValueError
        Shapes that do not fit, an option out of its range.

    Notes
    -----
    The truncated forward divergence of offline distillation. Reverse and Jensen-Shannon kinds take
    what a teacher says of every class: `linear_kl_div` has them. Takes the memory of a chunk's
    logits beside its operands, and of k**2 numbers of each of its rows. Products are those of the
    caller's library, and logits are in the dtype of `hidden`; losses and sums are kept in float32
    for 16 bits. Deterministic where those products are, but not bit-stable.

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
