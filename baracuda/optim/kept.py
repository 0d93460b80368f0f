"""What an optimiser keeps from one step to the next, so that a step walks over no parameter twice.

Lists of parameters and states, and their plan, stay as they are while the same parameters have
gradients. Kept objects are compared by identity, and the arrays in them by the plan, in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import is_, itemgetter, not_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from baracuda.calls.lists import ListPlan, in_force, joined

Group = dict[str, Any]
Columns = list[Sequence[Any]]
Places = tuple[int, ...] | None
"""Places in the lists of a group; None for all of them."""

_CPU = torch.device("cpu")
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def local(x: Any) -> Tensor:
    """A tensor; of a DTensor the part that lies here."""
    return x.to_local() if hasattr(x, "to_local") else x  # type: ignore[no-any-return]


def _gradient(p: Tensor, grad: Any) -> Tensor:
    """The gradient of a parameter, cut as that is."""
    cut = getattr(p, "placements", None)
    if cut is not None and grad.placements != cut:
        grad = grad.redistribute(placements=cut)
    return local(grad)


def value(x: Any, device: torch.device) -> Any:
    """A number: on this device it stays there, else it is read."""
    if not isinstance(x, Tensor):
        return x
    return x.reshape(()) if x.device == device else x.item()


def on_device(group: Group) -> bool:
    """Whether the numbers of steps lie beside the parameters."""
    return bool(group.get("capturable") or group.get("fused"))


def _picked(some: Sequence[Any], places: Places) -> list[Any]:
    return some if places is None else [some[i] for i in places]  # type: ignore[return-value]


class Numbers:
    """The numbers of the steps of a group: elements of one array on each device.

    Each is the state `step` of a parameter, so that one addition counts them all.
    """

    def __init__(self, group: Group) -> None:
        self.params, self.beside = [*group["params"]], on_device(group)
        double = torch.get_default_dtype() == torch.float64
        dtype = torch.float64 if double else torch.float32
        self._homes = [p.device if self.beside else _CPU for p in self.params]
        self._arrays = {
            home: torch.zeros(self._homes.count(home), dtype=dtype, device=home)
            for home in dict.fromkeys(self._homes)
        }
        each = {home: iter(x.unbind()) for home, x in self._arrays.items()}
        self.steps = [next(each[home]) for home in self._homes]

    def adopt(self, i: int, row: dict[str, Any]) -> Tensor:
        """The number of a parameter, which takes the place of one that has come from elsewhere."""
        own, found = self.steps[i], row.get("step")
        if found is not own:
            own.fill_(0 if found is None else found)
            row["step"] = own
        return own

    def mask(self, without: Sequence[bool]) -> list[tuple[Tensor, Tensor]]:
        """Each array, and 1 for each of its numbers that counts."""
        out = []
        for home, array in self._arrays.items():
            ones = [float(not x) for x, h in zip(without, self._homes, strict=True) if h == home]
            out.append((array, torch.tensor(ones, dtype=array.dtype, device=home)))
        return out


class Kept:
    """The parameters of a group that have gradients, with their states.

    Attributes
    ----------
    new : set of int
        Places of the parameters whose states were made with this object.
    """

    def __init__(
        self, optimizer: Optimizer, group: Group, names: Sequence[str], numbers: Numbers | None
    ) -> None:
        self._optimizer, self.names, self._numbers = optimizer, names, numbers
        self._every = [*group["params"]]
        self._without = [p.grad is None for p in self._every]
        there = [i for i, p in enumerate(self._every) if p.grad is not None]
        self._params = [self._every[i] for i in there]
        self._all, self._plain = len(there) == len(self._every), True
        self.new = set[int]()
        self._rows, self._steps = list[dict[str, Any]](), list[Tensor]()
        devices = dict[torch.device, list[int]]()
        for at, (i, p) in enumerate(zip(there, self._params, strict=True)):
            self._plain = self._plain and type(p) in _PLAIN
            refuse_sparse(optimizer, p.grad)
            row = optimizer.state[p]
            for name in names:
                if row.get(name) is None:
                    row[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
                    self.new.add(at)
            self._rows.append(row)
            if numbers is not None:
                self._steps.append(numbers.adopt(i, row))
            devices.setdefault(p.device, []).append(at)
        self._devices = [(d, None if len(devices) == 1 else tuple(x)) for d, x in devices.items()]
        self._mask = [] if numbers is None else numbers.mask(self._without)
        self._alike: list[tuple[torch.device, Places]] | None = None
        self._plans: dict[Places, tuple[Any, ListPlan]] = {}

    def gradients(self, group: Group) -> list[Any] | None:
        """The gradients of a step, None where this is not what the group steps on now."""
        params = group["params"]
        grads = [p.grad for p in params]
        fits = (
            len(params) == len(self._every)
            and all(map(is_, params, self._every))
            and [g is None for g in grads] == self._without
        )
        if fits and self._numbers is not None:
            fits = on_device(group) == self._numbers.beside and all(
                map(is_, map(itemgetter("step"), self._rows), self._steps)
            )
        if not fits:
            return None
        return grads if self._all else [*compress(grads, map(not_, self._without))]

    def parts(self, new: bool | None = None) -> list[tuple[torch.device, Places]]:
        """The parameters by device: all, or those whose states are new, or the others."""
        if new is None or not self.new:
            return [] if new else self._devices
        parts = list[tuple[torch.device, Places]]()
        for device, places in self._devices:
            some = places or range(len(self._params))
            picked = tuple([i for i in some if (i in self.new) == new])
            parts += [(device, picked)] if picked else []
        return parts

    def count(self) -> list[tuple[torch.device, Places, Any]]:
        """Count a step of all; the parameters by device and number of their step."""
        for array, ones in self._mask:
            array.add_(ones)
        if self._numbers is None or not self._params:
            return []
        if self._numbers.beside:
            # Those that were counted alike stay so, also by graphs: they are read once.
            if self._alike is None:
                self._alike = [part[:2] for part in self._by_number([*map(float, self._steps)])]
            first = [self._steps[places[0] if places else 0] for _, places in self._alike]
            counts = [x.to(torch.int64) for x in first]
            return [(*part, n) for part, n in zip(self._alike, counts, strict=True)]
        ((array, _),) = self._mask
        every = array.tolist()
        return self._by_number(every if self._all else [*compress(every, map(not_, self._without))])

    def _by_number(self, numbers: list[float]) -> list[tuple[torch.device, Places, Any]]:
        if len({*numbers}) == 1:
            return [(device, places, int(numbers[0])) for device, places in self._devices]
        found = dict[tuple[torch.device, float], list[int]]()
        for device, places in self._devices:
            for i in places or range(len(numbers)):
                found.setdefault((device, numbers[i]), []).append(i)
        return [(device, tuple(some), int(n)) for (device, n), some in found.items()]

    def take_back(self) -> None:
        """Steps that were skipped do not count."""
        found: Any = getattr(self._optimizer, "found_inf", None)
        for array, ones in self._mask if found is not None else ():
            array.sub_(ones * found.reshape(()).to(array.device, array.dtype))

    def columns(self, grads: Sequence[Any]) -> Columns:
        """The parameters, their gradients, and each of their states."""
        return [self._params, grads, *[[*map(itemgetter(n), self._rows)] for n in self.names]]

    def run(
        self, op: Any, columns: Columns, device: torch.device, places: Places,
        values: dict[str, Any], maximize: bool,
    ) -> None:  # fmt: skip
        """A step in place, for the parameters at some places."""
        params, grads, *states = [_picked(some, places) for some in columns]
        moved = [params, *states]
        if not self._plain:
            grads = [*map(_gradient, params, grads)]
            moved = [[*map(local, some)] for some in moved]
        arrays = moved[0], grads, *moved[1:]
        flat, under = joined(arrays), in_force()
        known, plan = self._plans.get(places, (None, None))
        if plan is None or known != under or not plan.fits(arrays, flat):
            for grad in grads:
                refuse_sparse(self._optimizer, grad)
            plan = op.plan(*arrays)
            self._plans[places] = under, plan
        numbers = {name: value(x, device) for name, x in values.items()}
        out = tuple(moved) if len(moved) > 1 else moved[0]
        plan.run(arrays, flat, out, {**numbers, **self._scaled(maximize, device)})

    def _scaled(self, maximize: bool, device: torch.device) -> dict[str, Any]:
        """The factor and the flag that `torch.amp.GradScaler` leaves at the optimiser for a step.

        To maximise, gradients change their sign.
        """
        scale = getattr(self._optimizer, "grad_scale", None)
        found = getattr(self._optimizer, "found_inf", None)
        scale = 1.0 if scale is None else value(scale, device)
        found = 0.0 if found is None else value(found, device)
        return {"grad_scale": -scale if maximize else scale, "found_inf": found}


def refuse_sparse(optimizer: Optimizer, grad: Any) -> None:
    """An error for a gradient that is sparse."""
    if grad.is_sparse:
        name = type(optimizer).__name__
        raise NotImplementedError(f"{name}: expected a dense gradient, got a sparse one")


class Keeper:
    """What is kept for the groups of an optimiser, by their numbers."""

    def __init__(self) -> None:
        self._rows = list[dict[str, Any]]()
        self._groups: dict[int, Kept] = {}
        self._numbers: dict[int, Numbers] = {}

    @staticmethod
    def of(optimizer: Optimizer) -> Keeper:
        """That of an optimiser, which drops what was kept for states that are others now."""
        keeper: Keeper = optimizer.__dict__.setdefault("_keeper", Keeper())
        rows = [*optimizer.state.values()]
        if len(rows) != len(keeper._rows) or not all(map(is_, rows, keeper._rows)):
            keeper._groups.clear()
        return keeper

    def lists(
        self, optimizer: Optimizer, i: int, names: Sequence[str], counted: bool = False
    ) -> tuple[Kept, Columns]:
        """What is kept for a group, and the arrays of a step."""
        group, kept = optimizer.param_groups[i], self._groups.get(i)
        try:
            if kept and kept.names == names and (grads := kept.gradients(group)) is not None:
                kept.new = set()
                return kept, kept.columns(grads)
        except KeyError:
            # Somebody has taken a state away: it is made again.
            pass
        numbers = self._counting(i, group) if counted else None
        kept = self._groups[i] = Kept(optimizer, group, names, numbers)
        self._rows = [*optimizer.state.values()]
        return kept, kept.columns([p.grad for p in group["params"] if p.grad is not None])

    def _counting(self, i: int, group: Group) -> Numbers:
        known = self._numbers.get(i)
        same = (
            known is not None
            and known.beside == on_device(group)
            and len(known.params) == len(group["params"])
            and all(map(is_, known.params, group["params"]))
        )
        found = known if same and known is not None else Numbers(group)
        self._numbers[i] = found
        return found
