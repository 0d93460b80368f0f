"""A program for a machine with a GPU: the last layer of a language model and its losses.

`python tests/head_of_a_model.py` prints milliseconds and memory beside operands (GiB) of the loss
with its gradients, by several chunks, of log-probabilities and of divergences, beside the bare
matrix products, torch, torch.compile, Liger and QuACK; then how far results are from float64 of
the same inputs. `--only losses` (or log_probs, divergences, accuracy) leaves out the others,
`--tiny` takes small sizes.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

import baracuda as bc

SIZES = ((8192, 4096, 128256), (16384, 4096, 128256), (8192, 2048, 151936), (2048, 4096, 128256))
TINY = ((64, 32, 100),)
CHUNKS = (None, 1024, 4096, 8192)
JSD_ROWS = (1024, 4096, 8192)
# Compared with float64, whose logits are four times as large.
EXACT_ROWS = 512
TEMPERATURES = (0.01, 0.1, 1.0, 10.0, 100.0)


def in_turns(*tasks: Callable[[], Any], rounds: int = 5) -> list[float]:
    """The median of each in ms, in turns: all of them at the clock of a busy device."""
    for task in tasks:
        task()
    torch.cuda.synchronize()
    found: list[list[float]] = [[] for _ in tasks]
    for _ in range(rounds):
        for task, times in zip(tasks, found, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            task()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
    return [statistics.median(times) for times in found]


def timed(task: Callable[[], Any]) -> float:
    """The median of five, after one to warm up, in ms."""
    return in_turns(task)[0]


def peak(task: Callable[[], Any]) -> float:
    """The most memory beside what there is, in GiB."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = task()
    torch.cuda.synchronize()
    del result
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def line(name: str, task: Callable[[], Any]) -> None:
    """Print what a task takes; what runs out of memory says so."""
    try:
        print(f"  {name:44} {timed(task):8.2f} ms {peak(task):6.2f} GiB", flush=True)
    except torch.OutOfMemoryError:
        print(f"  {name:44} out of memory", flush=True)
    torch.cuda.empty_cache()


