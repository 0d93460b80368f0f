"""Where torch's other machinery meets the ops: batched gradients, `torch.fx`, compiled plans,
counters of operations, `out=` under autograd."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import printed
from graphs import calls
from torch.autograd import functional
from torch.utils.flop_counter import FlopCounterMode

import baracuda as bc
from baracuda import backends
from baracuda.backends.torch import TorchBackend
from baracuda.calls import adjoint
from baracuda.calls.op import registry
from baracuda.declaration.backend import Prepared, Runner
from baracuda.declaration.spec import Problem
from baracuda.frameworks.torch import operators
from baracuda.testing.cases import Call

DIFFERENTIABLE = [name for name, op in registry.items() if adjoint.partner(op.spec)[0]]
SIZE = 3


class Pointers(TorchBackend):
    """As torch's, but asks for the address of each array first, as a launch does."""

    name = "pointers"

    def prepare(self, problem: Problem) -> Prepared:
        prepared = super().prepare(problem)
        return prepared._replace(run=_with_pointers(prepared.run))


def _with_pointers(run: Runner) -> Runner:
    def on_memory(arrays: Sequence[Any], *more: Any) -> Any:
        for x in arrays:
            assert x is None or x.data_ptr() >= 0
        return run(arrays, *more)

    return on_memory


BACKEND = Pointers()


@pytest.fixture(scope="module")
def pointers() -> Iterator[str]:
    backends.register("pointers", backends.Entry(__name__, ("torch",)))
    yield "pointers"
    backends.unregister("pointers")


def _first(op: str, device: str = "cpu") -> Call:
    return calls(op, "float32", "cuda" if device == "cuda" else "torch", device)[0]


def _batched_gradients_are_single_ones(call: Call, backend: str | None) -> None:
    arrays = call.given()
    named = zip(call.subject.spec.arrays, arrays, strict=False)
    floats = [x.requires_grad_() for name, x in named if name in call.watched]
    out = call.subject.function(*arrays, **call.options, backend=backend)
    outs = out if isinstance(out, tuple) else (out,)
    along = [torch.randn(SIZE, *y.shape, dtype=y.dtype, device=y.device) for y in outs]
    gradient = partial(torch.autograd.grad, outs, floats, retain_graph=True)
    # First: a plan that is kept for plain cotangents is not for these.
    singles = [gradient([x[i] for x in along]) for i in range(SIZE)]
    got = gradient(along, is_grads_batched=True)
    for x, same in zip(got, zip(*singles, strict=True), strict=True):
        torch.testing.assert_close(x, torch.stack(same))


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_batched_gradients_are_those_of_each_member(op: str, pointers: str) -> None:
    for backend in (None, pointers):
        _batched_gradients_are_single_ones(_first(op), backend)


@pytest.mark.gpu
@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_batched_gradients_on_a_gpu(op: str) -> None:
    _batched_gradients_are_single_ones(_first(op, "cuda"), None)


def _losses(x: torch.Tensor, **options: Any) -> torch.Tensor:
    weight = torch.linspace(-1, 1, 40).reshape(5, 8).to(x)
    target = torch.arange(x.shape[0], device=x.device)
    return bc.linear_cross_entropy(x, weight, target, reduction="none", chunk=2, **options)


def _derivatives_in_one_go(device: str, backend: str | None) -> None:
    x = torch.randn(4, 8, dtype=torch.float64, device=device)
    for function in (partial(bc.swiglu, backend=backend), partial(_losses, backend=backend)):

        def total(x: torch.Tensor, function: Any = function) -> torch.Tensor:
            return function(x).square().sum()

        for derive, f in ((functional.jacobian, function), (functional.hessian, total)):
            torch.testing.assert_close(derive(f, x, vectorize=True), derive(f, x))


def test_jacobians_and_hessians_in_one_go(pointers: str) -> None:
    _derivatives_in_one_go("cpu", None)
    _derivatives_in_one_go("cpu", pointers)


@pytest.mark.gpu
def test_jacobians_and_hessians_in_one_go_on_a_gpu() -> None:
    _derivatives_in_one_go("cuda", None)


