"""Locks and imports that are in order in a forked child.

A child has only the thread that forked. A lock that another thread held is never released there,
and a module that another thread was importing is never finished.
"""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401
import importlib
import logging  # noqa: F401
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")

# Seconds that a fork waits for imports. Without a bound it would wait for ever for an import that
# itself waits for the module whose code forks.
_PATIENCE = 10.0


class Guard:
    """A lock that is free in every forked child: ``with guard.lock``.

    Reentrant, because a signal handler may call an op while the code that it interrupts holds the
    lock.

    Parameters
    ----------
    renewed : callable, optional
        Called in the child after the lock was replaced.

    Attributes
    ----------
    lock : threading.RLock
        Another object in a child, so that the thread that forked can leave the block it was in.
    """

    __slots__ = ("__weakref__", "_renewed", "lock")

    def __init__(self, renewed: Callable[[], None] | None = None) -> None:
        self.lock = threading.RLock()
        self._renewed = renewed
        _guards.add(self)

    def renew(self) -> None:
        """What a child does."""
        self.lock = threading.RLock()
        if self._renewed is not None:
            self._renewed()


_guards: weakref.WeakSet[Guard] = weakref.WeakSet()


class cached_property(Generic[T]):
    """`functools.cached_property` without the lock that it has in Python 3.11."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value


# Imports under way, by thread: how deep each is.
_importing: dict[int, int] = {}
_moving = threading.Condition()


def import_module(name: str) -> Any:
    """`importlib.import_module`; a fork waits until it is done.

    Unlike a look into `sys.modules` it also waits for a thread that is importing the module.
    """
    module = sys.modules.get(name)
    # What importlib itself looks at, before all that only an import needs.
    if not getattr(getattr(module, "__spec__", None), "_initializing", True):
        return module
    me = threading.get_ident()
    with _moving:
        _importing[me] = _importing.get(me, 0) + 1
    try:
        return importlib.import_module(name)
    finally:
        with _moving:
            _importing[me] -= 1
            if not _importing[me]:
                del _importing[me]
                _moving.notify_all()


def _before() -> None:
    """Wait for the imports of other threads, and keep new ones from beginning."""
    _moving.acquire()
    own = {threading.get_ident()}
    _moving.wait_for(lambda: _importing.keys() <= own, _PATIENCE)


def _in_parent() -> None:
    _moving.release()


def _in_child() -> None:
    global _moving
    _moving = threading.Condition()
    for thread in _importing.keys() - {threading.get_ident()}:
        del _importing[thread]
    for guard in list(_guards):
        guard.renew()


if hasattr(os, "register_at_fork"):
    # Whoever registers last goes first: while this waits for imports, the locks of logging and of
    # thread pools, imported above for that, are not held yet.
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
