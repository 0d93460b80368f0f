"""Kernels on JAX arrays: custom calls of compiled programs, on the buffers that XLA gives them.

A plan is a jitted function. Called with arrays it is the whole program, called while JAX traces it
becomes part of one. It tells JAX all that is hidden inside a custom call:

- under `vmap` a batch is one more axis of the op's batch group, so another plan of the same op;
- over several devices the problem falls apart along the axes that the shape string leaves
  independent, each device running the plan of its share;
- compiled for another platform, the call is the op's body, unless the backend was forced.

A target is named after all that decides what is launched, so that a program from JAX's own
compilation cache finds what it was compiled with.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any

import jax
import numpy as np
from cuda.bindings import driver
from cuda.core import Device
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from baracuda import body, check
from baracuda._version import __version__
from baracuda.backends import choose
from baracuda.backends.cuda.launch import OK, device_facts, stream_of
from baracuda.backends.cuda.runner import CudaRunner, aligned, launch_all
from baracuda.backends.cuda.steps import WIDEST, DeviceFacts
from baracuda.backends.cuda.xla import Handler
from baracuda.dtypes import named
from baracuda.layouts import Shape
from baracuda.libraries import TRACED, Array
from baracuda.libraries.jax import ADAPTER
from baracuda.spec import Problem, Runner, independent

PLATFORM = "cuda"
# Run-time values are constants of a program; so many of the programs of a plan are kept.
_MOST_PROGRAMS = 32

Function = Callable[..., tuple[Array, ...]]


def refuses() -> str | None:
    """Why these arrays cannot be taken at all."""
    return None


def ordinal_of(device: str) -> int:
    """The number of the device called `device` (``cuda:1``), of the first of several."""
    first = (ADAPTER.compiled_for() if device == TRACED else device).partition(",")[0]
    found = next(d for d in jax.local_devices(backend=PLATFORM) if str(d) == first)
    return int(found.local_hardware_id)


def current_device() -> int:
    """The device of this thread, -1 where it has none yet."""
    status, ordinal = driver.cuCtxGetDevice()
    return int(ordinal) if status == OK else -1


@contextmanager
def on_device(ordinal: int) -> Iterator[None]:
    """A block in which `ordinal` is the current device."""
    before = current_device()
    Device(ordinal).set_current()
    try:
        yield
    finally:
        if before >= 0:
            Device(before).set_current()


# What measuring the variants of a kernel asks: JAX shows no stream, so they run on the default one,
# into memory of our own, once the arrays are there.


def current_stream(ordinal: int) -> int:
    """The default stream."""
    return 0


def empty(shape: Shape, strides: Shape, dtype: str, ordinal: int) -> Any:
    """Memory of no array."""
    return Device(ordinal).allocate(max(math.prod(shape) * named(dtype).itemsize, 1))


def pointer(x: Any) -> int:
    """The address of an array that has been computed, or of such memory."""
    if isinstance(x, jax.Array):
        return int(x.block_until_ready().unsafe_buffer_pointer())
    return int(x.handle)


class JaxRunner(CudaRunner):
    """Runs one problem; what its index has out of range is dropped where JAX traces."""

    def __init__(
        self, problem: Problem, facts: DeviceFacts, arrays: Any, variant: str = ""
    ) -> None:
        super().__init__(problem, facts, arrays, variant, listens=not problem.mode)

    def shortest(self) -> Runner:
        """As a jitted function."""
        if self._empty:
            return body.runner(self.problem)
        problem, program = self.problem, _program(self)
        function = (
            program.late()
            if problem.spec.scalars and not problem.mode and "," not in problem.device
            else None
        )
        compiled = lru_cache(_MOST_PROGRAMS)(_Call(problem, program).function)
        state, listener, every = self._state, self._listener, None not in problem.inputs
        plain = None if problem.spec.scalars else compiled(())

        def run(
            arrays: Sequence[Array],
            outs: tuple[Array, ...] | None,
            accumulate: bool,
            scalars: Mapping[str, Any],
        ) -> Any:
            if state[0]:
                listener.raise_pending()
            given = arrays if every else [x for x in arrays if x is not None]
            if plain is not None:
                return plain(*given)
            values = tuple(scalars.values())
            return function(values, *given) if function else compiled(values)(*given)

        return run


class Program:
    """What a custom call launches, on whichever device it is called.

    Attributes
    ----------
    name : str
        The target's.
    results : tuple of (tuple of int, str)
        Shapes and dtypes of the outputs, then of the workspaces.
    """

    def __init__(self, name: str, runner: JaxRunner) -> None:
        problem = runner.problem
        self.name = name
        self._runners: dict[int, JaxRunner] = {runner.facts.ordinal: runner}
        self._only = None if jax.local_device_count(PLATFORM) > 1 else runner
        self._first = runner
        workspaces = runner.program(WIDEST)[1]
        self.results = (*[(x.shape, x.dtype) for x in problem.outputs], *workspaces)
        operands, scalars = len(problem.given), len(problem.spec.scalars)
        self._handlers = [Handler(operands, len(self.results), scalars, self.launch)]
        self._register(name)
        self._late: Callable[..., Any] | None = None

    def _register(self, name: str) -> None:
        target = jax.ffi.pycapsule(self._handlers[-1].address)
        jax.ffi.register_ffi_target(name, target, platform=PLATFORM)

    def foreign(self, name: str, given: Sequence[Array], **attributes: Any) -> tuple[Array, ...]:
        """The custom call of target `name`; its outputs."""
        problem, varying = self._first.problem, _varying(given)
        dtype = problem.library.dtype
        results = [
            jax.ShapeDtypeStruct(shape, dtype(kind), **varying) for shape, kind in self.results
        ]
        out = jax.ffi.ffi_call(name, results)(*given, **attributes)
        return tuple(out[: len(problem.outputs)])

    def late(self) -> Callable[..., Any]:
        """``(scalars, *arrays)``: one program for all run-time values.

        They do not pass through XLA. One more operand, that no kernel reads, says by its address
        which call this is; it is taken for one call at a time.
        """
        if self._late is None:
            problem, name = self._first.problem, f"{self.name}_late"
            at = len(problem.given)
            waiting: dict[int, tuple[Array, Sequence[float]]] = {}
            free: list[tuple[Array, int]] = []

            def launch(words: list[int], none: Sequence[float], stream: int) -> None:
                address = words.pop(at)
                mark, scalars = waiting.pop(address)
                self.launch(words, scalars, stream)
                free.append((mark, address))

            count = len(self.results)
            self._handlers.append(Handler(at + 1, count, 0, launch, replayed=False))
            self._register(name)
            program = jax.jit(lambda *given: _one_or_many(self.foreign(name, given)))

            def call(scalars: Sequence[float], *given: Array) -> Any:
                try:
                    mark, address = free.pop()
                except IndexError:
                    with jax.default_device(given[0].device):
                        mark = jax.numpy.zeros((), jax.numpy.int32)
                    address = pointer(mark)
                waiting[address] = mark, scalars
                return program(*given, mark)

            self._late = call
        return self._late

    def launch(self, words: list[int], scalars: Sequence[float], stream: int) -> None:
        """Launch on the arrays at the addresses `words`."""
        runner = self._only or self._here()
        launches, workspaces = runner.program(aligned(words))
        if workspaces and (*workspaces,) != self.results[len(runner.problem.outputs) :]:
            raise RuntimeError("arrays so little aligned need another workspace")
        launch_all(launches, words, scalars, stream_of(stream))

    def _here(self) -> JaxRunner:
        ordinal = current_device()
        found = self._runners.get(ordinal)
        if found is None:
            one = self._first
            made = JaxRunner(one.problem, device_facts(ordinal), one.arrays, one.steps.variant)
            found = self._runners[ordinal] = made
        return found


_programs: dict[str, Program] = {}
_lock = threading.Lock()


def _program(runner: JaxRunner) -> Program:
    """The program of a runner, registered once in the life of a process, as XLA wants it."""
    what = repr((runner.problem.key, runner.steps.variant, __version__))
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    name = f"baracuda_{runner.problem.spec.name}_{digest}"
    with _lock:
        if name not in _programs:
            _programs[name] = Program(name, runner)
        return _programs[name]


class _Call:
    """A problem as a function of JAX."""

    def __init__(self, problem: Problem, program: Program) -> None:
        self._problem, self._program = problem, program

    def function(self, scalars: tuple[float, ...]) -> Callable[..., Any]:
        """The jitted function, with these run-time values."""
        problem = self._problem
        kernel, values = (
            self._spread(scalars),
            dict(zip(problem.spec.scalars, scalars, strict=True)),
        )
        plain = _of_given(problem, body.runner(problem), values)

        def whole(*given: Array) -> tuple[Array, ...]:
            if not problem.mode:
                return kernel(*given)
            # A forced backend never falls back: without a default, another platform is an error.
            default = None if problem.choices.backend else plain
            return jax.lax.platform_dependent(*given, default=default, **{PLATFORM: kernel})  # type: ignore[no-any-return]

        batched = custom_vmap(whole)

        @batched.def_vmap
        def rule(size: int, along: Sequence[bool], *given: Array) -> Any:
            again = _batched(problem, size, along, given)
            if again is None:
                out = jax.vmap(plain, [0 if there else None for there in along])(*given)
            else:
                out = _again(problem, *again, values)
            return out, (True,) * len(out)

        def single(*given: Array) -> Any:
            return _one_or_many(batched(*given))

        single.__name__ = problem.spec.name
        return jax.jit(single)

    def _spread(self, scalars: Sequence[float]) -> Function:
        """The custom call, and how it is divided over several devices."""
        axes = self._axes
        values = dict(zip(self._problem.spec.scalars, scalars, strict=True))

        def kernel(*given: Array) -> tuple[Array, ...]:
            attributes = {"scalars": np.asarray(scalars, np.float64)} if scalars else {}
            return self._program.foreign(self._program.name, given, **attributes)

        def partition(mesh: Any, given: Sequence[Any], results: Sequence[Any]) -> Any:
            places = axes.places([*results, *given])
            options = axes.options(mesh, places)

            def share(*parts: Array) -> tuple[Array, ...]:
                return _again(self._problem, parts, options, values)

            shardings = axes.shardings(mesh, places)
            n = len(given)
            return mesh, share, shardings[n:], shardings[:n]

        def infer(mesh: Any, given: Sequence[Any], results: Sequence[Any]) -> Any:
            return axes.shardings(mesh, axes.places(given))[len(given) :]

        spread = custom_partitioning(kernel)
        rule, whole = axes.rule()
        spread.def_partition(
            partition,
            infer_sharding_from_operands=infer,
            sharding_rule=rule,
            need_replication_factors=whole,
        )
        return spread  # type: ignore[no-any-return]

    @cached_property
    def _axes(self) -> _Axes:
        return _Axes(self._problem)


def _one_or_many(results: tuple[Array, ...]) -> Any:
    return results if len(results) > 1 else results[0]


def _varying(given: Sequence[Array]) -> dict[str, Any]:
    """Along which mesh axes results vary under `shard_map`: those along which an operand does."""
    axes = frozenset().union(*(getattr(jax.typeof(x), "vma", ()) for x in given))
    return {"vma": axes} if axes else {}


def _of_given(problem: Problem, run: Runner, scalars: Mapping[str, Any]) -> Function:
    """`run` as a function of the arrays that are there."""
    there = [x is not None for x in problem.inputs]

    def call(*given: Array) -> tuple[Array, ...]:
        left = iter(given)
        result = run([next(left) if is_there else None for is_there in there], None, False, scalars)
        return result if type(result) is tuple else (result,)

    return call


def _again(
    problem: Problem, given: Sequence[Array], options: Mapping[str, Any], scalars: Mapping[str, Any]
) -> tuple[Array, ...]:
    """The op of `problem` on arrays of other shapes, by whichever backend takes them."""
    left = iter(given)
    arrays = [None if x is None else next(left) for x in problem.inputs]
    other = check.problem(problem.spec, arrays, options, problem.choices)
    _, prepared, _ = choose(other)
    return _of_given(other, prepared.run, scalars)(*given)


def _batched(
    problem: Problem, size: int, along: Sequence[bool], given: Sequence[Array]
) -> tuple[list[Array], dict[str, Any]] | None:
    """Arrays and options with a batch as the first axis; None where the forms have no room."""
    spec, form, out = problem.spec, problem.signature, []
    patterns = {p.name: p for p in form.inputs}
    groups = [p.terms[0] for p in (*form.inputs, *form.outputs) if p.terms and p.terms[0].group]
    if len({t.bound or t.name for t in groups}) != 1 or not all(
        p.terms and p.terms[0].group for p in form.outputs
    ):
        return None
    for operand, has, x in zip(problem.given, along, given, strict=True):
        first = patterns[operand.name].terms[0]
        if first.group and not has:
            x = x[None] if first.or_one else jax.numpy.broadcast_to(x, (size, *x.shape))
        elif has and not first.group:
            # What all of a batch shared has a form with axes of its own.
            known = {t.name for t in patterns[operand.name].terms}
            every = [p for s in spec.signatures for p in s.inputs if p.name == operand.name]
            wide = next((p for p in every if p.terms[0].or_one and p.names > known), None)
            if wide is None:
                return None
            kept = iter(x.shape[1:])
            inner = [
                n
                for t in wide.terms
                for n in ([1] * len(problem.axes[t.name]) if t.group else [next(kept)])  # type: ignore[arg-type]
            ]
            x = x.reshape(size, *inner)
        out.append(x)
    options = dict(problem.options)
    for pattern in form.inputs:
        if pattern.marker:
            options[pattern.marker] = problem.options[pattern.marker] + 1
        if pattern.is_option:
            options[pattern.name] = (size, *problem.options[pattern.name])
    return out, options


class _Axes:
    """How a problem falls apart: the axes along which no element depends on another.

    An axis has the same name in all arrays that are cut together along it, "" where it is whole.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, form = problem, problem.signature
        shapes = {x.name: x.shape for x in (*problem.given, *problem.outputs)}
        patterns = (*form.inputs, *form.outputs)
        bounds = {t.name: t.bound for p in patterns for t in p.terms if t.bound}
        free = {bounds.get(name, name) for name in independent(problem.spec, form)}
        extents: dict[str, int] = {}
        rows: dict[str, list[str]] = {}
        uneven = set()
        for p in patterns:
            shape = shapes[p.name] if not p.is_option else p.shape(problem.axes)
            rows[p.name] = row = []
            for label, extent in zip(p.labels(problem.axes), shape, strict=True):
                group = label.term.name
                outer = bounds.get(group, group)
                name = outer + label.name.removeprefix(group)
                shared = label.term.or_one and extent == 1
                row.append(name if outer in free and not shared else "")
                if row[-1] and extents.setdefault(name, extent) != extent:
                    uneven.add(name)
        self._rows = {
            name: tuple(["" if axis in uneven else axis for axis in row])
            for name, row in rows.items()
        }
        operands = [*problem.given, *problem.outputs]
        self._arrays = [self._rows[x.name] for x in operands]
        self._results = self._arrays[len(problem.given) :]

    def rule(self) -> tuple[str, tuple[str, ...]]:
        """For Shardy: the factor of every axis, and those that stay whole."""
        count, texts = 0, []
        for row in self._arrays:
            words = []
            for axis in row:
                count += not axis
                words.append(axis or f"whole{count}")
            texts.append(" ".join(words))
        n = len(self._problem.given)
        rule = f"{', '.join(texts[:n])} -> {', '.join(texts[n:])}"
        return rule, tuple(f"whole{i + 1}" for i in range(count))

    def places(self, shapes: Sequence[Any]) -> dict[str, Any]:
        """Over which axes of the mesh each axis is spread, by the shardings of these arrays."""
        n = len(self._problem.given)
        rows = self._arrays if len(shapes) == n else [*self._results, *self._arrays[:n]]
        out: dict[str, Any] = {}
        taken: set[str] = set()
        for row, x in zip(rows, shapes, strict=False):
            for axis, place in zip(row, getattr(x.sharding, "spec", ()), strict=False):
                names = {place} if isinstance(place, str) else set(place or ())
                if axis and axis not in out and names and not names & taken:
                    out[axis] = place
                    taken |= names
        return out

    def shardings(self, mesh: Any, places: Mapping[str, Any]) -> tuple[NamedSharding, ...]:
        """Of every input, then of every output."""
        return tuple(
            NamedSharding(mesh, PartitionSpec(*[places.get(axis) for axis in row]))
            for row in self._arrays
        )

    def options(self, mesh: Any, places: Mapping[str, Any]) -> dict[str, Any]:
        """The options of one device's share: shapes among them shrink."""
        options = dict(self._problem.options)
        for pattern in self._problem.signature.inputs:
            if pattern.is_option:
                options[pattern.name] = tuple(
                    -(-extent // _count(mesh, places.get(axis)))
                    for extent, axis in zip(
                        options[pattern.name], self._rows[pattern.name], strict=True
                    )
                )
        return options


def _count(mesh: Any, place: Any) -> int:
    names = (place,) if isinstance(place, str) else place or ()
    return math.prod(mesh.shape[name] for name in names)
