"""Ops as values: pickled, copied, inspected, listed; and which arrays of NumPy they take."""

import copy
import inspect
import pickle
import subprocess
import sys

import numpy as np
import pytest

import baracuda as bc

OPS = [name for name in bc.__all__ if isinstance(getattr(bc, name), bc.Op)]
every_op = pytest.mark.parametrize("name", OPS)


def test_every_op_has_a_gradient():
    both = {n for n in OPS if n.endswith("_with_gradient")}
    steps = {n for n in OPS if getattr(bc, n).spec.category == "optimiser"}
    forward = {n for n in OPS if not n.endswith("_backward")} - both - steps
    assert {n.removesuffix("_with_gradient") for n in both} <= forward
    blind = {"bernoulli", "normal", "uniform"}  # nothing flows back from random numbers
    rows = {"embedding_backward_rows"}  # the same gradient in another form
    others = {f"{n}_backward" for n in forward - blind - rows}
    assert set(OPS) - forward - both - steps == others


@every_op
def test_ops_pickle_and_copy_to_themselves(name):
    op = getattr(bc, name)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(op, protocol)) is op
    assert copy.copy(op) is op
    assert copy.deepcopy(op) is op
    assert copy.deepcopy({"op": [op]})["op"][0] is op


def test_an_op_is_unpickled_in_another_process():
    code = (
        "import pickle, sys; op = pickle.loads(sys.stdin.buffer.read());"
        "import numpy as np; print(op.__name__, op(np.asarray([2.0, 0.0])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(bc.glu), capture_output=True, check=True
    )
    assert done.stdout.decode().split() == ["glu", "[1.]"]


@every_op
def test_the_signature_is_the_one_of_the_contract(name):
    op = getattr(bc, name)
    signature = inspect.signature(op)
    kinds = [p.kind for p in signature.parameters.values()]
    arrays = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_ONLY]
    assert tuple(p.name for p in arrays) == op.spec.arrays
    assert kinds == sorted(kinds)
    assert kinds[-1] is inspect.Parameter.VAR_KEYWORD
    assert inspect.Parameter.POSITIONAL_OR_KEYWORD not in kinds
    forward = getattr(bc, name.removesuffix("_backward"))
    for option, p in inspect.signature(forward).parameters.items():
        # What a result shows of itself, its gradient need not be told: where a diagonal left zeros,
        # its dtype, and how many results there are.
        shown = {*forward.spec.located, *[role.chosen for role in forward.spec.roles.values()]}
        shown |= {"entropy", "metrics"} & forward.spec.conditions
        if forward is op:
            shown = set()
        if p.kind is p.KEYWORD_ONLY and option not in shown:
            assert signature.parameters[option] == p


SIGNATURES = {
    "gather": "(src, index, /, *, axis, mode='raise', **dispatch)",
    "gather_backward": "(dout, index, /, *, axis, src_shape, mode='raise', **dispatch)",
    "lp_pool1d": "(x, /, *, norm_type, kernel_size, stride=None, ceil_mode=False, **dispatch)",
    "lp_pool1d_backward": "(dy, x, y, /, *, norm_type, kernel_size, stride=None, "
                          "ceil_mode=False, **dispatch)",
    "rope": "(x, positions=None, /, *, base=10000.0, frequencies=None, attention_factor=1.0, "
            "interleaved=True, rotary_dim=None, seq_axis=-2, **dispatch)",
    "rope_backward": "(dy, positions=None, /, *, base=10000.0, frequencies=None, "
                     "attention_factor=1.0, interleaved=True, rotary_dim=None, seq_axis=-2, "
                     "**dispatch)",
    "glu": "(x, gate=None, /, *, axis=-1, gate_first=False, **dispatch)",
    "geglu": "(x, gate=None, /, *, axis=-1, gate_first=False, approximate='none', **dispatch)",
    "swiglu_backward": "(dy, x, gate=None, /, *, axis=-1, gate_first=False, **dispatch)",
    "lerp": "(a, b, /, *, weight, **dispatch)",
    "lerp_backward": "(dy, /, *, weight, **dispatch)",
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature_is_spelt_as_in_the_contract(name):
    signature = inspect.signature(getattr(bc, name))
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=signature.empty))
    assert text == SIGNATURES[name]


@every_op
def test_an_op_says_what_it_is(name):
    op = getattr(bc, name)
    assert repr(op) == f"<op {name}>"
    assert op.__name__ == op.__qualname__ == name
    assert op.__module__.startswith("baracuda.ops.")
    first, *rest = inspect.getdoc(op).splitlines()
    assert first.endswith(".")
    for section in ("Parameters", "Returns", "Raises", "Notes", "Examples"):
        assert section in rest


# which arrays


def test_memory_mapped_arrays_are_arrays_with_plain_results(tmp_path):
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    np.save(tmp_path / "x.npy", x)
    for mode in ("r", "r+", "c"):
        mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
        for backend in (None, "array_api"):
            got = bc.swiglu(mapped, backend=backend)
            assert type(got) is np.ndarray
            assert np.array_equal(got, bc.swiglu(x))
        assert type(bc.rope(mapped)) is np.ndarray
        assert type(bc.lp_pool1d(mapped, norm_type=2, kernel_size=2)) is np.ndarray
        index = np.zeros((2, 3), np.int64)
        assert type(bc.gather(mapped, index, axis=1)) is np.ndarray
        back = bc.gather_backward(mapped, np.zeros((2, 8), int), axis=1, src_shape=(2, 2))
        assert type(back) is np.ndarray
        assert [type(d) for d in bc.lerp_backward(mapped, weight=0.5)] == [np.ndarray] * 2
    assert np.array_equal(np.load(tmp_path / "x.npy"), x)


def test_a_plan_writes_into_a_memory_mapped_out(tmp_path):
    x = np.ones((2, 8), np.float32)
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", np.float32, (2, 4))
    assert bc.swiglu.plan(x)(x, out=out) is out
    out.flush()
    assert np.array_equal(np.load(tmp_path / "y.npy"), bc.swiglu(x))


@pytest.mark.parametrize("scalar", [np.float64, np.float32, np.float16])
def test_numpy_scalars_are_arrays_of_rank_0(scalar):
    got = bc.lerp(scalar(3), scalar(4), weight=0.5)
    assert isinstance(got, (np.ndarray, np.generic))
    assert got.shape == ()
    assert got.dtype == scalar
    assert got == 3.5
    da, db = bc.lerp_backward(scalar(2), weight=0.25)
    assert (da.dtype, da.shape, float(da), float(db)) == (np.dtype(scalar), (), 1.5, 0.5)
    plan = bc.lerp.plan(scalar(3), scalar(4))
    assert plan(np.asarray(3, scalar), scalar(4), weight=1) == 4
    assert plan is bc.lerp.plan(np.asarray(3, scalar), np.asarray(4, scalar))


def test_python_numbers_are_no_arrays():
    with pytest.raises(
        TypeError, match=r"^lerp: a: expected an array, got 3\.0; arrays are positional"
    ):
        bc.lerp(3.0, np.float64(4), weight=0.5)
