"""The shortest way from arrays to launches, written out for one kind of plan.

A call of a planned op is some attribute reads, an allocation for each result, one for all
workspaces, and the launches. Loops over operands would cost as much as a launch does, so the code
for a plan's number of operands and launches is generated, as `dataclasses` generates an `__init__`,
once for all plans of its kind. It holds for outputs of the planned layout, new or given, and for
addresses as aligned as planned; everything else goes the general way. So does a call of which a
launch fails: into new outputs it may begin again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from baracuda.backends.cuda.launch import (
    GEOMETRY,
    STREAMS,
    Clear,
    Launch,
    checked,
    clear,
    launch_kernel,
    stream_of,
)
from baracuda.backends.cuda.launch_plan import strides_of
from baracuda.calls import outputs
from baracuda.declaration.backend import Runner
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import Problem
from baracuda.layouts import Shape

_TEMPLATE = """
def bound(mask, state, ordinal, general, free, news, steps):
    {news} = news
    {steps} = steps

    def hot(arrays, outs, accumulate, scalars):
        if accumulate or state[0] or current_device() != ordinal:
            return general(arrays, outs, accumulate, scalars)
        {arrays}
        {given}
        if ({either_given}) & mask:
            return general(arrays, outs, False, scalars)
        if outs is None:
            {make}
        else:
            {outs} = outs
            if {differ}:
                return general(arrays, outs, False, scalars)
        {made}
        if ({either_made}) & mask:
            return general(arrays, outs, False, scalars)
        stream = current_stream(ordinal)
        stream = streams.get(stream) or stream_of(stream)
        {room}
        rooms = free.pop() if free else ({rooms})
        {structs} = rooms
{launches}
        free.append(rooms)
        return {results}

    return hot
"""
_LAUNCH = """
        pack{i}(struct{i}[0], 0, {words})
        if failed := launch_kernel(function{i}, {fixed}, stream, struct{i}[1], 0)[0]:
            {checks}return general(arrays, outs, False, scalars)
"""
_CLEAR = """
        if failed := clear({words}, 0, nbytes{i}, stream)[0]:
            {checks}return general(arrays, outs, False, scalars)
