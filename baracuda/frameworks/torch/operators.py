"""``torch.ops.baracuda``: each op as an operator, which torch.compile and export see.

Schemas are read off the functions: arrays positional, options and dispatch options by keyword, no
plans. An op whose forms return different numbers of arrays has an overload for each number. What
tensors an operator returns, and in which layout, says the same check that plain calls begin with;
its gradient is the operator of its adjoint, or where there is none that of the body.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch

from baracuda.calls import adjoint, body, check
from baracuda.calls.op import Op, registry
from baracuda.calls.routes import graphs
from baracuda.declaration import autocast
from baracuda.declaration.dispatch import DEFAULT, NAMES
from baracuda.declaration.dtypes import FLOATS, name_of
from baracuda.declaration.shapes import Signature
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.forks import Guard
from baracuda.frameworks.torch.ahead import NAMESPACE, Ahead
from baracuda.libraries import Array
from baracuda.libraries.torch import region_of

_WRITES_OUT = torch.__version__ < "2.13"
# Of the options' annotations.
_TYPES = {
    "int": "int",
    "bool": "bool",
    "str": "str",
    "float": "float",
    "int | None": "SymInt?",
    "str | None": "str?",
    "DTypeLike | None": "str?",
    "Numbers | None": "float[]?",
    "tuple[int, ...]": "SymInt[]",
    "tuple[int, ...] | None": "int[]?",
    "int | tuple[int]": "SymInt[1]",
    "int | tuple[int] | None": "SymInt[1]?",
    "int | tuple[int, int]": "SymInt[2]",
    "int | tuple[int, int] | None": "SymInt[2]?",
}
_DISPATCH = (
    "str? backend=None, bool? deterministic=None, SymInt? max_workspace_bytes=None, "
    "bool autotune=False, str? sku=None"
)
library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]
# Of operators with several overloads: each form, and its overload.
_several: dict[str, list[tuple[Signature, str]]] = {}


def overloads(op: Op[Any, Any]) -> dict[str, list[Signature]]:
    """The forms of an op by the operator's name, with an overload for other numbers of results.

    An overload is named after the arrays that its form has beyond the first one, and after the
    options that decide how many results there are. Its forms return one number of results.
    """
    forms = op.spec.signatures
    first = forms[0]
    out: dict[str, list[Signature]] = {}
    for form in forms:
        asked = op.spec.asked(form)
        same = next(other for other in forms if other.names == form.names)
        more = list[str]()
        if len(same.outputs) != len(first.outputs):
            more += [name for name in form.names if name not in first.names]
        more += asked
        name = f"{op.spec.name}.{'_'.join(more)}" if more else op.spec.name
        out.setdefault(name, []).append(form)
    return out


def schema(op: Op[Any, Any], forms: Sequence[Signature]) -> str:
    """What torch calls the arguments and results of some forms of an op."""
    parameters = inspect.signature(op.spec.body).parameters
    arrays, count = list[str](), 1 + max(op.spec.arrays.index(f.names[-1]) for f in forms)
    for name in reversed(op.spec.arrays[:count]):
        optional = not all(name in form.names for form in forms)
        # One that is needed may follow: then None has to be written.
        default = "=None" if all("=" in array for array in arrays) else ""
        arrays.insert(0, f"Tensor? {name}{default}" if optional else f"Tensor {name}")
    options = []
    for name, p in parameters.items():
        if p.kind is p.KEYWORD_ONLY:
            default = "" if p.default is p.empty else f"={_literal(p.default)}"
            kind = "str" if p.annotation.startswith("Literal[") else _TYPES[p.annotation]
            # A run-time integer, such as the number of a step, is no constant of a program.
            kind = "SymInt" if kind == "int" and name in op.spec.scalars else kind
            options.append(f"{kind} {name}{default}")
    results = ["Tensor"] * len(forms[0].outputs)
    returned = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"({', '.join(arrays)}, *, {', '.join([*options, _DISPATCH])}) -> {returned}"


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def operator(spec: OpSpec, arrays: Sequence[Array | None], options: Mapping[str, Any]) -> Any:
    """The operator of a call, of several overloads the one of its form.

    torch would take None for any tensor, and does not look at options.
    """
    packet = getattr(torch.ops.baracuda, spec.name)
    there = [name for name, x in zip(spec.arrays, arrays, strict=False) if x is not None]
    for form, suffix in _several.get(spec.name, ()):
        if [*form.names] == there and form.allowed({**spec.defaults, **options}):
            return getattr(packet, suffix)
    return packet


def problem_of(op: Op[Any, Any], arrays: Sequence[Array], keywords: Mapping[str, Any]) -> Problem:
    """What `check` says of an operator's arguments."""
    own = {k: v for k, v in keywords.items() if k in op.spec.options}
    dispatch = {k: v for k, v in keywords.items() if k in NAMES}
    return check.problem(op.spec, arrays, own, DEFAULT.but(op.spec.name, dispatch))


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options as the public function takes them: torch makes lists of tuples."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def _run(op: Op[Any, Any], *arrays: Array, **keywords: Any) -> Any:
    """On plain tensors, below autograd."""
    with torch.no_grad():
        return op.planned(*arrays, **plain(keywords))[0]


