"""What every op does where arithmetic is delicate: specials, tails, ends, ties, ranges, layouts."""

import itertools
import math
from fractions import Fraction
from typing import Any

import array_api_strict as strict
import jax
import jax.numpy as jnp
import ml_dtypes
import mpmath
import numpy as np
import pytest
import torch

import baracuda as bc

NAMESPACES = {"numpy": np, "torch": torch, "jax": jnp, "array_api_strict": strict}
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
DTYPES = [
    ("numpy", "float32"), ("numpy", "float64"), ("torch", "float32"), ("torch", "float64"),
    ("jax", "float32"), ("array_api_strict", "float32"), ("array_api_strict", "float64"),
]  # fmt: skip
NARROW = [
    ("numpy", "float16"), ("numpy", "bfloat16"), ("torch", "float16"), ("torch", "bfloat16"),
    ("jax", "float16"), ("jax", "bfloat16"),
]  # fmt: skip
every_dtype = pytest.mark.parametrize(("library", "dtype"), DTYPES)
every_library = pytest.mark.parametrize("library", NAMESPACES)


def every_library_with(name, cases, few):
    """Every library with every case; JAX, which compiles each anew, with the first `few`."""
    pairs = [(k, c) for k in NAMESPACES for c in list(cases)[: few if k == "jax" else None]]
    return pytest.mark.parametrize(("library", name), pairs)


@pytest.fixture(autouse=True)
def _forty_digits():
    with mpmath.workdps(40):
        yield


def array(library, values, dtype="float32"):
    """`values` as an array of a library; they are given in float64 and rounded once."""
    xp = NAMESPACES[library]
    if library == "numpy":
        return np.asarray(values).astype(getattr(ml_dtypes, dtype, None) or dtype)
    if library == "torch":
        return torch.tensor(np.asarray(values)).to(getattr(torch, dtype))
    return xp.asarray(np.asarray(values).astype(getattr(ml_dtypes, dtype, None) or dtype))


def values(x):
    """An array of any library, in float64 (or as it is, where it is not floating) of NumPy."""
    if isinstance(x, torch.Tensor):
        return x.double().numpy() if x.is_floating_point() else x.numpy()
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind in "fV" else x


def close(got, want, tolerance):
    """Equal to a relative tolerance, NaN and infinities in the same places."""
    np.testing.assert_allclose(values(got), want, rtol=tolerance, atol=0)


# gated

ACTIVATIONS = {
    "glu": torch.sigmoid,
    "reglu": torch.relu,
    "swiglu": torch.nn.functional.silu,
    "geglu": torch.nn.functional.gelu,
}
# Between -3 and -38 torch's gelu loses its digits by cancellation; there mpmath judges.
SPECIALS = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 200.0, -200.0]


@every_dtype
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_nan_and_infinity_propagate_as_in_the_product(name, library, dtype):
    a, b = (np.ravel(x) for x in np.meshgrid(SPECIALS, SPECIALS))
    with np.errstate(all="ignore"):
        want = torch.tensor(a) * ACTIVATIONS[name](torch.tensor(b))
    got = getattr(bc, name)(array(library, a, dtype), array(library, b, dtype))
    # -200 * sigmoid(-200) is not 0 in float64, and in float32 it is.
    tiny = (np.abs(b) == 200) & (np.sign(b) < 0)
    close(values(got)[~tiny], want.numpy()[~tiny], 64 * EPS[dtype])
    finite = tiny & np.isfinite(a)
    assert (np.abs(values(got)[finite]) < 1e-30).all()
    assert np.isnan(values(got)[tiny & np.isnan(a)]).all()


@pytest.mark.parametrize("name", [*ACTIVATIONS, "tanh"])
@every_dtype
def test_gates_far_from_0_have_finite_gradients(name, library, dtype):
    if name == "tanh":
        call, options = bc.geglu_backward, {"approximate": "tanh"}
    else:
        call, options = getattr(bc, f"{name}_backward"), {}
    b = np.asarray([50.0, 89.0, 150.0, 1e4, 1e13, 1e15, 1e30])
    a, dy = np.full(7, 3.0), np.full(7, 2.0)
    for sign in (1, -1):
        given = (array(library, x, dtype) for x in (dy, a, sign * b))
        da, db = (values(x) for x in call(*given, **options))
        if sign < 0:
            assert (np.abs(da) < 1e-10).all()
            assert (np.abs(db) < 1e-10).all()
        elif name == "glu":
            close(da, dy, 8 * EPS[dtype])
            assert (np.abs(db) < 1e-10).all()
        else:
            close(da, dy * values(array(library, b, dtype)), 8 * EPS[dtype])
            close(db, dy * a, 8 * EPS[dtype])


def gelu(b):
    return b * mpmath.erfc(-b / mpmath.sqrt(2)) / 2


def gelu_slope(b):
    density = mpmath.exp(-b * b / 2) / mpmath.sqrt(2 * mpmath.pi)
    return mpmath.erfc(-b / mpmath.sqrt(2)) / 2 + b * density


def tail(dtype):
    return np.concatenate([
        -np.linspace(0.03, 12.5 if dtype == "float32" else 36, 61), np.linspace(0.03, 9, 13)
    ])  # fmt: skip


