"""What divergences of a student from its teacher share, of logits and of linear layers."""

from __future__ import annotations

from baracuda.declaration import roles
from baracuda.declaration.values import choice, inside, positive

OPTIONS = {
    "kind": choice("forward", "reverse", "jsd"),
    "reduction": choice("mean", "sum", "none"),
}
SCALARS = {"beta": inside(0, 1), "temperature": positive()}
WEIGHT = {"row_weight": roles.parameter(0.5, 2)}
