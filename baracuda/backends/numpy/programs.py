"""Bodies of elementwise ops as lists of NumPy's functions that write to memory that is there.

What a body calls is recorded on arrays without elements. Then every block goes through the list:
what nobody needs any more is written over, and what comes last is written to the result. So a block
neither allocates nor is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from baracuda.declaration.backend import Adds, Runner
from baracuda.declaration.spec import Problem
from baracuda.libraries import Array, adopt
from baracuda.libraries.numpy import ADAPTER

# Elements per block: what a body holds at a time stays in a core's own cache.
BLOCK = 1 << 16
# With fewer elements times functions, waking another thread takes as long as the work.
_SHORT = 1 << 21
# Elements of a row that is not cut.
_LONG = 1 << 18

Numbers = tuple[int, ...]


def _cast(x: Array, out: Array) -> None:
    np.copyto(out, x, casting="unsafe")


@dataclass(slots=True)
class _Call:
    """A function of values with these numbers; `dtype` of its result."""

    function: Callable[..., Any]
    takes: Numbers
    gives: int
    dtype: Any
    takes_out: bool


class _Recorder:
    """What a body has called so far. Values are numbered: arrays first, then as they come."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.constants: dict[int, Any] = {}
        self.count = 0

    def number(self) -> int:
        self.count += 1
        return self.count - 1

    def numbered(self, x: Any) -> int:
        if isinstance(x, _Recorded):
            return x.number
        if np.ndim(x):
            raise TypeError("an array that is not recorded")
        number = self.number()
        self.constants[number] = x
        return number

    def call(self, function: Callable[..., Any], args: Sequence[Any], takes_out: bool) -> _Recorded:
        takes = tuple([self.numbered(x) for x in args])
        sample = function(*[x.sample if isinstance(x, _Recorded) else x for x in args])
        return self.result(function, takes, sample, takes_out)

    def result(
        self, function: Callable[..., Any], takes: Numbers, sample: Any, takes_out: bool
    ) -> _Recorded:
        if type(sample) is not np.ndarray or sample.shape != (0,):
            raise TypeError("not an array of elements in their places")
        out = _Recorded(self, sample, self.number())
        self.calls.append(_Call(function, takes, out.number, sample.dtype, takes_out))
        return out


class _Recorded(np.lib.mixins.NDArrayOperatorsMixin):
    """Stands for an array while a body is recorded."""

    def __init__(self, recorder: _Recorder, sample: Array, number: int) -> None:
        self.recorder, self.sample, self.number = recorder, sample, number
        # It has no shape: what depends on one is not recorded.
        self.dtype = sample.dtype

    def __array__(self, *args: Any, **kwargs: Any) -> Array:
        raise TypeError("no values while a body is recorded")

    def __bool__(self) -> bool:
        raise TypeError("no values while a body is recorded")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *args: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs or ufunc.nout > 1:
            raise TypeError("not a plain call")
        return self.recorder.call(ufunc, args, True)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Sequence[Any], kwargs: Any
    ) -> Any:
        if kwargs:
            raise TypeError("not a plain call")
        return self.recorder.call(function, args, function is np.clip)

    def astype(self, dtype: Any, copy: bool = True) -> _Recorded:
        if self.dtype == dtype and not copy:
            return self
        return self.recorder.result(_cast, (self.number,), self.sample.astype(dtype), True)


adopt(_Recorded, ADAPTER)


@dataclass(frozen=True, slots=True)
class _Program:
    """Functions with the places of what they take, and of what they write to or give."""

    steps: Sequence[tuple[Callable[..., Any], Numbers, int, bool]]
    constants: Sequence[Any]
    registers: Sequence[Any]
    more: int

    def __call__(
        self, parts: Sequence[Array], targets: Sequence[Array], registers: Sequence[Array]
    ) -> None:
        rest = [None] * self.more
        values: list[Any] = [*parts, *targets, *self.constants, *registers, *rest]
        for function, takes, place, takes_out in self.steps:
            args = [values[i] for i in takes]
            if takes_out:
                function(*args, out=values[place])
            else:
                values[place] = function(*args)