def test_a_batch_is_one_call_where_the_op_has_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    w = torch.randn(8, requires_grad=True)
    ran: list[tuple[int, ...]] = []
    run = TorchBackend.prepare

    def counted(self: TorchBackend, problem: Problem) -> Prepared:
        prepared = run(self, problem)

        def told(arrays: Sequence[Any], *more: Any) -> Any:
            ran.append(tuple(arrays[0].shape))
            return prepared.run(arrays, *more)

        return prepared._replace(run=told)

    monkeypatch.setattr(TorchBackend, "prepare", counted)
    bc.plan_cache.clear()
    y, z = bc.swiglu(x, backend="torch"), bc.rms_norm(x, w, backend="torch")
    ran.clear()
    torch.autograd.grad(y, x, torch.randn(SIZE, 4, 4), is_grads_batched=True)
    assert ran == [(SIZE, 4, 4)]
    ran.clear()
    # The gradient of the weight is a sum over all that a call has.
    torch.autograd.grad(z, w, torch.randn(SIZE, 4, 8), is_grads_batched=True)
    assert ran == [(4, 8)] * SIZE
    bc.plan_cache.clear()


def test_batches_of_batches() -> None:
    vmap = torch._vmap_internals._vmap
    a, b = torch.randn(2, 5, 4), torch.randn(3, 5, 4)
    got = vmap(lambda x: vmap(lambda y: bc.swiglu(x, y))(b))(a)
    want = torch.stack([torch.stack([bc.swiglu(x, y) for y in b]) for x in a])
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_pairs_turn_wherever_they_begin(dtype: torch.dtype) -> None:
    memory = torch.randn(1000).to(dtype)
    views = {
        "an odd offset": memory[1:9].reshape(2, 4),
        "odd strides": memory[: 3 * 7].reshape(3, 7)[:, 1:7],
        "every third": memory[1:25].reshape(2, 12)[:, ::3],
        "turned about": memory[1:25].reshape(4, 6).T,
        "one row for all": memory[3:7].expand(5, 4),
        "apart": memory.as_strided((2, 3, 4), (501, 7, 1), 1),
        "nothing": memory[1:1].reshape(0, 4),
        "pairs of one row": memory[1:3].reshape(1, 2),
    }
    for what, x in views.items():
        for op in (bc.rope, bc.rope_backward):
            for options in ({}, {"rotary_dim": 2}, {"interleaved": False}):
                got, want = op(x, **options), op(x.clone(), **options)
                assert torch.equal(got, want), what


PLANNED = torch.linspace(-1, 1, 24).reshape(3, 8)
COMPILED = {
    "options": (bc.swiglu.plan(PLANNED, gate_first=True), {}),
    "run-time values": (bc.lerp_backward.plan(PLANNED, weight=0.5), {"weight": 0.25}),
    "a backend": (bc.swiglu.plan(PLANNED, backend="array_api", deterministic=True), {}),
    "tuples": (bc.lp_pool1d.plan(PLANNED, norm_type=2.0, kernel_size=2), {}),
}


@pytest.mark.parametrize("name", COMPILED)
def test_a_plan_in_compiled_code_is_its_operator(name: str) -> None:
    plan, scalars = COMPILED[name]
    torch._dynamo.reset()
    code: list[str] = []

    def keep(graph: Any, inputs: Any) -> Any:
        code.append(graph.print_readable(print_output=False))
        return graph.forward

    def function(x: torch.Tensor) -> Any:
        return plan(x, **scalars)

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return plan(x, **scalars)

    compiled = torch.compile(function, fullgraph=True, backend=keep)
    exported = torch.export.export(Module(), (PLANNED,))
    for got in (compiled(PLANNED), exported.module()(PLANNED)):
        want = function(PLANNED)
        assert len(got) == len(want)
        assert all(map(torch.equal, got, want))
    for text in (*code, exported.graph_module.code):
        assert f"torch.ops.baracuda.{plan.sku.op}" in text
    if plan.problem.choices.backend:
        assert "array_api" in code[0]


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (lambda plan, x: plan(x, out=torch.empty(3, 4)), r"write out.copy_\(plan\(...\)\)"),
        (lambda plan, x: plan(x[:2]), "make another plan, or call the op"),
        (lambda plan, x: plan(x.double()), "make another plan, or call the op"),
        (lambda plan, x: bc.swiglu.plan(x)(x), "make it outside, or call the op"),
    ],
    ids=["out", "shape", "dtype", "making one"],
)
def test_what_a_plan_cannot_do_in_compiled_code_is_said(function: Any, complaint: str) -> None:
    torch._dynamo.reset()
    plan = bc.swiglu.plan(PLANNED)
    compiled = torch.compile(partial(function, plan), fullgraph=True, backend="eager")
    # Not in the lines of this file, which torch shows too.
    with pytest.raises(Exception, match=rf"raised exception \w+Error\(.*{complaint}"):
        compiled(PLANNED)


