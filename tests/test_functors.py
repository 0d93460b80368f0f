"""Every functor, compiled for the host, against extended precision over edge values."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import emulator
import ml_dtypes
import numpy as np
import plannable
import pytest
from mpmath import mp, mpf
from numpy.typing import ArrayLike, NDArray

import baracuda
from baracuda.backends.cuda.schedules.window import _norm
from baracuda.calls import sets
from baracuda.calls.op import registry
from baracuda.declaration.shapes import Signature
from baracuda.declaration.spec import OpSpec
from baracuda.families.rotation import Frequencies
from baracuda.testing.cases import options_of

SOURCES = Path(baracuda.__file__).parent / "cuda_src"
HERE = Path(__file__).parent

TYPES: dict[str, type[np.floating[Any]]] = {"f32": np.float32, "f64": np.float64}
EPS = {kind: float(np.finfo(t).eps) for kind, t in TYPES.items()}
WIDE = np.longdouble
MAGNITUDES = (
    0.0, 1e-30, 1e-20, 1e-8, 1e-3, 0.3, 0.5, 1.0, 1.7, 2.5, 4.0, 5.5, 8.0, 12.0, 13.0, 20.0, 36.0,
    40.0, 88.0, 103.0, 700.0, 1e4, 1e18, 1e30,
)  # fmt: skip
EDGES = (*MAGNITUDES, *(-x for x in MAGNITUDES), math.inf, -math.inf, math.nan)
# Schedules of functors that take elements one by one.
FORMULAS = ("elementwise", "reduce", "rope", "window", "window_backward")
POWERS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, math.inf)

each_type = pytest.mark.parametrize("kind", list(TYPES))
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def forms(spec: OpSpec) -> list[Signature]:
    """The last form of each functor."""
    return list({spec.form_end(form): form for form in spec.signatures}.values())


@dataclass(frozen=True)
class Elementwise:
    """An elementwise op and one of its functors."""

    op: str
    options: Mapping[str, Any]
    form: Signature

    @property
    def spec(self) -> OpSpec:
        return registry[self.op].spec

    @property
    def functor(self) -> str:
        kernel = self.spec.kernel
        assert kernel is not None
        ends = [end.title() for end in self.options.values() if end != "none"]
        return kernel.functor + "".join(ends) + self.spec.form_end(self.form)

    @property
    def given(self) -> tuple[str, ...]:
        """The optional arrays that the form takes."""
        return tuple(n for n in self.spec.optional if n in self.form.names)

    def __str__(self) -> str:
        return self.functor


ELEMENTWISE = [
    Elementwise(name, options, form)
    for name, op in registry.items()
    # What takes random words is tried in the emulator, where they are drawn.
    if op.spec.kernel and op.spec.kernel.schedule in ("elementwise", "reduce")
    # What is a sum of all elements has no element of its own.
    if not sets.summed(op.spec)
    for options in plannable.functors(op.spec)
    for form in forms(op.spec)
    if not op.spec.numbers(form)
]


# Losses of pairs, each with values of its run-time value: their bodies hold in extended precision.
_OWN = {"beta": (0.0, 0.7), "delta": (0.7,), "log_target": (0.0, 1.0)}
LOSSES: list[tuple[Elementwise, float | None]] = [
    (one, value)
    for one in ELEMENTWISE
    if one.spec.category == "loss" and "reduction" in one.spec.options
    for value in _OWN.get(next(iter(one.spec.scalars), ""), (None,))
]
# What a weight of an element, or of a positive target, is beside all that the others are.
_WEIGHTS = (0.0, 0.3, 2.5)


def elementwise() -> str:
    """What functors.cpp is told about elementwise ops."""
    files = sorted({e.spec.kernel.file for e in ELEMENTWISE if e.spec.kernel})
    kinds = {"d": "f64", "q": "i64", "Q": "u64"}
    lines = [
        f"FUNCTOR({e.functor}, "
        f"{', '.join(f'{kinds[code]}(more[{i}])' for i, code in enumerate(e.spec.codes))})"
        for e in ELEMENTWISE
    ]
    return "".join(f'#include "{file}"\n' for file in files) + (
        f"#define ELEMENTWISE {' '.join(lines)}\n"
    )


@pytest.fixture(scope="session")
def functors() -> ctypes.CDLL:
    """All functors as C functions."""
    # No contraction: what the sources do not fuse themselves stays as it is written.
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-Wall", f"-I{SOURCES}", f"-I{HERE}"]
    text = elementwise() + '#include "functors.cpp"\n'
    return emulator.shared_object(
        text, flags, HERE / "functors.cpp", *sorted(SOURCES.rglob("*.cu*"))
    )


def address(x: NDArray[Any]) -> ctypes.c_void_p:
    return x.ctypes.data_as(ctypes.c_void_p)


def call(
    functors: ctypes.CDLL, name: str, kind: str, x: ArrayLike, outputs: int, *more: float
) -> NDArray[Any]:
    """The outputs of a functor for each column of `x`; `kind` is a type, or "quick"."""
    real = TYPES.get(kind, np.float32)
    x = np.ascontiguousarray(x, real)
    y = np.full((outputs, x.shape[-1]), np.nan, real)
    count, scalars = ctypes.c_int64(x.shape[-1]), (ctypes.c_double * max(len(more), 1))(*more)
    getattr(functors, f"{name}_{kind}")(address(x), address(y), count, scalars)
    return y


def exactly(x: ArrayLike, kind: str) -> NDArray[Any]:
    """Values of the type, in extended precision."""
    return np.asarray(x, TYPES[kind]).astype(WIDE)


def errors(got: NDArray[Any], want: Any, scale: Any, kind: str) -> NDArray[Any]:
    """In eps of `scale`; 0 where both are NaN or the same infinity, inf where only one is."""
    got, want, limit = got.astype(WIDE), np.asarray(want, WIDE), np.finfo(TYPES[kind]).max
    want = np.where(np.abs(want) > limit, np.copysign(WIDE(np.inf), want), want)
    # At the end of the range a rounding decides between the largest number and infinity.
    near = (np.abs(got) > limit / 1.0001) & (np.abs(want) > limit / 1.0001)
    same = (got == want) | (np.isnan(got) & np.isnan(want)) | near
    error = np.abs(got - want) / (EPS[kind] * np.abs(scale))
    return np.where(same, 0, np.where(np.isnan(error), np.inf, error))


def normal(x: Any, kind: str) -> NDArray[Any]:
    """Whether the type holds `x` in full precision: 0, not finite, or inside of its range."""
    size, info = np.abs(x), np.finfo(TYPES[kind])
    inside = (size > 2 * WIDE(info.smallest_normal)) & (size < WIDE(info.max) / 2)
    return np.asarray(inside | (size == 0) | ~np.isfinite(x))


def test_every_functor_is_tested(functors: ctypes.CDLL) -> None:
    for name, op in registry.items():
        random = all(map(op.spec.numbers, op.spec.signatures))
        if op.spec.kernel is None or random or sets.summed(op.spec):
            continue
        functor, formula = op.spec.kernel.functor, op.spec.kernel.schedule in FORMULAS
        ends = [""] if op.spec.category != "pooling" else ["_1", "_2", "_REAL", "_INFINITE"]
        for end, kind in product(ends if formula else [], TYPES):
            assert hasattr(functors, f"{functor}{end}_{kind}"), name


# Elementwise ops, each against its body in float64.

# What the others are while one input is at its edges.
COMMON = (1.0, -0.7, 2.5)


def columns(form: Signature, kind: str) -> list[NDArray[Any]]:
    """Edge values of each input in turn, in float64."""
    inputs = range(len(form.inputs))
    points = {p for i in inputs for p in product(*[EDGES if i == k else COMMON for k in inputs])}
    return [exactly(c, kind).astype(np.float64) for c in zip(*sorted(points), strict=True)]


def of_body(one: Elementwise, x: list[NDArray[Any]], options: Mapping[str, Any]) -> Any:
    """The outputs of the body, stacked."""
    out = one.spec.body(*x, **options)
    return np.stack(out if isinstance(out, tuple) else (out,))


@each_type
@pytest.mark.parametrize("one", [e for e in ELEMENTWISE if e.spec.category != "loss"], ids=str)
def test_an_elementwise_functor_is_its_body(
    functors: ctypes.CDLL, one: Elementwise, kind: str
) -> None:
    spec, form = one.spec, one.form
    where: dict[str, Any] = {"axis": 0, "gate_first": False} if spec.packed else {}
    where |= {chosen.option: chosen.value == "True" for chosen in form.conditions}
    tried = {tuple((k, options_of(spec, c)[k]) for k in spec.scalars if k in c.options)
             for c in spec.cases}  # fmt: skip
    for given in tried:
        scalars = {k: dict(given).get(k, spec.defaults.get(k)) for k in spec.scalars}
        options = {**where, **one.options, **scalars}
        x = columns(form, kind)
        want = of_body(one, x, options)
        got = call(functors, one.functor, kind, x, len(want), *scalars.values())
        # How far a rounding of the inputs moves the result, to the side without a jump.
        shift = np.zeros(want.shape)
        for i, column in enumerate(x):
            sides = [
                of_body(one, [*x[:i], column * (1 + s * EPS[kind]), *x[i + 1 :]], options)
                for s in (1, -1)
            ]
            shift += np.nanmin([np.abs(side - want) for side in sides] + [want * 0 + np.inf], 0)
        shift = np.where(np.isfinite(shift), shift, 0)
        scale = np.abs(want) + shift / EPS[kind] + np.finfo(TYPES[kind]).smallest_normal / EPS[kind]
        error = np.where(normal(want, kind), errors(got, want, scale, kind), 0)
        # Where a factor is 0 in this type alone, inf and NaN are those of the body in this type.
        own = of_body(one, [column.astype(TYPES[kind]) for column in x], options)
        error = np.where(~np.isfinite(got) & ((got == own) | np.isnan(own)), 0, error)
        # Where one result overflows in this type alone, others that are made from it are so too.
        beyond = (np.isinf(own) & np.isfinite(want)).any(0)
        error = np.where(beyond, errors(got, own, np.abs(own) + shift, kind), error)
        i, j = np.unravel_index(np.argmax(error), error.shape)
        at = [float(column[j]) for column in x]
        assert error[i, j] < 8, (options, at, got[i, j], want[i, j], error[i, j])


@each_type
@pytest.mark.parametrize("alpha", [-0.75, -0.1, -3.0, 0.75])
def test_celu_bends_either_way(functors: ctypes.CDLL, alpha: float, kind: str) -> None:
    """Of a negative alpha the exponential is that of positive numbers, down to the least."""
    x = exactly(-np.exp(np.linspace(-60, 5, 4000)), kind)
    t = x / WIDE(TYPES[kind](alpha))
    x, t = x[t < 88], t[t < 88]
    want, slope = WIDE(TYPES[kind](alpha)) * np.expm1(t), np.exp(t)
    # What the roundings of the argument move, at most twice.
    for name, ins, exact in (("Celu", [x], want), ("CeluBackward", [x * 0 + 1, x], slope)):
        got = call(functors, name, kind, ins, 1, alpha)[0]
        scale = np.abs(exact) + 2 * np.abs(t * slope)
        error = np.where(normal(exact, kind), errors(got, exact, scale, kind), 0)
        assert error.max() < 3, (name, float(t[np.argmax(error)]))
    ends = call(functors, "Celu", kind, [[-np.inf, np.nan, -0.0, 2.0]], 1, alpha)[0]
    assert np.array_equal(ends, [-np.inf if alpha < 0 else -alpha, np.nan, 0, 2], equal_nan=True)


# What elements of 16 bits are computed by, before they are rounded to these.

NARROW = ("float16", "bfloat16")
each_narrow = pytest.mark.parametrize("dtype", NARROW)


def narrow(dtype: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def everything(dtype: str) -> NDArray[np.float64]:
    """All numbers of a type of 16 bits."""
    return np.arange(1 << 16, dtype=np.uint16).view(narrow(dtype)).astype(np.float64)


def off(got: NDArray[Any], want: NDArray[Any], scale: NDArray[Any], dtype: str) -> NDArray[Any]:
    """In units in the last place of `scale` in the type; 0 where both are NaN or the same."""
    info = ml_dtypes.finfo(narrow(dtype))
    unit = np.exp2(np.floor(np.log2(np.maximum(scale, info.smallest_normal)))) * float(info.eps)
    same = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(want) > float(info.max))
    # float32 has no more subnormals than bfloat16, and need not have these.
    small = np.abs(want) < 2 * np.finfo(np.float32).smallest_normal
    error = np.where(same | small, 0, np.abs(got - want) / unit)
    return np.where(np.isnan(error), np.inf, error)


@each_narrow
@pytest.mark.parametrize(
    "one", [e for e in ELEMENTWISE if len(e.spec.signatures[-1].inputs) == 1], ids=str
)
def test_sixteen_bits_lose_thousandths_of_a_unit(
    functors: ctypes.CDLL, one: Elementwise, dtype: str
) -> None:
    scalars = {k: one.spec.defaults.get(k, 0.3) for k in one.spec.scalars}
    x = everything(dtype)
    want = of_body(one, [x], {**one.options, **scalars})
    got = call(functors, one.functor, "quick", x, len(want), *scalars.values())
    error = off(got.astype(np.float64), want, np.abs(want), dtype)
    i, j = np.unravel_index(np.argmax(error), error.shape)
    assert error[i, j] < 0.003, (x[j], got[i, j], want[i, j], error[i, j])


@each_narrow
def test_gelu_beside_another_input_loses_hundredths_of_a_unit(
    functors: ctypes.CDLL, dtype: str
) -> None:
    x = everything(dtype)
    # Far below 0 the exponential is no normal number of float32, and the device has 0.
    low = np.exp(-x * x / 2) < np.finfo(np.float32).smallest_normal
    x = x[np.isfinite(x) & ~((x < 0) & low)]
    cdf = np.vectorize(math.erfc)(-x / math.sqrt(2)) / 2
    bend = x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    for name, want, scale in (
        ("Geglu", x * cdf, np.abs(x * cdf)),
        ("GeluBackward", cdf + bend, cdf + np.abs(bend)),
    ):
        got = call(functors, name, "quick", [np.ones_like(x), x], 1)[0].astype(np.float64)
        error = off(got, want, scale, dtype)
        assert error.max() < 0.01, (name, x[error.argmax()], error.max())


@each_narrow
@pytest.mark.parametrize(
    "one", [e for e in ELEMENTWISE
            if e.op in ("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")],
    ids=str,
)  # fmt: skip
def test_losses_of_sixteen_bits(functors: ctypes.CDLL, one: Elementwise, dtype: str) -> None:
    every, rng, spec, op = everything(dtype), np.random.default_rng(5), one.spec, one.op
    share = every[(every >= 0) & (every <= 1)]
    first = every[np.abs(every) < 80] if "logits" in op else -every[every > 0]
    first = share if op == "binary_cross_entropy" else first
    x, t = rng.choice(first, 200_000), rng.choice([0.0, 1.0, 0.5], 200_000)
    t = np.where(rng.random(len(t)) < 0.5, t, rng.choice(share, len(t)))
    calm = normal(x, "f32") & normal(t, "f32")
    more = {n: rng.choice([0.5, 1.75, 4.0], calm.sum()) for n in one.given}
    x, t = x[calm], t[calm]
    with np.errstate(all="ignore"):
        options = {"reduction": "none", **dict.fromkeys(spec.scalars, 0.0)}
        arrays = [more.get(n) for n in spec.optional]
        want = np.asarray(spec.body(x, t, *arrays, **options))
    inputs = [x, t, *more.values()]
    got = call(functors, one.functor, "quick", inputs, 1, 0.0)[0].astype(np.float64)
    # What cancels does so in any precision.
    size = np.prod([x, t, *more.values()], axis=0)
    scale = np.abs(want) + (0 if op == "binary_cross_entropy" else np.abs(size))
    error = off(got, want, scale, dtype)
    i = int(np.argmax(error))
    assert error[i] < 0.003, (x[i], t[i], got[i], want[i])


# Gated: the weight of `a` and its slope, and the size of what is added up in the slope.


@cache
def distribution(kind: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """The normal distribution function and density at `EDGES`."""
    mp.dps = 40
    edges = exactly(EDGES, kind)
    cdf = [
        mp.erfc(-mpf(float(b)) / mp.sqrt(2)) / 2 if np.isfinite(b) else mpf(float(b > 0))
        for b in edges
    ]
    pdf = [
        mp.exp(-(mpf(float(b)) ** 2) / 2) / mp.sqrt(2 * mp.pi) if np.isfinite(b) else mpf(0)
        for b in edges
    ]
    wide = (np.array([WIDE(mp.nstr(v, 30)) for v in values]) for values in (cdf, pdf))
    return tuple(np.where(np.isnan(edges), edges, values) for values in wide)  # type: ignore[return-value]


def glu(b: Any, kind: str) -> tuple[Any, Any, Any]:
    on, off = 1 / (1 + np.exp(-b)), 1 / (1 + np.exp(b))
    return on, on * off, on * off


def swiglu(b: Any, kind: str) -> tuple[Any, Any, Any]:
    on, off = 1 / (1 + np.exp(-b)), 1 / (1 + np.exp(b))
    return b * on, on * (1 + b * off), on * (1 + np.abs(b * off))


def reglu(b: Any, kind: str) -> tuple[Any, Any, Any]:
    slope = np.where(b <= 0, 0, WIDE(1))
    return np.where(b <= 0, 0, b), slope, slope


def geglu(b: Any, kind: str) -> tuple[Any, Any, Any]:
    cdf, pdf = (np.tile(v, len(b) // len(v)) for v in distribution(kind))
    return b * cdf, cdf + b * pdf, cdf + np.abs(b * pdf)


GATED = {"Glu": glu, "Reglu": reglu, "Swiglu": swiglu, "Geglu": geglu}


@each_type
@pytest.mark.parametrize("name", list(GATED))
def test_gated(functors: ctypes.CDLL, name: str, kind: str) -> None:
    points = list(product((1.0, -0.7, 3e5), EDGES, EDGES))
    dy, a, b = (exactly(column, kind) for column in zip(*points, strict=True))
    weight, slope, size = GATED[name](b, kind)
    # An open gate has no slope to add to: dy * a is not multiplied by 0.
    pulled = np.where(b <= 0, 0, dy * a) if name == "Reglu" else dy * a * slope
    calm = np.ones(len(a), bool)
    for part in (a, b, weight, slope, dy * a, dy * weight):
        calm &= normal(part, kind)
    y = call(functors, name, kind, [a, b], 1)
    d = call(functors, f"{name}Backward", kind, [dy, a, b], 2)
    for got, want, scale in (
        (y[0], a * weight, a * weight),
        (d[0], dy * weight, dy * weight),
        (d[1], pulled, dy * a * size),
    ):
        error = np.where(calm & normal(want, kind), errors(got, want, scale, kind), 0)
        i = int(np.argmax(error))
        assert error[i] < 4, (dy[i], a[i], b[i], got[i], want[i])


@each_type
def test_geglu_tanh(functors: ctypes.CDLL, kind: str) -> None:
    b = np.concatenate([exactly(np.linspace(-12, 12, 2001), kind), exactly(EDGES, kind)])
    a = np.ones_like(b)
    body, more = registry["geglu"].spec.body, {"axis": 0, "gate_first": False}
    backward = registry["geglu_backward"].spec.body
    wide = [v.astype(np.float64) for v in (a, b)]
    want = body(*wide, **more, approximate="tanh")
    da, db = backward(wide[0], *wide, **more, approximate="tanh")
    y = call(functors, "GegluTanh", kind, [a, b], 1)
    d = call(functors, "GegluBackwardTanh", kind, [a, a, b], 2)
    # The reference is in float64 itself.
    for got, exact in ((y[0], want), (d[0], da), (d[1], db)):
        assert errors(got, exact, np.maximum(np.abs(exact), 1.0), kind).max() < 8


@each_type
@pytest.mark.parametrize("weight", [-0.3, 0.0, 0.25, 0.4999, 0.5, 0.9999999, 1.0, 1.7])
def test_lerp(functors: ctypes.CDLL, weight: float, kind: str) -> None:
    values = [x for x in EDGES if abs(x) < 1e19]
    a, b = (exactly(column, kind) for column in zip(*product(values, values), strict=True))
    y = call(functors, "Lerp", kind, [a, b], 1, weight)[0]
    w = WIDE(weight)
    want = a + w * (b - a) if weight < 0.5 else b - (1 - w) * (b - a)
    # From the nearer end: what rounds is the difference, weighted.
    scale = np.abs(want) + min(abs(w), abs(1 - w)) * np.abs(b - a)
    assert errors(y, want, scale, kind).max() < 2
    if weight in (0.0, 1.0):
        assert np.array_equal(y, (b if weight else a).astype(TYPES[kind]))
    d = call(functors, "LerpBackward", kind, [a], 2, weight)
    for got, part in zip(d, (1 - w, w), strict=True):
        calm = normal(part * a, kind)
        assert np.where(calm, errors(got, part * a, part * a, kind), 0).max() < 2


@each_type
@pytest.mark.parametrize(
    ("one", "value"), LOSSES, ids=lambda x: str(x) if isinstance(x, Elementwise) else repr(x)
)
def test_losses(functors: ctypes.CDLL, one: Elementwise, value: float | None, kind: str) -> None:
    spec = one.spec
    more = dict.fromkeys(spec.scalars, value)
    inner = (*EDGES, 0.125, 0.999, 1e-3, 1 - 1e-6)
    few = {"dloss": (1.0, -0.7), **dict.fromkeys(spec.optional, _WEIGHTS)}
    names = [n for n in spec.arrays if n not in spec.optional or n in one.given]
    points = list(product(*(few.get(n, inner) for n in names)))
    x = [exactly(column, kind) for column in zip(*points, strict=True)]

    def body(scale: float = 0.0, seed: int = 0) -> NDArray[Any]:
        rng = np.random.default_rng(seed)
        moved = [v * (1 + scale * rng.choice([-1, 1], v.shape)) for v in x]
        given = dict(zip(names, moved, strict=True))
        arrays = [given.get(n) for n in spec.arrays]
        return np.asarray(spec.body(*arrays, reduction="none", **more), WIDE)

    want = body()
    # An eps above 1 is no probability.
    moved = [np.nan_to_num(np.abs(body(EPS[kind], seed) - want)) for seed in range(4)]
    shift = np.max(moved, axis=0)
    got = call(functors, one.functor, kind, x, 1, *more.values())[0]
    calm = normal(want, kind) & (np.abs(want) < 1e30)
    for v in x:
        calm &= normal(v, kind) & (np.abs(v) < (80 if more.get("log_target") else 1e19))
    assert calm.sum() > 50
    # `shift` is what an eps of the inputs makes.
    scale = np.abs(want) + shift / WIDE(EPS[kind]) + np.abs(want).dtype.type(1e-12)
    error = np.where(calm, errors(got, want, scale, kind), 0)
    i = int(np.argmax(error))
    assert error[i] < 8, ([v[i] for v in x], got[i], want[i])
    assert np.isnan(got[np.isnan(want) & np.any([np.isnan(v) for v in x], axis=0)]).all()


# Rope.


def circle(functors: ctypes.CDLL, phase: NDArray[np.int64], kind: str) -> NDArray[Any]:
    y = np.empty((2, len(phase)), TYPES[kind])
    getattr(functors, f"circle_{kind}")(address(phase), address(y), ctypes.c_int64(len(phase)))
    return y


def off_the_circle(y: NDArray[Any], angles: list[Any], kind: str) -> float:
    """The largest error of cos and sin, in eps of 1."""
    pairs = zip(angles, y[0].tolist(), y[1].tolist(), strict=True)
    worst = max(max(abs(mp.cos(t) - c), abs(mp.sin(t) - s)) for t, c, s in pairs)
    return float(worst) / EPS[kind]


@each_type
def test_cos_and_sin_of_any_phase(functors: ctypes.CDLL, kind: str) -> None:
    mp.dps = 40
    eighths = [s * (k << 60) + e for s in (1, -1) for k in range(8) for e in (-3, 0, 1, 7)]
    rng = np.random.default_rng(0)
    phase = np.concatenate(
        [rng.integers(-(2**63), 2**63 - 1, 2000), eighths, [-(2**63), 2**63 - 1]]
    ).astype(np.int64)
    angles = [2 * mp.pi * mpf(int(p)) / 2**64 for p in phase]
    assert off_the_circle(circle(functors, phase, kind), angles, kind) < 1


@each_type
@pytest.mark.parametrize("base", [10000.0, 500000.0, 0.1])
@pytest.mark.parametrize("position", [1, 1_000_000, 2**31 - 1, -(2**31) + 1])
def test_angles_at_any_position(
    functors: ctypes.CDLL, base: float, position: int, kind: str
) -> None:
    """Through the host's table, multiplied as `Frequencies` in angles.cuh does it."""
    mp.dps = 60
    table = Frequencies(base).turns(64, 128 if kind == "f64" else 64)
    if kind == "f64":
        size, sign = abs(position), 1 if position > 0 else -1
        rows = [divmod(turn, 1 << 64) for turn in table]
        full = [sign * (high * size + ((low * size) >> 64)) for high, low in rows]
    else:
        full = [turn * position for turn in table]
    phase = np.array([(turn + 2**63) % 2**64 - 2**63 for turn in full], np.int64)
    angles = [position * mpf(base) ** (-mpf(i) / 64) for i in range(64)]
    assert off_the_circle(circle(functors, phase, kind), angles, kind) < 1


