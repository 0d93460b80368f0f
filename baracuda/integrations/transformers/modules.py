"""What a module computes: norms and embeddings by a probe, MLPs and layers by a symbolic trace.

Each `*_of` returns what it has found, or a `Mismatch` that says why the module is left alone.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node, Tracer

from baracuda.ops.add_norm import add_layer_norm, add_rms_norm, rms_norm_add
from baracuda.ops.gated import geglu, glu, reglu, swiglu
from baracuda.ops.norm import layer_norm, rms_norm

__all__ = [
    "Embedding",
    "Layer",
    "Mismatch",
    "Mlp",
    "Norm",
    "embedding_of",
    "layer_of",
    "mlp_of",
    "norm_of",
    "probing",
]

FORWARDED = "**"
"""Stands in a trace for the keywords that a module hands on without knowing them."""
GATES: tuple[tuple[Any, dict[str, Any]], ...] = (
    (swiglu, {}),
    (geglu, {"approximate": "tanh"}),
    (geglu, {"approximate": "none"}),
    (reglu, {}),
    (glu, {}),
)
WIDTH = 64
SUMMED = 1e-5
"""How far float32 results may be apart: a sum in another order."""
MISROUNDED = 0.02
"""Share of 16-bit results that may differ: a float32 sum in another order rarely rounds apart.
The wrong order of casting differs in a quarter of them."""


class Mismatch(str):
    """Why a module is left alone."""


@dataclass(frozen=True)
class Norm:
    """A norm of the last axis, and the options of its ops."""

    kind: type[torch.nn.Module]
    op: Any
    adding: Any
    """The op that adds a residual first."""
    added: Any
    """The op that adds one to the result, where there is one."""
    options: dict[str, Any] = field(hash=False)

    @staticmethod
    def parameters(module: Any) -> tuple[torch.Tensor, ...]:
        """The arrays that the ops take behind the input."""
        return tuple(module.parameters(recurse=False))


@dataclass(frozen=True)
class Mlp:
    """``down(op(up(x), gate(x)))``, or with `packed` ``down(op(packed(x)))``; names of modules."""

    op: Any
    options: dict[str, Any]
    down: str
    up: str = ""
    gate: str = ""
    packed: str = ""


@dataclass(frozen=True)
class Embedding:
    """Rows of a weight, times a buffer of that name where there is one."""

    scale: str = ""


@dataclass(frozen=True)
class Branch:
    """What is added to the stream: ``after(body(norm(stream)))``; names of modules."""

    norm: str
    """Empty where the stream goes into the body as it is. Then a norm comes last."""
    computes: Norm
    """What the norm computes, or the last of `after` where there is none."""
    body: str
    after: tuple[str, ...]
    first: bool
    """Whether the body returns more, of which the first is taken."""


@dataclass(frozen=True)
class Layer:
    """A decoder layer: attention and an MLP, each with a norm and added to the stream."""

    attention: Branch
    mlp: Branch
    entry: str
    """The keyword under which the attention takes its input."""
    defaults: dict[str, Any]
    """The layer's own parameters but for the stream, in their order, with their defaults."""
    forwards: bool
    """Whether the attention takes the keywords that the layer does not know."""


@contextmanager
def probing() -> Iterator[torch.Generator]:
    """Numbers for probes, on the CPU whatever device is being constructed for."""
    with torch.device("cpu"), torch.no_grad():
        yield torch.Generator("cpu").manual_seed(0)


# -- by a probe ----------------------------------------------------------------------------------


def _with(module: torch.nn.Module, **parameters: torch.Tensor) -> Any:
    """A shallow copy that has other parameters."""
    stub = copy.copy(module)
    vars(stub)["_parameters"] = dict(parameters)
    return stub


def norm_of(module: torch.nn.Module) -> Norm | Mismatch:
    """The norm that a module of one or two vectors computes."""
    kind, parameters = type(module), module._parameters
    if kind is torch.nn.LayerNorm:
        shape: Any = module.normalized_shape
        if len(shape) != 1 or parameters["weight"] is None or parameters["bias"] is None:
            return Mismatch("a LayerNorm of several axes, or without a weight or bias")
        return Norm(kind, layer_norm, add_layer_norm, None, {"eps": module.eps})
    vectors = [p for p in parameters.values() if p is not None and p.ndim == 1]
    if len(parameters) != 1 or len(vectors) != 1 or module._modules:
        return Mismatch("no single vector for a weight")
    numbers = {value for value in vars(module).values() if isinstance(value, float)}
    if len(numbers) != 1:
        return Mismatch(f"no single number for an eps: {sorted(numbers)}")
    (name,) = parameters
    options = _casting(module, name, *numbers)
    if options is None or not _of_rows(module, name, vectors[0].numel(), options):
        return Mismatch("its results are not those of rms_norm")
    return Norm(kind, rms_norm, add_rms_norm, rms_norm_add, options)


