"""Each architecture is planned for by its own tuning records, and by these alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

pytest.importorskip("cuda.core", reason="needs pip install 'baracuda[cuda]'")
pytest.importorskip("cuda.bindings", reason="needs pip install 'baracuda[cuda]'")
import plannable

from baracuda import layouts
from baracuda.backends.cuda import launch_plan, schedules
from baracuda.backends.cuda.launch_plan import Call, DeviceFacts, Steps, strides_of
from baracuda.backends.cuda.precompile import Phantom, problem
from baracuda.calls.op import registry
from baracuda.declaration.spec import Problem
from baracuda.testing.problems import device_rows
from baracuda.testing.timed_row import Row

# Of an architecture that there is not, with clusters.
FACTS = DeviceFacts(0, "sm_95", 132, 232448)
# Ops and dtypes that read what no row of the benchmark does.
MORE = (
    ("batch_norm", "float64"), ("gather", "float32"), ("layer_norm_backward", "float32"),
    ("lp_pool2d_backward", "float32"), ("softmax", "bfloat16"), ("softmax", "float64"),
)  # fmt: skip


def tuned() -> Iterator[ModuleType]:
    """Every module that has tuning records."""
    yield launch_plan
    for found in walk_packages(schedules.__path__, f"{schedules.__name__}."):
        module = import_module(found.name)
        if hasattr(module, "TUNINGS"):
            yield module


MODULES = tuple(tuned())


def phantoms(row: Row, dtype: str) -> Iterator[Phantom]:
    spec = registry[row.op].spec
    for name, shape in zip(spec.arrays, row.shapes, strict=False):
        if name not in spec.integers or spec.role(name).between:
            yield Phantom("int64" if name in spec.integers else dtype, shape)
            continue
        steps = layouts.contiguous(row.own)
        pairs = zip(row.own, row.broadcast, steps, strict=True)
        yield Phantom("int64", row.broadcast, tuple([s * (n == m) for n, m, s in pairs]))


@cache
def problems() -> tuple[Problem, ...]:
    """The rows of the benchmark, and more."""
    rows = [(row, dtype) for dtype in ("bfloat16", "float32") for row in device_rows(dtype)]
    out = [
        problem(registry[row.op].spec, [*phantoms(row, dtype)], row.options, row.deterministic)
        for row, dtype in rows
        if registry[row.op].spec.kernel is not None
    ]
    more = [
        found for op, dtype in MORE for found, _ in plannable.problems(registry[op].spec, dtype)
    ]
    return (*out, *more)


def planned() -> list[Steps]:
    """All that is launched for them on the made-up architecture, by every variant."""
    out = []
    for one in problems():
        outs = tuple([strides_of(x) for x in one.outputs])
        for add in (False, True)[: 1 + one.spec.accumulates]:
            call = Call(one, FACTS, outs, add)
            every = ("", *schedules.variants(call))
            out += [schedules.plan(call._replace(variant=name)) for name in every]
    return out


class Noted:
    """A record, and which of its fields were read."""

    def __init__(self, record: Any) -> None:
        self.record, self.seen = record, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.seen.add(name)
        return getattr(self.record, name)


def test_a_record_is_all_that_an_architecture_needs() -> None:
    """Nothing reads that of another one, or has a figure that nothing reads."""
    before = planned()
    notes = {module: Noted(module.SM_90) for module in MODULES}
    with ExitStack() as stack:
        for module, note in notes.items():
            stack.enter_context(patch.dict(module.TUNINGS, {"sm_90": None, "sm_95": note}))
        assert planned() == before
    unread = {m.__name__: {*m.Tuning._fields} - note.seen for m, note in notes.items()}
    assert not {name: fields for name, fields in unread.items() if fields}


@pytest.mark.parametrize(
    ("arch", "record"),
    [("sm_90", "sm_90"), ("sm_90a", "sm_90"), ("sm_100", "sm_100"), ("sm_103", "sm_100"),
     ("sm_120", "sm_120"), ("sm_121", "sm_120"), ("sm_89", "sm_90"), ("sm_80", "sm_90")],
)  # fmt: skip
def test_the_record_is_that_of_the_latest_architecture_before(arch: str, record: str) -> None:
    records = {name: name for name in ("sm_120", "sm_90", "sm_100")}
    assert FACTS._replace(arch=arch).tuned(records) == record


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_every_figure_says_what_it_is(module: ModuleType) -> None:
    lines = module.Tuning.__doc__.splitlines()
    heads = [line[4:].partition(" : ") for line in lines if line[:4].isspace() and " : " in line]
    named = [name for head, _, kind in heads if kind for name in head.split(", ")]
    assert named == [*module.Tuning._fields]
    assert all(isinstance(record, module.Tuning) for record in module.TUNINGS.values())
