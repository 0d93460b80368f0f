"""The plan cache: bounded, thread-safe, counted, and readable by another process."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from baracuda import backends
from baracuda._version import __version__
from baracuda.plan import Plan
from baracuda.sku import KernelSku
from baracuda.spec import Problem

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
    """A plan that another thread is making; its lock is held until then."""

    __slots__ = ("error", "lock", "plan")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.plan: Plan | None = None
        self.error: BaseException | None = None

    def result(self) -> Plan:
        with self.lock:
            pass
        if self.plan is None:
            raise self.error or RuntimeError("no plan was made")
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
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}
        self._aliases: dict[Hashable, _Entry] = {}
        self._pending: dict[Hashable, _Pending] = {}
        self._records: dict[Hashable, KernelSku] = {}
        self._hits = self._misses = self._clock = self.generation = 0

    def info(self) -> CacheInfo:
        """Hits, misses, size and bound. Plan calls do not pass through the cache."""
        with self._lock:
            return CacheInfo(self._hits, self._misses, len(self._entries), self._maxsize)

    def clear(self) -> None:
        """Forget all plans, loaded records and counts."""
        with self._lock:
            self._records.clear()
            self._hits = self._misses = 0
        self.forget()

    def forget(self) -> None:
        """Forget all plans, as where others would be made now."""
        with self._lock:
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
        with self._lock:
            self._hits += 1
            self._clock = entry.used = self._clock + 1
        return entry.plan

    def get(
        self, alias: Hashable | None, problem: Problem, make: Callable[[Problem], Plan]
    ) -> Plan:
        """The plan for `problem`, made by `make` where there is none yet."""
        key = problem.key
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._hits += 1
                self._touch(entry, alias)
                return entry.plan
            mine = _Pending()
            pending = self._pending.setdefault(key, mine)
            if pending is mine:
                self._misses += 1
            else:
                self._hits += 1
        if pending is not mine:
            return pending.result()
        try:
            mine.plan = plan = self._make(key, problem, make)
        except BaseException as error:
            mine.error = error
            raise
        finally:
            with self._lock:
                del self._pending[key]
                if mine.plan is not None:
                    self._touch(self._entries.setdefault(key, _Entry(mine.plan)), alias)
                    self._shrink()
            mine.lock.release()
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
        for key in sorted(self._entries, key=lambda key: self._entries[key].used)[:count]:
            for alias in self._entries.pop(key).aliases:
                del self._aliases[alias]

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

        The file is replaced at once: a reader sees the old one or the new one.
        """
        with self._lock:
            plans = [
                {"key": k, "sku": json.loads(e.plan.sku.to_json())}
                for k, e in self._entries.items()
            ]
        text = json.dumps({"format": _FORMAT, "version": __version__, "plans": plans}, indent=1)
        target = Path(path)
        # Imported here: it would be a tenth of the time that `import baracuda` takes.
        from tempfile import TemporaryDirectory

        with TemporaryDirectory(dir=target.parent, prefix=".baracuda") as folder:
            whole = Path(folder) / target.name
            whole.write_text(text, encoding="utf-8")
            os.replace(whole, target)

    def load(self, path: str | os.PathLike[str]) -> int:
        """Read choices that `save` wrote; later misses make them again.

        A record of another version or arch, or whose backend now refuses, is ignored, with the
        reason in the log. Plans made already stay.

        Parameters
        ----------
        path : path-like
            The file.

        Returns
        -------
        int
            How many records were taken.

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
            if sku.version == __version__:
                taken[key] = sku
            else:
                logger.info(
                    "a record of %s is ignored: made by version %s, this is %s",
                    sku.op,
                    sku.version,
                    __version__,
                )
        with self._lock:
            self._records.update(taken)
        return len(taken)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


plan_cache = PlanCache()
backends.on_change.append(plan_cache.forget)
