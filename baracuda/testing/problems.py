"""The problems of the benchmark: ops at sizes well past every cache, with their inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from baracuda.op import registry
from baracuda.spec import Problem

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Row:
    """One problem: an op, the shapes of its inputs, its options."""

    op: str
    label: str
    shapes: Shapes
    options: dict[str, Any]

    def arrays(self, rng: np.random.Generator, dtype: Any) -> list[Any]:
        """Random inputs; indices uniform over their axis, saved outputs by the forward."""
        spec, out = registry[self.op].spec, []
        for name, shape in zip(spec.arrays, self.shapes, strict=False):
            if name == "index":
                axis = self.options["axis"]
                extent = self.options.get("src_shape", self.shapes[0])[axis]
                out.append(rng.integers(0, extent, shape))
            elif name == "y":
                forward = registry[spec.adjoint_of or ""]
                out.append(forward(out[-1], **self.options))
            else:
                out.append(rng.standard_normal(shape, dtype=np.float32).astype(dtype))
        return out


def host_rows(quick: bool) -> list[Row]:
    """Problems for a CPU: well past its caches, or small for a quick look."""
    n = 1024 if quick else 4096
    gated: Shapes = ((n, 2 * n),)
    rows = [Row(op, f"[{n}, 2·{n}]", gated, {}) for op in ("glu", "reglu", "swiglu", "geglu")]
    rows += [Row(f"{row.op}_backward", row.label, ((n, n), (n, 2 * n)), {}) for row in tuple(rows)]
    rows += [
        Row("lerp", f"[{n}, {n}]", ((n, n), (n, n)), {"weight": 0.3}),
        Row("lerp_backward", f"[{n}, {n}]", ((n, n),), {"weight": 0.3}),
    ]
    x = (4, 32, n // 4, 128)
    rows += [Row(op, f"{list(x)}", (x,), {}) for op in ("rope", "rope_backward")]
    image = (n // 256, 64, 112, 112)
    for k, s, p in ((2, 2, 2.0), (3, 2, 2.0), (3, 1, 3.0)):
        rows += _pools(image, k, s, p)
    square = (n, n)
    for axis in (1, 0):
        label = f"[{n}, {n}] uniform, axis {axis}"
        rows.append(Row("gather", label, (square, square), {"axis": axis}))
        rows.append(
            Row("gather_backward", label, (square,) * 2, {"axis": axis, "src_shape": square})
        )
    return rows


def device_rows(dtype: str) -> list[Row]:
    """Problems for a GPU: a large language model's step, a vision model's first layers."""
    n = 14336 if dtype == "bfloat16" else 7168
    gated: Shapes = ((8192, 2 * n),)
    rows: list[Row] = []
    for op in ("glu", "reglu", "swiglu", "geglu"):
        label = f"[8192, 2·{n}]"
        rows.append(Row(op, label, gated, {}))
        rows.append(Row(f"{op}_backward", label, ((8192, n), *gated), {}))
    flat = (2**27,)
    rows.append(Row("lerp", "[2^27]", (flat, flat), {"weight": 0.3}))
    rows.append(Row("lerp_backward", "[2^27]", (flat,), {"weight": 0.3}))
    x = (4, 32, 8192, 128)
    for interleaved, name in ((True, "interleaved"), (False, "half-split")):
        for op in ("rope", "rope_backward"):
            rows.append(Row(op, f"[4, 32, 8192, 128] {name}", (x,), {"interleaved": interleaved}))
    image = (32, 64, 224, 224)
    for k, s, p in ((2, 2, 2.0), (3, 2, 2.0), (3, 1, 3.0)):
        rows += _pools(image, k, s, p)
    square = (8192, 8192)
    for axis in (1, 0):
        options: dict[str, Any] = {"axis": axis}
        rows.append(Row("gather", f"[8192, 8192] uniform, axis {axis}", (square,) * 2, options))
        options = {"axis": axis, "src_shape": square}
        label = f"[8192, 8192] uniform, axis {axis}"
        rows.append(Row("gather_backward", label, (square,) * 2, options))
    options = {"axis": 1, "src_shape": (8192, 32000)}
    rows.append(Row("gather_backward", "[8192, 32000] one a row", ((8192, 1),) * 2, options))
    return rows


def _pools(image: tuple[int, ...], k: int, s: int, p: float) -> list[Row]:
    """A pooling and its gradient."""
    out = (image[-1] - k) // s + 1
    y, options = (*image[:2], out, out), {"norm_type": p, "kernel_size": k, "stride": s}
    label = f"{list(image)} k{k} s{s} p{p:g}"
    return [
        Row("lp_pool2d", label, (image,), options),
        Row("lp_pool2d_backward", label, (y, image, y), options),
    ]


def ideal_bytes(problem: Problem) -> int:
    """Each input read once and each output written once."""
    return sum(x.nbytes for x in (*problem.given, *problem.outputs))
