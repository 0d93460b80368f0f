"""Outputs of plans one by one: which is added to, and sums that go into float32 beside 16 bits."""

from __future__ import annotations

import itertools
import re
from typing import Any

import lanes
import ml_dtypes
import numpy as np
import pytest
import torch

import baracuda as bc
from baracuda.calls import check, outputs
from baracuda.calls.op import registry
from baracuda.declaration.backend import each

RNG = np.random.default_rng(11)


def drawn(*shapes: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    return [RNG.standard_normal(shape) for shape in shapes]


ROWS, ROW, IMAGE = (96, 64), (64,), (12, 8, 5, 5)
TARGET = RNG.integers(0, 24, 96)
# Every op with a declared sum, its arrays, and options. Losses have cotangents near 1.
SUMS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "rms_norm_backward": (drawn(ROWS, ROWS, ROW), {}),
    "rms_norm_add_backward": (drawn(ROWS, ROWS, ROW), {}),
    "layer_norm_backward": (drawn(ROWS, ROWS, ROW), {}),
    "add_rms_norm_backward": (drawn(ROWS, ROWS, ROWS, ROW), {}),
    "add_layer_norm_backward": (drawn(ROWS, ROWS, ROWS, ROW), {}),
    "group_norm_backward": (drawn(IMAGE, IMAGE, (8,)), {"num_groups": 2}),
    "instance_norm_backward": (drawn(IMAGE, IMAGE, (8,)), {}),
    "batch_norm_backward": (drawn(IMAGE, (8,), (8,), IMAGE, (8,)), {}),
    "batch_norm_inference_backward": (
        [*drawn(IMAGE, IMAGE, (8,)), np.abs(drawn((8,))[0]) + 0.5, *drawn((8,))], {}),
    "prelu_backward": (drawn(IMAGE, IMAGE, (8,)), {}),
    "qk_norm_rope_backward": (
        drawn(*[(24, 4, 3, 16), (24, 4, 1, 16)] * 2, (16,), (16,)), {}),
    "gather_backward": (
        [*drawn((96, 8)), RNG.integers(0, 7, (96, 8))], {"axis": 0, "src_shape": (7, 8)}),
    "index_select_backward": (
        [*drawn((96, 8)), RNG.integers(0, 7, 96)], {"axis": 0, "src_shape": (7, 8)}),
    "embedding_backward": (
        [*drawn((96, 8)), RNG.integers(0, 7, 96)], {"weight_shape": (7, 8)}),
    "embedding_bag_backward": (
        [*drawn((24, 8)), RNG.integers(0, 7, (24, 4)), *drawn((7, 8), (24, 8))], {}),
    "segment_sum": ([*drawn((96, 8)), RNG.integers(0, 7, 96)], {"num_segments": 7}),
    "linear_cross_entropy_backward": (
        [np.asarray(1.0), *drawn((96, 16), (24, 16)), TARGET, *drawn((24,))],
        {"reduction": "sum", "chunk": 40}),
    "linear_cross_entropy_with_gradient": (
        [*drawn((96, 16), (24, 16)), TARGET, *drawn((24,))], {"reduction": "sum", "chunk": 40}),
    "linear_log_prob_backward": (
        [*drawn((96,), (96,), (96, 16), (24, 16)), TARGET, *drawn((24,))], {"chunk": 40}),
    "linear_log_prob_with_gradient": (
        [*drawn((96,), (96,), (96, 16), (24, 16)), TARGET, *drawn((24,))], {"chunk": 40}),
    "linear_kl_div_backward": (
        [np.asarray(1.0), *drawn((96, 16), (24, 16), (96, 8), (24, 8))],
        {"reduction": "sum", "chunk": 40}),
    "linear_kl_div_with_gradient": (
        drawn((96, 16), (24, 16), (96, 8), (24, 8)), {"reduction": "sum", "chunk": 40}),
    "linear_topk_kl_div_backward": (
        [np.asarray(1.0), *drawn((96, 16), (24, 16)), RNG.integers(0, 24, (96, 3)),
         RNG.random((96, 3))],
        {"reduction": "sum", "chunk": 40}),
    "linear_topk_kl_div_with_gradient": (
        [*drawn((96, 16), (24, 16)), RNG.integers(0, 24, (96, 3)), RNG.random((96, 3))],
        {"reduction": "sum", "chunk": 40}),
}  # fmt: skip
MADE = {"numpy": np.asarray, "torch": torch.asarray}


def test_every_op_with_a_sum_is_tried() -> None:
    summed = {name for name, op in registry.items() if any(r.total for r in op.spec.roles.values())}
    # Its values are those of `embedding_backward`, in rows that test_few_rows.py holds.
    assert summed - {"embedding_backward_rows"} == set(SUMS)


