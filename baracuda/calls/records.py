"""Plans as records, which another process makes plans of again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any

from baracuda.calls import check
from baracuda.calls.plan import Plan
from baracuda.declaration.dispatch import NAMES, Choices
from baracuda.declaration.sku import KernelSku
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.errors import ArgumentTypeError
from baracuda.libraries import Facts, Library, library


def record(plan: Plan) -> dict[str, Any]:
    """All that a plan was made from, as plain values.

    Raises
    ------
    TypeError
        For a plan of traced arrays.
    """
    problem = plan.problem
    if problem.mode == "traced":
        raise ArgumentTypeError(
            f"{problem.spec.name}: plan: expected a plan of concrete arrays, got one of traced"
            " arrays, which belongs to their program: plan again where it is loaded"
        )
    wanted = problem.choices.sku
    return {
        "op": problem.spec.name,
        "library": problem.library.name,
        "device": problem.device,
        "mode": problem.mode,
        "inputs": {x.name: (x.dtype, x.shape, x.strides, x.alignment) for x in problem.given},
        "options": dict(problem.options),
        "reads": problem.reads,
        "choices": {**asdict(problem.choices), "sku": wanted and wanted.to_json()},
        "sku": plan.sku.to_json(),
    }


def problem_of(spec: OpSpec, made: Mapping[str, Any]) -> Problem:
    """The problem of a record.

    Raises
    ------
    ImportError
        Where its library is not installed.
    TypeError, ValueError
        Where it is no problem of this version of the op.
    """
    facts = {
        name: Facts(dtype, shape, strides, made["device"], alignment)
        for name, (dtype, shape, strides, alignment) in made["inputs"].items()
    }
    sku = made["choices"]["sku"]
    choices = replace(Choices(**made["choices"]), sku=sku and KernelSku.from_json(sku))
    state = (made["mode"], choices.deterministic or False)
    library, reads = _library(made["library"]), tuple(made["reads"])
    return check.described_problem(spec, library, facts, state, made["options"], choices, reads)


def _library(name: str) -> Library:
    if name in ("numpy", "torch", "cupy", "jax"):
        return library(name)
    made: Library = import_module("baracuda.libraries.array_api").of_namespace(import_module(name))
    return made


def chosen(plan: Plan) -> dict[str, Any]:
    """The options with which an op is called for what `plan` is for."""
    choices = plan.problem.choices
    dispatch = {name: getattr(choices, name) for name in NAMES} | {"sku": None}
    if choices.sku is not None:
        dispatch["backend"] = choices.sku.backend
    return {**plan.problem.options, **dispatch}
