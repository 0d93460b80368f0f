"""Modules of the activations and of softmax, with torch's names.

Each has the constructor, attributes and ``repr`` of torch's class. A call takes one tensor of any
shape and of float16, bfloat16, float32 or float64. The result has its dtype, and its layout where
it is dense; that of a softmax is contiguous.

With ``inplace=True`` torch's own function runs, which writes over its input also where autograd
records it. So it does for dtypes and layouts that the op does not take.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from baracuda.calls.op import Op
from baracuda.nn.namesakes import Namesake, taken
from baracuda.ops.clipped import hardsigmoid, hardswish, hardtanh, relu6
from baracuda.ops.exponential_units import celu, elu, selu, softplus
from baracuda.ops.prelu import prelu
from baracuda.ops.rectifiers import leaky_relu, relu, threshold
from baracuda.ops.self_gated import gelu, mish, silu
from baracuda.ops.shrinks import hardshrink, softshrink, tanhshrink
from baracuda.ops.sigmoids import log_sigmoid, sigmoid, softsign, tanh
from baracuda.ops.softmax import log_softmax, softmax

__all__ = [
    "CELU",
    "ELU",
    "GELU",
    "SELU",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "Mish",
    "PReLU",
    "ReLU",
    "ReLU6",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "Tanh",
    "Tanhshrink",
    "Threshold",
]


class _Elementwise(Namesake):
    """An op of one tensor, and the attributes of torch's module that are options of the op."""

    _op: ClassVar[Op[..., Any]]
    _options: ClassVar[tuple[str, ...]] = ()

    def _kept(self) -> str:
        return "inplace=True is torch's own function" if getattr(self, "inplace", False) else ""

    def _computed(self, input: torch.Tensor) -> torch.Tensor | None:
        if not taken(input):
            return None
        options = {name: getattr(self, name) for name in self._options}
        return self._op(input, **options)  # type: ignore[no-any-return]


class ReLU(_Elementwise, torch.nn.ReLU):
    """`torch.nn.ReLU` by `baracuda.relu`: ``max(x, 0)``."""

    _op = relu


class ReLU6(_Elementwise, torch.nn.ReLU6):
    """`torch.nn.ReLU6` by `baracuda.relu6`: ``min(max(x, 0), 6)``."""

    _op = relu6


class LeakyReLU(_Elementwise, torch.nn.LeakyReLU):
    """`torch.nn.LeakyReLU` by `baracuda.leaky_relu`: ``negative_slope * x`` below 0."""

    _op = leaky_relu
    _options = ("negative_slope",)


class Threshold(_Elementwise, torch.nn.Threshold):
    """`torch.nn.Threshold` by `baracuda.threshold`: ``x`` above `threshold`, `value` elsewhere."""

    _op = threshold
    _options = ("threshold", "value")


class Hardtanh(_Elementwise, torch.nn.Hardtanh):
    """`torch.nn.Hardtanh` by `baracuda.hardtanh`: ``x`` held between `min_val` and `max_val`."""

    _op = hardtanh
    _options = ("min_val", "max_val")


class Hardsigmoid(_Elementwise, torch.nn.Hardsigmoid):
    """`torch.nn.Hardsigmoid` by `baracuda.hardsigmoid`: ``min(max(x + 3, 0), 6) / 6``."""

    _op = hardsigmoid


class Hardswish(_Elementwise, torch.nn.Hardswish):
    """`torch.nn.Hardswish` by `baracuda.hardswish`: ``x * min(max(x + 3, 0), 6) / 6``."""

    _op = hardswish


class ELU(_Elementwise, torch.nn.ELU):
    """`torch.nn.ELU` by `baracuda.elu`: ``x`` above 0, ``alpha * expm1(x)`` elsewhere."""

    _op = elu
    _options = ("alpha",)


class CELU(_Elementwise, torch.nn.CELU):
    """`torch.nn.CELU` by `baracuda.celu`: ``x`` above 0, ``alpha * expm1(x / alpha)`` elsewhere."""

    _op = celu
    _options = ("alpha",)


class SELU(_Elementwise, torch.nn.SELU):
    """`torch.nn.SELU` by `baracuda.selu`: the self-normalising `ELU`."""

    _op = selu


class Softplus(_Elementwise, torch.nn.Softplus):
    """`torch.nn.Softplus` by `baracuda.softplus`: ``log1p(exp(beta * x)) / beta``."""

    _op = softplus
    _options = ("beta", "threshold")


