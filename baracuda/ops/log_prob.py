"""Log-probabilities of chosen classes under a softmax of logits, and the entropy of each row.

Reinforcement learning of language models takes both of every token that was sampled.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple, Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import flag
from baracuda.families.entropy import capped
from baracuda.families.log_probs import COTANGENTS, OPTIONS, RESULTS, SCALARS, TARGET
from baracuda.families.numerics import has_slopes, masked, scaled, traced
from baracuda.families.reductions import classes, hits, largest, picked
from baracuda.libraries import A, Array, library_of

__all__ = ["log_prob", "log_prob_backward"]

_log_prob = partial(op, category="log_prob", dtypes=FLOATS, scalars=SCALARS)


class _Rows(NamedTuple):
    """What is made of rows of logits, axes of extent 1 in the place of the classes.

    Attributes
    ----------
    counts, at
        Whether a row's target is a class, and not the one to ignore; which, 0 where it is not.
    shifted
        The logits, capped, less the largest of their row, divided by the temperature.
    slope
        Of that along the logits, times the temperature.
    powers, total
        The exponentials of `shifted`, and their sum.
    """

    counts: Array
    at: Array
    shifted: Array
    slope: Any
    powers: Array
    total: Array

    def entropic(self) -> tuple[Array, Array]:
        """`shifted`, at least -1000; its mean under the softmax."""
        xp = library_of(self.powers).xp
        # Below that an exponential is 0, and 0 times an infinite logit is to be 0.
        below = xp.maximum(self.shifted, -1e3)
        return below, xp.sum(self.powers * below, axis=-1, keepdims=True) / self.total


def _rows(
    logits: Array,
    target: Array,
    temperature: Any,
    softcap: Any,
    ignore_index: int,
    live: Array | None = None,
) -> _Rows:
    """The rows; one that is not `live` counts as zeros where its softmax were NaN."""
    xp = library_of(logits).xp
    counts, at = classes(xp.expand_dims(target, axis=-1), logits.shape[-1], ignore_index)
    if live is not None:
        # Other rows stay, so that derivatives along cotangents of 0 are right.
        logits = xp.where((counts & live) | xp.isfinite(largest(logits, -1)), logits, 0)
    elif has_slopes(logits):
        # Infinities in rows that do not count are not to meet a slope of 0.
        logits = xp.where(counts, logits, 0)
    x, slope = capped(logits, softcap)
    shifted = x - largest(x, -1)
    if traced(temperature) or temperature != 1:
        # Behind the difference: a small temperature magnifies no rounding of large logits.
        shifted = shifted / temperature
    powers = xp.exp(shifted)
    total = xp.sum(powers, axis=-1, keepdims=True)
    return _Rows(counts, at, shifted, slope, powers, total)


@_log_prob(
    "logits[*b v], target[*b] -> log_prob[*b] if entropy=False",
    "logits[*b v], target[*b] -> log_prob[*b], entropy[*b] if entropy=True",
    options={**OPTIONS, "entropy": flag},
    roles={**TARGET, **RESULTS},
    kernel=Kernel("log_prob.cu", "LogProb", schedule="log_prob"),
    cases=(
        Case({"b": (5,), "v": 9}, temperature=0.7),
        Case({"b": (2, 3), "v": 16}, entropy=True, softcap=2.0, mode="drop"),
    ),
)
def log_prob(
    logits: A,
    target: Array,
    /,
    *,
    temperature: float = 1.0,
    softcap: float = 0.0,
    ignore_index: int = -100,
    entropy: bool = False,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, A]:
    """Log-probability of a class under a softmax: ``log_softmax(logits / temperature)[target]``.

    Parameters
    ----------
    logits : array of shape [*b, v]
        Any floating dtype.
    target : array of shape [*b]
        The class of each row: int32 or int64, ``0 <= target < v``.
    temperature : float
        Above 0: logits are divided by it, behind the cap. A run-time value.
    softcap : float
        Above 0, logits are first ``softcap * tanh(logits/softcap)``. A run-time value.
    ignore_index : int
        Rows with this target give 0.
    entropy : bool
        Whether to return the entropy of each row's softmax too.
    mode : {"raise", "drop"}
        What a target out of range does, as in `gather`: raise, or count as ignored.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    log_prob, and entropy with ``entropy=True`` : arrays of shape [*b]
        float32 of 16-bit inputs, else their dtype; C order. 0 in ignored rows.

    Raises
    ------
    IndexError
        A target out of range under ``mode="raise"``; names the first and its position.
    TypeError
        `target` neither int32 nor int64; mixed libraries or devices.
    ValueError
        Shapes that do not fit, an option out of its range.

    Notes
    -----
    The largest logit of a row is subtracted before the division by the temperature, so that a
    small temperature magnifies no rounding. The entropy is ``log(sum(exp(x))) - sum(softmax(x)*x)``
    of these differences x. A class with a logit of -inf adds nothing to it. Sums are taken in
    float32 (float64 for float64) and rounded once. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.log_prob(np.log([[1.0, 3.0]]), np.asarray([1]), entropy=True)
    (array([-0.28768207]), array([0.56233514]))
    """
    xp = library_of(logits).xp
    rows = _rows(logits, target, temperature, softcap, ignore_index)
    log = xp.log(rows.total)
    found = [
        picked(rows.shifted, rows.at, -1) - log,
        *([log - rows.entropic()[1]] if entropy else []),
    ]
    first, *more = [xp.squeeze(xp.where(rows.counts, x, 0), axis=-1) for x in found]
    return (first, more[0]) if more else first


@_log_prob(
    "dlog_prob[*b], logits[*b v], target[*b] -> dlogits[*b v]",
    "dlog_prob[*b], dentropy[*b], logits[*b v], target[*b] -> dlogits[*b v]",
    adjoint_of="log_prob",
    options=OPTIONS,
    roles={**TARGET, **COTANGENTS},
    inplace=True,
    kernel=Kernel("log_prob.cu", "LogProbBackward", schedule="log_prob"),
    cases=(
        Case({"b": (5,), "v": 9}, temperature=0.7),
        Case({"b": (2, 3), "v": 16}, softcap=2.0, mode="drop"),
    ),
)
def log_prob_backward(
    dlog_prob: Array | None,
    dentropy: Array | None,
    logits: A,
    target: Array,
    /,
    *,
    temperature: float = 1.0,
    softcap: float = 0.0,
    ignore_index: int = -100,
    mode: Literal["raise", "drop"] = "raise",
    **dispatch: Unpack[Dispatch],
) -> A:
    """Gradient of `log_prob` along the logits, from cotangents of both results.

    With p the softmax and H the entropy of a row, that of the log-probability is
    ``(one_hot(target) - p) / temperature``, and that of the entropy
    ``-p * (log(p) + H) / temperature``.

    Parameters
    ----------
    dlog_prob : array of shape [*b] or None
        Gradient of the log-probabilities: of the dtype of `logits`, or float32 beside 16 bits. None
        counts as zeros, where `dentropy` is there.
    dentropy : array of shape [*b] or None
        Gradient of the entropies: dtype of `dlog_prob`. None counts as zeros.
    logits : array of shape [*b, v]
    target : array of shape [*b]
    temperature, softcap, ignore_index, mode, **dispatch
        As in `log_prob`.

    Returns
    -------
    dlogits : array of shape [*b, v]
        dtype of `logits`. 0 in ignored rows, and in rows whose cotangents are 0, whatever their
        logits are. May be written over `logits`.

    Raises
    ------
    IndexError, TypeError, ValueError
        As `log_prob`; cotangents of another shape than the results.

    Notes
    -----
    The softmax is computed again: nothing but the inputs of the forward is kept. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.log_prob_backward(np.asarray([1.0]), None, np.log([[1.0, 3.0]]), np.asarray([1]))
    array([[-0.25,  0.25]])
    """
    xp = library_of(logits).xp
    along = xp.expand_dims(dlog_prob, axis=-1)
    live, pull = along != 0, along
    spread = None if dentropy is None else xp.expand_dims(dentropy, axis=-1)
    if spread is not None:
        live = live | (spread != 0)
    rows = _rows(logits, target, temperature, softcap, ignore_index, live)
    if spread is not None:
        below, mean = rows.entropic()
        pull = along + spread * (below - mean)
    hit = xp.where(hits(rows.at, logits.ndim - 1, logits.shape[-1]), along, 0)
    slopes = scaled(hit - rows.powers / rows.total * pull, rows.slope) / temperature
    return masked(slopes, rows.counts)
