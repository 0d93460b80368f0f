"""`baracuda.nn`: modules that stand where torch's own stood, and the ones torch has not."""

from __future__ import annotations

import copy
import doctest
import importlib
import inspect
import math
import pickle
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import lanes
import pytest
import torch
from forks import printed
from torch import nn
from torch.nn import functional as F

import baracuda as bc
import baracuda.nn as bn

EVERY: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "GLU": (bn.GLU(), (3, 4, 8)),
    "ReGLU": (bn.ReGLU(1), (3, 4, 8)),
    "SwiGLU": (bn.SwiGLU(gate_first=True), (3, 4, 8)),
    "GEGLU": (bn.GEGLU(0, approximate="tanh"), (4, 3)),
    "LPPool1d": (bn.LPPool1d(3, 4, stride=2, ceil_mode=True), (2, 3, 11)),
    "LPPool2d": (bn.LPPool2d(1.5, (3, 2), stride=(1, 2)), (2, 3, 7, 8)),
    "RotaryEmbedding": (bn.RotaryEmbedding(base=500.0, rotary_dim=4), (2, 5, 6)),
}
FILES = [file for file in Path(bn.__file__).parent.glob("*.py") if file.stem != "__init__"]
each_module = pytest.mark.parametrize("name", list(EVERY))


# Before 2.12 torch raises to an infinite power what it is to take the maximum of.
has_infinity = nn.LPPool1d(math.inf, 2)(torch.tensor([[1.0, 2.0]])).item() == 2
needs_infinity = pytest.mark.skipif(not has_infinity, reason="needs a torch with infinite norms")


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def same(
    ours: Callable[..., torch.Tensor], theirs: Callable[..., torch.Tensor], *arrays: torch.Tensor
) -> None:
    """Values and gradients agree."""
    got, want = ours(*arrays), theirs(*arrays)
    torch.testing.assert_close(got, want)
    along = torch.cos(want.detach())
    torch.testing.assert_close(
        torch.autograd.grad(got, arrays, along), torch.autograd.grad(want, arrays, along)
    )


@pytest.mark.parametrize(
    ("name", "arguments", "shape"),
    [
        ("GLU", (), (3, 4, 8)),
        ("GLU", (1,), (3, 4, 5)),
        ("LPPool1d", (2, 3), (2, 3, 11)),
        ("LPPool1d", (4, 3, 2), (3, 11)),
        ("LPPool1d", (2, 3, 2, True), (2, 3, 11)),
        pytest.param("LPPool1d", (math.inf, 3, 1), (2, 3, 11), marks=needs_infinity),
        ("LPPool2d", (2, 3), (2, 3, 7, 9)),
        ("LPPool2d", (4.0, (3, 2), (2, 1)), (3, 7, 9)),
        ("LPPool2d", (2, 3, 2, True), (2, 3, 7, 9)),
        pytest.param("LPPool2d", (math.inf, (1, 2)), (2, 3, 6, 8), marks=needs_infinity),
    ],
)
def test_a_line_can_be_swapped(name: str, arguments: Any, shape: Any) -> None:
    ours, theirs = getattr(bn, name)(*arguments), getattr(nn, name)(*arguments)
    same(ours, theirs, drawn(*shape))
    assert repr(ours) == repr(theirs)
    known = [k for k in vars(theirs) if k != "training" and not k.startswith("_")]
    assert {k: getattr(ours, k) for k in known} == {k: getattr(theirs, k) for k in known}


@pytest.mark.parametrize("name", ["GLU", "LPPool1d", "LPPool2d"])
def test_constructors_take_what_torch_takes(name: str) -> None:
    def positional(module: Any) -> list[tuple[str, Any]]:
        parameters = inspect.signature(module).parameters.values()
        return [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    assert positional(getattr(bn, name)) == positional(getattr(nn, name))


def test_pooling_differs_from_torch_as_its_docstring_says() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0, 3.0, -2.0]], dtype=torch.float64, requires_grad=True)
    # Without the absolute value a cell below 0 counts as negative, or is NaN.
    same(bn.LPPool1d(3, 2), lambda x: nn.LPPool1d(3, 2)(x.abs()), x)
    assert not torch.equal(bn.LPPool1d(3, 2)(x), nn.LPPool1d(3, 2)(x))
    assert nn.LPPool1d(2.5, 2)(x)[0, 0].isnan()
    assert not bn.LPPool1d(2.5, 2)(x).isnan().any()
    # The last window has one cell of two.
    ours, theirs = bn.LPPool1d(2, 2, ceil_mode=True)(x), nn.LPPool1d(2, 2, ceil_mode=True)(x)
    torch.testing.assert_close(theirs / ours, torch.tensor([[1, 1, math.sqrt(2)]]).double())
    # Two cells reach the maximum.
    slopes = [torch.autograd.grad(m.LPPool1d(math.inf, 5)(x).sum(), x)[0] for m in (bn, nn)]
    assert slopes[0].tolist() == [[0, 0, 0.5, 0.5, 0]]
    assert not has_infinity or slopes[1].sum() == slopes[1].max() == 1
    with pytest.raises(ValueError, match="norm_type: expected a number > 0"):
        bn.LPPool1d(-1, 2)(x)
    tiny = torch.full((1, 2), 1e-30)
    assert bn.LPPool1d(2, 2)(tiny) > 0
    assert nn.LPPool1d(2, 2)(tiny) == 0
    images = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert bn.LPPool2d(2, 2)(images).is_contiguous()
    assert bn.LPPool1d(2, 2)(torch.ones(2, 2, 2, 4)).shape == (2, 2, 2, 2)


GATES = {
    "GLU": torch.sigmoid,
    "ReGLU": F.relu,
    "SwiGLU": F.silu,
    "GEGLU": F.gelu,
}


