"""Steps of optimisers as functions: parameter, gradient and states in, parameter and states out.

Nothing is kept between calls: the states are the caller's. In place: a plan's `out=`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from sys import float_info
from typing import Unpack

from baracuda.calls.op import op
from baracuda.declaration import roles
from baracuda.declaration.dispatch import Dispatch
from baracuda.declaration.roles import Role
from baracuda.declaration.spec import Case, Kernel, Normaliser
from baracuda.declaration.values import Number, counting, flag, nonzero, positive, real
from baracuda.declaration.values import seed as bits
from baracuda.families.numerics import plus, scaled, sign
from baracuda.families.steps import adam_step, done, held, rest, unscaled
from baracuda.libraries import A, Array

__all__ = ["adam", "adamw", "ema", "lion", "sgd"]

_RATE = Number("a finite number >= 0", (0.0, float_info.max))
# 1 - beta is needed to all of its digits, so an array of it keeps its own dtype.
_BETA = Number("a number from 0 to below 1", (0.0, 1 - 2.0**-53), exact=True)
_FLAGS = {"copy": flag, "stochastic_rounding": flag}
_BETAS: Mapping[str, Normaliser] = {"lr": _RATE, "beta1": _BETA, "beta2": _BETA}
_SCALED: Mapping[str, Normaliser] = {"grad_scale": nonzero, "found_inf": real}
_RANDOM: Mapping[str, Normaliser] = {"seed": bits, "offset": bits}
# States may be float32 beside 16 bits; so may the parameter, a master copy.
_PARAM = {"param": roles.residual(), "next_param": roles.typed_as("param")}

_kernel = partial(Kernel, "optimisers.cu", schedule="elementwise", lists=True)
_op = partial(op, category="optimiser", elementwise=True, inplace=True)


_step = partial(_op, options=_FLAGS, numbered="stochastic_rounding")


def _forms(*sides: tuple[str, str]) -> list[str]:
    """The forms of a step: alone, with a rounded copy, or rounded at random."""
    ways = (
        ("", "copy=False and stochastic_rounding=False"),
        (", rounded[*s]", "copy=True and stochastic_rounding=False"),
        ("", "copy=False and stochastic_rounding=True"),
    )
    return [f"{given} -> {new}{end} if {when}" for end, when in ways for given, new in sides]


def _state(name: str, **how: float) -> dict[str, Role]:
    """The roles of a state, and of the new one."""
    return {name: roles.parameter(**how), f"next_{name}": roles.typed_as(name)}


_adams = partial(
    _step,
    *_forms(
        ("param[*s], grad[*s], exp_avg[*s], exp_avg_sq[*s]",
         "next_param[*s], next_exp_avg[*s], next_exp_avg_sq[*s]"),
    ),
    scalars={**_BETAS, "eps": positive(zero=True), "weight_decay": _RATE, "step": counting,
             **_SCALED, **_RANDOM},
    roles={**_PARAM, **_state("exp_avg"), **_state("exp_avg_sq", low=0.0, high=1.0)},
    cases=(
        Case({"s": (4, 9)}, step=3),
        Case({"s": (33,)}, step=2, eps=1e-3, lr=0.5, weight_decay=0.1, grad_scale=8.0, copy=True),
        Case({"s": (3, 11)}, step=2, lr=0.25, stochastic_rounding=True, seed=2**64 - 3, offset=2),
    ),
)  # fmt: skip


@_adams(kernel=_kernel("Adamw"))
def adamw(
    param: A, grad: Array, exp_avg: Array, exp_avg_sq: Array, /, *, lr: float = 1e-3,
    beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.01,
    step: int, grad_scale: float = 1.0, found_inf: float = 0.0, copy: bool = False,
    stochastic_rounding: bool = False, seed: int = 0, offset: int = 0,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, ...]:  # fmt: skip
    """One step of AdamW: Adam with decoupled weight decay.

    Parameters
    ----------
    param : array of any shape
        float16, bfloat16, float32 or float64. May be float32 beside a 16-bit `grad`.
    grad : array of the shape of `param`
        Its gradient, times `grad_scale`.
    exp_avg, exp_avg_sq : array of the shape of `param`
        Moving averages of the gradient and of its square; zeros before the first step. Of the dtype
        of `grad`, or both float32 beside a 16-bit one.
    lr : float, default 1e-3
        Learning rate, >= 0.
    beta1, beta2 : float, default 0.9 and 0.999
        Decay rates of the two averages, from 0 to below 1.
    eps : float, default 1e-8
        Added to the root of the second average.
    weight_decay : float, default 0.01
        The parameter loses ``lr * weight_decay`` of itself.
    step : int
        The number of this step, from 1 on.
    grad_scale : float, default 1
        Scale of the loss: `grad` is divided by it.
    found_inf : float, default 0
        Other than 0: skip the step, so the results are what came in.
    copy : bool, default False
        Return the new parameter once more, in the dtype of `grad`. Not with `stochastic_rounding`.
    stochastic_rounding : bool, default False
        Round a new parameter of 16 bits up or down at random, so that its mean is the number that
        is rounded. Steps far below its last place then count as they should.
    seed, offset : int, default 0
        64 bits each, as in `dropout`: the rounding follows from them and the element's place. Give
        each step another offset. The k-th arrays of lists take ``offset + 2**32 * k``, k from 0.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    next_param, next_exp_avg, next_exp_avg_sq : array of the shape of `param`
        Each of the dtype of what it follows.
    rounded : array of the shape of `param`
        Only with `copy`.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices, or dtypes but those above.
    ValueError
        Arrays of other shapes than `param`; a number out of its bounds.

    Notes
    -----
    Loshchilov and Hutter (arXiv:1711.05101, algorithm 2). Agrees with `torch.optim.AdamW`. Every
    number may be an array on the device, for CUDA graphs and schedules without a synchronisation.
    Deterministic and bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> p, g, zeros = np.ones(2), np.asarray([0.5, -2.0]), np.zeros(2)
    >>> p, m, v = bc.adamw(p, g, zeros, zeros, lr=0.1, step=1)
    >>> p, m
    (array([0.899, 1.099]), array([ 0.05, -0.2 ]))
    """
    g = unscaled(grad, grad_scale)
    kept = scaled(param, 1 - lr * weight_decay)
    new = adam_step(kept, g, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, step)
    return done(
        found_inf, copy, (stochastic_rounding, seed, offset), new, (param, exp_avg, exp_avg_sq)
    )


@_adams(kernel=_kernel("Adam"))
def adam(
    param: A, grad: Array, exp_avg: Array, exp_avg_sq: Array, /, *, lr: float = 1e-3,
    beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0,
    step: int, grad_scale: float = 1.0, found_inf: float = 0.0, copy: bool = False,
    stochastic_rounding: bool = False, seed: int = 0, offset: int = 0,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, ...]:  # fmt: skip
    """One step of Adam.

    Parameters
    ----------
    param : array of any shape
        float16, bfloat16, float32 or float64. May be float32 beside a 16-bit `grad`.
    grad : array of the shape of `param`
        Its gradient, times `grad_scale`.
    exp_avg, exp_avg_sq : array of the shape of `param`
        Moving averages of the gradient and of its square; zeros before the first step. Of the dtype
        of `grad`, or both float32 beside a 16-bit one.
    lr, beta1, beta2, eps, step, grad_scale, found_inf, copy, stochastic_rounding, seed, offset
        As in `adamw`.
    weight_decay : float, default 0
        The gradient gets ``weight_decay * param`` added.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    next_param, next_exp_avg, next_exp_avg_sq : array of the shape of `param`
        Each of the dtype of what it follows.
    rounded : array of the shape of `param`
        Only with `copy`: the new parameter in the dtype of `grad`.

    Raises
    ------
    TypeError, ValueError
        As `adamw`.

    Notes
    -----
    Kingma and Ba (arXiv:1412.6980, algorithm 1). Agrees with `torch.optim.Adam`. Deterministic and
    bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> zeros = np.zeros(2)
    >>> bc.adam(np.ones(2), np.asarray([0.5, -2.0]), zeros, zeros, lr=0.1, step=1)[0]
    array([0.9, 1.1])
    """
    g = unscaled(grad, grad_scale)
    g = plus(g, param, weight_decay)
    new = adam_step(param, g, exp_avg, exp_avg_sq, lr, beta1, beta2, eps, step)
    return done(
        found_inf, copy, (stochastic_rounding, seed, offset), new, (param, exp_avg, exp_avg_sq)
    )


@_step(
    *_forms(
        ("param[*s], grad[*s]", "next_param[*s]"),
        ("param[*s], grad[*s], momentum_buffer[*s]", "next_param[*s], next_momentum_buffer[*s]"),
    ),
    scalars={"lr": _RATE, "momentum": real, "dampening": real, "weight_decay": _RATE,
             "nesterov": flag, **_SCALED, **_RANDOM},
    roles={**_PARAM, **_state("momentum_buffer")},
    cases=(
        Case({"s": (4, 9)}, lr=0.1, momentum=0.9, nesterov=True),
        Case({"s": (33,)}, lr=0.5, momentum=0.8, dampening=0.1, weight_decay=0.1, copy=True),
        Case({"s": (3, 11)}, lr=0.5, momentum=0.5, stochastic_rounding=True, seed=7, offset=2),
    ),
    kernel=_kernel("Sgd"),
)  # fmt: skip
def sgd(
    param: A, grad: Array, momentum_buffer: Array | None = None, /, *, lr: float = 1e-3,
    momentum: float = 0.0, dampening: float = 0.0, weight_decay: float = 0.0,
    nesterov: bool = False, grad_scale: float = 1.0, found_inf: float = 0.0, copy: bool = False,
    stochastic_rounding: bool = False, seed: int = 0, offset: int = 0,
    **dispatch: Unpack[Dispatch],
) -> A | tuple[A, ...]:  # fmt: skip
    """One step of stochastic gradient descent, with momentum if a momentum buffer is given.

    Parameters
    ----------
    param : array of any shape
        float16, bfloat16, float32 or float64. May be float32 beside a 16-bit `grad`.
    grad : array of the shape of `param`
        Its gradient, times `grad_scale`.
    momentum_buffer : array of the shape of `param`, optional
        Of the dtype of `grad`, or float32 beside a 16-bit one. Zeros before the first step, with
        ``dampening=0`` in it: torch's first buffer is the gradient.
    lr : float, default 1e-3
        Learning rate, >= 0.
    momentum : float, default 0
        Decay of the buffer per step; without a buffer it has no effect.
    dampening : float, default 0
        The buffer takes ``1 - dampening`` of the gradient.
    weight_decay : float, default 0
        The gradient gets ``weight_decay * param`` added.
    nesterov : bool, default False
        Step along ``grad + momentum * next_momentum_buffer``.
    grad_scale, found_inf, copy, stochastic_rounding, seed, offset
        As in `adamw`.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    next_param : array of the shape of `param`
        Of the dtype of `param`.
    next_momentum_buffer : array of the shape of `param`
        Only with a buffer, of its dtype.
    rounded : array of the shape of `param`
        Only with `copy`: the new parameter in the dtype of `grad`.

    Raises
    ------
    TypeError, ValueError
        As `adamw`.

    Notes
    -----
    Sutskever et al. (ICML 2013) as `torch.optim.SGD` has it, with which it agrees. Deterministic
    and bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.sgd(np.ones(2), np.asarray([0.5, -2.0]), lr=0.1)
    array([0.95, 1.2 ])
    >>> bc.sgd(np.ones(2), np.ones(2), np.ones(2), lr=0.1, momentum=0.9)
    (array([0.81, 0.81]), array([1.9, 1.9]))
    """
    g = plus(unscaled(grad, grad_scale), param, weight_decay)
    if momentum_buffer is None:
        return done(
            found_inf, copy, (stochastic_rounding, seed, offset), (plus(param, g, -lr),), (param,)
        )
    buffer = plus(momentum * momentum_buffer, g, 1 - dampening)
    along = plus(g, buffer, momentum) if nesterov else buffer
    return done(
        found_inf,
        copy,
        (stochastic_rounding, seed, offset),
        (plus(param, along, -lr), buffer),
        (param, momentum_buffer),
    )


@_step(
    *_forms(("param[*s], grad[*s], exp_avg[*s]", "next_param[*s], next_exp_avg[*s]")),
    scalars={**_BETAS, "weight_decay": _RATE, **_SCALED, **_RANDOM},
    roles={**_PARAM, **_state("exp_avg")},
    cases=(
        Case({"s": (4, 9)}),
        Case({"s": (33,)}, lr=0.5, weight_decay=0.1, grad_scale=8.0, copy=True),
        Case({"s": (3, 11)}, lr=0.25, stochastic_rounding=True, seed=7, offset=2**33),
    ),
    kernel=_kernel("Lion"),
)
def lion(
    param: A, grad: Array, exp_avg: Array, /, *, lr: float = 1e-4, beta1: float = 0.9,
    beta2: float = 0.99, weight_decay: float = 0.0, grad_scale: float = 1.0,
    found_inf: float = 0.0, copy: bool = False,
    stochastic_rounding: bool = False, seed: int = 0, offset: int = 0,
    **dispatch: Unpack[Dispatch],
) -> tuple[A, ...]:  # fmt: skip
    """One step of Lion: along the sign of an average of gradients.

    Parameters
    ----------
    param : array of any shape
        float16, bfloat16, float32 or float64. May be float32 beside a 16-bit `grad`.
    grad : array of the shape of `param`
        Its gradient, times `grad_scale`.
    exp_avg : array of the shape of `param`
        Moving average of the gradient; zeros before the first step. Of the dtype of `grad`, or
        float32 beside a 16-bit one.
    lr : float, default 1e-4
        Learning rate, >= 0.
    beta1 : float, default 0.9
        Share of the average in the direction, from 0 to below 1.
    beta2 : float, default 0.99
        Decay of the average per step, from 0 to below 1.
    weight_decay : float, default 0
        The parameter loses ``lr * weight_decay`` of itself.
    grad_scale, found_inf, copy, stochastic_rounding, seed, offset
        As in `adamw`.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    next_param, next_exp_avg : array of the shape of `param`
        Each of the dtype of what it follows.
    rounded : array of the shape of `param`
        Only with `copy`: the new parameter in the dtype of `grad`.

    Raises
    ------
    TypeError, ValueError
        As `adamw`.

    Notes
    -----
    Chen et al. (arXiv:2302.06675, algorithm 2). The sign of 0 is 0. Deterministic and bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.lion(np.ones(2), np.asarray([0.5, -2.0]), np.zeros(2), lr=0.1)
    (array([0.9, 1.1]), array([ 0.005, -0.02 ]))
    """
    g = unscaled(grad, grad_scale)
    along = sign(plus(held(beta1, g) * exp_avg, g, rest(beta1, g)))
    average = plus(held(beta2, g) * exp_avg, g, rest(beta2, g))
    new = plus(scaled(param, 1 - lr * weight_decay), along, -lr), average
    return done(found_inf, copy, (stochastic_rounding, seed, offset), new, (param, exp_avg))


@_op(
    "average[*s], value[*s] -> next_average[*s]",
    scalars={"decay": _BETA},
    roles=_state("average"),
    cases=(Case({"s": (4, 9)}, decay=0.9), Case({"s": (33,)}, decay=0.9999)),
    kernel=_kernel("Ema"),
)
def ema(average: A, value: Array, /, *, decay: float, **dispatch: Unpack[Dispatch]) -> A:
    """Exponential moving average: ``average + (1 - decay) * (value - average)``.

    Parameters
    ----------
    average : array of any shape
        float16, bfloat16, float32 or float64. May be float32 beside a 16-bit `value`.
    value : array of the shape of `average`
        The array to average, such as a parameter after its step.
    decay : float
        Decay of the average per step, from 0 to below 1.
    **dispatch
        `Dispatch` options.

    Returns
    -------
    array of the shape of `average`
        Of its dtype.

    Raises
    ------
    TypeError
        A dtype that is not floating; mixed libraries, devices, or dtypes but those above.
    ValueError
        `value` of another shape than `average`; `decay` below 0, or 1 and above.

    Notes
    -----
    Agrees with `torch.optim.swa_utils.get_ema_avg_fn`. Deterministic and bit-stable.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> bc.ema(np.zeros(2), np.asarray([1.0, -2.0]), decay=0.75)
    array([ 0.25, -0.5 ])
    """
    return plus(average, value - average, rest(decay, value))