def _backend_of(lines: Sequence[str]) -> str:
    """The backend of the plan that was told of last."""
    (last,) = [line for line in lines if line.startswith("planned swiglu")][-1:]
    return last.partition("]")[0].split()[3]


def test_a_block_counts_where_a_compiled_program_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "baracuda")

    def runs_on(function: Any, x: torch.Tensor = PLANNED) -> str:
        bc.plan_cache.clear()
        caplog.clear()
        function(x)
        return _backend_of(caplog.messages)

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: bc.swiglu(x), fullgraph=True, backend="aot_eager")
    chosen = torch.compile(
        lambda x: bc.swiglu(x, backend="torch"), fullgraph=True, backend="aot_eager"
    )
    assert runs_on(compiled) == "torch"
    with bc.options(backend="array_api"):
        assert runs_on(compiled) == "array_api"
        # Keywords are part of the graph, and win.
        assert runs_on(chosen) == "torch"
        # What was compiled in a block is not of it.
        torch._dynamo.reset()
        assert runs_on(compiled) == "array_api"
    assert runs_on(compiled) == "torch"

    def within(x: torch.Tensor) -> torch.Tensor:
        with bc.options(backend="array_api"):
            return bc.swiglu(x)

    with pytest.raises(Exception, match=r"raised exception \w+Error\(.*options by keyword"):
        torch.compile(within, fullgraph=True, backend="eager")(PLANNED)
    torch._dynamo.reset()
    # Elsewhere it breaks the graph, and holds.
    assert runs_on(torch.compile(lambda x: within(x), backend="aot_eager")) == "array_api"


def test_a_record_is_part_of_the_graph() -> None:
    torch._dynamo.reset()
    record = bc.swiglu.plan(PLANNED, backend="array_api").sku.to_json()
    x = PLANNED.clone().requires_grad_()
    function = partial(bc.swiglu, sku=record)
    compiled = torch.compile(lambda x: function(x), fullgraph=True, backend="aot_eager")
    y = compiled(x)
    assert torch.equal(y, bc.swiglu(PLANNED, backend="array_api"))
    (got,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(got, bc.swiglu_backward(torch.ones(3, 4), PLANNED))
    other = record.replace("array_api", "numpy")
    with pytest.raises(NotImplementedError, match="backend 'numpy' refuses"):
        torch.ops.baracuda.swiglu(PLANNED, sku=other)


def test_an_out_that_requires_grad_is_refused_as_torch_does() -> None:
    x = torch.randn(3, 8)
    plan, leaf = bc.swiglu.plan(x), torch.zeros(3, 4, requires_grad=True)
    for out in (leaf, leaf[:], leaf * 1):
        with pytest.raises(RuntimeError, match="requires grad"):
            torch.mul(x[:, :4], 2, out=out)
        with pytest.raises(RuntimeError, match=r"swiglu: out \(y\): .* requires grad"):
            plan(x, out=out)
    assert not leaf.any()
    # What is recorded is refused by torch itself.
    watched = x.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="leaf Variable"):
        plan(watched, out=leaf)
    assert not leaf.any()
    with torch.no_grad():
        plan(x, out=leaf)
    assert torch.equal(leaf, bc.swiglu(x))
    plan(x * 2, out=leaf.detach())
    assert torch.equal(leaf, bc.swiglu(x * 2))


FLOPS = """
import torch, baracuda as bc
from torch.utils.flop_counter import FlopCounterMode
x, w, t = torch.ones(2, 5, 4), torch.ones(7, 4), torch.zeros(2, 5, dtype=torch.int64)
for counter in (FlopCounterMode(display=False), FlopCounterMode(display=False)):
    with counter:
        bc.linear_cross_entropy(x, w, t)
    print(counter.get_total_flops())
"""


def test_a_compiled_call_may_write_none_for_an_array_that_it_leaves_out() -> None:
    def gradient(x: torch.Tensor) -> Any:
        return bc.rms_norm_backward(x, x, None)

    x = torch.randn(3, 4)
    compiled = torch.compile(gradient, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), bc.rms_norm_backward(x, x))


