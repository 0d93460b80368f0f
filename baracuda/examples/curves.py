"""The loss curves of a training: in characters, as a picture, as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

_TRAINING, _VALIDATION = "training", "validation (averaged weights)"


@dataclass
class Curves:
    """What was measured of a training so far.

    Attributes
    ----------
    losses : list of float
        The loss of each step's batch, before the step.
    validations : list of (int, float)
        Steps made, and the loss on held-out text then.
    seconds : float
        Spent in steps.
    unit : str
        Of the losses.
    """

    losses: list[float] = field(default_factory=list)
    validations: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    unit: str = "nats per character"

    def in_stretches(self, columns: int) -> list[tuple[float, float]]:
        """The losses in at most so many stretches: the middle step and the mean loss of each."""
        losses = np.asarray(self.losses)
        stretches = np.array_split(np.arange(losses.size), min(columns, losses.size))
        return [(float(s.mean()) + 1, float(np.mean(losses[s]))) for s in stretches]

    def in_text(self, width: int = 64, height: int = 14) -> str:
        """Both curves in characters: ``.`` training, ``o`` validation.

        Parameters
        ----------
        width, height : int, optional
            Of the canvas, in characters.

        Returns
        -------
        str
        """
        curves: dict[str, Sequence[tuple[float, float]]]
        curves = {".": self.in_stretches(width), "o": self.validations}
        values = [loss for curve in curves.values() for _, loss in curve]
        low, high, steps = min(values), max(values), len(self.losses)
        canvas = [[" "] * width for _ in range(height)]
        for mark, curve in curves.items():
            for step, loss in curve:
                row = round((high - loss) / max(high - low, 1e-9) * (height - 1))
                canvas[row][round((step - 1) / max(steps - 1, 1) * (width - 1))] = mark
        ends = {0: f"{high:.2f}", height - 1: f"{low:.2f}"}
        rows = [f"{ends.get(i, ''):>6} |{''.join(row)}" for i, row in enumerate(canvas)]
        title = f"{self.unit}    . {_TRAINING}    o {_VALIDATION}"
        return "\n".join([f"{'':8}{title}", *rows, f"{'':8}1{f'step {steps}':>{width - 1}}"])

    def save_picture(self, path: Path) -> None:
        """Draw both curves to a file.

        Parameters
        ----------
        path : Path
            Its suffix says the format.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(8, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot(xlabel="step", ylabel=self.unit)
        axes.plot(*zip(*self.in_stretches(400), strict=True), label=_TRAINING, linewidth=1)
        axes.plot(*zip(*self.validations, strict=True), "o-", label=_VALIDATION)
        axes.grid(alpha=0.3)
        axes.legend()
        figure.savefig(path, dpi=150)

    def save_json(self, path: Path) -> None:
        """Write an object with a key for each attribute.

        Parameters
        ----------
        path : Path
            Is overwritten.
        """
        names = ("losses", "validations", "seconds")
        record = {name: getattr(self, name) for name in names}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
