"""A Llama-style block, trained with one rope and one SwiGLU after the other: time, memory, losses.

The variants differ in these two functions and in whether torch.compile has the whole: weights,
data, norms, attention and optimiser are the same. So the losses have to be the same too, within
what bfloat16 leaves open; and the first gradients, since a loss alone shows little: it is one mean
over so many random numbers that a block without any rotation has nearly the same.
"""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

import baracuda as bc
from baracuda.libraries import Array

Rope: TypeAlias = Callable[[Array, Array, Array, Array], tuple[Array, Array]]
"""``(q, k, cos, sin)`` to the rotated q and k, all of shape [B, S, H, D], tables of [S, D]."""
Swiglu: TypeAlias = Callable[[Array], Array]
"""From ``[..., 2n]``, the gate first as in HF Llama, to ``[..., n]``."""

DTYPE = torch.bfloat16
LOSSES = 2**-8
"""How far apart losses may be, as a part of them: one rounding of bfloat16. Right ones are 3e-4
apart at most, as a mean is more exact than its terms."""
GRADIENTS = 2**-4
"""How far apart first gradients may be, as a part of their norm: sixteen roundings of bfloat16.
Right ones are 0.01 apart at every size, those of a wrong rotation 0.3 to 1.2."""


@dataclass(frozen=True)
class Sizes:
    """The block and its training."""

    batch: int = 4
    tokens: int = 4096
    hidden: int = 4096
    heads: int = 32
    shared: int = 8
    """Heads of keys and values."""
    head: int = 128
    ffn: int = 14336
    steps: int = 20
    untimed: int = 5
    rate: float = 1e-4
    epsilon: float = 1e-5

    def __str__(self) -> str:
        return (
            f"[{self.batch}, {self.tokens}] tokens, hidden {self.hidden}, {self.heads} heads of"
            f" {self.head} over {self.shared}, FFN {self.ffn}, {self.steps} steps of AdamW"
        )


SMALL = Sizes(batch=2, tokens=64, hidden=64, heads=4, shared=2, head=16, ffn=160)
"""What a CPU trains in a moment."""


# -- the variants --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """Two functions, and whether torch.compile has what is around them."""

    name: str
    rope: Rope
    swiglu: Swiglu
    compiled: bool = False


