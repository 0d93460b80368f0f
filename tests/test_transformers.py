"""`baracuda.integrations.transformers`: patched models compute, train and generate as before."""

from __future__ import annotations

import copy
import doctest
import inspect
import linecache
import pickle
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from types import MethodType
from typing import Any

import pytest
import torch
from lanes import cases
from torch import distributed, nn
from torch._dynamo.backends.debugging import aot_eager
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import FlopCounterMode

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip("transformers")

from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from baracuda.integrations.transformers import (
    KINDS,
    Report,
    forwards,
    modules,
    patch,
    patching,
    unpatch,
)
from baracuda.integrations.transformers.code import heads_of
from baracuda.integrations.transformers.modules import (
    Mismatch,
    layer_of,
    mlp_of,
    norm_of,
)
from baracuda.ops.linear_cross_entropy import linear_cross_entropy
from baracuda.ops.rope_qk import rope_qk_with_tables

VOCABULARY = 61
IDS = torch.arange(22).reshape(2, 11) * 37 % VOCABULARY
LABELS = IDS.clone()
LABELS[0, :3], LABELS[1, -2:] = -100, -100
MASK = torch.ones_like(IDS)
MASK[1, :3] = 0

SPECIAL = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": None}
USUAL = "1 loss, 1 embedding; left: 0"
# A family, what its configuration has besides, and what is found in two layers of it.
FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "Llama": ({"attention_bias": True}, f"5 norm, 2 mlp, 2 rope, 4 residual, {USUAL}"),
    "Qwen2": ({}, f"5 norm, 2 mlp, 2 rope, 4 residual, {USUAL}"),
    "Qwen3": ({}, f"9 norm, 2 mlp, 2 qk_norm, 4 residual, {USUAL}"),
    "Mistral": ({"sliding_window": 4}, f"5 norm, 2 mlp, 2 rope, 4 residual, {USUAL}"),
    "Mixtral": ({}, "5 norm, 2 rope, 4 residual, 1 loss, 1 embedding; left: 2"),
    "Gemma2": ({"final_logit_softcapping": 0.5},
               f"9 norm, 2 mlp, 2 rope, 4 residual, {USUAL}"),
    "Gemma3": ({"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
               f"13 norm, 2 mlp, 2 qk_norm, 4 residual, {USUAL}"),
    "Phi3": ({"resid_pdrop": 0.0}, f"5 norm, 2 mlp, 2 rope, 4 residual, {USUAL}"),
    "Olmo2": ({}, "9 norm, 2 mlp, 2 rope, 4 residual, 1 loss, 1 embedding; left: 0"),
    "Glm4": ({}, f"9 norm, 2 mlp, 2 rope, 4 residual, {USUAL}"),
    "StableLm": ({}, f"5 norm, 2 mlp, 2 rope, 4 residual, {USUAL}"),
    # Its MLP returns a pair, and its tables have each entry once.
    "GptOss": ({}, f"5 norm, 2 rope, 4 residual, {USUAL}"),
}  # fmt: skip
each_family = pytest.mark.parametrize("family", FAMILIES)


def model_of(family: str = "Llama", **more: Any) -> Any:
    """A tiny model in training, whose norms and biases are not those of a beginning."""
    name = "Gemma3Text" if family == "Gemma3" else family
    heads = {} if family == "Phi3" else {"head_dim": 8}
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
        **{"max_position_embeddings": 64, **SPECIAL, **heads, **FAMILIES[family][0], **more},
    )  # fmt: skip
    torch.manual_seed(1)
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.05 * torch.randn_like(p)
    return model.train()


def twins(family: str = "Llama", **more: Any) -> tuple[Any, Any]:
    """A model, and a patched one with its parameters."""
    plain = model_of(family, **more)
    patched = copy.deepcopy(plain)
    patch(patched)
    return plain, patched


