"""Cross entropy of class indices, and its gradient, from a few statistics of each row."""

from __future__ import annotations

from typing import Any, NamedTuple

from baracuda.families.numerics import has_slopes, masked, scaled, traced
from baracuda.families.reductions import classes, hits, largest, picked, shares
from baracuda.libraries import Array, library_of


class Statistics(NamedTuple):
    """What the losses of rows are made of, axes of extent 1 in the place of the classes.

    Attributes
    ----------
    counts
        Whether a row counts: its target is a class, and not the one to ignore.
    at
        Its target, 0 where it does not count.
    number
        How many count, or the sum of the weights of their targets.
    share, weights
        With weights of classes: that of each row's target, 0 where it does not count; all of them,
        along the axis of the classes. Else 1 and None.
    classes
        How many there are.
    largest, total
        The largest of the capped logits, and the sum of the exponentials of these less the largest.
    """

    counts: Array
    at: Array
    number: Array
    share: Any
    weights: Array | None
    classes: int
    largest: Array
    total: Array

    @property
    def log_total(self) -> Array:
        return library_of(self.total).xp.log(self.total)

    def mass(self, label_smoothing: Any) -> Any:
        """What the classes of each row are pulled by, taken together; 1 without weights."""
        if self.weights is None:
            return 1
        if not (traced(label_smoothing) or label_smoothing):
            return self.share
        xp, n = library_of(self.total).xp, max(self.classes, 1)
        return self.share * (1 - label_smoothing) + xp.sum(self.weights) * (label_smoothing / n)

    def push(self, label_smoothing: Any, z_loss: Any) -> Any:
        """What the share of each class in the sum of exponentials is multiplied with."""
        mass = self.mass(label_smoothing)
        if traced(z_loss) or z_loss:
            mass = mass + 2 * z_loss * (self.largest + self.log_total) * self.share
        return mass

    def averaged(self, dloss: Any, reduction: str) -> tuple[Statistics, Any]:
        """The statistics and the cotangent of each row, with what a mean divides by in them."""
        if reduction != "mean":
            return self, dloss
        if self.weights is None:
            return self, dloss / self.number
        # A weight by the sum: a quotient by a sum that is tiny, as weights may be, overflows.
        share, weights = self.share / self.number, self.weights / self.number
        return self._replace(share=share, weights=weights), dloss


class Logits(NamedTuple):
    """Rows of logits: as they are capped, less their largest; the slope of the cap; exponentials.

    The slope is 1 without a cap; the exponentials are those of `shifted`.
    """

    shifted: Array
    slope: Any
    powers: Array


def capped(logits: Array, softcap: Any) -> tuple[Array, Any]:
    """``softcap * tanh(logits / softcap)`` and its slope; where `softcap` is 0, `logits` and 1."""
    xp = library_of(logits).xp
    if traced(softcap):
        none = softcap == 0
        curve = xp.tanh(logits / xp.where(none, 1, softcap))
        logits = xp.where(none, logits, curve * softcap)
        return logits, xp.where(none, 1, 1 - curve * curve)
    if softcap:
        curve = xp.tanh(logits / softcap)
        return curve * softcap, 1 - curve * curve
    return logits, 1


def statistics(
    logits: Array,
    target: Array,
    weight: Array | None,
    axis: int,
    ignore_index: int,
    softcap: float,
) -> tuple[Statistics, Logits]:
    """What all classes of every row say."""
    xp, v = library_of(logits).xp, logits.shape[axis]
    counts, at = classes(xp.expand_dims(target, axis=axis), v, ignore_index)
    share, number, weights = weighed(weight, counts, at, logits.dtype, axis)
    if has_slopes(logits):
        # Infinities in rows that do not count are not to meet a slope of 0.
        logits = xp.where(counts, logits, 0)
    logits, slope = capped(logits, softcap)
    most = largest(logits, axis)
    shifted = logits - most
    powers = xp.exp(shifted)
    total = xp.sum(powers, axis=axis, keepdims=True)
    found = Statistics(counts, at, number, share, weights, v, most, total)
    return found, Logits(shifted, slope, powers)


