"""Ops that torch has under the same definition: values, and gradients beside torch's autograd."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import baracuda as bc
from baracuda.calls import adjoint, check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.spec import Case, OpSpec
from baracuda.testing import device_peers
from baracuda.testing.cases import draw, options_of, to_library
from baracuda.testing.peers import EXPRESSIONS, expression_of, namesake
from baracuda.testing.problems import device_rows, host_rows
from baracuda.testing.timed_row import Row

MAGNITUDES = (
    0.0, 1e-300, 1e-30, 1e-8, 1e-3, 0.3, 0.5, 1.0, 1.7, 2.5, 3.0, 6.0, 12.0, 20.0, 20.5, 37.0, 88.0,
    103.0, 700.0, 750.0, 1e4, 1e30,
)  # fmt: skip
EDGES = (*MAGNITUDES, *(-x for x in MAGNITUDES), math.inf, -math.inf, math.nan)
COMMON = (1.0, -0.7, 2.5)
# Where infinities give something else in torch, and why.
FINITE = {
    "lerp": "from weight = -1/2 down torch extrapolates from b: NaN where b is infinite",
    "softsign": "the slope is 0 where autograd has NaN, from quotients of infinities",
}
# Where torch has the slope in no more than float32, and why.
SINGLE = {"hardsigmoid": "a sixth is rounded to it", "celu": "so is 1/alpha"}
EPS32, EPS64 = (float(np.finfo(kind).eps) for kind in (np.float32, np.float64))
NAMED = [name for name, op in registry.items() if op.spec.namesake]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def values(spec: OpSpec, case: Case) -> Iterator[list[Any]]:
    """float64 tensors for every form: those of the case, and edges where every element is alone."""
    for form in spec.forms(options_of(spec, case)):
        known = draw(spec, case, form, "float64")
        yield [to_library(known[n], "torch") if n in known else None for n in spec.arrays]
    if spec.pointwise:
        inputs = range(len(spec.arrays))
        more = [v for v in options_of(spec, case).values() if isinstance(v, float)]
        # NaN first, in a whole vector: torch's slope there is another one in the rest of an array.
        edges = list(dict.fromkeys([math.nan, *EDGES, *more]))
        if spec.name in FINITE:
            edges = list(filter(math.isfinite, edges))
        points = [
            p for one in inputs for p in product(*[edges if k == one else COMMON for k in inputs])
        ]
        yield list(torch.tensor(points, dtype=torch.float64).mT)


def same(ours: Any, theirs: torch.Tensor, size: Any, eps: float = EPS64) -> None:
    """To a few roundings of the result, or of what it is made from."""
    assert ours.shape == theirs.shape
    got, want = ours.detach().numpy(), theirs.detach().numpy()
    size = np.where(np.isfinite(size), size, 0)
    most = 64 * eps * (np.abs(want) + size)
    fits = (got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= most)
    assert fits.all(), [(np.broadcast_to(size, fits.shape)[~fits], got[~fits], want[~fits])]


@pytest.mark.parametrize("backend", ["array_api", "torch"])
@pytest.mark.parametrize("name", NAMED)
def test_an_op_and_its_gradient_are_those_of_torch(name: str, backend: str) -> None:
    """By the body, and by what torch's backend calls in its place."""
    op = registry[name]
    backward = adjoint.partner(op.spec)[0]
    assert backward is not None
    results = {p.name for form in backward.signatures for p in form.outputs}
    for case in op.spec.cases:
        options = options_of(op.spec, case)
        structural = {k: v for k, v in options.items() if k in op.spec.options}
        scalars = {k: v for k, v in options.items() if k in op.spec.scalars}
        for arrays in values(op.spec, case):
            there = {n: x for n, x in zip(op.spec.arrays, arrays, strict=True) if x is not None}
            alone = op.spec.pointwise
            size = sum(np.abs(x.numpy()) if alone else float(x.abs().max())
                       for x in there.values() if x.numel())  # fmt: skip
            theirs = {n: x.clone() for n, x in there.items()}
            watched = [
                x.requires_grad_()
                for n, x in theirs.items()
                if x.is_floating_point() and adjoint.dual(op.spec, n) in results
            ]
            want = namesake(op.spec)(*map(theirs.get, op.spec.arrays), **options)
            y = op(*arrays, **options, backend=backend)
            same(y, want, size)
            dy = torch.cos(torch.arange(want.numel(), dtype=want.dtype)).reshape(want.shape)
            slopes = torch.autograd.grad(want, watched, dy)
            problem = check.problem(op.spec, arrays, structural, DEFAULT)
            outputs = {p.name: y for p in op.spec.signatures[0].outputs}
            known = {**there, **outputs, **{f"d{n}": dy for n in outputs}}
            ask = adjoint.request(backward, problem, known.keys())
            with bc.options(backend=backend):
                got = ask.call(registry[backward.name], known, scalars)
            for n, slope in zip([n for n in there if theirs[n].requires_grad], slopes, strict=True):
                if adjoint.dual(op.spec, n) not in got:
                    continue  # the body's to differentiate
                # torch subtracts from 1 where the slope of some is small.
                own = EPS32 if name in SINGLE else EPS64
                same(got[adjoint.dual(op.spec, n)], slope, size + 1, own)


