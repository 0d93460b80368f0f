"""The joint norm of gradients, what a step divides them by to clip it, and their multiples."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.spec import Case, Kernel
from baracuda.declaration.values import positive, real
from baracuda.libraries import A, Array, library_of

__all__ = ["clip_scale", "scale_by", "sum_of_squares"]

_kernel = partial(Kernel, "gradient_norm.cu", lists=True)


@op(
    "x[*s] -> total[]",
    category="optimiser",
    elementwise=True,
    roles={"total": roles.accumulated()},
    cases=(Case({"s": (37,)}), Case({"s": (2, 3, 5)})),
    kernel=_kernel("SumOfSquares", schedule="reduce"),
)
def sum_of_squares(x: Array, /, **dispatch: Unpack[Dispatch]) -> Array:
    """Sum of the squares of all elements, of one array or of all arrays of a list.

    Parameters
    ----------
    x : array of any shape, or list of arrays
        float16, bfloat16, float32 or float64, such as the gradients of a model. The arrays of a
        list may differ in shape and dtype.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of shape []
        float32 of 16-bit inputs, else their dtype; of a list the widest of these.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries or devices.
    ValueError
        A list of no arrays.

    Notes
    -----
    The square of the joint norm that `torch.nn.utils.clip_grad_norm_` finds. Sums over parts of a
    model, such as the shards of several processes, add up. Nothing is read back to the host.
    Deterministic: sums are taken in a fixed order, in float32 (float64 for float64). Bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.sum_of_squares([np.asarray([3.0]), np.asarray([[0.0, 4.0]])])
    array(25.)
    """
    return library_of(x).xp.sum(x * x)


@op(
    "squares[*s] -> norm[*s], scale[*s], found_inf[*s]",
    category="optimiser",
    elementwise=True,
    scalars={"max_norm": positive(), "eps": positive(zero=True), "grad_scale": positive()},
    roles={"squares": roles.value(0.0, 4.0), "found_inf": roles.metric(accumulated=False)},
    cases=(
        Case({"s": ()}, max_norm=1.0),
        Case({"s": (2, 19)}, max_norm=0.5, eps=0.1, grad_scale=2.0),
    ),
    kernel=Kernel("gradient_norm.cu", "ClipScale", schedule="elementwise"),
)
def clip_scale(
    squares: A, /, *, max_norm: float, eps: float = 1e-6, grad_scale: float = 1.0,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, A, A]:  # fmt: skip
    """Divisor of gradients in a step, for which their joint norm is at most `max_norm`.

    Parameters
    ----------
    squares : array of any shape
        The `sum_of_squares` of gradients; float16, bfloat16, float32 or float64.
    max_norm : float
        The largest norm, > 0.
    eps : float, default 1e-6
        Added to the norm before it is compared, >= 0.
    grad_scale : float, default 1
        Scale of the loss, > 0. The norm is that of gradients divided by it.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    norm : array of the shape of `squares`
        ``sqrt(squares) / grad_scale``.
    scale : array of the shape of `squares`
        ``grad_scale * max(1, (norm + eps) / max_norm)``: the `grad_scale` of a step. `grad_scale`
        where the norm is infinite or NaN.
    found_inf : array of the shape of `squares`
        1 where the norm is infinite or NaN, else 0: the `found_inf` of a step that is then skipped.

    Raises
    ------
    TypeError
        A dtype that is not floating.
    ValueError
        A number out of its bounds.

    Notes
    -----
    A step with this `scale` is one with gradients that `torch.nn.utils.clip_grad_norm_` has
    clipped, but they stay as they are and are read once less. Nothing is read back to the host.
    Deterministic and bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> grad = np.asarray([3.0, 4.0])
    >>> norm, scale, found = bc.clip_scale(bc.sum_of_squares(grad), max_norm=1.0, eps=0.0)
    >>> norm, scale
    (array(5.), array(5.))
    >>> bc.sgd(np.zeros(2), grad, lr=1.0, grad_scale=scale, found_inf=found)
    array([-0.6, -0.8])
    """
    xp = library_of(squares).xp
    norm = xp.sqrt(squares) / grad_scale
    finite, excess = xp.isfinite(norm), (norm + eps) / max_norm
    scale = grad_scale * xp.where(finite & (excess > 1), excess, 1)
    return norm, scale, xp.astype(~finite, squares.dtype)


@op(
    "x[*s] -> y[*s]",
    category="optimiser",
    elementwise=True,
    inplace=True,
    scalars={"factor": real},
    cases=(Case({"s": (4, 9)}, factor=-0.3), Case({"s": (33,)}, factor=1.0)),
    kernel=_kernel("ScaleBy", schedule="elementwise"),
)
def scale_by(x: A, /, *, factor: float, **dispatch: Unpack[Dispatch]) -> A:
    """Product of an array, or of all arrays of a list, with a number: ``factor * x``.

    Parameters
    ----------
    x : array of any shape, or list of arrays
        float16, bfloat16, float32 or float64, such as the gradients of a model. The arrays of a
        list may differ in shape and dtype.
    factor : float
        A run-time value. An array of shape [] on the device is read by the kernel alone.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of the shape of `x`, or list of arrays
        Of its dtype.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries or devices.
    ValueError
        A factor that is not finite; a list of no arrays.

    Notes
    -----
    In place by a plan: ``plan(grads, out=grads, factor=f)``. On an NVIDIA device a list takes one
    launch for each dtype, and nothing waits for the host. The kernel reads the factor first: where
    it is 1, gradients in place are neither read nor written. Deterministic and bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.scale_by(np.asarray([1.0, -2.0]), factor=0.5)
    array([ 0.5, -1. ])
    >>> grads = [np.ones(2), np.ones((1, 3))]
    >>> plan = bc.scale_by.plan(grads)
    >>> plan(grads, out=grads, factor=np.asarray(2.0))[0]
    array([2., 2.])
    """
    return x * factor
