"""torch.compile, export, `torch.library`: ops as operators, each with its fake and gradient."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any

import lanes
import pytest
import torch
from forks import printed
from functorch.compile import make_boxed_func
from graphs import calls, floats, options_of, overload
from kinds import USUAL, one_of_category, runs_both_ways
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend

import baracuda as bc
from baracuda.calls import adjoint
from baracuda.calls.op import registry
from baracuda.frameworks.torch import operators
from baracuda.testing.cases import Call


def _usual(op: str) -> bool:
    """Whether an op stands for others: one of each kind, and one gradient of each category."""
    return op in USUAL or runs_both_ways(op)


def _way(op: str) -> tuple[bool, ...]:
    """What a graph has of an op: whether one is its gradient, is made early, is a whole program."""
    spec = registry[op].spec
    partner, linear = adjoint.partner(spec)
    early = registry[op].early is not None
    return partner is None, linear, bool(spec.composite), early, spec.adjoint_of is None


_WAYS = {_way(op): op for op in reversed(registry)}


def _whole(op: str) -> bool:
    """Whether it stands for a category, or for a way: what compiles a whole program."""
    return one_of_category(op) or op in _WAYS.values()


# Whose last form is compiled; of all others the operators are tried.
_compiled = lanes.thinned({*_WAYS.values()}.__contains__)


def _any_size(op: str) -> bool:
    """Whether a program of an op takes any size: that of a gradient of one op."""
    spec = registry[op].spec
    return spec.adjoint_of is not None and not spec.composite


def _sizes(given: tuple[str, bool]) -> bool:
    """Whether these sizes, fixed or not, are the usual ones of an op that stands for others."""
    op, dynamic = given
    return _whole(op) and dynamic == _any_size(op)


# Every op with its usual sizes; one that stands for others with both.
_PROGRAMS = [
    (op, dynamic)
    for op, dynamic in itertools.product(registry, (False, True))
    if _whole(op) or dynamic == _any_size(op)
]


# What is said of an operator, and what a compiler makes of that, which takes as long again.
PROMISES = {
    "eager": ("test_schema", "test_autograd_registration", "test_faketensor"),
    "compiled": ("test_aot_dispatch_dynamic",),
}


@pytest.mark.parametrize(
    ("op", "promises"),
    lanes.cases(
        itertools.product(registry, PROMISES),
        lambda given: _compiled(given[0]) if given[1] == "compiled" else _usual(given[0]),
    ),
)
def test_operators_keep_their_promises(op: str, promises: str) -> None:
    every = calls(op, "float64")
    for call in lanes.last(every) if promises == "compiled" else every:
        arrays = call.given()
        # For gradients torch adds up the sums of the results, in the dtype of the first one.
        added = promises == "eager" or "float" in call.dtypes[0]
        for x in floats(arrays):
            x.requires_grad_(added)
        known = PROMISES[promises]
        torch.library.opcheck(overload(call), tuple(arrays), options_of(call), test_utils=known)


def test_no_promise_is_left_out() -> None:
    known = inspect.signature(torch.library.opcheck).parameters["test_utils"].default
    assert sorted(itertools.chain(*PROMISES.values())) == sorted(known)


@pytest.mark.parametrize("op", registry)
def test_the_forms_of_an_overload_return_as_many_arrays(op: str) -> None:
    """torch takes as many results as the schema has, whatever it is given."""
    for name, forms in operators.overloads(registry[op]).items():
        assert len({len(form.outputs) for form in forms}) == 1, name


@pytest.mark.parametrize(
    ("op", "dynamic"),
    lanes.cases(_PROGRAMS, lanes.thinned(_sizes)),
)
def test_a_compiled_call_is_one_operator_and_so_is_its_gradient(op: str, dynamic: bool) -> None:
    for call in lanes.last(calls(op)):
        torch._dynamo.reset()
        arrays, graphs = call.given(), []
        named = zip(call.subject.spec.arrays, arrays, strict=False)
        watched = [x.requires_grad_() for name, x in named if name in call.watched]
        partner = adjoint.partner(registry[op].spec)[0]

        def keep(graph: Any, inputs: Any, graphs: list[Any] = graphs) -> Any:
            graphs.append(graph.print_readable(print_output=False))
            return make_boxed_func(graph.forward)

        def function(*arrays: Any, call: Call = call, **more: Any) -> Any:
            out = call.subject.function(*arrays, **call.options, **more)
            return out if isinstance(out, tuple) else (out,)

        backend = aot_autograd(fw_compiler=keep)
        compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend=backend)
        # By choice of a backend an eager call has the explicit gradient too.
        eager = {"backend": "torch"} if partner else {}
        got, want = compiled(*arrays), function(*arrays, **eager)
        assert [y.requires_grad for y in got] == [y.requires_grad for y in want]
        results = [[y for y in some if y.requires_grad] for some in (got, want)]
        along = [torch.cos(y.detach()) for y in results[1]]
        # What is straight in an input has no slope along it: none, or zeros.
        slopes, theirs = (
            torch.autograd.grad(y, watched, along, materialize_grads=True) for y in results
        )
        for x, y in zip((*got, *slopes), (*want, *theirs), strict=True):
            # What is recorded where no op is the gradient is the body, whose sums have an order of
            # their own, and so have the chunks of a composite.
            other = partner is None or registry[op].spec.composite
            # Small second derivatives are differences of larger numbers.
            size = max(float(y.detach().abs().max()), 0.1) if other and y.numel() else 0.0
            assert torch.allclose(x, y, atol=1e-6 * size) if other else torch.equal(x, y)
            # What torch records of a body is laid out as its own functions leave it.
            assert x.stride() == y.stride() or (partner is None and x is not got[0])
        if len(graphs) == 1:
            # Random numbers depend on no input.
            assert partner is None
            assert not any(slope.any() for slope in theirs)
            assert f"torch.ops.baracuda.{op}." in graphs[0]
            continue
        forward, backward = graphs
        early = registry[op].early
        if early is not None and not call.form.outputs[0].terms:
            assert f"torch.ops.baracuda.{early.spec.name}." in forward
            # They are there, and scaled.
            assert "torch.ops.baracuda." not in backward.replace("baracuda.scaled_gradient", "")
            continue
        assert f"torch.ops.baracuda.{op}." in forward
        assert partner is None or f"torch.ops.baracuda.{partner.name}." in backward


def test_new_sizes_compile_nothing() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")

    def step(x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        return bc.swiglu_backward(dy, bc.rope(x)) + 1

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=counter)
    for n in range(3, 20):
        x, dy = torch.randn(n, 2 * n), torch.randn(n, n)
        torch.testing.assert_close(compiled(x, dy), step(x, dy))
    assert counter.frame_count == 1


def test_new_offsets_and_steps_compile_nothing() -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    x = torch.randn(4, 16, requires_grad=True)
    states = [torch.rand(3) for _ in range(4)]

    def step(x: torch.Tensor, number: int) -> tuple[torch.Tensor, ...]:
        places = bc.seeds(7, step=number)
        y = bc.dropout(x, p=0.5, **next(places))
        z = bc.dropout_add(y, x, p=0.25, **next(places))
        noise = bc.uniform(x, seed=3, offset=number)
        return z, noise, bc.adamw(*states, step=number + 1)[0]

    compiled = torch.compile(step, fullgraph=True, backend=counter)
    for number in (0, 1, 2, 3, 17, 2**31 + 5, 2**32 - 1):
        got, want = compiled(x, number), step(x, number)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
        slopes = [torch.autograd.grad(some[0].sum(), x)[0] for some in (got, want)]
        torch.testing.assert_close(*slopes, rtol=0, atol=0)
    # The first number is taken for a constant until there is another.
    assert counter.frame_count == 2


def test_views_of_any_size_give_the_layouts_of_plain_calls() -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return bc.glu(x), bc.lerp(x, x * 2, weight=0.3), bc.rope(x)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for n in (4, 6):
        x = torch.randn(n, n + 2, 8)
        for view in (x, x[:, :n], x.transpose(0, 1), x[::2], x[:, :1].expand(-1, n, -1)):
            for got, want in zip(compiled(view), function(view), strict=True):
                assert torch.equal(got, want)
                assert got.stride() == want.stride()


def test_inductor_trains_as_eager_does() -> None:
    torch._dynamo.reset()

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = bc.rope(x.unflatten(-1, (2, 8)).transpose(1, 2)).transpose(1, 2).flatten(-2)
        return bc.lerp(bc.swiglu(y @ w), x, weight=0.25).square().mean()

    x, w = torch.randn(3, 5, 16), torch.randn(16, 32)
    found = []
    for function in (loss, torch.compile(loss, fullgraph=True)):
        at = w.clone().requires_grad_()
        for _ in range(3):
            (slope,) = torch.autograd.grad(function(x, at), at)
            with torch.no_grad():
                at -= 0.1 * slope
        found.append(at.detach())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("op", lanes.cases(registry, lanes.thinned(_whole)))
def test_an_exported_program_comes_back(op: str, tmp_path: Any) -> None:
    for i, call in enumerate(lanes.last(calls(op))):

        class Module(torch.nn.Module):
            def forward(self, arrays: list[Any], call: Call = call) -> Any:
                return call.subject.function(*arrays, **call.options)

        arrays = call.given()
        program = torch.export.export(Module(), (arrays,))
        assert f"baracuda.{op}." in program.graph_module.code
        torch.export.save(program, tmp_path / f"{i}.pt2")
        again = torch.export.load(tmp_path / f"{i}.pt2").module()
        got, want = again(arrays), Module()(arrays)
        for x, y in zip(
            got if isinstance(want, tuple) else [got],
            want if isinstance(want, tuple) else [want], strict=True,
        ):  # fmt: skip
            assert torch.equal(x, y)


def test_the_first_call_of_all_may_be_compiled(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import baracuda as bc, torch\n"
        "f = torch.compile(lambda x: bc.swiglu(x), fullgraph=True, backend='aot_eager')\n"
        "print(f(torch.ones(2, 4)).sum().item())"
    )
    assert float(printed(program)) == pytest.approx(4 / (1 + 2.718281828**-1))


def test_dispatch_options_are_part_of_the_graph() -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 8)
    compiled = torch.compile(
        lambda x: bc.swiglu(x, backend="array_api"), fullgraph=True, backend="aot_eager"
    )
    with bc.options(backend="no such backend"):
        torch.testing.assert_close(compiled(x), bc.swiglu(x, backend="array_api"))


def test_a_fake_lies_as_a_result_does() -> None:
    from torch._subclasses import FakeTensorMode

    x = torch.ones(3, 5, 4)
    views = (x, x.transpose(0, 2), x.permute(1, 2, 0), x[:, ::2])
    for view in views:
        real = bc.relu(view)
        with FakeTensorMode() as mode:
            fake = bc.relu(mode.from_tensor(view))
        assert (fake.shape, fake.stride()) == (real.shape, real.stride())
    # A parameter's gradient has its own dtype.
    given = torch.ones(3, 4).bfloat16(), torch.ones(3, 4).bfloat16(), torch.ones(4)
    with FakeTensorMode() as mode:
        fakes = bc.rms_norm_backward(*map(mode.from_tensor, given))
    assert [x.dtype for x in fakes] == [x.dtype for x in bc.rms_norm_backward(*given)]
