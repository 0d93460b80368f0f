"""The pairing of ops and gradients for authors of autograd engines, and the tape made of it."""

from __future__ import annotations

import doctest
from collections.abc import Iterator
from typing import Any

import kinds
import lanes
import numpy as np
import pytest
import torch

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.examples import tape
from baracuda.libraries import library_of
from baracuda.testing.cases import Subject, many, subjects

FORWARDS = [name for name, op in registry.items() if op.adjoint is not None]
STEP = 1e-6


def slope(call: Any, arrays: list[Any], place: int, along: Any, cotangents: list[Any]) -> float:
    """What central differences say of an input along a direction."""
    ends = []
    for sign in (1, -1):
        moved = list(arrays)
        moved[place] = arrays[place] + sign * STEP * along
        results = many(call.subject.function(*moved, **call.options))
        # What a mask leaves out has the logarithm -inf, and no gradient.
        finite = [np.where(np.isfinite(y), y, 0) for y in results]
        ends.append(sum(float(np.sum(c * y)) for c, y in zip(cotangents, finite, strict=True)))
    return (ends[0] - ends[1]) / (2 * STEP)


def numpy64(name: str) -> Subject:
    return next(s for s in subjects([name], ["numpy"]) if s.dtype == "float64")


@pytest.mark.parametrize("name", lanes.cases(FORWARDS, kinds.runs_both_ways))
def test_each_gradient_belongs_to_its_input(name: str) -> None:
    op, rng = registry[name], np.random.default_rng(0)
    pair = op.adjoint
    assert pair is not None
    met = set()
    for call in numpy64(name).calls():
        arrays = call.given()
        results = op(*arrays, **call.options)
        cotangents = [rng.standard_normal(y.shape) for y in many(results)]
        kept = pair.keep(arrays, results, call.options)
        assert set(kept.arrays) <= {*pair.saved}
        gradients = pair.pull(kept, cotangents)
        for input_, gradient in gradients.items():
            place = pair.inputs.index(input_)
            met.add(input_)
            assert gradient.shape == arrays[place].shape
            along = rng.standard_normal(gradient.shape)
            want = slope(call, arrays, place, along, cotangents)
            size = np.sum(np.abs(gradient * along)) + 1
            assert abs(float(np.sum(gradient * along)) - want) < 1e-6 * size, (input_, call.case)
    assert met == {*pair.gradients}


def test_what_the_pairing_says() -> None:
    pair = bc.nll_loss.adjoint
    assert pair is not None
    assert pair.op is bc.nll_loss_backward
    assert pair.inputs == ("x", "target", "weight")
    assert pair.cotangents == {"loss": "dloss"}
    assert pair.saved == ("target", "weight")
    assert pair.gradients == {"x": "dx"}
    assert pair.shapes == {"x_shape": "x"}
    assert pair.dtypes == {"x_dtype": "x"}
    assert pair.options == ("axis", "ignore_index", "reduction", "mode")
    shared = bc.add_rms_norm.adjoint
    assert shared is not None
    assert shared.gradients == {"x": "dx", "residual": "dx", "weight": "dweight"}
    assert shared.saved == ("s", "weight")
    handed = bc.rms_norm_add.adjoint
    assert handed is not None
    assert handed.gradients == {"x": "dx", "residual": "dy", "weight": "dweight"}
    assert bc.relu_backward.adjoint is None
    assert [form.names for form in bc.swiglu.forms] == [("x",), ("x", "gate")]


def test_a_result_that_was_not_used_has_no_cotangent() -> None:
    x, r = np.random.default_rng(1).standard_normal((2, 3, 8))
    pair = bc.add_rms_norm.adjoint
    assert pair is not None
    kept = pair.keep([x, r], bc.add_rms_norm(x, r), {"eps": 1e-5})
    dy = np.ones((3, 8))
    np.testing.assert_array_equal(
        pair.pull(kept, [dy, None])["x"], pair.pull(kept, [dy, np.zeros((3, 8))])["x"]
    )
    for wrong in ([None, None], [dy]):
        with pytest.raises(TypeError, match="add_rms_norm: cotangents: expected 2 cotangents"):
            pair.pull(kept, wrong)


# Gradients of several results; those of ropes take nothing that says how large the other one is.
SEVERAL = sorted(
    name for name, op in registry.items()
    if (pair := op.adjoint) is not None
    and len({*pair.cotangents.values()} & {*pair.op.spec.arrays}) > 1
)  # fmt: skip
UNKNOWN = ("rope_qk", "rope_qk_with_tables")


