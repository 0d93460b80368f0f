"""A Python function as a custom call of XLA, in the C layout of its foreign function interface.

XLA calls a handler with the address of a frame: where operands, results and attributes are, and
what to ask for the stream. A frame is read in place, a field at a time, since an object for each
struct would cost more than the launch that follows. Nothing is compiled, and nothing has to be
installed beside JAX.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

LaunchAll: TypeAlias = Callable[[list[int], Sequence[float], int], Any]
"""``(addresses of operands and results, scalars, stream)``: what a handler does."""

# Offsets in bytes on a 64-bit machine, those of every version 0.x of the interface. Of a frame:
# extension, api, context, operands, results, attributes.
FRAME, FRAME_FORMAT = 8, "<QQQ40xQ32xQ40xQ"
BUFFER_DATA, ARRAY_DATA = 24, 16
EXTENSION_TYPE, EXTENSION_METADATA = 8, 24
METADATA_VERSION, METADATA_TRAITS = 24, 32
API_VERSION, API_ERROR_CREATE, API_STREAM_GET = 32, 48, 80
# What a handler says of itself: the oldest version with all that is used here, and that its
# launches may be captured into a CUDA graph.
IS_METADATA, MAJOR, MINOR, COMMAND_BUFFER_COMPATIBLE = 1, 0, 1, 1
INTERNAL_ERROR = 13

# All memory, to read a field at an address without making an object for it.
_memory = (ctypes.c_char * sys.maxsize).from_address(0)
_word = struct.Struct("<Q").unpack_from
_frame = struct.Struct(FRAME_FORMAT).unpack_from
_version = struct.Struct("<ii")
_traits = struct.Struct("<I")
_kind = struct.Struct("<I").unpack_from

_HANDLER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
# Called without giving up the interpreter's lock: they do not wait.
_CALL = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_functions: dict[int, Any] = {}


class _StreamGet(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("ctx", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


class _ErrorCreate(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t),
        ("extension", ctypes.c_void_p),
        ("message", ctypes.c_char_p),
        ("code", ctypes.c_int),
    )


class Handler:
    """A custom call; XLA may call it for as long as the process lives.

    Parameters
    ----------
    operands, results : int
        How many there are.
    scalars : int
        How many float64 values the only attribute holds, an array; 0 for no attribute.
    launch : callable
        What to do; an exception becomes the error of the program.
    replayed : bool, optional
        Whether the launches of one call may stand for those of others, in a CUDA graph.

    Attributes
    ----------
    address : int
        The C function.
    """

    def __init__(
        self, operands: int, results: int, scalars: int, launch: LaunchAll, replayed: bool = True
    ) -> None:
        self._operands = struct.Struct(f"<{operands}Q").unpack_from
        self._results = struct.Struct(f"<{results}Q").unpack_from
        self._scalars = struct.Struct(f"<{scalars}d").unpack_from if scalars else None
        self._launch, self._traits = launch, COMMAND_BUFFER_COMPATIBLE * replayed
        self._free: list[_StreamGet] = []
        self._function = _HANDLER(self._call)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def _call(self, frame: int) -> int:
        extension, api, ctx, args, rets, attrs = _frame(_memory, frame + FRAME)
        try:
            if extension:
                return _describe(extension, api, self._traits)
            words = [
                _word(_memory, buffer + BUFFER_DATA)[0]
                for buffer in self._operands(_memory, args) + self._results(_memory, rets)
            ]
            scalars: Sequence[float] = ()
            if self._scalars is not None:
                (array,) = _word(_memory, attrs)
                (data,) = _word(_memory, array + ARRAY_DATA)
                scalars = self._scalars(_memory, data)
            self._launch(words, scalars, self._stream(api, ctx))
        except BaseException as error:
            return _failed(api, f"{type(error).__name__}: {error}")
        return 0

    def _stream(self, api: int, ctx: int) -> int:
        room = self._free.pop() if self._free else _StreamGet(ctypes.sizeof(_StreamGet))
        room.ctx = ctx
        if _function(api + API_STREAM_GET)(ctypes.addressof(room)):
            raise RuntimeError("XLA has no stream for this call")
        self._free.append(room)
        return room.stream or 0


def _function(at: int) -> Any:
    """The function of the interface whose address stands at `at`."""
    found = _functions.get(at)
    if found is None:
        found = _functions[at] = _CALL(_word(_memory, at)[0])
    return found


def _describe(extension: int, api: int, traits: int) -> int:
    """Answer what XLA asks of a handler before it is ever used."""
    if _kind(_memory, extension + EXTENSION_TYPE)[0] != IS_METADATA:
        return 0
    major, minor = _version.unpack_from(_memory, api + API_VERSION)
    if major != MAJOR:
        raise RuntimeError(f"needs version {MAJOR}.x of XLA's FFI, found {major}.{minor}")
    (metadata,) = _word(_memory, extension + EXTENSION_METADATA)
    _version.pack_into(_memory, metadata + METADATA_VERSION, MAJOR, min(MINOR, minor))
    _traits.pack_into(_memory, metadata + METADATA_TRAITS, traits)
    return 0


def _failed(api: int, message: str) -> int:
    """An error object of XLA, which it takes over."""
    size = _ErrorCreate.code.offset + _ErrorCreate.code.size
    made = _ErrorCreate(size, None, message.encode(), INTERNAL_ERROR)
    return int(_function(api + API_ERROR_CREATE)(ctypes.addressof(made)) or 0)
