"""XLA's call frames, built here: a handler launches what it was compiled for, or says an error."""

from __future__ import annotations

import ctypes
import signal
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from baracuda.backends.cuda import xla

_CREATE = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
ERROR = 0xE44
STREAM = 77
F32, S64, S32 = xla.DTYPES["float32"], xla.DTYPES["int64"], xla.DTYPES["int32"]


class Xla:
    """The other side of the interface, and what it has been told."""

    def __init__(self) -> None:
        self.errors: list[tuple[int, str]] = []
        self._held: list[Any] = []
        self._functions = [_CREATE(self._create), _CREATE(self._stream)]
        table = bytearray(128)
        struct.pack_into("<ii", table, xla.API_VERSION, 0, 3)
        for at, function in zip(
            (xla.API_ERROR_CREATE, xla.API_STREAM_GET), self._functions, strict=True
        ):
            struct.pack_into("<Q", table, at, ctypes.cast(function, ctypes.c_void_p).value or 0)
        self.api = self.put(bytes(table))
        for at in (xla.API_ERROR_CREATE, xla.API_STREAM_GET):
            xla._functions.pop(self.api + at, None)

    def put(self, data: bytes) -> int:
        """The address of a copy that stays."""
        room = ctypes.create_string_buffer(data, len(data))
        self._held.append(room)
        return ctypes.addressof(room)

    def words(self, *values: int) -> int:
        return self.put(struct.pack(f"<{len(values)}Q", *values))

    def kinds(self, *values: int) -> int:
        return self.put(struct.pack(f"<{len(values)}I", *values)) if values else 0

    def _create(self, at: int) -> int:
        made = xla._ErrorCreate.from_address(at)
        self.errors.append((made.code, made.message.decode()))
        return ERROR

    def _stream(self, at: int) -> int:
        xla._StreamGet.from_address(at).stream = STREAM
        return 0

    def extension(self, kind: int, behind: int = 0, payload: int = 0) -> int:
        return self.put(struct.pack("<QI4xQQ", 32, kind, behind, payload))

    def buffers(self, dtypes: Sequence[int], kind: int = 1) -> bytes:
        each = [self.put(struct.pack("<QQI4xQqQ", 48, 0, d, 1000 + i, 0, 0))
                for i, d in enumerate(dtypes)]  # fmt: skip
        return self.group(len(each), [kind] * len(each), each)

    def group(self, count: int, kinds: Sequence[int], each: Sequence[int]) -> bytes:
        return struct.pack("<QQqQQ", 40, 0, count, self.kinds(*kinds), self.words(*each))

    def attributes(self, values: Sequence[float], dtype: int = S64, kind: int = 1) -> bytes:
        if not values:
            return struct.pack("<QQqQQQ", 48, 0, 0, 0, 0, 0)
        data = self.put(struct.pack(f"<{len(values)}d", *values))
        array = self.put(struct.pack("<I4xQQ", dtype, len(values), data))
        return struct.pack("<QQqQQQ", 48, 0, 1, self.kinds(kind), 0, self.words(array))

    def frame(
        self,
        operands: bytes | None = None,
        results: bytes | None = None,
        attributes: bytes | None = None,
        extension: int = 0,
        size: int = 176,
    ) -> int:
        """That of a call of `handler`, with something in the place of what it has."""
        body = struct.pack("<QQQQI4x", size, extension, self.api, 5, 3)
        body += operands or self.buffers([F32, S32])
        body += results or self.buffers([F32])
        body += attributes or self.attributes([0.25, 2.0])
        return self.put(body + bytes(8))


Launches = list[tuple[list[int], list[float], int]]


@pytest.fixture
def launches() -> Launches:
    return []


@pytest.fixture
def handler(launches: Launches) -> xla.Handler:
    def launch(words: list[int], scalars: Sequence[float], stream: int) -> None:
        launches.append((words, list(scalars), stream))

    return xla.Handler(["float32", "int32"], ["float32"], "dd", launch)


def call(handler: xla.Handler, frame: int) -> int:
    function = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(handler.address)
    return int(function(frame) or 0)


USUAL = ([1000, 1001, 1000], [0.25, 2.0], STREAM)


def test_a_call_launches(handler: xla.Handler, launches: Launches) -> None:
    side = Xla()
    assert call(handler, side.frame()) == 0
    assert launches == [USUAL]
    # A later version of the interface has longer frames.
    assert call(handler, side.frame(size=200)) == 0
    assert launches == [USUAL] * 2


