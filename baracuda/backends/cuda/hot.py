"""The shortest way from arrays to a launch, written out for one plan.

A call of a planned kernel is some attribute reads, one allocation and one launch. Loops over
operands would cost as much as the launch does, so the code for a plan's number of operands is
generated, as `dataclasses` generates an `__init__`. It holds for fresh outputs and for addresses
as aligned as planned; everything else goes the general way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

from baracuda.backends.cuda.launch import GEOMETRY, STREAMS, Launch, launch_kernel, stream_of
from baracuda.layouts import Shape

_TEMPLATE = """
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
"""


def compiled(
    launch: Launch,
    front: Sequence[tuple[int, int]],
    scalars: Sequence[str],
    present: Sequence[bool],
    outputs: Sequence[tuple[Shape, Shape]],
    arrays: Any,
    dtype: str,
    alignment: int,
    **names: Any,
) -> Callable[..., Any]:
    """A `Runner` that goes the shortest way where it can, else `general`.

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
    dtype : str
        Of the outputs.
    alignment : int
        What all addresses are multiples of.
    **names
        `state`, `ordinal` and `general`.
    """
    pointers = tuple((slot, offset != 0) for slot, offset in front)
    code = _code(
        pointers, tuple(scalars), tuple(present), len(outputs), arrays.EMPTY, arrays.POINTER
    )
    scope = {
        **names, **arrays.names(dtype), "mask": alignment - 1,
        "pack": launch.pack, "free": launch.free, "new_room": launch.room,
        "function": launch.function, "launch_kernel": launch_kernel, "streams": STREAMS,
        "stream_of": stream_of, "current_device": arrays.current_device,
        "current_stream": arrays.current_stream,
    }  # fmt: skip
    scope |= {f"o{i}": offset for i, (_, offset) in enumerate(front)}
    scope |= {f"g{i}": value for i, value in enumerate(launch.fixed)}
    for i, (shape, strides) in enumerate(outputs):
        scope |= {f"shape{i}": shape, f"strides{i}": strides}
    exec(code, scope)
    return scope["hot"]  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def _code(
    front: tuple[tuple[int, bool], ...],
    scalars: tuple[str, ...],
    present: tuple[bool, ...],
    outputs: int,
    empty: str,
    pointer: str,
) -> CodeType:
    """The code for this number of operands; what differs from shape to shape are names in it."""
    given = [f"a{i}" for i, there in enumerate(present) if there]
    made = [f"y{i}" for i in range(outputs)]
    slots = [*given, *made]
    words = [f"p_{slots[slot]}" + f" + o{i}" * moved for i, (slot, moved) in enumerate(front)]
    text = _TEMPLATE.format(
        arrays="; ".join(f"a{i} = arrays[{i}]" for i, there in enumerate(present) if there),
        make="; ".join(
            f"{y} = {empty.format(like=given[0], shape=f'shape{i}', strides=f'strides{i}')}"
            for i, y in enumerate(made)
        ),
        pointers="; ".join(f"p_{x} = {pointer.format(x)}" for x in slots),
        either=" | ".join(f"p_{x}" for x in slots),
        words=", ".join([*words, *(f"scalars[{name!r}]" for name in scalars)]),
        fixed=", ".join(f"g{i}" for i in range(GEOMETRY)),
        results=made[0] if len(made) == 1 else f"({', '.join(made)})",
    )
    return compile(text, "<baracuda plan>", "exec")
