"""The plan cache: bounded, thread-safe, counted, and readable by another process."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from baracuda import backends
from baracuda._version import __version__
from baracuda.calls.plan import Plan
from baracuda.declaration.sku import KernelSku
from baracuda.declaration.spec import Operand, Problem
from baracuda.forks import Guard
from baracuda.layouts import least_regular

logger = logging.getLogger("baracuda")

_FORMAT = 1
# Equal problems are reached by several spellings (axis=-1, axis=1); more than this many are rare.
_MOST_ALIASES = 64


class CacheInfo(NamedTuple):
    """Counts of a `PlanCache` since it was made or cleared."""

    hits: int
    misses: int
    size: int
    maxsize: int


@dataclass(eq=False, slots=True)
class _Entry:
    plan: Plan
    used: int = 0
    aliases: list[Hashable] = field(default_factory=list)


class _Pending:
    """A plan that a thread is making; its lock is held until then."""

    __slots__ = ("error", "lock", "maker", "plan")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.maker = threading.get_ident()
        self.plan: Plan | None = None
        self.error: Exception | None = None

    def result(self) -> Plan | None:
        """Wait for it; None where its maker was interrupted."""
        with self.lock:
            pass
        if self.error is not None:
            raise self.error
        return self.plan


class PlanCache:
    """Plans by problem, the least recently used dropped first.

    A call looks its plan up by an alias: the cheap facts of its arrays and its keywords as they
    were written. Only an unknown alias makes a `Problem`, and only an unknown problem a plan. Two
    threads that miss the same problem at once get one plan.

    Parameters
    ----------
    maxsize : int
        The most plans kept.

    Attributes
    ----------
    generation : int
        How often it was cleared: plans held elsewhere are of an older one then.
    """

    def __init__(self, maxsize: int = 4096) -> None:
        self._maxsize = maxsize
        # No plan that another thread is making is ever finished in a forked child.
        self._pending: dict[Hashable, _Pending] = {}
        self._guard = Guard(self._pending.clear)
        self._entries: dict[tuple[Any, ...], _Entry] = {}
        self._aliases: dict[Hashable, _Entry] = {}
        self._records: dict[Hashable, KernelSku] = {}
        self._hits = self._misses = self._clock = self.generation = 0

    def info(self) -> CacheInfo:
        """Hits, misses, size and bound. Plan calls do not pass through the cache."""
        with self._guard.lock:
            return CacheInfo(self._hits, self._misses, len(self._entries), self._maxsize)

    def clear(self) -> None:
        """Forget all plans, loaded records and counts."""
        with self._guard.lock:
            self._records.clear()
            self._hits = self._misses = 0
        self.forget()

    def forget(self) -> None:
        """Forget all plans, as where others would be made now."""
        with self._guard.lock:
            self._entries.clear()
            self._aliases.clear()
            self.generation += 1

    def count_hit(self) -> None:
        """Count a call whose plan was known without looking it up.

        Without the lock, which would cost such a call more than the rest of this does: under the
        GIL no thread comes between the reading and the writing.
        """
        self._hits += 1

    def find(self, alias: Hashable) -> Plan | None:
        """The plan that this alias has led to before."""
        entry = self._aliases.get(alias)
        if entry is None:
            return None
        with self._guard.lock:
            self._hits += 1
            self._clock = entry.used = self._clock + 1
        return entry.plan

    def get(
        self, alias: Hashable | None, problem: Problem, make: Callable[[Problem], Plan]
    ) -> Plan:
        """The plan for `problem`, made by `make` where there is none yet."""
        key, me = problem.key, threading.get_ident()
        while True:
            mine = None
            try:
                with self._guard.lock:
                    entry = self._entries.get(key)
                    if entry is not None:
                        self._hits += 1
                        self._touch(entry, alias)
                        return entry.plan
                    pending = self._pending.get(key)
                    if pending is None:
                        self._misses += 1
                        mine = self._pending[key] = _Pending()
                    else:
                        self._hits += 1
                if mine is not None:
                    return self._made(mine, key, alias, problem, make)
            finally:
                # Also where a signal handler raised: nobody may wait for ever.
                if mine is not None:
                    with self._guard.lock:
                        if self._pending.get(key) is mine:
                            del self._pending[key]
                    mine.lock.release()
            if pending is None or pending.maker == me:
                # A signal handler or a finalizer cannot wait for the code that it interrupts.
                return self._make(key, problem, make)
            plan = pending.result()
            if plan is not None:
                return plan

    def _made(
        self,
        mine: _Pending,
        key: tuple[Any, ...],
        alias: Hashable | None,
        problem: Problem,
        make: Callable[[Problem], Plan],
    ) -> Plan:
        """Make the plan that others wait for, and keep it unless all were forgotten meanwhile."""
        generation = self.generation
        try:
            mine.plan = plan = self._make(key, problem, make)
        except Exception as error:
            mine.error = error
            raise
        if not plan.provisional:
            with self._guard.lock:
                if self.generation == generation:
                    self._touch(self._entries.setdefault(key, _Entry(plan)), alias)
                    self._shrink()
        return plan

    def _touch(self, entry: _Entry, alias: Hashable | None) -> None:
        self._clock += 1
        entry.used = self._clock
        if alias is None or alias in self._aliases:
            return
        if len(entry.aliases) < _MOST_ALIASES:
            entry.aliases.append(alias)
            self._aliases[alias] = entry

    def _shrink(self) -> None:
        if len(self._entries) <= self._maxsize:
            return
        # Several at once: to look for the oldest costs a look at all of them.
        count = max(self._maxsize // 16, 1)
        oldest = sorted(self._entries.items(), key=lambda item: item[1].used)[:count]
        for key, entry in oldest:
            self._entries.pop(key, None)
            # A signal handler, or the fork of another thread, may have come between.
            for alias in entry.aliases:
                self._aliases.pop(alias, None)

    def _make(self, key: Hashable, problem: Problem, make: Callable[[Problem], Plan]) -> Plan:
        record = self._records.get(key) if self._records else None
        if record is not None and problem.choices.sku is None:
            try:
                return make(replace(problem, choices=replace(problem.choices, sku=record)))
            except (ValueError, NotImplementedError) as error:
                logger.info("a loaded choice is ignored: %s", error)
        return make(problem)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all choices as JSON, so that another process makes the same ones.

        Those are the choices of the plans in the cache, and what was loaded and not used since. The
        file is replaced at once: a reader sees the old one or the new one. It keeps its mode.
        """
        with self._guard.lock:
            entries = sorted(self._entries.items(), key=lambda item: item[1].used)
            records = list(self._records.items())
        # In the order in which a cache that is too small for all of them lets them go. What was
        # made from a SKU is none: whoever gives it again needs no record.
        choices = dict(records)
        for key, entry in entries:
            choices.pop(key, None)
            if key[-1] is None:
                choices[key] = entry.plan.sku
        plans = [{"key": k, "sku": json.loads(sku.to_json())} for k, sku in choices.items()]
        text = json.dumps({"format": _FORMAT, "version": __version__, "plans": plans}, indent=1)
        # Where a link leads: the file is replaced, not the link.
        target = Path(os.path.realpath(path))
        # Imported here: it would be a tenth of the time that `import baracuda` takes.
        from tempfile import TemporaryDirectory

        with TemporaryDirectory(dir=target.parent, prefix=".baracuda") as folder:
            whole = Path(folder) / target.name
            whole.write_text(text, encoding="utf-8")
            with suppress(FileNotFoundError):
                whole.chmod(stat.S_IMODE(target.stat().st_mode))
            os.replace(whole, target)

    def load(self, path: str | os.PathLike[str]) -> int:
        """Read choices that `save` wrote; later misses make them again.

        A record of another version or arch, or that contradicts itself, is ignored, with the reason
        in the log; so is one whose backend refuses when it is needed. Plans made already stay. Of
        more than `maxsize` records the last are kept.

        Parameters
        ----------
        path : path-like
            The file.

        Returns
        -------
        int
            How many records were taken: those that can be used here, as far as that is known
            without arrays.

        Raises
        ------
        ValueError
            Where the file is not what `save` writes; nothing of it is taken then.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']}, not {_FORMAT}")
            records = {
                _tuples(plan["key"]): KernelSku.from_json(plan["sku"]) for plan in content["plans"]
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"plan_cache.load: {path}: not a plan-cache file: {error}") from None
        taken = {}
        for key, sku in records.items():
            reason = _useless(key, sku)
            if reason is None:
                taken[key] = sku
            else:
                logger.info("a record of %s is ignored: %s", sku.op, reason)
        last = dict(list(taken.items())[-self._maxsize :]) if self._maxsize else {}
        with self._guard.lock:
            for key, sku in last.items():
                self._records.pop(key, None)
                self._records[key] = sku
            for key in list(self._records)[: -self._maxsize or None]:
                del self._records[key]
        return len(last)


def _useless(key: Any, sku: KernelSku) -> str | None:
    """Why a record can never be used, None where it can as far as that is known without arrays."""
    if sku.version != __version__:
        return f"made by version {sku.version}, this is {__version__}"
    try:
        op, library, device, _, inputs, _, (backend, *_), _, given_sku = key
        given = [Operand(*x) for x in inputs if x is not None]
        layout = least_regular([(x.shape, x.strides) for x in given])
        dtypes = {x.dtype for x in given}
    except (TypeError, ValueError, AttributeError, IndexError):
        return "it is not for a problem"
    for what, has, may in (
        ("op", sku.op, {op}),
        ("dtype", sku.dtype, dtypes),
        ("index_dtype", sku.index_dtype, {None, *dtypes}),
        ("layout", sku.layout, {layout}),
        ("backend", sku.backend, {backend or sku.backend}),
        ("sku", given_sku, {None}),
    ):
        if has not in may:
            return f"{what} {has} in a problem of {', '.join(map(str, may))}"
    return backends.foreign(sku.backend, sku.arch, library, device)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


plan_cache = PlanCache()
backends.on_change.append(plan_cache.forget)
