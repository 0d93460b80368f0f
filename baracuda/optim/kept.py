"""What an optimiser keeps from one step to the next, so that a step walks over no parameter twice.

Lists of parameters and states, and their plan, stay as they are while the same parameters have
gradients. Kept objects are compared by identity, and the arrays in them by the plan, in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import is_, itemgetter, not_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from baracuda.calls.lists import ListPlan, in_force
from baracuda.calls.sets import joined

Group = dict[str, Any]
Columns = list[Sequence[Any]]
Places = tuple[int, ...] | None
"""Places in the lists of a group; None for all of them."""

MASTER = "master_param"
"""The state that is a float32 copy of a parameter of 16 bits, from which that is rounded."""

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
    if x.device != device:
        return x.item()
    return (x.float() if is_short(x) else x).reshape(())


def on_device(group: Group) -> bool:
    """Whether the numbers of steps lie beside the parameters."""
    return bool(group.get("capturable") or group.get("fused"))


def _picked(some: Sequence[Any], places: Places) -> list[Any]:
    return some if places is None else [some[i] for i in places]  # type: ignore[return-value]


class Part(NamedTuple):
    """Parameters of a group that lie on one device, and are stepped in one way.

    `way` is the flag of the step: "copy" of master copies, "stochastic_rounding", or "".
    """

    device: torch.device
    way: str
    places: Places


def is_short(p: Tensor) -> bool:
    """Whether elements have 16 bits."""
    return p.is_floating_point() and p.itemsize == 2


def has_master(optimizer: Optimizer, p: Tensor) -> bool:
    """Whether a parameter has a master copy."""
    return bool(optimizer.defaults.get("master_weights")) and is_short(p)


def loaded(optimizer: Optimizer) -> set[Tensor]:
    """The parameters whose master copies are from a checkpoint, and have made no step yet."""
    found: set[Tensor] = optimizer.__dict__.setdefault("_loaded", set())
    return found


def _fits(optimizer: Optimizer, p: Tensor, master: Tensor | None) -> bool:
    """Whether there is a master copy, which the parameter has not left behind in other steps."""
    if master is None or p not in loaded(optimizer):
        return master is not None
    loaded(optimizer).discard(p)
    return torch.equal(local(master).to(p.dtype), local(p.detach()))


def _way(optimizer: Optimizer, p: Tensor) -> str:
    """How a parameter is stepped, as `Part` has it."""
    at_random = bool(optimizer.defaults.get("stochastic_rounding")) and is_short(p)
    return "copy" if has_master(optimizer, p) else "stochastic_rounding" * at_random


def _shard(p: Any) -> int:
    """The number of the part of a DTensor that lies here; replicas have one."""
    number = 0
    if (cut := getattr(p, "placements", None)) is not None:
        coordinates = p.device_mesh.get_coordinate() or ()
        for extent, place, at in zip(p.device_mesh.shape, cut, coordinates, strict=False):
            number = number * extent + (0 if place.is_replicate() else at)
    return number


def state_dtype(optimizer: Optimizer, p: Tensor) -> torch.dtype:
    """The dtype of the states of a parameter."""
    usual = torch.float32 if has_master(optimizer, p) else p.dtype
    return optimizer.defaults.get("state_dtype") or usual if is_short(p) else p.dtype


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
        self._there, kinds = there, dict[tuple[torch.device, str], list[int]]()
        self._rows, self._steps = list[dict[str, Any]](), list[Tensor]()
        for at, (i, p) in enumerate(zip(there, self._params, strict=True)):
            self._plain = self._plain and type(p) in _PLAIN
            refuse_sparse(optimizer, p.grad)
            row = optimizer.state[p]
            for name in names:
                if row.get(name) is None:
                    row[name] = torch.zeros_like(
                        p, dtype=state_dtype(optimizer, p), memory_format=torch.preserve_format
                    )
                    self.new.add(at)
            way = _way(optimizer, p)
            if way == "copy" and not _fits(optimizer, p, row.get(MASTER)):
                row[MASTER] = p.detach().to(torch.float32)
            self._rows.append(row)
            if numbers is not None:
                self._steps.append(numbers.adopt(i, row))
            kinds.setdefault((p.device, way), []).append(at)
        self._mastered = any(way == "copy" for _, way in kinds)
        self._parts = [
            Part(*kind, None if len(kinds) == 1 else tuple(some)) for kind, some in kinds.items()
        ]
        self._mask = [] if numbers is None else numbers.mask(self._without)
        self._alike: list[Part] | None = None
        self._plans: dict[Part, tuple[Any, ListPlan]] = {}

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

    def halves(self, part: Part) -> list[tuple[Part, bool]]:
        """Of a part the parameters whose states are new, and the others."""
        if not self.new:
            return [(part, False)]
        halves = [
            (
                part._replace(
                    places=tuple([i for i in self._places(part) if (i in self.new) == new])
                ),
                new,
            )
            for new in (True, False)
        ]
        return [(half, new) for half, new in halves if half.places]

    def _places(self, part: Part) -> Sequence[int]:
        return range(len(self._params)) if part.places is None else part.places

    def count(self) -> list[tuple[Part, Any]]:
        """Count a step of all; the parameters in parts that have one number of their step.

        Where steps are not counted, the number is 0.
        """
        for array, ones in self._mask:
            array.add_(ones)
        if self._numbers is None or not self._params:
            return [(part, 0) for part in self._parts]
        if self._numbers.beside:
            # Those that were counted alike stay so, also by graphs: they are read once.
            if self._alike is None:
                self._alike = [part for part, _ in self._by_number([*map(float, self._steps)])]
            first = [self._steps[self._places(part)[0]] for part in self._alike]
            return [(p, x.to(torch.int64)) for p, x in zip(self._alike, first, strict=True)]
        ((array, _),) = self._mask
        every = array.tolist()
        return self._by_number(every if self._all else [*compress(every, map(not_, self._without))])

    def _by_number(self, numbers: list[float]) -> list[tuple[Part, int]]:
        if len({*numbers}) == 1:
            return [(part, int(numbers[0])) for part in self._parts]
        found = dict[tuple[Part, float], list[int]]()
        for part in self._parts:
            for i in self._places(part):
                found.setdefault((part, numbers[i]), []).append(i)
        return [(p._replace(places=tuple(some)), int(n)) for (p, n), some in found.items()]

    def take_back(self) -> None:
        """Steps that were skipped do not count."""
        found: Any = getattr(self._optimizer, "found_inf", None)
        for array, ones in self._mask if found is not None else ():
            array.sub_(ones * found.reshape(()).to(array.device, array.dtype))

    def columns(self, grads: Sequence[Any]) -> Columns:
        """The parameters, their gradients, each of their states, and master copies."""
        states = [[*map(itemgetter(name), self._rows)] for name in self.names]
        masters = [[row.get(MASTER) for row in self._rows]] if self._mastered else []
        return [self._params, grads, *states, *masters]

    def run(
        self, op: Any, columns: Columns, part: Part, step: Any, values: dict[str, Any],
        maximize: bool,
    ) -> None:  # fmt: skip
        """A step in place, of this number, for some of the parameters."""
        params, grads, *states = [_picked(some, part.places) for some in columns]
        masters = states.pop() if self._mastered else []
        if not self._plain:
            grads = [*map(_gradient, params, grads)]
            params, *states = [[*map(local, some)] for some in (params, *states)]
            masters = [*map(local, masters)]
        moved = [masters if part.way == "copy" else params, *states]
        arrays = moved[0], grads, *states
        options, numbers = dict[str, Any](), dict[str, Any]()
        if part.way:
            options = {part.way: True}
        if part.way == "copy":
            # What the master copy becomes is rounded to the parameter in the same pass.
            moved.append(params)
        elif part.way:
            numbers = {"seed": self._seed(part), "offset": step}
        flat, under = joined(arrays), in_force()
        known, plan = self._plans.get(part, (None, None))
        if plan is None or known != under or not plan.fits(arrays, flat):
            for grad in grads:
                refuse_sparse(self._optimizer, grad)
            plan = op.plan(*arrays, **options)
            self._plans[part] = under, plan
        numbers |= {name: value(x, part.device) for name, x in values.items()}
        out = tuple(moved) if len(moved) > 1 else moved[0]
        plan.run(arrays, flat, out, {**numbers, **self._scaled(maximize, part.device)})

    def _seed(self, part: Part) -> int:
        """A seed of its own for each part of each group, and for each shard.

        No two parts have the same first parameter. The lists give each array words of its own.
        """
        first = self._places(part)[0]
        groups = self._optimizer.param_groups
        group = next(
            i for i, x in enumerate(groups) if self._every[0] is next(iter(x["params"]), None)
        )
        # Beyond the small numbers that people take for seeds.
        own = (_shard(self._params[first]) << 52) + (group << 40) + (self._there[first] << 20)
        return (int(self._optimizer.defaults["seed"]) + own) % 2**64

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
        raise NotImplementedError(
            f"{name}: expected a dense gradient, got a sparse one: make the embedding with "
            "sparse=False, or use torch.optim.SparseAdam"
        )


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
