"""``python -m baracuda train``: a small transformer, trained by baracuda on one array library.

The text is CPython's own reference (`pydoc_data.topics`), its last tenth held out. Batches and
initial weights are drawn by NumPy from the seed, so every library trains on the same numbers, and
so do the processes of ``--distributed``, each on its rows of every batch.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import baracuda as bc
from baracuda.examples.charlm import (
    Array,
    Compiler,
    Config,
    Gradient,
    Plans,
    Text,
    Tokens,
    Training,
    Weights,
    as_it_is,
    initial_weights,
    loss_and_gradient,
    loss_of,
    python_reference,
)
from baracuda.examples.curves import Curves
from baracuda.tools import CannotRun, can_plot, needs

if TYPE_CHECKING:
    from baracuda.examples.torch import Loss, Ranks

NAMESPACES = {
    "numpy": "array_api_compat.numpy",
    "torch": "array_api_compat.torch",
    "cupy": "array_api_compat.cupy",
    "jax": "jax.numpy",
}
STEPS, SECONDS = 3500, 60.0  # of a run that asks for neither
VALIDATE_EVERY = 250
FLUSH_EVERY = 10
PATIENCE = 10.0  # seconds that other processes leave the first to say what is wrong


class Alone:
    """A process that trains by itself: what `baracuda.examples.torch.Ranks` is for several."""

    first = True

    def __str__(self) -> str:
        return ""

    def mine(self, rows: Any) -> Any:
        return rows

    def share(self, weights: Weights, loss: Loss) -> tuple[Weights, Gradient]:
        return weights, loss_and_gradient

    def whole(self, kept: Weights) -> Weights:
        return kept

    def mean(self, values: Sequence[Array]) -> list[float]:
        return list(map(float, values))

    def most(self, value: float) -> float:
        return value

    def gradients(self) -> Mapping[str, int]:
        return {}


@dataclass(kw_only=True)
class Run(Curves):
    """A training under way, and what it has left behind so far."""

    text: Text
    training: Training
    loss: Callable[..., Array]
    to_library: Callable[[Any], Array]
    team: Alone | Ranks
    first_misses: int = 0
    validation_misses: int = 0
    later_misses: int = 0
    first_calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    calls_per_step: int = 0

    @property
    def steps(self) -> int:
        return self.training.steps

    @property
    def tokens_per_second(self) -> float:
        config = self.training.config
        return self.steps * config.batch * config.context / max(self.seconds, 1e-9)

    def batch(self, ids: Tokens, starts: Any) -> tuple[Array, Array]:
        """Of the windows at `starts` this process's, and what follows each character, flat."""
        mine = self.team.mine(np.asarray(starts))
        windows = ids[mine[:, None] + np.arange(self.training.config.context + 1)]
        return (
            self.to_library(windows[:, :-1].reshape(-1)),
            self.to_library(windows[:, 1:].reshape(-1)),
        )

    def validate(self, weights: Weights) -> float:
        """The mean loss over the held-out text, cut into windows; a last short batch is left."""
        config, ids = self.training.config, self.text.validation
        starts = np.arange(0, ids.size - config.context, config.context)
        losses = []
        for i in range(0, starts.size - config.batch + 1, config.batch):
            tokens, targets = self.batch(ids, starts[i : i + config.batch])
            losses.append(self.loss(weights, tokens, targets))
        return float(np.mean(self.team.mean(losses)))

    def compiled(self, slot: tuple[str, str]) -> bool:
        """Whether a plan is part of a program: called in the first step, and not since."""
        return self.steps > 1 and self.training.plans.calls[slot] == self.first_calls[slot]

    def hold_out(self) -> None:
        """Validate the averaged weights; only the first time may make plans of its own."""
        before = bc.plan_cache.info().misses
        loss = self.validate(self.team.whole(self.training.average))
        self.validations.append((self.steps, loss))
        if len(self.validations) == 1:
            self.validation_misses = bc.plan_cache.info().misses - before