"""
# Given outputs may be inputs, and have new values already: no call begins again into them.
_CHECKS = "if outs is not None: checked((failed,))\n            "
# Bytes that the beginning of a workspace is a multiple of, as what an allocator gives is.
_APART = 256

Step = tuple[tuple[tuple[int, bool], ...], bool, bool]
"""The pointers of a launch (slot, whether it is moved), whether it takes scalars, or clears."""


def compiled(
    launches: Sequence[tuple[Launch | Clear, Sequence[tuple[int, int]], bool]],
    workspaces: Sequence[tuple[Shape, str]],
    problem: Problem,
    arrays: Any,
    alignment: int,
    anywhere: frozenset[int],
    state: Any,
    ordinal: int,
    general: Runner,
) -> Runner:
    """A `Runner` that goes the shortest way where it can, else `general`.

    Parameters
    ----------
    launches : sequence of (Launch or Clear, sequence of (int, int), bool)
        What to launch in turn; its pointers: slot, and bytes into it; whether it takes scalars.
    workspaces : sequence of (tuple of int, str)
        Shape and dtype of each.
    problem : Problem
    arrays : module
        `backends.cuda.torch`.
    alignment : int
        What all addresses are multiples of,
    anywhere : frozenset of int
        but those in these slots.
    state : sequence of int
        Not 0 where an error waits to be raised.
    ordinal : int
        The device.
    general : Runner
    """
    dtype = problem.library.dtype
    news = [
        (x.shape, strides_of(x), dtype(x.dtype), arrays.strides_as_told(strides_of(x), x.dtype))
        for x in problem.outputs
    ]
    slots, size = len(problem.given) + len(news), 0
    begins = [0] * slots
    for shape, name in workspaces:
        begins.append(size)
        size += -(-prod(shape) * named(name).itemsize // _APART) * _APART
    if workspaces:
        news.append(((size,), (1,), dtype("uint8"), ()))
    kinds: list[Step] = []
    steps: list[tuple[Any, ...]] = []
    for launch, front, takes in launches:
        offsets = [offset + begins[slot] for slot, offset in front]
        clears = isinstance(launch, Clear)
        # All workspaces are the one array behind the outputs.
        pointers = [
            (min(slot, slots), at != 0) for (slot, _), at in zip(front, offsets, strict=True)
        ]
        kinds.append((tuple(pointers), takes, clears))
        steps.append((*launch.parts, offsets))
    present = tuple([x is not None for x in problem.inputs])
    reads = problem.reads or ("",) * len(problem.spec.scalars)
    values = tuple(zip(problem.spec.scalars, map(bool, reads), strict=True))
    # Those of which the dtype too may be another one.
    wider = tuple([len(outputs.may_have(problem, x)) > 1 for x in problem.outputs])
    kind = tuple(kinds), values, present, wider, anywhere
    bind = _binder(*kind, bool(workspaces), arrays)
    return bind(alignment - 1, state, ordinal, general, [], news, steps)


@lru_cache(maxsize=256)
def _binder(
    steps: tuple[Step, ...],
    scalars: tuple[tuple[str, bool], ...],
    present: tuple[bool, ...],
    wider: tuple[bool, ...],
    anywhere: frozenset[int],
    works: bool,
    arrays: Any,
) -> Callable[..., Runner]:
    """Binds the code for such operands and launches to what differs from plan to plan.

    Of each run-time value stands its name, and whether kernels take its address.
    """
    given = [f"a{i}" for i, there in enumerate(present) if there]
    made = [f"y{i}" for i in range(len(wider))]
    every = [*given, *made, "w"]

    def new(expression: str, number: int) -> str:
        parts = {name: f"{name}{number}" for name in ("shape", "strides", "dtype")}
        return expression.format(like=given[0], **parts)

    def pointers(names: Sequence[str]) -> str:
        return "; ".join(f"p_{x} = {arrays.POINTER.format(x)}" for x in names)

    def either(names: Sequence[str]) -> str:
        return " | ".join(f"p_{x}" for x in names)

    launched = [i for i, (_, _, clears) in enumerate(steps) if not clears]
    differ = [f"{arrays.STRIDES.format(y)} != told{i}" for i, y in enumerate(made)]
    differ += [f"{y}.dtype != dtype{i}" for i, y in enumerate(made) if wider[i]]
    bound, written = [], []
    for i, (front, takes, clears) in enumerate(steps):
        words = [
            f"p_{every[slot]}" + f" + o{i}_{j}" * moved for j, (slot, moved) in enumerate(front)
        ]
        for name, reads in scalars if takes else ():
            value = f"scalars[{name!r}]"
            words.append(arrays.POINTER.format(value) if reads else value)
        fixed = ", ".join(f"g{i}_{j}" for j in range(GEOMETRY))
        parts = f"nbytes{i}" if clears else f"pack{i}, new{i}, function{i}, ({fixed})"
        bound.append(f"({parts}, [{', '.join(f'o{i}_{j}' for j in range(len(front)))}]), ")
        form = _CLEAR if clears else _LAUNCH
        checks = _CHECKS if i else ""
        written.append(form.format(i=i, words=", ".join(words), fixed=fixed, checks=checks))
    text = _TEMPLATE.format(
        news="".join(
            f"(shape{i}, strides{i}, dtype{i}, told{i}), " for i in range(len(made) + works)
        ),
        steps="".join(bound),
        arrays="; ".join(f"a{i} = arrays[{i}]" for i, there in enumerate(present) if there),
        given=pointers(given),
        either_given=either([x for i, x in enumerate(given) if i not in anywhere]),
        make="; ".join(f"{y} = {new(arrays.EMPTY, i)}" for i, y in enumerate(made)),
        outs="".join(f"{y}, " for y in made),
        differ=" or ".join(differ),
        made=pointers(made),
        either_made=either(made),
        room=f"w = {new(arrays.WORKSPACE, len(made))}; p_w = {arrays.POINTER.format('w')}" * works,
        rooms="".join(f"new{i}(), " for i in launched),
        structs="".join(f"struct{i}, " for i in launched) or "()",
        launches="".join(written),
        results=made[0] if len(made) == 1 else f"({', '.join(made)})",
    )
    scope = {
        **arrays.names(),
        "current_device": arrays.current_device,
        "current_stream": arrays.current_stream,
        "launch_kernel": launch_kernel,
        "clear": clear,
        "checked": checked,
        "streams": STREAMS,
        "stream_of": stream_of,
    }
    exec(compile(text, "<baracuda plan>", "exec"), scope)
    return scope["bound"]  # type: ignore[no-any-return]
