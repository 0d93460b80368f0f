"""What norms share: how they are declared, and their formulas, with a residual or without."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.shapes import Axes
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import between, choice, dtype, integer, optional, positive
from baracuda.errors import value_error
from baracuda.families.numerics import PRIMAL, stored
from baracuda.layouts import Shape
from baracuda.libraries import Array, library_of

# What parameters, and their gradients, may be beside activations of 16 bits.
SCALED = {"weight": roles.parameter()}
AFFINE = {**SCALED, "bias": roles.parameter()}
SCALED_BACKWARD = {**SCALED, "dweight": roles.total("weight")}
AFFINE_BACKWARD = {**SCALED_BACKWARD, "dbias": roles.total("weight")}
# The result may be float32 beside 16 bits, and its cotangent then is.
WIDENED = {"y": roles.chosen("dtype")}
DTYPE = {"dtype": optional(dtype)}
PULLED = {"dy": roles.cotangent()}
# What is rounded before it is scaled.
CASTING = {"casting": choice("none", "before_weight")}
# What a residual stream, its sum and their one gradient may be.
STREAM = {"residual": roles.residual("x"), "s": roles.typed_as("residual")}
STREAM_BACKWARD = {"ds": roles.residual(), "s": roles.residual(), "dx": roles.typed_as("s")}

norm = partial(
    op,
    category="norm",
    scalars={"eps": positive(zero=True)},
    cases=(
        Case({"b": (3,), "n": 8}),
        Case({"b": (), "n": 5}, eps=0.5),
        Case({"b": (2, 3), "n": 4}),
    ),
)
"""Declares a norm of the last axis, or its gradient."""


rms = partial(
    norm,
    options=CASTING,
    scalars={"eps": positive(zero=True), "offset": between(-1e30, 1e30)},
    cases=(
        Case({"b": (3,), "n": 8}),
        Case({"b": (), "n": 5}, eps=0.5, offset=1.0),
        Case({"b": (2, 3), "n": 4}, casting="before_weight"),
        Case({"b": (2,), "n": 6}, offset=-0.5, casting="before_weight"),
    ),
)
"""Declares a norm by the root mean square, or its gradient."""


def kernel(functor: str) -> Kernel:
    """Where the kernel of a norm is."""
    return Kernel("norm.cu", functor, schedule="rows")


_PLANES: tuple[tuple[dict[str, int | Shape], int], ...] = (
    ({"n": 3, "c": 4, "s": (5,)}, 2),
    ({"n": 2, "c": 6, "s": (2, 3)}, 3),
    ({"n": 5, "c": 6, "s": ()}, 1),
    ({"n": 1, "c": 2, "s": (4,)}, 2),
)

channel_norm = partial(
    op,
    category="channel_norm",
    scalars={"eps": positive(zero=True)},
    cases=(
        *[Case(axes) for axes, _ in _PLANES],
        Case({"n": 2, "c": 2, "s": (3, 2)}, eps=0.5),
    ),
)
"""Declares a norm whose parameters belong to the second axis, or its gradient."""


def count(op: str, name: str, value: Any) -> int:
    """A number of groups: an integer >= 1."""
    number = integer(op, name, value)
    if number < 1:
        raise value_error(op, name, "an integer >= 1", value)
    return number


def divided(op: str, axes: Axes, options: dict[str, Any]) -> Mapping[str, int]:
    """See that the channels fall into groups of one size: a resolver of no further axes."""
    groups, channels = options["num_groups"], axes["c"]
    if channels % groups:
        raise value_error(op, "num_groups", f"a divisor of c = {channels}", groups, axes)
    return {}


grouped = partial(
    channel_norm,
    options={"num_groups": count},
    resolve=divided,
    cases=tuple([Case(axes, num_groups=groups) for axes, groups in _PLANES]),
    batches=("n",),
)
"""Declares a norm over groups of channels, or its gradient."""


def planes(functor: str) -> Kernel:
    """Where the kernel of a norm of planes is: of one channel of one member of a batch."""
    return Kernel("channel_norm.cu", functor, schedule="planes")


_LAST = (-1,)


def _mean(x: Array, axes: tuple[int, ...] = _LAST) -> Array:
    """Along the axes, which stay."""
    many = max(prod([x.shape[axis] for axis in axes]), 1)
    return library_of(x).xp.sum(x, axis=axes, keepdims=True) / many


def _mean_product(x: Array, y: Array) -> Array:
    """The mean of the products along the last axis, which stays."""
    return library_of(x).dot(x, y) / max(x.shape[-1], 1)


def _summed(x: Array) -> Array:
    """Over all axes but the last, of which there may be none."""
    x = x[None, ...]
    return library_of(x).xp.sum(x, axis=tuple(range(x.ndim - 1)))


def _rms(x: Array, eps: float) -> Array:
    """One over the root of the mean square."""
    return library_of(x).inverse_root(_mean_product(x, x) + eps)


def _weighed(normal: Array, casting: str) -> Array:
    """What the weight is multiplied by."""
    return stored(normal, PRIMAL) if casting == "before_weight" else normal


def rms_norm(x: Array, weight: Array | None, eps: float, offset: float, casting: str) -> Array:
    """`x` over the root of the mean square of its last axis."""
    y = x * _rms(x, eps)
    if weight is None:
        return y
    return library_of(y).scaled(_weighed(y, casting), weight + offset)


def rms_norm_backward(
    dy: Array, x: Array, weight: Array | None, eps: float, offset: float, casting: str
) -> tuple[Array, ...]:
    """The gradients of `rms_norm` to x, and to the weight where there is one."""
    inverse = _rms(x, eps)
    pulled = dy if weight is None else dy * (weight + offset)
    along = _mean_product(pulled, x) * inverse * inverse
    dx = inverse * (pulled - x * along)
    return (dx,) if weight is None else (dx, _summed(dy * _weighed(x * inverse, casting)))


def _deviations(x: Array, axes: tuple[int, ...] = _LAST) -> tuple[Array, Array]:
    """What elements differ from the mean along the axes, and the mean."""
    # Twice: the mean of elements far from 0 is rounded by more than they differ.
    mean = _mean(x, axes)
    d = x - mean
    rest = _mean(d, axes)
    return d - rest, mean + rest


def _centred(x: Array, eps: float, axes: tuple[int, ...] = _LAST) -> tuple[Array, Array]:
    """What is normalised along the axes, and one over the standard deviations."""
    d, _ = _deviations(x, axes)
    inverse = 1 / library_of(x).xp.sqrt(_mean(d * d, axes) + eps)
    return d * inverse, inverse


def _centred_backward(
    pulled: Array, x: Array, eps: float, axes: tuple[int, ...] = _LAST
) -> tuple[Array, Array]:
    """The gradient of what is normalised to x, and what is normalised."""
    normal, inverse = _centred(x, eps, axes)
    along = _mean(pulled * normal, axes)
    return inverse * (pulled - _mean(pulled, axes) - normal * along), normal


def layer_norm(x: Array, weight: Array | None, bias: Array | None, eps: float) -> Array:
    """`x` less the mean of its last axis, over the deviation."""
    y = _centred(x, eps)[0]
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def layer_norm_backward(dy: Array, x: Array, weight: Array | None, eps: float) -> tuple[Array, ...]:
    """The gradients of `layer_norm` to x, and to weight and bias where there is a weight."""
    dx, normal = _centred_backward(dy if weight is None else dy * weight, x, eps)
    return (dx,) if weight is None else (dx, _summed(dy * normal), _summed(dy))


def _along_channels(parameter: Array, x: Array) -> Array:
    """A parameter of the second axis, to broadcast with `x`."""
    shape = (parameter.shape[0], *[1] * (x.ndim - 2))
    return library_of(x).xp.reshape(parameter, shape)


def _affine(y: Array, weight: Array | None, bias: Array | None) -> Array:
    """Each channel by its weight, and its bias added."""
    y = y if weight is None else y * _along_channels(weight, y)
    return y if bias is None else y + _along_channels(bias, y)


def _others(x: Array) -> tuple[int, ...]:
    """All axes but the second."""
    return (0, *range(2, x.ndim))


def _of_channels(dy: Array, normal: Array) -> tuple[Array, Array]:
    """The gradients to weight and bias: sums over all axes but the second."""
    total, others = library_of(dy).xp.sum, _others(dy)
    return total(dy * normal, axis=others), total(dy, axis=others)


def _groups(x: Array, number: int) -> Array:
    """`x` as rows, each a group of the channels of one member of the batch."""
    shape = (x.shape[0], number, prod(x.shape[1:]) // number)
    return library_of(x).xp.reshape(x, shape)


def group_norm(
    x: Array, weight: Array | None, bias: Array | None, eps: float, number: int
) -> Array:
    """`x` normalised over each of the groups of its channels."""
    normal = _centred(_groups(x, number), eps)[0]
    return _affine(library_of(x).xp.reshape(normal, x.shape), weight, bias)


def group_norm_backward(
    dy: Array, x: Array, weight: Array | None, eps: float, number: int
) -> tuple[Array, ...]:
    """The gradients of `group_norm` to x, and to weight and bias where there is a weight."""
    pulled = _groups(_affine(dy, weight, None), number)
    made = _centred_backward(pulled, _groups(x, number), eps)
    dx, normal = (library_of(x).xp.reshape(rows, x.shape) for rows in made)
    return (dx,) if weight is None else (dx, *_of_channels(dy, normal))


def batch_norm(
    x: Array, weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """`x` normalised over each channel; the means and variances."""
    xp, others = library_of(x).xp, _others(x)
    d, mean = _deviations(x, others)
    variance = _mean(d * d, others)
    y = _affine(d * (1 / xp.sqrt(variance + eps)), weight, bias)
    channels = x.shape[1:2]
    return y, xp.reshape(mean, channels), xp.reshape(variance, channels)


def batch_norm_backward(
    dy: Array, dmean: Array, dvar: Array, x: Array, weight: Array | None, eps: float
) -> tuple[Array, ...]:
    """The gradients of `batch_norm` to x, and to weight and bias where there is a weight."""
    others = _others(x)
    dx, normal = _centred_backward(_affine(dy, weight, None), x, eps, others)
    through = _affine(2 * _deviations(x, others)[0], dvar, dmean)
    dx = dx + through / max(prod([x.shape[axis] for axis in others]), 1)
    return (dx,) if weight is None else (dx, *_of_channels(dy, normal))


def _inverse(variance: Array, x: Array, eps: float) -> Array:
    """One over the deviations of channels, to broadcast with `x`."""
    return _along_channels(1 / library_of(x).xp.sqrt(variance + eps), x)


def batch_norm_inference(
    x: Array, mean: Array, var: Array, weight: Array | None, bias: Array | None, eps: float
) -> Array:
    """`x` normalised by means and variances of its channels that are known."""
    normal = (x - _along_channels(mean, x)) * _inverse(var, x, eps)
    return _affine(normal, weight, bias)


def batch_norm_inference_backward(
    dy: Array, x: Array, mean: Array, var: Array, weight: Array | None, eps: float
) -> tuple[Array, ...]:
    """The gradients of `batch_norm_inference` to x, and to weight and bias where there is one."""
    inverse = _inverse(var, x, eps)
    dx = _affine(dy, weight, None) * inverse
    if weight is None:
        return (dx,)
    return (dx, *_of_channels(dy, (x - _along_channels(mean, x)) * inverse))