def _casting(module: torch.nn.Module, name: str, eps: float) -> dict[str, Any] | None:
    """The options of `rms_norm` that give the module's results, in float32 and in bfloat16."""
    with probing() as numbers:
        x, weight = (torch.randn(n, WIDTH, generator=numbers) for n in (32, 1))
        # Large enough an eps, or none, is seen in rows of this size.
        x = x * torch.logspace(-4, 1, 32)[:, None]
        for offset in (0.0, 1.0):
            for casting in ("none", "before_weight"):
                options: dict[str, Any] = {"eps": eps, "offset": offset, "casting": casting}
                apart = []
                for dtype in (torch.float32, torch.bfloat16):
                    found = _apart(module, name, x.to(dtype), weight[0].to(dtype), options)
                    if found is None:
                        return None
                    apart.append(found)
                if apart[0].max() < SUMMED and (apart[1] > 0).float().mean() < MISROUNDED:
                    return options
    return None


def _of_rows(module: torch.nn.Module, name: str, width: int, options: dict[str, Any]) -> bool:
    """Whether a norm is one of whole rows as wide as its weight, not of groups within them."""
    with probing() as numbers:
        x, weight = (torch.randn(n, width, generator=numbers) for n in (2, 1))
        apart = _apart(module, name, x, weight[0], options)
    return apart is not None and bool(apart.max() < SUMMED)


def _apart(
    module: torch.nn.Module, name: str, x: torch.Tensor, weight: torch.Tensor,
    options: dict[str, Any],
) -> torch.Tensor | None:  # fmt: skip
    """How far a norm is from `rms_norm`, relative; None where it has no such result."""
    try:
        theirs = type(module).forward(_with(module, **{name: weight}), x)
    except Exception:  # whatever another module's own code raises
        return None
    if not isinstance(theirs, torch.Tensor) or (theirs.dtype, theirs.shape) != (x.dtype, x.shape):
        return None
    ours: torch.Tensor = rms_norm(x, weight, **options)
    return (theirs.float() - ours.float()).abs() / ours.float().abs()


def embedding_of(module: torch.nn.Module) -> Embedding | Mismatch:
    """The lookup that an embedding computes, with its scale."""
    if not isinstance(module, torch.nn.Embedding):
        return Mismatch("no embedding")
    if module.max_norm is not None or module.sparse or module.scale_grad_by_freq:
        return Mismatch("max_norm, sparse or scale_grad_by_freq is torch's own")
    if type(module) is torch.nn.Embedding:
        return Embedding()
    if len(module._buffers) != 1:
        return Mismatch("a subclass without a single buffer for its scale")
    (name,) = module._buffers
    with probing() as numbers:
        weight, scale = torch.randn(7, 4, generator=numbers), torch.tensor(1.75)
        stub, ids = _with(module, weight=weight), torch.arange(7)
        vars(stub)["_buffers"] = {name: scale}
        try:
            same = torch.equal(type(module).forward(stub, ids), weight * scale)
        except Exception:  # whatever another module's own code raises
            same = False
    return Embedding(name) if same else Mismatch("a subclass whose forward is another")


# -- by a trace ----------------------------------------------------------------------------------


class _Tracer(Tracer):
    """Traces the code of one module: its children are leaves."""

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return True

    def keys(self, obj: Any) -> Any:
        """What unpacking the keywords of a traced call gives."""
        return [FORWARDED]


def _traced(module: torch.nn.Module) -> Graph | Mismatch:
    try:
        with torch.device("cpu"):
            return _Tracer().trace(module)
    except Exception as error:  # whatever another module's own code raises
        return Mismatch(f"its forward cannot be traced: {type(error).__name__}")


def _output(graph: Graph) -> Any:
    """What the traced code returns."""
    return next(node.args[0] for node in reversed(graph.nodes) if node.op == "output")


def _gate(module: torch.nn.Module, node: Node) -> tuple[Any, dict[str, Any]] | None:
    """The gated op whose activation a node of a trace is."""
    activation: Callable[[torch.Tensor], torch.Tensor]
    if node.op == "call_module":
        activation = module.get_submodule(str(node.target))
        if any(True for _ in activation.parameters()):
            return None
    elif node.op == "call_function" and callable(node.target):
        activation = node.target
    else:
        return None
    with probing():
        x = torch.linspace(-6, 6, 97, dtype=torch.float64)
        theirs = activation(x)
        for op, options in GATES:
            if torch.allclose(op(torch.ones_like(x), x, **options), theirs, 1e-12, 1e-12):
                return op, options
    return None


