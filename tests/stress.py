"""A program: everything at once for some seconds, in a process of its own. `test_stress` runs it.

`python tests/stress.py KIND SECONDS SEED` ends with 1 where a result is wrong, or where nothing
ends any more: then it prints where each thread stands.
"""

from __future__ import annotations

import errno
import faulthandler
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

# Seconds behind the end after which whoever still waits has hung.
PATIENCE = 60.0
# Too few for all that is called: plans come and go.
FEW = 12

KIND, SECONDS, SEED = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])


def checked(i: int, library: Any = None) -> None:
    """One of many calls whose result is known to the bit."""
    import numpy as np

    import baracuda as bc

    rows, n = i % 5 + 1, i % 11 + 1
    rows = 256 if i % 37 == 0 else rows
    n = 1024 if i % 37 == 0 else n
    x = (np.arange(rows * 2 * n).reshape(rows, 2 * n) % 13 - 6).astype((np.float32, float)[i % 2])
    given, back = (x, np.asarray) if library is None else (library.from_numpy(x), np.asarray)
    a, b = x[:, :n], x[:, n:]
    kind = i % 6
    if kind == 0:
        got, want = bc.relu(given), np.maximum(x, 0)
    elif kind == 1:
        got, want = bc.reglu(given), a * np.maximum(b, 0)
    elif kind == 2:
        got, want = bc.reglu(given, gate_first=True), b * np.maximum(a, 0)
    elif kind == 3:
        got, want = bc.lerp(given, given + 2, weight=i % 3 / 2), x + i % 3
    elif kind == 4:
        at = np.arange(rows)[:, None] % (2 * n)
        at = at if library is None else library.from_numpy(at)
        got, want = bc.gather(given, at, axis=1), np.take_along_axis(x, np.asarray(at), 1)
    else:
        out = np.ones_like(x)
        bc.reglu_backward.plan(a, x)(np.ascontiguousarray(a), x, out=out, accumulate=True)
        got, want = out, 1 + np.concatenate([a * np.maximum(b, 0), a * a * (b > 0)], axis=1)
    if not np.array_equal(back(got), want):
        raise AssertionError(f"call {i}: got {back(got)}, not {want}")


class Crowd:
    """Threads that repeat something until the time is over, and what went wrong in them."""

    def __init__(self) -> None:
        self.end = time.monotonic() + SECONDS
        self.errors: list[BaseException] = []
        self.turns = 0
        self._threads: list[threading.Thread] = []

    def add(self, task: Callable[[random.Random], Any], times: int = 1) -> None:
        for i in range(times):
            rng = random.Random(SEED + 1000 * len(self._threads) + i)
            self._threads.append(threading.Thread(target=self.repeat, args=(task, rng)))

    def repeat(self, task: Callable[[random.Random], Any], rng: random.Random) -> None:
        try:
            while time.monotonic() < self.end and not self.errors:
                task(rng)
                self.turns += 1
        except BaseException as error:
            self.errors.append(error)

    def run(self, task: Callable[[random.Random], Any] | None = None) -> None:
        """All of them, and `task` in this thread."""
        for thread in self._threads:
            thread.start()
        if task is not None:
            self.repeat(task, random.Random(SEED))
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        assert self.turns > 0


def any_call(rng: random.Random) -> None:
    checked(rng.randrange(10_000))


def small_cache() -> None:
    import baracuda as bc

    bc.plan_cache._maxsize = FEW


def full(rng: random.Random) -> None:
    """From here on one of three files finds the disk full when it is put in its place."""
    replace = os.replace

    def flaky(*paths: Any) -> None:
        if rng.randrange(3) == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(*paths)

    os.replace = flaky  # type: ignore[assignment]


def first_calls() -> None:
    """The first import of all, in many threads at once; another one imports torch meanwhile."""
    barrier, errors = threading.Barrier(12), []

    def first(i: int) -> None:
        barrier.wait()
        try:
            if i == 0 and SEED % 4 == 3:
                import torch  # noqa: F401
            import numpy as np

            import baracuda as bc

            checked(SEED + i)
            assert bc.relu.plan(np.ones((i + 1, 3))).sku.backend == "numpy"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=first, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def plans() -> None:
    """Plans that come, go, are saved on a full disk and loaded, while backends come and go."""
    import numpy as np

    import baracuda as bc
    from baracuda import backends

    small_cache()
    full(random.Random(SEED))
    crowd = Crowd()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plans.json"
        while not path.exists():
            with suppress(OSError):
                bc.plan_cache.save(path)

        def kept(rng: random.Random) -> None:
            try:
                bc.plan_cache.save(path)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
            assert 0 <= bc.plan_cache.load(path) <= FEW

        def bounded(rng: random.Random) -> None:
            assert bc.plan_cache.info().size <= FEW
            rng.choice([bc.plan_cache.clear, bc.plan_cache.forget])()
            time.sleep(0.001)

        def within(rng: random.Random) -> None:
            with bc.options(backend="array_api"):
                any_call(rng)
                assert bc.relu.plan(np.ones(rng.randrange(9))).sku.backend == "array_api"

        def registered(rng: random.Random) -> None:
            entry = backends.Entry("baracuda.backends.array_api", ("numpy",))
            backends.register("another", entry, before=rng.choice([None, "numpy"]))
            any_call(rng)
            backends.unregister("another")

        crowd.add(any_call, 3)
        for task in (kept, bounded, within, registered):
            crowd.add(task)
        crowd.run()
    assert not os.path.exists(folder)


