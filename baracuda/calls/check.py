"""From a spec and arguments to a `Problem`, or to the error that says what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from numbers import Real
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from baracuda import layouts
from baracuda.declaration import autocast, values
from baracuda.declaration.dispatch import Choices
from baracuda.declaration.dtypes import FLOATS, INDICES, named
from baracuda.declaration.hints import for_position
from baracuda.declaration.shapes import Axes, Binder, Signature
from baracuda.declaration.spec import Normaliser, Operand, OpSpec, Problem, compute_dtype
from baracuda.declaration.values import Number
from baracuda.errors import (
    IndexOutOfRangeError,
    shown,
    type_error,
    value_error,
)
from baracuda.libraries import TRACED, Array, Facts, Library, State, library_of

# Types of numbers that cannot come to be others.
_CONSTANT = frozenset({int, float})
MOST_AXES = 32
"""Axes of an array. Libraries end at 25 to 64, and bodies need one or two more than they get."""


def arguments(
    spec: OpSpec,
    names: Mapping[str, Normaliser],
    given: Mapping[str, Any],
    whole: bool = True,
) -> dict[str, Any]:
    """`given` and the defaults, normalised, in the order of `names`.

    Unless they are the `whole`, what has no default may be left out.
    """
    out = {}
    for name, normalise in names.items():
        if name in given:
            out[name] = normalise(spec.name, name, given[name])
        elif name in spec.usual:
            out[name] = spec.usual[name]
        elif whole:
            raise type_error(spec.name, name, "a value", "none", "the keyword is required")
    for floor, name in spec.floors:
        if floor in out and name in out and not out[floor] <= out[name]:
            raise value_error(spec.name, name, f"a number >= {floor} = {out[floor]}", out[name])
    return out


def scalars(
    spec: OpSpec,
    compute: str,
    given: Mapping[str, Any],
    whole: bool = True,
    without: Collection[str] = (),
) -> dict[str, Any]:
    """The run-time values among `given`, and the defaults of the others but `without`, checked."""
    names: Mapping[str, Normaliser] = spec.scalars
    if without:
        names = {name: f for name, f in names.items() if name not in without}
    out = arguments(spec, names, given, whole)
    values.within(spec, compute, out)
    return out


class Values(NamedTuple):
    """Run-time values of which some may be arrays.

    Attributes
    ----------
    numbers : dict
        What the host knows.
    arrays : dict
        What lies on a device, or is watched by a framework: nobody reads or checks it.
    dtypes : tuple of str
        Of each value that the op takes the dtype of its array, "" for a number; () for no array.
    mode : str
        How a framework watches the arrays, as `Problem` has it.
    """

    numbers: dict[str, Any]
    arrays: dict[str, Array] = {}  # noqa: RUF012
    dtypes: tuple[str, ...] = ()
    mode: str = ""


def are_arrays(given: Iterable[Any]) -> bool:
    """Whether some run-time values are arrays."""
    return any(hasattr(x, "dtype") and not isinstance(x, np.generic) for x in given)


def values_of(spec: OpSpec, beside: Sequence[Array], given: Mapping[str, Any]) -> Values:
    """Run-time values beside arrays, the primal first; an array that can be read is a number.

    The types of all arrays have facts from here on. What is no array of the library is left for
    `scalars` to refuse.

    Raises
    ------
    TypeError
        For an array of another dtype, with axes, or on another device.
    """
    pairs = zip(spec.arrays, beside, strict=False)
    (library, there), *_ = [described(spec.name, n, x) for n, x in pairs if x is not None]
    numbers, arrays, mode = dict(given), {}, ""
    for name, x in given.items():
        takes = getattr(spec.scalars.get(name), "dtypes", ())
        if not (takes and are_arrays((x,)) and _is_of(library, x)):
            continue
        fact = library.describe(x)
        if fact.shape or fact.dtype not in takes:
            expected = f"a number, or an array without axes of {' or '.join(takes)}"
            raise type_error(spec.name, name, expected, f"{fact.dtype} of shape {fact.shape}")
        fixed = TRACED not in (there.device, fact.device) and library.device_of(x) is not None
        if fixed and fact.device != there.device:
            expected = f"device {there.device} (as {spec.arrays[0]})"
            raise type_error(spec.name, name, expected, fact.device)
        state = library.state((x,))
        watched = state[0] if state else ""
        if library.readable(x) and not watched:
            read = library.shared(library.values(x))
            # torch's `int` takes no tensor of 2^63 or more.
            whole = read.item() if hasattr(read, "item") else read
            numbers[name] = float(read) if takes == Number.dtypes else int(whole)
        else:
            arrays[name] = numbers.pop(name)
            mode = mode or watched
    dtypes = [library.describe(arrays[n]).dtype if n in arrays else "" for n in spec.scalars]
    return Values(numbers, arrays, tuple(dtypes) if arrays else (), mode)


def _is_of(library: Library, x: Any) -> bool:
    """Whether `x` is an array of `library`."""
    try:
        return library_of(x) is library
    except TypeError:
        return False


def reader(problem: Problem) -> Callable[..., dict[str, Any]]:
    """`scalars` of one problem; the defaults alone, and values given again, are read once."""
    spec, compute = problem.spec, problem.compute_dtype
    usual: dict[str, Any] | None = None
    last: tuple[tuple[str, ...], tuple[Any, ...], dict[str, Any]] = ((), (), {})

    def other(given: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        names = ", ".join([n for n, x in zip(spec.scalars, problem.reads, strict=False) if x])
        expected = f"arrays for {names} (as planned)"
        raise type_error(spec.name, "plan", expected, ", ".join(given) or "none")

    def read(
        given: Mapping[str, Any], whole: bool = True, without: Collection[str] = ()
    ) -> dict[str, Any]:
        nonlocal usual, last
        if without or not whole:
            return scalars(spec, compute, given, whole, without)
        if not given:
            if usual is None:
                usual = scalars(spec, compute, given)
            return usual
        names, values, known = last
        # The very objects: 0.0 and -0.0 are equal, and so are 1 and True.
        if (*given,) == names and all(map(is_, given.values(), values)):
            return known
        known = scalars(spec, compute, given)
        if _CONSTANT.issuperset(map(type, given.values())):
            last = (*given,), (*given.values(),), known
        return known

    return other if problem.reads else read


def problem(
    spec: OpSpec,
    arrays: Sequence[Array],
    options: Mapping[str, Any],
    choices: Choices,
    given: Values | None = None,
    known: Sequence[State | None] = (),
) -> Problem:
    """Validate a call; `given` are run-time values where some are arrays.

    What watches its arrays is `known` where that was asked before.

    Raises
    ------
    TypeError
        No array, libraries or devices or floating dtypes mixed, a dtype or option of the
        wrong kind.
    ValueError
        Shapes or option values that do not fit.
    """
    named_arrays = dict(zip(spec.arrays, arrays, strict=False))
    library, facts = _facts(spec, named_arrays)
    state = known[0] if known else library.state([x for x in arrays if x is not None])
    if given is None:
        return described_problem(spec, library, facts, state, options, choices)
    if given.mode:
        # Only the body knows the gradient along a run-time value.
        mode = "traced" if given.mode == "autograd" else given.mode
        state = mode, bool(state and state[1]), *(state or ())[2:]
    return described_problem(spec, library, facts, state, options, choices, given.dtypes)


def described_problem(
    spec: OpSpec,
    library: Library,
    facts: Mapping[str, Facts],
    state: State | None,
    given: Mapping[str, Any],
    choices: Choices,
    reads: tuple[str, ...] = (),
) -> Problem:
    """Validate a call of which only the facts of its arrays are known; raises as `problem`."""
    for name, fact in facts.items():
        if len(fact.shape) > MOST_AXES:
            few = f"at most {MOST_AXES} axes"
            raise value_error(spec.name, name, few, len(fact.shape), None, "reshape it")
    dtype = _dtypes(spec, facts)
    options = arguments(spec, spec.options, given)
    values.within(spec, compute_dtype(spec, dtype), options)
    mode, switch, *_ = state or ("", False)
    options |= autocast.chosen(spec, dtype, options, state)
    signature, axes = _bind(spec, facts, options)
    known = {
        name: Operand(name, f.dtype, f.shape, layouts.canonical(f.shape, f.strides), f.alignment)
        for name, f in facts.items()
    }
    inputs = tuple(map(known.get, spec.arrays))
    if choices.deterministic is None:
        choices = _resolved(choices, switch)
    found = Problem(
        spec,
        signature,
        library,
        _device(facts),
        mode,
        axes,
        inputs,
        _outputs(spec, signature, axes, known, dtype, library, options),
        options,
        choices,
        reads,
    )
    for name in found.raising:
        _refuse_all(found, known[name])
    return found


@lru_cache(maxsize=256)
def _resolved(choices: Choices, switch: bool) -> Choices:
    """`choices` with the framework's switch in the place of `deterministic=None`."""
    return replace(choices, deterministic=switch)