def _through(op: Op[Any, Any], *arrays: Array, **keywords: Any) -> Any:
    """Under transforms: as a plain call, the body, which they know how to take apart."""
    return op.planned(*arrays, **{**plain(keywords), "backend": None, "sku": None})[0]


def _in_region(op: Op[Any, Any], kind: str, *arrays: Array, **keywords: Any) -> Any:
    """Within an autocast region: the operator outside of it, of what the region makes of a call."""
    spec, region = op.spec, region_of(arrays)
    arrays = tuple(autocast.taken(spec, arrays, region))
    more = autocast.chosen(
        spec, name_of(arrays[0].dtype), {**spec.defaults, **keywords}, ("", False, *region)
    )
    with torch.autocast(kind, enabled=False):
        options = {**keywords, **more}
        return operator(spec, arrays, options)(*arrays, **options)


@cache
def spare_text() -> None:
    """Keep Inductor of torch before 2.13 from writing out the arguments of an operator.

    Inductor does so once for each operator, for a log message that is off by default. The text of
    nested arguments doubles with each layer of a model: eight layers took more than five minutes.
    """
    issue = import_module("torch._inductor.exc").OperatorIssue
    lazy = import_module("torch._logging").LazyString
    issue.operator_str = staticmethod(partial(lazy, issue.operator_str))


def _fake(op: Op[Any, Any], *arrays: Array, **keywords: Any) -> Any:
    """Tensors of the right shapes and layouts, without values."""
    if _WRITES_OUT and "torch._inductor" in sys.modules:
        spare_text()
    problem = problem_of(op, arrays, plain(keywords))
    like = arrays[0]
    results = []
    for x in problem.outputs:
        dtype = problem.library.dtype(x.dtype)
        if x.strides:
            results.append(like.new_empty_strided(x.shape, x.strides, dtype=dtype))
        else:
            results.append(like.new_empty(x.shape, dtype=dtype))
    return tuple(results) if len(results) > 1 else results[0]


def _save(
    op: Op[Any, Any], ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: Any, output: Any
) -> None:
    """Keep what the gradient takes: of the body it is that of the inputs."""
    ctx.keywords, ctx.count = plain(keyword_only_inputs), len(inputs)
    ctx.problem = problem = problem_of(op, inputs, ctx.keywords)
    partner = ctx.partner = _partner(ctx, problem)
    outputs = output if isinstance(output, tuple) else (output,)
    named = zip(problem.outputs, outputs, strict=True)
    ctx.mark_non_differentiable(*[y for x, y in named if op.spec.role(x.name).metric])
    tensors = [x for x in inputs if x is not None] + list(outputs)
    names = [x.name for x in (*problem.given, *problem.outputs)]
    wanted = op.spec.arrays if partner is None else partner.arrays
    ctx.names = [name for name in names if name in wanted]
    ctx.save_for_backward(*[x for name, x in zip(names, tensors, strict=True) if name in wanted])


def _partner(ctx: Any, problem: Problem) -> OpSpec | None:
    """The adjoint, unless it has no cotangent for what is being differentiated."""
    partner, _ = adjoint.partner(problem.spec)
    if partner is None:
        return None
    there = [*problem.given, *problem.outputs]
    known = {x.name for x in there} | {adjoint.dual(problem.spec, x.name) for x in problem.outputs}
    open = adjoint.constants(problem, adjoint.request(partner, problem, known))
    watched = zip(problem.spec.arrays, ctx.needs_input_grad, strict=False)
    return None if any(wanted and name in open for name, wanted in watched) else partner


def _gradient(op: Op[Any, Any], ctx: Any, *cotangents: Array) -> Any:
    """The operator of the adjoint, or the gradient of the body where there is none."""
    problem, keywords = ctx.problem, ctx.keywords
    spec = problem.spec
    known = dict(zip(ctx.names, ctx.saved_tensors, strict=True))
    partner = ctx.partner
    if partner is None:
        found = _of_body(problem, known, cotangents, keywords)
    else:
        for x, dy in zip(problem.outputs, cotangents, strict=True):
            known[adjoint.dual(spec, x.name)] = dy
        asked = adjoint.request(partner, problem, known)
        # A record says how to run this op, not its partner.
        dispatch = NAMES - {"sku"}
        more = {k: v for k, v in keywords.items() if k in spec.scalars or k in dispatch}
        given = [None if name is None else known[name] for name in asked.arrays]
        by_dual = asked.call(operator(partner, given, asked.options), known, more)
        found = {x.name: by_dual.get(adjoint.dual(spec, x.name)) for x in problem.given}
    names = spec.arrays[: ctx.count]
    return tuple([None if name in spec.discrete else found.get(name) for name in names])