@every_dtype
def test_geglu_keeps_its_relative_accuracy_in_the_tail(library, dtype):
    b = array(library, tail(dtype), dtype)
    exact = [mpmath.mpf(float(v)) for v in values(b)]
    ones = array(library, np.ones(len(exact)), dtype)
    got = values(bc.geglu(ones, b))
    da, db = (values(x) for x in bc.geglu_backward(ones, ones, b))
    for i, v in enumerate(exact):
        want, slope = gelu(v), gelu_slope(v)
        assert abs(got[i] - want) <= 8 * EPS[dtype] * abs(want), v
        assert abs(da[i] - want) <= 8 * EPS[dtype] * abs(want), v
        # Around -0.75 the slope is 0 by cancellation of these two.
        parts = abs(mpmath.erfc(-v / mpmath.sqrt(2)) / 2) + abs(slope)
        assert abs(db[i] - slope) <= 16 * EPS[dtype] * parts, v


@every_dtype
def test_the_sigmoid_keeps_its_relative_accuracy_on_both_sides(library, dtype):
    b = array(library, np.linspace(-80, 80, 81), dtype)
    ones = array(library, np.ones(81), dtype)
    got = values(bc.glu(ones, b))
    db = values(bc.glu_backward(ones, ones, b)[1])
    for i, v in enumerate(mpmath.mpf(float(v)) for v in values(b)):
        want = 1 / (1 + mpmath.exp(-v))
        assert abs(got[i] - want) <= 4 * EPS[dtype] * want
        slope = want / (1 + mpmath.exp(v))
        assert abs(db[i] - slope) <= 8 * EPS[dtype] * slope


@pytest.mark.parametrize(("library", "dtype"), NARROW)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_narrow_dtypes_compute_in_float32_and_round_once(name, library, dtype):
    rng = np.random.default_rng(0)
    dy, a, b = (array(library, rng.normal(size=50), dtype) for _ in range(3))
    wide = [array("numpy", values(x), "float64") for x in (dy, a, b)]
    op, backward = getattr(bc, name), getattr(bc, f"{name}_backward")
    for got, want in (
        (op(a, b), op(*wide[1:])),
        *zip(backward(dy, a, b), backward(*wide), strict=True),
    ):
        assert str(got.dtype).endswith(dtype)
        np.testing.assert_allclose(values(got), want, rtol=0.51 * EPS[dtype], atol=2.0**-24)


# lerp


@every_dtype
def test_lerp_meets_both_ends_exactly(library, dtype):
    a = array(library, [1e8, -3.1, 0.1, 1e-30, -0.7, 1e30], dtype)
    b = array(library, [0.1, 1e8, 0.3, -1e30, 1e-30, 0.7], dtype)
    assert np.array_equal(values(bc.lerp(a, b, weight=0)), values(a))
    assert np.array_equal(values(bc.lerp(a, b, weight=1)), values(b))
    assert np.array_equal(values(bc.lerp(a, a, weight=0.3)), values(a))


@every_library
def test_the_weight_keeps_the_precision_of_float64(library):
    dtype = "float32" if library == "jax" else "float64"
    zero, one = array(library, [0.0], dtype), array(library, [1.0], dtype)
    for weight in (1 / 3, 0.1, 2.0**-40, 1 - 2.0**-40, math.pi, -math.e, np.float64(0.7)):
        exact = float(weight)
        rounded = values(array(library, [exact], dtype))[0]
        assert abs(values(bc.lerp(zero, one, weight=weight))[0] - rounded) <= (
            EPS[dtype] * max(1, abs(exact)) if exact >= 0.5 else EPS[dtype] * abs(exact)
        )
        da, db = bc.lerp_backward(one, weight=weight)
        assert values(db)[0] == rounded
        assert values(da)[0] == values(array(library, [1 - exact], dtype))[0]


def test_lerp_is_within_two_roundings_of_the_exact_value():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 40))
    for weight in (0.1, 0.49, 0.5, 0.9, 1.7, -0.6):
        got = bc.lerp(a, b, weight=weight)
        for x, y, z in zip(a, b, got, strict=True):
            exact = Fraction(x) + Fraction(weight) * (Fraction(y) - Fraction(x))
            size = max(abs(x), abs(y), abs(y - x) * max(1, abs(weight)))
            assert abs(Fraction(z) - exact) <= Fraction(2 * EPS["float64"] * size)


# gather


def gathered(src, index, axis):
    out = np.zeros(index.shape, src.dtype)
    for at in np.ndindex(index.shape):
        if 0 <= index[at] < src.shape[axis]:
            out[at] = src[(*at[:axis], index[at], *at[axis + 1 :])]
    return out


def scattered(dout, index, axis, shape):
    out = np.zeros(shape, np.float64)
    for at in np.ndindex(index.shape):
        if 0 <= index[at] < shape[axis]:
            out[(*at[:axis], index[at], *at[axis + 1 :])] += dout[at]
    return out


GATHERS = {
    "rows": ((5, 4), (7, 4), 0),
    "columns": ((5, 4), (5, 9), 1),
    "smaller off the axis": ((5, 4, 6), (3, 8, 2), 1),
    "one row of many": ((6, 9), (1, 3), 1),
    "rank 1": ((5,), (11,), 0),
    "one entry": ((3, 4, 2), (1, 1, 1), 2),
    "none": ((3, 4), (3, 0), 1),
    "none off the axis": ((3, 4), (0, 2), 1),
}


