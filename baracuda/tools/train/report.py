"""What ``baracuda train`` shows: how far it is, what ran, and whether plans kept their promise."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from baracuda.tools.train.fitting import FIRST, Run, Trained


@contextlib.contextmanager
def progress(steps: int | None, seconds: float | None) -> Iterator[Callable[[Run], None]]:
    """A bar where there is a terminal and rich to draw it; else a line per validation."""

    def status(run: Run) -> str:
        loss = f"loss {np.mean(run.losses[-50:]):.3f}" if run.losses else "loss -"
        held_out = f"  validation {run.validations[-1][1]:.3f}" if run.validations else ""
        return f"step {run.steps}  {loss}{held_out}  {run.tokens_per_second:,.0f} tokens/s"

    def line(run: Run) -> None:
        if run.steps % run.validate_every == 0:
            print(f"{status(run)}  {run.seconds:.1f} s", flush=True)

    try:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ModuleNotFoundError:
        yield line
        return
    bar = Progress(BarColumn(bar_width=12), TextColumn("{task.description}"), TimeRemainingColumn())
    if not bar.console.is_terminal:
        yield line
        return
    with bar:
        task = bar.add_task("first step", total=1.0)

        def draw(run: Run) -> None:
            done = [run.steps / steps] if steps else []
            done += [run.seconds / seconds] if seconds else []
            bar.update(task, completed=max(done), description=status(run))

        yield draw


def sku_table(run: Trained, others: Mapping[str, int] = {}) -> str:
    """What ran: per SKU the number of plans that made this choice, and of their calls.

    Of some plans nobody counts the calls: compiled programs make them, and autograd those of
    `others`.
    """
    rows: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    plans = run.training.plans
    for slot in plans.plans:
        for sku in map(str, plans.skus(slot)):
            rows[sku] += 1
            calls[sku] += 0 if run.compiled(slot) else plans.calls[slot]
    lines = [
        f"{n:>5} {f'{calls[sku]:,}' if calls[sku] else 'compiled':>9}  {sku}"
        for sku, n in rows.items()
    ]
    lines += [f"{others[sku]:>5} {'autograd':>9}  {sku}" for sku in others if sku not in rows]
    return "\n".join([f"{'plans':>5} {'calls':>9}  SKU", *lines])


def summary(run: Run) -> tuple[str, bool]:
    """Losses, counts and SKUs in words, and whether the counts are what plans promise.

    Of several processes each has to ask.
    """
    config, steps, text, team = run.config, run.steps, run.text, run.team
    weights = team.whole(run.training.weights)
    size = sum(int(np.prod(w.shape)) for w in weights.values())
    traced = sum(run.first_calls[slot] for slot in run.training.plans.plans if run.compiled(slot))
    made = run.training.plans.calls.total() - traced
    passes = run.training.passes
    kept = run.later_misses == 0 and made == run.calls_per_step * passes
    raw = run.validate(weights)
    validating = f", {run.validation_misses} in the first validation"
    lines = [
        f"text             pydoc_data.topics: {text.training.size:,} characters to train on,"
        f" the last {text.validation.size:,} held out",
        f"model            {size:,} weights, {steps:,} steps of {config.batch} x {config.context}"
        f" characters in {run.seconds:.1f} s, {run.tokens_per_second:,.0f} tokens/s"
        # The first steps compile and plan.
        + (f", {run.steady_tokens_per_second:,.0f} after {FIRST} steps" if steps > FIRST else ""),
        *([f"processes        {team}; plans are those of the first"] if str(team) else []),
        f"training loss    {np.mean(run.losses[-100:]):.3f} nats per character, last 100 steps",
        f"validation loss  {run.validations[-1][1]:.3f} with averaged weights,"
        f" {raw:.3f} with the last ones",
        f"plan cache       {run.first_misses} misses in the first step,"
        f" {run.later_misses} in the {steps - 1:,} after it"
        + (validating if run.validation_misses else ""),
        f"plan calls       {run.calls_per_step} a step x {passes:,} steps = {made:,}"
        + (f", replayed in {steps - passes + 1:,} steps" if passes < steps else "")
        + (f", beside {traced} in compiled programs" if traced else "")
        + ("" if kept else "  NOT what the plans promise"),
        "",
        sku_table(run, team.gradients()),
    ]
    return "\n".join(lines), kept


def beside(run: Run, plain: Run) -> tuple[str, bool]:
    """A run of recorded steps beside one that launches each, and whether the losses are the same.

    `plain` may have made fewer steps.
    """
    same = plain.losses == run.losses[: plain.steps]
    words = (
        f"CUDA graph       {run.steady_tokens_per_second:,.0f} tokens/s, without it"
        f" {plain.steady_tokens_per_second:,.0f} tokens/s; losses of {plain.steps:,} steps "
        + ("the same bit for bit" if same else "NOT the same")
    )
    return words, same
