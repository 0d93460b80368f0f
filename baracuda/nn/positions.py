"""Modules that tell tokens their positions, which torch does not have."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from baracuda.calls.op import Op
from baracuda.nn.namesakes import listed
from baracuda.ops.rope import rope

__all__ = ["RotaryEmbedding"]


class RotaryEmbedding(torch.nn.Module):
    """A module of `baracuda.rope`: pairs of the last axis turn by angles of their position.

    Called as ``module(x)`` for the positions 0, 1, ..., or ``module(x, positions)``. There are no
    tables of sines and cosines, so no limit to the length of a sequence.

    Parameters
    ----------
    base : float
        Ratio of the fastest to the slowest turning pair, nearly.
    interleaved : bool
        Pairs are ``(2i, 2i + 1)`` (GPT-J), else ``(i, i + rotary_dim/2)`` (GPT-NeoX, HF Llama).
    rotary_dim : int, optional
        Even; entries from here on pass through unchanged. By default all of the last axis.
    seq_axis : int
        Which axis of x is the sequence; any but the last.

    Notes
    -----
    x is a tensor of shape [*b, s, *h, d]; float16, bfloat16, float32 or float64. positions are
    int32 or int64, of shape [s] or of rank ``x.ndim - 1`` and broadcasting to ``x.shape[:-1]``. The
    result has the shape and the dtype of x and is contiguous. Calls raise TypeError and ValueError
    as `baracuda.rope` does. Bit-stable.

    Examples
    --------
    >>> import torch
    >>> from baracuda.nn import RotaryEmbedding
    >>> RotaryEmbedding(base=500000.0)(torch.ones(2, 2))
    tensor([[ 1.0000,  1.0000],
            [-0.3012,  1.3818]])
    """

    _op: ClassVar[Op[..., Any]] = rope

    def __init__(
        self,
        *,
        base: float = 10000.0,
        interleaved: bool = True,
        rotary_dim: int | None = None,
        seq_axis: int = -2,
    ) -> None:
        super().__init__()
        self.base = base
        self.interleaved = interleaved
        self.rotary_dim = rotary_dim
        self.seq_axis = seq_axis

    def forward(self, x: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """Rotate `x`."""
        return self._op(  # type: ignore[no-any-return]
            x,
            positions,
            base=self.base,
            interleaved=self.interleaved,
            rotary_dim=self.rotary_dim,
            seq_axis=self.seq_axis,
        )

    def extra_repr(self) -> str:
        return listed(
            {"base": self.base, "interleaved": self.interleaved},
            {"rotary_dim": (self.rotary_dim, None), "seq_axis": (self.seq_axis, -2)},
        )
