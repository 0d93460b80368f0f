"""What one would call instead on an NVIDIA GPU: torch, Liger, QuACK, CuPy, JAX."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.libraries import Array
from baracuda.testing.peers import EXPRESSIONS, namesake
from baracuda.testing.timed_row import Row
from baracuda.testing.timing import Queued

Task = Callable[[], Any]


# torch's functions for the same end, whose masks are others.
_MASKS: dict[str, Callable[..., Any]] = {
    "dropout": lambda x, p, **_: torch.nn.functional.dropout(x, p),
    "dropout_add": lambda x, r, p, **_: r + torch.nn.functional.dropout(x, p),
    "softmax_dropout": lambda x, p, **_: torch.nn.functional.dropout(x.softmax(-1), p),
    "stochastic_depth": lambda x, p, **_: x * _rows(x).bernoulli_(1 - p).div_(1 - p),
    "bernoulli": lambda x, p, **_: torch.empty_like(x).bernoulli_(p),
    "uniform": lambda x, **_: torch.rand_like(x),
    "normal": lambda x, **_: torch.randn_like(x),
}


def _rows(x: torch.Tensor) -> torch.Tensor:
    """A number for each example of `x`."""
    return x.new_empty(x.shape[0], *(1,) * (x.ndim - 1))


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    """Normal values on the GPU."""
    return torch.randn(shape, device="cuda", dtype=dtype)


def arrays_of(row: Row, dtype: torch.dtype) -> list[Array]:
    """The inputs of a row as fresh random tensors on the GPU."""
    spec, out = registry[row.op].spec, []
    for name, shape in zip(spec.arrays, row.shapes, strict=False):
        role = spec.role(name)
        if name in spec.integers and role.between:
            first, last = map(int, role.between)
            out.append(torch.randint(first, last + 1, shape, device="cuda"))
        elif name in spec.integers:
            out.append(_index(row).expand(row.broadcast))
        elif role.between:
            low, high = role.between
            out.append(torch.empty(shape, device="cuda", dtype=dtype).uniform_(low, high))
        else:
            out.append(random_tensor(shape, dtype))
    forward: Any = registry.get(spec.adjoint_of or "")
    if forward and "y" in spec.arrays and "y" not in forward.spec.arrays:
        # A result of the forward call, which takes the cotangent for an input that is not saved.
        named = dict(zip(spec.arrays, out, strict=False))
        first, *rest = forward.spec.arrays
        given = [named.get(first, out[0]), *(named[name] for name in rest if name in named)]
        out[spec.arrays.index("y")] = forward(*given, **row.options)
    return out


def _index(row: Row) -> Array:
    """As the row draws it; what is uniform, and large, on the GPU itself."""
    if row.indices == "uniform":
        return torch.randint(0, row.extent, row.own, device="cuda")
    return torch.from_numpy(row.index(np.random.default_rng(0))).cuda()


def peers(row: Row, arrays: list[Array], compiled: bool = True) -> dict[str, Task]:
    """Every peer that has the op, ready to be timed on these arrays."""
    if row.op not in EXPRESSIONS:
        return _namesakes(row, arrays, compiled)
    expression, out = EXPRESSIONS[row.op], eager(row, arrays)
    options = row.options
    if row.deterministic:
        return {name: in_order(task) for name, task in out.items()}
    # Or compilation gives up on an expression after eight problems.
    torch.compiler.reset()
    fused = torch.compile(expression, dynamic=False)
    out["compile"] = lambda: fused(torch, *arrays, **options)
    if row.op in ("rope", "rope_backward"):
        out |= _rope(row, arrays)
    if row.op.startswith("qk_norm_rope"):
        out |= _qk_norm_rope(row, arrays)
    if row.op.startswith("gather") and arrays[0].dtype == torch.float32:
        out |= _cupy(row, arrays)
    if row.op in ("gather_backward", "embedding_backward"):
        out |= _jax(row, arrays)
    if row.indices == "equal" and arrays[0].element_size() < 4:
        out |= dict.fromkeys({"compile", "jax"} & out.keys(), _one_after_the_other)
    if registry[row.op].spec.category in ROWS:
        out |= _liger_rows(row, arrays)
    if row.op in ("swiglu", "swiglu_backward", "geglu", "geglu_backward"):
        out |= _liger_gated(row, arrays)
    if "cross_entropy" in row.op and "target" in registry[row.op].spec.integers:
        out |= _liger_entropy(row, arrays)
    return out | quack(row, arrays)


ROWS = ("norm", "channel_norm", "softmax")


def eager(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """What torch itself has for a row on any device, run as it is called."""
    if row.op not in EXPRESSIONS:
        return _namesakes(row, arrays, compiled=False)
    out: dict[str, Task] = {"eager": partial(EXPRESSIONS[row.op], torch, *arrays, **row.options)}
    if row.op == "gather_backward":
        out |= row_scatters(row, arrays)
    if registry[row.op].spec.category in ROWS:
        out |= _by_autograd(row, arrays, "autograd", partial(expression_of(row), torch))
    return out


def _namesakes(row: Row, arrays: list[Array], compiled: bool) -> dict[str, Task]:
    """torch's function of the same definition; of a gradient, autograd's backward pass alone."""
    spec = registry[row.op].spec
    forward = registry[spec.adjoint_of or row.op].spec
    function = namesake(forward) if forward.namesake else _MASKS.get(forward.name)
    if function is None:
        return {}
    ways = {"eager": function}
    if compiled:
        torch.compiler.reset()
        ways["compile"] = torch.compile(ways["eager"], dynamic=False)
    if spec is forward:
        return {name: partial(way, *arrays, **row.options) for name, way in ways.items()}
    return {name: gradient(row, arrays, way) for name, way in ways.items()}


def gradient(row: Row, arrays: list[Array], function: Callable[..., Any]) -> Task:
    """The backward pass of `function`, the forward of a row's op, recorded by the first call.

    Inputs that the row's op does without are drawn: their values make no difference to the time.
    """
    spec = registry[row.op].spec
    forward, dy = registry[spec.adjoint_of or ""].spec, arrays[0]
    results = {p.name for p in spec.signatures[0].outputs}
    given = dict(zip(spec.arrays, arrays, strict=False))
    axes = registry[row.op].plan(*arrays, **row.keywords).problem.axes

    @cache
    def recorded() -> tuple[Array, list[Array]]:
        inputs = [
            given[p.name]
            if p.name in given
            else torch.randn(p.shape(axes), device=dy.device, dtype=dy.dtype)
            for p in forward.signatures[0].inputs
        ]
        wanted = [f"d{p.name}" in results for p in forward.signatures[0].inputs]
        inputs = [x.detach().requires_grad_(w) for x, w in zip(inputs, wanted, strict=True)]
        # A graph that is kept must not have its buffers reused.
        with import_module("torch._functorch.config").patch(donated_buffer=False):
            y = function(*inputs, **row.options)
        return y, [x for x in inputs if x.requires_grad]

    return lambda: torch.autograd.grad(*recorded(), dy, retain_graph=True)


def row_scatters(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """torch's functions for rows that have one index each."""
    (dout, index), shape = arrays, row.options["src_shape"]
    at = _of_rows(index, row.options["axis"])
    if at is None:
        return {}
    out: dict[str, Task] = {"index_add_": lambda: dout.new_zeros(shape).index_add_(0, at, dout)}
    if dout.ndim == 2:
        embedding = torch.ops.aten.embedding_dense_backward
        out["embedding"] = lambda: embedding(dout, at, shape[0], -1, False)
    return out