def step(model: Any, **inputs: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss and all gradients."""
    model.zero_grad()
    loss = model(**{"input_ids": IDS, "labels": LABELS, **inputs}).loss
    loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), {name: grad.clone() for name, grad in grads.items()}


def apart(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).detach().float().norm() / theirs.detach().float().norm())


def assert_same_step(ours: Any, theirs: Any, tolerance: float = 1e-5) -> None:
    (loss, grads), (other, others) = ours, theirs
    assert apart(loss, other) < tolerance
    assert grads.keys() == others.keys() != set()
    far = {name: apart(grad, others[name]) for name, grad in grads.items()}
    assert max(far.values()) < tolerance, max(far, key=far.__getitem__)


def is_patched(model: nn.Module) -> bool:
    return any("forward" in vars(module) for module in model.modules())


# -- every family --------------------------------------------------------------------------------


@each_family
def test_a_patched_model_computes_trains_and_generates_as_before(family: str) -> None:
    plain, patched = model_of(family), model_of(family)
    report = patch(patched)
    assert repr(report) == f"Report(patched: {FAMILIES[family][1]})"
    inputs: dict[str, Any] = {"attention_mask": MASK, "num_items_in_batch": torch.tensor(13)}
    if family == "Mixtral":
        # Its loss has the balance of the experts besides.
        inputs["output_router_logits"] = True
    assert_same_step(step(patched, **inputs), step(plain, **inputs))
    assert patched(input_ids=IDS, labels=LABELS).logits is None
    for model in (plain, patched):
        model.eval()
    with torch.no_grad():
        ours, theirs = (m(input_ids=IDS, labels=LABELS) for m in (patched, plain))
    assert apart(ours.logits, theirs.logits) < 1e-5
    assert apart(ours.loss, theirs.loss) < 1e-5
    tokens = [m.generate(IDS, attention_mask=MASK, max_new_tokens=5, do_sample=False)
              for m in (patched, plain)]  # fmt: skip
    assert torch.equal(*tokens)
    assert tokens[0].shape == (2, 16)
    assert patched.state_dict().keys() == plain.state_dict().keys()
    assert unpatch(patched).patched == report.patched
    assert not is_patched(patched)
    with torch.no_grad():
        assert torch.equal(patched(input_ids=IDS).logits, plain(input_ids=IDS).logits)


@each_family
def test_bfloat16_is_no_further_from_float32_than_the_models_own(family: str) -> None:
    exact, patched = twins(family)
    plain = copy.deepcopy(exact)
    found = {}
    for name, model in {"exact": exact, "plain": plain, "patched": patched}.items():
        if name != "exact":
            model.to(torch.bfloat16)
        loss, grads = step(model)
        every = torch.cat([grad.flatten().float() for grad in grads.values()])
        logits = model.eval()(input_ids=IDS).logits.float()
        found[name] = loss[None].float(), logits, every
    for ours, theirs, truth in zip(found["patched"], found["plain"], found["exact"], strict=True):
        assert apart(ours, truth) < max(1.25 * apart(theirs, truth), 2**-10)


# -- the loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs",
    [
        {"num_items_in_batch": 7},
        {"labels": torch.full_like(IDS, -100), "shift_labels": LABELS.roll(-1, 1)},
    ],
)
def test_the_loss_takes_what_transformers_hands_to_it(inputs: dict[str, Any]) -> None:
    plain, patched = twins()
    assert_same_step(step(patched, **inputs), step(plain, **inputs))


def test_the_row_of_padding_has_no_gradient() -> None:
    pad = int(IDS[0, 4])
    plain, patched = twins(pad_token_id=pad)
    ours = step(patched)
    assert_same_step(ours, step(plain))
    rows = ours[1]["model.embed_tokens.weight"][IDS[0, 3:5]]
    assert rows[0].any()
    assert not rows[1].any()


def test_tied_weights_have_the_gradients_of_both_their_uses() -> None:
    plain, patched = twins("Gemma2", tie_word_embeddings=True)
    assert patched.lm_head.weight is patched.model.embed_tokens.weight
    assert_same_step(step(patched), step(plain))


@pytest.mark.parametrize("ask", ["tuple", "own loss", "hook", "eval"])
def test_logits_are_there_where_they_are_asked_for(ask: str) -> None:
    plain, patched = twins()
    inputs: dict[str, Any] = {"input_ids": IDS, "labels": LABELS}
    for model in (plain, patched):
        if ask == "own loss":
            model.loss_function = lambda logits, labels, vocab_size, **_: logits.square().mean()
        elif ask == "hook":
            model.lm_head.register_forward_hook(lambda module, x, y: 2 * y)
        elif ask == "eval":
            model.eval()
        else:
            inputs["return_dict"] = False
    (loss, logits), (other, others) = (m(**inputs)[:2] for m in (patched, plain))
    assert logits.shape == (*IDS.shape, VOCABULARY)
    assert apart(loss, other) < 1e-5
    assert apart(logits, others) < 1e-5


def test_a_head_may_be_asked_for_its_dtype() -> None:
    plain, patched = model_of(), model_of()
    for model in (plain, patched):
        model.__class__ = changed(llama.LlamaForCausalLM, forward=forward_in_the_dtype_of_the_head)
    assert "loss" in patch(patched).patched[""]
    assert_same_step(step(patched), step(plain))


def test_scores_keep_the_labels_that_they_are_of() -> None:
    plain, patched = twins()
    inputs = {"labels": LABELS[:, -4:], "logits_to_keep": 4}
    assert_same_step(step(patched, **inputs), step(plain, **inputs))


# -- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["Llama", "Phi3", "Gemma3"])
def test_the_inner_width_of_an_mlp_may_be_recomputed_instead_of_kept(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its op runs once more; no product does, and its result lies nowhere until the backward."""
    made: list[StorageWeakRef] = []

    def watched(op: Any) -> Any:
        def run(*parts: torch.Tensor, **options: Any) -> torch.Tensor:
            y: torch.Tensor = op(*parts, **options)
            made.append(StorageWeakRef(y.untyped_storage()))
            return y

        return run

    gates = tuple((watched(op), options) for op, options in modules.GATES)
    found: list[Any] = []
    for recompute in (False, True):
        monkeypatch.setattr(modules, "GATES", gates)
        model = model_of(family)
        patch(model, recompute=recompute)
        made.clear()
        with FlopCounterMode(display=False) as counter:
            loss = model(input_ids=IDS, labels=LABELS).loss
            assert [each.expired() for each in made] == [recompute] * 2
            loss.backward()
        assert len(made) == 2 + 2 * recompute
        grads = {name: p.grad for name, p in model.named_parameters()}
        found.append((loss.detach(), grads, counter.get_total_flops()))
    (loss, grads, flops), (again, others, more) = found
    assert torch.equal(loss, again)
    assert flops == more
    assert all(torch.equal(grads[name], others[name]) for name in grads)


def test_what_is_not_a_plain_projection_is_not_recomputed() -> None:
    """A hook would see what it saw already, and dropout in a wrapper would draw again."""
    model, seen = model_of(), list[torch.Tensor]()
    patch(model, recompute=True)
    for layer in model.model.layers:
        layer.mlp.down_proj.register_forward_pre_hook(lambda module, x: seen.append(x[0]))
    step(model)
    assert len(seen) == 2
    assert_same_step(step(model), step(model_of()))


def test_nothing_is_recomputed_within_transforms() -> None:
    """They have no place for what recomputes."""
    model, plain = model_of(), model_of()
    patch(model)

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        call = {"input_ids": IDS, "labels": LABELS}
        found: torch.Tensor = torch.func.functional_call(model, weights, kwargs=call).loss
        return found

    got = torch.func.grad(loss)({name: p.detach() for name, p in model.named_parameters()})
    plain(input_ids=IDS, labels=LABELS).loss.backward()
    for name, p in plain.named_parameters():
        torch.testing.assert_close(got[name], p.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_mlps_stand_in_layers_that_are(reentrant: bool) -> None:
    plain, patched = model_of(), model_of()
    patch(patched, recompute=True)
    patched.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert_same_step(step(patched), step(plain))


# -- what stays intact ---------------------------------------------------------------------------


def test_hooks_and_hidden_states_see_tensors() -> None:
    plain, patched = twins()
    seen: list[list[torch.Tensor]] = [[], []]
    for model, found in zip((plain, patched), seen, strict=True):
        model.model.layers[0].register_forward_hook(lambda m, x, y, found=found: found.append(y))
        found += model(input_ids=IDS, output_hidden_states=True).hidden_states
    assert [x.shape for x in seen[1]] == [(2, 11, 32)] * 4
    for ours, theirs in zip(*reversed(seen), strict=True):
        assert apart(ours, theirs) < 1e-5


@pytest.mark.parametrize("family", cases(["Llama", "Gemma3"], lambda family: family == "Llama"))
def test_a_compiled_model_is_one_graph_of_the_ops(family: str) -> None:
    plain, patched = twins(family)
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
        graphs.append(graph)
        return aot_eager(graph, example)

    torch.compiler.reset()
    compiled = torch.compile(patched, fullgraph=True, backend=backend)
    assert_same_step(step(compiled, use_cache=False), step_named(plain))
    ops = Counter(
        str(node.target).split(".")[1]
        for node in graphs[-1].graph.nodes
        if str(node.target).startswith("baracuda.")
    )
    # Of the two adds of each layer, a norm makes every one.
    assert ops["add_rms_norm"] == 4
    assert ops["rms_norm"] == {"Llama": 1, "Gemma3": 5}[family]
    rotations = ops["rope_qk_with_tables"], ops["qk_norm_rope"]
    assert rotations == {"Llama": (2, 0), "Gemma3": (0, 2)}[family]
    assert ops["swiglu"] + ops["geglu"] == 2
    assert ops["linear_cross_entropy"] + ops["linear_cross_entropy_with_gradient"] == 1


def step_named(model: Any) -> Any:
    """A step, with the names that a compiled module gives to parameters."""
    loss, grads = step(model, use_cache=False)
    return loss, {f"_orig_mod.{name}": grad for name, grad in grads.items()}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_the_attentions_of_all_layers_may_be_compiled_by_themselves(family: str) -> None:
    """Also behind a graph break. All layers share what is compiled, as in a plain model."""
    found, graphs = [], []
    torch.compiler.reset()
    for model in twins(family):
        for layer in model.model.layers:
            attention = layer.self_attn
            attention.v_proj.register_forward_hook(lambda *_: torch._dynamo.graph_break())
            attention.compile(backend="eager")
        before = counters["stats"]["unique_graphs"]
        found.append(step(model, use_cache=False))
        graphs.append(counters["stats"]["unique_graphs"] - before)
    assert 0 < graphs[1] <= graphs[0]
    assert_same_step(*found)


class Adapted(nn.Module):
    """A linear layer beside a product of low rank, as PEFT wraps one."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down = base, nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize("adapted_first", [True, False])
def test_projections_may_be_adapters(adapted_first: bool) -> None:
    def adapt(model: Any) -> None:
        torch.manual_seed(2)
        for layer in model.model.layers:
            for module, name in ((layer.mlp, "up_proj"), (layer.self_attn, "q_proj")):
                setattr(module, name, Adapted(getattr(module, name)))

    plain, patched = model_of(), model_of()
    adapt(plain)
    if adapted_first:
        adapt(patched)
    report = patch(patched)
    if not adapted_first:
        adapt(patched)
    assert not report.left
    assert_same_step(step(patched), step(plain))


def test_an_adapted_head_makes_its_logits() -> None:
    plain, patched = model_of(), model_of()
    patch(patched)
    for model in (plain, patched):
        torch.manual_seed(2)
        model.lm_head = Adapted(model.lm_head)
    assert_same_step(step(patched), step(plain))
    assert patch(patched).left == {"": "loss: its head is a Adapted, not a plain torch.nn.Linear"}


@pytest.fixture
def mesh() -> Iterator[Any]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()
    # A thread of gloo still drops its tensors.
    time.sleep(0.1)


def test_sharded_parameters_have_the_same_gradients(mesh: Any) -> None:
    plain, patched = twins("Gemma2")
    for layer in patched.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(patched, mesh=mesh)
    loss, grads = step(patched)
    whole: Any = {name: grad.full_tensor() for name, grad in grads.items()}  # type: ignore
    assert_same_step((loss, whole), step(plain))


def test_autocast_is_no_further_from_float32_than_the_models_own() -> None:
    plain, patched = twins("Qwen3")
    _, exact = step(plain)
    with torch.autocast("cpu", torch.bfloat16):
        (loss, ours), (other, theirs) = step(patched), step(plain)
    assert loss.dtype == other.dtype == torch.float32
    assert apart(loss, other) < 2**-8
    every = [torch.cat([g.flatten() for g in grads.values()]) for grads in (ours, theirs, exact)]
    assert apart(every[0], every[2]) < 1.25 * apart(every[1], every[2])


def test_copies_are_patched_and_pickled_models_can_be() -> None:
    plain, patched = twins()
    again = copy.deepcopy(patched)
    assert again.model.forward.__self__ is again.model
    assert_same_step(step(again), step(plain))
    for module in patched.modules():
        # Functions of Hugging Face's `kernels`, with which no model can be pickled.
        vars(module).pop("_kernel_funcs", None)
    loaded = pickle.loads(pickle.dumps(patched))
    assert loaded(input_ids=IDS, labels=LABELS).logits is not None
    assert patch(loaded).left == {}
    assert_same_step(step(loaded), step(plain))


# -- what is patched, and what is left -----------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_one_kind_alone_computes_as_before(kind: str) -> None:
    family = "Qwen3" if kind == "qk_norm" else "Llama"
    plain, patched = model_of(family), model_of(family)
    report = patch(patched, only=kind)
    assert set(report.patched.values()) == {kind}
    assert_same_step(step(patched), step(plain))


def test_kinds_are_chosen_by_name() -> None:
    model = model_of()
    report = patch(model, without=["loss", "rope"])
    assert {kind for kinds in report.patched.values() for kind in kinds.split(", ")} == {
        "norm", "mlp", "residual", "embedding",
    }  # fmt: skip
    assert report.patched["model.norm"] == "residual, norm"
    assert model(input_ids=IDS, labels=LABELS).logits is not None
    assert patch(model_of(), only=["norm", "mlp"], without="norm").patched.keys() == {
        "model.layers.0.mlp", "model.layers.1.mlp",
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"patch: only: expected some of norm, mlp, .*got nrom"):
        patch(model, only="nrom")
    with pytest.raises(TypeError, match=r"patch: model_or_class: expected a torch.nn.Module"):
        patch("model")


def test_a_class_is_patched_for_the_models_to_come() -> None:
    kind = transformers.Qwen3ForCausalLM
    before = model_of("Qwen3")
    assert repr(patch(kind)) == f"Report(patched: {FAMILIES['Qwen3'][1]})"
    try:
        made = model_of("Qwen3")
    finally:
        unpatch(kind)
    assert not is_patched(before)
    assert not is_patched(model_of("Qwen3"))
    assert_same_step(step(made), step(before))


LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8}  # fmt: skip


ROPES = [
    {"rope_type": "default", "rope_theta": 1e4},
    LLAMA3,
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8},
    {"rope_type": "longrope", "rope_theta": 1e4, "factor": 8.0, "short_factor": [1.0] * 4,
     "long_factor": [1.0, 2.0, 3.0, 4.0], "original_max_position_embeddings": 8},
    {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
def test_ropes_turn_by_the_tables_of_the_model(
    rope: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the length of training too, where some rules have other angles."""
    calls: list[int] = []

    def counted(*arrays: torch.Tensor, **options: Any) -> Any:
        calls.append(options["rotary_dim"])
        return rope_qk_with_tables(*arrays, **options)

    monkeypatch.setattr(forwards, "rope_qk_with_tables", counted)
    more = {"rope_parameters": rope, "max_position_embeddings": 8}
    plain, patched = model_of(**more), model_of(**more)
    assert repr(patch(patched, only="rope")) == "Report(patched: 2 rope; left: 0)"
    assert_same_step(step(patched), step(plain))
    assert calls == [8, 8]


@pytest.mark.parametrize(
    ("family", "more", "where", "why"),
    [
        ("Llama", {"hidden_act": "tanh"}, "model.layers.0.mlp",
         "mlp: no activation of a gate that is known, times a value"),
        ("StableLm", {"use_parallel_residual": True}, "model.layers.0",
         "residual: its branches are not modules one after the other"),
    ],
)  # fmt: skip
def test_what_does_not_match_is_left_with_a_reason(
    family: str, more: dict[str, Any], where: str, why: str
) -> None:
    plain, patched = model_of(family, **more), model_of(family, **more)
    assert patch(patched).left[where] == why
    assert_same_step(step(patched), step(plain))


def test_pairs_turn_by_positions_along_several_axes() -> None:
    """An attention is told the positions of text, and its tables have those of images."""
    config = transformers.Qwen2VLTextConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]},
        **SPECIAL,
    )  # fmt: skip
    torch.manual_seed(1)
    plain = transformers.Qwen2VLTextModel(config).eval()
    patched = copy.deepcopy(plain)
    assert repr(patch(patched, only="rope")) == "Report(patched: 2 rope; left: 0)"
    positions = torch.randint(0, 40, (4, *IDS.shape))
    positions[0] = torch.arange(IDS.shape[1])
    inputs = {"input_ids": IDS, "position_ids": positions}
    ours, theirs = (model(**inputs).last_hidden_state for model in (patched, plain))
    assert apart(ours, theirs) < 1e-5


