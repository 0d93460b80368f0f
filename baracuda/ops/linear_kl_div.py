"""Divergences of the outputs of two linear layers, which never lie in memory all at once.

Composites of other ops: chunks of rows go through the caller's own matrix products, for the student
and for the teacher, and through `kl_div_with_logits`. The products are in the storage dtype, and so
are the logits of a chunk.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Unpack

from baracuda.calls.op import op, registry
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case
from baracuda.declaration.values import optional, sizes
from baracuda.families.chunks import Chunk, Rows, differentiated
from baracuda.families.composites import over_logits
from baracuda.families.divergences import OPTIONS, SCALARS, WEIGHT, number
from baracuda.families.losses import COTANGENT, LOSS
from baracuda.libraries import A, Array

__all__ = ["linear_kl_div", "linear_kl_div_backward", "linear_kl_div_with_gradient"]

# Of a chunk: there are twice as many as of one layer, and their logarithms in float32.
_LOGITS = 1 << 27
_SUMMED = {**WEIGHT, "dweight": roles.total()}

_linear = partial(
    op,
    category="cross_entropy",
    dtypes=FLOATS,
    options={**OPTIONS, "chunk": optional(lambda op, name, value: sizes(1)(op, name, value)[0])},
    scalars=SCALARS,
    products=True,
    composite=True,
    cases=(
        Case({"b": (5,), "d": 4, "e": 3, "v": 9}, chunk=3, temperature=2.0),
        Case({"b": (2, 3), "d": 3, "e": 5, "v": 7}, kind="jsd", beta=0.3, reduction="none"),
    ),
)


class _Pair:
    """A student's rows and those of its teacher, cut into the same chunks."""

    def __init__(self, arrays: tuple[Array, ...], chunk: int | None, options: dict[str, Any]):
        hidden, weight, teacher_hidden, teacher_weight, row_weight = arrays
        self.rows = Rows(hidden, weight, row_weight, None, chunk, logits=_LOGITS)
        self.teacher = Rows(teacher_hidden, teacher_weight, None, None, self.rows.chunk)
        self.options = {**options, "reduction": "none"}

    def losses(self, chunk: Chunk) -> Array:
        taught = self.teacher.at(chunk.first).logits
        return registry["kl_div_with_logits"](chunk.logits, taught, chunk.numbers, **self.options)

    def both(self, chunk: Chunk) -> tuple[Array, Array]:
        """The losses of a chunk, and their slopes."""
        taught = self.teacher.at(chunk.first).logits
        name = "kl_div_with_logits_with_gradient"
        return over_logits(self.rows, name, chunk, (taught,), self.options)

    def gradients(self, dloss: Array | None, reduction: str) -> tuple[Array, ...]:
        """The loss, and the gradients for a cotangent, of 1 if there is none."""
        count = number(self.rows, reduction)
        return differentiated(self.rows, self.both, dloss, reduction, count)


_ARRAYS = "hidden[*b d], weight[v d], teacher_hidden[*b e], teacher_weight[v e]"


@_linear(
    f"{_ARRAYS} -> loss[*b] if reduction=none",
    f"{_ARRAYS} -> loss[] if reduction!=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[*b] if reduction=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[] if reduction!=none",
    roles={**WEIGHT, **LOSS},
)
def linear_kl_div(
    hidden: A,
    weight: Array,
    teacher_hidden: Array,
    teacher_weight: Array,
    row_weight: Array | None = None,
    /,
    *,
    kind: Literal["forward", "reverse", "jsd"] = "forward",
    beta: float = 0.5,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    chunk: int | None = None,
    **dispatch: Unpack[Dispatch],
) -> A:
    """Divergence of ``hidden @ weight.T`` from a teacher's logits, a chunk of rows at a time.

    Parameters
    ----------
    hidden : array of shape [*b, d]
        Hidden states of the student, before its last layer. Any floating dtype.
    weight : array of shape [v, d]
        That layer: dtype of `hidden`.
    teacher_hidden : array of shape [*b, e]
        Hidden states of the teacher, before its last layer: dtype of `hidden`.
    teacher_weight : array of shape [v, e]
        That layer: dtype of `hidden`.
    row_weight : array of shape [*b], optional
        Weight of each row, 1 by default: of the dtype of `hidden`, or float32 beside 16 bits. Rows
        of weight 0 cost exactly 0, also where their logits are NaN.
    kind, beta, temperature, reduction
        As in `kl_div_with_logits`.
    chunk : int, optional
        Rows of which there are logits at once. By default as many as have 2**27 of each model.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*b]
        float32 of 16-bit inputs, else their dtype.

    Raises
    ------
    TypeError, ValueError
        As `kl_div_with_logits`.

    Notes
    -----
    Takes the memory of a chunk's logits of both models, in the dtype of `hidden`, and of what
    `kl_div_with_logits` needs for these, beside its operands. Products are those of the caller's
    library, at its settings. torch and JAX add 16-bit products in float32; NumPy, CuPy and others
    compute them in float32 from widened copies. Logits of 16 bits are rounded once. Losses and sums
    are kept in float32. Deterministic where those products are, but not bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight = np.ones((3, 4)), np.zeros((2, 4))
    >>> teacher_hidden, teacher_weight = np.ones((3, 1)), np.log([[0.25], [0.75]])
    >>> loss = bc.linear_kl_div(hidden, weight, teacher_hidden, teacher_weight)
    >>> loss.round(6)
    np.float64(0.130812)
    """
    arrays = hidden, weight, teacher_hidden, teacher_weight, row_weight
    pair = _Pair(arrays, chunk, {"kind": kind, "beta": beta, "temperature": temperature})
    losses = [pair.losses(part) for part in pair.rows.chunks()]
    return pair.rows.reduced(losses, reduction, number(pair.rows, reduction))


