"""``python -m baracuda ops``: what there is, who takes it, and all about one op."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Mapping
from typing import Any

from baracuda import backends
from baracuda.calls.op import Op, registry
from baracuda.declaration.dtypes import ANY, named
from baracuda.declaration.spec import OpSpec
from baracuda.errors import UnsupportedError
from baracuda.testing.cases import Subject
from baracuda.tools import LIBRARIES, CannotRun, emit, known, one_line, place, table, why_not

EXAMPLE = "float32"


# -- all ops ---------------------------------------------------------------------------------------


def support(spec: OpSpec) -> dict[str, list[str]]:
    """For every backend, the dtypes for which it takes an op on arrays of some library."""
    found: dict[str, set[str]] = {name: set() for name in backends.names()}
    for library in LIBRARIES:
        for name, dtypes in backends.claims(spec, library, "cuda").items():
            found[name].update(dtypes)
    return {name: [d for d in spec.dtypes if d in dtypes] for name, dtypes in found.items()}


def idle() -> dict[str, str]:
    """The backends that can compute nothing here, each with its reason."""
    reasons = {name: why_not(name) for name in backends.names()}
    return {name: reason for name, reason in reasons.items() if reason}


def everything(as_json: bool) -> int:
    """The support table: op x backend x dtype."""
    found, reasons = {name: support(op.spec) for name, op in registry.items()}, idle()
    if as_json:
        rows = {
            name: {"category": registry[name].spec.category, "backends": row}
            for name, row in found.items()
        }
        emit({"ops": rows, "not_here": reasons})
        return 0
    table(
        ("op", *backends.names()),
        [(name, *[_short(row[b]) for b in backends.names()]) for name, row in found.items()],
    )
    for name, reason in reasons.items():
        print(f"{name} does not run here: {reason}")
    return 0


def _short(dtypes: list[str]) -> str:
    if set(dtypes) == set(ANY):
        return f"all {len(ANY)} dtypes"
    return " ".join(named(dtype).short for dtype in dtypes) or "-"


# -- one op ----------------------------------------------------------------------------------------


def options(op: Op[..., Any]) -> list[dict[str, Any]]:
    """Its keywords, with their defaults."""
    spec, found = op.spec, []
    for name, parameter in inspect.signature(op).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            required = parameter.default is parameter.empty
            found.append({
                "name": name,
                "type": str(parameter.annotation),
                "required": required,
                "default": None if required else parameter.default,
                "kind": "run-time" if name in spec.scalars else "structural",
            })  # fmt: skip
    return found


def formula(op: Op[..., Any]) -> str:
    """What the docstring says in front of its parameters."""
    return inspect.cleandoc(op.__doc__ or "").partition("\nParameters\n")[0].strip()


def examples(name: str) -> list[dict[str, Any]]:
    """What a small problem runs on, from the arrays of every library that is here."""
    out = []
    for library in LIBRARIES:
        try:
            device = place(library)
        except CannotRun:
            continue
        for backend, dtypes in backends.claims(registry[name].spec, library, device).items():
            if EXAMPLE in dtypes and why_not(backend) is None:
                out.append(_example(Subject(name, backend, library, EXAMPLE, device)))
    return out


def _example(subject: Subject) -> dict[str, Any]:
    call = next(subject.calls())
    arrays = call.given()
    row: dict[str, Any] = {
        "library": subject.library,
        "device": subject.device,
        "backend": subject.backend,
        "picked": subject.function.plan(*arrays, **call.options).sku.backend == subject.backend,
    }
    try:
        row["sku"] = call.plan(arrays).sku
    except UnsupportedError as error:
        row["refused"] = one_line(error)
    return row


def one(op: Op[..., Any], as_json: bool) -> int:
    """All about one op."""
    spec, found = op.spec, examples(op.spec.name)
    # Annotations are kept as text, and shown in quotes.
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", f"{spec.name}{inspect.signature(op)}")
    forms = [form.text for form in spec.signatures]
    if as_json:
        rows = [
            row | ({"sku": json.loads(row["sku"].to_json())} if "sku" in row else {})
            for row in found
        ]
        emit({
            "op": spec.name, "category": spec.category, "signatures": forms, "python": signature,
            "formula": formula(op), "options": options(op), "gradient_of": spec.adjoint_of,
            "backends": support(spec), "example": rows, "not_here": idle(),
        })  # fmt: skip
        return 0
    print(signature, formula(op), "\n".join(forms), sep="\n\n", end="\n\n")
    keywords = options(op)
    if keywords:
        table(
            ("option", "type", "default", ""),
            [
                (o["name"], o["type"], "required" if o["required"] else repr(o["default"]),
                 o["kind"])
                for o in keywords
            ],
        )  # fmt: skip
    table(
        ("backend", "dtypes"),
        [(name, _short(dtypes)) for name, dtypes in support(spec).items()],
    )
    table(("arrays of", "backend", "", "SKU of a small problem"), [_cells(row) for row in found])
    for name, reason in idle().items():
        print(f"{name} does not run here: {reason}")
    return 0


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    where = f"{row['library']} ({row['device']})"
    picked = "picked" if row["picked"] else "on request"
    return where, row["backend"], picked, str(row.get("sku") or row["refused"])


# -- the command -----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``baracuda ops``."""
    parser.add_argument("op", nargs="?", metavar="OP", help="all about this one")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Show, and return the exit status."""
    if arguments.op is None:
        return everything(arguments.json)
    return one(known(arguments.op), arguments.json)