@every_library_with("case", GATHERS, 1)
@pytest.mark.parametrize("mode", ["raise", "drop"])
def test_gather_and_its_gradient_are_the_loops_that_define_them(case, mode, library):
    shape, at, axis = GATHERS[case]
    rng = np.random.default_rng(2)
    src, dout = rng.normal(size=shape).astype("f"), rng.integers(-8, 9, size=at).astype("f")
    low, high = (0, shape[axis]) if mode == "raise" else (-3, shape[axis] + 3)
    index = rng.integers(low, high, size=at)
    for dtype in ("int32", *(["int64"] if library != "jax" else [])):
        where = array(library, index, dtype)
        got = bc.gather(array(library, src), where, axis=axis - len(shape), mode=mode)
        assert np.array_equal(values(got), gathered(src, index, axis))
        back = bc.gather_backward(
            array(library, dout), where, axis=axis, src_shape=shape, mode=mode
        )
        assert np.array_equal(values(back), scattered(dout, index, axis, shape))


@pytest.mark.parametrize("backend", [None, "array_api", "torch"])
def test_dropped_entries_touch_nothing_not_even_by_nan(backend):
    src = np.asarray([math.nan, math.inf, 3.0])
    index = np.asarray([-1, 3, 2, 99, -(2**40), 0])
    got = bc.gather(src, index, axis=0, mode="drop", backend=backend)
    np.testing.assert_array_equal(got, [0, 0, 3, 0, 0, math.nan])
    dout = np.asarray([math.nan, math.inf, 5.0, math.nan, -math.inf, 1.0])
    back = bc.gather_backward(dout, index, axis=0, src_shape=(3,), mode="drop", backend=backend)
    np.testing.assert_array_equal(back, [1, 0, 5])


@every_library
def test_entries_of_no_bag_have_no_gradient_whatever_the_table_holds(library):
    none, ids = (array(library, np.zeros(n), "int64") for n in (0, 3))
    table, dy = array(library, np.full((8, 1), math.nan)), array(library, np.zeros((0, 1)))
    shares = array(library, np.ones(3))
    got = bc.embedding_bag_backward(dy, ids, table, dy, none, shares, reduction="sum")
    for one in map(np.asarray, got):
        np.testing.assert_array_equal(one, np.zeros(one.shape))


@pytest.mark.parametrize("backend", [None, "array_api", "torch"])
def test_nan_and_infinity_stay_in_the_element_where_they_land(backend):
    dout = np.asarray([1.0, math.nan, 2.0, math.inf, -math.inf, math.inf, 4.0])
    index = np.asarray([0, 1, 2, 3, 4, 4, 0])
    got = bc.gather_backward(dout, index, axis=0, src_shape=(6,), backend=backend)
    np.testing.assert_array_equal(got, [5, math.nan, 2, math.inf, math.nan, 0])


@every_library
def test_gather_moves_every_dtype_unchanged(library):
    xp = NAMESPACES[library]
    raw = np.asarray([[0, 1, 2], [3, 100, 5]])
    kinds = ["bool", "int8", "int16", "int32", "uint8", "float32", "complex64"]
    kinds += [] if library == "jax" else ["int64", "float64", "complex128"]
    kinds += ["uint16", "uint32"] + ([] if library == "jax" else ["uint64"])
    kinds += [] if library == "array_api_strict" else ["float16", "bfloat16"]
    index = xp.asarray([[2, 0], [1, 1]])
    for kind in kinds:
        if library == "torch":
            src = torch.tensor(raw).to(getattr(torch, kind))
        elif kind == "bfloat16":
            src = array(library, raw, kind)
        else:
            src = xp.asarray(raw, dtype=getattr(xp, kind))
        got = bc.gather(src, index, axis=1)
        assert got.dtype == src.dtype
        assert type(got) is type(src)
        np.testing.assert_array_equal(
            np.asarray(got.tolist() if library == "torch" else got, dtype=complex),
            raw.astype(bool if kind == "bool" else int)[[[0], [1]], [[2, 0], [1, 1]]],
        )


@pytest.mark.parametrize(("library", "dtype"), NARROW)
@pytest.mark.parametrize("sparse", [False, True])
def test_gather_backward_sums_narrow_dtypes_in_float32(library, dtype, sparse):
    count = 4096 if dtype == "float16" else 512
    ones = array(library, np.ones(count), dtype)
    index = array(library, np.zeros(count), "int32")
    shape = (count * 16 if sparse else 2,)
    got = bc.gather_backward(ones, index, axis=0, src_shape=shape)
    assert str(got.dtype).endswith(dtype)
    assert values(got)[0] == count
    assert not values(got)[1:].any()


# lp_pool

POWERS = [0.3, 0.5, 1, 1.5, 2, 3, 3.5, 10, 100, math.inf]


