"""Hypothesis over shapes, strides and options: any view gives what a copy on the body gives."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import baracuda as bc
from baracuda.declaration.shapes import parse

settings.register_profile("short", deadline=None, max_examples=60, derandomize=True)
settings.load_profile("short")

EXTENTS = st.integers(0, 6)


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """A view of this shape: any order of axes, steps of -2 to 3, broadcast axes, any offset."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([-2, -1, 1, 1, 1, 2, 3])) for _ in shape]
    flat = [draw(st.integers(0, 5)) == 0 and n > 0 for n in shape]
    whole = tuple(1 if flat[i] else max(shape[i], 1) * abs(steps[i]) + 1 for i in order)
    base = rng.standard_normal(whole).astype(dtype).transpose(np.argsort(order))
    cut = []
    for n, step, one in zip(shape, steps, flat, strict=True):
        if one:
            cut.append(slice(0, 1))
        elif step > 0:
            cut.append(slice(1, 1 + n * step, step) if n else slice(0, 0))
        else:
            stop = n * -step + step
            cut.append(slice(n * -step, stop if stop >= 0 else None, step) if n else slice(0, 0))
    view = base[tuple(cut)]
    view = np.broadcast_to(view, shape)
    assert view.shape == shape
    return view


def agree(function: Any, arrays: list[np.ndarray], **options: Any) -> None:
    got = function(*arrays, **options)
    copies = [np.ascontiguousarray(x).reshape(x.shape) for x in arrays]
    want = function(*copies, **options, backend="array_api")
    for x, y in zip(_many(got), _many(want), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


def _many(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


@given(st.data())
def test_gated(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["glu", "reglu", "swiglu", "geglu"]))
    half = data.draw(hnp.array_shapes(min_dims=1, max_dims=5, min_side=0, max_side=5))
    axis = data.draw(st.integers(-len(half), len(half) - 1))
    packed = tuple(2 * n if i == axis % len(half) else n for i, n in enumerate(half))
    first = data.draw(st.booleans())
    x, dy = data.draw(views(packed)), data.draw(views(half))
    agree(getattr(bc, name), [x], axis=axis, gate_first=first)
    agree(getattr(bc, f"{name}_backward"), [dy, x], axis=axis, gate_first=first)
    a, b = data.draw(views(half)), data.draw(views(half))
    agree(getattr(bc, f"{name}_backward"), [dy, a, b])


@given(st.data())
def test_lerp(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=3))
    weight = data.draw(st.floats(-2, 2))
    a, b = data.draw(views(shape)), data.draw(views(shape))
    agree(bc.lerp, [a, b], weight=weight)
    agree(bc.lerp_backward, [a], weight=weight)


@given(st.data())
def test_rope(data: st.DataObject) -> None:
    rank = data.draw(st.integers(2, 5))
    shape = (*tuple(data.draw(EXTENTS) for _ in range(rank - 1)), data.draw(st.integers(0, 4)) * 2)
    axis = data.draw(st.integers(0, rank - 2)) - data.draw(st.sampled_from([0, rank]))
    options = {
        "seq_axis": axis,
        "interleaved": data.draw(st.booleans()),
        "rotary_dim": data.draw(st.sampled_from([None, *range(0, shape[-1] + 1, 2)])),
        "base": data.draw(st.sampled_from([1.5, 500.0, 10000.0])),
    }
    x = data.draw(views(shape))
    agree(bc.rope, [x], **options)
    some = tuple(data.draw(st.sampled_from([n, 1])) for n in shape[:-1])
    positions = np.random.default_rng(0).integers(-(2**31) + 1, 2**31, some)
    agree(bc.rope_backward, [x, positions], **options)


@given(st.data())
def test_gather(data: st.DataObject) -> None:
    src = data.draw(hnp.array_shapes(min_dims=1, max_dims=5, min_side=1, max_side=6))
    axis = data.draw(st.integers(-len(src), len(src) - 1))
    at = axis % len(src)
    shape = tuple(
        data.draw(st.integers(0, 9)) if i == at else data.draw(st.integers(0, n))
        for i, n in enumerate(src)
    )
    mode = data.draw(st.sampled_from(["raise", "drop"]))
    low, high = (-3, src[at] + 3) if mode == "drop" else (0, src[at])
    index = np.random.default_rng(data.draw(st.integers(0, 99))).integers(low, high, shape)
    index = index.astype(data.draw(st.sampled_from([np.int32, np.int64])))
    if data.draw(st.booleans()) and 0 not in shape:
        line = index[tuple(slice(None) if i == at else slice(1) for i in range(len(src)))]
        index = np.broadcast_to(line, shape)
    agree(bc.gather, [data.draw(views(src)), index], axis=axis, mode=mode)
    dout = data.draw(views(shape))
    agree(bc.gather_backward, [dout, index], axis=axis, src_shape=src, mode=mode)
    want = np.zeros(src)
    for spot in np.ndindex(shape):
        if 0 <= index[spot] < src[at]:
            want[(*spot[:at], index[spot], *spot[at + 1 :])] += dout[spot]
    got = bc.gather_backward(dout, index, axis=axis, src_shape=src, mode=mode)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@given(st.data())
def test_lp_pool(data: st.DataObject) -> None:
    count = data.draw(st.sampled_from([1, 2]))
    lead = data.draw(hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3))
    space = tuple(data.draw(st.integers(1, 7)) for _ in range(count))
    options = {
        "kernel_size": tuple(data.draw(st.integers(1, n)) for n in space),
        "stride": data.draw(st.sampled_from([None, 1, 2, 3, 5])),
        "ceil_mode": data.draw(st.booleans()),
        "norm_type": data.draw(st.sampled_from([0.5, 1, 1.5, 2, 3, 4.5, float("inf")])),
    }
    x = data.draw(views(lead + space))
    forward, backward = (getattr(bc, f"lp_pool{count}d{s}") for s in ("", "_backward"))
    agree(forward, [x], **options)
    y = forward(x, **options)
    agree(backward, [data.draw(views(y.shape)), x, y], **options)


@given(st.lists(st.integers(0, 5), max_size=4), st.lists(st.integers(0, 5), max_size=3))
def test_a_bound_signature_gives_back_its_shapes(b: list[int], c: list[int]) -> None:
    signature = parse("x[*b 2n@axis *c] -> y[*b n *c]")
    axes = {"b": tuple(b), "n": 3, "c": tuple(c)}
    assert signature.inputs[0].shape(axes) == (*b, 6, *c)
    assert signature.outputs[0].shape(axes) == (*b, 3, *c)
