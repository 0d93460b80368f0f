"""Cross entropy of a linear layer's outputs, which never lie in memory all at once.

Composites of other ops: chunks of rows go through the caller's own matrix product and the fused
cross entropy. The products are in the storage dtype, and so are the logits of a chunk.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, Unpack, cast

from baracuda.calls.op import op, registry
from baracuda.declaration import roles
from baracuda.declaration.collective import Collective, Part
from baracuda.declaration.dispatch import NAMES, Dispatch
from baracuda.declaration.dtypes import FLOATS, name_of, named
from baracuda.declaration.spec import Case
from baracuda.declaration.values import between, choice, flag, integer, optional, positive, sizes
from baracuda.families import vocabulary
from baracuda.families.chunks import Gradients, Rows, differentiated
from baracuda.families.composites import run
from baracuda.families.losses import COTANGENT, LOSS, METRICS, measured
from baracuda.families.numerics import are_narrow
from baracuda.libraries import A, Array

__all__ = [
    "linear_cross_entropy",
    "linear_cross_entropy_backward",
    "linear_cross_entropy_with_gradient",
]

_ROLES = {"target": roles.index("v", ignored="ignore_index")}
_SUMMED = {**_ROLES, "dweight": roles.total(), "dbias": roles.total()}

_OPTIONS = {
    "ignore_index": integer,
    "reduction": choice("mean", "sum", "none"),
    "chunk": optional(lambda op, name, value: sizes(1)(op, name, value)[0]),
    "mode": choice("raise", "drop"),
    "grad_dtype": choice("accumulate", "weight"),
}
_CASES = (
    Case({"b": (5,), "d": 4, "v": 9}, chunk=3, z_loss=0.01, softcap=2.0),
    Case({"b": (2, 3), "d": 3, "v": 7}, reduction="none", label_smoothing=0.1),
)
_MEASURED = {**_OPTIONS, "metrics": flag}
_MEASURED_CASES = (
    *_CASES,
    Case({"b": (5,), "d": 4, "v": 9}, chunk=3, metrics=True),
    Case({"b": (2, 2), "d": 3, "v": 7}, reduction="none", metrics=True),
)

_linear = partial(
    op,
    category="cross_entropy",
    dtypes=FLOATS,
    scalars={
        "label_smoothing": between(0, 1),
        "z_loss": positive(zero=True),
        "softcap": positive(zero=True),
    },
    products=True,
    composite=True,
)


def _number(rows: Rows, ignore_index: int) -> Array:
    """How many rows count."""
    xp, target = rows.xp, rows.numbers
    counts = (target >= 0) & (target < rows.extent)
    if 0 <= ignore_index < rows.extent:
        counts = counts & rows.library.differs(target, ignore_index)
    return xp.astype(xp.sum(xp.astype(counts, xp.int32)), rows.wide)


def _in_place(
    rows: Rows,
    logits: Array,
    target: Array,
    dloss: Array | None,
    reduction: str,
    options: dict[str, Any],
) -> tuple[Array, ...]:
    """The loss, metrics if any, and the gradients of logits, which take their place if they can."""
    options, name = {**options, "reduction": reduction}, "cross_entropy_with_gradient"
    given = (logits, target) if dloss is None else (logits, target, None, dloss)
    if rows.part is not None:
        axis = logits.ndim - 1
        return vocabulary.cross_entropy_with_gradient(rows.part, *given, axis=axis, **options)
    if not rows.plain:
        return registry[name](*given, **options)
    shape = target.shape if reduction == "none" else ()
    kind = named(name_of(logits.dtype)).accumulate
    empty = partial(rows.library.empty, like=logits, strides=None)
    outs = [empty(shape, kind)]
    if options.get("metrics"):
        outs += [empty(shape, kind), empty(target.shape, rows.library.held_as("int64"))]
    return run(name, given, (*outs, logits), options)


def _at_once(
    rows: Rows, dloss: Array | None, reduction: str, options: dict[str, Any]
) -> tuple[Any, ...]:
    """As `_all`, of a reduced loss: what it is multiplied with is already in the slopes."""
    xp, number, share = rows.xp, None, dloss
    if reduction == "mean" and not rows.whole:
        # The count of all chunks, which none of them has.
        number, reduction = _number(rows, options["ignore_index"]), "sum"
        # Where none counts the loss is NaN and the gradients are 0.
        share = xp.asarray(1 / rows.library.clip(number, 1, None))
        share = share if dloss is None else xp.asarray(rows.widened(dloss) * share)
    parts, gradients = list[tuple[Array, ...]](), Gradients(rows, narrow=are_narrow())
    for chunk in rows.chunks():
        slopes = chunk.logits
        if dloss is None:
            *found, slopes = _in_place(rows, slopes, chunk.numbers, share, reduction, options)
            parts.append(tuple(found))
        else:
            more = {**options, "reduction": reduction}
            given = share, slopes, chunk.numbers
            slopes = run("cross_entropy_backward", given, (slopes,), more)
        gradients.add(chunk, slopes)
        # Before there are logits of another chunk.
        del chunk, slopes
    if dloss is not None:
        return None, *gradients.found()
    return *rows.results(parts, "sum" if number is None else "mean", number), *gradients.found()


def _all(
    rows: Rows, dloss: Array | None, reduction: str, options: dict[str, Any]
) -> tuple[Any, ...]:
    """The loss, metrics if any, and the gradients for a cotangent, of 1 if there is none.

    Those of the weight and the bias are not rounded yet: a given output may keep them as they are.
    """
    # float16 has no room for slopes of a mean, nor for those of a loss that is scaled up.
    wide = reduction != "none" and name_of(rows.weight.dtype) != "float16"
    if rows.plain and wide and (dloss is None or rows.may_write(dloss)):
        return _at_once(rows, dloss, reduction, options)
    return differentiated(
        rows,
        lambda chunk: _in_place(rows, chunk.logits, chunk.numbers, None, "none", options),
        dloss,
        reduction,
        _number(rows, options["ignore_index"]) if reduction == "mean" else None,
    )


def _loss(rows: Rows, reduction: str, options: dict[str, Any]) -> Any:
    """The loss of all rows, or of each, and metrics if any."""
    name, options = "cross_entropy", {**options, "reduction": reduction if rows.whole else "none"}
    parts = list[Any]()
    if rows.whole:
        parts = [run(name, (rows.logits(), rows.numbers), None, options)]
        # These are reduced.
        number, reduction = None, "none" if reduction == "none" else "sum"
    else:
        number = _number(rows, options["ignore_index"]) if reduction == "mean" else None
    for some in () if parts else rows.chunks():
        logits, target = some.logits, some.numbers
        if rows.plain:
            parts.append(run(name, (logits, target), None, options))
        elif rows.part is not None:
            axis = logits.ndim - 1
            parts.append(vocabulary.cross_entropy(rows.part, logits, target, axis=axis, **options))
        else:
            parts.append(registry[name](logits, target, **options))
        # Before there are logits of another.
        del some, logits
    measured = options["metrics"]
    found = rows.results(parts if measured else [(x,) for x in parts], reduction, number)
    return found if measured else found[0]


def _of_part(
    part: Part, *arrays: Any, chunk: int | None, reduction: str, grad_dtype: str,
    gradients: bool = True, dloss: Array | None = None, **options: Any,
) -> Any:  # fmt: skip
    """As `_loss`, or `_all`, from a part of the classes: of the gradients what that part gives."""
    hidden, weight, target, bias = (*arrays, None)[:4]
    rounds = grad_dtype == "weight"
    rows = Rows(hidden, weight, target, bias, chunk, gradients, part=part, rounds=rounds)
    own = {name: x for name, x in options.items() if name not in NAMES}
    return _all(rows, dloss, reduction, own) if gradients else _loss(rows, reduction, own)


def _gradients_of_part(part: Part, dloss: Array, *arrays: Array, **options: Any) -> Any:
    return _of_part(part, *arrays, dloss=dloss, **options)[1:]


_collective = partial(Collective, "v", ("weight", "bias"))


@_linear(
    *measured(
        "hidden[*b d], weight[v d], target[*b] -> loss[*b] if reduction=none",
        "hidden[*b d], weight[v d], target[*b] -> loss[] if reduction!=none",
        "hidden[*b d], weight[v d], target[*b], bias[v] -> loss[*b] if reduction=none",
        "hidden[*b d], weight[v d], target[*b], bias[v] -> loss[] if reduction!=none",
        rows="*b",
    ),
    options=_MEASURED,
    roles={**_ROLES, **LOSS, **METRICS},
    cases=_MEASURED_CASES,
    collective=_collective(partial(_of_part, gradients=False)),
)
def linear_cross_entropy(
    hidden: A,
    weight: Array,
    target: Array,
    bias: Array | None = None,
    /,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    chunk: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    metrics: bool = False,
    grad_dtype: Literal["accumulate", "weight"] = "accumulate",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Cross entropy of ``hidden @ weight.T + bias``, a chunk of rows at a time.

    Parameters
    ----------
    hidden : array of shape [*b, d]
        Hidden states of a language model, before its last layer. Any floating dtype.
    weight : array of shape [v, d]
        That layer: dtype of `hidden`.
    target : array of shape [*b]
        The right class of each row: int32 or int64, ``0 <= target < v``.
    bias : array of shape [v], optional
        Added to the logits of each row, 0 by default: dtype of `hidden`.
    ignore_index, label_smoothing, z_loss, softcap, reduction, mode, metrics
        As in `cross_entropy`.
    chunk : int, optional
        Rows of which there are logits at once. By default as many as have 2**28 of them. Where
        gradients are asked for, 4,096 and d rows at least, and all where their logits take no
        more memory than a float32 `weight` and the logits of one chunk.
    grad_dtype : {"accumulate", "weight"}
        The dtype in which the gradient of `weight` is summed over chunks. "weight", the dtype of
        `weight`, saves a float32 array of its shape beside 16 bits, and rounds after each chunk:
        n chunks err by n/2 units in the last place at most, instead of 1/2. Then chunks are as
        where no gradients are asked for. No result of the forward depends on it.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [] or, with ``reduction="none"``, [*b]
        float32 of 16-bit inputs, else their dtype.
    accuracy, top : arrays of the shape of the loss and of [*b], with ``metrics=True``
        As of `cross_entropy`, of logits as they are rounded.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `cross_entropy`. On a GPU the late error of a target names `cross_entropy`, and counts
        its position from the first row of the chunk.

    Notes
    -----
    Takes the memory of a chunk's logits, in the dtype of `hidden`, beside its operands. Products
    are those of the caller's library, at its settings. torch and JAX add 16-bit products in
    float32; NumPy, CuPy and others compute them in float32 from widened copies. Logits of 16 bits
    are rounded once, after the bias. Losses and sums are kept in float32. Agrees with
    `torch.nn.functional.cross_entropy` of `torch.nn.functional.linear`. Deterministic where those
    products are, but not bit-stable.

    Under autograd a mean or a sum makes its gradients forward: three products in all. Recomputation
    adds one (a reentrant checkpoint), two (another) or three (in a program of torch.compile, and
    `jax.checkpoint`). `jax.jvp` takes three, as of the definition, and the memory of the gradients.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight = np.zeros((3, 4)), np.ones((2, 4))
    >>> bc.linear_cross_entropy(hidden, weight, np.asarray([0, 1, 1]))
    array(0.69314718)
    """
    options = {
        "ignore_index": ignore_index, "label_smoothing": label_smoothing, "z_loss": z_loss,
        "softcap": softcap, "mode": mode, "metrics": metrics,
    }  # fmt: skip
    # As in `cross_entropy`, for type checkers it is the loss.
    return cast("A", _loss(Rows(hidden, weight, target, bias, chunk), reduction, options))