def test_extensions_that_are_not_known_are_passed_over(
    handler: xla.Handler, launches: Launches
) -> None:
    side = Xla()
    one = side.extension(99)
    assert call(handler, side.frame(extension=one)) == 0
    assert call(handler, side.frame(extension=side.extension(98, one))) == 0
    assert launches == [USUAL] * 2


@pytest.mark.parametrize("ahead", [0, 2])
def test_what_xla_asks_is_answered_behind_other_extensions(
    ahead: int, handler: xla.Handler, launches: Launches
) -> None:
    side = Xla()
    metadata = side.put(bytes(64))
    extension = side.extension(xla.IS_METADATA, side.extension(99), metadata)
    for kind in range(ahead):
        extension = side.extension(90 + kind, extension)
    assert call(handler, side.frame(extension=extension)) == 0
    said = (ctypes.c_char * 64).from_address(metadata)
    assert struct.unpack_from("<ii", said, xla.METADATA_VERSION) == (0, 1)
    assert struct.unpack_from("<I", said, xla.METADATA_TRAITS) == (1,)
    assert not launches


WRONG = {
    "a frame too short": (lambda s: {"size": 120}, "frame of 168 bytes"),
    "one operand": (lambda s: {"operands": s.buffers([F32])}, "2 operands, got 1"),
    "no operand": (lambda s: {"operands": s.buffers([])}, "2 operands, got 0"),
    "three operands": (lambda s: {"operands": s.buffers([F32, S32, S32])}, "got 3"),
    "two results": (lambda s: {"results": s.buffers([F32, F32])}, "1 results, got 2"),
    "no result": (lambda s: {"results": s.buffers([])}, "1 results, got 0"),
    "no buffers": (lambda s: {"operands": s.buffers([F32, S32], 7)}, r"type 1 \(buffer\)"),
    "another dtype": (lambda s: {"operands": s.buffers([F32, 5])}, r"got \[11, 5\]"),
    "a wider result": (lambda s: {"results": s.buffers([S64])}, r"results of dtypes \[11\]"),
    "no attribute": (lambda s: {"attributes": s.attributes([])}, "1 attributes, got 0"),
    "one value": (lambda s: {"attributes": s.attributes([1.0])}, "2 values.*got 1"),
    "three values": (lambda s: {"attributes": s.attributes([1.0] * 3)}, "2 values.*got 3"),
    "narrow values": (lambda s: {"attributes": s.attributes([1.0, 2.0], F32)}, "dtype 11"),
    "a scalar": (lambda s: {"attributes": s.attributes([1.0, 2.0], kind=3)}, "array"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(WRONG))
def test_another_frame_is_an_error_and_launches_nothing(
    what: str, handler: xla.Handler, launches: Launches
) -> None:
    side, (make, text) = Xla(), WRONG[what]
    assert call(handler, side.frame(**make(side))) == ERROR
    ((code, message),) = side.errors
    assert code == xla.INVALID_ARGUMENT
    with pytest.raises(xla.Malformed, match=text):
        raise xla.Malformed(message)
    assert not launches


def test_an_attribute_that_nobody_takes_is_an_error(launches: Launches) -> None:
    side = Xla()
    plain = xla.Handler(["float32", "int32"], ["float32"], "", lambda *_: launches.append(_))
    assert call(plain, side.frame()) == ERROR
    assert "expected 0 attributes, got 1" in side.errors[0][1]
    assert call(plain, side.frame(attributes=side.attributes([]))) == 0
    assert len(launches) == 1


@pytest.mark.parametrize("error", [RuntimeError, SystemExit, MemoryError])
def test_what_is_raised_is_the_error_of_the_program(error: type[BaseException]) -> None:
    def launch(*_: Any) -> None:
        raise error("no such luck")

    side = Xla()
    assert call(xla.Handler(["float32", "int32"], ["float32"], "dd", launch), side.frame()) == ERROR
    assert side.errors == [(xla.INTERNAL_ERROR, f"{error.__name__}: no such luck")]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Shells start what runs in the background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_is_one_for_who_called() -> None:
    def launch(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0)

    side = Xla()
    handler = xla.Handler(["float32", "int32"], ["float32"], "dd", launch)
    returned = []

    def caller() -> None:
        returned.append(call(handler, side.frame()))
        for _ in range(1000):
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        caller()
    # XLA was told meanwhile that nothing was launched.
    assert returned == [ERROR]
    assert side.errors == [(xla.CANCELLED, "KeyboardInterrupt: ")]
