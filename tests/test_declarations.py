"""Declarations: a mistake is refused where it stands, and what an array is hangs on no name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import new_ops
import numpy as np
import pytest
import torch
from holding import hold

import baracuda as bc
from baracuda.backends.cuda.schedules import PLANNERS
from baracuda.calls.op import op, registry
from baracuda.declaration import indexed, roles
from baracuda.declaration.spec import Kernel, OpSpec, Packed, Schedule
from baracuda.declaration.values import choice, flag, integer, shape
from baracuda.testing.cases import subjects

LIBRARIES = ("numpy", "torch", "jax", "array_api_strict")


def plain(x: Any, /, *, axis: int = -1) -> Any:
    """Nothing."""


def two(x: Any, ids: Any, /, *, axis: int = -1, mode: str = "raise") -> Any:
    """Nothing."""


def late(x: Any, dy: Any, /, *, axis: int = -1) -> Any:
    return x * dy


def swapped(ds: Any, dy: Any, s: Any, /) -> Any:
    return ds + dy * s


def shaped(x: Any, /, *, size: tuple[int, ...], axis: int = -1) -> Any:
    """Nothing."""


AXIS = {"axis": integer}
FORM = "x[*b n@axis *c] -> y[*b n *c]"
TWO = "x[*b n@axis *c], ids[*b *c] -> y[*b *c]"
MODE = {**AXIS, "mode": choice("raise", "drop")}

# What is wrong, the function, the forms and keywords, and how the message goes on behind the line.
WRONG: dict[str, tuple[Callable[..., Any], tuple[str, ...], dict[str, Any], str]] = {
    "an array of another name": (
        plain, ("y[*b n@axis *c] -> z[*b n *c]",), {"options": AXIS}, "arrays: ('y',) declared"),
    "an option that the function lacks": (
        plain, (FORM,), {"options": {**AXIS, "eps": flag}}, "options: "),
    "an option that is a scalar too": (
        plain, (FORM,), {"options": AXIS, "scalars": AXIS}, "scalars: {'axis'} are options too"),
    "an output axis that nothing binds": (
        plain, ("x[*b n@axis *c] -> y[*b m *c]",), {"options": AXIS}, "nothing binds m of y"),
    "a marker that is no option": (
        plain, ("x[*b n@dim *c] -> y[*b n *c]",), {"options": AXIS}, "dim points at an axis"),
    "a shape that is no option": (
        shaped, ("x[*b n@axis *c], extent(k) -> y[*b k *c]",),
        {"options": {**AXIS, "size": shape}}, "extent is no option"),
    "a condition on no option": (
        plain, (FORM + " if reduction=none",), {"options": AXIS}, "reduction is no option"),
    "a derived axis that nothing computes": (
        plain, ("x[*b n@axis *c] -> y[*b o *c]",), {"options": AXIS, "derived": ("o",)},
        "derived: nothing computes o: resolve= is missing"),
    "a role of no array": (
        plain, (FORM,), {"options": AXIS, "roles": {"ids": roles.mask()}},
        "roles: ids is no array of any form"),
    "an index without a policy": (
        two, (TWO,), {"options": MODE, "roles": {"ids": roles.index("n", policy="")}},
        "roles: ids: no option says what is out of range"),
    "an index whose policy is no option": (
        two, (TWO,), {"options": MODE, "roles": {"ids": roles.index("n", policy="bounds")}},
        "roles: ids: bounds says what is out of range"),
    "a policy that cannot drop": (
        two, (TWO,),
        {"options": {**AXIS, "mode": choice("raise", "clip")},
         "roles": {"ids": roles.index("n")}},
        "roles: ids: mode does not take drop"),
    "an index below no axis": (
        two, (TWO,), {"options": MODE, "roles": {"ids": roles.index("v")}}, "has no axis v"),
    "an entry to ignore of no option": (
        two, (TWO,), {"options": MODE, "roles": {"ids": roles.index("n", ignored="skip")}},
        "roles: ids: skip is no option"),
    "a counter along no axis": (
        two, (TWO,), {"options": MODE, "roles": {"ids": roles.counter("s")}}, "has no axis s"),
    "a gradient like that of no array": (
        plain, (FORM,), {"options": AXIS, "roles": {"x": roles.like("z")}}, "z is no array"),
    "a batch along no axis": (
        plain, (FORM,), {"options": AXIS, "batches": ("q",)}, "batches: no form has an axis q"),
    "a place along no group": (
        plain, (FORM,), {"options": AXIS, "located": {"axis": "q"}}, "located: "),
    "a hint for nothing": (
        plain, (FORM,), {"options": AXIS, "hints": {"z": "no"}}, "hints: z is neither"),
    "a packed array that is not there": (
        plain, (FORM,), {"options": AXIS, "packed": Packed("x", "gate", "axis", "axis")},
        "packed: x or gate is no array"),
    "a kernel in no file": (
        plain, (FORM,), {"options": AXIS, "kernel": Kernel("nowhere.cu", "Relu", "rows")},
        "kernel: there is no cuda_src/nowhere.cu"),
    "a functor that is not there": (
        plain, (FORM,), {"options": AXIS, "kernel": Kernel("softmax.cu", "Sofmax", "rows")},
        "kernel: cuda_src/softmax.cu has no Sofmax"),
    "no functor for an optional array": (
        two, ("x[*b] -> y[*b]", "x[*b], ids[*b] -> y[*b]"),
        {"options": MODE, "kernel": Kernel("loss.cu", "MseLoss", "reduce")},
        "kernel: cuda_src/loss.cu has no MseLossGiven1"),
    "a schedule that is not there": (
        plain, (FORM,),
        {"options": AXIS, "kernel": Kernel("softmax.cu", "Softmax", "row")},  # type: ignore[arg-type]
        "kernel: 'row' is none of add_rows, bags"),
    "the gradient of no op": (
        plain, (FORM,), {"options": AXIS, "adjoint_of": "sofmax"},
        "adjoint_of: there is no op sofmax yet"),
    "a gradient that takes what nobody knows": (
        two, ("x[*b n@axis *c], ids[*b n *c] -> dx[*b n *c]",),
        {"options": MODE, "adjoint_of": "softmax"},
        "adjoint_of: ids of softmax are not known to its gradient"),
    "a gradient of no array": (
        plain, ("x[*b n@axis *c] -> dz[*b n *c]",), {"options": AXIS, "adjoint_of": "softmax"},
        "adjoint_of: dz are gradients of no array of softmax"),
    "a gradient with an option of its own": (
        shaped, ("x[*b n@axis *c] -> dx[*b n *c]",),
        {"options": {**AXIS, "size": shape}, "adjoint_of": "softmax"},
        "adjoint_of: softmax does not have the options size"),
    "a gradient of no cotangent": (
        plain, ("x[*b n@axis *c] -> dx[*b n *c]",), {"options": AXIS, "adjoint_of": "softmax"},
        "adjoint_of: cotangents of softmax come first, in its order: dy"),
    "a gradient whose cotangent comes second": (
        late, ("x[*b n@axis *c], dy[*b n *c] -> dx[*b n *c]",),
        {"options": AXIS, "adjoint_of": "softmax"},
        "adjoint_of: cotangents of softmax come first, in its order: dy"),
    "a gradient whose cotangents are in another order": (
        swapped, ("ds[*b n], dy[*b n], s[*b n] -> dx[*b n]",), {"adjoint_of": "add_rms_norm"},
        "adjoint_of: cotangents of add_rms_norm come first, in its order: dy, ds"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_a_mistake_is_refused_and_names_op_and_line(mistake: str) -> None:
    function, forms, more, said = WRONG[mistake]
    before = dict(registry)
    line = function.__code__.co_firstlineno
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        op(*forms, category="test", **more)(function)
    start = f"@op {function.__name__} (test_declarations.py:{line}): "
    assert str(caught.value).startswith(start)
    assert registry == before


def test_every_schedule_that_may_be_named_is_there() -> None:
    assert set(PLANNERS) == set(get_args(Schedule))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["look_up", "look_up_backward"])
def test_the_laws_hold_for_an_index_of_any_name(name: str, library: str) -> None:
    with new_ops.registered("look_up", "look_up_backward"):
        found = [s for s in subjects([name], [library]) if s.dtype in ("float32", "bfloat16")]
        assert found
        for subject in found:
            hold(subject)


def test_an_index_that_counts_from_the_end_breaks_a_law() -> None:
    with new_ops.registered("wrong_look_up"):
        subject = next(s for s in subjects(["wrong_look_up"], ["numpy"]) if s.dtype == "float32")
        with pytest.raises(AssertionError, match="indices_obey_their_policy: ids out of range"):
            hold(subject)


@pytest.mark.parametrize("make", [np.asarray, torch.asarray])
@pytest.mark.parametrize("bad", [-1, 7])
def test_an_index_of_any_name_is_looked_at(make: Any, bad: int) -> None:
    table, ids = make(np.ones((7, 3), np.float32)), make(np.array([2, bad]))
    where = rf"^look_up: ids: expected 0 <= i < 7, got {bad} at position \(1,\)$"
    with new_ops.registered("look_up"), pytest.raises(IndexError, match=where):
        new_ops.look_up(ids, table)
    with new_ops.registered("look_up"):
        assert float(new_ops.look_up(ids, table, bounds="drop")[1].sum()) == 0


def spec_of(name: str) -> OpSpec:
    found = getattr(new_ops, name) if hasattr(new_ops, name) else registry[name]
    spec: OpSpec = found.spec
    return spec


@pytest.mark.parametrize(
    ("name", "scatters"),
    [
        ("look_up", False), ("look_up_backward", True),
        ("gather", False), ("gather_backward", True),
        ("segment_sum", True), ("segment_sum_backward", False), ("segment_softmax", True),
        ("embedding_bag", True), ("embedding_bag_backward", True),
        ("cross_entropy_backward", False), ("cross_entropy_with_gradient", False),
        ("nll_loss_backward", False), ("rope_backward", False),
        ("linear_cross_entropy_backward", False),
    ],
)  # fmt: skip
def test_what_scatters_follows_from_the_axes(name: str, scatters: bool) -> None:
    assert indexed.scatters(spec_of(name)) is scatters


def test_the_ops_of_the_package_are_left_as_they_were() -> None:
    assert not {"look_up", "look_up_backward", "wrong_look_up"} & {*registry, *bc.__all__}
