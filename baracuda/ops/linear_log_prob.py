"""Log-probabilities and entropies of a linear layer's outputs, a chunk of rows at a time.

Composites of other ops, as `linear_cross_entropy` is one: the logits of all rows never lie in
memory at once.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple, Unpack

from baracuda.calls.op import op, registry
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS, name_of
from baracuda.declaration.spec import Case
from baracuda.declaration.values import flag, optional, sizes
from baracuda.families.chunks import Chunk, Gradients, Rows
from baracuda.families.composites import run
from baracuda.families.indexing import added, taken
from baracuda.families.log_probs import COTANGENTS, OPTIONS, RESULTS, SCALARS, TARGET
from baracuda.families.numerics import are_narrow
from baracuda.libraries import A, Array, library_of

__all__ = ["linear_log_prob", "linear_log_prob_backward", "linear_log_prob_with_gradient"]

_OPTIONS = {**OPTIONS, "chunk": optional(lambda op, name, value: sizes(1)(op, name, value)[0])}
_INDICES = {**TARGET, "rows": roles.index("n")}
_SUMMED = {**_INDICES, **COTANGENTS, "dweight": roles.total(), "dbias": roles.total()}

_linear = partial(
    op, category="log_prob", dtypes=FLOATS, scalars=SCALARS, products=True, composite=True
)
_CASES = (
    Case({"b": (5,), "n": 6, "m": 4, "d": 4, "v": 9}, chunk=3, temperature=2.0, softcap=2.0),
    Case({"b": (2, 3), "n": 3, "m": 2, "d": 3, "v": 7}),
)


def _forms(*forms: str) -> tuple[str, ...]:
    """These, and those of them that list rows of [n, d]."""
    listed = [form.replace("*b", "n").replace(" ->", ", rows[m] ->", 1) for form in forms]
    return (*forms, *listed)


class _Pull(NamedTuple):
    """Cotangents of the results, along the axes of `Rows.target`.

    Attributes
    ----------
    dlog_prob, dentropy : array or None
        Divided by `units`.
    live : array
        Whether one of them is not 0, with an axis of extent 1 in the place of the logits.
    units, scale
        As `Gradients` has them; None where the dtype has the range of float32.
    plain : bool
        Whether nothing watches the cotangents.
    """

    dlog_prob: Array
    dentropy: Array | None
    live: Array
    units: Array | None
    scale: Any
    plain: bool


def _pull(rows: Rows, dlog_prob: Array, dentropy: Array | None, temperature: Any) -> _Pull:
    xp = rows.xp
    given = (dlog_prob,) if dentropy is None else (dlog_prob, dentropy)
    plain = rows.plain and rows.may_write(*given)
    flat = [xp.reshape(x, rows.numbers.shape) for x in given]
    live = flat[0] != 0 if dentropy is None else (flat[0] != 0) | (flat[1] != 0)
    units = scale = None
    if name_of(rows.weight.dtype) == "float16":
        # It has no room for gradients of a mean, nor for those of a result that is scaled up.
        flat = [rows.widened(x) for x in flat]
        most = xp.abs(flat[0])
        for x in flat[1:]:
            most = xp.where(xp.abs(x) > most, xp.abs(x), most)
        units = most / temperature
        safe = xp.where(units > 0, units, 1)
        flat, scale = [x / safe for x in flat], rows.largest(units)
        units = xp.expand_dims(units, axis=-1)
    first, *more = flat
    live = xp.expand_dims(live, axis=-1)
    return _Pull(first, more[0] if more else None, live, units, scale, plain)


def _found(rows: Rows, chunk: Chunk, options: dict[str, Any]) -> tuple[Array, ...]:
    """The log-probabilities of a chunk, and its entropies where they are asked for."""
    given = chunk.logits, chunk.numbers
    found = (
        run("log_prob", given, None, options)
        if rows.plain
        else registry["log_prob"](*given, **options)
    )
    return found if options["entropy"] else (found,)


def _add(
    gradients: Gradients, rows: Rows, chunk: Chunk, pull: _Pull, options: dict[str, Any]
) -> None:
    """Add the gradients of a chunk, whose logits they overwrite where they may."""
    spread = None if pull.dentropy is None else pull.dentropy[chunk.rows, ...]
    given = pull.dlog_prob[chunk.rows, ...], spread, chunk.logits, chunk.numbers
    name = "log_prob_backward"
    if pull.plain:
        slopes = run(name, given, (chunk.logits,), options)
    else:
        slopes = registry[name](*given, **options)
    gradients.add(chunk, slopes, pull.live[chunk.rows, ...])


class _Listed:
    """The rows that an index lists, along the first axis of arrays, and sums of them there."""

    def __init__(self, at: Array, hidden: Array, mode: str) -> None:
        self._at, self._n, self._library = at, hidden.shape[0], library_of(hidden)
        self._options = {"padding_idx": None, "scale": 1.0, "mode": mode}

    def _plain(self, x: Array) -> bool:
        state = self._library.state((x, self._at))
        return self._library.writable and not (state and state[0])

    def of(self, x: Array) -> Array:
        """Those of an array; zeros, class 0 too, for what is out of range and goes nowhere."""
        if x.ndim == 2 and self._plain(x):
            # The error of a row out of range is that of a kernel.
            return run("embedding", (self._at, x), None, self._options)
        return taken(x, self._at, 0)

    def back(self, x: Array) -> Array:
        """An array of all rows, from what there is of those that are listed."""
        if not self._plain(x):
            return added(x, self._at, 0, self._n)
        xp = self._library.xp
        width = x.shape[1] if x.ndim > 1 else 1
        options = {**self._options, "weight_shape": (self._n, width)}
        flat = xp.reshape(x, (x.shape[0], width))
        every = run("embedding_backward", (flat, self._at), None, options)
        return xp.reshape(every, (self._n, *x.shape[1:]))


def _gradients(
    pulls: tuple[Array, Array | None],
    given: tuple[Array, Array, Array, Array | None],
    at: Array | None,
    chunk: int | None,
    options: dict[str, Any],
    results: bool,
) -> tuple[Array, ...]:
    """Of the rows at an index, or of all: the results where these are asked for, and gradients."""
    (dlog_prob, dentropy), (hidden, weight, target, bias) = pulls, given
    listed = None if at is None else _Listed(at, hidden, options["mode"])
    if listed is not None:
        hidden, target = listed.of(hidden), listed.of(target)
        dlog_prob, dentropy = (None if x is None else listed.of(x) for x in pulls)
    rows = Rows(hidden, weight, target, bias, chunk, gradients=True)
    pull = _pull(rows, dlog_prob, dentropy, options["temperature"])
    gradients = Gradients(rows, pull.units, pull.scale, are_narrow())
    parts, asked = list[tuple[Array, ...]](), {**options, "entropy": dentropy is not None}
    for part in rows.chunks():
        if results:
            parts.append(_found(rows, part, asked))
        _add(gradients, rows, part, pull, options)
        # Before there are logits of another.
        del part
    found = _joined(rows, parts) if results else []
    back, *others = gradients.found()
    if listed is not None:
        found, back = [*map(listed.back, found)], listed.back(back)
    return *found, back, *others


def _joined(rows: Rows, parts: list[tuple[Array, ...]]) -> list[Array]:
    """Each result, of all chunks."""
    return [rows.reduced(list(x), "none") for x in zip(*parts, strict=True)]


@_linear(
    *_forms(
        "hidden[*b d], weight[v d], target[*b] -> log_prob[*b] if entropy=False",
        "hidden[*b d], weight[v d], target[*b], bias[v] -> log_prob[*b] if entropy=False",
        "hidden[*b d], weight[v d], target[*b] -> log_prob[*b], entropy[*b] if entropy=True",
        "hidden[*b d], weight[v d], target[*b], bias[v]"
        " -> log_prob[*b], entropy[*b] if entropy=True",
    ),
    options={**_OPTIONS, "entropy": flag},
    roles={**_INDICES, **RESULTS},
    cases=(
        Case(
            {"b": (5,), "n": 6, "m": 4, "d": 4, "v": 9},
            temperature=0.7,
            softcap=2.0,
            entropy=True,
        ),
        Case({"b": (2, 3), "n": 3, "m": 2, "d": 3, "v": 7}),
    ),
)
def linear_log_prob(
    hidden: A,
    weight: Array,
    target: Array,
    bias: Array | None = None,
    rows: Array | None = None,
    /,
    *,
    temperature: float = 1.0,
    softcap: float = 0.0,
    ignore_index: int = -100,
    entropy: bool = False,
    chunk: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A]:
    """Log-probability of each target under a softmax of ``hidden @ weight.T + bias``.

    Parameters
    ----------
    hidden : array of shape [*b, d]
        Hidden states of a language model, before its last layer. Any floating dtype.
    weight : array of shape [v, d]
        That layer: dtype of `hidden`.
    target : array of shape [*b]
        The token of each row: int32 or int64, ``0 <= target < v``.
    bias : array of shape [v], optional
        Added to the logits of each row, 0 by default: dtype of `hidden`.
    rows : array of shape [m], optional
        The rows that are computed, all by default, where `hidden` has the shape [n, d]: int32 or
        int64, ``0 <= rows < n``. Others take no time and count as ignored. What is listed twice
        counts twice.
    temperature, softcap, ignore_index, entropy
        As in `log_prob`.
    mode : {"raise", "drop"}
        What a target or a row out of range does: raise, or count as ignored.
    chunk : int, optional
        Rows per chunk. Default: as many rows as give 2**28 logits; in the gradients 4,096 and d
        rows at least, as in `linear_cross_entropy`.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    log_prob, and entropy with ``entropy=True`` : arrays of shape [*b]
        float32 of 16-bit inputs, else their dtype. 0 in ignored rows.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `log_prob`. On a GPU the late error of a target names `log_prob`, and counts its
        position from the first row of the chunk; that of a row names `embedding`.

    Notes
    -----
    Takes the memory of a chunk's logits, in the dtype of `hidden`, beside its operands. Products
    are those of the caller's library, as in `linear_cross_entropy`. Logits of 16 bits are rounded
    once, after the bias. So a log-probability may be off by half a unit in the last place of the
    largest logit of its row. Deterministic where those products are, but not bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight = np.ones((2, 1)), np.log([[1.0], [3.0]])
    >>> bc.linear_log_prob(hidden, weight, np.asarray([0, 1]), entropy=True)
    (array([-1.38629436, -0.28768207]), array([0.56233514, 0.56233514]))
    """
    options = {
        "temperature": temperature, "softcap": softcap, "ignore_index": ignore_index,
        "entropy": entropy, "mode": mode,
    }  # fmt: skip
    listed = None if rows is None else _Listed(rows, hidden, mode)
    if listed is not None:
        hidden, target = listed.of(hidden), listed.of(target)
    some = Rows(hidden, weight, target, bias, chunk)
    parts = []
    for part in some.chunks():
        parts.append(_found(some, part, options))
        # Before there are logits of another.
        del part
    found = _joined(some, parts)
    first, *more = found if listed is None else map(listed.back, found)
    return (first, more[0]) if more else first


@_linear(
    *_forms(
        "dlog_prob[*b], hidden[*b d], weight[v d], target[*b] -> dhidden[*b d], dweight[v d]",
        "dlog_prob[*b], dentropy[*b], hidden[*b d], weight[v d], target[*b]"
        " -> dhidden[*b d], dweight[v d]",
        "dlog_prob[*b], hidden[*b d], weight[v d], target[*b], bias[v]"
        " -> dhidden[*b d], dweight[v d], dbias[v]",
        "dlog_prob[*b], dentropy[*b], hidden[*b d], weight[v d], target[*b], bias[v]"
        " -> dhidden[*b d], dweight[v d], dbias[v]",
    ),
    adjoint_of="linear_log_prob",
    options=_OPTIONS,
    roles=_SUMMED,
    cases=_CASES,
)
def linear_log_prob_backward(
    dlog_prob: Array | None,
    dentropy: Array | None,
    hidden: A,
    weight: Array,
    target: Array,
    bias: Array | None = None,
    rows: Array | None = None,
    /,
    *,
    temperature: float = 1.0,
    softcap: float = 0.0,
    ignore_index: int = -100,
    chunk: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, ...]:
    """Gradients of `linear_log_prob`, from logits that are computed again.

    Parameters
    ----------
    dlog_prob : array of shape [*b] or None
        Gradient of the log-probabilities: dtype of `hidden`, or float32 beside 16 bits. None counts
        as zeros, where `dentropy` is there.
    dentropy : array of shape [*b] or None
        Gradient of the entropies: dtype of `dlog_prob`. None counts as zeros.
    hidden, weight, target, bias, rows : arrays of shapes [*b, d], [v, d], [*b], [v] and [m]
    temperature, softcap, ignore_index, chunk, mode, **dispatch
        As in `linear_log_prob`.

    Returns
    -------
    dhidden, dweight, and dbias where `bias` was given : arrays of shape [*b, d], [v, d] and [v]
        dtype of `hidden`. Ignored rows, and rows whose cotangents are 0, add exactly 0 to each,
        also where their logits are NaN.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `linear_log_prob`; cotangents of another shape than the results.

    Notes
    -----
    Takes the memory of a chunk's logits, whose gradients take their place. Several chunks also take
    that of `weight` in float32, where its gradient is added up. In 16 bits the gradients of logits
    are rounded once, `dhidden` at most twice, `dweight` and `dbias` once. A float32 `out` is not
    rounded. float16 rows are divided by their cotangent before the products, and multiplied after
    them. Deterministic as `linear_log_prob`.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight, target = np.ones((1, 1)), np.log([[1.0], [3.0]]), np.asarray([1])
    >>> bc.linear_log_prob_backward(np.asarray([1.0]), None, hidden, weight, target)
    (array([[0.27465307]]), array([[-0.25],
           [ 0.25]]))
    """
    options = {
        "temperature": temperature, "softcap": softcap, "ignore_index": ignore_index, "mode": mode,
    }  # fmt: skip
    pulls, given = (dlog_prob, dentropy), (hidden, weight, target, bias)
    return _gradients(pulls, given, rows, chunk, options, results=False)


@_linear(
    *_forms(
        "dlog_prob[*b], hidden[*b d], weight[v d], target[*b]"
        " -> log_prob[*b], dhidden[*b d], dweight[v d]",
        "dlog_prob[*b], dentropy[*b], hidden[*b d], weight[v d], target[*b]"
        " -> log_prob[*b], entropy[*b], dhidden[*b d], dweight[v d]",
        "dlog_prob[*b], hidden[*b d], weight[v d], target[*b], bias[v]"
        " -> log_prob[*b], dhidden[*b d], dweight[v d], dbias[v]",
        "dlog_prob[*b], dentropy[*b], hidden[*b d], weight[v d], target[*b], bias[v]"
        " -> log_prob[*b], entropy[*b], dhidden[*b d], dweight[v d], dbias[v]",
    ),
    options=_OPTIONS,
    roles={**_SUMMED, **RESULTS},
    cases=_CASES,
)
def linear_log_prob_with_gradient(
    dlog_prob: Array | None,
    dentropy: Array | None,
    hidden: A,
    weight: Array,
    target: Array,
    bias: Array | None = None,
    rows: Array | None = None,
    /,
    *,
    temperature: float = 1.0,
    softcap: float = 0.0,
    ignore_index: int = -100,
    chunk: int | None = None,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> tuple[A, ...]:
    """`linear_log_prob` and its gradients for given cotangents, each logit computed once.

    Parameters
    ----------
    dlog_prob : array of shape [*b] or None
        Gradient of the log-probabilities, such as the advantage of each token in a policy
        gradient: dtype of `hidden`, or float32 beside 16 bits. None counts as zeros, where
        `dentropy` is there.
    dentropy : array of shape [*b] or None
        Gradient of the entropies: dtype of `dlog_prob`. None asks for no entropies.
    hidden, weight, target, bias, rows : arrays of shapes [*b, d], [v, d], [*b], [v] and [m]
    temperature, softcap, ignore_index, chunk, mode, **dispatch
        As in `linear_log_prob`.

    Returns
    -------
    log_prob, and entropy where `dentropy` was given : arrays of shape [*b]
        float32 of 16-bit inputs, else their dtype.
    dhidden, dweight, and dbias where `bias` was given : arrays of shape [*b, d], [v, d] and [v]
        As of `linear_log_prob_backward`.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `linear_log_prob_backward`.

    Notes
    -----
    Three matrix products where the forward and the gradient apart take four; memory and roundings
    as in `linear_log_prob_backward`. For training steps without an autograd engine whose cotangents
    do not depend on the results. Deterministic where the library's products are.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> hidden, weight, target = np.ones((1, 1)), np.log([[1.0], [3.0]]), np.asarray([1])
    >>> advantage = np.asarray([2.0])
    >>> found = bc.linear_log_prob_with_gradient(advantage, None, hidden, weight, target)
    >>> found[0], found[2]
    (array([-0.28768207]), array([[-0.5],
           [ 0.5]]))
    """
    options = {
        "temperature": temperature, "softcap": softcap, "ignore_index": ignore_index, "mode": mode,
    }  # fmt: skip
    pulls, given = (dlog_prob, dentropy), (hidden, weight, target, bias)
    return _gradients(pulls, given, rows, chunk, options, results=True)
