"""Elementwise ops of several arrays."""

from __future__ import annotations

from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import real
from baracuda.families.numerics import traced
from baracuda.libraries import A, Array, library_of

__all__ = ["lerp", "lerp_backward"]

WEIGHT = {"weight": real}
CASES = (
    Case({"s": (37,)}, weight=0.25),
    Case({"s": (4, 33)}, weight=0.75),
    Case({"s": (2, 3, 5)}, weight=1.0),
    Case({"s": ()}, weight=-1.5),
)


@op(
    "a[*s], b[*s] -> y[*s]",
    category="elementwise",
    namesake="lerp",
    dtypes=FLOATS,
    scalars=WEIGHT,
    elementwise=True,
    inplace=True,
    kernel=Kernel("elementwise.cu", "Lerp", schedule="elementwise"),
    cases=CASES,
)
def lerp(a: A, b: Array, /, *, weight: float, **dispatch: Unpack[Dispatch]) -> A:
    """Interpolate linearly: ``a + weight * (b - a)``.

    Parameters
    ----------
    a, b : array of shape [*s]
        float16, bfloat16, float32 or float64; one shape, no broadcasting.
    weight : float
        A run-time value: one plan serves all weights. Any real number; outside 0 to 1 it
        extrapolates. float64 arrays see it at full precision.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape [*s]
        In the layout of a dense `a`.

    Raises
    ------
    TypeError
        Mixed libraries, devices or dtypes; `weight` not a real number.
    ValueError
        Shapes that differ.

    Notes
    -----
    From ``weight = 0.5`` on it is evaluated from the other end, ``b - (b - a) * (1 - weight)``,
    as `torch.lerp` does: the two ends are met exactly while ``b - a`` is finite. Bit-stable.
    torch also takes a tensor of weights, and broadcasts.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.lerp(np.asarray([1e8, 0.0]), np.asarray([1.0, 4.0]), weight=1.0)
    array([1., 4.])
    """
    if traced(weight):
        # Of both ends the nearer is the one that is exact.
        near = weight < 0.5
        return library_of(a).xp.where(near, a + (b - a) * weight, b - (b - a) * (1 - weight))
    if weight < 0.5:
        return a + (b - a) * weight
    return b - (b - a) * (1 - weight)


@op(
    "dy[*s] -> da[*s], db[*s]",
    category="elementwise",
    adjoint_of="lerp",
    dtypes=FLOATS,
    scalars=WEIGHT,
    elementwise=True,
    inplace=True,
    kernel=Kernel("elementwise.cu", "LerpBackward", schedule="elementwise"),
    cases=CASES,
)
def lerp_backward(dy: A, /, *, weight: float, **dispatch: Unpack[Dispatch]) -> tuple[A, A]:
    """Gradients of `lerp`: ``(1 - weight) * dy`` and ``weight * dy``.

    Parameters
    ----------
    dy : array of shape [*s]
        Gradient of the result.
    weight : float
        As in `lerp`; it gets no gradient.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    da, db : array of shape [*s]
        In the layout of a dense `dy`.

    Raises
    ------
    TypeError
        A dtype that is not floating; `weight` not a real number.

    Notes
    -----
    Linear in `dy`; ``1 - weight`` is taken in float64. Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> da, db = bc.lerp_backward(np.ones(2), weight=0.25)
    >>> da, db
    (array([0.75, 0.75]), array([0.25, 0.25]))
    """
    return dy * (1 - weight), dy * weight
