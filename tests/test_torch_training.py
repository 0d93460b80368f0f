"""What training code in torch does around an op: autocast, checkpoints, hooks, transforms, AOT."""

from __future__ import annotations

import copy
import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import lanes
import pytest
import torch
from kinds import COVERING
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import baracuda as bc
import baracuda.nn  # It defines torch.ops.baracuda.
from baracuda.calls.op import registry
from baracuda.testing.cases import Call, Subject

OPS = [name for name in bc.__all__ if isinstance(getattr(bc, name), bc.Op)]
DTYPES = ("float64", "float32", "bfloat16")
# A region would narrow products.
PRODUCTS = [op for op in OPS if registry[op].spec.products]
each_way = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])


def each_backend_and_way(usual: str | None) -> pytest.MarkDecorator:
    """Eager calls of both backends, and compiled ones of the usual backend.

    On a CPU an op without a backend of its own is differentiated as its body, as no kernel is.
    """
    given = lanes.cases(
        product((None, "torch"), (False, True)), lambda way: not way[1] or way[0] == usual
    )
    return pytest.mark.parametrize(("backend", "compiled"), given)


bfloat16 = partial(torch.autocast, "cpu", dtype=torch.bfloat16)


@pytest.fixture(autouse=True)
def nothing_is_compiled_yet() -> None:
    torch._dynamo.reset()


def calls(op: str, dtype: str) -> list[Call]:
    return list(Subject(op, "torch", "torch", dtype).calls())


class Block(torch.nn.Module):
    """Ops of several families between linear layers."""

    def __init__(self, backend: str | None = None) -> None:
        super().__init__()
        self.up, self.mix = torch.nn.Linear(8, 16), torch.nn.Linear(8, 8)
        self.down, self.backend = torch.nn.Linear(4, 8), backend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = bc.swiglu(bc.rope(self.up(x), backend=self.backend), backend=self.backend)
        y = bc.lerp(y, self.mix(x), weight=0.25, backend=self.backend)
        y = bc.lp_pool1d(y, norm_type=2, kernel_size=2, backend=self.backend)
        return self.down(y)


def maybe(compiled: bool, function: Callable[..., Any]) -> Callable[..., Any]:
    if not compiled:
        return function
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def gradients(
    block: torch.nn.Module, x: torch.Tensor, function: Callable[..., Any]
) -> list[torch.Tensor]:
    """Of what `function` makes of `x`: with respect to `x`, and to the parameters of `block`."""
    x = x.clone().requires_grad_()
    function(x).float().square().sum().backward()
    watched = [x, *block.parameters()]
    found = [w.grad for w in watched]
    for w in watched:
        w.grad = None
    return found


def with_gradients(
    call: Call, backend: str | None, region: AbstractContextManager[Any]
) -> list[torch.Tensor]:
    """The results of a call on watched tensors in a region, and their gradients outside."""
    arrays = call.given()
    floats = [x.requires_grad_() for x in arrays if x is not None and x.is_floating_point()]
    with region:
        out = call.run(arrays, backend=backend)
    moved = [y for y in out if y.requires_grad]
    along = [torch.cos(y.detach()) for y in moved]
    return [*out, *torch.autograd.grad(moved, floats, along, materialize_grads=True)]


def _in_turn(given: tuple[str, str]) -> bool:
    """Whether an op covers, or is the first of products, and has this dtype by its place."""
    op, dtype = given
    known = DTYPES[-1:] if op in PRODUCTS else DTYPES
    return (op in COVERING or op == PRODUCTS[0]) and dtype == known[OPS.index(op) % len(known)]


@pytest.mark.parametrize(("op", "dtype"), lanes.cases(product(OPS, DTYPES), _in_turn))
def test_in_an_autocast_region_an_op_computes_as_outside(op: str, dtype: str) -> None:
    spec = registry[op].spec
    for call in calls(op, dtype):
        # Products are in the dtype of the region, as test_torch_autocast.py sees. Results of which
        # a call names the dtype, as these do, have that.
        if spec.products and dtype == "float32":
            continue
        for backend in (None, "array_api"):
            want = with_gradients(call, backend, nullcontext())
            watched = with_gradients(call, backend, bfloat16())
            want += call.run(backend=backend)
            with bfloat16():
                plain = call.run(backend=backend)
            for x, y in zip([*watched, *plain], want, strict=True):
                assert x.dtype == y.dtype
                assert x.dtype in (getattr(torch, dtype), torch.float32, torch.int64)
                assert torch.equal(x, y)


