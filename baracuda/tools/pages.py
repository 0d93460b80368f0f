"""The pages of the documentation that follow from declarations and from recorded benchmarks.

``python -m baracuda.tools.pages`` writes them below ``docs/`` of a checkout; ``--check`` writes
nothing and names those that are not what it would write.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from baracuda import backends
from baracuda.calls import adjoint, sets
from baracuda.calls.op import Op, registry
from baracuda.calls.partitioning import Shares, placed
from baracuda.declaration.dtypes import ANY, FLOATS, named
from baracuda.declaration.shapes import Signature
from baracuda.declaration.spec import Case, OpSpec, Problem
from baracuda.testing import regions
from baracuda.testing.cases import Call, Subject, draw, holds, tried
from baracuda.testing.docstrings import bullets, prose, sections
from baracuda.testing.pictures import PALETTES, bars, headline, models, steps

DOCS = Path(__file__).parents[2] / "docs"
NOTE = "<!-- Written by `python -m baracuda.tools.pages`: edit what it reads, not this. -->\n\n"
# Where arrays may be: the library, the kind of device, and what a page calls the two.
PLACES = (
    ("numpy", "cpu", "NumPy"),
    ("torch", "cpu", "torch, CPU and other devices"),
    ("torch", "cuda", "torch, NVIDIA GPU"),
    ("cupy", "cuda", "CuPy"),
    ("jax", "cpu", "JAX, CPU and other devices"),
    ("jax", "cuda", "JAX, NVIDIA GPU"),
    ("array_api_strict", "cpu", "any other library (as `array_api_strict`)"),
)

# As the index has them: what a layer is made of, then losses, then the rest.
FAMILIES = (
    "gated", "activation", "norm", "channel_norm", "softmax", "rope", "qk_norm_rope",
    "cross_entropy", "log_prob", "loss", "indexing", "random", "pooling", "elementwise",
    "optimiser",
)  # fmt: skip

# What tables say of a library has to be asked with the library there.
NEEDED = ("torch", "jax", "cupy", "array_api_strict", "ml_dtypes")

# -- what the registry says ----------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _link(name: str, folder: str = "") -> str:
    return f"[`{name}`]({folder}{name}.md)"


def _dtypes(some: Sequence[str]) -> str:
    if not some:
        return "–"
    return "all" if set(some) == set(ANY) else " ".join(named(d).short for d in some)


def _claims(op: Op[Any, Any], library: str, device: str) -> dict[str, str]:
    """For each backend the dtypes that it takes, of those that the library has."""
    found = backends.claims(op.spec, library, device)
    return {
        name: _dtypes([d for d in found.get(name, ()) if holds(library, d)])
        for name in backends.names()
    }


def support() -> str:
    """Every op, backend and dtype, for every library."""
    out = [
        f"{NOTE}# Support\n",
        "The dtypes that each backend takes for each op, by the library and the device of the "
        f"arrays: {', '.join(f'{named(d).short} = {d}' for d in FLOATS)}. *all* are these, all "
        "integers, bool, complex64 and complex128; – is none. The first backend from the left with "
        "an entry runs. If it refuses the call, the next one does, and `plan.why` says why. By "
        "default `cupy` does not run for torch tensors, nor `torch` for NumPy arrays: ask by "
        "`backend=`. NumPy and CuPy have bfloat16 through ml-dtypes, JAX 64-bit dtypes while "
        "`jax_enable_x64` is set. Where tensors are differentiated or traced, see "
        "[torch](../torch.md), [JAX](../jax.md).\n",
    ]
    for library, device, title in PLACES:
        cells = {name: _claims(op, library, device) for name, op in registry.items()}
        shown = [b for b in backends.names() if any(row[b] != "–" for row in cells.values())]
        rows = [[_link(name, "ops/"), *[row[b] for b in shown]] for name, row in cells.items()]
        out += [f"## {title}\n", table(["op", *[f"`{b}`" for b in shown]], rows)]
    return "\n".join(out)


def _spread(op: Op[Any, Any], form: Signature) -> Problem:
    """A problem of this form with one axis in every group."""
    spec = op.spec
    case = next(c for c, allowed in tried(spec, spec.cases) if allowed is form)
    axes = {k: (4,) if isinstance(v, tuple) else v for k, v in case.axes.items()}
    marked = {p.marker: p.marked for p in form.inputs if p.marker}
    case = Case(axes, **{**case.options, **marked})
    call = Call(Subject(spec.name, "numpy", "numpy", "float32"), case, form,
                draw(spec, case, form, "float32"))  # fmt: skip
    return call.plan().problem  # type: ignore[no-any-return]


def _cut(problem: Problem, shares: Shares) -> dict[str, bool]:
    """Every axis of the inputs and outputs, and whether it is cut."""
    form = problem.signature
    out: dict[str, bool] = {}
    patterns = [p for p in (*form.inputs, *form.outputs) if not p.is_option]
    for pattern, row in zip(patterns, (*shares.inputs, *shares.outputs), strict=True):
        for term, name in zip(pattern.terms, row, strict=True):
            called = f"`{'*' * term.group}{term.name}`"
            out[called] = out.get(called, False) or bool(name)
    return out


def _shares(op: Op[Any, Any]) -> list[list[str]]:
    """For each form: the axes cut freely, those that DTensors cut too, the rest, and the rule."""
    rows, spec = [], op.spec
    for form in spec.signatures:
        problem = _spread(op, form)
        counted = {*spec.uncounted(form.names).values()}
        numbered = placed(spec, form)
        always = _cut(problem, plain := Shares(problem, numbered))
        wider = _cut(problem, Shares(problem, counted | adjoint.summed(spec, form) | numbered))
        sums = {f"`{name}`" for name in adjoint.summed(spec, form)}
        some = [x for x, cut in always.items() if cut]
        more = [
            f"{x} (`Partial`)" if x in sums else f"{x} (counted)"
            for x, cut in wider.items()
            if cut and x not in some
        ]
        whole = [x for x, cut in wider.items() if not cut]
        cells = [", ".join(c) or "–" for c in (some, more, whole)]
        rows.append([f"`{form.text}`", *cells, f"`{plain.rule()[0]}`"])
    return rows


def _autocast() -> str:
    return NOTE + regions.page(lambda name: _link(name, "ops/"), table)


_SHARING = ["form", "cut freely", "by DTensors too", "whole", "Shardy rule"]


def sharding() -> str:
    """What may be spread over devices without communication."""
    rows = [row for op in registry.values() for row in _shares(op)]
    names = [_link(op.spec.name, "ops/") for op in registry.values() for _ in op.spec.signatures]
    linear = [_link(name, "ops/") for name, op in registry.items() if adjoint.partner(op.spec)[1]]
    return (
        f"{NOTE}# What shards without communication\n\n"
        "Which axes of an op may be sharded without communication, forward and backward.\n\n"
        "- *cut freely*: these axes may be sharded in JAX and on DTensors. Random words are then "
        "those of a shard's places in the whole; in a JAX program their ops run as their bodies.\n"
        "- *by DTensors too*: these may be sharded on DTensors as well. A sequence without "
        "positions is *counted*: each rank counts from where its shard begins. An axis over which "
        "a gradient adds up gives a `Partial` sum.\n"
        "- *whole*: these are gathered first if they are sharded.\n"
        "- A group inside another one (`*i<=b`) is cut with it only where both have the same "
        "extents, as here.\n"
        "- In the Shardy rule a factor that begins with `whole` needs replication.\n"
        f"- Linear ops and their gradients keep a `Partial` as it is: {', '.join(linear)}.\n\n"
        + table(["op", *_SHARING], [[n, *r] for n, r in zip(names, rows, strict=True)])
    )


def dtypes(spec: OpSpec) -> list[list[str]]:
    """The dtypes of the arrays of an op and of its results, as the declaration has them."""
    values = [name for name in spec.arrays if name not in spec.discrete]
    plain = [name for name in values if not spec.role(name).wide]
    first = (plain or values or [""])[0]
    every = "one dtype: " + ", ".join(spec.dtypes) if spec.dtypes == FLOATS else "one dtype, any"
    rows: list[tuple[Sequence[str], str]] = [(plain, every)]
    for kind in dict.fromkeys(spec.role(name).wide for name in values if name not in plain):
        alike = [name for name in values if spec.role(name).wide == kind]
        together = "; all alike" * (len(alike) > 1)
        rows.append((alike, f"that of `{first}`, or float32 beside 16 bits{together}"))
    rows += [(spec.integers, "int32 or int64"), (spec.masks, "bool")]
    results = dict.fromkeys(p.name for form in spec.signatures for p in form.outputs)
    listed = [[", ".join([f"`{name}`" for name in names]), text] for names, text in rows if names]
    return listed + [[f"result `{name}`", _result(spec, name, first)] for name in results]


def _result(spec: OpSpec, name: str, first: str) -> str:
    role, like = spec.role(name), spec.role(name).typed_as or first
    own = role.dtype or (f"that of `{like}`" if like else f"that of `{spec.dtypes[0]}`")
    if role.dtype == "int64":
        own += "; int32 in JAX without 64 bits"
    if role.accumulated:
        own = f"float32 where `{like}` has 16 bits, else that of `{like}`"
    if role.chosen:
        own = f"that of `{like}`, or of the option `{role.chosen}`"
    return own + "; a given `out=` may be float32 beside 16 bits" * role.total


class _Bare(str):
    """An annotation as it is written."""

    __repr__ = str.__str__


def signature(op: Op[Any, Any]) -> str:
    """How an op is called, for a reader: what is an array, and no names of types besides."""

    def plain(text: str) -> _Bare:
        return _Bare(re.sub(r"\bA\b", "Array", text).replace("Unpack[Dispatch]", "Dispatch"))

    whole = inspect.signature(op)
    own = [p.replace(annotation=plain(p.annotation)) for p in whole.parameters.values()]
    returns = plain(whole.return_annotation)
    return str(whole.replace(parameters=own, return_annotation=returns))


_RAISED_BY_ALL = (
    "- As every op: `TypeError` for an option of another type and for an unknown keyword, "
    "`NotImplementedError` where no backend takes the arrays, with the reason of each."
)


def op_page(op: Op[Any, Any]) -> str:
    """All that is known of one op."""
    spec, doc = op.spec, sections(inspect.getdoc(op) or "")
    parameters = inspect.signature(op).parameters
    totals = ", ".join([f"`{name}`" for name, role in spec.roles.items() if role.total])
    partner = next((o for o in registry.values() if o.spec.adjoint_of == spec.name), None)
    facts = [["family", spec.category]]
    form = "[form](../../adding-an-op.md#the-shape-language)"
    facts += [[form, f"`{one.text}`"] for one in spec.signatures]
    if spec.adjoint_of:
        facts.append(["gradient of", _link(spec.adjoint_of)])
    elif partner:
        facts.append(["gradient", _link(partner.spec.name)])
    facts += [["the same in torch", f"`torch.{spec.namesake}`"]] * bool(spec.namesake)
    facts.append(["linear", "yes" if adjoint.partner(spec)[1] else "no"])
    facts += [
        ["layout of results", "of a dense first input" if spec.keeps_layout else "C order"],
        ["`out=` may be an input", "yes" if spec.inplace else "no"],
        ["`accumulate=True`", "yes" if spec.accumulates else totals or "no"],
        ["takes [lists of arrays](../../plans.md#lists-of-arrays)",
         "yes" if sets.taken_by(spec) else "no"],
    ]  # fmt: skip
    facts += [["may be float32 beside 16 bits, as `out=`", totals]] * bool(totals)
    if spec.kernel:
        k = spec.kernel
        functor = f"`{k.functor}` of " if k.functor else ""
        facts.append(["kernel", f"{functor}`{k.file}` on the schedule `{k.schedule}`"])
    options = [
        [f"`{name}`", _default(parameters[name].default),
         "run-time value" if name in spec.scalars else "structural: part of the plan"]
        for name in (*spec.options, *spec.scalars)
    ]  # fmt: skip
    claims = [[title, *_claims(op, lib, device).values()] for lib, device, title in PLACES]
    parameters_of = bullets(spec.name, "Parameters").replace(
        "`Dispatch` options", "[`Dispatch` options](../../plans.md#dispatch-options)"
    )
    called = signature(op)
    called = re.sub(r"(?<=[(,]) ?(?=\w+: |[/*])", "\n    ", called).replace(") ->", "\n) ->")
    return "\n".join([
        f"{NOTE}# {spec.name}\n",
        prose(doc[""]) + "\n",
        f"```text\n{spec.name}{called}\n```\n",
        table(["", ""], facts),
        f"## Parameters\n\n{parameters_of}\n",
        table(["option", "default", "kind"], options),
        f"## Returns\n\n{bullets(spec.name, 'Returns')}\n",
        table(["array", "dtype"], dtypes(spec)),
        f"## Raises\n\n{bullets(spec.name, 'Raises')}\n{_RAISED_BY_ALL}\n",
        f"## Numerics and determinism\n\n{prose(doc['Notes'])}\n\nSee also "
        f"[numerics](../../numerics.md#{_anchor(spec.category)}) and "
        "[what bit-stable means](../../determinism.md#deterministic-and-bit-stable).\n",
        f"## Examples\n\n```pycon\n{doc['Examples']}\n```\n",
        "## Backends and dtypes\n\nThe same for all ops: [support](../support.md).\n",
        table(["arrays", *[f"`{b}`" for b in backends.names()]], claims),
        "## Sharding\n\n[Sharding](../sharding.md) explains the columns.\n",
        table(_SHARING, _shares(op)),
    ])  # fmt: skip


def _default(value: Any) -> str:
    return "required" if value is inspect.Parameter.empty else f"`{value!r}`"


def _index() -> str:
    families: dict[str, list[str]] = {}
    for name, op in registry.items():
        families.setdefault(op.spec.category, []).append(name)
    out = [
        f"{NOTE}# Ops\n",
        "Every op by family: " + ", ".join(f"[{_family(f)}](#{_anchor(f)})" for f in FAMILIES)
        + ". A gradient stands behind its forward. The page of an op has its arguments with shapes "
        "and dtypes, its forms, errors, determinism, an example, and what runs where. "
        "[Terms](../terms.md) has the words.\n",
    ]  # fmt: skip
    for family in FAMILIES:
        rows = []
        for name in families.pop(family):
            about = prose((inspect.getdoc(registry[name]) or "").partition("\n")[0])
            rows.append([_link(name, "ops/"), re.sub(r"\]\((\w+\.md)\)", r"](ops/\1)", about)])
        out.append(f"## {_family(family)}\n\n[Formulas](../numerics.md#{_anchor(family)}).\n")
        out.append(table(["op", "what it computes"], rows))
    if families:
        raise ValueError(f"families that FAMILIES leaves out: {', '.join(families)}")
    tree = "\n".join(f"ops/{name}" for name in registry)
    out.append(f"```{{toctree}}\n:hidden:\n\nsupport\nsharding\nautocast\nfigures\n{tree}\n```\n")
    return "\n".join(out)


def _family(category: str) -> str:
    return category.replace("_", " ").capitalize()


def _anchor(category: str) -> str:
    return category.replace("_", "-")


# -- what the benchmarks say ---------------------------------------------------------------------


def _shown(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}" if seconds < 0.01 else f"{seconds * 1e3:.2f}"


def performance(
    record: Mapping[str, Any], block: Mapping[str, Any], whole: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """The page of the figures, and pictures of them."""
    figures, ceiling = [], record["ceiling"]
    pictures = {f"_static/speed-{k}.svg": headline(record, v) for k, v in PALETTES.items()}
    pictures |= {f"_static/steps-{k}.svg": steps(whole, v) for k, v in PALETTES.items()}
    families: dict[str, list[tuple[str, list[tuple[float, str]]]]] = {}
    for row in record["rows"]:
        seconds, other = min((seconds, name) for name, seconds in row["peers"].items())
        ours, share = row["ours"], row["share"]
        its = row["ideal_bytes"] / seconds / ceiling
        family, short = registry[row["op"]].spec.category, named(row["dtype"]).short
        both = [(share, f"{share:.2f}"), (its, f"{its:#.2g} {other}")]
        families.setdefault(family, []).append((f"{row['op']} {row['label']} {short}", both))
        found = [_shown(ours), f"{share:.3f}", other, _shown(seconds), f"{seconds / ours:.2f}x"]
        figures.append([_link(row["op"], "ops/"), row["label"], short, *found])
    for family, rows in families.items():
        title = f"{family}: share of the copy ceiling"
        pictures[f"_static/share-{family}.svg"] = bars(title, rows, ("baracuda", "best peer"), 1.0)
    trained = [(v["name"], [(v["seconds"], f"{v['seconds'] * 1e3:.2f} ms, {v['peak']:.1f} GiB")])
               for v in block["block"]["variants"] if not v["missing"]]  # fmt: skip
    title = "A training step of a Llama-style block"
    pictures["_static/block.svg"] = bars(title, trained, ("time",))
    of_models = [
        [f"{name}, {about}", shown, f"{v['seconds'] * 1e3:.1f}", f"{v['peak']:.1f}",
         f"{v['losses_apart']:.1e}"]
        for name, about, found in models(whole) for shown, v in found.items()
    ]  # fmt: skip

    def listed(title: str, source: Mapping[str, float], unit: str) -> str:
        rows = [[name, f"{value:.2f}"] for name, value in source.items()]
        return f"## {title}\n\n" + table(["`h200.json`", unit], rows)

    sizes = ", ".join(f"{k} {v:g}" for k, v in block["block"]["sizes"].items())
    page = [
        f"{NOTE}# Benchmark figures\n",
        f"From `docs/benchmarks/h200.json` ({record['device']}, torch {record['torch']}, copy "
        f"ceiling {ceiling / 1e9:.0f} GB/s) and `docs/benchmarks/h200-block.json` "
        f"({block['device']}, torch {block['torch']}). What they mean: "
        "[performance](../performance.md).\n",
        "## Every row\n",
        table(["op", "problem", "dtype", "ms", "share", "best peer", "its ms", "ratio"], figures),
        listed("Small problems, swiglu_backward in float32", record["small"], "µs"),
        listed("What a call costs the host", record["host"], "µs"),
        listed("What a call from JAX costs the host", record["jax"]["host cost, µs"], "µs"),
        listed("Cold start", record["cold"], "ms"),
        f"## A Llama-style block\n\n{block['block']['dtype']}, {sizes}.\n",
        table(["`h200-block.json`", "ms a step, peak memory"], [[n, v[0][1]] for n, v in trained]),
        "## Models of transformers\n",
        table(
            ["`h200-models.json`", "variant", "ms a step", "peak GiB", "losses apart"], of_models
        ),
    ]
    return {"reference/figures.md": "\n".join(page), **pictures}


def pages(docs: Path = DOCS) -> dict[str, str]:
    """Every page and picture by its path, from the registry and the benchmarks below `docs`."""
    record, block, whole = (
        json.loads((docs / "benchmarks" / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("h200", "h200-block", "h200-models")
    )
    makers = {"index": _index, "support": support, "sharding": sharding, "autocast": _autocast}
    out = {f"reference/{name}.md": make() for name, make in makers.items()}
    out |= {f"reference/ops/{name}.md": op_page(op) for name, op in registry.items()}
    return out | performance(record, block, whole)


def stale(docs: Path = DOCS) -> Iterator[str]:
    """The paths whose file is missing or is not what `pages` makes."""
    made = pages(docs)
    for path, text in made.items():
        file = docs / path
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            yield path
    for file in (docs / "reference" / "ops").glob("*.md"):
        if (path := file.relative_to(docs).as_posix()) not in made:
            yield path


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or say which are stale, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m baracuda.tools.pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, name stale pages")
    check = parser.parse_args(argv).check
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        parser.exit(2, f"pages: needs {', '.join(missing)}, of which the tables tell what runs\n")
    if check:
        print(*(old := list(stale())), sep="\n")
        return 1 if old else 0
    for path, text in pages().items():
        file = DOCS / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
