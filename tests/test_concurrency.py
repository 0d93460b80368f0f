"""Threads, forks and signal handlers: nobody waits for ever, and nobody gets a worse backend."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from children import environment

import baracuda as bc
from baracuda import backends, forks
from baracuda.backends import Entry
from baracuda.backends import numpy as numpy_backend

PACKAGE = Path(bc.__file__).parent
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")


def ran(script: str, *paths: Path) -> str:
    """What a script prints that ends well, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env=environment(*paths), capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# What is half imported.


FIRST = """
import threading
import numpy as np
import baracuda as bc
barrier, plans, errors = threading.Barrier(16), [], []
def first(i):
    barrier.wait()
    try:
        plans.append(bc.relu.plan(np.ones((2, i + 2))))
    except Exception as error:
        errors.append(error)
threads = [threading.Thread(target=first, args=(i,)) for i in range(16)]
[t.start() for t in threads], [t.join() for t in threads]
assert not errors, errors[0]
print(*{p.sku.backend for p in plans})
"""


def test_first_calls_of_many_threads_get_the_backend_of_later_ones() -> None:
    assert ran(FIRST) == "numpy\n"


def test_a_thread_that_is_importing_torch_is_in_nobodys_way() -> None:
    script = """
import sys, types
import numpy as np
import baracuda as bc
sys.modules["torch"] = types.ModuleType("torch")
print(bc.relu(np.full(3, 2.0)).sum(), bc.relu.plan(np.ones(4)).sku.backend)
"""
    assert ran(script) == "6.0 numpy\n"


def test_half_imported_modules_of_torch_have_no_subclasses(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from baracuda.frameworks.torch import route

    for module, _ in route._KNOWN:
        monkeypatch.setitem(sys.modules, module, types.ModuleType(module))
    assert not route.knows_operators(torch.ones(2))


LATE = """
import os
if os.environ.get("LATE") == "fails":
    raise OSError("too many open files")
from baracuda.backends import numpy
class Late(type(numpy.BACKEND)):
    name = "late"
BACKEND = Late()
"""


def test_a_choice_that_a_failed_load_caused_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_kernels.py").write_text(LATE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("LATE", "fails")
    x = np.linspace(-1, 1, 6)
    backends.register("late", Entry("late_kernels", ("numpy",)), before="numpy")
    try:
        for _ in range(3):
            bc.relu(x)
        plan = bc.relu.plan(x)
        assert plan.sku.backend == "numpy"
        assert dict(plan.why)["late"] == "cannot be loaded: OSError: too many open files"
        monkeypatch.setenv("LATE", "works")
        bc.relu(x)
        assert bc.relu.plan(x).sku.backend == "late"
        assert bc.plan_cache.info().size == 1
    finally:
        backends.unregister("late")
        sys.modules.pop("late_kernels", None)


OUTSIDE = """
import threading, time
import numpy as np
from baracuda.backends import Entry
ENTRY = Entry("late_kernels", ("numpy",), before="numpy")
time.sleep(0.3)
import baracuda as bc
bc.relu(np.ones(5))
"""


def test_a_package_that_brings_a_backend_may_call_ops_while_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "late_kernels.py").write_text(LATE)
    (tmp_path / "outside_module.py").write_text(OUTSIDE)
    points = tmp_path / "outside-1.dist-info" / "entry_points.txt"
    points.parent.mkdir()
    points.write_text("[baracuda.backends]\nlate = outside_module:ENTRY\n")
    script = """
import threading, time
import numpy as np
import baracuda as bc
importer = threading.Thread(target=lambda: __import__("outside_module"), daemon=True)
importer.start()
time.sleep(0.1)
planner = threading.Thread(target=lambda: bc.relu(np.ones(3)), daemon=True)
planner.start()
importer.join(20), planner.join(20)
assert not importer.is_alive() and not planner.is_alive()
print(bc.relu.plan(np.ones(4)).sku.backend)
"""
    assert ran(script, tmp_path) == "late\n"


# Forks.


POLLED = """
import os, signal, sys, threading
import numpy as np
import baracuda as bc
x = np.ones((256, 2048), np.float32)
want = bc.swiglu(x)
def poll():
    while True:
        bc.plan_cache.info()
def plan(i):
    n = 1
    while True:
        n = n % 500 + 1
        bc.relu.plan(np.ones((i, n)))
for i in range(3):
    threading.Thread(target=poll, daemon=True).start()
    threading.Thread(target=plan, args=(i + 1,), daemon=True).start()
children = []
for i in range(12):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        for n in range(1, 40):
            bc.relu(np.ones((1, n)))
        bc.plan_cache.info()
        os._exit(0 if np.array_equal(bc.swiglu(x), want) else 1)
    children.append(child)
print({os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children})
os._exit(0 if not sys.stdout.flush() else 1)
"""


@FORKS
def test_children_that_are_forked_while_threads_plan_go_on() -> None:
    assert ran(POLLED) == "{0}\n"


HELD = """
import os, sys, threading
import numpy as np
import baracuda as bc
from baracuda import backends, forks
from baracuda.backends import numpy
import baracuda.backends.cuda.index_errors
started, real = threading.Event(), numpy.BACKEND.prepare
def slow(self, problem):
    if os.getpid() == parent:
        started.set()
        threading.Event().wait()
    return real(problem)
type(numpy.BACKEND).prepare, parent = slow, os.getpid()
bc.plan_cache.info(), backends.names()
guards = list(forks._guards)
# Somebody is making a plan, and somebody holds every lock.
threading.Thread(target=bc.relu.plan, args=(np.ones(3),), daemon=True).start()
started.wait()
held = threading.Event()
def hold():
    for guard in guards:
        guard.lock.acquire()
    held.set()
    threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    import signal
    signal.alarm(60)
    free = all(guard.lock.acquire(blocking=False) for guard in guards)
    os._exit(0 if free and len(guards) > 4 and bc.relu(np.ones(3)).sum() == 3 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
sys.stdout.flush()
os._exit(0)
"""


