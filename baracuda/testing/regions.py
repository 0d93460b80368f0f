"""The dtypes of results in and outside of torch's autocast regions, ours beside those of torch.

Ours are read off the declarations, by the check that every call begins with. Those of torch are
asked of its dispatcher: its function of the op runs on real tensors of a CPU and on fake ones of a
GPU, so that no device is needed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration import autocast
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import name_of, named
from baracuda.declaration.spec import OpSpec
from baracuda.libraries import Region, library
from baracuda.testing.cases import draw, options_of, to_library, tried
from baracuda.testing.peers import namesake

NARROW = ("bfloat16", "float16")
KINDS = ("cpu", "cuda")
# torch's functions of ops whose arguments differ: of a row's arrays, with float32 parameters.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "softmax": lambda f, x, *_: f.softmax(x, -1),
    "log_softmax": lambda f, x, *_: f.log_softmax(x, -1),
    "logsumexp": lambda f, x, *_: x.logsumexp(-1),
    "layer_norm": lambda f, x, *p: f.layer_norm(x, x.shape[-1:], *p),
    "rms_norm": lambda f, x, *p: f.rms_norm(x, x.shape[-1:], *p),
    "l2_normalize": lambda f, x, *_: f.normalize(x, 2.0, -1),
    "group_norm": lambda f, x, *p: f.group_norm(x, 1, *p),
    "instance_norm": lambda f, x, *p: f.instance_norm(x, None, None, *p),
    "batch_norm_inference": lambda f, x, m, v, *p: f.batch_norm(x, m, v, *p),
    "glu": lambda f, x, *_: f.glu(x),
    "swiglu": lambda f, x, *_: f.silu(x) * x,
    "geglu": lambda f, x, *_: f.gelu(x) * x,
    "reglu": lambda f, x, *_: f.relu(x) * x,
    "add_layer_norm": lambda f, x, r, *p: f.layer_norm(x + r, x.shape[-1:], *p),
    "add_rms_norm": lambda f, x, r, *p: f.rms_norm(x + r, x.shape[-1:], *p),
    "rms_norm_add": lambda f, x, r, *p: r + f.rms_norm(x, x.shape[-1:], *p),
    "cross_entropy": lambda f, x, t, *_: f.cross_entropy(x, t),
    "soft_target_cross_entropy": lambda f, x, t: f.cross_entropy(x, t),
    "nll_loss": lambda f, x, t, *_: f.nll_loss(x, t),
    "kl_div_with_logits": lambda f, x, t, *_: f.kl_div(
        f.log_softmax(x, -1), f.log_softmax(t, -1), reduction="batchmean", log_target=True
    ),
    "linear_cross_entropy": lambda f, h, w, t, *b: f.cross_entropy(f.linear(h, w, *b), t),
    "binary_cross_entropy": lambda f, x, t, *_: f.binary_cross_entropy(x, t),
    "gather": lambda f, x, i: x.gather(-1, i.long()),
}


@contextmanager
def region(kind: str, dtype: str) -> Iterator[None]:
    """A region for a kind of device, also where there is no such device."""
    torch = import_module("torch")
    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, bool(dtype))
    torch.set_autocast_dtype(kind, getattr(torch, dtype or "bfloat16"))
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, before[0])
        torch.set_autocast_dtype(kind, before[1])
        torch.clear_autocast_cache()


def ours(spec: OpSpec, dtype: str, region: Region = (), parameters: str = "") -> list[str]:
    """The dtypes of the results of an op on arrays of `dtype`, within a region.

    Parameters of norms may have another dtype.
    """
    arrays = _arrays(spec, dtype, parameters)
    state = ("", False, *region)
    case, _ = _tried(spec)
    options = {k: v for k, v in options_of(spec, case).items() if k in spec.options}
    taken = autocast.taken(spec, arrays, region)
    problem = check.problem(spec, taken, options, DEFAULT, known=[state])
    return [x.dtype for x in problem.outputs]


def torchs(spec: OpSpec, dtype: str, kind: str, of: str = "") -> str:
    """The dtype of the result of torch's function: "" of none, "–" of one that refuses."""
    torch = import_module("torch")
    fake = import_module("torch._subclasses.fake_tensor").FakeTensorMode
    call = _function(spec)
    if call is None:
        return ""
    wide = {name: "float32" for name in spec.arrays if spec.role(name).wide == "parameter"}
    with ExitStack() as stack, torch.no_grad():
        if kind == "cuda":
            stack.enter_context(fake())
        names = [p.name for p in _tried(spec)[1].inputs if not p.is_option]
        arrays = [
            torch.zeros(x.shape, dtype=getattr(torch, wide.get(n, name_of(x.dtype))), device=kind)
            for n, x in zip(names, [x for x in _arrays(spec, dtype) if x is not None], strict=True)
        ]
        stack.enter_context(region(kind, of))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        try:
            result = call(*arrays)
        except (RuntimeError, ValueError, NotImplementedError):
            return "–"
    return name_of(result.dtype)