@_linear(
    f"dloss[*b], {_ARRAYS} -> dhidden[*b d], dweight[v d] if reduction=none",
    f"dloss[], {_ARRAYS} -> dhidden[*b d], dweight[v d] if reduction!=none",
    f"dloss[*b], {_ARRAYS}, row_weight[*b] -> dhidden[*b d], dweight[v d] if reduction=none",
    f"dloss[], {_ARRAYS}, row_weight[*b] -> dhidden[*b d], dweight[v d] if reduction!=none",
    adjoint_of="linear_kl_div",
    roles={**_SUMMED, **COTANGENT},
)
def linear_kl_div_backward(
    dloss: Array,
    hidden: A,
    weight: Array,
    teacher_hidden: Array,
    teacher_weight: Array,
    row_weight: Array | None = None,
    /,
    *,
    kind: Literal["forward", "reverse", "jsd"] = "forward",
    beta: float = 0.5,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    chunk: int | None = None,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A]:
    """Gradients of `linear_kl_div` to the student's arrays, from logits that are computed again.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result: dtype of `hidden`, or float32 beside 16 bits.
    hidden, weight : arrays of shape [*b, d] and [v, d]
        Those of the student. Any floating dtype.
    teacher_hidden, teacher_weight : arrays of shape [*b, e] and [v, e]
        Those of the teacher: dtype of `hidden`.
    row_weight : array of shape [*b], optional
        Weight of each row: of the dtype of `hidden`, or float32 beside 16 bits.
    kind, beta, temperature, reduction, chunk, **dispatch
        As in `linear_kl_div`.

    Returns
    -------
    dhidden, dweight : arrays of shape [*b, d] and [v, d]
        dtype of `hidden`.

    Raises
    ------
    TypeError, ValueError
        As `linear_kl_div`; `dloss` of another shape than the result.

    Notes
    -----
    Takes, beside the memory of the forward, that of `weight` in float32, where its gradient is
    added up. Gradients of a chunk's logits take the place of these. In 16 bits the gradients of
    logits are rounded once, `dhidden` at most twice, and `dweight` once. A float32 `out` is not
    rounded. Deterministic where the library's products are.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight = np.ones((3, 1)), np.zeros((2, 1))
    >>> teacher = np.ones((3, 1)), np.log([[0.25], [0.75]])
    >>> bc.linear_kl_div_backward(np.asarray(1.0), hidden, weight, *teacher)[1]
    array([[ 0.25],
           [-0.25]])
    """
    arrays = hidden, weight, teacher_hidden, teacher_weight, row_weight
    pair = _Pair(arrays, chunk, {"kind": kind, "beta": beta, "temperature": temperature})
    return pair.gradients(dloss, reduction)[1:]


@_linear(
    f"{_ARRAYS} -> loss[*b], dhidden[*b d], dweight[v d] if reduction=none",
    f"{_ARRAYS} -> loss[], dhidden[*b d], dweight[v d] if reduction!=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[*b], dhidden[*b d], dweight[v d] if reduction=none",
    f"{_ARRAYS}, row_weight[*b] -> loss[], dhidden[*b d], dweight[v d] if reduction!=none",
    ahead_of="linear_kl_div",
    roles={**_SUMMED, **LOSS},
)
def linear_kl_div_with_gradient(
    hidden: A,
    weight: Array,
    teacher_hidden: Array,
    teacher_weight: Array,
    row_weight: Array | None = None,
    /,
    *,
    kind: Literal["forward", "reverse", "jsd"] = "forward",
    beta: float = 0.5,
    temperature: float = 1.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    chunk: int | None = None,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A, A]:
    """`linear_kl_div` and its gradients for a cotangent of 1, each logit computed once.

    Parameters
    ----------
    hidden, weight : arrays of shape [*b, d] and [v, d]
        Those of the student. Any floating dtype.
    teacher_hidden, teacher_weight : arrays of shape [*b, e] and [v, e]
        Those of the teacher: dtype of `hidden`.
    row_weight : array of shape [*b], optional
        Weight of each row: of the dtype of `hidden`, or float32 beside 16 bits.
    kind, beta, temperature, reduction, chunk, **dispatch
        As in `linear_kl_div`.

    Returns
    -------
    loss : array of shape [] or, with ``reduction="none"``, [*b]
        float32 of 16-bit inputs, else their dtype.
    dhidden, dweight : arrays of shape [*b, d] and [v, d]
        dtype of `hidden`.

    Raises
    ------
    TypeError, ValueError
        As `linear_kl_div`.

    Notes
    -----
    Four matrix products where the forward and the gradient apart take six; memory and roundings as
    in `linear_kl_div_backward`. For training steps without an autograd engine. Deterministic where
    the library's products are.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight = np.ones((3, 1)), np.zeros((2, 1))
    >>> teacher = np.ones((3, 1)), np.log([[0.25], [0.75]])
    >>> loss, _, dweight = bc.linear_kl_div_with_gradient(hidden, weight, *teacher)
    >>> loss.round(6), dweight
    (np.float64(0.130812), array([[ 0.25],
           [-0.25]]))
    """
    arrays = hidden, weight, teacher_hidden, teacher_weight, row_weight
    pair = _Pair(arrays, chunk, {"kind": kind, "beta": beta, "temperature": temperature})
    return pair.gradients(None, reduction)