def signals() -> None:
    """A timer whose handler calls ops, wherever it finds the program."""
    import baracuda as bc

    small_cache()
    # A handler cannot wait for the import that it interrupts.
    for i in range(12):
        checked(i)
    checked(37)
    crowd, rng, handled = Crowd(), random.Random(SEED + 1), [0]

    def handler(*_: Any) -> None:
        handled[0] += 1
        any_call(rng)
        bc.plan_cache.info()
        if time.monotonic() < crowd.end:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 2e-3))

    def call(rng: random.Random) -> None:
        any_call(rng)
        if rng.randrange(20) == 0:
            bc.plan_cache.clear()

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    crowd.add(any_call)
    crowd.run(call)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert handled[0] > 5, handled


def _in_child(seed: int) -> None:
    # Not by the thread of faulthandler: a forked child would wait for that of its parent.
    faulthandler.register(signal.SIGALRM, chain=True)
    signal.alarm(int(PATIENCE / 2))
    rng = random.Random(seed)
    for _ in range(20):
        any_call(rng)


def forks() -> None:
    """Children that are forked and spawned while threads plan, poll and compute in blocks."""
    import baracuda as bc

    small_cache()
    crowd = Crowd()
    spawn = multiprocessing.get_context("spawn")

    def child(rng: random.Random) -> None:
        seed = rng.randrange(10_000)
        if rng.randrange(40) == 0:
            process = spawn.Process(target=_in_child, args=(seed,))
            process.start()
            process.join()
            assert process.exitcode == 0, process.exitcode
            return
        number = os.fork()
        if number == 0:
            status = 1
            try:
                _in_child(seed)
                bc.plan_cache.clear()
                status = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 0

    crowd.add(any_call, 2)
    crowd.add(lambda rng: bc.plan_cache.info(), 2)
    crowd.add(lambda rng: checked(37 * rng.randrange(100)))
    crowd.run(child)


def store() -> None:
    """Kernels that are kept on a full disk, damaged, dropped and read, by two processes."""
    from test_kernel_store import DAMAGE

    from baracuda.backends.cuda.store import Store

    most = 60_000
    # Whoever damages what is damaged would read many GB, or wait for the reader of a pipe.
    kinds = [kind for kind in DAMAGE if kind not in ("sparse", "pipe")]
    keys = [bytes([i]) * 8 for i in range(30)]

    def code(key: bytes) -> bytes:
        return key * (key[0] * 20 + 50)

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "kernels"
        kept = Store(root, most)
        number = os.fork()
        full(random.Random(SEED + number))
        crowd = Crowd()

        def put(rng: random.Random) -> None:
            key = rng.choice(keys)
            # Full, or in the place of a folder.
            with suppress(OSError):
                kept.put(key, code(key))

        def get(rng: random.Random) -> None:
            key = rng.choice(keys)
            assert kept.get(key) in (None, code(key))

        def damaged(rng: random.Random) -> None:
            path = kept._place(rng.choice(keys))[0]
            # What is damaged already may be too short for more.
            with suppress(OSError, IndexError):
                DAMAGE[rng.choice(kinds)](path)
            time.sleep(0.001)
            with suppress(OSError):
                path.rmdir()

        def dropped(rng: random.Random) -> None:
            kept.drop(rng.choice(keys))
            time.sleep(0.001)

        crowd.add(put, 2)
        crowd.add(get, 2)
        crowd.add(damaged)
        crowd.add(dropped)
        try:
            crowd.run()
        finally:
            if number == 0:
                if crowd.errors:
                    sys.excepthook(AssertionError, crowd.errors[0], None)
                os._exit(bool(crowd.errors))
        assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 0
        assert not list((root / "tmp").iterdir())
        # Each process knows of its own files, and looks at all of them when it drops some.
        calm = Store(root, most)
        calm._shrink()
        sizes = [p.lstat().st_size for p in root.rglob("*") if p.is_file() and not p.is_symlink()]
        assert sum(sizes) <= most, sum(sizes)


KINDS = {f.__name__: f for f in (first_calls, plans, signals, forks, store)}

if __name__ == "__main__":
    faulthandler.dump_traceback_later(SECONDS + PATIENCE, exit=True)
    KINDS[KIND]()
