"""torch: gradients of plain calls (`autograd`), and operators for graphs (`operators`)."""

from __future__ import annotations

from baracuda.frameworks.torch.autograd import watched

__all__ = ["watched"]
