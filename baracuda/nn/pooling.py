"""Modules of the pools, with torch's names."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from baracuda.calls.op import Op
from baracuda.nn.namesakes import leaf
from baracuda.ops.pooling import lp_pool1d, lp_pool2d

__all__ = ["LPPool1d", "LPPool2d"]


class _LPPool(torch.nn.Module):
    _op: ClassVar[Op[..., Any]]
    norm_type: float
    kernel_size: Any
    stride: Any
    ceil_mode: bool

    def _kept(self) -> str:
        """Why `replace` leaves a module of torch's; empty where the results agree."""
        p = self.norm_type
        if p > 0 and p % 2 == 0 and not self.ceil_mode:
            return ""
        return "the results differ from torch's unless norm_type is even and ceil_mode False"

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Run the op."""
        if (node := leaf(self, input)) is not None:
            return node  # type: ignore[no-any-return]
        return self._op(  # type: ignore[no-any-return]
            input,
            norm_type=self.norm_type,
            kernel_size=self.kernel_size,
            stride=self.stride,
            ceil_mode=self.ceil_mode,
        )


class LPPool1d(_LPPool, torch.nn.LPPool1d):
    """`torch.nn.LPPool1d` by `baracuda.lp_pool1d`: ``(sum(abs(x)**p))**(1/p)`` of each window.

    Parameters
    ----------
    norm_type : float
        ``p > 0``, infinity included.
    kernel_size : int or tuple of one int
        Length of a window, at most that of the last axis.
    stride : int or tuple of one int, optional
        Distance of the windows; `kernel_size` by default.
    ceil_mode : bool
        Also take the windows that reach beyond the end, if they start inside.

    Notes
    -----
    x is a tensor of shape [*b, l] with any number of axes before the last, where torch takes one
    or two; float16, bfloat16, float32 or float64. The result has the dtype of x and is contiguous.
    Calls raise TypeError and ValueError as `baracuda.lp_pool1d` does. Bit-stable.

    Where the result is not torch's:

    - torch sums ``x**p`` without the absolute value: a cell below 0 counts as negative for odd p,
      and is NaN where p is no integer. For even p, and cells not below 0, the two agree.
    - With `ceil_mode`, a window that is clipped at the end sums what it has; torch scales its mean
      to a full window, except for infinite p.
    - For infinite p the cells that reach the maximum share the gradient; in torch one has all.
      Before 2.12 torch has no infinite p.
    - ``p <= 0`` is a ValueError.
    - Powers do not over- or underflow, also in float16.

    Examples
    --------
    >>> import torch
    >>> from baracuda.nn import LPPool1d
    >>> LPPool1d(2, kernel_size=2)(torch.tensor([3.0, -4.0, 6.0, 8.0]))
    tensor([ 5., 10.])
    """

    _op = lp_pool1d


class LPPool2d(_LPPool, torch.nn.LPPool2d):
    """`torch.nn.LPPool2d` by `baracuda.lp_pool2d`: the p-norm of each window of two axes.

    Parameters
    ----------
    norm_type, ceil_mode
        As in `LPPool1d`.
    kernel_size : int or tuple of two int
        Height and width of a window, at most those of the last two axes.
    stride : int or tuple of two int, optional
        Distance of the windows; `kernel_size` by default.

    Notes
    -----
    x is a tensor of shape [*b, h, w] with any number of axes before the last two, where torch
    takes one or two. The rest is as in `LPPool1d`, also where the result is not torch's. A result
    is contiguous also where x is in torch's channels-last format.

    Examples
    --------
    >>> import torch
    >>> from baracuda.nn import LPPool2d
    >>> LPPool2d(2, (1, 2))(torch.tensor([[3.0, -4.0], [6.0, 8.0]]))
    tensor([[ 5.],
            [10.]])
    """

    _op = lp_pool2d