def pooled(x, p, kernel, stride, ceil_mode):
    """`lp_pool1d` and the slopes of each window, by loops in extended precision."""
    starts = [s for s in range(0, len(x), stride) if s + kernel <= len(x)]
    if ceil_mode:
        last = starts[-1]
        starts += [s for s in [last + stride] if s < len(x) and last + kernel < len(x)]
    y, slopes = [], []
    for start in starts:
        cells = [mpmath.mpf(float(v)) for v in x[start : start + kernel]]
        largest = max(abs(v) for v in cells)
        ties = sum(abs(v) == largest for v in cells)
        norm = largest if p == math.inf else mpmath.fsum(abs(v) ** p for v in cells) ** (
            mpmath.mpf(1) / mpmath.mpf(p)
        )  # fmt: skip
        y.append(norm)
        for i, v in enumerate(cells):
            if v == 0 or norm == 0:
                slope = mpmath.mpf(0)
            elif p == math.inf:
                slope = mpmath.sign(v) / ties if abs(v) == largest else mpmath.mpf(0)
            else:
                slope = mpmath.sign(v) * (abs(v) / norm) ** (mpmath.mpf(p) - 1)
            slopes.append((len(y) - 1, start + i, slope))
    return y, slopes


def check_pool(library, dtype, x, p, kernel, stride, ceil_mode, tolerance=64):
    options = {"norm_type": p, "kernel_size": kernel, "stride": stride, "ceil_mode": ceil_mode}
    given = array(library, x, dtype)
    y, slopes = pooled(values(given), p, kernel, stride, ceil_mode)
    got = bc.lp_pool1d(given, **options)
    assert got.shape == (len(y),)
    for have, want in zip(values(got), y, strict=True):
        assert abs(have - want) <= tolerance * EPS[dtype] * abs(want), (p, x)
    dy = np.arange(1.0, len(y) + 1)
    dx = values(bc.lp_pool1d_backward(array(library, dy, dtype), given, got, **options))
    want, size = [mpmath.mpf(0)] * len(x), [mpmath.mpf(0)] * len(x)
    for window, cell, slope in slopes:
        want[cell] += slope * dy[window]
        size[cell] += abs(slope * dy[window])
    scale = tolerance * EPS[dtype] * (1 + (0 if p == math.inf else p))
    smallest, largest = float(np.finfo(dtype).smallest_normal), float(np.finfo(dtype).max)
    for have, expected, most in zip(dx, want, size, strict=True):
        if abs(expected) > largest:
            assert have == math.copysign(math.inf, expected), (p, x)
        else:
            assert abs(have - expected) <= scale * most + smallest, (p, x)


WINDOWS = [
    (9, 3, 2), (5, 2, 2), (7, 3, 3), (5, 1, 3), (5, 2, 4), (8, 3, 1), (4, 4, 4), (1, 1, 1),
    (7, 2, 5), (6, 2, 3),
]  # fmt: skip


@every_library_with("sizes", WINDOWS, 1)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_windows_sum_what_they_have_and_start_inside(library, sizes, ceil_mode):
    length, kernel, stride = sizes
    x = np.random.default_rng(length).normal(size=length)
    powers = POWERS if library == "numpy" else [1.5, 2, math.inf]
    for p in powers:
        check_pool(library, "float32", x, p, kernel, stride, ceil_mode)
        if library != "jax":
            check_pool(library, "float64", x, p, kernel, stride, ceil_mode)


def test_a_clipped_window_is_not_rescaled():
    x = np.asarray([3.0, 4.0, -7.0])
    for p in POWERS:
        got = bc.lp_pool1d(x, norm_type=p, kernel_size=2, ceil_mode=True)
        assert got[1] == pytest.approx(7, rel=1e-14)
    ones = np.ones((3, 3))
    got = bc.lp_pool2d(ones, norm_type=1, kernel_size=2, ceil_mode=True)
    np.testing.assert_array_equal(got, [[4, 2], [2, 1]])
    # The window at 6 would start outside.
    assert bc.lp_pool1d(np.ones(5), norm_type=1, kernel_size=1, stride=3, ceil_mode=True).size == 2


@every_dtype
@pytest.mark.parametrize("p", POWERS)
def test_pooling_is_accurate_from_1e_minus_30_to_1e30(library, dtype, p):
    scales = [1e-30, 1e-15, 1.0, 1e15, 1e30]
    for scale in scales if library == "numpy" else (1e-30, 1e30):
        check_pool(library, dtype, scale * np.asarray([3.0, -4.0, 0.5, 1.0]), p, 2, 2, False)
    check_pool(library, dtype, [1e30, -1e-30, 1e-30, 1e-15], p, 2, 1, False)


def test_pooling_in_float64_keeps_to_its_own_range():
    for p, scale in itertools.product((1, 1.5, 2, 7, math.inf), (1e-290, 1e290)):
        check_pool("numpy", "float64", scale * np.asarray([3.0, -4.0, 0.5, 1.0]), p, 2, 2, False)


@every_library
def test_ties_for_the_maximum_share_the_gradient_equally(library):
    x = array(library, [2.0, -2.0, 1.0, 0.0, 3.0, -3.0, 3.0, -3.0])
    y = bc.lp_pool1d(x, norm_type=math.inf, kernel_size=4)
    dy = array(library, [1.0, 8.0])
    dx = bc.lp_pool1d_backward(dy, x, y, norm_type=math.inf, kernel_size=4)
    assert values(y).tolist() == [2, 3]
    assert values(dx).tolist() == [0.5, -0.5, 0, 0, 2, -2, 2, -2]