def gradient_calls(
    name: str, lib: str
) -> Iterator[tuple[Any, list[Any], dict[str, Any], list[int]]]:
    """The gradient of an op, arrays and keywords for it, and where cotangents are."""
    subject = next(s for s in subjects([name], [lib]) if s.dtype == "float32")
    pair, rng = registry[name].adjoint, np.random.default_rng(0)
    assert pair is not None
    for call in subject.calls():
        arrays = call.given()
        results = many(registry[name](*arrays, **call.options))
        if len(results) == 1:
            continue
        kept = pair.keep(arrays, results, call.options)
        xp = library_of(results[0]).xp
        known = dict(kept.arrays)
        for (result, dual), y in zip(pair.cotangents.items(), results, strict=False):
            if dual in pair.op.spec.arrays:
                known[dual] = xp.asarray(rng.standard_normal(y.shape), dtype=kept.dtypes[result])
        given = [known.get(n) for n in pair.op.spec.arrays]
        while given[-1] is None:
            given.pop()
        places = [pair.op.spec.arrays.index(d) for d in pair.cotangents.values() if d in known]
        yield pair.op, given, kept.options, places


@pytest.mark.parametrize("lib", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("name", [name for name in SEVERAL if name not in UNKNOWN])
def test_a_cotangent_that_is_none_counts_as_zeros(name: str, lib: str) -> None:
    tried = 0
    for op, given, options, places in gradient_calls(name, lib):
        xp = library_of(given[places[0]]).xp
        for place in places:
            for missing in ([place], [p for p in places if p != place]):
                none = [None if i in missing else x for i, x in enumerate(given)]
                zeros = [xp.zeros_like(x) if i in missing else x for i, x in enumerate(given)]
                want = many(op(*zeros, **options))
                plan = op.plan(*none, **options)
                scalars = {k: v for k, v in options.items() if k in op.spec.scalars}
                for found in (
                    op(*none, **options),
                    plan(*none, **scalars),
                    op.planned(*none, **options)[0],
                ):
                    for a, b in zip(many(found), want, strict=True):
                        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
                        tried += 1
    assert tried


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_cotangent_of_unknown_size_is_asked_for(name: str) -> None:
    op, given, options, places = next(gradient_calls(name, "numpy"))
    none = [None if i == places[1] else x for i, x in enumerate(given)]
    with pytest.raises(TypeError, match="expected"):
        op(*none, **options)


def test_a_graph_takes_none_for_a_cotangent() -> None:
    dy, weight = torch.randn(4, 8), torch.ones(8)
    plan = bc.add_rms_norm_backward.plan(dy, None, dy, weight)
    for call in (bc.add_rms_norm_backward, plan):
        compiled = torch.compile(
            lambda *x, f=call: f(x[0], None, *x[1:]), backend="eager", fullgraph=True
        )
        for a, b in zip(compiled(dy, dy, weight), call(dy, None, dy, weight), strict=True):
            assert torch.equal(a, b)


def test_zeros_of_a_cotangent_have_the_dtype_of_its_role() -> None:
    stream, y = torch.randn(4, 8), torch.randn(4, 8).bfloat16()
    want = bc.add_rms_norm_backward(y, torch.zeros(4, 8), stream)
    assert torch.equal(bc.add_rms_norm_backward(y, None, stream), want)


def test_a_cotangent_that_is_a_gradient_is_not_copied() -> None:
    x, r, dy = np.random.default_rng(1).standard_normal((3, 3, 8))
    pair = bc.rms_norm_add.adjoint
    assert pair is not None
    assert pair.pull(pair.keep([x, r], bc.rms_norm_add(x, r), {}), [dy])["residual"] is dy
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, r)]
    pulled = torch.tensor(dy)
    _, got = torch.autograd.grad(bc.rms_norm_add(*tensors), tensors, pulled)
    assert got.data_ptr() == pulled.data_ptr()


def test_a_tape_is_as_good_as_torchs() -> None:
    """A small network, with an input that is used twice and one that is not used."""
    torch.manual_seed(0)
    shapes = {"x": (4, 6, 8), "r": (4, 6, 8), "w": (8,), "g": (4, 6, 8), "unused": (3,)}
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes.values()]
    target = torch.randint(0, 8, (4, 6))

    def network(run: Any, x: Any, r: Any, w: Any, g: Any) -> Any:
        y, s = run(bc.add_rms_norm, x, r, w)
        z = run(bc.swiglu, run(bc.rope, y), g)
        z = run(bc.lerp, z, run(bc.gelu, s, approximate="tanh"), weight=0.3)
        return run(bc.cross_entropy, run(bc.layer_norm, z, w), target)

    loss = network(lambda op, *arrays, **options: op(*arrays, **options), *leaves[:4])
    want = torch.autograd.grad(loss, leaves[:4])
    ours, plain = tape.Tape(), [x.detach() for x in leaves]
    loss = network(ours.call, *plain[:4])
    *got, none = ours.backward(loss, torch.ones_like(loss), plain)
    assert none is None
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_what_has_no_gradient_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="relu_backward: no op is its gradient"):
        tape.Tape().call(bc.relu_backward, np.ones(3), np.ones(3))


def test_the_example_of_the_tape_runs() -> None:
    found = doctest.testmod(tape)
    assert found.attempted == 6
    assert found.failed == 0
