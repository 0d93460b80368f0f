"""What the code of attention, decoders and heads does with a value, found from its syntax tree.

Each `*_of` returns what it has found, or a `Mismatch` that says why the module is left alone.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from baracuda.integrations.transformers.modules import Mismatch, Norm, norm_of, probing
from baracuda.ops.norm import rms_norm
from baracuda.ops.rope import rope

__all__ = [
    "NO_NORMS", "NO_ROTATION", "Decoder", "Head", "Heads", "Rope", "decoder_of", "head_of",
    "heads_of", "rope_of", "way_of",
]  # fmt: skip

NO_ROTATION = Mismatch("its code rotates no q and k by tables")
NO_NORMS = Mismatch("its code has no norms of heads of q and k right before it rotates these")


@dataclass(frozen=True)
class Rope:
    """An attention whose code calls a function that rotates q and k by tables."""

    function: str
    """The name under which its code calls that function."""
    tables: str
    """Its parameter that takes the cosines and sines."""
    interleaved: bool
    copies: int
    """How often its tables have each entry, as halves."""
    inner: FunctionType
    """The attention's code."""


@dataclass(frozen=True)
class Heads:
    """An attention that normalises the heads of q and of k before it rotates them."""

    function: str
    tables: str
    interleaved: bool
    inner: FunctionType
    norms: tuple[str, str]
    """The names of its norms of q and k."""
    computes: Norm
    """What both of them compute."""


@dataclass(frozen=True)
class Decoder:
    """A stack of layers that hand a stream to each other, and a norm behind them."""

    layers: str
    norm: str


@dataclass(frozen=True)
class Head:
    """A linear head whose logits go to the loss and into the output alone."""

    head: str
    softcap: str
    """The number of the configuration that caps the logits, where there is one."""


def _code(module: torch.nn.Module) -> tuple[FunctionType, ast.FunctionDef] | Mismatch:
    """A module's forward without its decorators, and the syntax tree of it."""
    function: Any = inspect.unwrap(type(module).forward)
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return Mismatch("its forward has no source")
    if not (isinstance(function, FunctionType) and isinstance(tree, ast.FunctionDef)):
        return Mismatch("its forward is no function")
    return function, tree


def _loads(tree: ast.AST, name: str) -> list[ast.Name]:
    """Where code reads a variable."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name)
    return [node for node in found if isinstance(node.ctx, ast.Load)]


def _own(node: ast.AST) -> str:
    """The name of an attribute of self."""
    if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
        return node.attr
    return ""


# -- rope ----------------------------------------------------------------------------------------


def rope_of(module: Any) -> Rope | Mismatch:
    """The rotation in an attention's code."""
    found = _code(module)
    if isinstance(found, Mismatch):
        return found
    function, tree = found
    name, parameter = _rotation(tree)
    rotate = function.__globals__.get(name)
    if not name or not callable(rotate):
        return NO_ROTATION
    if (way := way_of(rotate)) is None:
        return Mismatch(f"{name} is another rotation than that of rope")
    return Rope(name, parameter, *way, function)


def way_of(rotate: Callable[..., Any]) -> tuple[bool, int] | None:
    """How a function of q, k, cos and sin rotates: whether interleaved, and the tables' copies."""
    ways = itertools.product((False, True), (2, 1))
    return next((way for way in ways if _rotates(rotate, *way)), None)


def _rotation(tree: ast.FunctionDef) -> tuple[str, str]:
    """The function that takes q, k and both tables, and the parameter that holds the tables."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=cos), ast.Name(id=sin)])],
                value=ast.Name(id=parameter),
            ):
                break
    else:
        return "", ""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id=name), args=[_, _, ast.Name(id=third), ast.Name(id=fourth)],
                keywords=[],
            ) if (third, fourth) == (cos, sin):  # fmt: skip
                used = [len(_loads(tree, each)) for each in (cos, sin, parameter)]
                return (name, parameter) if used == [1, 1, 1] else ("", "")
    return "", ""


def _rotates(function: Callable[..., Any], interleaved: bool, copies: int = 2) -> bool:
    """Whether a function of q, k, cos and sin rotates as `rope` does, by so many halves."""
    with probing() as numbers:
        options: Any = {"dtype": torch.float64, "generator": numbers}
        q, k = torch.randn(2, 3, 5, 8, **options), torch.randn(2, 1, 5, 8, **options)
        turns = 100.0 ** -(torch.arange(4, dtype=torch.float64) / 4)
        angles = (torch.arange(5)[:, None] * turns).repeat(1, copies)[None]
        try:
            found = function(q, k, angles.cos(), angles.sin())
        except Exception:  # whatever another library's code raises
            return False
        expected = [rope(x, base=100.0, interleaved=interleaved) for x in (q, k)]
        return all(torch.allclose(a, b, 1e-9, 1e-9) for a, b in zip(found, expected, strict=True))


# -- norms of heads ------------------------------------------------------------------------------


def heads_of(module: Any) -> Heads | Mismatch:
    """The norms of q and k that an attention's rotation follows at once."""
    found = _code(module)
    if isinstance(found, Mismatch):
        return found
    function, tree = found
    name, parameter = _rotation(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    uses = [call for call in calls if getattr(call.func, "id", None) == name]
    if len(uses) != 1:
        return NO_NORMS
    names = [_made_by(tree, x, uses[0]) for x in uses[0].args[:2]]
    q, k = (module._modules.get(each) for each in names)
    if q is None or k is None:
        return NO_NORMS
    each, other = norm_of(q), norm_of(k)
    if isinstance(each, Mismatch) or each != other or each.op is not rms_norm:
        return Mismatch("its norms of q and k are not rms_norm, or not alike")
    rotate = function.__globals__[name]
    interleaved = next((way for way in (False, True) if _rotates(rotate, way)), None)
    if interleaved is None:
        return Mismatch(f"{name} is another rotation than that of rope")
    return Heads(name, parameter, interleaved, function, (names[0], names[1]), each)


def _made_by(tree: ast.FunctionDef, variable: ast.expr, use: ast.Call) -> str:
    """The module whose result a variable has where it is used, perhaps with axes swapped.

    Empty where there is none, or where somebody else sees that result.
    """
    if not isinstance(variable, ast.Name):
        return ""
    made, own = "", 0
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == variable.id:
                if node.lineno >= use.lineno:
                    break
                made = _last(value, name, made)
                own += 1 + len(_loads(value, name))
    before = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == variable.id]
    uses = [node for node in ast.walk(tree) if _own(node) == made]
    alone = len(uses) == 1 and sum(n.lineno < use.lineno for n in before) == own
    return made if alone else ""


