"""What a declaration of an op may not get wrong, looked at when the op is made.

A mistake found here names the op, its line and the part. Found later, it would be a wrong result,
or an error far from its cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, get_args

from baracuda.declaration.shapes import Signature
from baracuda.declaration.spec import Kernel, OpSpec, Schedule

_SOURCES = Path(__file__).parents[1] / "cuda_src"
_STRUCT = re.compile(r"\b(?:struct|using)\s+(\w+)")


def verify(spec: OpSpec, function: Callable[..., Any], ops: Mapping[str, OpSpec]) -> None:
    """Look for what contradicts the function, the other ops or itself.

    Raises
    ------
    ValueError
        For the first mistake.
    """
    for what, said in _mistakes(spec, function, ops):
        code = function.__code__
        where = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
        raise ValueError(f"@op {spec.name} ({where}): {what}: {said}")


def _mistakes(
    spec: OpSpec, function: Callable[..., Any], ops: Mapping[str, OpSpec]
) -> Iterator[tuple[str, str]]:
    yield from _of_function(spec, signature(function).parameters)
    for form in spec.signatures:
        yield from _of_form(spec, form)
    yield from _of_roles(spec)
    yield from _of_axes(spec)
    if spec.kernel is not None:
        yield from _of_kernel(spec, spec.kernel)
    if spec.adjoint_of is not None:
        yield from _of_adjoint(spec, ops)


def _of_function(spec: OpSpec, parameters: Mapping[str, Parameter]) -> Iterator[tuple[str, str]]:
    arrays = tuple(n for n, p in parameters.items() if p.kind is p.POSITIONAL_ONLY)
    keywords = {n for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    for what, declared, real in (
        ("arrays", spec.arrays, arrays),
        ("options", {*spec.options, *spec.scalars}, keywords),
    ):
        if declared != real:
            yield what, f"{declared} declared, {real} in the function"
    if both := spec.options.keys() & spec.scalars.keys():
        yield "scalars", f"{both} are options too"


def _of_form(spec: OpSpec, form: Signature) -> Iterator[tuple[str, str]]:
    text, bound = repr(form.text), {*form.derived}
    for pattern in form.inputs:
        bound |= pattern.names
        if pattern.is_option and pattern.name not in spec.options:
            yield "forms", f"{text}: {pattern.name} is no option"
    for pattern in form.outputs:
        if free := pattern.names - bound:
            yield "forms", f"{text}: nothing binds {_listed(free)} of {pattern.name}"
    terms = [t for p in (*form.inputs, *form.outputs) for t in p.terms]
    for option in {t.marker for t in terms if t.marker}:
        if option not in spec.options:
            yield "forms", f"{text}: {option} points at an axis and is no option"
    for group in {t.bound for t in terms if t.bound} - bound:
        yield "forms", f"{text}: nothing binds {group}"
    for condition in form.conditions:
        if condition.option not in spec.options:
            yield "forms", f"{text}: {condition.option} is no option"
    if form.derived and spec.resolve is None:
        yield "derived", f"nothing computes {_listed(form.derived)}: resolve= is missing"


def _of_roles(spec: OpSpec) -> Iterator[tuple[str, str]]:
    for name, role in spec.roles.items():
        forms = [f for f in spec.signatures if name in f.names]
        if not role.flows or role.typed_as or role.total or role.accumulated or role.chosen:
            if not any(p.name == name for f in spec.signatures for p in f.outputs):
                yield "roles", f"{name} is no result of any form"
            if role.typed_as and role.typed_as not in spec.arrays:
                yield "roles", f"{name}: {role.typed_as} is no array"
            if role.chosen and role.chosen not in spec.options:
                yield "roles", f"{name}: {role.chosen} is no option"
        elif not forms:
            yield "roles", f"{name} is no array of any form"
        if role.kind == "index":
            if not role.policy or role.policy not in spec.options:
                yield "roles", f"{name}: {role.policy or 'no option'} says what is out of range"
            elif missing := [p for p in ("raise", "drop") if not _takes(spec, role.policy, p)]:
                yield "roles", f"{name}: {role.policy} does not take {_listed(missing)}"
            for option in {role.ignored, role.skipped} - {"", *spec.options}:
                yield "roles", f"{name}: {option} is no option"
        for axis in filter(None, (role.below, role.counts)):
            for form in forms:
                if axis not in {*form.derived}.union(*[p.names for p in form.inputs]):
                    yield "roles", f"{name}: {form.text!r} has no axis {axis}"
        results = {p.name for form in spec.signatures for p in form.outputs}
        if role.alike and role.alike not in {*spec.arrays, *results}:
            yield "roles", f"{name}: {role.alike} is no array and no result"


def _takes(spec: OpSpec, option: str, value: str) -> bool:
    try:
        return bool(spec.options[option](spec.name, option, value) == value)
    except (TypeError, ValueError):
        return False


def _of_axes(spec: OpSpec) -> Iterator[tuple[str, str]]:
    """What names axes, groups and arrays beside the forms."""
    names = set().union(*[p.names for f in spec.signatures for p in (*f.inputs, *f.outputs)])
    for axis in spec.batches or ():
        if axis not in names:
            yield "batches", f"no form has an axis {axis}"
    for option, group in spec.located.items():
        if option not in spec.options or group not in names:
            yield "located", f"{option} is no option, or no form has a group {group}"
    for name in spec.hints:
        if name not in {*spec.arrays, *spec.options, *spec.scalars}:
            yield "hints", f"{name} is neither an array nor an option"
    if (joint := spec.collective) is not None:
        inputs = [p for form in spec.signatures for p in form.inputs]
        having = {p.name for p in inputs if joint.axis in p.names}
        if not joint.cut or not having.issuperset(joint.cut):
            yield "collective", f"{_listed(joint.cut)} of no form has an axis {joint.axis}"
    if (packed := spec.packed) is not None:
        if not {packed.array, packed.other} <= {*spec.arrays}:
            yield "packed", f"{packed.array} or {packed.other} is no array"
        if not {packed.axis, packed.first} <= spec.options.keys():
            yield "packed", f"{packed.axis} or {packed.first} is no option"


@cache
def _structs(file: str) -> frozenset[str]:
    return frozenset(_STRUCT.findall((_SOURCES / file).read_text(encoding="utf-8")))


def _of_kernel(spec: OpSpec, kernel: Kernel) -> Iterator[tuple[str, str]]:
    one_by_one = kernel.schedule in ("elementwise", "reduce")
    ends = {spec.form_end(form) for form in spec.signatures} if one_by_one else {""}
    names = [kernel.functor + end for end in ends if kernel.functor]
    if not (_SOURCES / kernel.file).is_file():
        yield "kernel", f"there is no cuda_src/{kernel.file}"
    elif missing := [name for name in names if name not in _structs(kernel.file)]:
        yield "kernel", f"cuda_src/{kernel.file} has no {_listed(missing)}"
    if kernel.schedule not in get_args(Schedule):
        yield "kernel", f"{kernel.schedule!r} is none of {_listed(get_args(Schedule))}"


def _of_adjoint(spec: OpSpec, ops: Mapping[str, OpSpec]) -> Iterator[tuple[str, str]]:
    """A gradient takes inputs, results and cotangents of its forward, and shares its options.

    Frameworks find what belongs to what by the names, and cotangents by their places too.
    """
    forward = ops.get(spec.adjoint_of or "")
    if forward is None:
        yield "adjoint_of", f"there is no op {spec.adjoint_of} yet"
        return
    results = dict.fromkeys([p.name for form in forward.signatures for p in form.outputs])
    cotangents = [f"d{name}" for name in results]
    known = {*forward.arrays, *results, *cotangents}
    if strange := {*spec.arrays} - known:
        yield "adjoint_of", f"{_listed(strange)} of {forward.name} are not known to its gradient"
    makes = {p.name for form in spec.signatures for p in form.outputs}
    if strange := makes - {f"d{name}" for name in forward.arrays}:
        yield "adjoint_of", f"{_listed(strange)} are gradients of no array of {forward.name}"
    shapes = {p.name for form in spec.signatures for p in form.inputs if p.is_option}
    own = {*spec.options, *spec.scalars} - shapes - {r.chosen for r in spec.roles.values()}
    if strange := own - {*forward.options, *forward.scalars}:
        yield "adjoint_of", f"{forward.name} does not have the options {_listed(strange)}"
    taken = [name for name in cotangents if name in spec.arrays]
    if not taken or [*spec.arrays[: len(taken)]] != taken:
        first = ", ".join(taken or cotangents)
        yield "adjoint_of", f"cotangents of {forward.name} come first, in its order: {first}"


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names)))
