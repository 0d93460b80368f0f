"""torch modules around the ops, with the constructor arguments of torch's own where it has one.

They hold options alone: no parameters, no buffers, nothing in a ``state_dict``. Where torch has the
module too (`torch.nn.GLU`, `torch.nn.LPPool1d`, `torch.nn.LPPool2d`) positional arguments and
attributes are the same, so that one line can be swapped; what torch does not have is by keyword.
Dispatch options come from the `baracuda.options` block around the call, or around the run of a
compiled program.

``import baracuda`` does not import it; asking for ``baracuda.nn`` does, and so does ``import
baracuda.nn``. Either defines ``torch.ops.baracuda`` as well, which a process needs that loads an
exported program.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from baracuda.calls.op import Op
from baracuda.ops.gated import geglu, glu, reglu, swiglu
from baracuda.ops.pooling import lp_pool1d, lp_pool2d
from baracuda.ops.rope import rope

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "baracuda.nn needs torch: pip install 'baracuda[torch]'", name="torch"
    ) from None

import baracuda.frameworks.torch.operators  # noqa: F401  (it defines them)

__all__ = ["GEGLU", "GLU", "LPPool1d", "LPPool2d", "ReGLU", "RotaryEmbedding", "SwiGLU"]


def _listed(always: dict[str, Any], sometimes: dict[str, tuple[Any, Any]]) -> str:
    """What ``repr`` shows: some values always, others where they are not (value, default) alike."""
    more = {name: value for name, (value, default) in sometimes.items() if value != default}
    return ", ".join(f"{name}={value!r}" for name, value in (always | more).items())


class _Gated(torch.nn.Module):
    _op: ClassVar[Op[..., Any]]

    def __init__(self, dim: int = -1, *, gate_first: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.gate_first = gate_first

    def _options(self) -> dict[str, Any]:
        return {"axis": self.dim, "gate_first": self.gate_first}

    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        """Run the op on a packed `x`, or on `x` and a `gate` of the same shape."""
        return self._op(x, gate, **self._options())  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return _listed({"dim": self.dim}, {"gate_first": (self.gate_first, False)})


class GLU(_Gated):
    """`torch.nn.GLU` by `baracuda.glu`: ``a * sigmoid(b)``.

    Called as ``module(x)`` with both halves in `x`, or ``module(a, b)`` where they are apart, which
    `torch.nn.GLU` does not take.

    Parameters
    ----------
    dim : int
        Where the halves of a packed `x` meet; negative counts from the end.
    gate_first : bool
        The first half of a packed `x` is the gate `b`. The default is the second, as in torch.

    Notes
    -----
    x is a tensor of shape [*b, 2n, *c], or [*b, n, *c] beside a gate of that shape; float16,
    bfloat16, float32 or float64. The result has shape [*b, n, *c], the dtype of x, and the layout
    of a dense x. Calls raise TypeError and ValueError as `baracuda.glu` does. Bit-stable.

    Examples
    --------
    >>> import torch
    >>> from baracuda.nn import GLU
    >>> GLU(dim=0)(torch.tensor([2.0, 6.0, 0.0, 0.0]))
    tensor([1., 3.])
    """

    _op = glu


class ReGLU(_Gated):
    """A module of `baracuda.reglu`: ``a * max(b, 0)``.

    Parameters
    ----------
    dim, gate_first
        As in `GLU`.

    Notes
    -----
    Called as `GLU` is, with its shapes, dtypes and errors. Bit-stable.

    Examples
    --------
    >>> import torch
    >>> from baracuda.nn import ReGLU
    >>> ReGLU()(torch.tensor([2.0, 6.0]), torch.tensor([-1.0, 0.5]))
    tensor([0., 3.])
    """

    _op = reglu


class SwiGLU(_Gated):
    """A module of `baracuda.swiglu`: ``a * silu(b)``.

    Parameters
    ----------
    dim, gate_first
        As in `GLU`. HF Llama packs the gate first.

    Notes
    -----
    Called as `GLU` is, with its shapes, dtypes and errors. Bit-stable.

    Examples
    --------
    >>> import torch
    >>> from baracuda.nn import SwiGLU
    >>> SwiGLU()(torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0]))
    tensor([0.0000, 2.1932])
    """

    _op = swiglu


class GEGLU(_Gated):
    """A module of `baracuda.geglu`: ``a * gelu(b)``.

    Parameters
    ----------
    dim, gate_first
        As in `GLU`.
    approximate : {"none", "tanh"}
        As in `torch.nn.GELU`.

    Notes
    -----
    Called as `GLU` is, with its shapes, dtypes and errors. Bit-stable.

    Examples
    --------
    >>> import torch
    >>> from baracuda.nn import GEGLU
    >>> GEGLU(approximate="tanh")
    GEGLU(dim=-1, approximate='tanh')
    """

    _op = geglu

    def __init__(
        self,
        dim: int = -1,
        *,
        gate_first: bool = False,
        approximate: Literal["none", "tanh"] = "none",
    ) -> None:
        super().__init__(dim, gate_first=gate_first)
        self.approximate = approximate

    def _options(self) -> dict[str, Any]:
        return super()._options() | {"approximate": self.approximate}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, approximate={self.approximate!r}"


class _LPPool(torch.nn.Module):
    _op: ClassVar[Op[..., Any]]

    def __init__(
        self,
        norm_type: float,
        kernel_size: int | tuple[int, ...],
        stride: int | tuple[int, ...] | None = None,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the op."""
        return self._op(  # type: ignore[no-any-return]
            x,
            norm_type=self.norm_type,
            kernel_size=self.kernel_size,
            stride=self.stride,
            ceil_mode=self.ceil_mode,
        )

    def extra_repr(self) -> str:
        names = ("norm_type", "kernel_size", "stride", "ceil_mode")
        return _listed({name: getattr(self, name) for name in names}, {})


class LPPool1d(_LPPool):
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


class LPPool2d(_LPPool):
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
        return _listed(
            {"base": self.base, "interleaved": self.interleaved},
            {"rotary_dim": (self.rotary_dim, None), "seq_axis": (self.seq_axis, -2)},
        )