def weighed(
    weight: Array | None, counts: Array, at: Array, dtype: Any, axis: int
) -> tuple[Any, Array, Array | None]:
    """What each row counts, what all do, and the weights along the axis of the classes."""
    share, number = shares(weight, counts, at, dtype)
    if weight is None:
        return 1, number, None
    xp = library_of(weight).xp
    return share, number, xp.reshape(weight, (-1, *(1,) * (at.ndim - axis - 1)))


def losses(
    rows: Statistics, logits: Logits, axis: int, label_smoothing: float, z_loss: float,
    reduction: str,
) -> Array:  # fmt: skip
    """The loss of every row that counts, or their sum or mean; NaN for the mean of none."""
    xp, every = library_of(rows.total).xp, logits.shifted
    # Relative to the largest logit, so that nothing large cancels.
    hit, mean = picked(every, rows.at, axis), None
    if traced(label_smoothing) or label_smoothing:
        if rows.weights is not None:
            every = every * rows.weights
        mean = xp.sum(every, axis=axis, keepdims=True) / max(rows.classes, 1)
    return reduced(rows, hit, mean, axis, label_smoothing, z_loss, reduction)


def reduced(
    rows: Statistics, hit: Array, mean: Array | None, axis: int, label_smoothing: float,
    z_loss: float, reduction: str,
) -> Array:  # fmt: skip
    """As `losses`, from each row's logit of its target and from the mean of its weighted logits.

    Both are less the largest. The mean is None where nothing is smoothed.
    """
    xp, log = library_of(rows.total).xp, rows.log_total
    hit = hit * rows.share
    if mean is not None:
        if traced(label_smoothing):
            # Nothing of an infinite logit is nothing.
            mean = xp.where(label_smoothing == 0, 0, mean)
        hit = hit * (1 - label_smoothing) + mean * label_smoothing
    each = log * rows.mass(label_smoothing) - hit
    if traced(z_loss) or z_loss:
        norm = rows.largest + log
        each = each + z_loss * (norm * norm) * rows.share
    each = xp.squeeze(xp.where(rows.counts, each, 0), axis=axis)
    if reduction == "none":
        return each
    return xp.sum(each) / rows.number if reduction == "mean" else xp.sum(each)


def scored(rows: Statistics, logits: Array, axis: int, reduction: str) -> tuple[Array, Array]:
    """Whether each row's target is its first largest logit, as losses are reduced; which that is.

    Logits are those without a cap, under which several may be equal.
    """
    xp = library_of(logits).xp
    # Namespaces have no largest of nothing.
    first = xp.argmax(logits, axis=axis, keepdims=True) if rows.classes else rows.at
    return scored_at(rows, first, first == rows.at, axis, reduction)


def scored_at(
    rows: Statistics, first: Array, right: Array, axis: int, reduction: str
) -> tuple[Array, Array]:
    """As `scored`, from where each row is largest, and whether that is its target."""
    library = library_of(first)
    xp = library.xp
    each = xp.astype(right & rows.counts, rows.total.dtype) * rows.share
    each, top = (xp.squeeze(x, axis=axis) for x in (each, xp.where(rows.counts, first, -1)))
    if reduction != "none":
        each = xp.sum(each) / rows.number if reduction == "mean" else xp.sum(each)
    # Weights of classes move it, but nothing flows back from a metric.
    return library.constant(each), top


def gradient(
    rows: Statistics, logits: Logits, axis: int, label_smoothing: float, z_loss: float,
    reduction: str, dloss: Array | int,
) -> Array:  # fmt: skip
    """``dloss`` times the slope of the loss of each row; 0 in the rows that do not count."""
    xp, n = library_of(rows.total).xp, rows.classes
    rows, dloss = rows.averaged(dloss, reduction)
    scale = dloss / rows.total
    pull = xp.astype(hits(rows.at, axis, n), logits.shifted.dtype)
    pull = scaled(scaled(pull, 1 - label_smoothing), rows.share)
    if traced(label_smoothing) or label_smoothing:
        spread = label_smoothing / max(n, 1)
        pull = pull + (spread if rows.weights is None else rows.weights * spread)
    push = logits.powers * (scale * rows.push(label_smoothing, z_loss))
    return masked(scaled(push - scaled(pull, dloss), logits.slope), rows.counts)
