"""Every family of models, patched: compiled, exported, with checkpoints, and cut by FSDP2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from children import ROOT
from forks import printed
from lanes import cases
from test_transformers import (
    FAMILIES,
    IDS,
    LABELS,
    apart,
    assert_same_step,
    step,
    step_named,
    twins,
)
from torch._dynamo.backends.debugging import aot_eager

# Their own gradient of experts cannot be compiled for a CPU.
EXPERTS = "Mixtral", "GptOss"
each_family = pytest.mark.parametrize("family", cases(FAMILIES, "Gemma3".__eq__))


@each_family
def test_a_compiled_model_has_the_same_gradients(family: str) -> None:
    plain, patched = twins(family)
    torch.compiler.reset()
    compiled: Any = torch.compile(patched, fullgraph=True, backend=aot_eager)
    if family in EXPERTS:
        with torch.no_grad():
            ours, theirs = (model(input_ids=IDS, labels=LABELS) for model in (compiled, plain))
        assert apart(ours.loss, theirs.loss) < 1e-5
        return
    assert_same_step(step(compiled, use_cache=False), step_named(plain))


@each_family
def test_an_exported_model_has_the_same_logits(family: str) -> None:
    plain, patched = twins(family)
    inputs = {"input_ids": IDS, "use_cache": False}
    program = torch.export.export(patched.eval(), (), inputs, strict=False)
    ops = {str(node.target) for node in program.graph.nodes}
    assert any(op.startswith("baracuda.") for op in ops)
    if family == "Llama":
        names = "rms_norm", "add_rms_norm", "rope_qk_with_tables", "swiglu"
        assert {f"baracuda.{name}.default" for name in names} <= ops
    assert apart(program.module()(**inputs).logits, plain.eval()(**inputs).logits) < 1e-5


@each_family
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_have_the_same_gradients(family: str, reentrant: bool) -> None:
    plain, patched = twins(family)
    patched.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert_same_step(step(patched), step(plain))


@pytest.mark.full
@pytest.mark.slow("two processes train each family")
def test_two_processes_have_the_gradients_of_one() -> None:
    said = printed(ROOT / "tests" / "sharded_models.py", ranks=2)
    assert dict(line.split(" ", 1) for line in said.splitlines()) == dict.fromkeys(
        FAMILIES, "equal"
    )
