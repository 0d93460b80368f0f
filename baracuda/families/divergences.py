"""What divergences of a student from its teacher share, of logits and of linear layers."""

from __future__ import annotations

from baracuda.declaration import roles
from baracuda.declaration.values import choice, inside, positive
from baracuda.families.chunks import Rows
from baracuda.libraries import Array, library_of

OPTIONS = {
    "kind": choice("forward", "reverse", "jsd"),
    "reduction": choice("mean", "sum", "none"),
}
SCALARS = {"beta": inside(0, 1), "temperature": positive()}
WEIGHT = {"row_weight": roles.parameter(0.5, 2)}


def log_softmax(x: Array, temperature: float) -> Array:
    """Logarithms of the probabilities of ``x / temperature``, along the last axis."""
    library = library_of(x)
    # The difference is divided: a quotient of the logits themselves may overflow.
    x = library.less_largest(x, -1) / temperature
    return x - library.xp.log(library.xp.sum(library.xp.exp(x), axis=-1, keepdims=True))


def number(rows: Rows, reduction: str) -> Array | int | None:
    """What the sum of the losses of rows, each times its weight, is divided by for their mean."""
    weight = rows.numbers
    if reduction != "mean":
        return None
    return rows.count if weight is None else rows.xp.sum(rows.widened(weight))
