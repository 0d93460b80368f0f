"""JAX: facts of its arrays and tracers; immutable arrays, so nothing is written in place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from baracuda.declaration.dtypes import name_of, named
from baracuda.layouts import Shape
from baracuda.libraries import TRACED, Array, Facts, Library, State


class Jax(Library):
    """Arrays of JAX, concrete and traced."""

    name = "jax"
    xp = jnp
    fuses = True
    writable = False

    def takes(self, x: Array) -> bool:
        return isinstance(x, (jax.Array, jax.ShapeDtypeStruct))

    def facts(self, x: Array) -> Hashable:
        place = None if isinstance(x, jax.core.Tracer) else _sharding(x)
        return ("jax", x.dtype, x.shape, place)

    def device_of(self, x: Array) -> Any:
        """None unless `x` has been put on one device: constants follow what they meet."""
        place = _place(x)
        return place if isinstance(place, jax.Device) and x.committed else None

    def follows(self, x: Array) -> bool:
        """Whether JAX moves `x` to what it meets: nobody has put it on a device."""
        return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and not x.committed

    def state(self, arrays: Sequence[Array]) -> State | None:
        if any(isinstance(x, jax.core.Tracer) for x in arrays):
            return ("traced", False)
        return None

    def describe(self, x: Array) -> Facts:
        # Two shardings over the same devices are no difference.
        if isinstance(x, jax.core.Tracer):
            return super().describe(x)._replace(device=TRACED)
        devices = ",".join(sorted(map(str, _sharding(x).device_set)))
        return super().describe(x)._replace(device=devices)

    def readable(self, x: Array) -> bool:
        return not isinstance(x, (jax.core.Tracer, jax.ShapeDtypeStruct)) and all(
            device.platform == "cpu" for device in x.devices()
        )

    def values(self, x: Array) -> Array:
        # While jit traces, JAX's own functions would be recorded, of constants too.
        return np.asarray(x)

    def compiled_for(self) -> str:
        return str(_default_device())

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def of_constants(
            arrays: Sequence[Array], held: Mapping[str, Array], known: tuple[tuple[str, Any], ...]
        ) -> Any:
            return function(arrays, {name: held.get(name, x) for name, x in known})

        program, fixed = jax.jit(function), jax.jit(of_constants, static_argnums=2)
        decides = False

        def run(arrays: Sequence[Array], scalars: Mapping[str, Any]) -> Any:
            nonlocal decides
            if not decides:
                try:
                    return program(arrays, scalars)
                except jax.errors.ConcretizationTypeError:
                    # The body does other things for other scalars, so a program has its own.
                    decides = True
            # Of run-time values that are arrays a program knows no value.
            held = {name: x for name, x in scalars.items() if isinstance(x, jax.Array)}
            known = [(name, None if name in held else x) for name, x in scalars.items()]
            return fixed(arrays, held, tuple(known))

        return run

    def constant(self, x: Array) -> Array:
        return jax.lax.stop_gradient(x)

    def sigmoid(self, x: Array) -> Array:
        return jax.nn.sigmoid(x)

    def rounded(self, x: Array, dtype: str) -> Array:
        # XLA leaves out a cast and its way back, where nothing stands between them.
        return jax.lax.optimization_barrier(x.astype(dtype)).astype(x.dtype)

    def joined(self, low: Array, high: int) -> Any:
        if not isinstance(low, jax.core.Tracer):
            return int(low) + (high << 32)
        # Two words, as there may be no integers of 64 bits; as such they may come.
        if low.ndim:
            return low + jnp.asarray([0, high], jnp.uint32)
        return jnp.stack([low.astype(jnp.uint32), jnp.full(low.shape, high, jnp.uint32)])

    def wide_integers(self) -> AbstractContextManager[Any]:
        return jax.enable_x64(True)  # type: ignore[no-any-return]

    def held_as(self, name: str) -> str:
        return str(jax.dtypes.canonicalize_dtype(name).name)

    def _widely(self, a: Array, b: Array) -> Array:
        wide = self.dtype(named(name_of(a.dtype)).accumulate)
        return jnp.matmul(a, b, preferred_element_type=wide)

    def lookup(self, x: Array, index: Array, axis: int) -> Array:
        # Without a reshape, which would end how the axes of an index are spread over devices.
        return jnp.take(x, index, axis=axis, mode="clip")

    def added(self, values: Array, index: Array, axis: int, extent: int) -> Array:
        lead, rest = values.shape[:axis], values.shape[axis + index.ndim :]
        zeros = jnp.zeros((*lead, extent, *rest), values.dtype)
        at = jnp.where(index < 0, extent, index)
        return zeros.at[(slice(None),) * axis + (at,)].add(values, mode="drop")

    def highest(self, values: Array, index: Array, extent: int) -> Array:
        none = jnp.full((extent, *values.shape[1:]), -jnp.inf, values.dtype)
        return none.at[index].max(values)

    def combined(
        self, values: Array, index: Array, axis: int, shape: Shape, how: str, none: float
    ) -> Array | None:
        if how == "prod":
            # Products of which the factors repeat have no derivative here.
            return None
        return self._landed(jax.lax.scatter_max, values, index, axis, shape, none)

    def scatter_add(self, values: Array, index: Array, axis: int, shape: Shape) -> Array:
        return self._landed(jax.lax.scatter_add, values, index, axis, shape, 0)

    def _landed(
        self, join: Any, values: Array, index: Array, axis: int, shape: Shape, none: float
    ) -> Array:
        # Other axes are batches, and no grid of indices: XLA sees that lines are independent of
        # each other, and nothing is transposed.
        others = tuple([i for i in range(values.ndim) if i != axis])
        places = jax.lax.ScatterDimensionNumbers(
            update_window_dims=(),
            inserted_window_dims=(axis,),
            scatter_dims_to_operand_dims=(axis,),
            operand_batching_dims=others,
            scatter_indices_batching_dims=others,
        )
        own = tuple([n if i == axis else values.shape[i] for i, n in enumerate(shape)])
        start = jnp.full(own, none, values.dtype)
        mode = jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS
        out = join(start, index[..., None], values, places, mode=mode)
        around = [(0, n - have) for n, have in zip(shape, own, strict=True)]
        return jnp.pad(out, around, constant_values=none)


def _place(x: Array) -> Any:
    """The device of `x`, or its sharding over several; None while it is traced or described."""
    return None if isinstance(x, (jax.core.Tracer, jax.ShapeDtypeStruct)) else x.device


def _sharding(x: Array) -> Any:
    """Where a concrete array is, or where one that is only described would be."""
    if isinstance(x, jax.ShapeDtypeStruct) and x.sharding is None:
        return _anywhere(_default_device())
    return x.sharding


@cache
def _anywhere(device: Any) -> Any:
    """The sharding of an array on one device, as JAX itself makes it."""
    return jax.device_put(np.zeros((), np.float32), device).sharding


def _default_device() -> Any:
    chosen = jax.config.jax_default_device
    return chosen if isinstance(chosen, jax.Device) else jax.local_devices(backend=chosen)[0]


def varies_along(x: Array) -> frozenset[Any]:
    """The mesh axes along which `x` varies under `shard_map`; JAX has had two names for them."""
    kind = jax.typeof(x)
    manual = getattr(kind, "manual_axis_type", None)
    return frozenset(manual.varying if manual is not None else getattr(kind, "vma", ()))


ADAPTER = Jax()