class Head:
    """Inputs of one size; one target in seven is ignored."""

    def __init__(self, rows: int, d: int, v: int) -> None:
        torch.manual_seed(0)
        self.hidden = torch.randn(rows, d, device="cuda").bfloat16().requires_grad_()
        self.weight = (torch.randn(v, d, device="cuda") * d**-0.5).bfloat16().requires_grad_()
        self.target = torch.randint(0, v, (rows,), device="cuda")
        self.target[::7] = -100

    @property
    def plain(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As tensors that nothing watches."""
        return self.hidden.detach(), self.weight.detach(), self.target

    def pull(self, loss: Callable[[], torch.Tensor]) -> None:
        """A loss and its gradients by autograd."""
        self.hidden.grad = self.weight.grad = None
        loss().backward()

    def beside_products(self, tasks: dict[str, Callable[[], Any]], products: int) -> None:
        """Print tasks in turns with the first bare matrix products.

        Beside all three the logits are read and written once more, beside the first one read.
        """
        x, w, _ = self.plain
        logits = torch.empty(len(x), len(w), device="cuda", dtype=torch.bfloat16)
        dx, dw = torch.empty_like(x), torch.empty_like(w)
        every = ((x, w.T, logits), (logits, w, dx), (logits.T, x, dw))[:products]
        half = len(x) // 2

        def bare() -> None:
            for a, b, out in every:
                torch.mm(a, b, out=out)

        def read() -> None:
            # As many bytes as all logits read once.
            logits[half : 2 * half].copy_(logits[:half])

        floor, copy, *found = in_turns(bare, read, *tasks.values(), rounds=9)
        copy *= min(products, 2)
        print(
            f"  bare products ({products}) {floor:.2f} ms, logits {copy:.2f}; in turns with them:",
            flush=True,
        )
        for name, ms in zip(tasks, found, strict=True):
            print(f"  {name:44} {ms:8.2f} ms, {ms / (floor + copy):.3f} of both", flush=True)


def losses(head: Head) -> None:
    """The loss, alone and with its gradients."""
    hidden, weight, target = head.hidden, head.weight, head.target

    def loss(chunk: int | None = None) -> torch.Tensor:
        return bc.linear_cross_entropy(hidden, weight, target, chunk=chunk)

    forward = partial(_quietly, loss)
    head.beside_products({"loss": forward}, 1)
    line("loss", forward)
    with_gradient = partial(bc.linear_cross_entropy_with_gradient, *head.plain)
    autograd = partial(head.pull, loss)
    head.beside_products({"loss with gradients": with_gradient, "loss, autograd": autograd}, 3)
    for chunk in CHUNKS:
        if chunk is None or chunk <= len(hidden):
            line(f"loss with gradients, chunk {chunk}", partial(with_gradient, chunk=chunk))
            line(f"loss, autograd, chunk {chunk}", partial(head.pull, partial(loss, chunk)))

    def in_torch() -> torch.Tensor:
        return F.cross_entropy((hidden @ weight.T).float(), target)

    torch.compiler.reset()
    for name, function in (
        ("torch", in_torch), ("torch.compile", torch.compile(in_torch, dynamic=False))
    ):  # fmt: skip
        line(f"loss, {name}", partial(_quietly, function))
        line(f"loss with gradients, {name}", partial(head.pull, function))
    try:
        from liger_kernel.transformers.fused_linear_cross_entropy import (
            LigerFusedLinearCrossEntropyLoss,
        )
    except ImportError:
        pass
    else:
        liger = LigerFusedLinearCrossEntropyLoss()
        line("loss, Liger", partial(_quietly, liger, weight, hidden, target))
        line(
            "loss with gradients, Liger", partial(head.pull, partial(liger, weight, hidden, target))
        )
    try:
        from quack.linear_cross_entropy import chunked_linear_cross_entropy

        # Its compiler cannot tell a chunk's rows from as many columns.
        rows = 4096 if hidden.shape[-1] != 4096 else 8192
        quack = partial(chunked_linear_cross_entropy, hidden, weight, target, chunk_size=rows)
        line("loss, QuACK", partial(_quietly, quack))
        head.beside_products({"loss with gradients, QuACK": partial(head.pull, quack)}, 3)
        line("loss with gradients, QuACK", partial(head.pull, quack))
    except Exception as error:
        # It may not be installed, or not go with the version of its compiler.
        print(f"  loss, QuACK: {error!r:.200}", flush=True)


def _in_torch(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> Any:
    """Log-probabilities and entropies, as one writes them."""
    log = torch.log_softmax((hidden @ weight.T).float(), -1)
    chosen = log.gather(-1, target.clamp(0)[:, None])[:, 0]
    return torch.where(target < 0, 0, chosen), -(log.exp() * log).sum(-1)


def log_probs(head: Head) -> None:
    """Log-probabilities with entropies, forward and with gradients."""
    x, w, target = head.plain
    pulls = [torch.randn(len(x), device="cuda") for _ in range(2)]
    forward = partial(bc.linear_log_prob, x, w, target, entropy=True)
    head.beside_products({"log-probabilities, entropies": forward}, 1)
    line("log-probabilities, entropies", forward)
    ahead = partial(bc.linear_log_prob_with_gradient, *pulls, x, w, target)
    line("the same with gradients, cotangents known", ahead)

    def total(function: Callable[..., Any]) -> torch.Tensor:
        chosen, entropy = function(head.hidden, head.weight, target)
        return (chosen * pulls[0] + entropy * pulls[1]).sum()

    ours = partial(bc.linear_log_prob, entropy=True)
    torch.compiler.reset()
    compiled = torch.compile(_in_torch, dynamic=False)
    for name, function in (("autograd", ours), ("torch", _in_torch), ("torch.compile", compiled)):
        if function is not ours:
            line(f"log-probabilities, entropies, {name}", partial(_quietly, function, x, w, target))
        line(f"the same with gradients, {name}", partial(head.pull, partial(total, function)))


def _quietly(function: Callable[..., Any], *arrays: torch.Tensor) -> Any:
    with torch.no_grad():
        return function(*arrays)


def _divergence(kind: str, *arrays: torch.Tensor) -> torch.Tensor:
    """A mean over rows in torch, of logits in float32."""
    hidden, weight, teacher_hidden, teacher_weight = arrays
    s = torch.log_softmax((hidden @ weight.T).float(), -1)
    t = torch.log_softmax((teacher_hidden @ teacher_weight.T).float(), -1)
    if kind == "forward":
        return F.kl_div(s, t, reduction="batchmean", log_target=True)
    m = torch.logaddexp(s, t) - math.log(2)
    half = [F.kl_div(m, x, reduction="batchmean", log_target=True) for x in (t, s)]
    return (half[0] + half[1]) / 2


def divergences(head: Head) -> None:
    """Divergences from a teacher of the same size, with gradients."""
    x, w, _ = head.plain
    taught, layer = torch.randn_like(x), torch.randn_like(w) * x.shape[1] ** -0.5
    for kind in ("forward", "jsd"):
        ahead = partial(bc.linear_kl_div_with_gradient, x, w, taught, layer, kind=kind)
        line(f"divergence, {kind}, with gradients", ahead)
    for rows in (n for n in JSD_ROWS if n <= len(x)):
        arrays = head.hidden[:rows], head.weight, taught[:rows], layer
        torch.compiler.reset()
        compiled = torch.compile(partial(_divergence, "jsd"), dynamic=False)
        ways = {
            "autograd": partial(bc.linear_kl_div, kind="jsd"),
            "torch": partial(_divergence, "jsd"), "torch.compile": compiled,
        }  # fmt: skip
        try:
            from liger_kernel.transformers.fused_linear_jsd import LigerFusedLinearJSD

            ways["Liger"] = partial(LigerFusedLinearJSD(), shift_labels=None)
        except ImportError:
            pass
        given = [a.detach() for a in arrays]
        ahead = partial(bc.linear_kl_div_with_gradient, *given, kind="jsd")
        line(f"divergence, jsd, {rows} rows, with gradients", ahead)
        for name, way in ways.items():
            line(f"divergence, jsd, {rows} rows, {name}", partial(head.pull, partial(way, *arrays)))
        probs, ids = torch.softmax((taught[:rows] @ layer.T).float(), -1).topk(64)
        likely = partial(bc.linear_topk_kl_div, *arrays[:2], ids, probs)
        line(f"divergence, 64 classes, {rows} rows, autograd", partial(head.pull, likely))
        del probs, ids, likely


def _exact(
    x: torch.Tensor, target: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of logits, in float64."""
    log = torch.log_softmax(x.double() / temperature, -1)
    chosen = torch.where(target < 0, 0, log.gather(-1, target.clamp(0)[:, None])[:, 0])
    entropy = -torch.where(log == -torch.inf, 0, log.exp() * log).sum(-1)
    return chosen, torch.where(target < 0, 0, entropy)


def accuracy(head: Head) -> None:
    """How far results of bfloat16 inputs are from float64 of the same inputs."""
    x, w, target = (a[:EXACT_ROWS] if len(a) == len(head.hidden) else a for a in head.plain)
    logits = x.double() @ w.double().T
    rounded = logits.bfloat16()
    # Half a unit in the last place of each row's largest logit.
    half = 2.0 ** (logits.abs().amax(-1).log2().floor() - 8)
    pulls = [torch.randn(len(x), device=x.device, dtype=torch.float64) for _ in range(2)]
    for name, function in (("ours", partial(bc.linear_log_prob, entropy=True)),
                           ("torch", _in_torch)):  # fmt: skip
        chosen, _ = function(x, w, target)
        off = (chosen.double() - _exact(logits, target)[0]).abs()
        print(
            f"  log-probabilities, {name}: off by {off.max():.2e} at most, "
            f"{(off / (2e-3 + half)).max():.2f} of 2e-3 and half a unit of the largest logit"
        )
    leaves = [a.double().requires_grad_() for a in (x, w)]
    found = _exact(leaves[0] @ leaves[1].T, target)
    want = torch.autograd.grad(
        sum((a * b).sum() for a, b in zip(found, pulls, strict=True)), leaves
    )
    own = bc.linear_log_prob_with_gradient(*[p.float() for p in pulls], x, w, target)[2:]
    for name, a, b in zip(("hidden states", "weight"), own, want, strict=True):
        print(f"  gradient of the {name}: off by {(a.double() - b).norm() / b.norm():.2e} of it")
    del leaves, found, want, own
    for temperature in TEMPERATURES:
        got = bc.log_prob(rounded, target, temperature=temperature, entropy=True)
        own = bc.linear_log_prob(x, w, target, temperature=temperature, entropy=True)
        of_logits = _exact(rounded, target, temperature)
        whole = _exact(logits, target, temperature)
        log, entropy = ((a - b).abs().max() for a, b in zip(got, of_logits, strict=True))
        all_in = (own[1] - whole[1]).abs().max()
        print(
            f"  temperature {temperature:6}: of given logits, log-probabilities off by {log:.2e}, "
            f"entropies by {entropy:.2e} of up to {of_logits[1].max():.2e}; of the layer, "
            f"entropies by {all_in:.2e}"
        )


PARTS = {task.__name__: task for task in (losses, log_probs, divergences, accuracy)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, nargs="*", default=[*PARTS])
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name())
    for size in TINY if arguments.tiny else SIZES:
        head = Head(*size)
        print(f"[{size[0]}, {size[1]}] x {size[2]}", flush=True)
        for part in arguments.only:
            PARTS[part](head)
        del head
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
