"""Kernels on JAX arrays: custom calls of compiled programs, on the buffers that XLA gives them.

A plan is a jitted function. Called with arrays it is the whole program, called while JAX traces it
becomes part of one. It tells JAX all that is hidden inside a custom call:

- under `vmap` a batch is one more axis of the op's batch group, so another plan of the same op;
- over several devices the problem falls apart along the axes that the shape string leaves
  independent, each device running the plan of its share, and along the one of which the op itself
  joins parts;
- compiled for another platform, the call is the op's body, unless the backend was forced.

A target is named after all that decides what is launched, so that a program from JAX's own
compilation cache finds what it was compiled with.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cuda.bindings import driver
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from baracuda._version import __version__
from baracuda.backends import choose
from baracuda.backends.cuda.launch import (
    OK,
    Memory,
    device_facts,
    on_primary,
    stream_of,
)
from baracuda.backends.cuda.launch_plan import WIDEST, DeviceFacts
from baracuda.backends.cuda.runner import CudaRunner, aligned, launch_all
from baracuda.backends.cuda.xla import Handler
from baracuda.calls import body, check
from baracuda.calls.partitioning import Place, Shares, added_up, batch, joined, placed
from baracuda.declaration.backend import Adds, Runner
from baracuda.declaration.collective import Part
from baracuda.declaration.dispatch import NAMES
from baracuda.declaration.dtypes import named
from baracuda.declaration.spec import Problem
from baracuda.forks import Guard
from baracuda.layouts import Shape
from baracuda.libraries import TRACED, Array
from baracuda.libraries.jax import ADAPTER, varies_along

PLATFORM, TARGETS = "cuda", "CUDA"
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


on_device = on_primary


# What measuring the variants of a kernel asks: JAX shows no stream, so they run on the default one,
# into memory of our own, once the arrays are there.


def current_stream(ordinal: int) -> int:
    """The default stream."""
    return 0


def empty(shape: Shape, strides: Shape, dtype: str, ordinal: int) -> Memory:
    """Memory for an array, on the current device."""
    return workspace(shape, dtype, ordinal)


def workspace(shape: Shape, dtype: str, ordinal: int) -> Memory:
    """Memory that no one sees, on the current device."""
    return Memory(math.prod(shape) * named(dtype).itemsize)


def pointer(x: Any) -> int:
    """The address of an array that has been computed, or of such memory."""
    if isinstance(x, Memory):
        return x.address
    if isinstance(x, jax.ShapeDtypeStruct):
        raise TypeError("autotune: expected arrays to measure on, got a jax.ShapeDtypeStruct")
    return int(x.block_until_ready().unsafe_buffer_pointer())


def settle(ordinal: int) -> None:
    """Wait until all that was called so far has run on a device: XLA launches when it likes."""
    devices = jax.local_devices(backend=PLATFORM)
    with jax.default_device(next(d for d in devices if d.local_hardware_id == ordinal)):
        jnp.zeros(()).block_until_ready()


class JaxRunner(CudaRunner):
    """Runs one problem; what its index has out of range is dropped where JAX traces."""

    def __init__(
        self, problem: Problem, facts: DeviceFacts, arrays: Any, variant: str = ""
    ) -> None:
        super().__init__(problem, facts, arrays, variant, listens=not problem.mode)
        self._listener.ahead.add(settle)

    def shortest(self) -> Runner:
        """As a jitted function."""
        if self._empty:
            return body.runner(self.problem)
        problem, program = self.problem, _program(self)
        # Run-time values are constants of what is traced, and of what is divided over devices.
        constant = not problem.spec.scalars or bool(problem.mode) or "," in problem.device
        late = None if constant else program.late()
        compiled = lru_cache(_MOST_PROGRAMS)(_Call(problem, program).function)
        state, listener, every = self._state, self._listener, None not in problem.inputs
        plain = None if problem.spec.scalars else compiled(())

        def run(
            arrays: Sequence[Array],
            outs: tuple[Array, ...] | None,
            accumulate: Adds,
            scalars: Mapping[str, Any],
        ) -> Any:
            if state[0]:
                listener.raise_pending()
            given = arrays if every else [x for x in arrays if x is not None]
            if plain is not None:
                return plain(*given)
            values = tuple(scalars.values())
            return late(values, *given) if late else compiled(values)(*given)

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
        self._usual, workspaces = runner.program(WIDEST)
        self.results = (*[(x.shape, x.dtype) for x in problem.outputs], *workspaces)
        self._dtypes = [x.dtype for x in problem.given], [dtype for _, dtype in self.results]
        self._handlers = [Handler(*self._dtypes, problem.spec.codes, self.launch)]
        self._register(name)
        self._late: Callable[..., Any] | None = None

    def _register(self, name: str) -> None:
        target = jax.ffi.pycapsule(self._handlers[-1].address)
        jax.ffi.register_ffi_target(name, target, platform=TARGETS)

    def foreign(self, name: str, given: Sequence[Array], **attributes: Any) -> tuple[Array, ...]:
        """The custom call of target `name`; its outputs."""
        problem = self._first.problem
        dtype = problem.library.dtype
        results = [jax.ShapeDtypeStruct(shape, dtype(kind)) for shape, kind in self.results]
        out = jax.ffi.ffi_call(name, results)(*given, **attributes)
        # Under `shard_map` results vary along the mesh axes along which all operands do.
        axes = tuple(varies_along(given[0]))
        return tuple(
            [
                jax.lax.pcast(y, axes, to="varying") if axes else y
                for y in out[: len(problem.outputs)]
            ]
        )

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

            operands, results = self._dtypes
            marked = [*operands, "int32"]
            self._handlers.append(Handler(marked, results, "", launch, replayed=False))
            self._register(name)
            program = jax.jit(lambda *given: _one_or_many(self.foreign(name, given)))

            def call(scalars: Sequence[float], *given: Array) -> Any:
                try:
                    mark, address = free.pop()
                except IndexError:
                    with jax.default_device(given[0].device):
                        mark = jnp.zeros((), jnp.int32)
                    address = pointer(mark)
                waiting[address] = mark, scalars
                return program(*given, mark)

            self._late = call
        return self._late

    def launch(self, words: list[int], scalars: Sequence[float], stream: int) -> None:
        """Launch on the arrays at the addresses `words`."""
        bits = 0
        for address in words:
            bits |= address
        usual = self._only is not None and not bits % WIDEST
        launches = self._usual if usual else self._launches(aligned(words))
        launch_all(launches, words, scalars, stream_of(stream))

    def _launches(self, alignment: int) -> Any:
        runner = self._only or self._here()
        launches, workspaces = runner.program(alignment)
        if (*workspaces,) != self.results[len(runner.problem.outputs) :]:
            raise RuntimeError("arrays so little aligned need another workspace")
        return launches

    def _here(self) -> JaxRunner:
        ordinal = current_device()
        found = self._runners.get(ordinal)
        if found is None:
            one = self._first
            made = JaxRunner(one.problem, device_facts(ordinal), one.arrays, one.steps.variant)
            found = self._runners[ordinal] = made
        return found


_programs: dict[str, Program] = {}
_guard = Guard()


def _program(runner: JaxRunner) -> Program:
    """The program of a runner, registered once in the life of a process, as XLA wants it."""
    what = repr((runner.problem.key, runner.steps.variant, __version__))
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    name = f"baracuda_{runner.problem.spec.name}_{digest}"
    with _guard.lock:
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
        kernel = self._spread(scalars)
        values = dict(zip(problem.spec.scalars, scalars, strict=True))
        plain = body.of_given(problem, body.runner(problem), values)

        def whole(*given: Array) -> tuple[Array, ...]:
            if not problem.mode:
                return kernel(*given)
            # A forced backend never falls back: without a default, another platform is an error.
            default = None if problem.choices.backend else plain
            return jax.lax.platform_dependent(*given, default=default, **{PLATFORM: kernel})  # type: ignore[no-any-return]

        batched = custom_vmap(whole)

        @batched.def_vmap  # type: ignore[untyped-decorator]
        def rule(size: int, along: Sequence[bool], *given: Array) -> Any:
            found = batch(problem, size, along)
            if found is None:
                out = jax.vmap(plain, [0 if differs else None for differs in along])(*given)
                return out, (True,) * len(out)
            shapes, options = found
            all_of_it = [
                x.reshape(shape) if differs else jnp.broadcast_to(x, shape)
                for x, differs, shape in zip(given, along, shapes, strict=True)
            ]
            out = _again(problem, all_of_it, options, values)
            return out, (True,) * len(out)

        def single(*given: Array) -> Any:
            return _one_or_many(batched(*given))

        single.__name__ = problem.spec.name
        return jax.jit(single)  # type: ignore[no-any-return]

    def _spread(self, scalars: Sequence[float]) -> Function:
        """The custom call, and how it is divided over several devices."""
        problem = self._problem
        joint = joined(problem.spec)
        # What is told that it is a part is not cut once more.
        numbered = (
            placed(problem.spec, problem.signature) if not problem.options.get("part") else ()
        )
        shares = Shares(problem, added_up(problem.spec, problem.signature) | joint | {*numbered})
        values = dict(zip(problem.spec.scalars, scalars, strict=True))
        bits = np.frombuffer(struct.pack(f"<{problem.spec.codes}", *scalars), np.int64)
        attributes = {"scalars": bits} if scalars else {}

        def kernel(*given: Array) -> tuple[Array, ...]:
            return self._program.foreign(self._program.name, given, **attributes)

        def partitions(arrays: Sequence[Any]) -> list[Any]:
            return [getattr(x.sharding, "spec", ()) for x in arrays]

        def shardings(mesh: Any, rows: Any, places: Mapping[str, Any]) -> tuple[Any, ...]:
            return tuple(NamedSharding(mesh, PartitionSpec(*map(places.get, row))) for row in rows)

        def partition(mesh: Any, given: Sequence[Any], results: Sequence[Any]) -> Any:
            rows = (*shares.outputs, *shares.inputs)
            places = shares.places(rows, partitions([*results, *given]))
            options = shares.options(places, mesh.shape)

            over = {name: places[name] for name in joint & places.keys()}
            others = {name: place for name, place in places.items() if name not in over}
            # What lacks an axis that is cut is a sum over it, unless its parts are joined.
            sums = [shares.lacks(row, others) for row in shares.outputs]
            run: Callable[..., tuple[Array, ...]] = _again
            for place in over.values():
                run = partial(_of_part, place)
            if numbered and any(map(places.get, shares.inputs[0])):
                run = partial(_of_numbers, tuple(map(places.get, shares.inputs[0])))

            def share(*parts: Array) -> tuple[Array, ...]:
                found = run(problem, parts, options, values)
                return tuple(
                    [jax.lax.psum(x, at) if at else x for x, at in zip(found, sums, strict=True)]
                )

            outs = shardings(mesh, shares.outputs, places)
            return mesh, share, outs, shardings(mesh, shares.inputs, places)

        def infer(mesh: Any, given: Sequence[Any], results: Sequence[Any]) -> Any:
            places = shares.places(shares.inputs, partitions(given))
            return shardings(mesh, shares.outputs, places)

        spread = custom_partitioning(kernel)
        rule, whole = shares.rule()
        spread.def_partition(
            partition,
            infer_sharding_from_operands=infer,
            sharding_rule=rule,
            need_replication_factors=whole,
        )
        return spread  # type: ignore[no-any-return]


def _one_or_many(results: tuple[Array, ...]) -> Any:
    return results if len(results) > 1 else results[0]


def _of_part(
    over: Place, problem: Problem, given: Sequence[Array], options: Mapping[str, Any],
    scalars: Mapping[str, Any],
) -> tuple[Array, ...]:  # fmt: skip
    """The op of `problem` on the parts of the axis that it joins, spread over axes of the mesh."""
    joint, dispatch = problem.spec.collective, {k: getattr(problem.choices, k) for k in NAMES}
    assert joint is not None
    extent: Any = problem.axes[joint.axis]
    size = extent // jax.lax.axis_size(over)
    gathered = partial(jax.lax.all_gather, axis_name=over)
    part = Part(jax.lax.axis_index(over) * size, extent, size, gathered)
    found = joint.run(part, *body.slots(problem, given), **options, **scalars, **dispatch)
    results = zip(found if isinstance(found, tuple) else (found,), problem.outputs, strict=True)
    return tuple([x.astype(problem.library.dtype(out.dtype)) for x, out in results])


def _of_numbers(
    cut: Sequence[Place], problem: Problem, given: Sequence[Array], options: Mapping[str, Any],
    scalars: Mapping[str, Any],
) -> tuple[Array, ...]:  # fmt: skip
    """The op of `problem` on parts of numbered arrays, by its body: a kernel has constant numbers.

    `cut` says over which axes of the mesh each axis of the first array is spread.
    """
    other = check.problem(problem.spec, body.slots(problem, given), options, problem.choices)
    spread = zip(cut, other.given[0].shape, strict=True)
    begins = [jax.lax.axis_index(place) * n if place else 0 for place, n in spread]
    part = (*problem.given[0].shape, *begins)
    other = replace(other, options={**other.options, "part": part})
    return body.of_given(other, body.runner(other), scalars)(*given)


def _again(
    problem: Problem, given: Sequence[Array], options: Mapping[str, Any], scalars: Mapping[str, Any]
) -> tuple[Array, ...]:
    """The op of `problem` on arrays of other shapes, by whichever backend takes them."""
    arrays = body.slots(problem, given)
    other = check.problem(problem.spec, arrays, options, problem.choices)
    _, prepared, _ = choose(other)
    return body.of_given(other, prepared.run, scalars)(*given)