@_linear(
    "dloss[*b], hidden[*b d], weight[v d], target[*b] -> dhidden[*b d], dweight[v d]"
    " if reduction=none",
    "dloss[], hidden[*b d], weight[v d], target[*b] -> dhidden[*b d], dweight[v d]"
    " if reduction!=none",
    "dloss[*b], hidden[*b d], weight[v d], target[*b], bias[v]"
    " -> dhidden[*b d], dweight[v d], dbias[v] if reduction=none",
    "dloss[], hidden[*b d], weight[v d], target[*b], bias[v]"
    " -> dhidden[*b d], dweight[v d], dbias[v] if reduction!=none",
    adjoint_of="linear_cross_entropy",
    options=_OPTIONS,
    roles={**_SUMMED, **COTANGENT},
    cases=_CASES,
    collective=_collective(_gradients_of_part),
)
def linear_cross_entropy_backward(
    dloss: Array,
    hidden: A,
    weight: Array,
    target: Array,
    bias: Array | None = None,
    /,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    chunk: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    grad_dtype: Literal["accumulate", "weight"] = "accumulate",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, ...]:
    """Gradients of `linear_cross_entropy`, from logits that are computed again.

    Parameters
    ----------
    dloss : array of the shape of the result
        Gradient of the result.
    hidden, weight, target, bias : arrays of shapes [*b, d], [v, d], [*b] and [v]
    ignore_index, label_smoothing, z_loss, softcap, reduction, chunk, mode, grad_dtype, **dispatch
        As in `linear_cross_entropy`.

    Returns
    -------
    dhidden, dweight, and dbias where `bias` was given : arrays of shape [*b, d], [v, d] and [v]
        dtype of `hidden`.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `linear_cross_entropy`; `dloss` of another shape than the result.

    Notes
    -----
    Takes the memory of a chunk's logits, whose gradients take their place. Several chunks also take
    that of `weight` in float32, where its gradient is added up. In 16 bits the gradients of logits
    are rounded once, `dhidden` at most twice, `dweight` and `dbias` once. A float32 `out` is not
    rounded. Deterministic as `linear_cross_entropy`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight = np.ones((1, 1)), np.asarray([[2.0], [2.0]])
    >>> bc.linear_cross_entropy_backward(np.asarray(1.0), hidden, weight, np.asarray([0]))
    (array([[0.]]), array([[-0.5],
           [ 0.5]]))
    """
    options = {
        "ignore_index": ignore_index, "label_smoothing": label_smoothing, "z_loss": z_loss,
        "softcap": softcap, "mode": mode,
    }  # fmt: skip
    rounds = grad_dtype == "weight"
    rows = Rows(hidden, weight, target, bias, chunk, gradients=True, rounds=rounds)
    return _all(rows, dloss, reduction, options)[1:]


