"""The optimisers: torch's classes with other steps, and Lion."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from baracuda.declaration.values import seed as bits
from baracuda.errors import value_error
from baracuda.ops.optimisers import adamw, lion, sgd
from baracuda.optim.kept import MASTER, Group, Keeper, has_master, is_short, loaded, state_dtype


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


def at_random(optimizer: Optimizer) -> bool:
    """Whether parameters are rounded at random, by words that the number of the step chooses."""
    return bool(optimizer.defaults.get("stochastic_rounding"))


_WHOLE = ("state_dtype", "master_weights", "stochastic_rounding", "seed")


class Wide(Optimizer):
    """An optimiser that may keep more of a parameter of 16 bits than its own dtype holds."""

    def __init__(
        self, *arguments: Any, state_dtype: torch.dtype | None = None,
        master_weights: bool = False, stochastic_rounding: bool = False, seed: int = 0,
        **options: Any,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        if master_weights and stochastic_rounding:
            expected = "False beside master_weights=True, whose copy loses nothing"
            raise value_error(name, "stochastic_rounding", expected, stochastic_rounding)
        if state_dtype not in (None, torch.float32):
            raise value_error(name, "state_dtype", "torch.float32 or None", state_dtype)
        # Of the whole optimiser: groups are replaced by those of the checkpoint that is loaded.
        self._whole = {
            "state_dtype": state_dtype, "master_weights": bool(master_weights),
            "stochastic_rounding": bool(stochastic_rounding), "seed": bits(name, "seed", seed),
        }  # fmt: skip
        super().__init__(*arguments, **options)
        self.defaults.update(self._whole)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group, as torch's does; what is of the whole optimiser it may only repeat."""
        whole = self.__dict__.get("_whole") or {name: self.defaults[name] for name in _WHOLE}
        for name in _WHOLE if isinstance(param_group, dict) else ():
            given = param_group.get(name, whole[name])
            if given != whole[name]:
                expected = f"{whole[name]} as of the whole optimiser, or none in a group"
                raise value_error(type(self).__name__, name, expected, given)
        super().add_param_group(param_group)
        for name in _WHOLE:
            self.param_groups[-1].pop(name, None)

    def load_state_dict(self, state_dict: Any) -> None:
        """Take states, as torch's does; those of float32 are not rounded to their parameter."""
        given = dict[str, Any]()
        # torch rounds between the hooks. Hooks of others come before and after.
        handles = (
            self.register_load_state_dict_pre_hook(lambda _, found: given.update(found)),
            self.register_load_state_dict_post_hook(lambda _: self._unrounded(given), prepend=True),
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for handle in handles:
                handle.remove()

    def _unrounded(self, given: dict[str, Any]) -> None:
        saved = chain.from_iterable([group["params"] for group in given["param_groups"]])
        params = chain.from_iterable([group["params"] for group in self.param_groups])
        for number, p in zip(saved, params, strict=True):
            row = given["state"].get(number, {}) if is_short(p) else {}
            for name, x in row.items():
                if name not in ("step", MASTER) and isinstance(x, Tensor) and x.is_floating_point():
                    self.state[p][name] = x.to(p.device, state_dtype(self, p))
            if MASTER in row:
                del self.state[p][MASTER]
                if has_master(self, p):
                    self.state[p][MASTER] = row[MASTER].to(p.device, torch.float32)
                    # The weights may be loaded later: the next step looks whether it is theirs.
                    loaded(self).add(p)


class AdamW(Wide, torch.optim.AdamW):
    """AdamW: `torch.optim.AdamW`, with a step that is one launch for all parameters of a dtype.

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, maximize, capturable, fused
        As in `torch.optim.AdamW`. `lr` may be a tensor on the device of the parameters. With
        `capturable` or `fused` the numbers of steps lie on that device, and a CUDA graph can
        capture a step that follows one outside of it.
    foreach
        Has no effect.
    state_dtype : torch.dtype, optional
        ``torch.float32``: states of parameters of 16 bits are float32. Default: the dtype of the
        parameter, or float32 where it has a master copy.
    master_weights : bool, default False
        Parameters of 16 bits have a float32 copy, the state ``master_param``. A step moves the copy
        and rounds it to the parameter, in one pass. The copy is made by the first step: give a
        model its weights before.
    stochastic_rounding : bool, default False
        Parameters of 16 bits, which have no master copy then, are rounded up or down at random, as
        by `baracuda.adamw`. The state ``step`` is counted, and chooses the random words.
    seed : int, default 0
        64 bits, from which they follow too. Another process has the same words, and so have all
        replicas of a DTensor; its shards have words of their own.

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
            for part, number in kept.count():
                every = {**values, "step": number}
                kept.run(adamw, columns, part, number, every, group["maximize"])
            kept.take_back()
        return loss


class SGD(Wide, torch.optim.SGD):
    """Stochastic gradient descent: `torch.optim.SGD`, with a step in one launch for each dtype.

    Parameters
    ----------
    params, lr, momentum, dampening, weight_decay, nesterov, maximize
        As in `torch.optim.SGD`. `lr` may be a tensor on the device of the parameters.
    foreach, fused
        Have no effect.
    state_dtype, master_weights, stochastic_rounding, seed
        As in `AdamW`.

    Raises
    ------
    NotImplementedError
        By a step: `differentiable`, and sparse gradients.

    Notes
    -----
    Takes DTensors and `torch.amp.GradScaler` as `AdamW` does. As with torch's ``fused=True``, a
    first step that the scaler skips begins the momentum at 0, so that `dampening` counts in the
    next one. Deterministic: as `baracuda.sgd`.

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
            kept, columns = keeper.lists(self, i, names, counted=at_random(self))
            values = {name: group[name] for name in ("lr", "momentum", "weight_decay", "nesterov")}
            for part, number in kept.count():
                for half, new in kept.halves(part):
                    # torch begins with the gradient itself.
                    every = {**values, "dampening": 0.0 if new else group["dampening"]}
                    kept.run(sgd, columns, half, number, every, group["maximize"])
            kept.take_back()
        return loss


class Lion(Wide):
    """Lion: along the sign of an average of gradients, in one launch for each dtype.

    Parameters
    ----------
    params : iterable of tensors, or of dicts
        As torch's optimisers take them.
    lr : float or tensor, default 1e-4
        Learning rate, >= 0.
    betas : tuple of two floats, default (0.9, 0.99)
        Share of the average in the direction, and decay of the average.
    weight_decay : float, default 0
        Parameters lose ``lr * weight_decay`` of themselves.
    maximize : bool, default False
        Step the other way.
    state_dtype, master_weights, stochastic_rounding, seed
        As in `AdamW`.

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
        weight_decay: float = 0.0, *, maximize: bool = False, **wide: Any,
    ) -> None:  # fmt: skip
        own = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, own, **wide)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; `closure` computes the loss again, which is returned."""
        loss, keeper = _evaluated(closure), Keeper.of(self)
        for i, group in enumerate(self.param_groups):
            kept, columns = keeper.lists(self, i, ("exp_avg",), counted=at_random(self))
            beta1, beta2 = group["betas"]
            values = {"lr": group["lr"], "beta1": beta1, "beta2": beta2}
            values["weight_decay"] = group["weight_decay"]
            for part, number in kept.count():
                kept.run(lion, columns, part, number, values, group["maximize"])
            kept.take_back()
        return loss