def _last(value: ast.expr, variable: str, made: str) -> str:
    """The module that is called last in an expression, behind which axes are swapped at most."""
    match value:
        case ast.Name(id=name) if name == variable:
            return made
        case ast.Call(func=ast.Attribute(value=inner, attr="transpose")):
            return _last(inner, variable, made)
        case ast.Call(func=func, args=[_], keywords=[]):
            return _own(func)
    return ""


# -- a stack of layers ---------------------------------------------------------------------------


def decoder_of(module: torch.nn.Module) -> Decoder | Mismatch:
    """The loop over layers in a decoder's code, and the norm that follows."""
    found = _code(module)
    if isinstance(found, Mismatch):
        return found
    tree = found[1]
    more = tree.args.kwarg.arg if tree.args.kwarg else ""
    for loop, then in zip(tree.body, tree.body[1:], strict=False):
        match loop:
            case ast.For(
                target=target,
                iter=over,
                body=[
                    ast.Assign(
                        targets=[ast.Name(id=stream)],
                        value=ast.Call(
                            func=ast.Name(id=layer), args=[ast.Name(id=given)], keywords=keywords
                        ),
                    )
                ],
            ):
                pass
            case _:
                continue
        each = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
        forwards = any(k.arg is None and getattr(k.value, "id", "") == more for k in keywords)
        stacks = [_own(node) for node in ast.walk(over) if _own(node) in module._modules]
        if given != stream or layer not in each or not forwards or len(stacks) != 1:
            continue
        match then:
            case ast.Assign(
                targets=[ast.Name(id=out)],
                value=ast.Call(func=norm, args=[ast.Name(id=last)], keywords=[]),
            ) if out == last == stream and _own(norm) in module._modules:
                return Decoder(stacks[0], _own(norm))
    return Mismatch("its code has no loop over layers with a norm behind it")


# -- a head and its loss -------------------------------------------------------------------------


def head_of(module: Any) -> Head | Mismatch:
    """The head of a causal language model, where the loss alone needs its logits."""
    found = _code(module)
    if isinstance(found, Mismatch):
        return found
    tree = found[1]
    output = module.get_output_embeddings()
    heads = {name for name, each in module._modules.items() if each is output is not None}
    made = [
        (node.targets[0].id, _own(node.value.func))
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and _own(node.value.func) in heads
    ]
    if len(made) != 1:
        return Mismatch("its code does not make logits by one head")
    if type(output) is not torch.nn.Linear:
        return Mismatch(f"its head is a {type(output).__name__}, not a plain torch.nn.Linear")
    ((logits, head),) = made
    softcap, allowed = "", []
    for node in ast.walk(tree):
        match node:
            case ast.If(test=test, body=body, orelse=[]) if _caps(test, body, logits):
                softcap = _caps(test, body, logits)
                allowed += [name for each in body for name in _loads(each, logits)]
            case ast.Call(func=func) if _own(func) == "loss_function":
                allowed += _loads(node, logits)
            case ast.Return(value=ast.Call(keywords=keywords)):
                given = [k.value for k in keywords if k.arg == "logits"]
                allowed += [value for value in given if isinstance(value, ast.Name)]
    if set(_loads(tree, logits)) != set(allowed):
        return Mismatch("its code does more with logits than to cap them and take their loss")
    return Head(head, softcap)


def _caps(test: ast.expr, body: list[ast.stmt], logits: str) -> str:
    """The number of the configuration that some code caps logits by; empty where it does not."""
    match test:
        case ast.Compare(
            left=ast.Attribute(value=owner, attr=name),
            ops=[ast.IsNot()],
            comparators=[ast.Constant(value=None)],
        ) if _own(owner) == "config":
            cap = f"self.config.{name}"
            steps = [f"{logits} / {cap}", f"torch.tanh({logits})", f"{logits} * {cap}"]
            same = [ast.unparse(each) for each in body] == [f"{logits} = {s}" for s in steps]
            return name if same else ""
    return ""
