"""What all tests share, and which cases a run leaves out: see `lanes`."""

from __future__ import annotations

import gc
import inspect
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import pytest

# A core for each process of a parallel run: threads of torch spin where they wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before JAX is imported: no search for accelerators, and quiet about finding none.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import lanes

# Most of the time of JAX's tests is compiling. What XLA makes of a program it still decides; only
# the machine code is plainer. Without the emitters of fusions it takes half the time, and half of
# that without LLVM's passes, in one module a program.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Without any pass gradients of these overflow in cases of the full lane.
PASSES = {"softmax", "log_softmax", "softmax_dropout", "linear_log_prob_with_gradient"}
# A flag that XLA does not know ends the process, so other versions of it get none.
if version("jaxlib").startswith("0.10."):
    os.environ.setdefault(
        "XLA_FLAGS",
        f"--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level={int(lanes.FULL)} "
        "--xla_cpu_parallel_codegen_split_count=1",
    )

# A collection goes through all objects of torch and JAX: at the usual thresholds a sixth of a run.
gc.set_threshold(50_000, 20, 20)

SLOW = 20.0
# Each program of JAX takes some six maps of memory, and Linux ends a process that wants 65,530.
MAPS = 30_000
_maps = Path("/proc/self/maps")
_tests = count(1)
_started = time.monotonic()
_left_out: pytest.StashKey[Counter[str]] = pytest.StashKey()


@pytest.fixture
def at_rest() -> Iterator[None]:
    """A test begins on the first device, and leaves no index error to the next one."""
    import torch

    import baracuda as bc

    # XLA leaves another one current when it begins, and when it frees an array.
    torch.cuda.set_device(0)
    yield
    bc.check_errors()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--budget", type=float, metavar="SECONDS", help="leave out tests that would start later"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_left_out] = Counter()


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _marks(collector: pytest.Collector, test: Any) -> list[pytest.Mark]:
    own = list(getattr(test, "pytestmark", []))
    return [*(mark for node in collector.listchain() for mark in node.own_markers), *own]


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: object) -> Any:
    """Leave out tests of another lane, and those for a GPU where there is none, but count these."""
    if not (name.startswith("test_") and inspect.isfunction(obj)):
        return None
    marks = _marks(collector, obj)
    names = {mark.name for mark in marks}
    if "full" in names and not lanes.FULL:
        return []
    if "gpu" in names and not _has_gpu():
        sizes = [len(mark.args[1]) for mark in marks if mark.name == "parametrize"]
        collector.config.stash[_left_out]["gpu"] += math.prod(sizes)
        return []
    return None


def _is_touched(item: pytest.Item) -> bool:
    """Whether an item that is not about one op guards something that changed."""
    file = item.path.relative_to(lanes.ROOT).as_posix()
    kernels = ("baracuda/cuda_src/", "baracuda/backends/cuda/", "tests/emulat", file)
    paths = [path for mark in item.iter_markers("full") for path in mark.args]
    return any(name.startswith((*kernels, *paths)) for name in lanes.changed())


def _op(item: pytest.Item) -> str | None:
    """The op that an item is about by its parameters, in the quick lane by their first words."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    found = [getattr(value, "op", value) for value in params.values()]
    names = [x for x in found if isinstance(x, str)]
    if lanes.LANE == "quick":
        names += [x.partition(" ")[0] for x in names]
    return next((x for x in names if x in lanes.registry), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where a run is about some ops, leave out what is about others."""
    if "BARACUDA_OPS" not in os.environ:
        return
    kept, dropped = [], []
    for item in items:
        op = _op(item)
        mine = lanes.chosen(op) if op else not lanes.FULL or _is_touched(item)
        (kept if mine else dropped).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=dropped)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if lanes.FULL and (jax := sys.modules.get("jax")):
        jax.config.update("jax_disable_most_optimizations", _op(item) not in PASSES)
    budget = item.config.getoption("--budget")
    if budget is not None and time.monotonic() - _started > budget:
        item.config.stash[_left_out]["late"] += 1
        pytest.skip("the time for this run is over")


def pytest_runtest_teardown() -> None:
    jax = sys.modules.get("jax")
    if jax is None or next(_tests) % 50 or not _maps.exists():
        return
    if _maps.read_bytes().count(b"\n") > MAPS:
        import baracuda as bc

        bc.plan_cache.clear()
        jax.clear_caches()


def pytest_collection_finish() -> None:
    """What all tests share stays: a collection of garbage took more than a second to go through."""
    gc.collect()
    gc.freeze()


# The processes of a parallel run collect by themselves, and tell the one that prints.


def pytest_sessionfinish(session: pytest.Session) -> None:
    # Who asks what refers to an object is not told of what is frozen.
    gc.unfreeze()
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = dict(session.config.stash[_left_out])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    told = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))
    total = node.config.stash[_left_out]
    # Each has collected all tests, and run some.
    total["gpu"] = max(total["gpu"], told["gpu"])
    total["late"] += told["late"]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out = config.stash[_left_out]
    if left_out["gpu"]:
        terminalreporter.write_line(
            f"{left_out['gpu']} GPU cases were not generated: torch sees no NVIDIA GPU."
        )
    if left_out["late"]:
        terminalreporter.write_line(
            f"{left_out['late']} tests were left out: the {config.getoption('--budget'):.0f} s of "
            "--budget were over."
        )
    every = [r for reports in terminalreporter.stats.values() for r in reports]
    for report in every:
        took = getattr(report, "duration", 0.0)
        if took > SLOW and "slow" not in getattr(report, "keywords", ()):
            terminalreporter.write_line(
                f"{report.nodeid} took {took:.0f} s: over {SLOW:.0f} s needs a reason, "
                "@pytest.mark.slow(reason)"
            )
