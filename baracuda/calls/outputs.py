"""The outputs that a caller gives, and what is added to which, checked before any is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from baracuda import layouts
from baracuda.calls import check
from baracuda.declaration.backend import Adds, each
from baracuda.declaration.dtypes import name_of, named
from baracuda.declaration.spec import Operand, Problem
from baracuda.errors import UnsupportedError, type_error, value_error
from baracuda.libraries import UNFIT, Array, Library, library_of


class _Passed(NamedTuple):
    """Outputs that passed: which were given, what was added to, what tells others like them.

    `gradient`: whether all of them may be added to.
    """

    there: tuple[bool, ...]
    whole: bool
    adds: Adds
    gradient: bool
    fit: Callable[[Sequence[Array], Sequence[Array]], bool]


class Outputs:
    """``(arrays, out, accumulate) -> (outputs, what is added to)`` of one plan, checked.

    Outputs like the last ones that passed (type, dtype, shape, strides, device, watched or not)
    only have to be writable, and apart from all other arrays. Holds no array.

    Parameters
    ----------
    problem : Problem
        That of the plan.
    """

    __slots__ = ("_passed", "_problem")

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._passed: _Passed | None = None

    def __call__(
        self, arrays: Sequence[Array], out: Any, accumulate: Any
    ) -> tuple[tuple[Array, ...] | None, Adds]:
        problem, passed = self._problem, self._passed
        outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        plain = accumulate is False or (accumulate is True and passed and passed.gradient)
        added = accumulate if plain else adds(problem, accumulate)
        if passed is not None:
            if passed.whole:
                if passed.fit(arrays, outs):
                    return outs, added
            elif (_there(outs), added) == (passed.there, passed.adds) and passed.fit(
                arrays, [x for x in outs if x is not None]
            ):
                return _completed(problem, arrays, outs), added
        found, there = given(problem, arrays, out, added), _there(outs)
        if any(there):
            fit = _teller(problem, outs)
            gradient = all(problem.spec.adds_into(x.name) for x in problem.outputs)
            self._passed = _Passed(there, all(there), added, gradient, fit)
        return found, added


def _there(outs: Sequence[Array | None]) -> tuple[bool, ...]:
    return tuple([x is not None for x in outs])


def _teller(
    problem: Problem, outs: Sequence[Array | None]
) -> Callable[[Sequence[Array], Sequence[Array]], bool]:
    """``(inputs, others) -> bool``: whether others are like `outs`, and may be written to.

    False also where only the memory of each array could tell.
    """
    library, gaps = problem.library, None in problem.inputs
    alike = library.matcher([x for x in outs if x is not None])
    frozen, apart = library.frozen, library.apart
    # The inputs that each output may be.
    there = [o for o, x in zip(problem.outputs, outs, strict=True) if x is not None]
    mays = [_may_be(problem, operand) for operand in there]

    def rest(x: Array, inputs: Sequence[Array], may: Sequence[str]) -> list[Array]:
        named = zip(problem.spec.arrays, inputs, strict=False)
        return [y for name, y in named if y is not None and not (y is x and name in may)]

    def fit(inputs: Sequence[Array], others: Sequence[Array]) -> bool:
        try:
            if not alike(others):
                return False
        except UNFIT:
            return False
        near = [x for x in inputs if x is not None] if gaps else inputs
        for i, x in enumerate(others):
            if frozen(x) or (i and not apart(x, others[:i])):
                return False
            # Exactly an input may be written to where the op is safe in place.
            if not apart(x, near) and not apart(x, rest(x, inputs, mays[i])):
                return False
        return True

    return fit


def adds(problem: Problem, accumulate: Any) -> Adds:
    """Which outputs are added to: one bool where that is the same for all.

    Raises
    ------
    TypeError, ValueError
        For what is neither a bool nor one for each output.
    NotImplementedError
        For an output that nothing may be added to.
    """
    op, outputs = problem.spec.name, problem.outputs
    every = accumulate if isinstance(accumulate, (tuple, list)) else (accumulate,) * len(outputs)
    if not all(isinstance(one, bool) for one in every):
        several = f", or {len(outputs)} of these" if len(outputs) > 1 else ""
        raise type_error(op, "accumulate", f"True or False{several}", repr(accumulate))
    if len(every) != len(outputs):
        names = ", ".join([x.name for x in outputs])
        raise value_error(op, "accumulate", f"one bool for each of {names}", len(every))
    for one, operand in zip(every, outputs, strict=True):
        if one and not problem.spec.adds_into(operand.name):
            # Of several outputs the name says which one it is.
            which = f" ({operand.name})" if len(outputs) > 1 else ""
            raise UnsupportedError(
                f"{op}: accumulate{which}: expected False, got True: only gradients add into their "
                f"outputs; write out += {op}(...)"
            )
    return tuple(every) if len(set(every)) > 1 else any(every)


def given(
    problem: Problem, arrays: Sequence[Array], out: Any, accumulate: Adds
) -> tuple[Array, ...] | None:
    """The outputs given, and new ones for None; None where all are new.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        Where one does not fit, or must not be written to.
    """
    op, outputs, library = problem.spec.name, problem.outputs, problem.library
    if out is None and accumulate is False:
        return None
    if not library.writable:
        raise UnsupportedError(
            f"{op}: out: arrays of {library.name} are immutable: leave it out, and use the result"
        )
    if out is None:
        raise value_error(op, "accumulate", "out= to add into", "none")
    outs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
    if len(outs) != len(outputs):
        raise value_error(op, "out", f"{len(outputs)} arrays", len(outs))
    for x, operand, adding in zip(outs, outputs, each(accumulate, len(outputs)), strict=True):
        if x is not None:
            _fits(problem, x, operand)
        elif adding:
            raise value_error(op, f"out ({operand.name})", "an array to add into", "None")
    outs = _completed(problem, arrays, outs)
    others = [
        (x.name, _memory(library, a))
        for x, a in zip(problem.inputs, arrays, strict=False)
        if x is not None
    ]
    for x, operand in zip(outs, outputs, strict=True):
        own = _memory(library, x)
        _apart(problem, own, others, _may_be(problem, operand))
        others.append(("another output", own))
    return outs


def in_lists(op: str, sets: Sequence[Sequence[Array]], outs: Sequence[Sequence[Array]]) -> None:
    """Refuse an array of lists that is written to and shares memory with one of another set.

    Raises
    ------
    ValueError
        Where there is one.
    """
    places = list[tuple[int, int, int, bool, layouts.Memory]]()
    for number, (given, own) in enumerate(zip(sets, outs, strict=True)):
        # Each once: what is written in place is an input.
        every = {id(x): (x, False) for x in given if x is not None}
        every |= {id(x): (x, True) for x in own}
        for x, written in every.values():
            memory = _memory(library_of(x), x)
            if memory is not None and 0 not in memory[1]:
                places.append((*layouts.reached(memory), number, written, memory))
    near = list[tuple[int, int, int, bool, layouts.Memory]]()
    for place in sorted(places, key=itemgetter(0)):
        begin, _, number, written, memory = place
        near = [other for other in near if other[1] > begin]
        for _, _, another, read, beside in near:
            if number != another and (written or read) and layouts.overlap(memory, beside):
                expected = "memory of its own for each array that is written to"
                raise value_error(op, "out", expected, "an overlap")
        near.append(place)


def _completed(
    problem: Problem, arrays: Sequence[Array], outs: tuple[Array | None, ...]
) -> tuple[Array, ...]:
    """The outputs given, and new ones for None."""
    if all(_there(outs)):
        return outs
    like = next(x for x in arrays if x is not None)
    return tuple([
        problem.library.empty(o.shape, o.dtype, like, o.strides) if x is None else x
        for x, o in zip(outs, problem.outputs, strict=True)
    ])  # fmt: skip


def may_have(problem: Problem, operand: Operand) -> tuple[str, ...]:
    """The dtypes that a given output may have, its own first."""
    wide = named(operand.dtype).accumulate
    total = problem.spec.role(operand.name).total and wide != operand.dtype
    return (operand.dtype, wide) if total else (operand.dtype,)


def _fits(problem: Problem, x: Array, operand: Operand) -> None:
    op, argument = problem.spec.name, f"out ({operand.name})"
    library, has = check.described(op, argument, x)
    dtypes = may_have(problem, operand)
    for what, got, want in (
        ("library", library.name, (problem.library.name,)),
        ("device", has.device, (problem.device,)),
        ("dtype", has.dtype, dtypes),
        ("shape", has.shape, (operand.shape,)),
    ):
        if got not in want:
            raise value_error(op, argument, f"{what} {' or '.join(map(str, want))}", got)
    if has.alignment == 0:
        what = "a lazily conjugated or negated view"
        raise value_error(op, argument, "memory that has the values", what)
    if library.frozen(x):
        raise value_error(op, argument, "a writable array", "a read-only one")
    # What the framework differentiates writes for itself, and refuses for itself.
    if not problem.mode and library.watches(x):
        raise UnsupportedError(
            f"{op}: {argument}: nothing would record that a tensor that requires "
            f"grad is written to; give out.detach(), or call under torch.no_grad()"
        )


def _may_be(problem: Problem, operand: Operand) -> Sequence[str]:
    """The inputs that an output may be, exactly, where the op is safe in place.

    Elementwise, all of them; else the one whose dtype it is said to have, if any is.
    """
    spec = problem.spec
    if not spec.inplace:
        return ()
    own = "" if spec.elementwise else spec.role(operand.name).typed_as
    return (own,) if own else spec.arrays


def _apart(
    problem: Problem,
    own: layouts.Memory | None,
    others: Sequence[tuple[str, layouts.Memory | None]],
    may_be: Sequence[str],
) -> None:
    """Outputs may be exactly an input where the op allows it, and overlap nothing else."""
    spec = problem.spec
    if own is None:
        return
    if layouts.overlaps_itself(own):
        raise value_error(spec.name, "out", "elements apart", "an array that overlaps itself")
    for name, memory in others:
        if memory is None or not layouts.overlap(own, memory):
            continue
        if memory == own and name in may_be:
            continue
        raise value_error(
            spec.name,
            "out",
            f"memory apart from {name}",
            "an overlap",
            None,
            "this op is safe in place on the whole array" if spec.inplace else "",
        )


def _memory(library: Library, x: Array) -> layouts.Memory | None:
    place = library.memory(x)
    if place is None:
        return None
    address, strides = place
    return address, tuple(x.shape), strides, named(name_of(x.dtype)).itemsize