def test_the_gradient_of_a_head_may_be_summed_in_the_accumulate_dtype(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def watched(*arrays: Any, **options: Any) -> Any:
        asked.append(options["grad_dtype"])
        return linear_cross_entropy(*arrays, **options)

    monkeypatch.setattr(forwards, "linear_cross_entropy", watched)
    plain, patched = twins()
    for options in ({}, {"grad_dtype": "accumulate"}):
        unpatch(patched)
        patch(patched, **options)
        assert_same_step(step(patched), step(plain))
    assert asked == ["weight", "accumulate"]
    with pytest.raises(ValueError, match="grad_dtype: expected 'accumulate' or 'weight', got"):
        patch(patched, grad_dtype="half")  # type: ignore[arg-type]


def test_frequencies_are_those_of_the_model() -> None:
    """`model.to(dtype)` rounds the frequencies, which turns the last positions by other angles."""
    plain, patched = twins()
    for model in (plain, patched):
        model.model.rotary_emb.inv_freq.mul_(1.25)
    patch(patched, only="rope")
    assert_same_step(step(patched), step(plain))


def test_norms_of_heads_are_made_with_a_rotation_of_any_angles() -> None:
    plain, patched = (
        model_of("Qwen3", rope_parameters=LLAMA3),
        model_of("Qwen3", rope_parameters=LLAMA3),
    )
    report = patch(patched)
    assert report.left == {}
    assert report.patched["model.layers.1.self_attn"] == "qk_norm"
    assert_same_step(step(patched), step(plain))


def test_norms_of_heads_that_are_hooked_are_called() -> None:
    plain, patched = twins("Qwen3")
    for model in (plain, patched):
        model.model.layers[0].self_attn.q_norm.register_forward_hook(lambda module, x, y: 2 * y)
    assert_same_step(step(patched), step(plain))


def test_a_forward_of_the_users_is_left() -> None:
    model = model_of()
    own = model.model.norm.forward = lambda x: x
    report = patch(model)
    assert report.left["model.norm"].endswith("its forward is set on the instance")
    assert inspect.signature(model.forward) == inspect.signature(model_of().forward)
    assert_same_step(step(model), step(model))
    # As accelerate wraps a forward, with all its attributes.
    mlp = model.model.layers[0].mlp
    wrapper = mlp.forward = MethodType(wraps(mlp.forward)(lambda self, x: -x), mlp)
    assert patch(model).left["model.layers.0.mlp"].endswith("its forward is set on the instance")
    unpatch(model)
    assert model.model.norm.forward is own
    assert mlp.forward is wrapper


def changed(kind: type, **methods: Callable[..., Any]) -> Any:
    """A class of transformers' with other code."""
    return type(kind.__name__, (kind,), methods)


def norm_without_mean(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).sum(-1, True) + 1e-6)).to(
        x.dtype
    )


