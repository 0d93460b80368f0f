"""The optimisers: torch's classes with other steps, and Lion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from baracuda.ops.optimisers import adamw, lion, sgd
from baracuda.optim.kept import Group, Keeper


def _refuse(optimizer: Optimizer, group: Group) -> None:
    """An error for what the steps do not do."""
    for name in ("amsgrad", "differentiable"):
        if group.get(name):
            raise NotImplementedError(
                f"{type(optimizer).__name__}: {name}: expected False, got {group[name]}: "
                f"torch.optim.{type(optimizer).__name__} has it"
            )


def _evaluated(closure: Callable[[], Any] | None) -> Any:
    """What the closure returns."""
    with torch.enable_grad():
        return None if closure is None else closure()


class AdamW(torch.optim.AdamW):
    """AdamW: `torch.optim.AdamW`, with a step that is one launch for all parameters of a dtype.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, maximize, capturable, fused
        As in `torch.optim.AdamW`. `lr` may be a tensor on the device of the parameters. With
        `capturable` or `fused` the numbers of steps lie on that device, and a CUDA graph can
        capture a step that follows one outside of it.
    foreach
        Has no effect.

    Raises
    ------
    NotImplementedError
        By a step: `amsgrad`, `differentiable`, and sparse gradients.

    Notes
    -----
    Takes DTensors, whose parts here it moves. `torch.amp.GradScaler` leaves its factor to the step.
    Where parameters lie on another device than the numbers of their steps, the flag of
    `GradScaler` is read back. Deterministic: as `baracuda.adamw`.

    Examples
    --------
    >>> import torch, baracuda as bc
    >>> p = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = bc.optim.AdamW([p], lr=0.1)
    >>> p.grad = torch.tensor([0.5, -2.0])
    >>> optimizer.step()
    >>> p.detach()
    tensor([0.8990, 1.0990])
    """

    _step_supports_amp_scaling = True
    _names = ("exp_avg", "exp_avg_sq")

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; `closure` computes the loss again, which is returned."""
        loss, keeper = _evaluated(closure), Keeper.of(self)
        for i, group in enumerate(self.param_groups):
            _refuse(self, group)
            kept, columns = keeper.lists(self, i, self._names, counted=True)
            beta1, beta2 = group["betas"]
            values = {"lr": group["lr"], "beta1": beta1, "beta2": beta2, "eps": group["eps"]}
            values |= {"weight_decay": group["weight_decay"]}
            for device, places, number in kept.count():
                every = {**values, "step": number}
                kept.run(adamw, columns, device, places, every, group["maximize"])
            kept.take_back()
        return loss


class SGD(torch.optim.SGD):
    """Stochastic gradient descent: `torch.optim.SGD`, with a step in one launch for each dtype.

    Parameters
    ----------
    params, lr, momentum, dampening, weight_decay, nesterov, maximize
        As in `torch.optim.SGD`. `lr` may be a tensor on the device of the parameters.
    foreach, fused
        Have no effect.

    Raises
    ------
    NotImplementedError
        By a step: `differentiable`, and sparse gradients.

    Notes
    -----
    Takes DTensors and `torch.amp.GradScaler` as `AdamW` does. Deterministic: as `baracuda.sgd`.

    Examples
    --------
    >>> import torch, baracuda as bc
    >>> p = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = bc.optim.SGD([p], lr=0.1, momentum=0.9)
    >>> p.grad = torch.tensor([0.5, -2.0])
    >>> optimizer.step()
    >>> p.detach()
    tensor([0.9500, 1.2000])
    """

    _step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; `closure` computes the loss again, which is returned."""
        loss, keeper = _evaluated(closure), Keeper.of(self)
        for i, group in enumerate(self.param_groups):
            _refuse(self, group)
            names = ("momentum_buffer",) if group["momentum"] else ()
            kept, columns = keeper.lists(self, i, names)
            values = {name: group[name] for name in ("lr", "momentum", "weight_decay", "nesterov")}
            # torch begins with the gradient itself.
            for new, dampening in ((True, 0.0), (False, group["dampening"])):
                for where in kept.parts(new):
                    every = {**values, "dampening": dampening}
                    kept.run(sgd, columns, *where, every, group["maximize"])
        return loss


class Lion(Optimizer):
    """Lion: along the sign of an average of gradients, in one launch for each dtype.

    Parameters
    ----------
    params : iterable of tensors, or of dicts
        As torch's optimisers take them.
    lr : float or tensor, default 1e-4
        Learning rate, >= 0.
    betas : tuple of two floats, default (0.9, 0.99)
        What the direction takes of the average, and what the average keeps of itself.
    weight_decay : float, default 0
        Parameters lose ``lr * weight_decay`` of themselves.
    maximize : bool, default False
        Step the other way.

    Raises
    ------
    ValueError
        A number out of its bounds, by a step.
    NotImplementedError
        By a step: sparse gradients.

    Notes
    -----
    Chen et al. (arXiv:2302.06675, algorithm 2). Takes DTensors and `torch.amp.GradScaler` as
    `AdamW` does. Deterministic: as `baracuda.lion`.

    Examples
    --------
    >>> import torch, baracuda as bc
    >>> p = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = bc.optim.Lion([p], lr=0.1)
    >>> p.grad = torch.tensor([0.5, -2.0])
    >>> optimizer.step()
    >>> p.detach()
    tensor([0.9000, 1.1000])
    """

    _step_supports_amp_scaling = True

    def __init__(
        self, params: Any, lr: float | Tensor = 1e-4, betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0, *, maximize: bool = False,
    ) -> None:  # fmt: skip
        own = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, own)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; `closure` computes the loss again, which is returned."""
        loss, keeper = _evaluated(closure), Keeper.of(self)
        for i, group in enumerate(self.param_groups):
            kept, columns = keeper.lists(self, i, ("exp_avg",))
            beta1, beta2 = group["betas"]
            values = {"lr": group["lr"], "beta1": beta1, "beta2": beta2}
            values["weight_decay"] = group["weight_decay"]
            for where in kept.parts():
                kept.run(lion, columns, *where, values, group["maximize"])
        return loss