@each_type
@pytest.mark.parametrize(("name", "sign"), [("Rope", 1), ("RopeBackward", -1)])
def test_pairs_turn(functors: ctypes.CDLL, name: str, sign: int, kind: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 1000))
    a, b, cos, sin = exactly(x, kind)
    y = call(functors, name, kind, x, 2)
    norm = np.hypot(a, b) * np.hypot(cos, sin)
    assert errors(y[0], a * cos - sign * b * sin, norm, kind).max() < 2
    assert errors(y[1], sign * a * sin + b * cos, norm, kind).max() < 2


# Pooling.


@pytest.mark.parametrize(
    "p", [-66.9, -3.5, -1, -0.3, 1e-3, 1 / 3, 0.7, 1, 1.5, 2.5, 7.3, 66.9, 1e37]
)
def test_powers_keep_two_units_in_the_last_place(functors: ctypes.CDLL, p: float) -> None:
    ends = [1e-45, 1e-40, 1.2e-38, 0.70710677, 0.7071068, 1, 1.4142135, 1.4142137, 3.4e38]
    around = np.exp(np.random.default_rng(4).uniform(-1, 1, 3000) * np.repeat([88, 3, 0.01], 1000))
    x = np.array([*ends, *around], np.float32)
    want = x.astype(WIDE) ** WIDE(p)
    got = call(functors, "power", "f32", x, 1, p)[0]
    calm = normal(want, "f32")
    assert np.where(calm, errors(got, want, want, "f32"), 0).max() < 2
    assert calm.any()
    assert (got[want < 1e-39] == 0).all()
    assert np.isinf(got[want > 3.5e38]).all()
    at_ends = call(functors, "power", "f32", [np.inf, np.nan], 1, p)[0]
    assert at_ends[0] == (np.inf if p > 0 else 0)
    assert np.isnan(at_ends[1])