def _program(
    recorder: _Recorder, inputs: int, results: Sequence[Any], dtype: Any, packed: bool
) -> _Program:
    """The calls, with a place for each value: arrays, results, constants, registers, the rest."""
    direct, ends = {call.gives for call in recorder.calls if call.takes_out}, []
    for x in results:
        if x.dtype != dtype:
            raise TypeError("a result of another dtype")
        if x.number not in direct or x.number in ends:
            x = recorder.result(_cast, (x.number,), x.sample.copy(), True)
        ends.append(x.number)
    # What no result needs is not computed.
    calls: list[_Call] = []
    needed = {*ends}
    for call in reversed(recorder.calls):
        if call.gives in needed:
            calls.insert(0, call)
            needed.update(call.takes)
    last = {number: i for i, call in enumerate(calls) for number in call.takes}
    last |= dict.fromkeys(ends, len(calls))
    dtypes: list[Any] = []
    held: dict[int, int] = {}
    free: list[int] = []
    loose: list[int] = []
    for i, call in enumerate(calls):
        free += [held[number] for number in {*call.takes} & {*held} if last[number] == i]
        if not call.takes_out:
            loose.append(call.gives)
            continue
        fresh = len(dtypes)
        fit = next((k for k in reversed(free) if dtypes[k] == call.dtype), fresh)
        # Rows of a packed result lie far apart: they are written to once, and not read.
        fit = fresh if packed and call.gives in ends else fit
        if fit < fresh:
            free.remove(fit)
        else:
            dtypes.append(call.dtype)
        held[call.gives] = fit
    # What holds a result at the end is its memory from the beginning.
    own = [held[number] for number in ends]
    others = [k for k in range(len(dtypes)) if k not in own]
    order = [*range(inputs), *ends, *recorder.constants]
    places = {number: place for place, number in enumerate(order)}
    first = len(order)
    for number, k in held.items():
        places[number] = inputs + own.index(k) if k in own else first + others.index(k)
    places |= {number: first + len(others) + k for k, number in enumerate(loose)}
    steps = [
        (call.function, tuple([places[n] for n in call.takes]), places[call.gives], call.takes_out)
        for call in calls
    ]
    registers = [dtypes[k] for k in others]
    return _Program(steps, [*recorder.constants.values()], registers, len(loose))


def runner(
    problem: Problem,
    arrays_of: Callable[[Sequence[Array]], list[Array]],
    outs_of: Callable[[Sequence[Array]], list[Array]],
    on_threads: Callable[[Callable[[Any], None], Any], None],
    otherwise: Runner,
) -> Runner:
    """Run the recorded body on new results; `otherwise` where there are some, or no record."""
    dtype = problem.library.dtype(problem.dtype)
    known: dict[tuple[str, ...], _Program | None] = {}

    def recorded(arrays: Sequence[Array | None], scalars: Mapping[str, Any]) -> _Program | None:
        key = tuple(map(repr, scalars.values()))
        try:
            return known[key]
        except KeyError:
            program = _record(problem, arrays, dtype, scalars)
        # Bodies do other things for other scalars; of all programs the latest is kept.
        known.clear()
        known[key] = program
        return program

    def run(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        inputs = arrays_of(arrays)
        program = None if outs else recorded(inputs, scalars)
        if program is None:
            return otherwise(arrays, outs, accumulate, scalars)
        results = [np.empty(x.shape, dtype) for x in problem.outputs]
        targets, inputs = outs_of(results), [x for x in inputs if x is not None]
        if all(x.flags.c_contiguous for x in (*inputs, *targets)):
            inputs, targets = [x.reshape(-1) for x in inputs], [x.reshape(-1) for x in targets]
        extent, *rest = targets[0].shape
        if prod(rest) > _LONG:
            return otherwise(arrays, outs, accumulate, scalars)
        threads = len(program.steps) * targets[0].size > _SHORT
        # What holds nothing but arrays and results has nothing to gain from a cache.
        cut_up = threads or program.registers
        step = max(1, BLOCK // prod(rest)) if cut_up else extent
        sets: list[list[Array]] = []

        def block(start: int) -> None:
            try:
                registers = sets.pop()
            except IndexError:
                registers = [np.empty((step, *rest), dtype) for dtype in program.registers]
            cut, short = slice(start, start + step), start + step > extent
            fitting = [x[: extent - start] for x in registers] if short else registers
            program([x[cut] for x in inputs], [x[cut] for x in targets], fitting)
            sets.append(registers)

        starts = range(0, extent, step)
        if threads:
            on_threads(block, starts)
        else:
            with np.errstate(all="ignore"):
                for start in starts:
                    block(start)
        return tuple(results) if len(results) > 1 else results[0]

    return run


def _record(
    problem: Problem, arrays: Sequence[Array | None], dtype: Any, scalars: Mapping[str, Any]
) -> _Program | None:
    """The program of the body; None where it does more than call functions of elements."""
    recorder = _Recorder()
    stand_ins = [
        x if x is None else _Recorded(recorder, np.empty(0, x.dtype), recorder.number())
        for x in arrays
    ]
    inputs = recorder.count
    try:
        results = problem.spec.body(*stand_ins, **problem.options, **scalars)
        results = results if type(results) is tuple else (results,)
        packed = len(results) > len(problem.outputs)
        return _program(recorder, inputs, results, dtype, packed)
    except (TypeError, AttributeError, ValueError, IndexError):
        return None