def norm_of_groups(self: Any, x: torch.Tensor) -> torch.Tensor:
    groups = x.float().unflatten(-1, (-1, modules.WIDTH))
    y = groups * torch.rsqrt(groups.pow(2).mean(-1, True) + self.variance_epsilon)
    return self.weight * y.flatten(-2).to(x.dtype)


def norm_and_its_input(self: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return llama.LlamaRMSNorm.forward(self, x), x


def norm_with_a_gate(self: Any, x: torch.Tensor, gate: Any = None) -> torch.Tensor:
    y = llama.LlamaRMSNorm.forward(self, x)
    return y if gate is None else y * torch.sigmoid(gate)


def mlp_times_twice(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x) * 2)


def mlp_of_two_inputs(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(-x))


def forward_in_the_dtype_of_the_head(self: Any, input_ids: Any, labels: Any = None) -> Any:
    hidden_states = self.model(input_ids).last_hidden_state
    logits = self.lm_head(hidden_states.to(self.lm_head.weight.dtype))
    loss = self.loss_function(logits, labels, self.config.vocab_size)
    return CausalLMOutputWithPast(loss=loss, logits=logits)


def layer_of_scaled_branch(self: Any, hidden_states: torch.Tensor, **keywords: Any) -> Any:
    normed = self.input_layernorm(hidden_states)
    hidden_states = hidden_states + 0.5 * self.self_attn(hidden_states=normed, **keywords)[0]
    return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


