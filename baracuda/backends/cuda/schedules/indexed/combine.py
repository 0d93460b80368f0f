"""Elements joined with what is where an index points: sums, means, maxima and minima; gradients.

Sums are those of `scatter`, of its forms in a fixed order, on top of what a place begins with. All
else is integers for each place: how many entries point there, or which of their elements is first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from baracuda import layouts
from baracuda.backends.cuda.geometry import Dim, Packer, View, count, merged, reach, wide
from baracuda.backends.cuda.launch_plan import Call, Step, Steps, Zero, blocks, flag
from baracuda.backends.cuda.schedules.indexed import scatter, states
from baracuda.backends.cuda.schedules.indexed.frames import added, apart, frame
from baracuda.backends.cuda.schedules.indexed.states import Told, word
from baracuda.declaration.dtypes import named
from baracuda.declaration.indexed import indexed
from baracuda.declaration.spec import Operand
from baracuda.layouts import Shape

_SIGNS = {"max": 1, "min": -1}
# Places or entries of a thread that are under way together.
_DEPTH = 4


class Places:
    """The launches of one call over places and entries; `before` are workspaces of others."""

    def __init__(self, call: Call, before: int = 0) -> None:
        self.call, self.frame = call, frame(call)
        self.options = call.problem.options
        self.kind = self.options["reduction"]
        self.self = bool(self.options["include_self"])
        # What has the axis that the index points along, in its order.
        form, spec = call.problem.signature, call.problem.spec
        below = spec.role(spec.indices[0]).below
        self.having = [call.view(p.name) for p in form.inputs if below in p.names]
        self.shape, self.axis = self.frame.whole.shape, self.frame.axis
        self.steps: list[Step | Zero] = []
        self.workspaces: list[tuple[Shape, str]] = []
        self._before = before

    def room(self, dtype: str, shape: Shape | None = None) -> View:
        """A workspace with an element for each place, or of another shape."""
        shape = self.shape if shape is None else shape
        self.workspaces.append((shape, dtype))
        slot = self.call.workspace(self._before + len(self.workspaces) - 1)
        return View(slot, 0, shape, layouts.contiguous(shape))

    def state(self, functor: str, out: View | None = None, listens: bool = True) -> View:
        """What the entries of each place leave there; `out` where ties with it count."""
        call, index, src = self.call, self.frame.index, self.frame.asked
        wide_keys = functor.startswith("Extreme") and call.accumulate == "f64"
        state = self.room("int64" if wide_keys else "int32")
        mine = self.self and (out is not None or functor == "Counted")
        start = "ZERO" if not mine else "TIES" if out else "ONES"
        own = self.having[-2] if mine and out else self.having[-1] if mine else state
        size = 8 if wide_keys else 4
        told = Told(functor, start, index, src, out or state, own, state, self.axis, size)
        step = states.on_chip(call, told, listens)
        if step is not None:
            self.steps.append(step)
            return state
        if mine:
            of = (own, out or own, state)
            self._by_place(f"StartCounts<{call.type}, {flag(out)}, ", of, start.lower())
        elif prod(self.shape):
            self.steps.append(Zero(state.slot, prod(self.shape) * size))
        if 0 not in index.shape:
            self.steps.append(states.in_memory(call, told, listens))
        return state

    def places(
        self, functor: str, given: View, to: View, state: View | None = None,
        ties: tuple[View, View] | None = None, types: tuple[str, str] | None = None,
        add: bool = False,
    ) -> None:  # fmt: skip
        """Each place from what is given there; `types`: of that, and of the result."""
        own = self.call.type
        taken, made = types or (own, own)
        of = (given, *(ties or (given, given)), state or given, to)
        kind = f"GivePlaces<{own}, {taken}, {made}, {functor}, "
        self._by_place(kind + flag(add) + ", ", of, functor, *types or (), add=add)

    def entries(
        self, functor: str, dout: View, to: View, state: View | None = None,
        out: View | None = None, add: bool = False,
    ) -> None:  # fmt: skip
        """Each entry from the cotangent of its place."""
        call, index, src, axis = self.call, self.frame.index, self.frame.asked, self.axis
        if 0 in index.shape:
            return
        of_places = (dout, out or dout, state or dout)
        strides = (index.strides, src.strides, to.strides,
                   *(apart(v.strides, axis) for v in of_places))  # fmt: skip
        dims = merged(index.shape, strides)
        packer = self._packer(dims, *of_places).pointers(6)
        # Where there is a state, what made it has looked at the entries.
        packer.add("Q", 0 if state else call.listener).add("q", self.shape[axis])
        packer.add("I", call.ticket, 0).indices(count(dims))
        packer.indices(*(v.strides[axis] for v in of_places)).walk(dims, 6)
        integer = named(call.problem.index_dtype or "").short
        kind = f"GiveEntries<{call.type}, {integer}, {functor}, {packer.type}, {flag(add)}>"
        views = (index, dout, src, *of_places[1:], to)
        self._launch(kind, packer, count(dims), views, functor, integer, add=add)

    def _by_place(self, kind: str, of: Sequence[View], *tags: str, add: bool = False) -> None:
        if 0 in of[-1].shape:
            return
        dims = merged(of[-1].shape, [v.strides for v in of])
        packer = self._packer(dims).pointers(len(of)).indices(count(dims)).walk(dims, len(of))
        self._launch(f"{kind}{packer.type}>", packer, count(dims), of, *tags, add=add)

    def _packer(self, dims: Sequence[Dim], *far: View) -> Packer:
        along = sum([abs(v.strides[self.axis]) * self.shape[self.axis] for v in far])
        return Packer(wide(count(dims), reach(dims) + along))

    def _launch(
        self, kind: str, packer: Packer, items: int, views: Sequence[View], *tags: str,
        add: bool = False,
    ) -> None:  # fmt: skip
        arguments, name = packer.done(), kind.partition("<")[0].lower()
        words = "_".join([name, *(word(tag) for tag in tags), packer.type, *["add"] * add])
        entry, front = self.call.entry(kind, len(arguments), words), [(v.slot, 0) for v in views]
        grid = (blocks(items, 1 if name == "startcounts" else _DEPTH), 1)
        self.steps.append(Step(entry, grid, arguments, front))


def plan(call: Call) -> Steps:
    """Maxima and minima by integers, sums on top of what places begin with."""
    kind, mine = (call.problem.options[name] for name in ("reduction", "include_self"))
    if kind not in (*_SIGNS, "prod"):
        return _sums(call, kind, mine)
    work, sign = Places(call), _SIGNS.get(kind)
    state = work.state(f"Extreme<{sign}>")
    work.places(f"Reached<{sign}, {flag(mine)}>", work.having[0], call.out(), state)
    return Steps(tuple(work.steps), tuple(work.workspaces), variant=kind)


def _sums(call: Call, kind: str, mine: bool) -> Steps:
    """Sums in a fixed order, in a workspace of the accumulate dtype where they are divided."""
    choices, out = replace(call.problem.choices, deterministic=True), call.out()
    fixed = call._replace(problem=replace(call.problem, choices=choices))
    if kind == "sum" and mine:
        return scatter.plan(fixed)
    if 0 in out.shape:
        return Steps((), variant=kind)
    beside = kind == "mean" and call.type != call.accumulate
    if beside:
        fixed = fixed._replace(outs=(layouts.contiguous(out.shape),), wide=(True,))
    summed = scatter.added_to(fixed._replace(add=True))
    wider = _on_chip(fixed, summed) if beside else None
    summed = wider or summed
    work = Places(call, len(summed.workspaces))
    sums, src = work.room(call.accumulate_dtype) if beside else out, added(call)
    own, to = call.type, call.accumulate if beside else call.type
    many = work.state("Counted", listens=False)
    work.places("Passed" if mine else "Held", work.having[0], sums, many, types=(own, to))
    steps = [_into(step, out.slot, sums.slot) for step in summed.steps]
    if wider:
        values = work.room(call.accumulate_dtype, src.shape)
        work.places("Passed", src, values, types=(own, to))
        steps = [_into(step, src.slot, values.slot) for step in steps]
    work.steps += steps
    if kind == "mean":
        work.places("Split", sums, out, many, types=(to, own))
    workspaces = (*summed.workspaces, *work.workspaces)
    return Steps(tuple(work.steps), workspaces, f"{kind}, {summed.variant}")


def _on_chip(call: Call, narrow: Steps) -> Steps | None:
    """The sums of elements that are widened first, where this allows a form on chip.

    Forms on chip have bins as narrow as the elements. Exact sums in memory, `narrow`, take several
    passes and 12 bytes a place.
    """
    problem, name = call.problem, indexed(call.problem).asked
    on_chip = (scatter.TILES, scatter.TRANSPOSED)
    if narrow.variant not in (*on_chip, scatter.FIXED):
        return None

    def widened(x: Operand) -> Operand:
        kept = x.name in problem.spec.discrete
        return x if kept else x._replace(dtype=call.accumulate_dtype, strides=None)

    inputs = tuple([x and widened(x) for x in problem.inputs])
    wide = replace(problem, inputs=inputs, outputs=tuple(map(widened, problem.outputs)))
    elements = next(x.nbytes for x in wide.given if x.name == name)
    # The index stays where it is, so addresses count as aligned as they were.
    steps = scatter.added_to(call._replace(problem=wide, add=True, wide=()))
    small = steps.workspace_size + elements <= narrow.workspace_size
    return steps if small and steps.variant in on_chip else None


def _into(step: Step | Zero, slot: int, other: int) -> Step | Zero:
    """A step with one array in the place of another."""
    if isinstance(step, Zero):
        return step._replace(slot=other) if step.slot == slot else step
    front = [(other if at == slot else at, offset) for at, offset in step.front]
    return step._replace(front=front)


def backward(call: Call) -> Steps:
    """The gradient of what is there, and of the elements."""
    work, adds, dx, dsrc = Places(call), call.adds, call.out(0), call.out(1)
    kind, mine, (dout, x, out) = work.kind, work.self, work.having
    if kind in _SIGNS:
        many: View | None = work.state("Tied", out)
        share, ties = "SplitTies", (x, out)
    else:
        # Of a sum with what is there nothing has to be known.
        many = None if kind == "sum" and mine else work.state("Counted")
        share, ties = "Passed" if kind == "sum" else "Split", None
    work.places(share if mine else "Held", dout, dx, many, ties if mine else None, add=adds[0])
    work.entries(share, dout, dsrc, many, out if ties else None, add=adds[1])
    return Steps(tuple(work.steps), tuple(work.workspaces), variant=kind)
