"""torch optimisers whose step is one launch for all parameters of a dtype.

`AdamW` and `SGD` are subclasses of torch's: constructor, parameter groups and ``state_dict`` are
theirs, so one line can be swapped and checkpoints load both ways. `Lion` is as its paper has it.
``import baracuda`` does not import it; asking for ``baracuda.optim`` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "baracuda.optim needs torch: pip install 'baracuda[torch]'", name="torch"
    ) from None

from torch import Tensor
from torch.optim import Optimizer

from baracuda.ops.optimisers import adamw, lion, sgd

__all__ = ["SGD", "AdamW", "Lion"]

Group = dict[str, Any]


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


def _local(x: Any) -> Tensor:
    """A tensor; of a DTensor the part that lies here."""
    return x.to_local() if hasattr(x, "to_local") else x  # type: ignore[no-any-return]


def _gradient(p: Tensor) -> Tensor:
    """The gradient of a parameter, cut as that is."""
    grad: Any = p.grad
    cut = getattr(p, "placements", None)
    if cut is not None and grad.placements != cut:
        grad = grad.redistribute(placements=cut)
    return _local(grad)


def _value(x: Any, device: torch.device) -> Any:
    """A number: on this device it stays there, else it is read."""
    if not isinstance(x, Tensor):
        return x
    return x.reshape(()) if x.device == device else x.item()


def _on_device(group: Group) -> bool:
    """Whether the numbers of steps lie beside the parameters."""
    return bool(group.get("capturable") or group.get("fused"))


def _ready(
    optimizer: Optimizer, group: Group, names: Sequence[str], counted: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters that have a gradient: those whose states are new, and others."""
    new, old = list[Tensor](), list[Tensor]()
    for p in group["params"]:
        if p.grad is None:
            continue
        if p.grad.is_sparse:
            name = type(optimizer).__name__
            raise NotImplementedError(f"{name}: expected a dense gradient, got a sparse one")
        state = optimizer.state[p]
        missing = [name for name in names if state.get(name) is None]
        if counted and "step" not in state:
            double = torch.get_default_dtype() == torch.float64
            dtype = torch.float64 if double else torch.float32
            device = p.device if _on_device(group) else torch.device("cpu")
            state["step"] = torch.zeros((), dtype=dtype, device=device)
        for name in missing:
            state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        (new if missing else old).append(p)
    return new, old


class _Scaled:
    """The factor and the flag that `torch.amp.GradScaler` leaves at the optimiser for a step."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.scale = getattr(optimizer, "grad_scale", None)
        self.found_inf = getattr(optimizer, "found_inf", None)

    def values(self, group: Group, device: torch.device) -> dict[str, Any]:
        """`grad_scale` and `found_inf` of a step; to maximise, gradients change their sign."""
        scale = 1.0 if self.scale is None else _value(self.scale, device)
        found = 0.0 if self.found_inf is None else _value(self.found_inf, device)
        return {"grad_scale": -scale if group["maximize"] else scale, "found_inf": found}


def _run(
    op: Any, optimizer: Optimizer, group: Group, params: Sequence[Tensor], names: Sequence[str],
    values: dict[str, Any],
) -> None:  # fmt: skip
    """A step in place, for the parameters of each device."""
    scaled, devices = _Scaled(optimizer), dict[torch.device, list[Tensor]]()
    for p in params:
        devices.setdefault(p.device, []).append(p)
    for device, some in devices.items():
        moved = [[*map(_local, some)]]
        moved += [[_local(optimizer.state[p][name]) for p in some] for name in names]
        arrays = [moved[0], [*map(_gradient, some)], *moved[1:]]
        numbers = {name: _value(x, device) for name, x in values.items()}
        out = tuple(moved) if names else moved[0]
        op.plan(*arrays)(*arrays, out=out, **numbers, **scaled.values(group, device))


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
        loss = _evaluated(closure)
        for group in self.param_groups:
            _refuse(self, group)
            new, old = _ready(self, group, self._names, counted=True)
            for number, some in self._by_step(group, [*new, *old]):
                beta1, beta2 = group["betas"]
                values = {"lr": group["lr"], "beta1": beta1, "beta2": beta2, "eps": group["eps"]}
                values |= {"weight_decay": group["weight_decay"], "step": number}
                _run(adamw, self, group, some, self._names, values)
            self._take_back([*new, *old])
        return loss

    def _by_step(self, group: Group, params: list[Tensor]) -> list[tuple[Any, list[Tensor]]]:
        """The parameters by the number of their step, which is counted."""
        if not params:
            return []
        steps = [self.state[p]["step"] for p in params]
        torch._foreach_add_(steps, 1)
        if not _on_device(group):
            found = dict[int, list[Tensor]]()
            for p, number in zip(params, steps, strict=True):
                found.setdefault(int(number), []).append(p)
            return [*found.items()]
        # Those that were counted alike stay so, also by graphs: it is read once for the same ones.
        cache = self.__dict__.setdefault("_alike", {})
        known, alike = cache.get(id(group), ((), ()))
        if len(known) != len(steps) or not all(map(is_, known, steps)):
            parts = dict[Any, list[int]]()
            for i, (p, number) in enumerate(zip(params, [*map(float, steps)], strict=True)):
                parts.setdefault((number, p.device), []).append(i)
            alike = tuple(parts.values())
            cache[id(group)] = steps, alike
        return [(steps[some[0]].to(torch.int64), [params[i] for i in some]) for some in alike]

    def _take_back(self, params: list[Tensor]) -> None:
        """Steps that were skipped do not count."""
        found: Any = getattr(self, "found_inf", None)
        flags = dict[torch.device, Tensor]()
        for p in params if found is not None else ():
            number = self.state[p]["step"]
            if number.device not in flags:
                flags[number.device] = found.reshape(()).to(number.device, number.dtype)
            number.sub_(flags[number.device])


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
        loss = _evaluated(closure)
        for group in self.param_groups:
            _refuse(self, group)
            names = ("momentum_buffer",) if group["momentum"] else ()
            new, old = _ready(self, group, names)
            values = {name: group[name] for name in ("lr", "momentum", "weight_decay", "nesterov")}
            # torch begins with the gradient itself.
            for some, dampening in ((new, 0.0), (old, group["dampening"])):
                _run(sgd, self, group, some, names, {**values, "dampening": dampening})
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
        loss = _evaluated(closure)
        for group in self.param_groups:
            new, old = _ready(self, group, ("exp_avg",))
            beta1, beta2 = group["betas"]
            values = {"lr": group["lr"], "beta1": beta1, "beta2": beta2}
            values["weight_decay"] = group["weight_decay"]
            _run(lion, self, group, [*new, *old], ("exp_avg",), values)
        return loss