class SiLU(_Elementwise, torch.nn.SiLU):
    """`torch.nn.SiLU` by `baracuda.silu`: ``x * sigmoid(x)``."""

    _op = silu


class Mish(_Elementwise, torch.nn.Mish):
    """`torch.nn.Mish` by `baracuda.mish`: ``x * tanh(softplus(x))``."""

    _op = mish


class GELU(_Elementwise, torch.nn.GELU):
    """`torch.nn.GELU` by `baracuda.gelu`: ``x * cdf(x)`` of the standard normal distribution."""

    _op = gelu
    _options = ("approximate",)


class Sigmoid(_Elementwise, torch.nn.Sigmoid):
    """`torch.nn.Sigmoid` by `baracuda.sigmoid`: ``1 / (1 + exp(-x))``."""

    _op = sigmoid


class LogSigmoid(_Elementwise, torch.nn.LogSigmoid):
    """`torch.nn.LogSigmoid` by `baracuda.log_sigmoid`: ``-log1p(exp(-x))``."""

    _op = log_sigmoid


class Tanh(_Elementwise, torch.nn.Tanh):
    """`torch.nn.Tanh` by `baracuda.tanh`: the hyperbolic tangent."""

    _op = tanh


class Softsign(_Elementwise, torch.nn.Softsign):
    """`torch.nn.Softsign` by `baracuda.softsign`: ``x / (1 + abs(x))``."""

    _op = softsign


class Hardshrink(_Elementwise, torch.nn.Hardshrink):
    """`torch.nn.Hardshrink` by `baracuda.hardshrink`: ``x`` where ``abs(x) > lambd``, else 0."""

    _op = hardshrink
    _options = ("lambd",)


class Softshrink(_Elementwise, torch.nn.Softshrink):
    """`torch.nn.Softshrink` by `baracuda.softshrink`: ``x`` nearer to 0 by `lambd`."""

    _op = softshrink
    _options = ("lambd",)


class Tanhshrink(_Elementwise, torch.nn.Tanhshrink):
    """`torch.nn.Tanhshrink` by `baracuda.tanhshrink`: ``x - tanh(x)``."""

    _op = tanhshrink


class PReLU(Namesake, torch.nn.PReLU):
    """`torch.nn.PReLU` by `baracuda.prelu`: ``x`` above 0, ``weight * x`` elsewhere."""

    def _computed(self, input: torch.Tensor) -> torch.Tensor | None:
        weight = self.weight
        fits = weight.shape[0] == 1 or (input.ndim > 1 and input.shape[1] == weight.shape[0])
        return prelu(input, weight) if fits and taken(input, weight) else None


class _Normalised(Namesake):
    """A softmax along an axis, of `scale` times the input."""

    _op: ClassVar[Op[..., Any]] = softmax
    _scale: ClassVar[float] = 1.0
    dim: int | None

    def _kept(self) -> str:
        return "dim=None is torch's to choose" if self.dim is None else ""

    def _computed(self, input: torch.Tensor) -> torch.Tensor | None:
        if not input.ndim or not taken(input):
            return None
        return self._op(input, axis=self.dim, scale=self._scale)  # type: ignore[no-any-return]


class Softmax(_Normalised, torch.nn.Softmax):
    """`torch.nn.Softmax` by `baracuda.softmax`: exponentials as parts of their sum along `dim`.

    A row that is -inf throughout gives 0, where torch gives NaN. ``dim=None`` runs torch's own.
    """


class LogSoftmax(_Normalised, torch.nn.LogSoftmax):
    """`torch.nn.LogSoftmax` by `baracuda.log_softmax`: the logarithm of `Softmax`.

    A row that is -inf throughout gives -inf, where torch gives NaN. ``dim=None`` runs torch's own.
    """

    _op = log_softmax


class Softmin(_Normalised, torch.nn.Softmin):
    """`torch.nn.Softmin` by `baracuda.softmax` of ``-x``."""

    _scale = -1.0


class Softmax2d(Namesake, torch.nn.Softmax2d):
    """`torch.nn.Softmax2d` by `baracuda.softmax`: over the channels of each place of an image."""

    def _computed(self, input: torch.Tensor) -> torch.Tensor | None:
        return softmax(input, axis=-3) if input.ndim in (3, 4) and taken(input) else None
