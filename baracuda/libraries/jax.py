"""JAX: facts of its arrays and tracers; immutable arrays, so nothing is written in place."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from baracuda.layouts import Shape
from baracuda.libraries import TRACED, Array, Facts, Library


class Jax(Library):
    """Arrays of JAX, concrete and traced."""

    name = "jax"
    xp = jnp
    writable = False

    def facts(self, x: Array) -> Hashable:
        return ("jax", x.dtype, x.shape, self.device_of(x))

    def device_of(self, x: Array) -> Any:
        return None if isinstance(x, jax.core.Tracer) else x.device

    def state(self, arrays: Sequence[Array]) -> tuple[str, bool] | None:
        if any(isinstance(x, jax.core.Tracer) for x in arrays):
            return ("traced", False)
        return None

    def describe(self, x: Array) -> Facts:
        facts = super().describe(x)
        return replace(facts, device=TRACED) if isinstance(x, jax.core.Tracer) else facts

    def readable(self, x: Array) -> bool:
        return not isinstance(x, jax.core.Tracer) and all(
            device.platform == "cpu" for device in x.devices()
        )

    def sigmoid(self, x: Array) -> Array:
        return jax.nn.sigmoid(x)

    def scatter_add(self, values: Array, index: Array, axis: int, shape: Shape) -> Array:
        grid = list(jnp.ogrid[tuple(slice(n) for n in index.shape)])
        grid[axis] = index
        return jnp.zeros(shape, values.dtype).at[tuple(grid)].add(values)


ADAPTER = Jax()