def plain_rope(q: Array, k: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    """As HF Llama has it."""
    cos, sin = cos[:, None], sin[:, None]
    return q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin


def _rotate_half(x: Array) -> Array:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def plain_swiglu(x: Array) -> Array:
    """As HF Llama has it, on packed projections."""
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


def liger_rope(q: Array, k: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    """Takes heads first, and swaps the axes back before it looks at the memory."""
    function = import_module("liger_kernel.ops.rope").LigerRopeFunction
    q, k = function.apply(q.transpose(1, 2), k.transpose(1, 2), cos[None], sin[None])
    return q.transpose(1, 2), k.transpose(1, 2)


def liger_swiglu(x: Array) -> Array:
    """Takes the halves apart, each in C order."""
    function = import_module("liger_kernel.ops.swiglu").LigerSiLUMulFunction
    return function.apply(*x.chunk(2, -1))


def liger_packed(x: Array) -> Array:
    """Takes them packed, in rows: whatever the shape, that is how its gradient comes back."""
    function = import_module("liger_kernel.ops.swiglu").LigerFusedGateUpSiLUMulFunction
    return function.apply(x.flatten(0, -2)).view(*x.shape[:-1], -1)


def fused_rope(q: Array, k: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    """Ours needs no tables."""
    return (
        bc.rope(q, interleaved=False, seq_axis=-3),
        bc.rope(k, interleaved=False, seq_axis=-3),
    )


def fused_swiglu(x: Array) -> Array:
    """Ours."""
    return bc.swiglu(x, gate_first=True)


PLAIN = Variant("plain eager", plain_rope, plain_swiglu)
VARIANTS = (
    PLAIN,
    replace(PLAIN, name="torch.compile", compiled=True),
    Variant("Liger", liger_rope, liger_swiglu),
    Variant("Liger, packed SwiGLU", liger_rope, liger_packed),
    Variant("baracuda", fused_rope, fused_swiglu),
    Variant("baracuda, torch.compile", fused_rope, fused_swiglu, compiled=True),
)


# -- the block -----------------------------------------------------------------------------------


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    cos: Array
    sin: Array

    def __init__(self, sizes: Sizes, rope: Rope, swiglu: Swiglu, device: str) -> None:
        super().__init__()
        self.sizes, self.rope, self.swiglu = sizes, rope, swiglu
        draw = torch.Generator(device).manual_seed(0)

        def matrix(rows: int, columns: int) -> nn.Parameter:
            values = torch.randn(rows, columns, generator=draw, device=device)
            return nn.Parameter((values * columns**-0.5).to(DTYPE))

        def ones() -> nn.Parameter:
            return nn.Parameter(torch.ones(sizes.hidden, dtype=DTYPE, device=device))

        own, others = sizes.heads * sizes.head, sizes.shared * sizes.head
        self.q, self.o = matrix(own, sizes.hidden), matrix(sizes.hidden, own)
        self.k, self.v = matrix(others, sizes.hidden), matrix(others, sizes.hidden)
        self.gate_up = matrix(2 * sizes.ffn, sizes.hidden)
        self.down = matrix(sizes.hidden, sizes.ffn)
        self.norm_attention, self.norm_ffn = ones(), ones()
        pairs = torch.arange(0, sizes.head, 2, dtype=torch.float64) / sizes.head
        angles = torch.arange(sizes.tokens, dtype=torch.float64)[:, None] * 10000.0**-pairs
        for name, table in (("cos", angles.cos()), ("sin", angles.sin())):
            self.register_buffer(name, torch.cat((table, table), -1).to(device, DTYPE))

    def forward(self, x: Array) -> Array:
        """From and to [B, S, hidden]."""
        sizes, width = self.sizes, (self.sizes.hidden,)
        x = x + self.attention(F.rms_norm(x, width, self.norm_attention, sizes.epsilon))
        packed = F.linear(F.rms_norm(x, width, self.norm_ffn, sizes.epsilon), self.gate_up)
        return x + F.linear(self.swiglu(packed), self.down)

    def attention(self, x: Array) -> Array:
        """Heads stay behind the sequence in memory: nothing is copied between the projections."""
        q, k, v = (F.linear(x, w).view(*x.shape[:-1], -1, self.sizes.head) for w in self.qkv)
        q, k = self.rope(q, k, self.cos, self.sin)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return F.linear(found.transpose(1, 2).flatten(-2), self.o)

    @property
    def qkv(self) -> tuple[Array, Array, Array]:
        """The weights of the three projections."""
        return self.q, self.k, self.v


def loss_of(block: Block, x: Array, target: Array) -> Array:
    """The mean squared error, in float32."""
    return F.mse_loss(block(x).float(), target)


# -- the training --------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What came of a variant: seconds of a step, GiB at most, losses, and distances.

    Attributes
    ----------
    losses_apart : float
        The largest difference of a loss to that of the first variant, as a part of it.
    gradients_apart : float
        The same of the first gradient of each weight, in the Euclidean norm.
    error : str
        Why it did not run.
    missing : bool
        Whether that is a package that is not installed.
    first : float
        Seconds of the first step, where they were taken.
    bounds : tuple of float
        How far apart its losses and its gradients may be.
    """

    name: str
    seconds: float = math.nan
    peak: float = math.nan
    losses: list[float] = field(default_factory=list)
    losses_apart: float = math.nan
    gradients_apart: float = math.nan
    error: str = ""
    missing: bool = False
    first: float = math.nan
    bounds: tuple[float, float] = (LOSSES, GRADIENTS)

    @property
    def faults(self) -> list[str]:
        """What is wrong with it; a package that is not there is not."""
        if self.error:
            return [] if self.missing else [self.error]
        return [
            f"{what} {apart:.2e} apart, more than {most:.2e}"
            for what, apart, most in zip(
                ("losses", "gradients"),
                (self.losses_apart, self.gradients_apart),
                self.bounds,
                strict=True,
            )
            if not apart <= most
        ]


def train(variant: Variant, sizes: Sizes, device: str) -> tuple[Outcome, list[Array]]:
    """Train with one variant; what came of it, and the first gradients, on the host."""
    block = Block(sizes, variant.rope, variant.swiglu, device)
    draw = torch.Generator(device).manual_seed(1)
    shape = sizes.batch, sizes.tokens, sizes.hidden
    x = torch.randn(shape, generator=draw, device=device).to(DTYPE)
    target = torch.randn(shape, generator=draw, device=device)
    on_gpu = device == "cuda"
    optimiser = torch.optim.AdamW(block.parameters(), lr=sizes.rate, fused=on_gpu)
    compiled = partial(torch.compile, fullgraph=True, dynamic=False)
    task = compiled(loss_of) if variant.compiled else loss_of
    losses: list[Array] = []
    gradients: list[Array] = []
    marks: list[Any] = []
    for step in range(sizes.steps):
        if step == sizes.untimed and on_gpu:
            torch.cuda.reset_peak_memory_stats()
        if step >= sizes.untimed:
            marks.append(mark(on_gpu))
        loss = task(block, x, target)
        loss.backward()
        # Read behind the last step, where nothing is left to wait for.
        losses.append(loss.detach())
        if step == 0:
            found = ((w, w.grad) for w in block.parameters())
            gradients = [(torch.zeros_like(w) if g is None else g).cpu() for w, g in found]
        optimiser.step()
        optimiser.zero_grad()
    marks.append(mark(on_gpu))
    out = Outcome(variant.name, losses=[float(loss) for loss in losses])
    out.seconds = statistics.median(between(a, b) for a, b in pairwise(marks))
    if on_gpu:
        out.peak = torch.cuda.max_memory_allocated() / 2**30
    return out, gradients


def mark(on_gpu: bool) -> Any:
    """A point in time: of the current stream, or of the host."""
    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def between(a: Any, b: Any) -> float:
    """Seconds, once the work in between is done."""
    return float(b - a if isinstance(a, float) else a.elapsed_time(b) * 1e-3)


def measure(
    variants: Sequence[Variant], sizes: Sizes, device: str, show: Callable[[str], None]
) -> list[Outcome]:
    """Train with each variant, alone in memory, and compare with the first one.

    Parameters
    ----------
    variants : sequence of Variant
    sizes : Sizes
    device : str
        "cuda" or "cpu".
    show : callable
        Told each name before the work.

    Returns
    -------
    list of Outcome
    """
    return compare({v.name: partial(train, v, sizes, device) for v in variants}, show)


def compare(
    tasks: Mapping[str, Callable[[], tuple[Outcome, list[Array]]]],
    show: Callable[[str], None],
    again: str = "",
) -> list[Outcome]:
    """Run each training, alone in memory, and compare its losses and gradients with the first's.

    `again` names the first one with its sums in another order. The others may be twice as far from
    the first as it is, where that is more than the usual bounds.
    """
    found: list[Outcome] = []
    bounds = (LOSSES, GRADIENTS)
    reference: tuple[Outcome, list[Array]] | None = None
    for name, task in tasks.items():
        show(name)
        try:
            outcome, gradients = task()
        except Exception as error:
            # The others are worth having without this one.
            text = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:100]}"
            outcome = Outcome(name, error=text, missing=isinstance(error, ImportError))
        else:
            reference = reference or (outcome, gradients)
            outcome.losses_apart = _apart(outcome.losses, reference[0].losses)
            outcome.gradients_apart = _apart(gradients, reference[1])
            if name == again:
                noise = outcome.losses_apart, outcome.gradients_apart
                bounds = max(LOSSES, 2 * noise[0]), max(GRADIENTS, 2 * noise[1])
            outcome.bounds = bounds
        found.append(outcome)
        # What refers to itself, and what compiled programs hold.
        gc.collect()
        torch.compiler.reset()
        torch.cuda.empty_cache()
    return found


def _apart(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest distance of two numbers or arrays, as a part of the second one's size.

    NaN where one of them is, which `max` would pass over.
    """
    distances = []
    for pair in zip(found, wanted, strict=True):
        x, y = (torch.as_tensor(each).float() for each in pair)
        off = (x - y).norm()
        # The rows of an embedding that a shard has may be those of no token.
        distances.append(off / y.norm() if off else off)
    return float(torch.stack(distances).max())


# -- what is shown -------------------------------------------------------------------------------


def cells(found: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of a table; how many times as fast is beside the first variant."""
    head = ["variant", "ms a step", "ratio", "peak GiB", "last loss", "losses apart",
            "gradients apart", "verdict"]  # fmt: skip
    rows = []
    for each in found:
        numbers = [
            f"{each.seconds * 1e3:.2f}",
            f"{found[0].seconds / each.seconds:.3f}x",
            f"{each.peak:.2f}",
            f"{each.losses[-1]:.5f}" if each.losses else "nan",
            f"{each.losses_apart:.1e}",
            f"{each.gradients_apart:.1e}",
        ]
        verdict = each.error or ("apart" if each.faults else "equal")
        rows.append([each.name, *["-" if x.startswith("nan") else x for x in numbers], verdict])
    return head, rows


def figures(sizes: Any, found: Sequence[Outcome]) -> dict[str, Any]:
    """All of it for JSON, which has no NaN."""
    every = {
        "sizes": asdict(sizes),
        "dtype": str(DTYPE).removeprefix("torch."),
        "bounds": {"losses": LOSSES, "gradients": GRADIENTS},
        "variants": [asdict(outcome) for outcome in found],
    }
    return json.loads(json.dumps(every), parse_constant=lambda name: None)  # type: ignore[no-any-return]
