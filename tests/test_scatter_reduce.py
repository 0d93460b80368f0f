"""Ties, zeros and NaN of `scatter_reduce`, which no random numbers have."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import baracuda as bc

LIBRARIES = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}
libraries = pytest.mark.parametrize("library", LIBRARIES)
AT = [0, 0, 0, 1, 2, 2]


def slopes(library: str, x: Any, src: Any, **options: Any) -> list[Any]:
    array: Any = LIBRARIES[library]
    x, src = (array(np.asarray(v, np.float32)) for v in (x, src))
    at, options = array(np.asarray(AT)), {"axis": 0, **options}
    out = bc.scatter_reduce(x, at, src, **options)
    found = bc.scatter_reduce_backward(array(np.ones(3, np.float32)), x, at, src, out, **options)
    return [np.asarray(y).tolist() for y in (out, *found)]


@libraries
@pytest.mark.parametrize("sign", [1, -1])
def test_who_ties_shares_evenly(library: str, sign: int) -> None:
    """Where x takes no part, it is not among the ties."""
    how = "max" if sign > 0 else "min"
    x, src = (sign * np.asarray(v) for v in ([5, 9, 1], [5, 5, 2, 3, 7, 7]))
    out, dx, dsrc = slopes(library, x, src, reduction=how)
    assert out == (sign * np.asarray([5, 9, 7])).tolist()
    assert dx == pytest.approx([1 / 3, 1, 0])
    assert dsrc == pytest.approx([1 / 3, 1 / 3, 0, 0, 0.5, 0.5])
    out, dx, dsrc = slopes(library, x, src, reduction=how, include_self=False)
    assert out == (sign * np.asarray([5, 3, 7])).tolist()
    assert dx == [0, 0, 0]
    assert dsrc == [0.5, 0.5, 0, 1, 0.5, 0.5]


@libraries
def test_a_product_has_a_slope_along_its_one_zero(library: str) -> None:
    out, dx, dsrc = slopes(library, [2, 0, 4], [3, 0, 5, 7, 0, 0], reduction="prod")
    assert (out, dx, dsrc) == ([0, 0, 0], [0, 7, 0], [0, 30, 0, 0, 0, 0])
    *_, dsrc = slopes(library, [2, 0, 4], [3, 0, 5, 7, 0, 2], reduction="prod", include_self=False)
    assert dsrc == [0, 15, 0, 1, 2, 0]


@libraries
def test_nan_is_the_maximum_and_has_its_gradient(library: str) -> None:
    out, dx, dsrc = slopes(library, [1, np.nan, 3], [np.nan, 2, np.nan, 5, 1, 2], reduction="max")
    np.testing.assert_array_equal(out, [np.nan, np.nan, 3])
    assert (dx, dsrc) == ([0, 1, 1], [0.5, 0, 0.5, 0, 0, 0])


def test_transforms_share_evenly_as_well() -> None:
    x, src, at = [5.0, 9.0, 1.0], [5.0, 5.0, 2.0, 3.0, 7.0, 7.0], AT
    want = [[1 / 3, 1, 0], [1 / 3, 1 / 3, 0, 0, 0.5, 0.5]]

    def loss(array: Any) -> Any:
        return lambda x, s: bc.scatter_reduce(x, array(at), s, axis=0, reduction="max").sum()

    found = torch.func.grad(loss(torch.tensor), (0, 1))(torch.tensor(x), torch.tensor(src))
    for got, right in zip(found, want, strict=True):
        assert got.tolist() == pytest.approx(right)
    tangents = [jnp.arange(1.0, 1.0 + len(v)) for v in (x, src)]
    _, got = jax.jvp(loss(jnp.asarray), (jnp.asarray(x), jnp.asarray(src)), tuple(tangents))
    right = sum(float(jnp.asarray(w) @ t) for w, t in zip(want, tangents, strict=True))
    assert float(got) == pytest.approx(right)


@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
def test_no_gradient_is_the_cotangent(reduction: str) -> None:
    dout, src = torch.ones(4), torch.ones(3)
    x, at = torch.zeros(4), torch.tensor([0, 1, 1])
    how = {"axis": 0, "reduction": reduction}
    for dx in bc.scatter_reduce_backward(dout, x, at, src, x, **how):
        dx.zero_()
    assert bool((dout == 1).all())
