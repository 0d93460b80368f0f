"""What divergences of a student from its teacher share, of logits and of linear layers."""

from __future__ import annotations

from baracuda.declaration import roles
from baracuda.declaration.values import choice, inside, positive
from baracuda.families.chunks import Rows
from baracuda.families.numerics import has_slopes
from baracuda.families.reductions import parts, reduced
from baracuda.libraries import Array, library_of

OPTIONS = {
    "kind": choice("forward", "reverse", "jsd"),
    "reduction": choice("mean", "sum", "none"),
}
SCALARS = {"beta": inside(0, 1), "temperature": positive()}
WEIGHT = {"row_weight": roles.parameter(0.5, 2)}
TAUGHT = {"teacher_ids": roles.index("v"), "teacher_probs": roles.parameter(0.05, 0.3)}


def log_softmax(x: Array, temperature: float) -> Array:
    """Logarithms of the probabilities of ``x / temperature``, along the last axis."""
    library = library_of(x)
    own = library.log_softmax
    if own and isinstance(temperature, float) and temperature == 1:
        return own(x)
    # The difference is divided: a quotient of the logits themselves may overflow.
    x = library.less_largest(x, -1) / temperature
    if own:
        return own(x)
    return x - library.xp.log(library.xp.sum(library.xp.exp(x), axis=-1, keepdims=True))


def counted(row_weight: Array | None, *logits: Array) -> tuple[Array | None, list[Array]]:
    """Where a row counts, beside an axis for the classes, and logits without NaN where none does.

    A row counts unless its weight is 0; without weights the first is None.
    """
    if row_weight is None:
        return None, [*logits]
    xp = library_of(row_weight).xp
    counts = xp.expand_dims(row_weight != 0, axis=-1)
    if has_slopes(logits[0]):
        # NaN in rows that do not count is not to meet a slope of 0.
        logits = tuple([xp.where(counts, x, 0) for x in logits])
    return counts, [*logits]


def weighed(losses: Array, row_weight: Array | None, reduction: str) -> Array:
    """The loss of every row, times its weight, or their sum or mean."""
    if row_weight is None:
        return reduced(losses, reduction)
    xp = library_of(losses).xp
    losses = xp.where(row_weight == 0, 0, losses * row_weight)
    if reduction == "mean":
        return xp.sum(losses) / xp.sum(row_weight)
    return reduced(losses, reduction)


def pulled(
    slopes: Array,
    counts: Array | None,
    row_weight: Array | None,
    dloss: Array | float,
    temperature: float,
    reduction: str,
) -> Array:
    """The gradient for a cotangent of the result, from the slopes of rows at a temperature of 1."""
    xp, scale = library_of(slopes).xp, dloss
    if row_weight is None:
        # Of no rows the mean has a gradient of no elements.
        scale = scale / max(parts(slopes.shape[:-1], reduction), 1)
    else:
        # A weight by the sum: a quotient by a sum that is tiny overflows.
        scale = scale * (row_weight / xp.sum(row_weight) if reduction == "mean" else row_weight)
    if getattr(scale, "ndim", 0):
        scale = xp.expand_dims(scale, axis=-1)
    slopes = slopes * (scale / temperature)
    return slopes if counts is None else xp.where(counts, slopes, 0)


def number(rows: Rows, reduction: str) -> Array | int | None:
    """What the sum of the losses of rows, each times its weight, is divided by for their mean."""
    weight = rows.numbers
    if reduction != "mean":
        return None
    return rows.count if weight is None else rows.xp.sum(rows.widened(weight))