def traced(arrays: Sequence[Array]) -> bool:
    """Whether a framework is tracing these arrays."""
    state = autocast.state_of(arrays)
    return state is not None and state[0] == "traced"


def _facts(spec: OpSpec, given: Mapping[str, Array]) -> tuple[Library, dict[str, Facts]]:
    """The library, and the facts of every array given."""
    first = spec.arrays[0]
    for name, x in given.items():
        if isinstance(x, (Real, str)) and not hasattr(x, "dtype"):
            raise type_error(spec.name, name, "an array", shown(x), for_position(spec))
    library, fact = described(spec.name, first, given.get(first))
    facts = {first: fact}
    for name, x in given.items():
        if x is None or name == first:
            continue
        other, facts[name] = described(spec.name, name, x)
        if other is not library:
            expected = f"an array of library {library.name} (as {first})"
            raise type_error(spec.name, name, expected, other.name)
    place = first
    if (free := library.follows) is not None:
        place = next((n for n in facts if not free(given[n])), first)
    want = facts[place].device
    for name in [n for n in facts if facts[n].device != want]:
        if free is not None and free(given[name]):
            facts[name] = facts[name]._replace(device=want)
        elif TRACED not in (facts[name].device, want):
            expected = f"device {want} (as {place})"
            raise type_error(spec.name, name, expected, facts[name].device)
    return library, facts


