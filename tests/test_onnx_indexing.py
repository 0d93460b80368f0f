"""The node tests of ONNX for Gather, GatherElements, ScatterElements and ScatterND.

Their arrays and results, but for those of negative indices, which count from the end there.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import baracuda as bc

LIBRARIES = {"numpy": np.asarray, "torch": torch.tensor, "jax": jnp.asarray}
libraries = pytest.mark.parametrize("library", LIBRARIES)
RNG = np.random.default_rng(0)
REDUCTIONS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}
LINE = [[1, 2, 3, 4, 5]]
GATHER_ELEMENTS = {
    "gather_elements_0": ([[1, 2], [3, 4]], [[0, 0], [1, 0]], 1, [[1, 1], [4, 3]]),
    "gather_elements_1": (
        [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 2, 0], [2, 0, 0]], 0, [[4, 8, 3], [7, 2, 3]]
    ),
}  # fmt: skip
# Data, indices, updates, axis, reduction, result.
SCATTER_ELEMENTS = {
    "without_axis": (
        np.zeros((3, 3)), [[1, 0, 2], [0, 2, 1]], [[1.0, 1.1, 1.2], [2.0, 2.1, 2.2]], 0, "none",
        [[2.0, 1.1, 0.0], [1.0, 0.0, 2.2], [0.0, 2.1, 1.2]],
    ),
    "with_axis": (LINE, [[1, 3]], [[1.1, 2.1]], 1, "none", [[1, 1.1, 3, 2.1, 5]]),
    "with_duplicate_indices": (LINE, [[1, 1]], [[1.1, 2.1]], 1, "add", [[1, 5.2, 3, 4, 5]]),
    "with_reduction_max": (LINE, [[1, 1]], [[1.1, 2.1]], 1, "max", [[1, 2.1, 3, 4, 5]]),
    "with_reduction_min": (LINE, [[1, 1]], [[1.1, 2.1]], 1, "min", [[1, 1.1, 3, 4, 5]]),
    # By the definition: there is no such node test.
    "mul": (LINE, [[1, 1]], [[1.1, 2.1]], 1, "mul", [[1, 4.62, 3, 4, 5]]),
}  # fmt: skip
UP, DOWN = [[1, 2, 3, 4], [5, 6, 7, 8]], [[8, 7, 6, 5], [4, 3, 2, 1]]
DATA = np.asarray([UP + DOWN, UP + DOWN, DOWN + UP, DOWN + UP], np.float32)
UPDATES = np.asarray([[[k] * 4 for k in (5, 6, 7, 8)], [[k] * 4 for k in (1, 2, 3, 4)]], np.float32)
# Indices, and what becomes of the first slice and of the third.
SCATTER_ND = {
    "none": ([0, 2], UPDATES[0], UPDATES[1]),
    "add": ([0, 0], [[7, 8, 9, 10], [13, 14, 15, 16], [18, 17, 16, 15], [16, 15, 14, 13]], DATA[2]),
    "mul": ([0, 0], [[5, 10, 15, 20], [60, 72, 84, 96], [168, 147, 126, 105], [128, 96, 64, 32]],
            DATA[2]),
    "max": ([0, 0], [[5, 5, 5, 5], [6, 6, 7, 8], [8, 7, 7, 7], [8, 8, 8, 8]], DATA[2]),
    "min": ([0, 0], [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3], [4, 3, 2, 1]], DATA[2]),
}  # fmt: skip


def same(got: Any, want: Any) -> None:
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)


def written(x: Any, index: Any, src: Any, axis: int, reduction: str) -> Any:
    if reduction == "none":
        return bc.scatter(x, index, src, axis=axis)
    return bc.scatter_reduce(x, index, src, axis=axis, reduction=REDUCTIONS[reduction])


@libraries
@pytest.mark.parametrize("axis", [0, 1])
def test_gather(library: str, axis: int) -> None:
    """gather_0 and gather_1 draw their data."""
    array: Any = LIBRARIES[library]
    data, indices = RNG.standard_normal((5, 4, 3, 2)).astype(np.float32), np.asarray([0, 1, 3])
    same(bc.index_select(array(data), array(indices), axis=axis), np.take(data, indices, axis))


@libraries
def test_gather_2d_indices(library: str) -> None:
    """Along axis 1; an index of any rank along axis 0 is that of `embedding`."""
    array: Any = LIBRARIES[library]
    data, indices = RNG.standard_normal((3, 3)).astype(np.float32), np.asarray([[0, 2]])
    rows = bc.index_select(array(data), array(indices.reshape(-1)), axis=1)
    same(rows.reshape(3, 1, 2), np.take(data, indices, 1))
    same(bc.embedding(array(indices), array(data)), np.take(data, indices, 0))


@libraries
@pytest.mark.parametrize("name", GATHER_ELEMENTS)
def test_gather_elements(library: str, name: str) -> None:
    array: Any = LIBRARIES[library]
    data, indices, axis, want = GATHER_ELEMENTS[name]
    data = array(np.asarray(data, np.float32))
    same(bc.gather(data, array(np.asarray(indices)), axis=axis), want)


@libraries
@pytest.mark.parametrize("name", SCATTER_ELEMENTS)
def test_scatter_elements(library: str, name: str) -> None:
    array: Any = LIBRARIES[library]
    data, indices, updates, axis, reduction, want = SCATTER_ELEMENTS[name]
    x, src = (array(np.asarray(v, np.float32)) for v in (data, updates))
    same(written(x, array(np.asarray(indices)), src, axis, reduction), want)


@libraries
@pytest.mark.parametrize("reduction", SCATTER_ND)
def test_scatter_nd(library: str, reduction: str) -> None:
    """Of slices: their numbers, repeated for each element."""
    array: Any = LIBRARIES[library]
    indices, first, third = SCATTER_ND[reduction]
    at = np.broadcast_to(np.asarray(indices)[:, None, None], UPDATES.shape).copy()
    found = written(array(DATA), array(at), array(UPDATES), 0, reduction)
    same(found, np.stack([first, DATA[1], third, DATA[3]]))
