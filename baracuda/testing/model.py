"""A language model of transformers, trained as it is and with other kernels: time, memory, losses.

Random weights, a text that ships with Python, no network. The variants differ in what is patched,
in whether torch.compile has the model, in whether attention is told that it is causal, and in the
optimiser. Where torch.distributed connects processes, each has a shard of the weights by FSDP2, and
rows of its own.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from baracuda import optim
from baracuda.examples.charlm import python_reference
from baracuda.libraries import Array
from baracuda.testing import block
from baracuda.testing.block import DTYPE, Outcome

MODELS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", 128, {"rope_theta": 5e5}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", 128, {"rope_theta": 1e6}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", 256, {"tie_word_embeddings": True}),
}
"""Classes of the configuration and the model, the size of a head, and more of the former."""


@dataclass(frozen=True)
class Sizes:
    """The model and its training."""

    layers: int = 8
    hidden: int = 2048
    ffn: int = 8192
    batch: int = 2
    tokens: int = 4096
    vocabulary: int = 128256
    steps: int = 15
    untimed: int = 5
    rate: float = 1e-4

    def __str__(self) -> str:
        return (
            f"[{self.batch}, {self.tokens}] tokens, {self.layers} layers, hidden {self.hidden}, "
            f"FFN {self.ffn}, vocabulary {self.vocabulary}, {self.steps} steps of AdamW"
        )


SMALL = Sizes(layers=2, hidden=64, ffn=160, batch=2, tokens=32, vocabulary=128, steps=4, untimed=2)
"""What a CPU trains in a moment."""


# -- the variants --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """What is done to a model before its training."""

    name: str
    prepare: Callable[[Any], Any] = lambda model: None
    compiled: bool = False
    around: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """What the whole training of the model is in."""
    optimiser: Callable[..., Any] = torch.optim.AdamW


def liger(model: Any) -> None:
    """Patch by Liger, as its users do."""
    transformers = import_module("liger_kernel.transformers")
    transformers._apply_liger_kernel_to_instance(model=model)


def patched(model: Any, **how: Any) -> None:
    """Patch by baracuda."""
    import_module("baracuda.integrations.transformers").patch(model, **how)


@contextmanager
def causal(model: Any) -> Iterator[None]:
    """Let the code of a model's decoder make no masks: attention is causal by its kernel.

    An eager model does so by itself.
    """
    own = vars(sys.modules[type(model.model).__module__])
    made = {name: own[name] for name in own if name.startswith("create_") and "mask" in name}
    own.update(dict.fromkeys(made, lambda *_, **__: None))
    try:
        yield
    finally:
        own.update(made)


def in_another_order(model: Any) -> AbstractContextManager[Any]:
    """Attention by kernels that add up in another order than the usual ones."""
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


AGAIN = "eager, another attention kernel"
"""Whose distance from the first variant is the model's own noise."""
VARIANTS = (
    Variant("eager"),
    Variant(AGAIN, around=in_another_order),
    Variant("torch.compile", compiled=True),
    Variant("torch.compile, causal kernel", compiled=True, around=causal),
    Variant("baracuda", patched),
    Variant("baracuda, bc.optim.AdamW", patched, optimiser=optim.AdamW),
    Variant(
        "baracuda, bc.optim.AdamW, grad_dtype=accumulate",
        partial(patched, grad_dtype="accumulate"),
        optimiser=optim.AdamW,
    ),
    Variant(
        "baracuda, bc.optim.AdamW, recompute=False",
        partial(patched, recompute=False),
        optimiser=optim.AdamW,
    ),
    Variant("baracuda, torch.compile", patched, compiled=True),
    Variant("baracuda, torch.compile, causal kernel", patched, compiled=True, around=causal),
    Variant(
        "baracuda, bc.optim.AdamW, torch.compile, causal kernel",
        patched,
        compiled=True,
        around=causal,
        optimiser=optim.AdamW,
    ),
    # The last, as it replaces functions of transformers in the whole process.
    Variant("Liger", liger),
)


# -- the training --------------------------------------------------------------------------------