@each_backend_and_way(None)
def test_between_layers_that_autocast_narrows_ops_are_narrow(
    backend: str | None, compiled: bool
) -> None:
    block, x = Block(backend), torch.randn(3, 5, 8)
    narrow = copy.deepcopy(block).bfloat16()
    want = gradients(narrow, x.bfloat16(), maybe(compiled, narrow))
    run = maybe(compiled, block)

    def around(x: torch.Tensor) -> torch.Tensor:
        with bfloat16():
            y = run(x)
            assert y.dtype == torch.bfloat16
        return y

    def within(x: torch.Tensor) -> torch.Tensor:
        with bfloat16():
            return block(x)

    # The backward runs outside of the region, and of the last inside of it.
    found = [gradients(block, x, around), gradients(block, x, maybe(compiled, within))]
    with bfloat16():
        found.append(gradients(block, x, run))
    for got in found:
        for a, b in zip(got, want, strict=True):
            assert (a.dtype, b.dtype) == (torch.float32, torch.bfloat16)
            # Where two paths lead to x they may meet in float32.
            assert torch.equal(a.bfloat16(), b)


@each_way
def test_autocast_mixes_no_dtypes_for_an_op(compiled: bool) -> None:
    x, layer = torch.randn(4, 8), torch.nn.Linear(8, 8)
    run = maybe(compiled, lambda x: bc.lerp(x, layer(x), weight=0.25))
    with bfloat16(), pytest.raises(
        RuntimeError if compiled else TypeError,
        match=r"lerp: b: expected float32 \(as a\), got bfloat16",
    ):  # fmt: skip
        run(x)


@pytest.mark.parametrize("reentrant", [False, True])
@each_backend_and_way("torch")
def test_a_checkpoint_computes_the_same(
    backend: str | None, reentrant: bool, compiled: bool
) -> None:
    block, x = Block(backend), torch.randn(3, 5, 8)
    want = gradients(block, x, block)
    run = maybe(compiled, lambda x: checkpoint(block, x, use_reentrant=reentrant))
    torch.testing.assert_close(gradients(block, x, run), want)