def narrow(x: Any, dtype: str, library: str) -> Any:
    if x.dtype.kind == "i":
        return MADE[library](x)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rounded = x.astype(kind)
    if library == "numpy":
        return rounded
    return torch.asarray(rounded.astype(np.float32)).to(getattr(torch, dtype))


def wide(x: Any) -> np.ndarray[Any, Any]:
    return np.asarray(x.double() if isinstance(x, torch.Tensor) else x, np.float64)


@pytest.mark.parametrize(
    ("dtype", "library"),
    lanes.cases(
        itertools.product(("bfloat16", "float16"), MADE),
        (("bfloat16", "torch"), ("float16", "numpy")).__contains__,
    ),
)
@pytest.mark.parametrize("name", SUMS)
def test_a_float32_buffer_has_digits_that_16_bits_have_not(
    name: str, dtype: str, library: str
) -> None:
    arrays, options = SUMS[name]
    given = [narrow(x, dtype, library) for x in arrays]
    plan = registry[name].plan(*given, **options)
    exact = registry[name](*[x if x.dtype.kind == "i" else wide(y)
                             for x, y in zip(arrays, given, strict=True)], **options)  # fmt: skip
    exact = exact if isinstance(exact, tuple) else (exact,)
    sums = [outputs.may_have(plan.problem, x)[1:] == ("float32",) for x in plan.problem.outputs]
    assert any(sums)
    found, usual = [], plan(*given)
    for start in (0.0, 0.25):
        outs = tuple(
            [
                MADE[library](np.full(x.shape, start, np.float32)) if s else None
                for x, s in zip(exact, sums, strict=True)
            ]
        )
        adds = tuple([s and start > 0 for s in sums])
        got = plan(*given, out=outs if len(outs) > 1 else outs[0], accumulate=adds)
        found.append(got if isinstance(got, tuple) else (got,))
    usual = usual if isinstance(usual, tuple) else (usual,)
    for i, total in enumerate(sums):
        plain, added = wide(found[0][i]), wide(found[1][i])
        if not total:
            np.testing.assert_array_equal(plain, wide(usual[i]))
            np.testing.assert_array_equal(added, wide(usual[i]))
            continue
        rounded = np.linalg.norm(wide(usual[i]) - plain) / np.linalg.norm(plain)
        # One rounding to its dtype apart, and added in float32.
        assert rounded > 1e-5
        np.testing.assert_array_equal(added, (plain + 0.25).astype(np.float32))
        error = np.linalg.norm(plain - exact[i]) / np.linalg.norm(exact[i])
        # Logits of 16 bits, and their gradients, are rounded in between.
        assert error < (0.02 if "linear" in name else rounded / 50)


def test_an_unrounded_sum_over_many_calls_loses_nothing() -> None:
    """Small gradients vanish in a bfloat16 buffer, and add up in one of float32."""
    dy, x = torch.full((4, 8), 2.0**-12).bfloat16(), torch.ones(4, 8).bfloat16()
    weight = torch.ones(8).bfloat16()
    plan = bc.rms_norm_backward.plan(dy, x, weight)
    buffers = torch.ones(8).bfloat16(), torch.ones(8)
    for _ in range(64):
        for buffer in buffers:
            plan(dy, x, weight, out=(None, buffer), accumulate=[False, True])
    assert (buffers[0] == 1).all()
    torch.testing.assert_close(buffers[1], torch.full((8,), 1.0625), rtol=1e-6, atol=0)


X = np.ones((4, 8), np.float32)
W = np.ones(8, np.float32)
HALF = [torch.ones(4, 8).bfloat16(), torch.ones(4, 8).bfloat16(), torch.ones(8).bfloat16()]


@pytest.mark.parametrize(
    ("accumulate", "error", "said"),
    [
        ((True,), ValueError, "accumulate: expected one bool for each of dx, dweight, got 1"),
        ([False] * 3, ValueError, "accumulate: expected one bool for each of dx, dweight, got 3"),
        ((False, 1), TypeError, "accumulate: expected True or False, or 2 of these, got (False, 1"),
        (None, TypeError, "accumulate: expected True or False, or 2 of these, got None"),
        (np.asarray([True, True]), TypeError, "accumulate: expected True or False, or 2 of these"),
        ((True, False), ValueError, "out (dx): expected an array to add into, got None"),
    ],
)
def test_what_accumulate_may_not_be(accumulate: Any, error: Any, said: str) -> None:
    plan, total = bc.rms_norm_backward.plan(X, X, W), np.full(8, 7, np.float32)
    with pytest.raises(error, match=re.escape(f"rms_norm_backward: {said}")):
        plan(X, X, W, out=(None, total), accumulate=accumulate)
    assert (total == 7).all()


