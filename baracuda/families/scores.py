"""Scores that a softmax is of: scaled, biased, and which of them count."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import and_
from typing import Any

from baracuda.declaration import roles
from baracuda.declaration.roles import Role
from baracuda.declaration.shapes import Axes
from baracuda.declaration.spec import Normaliser
from baracuda.declaration.values import between
from baracuda.errors import value_error
from baracuda.families.numerics import scaled
from baracuda.libraries import Array, library_of

SCALE: dict[str, Normaliser] = {"scale": between(-1e30, 1e30)}
BESIDE: dict[str, Role] = {"mask": roles.mask(), "bias": roles.parameter()}
HINTS = {"bias": "it has as many axes as x, each of its extent or 1: write bias[None]"}


def diagonal(name: str, axes: Axes, options: dict[str, Any]) -> Mapping[str, int]:
    """A diagonal is one of the last two axes."""
    if options.get("causal") and (axes.get("c") or not axes["b"]):
        where = "axis=-1 of an array of rank 2 or more"
        raise value_error(name, "causal", where, f"axis {options.get('axis', -1)}", axes)
    return {}


def exponents(
    x: Array, mask: Array | None, bias: Array | None, scale: float, causal: bool
) -> tuple[Array, Array | None]:
    """What exponentials are of, at times `x` itself, and where it counts: None for everywhere."""
    library, z, hides = library_of(x), scaled(x, scale), []
    if mask is not None:
        hides.append(mask)
    if bias is not None:
        # Where it is -inf, x does not matter: a sum alone would keep its NaN.
        hides.append(bias != -library.xp.inf)
        z = z + bias
    if causal:
        arange, device = library.xp.arange, library.device_of(x)
        queries, keys = x.shape[-2:]
        last = arange(queries, device=device)[:, None] + (keys - queries)
        hides.append(arange(keys, device=device) <= last)
    return z, reduce(and_, hides) if hides else None
