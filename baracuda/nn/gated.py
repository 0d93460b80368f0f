"""Modules of the gated activations: `torch.nn.GLU`, and those that torch does not have."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch

from baracuda.calls.op import Op
from baracuda.nn.namesakes import leaf, listed
from baracuda.ops.gated import geglu, glu, reglu, swiglu

__all__ = ["GEGLU", "GLU", "ReGLU", "SwiGLU"]


class _Gated(torch.nn.Module):
    _op: ClassVar[Op[..., Any]]
    # Of the class: a `torch.nn.GLU` that `replace` makes a `GLU` has no attribute of this name.
    gate_first = False

    def __init__(self, dim: int = -1, *, gate_first: bool = False) -> None:
        super().__init__()
        self.dim = dim
        self.gate_first = gate_first

    def _options(self) -> dict[str, Any]:
        return {"axis": self.dim, "gate_first": self.gate_first}

    def forward(self, input: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        """Run the op on a packed `input`, or on `input` and a `gate` of the same shape."""
        return self._op(input, gate, **self._options())  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return listed({"dim": self.dim}, {"gate_first": (self.gate_first, False)})


class GLU(_Gated, torch.nn.GLU):
    """`torch.nn.GLU` by `baracuda.glu`: ``a * sigmoid(b)``.

    Called as ``module(x)`` with both halves in `x`, or ``module(a, b)`` where they are apart, which
    `torch.nn.GLU` does not take.

    Parameters
    ----------
    dim : int
        Axis along which a packed `x` has its two halves; negative counts from the end.
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

    def forward(self, input: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        """Run the op, as the other modules here do; it is a leaf of what `torch.fx` traces."""
        if (node := leaf(self, *([input] if gate is None else [input, gate]))) is not None:
            return node  # type: ignore[no-any-return]
        return super().forward(input, gate)


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