def _of_body(
    problem: Problem, known: Mapping[str, Array], cotangents: Sequence[Array],
    keywords: Mapping[str, Any],
) -> dict[str, Array | None]:  # fmt: skip
    """The gradient of the definition; where another is to follow, part of the graph that is there,
    else of one of its own."""
    names = [x.name for x in problem.given if x.name not in problem.spec.discrete]
    again, given = torch.is_grad_enabled(), dict(known)
    if not again:
        given = {name: x.detach().requires_grad_(name in names) for name, x in known.items()}
    scalars = {k: keywords[k] for k in problem.spec.scalars}
    with torch.enable_grad():
        outputs = body.of_given(problem, body.runner(problem), scalars)(*given.values())
        wanted = [given[name] for name in names]
        # Nothing flows back from metrics and positions.
        flowing = adjoint.flowing(problem)
        results, along = ([some[i] for i in flowing] for some in (outputs, cotangents))
        found = torch.autograd.grad(results, wanted, along, create_graph=again, allow_unused=True)
    return dict(zip(names, found, strict=True))


def called(op: Op[Any, Any], arrays: Sequence[Array], options: Mapping[str, Any]) -> Any:
    """A call as graphs, modes and subclasses see it: one operator.

    In a program that torch.compile makes it may be that of the op ahead, whose gradients are kept.
    """
    spec, early = op.spec, op.early
    # An overload has no place for an array that none of its forms takes.
    while arrays and arrays[-1] is None:
        arrays = arrays[:-1]
    if spec.products:
        # Which operator it is depends on the dtypes that the region gives the arrays.
        arrays = autocast.taken(spec, arrays, region_of(arrays))
    if early is not None and torch.compiler.is_dynamo_compiling() and torch.is_grad_enabled():
        results = spec.forms(options)[0].outputs
        duals = [x.name for x in early.spec.signatures[-1].outputs]
        floats = {n: x for n, x in zip(spec.arrays, arrays, strict=False) if n not in spec.discrete}
        wanted = {n: x for n, x in floats.items() if adjoint.dual(spec, n) in duals}
        fit = len(results[0].terms) == 0 and arrays[0].dtype != torch.float16
        # What it has no gradient of, as a teacher, is not to be watched.
        if fit and all(x.requires_grad == (n in wanted) for n, x in floats.items()):
            below = [x.detach() for x in arrays]
            found = operator(early.spec, below, options)(*below, **options)
            made, metrics = found[len(results) :], found[1 : len(results)]
            loss = Ahead.apply(found[0], len(made), *made, *wanted.values())  # type: ignore[no-untyped-call]
            return (loss, *metrics) if metrics else loss
    return operator(spec, arrays, options)(*arrays, **options)


graphs["torch"] = called


def _define(op: Op[Any, Any]) -> None:
    # Dynamo guards what a declaration keeps: nothing is added to it while a program is read.
    _ = op.spec.discrete
    every = overloads(op)
    if len(every) > 1:
        _several[op.spec.name] = [
            (form, name.partition(".")[2] or "default")
            for name, forms in every.items()
            for form in forms
        ]
    for name, forms in every.items():
        declared, tags = name + schema(op, forms), (torch.Tag.pt2_compliant_tag,)
        library.define(declared, tags=tags)  # type: ignore[no-untyped-call]
        library.impl(name, partial(_run, op), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
        library.impl(name, partial(_through, op), "FuncTorchDynamicLayerFrontMode")  # type: ignore[no-untyped-call]
        for kind in ("cpu", "cuda") if op.spec.autocast else ():
            library.impl(name, partial(_in_region, op, kind), f"Autocast{kind.upper()}")  # type: ignore[no-untyped-call]
        whole = f"{NAMESPACE}::{name}"
        torch.library.register_fake(whole, partial(_fake, op), lib=library)
        if set(op.spec.dtypes) & set(FLOATS):
            torch.library.register_autograd(
                whole, partial(_gradient, op), setup_context=partial(_save, op), lib=library
            )


class Once:
    """What is done once for each op: a call does it for those that were declared since too."""

    def __init__(self, do: Callable[[Op[Any, Any]], None]) -> None:
        self._do, self._done, self._guard = do, set[str](), Guard()

    def __call__(self) -> None:
        if registry.keys() <= self._done:
            return
        with self._guard.lock:
            for name in registry.keys() - self._done:
                self._do(registry[name])
                self._done.add(name)


known = Once(_define)
known()