def test_no_flag_that_is_set_needs_no_out() -> None:
    plan = bc.rms_norm_backward.plan(X, X, W)
    for none in ((False, False), [False, False]):
        np.testing.assert_array_equal(plan(X, X, W, accumulate=none)[1], plan(X, X, W)[1])
    with pytest.raises(ValueError, match="accumulate: expected out= to add into, got none"):
        plan(X, X, W, accumulate=(False, True))


@pytest.mark.parametrize(
    ("place", "dtype", "said"),
    [
        (0, "float32", "out (dx): expected dtype bfloat16, got float32"),
        (1, "float16", "out (dweight): expected dtype bfloat16 or float32, got float16"),
        (1, "float64", "out (dweight): expected dtype bfloat16 or float32, got float64"),
    ],
)
def test_only_a_sum_may_be_wider(place: int, dtype: str, said: str) -> None:
    plan = bc.rms_norm_backward.plan(*HALF)
    outs: list[Any] = [None, None]
    outs[place] = torch.zeros((4, 8) if place == 0 else 8, dtype=getattr(torch, dtype))
    with pytest.raises(ValueError, match=re.escape(f"rms_norm_backward: {said}")):
        plan(*HALF, out=tuple(outs))


def test_of_an_op_that_is_no_gradient_sums_alone_are_added_to() -> None:
    hidden, weight, target = torch.ones(2, 4), torch.ones(3, 4), torch.zeros(2, dtype=torch.int64)
    plan = bc.linear_cross_entropy_with_gradient.plan(hidden, weight, target)
    dweight = torch.ones(3, 4)
    plan(hidden, weight, target, out=(None, None, dweight), accumulate=(False, False, True))
    torch.testing.assert_close(dweight, 1 + plan(hidden, weight, target)[2])
    said = r"accumulate \(loss\): expected False, got True: only gradients add into their outputs"
    with pytest.raises(NotImplementedError, match=said):
        plan(hidden, weight, target, out=(None, None, dweight), accumulate=True)


def test_one_bool_stands_for_all() -> None:
    assert each(True, 2) == (True, True)
    assert each((False, True), 2) == (False, True)
    problem = bc.rms_norm_backward.plan(X, X, W).problem
    assert outputs.adds(problem, [True, True]) is True
    assert outputs.adds(problem, (False, False)) is False
    assert outputs.adds(problem, (False, True)) == (False, True)


def made(library: str, *shape: int) -> Any:
    return MADE[library](np.ones(shape, np.float32))


@pytest.mark.parametrize("library", MADE)
def test_outputs_like_those_that_passed_are_not_described_again(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = made(library, 4, 8), made(library, 8)
    plan, turned = bc.rms_norm_backward.plan(x, x, w), bc.rms_norm_backward.plan(x.T, x.T, x[:, 0])
    cases: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (plan, (x, x, w), {"out": (made(library, 4, 8), made(library, 8))}),
        (plan, (x, x, w), {"out": (None, made(library, 8)), "accumulate": (False, True)}),
        (plan, (x, x, w), {"out": [made(library, 4, 8), made(library, 8)], "accumulate": True}),
        # By the plan for their layout.
        (turned, (made(library, 8, 4), x.T, x[:, 0]), {"out": (made(library, 8, 4), w[:4])}),
    ]
    looked: list[str] = []
    described = check.described

    def noted(op: str, name: str, x: Any) -> Any:
        looked.append(name)
        return described(op, name, x)

    monkeypatch.setattr(check, "described", noted)
    for called, arrays, more in cases:
        want = called(*arrays, **more)
        looked.clear()
        got = called(*arrays, **more)
        assert not [name for name in looked if name.startswith("out")]
        for one, given in zip(got, more["out"], strict=True):
            assert given is None or one is given
        assert len(want) == len(got) == 2