def fit(
    xp: Any,
    text: Text,
    config: Config,
    *,
    seed: int = 0,
    steps: int | None = None,
    seconds: float | None = None,
    device: str | None = None,
    team: Alone | Ranks | None = None,
    compiler: Compiler = as_it_is,
    report: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Train until `steps` or `seconds` are reached, whichever is first.

    Parameters
    ----------
    xp : namespace
        Of the array library.
    text : Text
        What to learn.
    config : Config
        Of the model.
    seed : int, optional
        Of the initial weights, the batches, and what is dropped.
    steps : int, optional
        The most steps.
    seconds : float, optional
        The most seconds in steps; validation does not count.
    device : str, optional
        Where the arrays live; the library's own choice by default.
    team : Ranks, optional
        The processes that train this model together, if it is several.
    compiler : callable, optional
        What the gradient, the step of Adam and the loss go through once: `jax.jit`.
    report : callable, optional
        Called after every step.

    Returns
    -------
    Run
    """
    where = {} if device is None else {"device": device}
    rng = np.random.default_rng(seed)
    initial = initial_weights(config, rng)
    weights = {k: xp.asarray(w.astype(np.float32), **where) for k, w in initial.items()}
    team = team or Alone()
    kept, gradient = team.share(weights, loss_of)
    training, held_out = Training(kept, config, gradient, compiler, seed), Plans()
    run = Run(
        text=text, training=training, team=team, to_library=lambda ids: xp.asarray(ids, **where),
        loss=compiler(partial(loss_of, config=config, plans=held_out)),
    )  # fmt: skip
    misses = bc.plan_cache.info().misses
    pending: list[Array] = []  # read now and then: reading a loss waits for the device
    while (steps is None or run.steps < steps) and (seconds is None or run.seconds < seconds):
        starts = rng.integers(0, text.training.size - config.context, config.batch)
        tokens, targets = run.batch(text.training, starts)
        clock = time.perf_counter()
        pending.append(training.step(tokens, targets))
        if run.steps == 1:
            run.first_misses = bc.plan_cache.info().misses - misses
            run.first_calls = training.plans.calls.copy()
        if run.steps <= 2:  # the second makes none of what the first has compiled
            run.calls_per_step = training.plans.calls.total() - run.calls_per_step
        if len(pending) == FLUSH_EVERY or run.steps == steps:
            run.losses += team.mean(pending)
            pending.clear()
        run.seconds += time.perf_counter() - clock
        if seconds is not None:
            run.seconds = team.most(run.seconds)  # all have to stop at the same step
        if run.steps % VALIDATE_EVERY == 0:
            run.hold_out()
        report(run)
    run.losses += team.mean(pending)
    if not run.validations or run.validations[-1][0] != run.steps:
        run.hold_out()
    misses = bc.plan_cache.info().misses - misses
    run.later_misses = round(team.most(misses - run.first_misses - run.validation_misses))
    return run


# -- what it shows ---------------------------------------------------------------------------------


@contextlib.contextmanager
def progress(steps: int | None, seconds: float | None) -> Iterator[Callable[[Run], None]]:
    """A bar where there is a terminal and rich to draw it; else a line per validation."""

    def status(run: Run) -> str:
        loss = f"loss {np.mean(run.losses[-50:]):.3f}" if run.losses else "loss -"
        held_out = f"  validation {run.validations[-1][1]:.3f}" if run.validations else ""
        return f"step {run.steps}  {loss}{held_out}  {run.tokens_per_second:,.0f} tokens/s"

    def line(run: Run) -> None:
        if run.steps % VALIDATE_EVERY == 0:
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


def sku_table(run: Run) -> str:
    """What ran: per SKU the number of plans that made this choice, and of their calls.

    Of some plans nobody counts the calls: compiled programs and autograd make them.
    """
    rows: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    plans, others = run.training.plans, run.team.gradients()
    for slot, plan in plans.plans.items():
        rows[str(plan.sku)] += 1
        calls[str(plan.sku)] += 0 if run.compiled(slot) else plans.calls[slot]
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
    config, steps, text, team = run.training.config, run.steps, run.text, run.team
    weights = team.whole(run.training.weights)
    size = sum(int(np.prod(w.shape)) for w in weights.values())
    traced = sum(run.first_calls[slot] for slot in run.training.plans.plans if run.compiled(slot))
    made = run.training.plans.calls.total() - traced
    kept = run.later_misses == 0 and made == run.calls_per_step * steps
    raw = run.validate(weights)
    validating = f", {run.validation_misses} in the first validation"
    lines = [
        f"text             pydoc_data.topics: {text.training.size:,} characters to train on,"
        f" the last {text.validation.size:,} held out",
        f"model            {size:,} weights, {steps:,} steps of {config.batch} x {config.context}"
        f" characters in {run.seconds:.1f} s, {run.tokens_per_second:,.0f} tokens/s",
        *([f"processes        {team}; plans are those of the first"] if str(team) else []),
        f"training loss    {np.mean(run.losses[-100:]):.3f} nats per character, last 100 steps",
        f"validation loss  {run.validations[-1][1]:.3f} with averaged weights,"
        f" {raw:.3f} with the last ones",
        f"plan cache       {run.first_misses} misses in the first step,"
        f" {run.later_misses} in the {steps - 1:,} after it"
        + (validating if run.validation_misses else ""),
        f"plan calls       {run.calls_per_step} a step x {steps:,} steps = {made:,}"
        + (f", beside {traced} in compiled programs" if traced else "")
        + ("" if kept else "  NOT what the plans promise"),
        "",
        sku_table(run),
    ]
    return "\n".join(lines), kept


# -- the command -----------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``baracuda train``."""

    def positive(kind: Callable[[str], float], top: float = float("inf")) -> Callable[[str], float]:
        def parse(text: str) -> float:
            value = kind(text)
            if not 0 < value < top:
                raise ValueError
            return value

        parse.__name__ = f"positive {kind.__name__}"
        return parse

    parser.add_argument("--xp", choices=NAMESPACES, help="array library (default: numpy)")
    parser.add_argument("--device", help="torch device, such as cuda (default: torch's own)")
    parser.add_argument(
        "--steps",
        type=positive(int),
        metavar="N",
        help=f"most steps (default: {STEPS} and {SECONDS:.0f} seconds, if neither is given)",
    )
    parser.add_argument("--seconds", type=positive(float), metavar="T", help="most seconds")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    parser.add_argument("--dropout", type=positive(float, 1), metavar="P", help="default: none")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves to a file")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write losses, validations and seconds to a file"
    )
    parser.add_argument(
        "--distributed",
        nargs="?",
        choices=("ddp", "fsdp"),
        const="ddp",
        help="be one of the processes that torchrun starts, under DDP (default) or FSDP2",
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, show what came of it, and return the exit status."""
    steps, seconds = arguments.steps, arguments.seconds
    if steps is None and seconds is None:
        steps, seconds = STEPS, SECONDS
    try:
        xp = _ready(arguments)
    except CannotRun as error:
        if arguments.distributed and os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(PATIENCE)  # torchrun ends all with the first to end, which says why
        print(f"baracuda train: {error}", file=sys.stderr)
        return 2
    if arguments.xp == "numpy":
        _settle_numpy()
    text = python_reference()
    with contextlib.ExitStack() as stack:
        team: Alone | Ranks = Alone()
        if arguments.distributed:
            from baracuda.examples.torch import joined

            team = stack.enter_context(joined(arguments.distributed, arguments.device))
        shown = progress(steps, seconds) if team.first else contextlib.nullcontext(lambda run: None)
        with shown as report:
            done = fit(
                xp, text, Config(text.vocabulary, dropout=arguments.dropout or 0.0), report=report,
                seed=arguments.seed, steps=steps, seconds=seconds, device=arguments.device,
                team=team, compiler=import_module("jax").jit if arguments.xp == "jax" else as_it_is,
            )  # fmt: skip
        words, kept = summary(done)
    if team.first:
        print(f"\n{done.in_text()}\n\n{words}")
        if arguments.plot:
            done.save_picture(arguments.plot)
            print(f"\ncurves drawn to {arguments.plot}")
        if arguments.json:
            done.save_json(arguments.json)
    return 0 if kept else 1


def _ready(arguments: argparse.Namespace) -> Any:
    """The namespace asked for; everything that a run could lack at its end is looked at now.

    What `arguments` leave open is filled in.
    """
    engine = arguments.distributed
    arguments.xp = library = arguments.xp or ("torch" if engine else "numpy")
    for option in ("distributed", "device"):
        if getattr(arguments, option) and library != "torch":
            raise CannotRun(f"--{option} goes with --xp torch")
    if engine and arguments.dropout:
        raise CannotRun("--dropout goes without --distributed: all would drop the same")
    needs(library, "--distributed" if engine else f"--xp {library}", library)
    if engine:
        arguments.device = _place(arguments.device)
    xp = import_module(NAMESPACES[library])
    try:
        xp.zeros(1, **({"device": arguments.device} if arguments.device else {}))
    except Exception as error:
        raise CannotRun(f"{library} cannot make an array: {error}") from error
    if library == "jax":
        # Else a GPU rounds the operands of float32 matrix products to 10 bits.
        import_module("jax").config.update("jax_default_matmul_precision", "highest")
    if arguments.plot:
        can_plot(arguments.plot)
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        raise CannotRun(f"--json: no directory {arguments.json.parent}")
    return xp


def _place(device: str | None) -> str:
    """Where this process of several computes, if they can train together."""
    if not import_module("torch").distributed.is_available():
        raise CannotRun("--distributed needs a torch that has torch.distributed")
    from baracuda.examples.torch import place

    try:
        return place(device, Config.batch)
    except ValueError as error:
        raise CannotRun(f"--distributed: {error}") from error


def _settle_numpy() -> None:
    """Settings of the process that NumPy's allocations and small products run faster with."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc alone has mallopt
        libc = ctypes.CDLL(None)
        # Faulting pages of freed arrays in again costs up to a quarter of a step.
        libc.mallopt(m_mmap_threshold, 32 << 20)
        libc.mallopt(m_trim_threshold, 1 << 30)
    if "OPENBLAS_NUM_THREADS" in os.environ:
        return
    # Matrices this small gain little from a second thread, and wait for it where cores are busy.
    for path in (Path(np.__file__).parents[1] / "numpy.libs").glob("*openblas64*"):
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(str(path)).scipy_openblas_set_num_threads64_(1)
