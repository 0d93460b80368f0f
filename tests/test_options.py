"""Every value of every option and run-time value: refused alike by all libraries, or one meaning.

The sweep reads declarations alone, so an op that is added is covered without code of its own.
"""

import math
import warnings
from fractions import Fraction
from functools import cache
from numbers import Real

import array_api_strict as strict
import jax
import jax.numpy as jnp
import lanes
import numpy as np
import pytest
import torch

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import NAMES
from baracuda.errors import shown
from baracuda.testing.cases import LIBRARIES, Subject, many, to_numpy

NAN, INF = math.nan, math.inf
# JAX compiles a program for most of what it does not refuse.
FEW = (-1, NAN, 1e300, 2**63, jnp.asarray(0.5))
VALUES = (
    *FEW, 0, -0.0, 0.5, 1, 2, INF, -INF, 1e-45, 3e38, -1e30, 10**400, 10**5000, 2**31, -(2**63),
    True, False, np.float64(NAN), np.float32(0.5), np.int64(2), np.bool_(True), Fraction(1, 2),
    1j, np.array(0.5), torch.tensor(0.5), strict.asarray(0.5), "1", b"x", None, [1], (2, 2), (0,),
    (True,), [2.0], (2**63, 2), (2**62, 4), {},
)  # fmt: skip
# Of each library the class of its arrays.
ARRAYS = {
    "numpy": np.ndarray, "torch": torch.Tensor, "jax": jax.Array,
    "array_api_strict": type(strict.asarray(0)),
}  # fmt: skip
SWEPT = [name for name, op in registry.items() if op.spec.options or op.spec.scalars]


def first_with_each_option():
    """The first op that declares an option as it does."""
    found = {}
    for name in SWEPT:
        spec = registry[name].spec
        for option, normaliser in {**spec.options, **spec.scalars}.items():
            found.setdefault((option, getattr(normaliser, "text", None)), name)
    return {*found.values()}


FIRST = first_with_each_option()
SUBJECTS = lanes.cases(
    [(name, lib) for lib in LIBRARIES for name in SWEPT], lambda pair: pair[0] in FIRST
)
each_op = pytest.mark.parametrize("op", lanes.cases(SWEPT, FIRST.__contains__))


@cache
def call_of(name):
    """The last form of an op, which takes the most arrays, at its first case."""
    return list(Subject(name, "", "numpy", "float32", brief=True).calls())[-1]


