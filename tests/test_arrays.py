"""Who is an array: what is taken, what is refused and how, for classes that only resemble one."""

import cupy
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse
from numpy.lib.mixins import NDArrayOperatorsMixin

import baracuda as bc
from baracuda.calls.check import MOST_AXES
from baracuda.calls.op import registry
from baracuda.declaration.spec import Case
from baracuda.libraries import library, library_of
from baracuda.testing.cases import Call, Subject, draw, tried

ONES = np.ones((2, 4), np.float32)


class Operated(NDArrayOperatorsMixin):
    """Has NumPy's operators, and is no array of NumPy."""

    dtype, shape, ndim = ONES.dtype, ONES.shape, 2


class Sparse(Operated):
    """As `sparse.COO`: a namespace of its own, and most elements left out."""

    def __array_namespace__(self, api_version=None):
        return np

    def todense(self):
        return ONES


class Lazy:
    """As a dask array: values in chunks, and not yet."""

    dtype, shape, ndim = ONES.dtype, ONES.shape, 2

    def compute(self):
        return ONES

    def __array__(self, dtype=None, copy=None):
        return ONES


class Labelled(Operated):
    """As a data frame."""

    def to_numpy(self):
        return ONES


class Quantity(np.ndarray):
    """A subclass with a unit."""


class Held:
    """As a variable of flax: gives a JAX array, and passes on everything else."""

    def __init__(self, value):
        self.value = value

    def __jax_array__(self):
        return self.value

    def __getattr__(self, name):
        return getattr(self.value, name)


NO_ARRAYS = {
    "mixin": (Operated(), ""),
    "sparse": (Sparse(), "x.todense()"),
    "bcoo": (sparse.BCOO.fromdense(jnp.asarray(ONES)), "x.todense()"),
    "lazy": (Lazy(), "x.compute()"),
    "labelled": (Labelled(), "x.to_numpy()"),
    "masked": (np.ma.array(ONES), "x.filled(value)"),
    "matrix": (ONES.view(np.matrix), "numpy.asarray(x)"),
    "subclass": (ONES.view(Quantity), "numpy.asarray(x)"),
    "records": (np.rec.array(ONES), "numpy.asarray(x)"),
    "reader": (np.lib.Arrayterator(ONES), "numpy.asarray(x)"),
}


def called(op, case, form):
    """A call of an op with arrays of NumPy."""
    subject = Subject(op.spec.name, "numpy", "numpy", "float32")
    return Call(subject, case, form, draw(op.spec, case, form, "float32"))


def refused(op, name, thing):
    """What the error has to say."""
    x, way = thing
    kind = type(x)
    text = f"{op}: {name}: expected an array, got {kind.__module__}.{kind.__qualname__}"
    return f"{text}; convert it first: {way}" if way else text


