"""The shortest way from arrays to a launch, written out for one kind of plan.

A call of a planned kernel is some attribute reads, one allocation and one launch. Loops over
operands would cost as much as the launch does, so the code for a plan's number of operands is
generated, as `dataclasses` generates an `__init__`, once for all plans of its kind. It holds for
fresh outputs and for addresses as aligned as planned; everything else goes the general way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from baracuda.backends.cuda.launch import GEOMETRY, STREAMS, Launch, launch_kernel, stream_of
from baracuda.layouts import Shape
from baracuda.spec import Runner

_TEMPLATE = """
def bound(launch, mask, state, ordinal, general, outputs, offsets):
    pack, free, new_room = launch.pack, launch.free, launch.room
    function, ({fixed}) = launch.function, launch.fixed
    {outputs} = outputs
    {offsets} = offsets

    def hot(arrays, outs, accumulate, scalars):
        if outs is not None or accumulate or state[0] or current_device() != ordinal:
            return general(arrays, outs, accumulate, scalars)
        {arrays}
        {make}
        {pointers}
        if ({either}) & mask:
            return general(arrays, None, False, scalars)
        stream = current_stream(ordinal)
        room = free.pop() if free else new_room()
        pack(room[0], 0, {words})
        if launch_kernel(
            function, {fixed}, streams.get(stream) or stream_of(stream), room[1], 0
        )[0]:
            return general(arrays, None, False, scalars)
        free.append(room)
        return {results}

    return hot
"""


def compiled(
    launch: Launch,
    front: Sequence[tuple[int, int]],
    scalars: tuple[str, ...],
    present: tuple[bool, ...],
    outputs: Sequence[tuple[Shape, Shape]],
    arrays: Any,
    dtype: str,
    alignment: int,
    state: Any,
    ordinal: int,
    general: Runner,
) -> Runner:
    """A `Runner` that goes the shortest way where it can, else `general`.

    Parameters
    ----------
    launch : Launch
    front : sequence of (int, int)
        The kernel's pointers: slot, and bytes into it.
    scalars : tuple of str
        Run-time values behind the pointers.
    present : tuple of bool
        Which of the arrays of a call are there.
    outputs : sequence of (tuple of int, tuple of int)
        Shapes and strides of what is allocated.
    arrays : module
        `backends.cuda.torch`.
    dtype : str
        Of the outputs.
    alignment : int
        What all addresses are multiples of.
    state : sequence of int
        Not 0 where an error waits to be raised.
    ordinal : int
        The device.
    general : Runner
    """
    pointers = tuple([(slot, offset != 0) for slot, offset in front])
    bind = _binder(pointers, scalars, present, len(outputs), arrays, dtype)
    offsets = [offset for _, offset in front]
    return bind(launch, alignment - 1, state, ordinal, general, outputs, offsets)


@lru_cache(maxsize=256)
def _binder(
    front: tuple[tuple[int, bool], ...],
    scalars: tuple[str, ...],
    present: tuple[bool, ...],
    outputs: int,
    arrays: Any,
    dtype: str,
) -> Callable[..., Runner]:
    """Binds the code for this number of operands to what differs from plan to plan."""
    given = [f"a{i}" for i, there in enumerate(present) if there]
    made = [f"y{i}" for i in range(outputs)]
    names = [*given, *made]
    words = [f"p_{names[slot]}" + f" + o{i}" * moved for i, (slot, moved) in enumerate(front)]
    text = _TEMPLATE.format(
        outputs=", ".join(f"(shape{i}, strides{i})" for i in range(outputs)) + ",",
        offsets=", ".join(f"o{i}" for i in range(len(front))) + ",",
        arrays="; ".join(f"a{i} = arrays[{i}]" for i, there in enumerate(present) if there),
        make="; ".join(
            f"{y} = {arrays.EMPTY.format(like=given[0], shape=f'shape{i}', strides=f'strides{i}')}"
            for i, y in enumerate(made)
        ),
        pointers="; ".join(f"p_{x} = {arrays.POINTER.format(x)}" for x in names),
        either=" | ".join(f"p_{x}" for x in names),
        words=", ".join([*words, *(f"scalars[{name!r}]" for name in scalars)]),
        fixed=", ".join(f"g{i}" for i in range(GEOMETRY)),
        results=made[0] if len(made) == 1 else f"({', '.join(made)})",
    )
    scope = {
        **arrays.names(dtype),
        "current_device": arrays.current_device,
        "current_stream": arrays.current_stream,
        "launch_kernel": launch_kernel,
        "streams": STREAMS,
        "stream_of": stream_of,
    }
    exec(compile(text, "<baracuda plan>", "exec"), scope)
    return scope["bound"]  # type: ignore[no-any-return]