def described(op: str, name: str, x: Array) -> tuple[Library, Facts]:
    """The library and the facts of one argument, or the error that names it."""
    try:
        library = library_of(x)
        return library, library.describe(x)
    except TypeError as error:
        expected, _, got = str(error).removeprefix("expected ").partition(", got ")
        raise type_error(op, name, expected, got) from None


def _device(facts: Mapping[str, Facts]) -> str:
    """The device that all arrays share; a constant beside what is traced is traced with it."""
    devices = {fact.device for fact in facts.values()}
    return TRACED if TRACED in devices else devices.pop()


def _dtypes(spec: OpSpec, facts: Mapping[str, Facts]) -> str:
    """The dtype that all arrays but indices and masks share, and those that may be wider."""
    values = [name for name in facts if name not in spec.discrete]
    first = next((name for name in values if not spec.role(name).wide), values[0] if values else "")
    dtype, wide = facts[first].dtype if first else "", dict[str, str]()
    for name, fact in facts.items():
        if name in spec.integers:
            if fact.dtype not in INDICES:
                raise type_error(spec.name, name, "int32 or int64", fact.dtype)
        elif name in spec.masks:
            if fact.dtype != "bool":
                raise type_error(spec.name, name, "bool", fact.dtype)
        elif fact.dtype not in spec.dtypes:
            allowed = "a floating dtype" if spec.dtypes == FLOATS else "a dtype of the array API"
            raise type_error(spec.name, name, f"{allowed} ({', '.join(spec.dtypes)})", fact.dtype)
        elif name == first:
            continue
        elif kind := spec.role(name).wide:
            if kind in wide:
                like = wide[kind]
                takes, said = {facts[like].dtype}, f"{facts[like].dtype} (as {like})"
            else:
                takes = {dtype, named(dtype).accumulate}
                said = " or ".join([f"{dtype} (as {first})", *(takes - {dtype})])
            if fact.dtype not in takes:
                raise type_error(spec.name, name, said, fact.dtype)
            wide.setdefault(kind, name)
        elif fact.dtype != dtype:
            raise type_error(spec.name, name, f"{dtype} (as {first})", fact.dtype)
    return dtype


