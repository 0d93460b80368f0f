"""The backends in the order in which they are asked, each loaded when it is first asked."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module

from baracuda.errors import UnsupportedError, value_error
from baracuda.spec import Backend, OpSpec, Prepared, Problem, Refusal


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
    """

    module: str
    libraries: tuple[str, ...] | None
    on_request: tuple[str, ...] = ()
    device: str = ""


_ENTRIES: dict[str, Entry] = {
    "cuda": Entry("baracuda.backends.cuda", ("torch", "cupy"), device="cuda"),
    "cupy": Entry("baracuda.backends.cupy", ("cupy",), ("torch",), device="cuda"),
    "torch": Entry("baracuda.backends.torch", ("torch",), ("numpy",)),
    "numpy": Entry("baracuda.backends.numpy", ("numpy",)),
    "array_api": Entry("baracuda.backends.array_api", None),
}


def names() -> tuple[str, ...]:
    """All backends, in order."""
    return tuple(_ENTRIES)


def register(name: str, entry: Entry, *, before: str | None = None) -> None:
    """Add a backend, or replace one; `before` puts it ahead of another."""
    _ENTRIES.pop(name, None)
    at = list(_ENTRIES).index(before) if before else len(_ENTRIES)
    items = list(_ENTRIES.items())
    _ENTRIES.clear()
    _ENTRIES.update([*items[:at], (name, entry), *items[at:]])


def unregister(name: str) -> None:
    """Take a backend out."""
    _ENTRIES.pop(name)


def load(name: str) -> Backend:
    """The backend called `name`."""
    module = _ENTRIES[name].module
    backend: Backend = (sys.modules.get(module) or import_module(module)).BACKEND
    return backend


def check_errors() -> None:
    """Wait for every device that kernels were launched on, and raise what they reported.

    On a GPU an index out of range does not stop the call that has it: the entry is skipped, and
    the error surfaces from the next call on that device, or here.

    Raises
    ------
    IndexError
        For the first entry out of range met by a gather or its gradient in ``mode="raise"``.
    """
    for entry in tuple(_ENTRIES.values()):
        # One that was never loaded has launched nothing.
        if entry.module in sys.modules:
            sys.modules[entry.module].BACKEND.check_errors()


def claims(spec: OpSpec, library: str, device: str = "cpu") -> dict[str, tuple[str, ...]]:
    """For every backend, the dtypes for which it takes `spec` on arrays of `library`."""
    out = {}
    for name, entry in _ENTRIES.items():
        if entry.device not in ("", device):
            continue
        if entry.libraries is None or library in (*entry.libraries, *entry.on_request):
            try:
                out[name] = tuple(load(name).claims(spec, library))
            except ImportError:
                # What is not installed claims nothing.
                continue
    return out


def _reason(name: str, problem: Problem, forced: bool) -> str | None:
    entry, library = _ENTRIES[name], problem.library.name
    if entry.libraries is not None and library not in entry.libraries:
        if library not in entry.on_request:
            takes = ", ".join((*entry.libraries, *entry.on_request))
            return f"takes arrays of {takes}, not of {library}"
        if not forced:
            return f"takes arrays of {library} only when asked for by backend={name!r}"
    try:
        backend = load(name)
    except ImportError as error:
        return f"cannot be loaded: {error}"
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
    if forced is not None and forced not in _ENTRIES:
        raise value_error(op, "backend", f"one of {', '.join(_ENTRIES)}", repr(forced))
    why: list[tuple[str, str]] = []
    for name in [forced] if forced else list(_ENTRIES):
        reason = _reason(name, problem, forced is not None)
        if reason is None:
            try:
                prepared = load(name).prepare(problem)
                reason = _too_large(prepared, problem)
            except Refusal as refusal:
                reason = str(refusal)
            else:
                if reason is None:
                    return name, prepared, tuple(why)
        why.append((name, reason))
    if forced:
        others = (n for n in _ENTRIES if n != forced)
        why += [(n, _reason(n, problem, False) or "would take it") for n in others]
        raise UnsupportedError(f"{op}: backend {forced!r} refuses: {_listed(why)}")
    raise UnsupportedError(f"{op}: no backend takes this problem: {_listed(why)}")


def _too_large(prepared: Prepared, problem: Problem) -> str | None:
    limit = problem.choices.max_workspace_bytes
    if limit is None or prepared.workspace_size <= limit:
        return None
    return f"needs {prepared.workspace_size} bytes of workspace, max_workspace_bytes is {limit}"


def _listed(why: list[tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in why)