@every_library_with("p", [1.5, 2, 0.5, 1, 3, math.inf], 2)
def test_a_window_of_zeros_has_no_gradient(library, p):
    x = array(library, [0.0, -0.0, 0.0, 5.0])
    y = bc.lp_pool1d(x, norm_type=p, kernel_size=2)
    dx = bc.lp_pool1d_backward(array(library, [7.0, 3.0]), x, y, norm_type=p, kernel_size=2)
    close(y, [0, 5], 1e-6)
    close(dx, [0, 0, 0, 3], 1e-6)


@every_library_with("p", [1.5, math.inf, 0.5, 1, 2, 3], 2)
def test_nan_and_infinity_stay_in_their_windows(library, p):
    options = {"norm_type": p, "kernel_size": 2, "stride": 1}
    x = array(library, [1.0, math.nan, 0.0, 2.0, 0.0, -math.inf, 1.0, 1.0])
    y = bc.lp_pool1d(x, **options)
    one = values(bc.lp_pool1d(array(library, [1.0, 1.0]), norm_type=p, kernel_size=2))[0]
    close(y, [math.nan, math.nan, 2, 2, math.inf, math.inf, one], 1e-6)
    dx = values(bc.lp_pool1d_backward(array(library, np.ones(7)), x, y, **options))
    # Cells 0, 1 and 2 share a window with the NaN; no window holds it and cell 3.
    assert np.isnan(dx[:3]).all()
    close(dx[3], 2, 1e-6)
    assert math.isfinite(dx[7])


@every_library
def test_a_nan_gradient_reaches_all_cells_of_its_window_and_no_other(library):
    x = array(library, [1.0, 2.0, 3.0, 4.0])
    y = bc.lp_pool1d(x, norm_type=2, kernel_size=2)
    dx = bc.lp_pool1d_backward(array(library, [math.nan, 1.0]), x, y, norm_type=2, kernel_size=2)
    assert np.isnan(values(dx)).tolist() == [True, True, False, False]


def test_cells_of_no_window_get_0_whatever_they_hold():
    x = np.asarray([1.0, math.nan, 2.0, math.inf, 3.0])
    options = {"norm_type": 2, "kernel_size": 1, "stride": 2}
    y = bc.lp_pool1d(x, **options)
    dx = bc.lp_pool1d_backward(np.ones(3), x, y, **options)
    assert dx.tolist() == [1, 0, 1, 0, 1]


# rope

LARGEST = 2**31 - 1
PLACES = [
    0, 1, 2, 3, 7, 100, 4095, 4096, 32767, 32768, 65535, 65536, 99_999, 1_000_003, 2**24 + 1,
    2**30, 2**30 + 12345, LARGEST - 1, LARGEST,
]  # fmt: skip
PLACES = [*PLACES, *(-p for p in PLACES[1:])]


def rotated(x, positions, base, interleaved=True, size=None, back=False):
    """`rope` of [S, D] in 60 digits, and the norm and the angle of the pair of each entry."""
    size = x.shape[-1] if size is None else size
    half = size // 2
    want = [[mpmath.mpf(float(v)) for v in row] for row in x]
    norm, angle = np.zeros(x.shape), np.zeros(x.shape)
    with mpmath.workdps(60):
        frequencies = [mpmath.mpf(base) ** (-mpmath.mpf(i) / half) for i in range(half)]
        for s, position in enumerate(positions):
            for i, frequency in enumerate(frequencies):
                first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
                a, b = (mpmath.mpf(float(x[s, j])) for j in (first, second))
                theta = int(position) * frequency * (-1 if back else 1)
                cos, sin = mpmath.cos(theta), mpmath.sin(theta)
                want[s][first], want[s][second] = a * cos - b * sin, a * sin + b * cos
                norm[s, [first, second]] = math.hypot(float(a), float(b))
                angle[s, [first, second]] = abs(float(theta))
    return want, norm, angle


def within_bound(got, reference, dtype):
    """4 eps of the pair's norm, in float64 also 4 * 2^-53 of the angle."""
    want, norm, angle = reference
    got = values(got)
    error = np.asarray(
        [[abs(float(mpmath.mpf(float(h)) - w)) for h, w in zip(row, r, strict=True)]
         for row, r in zip(got, want, strict=True)]
    )  # fmt: skip
    bound = 4 * EPS[dtype] * norm
    if dtype == "float64":
        bound += 4 * 2.0**-53 * angle * norm
    assert (error <= bound).all(), (error / np.where(norm, EPS[dtype] * norm, 1)).max()


@pytest.mark.parametrize(("library", "dtype"), DTYPES)
@pytest.mark.parametrize("base", [10000.0, 500000.0, 1.0, 0.25])
def test_rope_is_exact_to_4_eps_at_every_position(library, dtype, base):
    x = array(library, np.random.default_rng(3).normal(size=(len(PLACES), 8)), dtype)
    positions = array(library, PLACES, "int32")
    reference = rotated(values(x), PLACES, base)
    within_bound(bc.rope(x, positions, base=base), reference, dtype)
    reference = rotated(values(x), PLACES, base, back=True)
    within_bound(bc.rope_backward(x, positions, base=base), reference, dtype)


@pytest.mark.parametrize(("library", "dtype"), NARROW)
def test_rope_in_narrow_dtypes(library, dtype):
    x = array(library, np.random.default_rng(4).normal(size=(len(PLACES), 6)), dtype)
    positions = array(library, PLACES, "int32")
    within_bound(bc.rope(x, positions), rotated(values(x), PLACES, 10000.0), dtype)


