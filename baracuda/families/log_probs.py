"""What ops of log-probabilities and entropies share, of logits and of a linear layer."""

from __future__ import annotations

from baracuda.declaration import roles
from baracuda.declaration.values import choice, integer, positive

OPTIONS = {"ignore_index": integer, "mode": choice("raise", "drop")}
SCALARS = {"temperature": positive(), "softcap": positive(zero=True)}
TARGET = {"target": roles.index("v", ignored="ignore_index")}
RESULTS = {"log_prob": roles.accumulated(), "entropy": roles.accumulated()}
COTANGENTS = {"dlog_prob": roles.cotangent(), "dentropy": roles.cotangent()}
