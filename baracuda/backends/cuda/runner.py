"""The life of a call on a device: allocate, look at the pointers, launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from baracuda import layouts
from baracuda.backends.cuda import fast_call, index_errors
from baracuda.backends.cuda.launch import Clear, Launch, as_before, stream_of
from baracuda.backends.cuda.launch_plan import WIDEST, Call, DeviceFacts, Step, Steps, strides_of
from baracuda.backends.cuda.schedules import any_alignment, plan, variants
from baracuda.calls import outputs
from baracuda.declaration.backend import Adds, Misfit, Refusal, Runner
from baracuda.declaration.dtypes import name_of
from baracuda.declaration.spec import Problem
from baracuda.errors import UnsupportedError
from baracuda.forks import Guard
from baracuda.layouts import Shape
from baracuda.libraries import Array

_Key: TypeAlias = tuple[int, tuple[Shape, ...] | None, Adds, tuple[bool, ...]]
_Launch: TypeAlias = tuple[Any, Sequence[tuple[int, int]], bool]
_Program: TypeAlias = tuple[list[_Launch], Sequence[tuple[Shape, str]]]


def aligned(addresses: Sequence[int]) -> int:
    """The power of two up to the widest access that divides all of them."""
    bits = 0
    for address in addresses:
        bits |= address
    bits &= WIDEST - 1
    return bits & -bits or WIDEST


def launch_all(
    launches: Iterable[_Launch], words: Sequence[int], scalars: Iterable[float], stream: Any
) -> None:
    """Launch a program on the arrays at the addresses `words`."""
    for launch, front, takes in launches:
        given: list[float] = [words[slot] + offset for slot, offset in front]
        if takes:
            given += scalars
        launch(stream, given)


class CudaRunner:
    """Runs one problem; holds no array.

    Parameters
    ----------
    problem : Problem
    facts : DeviceFacts
    arrays : module
        What is asked of the array library: `backends.cuda.torch`.
    variant : str
        Which of the schedule's variants to run; "" leaves it to the schedule's rule.
    listens : bool
        Whether indices out of range are reported.

    Attributes
    ----------
    problem, facts, arrays
        As given.
    steps : Steps
        What most calls launch.
    """

    __slots__ = (
        "_alignment",
        "_anywhere",
        "_empty",
        "_guard",
        "_listener",
        "_made",
        "_ordinal",
        "_programs",
        "_reads",
        "_state",
        "_strides",
        "_sums",
        "_ticket",
        "_usual",
        "_variant",
        "arrays",
        "facts",
        "problem",
        "steps",
    )

    def __init__(
        self,
        problem: Problem,
        facts: DeviceFacts,
        arrays: Any,
        variant: str = "",
        listens: bool = True,
    ) -> None:
        self.problem, self.facts, self.arrays = problem, facts, arrays
        self._ordinal = facts.ordinal
        self._strides = tuple([strides_of(x) for x in problem.outputs])
        self._made = tuple([(x.shape, strides_of(x), x.dtype) for x in problem.outputs])
        self._listener = index_errors.listener(facts.ordinal)
        self._state = self._listener.state
        self._variant = variant
        self._ticket = index_errors.Ticket(problem) if listens and problem.raising else None
        self._empty = all(0 in x.shape for x in problem.outputs)
        self._programs: dict[_Key, _Program] = {}
        self._guard = Guard()
        self._reads = problem.reads
        self._anywhere = any_alignment(problem)
        given = [x.alignment for i, x in enumerate(problem.given) if i not in self._anywhere]
        self._alignment = min(given, default=WIDEST)
        self._sums = any(outputs.may_have(problem, x)[1:] for x in problem.outputs)
        self._usual: _Key = (self._alignment, None, False, ())
        self.steps = self._plan(self._usual)

    def __call__(
        self,
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        if self._state[0]:
            self._listener.raise_pending()
        if self.arrays.current_device() != self._ordinal:
            with as_before(), self.arrays.on_device(self._ordinal):
                return self(arrays, outs, accumulate, scalars)
        pointer, layout = self.arrays.pointer, None
        wide: tuple[bool, ...] = ()
        if outs is None:
            results: Sequence[Array] = self._allocate()
        else:
            results, layout = outs, self._layout(outs)
            if self._sums:
                wide = self._wide(outs)
        if self._empty:
            return results[0] if len(results) == 1 else tuple(results)
        words = [pointer(x) for x in arrays if x is not None]
        if self._aligned(words) < self._alignment:
            raise Misfit
        words += [pointer(x) for x in results]
        key = (min(self._aligned(words), self._alignment), layout, accumulate, wide)
        launches, workspaces = self._programs.get(key) or self._program(key)
        held = [self.arrays.workspace(*each, self._ordinal) for each in workspaces]
        words += [pointer(x) for x in held]
        stream = stream_of(self.arrays.current_stream(self._ordinal))
        values: Iterable[Any] = scalars.values()
        if self._reads:
            pairs = zip(values, self._reads, strict=True)
            values = [pointer(x) if dtype else x for x, dtype in pairs]
        launch_all(launches, words, values, stream)
        return results[0] if len(results) == 1 else tuple(results)

    def _aligned(self, words: Sequence[int]) -> int:
        if not self._anywhere:
            return aligned(words)
        return aligned([word for i, word in enumerate(words) if i not in self._anywhere])

    def _allocate(self) -> list[Array]:
        return [self.arrays.empty(*made, self._ordinal) for made in self._made]

    def shortest(self) -> Runner:
        """This runner, with the way of most calls written out where anything is launched."""
        launches, workspaces = self._program(self._usual)
        if not launches:
            return self
        return fast_call.compiled(
            launches, workspaces, self.problem, self.arrays, self._alignment, self._anywhere,
            self._state, self._ordinal, self,
        )  # fmt: skip

    def program(self, alignment: int) -> _Program:
        """The launches into new outputs, for addresses that are multiples of `alignment`."""
        key = (min(alignment, self._alignment), None, False, ())
        return self._programs.get(key) or self._program(key)

    def _layout(self, outs: Sequence[Array]) -> tuple[Shape, ...] | None:
        """The strides of given outputs, None where they are those of new ones."""
        strides = tuple(map(self.problem.library.strides, outs))
        if strides == self._strides:
            return None
        planned = [x.strides for x in self.problem.outputs]
        have = [layouts.canonical(x.shape, s) for x, s in zip(outs, strides, strict=True)]
        if have == planned:
            return None
        return tuple(
            s if s is not None else layouts.contiguous(x.shape)
            for s, x in zip(have, self.problem.outputs, strict=True)
        )

    def _wide(self, outs: Sequence[Array]) -> tuple[bool, ...]:
        """Which of given outputs are wider than theirs, () where none is."""
        planned = self.problem.outputs
        wide = tuple([name_of(x.dtype) != o.dtype for x, o in zip(outs, planned, strict=True)])
        return wide if any(wide) else ()

    def variants(self) -> tuple[str, ...]:
        """What there is to choose from for most calls, the rule's choice first."""
        return () if self._empty else variants(self._call(self._usual))

    def _call(self, key: _Key) -> Call:
        alignment, layout, add, wide = key
        outs = layout or self._strides
        ticket = self._ticket.number if self._ticket else 0
        address = self._listener.address if self._ticket else 0
        some = add if isinstance(add, tuple) else ()
        return Call(
            self.problem, self.facts, outs, add is True, alignment, address, ticket,
            self._variant, wide, some,
        )  # fmt: skip

    def _plan(self, key: _Key) -> Steps:
        if self._empty:
            return Steps(())
        call = self._call(key)
        # Other kinds of calls need not have the variant that was chosen for most of them.
        if self._variant and key != self._usual and self._variant not in variants(call):
            call = call._replace(variant="")
        return plan(call)

    def _program(self, key: _Key) -> _Program:
        """The launches for arrays of this kind; compiled and loaded on first use."""
        with self._guard.lock:
            found = self._programs.get(key)
            if found is None:
                try:
                    steps = self.steps if key == self._usual else self._plan(key)
                    launches = [self._launch(step) for step in steps.steps]
                except Refusal as refusal:
                    if key == self._usual:  # another backend may still take the problem
                        raise
                    op = self.problem.spec.name
                    raise UnsupportedError(f"{op}: the planned kernel {refusal}") from None
                found = self._programs[key] = launches, steps.workspaces
            return found

    def _launch(self, step: Any) -> _Launch:
        if not isinstance(step, Step):
            return Clear(step.nbytes, self.facts.ordinal), ((step.slot, 0),), False
        front = "<" + "Q" * len(step.front) + step.scalars
        launch = Launch(step, self.facts, front)
        return launch, tuple(step.front), bool(step.scalars)
