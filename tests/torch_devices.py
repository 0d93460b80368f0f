"""Every op on DTensors: a program of several processes, over gloo on the host or NCCL on GPUs.

The first process prints what each check found wrong, by op, as JSON. The argument is the device.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lanes
import torch
import torch.distributed as dist
from kinds import one_of_category
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import baracuda as bc
from baracuda.calls import adjoint
from baracuda.calls.op import registry
from baracuda.calls.partitioning import placed
from baracuda.declaration.shapes import Label
from baracuda.declaration.spec import Case
from baracuda.testing.cases import Call, Subject, draw, tried

DEVICE = sys.argv[1]
RANKS = int(os.environ["WORLD_SIZE"])
# Besides groups: axes of which every place is by itself. Of the gated ops that of separate arrays.
APART = {"rope": "s", "gather": "k"}
UNPACKED = {"glu", "reglu", "swiglu", "geglu"}
WHOLE = Replicate()


def near(got: Any, want: Any) -> None:
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x.full_tensor(), y, rtol=1e-12, atol=1e-12)


def tuple_of(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@dataclass
class Spread:
    """A call whose arrays lie on a mesh."""

    call: Call
    placements: Sequence[Any]

    def __post_init__(self) -> None:
        self.spec = self.call.subject.spec
        self.function = functools.partial(self.call.subject.function, **self.call.options)
        self.arrays = [x if x is None else x.to(DEVICE) for x in self.call.given()]
        there = [x for x in self.arrays if x is not None]
        self.watched = adjoint.partner(self.spec)[0] is not None
        self.floats = [i for i, x in enumerate(there) if x.is_floating_point()]
        if not self.spec.elementwise:
            # What the body alone differentiates goes by torch's own rules, which may send.
            names = [n for n in self.spec.arrays if n in self.call.arrays]
            self.floats = [i for i in self.floats if names[i] in self.call.watched]
        self.given = there

    def run(self, given: Sequence[Any], along: Sequence[Any] = ()) -> tuple[Any, Any]:
        """Results and, if there is one, the gradient along `along` or what lies as the results."""
        given = [x.requires_grad_(self.watched and i in self.floats) for i, x in enumerate(given)]
        at = iter(given)
        out = tuple_of(self.function(*[None if x is None else next(at) for x in self.arrays]))
        if not self.watched:
            return out, ()
        along = along or [torch.cos(y.detach()) for y in out]
        return out, torch.autograd.grad(out, [given[i] for i in self.floats], along)

    def check(self, mesh: Any, quiet: bool) -> tuple[Any, ...]:
        """As without a mesh; `quiet`: and nothing was sent."""
        want, slopes = self.run([x.clone() for x in self.given])
        parts = [
            distribute_tensor(x.detach(), mesh, p)
            for x, p in zip(self.given, self.placements, strict=True)
        ]
        with CommDebugMode() as sent:
            out = tuple_of(self.run(parts)[0])
        # What a sum that is still to be made has been is known only when it is made.
        along = [
            distribute_tensor(torch.cos(y.detach()), mesh, [
                p if isinstance(p, Shard) else WHOLE for p in x.placements
            ])
            for x, y in zip(out, want, strict=True)
        ]  # fmt: skip
        parts = [x.detach() for x in parts]
        with sent:
            out, got = self.run(parts, along)
        if quiet:
            assert sent.get_total_counts() == 0, dict(sent.get_comm_counts())
        near(out, want)
        near(got, slopes)
        assert not any(
            x.is_contiguous() != y.is_contiguous() for x, y in zip(out, want, strict=True)
        )
        return out


def calls(op: str, even: bool) -> Iterator[Call]:
    """Every form at a case with groups of axes: extents that ranks do not divide, or even ones.

    Where one number is made of all, or shared by all, everything is whole everywhere: no such form
    is tried. In the full lane it is both cases, elsewhere the first and the last form.
    """
    subject = Subject(op, "torch", "torch", "float64")
    spread = [
        (case, form)
        for case, form in tried(subject.spec, subject.spec.cases)
        if all(p.terms for p in (*form.inputs, *form.outputs))
    ]
    if not spread:
        return
    case = max(
        [case for case, _ in spread],
        key=lambda c: sum(isinstance(v, tuple) and v != () for v in c.axes.values()),
    )
    axes = {
        k: tuple(8 for _ in v) if isinstance(v, tuple) else 8 if k in ("s", "k") else v
        for k, v in case.axes.items()
    }
    both = (case, Case(axes, **case.options))
    for each in both if lanes.FULL else both[even : even + 1]:
        for form in lanes.ends(form for one, form in spread if one is case):
            yield Call(subject, each, form, draw(subject.spec, each, form, "float64"))


def labels(call: Call) -> list[tuple[Label, ...]]:
    axes = dict(call.case.axes)
    if call.subject.spec.resolve:
        problem = call.plan().problem
        axes = dict(problem.axes)
    return [p.labels(axes) for p in call.form.inputs if not p.is_option]


def apart(call: Call, label: Label, extent: int) -> bool:
    """Whether nothing has to be sent where this axis is cut."""
    op, term = call.subject.op, label.term
    base = op.removesuffix("_backward")
    if extent == 1 and term.or_one:
        return False
    # Of random words each shard is told where it lies; roundings at random are not.
    if call.subject.spec.numbers(call.form):
        return term.name in placed(call.subject.spec, call.form)
    batches = call.subject.spec.batches
    if batches is not None and not call.subject.spec.batch(term):
        return False
    if term.group:
        # One group within another is cut with it where they are the same.
        axes, terms = (
            call.case.axes,
            [t for p in (*call.form.inputs, *call.form.outputs) for t in p.terms],
        )
        return all(
            axes[t.name] == axes[t.bound]
            for t in terms
            if t.bound and term.name in (t.name, t.bound)
        )
    if batches is not None:
        return True
    if base in UNPACKED:
        return term.name == "n" and term.factor == 1 and "gate" in call.form.names
    return APART.get(base) == term.name


def over_each_axis(op: str, mesh: Any) -> Iterator[str]:
    """One array is cut along one of its axes, all others are everywhere."""
    quiet = set()
    for call in calls(op, even=False):
        for i, row in enumerate(labels(call)):
            for at, label in enumerate(row):
                placements = [[WHOLE] for _ in labels(call)]
                placements[i] = [Shard(at)]
                spread = Spread(call, placements)
                free = apart(call, label, spread.given[i].shape[at])
                try:
                    out = spread.check(mesh, free)
                    if free:
                        quiet.add((call.form.text, label.term.name))
                        kinds = [type(y.placements[0]) for y in out]
                        assert kinds == [has(call.form, p, label) for p in call.form.outputs], kinds
                except Exception as error:
                    yield f"{call.case} {call.form.text} {label}: {type(error).__name__}: {error}"
    spec = registry[op].spec
    # An op may declare that none of its axes falls apart.
    free = spec.batches != () and any(
        placed(spec, form) or not spec.numbers(form) for form in spec.signatures
    )
    if free and not quiet and next(calls(op, even=False), None):
        yield "nothing was free"


def has(form: Any, pattern: Any, label: Any) -> type:
    """How a result lies that has the axis which is cut, or that is a sum over it."""
    terms = [t for p in (*form.inputs, *form.outputs) for t in p.terms]
    outer = {t.name: t.bound for t in terms if t.bound}
    name = label.term.name
    there = {outer.get(t.name, t.name) for t in pattern.terms}
    return Shard if outer.get(name, name) in there else Partial


@functools.cache
def grid() -> Any:
    """Two axes of processes; each mesh that is made has threads of its own, to the end."""
    return init_device_mesh(DEVICE, (RANKS // 2, 2), mesh_dim_names=("rows", "columns"))


def over_two_axes(op: str, mesh: Any) -> Iterator[str]:
    """Two axes of a mesh cut two axes of the first array, and then one axis twice."""
    for call in calls(op, even=True):
        rank = len(labels(call)[0])
        for cut in ([Shard(0), Shard(rank - 1)], [Shard(0), Shard(0)], [WHOLE, Shard(0)]):
            placements = [[WHOLE, WHOLE] for _ in labels(call)]
            placements[0] = cut
            try:
                Spread(call, placements).check(grid(), False)
            except Exception as error:
                yield f"{call.case} {call.form.text} {cut}: {type(error).__name__}: {error}"


def sums_that_wait(op: str, mesh: Any) -> Iterator[str]:
    """A linear op is of the parts of a sum; what is not adds up first."""
    spec = registry[op].spec
    linear = adjoint.partner(spec)[1]
    call = next(calls(op, even=False), None)
    if call is None:
        return
    spread = Spread(call, ())
    want, _ = spread.run([x.clone() for x in spread.given])
    parts = [
        DTensor.from_local(x.detach() / RANKS, mesh, [Partial()]) if x.is_floating_point()
        else DTensor.from_local(x, mesh, [WHOLE])
        for x in spread.given
    ]  # fmt: skip
    with CommDebugMode() as sent:
        out, _ = spread.run(parts, [x.detach() for x in map(DTensor_like(mesh), want)])
    placed = {type(y.placements[0]) for y in out}
    if placed != {Partial if linear else Replicate}:
        yield f"{placed}"
    if linear and sent.get_total_counts():
        yield f"{dict(sent.get_comm_counts())}"
    try:
        near(out, want)
    except AssertionError as error:
        yield str(error)


def DTensor_like(mesh: Any) -> Callable[[Any], DTensor]:
    return lambda y: DTensor.from_local(torch.ones_like(y), mesh, [WHOLE])


class Network(torch.nn.Module):
    """Two columns and a row, as tensor parallelism cuts them."""

    def __init__(self, swiglu: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.up, self.gate, self.down = (
            torch.nn.Linear(16, 16, dtype=torch.float64) for _ in "ugd"
        )
        self.swiglu = swiglu

    def forward(self, x: Any) -> Any:
        return self.down(self.swiglu(self.up(x), self.gate(x)))


def gradients(network: torch.nn.Module, x: Any) -> list[Any]:
    network(x).square().sum().backward()
    found = [p.grad for p in network.parameters()]
    return [g.full_tensor() if isinstance(g, DTensor) else g for g in found]


def networks(op: str, mesh: Any) -> Iterator[str]:
    """FSDP2 and tensor parallelism around an op: the same gradients, and no more is sent."""
    function = registry[op]
    if op not in UNPACKED:
        return
    torch.manual_seed(2)
    x = torch.randn(8, 16, dtype=torch.float64, device=DEVICE)
    want = gradients(Network(function).to(DEVICE), x)
    whole = Network(function).to(DEVICE)
    got = gradients(fully_shard(whole, mesh=mesh), x)
    counts = []
    plan = {k: ColwiseParallel(use_local_output=False) for k in ("up", "gate")}
    for each in (function, lambda a, b: a * torch.sigmoid(b)):
        cut = parallelize_module(Network(each).to(DEVICE), mesh, plan | {"down": RowwiseParallel()})
        with CommDebugMode() as sent:
            cut(x).square().sum().backward()
        counts.append(sent.get_total_counts())
        if each is function:
            got += [p.grad.full_tensor() for p in cut.parameters()]
    if counts[0] != counts[1]:
        yield f"{counts[0]} collectives, {counts[1]} of torch's own"
    for x, y in zip(got, want + want, strict=True):
        if not torch.allclose(x, y, rtol=1e-12, atol=1e-12):
            yield "gradients differ"


def refused(op: str, mesh: Any) -> Iterator[str]:
    """What lies nowhere, or elsewhere, has to be put somewhere first."""
    for call in calls(op, even=False):
        plain = list(Spread(call, ()).arrays)
        there = [i for i, x in enumerate(plain) if x is not None]
        if len(there) < 2:
            continue
        first, last = there[:2]
        x = plain[last]
        plain[first] = distribute_tensor(plain[first], mesh, [WHOLE])
        function = functools.partial(registry[op], **call.options)
        for second, error, text in (
            (x, TypeError, "expected a DTensor as the others, got Tensor"),
            (distribute_tensor(x, grid(), [WHOLE, WHOLE]), ValueError, "as of the others"),
        ):
            try:
                plain[last] = second
                function(*plain)
                yield f"{call}: nothing was raised"
            except error as raised:
                if text not in str(raised):
                    yield str(raised)
        return


def compiled(op: str, mesh: Any) -> Iterator[str]:
    """A graph of DTensors gives what plain calls do; a head makes its gradients forward."""
    if op not in ("swiglu", "cross_entropy"):
        return
    torch.manual_seed(2)
    # In float64, as the terms of these gradients cancel.
    x, weight = torch.randn(8, 16, dtype=torch.float64), torch.randn(5, 16, dtype=torch.float64)
    x = distribute_tensor(x.to(DEVICE), mesh, [Shard(0)]).requires_grad_()
    target, weight = (
        distribute_tensor(x.to(DEVICE), mesh, [how])
        for x, how in ((torch.arange(8) % 5, Shard(0)), (weight, WHOLE))
    )

    def step(x: Any) -> Any:
        if op == "swiglu":
            return bc.swiglu(x * 2).sum()
        return bc.linear_cross_entropy(x * 2, weight * x.sum(), target) * 3

    want = torch.autograd.grad(step(x).full_tensor(), x)[0].full_tensor()
    program = torch.compile(step, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(program(x).full_tensor(), x)[0].full_tensor()
    if not torch.allclose(got, want):
        yield "gradients differ"


CHECKS = (over_each_axis, over_two_axes, sums_that_wait, networks, refused, compiled)

if __name__ == "__main__":
    torch.set_num_threads(1)
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    flat = init_device_mesh(DEVICE, (RANKS,))
    report = {}
    for name in [op for op in lanes.ops() if lanes.FULL or one_of_category(op)]:
        report[name] = {check.__name__: list(check(name, flat)) for check in CHECKS}
    if dist.get_rank() == 0:
        print(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.1)  # see `baracuda.examples.torch.joined`