def _bind(
    spec: OpSpec, facts: Mapping[str, Facts], options: dict[str, Any]
) -> tuple[Signature, Axes]:
    """The form that the arrays fit, and its axes; options are completed in place."""
    shapes = {name: fact.shape for name, fact in facts.items()}
    forms = [s for s in spec.forms(options) if s.takes(shapes)]
    if not forms and not spec.forms(options):
        names = sorted(spec.conditions)
        given = ", ".join(f"{name}={options[name]}" for name in names)
        some = dict.fromkeys(", ".join(map(str, s.conditions)) for s in spec.signatures)
        raise value_error(spec.name, " and ".join(names), " or ".join(some), given)
    if not forms:
        known, got = spec.forms(options), f"({', '.join(shapes)})"
        takes = " or ".join(dict.fromkeys(f"({', '.join(s.names)})" for s in known))
        others = [", ".join(map(str, s.conditions)) for s in spec.signatures if s.takes(shapes)]
        hint = f"{got} is for {' or '.join(dict.fromkeys(others))}" if others else ""
        raise type_error(spec.name, "arrays", takes, got, hint)
    failures: list[tuple[bool, ValueError]] = []
    for form in forms:
        trial = dict(options)
        try:
            axes = Binder(spec.name, trial, spec.hints).bind(form, shapes, spec.resolve)
        except ValueError as error:
            ranks = all(p.fits_rank(len(shapes[p.name])) for p in form.inputs if not p.is_option)
            failures.append((not ranks, error))
        else:
            options.update(trial)
            return form, axes
    # Of several forms, the first one whose ranks fit explains best what does not.
    raise min(failures, key=lambda failure: failure[0])[1]


def _outputs(
    spec: OpSpec,
    signature: Signature,
    axes: Axes,
    known: Mapping[str, Operand],
    dtype: str,
    library: Library,
    options: Mapping[str, Any],
) -> tuple[Operand, ...]:
    """The outputs, dense: in C order, or as their primal where the op keeps its layout."""
    out = []
    for pattern in signature.outputs:
        extents = pattern.shape(axes)
        role = spec.role(pattern.name)
        primal = known.get(role.typed_as or pattern.name.removeprefix("d"))
        primal = primal or known[signature.names[0]]
        strides = None
        if spec.keeps_layout and primal.strides and len(primal.shape) == len(extents):
            order = layouts.dense_order(primal.shape, primal.strides)
            if order is not None:
                strides = layouts.canonical(extents, layouts.in_order(extents, order))
        own = role.result(dtype, {x.name: x.dtype for x in known.values()}, options)
        # Gradients go back to inputs of 16 bits; other results are never rounded by an option.
        narrower = spec.adjoint_of is not None and named(own).accumulate == dtype
        if role.chosen and not (narrower or own in (dtype, named(dtype).accumulate)):
            beside = f"{dtype} or its accumulate dtype {named(dtype).accumulate}"
            raise value_error(spec.name, role.chosen, beside, own)
        own = library.held_as(own) if role.dtype else own
        out.append(Operand(pattern.name, own, extents, strides))
    return tuple(out)


def _refuse_all(problem: Problem, index: Operand) -> None:
    """Raise where an index has entries and nothing to look up, whatever the entries are.

    A kernel with nothing to write would not find them.
    """
    name = index.name
    if problem.extent_of(name) or 0 in index.shape or problem.ignored_by(name) is not None:
        return
    raise IndexOutOfRangeError(
        f"{problem.spec.name}: {name}: expected no entries, as the axis that they point along has "
        f"extent 0, got shape {index.shape}"
    )
