"""torch: gradients of plain calls (`autograd`), operators for whatever looks inside (`operators`,
`route`), and what they do on DTensors (`sharding`)."""

from __future__ import annotations

import baracuda.frameworks.torch.route  # noqa: F401  (it adds itself)
from baracuda.frameworks.torch.autograd import watched

__all__ = ["watched"]
