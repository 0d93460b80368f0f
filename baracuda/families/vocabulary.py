"""Cross entropy where the classes are cut over devices, each of which has some of every row.

A device computes from its part the largest logit, the logarithm of the sum of exponentials relative
to that, and the target's logit where it has it. One collective gathers these three numbers a row.
All of the rest is the formula of the whole (`families.entropy`), so that every device has the same
bits of a loss. Large arrays go through the fused ops: a part's logits are read twice for the loss,
by the search for the largest and by `cross_entropy` of that, and once more for the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from baracuda.calls.op import registry
from baracuda.declaration.collective import Part
from baracuda.declaration.dtypes import name_of, named
from baracuda.families.entropy import Statistics, capped, reduced, scored_at, weighed
from baracuda.families.reductions import classes, picked
from baracuda.libraries import Array, library_of

_IGNORED = -100
# Halves of a class's number, each of which float32 holds.
_HALF = 1 << 16


class _Local:
    """The rows of one part, and the fused ops on them."""

    def __init__(
        self, part: Part, logits: Array, weight: Array | None, options: Mapping[str, Any]
    ) -> None:
        self.part, self.logits, self.options = part, logits, options
        self.axis, self.softcap = options["axis"], options["softcap"]
        self.library = library_of(logits)
        self.xp, self.n = self.library.xp, logits.shape[self.axis]
        self.wide = self.library.dtype(named(name_of(logits.dtype)).accumulate)
        self.smoothed = bool(options["label_smoothing"])
        self.weight, self.own_weight = weight, None
        if weight is not None:
            xp = self.xp
            self.weight = xp.astype(weight, self.wide, copy=False)
            if self.smoothed:
                device = self.library.device_of(weight)
                own = xp.arange(self.n, dtype=xp.int32, device=device) + part.first
                self.own_weight = xp.take(self.weight, own, axis=0)

    @property
    def mass(self) -> Any:
        """The weights of all classes of the part, taken together."""
        return self.n if self.own_weight is None else self.xp.sum(self.own_weight)

    def at(self, where: Array) -> tuple[Array, Any]:
        """One logit of each row as it is capped, and the slope of the cap."""
        some = picked(self.logits, where, self.axis)
        return capped(self.xp.astype(some, self.wide, copy=False), self.softcap)

    def run(
        self, name: str, at: Array, smoothed: bool = False, scale: Array | None = None,
        weight: Array | None = None,
    ) -> Array:  # fmt: skip
        """An op of the logits of the part, where the target of each row is its class `at`."""
        squeezed = [self.xp.squeeze(x, axis=self.axis) for x in (scale, at) if x is not None]
        *before, target = squeezed
        arrays = (*before, self.logits, target, *(() if weight is None else (weight,)))
        return registry[name](
            *arrays, axis=self.axis, ignore_index=_IGNORED, label_smoothing=float(smoothed),
            softcap=self.softcap, reduction="none", mode="drop", **self.options["dispatch"],
        )  # fmt: skip


class _Joined(NamedTuple):
    """What all parts together say of each row, and what this one has of it.

    Attributes
    ----------
    rows
        The statistics of whole rows, but that the targets count from the first class of the part.
    hit, mean
        The target's logit, and the mean of the weighted logits where there is smoothing. Both are
        less the largest.
    inside
        Whether the part has the target, which is else 0.
    empty
        Whether the part has but logits of -inf.
    own
        The share of the part in the sum of exponentials.
    first
        The class whose logit is the first of the largest, where metrics are asked for.
    """

    rows: Statistics
    hit: Array
    mean: Array | None
    inside: Array
    empty: Array
    own: Array
    first: Array | None


def _joined(local: _Local, target: Array, ignore_index: int) -> _Joined:
    xp, part, axis, n = local.xp, local.part, local.axis, local.n
    counts, at = classes(xp.expand_dims(target, axis=axis), part.extent, ignore_index)
    share, number, weights = weighed(local.weight, counts, at, local.wide, axis)
    at = at - part.first
    inside = counts & (at >= 0) & (at < n)
    at = xp.where(inside, at, 0)
    nothing = xp.zeros(at.shape, dtype=local.wide, device=local.library.device_of(target))
    most, log, hit, total = nothing - xp.inf, nothing - xp.inf, nothing, nothing
    # The largest logit without the cap, under which several may be equal, and its class.
    metrics, highest, top = local.options.get("metrics", False), most, xp.zeros_like(at)
    if n:
        top = xp.argmax(local.logits, axis=axis, keepdims=True)
        most = local.at(top)[0]
        highest = xp.astype(picked(local.logits, top, axis), local.wide, copy=False)
        # The largest costs the logarithm of the sum of exponentials relative to itself.
        alone = xp.expand_dims(local.run("cross_entropy", top), axis=axis)
        log = xp.where(most == -xp.inf, most, alone)
        hit = xp.where(inside, local.at(at)[0], 0)
        if local.smoothed:
            every = local.run("cross_entropy", top, smoothed=True, weight=local.own_weight)
            total = local.mass * alone - n * xp.expand_dims(every, axis=axis)
            total = xp.where(most == -xp.inf, most, total)
    measured = [most, log, hit]
    if local.smoothed:
        measured += [total, nothing + local.mass]
    if metrics:
        which = top + part.first
        halves = [xp.astype(x, local.wide) for x in (which // _HALF, which % _HALF)]
        measured = [highest, *halves, *measured]
    found = part.gathered(xp.stack(measured))
    every, first = [found[:, i, ...] for i in range(len(measured))], None
    if metrics:
        highests, *halves = every[:3]
        # The first of the largest parts: they lie in the order of their classes.
        where = xp.argmax(highests, axis=0, keepdims=True)
        high, low = (xp.take_along_axis(x, where, axis=0)[0, ...] for x in halves)
        first = xp.astype(high, xp.int64) * _HALF + xp.astype(low, xp.int64)
        every = every[3:]
    mosts, logs, hits, *more = every
    largest = xp.max(mosts, axis=0)
    whole = xp.sum(xp.exp(logs + (mosts - largest)), axis=0)
    mean = None
    if more:
        totals, masses = more
        relative = xp.where(masses == 0, 0, totals + masses * (mosts - largest))
        mean = xp.sum(relative, axis=0) / part.extent
    rows = Statistics(counts, at, number, share, weights, part.extent, largest, whole)
    own = xp.exp(log + (most - largest)) / whole
    hit = xp.sum(hits, axis=0) - largest
    return _Joined(rows, hit, mean, inside, most == -xp.inf, own, first)


def _gradient(local: _Local, found: _Joined, dloss: Any, reduction: str) -> Array:
    """The gradient of the logits of the part.

    The fused gradient of the part's own loss is its softmax, scaled, but for one class: that of the
    target where the part has it. What that class gets is computed apart, and rounded once too.
    """
    xp, smoothing = local.xp, local.options["label_smoothing"]
    if not local.n:
        return xp.zeros_like(local.logits)
    rows, dloss = found.rows.averaged(dloss, reduction)
    push = dloss * rows.push(smoothing, local.options["z_loss"])
    pull = dloss * rows.share * (1 - smoothing) * xp.astype(found.inside, local.wide)
    scale, spread, first = push * found.own, 0, 1
    at = xp.where(rows.counts & ~found.empty, rows.at, _IGNORED)
    own = None
    if local.smoothed:
        spread = dloss * (smoothing / rows.classes)
        if local.own_weight is not None:
            own = local.own_weight
            if reduction == "mean":
                own = own / rows.number
            first = xp.where(found.inside, rows.share, own[0])
        mass = local.n if own is None else xp.sum(own)
        scale = scale - spread * mass
    # 0 where a row does not count, whatever its logits are.
    scale = xp.where(rows.counts, scale, 0)
    out = local.run("cross_entropy_backward", at, scale=scale)
    if local.smoothed:
        more = xp.zeros_like(scale) + spread * local.n
        name = "cross_entropy_backward"
        out = out + local.run(name, at, smoothed=True, scale=more, weight=own)
    logit, slope = local.at(rows.at)
    power = xp.exp(logit - rows.largest) / rows.total
    here = xp.where(rows.counts, (power * push - pull - spread * first) * slope, 0)
    return local.library.put(out, rows.at, xp.astype(here, out.dtype), local.axis)


def _options(options: dict[str, Any], dispatch: dict[str, Any]) -> dict[str, Any]:
    # A record says how to run the op, not those of which its part is made.
    return {**options, "dispatch": {k: v for k, v in dispatch.items() if k != "sku"}}


def cross_entropy(
    part: Part, logits: Array, target: Array, weight: Array | None = None, /, *, axis: int,
    ignore_index: int, label_smoothing: float, z_loss: float, softcap: float, reduction: str,
    mode: str, metrics: bool = False, **dispatch: Any,
) -> Any:  # fmt: skip
    """The loss, and metrics if any, from a part of the logits; the same on all devices."""
    options = {"axis": axis, "label_smoothing": label_smoothing, "softcap": softcap}
    local = _Local(part, logits, weight, _options({**options, "metrics": metrics}, dispatch))
    found = _joined(local, target, ignore_index)
    loss = reduced(found.rows, found.hit, found.mean, axis, label_smoothing, z_loss, reduction)
    more = _scored(found, target, axis, reduction)
    return (loss, *more) if more else loss


def _scored(found: _Joined, target: Array, axis: int, reduction: str) -> tuple[Array, ...]:
    """The accuracy and the top class of each row, where they are asked for."""
    if found.first is None:
        return ()
    right = found.first == library_of(target).xp.expand_dims(target, axis=axis)
    return scored_at(found.rows, found.first, right, axis, reduction)


def cross_entropy_with_gradient(
    part: Part, logits: Array, target: Array, weight: Array | None = None,
    dloss: Array | None = None, /, *, axis: int, ignore_index: int, label_smoothing: float,
    z_loss: float, softcap: float, reduction: str, mode: str, metrics: bool = False,
    **dispatch: Any,
) -> tuple[Array, ...]:  # fmt: skip
    """The loss, metrics if any, and the gradient of a part of the logits."""
    options = {"axis": axis, "label_smoothing": label_smoothing, "softcap": softcap}
    options |= {"z_loss": z_loss, "metrics": metrics}
    local = _Local(part, logits, weight, _options(options, dispatch))
    found = _joined(local, target, ignore_index)
    loss = reduced(found.rows, found.hit, found.mean, axis, label_smoothing, z_loss, reduction)
    results = loss, *_scored(found, target, axis, reduction)
    if dloss is None:
        return *results, _gradient(local, found, 1, reduction)
    dloss = local.xp.astype(dloss, local.wide, copy=False)
    if reduction == "none":
        dloss = local.xp.expand_dims(dloss, axis=axis)
    return *results, _gradient(local, found, dloss, reduction)


def cross_entropy_backward(
    part: Part, dloss: Array, logits: Array, target: Array, weight: Array | None = None, /,
    **options: Any,
) -> Array:  # fmt: skip
    """The gradient of a part of the logits."""
    return cross_entropy_with_gradient(part, logits, target, weight, dloss, **options)[1]