@FORKS
def test_every_lock_is_free_in_a_child_and_no_plan_is_waited_for() -> None:
    pytest.importorskip("cuda.core")
    assert ran(HELD) == "0\n"


@FORKS
def test_a_fork_waits_for_the_imports_of_other_threads(tmp_path: Path) -> None:
    (tmp_path / "slow_kernels.py").write_text(
        "import time\ntime.sleep(0.5)\nfrom baracuda.backends.numpy import BACKEND\n"
    )
    script = """
import os, signal, threading, time
from baracuda import backends
backends.register("slow", backends.Entry("slow_kernels", ("numpy",)))
thread = threading.Thread(target=backends.load, args=("slow",))
thread.start()
time.sleep(0.2)
child = os.fork()
if child == 0:
    signal.alarm(60)
    os._exit(backends.load("slow").name != "numpy")
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert ran(script, tmp_path) == "0\n"


# Locks that no fork has to renew: nobody can hold them in a child but the thread that forked.
LOCAL = {("calls/cache", "Lock"), ("backends/numpy/blocks", "Lock")}
KINDS = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "cached_property"}


def test_locks_are_guards_that_a_fork_renews() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE).with_suffix("").as_posix()
        if where.startswith(("testing/", "forks")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "threading":
                found |= {(where, node.attr)} if node.attr in KINDS else set()
            elif isinstance(node, ast.ImportFrom) and node.module in ("threading", "functools"):
                found |= {(where, alias.name) for alias in node.names if alias.name in KINDS}
    assert found == LOCAL


# The thread that is interrupted.


def begun(function: Callable[..., Any], *arguments: Any) -> SimpleQueue[Any]:
    """Where the result of a call in another thread, or its error, will be."""
    out: SimpleQueue[Any] = SimpleQueue()

    def run() -> None:
        try:
            out.put(function(*arguments))
        except BaseException as error:
            out.put(error)

    # One that waits for ever would keep the tests from ending.
    threading.Thread(target=run, daemon=True).start()
    return out


def of(out: SimpleQueue[Any]) -> Any:
    found = out.get(timeout=60)
    if isinstance(found, BaseException):
        raise found
    return found


def test_a_plan_may_be_asked_for_by_whom_is_making_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler or a finalizer does, whose thread cannot wait for itself."""
    bc.plan_cache.clear()
    real, depth = numpy_backend.BACKEND.prepare, []
    x = np.ones((3, 7))

    def interrupted(self: object, problem: object) -> object:
        depth.append(problem)
        if len(depth) == 1:
            assert bc.relu(x).sum() == 21
        return real(problem)  # type: ignore[arg-type]

    monkeypatch.setattr(type(numpy_backend.BACKEND), "prepare", interrupted)
    assert of(begun(bc.relu, x)).sum() == 21
    assert len(depth) == 2
    assert bc.plan_cache.info().size == 1


def test_who_waits_for_a_plan_is_not_interrupted_with_its_maker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bc.plan_cache.clear()
    real, makers, waiting = numpy_backend.BACKEND.prepare, [], threading.Event()

    def interrupted(self: object, problem: object) -> object:
        makers.append(problem)
        if len(makers) == 1:
            waiting.set()
            threading.Event().wait(0.2)
            raise KeyboardInterrupt
        return real(problem)  # type: ignore[arg-type]

    monkeypatch.setattr(type(numpy_backend.BACKEND), "prepare", interrupted)
    x = np.ones((3, 5))
    maker = begun(bc.relu, x)
    waiting.wait()
    other = begun(bc.relu, x)
    with pytest.raises(KeyboardInterrupt):
        of(maker)
    assert of(other).sum() == 15


SIGNALS = """
import signal, sys, time
import numpy as np
import baracuda as bc
big, small = np.ones((256, 2048), np.float32), np.ones((3, 8), np.float32)
want, n = bc.swiglu(big), 0
def handler(*_):
    global n
    n += 1
    assert np.array_equal(bc.swiglu(big), want)
    bc.relu(np.ones((2, n % 7 + 1)))
    bc.plan_cache.info()
    signal.setitimer(signal.ITIMER_REAL, 0.001)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    bc.plan_cache.clear()
    for i in range(1, 8):
        bc.relu(np.ones((2, i)))
    assert np.array_equal(bc.swiglu(big), want)
signal.setitimer(signal.ITIMER_REAL, 0)
print(n > 20)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no timer signals")
def test_a_signal_handler_may_call_ops() -> None:
    assert ran(SIGNALS) == "True\n"


def test_a_lock_may_be_taken_again_by_who_has_it() -> None:
    guard = forks.Guard()
    for _ in range(2):
        with guard.lock:
            assert guard.lock.acquire(blocking=False)
            guard.lock.release()
        guard.renew()


def test_a_backend_that_another_thread_is_importing_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "slow_kernels.py").write_text(
        "import time\ntime.sleep(0.5)\nfrom baracuda.backends.numpy import BACKEND\n"
    )
    script = """
import threading, time
from baracuda import backends
backends.register("slow", backends.Entry("slow_kernels", ("numpy",)))
threading.Thread(target=backends.load, args=("slow",)).start()
time.sleep(0.2)
print(backends.load("slow").name)
"""
    assert ran(script, tmp_path) == "numpy\n"
