"""A program of its own, since JAX counts its devices once: docs/jax_models.md beside plain models.

It runs the code of the page on 4 devices of the host, computes the same models in plain
`jax.numpy`, and prints what differs, as JSON. Over devices kernels run as well, or what stands for
them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

# Beside those of the lane (`conftest`), which make code that takes less time to compile.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import equinox as eqx
import jax
import jax.numpy as jnp
import jax_stand_in
import numpy as np
import pytest
from documents import defined
from flax import nnx

import baracuda as bc

# The flags of the page, which compile for longer, come too late.
assert len(jax.devices()) == 4
page = defined("jax_models.md")
ROWS, TOKENS, WIDTH, HEADS = 4, 8, 32, 4
COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-reduce|all-to-all|collective-\w+|reduce-scatter)")
SHAPE = re.compile(r"\w+\[([\d,]*)\]")
Array = Any


def rms(x: Array, weight: Array) -> Array:
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def layer_norm(x: Array, p: Any) -> Array:
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * p["scale"] + p["bias"]


def turned(x: Array) -> Array:
    """Rotated by position: x of shape [b, t, heads, d], in halves."""
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    turn = jnp.exp(1j * angles)[:, None]
    y = (x[..., :half] + 1j * x[..., half:]) * turn
    return jnp.concatenate([y.real, y.imag], -1)


def attention(q: Array, k: Array, v: Array) -> Array:
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[-1])
    seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    # JAX's own softmax of attention is in float32 for float64 too.
    shares = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf).astype(jnp.float32))
    return jnp.einsum("bhij,bjhd->bihd", shares.astype(v.dtype), v)


def loss_of(hidden: Array, weight: Array, target: Array) -> Array:
    logs = jax.nn.log_softmax(hidden @ weight.T)
    some = target != -100
    each = jnp.take_along_axis(logs, jnp.where(some, target, 0)[..., None], -1)[..., 0]
    return -(each * some).sum() / some.sum()


def heads(x: Array) -> Array:
    return x.reshape(*x.shape[:2], -1, WIDTH // HEADS)


def plain_nnx(p: Any, ids: Array, target: Array) -> Array:
    x = p["embedding"][ids]
    for i in sorted(p["layers"]):
        layer = p["layers"][i]
        w = {name: x["kernel"] for name, x in layer.items() if isinstance(x, dict)}
        y = rms(x, layer["before"])
        q, k, v = (heads(y @ w[name]) for name in "qkv")
        q, k = turned(rms(q, layer["q_norm"])), turned(rms(k, layer["k_norm"]))
        x = x + attention(q, k, v).reshape(x.shape) @ w["o"]
        y = rms(x, layer["after"])
        x = x + (y @ w["up"] * jax.nn.silu(y @ w["gate"])) @ w["down"]
    return loss_of(rms(x, p["norm"]), p["head"], target)


def plain_linen(variables: Any, ids: Array, target: Array) -> Array:
    p = variables["params"]
    x = p["embedding"][ids]
    for i in range(page.decoder.layers):
        q, k, v, o = (p[f"DenseGeneral_{4 * i + n}"]["kernel"] for n in range(4))
        up, gate, down = (p[f"Dense_{3 * i + n}"]["kernel"] for n in range(3))
        y = layer_norm(x, p[f"AddNorm_{2 * i}"])
        q, k, v = (jnp.einsum("btn,nhd->bthd", y, w) for w in (q, k, v))
        x = x + jnp.einsum("bthd,hdn->btn", attention(turned(q), turned(k), v), o)
        y = layer_norm(x, p[f"AddNorm_{2 * i + 1}"])
        x = x + (y @ up * jax.nn.gelu(y @ gate, approximate=False)) @ down
    return loss_of(layer_norm(x, p[f"AddNorm_{2 * i + 2}"]), p["head"], target)


def plain_equinox(p: Any, ids: Array, target: Array) -> Array:
    x = p.table[ids]
    for block in p.blocks:
        y = rms(x, block.norms[0])
        q, k, v = jnp.einsum("btn,anhd->abthd", y, block.qkv)
        x = x + attention(turned(q), turned(k), v).reshape(x.shape) @ block.o.weight.T
        y = rms(x, block.norms[1])
        x = x + (y @ block.up.weight.T * jax.nn.silu(y @ block.gate.weight.T)) @ block.down.weight.T
    return loss_of(rms(x, p.norm), p.table, target)


def apart(got: Any, want: Any) -> float:
    """The largest difference of two trees, in units of the largest element of each array."""
    some, others = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(some) == len(others) > 0
    return max(
        float(np.abs(np.asarray(x, float) - np.asarray(y, float)).max() / np.abs(y).max())
        for x, y in zip(some, others, strict=True)
    )


def both(function: Callable[..., Array]) -> Callable[..., Any]:
    return jax.jit(jax.value_and_grad(function))


def of_nnx(model: Any) -> tuple[Callable[..., Array], Any]:
    """A model as a function of a dictionary of its parameters, and that."""
    graph, state = nnx.split(model)

    def function(p: Any, ids: Array, target: Array) -> Array:
        whole = jax.tree.map(lambda x: x, state)
        nnx.replace_by_pure_dict(whole, p)
        return nnx.merge(graph, whole)(ids, target)  # type: ignore[no-any-return]

    return function, nnx.to_pure_dict(state)


def sent(program: Any) -> dict[str, int]:
    """The extent of the largest result of each kind of collective of a compiled program."""
    most: dict[str, int] = {}
    for results, kind in COLLECTIVE.findall(program.as_text()):
        shapes = SHAPE.findall(results)
        sizes = [int(np.prod([int(n) for n in shape.split(",") if n])) for shape in shapes]
        most[kind] = max(most.get(kind, 0), *sizes)
    return most


def over_devices(label: str, model: Any, want: Any) -> Iterator[str]:
    """What is sent for a model over devices, and what it gives."""
    spread, params = of_nnx(model)
    batch = [jax.device_put(x, page.batch[0].sharding) for x in (page.ids, page.target)]
    forward = sent(jax.jit(spread).lower(params, *batch).compile())
    program = both(spread).lower(params, *batch).compile()
    if (most := apart(program(params, *batch), want)) > 2e-5:
        yield f"{label} over devices: apart {most}"
    # Kernels have the three numbers of a row gathered, which XLA adds up.
    numbers = forward.pop("all-gather", 0), sent(program).pop("all-gather", 0)
    if (0 < max(numbers) <= 3 * ROWS * TOKENS) != (label == "kernels"):
        yield f"{label} over devices: {numbers} numbers are gathered"
    if forward.keys() != {"all-reduce"} or max(forward.values()) > ROWS // 2 * TOKENS * WIDTH:
        yield f"{label} over devices: {forward}"
    if not sent(program).keys() <= {"all-reduce", "all-gather"}:
        yield f"{label} over devices, gradients: {sent(program)}"
    if ("baracuda_" in program.as_text()) != (label == "kernels"):
        yield f"{label} over devices: what runs"


def problems() -> Iterator[str]:
    batch = page.ids, page.target
    fresh = page.Model(rngs=nnx.Rngs(3))
    model, params = of_nnx(fresh)
    want = both(plain_nnx)(params, *batch)
    tied = both(plain_equinox)
    cases = {
        "nnx": (both(model)(params, *batch), want),
        "linen": (
            both(page.decoder.apply)(page.variables, *batch),
            both(plain_linen)(page.variables, *batch),
        ),
        "equinox": (
            both(page.tied_loss)(page.tied, *batch), tied(page.tied, *batch)
        ),
    }  # fmt: skip
    again = partial(jax.checkpoint, policy=page.policy)
    cases["checkpoint"] = both(again(model))(params, *batch), want
    for name, (got, right) in cases.items():
        if (most := apart(got, right)) > 2e-5:
            yield f"{name}: apart {most}"

    mixed = of_nnx(page.Model(rngs=nnx.Rngs(3), dtype=jnp.bfloat16))[0]
    if not 0 < (most := apart(both(mixed)(params, *batch), want)) < 2**-4:
        yield f"bfloat16: apart {most}"

    with jax.enable_x64(True):
        exact = page.Model(rngs=nnx.Rngs(3), dtype=jnp.float64, param_dtype=jnp.float64)
        model64, params64 = of_nnx(exact)
        got, right = (both(f)(params64, *batch) for f in (model64, plain_nnx))
        if (most := apart(got, right)) > 1e-11:
            yield f"float64: apart {most}"

    fresh = page.Model(rngs=nnx.Rngs(3), turn=page.turn, look_up=page.look_up)
    nnx.update(fresh, jax.tree_util.tree_map_with_path(page.placed, nnx.state(fresh)))
    yield from over_devices("host", fresh, want)
    cut = of_nnx(fresh)[1]
    state = page.same.init(cut)
    program = jax.jit(page.same.apply).lower(cut, cut, state).compile()
    if (text := program.as_text()) and COLLECTIVE.search(text):
        yield "a step over devices sends something"
    stepped = program(cut, cut, state)
    alone = jax.jit(page.same.apply)(params, params, page.same.init(params))
    if (most := apart(stepped, alone)) > 2e-5:
        yield f"a step over devices: apart {most}"
    if stepped[0]["head"].sharding != cut["head"].sharding:
        yield f"a step over devices leaves the head {stepped[0]['head'].sharding}"

    table = jnp.asarray(np.asarray(page.table))
    right = jax.grad(lambda x: loss_of(x[page.ids], x, page.target))(table)
    if (most := apart(page.slopes, right)) > 2e-5:
        yield f"along explicit axes: apart {most}"

    # What is compared would be seen to differ.
    wrong = eqx.tree_at(lambda tied: tied.blocks[0].norms, page.tied, replace_fn=lambda x: 1.01 * x)
    if apart(tied(wrong, *batch), cases["equinox"][1]) < 1e-3:
        yield "what is wrong is not seen"

    jax.clear_caches()
    bc.plan_cache.clear()
    jax_stand_in.install(pytest.MonkeyPatch())
    yield from over_devices("kernels", fresh, want)


if __name__ == "__main__":
    print(json.dumps([*problems()]))