def _one_after_the_other() -> None:
    """Compare and swap until it succeeds, all on one address: 0.1 and 0.6 s for 2^17 elements."""
    raise TimeoutError("takes minutes")


def _of_rows(index: Array, axis: int) -> Array | None:
    """The index of each row along axis 0; None where rows have several."""
    if axis != 0 or any(index.stride()[1:]):
        return None
    return index[(slice(None), *[0] * (index.ndim - 1))]


def in_order(task: Task) -> Task:
    """The same under torch's global switch."""

    def switched() -> Any:
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        try:
            return task()
        finally:
            torch.use_deterministic_algorithms(before)

    return switched


def _rope(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """With the table of angles given, as models keep it; Liger rotates q and k in place."""
    x = arrays[0]
    interleaved, sign = row.options["interleaved"], -1 if row.op == "rope_backward" else 1
    s, d = x.shape[-2:]
    steps = torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d
    angles = torch.arange(s, dtype=torch.float64, device=x.device)[:, None] * 10000.0**-steps
    cos, sin = angles.cos().to(x.dtype), (sign * angles.sin()).to(x.dtype)

    def turn(x: Array, cos: Array, sin: Array) -> Array:
        if interleaved:
            e, o = x[..., 0::2], x[..., 1::2]
            return torch.stack((e * cos - o * sin, o * cos + e * sin), -1).flatten(-2)
        e, o = x.chunk(2, -1)
        return torch.cat((e * cos - o * sin, o * cos + e * sin), -1)

    compiled = torch.compile(turn, dynamic=False)
    return {"compile, table": lambda: compiled(x, cos, sin)}


def _qk_norm_rope(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """The same by one op after the other, which make the angles themselves."""
    turned: dict[str, Any] = {**row.options, "seq_axis": -3}
    if row.op == "qk_norm_rope":
        pairs = (arrays[0], arrays[2]), (arrays[1], arrays[3])
        return {"apart": lambda: [bc.rope(bc.rms_norm(x, w), **turned) for x, w in pairs]}
    each = [arrays[side:6:2] for side in (0, 1)]
    return {
        "apart": lambda: [
            bc.rms_norm_backward(bc.rope_backward(dy, **turned), x, w) for dy, x, w in each
        ]
    }


def _cupy(row: Row, arrays: list[Array]) -> dict[str, Task]:
    try:
        cupy = import_module("cupy")
    except ImportError:
        return {}
    expression = EXPRESSIONS[row.op]
    # By the first call: where that fails, it is an error of this peer.
    given = cache(lambda: [cupy.from_dlpack(x) for x in arrays])
    return {"cupy": lambda: expression(cupy, *given(), **row.options)}


def _jax(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """XLA's scatter, whole rows where they have one index each, with the int32 that JAX prefers."""
    # Or it takes most of the memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        jax = import_module("jax")
        if jax.default_backend() != "gpu":
            return {}
    except (ImportError, RuntimeError):
        return {}
    (dout, index), options = arrays, row.options
    at = index if row.op == "embedding_backward" else _of_rows(index, options["axis"])
    indices = (index if at is None else at).to(torch.int32).contiguous()
    # By the first call, too.
    given = cache(lambda: [jax.dlpack.from_dlpack(x) for x in (dout, indices)])
    function = jax_scatter
    if row.op == "embedding_backward":
        function = partial(EXPRESSIONS[row.op], import_module("jax.numpy"))
    scatter = jax.jit(lambda dout, index: function(dout, index, **options))
    return {"jax": Queued(lambda: scatter(*given()), jax.block_until_ready)}


def jax_scatter(dout: Array, index: Array, *, axis: int, src_shape: tuple[int, ...]) -> Array:
    """`gather_backward` as JAX has it; `index` of rank 1 is one index for each row."""
    jnp = import_module("jax.numpy")
    if index.ndim == 1:
        return jnp.zeros(src_shape, dtype=dout.dtype).at[index].add(dout)
    return EXPRESSIONS["gather_backward"](jnp, dout, index, axis=axis, src_shape=src_shape)


def expression_of(row: Row) -> Callable[..., Any]:
    """The expression of the op, or of the forward whose gradient it is."""
    return EXPRESSIONS[registry[row.op].spec.adjoint_of or row.op]


def _by_autograd(
    row: Row, arrays: list[Array], name: str, forward: Callable[..., Any]
) -> dict[str, Task]:
    """The gradient that a framework's own forward records, from what that has saved."""
    spec = registry[row.op].spec
    if spec.adjoint_of is None:
        return {}
    # The row's own arrays but those of results; what a gradient does not take is drawn.
    like, known = arrays[0], dict(zip(spec.arrays, arrays, strict=False))
    whole = registry[spec.adjoint_of].spec
    outputs = [f"d{p.name}" for p in whole.signatures[0].outputs]
    # Masks and biases, which broadcast to rows, are left out.
    beside = {p.name for form in whole.signatures for p in form.inputs if p.broadcasts}
    leaves, axis = [], 1 if spec.category == "channel_norm" else -1
    for array in whole.arrays:
        if array not in beside:
            shape = (like.shape[axis],) if array in ("weight", "bias") else like.shape
            x = known.get(array)
            if x is None:
                x = torch.randn(tuple(shape), device=like.device, dtype=like.dtype)
            leaves.append(x.detach().requires_grad_())

    @cache
    def recorded() -> Any:
        result = forward(*leaves, **row.options)
        results = result if isinstance(result, tuple) else (result,)
        # Running statistics, as torch has them, have no gradient.
        pairs = [(y, known[dy]) for y, dy in zip(results, outputs, strict=True) if y.requires_grad]
        return tuple(zip(*pairs, strict=True))

    def gradients() -> Any:
        made, given = recorded()
        return torch.autograd.grad(made, leaves, given, retain_graph=True)

    return {name: gradients}


_LIGER = {
    "rms_norm": ("rms_norm", "LigerRMSNormFunction", (1e-6,)),
    "layer_norm": ("layer_norm", "LigerLayerNormFunction", (1e-5,)),
    "add_rms_norm": ("fused_add_rms_norm", "LigerFusedAddRMSNormFunction", (1e-6,)),
    "softmax": ("softmax", "LigerSoftmaxFunction", ()),
}


def _liger_rows(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """Liger's functions of rows; its backward of a norm overwrites what it is given."""
    module, name, more = _LIGER.get(row.op.removesuffix("_backward"), ("", "", ()))
    try:
        function = getattr(import_module(f"liger_kernel.ops.{module}"), name) if module else None
    except (ImportError, AttributeError):
        return {}
    if function is None or row.options:
        return {}
    if row.op.endswith("_backward"):
        own = [x.clone() for x in arrays]
        return _by_autograd(row, own, "liger", lambda *given: function.apply(*given, *more))
    return {"liger": lambda: function.apply(*arrays, *more)}


def _liger_gated(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """Liger takes the halves apart, geglu in its tanh form; its backward overwrites them."""
    kind = row.op.removesuffix("_backward")
    try:
        liger = import_module(f"liger_kernel.ops.{kind}")
    except ImportError:
        return {}
    a, b = (half.contiguous() for half in arrays[-1].chunk(2, -1))
    # Liger gates its first argument, baracuda its second half.
    if row.op.endswith("_backward"):
        task, dy = getattr(liger, f"{kind}_backward"), arrays[0]
        return {"liger": lambda: task(b, a, dy)}
    task = getattr(liger, f"{kind}_forward")
    return {"liger": lambda: task(b, a)}


def _liger_entropy(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """Liger's forward makes the gradients as well, over the logits; its backward scales them."""
    try:
        plain = import_module("liger_kernel.ops.cross_entropy").LigerCrossEntropyFunction
        linear = import_module("liger_kernel.ops.fused_linear_cross_entropy")
    except ImportError:
        return {}
    if not row.op.endswith("_with_gradient"):
        return {}
    fused = linear.LigerFusedLinearCrossEntropyFunction
    given = [x.detach().requires_grad_(x.is_floating_point()) for x in arrays]
    if row.op.startswith("linear"):
        return {"liger": lambda: fused.apply(*given)}
    # No weights of classes.
    return {"liger": lambda: plain.apply(*given, None)}


def quack(row: Row, arrays: list[Array]) -> dict[str, Task]:
    """QuACK's functions of rows; its layer norm wants float32 parameters, and has no autograd: its
    gradient reads the means and deviations of the forward."""
    try:
        rmsnorm = import_module("quack.rmsnorm")
        softmax = import_module("quack.softmax").softmax
        entropy = import_module("quack.cross_entropy")
    except ImportError:
        return {}
    if row.options:
        return {}

    def added(x: Array, residual: Array, weight: Array) -> Any:
        return rmsnorm.rmsnorm(x, weight, residual=residual, prenorm=True)

    def layer_norm(x: Array, weight: Array, bias: Array) -> Any:
        return rmsnorm.layernorm_fwd(x, weight, bias, 1e-5)

    @cache
    def known() -> tuple[Array, Array]:
        _, x, weight = arrays
        _, inverse, mean = rmsnorm.layernorm_fwd(x, weight.float(), None, 1e-5, True, True)
        return inverse, mean

    def layer_norm_backward(dy: Array, x: Array, weight: Array) -> Any:
        return rmsnorm.layernorm_bwd(x, weight, dy, *known())

    def with_gradient(logits: Array, target: Array) -> Any:
        return entropy.cross_entropy_fwd(logits, target, return_dx=True)

    @cache
    def normaliser() -> Array:
        return entropy.cross_entropy_fwd(*arrays[1:], return_lse=True)[1]

    @cache
    def cotangent() -> Array:
        return arrays[0].float().expand(arrays[2].shape)

    def backward(dloss: Array, logits: Array, target: Array) -> Any:
        return entropy.cross_entropy_bwd(logits, target, cotangent(), normaliser())

    # Its matrix products, with which not every version of their compiler agrees.
    def linear(*given: Array) -> Any:
        module = import_module("quack.linear_cross_entropy")
        return module.chunked_linear_cross_entropy(*given)

    recorded = {"rms_norm": rmsnorm.rmsnorm, "add_rms_norm": added, "softmax": softmax}
    forward = recorded.get(row.op.removesuffix("_backward"))
    if forward is not None and row.op.endswith("_backward"):
        return _by_autograd(row, arrays, "quack", forward)
    function = recorded.get(row.op) or {
        "layer_norm": layer_norm,
        "layer_norm_backward": layer_norm_backward,
        "cross_entropy": entropy.cross_entropy,
        "cross_entropy_backward": backward,
        "cross_entropy_with_gradient": with_gradient,
        "linear_cross_entropy_with_gradient": linear,
    }.get(row.op)
    if function is None:
        return {}
    layer = row.op.startswith("layer_norm")
    given = [x.float() if layer and x.ndim == 1 else x for x in arrays]
    if row.op.startswith("linear"):
        if len(given) > 3:
            # It has no bias.
            return {}
        given = [x.detach().requires_grad_(x.is_floating_point()) for x in given]
    return {"quack": lambda: function(*given)}
