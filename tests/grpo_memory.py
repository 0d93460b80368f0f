"""A program for a machine with a GPU: the head of a language model in a step of GRPO.

`python tests/grpo_memory.py` prints milliseconds and memory beside operands (GiB) of the loss and
its gradients, by docs/recipes and by torch with all logits in memory, and how far the gradients are
apart. `--tiny` compares them at a small size, on any machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from documents import defined
from head_of_a_model import peak, timed

PAGE = defined("recipes/policy_gradients.md")
SIZE, TINY = (8, 1024, 4096, 151936), (4, 6, 16, 97)
BETA = 0.04
Step = Callable[[], tuple[torch.Tensor, ...]]


def in_memory(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The log-probabilities of `target`, from the logits of all tokens."""
    logs = (hidden @ weight.T).float().log_softmax(-1)
    chosen = logs.gather(-1, target.clamp(min=0)[..., None])[..., 0]
    return torch.where(target == -100, 0, chosen)


def by_torch() -> Callable[..., torch.Tensor]:
    """The page's own `grpo`, on the log-probabilities of torch."""
    known = PAGE.grpo
    names = {**known.__globals__, "bc": SimpleNamespace(linear_log_prob=in_memory)}
    found = FunctionType(known.__code__, names, "grpo", known.__defaults__)
    found.__kwdefaults__ = known.__kwdefaults__
    return found


def variants(
    size: tuple[int, int, int, int], device: str, compiler: str
) -> tuple[dict[str, Step], dict[str, Step]]:
    """Steps of several epochs over a sample, and of the only one; the first is torch's."""
    batch, tokens, d, v = size
    torch.manual_seed(0)
    hidden = torch.randn(batch, tokens, d, device=device).bfloat16().requires_grad_()
    weight = (torch.randn(v, d, device=device) * d**-0.5).bfloat16().requires_grad_()
    target = torch.randint(0, v, (batch, tokens), device=device)
    target[::3, -tokens // 3 :] = -100
    advantage = PAGE.group_advantage(torch.randn(batch, device=device), 2)
    x, w = hidden.detach(), weight.detach()
    with torch.no_grad():
        old, reference = (in_memory(x, y, target) for y in (w * 0.9, w * 1.1))

    def step(loss: Callable[..., torch.Tensor], *more: torch.Tensor, **options: Any) -> Step:
        def run() -> tuple[torch.Tensor, ...]:
            found = loss(hidden, weight, target, advantage, *more, kind="bnpo", **options)
            return torch.autograd.grad(found, (hidden, weight))

        return run

    plain = by_torch()
    compiled = torch.compile(plain, backend=compiler)
    moved = {"beta": BETA}
    number = (target != -100).sum()
    chunk = batch * tokens // 8

    def at_once() -> tuple[torch.Tensor, ...]:
        return PAGE.on_policy_gradient(x, w, target, advantage, number)[1:]

    again = {
        "torch": step(plain, old, reference, **moved),
        "torch.compile": step(compiled, old, reference, **moved),
        "baracuda": step(PAGE.grpo, old, reference, **moved),
        f"baracuda, chunk {chunk}": step(PAGE.grpo, old, reference, chunk=chunk, **moved),
    }
    once = {
        "torch": step(plain),
        "baracuda": step(PAGE.grpo),
        "baracuda, in one pass": at_once,
    }
    return again, once


def apart(found: tuple[torch.Tensor, ...], known: tuple[torch.Tensor, ...]) -> float:
    """The largest difference of gradients, in units of the largest element of each."""
    pairs = zip(found, known, strict=True)
    return max(float((x - y).abs().max() / y.abs().max()) for x, y in pairs)


def report(steps: dict[str, Step], measured: bool) -> None:
    known = steps["torch"]()
    for name, step in steps.items():
        costs = f"{timed(step):8.2f} ms {peak(step):6.2f} GiB " if measured else ""
        print(f"  {name:24} {costs} gradients {apart(step(), known):.1e} apart", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="compare gradients at a small size")
    tiny = parser.parse_args().tiny
    measured = torch.cuda.is_available() and not tiny
    if not measured and not tiny:
        parser.error("needs an NVIDIA GPU, or --tiny")
    size = TINY if tiny else SIZE
    batch, tokens, d, v = size
    print(torch.cuda.get_device_name() if measured else "a comparison")
    print(f"[{batch * tokens}, {d}] x {v}, bfloat16")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for title, steps in zip(
        ("ratios and a reference model", "on-policy, one step for each sample"),
        variants(size, device, "eager" if tiny else "inductor"),
        strict=True,
    ):
        print(title)
        report(steps, measured)


if __name__ == "__main__":
    main()
