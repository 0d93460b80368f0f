"""The outputs that a caller gives, and what is added to which, checked before any is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baracuda import layouts
from baracuda.calls import check
from baracuda.declaration.dtypes import name_of, named
from baracuda.declaration.spec import Adds, Operand, Problem, each
from baracuda.errors import UnsupportedError, type_error, value_error
from baracuda.libraries import Array, Library


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
                f"{op}: accumulate{which}: only gradients add into their outputs"
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
        raise UnsupportedError(f"{op}: out: arrays of {library.name} are immutable")
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
    like = next(x for x in arrays if x is not None)
    outs = tuple([
        library.empty(o.shape, o.dtype, like, o.strides) if x is None else x
        for x, o in zip(outs, outputs, strict=True)
    ])  # fmt: skip
    others = [
        (x.name, _memory(library, a))
        for x, a in zip(problem.inputs, arrays, strict=False)
        if x is not None
    ]
    for x in outs:
        own = _memory(library, x)
        _apart(problem, own, others)
        others.append(("another output", own))
    return outs


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


def _apart(
    problem: Problem,
    own: layouts.Memory | None,
    others: Sequence[tuple[str, layouts.Memory | None]],
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
        if memory == own and spec.inplace and name != "another output":
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