each_power = pytest.mark.parametrize("p", POWERS)
CELLS = 6


class Window:
    """`LpPool` and `LpPoolBackward` of one power, on one window."""

    def __init__(self, functors: ctypes.CDLL, p: float, kind: str, end: str = "") -> None:
        whole = {1.0: "1", 2.0: "2", 3.0: "3", 4.0: "4", math.inf: "INFINITE"}
        end = f"{whole.get(p, 'REAL')}{end}_{kind}"
        self._forward = getattr(functors, f"LpPool_{end}")
        self._backward = getattr(functors, f"LpPoolBackward_{end}")
        self._real = ctypes.c_float if kind == "f32" else ctypes.c_double
        fake: Any = SimpleNamespace(accumulate=kind, functor="", itemsize=4)
        self._norms = [np.array(_norm(fake, p, back)[1], TYPES[kind]) for back in (False, True)]
        self._type = TYPES[kind]

    def norms(self, x: NDArray[Any]) -> list[Any]:
        """By the careful form, and by the fast one unless it gives up."""
        y = np.empty(3, self._type)
        count = ctypes.c_int64(len(x))
        self._forward(address(self._norms[0]), address(x), address(y), count)
        return [y[2]] if y[1] else [y[2], y[0]]

    def gradients(self, dy: float, x: NDArray[Any], y: float) -> list[NDArray[Any]]:
        """The same for each cell."""
        d = np.empty((3, len(x)), self._type)
        self._backward(
            address(self._norms[1]), address(x), self._real(dy), self._real(y), address(d),
            ctypes.c_int64(len(x)),
        )  # fmt: skip
        return [d[2], np.where(d[1] != 0, d[2], d[0])]