class Seen(TorchDispatchMode):
    """Counts the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[Any] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func] += 1
        return func(*args, **(kwargs or {}))


@each_way
def test_a_selective_checkpoint_keeps_what_it_is_told_to(compiled: bool) -> None:
    block, x = Block(), torch.randn(3, 5, 8)
    ops = torch.ops.baracuda
    forward = {f.default for f in (ops.rope, ops.swiglu, ops.lerp, ops.lp_pool1d)}
    asked: set[Any] = set()

    def policy(kept: Any, context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        asked.add(op)
        return CheckpointPolicy.MUST_SAVE if op in kept else CheckpointPolicy.MUST_RECOMPUTE

    def run(x: torch.Tensor, kept: Any) -> torch.Tensor:
        contexts = partial(create_selective_checkpoint_contexts, partial(policy, kept))
        return checkpoint(block, x, use_reentrant=False, context_fn=contexts)

    want = gradients(block, x, block)
    every = [], [ops.swiglu.default], [ops.rope.default, ops.lp_pool1d.default]
    for kept in lanes.last(every) if compiled else every:
        asked.clear()
        step = maybe(compiled, partial(run, kept=kept))
        torch.testing.assert_close(gradients(block, x, step), want)
        assert forward <= asked
        loss = step(x).square().sum()
        with Seen() as seen:
            torch.autograd.grad(loss, list(block.parameters()))
        again = {op: seen.counts[op] for op in forward}
        assert again == {op: op not in kept for op in forward}
        assert seen.counts[ops.swiglu_backward.default] == 1


def hooks(seen: list[torch.Tensor]) -> saved_tensors_hooks:
    """What is saved goes through NumPy."""

    def pack(x: torch.Tensor) -> Any:
        seen.append(x)
        return x.detach().numpy().copy()

    return saved_tensors_hooks(pack, torch.from_numpy)


@each_backend_and_way("torch")
def test_saved_tensors_go_through_hooks(backend: str | None, compiled: bool) -> None:
    block, x = Block(backend), torch.randn(3, 5, 8)
    want, seen, run = gradients(block, x, block), [], maybe(compiled, block)
    for context in (lambda: hooks(seen), save_on_cpu):

        def kept(x: torch.Tensor, context: Any = context) -> torch.Tensor:
            with context():
                return run(x)

        torch.testing.assert_close(gradients(block, x, kept), want)
    assert seen


def test_an_op_saves_what_its_gradient_takes_and_nothing_else() -> None:
    x, seen = torch.randn(4, 8, requires_grad=True), []
    with hooks(seen):
        y = bc.lp_pool1d(x, norm_type=2, kernel_size=2, backend="torch")
        bc.rope(x, backend="torch")
        bc.lerp(x, x, weight=0.5, backend="torch")
    assert [t.data_ptr() for t in seen] == [x.data_ptr(), y.data_ptr()]


@each_backend_and_way("torch")
def test_backward_passes_accumulate(backend: str | None, compiled: bool) -> None:
    block, (first, second) = Block(backend), torch.randn(2, 3, 5, 8)
    run = maybe(compiled, block)
    once = [gradients(block, x, run)[1:] for x in (first, second)]
    run(first).square().sum().backward()
    held = [p.grad for p in block.parameters()]
    loss = run(second).square().sum()
    # What torch compiled for one backward pass frees its buffers in it.
    loss.backward(retain_graph=not compiled)
    assert all(p.grad is g for p, g in zip(block.parameters(), held, strict=True))
    torch.testing.assert_close(held, [a + b for a, b in zip(*once, strict=True)])
    if not compiled:
        loss.backward()
        torch.testing.assert_close(held, [a + 2 * b for a, b in zip(*once, strict=True)])


@pytest.mark.parametrize("op", lanes.cases(OPS, COVERING.__contains__))
def test_vmap_is_a_loop(op: str) -> None:
    for call in calls(op, "float64"):
        arrays, run = call.given(), partial(call.run, backend=None)
        there = {i: x for i, x in enumerate(arrays) if x is not None}
        batch = {i: torch.stack([x, torch.zeros_like(x), x.roll(1)]) for i, x in there.items()}
        for at in ({*there}, *({i} for i in there)):
            given = [batch[i] if i in at else x for i, x in enumerate(arrays)]
            dims = tuple(0 if i in at else None for i in range(len(arrays)))
            got = torch.func.vmap(lambda *some, run=run: run(some), in_dims=dims)(*given)
            each = [run([x[n] if i in at else x for i, x in enumerate(given)]) for n in range(3)]
            for x, y in zip(got, zip(*each, strict=True), strict=True):
                torch.testing.assert_close(x, torch.stack(y), equal_nan=True)


Function = Callable[[torch.Tensor], torch.Tensor]
TRANSFORMS: dict[str, Callable[[Function], Callable[[torch.Tensor], Any]]] = {
    "vmap": torch.func.vmap,
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum()),
    "gradients of samples": lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum())),
    "vjp": lambda f: lambda x: torch.func.vjp(f, x)[1](f(x))[0],
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.cos(x),))[1],
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": lambda f: torch.func.hessian(lambda x: f(x).sum()),
}


def swiglu(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return a * F.silu(b)


@pytest.mark.parametrize(
    ("name", "compiled"),
    lanes.cases(
        product(TRANSFORMS, (False, True)),
        lambda given: not given[1] or given[0] in ("gradients of samples", "jvp"),
    ),
)
def test_transforms_see_through_an_op(name: str, compiled: bool) -> None:
    x, transform = torch.randn(3, 6, dtype=torch.float64), TRANSFORMS[name]
    got = maybe(compiled, transform(lambda x: bc.swiglu(x)))(x)
    torch.testing.assert_close(got, transform(swiglu)(x))


def test_tangents_pass_through_an_op() -> None:
    x, t = torch.randn(2, 3, 6, dtype=torch.float64)
    with forward_ad.dual_level():
        got = forward_ad.unpack_dual(bc.swiglu(forward_ad.make_dual(x, t))).tangent
    torch.testing.assert_close(got, torch.func.jvp(swiglu, (x,), (t,))[1])


@pytest.mark.full
@pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="needs a C++ compiler: g++, or what CXX names",
)
# Of torch's own reading of its own trees.
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_a_program_compiled_ahead_of_time_takes_any_batch(tmp_path: Path) -> None:
    block = Block()
    batch = {0: torch.export.Dim.DYNAMIC}
    program = torch.export.export(block, (torch.randn(4, 5, 8),), dynamic_shapes=(batch,))
    path = str(tmp_path / "block.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    run = torch._inductor.aoti_load_package(path)
    for n in (1, 4, 7):
        x = torch.randn(n, 5, 8)
        torch.testing.assert_close(run(x), block(x))