@pytest.mark.parametrize("thing", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_every_op_refuses_what_is_no_array_in_every_place(thing):
    for name, op in registry.items():
        # The form with the most arrays: it has one in nearly every place.
        call = max((called(op, *one) for one in tried(op.spec, op.spec.cases)),
                   key=lambda call: len(call.arrays))  # fmt: skip
        for place, given in enumerate(arrays := call.given("numpy")):
            strange = [*arrays[:place], thing[0], *arrays[place + 1 :]]
            for function in (op, op.plan, op.planned) if given is not None else ():
                with pytest.raises(TypeError) as caught:
                    function(*strange, **call.options)
                assert str(caught.value) == refused(name, op.spec.arrays[place], thing)


@pytest.mark.parametrize("thing", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_a_plan_refuses_what_is_no_array(thing):
    plan = bc.swiglu.plan(ONES)
    with pytest.raises(TypeError) as caught:
        plan(thing[0])
    assert str(caught.value) == refused("swiglu", "x", thing)
    with pytest.raises(TypeError) as caught:
        bc.relu.plan(ONES)(ONES, out=thing[0])
    assert str(caught.value) == refused("relu", "out (y)", thing)


def test_the_way_that_is_named_leads_to_an_array():
    for x, way in NO_ARRAYS.values():
        if way:
            got = bc.relu(eval(way, {"x": x, "numpy": np, "value": 0}))
            np.testing.assert_array_equal(np.asarray(got), ONES)


def test_a_subclass_of_cupys_arrays_is_none():
    memory = cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(16, 4, None, 0), 0)
    kind = type("Quantity", (cupy.ndarray,), {"__module__": "units"})
    assert library("cupy").takes(cupy.ndarray(1, memptr=memory))
    with pytest.raises(TypeError, match=r"units\.Quantity; .*: x\.view\(cupy\.ndarray\)$"):
        library("cupy").takes(kind(1, memptr=memory))


def test_what_has_a_namespace_is_taken_whatever_it_inherits():
    class Own(NDArrayOperatorsMixin):
        dtype, shape, device = ONES.dtype, ONES.shape, "cpu"

        def __array_namespace__(self, api_version=None):
            return np

    assert library_of(Own()).name == "numpy"
    assert library_of(Own()) is not library("numpy")


def test_what_gives_a_jax_array_is_one(monkeypatch):
    x, w = jnp.linspace(-2, 2, 8).reshape(2, 4), jnp.arange(4.0)
    asked = []
    monkeypatch.setattr(Held, "__jax_array__", lambda self: asked.append(1) or self.value)
    for _ in range(2):
        got = bc.rms_norm(x, Held(w))
        assert isinstance(got, jax.Array)
        np.testing.assert_array_equal(got, bc.rms_norm(x, w))
        np.testing.assert_array_equal(bc.lerp(Held(x), x, weight=0.25), bc.lerp(x, x, weight=0.25))
        pair = bc.add_rms_norm(Held(x), x, Held(w))
        for a, b in zip(pair, bc.add_rms_norm(x, x, w), strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(asked) == 2 * 4
    with pytest.raises(TypeError, match=r"^rms_norm: weight: expected an array of library numpy"):
        bc.rms_norm(ONES, Held(w))


def test_what_gives_a_jax_array_has_plans():
    x = jnp.linspace(-2, 2, 8).reshape(2, 4)
    plan = bc.swiglu.plan(Held(x))
    assert plan is bc.swiglu.plan(x)
    np.testing.assert_array_equal(plan(Held(x)), plan(x))
    got, same = bc.swiglu.planned(Held(x))
    assert same is plan
    np.testing.assert_array_equal(got, plan(x))


def test_what_gives_a_tracer_is_traced():
    x = jnp.linspace(-2, 2, 8).reshape(2, 4)

    def loss(x):
        return jnp.sum(bc.swiglu(Held(x)) * 3)

    def direct(x):
        return jnp.sum(bc.swiglu(x) * 3)

    for transform in (jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f)), jax.vmap):
        np.testing.assert_array_equal(transform(loss)(x), transform(direct)(x))


def deep(op, rank):
    """A call of an op, the largest array that has groups of this rank, by axes of 1."""
    case, form = next(tried(op.spec, op.spec.cases))
    groups = {name: x for name, x in case.axes.items() if isinstance(x, tuple)}
    # Those in front; where an index points along an axis it is the first, and gather's has axes of
    # its own. Of q and k the same axes, and of what their angles come from.
    wide = (next(iter(groups)),)
    if op.spec.category == "indexing" and "axis" in case.options:
        wide = ("c", "j") if "j" in groups else ("c",)
    if op.spec.category == "rope" and "c" in groups:
        wide = ("b", "c", "i", "u")
    arrays = called(op, case, form).arrays
    having = [p.name for p in form.inputs if not p.is_option and p.names & {*wide}]
    more = rank - max(arrays[name].ndim for name in having)
    axes = {**case.axes, **{name: (*[1] * more, *groups[name]) for name in wide}}
    return called(op, Case(axes, **case.options), form)


@pytest.mark.parametrize("lib", ["numpy", "torch", "array_api_strict"])
def test_every_op_takes_as_many_axes_as_it_says(lib):
    for op in registry.values():
        if not any(isinstance(x, tuple) for x in op.spec.cases[0].axes.values()):
            # Of so many axes and no more.
            continue
        call = deep(op, MOST_AXES)
        arrays = call.given(lib)
        op(*arrays, **call.options)
        more = [x if x is None else x[None, ...] for x in arrays]
        with pytest.raises(ValueError, match=r"expected at most 32 axes, got 33; reshape it$"):
            op(*more, **call.options)


@pytest.mark.parametrize("rank", [33, 63, 64])
def test_more_axes_are_counted_in_the_error(rank):
    logits = np.ones((1,) * rank, np.float32)
    text = f"^cross_entropy: logits: expected at most 32 axes, got {rank}; reshape it$"
    with pytest.raises(ValueError, match=text):
        bc.cross_entropy(logits, np.zeros(logits.shape[:-1], np.int64))