def windows(kind: str) -> Iterator[NDArray[Any]]:
    """Of ordinary and extreme sizes, with zeros and small cells among large ones."""
    rng = np.random.default_rng(3)
    far = (1e-30, 1e30, 1e-15, 1e15) if kind == "f32" else (1e-300, 1e300, 1e-30, 1e30)
    for trial in range(300):
        x = rng.standard_normal(CELLS) * (1.0, *far)[trial % 5]
        if trial % 7 == 0:
            x[rng.integers(CELLS)] = 0
        if trial % 11 == 0:
            x[rng.integers(CELLS)] *= 1e-8
        yield x.astype(TYPES[kind])
    yield np.zeros(CELLS, TYPES[kind])


def norm(x: NDArray[Any], p: float) -> Any:
    size = np.abs(x.astype(WIDE))
    top = size.max()
    if math.isinf(p) or top == 0:
        return top
    return top * ((size / top) ** WIDE(p)).sum() ** (1 / WIDE(p))


def gradient(dy: Any, x: NDArray[Any], y: Any, p: float) -> NDArray[Any]:
    wide, size, y = x.astype(WIDE), np.abs(x.astype(WIDE)), WIDE(y)
    if y == 0:
        return np.zeros_like(wide)
    if math.isinf(p):
        return WIDE(dy) * np.sign(wide) * (size == y) / max((size == y).sum(), 1)
    powers = np.where(size == 0, 0, np.where(size == 0, 1, size / y) ** WIDE(p - 1))
    return WIDE(dy) * np.sign(wide) * powers


