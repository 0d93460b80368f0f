"""``python -m baracuda train``: small transformers, trained by baracuda on one array library.

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
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from baracuda.examples import digits
from baracuda.examples.charlm import Config, Text, python_reference
from baracuda.examples.curves import Curves
from baracuda.examples.training import as_it_is
from baracuda.tools import CannotRun, can_plot, can_write, needs
from baracuda.tools.train import images
from baracuda.tools.train.fitting import Alone, Run, fit
from baracuda.tools.train.report import beside, progress, summary

if TYPE_CHECKING:
    from baracuda.examples.torch import Ranks

__all__ = ["Run", "Text", "add_arguments", "fit", "progress", "python_reference", "run", "summary"]

NAMESPACES = {
    "numpy": "array_api_compat.numpy",
    "torch": "array_api_compat.torch",
    "cupy": "array_api_compat.cupy",
    "jax": "jax.numpy",
}
STEPS, SECONDS = 3500, 60.0  # of a run that asks for neither
BESIDE = 500  # steps at most that a graph is compared with
PATIENCE = 10.0  # seconds that other processes leave the first to say what is wrong


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

    parser.add_argument(
        "--example",
        choices=("text", "digits"),
        default="text",
        help="what to learn: text (default), or the handwritten digits of scikit-learn",
    )
    parser.add_argument("--xp", choices=NAMESPACES, help="array library (default: numpy)")
    parser.add_argument("--device", help="torch device, such as cuda (default: torch's own)")
    parser.add_argument(
        "--steps",
        type=positive(int),
        metavar="N",
        help=f"most steps (default: {STEPS} and {SECONDS:.0f} seconds, if neither is given;"
        f" {images.STEPS} of digits)",
    )
    parser.add_argument("--seconds", type=positive(float), metavar="T", help="most seconds")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default: 0")
    parser.add_argument("--dropout", type=positive(float, 1), metavar="P", help="default: none")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves to a file")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write losses, validations and seconds to a file"
    )
    parser.add_argument(
        "--graph",
        action="store_true",
        help="record a step as a CUDA graph and replay it; with --xp torch (default) or cupy",
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
        steps, seconds = (STEPS, SECONDS) if arguments.example == "text" else (images.STEPS, None)
    try:
        xp = _ready(arguments)
    except CannotRun as error:
        if arguments.distributed and os.environ.get("LOCAL_RANK", "0") != "0":
            time.sleep(PATIENCE)  # torchrun ends all with the first to end, which says why
        print(f"baracuda train: {error}", file=sys.stderr)
        return 2
    if arguments.xp == "numpy":
        _settle_numpy()
    how = {
        "seed": arguments.seed, "device": arguments.device,
        "compiler": import_module("jax").jit if arguments.xp == "jax" else as_it_is,
    }  # fmt: skip
    if arguments.example == "digits":
        model = digits.Config()
        if arguments.dropout is not None:
            model = replace(model, dropout=arguments.dropout)
        seen = images.fit(
            xp, digits.handwritten(), model, steps=steps, seconds=seconds, report=images.line, **how
        )
        _show(seen, images.summary(seen), arguments)
        return 0
    text = python_reference()
    config = Config(text.vocabulary, dropout=arguments.dropout or 0.0)
    fitted = partial(fit, xp, text, config, **how)
    with contextlib.ExitStack() as stack:
        team: Alone | Ranks = Alone()
        if arguments.distributed:
            from baracuda.examples.torch import joined

            team = stack.enter_context(joined(arguments.distributed, arguments.device))
        record = None
        if arguments.graph:
            graphs = import_module(f"baracuda.examples.graphs.{arguments.xp}")
            record = stack.enter_context(graphs.recording())
            fitted = partial(fitted, dot=graphs.product())
        shown = progress(steps, seconds) if team.first else contextlib.nullcontext(lambda run: None)
        with shown as report:
            done = fitted(report=report, steps=steps, seconds=seconds, team=team, record=record)
        words, kept = summary(done)
        if record:
            plain = fitted(steps=min(done.steps, BESIDE), validate_every=BESIDE)
            line, same = beside(done, plain)
            words, kept = f"{words}\n\n{line}", kept and same
    if team.first:
        _show(done, words, arguments)
    return 0 if kept else 1


def _show(curves: Curves, words: str, arguments: argparse.Namespace) -> None:
    print(f"\n{curves.in_text()}\n\n{words}")
    if arguments.plot:
        curves.save_picture(arguments.plot)
        print(f"\ncurves drawn to {arguments.plot}")
    if arguments.json:
        curves.save_json(arguments.json)


def _ready(arguments: argparse.Namespace) -> Any:
    """The namespace asked for; everything that a run could lack at its end is looked at now.

    What `arguments` leave open is filled in.
    """
    engine, graph = arguments.distributed, arguments.graph
    if arguments.example == "digits":
        if engine or graph:
            raise CannotRun("--distributed and --graph go with --example text")
        try:
            import_module("sklearn.datasets")
        except ModuleNotFoundError:
            raise CannotRun(
                "--example digits needs scikit-learn, which is not installed: "
                "pip install scikit-learn"
            ) from None
    arguments.xp = library = arguments.xp or ("torch" if engine or graph else "numpy")
    if graph and (engine or library not in ("torch", "cupy")):
        raise CannotRun("--graph goes with --xp torch or cupy, and without --distributed")
    for option in ("distributed", "device"):
        if getattr(arguments, option) and library != "torch":
            raise CannotRun(f"--{option} goes with --xp torch, got --xp {library}")
    if engine and arguments.dropout:
        raise CannotRun(
            "--dropout goes without --distributed: all processes would drop the same elements"
        )
    needs(library, "--distributed" if engine else f"--xp {library}", library)
    if engine:
        arguments.device = _place(arguments.device)
    if graph and library == "torch":
        arguments.device = _on_gpu(arguments.device)
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
    if arguments.json:
        can_write(arguments.json, "--json")
    return xp


def _on_gpu(device: str | None) -> str:
    """The GPU whose launches torch records."""
    if device is not None and not device.startswith("cuda"):
        raise CannotRun(f"--graph goes with --device cuda, got {device}")
    if not import_module("torch").cuda.is_available():
        raise CannotRun("--graph needs an NVIDIA GPU, and torch sees none")
    return device or "cuda"


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
