"""Kernels compiled before anybody needs them, for devices that need not be here.

A problem is made of phantoms: arrays of which there are no elements, only facts. The schedules plan
it as they plan a call's, and what they would launch is compiled into the cache on disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

from baracuda.backends.cuda import compiler, schedules
from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import WIDEST, Call, DeviceFacts, strides_of
from baracuda.backends.cuda.schedules import lists
from baracuda.backends.cuda.wheels import FAMILIES
from baracuda.calls import check, outputs
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.layouts import Shape
from baracuda.libraries import Facts, Library, adopt

# By architecture: multiprocessors of its smallest and its largest devices, between which schedules
# may choose otherwise, and bytes of shared memory that a block may have.
_DEVICES = {
    "sm_80": (56, 108, 166912),
    "sm_86": (20, 84, 101376),
    "sm_87": (8, 16, 166912),
    "sm_89": (20, 142, 101376),
    "sm_90": (78, 132, 232448),
    "sm_100": (132, 152, 232448),
    "sm_103": (132, 160, 232448),
    "sm_120": (20, 188, 101376),
    "sm_121": (48, 48, 101376),
}
ARCHS = tuple(_DEVICES)
"""Architectures that can be compiled for where no device has them."""


class Phantom(NamedTuple):
    """What stands for an array of any size; `strides` in elements, None for C order."""

    dtype: str
    shape: Shape
    strides: Shape | None = None


class _Phantoms(Library):
    """Arrays without elements, on a GPU."""

    name = "phantom"

    def describe(self, x: Phantom) -> Facts:
        return Facts(x.dtype, x.shape, x.strides, "cuda:0")


adopt(Phantom, _Phantoms())


def problem(
    spec: OpSpec,
    arrays: Sequence[Phantom | None],
    options: Mapping[str, Any],
    deterministic: bool | None = None,
) -> Problem:
    """The problem of a call with such arrays.

    Raises
    ------
    TypeError, ValueError
        As the op itself does.
    """
    choices = DEFAULT.but(spec.name, {"deterministic": deterministic})
    return check.problem(spec, arrays, options, choices)


def devices(arch: str) -> tuple[DeviceFacts, ...]:
    """The smallest and the largest device of one of `ARCHS`."""
    fewest, most, shared = _DEVICES[arch]
    return tuple(DeviceFacts(0, arch, count, shared) for count in dict.fromkeys((fewest, most)))


def family(name: str) -> tuple[DeviceFacts, ...]:
    """The devices of a family of architectures, each of which runs code for the first of them."""
    return tuple(facts for arch in FAMILIES[name] for facts in devices(arch))


def entries(
    problem: Problem, devices: Sequence[DeviceFacts], reads: Sequence[Sequence[str]] = ()
) -> Iterator[Entry]:
    """The kernels that calls of a problem launch on any of these devices.

    On arrays aligned as they are allocated, and as a view of them may be; into new outputs, and of
    a gradient also added to given ones, or its sums of 16 bits to buffers that are wider; and many
    sets of such arrays in one launch. New outputs and sets also with run-time values that are read
    on the device: each of `reads` has a dtype for each, "" where it is a number.
    """
    outs, kernel = tuple(strides_of(x) for x in problem.outputs), problem.spec.kernel
    if any(0 in x.shape for x in problem.outputs) or not kernel:
        return
    if kernel.lacks in problem.options.items():
        return
    alignments = dict.fromkeys((WIDEST, min(named(problem.dtype).itemsize, WIDEST)))
    forms: list[dict[str, Any]] = [{"add": True}] * problem.spec.accumulates
    wide = tuple([bool(outputs.may_have(problem, x)[1:]) for x in problem.outputs])
    if any(wide):
        forms.append({"wide": wide, "add": all(wide), "some": () if all(wide) else wide})
    for facts, alignment, form in product(devices, alignments, [{}, *forms]):
        # What a schedule refuses is another backend's.
        with suppress(Refusal):
            call = Call(problem, facts, outs, alignment=alignment)._replace(**form)
            steps = schedules.plan(call)
            for some in (steps, *[steps.reading(each) for each in reads if not form]):
                yield from (step.entry for step in some.kernels)
    if kernel.lists and lists.takes(problem):
        over = lists.layout([1], lists.Form.of(problem).row, lists.chunk(problem))
        step = lists.plan(problem, over, 0, devices[0].multiprocessors, lists.VARIANTS[0])
        yield from (x.entry for x in (step, *map(step.reading, reads)))
        if lists.sums(problem):
            yield lists.total(problem, 1).entry


def keep(entry: Entry, arch: str) -> None:
    """Compile a kernel into the cache on disk.

    Raises
    ------
    OSError
        Where the cache did not take it.
    """
    compiler.compiled(entry, arch)
    if not compiler.kept(entry, arch):
        raise OSError(f"{compiler.cache_directory()} cannot be written")