@pytest.mark.parametrize("slope", COMMON)
def test_slopes_of_channels_at_edges(slope: float) -> None:
    """A channel for each edge, so that every sum is one of one element."""
    x = torch.tensor([sorted(EDGES)], dtype=torch.float64)
    weight = torch.full_like(x[0], slope)
    for dy in (1.0, -0.7, math.inf):
        theirs = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        want = torch.nn.functional.prelu(*theirs)
        same(registry["prelu"](x, weight), want, 0)
        cotangent = torch.full_like(x, dy)
        got = registry["prelu_backward"](cotangent, x, weight)
        for ours, slopes in zip(got, torch.autograd.grad(want, theirs, cotangent), strict=True):
            same(ours, slopes, 0)


def test_torch_has_every_namesake() -> None:
    for name in NAMED:
        assert callable(namesake(registry[name].spec))


@pytest.mark.parametrize("derived", [row for row in host_rows(32) if row.derived],
                         ids=lambda row: row.op)  # fmt: skip
def test_the_peers_of_a_derived_row_compute_the_same(derived: Row) -> None:
    """But of a gradient by torch, whose inputs are drawn where only the result was saved."""
    row = Row(derived.op, "small", ((3, 4),) * len(derived.shapes), derived.options)
    arrays = row.arrays(np.random.default_rng(0), np.float64)
    op = registry[row.op]
    want = op(*arrays, **row.options)
    np.testing.assert_allclose(expression_of(row.op)(np, *arrays, **row.options), want, rtol=1e-12)
    given = [torch.from_numpy(x) for x in arrays]
    tasks = device_peers.peers(row, given, compiled=False)
    forward = registry[op.spec.adjoint_of or row.op].spec
    # Peers draw other random words.
    alike = bool(forward.numbered)
    assert set(tasks) == ({"eager"} if forward.namesake or alike else set())
    for task in tasks.values():
        first, again = task(), task()
        if op.spec.adjoint_of and not set(forward.arrays) <= set(op.spec.arrays):
            continue
        for result in (first, again):
            if alike:
                continue
            (got,) = result if isinstance(result, tuple) else (result,)
            np.testing.assert_allclose(got, want, rtol=EPS32, atol=1e-12)


def test_derived_rows_are_those_of_pointwise_ops_without_one_by_hand() -> None:
    for rows in (host_rows(32), device_rows("bfloat16"), device_rows("float32")):
        derived = {row.op for row in rows if row.derived}
        masked = {f"{n}{end}" for n in ("stochastic_depth", "softmax_dropout")
                  for end in ("", "_backward")}  # fmt: skip
        pointwise = {n for n, o in registry.items() if o.spec.pointwise}
        assert derived == (pointwise | masked) - set(EXPRESSIONS)
        assert not derived & {row.op for row in rows if not row.derived}
