"""The block that the benchmark trains: its variants agree, and one that is wrong is found."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import baracuda as bc
from baracuda.__main__ import main
from baracuda.testing import block
from baracuda.testing.block import PLAIN, SMALL, VARIANTS, Outcome, Variant

EAGER = tuple(v for v in VARIANTS if not v.compiled and "Liger" not in v.name)
SHORT = replace(SMALL, steps=4, untimed=2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small only wait for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def measured(*variants: Variant) -> list[Outcome]:
    return block.measure(variants, SHORT, "cpu", lambda name: None)


def test_all_variants_of_the_table_are_there() -> None:
    names = [v.name for v in VARIANTS]
    assert names[0] == PLAIN.name == "plain eager"
    assert len(set(names)) == len(names) == 6
    assert [v.name for v in VARIANTS if v.compiled] == ["torch.compile", "baracuda, torch.compile"]


def explicit_rope(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    with bc.options(backend="torch"):
        return block.fused_rope(q, k, cos, sin)


def explicit_swiglu(x: Any) -> Any:
    with bc.options(backend="torch"):
        return block.fused_swiglu(x)


EXPLICIT = Variant("with the gradients of a GPU", explicit_rope, explicit_swiglu)


def test_the_fused_block_trains_as_the_plain_one_eagerly_and_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without what generates code, for which a machine may lack a compiler.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    plain, *fused = block.measure((*EAGER, EXPLICIT, VARIANTS[-1]), SMALL, "cpu", lambda name: None)
    assert plain.losses_apart == plain.gradients_apart == 0
    assert len(plain.losses) == SMALL.steps
    assert plain.losses[-1] < plain.losses[0] * 0.99
    for each in fused:
        assert each.faults == []
        # Another function ran.
        assert each.gradients_apart > 0
        assert each.losses_apart < block.LOSSES / 4
        assert each.gradients_apart < block.GRADIENTS / 4
        assert each.seconds > 0


def interleaved(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    return bc.rope(q, seq_axis=-3), bc.rope(k, seq_axis=-3)


def along_heads(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    return bc.rope(q, interleaved=False), bc.rope(k, interleaved=False)


class TurnedOnce(torch.autograd.Function):
    """A rotation whose gradient turns the same way as it does."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        ctx.save_for_backward(*given[2:])
        return block.plain_rope(*given)

    @staticmethod
    def backward(ctx: Any, *given: Any) -> Any:
        return *block.plain_rope(*given, *ctx.saved_tensors), None, None


WRONG = (
    replace(PLAIN, name="pairs of neighbours", rope=interleaved),
    replace(PLAIN, name="heads for positions", rope=along_heads),
    replace(PLAIN, name="no rotation", rope=lambda q, k, cos, sin: (q, k)),
    replace(PLAIN, name="a gradient turned forward", rope=TurnedOnce.apply),
    replace(
        PLAIN,
        name="no gradient",
        rope=lambda *given: block.plain_rope(*[x.detach() for x in given]),
    ),
    replace(PLAIN, name="the other half as the gate", swiglu=bc.swiglu),
)


def test_a_wrong_function_is_found() -> None:
    right, *wrong = measured(PLAIN, *WRONG)
    assert right.faults == []
    for each in wrong:
        assert each.gradients_apart > block.GRADIENTS * 4, each.name
        assert any(fault.startswith("gradients ") for fault in each.faults), each.name


def test_distances_beyond_the_bounds_and_none_at_all_are_faults() -> None:
    assert len(Outcome("x").faults) == 2
    apart = Outcome("x", losses_apart=0.1, gradients_apart=0.0)
    assert apart.faults == ["losses 1.00e-01 apart, more than 3.91e-03"]
    diverged = replace(apart, losses_apart=block._apart([1.0, float("nan")], [1.0, 1.0]))
    assert diverged.faults == ["losses nan apart, more than 3.91e-03"]
    # A shard may have nothing but zeros.
    none, some = torch.zeros(3), torch.ones(3)
    assert block._apart([none, some], [none, some]) == 0
    assert block._apart([some], [none]) == math.inf


def test_what_does_not_run_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise RuntimeError("out of memory\nor so")

    # Also where Liger is installed.
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    liger = next(v for v in VARIANTS if v.name == "Liger")
    plain, missing, broken, fused = found = measured(
        PLAIN, liger, replace(PLAIN, name="broken", swiglu=fails), EAGER[-1]
    )
    assert plain.faults == missing.faults == fused.faults == []
    assert broken.faults == ["RuntimeError: out of memory"]
    head, rows = block.cells(found)
    assert [len(row) for row in rows] == [len(head)] * 4
    assert rows[1][:-1] == ["Liger", *["-"] * 6]
    assert "liger_kernel" in rows[1][-1]
    assert [rows[i][-1] for i in (0, 2, 3)] == ["equal", "RuntimeError: out of memory", "equal"]


def test_the_command_prints_the_table_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "SMALL", SHORT)
    path = tmp_path / "block.json"
    arguments = ["bench", "--block", "--cpu", "--json", str(path)]
    for variants, status in ((EAGER, 0), ((*EAGER, WRONG[2]), 1)):
        monkeypatch.setattr(block, "VARIANTS", variants)
        assert main(arguments) == status
        said = capsys.readouterr()
        assert "CPU only" in said.out
        assert "plain eager" in said.out
        assert ("gradients" in said.err) == bool(status)
        record = json.loads(path.read_text())
        assert record["block"]["sizes"]["hidden"] == SHORT.hidden
        assert record["block"]["bounds"] == {"losses": 2**-8, "gradients": 2**-4}
        rows = record["block"]["variants"]
        assert [row["name"] for row in rows] == [v.name for v in variants]
        assert all(len(row["losses"]) == SHORT.steps and row["seconds"] > 0 for row in rows)
        assert rows[0]["peak"] is None


def test_the_block_is_a_causal_transformer_of_the_sizes_asked_for() -> None:
    made = block.Block(SMALL, PLAIN.rope, PLAIN.swiglu, "cpu")
    count = sum(w.numel() for w in made.parameters())
    wide = SMALL.head * (2 * SMALL.heads + 2 * SMALL.shared) + 3 * SMALL.ffn + 2
    assert count == SMALL.hidden * wide
    x = torch.randn(1, SMALL.tokens, SMALL.hidden, dtype=block.DTYPE)
    late = x.clone()
    late[:, 40:] = 0
    with torch.no_grad():
        y = made(x)
        assert torch.equal(y[:, :40], made(late)[:, :40])
    assert not torch.equal(y[:, 40:], x[:, 40:])
