"""The backends in the order in which they are asked, each loaded when it is first asked.

A package brings a backend of its own by an entry point of the group ``baracuda.backends``. Its name
is the backend's, and what it loads is an `Entry`::

    [project.entry-points."baracuda.backends"]
    mine = "my_package:ENTRY"        # ENTRY = Entry("my_package.kernels", ("torch",))

Such backends are asked behind all others unless `Entry.before` says otherwise; ``python -m baracuda
parity --backends mine`` holds one to the laws. One that cannot be loaded takes nothing, and says
why wherever a plan lists whom it passed over.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import get_ident

from baracuda.calls import ranges
from baracuda.declaration.backend import Backend, Prepared, Refusal
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.errors import UnsupportedError, nearest, shown, value_error
from baracuda.forks import Guard, import_module
from baracuda.instruments import logger


@dataclass(frozen=True, slots=True)
class Entry:
    """A backend before it is loaded.

    Attributes
    ----------
    module : str
        Where its `BACKEND` is.
    libraries : tuple of str or None
        The libraries whose arrays it takes unasked; None for all.
    on_request : tuple of str
        Those whose arrays it takes only when it is forced.
    device : str
        The kind of device that it is for, "" for any.
    before : str
        The backend ahead of which its entry point puts it, "" for behind all.
    fault : str
        Why its entry point leads nowhere.
    """

    module: str
    libraries: tuple[str, ...] | None
    on_request: tuple[str, ...] = ()
    device: str = ""
    before: str = ""
    fault: str = ""


_ENTRIES: dict[str, Entry] = {
    "cuda": Entry("baracuda.backends.cuda", ("torch", "cupy", "jax"), device="cuda"),
    "cupy": Entry("baracuda.backends.cupy", ("cupy",), ("torch",), device="cuda"),
    "torch": Entry("baracuda.backends.torch", ("torch",), ("numpy",)),
    "numpy": Entry("baracuda.backends.numpy", ("numpy",)),
    "array_api": Entry("baracuda.backends.array_api", None),
}


GROUP = "baracuda.backends"
"""The group of entry points that bring backends."""

_guard = Guard()
# Whether entry points were read, and the threads that are reading them.
_done = False
_readers: set[int] = set()


def _entries() -> dict[str, Entry]:
    """All backends; those of entry points are read by the first who asks."""
    global _done
    me = get_ident()
    # A package may ask while it is imported: then it gets those that are there so far.
    if not _done and me not in _readers:
        _readers.add(me)
        try:
            # Without the lock: whoever imports one of the packages may wait for it.
            found = list(_outside())
        except _Unfinished:
            return _ENTRIES
        finally:
            _readers.discard(me)
        with _guard.lock:
            for name, entry in () if _done else found:
                if name in _ENTRIES:
                    logger.warning("a second backend called %r is ignored", name)
                else:
                    _put(name, entry, entry.before)
            _done = True
    return _ENTRIES


class _Unfinished(Exception):
    """This very thread is importing a package that brings a backend."""


def _outside() -> Iterator[tuple[str, Entry]]:
    """The backends that installed packages bring."""
    # A package may be met twice on the path, as where it is being developed.
    for name, value in dict.fromkeys(_points()):
        module, _, attribute = value.partition(":")
        try:
            brought = import_module(module)
            if getattr(brought.__spec__, "_initializing", False):
                raise _Unfinished
            entry = getattr(brought, attribute)
            if not isinstance(entry, Entry):
                got = type(entry).__name__
                raise TypeError(f"{value}: expected a baracuda.backends.Entry, got {got}")
            if entry.before and entry.before not in _ENTRIES:
                known = ", ".join(_ENTRIES)
                raise ValueError(f"before: expected one of {known}, got {entry.before!r}")
        except _Unfinished:
            raise
        except Exception as error:
            # Whatever another package does wrong, this one works without it.
            entry = Entry("", None, fault=f"{type(error).__name__}: {error}")
        yield name, entry


def _points() -> Iterator[tuple[str, str]]:
    """Name and value of the group's entry points, of packages in folders of the path.

    `importlib.metadata` would take tens of ms for it, which the first plan has to wait for.
    """
    for folder in sys.path:
        try:
            with os.scandir(folder or ".") as found:
                kept = [x.path for x in found if x.name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        for path in kept:
            try:
                with open(os.path.join(path, "entry_points.txt"), "rb") as file:
                    text = file.read()
            except OSError:
                continue
            if GROUP.encode() in text:
                yield from _group(text.decode(errors="replace"))


def _group(text: str) -> Iterator[tuple[str, str]]:
    inside = False
    for line in map(str.strip, text.splitlines()):
        name, equals, value = line.partition("=")
        if line.startswith("["):
            inside = line == f"[{GROUP}]"
        elif inside and equals and not line.startswith("#"):
            # Behind the value may stand extras in brackets.
            yield name.strip(), value.partition("[")[0].strip()


def names() -> tuple[str, ...]:
    """All backends, in order."""
    return tuple(_entries())


def register(name: str, entry: Entry, *, before: str | None = None) -> None:
    """Add a backend, or replace one; `before` puts it ahead of another.

    Plans that were made without it are forgotten.

    Raises
    ------
    ValueError
        Where `before` is no other backend.
    """
    if before is not None and (before == name or before not in _entries()):
        others = ", ".join([other for other in _entries() if other != name])
        raise ValueError(f"register: before: expected one of {others}, got {before!r}")
    _entries()
    _put(name, entry, before)
    _tell()


def unregister(name: str) -> None:
    """Take a backend out, and forget the plans that were made with it.

    Raises
    ------
    KeyError
        Where there is none of this name.
    """
    global _ENTRIES
    with _guard.lock:
        left = dict(_entries())
        del left[name]
        _ENTRIES = left
    _tell()


def _put(name: str, entry: Entry, before: str | None) -> None:
    """Replaces the table: who goes through it meanwhile has the old one, whole."""
    global _ENTRIES
    with _guard.lock:
        items = [item for item in _ENTRIES.items() if item[0] != name]
        at = [key for key, _ in items].index(before) if before else len(items)
        _ENTRIES = dict([*items[:at], (name, entry), *items[at:]])


on_change: list[Callable[[], None]] = []
"""What is called when there are other backends than before."""


def _tell() -> None:
    for told in on_change:
        told()


def load(name: str) -> Backend:
    """The backend called `name`.

    Raises
    ------
    ImportError
        Where it cannot be loaded, whatever the cause.
    """
    return _loaded(_entries()[name])


def _loaded(entry: Entry) -> Backend:
    if entry.fault:
        raise ImportError(entry.fault)
    try:
        backend: Backend = import_module(entry.module).BACKEND
    except ImportError:
        raise
    except Exception as error:
        raise ImportError(f"{type(error).__name__}: {error}") from error
    return backend


def mixes(spec: OpSpec, backend: str, dtype: str) -> bool:
    """Whether a backend takes values of the accumulate dtype of `dtype` where an op allows them."""
    if named(dtype).accumulate == dtype or not spec.wide:
        return False
    return _mixes(load(backend), spec)


def _mixes(backend: Backend, spec: OpSpec) -> bool:
    # One of another package need not say.
    asked = getattr(backend, "mixes", None)
    return asked is not None and bool(asked(spec))


def check_errors() -> None:
    """Wait for every device that kernels were launched on, and raise what they reported.

    On a GPU an index out of range does not stop the call that has it: the entry is skipped, and
    the error surfaces from the next call on that device, or here. JAX may launch a kernel after the
    call has returned: wait for the result (`jax.block_until_ready`) first.

    Raises
    ------
    IndexError
        For the first entry out of range met by a gather or its gradient in ``mode="raise"``.
    """
    for entry in tuple(_ENTRIES.values()):
        # One that was never loaded has launched nothing.
        backend = getattr(sys.modules.get(entry.module), "BACKEND", None)
        if backend is not None:
            backend.check_errors()
    ranges.wait()


def foreign(name: str, arch: str, library: str, device: str) -> str | None:
    """Why a recorded choice of a backend cannot be made here, as far as no array is needed."""
    entry = _entries().get(name)
    if entry is None:
        return f"no backend is called {name}"
    takes = (*(entry.libraries or (library,)), *entry.on_request)
    if library not in takes:
        return f"{name} takes arrays of {', '.join(takes)}, not of {library}"
    if name == "cuda":
        reason: str | None = import_module(entry.module).foreign(arch, device)
        return reason
    # Others than ours may call their architecture as they like.
    if entry.module.startswith("baracuda.") and "cpu" in device and arch != platform.machine():
        return f"made for {arch}, this is {platform.machine()}"
    return None


def claims(spec: OpSpec, library: str, device: str = "cpu") -> dict[str, tuple[str, ...]]:
    """For every backend, the dtypes for which it takes `spec` on arrays of `library`."""
    out = {}
    for name, entry in _entries().items():
        if entry.device not in ("", device):
            continue
        if entry.libraries is None or library in (*entry.libraries, *entry.on_request):
            try:
                out[name] = tuple(load(name).claims(spec, library))
            except ImportError:
                # What is not installed claims nothing.
                continue
    return out


class _Unloaded(str):
    """The reason of a backend that could not be loaded: the next call may find it otherwise."""

    __slots__ = ()


_said: set[str] = set()


def _reason(name: str, entry: Entry, problem: Problem, forced: bool) -> str | None:
    """Why a backend does not take a problem, None where it does."""
    library = problem.library.name
    if entry.libraries is not None and library not in entry.libraries:
        if library not in entry.on_request:
            takes = ", ".join((*entry.libraries, *entry.on_request))
            return f"takes arrays of {takes}, not of {library}"
        if not forced:
            return f"takes arrays of {library} only when asked for by backend={name!r}"
    try:
        backend = _loaded(entry)
    except ImportError as error:
        if name not in _said:
            _said.add(name)
            logger.warning("backend %s cannot be loaded, each call tries again: %s", name, error)
        return _Unloaded(f"cannot be loaded: {error}")
    if problem.mixed and not _mixes(backend, problem.spec):
        return f"has nothing for {problem.compute_dtype} beside {problem.dtype}"
    # One of another package need not say.
    reads = getattr(backend, "reads", "")
    if any(x and c not in reads for x, c in zip(problem.reads, problem.spec.codes, strict=False)):
        return "takes such run-time values from the host alone"
    return backend.refuses(problem)


def choose(problem: Problem) -> tuple[str, Prepared, tuple[tuple[str, str], ...]]:
    """The first backend that takes the problem, and the reason of each one passed over.

    Raises
    ------
    ValueError
        Where the forced backend is not known.
    NotImplementedError
        Where the forced backend, or every backend, refuses; lists all reasons.
    """
    op, forced = problem.spec.name, problem.choices.backend
    # As they are now: another thread may take one out meanwhile.
    every = _entries()
    if forced is not None and forced not in every:
        hint = "".join(f"close to it: {name!r}" for name in nearest(forced, every, 0.3)[:1])
        raise value_error(op, "backend", f"one of {', '.join(every)}", shown(forced), hint=hint)
    why: list[tuple[str, str]] = []
    provisional = False
    for name in [forced] if forced else every:
        reason = _reason(name, every[name], problem, forced is not None)
        if reason is None:
            try:
                prepared = _loaded(every[name]).prepare(problem)
                reason = _too_large(prepared, problem)
            except Refusal as refusal:
                reason = str(refusal)
            else:
                if reason is None:
                    return name, prepared._replace(provisional=provisional), tuple(why)
        provisional |= isinstance(reason, _Unloaded)
        why.append((name, str(reason)))
    if forced:
        others = (n for n in every if n != forced)
        why += [(n, _reason(n, every[n], problem, False) or "would take it") for n in others]
        raise UnsupportedError(f"{op}: backend {forced!r} refuses: {_listed(why)}")
    raise UnsupportedError(f"{op}: no backend takes this problem: {_listed(why)}")


def _too_large(prepared: Prepared, problem: Problem) -> str | None:
    limit = problem.choices.max_workspace_bytes
    if limit is None or prepared.workspace_size <= limit:
        return None
    return f"needs {prepared.workspace_size} bytes of workspace, max_workspace_bytes is {limit}"


def _listed(why: list[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in why)