@every_library_with("size", [4, None, 8, 2, 0], 1)
@pytest.mark.parametrize("interleaved", [True, False])
def test_pairs_are_neighbours_or_halves_and_the_rest_passes_through(library, interleaved, size):
    x = array(library, np.random.default_rng(5).normal(size=(5, 8)))
    options = {"interleaved": interleaved, "rotary_dim": size, "base": 100.0}
    got = bc.rope(x, **options)
    reference = rotated(values(x), range(5), 100.0, interleaved, size)
    rest = slice(8 if size is None else size, None)
    assert np.array_equal(values(got)[:, rest], values(x)[:, rest])
    reference[1][:, rest] = 1
    within_bound(got, reference, "float32")
    back = bc.rope_backward(got, **options)
    np.testing.assert_allclose(values(back), values(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_positions_count_from_0_by_default_however_long_the_sequence(library):
    x = array(library, np.ones((70_000, 2)))
    got = values(bc.rope(x, base=10000.0))
    places = [0, 1, 2, 32768, 65535, 65536, 69_999]
    within_bound(got[places], rotated(values(x)[places], places, 10000.0), "float32")
    assert np.array_equal(got, values(bc.rope(x, array(library, np.arange(70_000), "int32"))))


@every_library_with("shape", [(2, 1, 5), (2, 3, 5), (1, 3, 5), (2, 3, 1), (1, 1, 5), (5,)], 1)
def test_positions_of_rank_n_minus_1_broadcast_over_the_batch(library, shape):
    rng = np.random.default_rng(6)
    x = rng.normal(size=(2, 3, 5, 4)).astype("f")
    positions = rng.integers(-(2**31) + 1, 2**31, size=shape)
    got = values(bc.rope(array(library, x), array(library, positions, "int32")))
    wide = np.broadcast_to(positions, (2, 3, 5)).astype(np.int32)
    for at in np.ndindex(2, 3):
        np.testing.assert_allclose(got[at], bc.rope(x[at], wide[at]), rtol=1e-5, atol=1e-6)


@every_library_with("axis", [-3, 0, 1, 2, -2, -4], 1)
def test_any_axis_but_the_last_is_the_sequence(library, axis):
    x = np.random.default_rng(7).normal(size=(4, 3, 5, 6)).astype("f")
    positions = np.arange(x.shape[axis]) * 1000 - 7
    got = bc.rope(array(library, x), array(library, positions, "int32"), seq_axis=axis)
    moved = np.moveaxis(x, axis, -2)
    want = np.moveaxis(bc.rope(np.ascontiguousarray(moved), positions), -2, axis)
    np.testing.assert_allclose(values(got), want, rtol=1e-5, atol=1e-6)
    implied = bc.rope(array(library, x), seq_axis=axis)
    want = np.moveaxis(bc.rope(np.ascontiguousarray(moved)), -2, axis)
    np.testing.assert_allclose(values(implied), want, rtol=1e-5, atol=1e-6)


@every_library
def test_a_nan_stays_in_its_pair(library):
    x = np.ones((3, 6), np.float32)
    x[1, 2] = math.nan
    got = np.isnan(values(bc.rope(array(library, x))))
    assert np.argwhere(got).tolist() == [[1, 2], [1, 3]]


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
def test_int64_positions_are_int32_positions(library):
    x = array(library, np.random.default_rng(8).normal(size=(len(PLACES), 4)))
    wide, narrow = (array(library, PLACES, kind) for kind in ("int64", "int32"))
    assert np.array_equal(values(bc.rope(x, wide)), values(bc.rope(x, narrow)))


# empty arrays, ranks, floating-point state, layouts


def everything(library, lead, dtype="float32"):
    """Every public function on arrays whose leading axes are `lead`, as (inputs, result)."""
    full = lambda *shape: array(library, np.ones((*lead, *shape)), dtype)  # noqa: E731
    index = array(library, np.zeros((*lead, 3)), "int32")
    shape = (*lead, 8)
    pool1 = {"norm_type": 2, "kernel_size": 2}
    yield shape, bc.gather(full(8), index, axis=-1), (*lead, 3)
    yield "gather_backward", bc.gather_backward(full(3), index, axis=-1, src_shape=shape), shape
    for name in ACTIVATIONS:
        op, backward = getattr(bc, name), getattr(bc, f"{name}_backward")
        yield name, op(full(8)), (*lead, 4)
        yield name, op(full(8), full(8)), shape
        yield name, backward(full(4), full(8)), shape
        for part in backward(full(8), full(8), full(8)):
            yield name, part, shape
    yield "lerp", bc.lerp(full(8), full(8), weight=0.3), shape
    for part in bc.lerp_backward(full(8), weight=0.3):
        yield "lerp_backward", part, shape
    yield "rope", bc.rope(full(5, 8)), (*lead, 5, 8)
    yield "rope_backward", bc.rope_backward(full(5, 8)), (*lead, 5, 8)
    yield "lp_pool1d", bc.lp_pool1d(full(8), **pool1), (*lead, 4)
    yield "1d_backward", bc.lp_pool1d_backward(full(4), full(8), full(4), **pool1), shape
    yield "lp_pool2d", bc.lp_pool2d(full(4, 8), **pool1), (*lead, 2, 4)
    two = bc.lp_pool2d_backward(full(2, 4), full(4, 8), full(2, 4), **pool1)
    yield "2d_backward", two, (*lead, 4, 8)


@every_library_with("lead", [(0,), (2, 0), (0, 3)], 1)
def test_empty_arrays_give_empty_results(library, lead):
    for name, got, shape in everything(library, lead):
        assert tuple(got.shape) == shape, name
        assert str(got.dtype).endswith("float32"), name


@every_library
def test_empty_axes_are_split_rotated_and_gathered(library):
    make = lambda *shape: array(library, np.ones(shape))  # noqa: E731
    none = array(library, np.ones((2, 0)), "int32")
    assert tuple(bc.swiglu(make(2, 0)).shape) == (2, 0)
    assert tuple(bc.swiglu_backward(make(2, 0), make(2, 0)).shape) == (2, 0)
    assert tuple(bc.rope(make(3, 0)).shape) == (3, 0)
    assert tuple(bc.rope(make(0, 4)).shape) == (0, 4)
    assert tuple(bc.rope(make(0, 4), array(library, np.ones(0), "int32")).shape) == (0, 4)
    assert tuple(bc.gather(make(2, 0), none, axis=1).shape) == (2, 0)
    put = bc.gather_backward(make(2, 0), none, axis=1, src_shape=(2, 3))
    assert values(put).tolist() == [[0, 0, 0], [0, 0, 0]]
    put = bc.gather_backward(make(2, 0), none, axis=1, src_shape=(2, 0))
    assert tuple(put.shape) == (2, 0)
    assert tuple(bc.lp_pool2d(make(0, 2, 2), norm_type=2, kernel_size=2).shape) == (0, 1, 1)


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
def test_ranks_beyond_8(library):
    lead = (1, 2, 1, 1, 2, 1, 1, 1, 2)
    for name, got, shape in everything(library, lead):
        assert tuple(got.shape) == shape, name


def test_elementwise_ops_take_rank_0():
    assert bc.lerp(np.float64(3), np.float64(4), weight=0.5) == 3.5
    da, db = bc.lerp_backward(np.ones(()), weight=0.25)
    assert (float(da), float(db)) == (0.75, 0.25)
    assert da.shape == db.shape == ()


@pytest.mark.parametrize(
    ("backend", "size"),
    [(None, 40), (None, 20_000), ("array_api", 40), ("array_api", 20_000), ("torch", 40)],
)
def test_floating_point_state_neither_leaks_nor_matters(backend, size):
    rng = np.random.default_rng(9)
    # Inexact, underflow, overflow, division by zero and invalid all happen on the way.
    x = (rng.normal(size=(4, size)) * 10.0 ** rng.integers(-38, 38, size=(4, size))).astype("f")
    x[0, ::7], x[1, ::5], x[2, ::3] = 0, math.inf, math.nan
    dy, index = x[:, : size // 2], np.tile(np.arange(size // 2), (4, 1))

    def run():
        with bc.options(backend=backend):
            yield from (bc.swiglu(x), bc.geglu(x), bc.glu(x), bc.reglu(x))
            yield bc.geglu(x, approximate="tanh")
            yield bc.swiglu_backward(dy, x)
            yield bc.geglu_backward(dy, x)
            yield bc.geglu_backward(dy, x, approximate="tanh")
            yield from bc.lerp_backward(x, weight=1e30)
            yield bc.lerp(x, -x, weight=0.7)
            yield bc.rope(x)
            for p in (0.5, 1.5, 2, 3, math.inf):
                y = bc.lp_pool1d(x, norm_type=p, kernel_size=2)
                yield y
                yield bc.lp_pool1d_backward(y, x, y, norm_type=p, kernel_size=2)
            yield bc.gather(x, index, axis=1)
            yield bc.gather_backward(dy, index, axis=1, src_shape=x.shape)

    want = list(run())
    before = np.geterr()
    with np.errstate(all="raise"):
        inside = np.geterr()
        got = list(run())
        assert np.geterr() == inside
    assert np.geterr() == before
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def dense(shape, order):
    """An array of NumPy whose axes lie in memory in this order, the slowest first."""
    x = np.random.default_rng(10).normal(size=[shape[i] for i in order]).astype("f")
    return x.transpose(np.argsort(order))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("backend", [None, "array_api"])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("size", [4, 60])
def test_elementwise_ops_and_ropes_keep_a_dense_layout(library, backend, order, size):
    x, half = dense((3, size, 8 * size), order), dense((3, size, 4 * size), order)
    if library == "torch":
        x, half = torch.as_tensor(x), torch.as_tensor(half)
    strides = (lambda t: t.stride()) if library == "torch" else (
        lambda t: tuple(s // 4 for s in t.strides)
    )  # fmt: skip
    with bc.options(backend=backend):
        assert strides(bc.lerp(x, x, weight=0.3)) == strides(x)
        assert [strides(d) for d in bc.lerp_backward(x, weight=0.3)] == [strides(x)] * 2
        assert strides(bc.swiglu(x)) == strides(half)
        assert strides(bc.geglu(x, x)) == strides(x)
        assert strides(bc.reglu_backward(half, x)) == strides(x)
        c_order = half.contiguous() if library == "torch" else np.ascontiguousarray(half)
        assert strides(bc.glu_backward(c_order, x)) == strides(x)
        assert strides(bc.rope(x)) == strides(bc.rope_backward(x, seq_axis=0)) == strides(x)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
def test_other_ops_and_undense_inputs_give_c_order(library, order):
    x, index = dense((4, 6, 8), order), dense((4, 6, 3), order).argsort(axis=-1)
    whole = dense((4, 6, 16), order)
    if library == "torch":
        x, index, whole = (torch.as_tensor(v) for v in (x, index, whole))
    pool = {"norm_type": 2, "kernel_size": 2}
    y = bc.lp_pool1d(x, **pool)
    y2 = bc.lp_pool2d(x, **pool)
    taken = bc.gather(x, index, axis=2)
    parts = whole[..., ::2]
    for got in (
        y, y2, taken, bc.rope(parts), bc.rope_backward(parts),
        bc.lp_pool1d_backward(y, x, y, **pool), bc.lp_pool2d_backward(y2, x, y2, **pool),
        bc.gather_backward(taken, index, axis=2, src_shape=(4, 6, 8)),
        bc.swiglu(parts), bc.lerp(parts, parts, weight=0.3), *bc.lerp_backward(parts, weight=0.3),
    ):  # fmt: skip
        assert got.is_contiguous() if library == "torch" else got.flags.c_contiguous


def test_no_result_is_a_view_of_an_input():
    x = np.ones((4, 8))
    for got in (
        bc.lerp(x, x, weight=0), bc.lerp(x, x, weight=1), *bc.lerp_backward(x, weight=1),
        bc.rope(x, rotary_dim=0), bc.lp_pool1d(x, norm_type=1, kernel_size=1),
        bc.gather(x, np.tile(np.arange(8), (4, 1)), axis=1),
    ):  # fmt: skip
        assert not np.shares_memory(got, x)
        got += 1
    assert (x == 1).all()


def test_traced_code_drops_what_it_cannot_raise():
    src, index = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([2, 3, -1, 0])
    taken = jax.jit(lambda s, i: bc.gather(s, i, axis=0))(src, index)
    assert taken.tolist() == [3, 0, 0, 1]
    put = jax.jit(lambda d, i: bc.gather_backward(d, i, axis=0, src_shape=(3,)))(
        jnp.asarray([1.0, 2.0, 3.0, 4.0]), index
    )
    assert put.tolist() == [4, 0, 1]
    batch = torch.func.vmap(lambda s, i: bc.gather(s, i, axis=0))
    got = batch(torch.tensor([[1.0, 2.0]]), torch.tensor([[1, 2, -5]]))
    assert got.tolist() == [[2, 0, 0]]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_index_that_repeats_along_its_axis_is_no_line_of_that_axis(library):
    """As many rows as entries along the axis: what varies is the row, not the place in it."""
    xp, index = NAMESPACES[library], [[2], [0], [1]]
    src = xp.reshape(xp.arange(12.0), (3, 4))
    at = xp.broadcast_to(xp.asarray(index), (3, 3))
    assert bc.gather(src, at, axis=1).tolist() == [[2.0] * 3, [4.0] * 3, [9.0] * 3]
    put = bc.gather_backward(src[:, :3], at, axis=1, src_shape=(3, 4))
    assert put.tolist() == [[0, 0, 3, 0], [15, 0, 0, 0], [0, 27, 0, 0]]


@every_library
@pytest.mark.parametrize("p", [0.5, 1.5, 2, math.inf])
def test_a_cell_of_zero_beside_an_infinite_one_has_no_slope(library, p):
    xp = NAMESPACES[library]
    x, dy = xp.asarray([math.inf, 0.0, 1.0]), xp.asarray([1.0])
    options = {"norm_type": p, "kernel_size": 3}
    y = bc.lp_pool1d(x, **options)
    assert float(y[0]) == math.inf
    assert float(bc.lp_pool1d_backward(dy, x, y, **options)[1]) == 0


@pytest.mark.parametrize("xp", [np, torch, jnp], ids=["numpy", "torch", "jax"])
def test_either_cotangent_of_log_probabilities_may_be_left_out(xp: Any) -> None:
    rng = np.random.default_rng(0)
    made = [rng.standard_normal(s).astype(np.float32) for s in ((3,), (3, 4), (5, 4), (3, 5))]
    pull, hidden, weight, logits = map(xp.asarray, made)
    target, none = xp.asarray(np.array([0, 4, 2])), xp.zeros_like(pull)
    for op, arrays in (
        (bc.log_prob_backward, (logits, target)),
        (bc.linear_log_prob_backward, (hidden, weight, target)),
        (bc.linear_log_prob_with_gradient, (hidden, weight, target)),
    ):
        for left_out, zeros in (((None, pull), (none, pull)), ((pull, None), (pull, none))):
            got, want = op(*left_out, *arrays), op(*zeros, *arrays)
            # Without a cotangent of entropies there are no entropies, but the same gradients.
            more, full = (x[-2:] if isinstance(x, tuple) else (x,) for x in (got, want))
            for x, y in zip(more, full, strict=True):
                np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-5, atol=1e-6)
    assert bc.log_prob_backward.plan(None, pull, logits, target).sku.op == "log_prob_backward"
    with pytest.raises(TypeError, match="dlog_prob: expected an array"):
        bc.log_prob_backward(None, None, logits, target)
