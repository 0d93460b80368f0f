"""A program of its own, since JAX counts its devices once: cut classes over 4 devices of the host.

It tries the definition, which XLA partitions, and then custom calls, of which XLA sees only what is
said of them. It prints what it found wrong, as JSON.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from typing import Any

# Beside the flags that the tests give to all that they start.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import jax_stand_in
import numpy as np
import pytest
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from test_vocabulary import of_torch

import baracuda as bc

ROWS, CLASSES, DEPTH = 6, 40, 4
COLLECTIVE = re.compile(r"= (.*?) (all-gather|all-reduce|all-to-all|collective-\w+|reduce-scatter)")
SHAPE = re.compile(r"\w+\[([\d,]*)\]")
TARGET = np.asarray([0, 39, 12, -100, 20, 5])
CASES: tuple[dict[str, Any], ...] = (
    {},
    {"label_smoothing": 0.3, "softcap": 2.0},
    {"reduction": "none", "z_loss": 0.1},
)


def most_sent(program: Any) -> int:
    """The extent of the largest array that a collective of a compiled program gives."""
    sizes = [
        int(np.prod([int(n) for n in shape.split(",") if n]))
        for results, _ in COLLECTIVE.findall(program.as_text())
        for shape in SHAPE.findall(results)
    ]
    assert sizes, "nothing is sent"
    return max(sizes)


def problems(label: str, mesh: Mesh) -> Iterator[str]:
    generator = np.random.default_rng(5)
    logits, weight, hidden, layer = (
        generator.standard_normal(shape).astype(np.float32)
        for shape in ((ROWS, CLASSES), (CLASSES,), (ROWS, DEPTH), (CLASSES, DEPTH))
    )
    weight = np.abs(weight) + np.float32(0.5)

    def entropy(logits: Any, weight: Any, **options: Any) -> Any:
        return bc.cross_entropy(logits, jnp.asarray(TARGET), weight, **options)

    def linear(hidden: Any, layer: Any, **options: Any) -> Any:
        return bc.linear_cross_entropy(hidden, layer, jnp.asarray(TARGET), **options)

    def in_torch(linear: bool, *arrays: Any, **options: Any) -> list[Any]:
        wide = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
        target = torch.from_numpy(TARGET)
        if linear:
            loss = of_torch(torch.nn.functional.linear(*wide), target, None, **options)
        else:
            loss = of_torch(wide[0], target, wide[1].detach(), **options)
        wanted = wide if linear else wide[:1]
        return [loss.detach(), *torch.autograd.grad(loss.sum(), wanted)]

    for function, arrays, specs, wanted in (
        (entropy, (logits, weight), ((None, "v"), ()), (0,)),
        (linear, (hidden, layer), ((), ("v",)), (0, 1)),
    ):
        given = [
            jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
            for x, spec in zip(arrays, specs, strict=True)
        ]
        for options in CASES:
            name = f"{label} {function.__name__} {options}"

            def loss(*some: Any, function: Any = function, options: Any = options) -> Any:
                return function(*some, **options)

            def slopes(*some: Any, loss: Any = loss, wanted: Any = wanted) -> Any:
                return jax.grad(lambda *some: loss(*some).sum(), wanted)(*some)

            programs = [jax.jit(f).lower(*given).compile() for f in (loss, slopes)]
            got = [programs[0](*given), *programs[1](*given)]
            want = in_torch(function is linear, *arrays, **options)
            for x, y in zip(got, want, strict=True):
                if not np.allclose(x, y, rtol=1e-5, atol=1e-5):
                    yield f"{name}: apart {np.max(np.abs(np.asarray(x) - y.numpy()))}"
            cut = got[2 if function is linear else 1].sharding.spec
            if "v" not in cut:
                yield f"{name}: the gradient lies {cut}"
            # Five numbers of a row from each device, or what a row of `hidden` gets.
            if (most := max(map(most_sent, programs))) > 5 * ROWS * 4 or most >= logits.size:
                yield f"{name}: {most} numbers are sent at once"
            if ("baracuda_" in programs[0].as_text()) != (label == "kernels"):
                yield f"{name}: what runs"


if __name__ == "__main__":
    assert len(jax.devices()) == 4
    devices = Mesh(np.asarray(jax.devices()), ("v",))
    found = [*problems("host", devices)]
    jax.clear_caches()
    bc.plan_cache.clear()
    jax_stand_in.install(pytest.MonkeyPatch())
    found += problems("kernels", devices)
    print(json.dumps(found))