@cache
def _tried(spec: OpSpec) -> Any:
    """A case of an op and its form with the most arrays."""
    return max(
        tried(spec, spec.cases), key=lambda both: len(both[1].inputs) if spec.packed is None else 0
    )


def _arrays(spec: OpSpec, dtype: str, parameters: str = "") -> list[Any]:
    torch = library("torch")
    case, form = _tried(spec)
    drawn = draw(spec, case, form, "float32")
    out = []
    for name in spec.arrays:
        x = None if name not in drawn else to_library(drawn[name], "torch")
        if x is not None and name not in spec.discrete:
            own = parameters if parameters and spec.role(name).wide == "parameter" else dtype
            x = x.to(torch.dtype(own))
        out.append(x)
    return out


def _function(spec: OpSpec) -> Callable[..., Any] | None:
    """torch's function of an op, of the arrays alone."""
    torch = import_module("torch")
    if spec.name in FUNCTIONS:
        return lambda *arrays: FUNCTIONS[spec.name](torch.nn.functional, *arrays)
    if not spec.namesake:
        return None
    return partial(namesake(spec), **options_of(spec, _tried(spec)[0]))


def row(spec: OpSpec) -> list[str]:
    """The cells of an op: ours outside and within, and what torch's function returns."""

    def said(some: list[str]) -> str:
        return ", ".join([named(d).short for d in dict.fromkeys(some)])

    cells = []
    for dtype in (*NARROW, "float32"):
        within = [said(ours(spec, dtype, (of, kind))) for kind in KINDS for of in NARROW]
        cpu, cuda = (" or ".join(dict.fromkeys(within[i : i + 2])) for i in (0, 2))
        both = cuda if cpu == cuda else f"{cuda}, {cpu} on a CPU"
        cells.append(f"{said(ours(spec, dtype))} → {both}")
    for kind in KINDS:
        found = [
            "/".join(sorted({_short(torchs(spec, dtype, kind, of)) for of in NARROW}))
            for dtype in (*NARROW, "float32")
        ]
        cells.append(" ".join(found) if any(found) else "no such function")
    return cells


def _short(name: str) -> str:
    return named(name).short if name not in ("", "–") else name


HEAD = ("op", "in a region", "of bf16", "of f16", "of f32", "torch on a CPU", "torch on CUDA")
NOTE = (
    "The dtype of results for inputs of bfloat16 (bf16), float16 (f16) and float32 (f32). Before "
    "the arrow is the dtype outside of a `torch.autocast` region, behind it the dtype within a "
    "region; where a region for CPUs gives another dtype, the cell has both. Ours are the same in "
    "regions of float16 and bfloat16. The last two columns have the results of torch's function "
    "within a region, for the three inputs in that order. Two dtypes with a stroke between them "
    "are for regions of bfloat16 and float16; – means that torch refuses the call. Parameters of "
    "norms are float32 for torch. [Autocast](../autocast.md) says why rows differ."
)


def page(link: Callable[[str], str], table: Callable[..., str]) -> str:
    """The table of all ops but gradients, with links to their pages."""
    rows = [
        [link(name), op.spec.autocast or "nothing", *row(op.spec)]
        for name, op in registry.items()
        if op.spec.adjoint_of is None
    ]
    return f"# Dtypes under autocast\n\n{NOTE}\n\n{table(HEAD, rows)}"
