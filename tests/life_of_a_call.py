"""The way of arrays through a call: each function of baracuda that is entered, in order.

`PYTHONPATH=. python tests/life_of_a_call.py` prints a first and a cached call of an op, and how
often each climbs: enters a module that it had left. `PYTHONPATH` may be another commit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import baracuda as bc

_ROOT = Path(bc.__file__).parent
# Code that is written out for one plan has no file.
_WRITTEN = {"<baracuda plan>": "plan, as written out"}


def _module(frame: FrameType) -> str | None:
    """The module of a frame below `baracuda`, None for other code."""
    name = frame.f_code.co_filename
    if name in _WRITTEN:
        return _WRITTEN[name]
    path = Path(name)
    if not path.is_relative_to(_ROOT):
        return None
    return ".".join(path.relative_to(_ROOT).with_suffix("").parts).removesuffix(".__init__")


def traced(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """The functions that `call` enters, in order, each as its module and its name."""
    steps: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and (module := _module(frame)) is not None:
            name = frame.f_code.co_qualname.replace(".<locals>", "")
            # Comprehensions are part of the function that they stand in.
            if not name.endswith(("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>")):
                steps.append((module, name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return steps


def visits(steps: Sequence[tuple[str, str]]) -> list[str]:
    """The modules in the order in which they are entered, each as long as it lasts."""
    modules = [module for module, _ in steps]
    return [m for i, m in enumerate(modules) if i == 0 or m != modules[i - 1]]


def climbs(steps: Sequence[tuple[str, str]]) -> int:
    """How often a call enters a module that it had left."""
    order = visits(steps)
    return len(order) - len(set(order))


def pair(library: str) -> Any:
    """Two small arrays as one, so that the first always lies before the second."""
    if library == "torch":
        import torch

        return torch.ones(2, 4, 8)
    import numpy as np

    return np.ones((2, 4, 8), np.float32)


def lives(op: str, library: str) -> dict[str, list[tuple[str, str]]]:
    """The steps of the kinds of calls of an op of one array."""
    (x, y), function = pair(library), getattr(bc, op)
    # Of another op: what is imported and read once per process is no part of a call.
    for _ in range(3):
        bc.softsign(x)
        bc.softsign.plan(x)(x, out=y)
    bc.plan_cache.clear()
    first = traced(lambda: function(x))
    for _ in range(3):
        function(x)
    plan = function.plan(x)
    for _ in range(3):
        plan(x)
        plan(x, out=y)
    return {
        "first call": first,
        "cached call": traced(lambda: function(x)),
        "call of a plan": traced(lambda: plan(x)),
        "call of a plan with out=": traced(lambda: plan(x, out=y)),
    }


def main() -> None:
    """Print the calls that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--op", default="relu")
    parser.add_argument("--libraries", nargs="+", default=["numpy", "torch"])
    parser.add_argument("--counts", action="store_true", help="the numbers alone")
    given = parser.parse_args()
    for library in given.libraries:
        for kind, steps in lives(given.op, library).items():
            counts = f"{len(steps)} functions, {len(visits(steps))} visits, {climbs(steps)} climbs"
            print(f"{given.op}, {library}, {kind}: {counts}")
            for module, name in () if given.counts else steps:
                print(f"  {module}:{name}")


if __name__ == "__main__":
    main()