def mlp_of(module: torch.nn.Module) -> Mlp | Mismatch:
    """The gated MLP that a module computes."""
    graph = _traced(module)
    if isinstance(graph, Mismatch):
        return graph
    match _output(graph):
        case Node(op="call_module", target=down, args=(Node() as product,)):
            pass
        case _:
            return Mismatch("it does not end in a projection")
    if product.target is not operator.mul:
        return Mismatch("no product of a value and a gate")
    for value, activated in (product.args, product.args[::-1]):
        if not (isinstance(activated, Node) and len(activated.args) == 1):
            continue
        found = _gate(module, activated)
        if found is None:
            continue
        op, options = found
        match value, activated.args[0]:
            case (
                Node(op="call_module", target=up, args=(Node(op="placeholder") as x,)),
                Node(op="call_module", target=gate, args=(other,)),
            ) if x is other:
                return Mlp(op, options, str(down), str(up), str(gate))
            case (
                Node(target=operator.getitem, args=(Node() as halves, int(second))),
                Node(target=operator.getitem, args=(other, int(first))),
            ) if halves is other and {first, second} == {0, 1}:
                match halves:
                    case Node(
                        op="call_method",
                        target="chunk",
                        args=(
                            Node(op="call_module", target=packed, args=(Node(op="placeholder"),)),
                            2,
                        ),
                        kwargs={"dim": -1},
                    ):
                        options = {**options, "gate_first": first == 0}
                        return Mlp(op, options, str(down), packed=str(packed))
    return Mismatch("no activation of a gate that is known, times a value")


def _chain(node: Any, stream: Node) -> tuple[list[Node], set[Node]]:
    """The calls of modules from the stream to a node, and those whose first result is taken."""
    calls: list[Node] = []
    first: set[Node] = set()
    while node is not stream:
        match node:
            case Node(target=operator.getitem, args=(Node(op="call_module") as call, 0)):
                first.add(call)
                node = call
                continue
            case Node(op="call_module", args=(Node() as given,), kwargs=keywords) if not keywords:
                pass
            case Node(op="call_module", args=(), kwargs=keywords):
                found = [v for v in keywords.values() if v is stream or _is_computed(v)]
                if len(found) != 1 or not isinstance(found[0], Node):
                    return [], set()
                given = found[0]
            case _:
                return [], set()
        calls.insert(0, node)
        node = given
    return calls, first


def _is_computed(value: Any) -> bool:
    """Whether a node is the result of a module."""
    return isinstance(value, Node) and value.op == "call_module"


def _branch(module: torch.nn.Module, node: Any, stream: Node) -> tuple[Branch, Node] | Mismatch:
    """The branch between the stream and a node, and the call of its body."""
    calls, first = _chain(node, stream)
    if not calls:
        return Mismatch("its branches are not modules one after the other")
    norms = [norm_of(module.get_submodule(str(calls[i].target))) for i in (0, -1)]
    leads = not isinstance(norms[0], Mismatch)
    norm = norms[0] if leads else norms[1]
    if isinstance(norm, Mismatch) or len(calls) < 2 or not (leads or norm.added):
        return Mismatch("no norm comes before or after its branches")
    body = calls[leads]
    if first - {body} or any(call.kwargs for call in calls if call is not body):
        return Mismatch("its norms take or return more than one tensor")
    names = ["", *[str(call.target) for call in calls]][leads:]
    return Branch(names[0], norm, names[1], tuple(names[2:]), body in first), body


def layer_of(module: torch.nn.Module) -> Layer | Mismatch:
    """The decoder layer that a module computes, where norms stand before or behind branches."""
    graph = _traced(module)
    if isinstance(graph, Mismatch):
        return graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    match _output(graph):
        case Node(target=operator.add, args=(Node(target=operator.add, args=(x, a)) as s, m)):
            pass
        case _:
            return Mismatch("it does not end in the second of two adds")
    if x is not inputs[0]:
        return Mismatch("its first add is not to its input")
    one, two = _branch(module, a, x), _branch(module, m, s)
    if isinstance(one, Mismatch):
        return one
    if isinstance(two, Mismatch):
        return two
    (before, attention), (after, mlp) = one, two
    if attention.args or mlp.kwargs:
        return Mismatch("its attention does not take keywords alone, or its MLP takes some")
    entry, known = "", set()
    for name, value in attention.kwargs.items():
        if _is_computed(value) or value is x:
            entry = name
        elif name == FORWARDED or (isinstance(value, Node) and value.target == name):
            known.add(name)
        else:
            return Mismatch(f"its attention takes {name} from elsewhere")
    own = [node for node in inputs[1:] if not str(node.target).startswith("*")]
    defaults = {str(node.target): node.args[0] if node.args else None for node in own}
    if known - {FORWARDED} != set(defaults):
        return Mismatch("its attention does not take all that the layer takes")
    return Layer(before, after, entry, defaults, FORWARDED in known)