def attention_of(q: str, between: str = "pass") -> Any:
    """The code of an attention that makes `q` so, with something before its rotation."""
    text = f"""
def forward(self, hidden_states, position_embeddings, **keywords):
    shape = (*hidden_states.shape[:-1], -1, self.head_dim)
    q = {q}
    k = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
    {between}
    cos, sin = position_embeddings
    q, k = apply_rotary_pos_emb(q, k, cos, sin)
    return q, k
"""
    lines = text.splitlines(keepends=True)
    file = f"<attention {q} {between}>"
    linecache.cache[file] = (len(text), None, lines, file)
    names: dict[str, Any] = {"apply_rotary_pos_emb": qwen3.apply_rotary_pos_emb}
    exec(compile(text, file, "exec"), names)
    return names["forward"]


NORMED = "self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)"


@pytest.mark.parametrize(
    ("q", "between", "found"),
    [
        (NORMED, "pass", True),
        (f"2 * {NORMED}", "pass", False),
        (f"{NORMED}.view(-1)", "pass", False),
        (NORMED, "self.seen = q", False),
        (NORMED, "keywords['twice'] and (q := 2 * q)", False),
        (NORMED, "q = self.other(q)", False),
        (NORMED, "v = self.q_norm(k)", False),
        ("self.k_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)", "pass", False),
    ],
)
def test_norms_of_heads_are_those_that_a_rotation_follows(
    q: str, between: str, found: bool
) -> None:
    module = changed(qwen3.Qwen3Attention, forward=attention_of(q, between))
    result = heads_of(module(model_of("Qwen3").config, 0))
    assert isinstance(result, Mismatch) is not found