@pytest.mark.parametrize("library", MADE)
def test_outputs_that_passed_let_nothing_else_pass(library: str) -> None:
    """Each fault comes right behind a call that is as it should be."""
    x, w, room = made(library, 4, 8), made(library, 8), made(library, 80)
    plan, dx, dw = bc.rms_norm_backward.plan(x, x, w), made(library, 4, 8), made(library, 8)
    into, beside = room[:32].reshape(4, 8), room[16:48].reshape(4, 8)
    apart, crossing = room[48:56], room[28:36]
    faults: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        ("memory apart from x, got an overlap", (x, into, w), {"out": (beside, dw)}),
        ("memory apart from dy, got an overlap", (into, x, w), {"out": (beside, dw)}),
        ("memory apart from weight, got an overlap", (x, x, apart), {"out": (dx, apart)}),
        ("memory apart from another output", (x, x, w), {"out": (into, crossing)}),
        ("expected shape (8,), got (7,)", (x, x, w), {"out": (dx, dw[:7])}),
        ("expected 2 arrays, got 1", (x, x, w), {"out": dx}),
        ("expected one bool for each", (x, x, w), {"out": (dx, dw), "accumulate": (True,)}),
        ("to add into, got None", (x, x, w), {"out": (None, dw), "accumulate": (True, True)}),
    ]
    lying = made(library, 1)
    lying = np.broadcast_to(lying, 8) if library == "numpy" else lying.expand(8)
    if library == "numpy":
        faults.append(("a writable array, got a read-only one", (x, x, w), {"out": (dx, lying)}))
        locked = dw.copy()
        locked.flags.writeable = False
        faults.append(("a writable array, got a read-only one", (x, x, w), {"out": (dx, locked)}))
    else:
        faults.append(("elements apart", (x, x, w), {"out": (dx, lying)}))
        leaf = torch.ones(8, requires_grad=True)
        faults.append(("requires grad is written to", (x, x, w), {"out": (dx, leaf)}))
        faults.append(("expected dtype float32", (x, x, w), {"out": (dx, dw.double())}))
    for said, arrays, more in faults:
        for accumulate in (False, (False, True), True):
            plan(x, x, w, out=(dx, dw), accumulate=accumulate)
            plan(x, x, w, out=(dx, dw), accumulate=accumulate)
            with pytest.raises((ValueError, NotImplementedError), match=re.escape(said)):
                plan(*arrays, **more)
    for _ in range(2):
        plan(x, x, w, out=(None, dw), accumulate=(False, True))
    with pytest.raises(ValueError, match="an array to add into, got None"):
        plan(x, x, w, out=(None, dw), accumulate=True)
    forward = bc.rms_norm.plan(x, w)
    for _ in range(2):
        forward(x, w, out=dx)
    with pytest.raises(NotImplementedError, match="only gradients add"):
        forward(x, w, out=dx, accumulate=True)


@pytest.mark.parametrize("library", MADE)
def test_an_input_as_output_passes_where_the_op_is_safe_in_place_alone(library: str) -> None:
    x, y, out = made(library, 4, 8), made(library, 4, 8), made(library, 4, 8)
    for f, given, inplace in ((bc.relu, (x,), True), (bc.softmax, (x,), False)):
        plan = f.plan(*given)
        for _ in range(3):
            plan(x, out=out)
        for same in (x, x[:]):
            if inplace:
                assert plan(x, out=same) is same
            else:
                with pytest.raises(ValueError, match="memory apart from x, got an overlap"):
                    plan(x, out=same)
    room = made(library, 40)
    lerp, begin, behind = bc.lerp.plan(x, y), room[:32].reshape(4, 8), room[8:].reshape(4, 8)
    for _ in range(2):
        assert lerp(x, y, weight=0.5, out=y) is y
    with pytest.raises(ValueError, match="memory apart from a, got an overlap"):
        lerp(behind, begin, weight=0.5, out=begin)


@pytest.mark.parametrize("library", MADE)
def test_what_is_read_again_is_not_written_over(library: str) -> None:
    """Of as many classes of a teacher as there are, the probabilities have the gradient's shape."""
    logits, probs = made(library, 4, 8), made(library, 4, 8)
    ids = MADE[library](np.tile(np.arange(8), (4, 1)))
    plan = bc.topk_kl_div_with_logits_with_gradient.plan(logits, ids, probs)
    for _ in range(2):
        with pytest.raises(ValueError, match="memory apart from teacher_probs, got an overlap"):
            plan(logits, ids, probs, out=(None, probs))
        assert plan(logits, ids, probs, out=(None, logits))[1] is logits


@pytest.mark.parametrize("library", MADE)
def test_views_of_one_array_are_apart_where_their_elements_are(library: str) -> None:
    """Strided outputs reach further than their elements fill; that is told on every call."""
    room, x = made(library, 8, 8), made(library, 4, 4)
    plan, out = bc.relu.plan(x.T), room[:4, ::2]
    for near, apart in ((room[4:, ::2], True), (room[:4, 1::2], True), (room[3:7, ::2], False)):
        given = near.T
        for _ in range(2):
            plan(x.T, out=out.T)
            if apart:
                want = np.asarray(given) + 1
                assert plan(given, out=out.T) is not None
                np.testing.assert_array_equal(np.asarray(given) + 1, want)
            else:
                with pytest.raises(ValueError, match="memory apart from x, got an overlap"):
                    plan(given, out=out.T)
