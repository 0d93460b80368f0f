"""Errors say what to write instead: other libraries' keywords, misspelt names, axes."""

import inspect

import numpy as np
import pytest

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.tools import CannotRun, known

X = np.ones((2, 4), np.float32)
W = np.ones(4, np.float32)
INDEX = np.zeros((2, 3), np.int32)


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: bc.rms_norm(X, weight=W), "arrays are positional: rms_norm(x, weight)"),
        (lambda: bc.layer_norm(X, bias=W), "arrays are positional: layer_norm(x, weight, bias)"),
        (lambda: bc.softmax(X, dim=-1), "write axis="),
        (lambda: bc.softmax(X, dims=-1), "write axis="),
        (lambda: bc.swiglu(X, axes=-1), "write axis="),
        (lambda: bc.rms_norm(X, epsilon=1e-6), "write eps="),
        (lambda: bc.rms_norm(X, dim=-1), "keywords are casting, dtype, eps, offset, autotune, "
         "backend, deterministic, max_workspace_bytes, sku"),
        (lambda: bc.lp_pool1d(X, p=2, kernel_size=2, norm_type=2), "write norm_type="),
        (lambda: bc.relu(X, inplace=True), "write relu.plan(x)(x, out=x)"),
        (lambda: bc.softmax(X, inplace=True), "write softmax.plan(x)(x, out=...)"),
        (lambda: bc.swiglu(X, out=X), "write swiglu.plan(x)(x, out=...)"),
        (lambda: bc.lerp(X, X, weight=0.5, out=X),
         "write lerp.plan(a, b)(a, b, weight=..., out=...)"),
        (lambda: bc.gather(X, INDEX, axis=1, out=X),
         "write gather.plan(src, index, axis=...)(src, index, out=...)"),
        (lambda: bc.rms_norm(X, 1e-6),
         "arrays are positional: rms_norm(x, weight); "
         "options are keywords: casting=, dtype=, eps=, offset="),
        (lambda: bc.rms_norm(X, W, 1e-6),
         "arrays are positional: rms_norm(x, weight); "
         "options are keywords: casting=, dtype=, eps=, offset="),
        (lambda: bc.relu(X, True), "arrays are positional: relu(x)"),
        (lambda: bc.softmax(X, -1), "arrays are positional: softmax(x, mask, bias); "
         "options are keywords: axis=, causal=, dtype=, scale="),
        (lambda: bc.rms_norm.plan(X, W)(X, weight=W),
         "arrays are positional: rms_norm(x, weight)"),
        (lambda: bc.options(backnd="numpy").__enter__(), "write backend="),
    ],
)  # fmt: skip
def test_a_wrong_keyword_says_what_to_write(call, hint):
    with pytest.raises(TypeError) as caught:
        call()
    assert isinstance(caught.value, bc.BaracudaError)
    assert str(caught.value).partition("; ")[2] == hint


@pytest.mark.parametrize("name", registry)
def test_every_array_by_keyword_is_said_to_be_positional(name):
    function = getattr(bc, name)
    for array in registry[name].spec.arrays[1:]:
        with pytest.raises(TypeError, match="arrays are positional: "):
            function(X, **{array: X})


def test_an_unknown_backend_names_the_nearest():
    for wrong, near in (("trtion", "torch"), ("numpi", "numpy"), ("CUDA", ""), ("cudas", "cuda")):
        with pytest.raises(ValueError, match="backend: expected one of cuda, ") as caught:
            bc.swiglu(X, backend=wrong)
        assert str(caught.value).endswith(
            f"got {wrong!r}" + f"; close to it: {near!r}" * bool(near)
        )


@pytest.mark.parametrize("wrong", ["sofmax", "zzzz", "", "attention"])
def test_an_unknown_op_names_the_nearest_not_all(wrong):
    with pytest.raises(CannotRun) as caught:
        known(wrong)
    names = str(caught.value).partition("; close to it: ")[2].partition("; ")[0].split(", ")
    assert set(names) <= set(registry)
    assert 1 <= len(names) <= 3
    assert wrong != "sofmax" or names[0] == "softmax"


def test_a_shape_that_does_not_fit_is_told_in_numbers_before_the_grammar():
    with pytest.raises(ValueError) as caught:
        bc.swiglu(X, np.ones(3, np.float32))
    sentence, _, grammar = str(caught.value).partition(" [")
    assert sentence == (
        "swiglu: gate: expected 2 axes beside x of shape (2, 4) with axis=1, got shape (3,)"
    )
    assert grammar == "gate=[*b n *c], b=(2,), n=4, c=()]"


@pytest.mark.parametrize("op", ["cross_entropy", "nll_loss"])
def test_classes_where_torch_has_them_are_an_error_that_names_the_axis(op):
    x = np.zeros((2, 5, 3), np.float32)
    with pytest.raises(ValueError, match=r"of shape \(2, 5, 3\) with axis=2\), got shape \(2, 3\)"):
        getattr(bc, op)(x, INDEX)
    assert getattr(bc, op)(x, INDEX, axis=1).shape == ()


@pytest.mark.parametrize(
    "op", [n for n, o in registry.items() if o.spec.category == "cross_entropy" and
           "axis" in o.spec.options and o.spec.adjoint_of is None],
)  # fmt: skip
def test_the_first_sentence_says_where_the_classes_are(op):
    """With as many classes as positions both readings fit, and no error can tell."""
    first = inspect.getdoc(registry[op].spec.body).partition("\n\n")[0]
    assert "classes last (torch: axis 1)" in " ".join(first.split())