@pytest.mark.parametrize(
    ("find", "kind", "arguments", "code"),
    [
        (norm_of, llama.LlamaRMSNorm, (8,), norm_without_mean),
        (norm_of, llama.LlamaRMSNorm, (2 * modules.WIDTH,), norm_of_groups),
        (norm_of, llama.LlamaRMSNorm, (8,), norm_and_its_input),
        (mlp_of, llama.LlamaMLP, None, mlp_times_twice),
        (mlp_of, llama.LlamaMLP, None, mlp_of_two_inputs),
        (layer_of, llama.LlamaDecoderLayer, None, layer_of_scaled_branch),
    ],
)
def test_other_code_is_no_match(find: Any, kind: Any, arguments: Any, code: Any) -> None:
    config = model_of().config
    given = arguments or ((config, 0) if kind is llama.LlamaDecoderLayer else (config,))
    assert not isinstance(find(kind(*given)), Mismatch)
    assert isinstance(find(changed(kind, forward=code)(*given)), Mismatch)


def test_a_norm_that_is_given_more_than_its_input_is_its_own() -> None:
    norm = changed(llama.LlamaRMSNorm, forward=norm_with_a_gate)(8)
    model = nn.ModuleList([norm])
    x, gate = torch.randn(3, 8), torch.randn(3, 8)
    want = norm(x), norm(x, gate), norm(x, gate=gate)
    assert patch(model).patched == {"0": "norm"}
    for ours, theirs in zip((norm(x), norm(x, gate), norm(x, gate=gate)), want, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_examples_run() -> None:
    found = doctest.testmod(patching)
    assert found.attempted > 4
    assert found.failed == 0


def test_another_version_of_transformers_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "baracuda.integrations.transformers.patching.version", lambda name: "4.40.1"
    )
    with pytest.warns(UserWarning, match=r"transformers 4.40.1 is not one of the versions"):
        assert patch(nn.Linear(2, 2)) == Report()
