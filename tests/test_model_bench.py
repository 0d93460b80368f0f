"""The model that the benchmark trains: its variants agree, and one that is wrong is found."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from forks import printed
from lanes import FULL, ROOT, cases

from baracuda.__main__ import main
from baracuda.testing import block, model
from baracuda.testing.model import AGAIN, MODELS, SMALL, VARIANTS, Variant
from baracuda.tools import bench

pytest.importorskip("transformers")

SHORT = replace(SMALL, steps=3, untimed=1)
EAGER = tuple(v for v in VARIANTS if not v.compiled and v.name != "Liger")


def measured(name: str, *variants: Variant) -> list[block.Outcome]:
    return model.measure(name, variants, SHORT, "cpu", lambda name: None)


def test_all_models_and_variants_of_the_table_are_there() -> None:
    assert (*MODELS, "jax") == bench.MODELS
    stepped = "baracuda, bc.optim.AdamW"
    more = [f"{stepped}, {what}" for what in ("grad_dtype=accumulate", "recompute=False")]
    ours = ["baracuda", stepped, *more]
    assert [v.name for v in EAGER] == ["eager", AGAIN, *ours]
    assert sum(v.compiled for v in VARIANTS) == 5
    assert sum(v.around is model.causal for v in VARIANTS) == 3


@pytest.mark.parametrize("name", cases(MODELS, [*MODELS][:1].__contains__))
def test_a_patched_model_trains_as_the_plain_one(name: str) -> None:
    plain, again, patched, stepped, summed, kept = measured(name, *EAGER)
    assert plain.losses_apart == plain.gradients_apart == 0
    # The same model is off itself by its own roundings.
    assert 0 < again.gradients_apart < block.GRADIENTS / 2
    assert len(plain.losses) == SHORT.steps
    assert patched.faults == stepped.faults == summed.faults == []
    assert kept.losses == stepped.losses
    # The optimisers differ by roundings alone.
    assert stepped.gradients_apart == patched.gradients_apart
    # Another function ran.
    assert patched.gradients_apart > 0
    assert patched.losses_apart < block.LOSSES / 4
    assert patched.gradients_apart < block.GRADIENTS / 2
    assert patched.seconds > 0
    assert patched.first > 0
    head, rows = model.cells([plain, patched])
    assert head[4] == "first step, s"
    assert [row[-1] for row in rows] == ["equal", "equal"]


@pytest.mark.full("baracuda/frameworks/jax", "baracuda/testing/jax_model.py")
def test_a_model_of_flax_trains_with_the_ops_as_in_plain_jax() -> None:
    """In bfloat16, where the plain model rounds at other places."""
    pytest.importorskip("flax")
    from baracuda.testing import jax_model

    sizes = replace(jax_model.SMALL, steps=3, untimed=1)
    plain, ours = jax_model.measure(sizes, "cpu", lambda name: None)
    assert ours.faults == []
    assert 0 < ours.gradients_apart < block.GRADIENTS / 2
    assert ours.losses_apart < block.LOSSES / 4
    assert len(ours.losses) == len(plain.losses) == sizes.steps


def test_others_may_be_as_far_off_as_twice_the_noise_of_the_first() -> None:
    def run(name: str, loss: float) -> tuple[block.Outcome, list[torch.Tensor]]:
        return block.Outcome(name, losses=[loss]), [torch.ones(3)]

    found = {"first": 1.0, "again": 1.25, "near": 1.4, "far": 1.6}
    for again, bad in (("again", ["far"]), ("", ["again", "near", "far"])):
        tasks = {name: partial(run, name, loss) for name, loss in found.items()}
        every = block.compare(tasks, lambda name: None, again)
        assert [each.name for each in every if each.faults] == bad


def test_a_model_that_is_patched_wrongly_is_found() -> None:
    def larger(each: Any) -> None:
        for layer in each.model.layers:
            layer.mlp.register_forward_hook(lambda module, x, y: 1.25 * y)

    wrong = measured("llama", EAGER[0], Variant("wrong", larger))[1]
    assert any(fault.startswith("gradients ") for fault in wrong.faults)


def test_causal_attention_without_masks_is_the_same() -> None:
    made = model.model_of("gemma3", SHORT, "cpu").eval()
    ids = next(model.batches(SHORT, "cpu"))
    code = model.sys.modules[type(made.model).__module__]
    own = code.create_causal_mask
    want = made(input_ids=ids).logits
    with model.causal(made):
        assert code.create_causal_mask(None) is None
        torch.testing.assert_close(made(input_ids=ids).logits, want)
    assert code.create_causal_mask is own


@pytest.mark.full
@pytest.mark.slow("two processes train each variant")
def test_shards_of_two_processes_train_as_the_model(tmp_path: Path) -> None:
    """Each variant by FSDP2; those that are one graph are left out."""
    file = tmp_path / "model.json"
    asked = ["--layers", "1", "--tokens", "1", "16", "--steps", "3", "--json", str(file)]
    program = ROOT / "baracuda" / "__main__.py"
    if not FULL:
        pytest.skip("of the full lane")
    text = printed(program, "bench", "--cpu", "--model", "llama", "--fsdp", *asked, ranks=2)
    assert text.count("[1, 16] tokens, 1 layers") == text.count("processes: 2, fsdp") == 1
    found = json.loads(file.read_text())["llama"]["variants"]
    names = [v.name for v in VARIANTS if not v.compiled and v.name != "Liger"]
    assert [each["name"] for each in found if not each["missing"]] == names
    for each in found[: len(names)]:
        assert not each["error"]
        assert each["losses_apart"] < block.LOSSES
        assert each["gradients_apart"] < block.GRADIENTS


@pytest.mark.full
@pytest.mark.slow("four variants are compiled")
def test_the_command_trains_every_variant(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not FULL:
        pytest.skip("of the full lane")
    # Without what generates code, for which a machine may lack a compiler.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    file = tmp_path / "model.json"
    asked = ["--layers", "1", "--tokens", "1", "16", "--steps", "3"]
    assert main(["bench", "--cpu", "--model", "qwen3", *asked, "--json", str(file)]) == 0
    assert "[1, 16] tokens, 1 layers" in capsys.readouterr().out
    found = json.loads(file.read_text())["qwen3"]
    assert found["sizes"]["layers"] == 1
    assert [each["name"] for each in found["variants"]] == [v.name for v in VARIANTS]
    assert all(each["seconds"] for each in found["variants"] if each["name"] != "Liger")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--layers", "2", "--ffn", "8"], "--layers, --ffn: give --model too"),
        (["--model", "llama", "--html", "x.html"], "--model goes with none of --html"),
        (["--fsdp"], "--fsdp: give --model too"),
        (["--cpu", "--model", "llama", "--fsdp"], "--fsdp: no RANK in the environment"),
    ],
)
def test_options_that_do_not_go_together_are_said_in_one_line(
    capsys: pytest.CaptureFixture[str], asked: list[str], said: str
) -> None:
    assert main(["bench", *asked]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