@each_type
@each_power
def test_pooling(functors: ctypes.CDLL, p: float, kind: str) -> None:
    window, most = Window(functors, p, kind), np.finfo(TYPES[kind]).max
    # The powers of a real exponent have the rounding of the exponent in them.
    limit = 4 if p in (1, 2, 3, 4, math.inf) else 16
    for x in windows(kind):
        want = norm(x, p)
        if want > most:
            continue
        for y in window.norms(x):
            assert errors(np.asarray(y), want, want, kind) < 4, (x, y, want)
        y = TYPES[kind](want)
        for dy in (TYPES[kind](0.37), TYPES[kind](-1e20), TYPES[kind](0)):
            exact = gradient(dy, x, y, p)
            calm = normal(exact, kind)
            for d in window.gradients(dy, x, y):
                error = np.where(calm, errors(d, exact, exact, kind), 0)
                assert error.max() < limit, (x, y, dy, d, exact)


@each_power
def test_pooling_for_16_bits(functors: ctypes.CDLL, p: float) -> None:
    """In eps of float32, of which float16 has 2^13: what the roots lack is not seen there."""
    window, most = Window(functors, p, "f32", "_COARSE"), np.finfo(np.float32).max
    for x in windows("f32"):
        want = norm(x, p)
        if want > most:
            continue
        for y in window.norms(x):
            assert errors(np.asarray(y), want, want, "f32") < 2**7, (x, y, want)
        y = np.float32(want)
        exact = gradient(np.float32(0.37), x, y, p)
        calm = normal(exact, "f32")
        for d in window.gradients(np.float32(0.37), x, y):
            error = np.where(calm, errors(d, exact, exact, "f32"), 0)
            assert error.max() < 2**7, (x, y, d, exact)


@each_type
@each_power
def test_pooling_sends_nan_on(functors: ctypes.CDLL, p: float, kind: str) -> None:
    window = Window(functors, p, kind)
    x = np.array([1.0, 0.0, -2.0, math.nan, 3.0, 1e-3], TYPES[kind])
    assert np.isnan(window.norms(x)).all()
    assert np.isnan(window.gradients(1.0, x, math.nan)).all()


@each_type
@each_power
def test_pooling_of_an_infinite_cell(functors: ctypes.CDLL, p: float, kind: str) -> None:
    window = Window(functors, p, kind)
    x = np.array([1.0, 0.0, -2.0, math.inf, 3.0, 1e-3], TYPES[kind])
    assert all(y == math.inf for y in window.norms(x))
    for d in window.gradients(1.0, x, math.inf):
        if p == 1:
            assert np.array_equal(d, np.sign(x))
        elif math.isinf(p):
            assert np.array_equal(d, np.isinf(x))
        elif p > 1:
            assert np.isnan(d[3])
            assert not d[[0, 1, 2, 4, 5]].any()