def outcome(function, arrays, options):
    """The results in NumPy, or the error; a warning is one."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return [to_numpy(x) for x in many(function(*arrays, **options))]
        except Exception as error:
            return error


def told(value):
    """How a message may write a value: as it is, as the number it stands for, or a part of it."""
    yield shown(value)
    if isinstance(value, (int, float, np.number)) and not abs(value) > 2**64:
        yield from (str(value), str(float(value)))
    if isinstance(value, tuple(ARRAYS.values())):
        yield f"of shape {tuple(value.shape)}"
    for part in value if isinstance(value, (tuple, list)) else ():
        yield from told(part)


def assert_clear(error, name, option, value):
    """One of ours, that names the op, the option and the value."""
    assert isinstance(error, bc.BaracudaError), repr(error)
    assert isinstance(error, (ValueError, TypeError, IndexError)), repr(error)
    text = str(error)
    assert text.startswith(f"{name}: "), text
    inputs = registry[name].spec.signatures[0].inputs
    named = any(text.startswith(f"{name}: {p.name}: ") for p in inputs)
    if named or any(option in (p.marker, p.name) for p in inputs):
        # Counts, shapes and axes are held against the arrays: the error may name one of these.
        return
    assert option in text, text
    assert any(word in text for word in told(value)), text


def assert_alike(got, want, what):
    """The same error, or the same values, NaN for NaN."""
    if isinstance(want, Exception) or isinstance(got, Exception):
        assert (type(got), str(got)) == (type(want), str(want)), what
        return
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape, what
        wide = x.astype(np.float64), y.astype(np.float64)
        np.testing.assert_allclose(*wide, rtol=2e-4, atol=1e-5, err_msg=what)


def stands_for_a_number(op, option, value):
    """Whether an array beside those of its library is taken for this run-time value."""
    takes = getattr(registry[op].spec.scalars.get(option), "dtypes", ())
    return bool(takes) and isinstance(value, tuple(ARRAYS.values()))


@cache
def swept(name):
    """Every option with every value, and what the body makes of it on NumPy arrays."""
    call = call_of(name)
    arrays, out = call.given("numpy"), []
    for option in (*call.subject.spec.options, *call.subject.spec.scalars):
        for value in VALUES:
            options = {**call.options, option: value}
            want = outcome(call.subject.function, arrays, {**options, "backend": "array_api"})
            out.append((option, value, options, want))
    return out


@pytest.mark.parametrize(("op", "library"), SUBJECTS)
def test_a_value_is_refused_or_means_the_same_in_every_library(op, library):
    call = call_of(op)
    arrays = call.given(library)
    for option, value, options, want in swept(op):
        if library == "jax" and not lanes.FULL and not any(value is v for v in FEW):
            continue
        got = outcome(call.subject.function, arrays, options)
        if stands_for_a_number(op, option, value):
            # `test_values.py` tries those of the library itself.
            if not isinstance(value, ARRAYS[library]):
                assert isinstance(got, TypeError), got
                assert_clear(got, op, option, value)
            continue
        assert_alike(got, want, f"{op}: {option}={shown(value)}")


@each_op
def test_what_is_refused_is_named_and_refused_by_plans_too(op):
    call = call_of(op)
    spec, function, arrays = call.subject.spec, call.subject.function, call.given("numpy")
    plan = function.plan(*arrays, **call.options)
    for option, value, options, error in swept(op):
        if not isinstance(error, Exception):
            continue
        assert_clear(error, op, option, value)
        if isinstance(error, IndexError):
            continue
        what = f"{op}: {option}={shown(value)}"
        assert_alike(outcome(function.plan, arrays, options), error, what)
        if option in spec.scalars:
            scalars = {k: v for k, v in options.items() if k in spec.scalars}
            assert_alike(outcome(plan, arrays, scalars), error, what)


@pytest.mark.parametrize("option", sorted(NAMES))
def test_dispatch_options_are_refused_alike(option, tmp_path):
    call = call_of("swiglu")
    bc.plan_cache.clear()
    for value in VALUES:
        found = [
            outcome(bc.swiglu, call.given(library), {option: value})
            for library in ("numpy", "torch", "jax", "array_api_strict")
        ]
        for got in found:
            assert_alike(got, found[0], f"{option}={shown(value)}")
        if isinstance(found[0], Exception):
            assert_clear(found[0], "swiglu", option, value)
    # What is not refused can be written down.
    bc.plan_cache.save(tmp_path / "plans.json")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: bc.hardtanh(x, min_val=2.0),
         "max_val: expected a number >= min_val = 2.0, got 1.0"),
        (lambda x: bc.hardtanh(x, max_val=NAN),
         "max_val: expected a number >= min_val = -1.0, got nan"),
        (lambda x: bc.rms_norm(x, eps=-1e-6), "eps: expected a finite number >= 0, got -1e-06"),
        (lambda x: bc.layer_norm(x, eps=NAN), "eps: expected a finite number >= 0, got nan"),
        (
            lambda x: bc.threshold(x, threshold=0, value=1e39),
            "value: expected a number within float32, got 1e+39",
        ),
        (
            lambda x: bc.celu(x, alpha=1e-45),
            "alpha: expected a number of 1.18e-38 to 1.01e+31 in size (in float32), got 1e-45",
        ),
        (lambda x: bc.lp_pool1d(x, norm_type=2, kernel_size=1, stride=2**31),
         "stride: expected sizes < 2**31, got 2147483648"),
        (lambda x: bc.glu(x, axis=2**63),
         "axis: expected an integer of 64 bits, got 9223372036854775808"),
    ],
)  # fmt: skip
def test_what_a_refusal_says(call, text):
    with pytest.raises(ValueError) as caught:
        call(np.ones((2, 4), np.float32))
    assert str(caught.value).partition(": ")[2] == text


def test_ends_may_be_equal_and_wide_arrays_take_wide_numbers():
    x = np.linspace(-2, 2, 5)
    np.testing.assert_array_equal(bc.hardtanh(x, min_val=1, max_val=1), np.ones(5))
    np.testing.assert_array_equal(bc.threshold(x, threshold=3, value=1e300), np.full(5, 1e300))
    np.testing.assert_array_equal(bc.lerp(x, x, weight=1e-310), x)


class Unreadable:
    """An array on a device: whoever looks at its values waits for the device."""

    dtype, shape = "float32", ()

    def __float__(self):
        raise AssertionError("it was read")

    __repr__ = __bool__ = __index__ = __float__


@each_op
def test_values_on_a_device_are_refused_without_a_look(op):
    call = call_of(op)
    for option in (*call.subject.spec.options, *call.subject.spec.scalars):
        options = {**call.options, option: Unreadable()}
        with pytest.raises((TypeError, ValueError), match=f"{option}: .*Unreadable of shape"):
            call.subject.function(*call.given("numpy"), **options)


class Dial:
    """A real number that is another one later."""

    value = 0.25

    def __float__(self):
        return self.value


Real.register(Dial)


def test_a_run_time_value_that_equals_the_last_one_is_read_again():
    x, dial = np.ones(3), Dial()
    read = bc.lerp.plan(x, x).scalars
    for weight in (0.0, -0.0, 0.0):
        assert math.copysign(1, read({"weight": weight})["weight"]) == math.copysign(1, weight)
    for _ in range(2):
        assert read({"weight": 1.0}) == {"weight": 1.0}
        with pytest.raises(TypeError, match="weight: expected a real number, got True"):
            read({"weight": True})
    for dial.value in (0.25, 0.5):
        assert read({"weight": dial}) == {"weight": dial.value}
    read, one = bc.cross_entropy.plan(np.ones((2, 3)), np.asarray([0, 1])).scalars, 0.5
    for name in ("z_loss", "softcap", "z_loss"):
        assert [k for k, v in read({name: one}).items() if v] == [name]


@pytest.mark.gpu
@pytest.mark.parametrize("op", SWEPT)
def test_a_value_is_refused_or_means_the_same_on_a_gpu(op):
    call = call_of(op)
    arrays = [x if x is None else x.cuda() for x in call.given("torch")]
    for option, value, options, want in swept(op):
        got = outcome(call.subject.function, arrays, options)
        if stands_for_a_number(op, option, value):
            assert isinstance(got, TypeError), got
            if isinstance(value, torch.Tensor) and value.ndim == 0 and "device" in str(got):
                # One of the CPU is on another device.
                first = registry[op].spec.arrays[0]
                device = f"device cuda:0 (as {first}), got cpu"
                assert str(got) == f"{op}: {option}: expected {device}"
            else:
                assert_clear(got, op, option, value)
            continue
        if isinstance(want, IndexError) and not isinstance(got, IndexError):
            # A GPU reports it later.
            with pytest.raises(IndexError):
                bc.check_errors()
            continue
        if option == "sorted" and not isinstance(want, Exception):
            # A promise that the ids of this call do not keep.
            continue
        assert_alike(got, want, f"{op}: {option}={shown(value)}")