@pytest.mark.parametrize("dim", [-1, 1])
@pytest.mark.parametrize("name", list(GATES))
def test_gates_are_the_second_half_the_first_or_apart(name: str, dim: int) -> None:
    gate, module = GATES[name], getattr(bn, name)

    def split(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim)
        return a * gate(b)

    def swapped(x: torch.Tensor) -> torch.Tensor:
        return split(torch.cat(x.chunk(2, dim)[::-1], dim))

    same(module(dim), split, drawn(3, 4, 8))
    same(module(dim, gate_first=True), swapped, drawn(3, 4, 8))
    same(module(dim), lambda a, b: a * gate(b), drawn(3, 4, 8), drawn(3, 4, 8))


def test_geglu_approximates_as_gelu_does() -> None:
    same(
        bn.GEGLU(approximate="tanh"), lambda a, b: a * F.gelu(b, approximate="tanh"),
        drawn(4, 5), drawn(4, 5),
    )  # fmt: skip
    with pytest.raises(ValueError, match="approximate"):
        bn.GEGLU(approximate="erf")(torch.ones(4))


def test_a_rotary_embedding_turns_complex_numbers() -> None:
    positions = torch.tensor([3, 0, 100, 7, 7])

    def turned(x: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        at = torch.arange(x.shape[-2]) if positions is None else positions
        steps = 500.0 ** (-torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
        turns = torch.polar(torch.ones(()).double(), at[:, None] * steps)
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(-2)

    module = bn.RotaryEmbedding(base=500.0)
    same(module, turned, drawn(2, 5, 6))
    same(lambda x: module(x, positions), lambda x: turned(x, positions), drawn(2, 5, 6))
    options = {"interleaved": False, "rotary_dim": 4, "seq_axis": 1, "base": 10.0}
    x = torch.randn(2, 5, 3, 6)
    assert torch.equal(
        bn.RotaryEmbedding(**options)(x, positions), bc.rope(x, positions, **options)
    )


def test_what_is_shown() -> None:
    assert repr(bn.SwiGLU()) == "SwiGLU(dim=-1)"
    assert repr(bn.SwiGLU(1, gate_first=True)) == "SwiGLU(dim=1, gate_first=True)"
    assert repr(bn.GEGLU()) == "GEGLU(dim=-1, approximate='none')"
    assert repr(bn.RotaryEmbedding()) == "RotaryEmbedding(base=10000.0, interleaved=True)"
    shown = "RotaryEmbedding(base=10.0, interleaved=False, rotary_dim=4, seq_axis=-3)"
    options = {"base": 10.0, "interleaved": False, "rotary_dim": 4, "seq_axis": -3}
    assert repr(bn.RotaryEmbedding(**options)) == shown


@each_module
def test_modules_live_as_torch_modules_do(name: str) -> None:
    module, shape = EVERY[name]
    x = torch.randn(shape)
    want = module(x)
    assert not module.state_dict()
    assert not list(module.parameters())
    module.load_state_dict({})
    for again in (
        pickle.loads(pickle.dumps(module)),
        copy.deepcopy(module),
        nn.Sequential(module),
        copy.deepcopy(module).eval(),
    ):
        assert torch.equal(again(x), want)
    short = module.half()(x.half())
    assert short.dtype == torch.float16
    torch.testing.assert_close(short, module(x.half().float()).half())
    assert torch.equal(module.float()(x), want)


@pytest.mark.parametrize(
    ("name", "dynamic"),
    lanes.cases(
        product(EVERY, (False, True)),
        lambda given: given[1] == list(EVERY).index(given[0]) % 2,
    ),
)
def test_modules_compile(name: str, dynamic: bool) -> None:
    torch._dynamo.reset()
    module, shape = EVERY[name]
    compiled = torch.compile(module, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    same(compiled, module, drawn(*shape))


def test_layers_of_one_kind_compile_with_their_own_options() -> None:
    torch._dynamo.reset()
    layers = [bn.RotaryEmbedding(base=10.0 * n) for n in range(1, 5)]
    layers += [bn.LPPool1d(1 + n / 2, 1) for n in range(4)]
    model = nn.Sequential(*layers)
    same(torch.compile(model, fullgraph=True, backend="aot_eager"), model, drawn(3, 5, 6))


def in_a_process(source: str, *arguments: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_an_exported_program_runs_where_the_modules_are_imported(tmp_path: Path) -> None:
    model, x = nn.Sequential(bn.RotaryEmbedding(), bn.SwiGLU()), torch.randn(3, 5, 8)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "program.pt2")
    torch.save((x, model(x)), tmp_path / "tensors.pt")
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, baracuda.nn\n"
        "x, want = torch.load('tensors.pt')\n"
        "assert torch.equal(torch.export.load('program.pt2').module()(x), want)"
    )
    printed(program, at=tmp_path)


def test_importing_baracuda_imports_no_modules() -> None:
    in_a_process("import sys, baracuda; assert 'baracuda.nn' not in sys.modules")


def test_without_torch_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "baracuda.nn")
    monkeypatch.setitem(sys.modules, "torch", None)
    want = r"baracuda\.nn needs torch: pip install 'baracuda\[torch\]'"
    with pytest.raises(ModuleNotFoundError, match=want):
        importlib.import_module("baracuda.nn")


def test_the_examples_of_the_docstrings_run() -> None:
    modules = [importlib.import_module(f"baracuda.nn.{file.stem}") for file in FILES]
    done = [doctest.testmod(module) for module in modules]
    assert not any(each.failed for each in done)
    # What torch does not have shows how it is called.
    assert sum(each.attempted for each in done) >= 3 * len([*EVERY, "replace", "restore"])
