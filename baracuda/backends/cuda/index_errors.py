"""Indices out of range: found by kernels, written to pinned memory, raised by the next call.

One record per device. Looking at it costs a read of host memory; nothing waits for the device.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence
from itertools import count

from cuda.bindings import driver

from baracuda.backends.cuda.launch import checked, on_primary, while_capturing
from baracuda.declaration.indexed import indexed, operand
from baracuda.declaration.spec import Problem
from baracuda.errors import IndexOutOfRangeError
from baracuda.forks import Guard

_READY = 2
# Schedules that report where an element is, not where its entry is in the index.
_COUNT_ELEMENTS = ("add_rows", "gather", "scatter")


class Record(ctypes.Structure):
    """What kernels write: common/report.cuh. `state` is set back to 0 by the host."""

    _fields_ = (
        ("state", ctypes.c_uint32),
        ("ticket", ctypes.c_uint32),
        ("value", ctypes.c_int64),
        ("position", ctypes.c_int64),
    )


class Listener:
    """The record of one device.

    Attributes
    ----------
    state : memoryview
        Of one element, 0 while nothing was reported.
    address : int
        Where kernels write.
    ahead : set of callable
        What sees to it that all is launched on a device: libraries with launching threads add it.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal
        with while_capturing(), on_primary(ordinal):
            flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
            self.address = int(checked(driver.cuMemHostAlloc(ctypes.sizeof(Record), flags)))
        self._record = Record.from_address(self.address)
        ctypes.memset(self.address, 0, ctypes.sizeof(Record))
        raw = (ctypes.c_uint32 * 1).from_address(self.address)
        self.state = memoryview(raw).cast("B").cast("I")
        self._guard = Guard()
        self.ahead: set[Callable[[int], None]] = set()

    def raise_pending(self) -> None:
        """Raise what was reported, and listen again.

        Raises
        ------
        IndexError
            Where a kernel met an index out of range.
        """
        with self._guard.lock:
            record = self._record
            if record.state != _READY:
                return
            ticket, value, position = record.ticket, record.value, record.position
            record.state = 0
        raise IndexOutOfRangeError(_explain(ticket, value, position))

    def wait(self) -> None:
        """Wait for the device, then raise what was reported."""
        for settle in tuple(self.ahead):
            settle(self._ordinal)
        with on_primary(self._ordinal):
            checked(driver.cuCtxSynchronize())
        self.raise_pending()


_listeners: dict[int, Listener] = {}
_guard = Guard()
_tickets: weakref.WeakValueDictionary[int, Ticket] = weakref.WeakValueDictionary()
_numbers = count(1)


class Ticket:
    """Who listens: what an error has to say of a problem."""

    def __init__(self, problem: Problem) -> None:
        name = problem.raising[0]
        self.op, self.argument = problem.spec.name, name
        self.extent = problem.extent_of(name)
        self.shape = next(x.shape for x in problem.given if x.name == name)
        self.each = _each(problem)
        self.number = next(_numbers) % (1 << 32)
        _tickets[self.number] = self


def _each(problem: Problem) -> int:
    """Elements beside each other for which an entry stands: gathers report their positions."""
    if (kernel := problem.spec.kernel) is None or kernel.schedule not in _COUNT_ELEMENTS:
        return 1
    of = indexed(problem)
    asked, index = operand(problem, of.asked).shape, operand(problem, of.index).shape
    return math.prod(asked[of.axis + of.run :]) if len(asked) > len(index) else 1


def listener(ordinal: int) -> Listener:
    """The record of a device, made when it is first needed."""
    found = _listeners.get(ordinal)
    if found is None:
        with _guard.lock:
            found = _listeners.get(ordinal) or _listeners.setdefault(ordinal, Listener(ordinal))
    return found


def check() -> None:
    """Wait for every device that has run a checked kernel; raise what they reported."""
    for one in tuple(_listeners.values()):
        one.wait()


def _explain(number: int, value: int, position: int) -> str:
    ticket = _tickets.get(number)
    if ticket is None:
        return f"an index out of range: got {value} at element {position} of the index"
    return (
        f"{ticket.op}: {ticket.argument}: expected 0 <= i < {ticket.extent}, "
        f"got {value} at position {_unravel(position // ticket.each, ticket.shape)}"
    )


def _unravel(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    out = []
    for extent in reversed(shape):
        position, at = divmod(position, extent)
        out.append(at)
    return tuple(reversed(out))