@_linear(
    *measured(
        "hidden[*b d], weight[v d], target[*b]"
        " -> loss[*b], dhidden[*b d], dweight[v d] if reduction=none",
        "hidden[*b d], weight[v d], target[*b]"
        " -> loss[], dhidden[*b d], dweight[v d] if reduction!=none",
        "hidden[*b d], weight[v d], target[*b], bias[v]"
        " -> loss[*b], dhidden[*b d], dweight[v d], dbias[v] if reduction=none",
        "hidden[*b d], weight[v d], target[*b], bias[v]"
        " -> loss[], dhidden[*b d], dweight[v d], dbias[v] if reduction!=none",
        rows="*b",
    ),
    ahead_of="linear_cross_entropy",
    options=_MEASURED,
    roles={**_SUMMED, **LOSS, **METRICS},
    cases=_MEASURED_CASES,
    collective=_collective(_of_part),
)
def linear_cross_entropy_with_gradient(
    hidden: A,
    weight: Array,
    target: Array,
    bias: Array | None = None,
    /,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    reduction: Literal["mean", "sum", "none"] = "mean",
    chunk: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    metrics: bool = False,
    grad_dtype: Literal["accumulate", "weight"] = "accumulate",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, ...]:
    """`linear_cross_entropy` and its gradients for a cotangent of 1, each logit computed once.

    Parameters
    ----------
    hidden, weight, target, bias : arrays of shapes [*b, d], [v, d], [*b] and [v]
    ignore_index, label_smoothing, z_loss, softcap, reduction, chunk, mode, metrics, grad_dtype,
    **dispatch
        As in `linear_cross_entropy`.

    Returns
    -------
    loss : array of shape [] or, with ``reduction="none"``, [*b]
    accuracy, top : arrays, with ``metrics=True``
        As of `linear_cross_entropy`.
    dhidden, dweight, and dbias where `bias` was given : arrays of shape [*b, d], [v, d] and [v]
        dtype of `hidden`.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `linear_cross_entropy`.

    Notes
    -----
    Three matrix products where the forward and the gradient apart take four; memory and roundings
    as in `linear_cross_entropy_backward`. For training steps without an autograd engine.
    Deterministic where the library's products are.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight = np.ones((1, 1)), np.asarray([[2.0], [2.0]])
    >>> loss, _, dweight = bc.linear_cross_entropy_with_gradient(hidden, weight, np.asarray([0]))
    >>> loss, dweight
    (array(0.69314718), array([[-0.5],
           [ 0.5]]))
    """
    options = {
        "ignore_index": ignore_index, "label_smoothing": label_smoothing, "z_loss": z_loss,
        "softcap": softcap, "mode": mode, "metrics": metrics,
    }  # fmt: skip
    rounds = grad_dtype == "weight"
    rows = Rows(hidden, weight, target, bias, chunk, gradients=True, rounds=rounds)
    return _all(rows, None, reduction, options)