def test_matrix_products_are_counted() -> None:
    x = torch.randn(2, 5, 4, requires_grad=True)
    w, target = torch.randn(7, 4, requires_grad=True), torch.randint(0, 7, (2, 5))
    product = 2 * (2 * 5) * 4 * 7

    def counted(function: Any) -> int:
        with FlopCounterMode(display=False) as counter:
            function()
        return counter.get_total_flops()

    flat = x.detach().flatten(0, 1)
    assert counted(lambda: flat @ w.detach().T) == product
    loss = partial(bc.linear_cross_entropy, x, w, target)
    assert counted(loss) == product
    assert counted(lambda: loss(reduction="none", chunk=3)) == product
    assert counted(lambda: loss().backward()) == 4 * product
    bias = torch.randn(7, requires_grad=True)
    assert counted(lambda: bc.linear_cross_entropy(x, w, target, bias)) == product
    assert counted(lambda: bc.linear_cross_entropy(x, w, target, bias).backward()) == 4 * product
    once = registry["linear_cross_entropy_with_gradient"]
    assert counted(lambda: once(x.detach(), w.detach(), target, bias.detach())) == 3 * product
    assert counted(lambda: once(x.detach(), w.detach(), target)) == 3 * product
    teacher = torch.randn(2, 5, 6), torch.randn(7, 6)
    taught, both = 2 * (2 * 5) * 6 * 7, partial(bc.linear_kl_div, x, w, *teacher)
    assert counted(both) == product + taught
    assert counted(lambda: both().backward()) == 4 * product + 2 * taught
    at_once = registry["linear_kl_div_with_gradient"]
    assert counted(lambda: at_once(x.detach(), w.detach(), *teacher)) == 3 * product + taught
    assert counted(lambda: bc.swiglu(x)) == 0


def test_every_composite_has_its_products_counted() -> None:
    from baracuda.frameworks.torch.flops import PRODUCTS

    assert set(PRODUCTS) == {name for name, op in registry.items() if op.spec.composite}


def test_counters_that_are_there_before_the_operators_count_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FLOPS)
    assert printed(program).split() == [str(2 * 10 * 4 * 7)] * 2


class Traced(torch.nn.Module):
    """One result and several, options, an array that is not there, one that is a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.rotary = bc.nn.RotaryEmbedding(interleaved=False)
        self.gated = bc.nn.SwiGLU(gate_first=True)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 4))

    # Without annotations: as strings they do not pickle with what is traced.
    def forward(self, x):
        y = self.gated(self.rotary(x))
        one, other = bc.lerp_backward(y, weight=0.25)
        return bc.rms_norm(one - other, self.scale, eps=1e-3)


def test_fx_traces_calls_as_nodes() -> None:
    module = Traced()
    traced = torch.fx.symbolic_trace(module)
    targets = [node.target for node in traced.graph.nodes if node.op == "call_function"]
    for op in (bc.rope, bc.swiglu, bc.lerp_backward, bc.rms_norm):
        assert op in targets
    x = torch.randn(3, 8, requires_grad=True)
    want = module(x)
    (slope,) = torch.autograd.grad(want.sum(), x)
    again = (traced, copy.deepcopy(traced), pickle.loads(pickle.dumps(traced)),
             torch.fx.symbolic_trace(traced))  # fmt: skip
    for one in again:
        y = one(x)
        assert torch.equal(y, want)
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], slope)


def test_fx_may_be_the_first_to_call(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, baracuda as bc\n"
        "class M(torch.nn.Module):\n"
        "    def forward(self, x): return bc.swiglu(bc.relu(x))\n"
        "m = torch.fx.symbolic_trace(M())\n"
        "print(m(torch.ones(2, 4)).shape, torch.fx.symbolic_trace(M())(torch.ones(2, 4)).shape)"
    )
    assert printed(program).count("[2, 2]") == 2


def test_nn_is_imported_when_it_is_asked_for() -> None:
    source = (
        "import sys, baracuda as bc\n"
        "assert 'nn' in dir(bc) and 'swiglu' in dir(bc) and not hasattr(bc, 'mm')\n"
        "assert 'torch' not in sys.modules and 'nn' not in bc.__all__\n"
        "print(bc.nn.SwiGLU(), bc.nn is sys.modules['baracuda.nn'])"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["SwiGLU(dim=-1)", "True"]


def test_inductor_writes_out_the_arguments_of_an_operator_only_where_it_says_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch._inductor import exc

    class Nested:
        """An argument whose text may be as long as a model is deep."""

        written = 0

        def __str__(self) -> str:
            self.written += 1
            return "nested"

    argument = Nested()
    issue = exc.OperatorIssue
    monkeypatch.setattr(issue, "operator_str", issue.__dict__["operator_str"])
    operators.spare_text.__wrapped__()
    text = issue.operator_str("baracuda.relu", [argument], {})
    assert argument.written == 0
    assert "args[0]: nested" in str(text)
    assert "args[0]: nested" in str(exc.OperatorIssue(f"missing {text}"))