def model_of(name: str, sizes: Sizes, device: str) -> Any:
    """A model with random weights, the same for every variant."""
    config_name, class_name, head, more = MODELS[name]
    transformers = import_module("transformers")
    heads = max(sizes.hidden // head, 1)
    theta = more.get("rope_theta")
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": theta}} if theta else {}
    config = getattr(transformers, config_name)(
        hidden_size=sizes.hidden, intermediate_size=sizes.ffn, num_hidden_layers=sizes.layers,
        num_attention_heads=heads, num_key_value_heads=max(heads // 4, 1),
        head_dim=min(head, sizes.hidden // heads), vocab_size=sizes.vocabulary,
        # A window no longer than the text is a mask, and a slower kernel of attention.
        max_position_embeddings=sizes.tokens, sliding_window=2 * sizes.tokens, use_cache=False,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
        **rope, **{key: value for key, value in more.items() if key != "rope_theta"},
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device):
        # `model.to` would round the frequencies of rope, too.
        return getattr(transformers, class_name)._from_config(config, dtype=DTYPE).train()


def batches(sizes: Sizes, device: str) -> Iterator[Array]:
    """The text of `help()`, character by character, without end."""
    ids = torch.as_tensor(python_reference().training.astype("int64") % sizes.vocabulary)
    size = sizes.batch * sizes.tokens
    rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if connected() else (0, 1)
    at = rank * size
    while True:
        taken = torch.arange(at, at + size) % ids.shape[0]
        yield ids[taken].reshape(sizes.batch, sizes.tokens).to(device)
        at += ranks * size


def connected() -> bool:
    """Whether this process is one of several that train together."""
    return distributed.is_available() and distributed.is_initialized()


def shard(model: Any, device: str) -> None:
    """Leave this process a shard of each weight, gathered a layer at a time."""
    mesh = init_device_mesh(device, (distributed.get_world_size(),))
    for part in (*model.model.layers, model):
        fully_shard(part, mesh=mesh)
        # Over gloo some versions of torch sum where they are to average.
        part.set_force_sum_reduction_for_comms(device == "cpu")


def local(x: Any) -> Any:
    """What this process has of an array."""
    return x.to_local() if isinstance(x, DTensor) else x


def train(variant: Variant, name: str, sizes: Sizes, device: str) -> tuple[Outcome, list[Array]]:
    """Train with one variant; what came of it, and the first gradients, on the host."""
    model = model_of(name, sizes, device)
    variant.prepare(model)
    if connected():
        shard(model, device)
    with variant.around(model):
        return _train(variant, model, sizes, device)


def _train(variant: Variant, model: Any, sizes: Sizes, device: str) -> tuple[Outcome, list[Array]]:
    on_gpu = device == "cuda"
    optimiser = variant.optimiser(model.parameters(), lr=sizes.rate, fused=on_gpu)
    task = torch.compile(model, fullgraph=True, dynamic=False) if variant.compiled else model
    text = batches(sizes, device)
    losses: list[Array] = []
    gradients: list[Array] = []
    marks: list[Any] = []
    out = Outcome(variant.name)
    for step in range(sizes.steps):
        ids = next(text)
        if step == sizes.untimed and on_gpu:
            torch.cuda.reset_peak_memory_stats()
        if step >= sizes.untimed:
            marks.append(block.mark(on_gpu))
        began = time.perf_counter()
        loss = task(input_ids=ids, labels=ids).loss
        loss.backward()
        # Read behind the last step, where nothing is left to wait for.
        losses.append(loss.detach())
        if step == 0:
            found = ((w, w.grad) for w in model.parameters())
            gradients = [torch.zeros_like(w) if g is None else g for w, g in found]
        optimiser.step()
        optimiser.zero_grad()
        if step == 0:
            float(loss.detach())
            out.first = time.perf_counter() - began
            gradients = [local(g).cpu() for g in gradients]
    marks.append(block.mark(on_gpu))
    out.losses = [float(loss) for loss in losses]
    out.seconds = statistics.median(block.between(a, b) for a, b in pairwise(marks))
    if on_gpu:
        out.peak = torch.cuda.max_memory_allocated() / 2**30
    return out, gradients


def measure(
    name: str, variants: Sequence[Variant], sizes: Sizes, device: str, show: Callable[[str], None]
) -> list[Outcome]:
    """Train one of `MODELS` with each variant, alone in memory, and compare with the first one."""
    tasks = {each.name: partial(train, each, name, sizes, device) for each in variants}
    return block.compare(tasks, show, AGAIN)


def cells(found: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    """The table of the block, with the time of the first step."""
    head, rows = block.cells(found)
    for each, row in zip(found, rows, strict=True):
        row.insert(4, "-" if math.isnan(each.first) else f"{each.first:.1f}")
    head.insert(4, "first step, s")
    return head, rows
