"""The shortest way from arrays to a launch, written out for one plan.

A call of a planned kernel is some attribute reads, one allocation and one launch. Loops over
operands would cost as much as the launch does, so the code for a plan's number of operands is
generated, as `dataclasses` generates an `__init__`. It holds for fresh outputs and for addresses
that are multiples of 16; everything else goes the general way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from baracuda.backends.cuda.launch import STREAMS, Launch, launch_kernel, stream_of
from baracuda.backends.cuda.steps import WIDEST
from baracuda.layouts import Shape

_TEMPLATE = """
def hot(arrays, scalars):
    if state[0] or current_device() != ordinal:
        return None
    {arrays}
    {make}
    {pointers}
    if ({either}) & {mask}:
        return None
    stream = current_stream(ordinal)
    room = free.pop() if free else new_room()
    pack(room[0], 0, {words})
    if launch_kernel(
        function, {fixed}, streams.get(stream) or stream_of(stream), room[1], 0
    )[0]:
        return None
    free.append(room)
    return {results}
"""


def compiled(
    launch: Launch,
    front: Sequence[tuple[int, int]],
    scalars: Sequence[str],
    present: Sequence[bool],
    outputs: Sequence[tuple[Shape, Shape]],
    arrays: Any,
    **names: Any,
) -> Callable[..., Any]:
    """``(arrays, scalars) -> result``, or None where the general way has to be gone.

    Parameters
    ----------
    launch : Launch
    front : sequence of (int, int)
        The kernel's pointers: slot, and bytes into it.
    scalars : sequence of str
        Run-time values behind the pointers.
    present : sequence of bool
        Which of the arrays of a call are there.
    outputs : sequence of (tuple of int, tuple of int)
        Shapes and strides of what is allocated.
    arrays : module
        `backends.cuda.torch`.
    **names
        `state` and `ordinal`.
    """
    given = [f"a{i}" for i, there in enumerate(present) if there]
    made = [f"y{i}" for i in range(len(outputs))]
    slots = [*given, *made]
    words = [f"p_{slots[slot]}" + (f" + {offset}" if offset else "") for slot, offset in front]
    code = _TEMPLATE.format(
        arrays="; ".join(f"a{i} = arrays[{i}]" for i, there in enumerate(present) if there),
        make="; ".join(
            f"{y} = {arrays.EMPTY.format(like='a0', shape=shape, strides=strides)}"
            for y, (shape, strides) in zip(made, outputs, strict=True)
        ),
        pointers="; ".join(f"p_{x} = {arrays.POINTER.format(x)}" for x in slots),
        either=" | ".join(f"p_{x}" for x in slots),
        mask=WIDEST - 1,
        words=", ".join([*words, *(f"scalars[{name!r}]" for name in scalars)]),
        fixed=", ".join(map(str, launch.fixed)),
        results=made[0] if len(made) == 1 else f"({', '.join(made)})",
    )
    scope = {
        **names, "pack": launch.pack, "free": launch.free, "new_room": launch.room,
        "function": launch.function, "launch_kernel": launch_kernel, "streams": STREAMS,
        "stream_of": stream_of, "current_device": arrays.current_device,
        "current_stream": arrays.current_stream,
    }  # fmt: skip
    exec(compile(code, "<baracuda plan>", "exec"), scope)
    return scope["hot"]  # type: ignore[no-any-return]
