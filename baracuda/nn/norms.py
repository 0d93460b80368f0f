"""Modules of the norms, with torch's names.

Each has the constructor, parameters, buffers, ``state_dict`` and ``repr`` of torch's class. An
input is float16, bfloat16, float32 or float64; parameters and running statistics have its dtype, or
are all float32 beside 16 bits. The result has the dtype of the input and is contiguous.

Other dtypes and layouts run torch's own forward. So do images in torch's channels-last formats in
the norms of channels: the op's result would not be in that format, and the next convolution would
convert it back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch

from baracuda.errors import type_error
from baracuda.nn.namesakes import Namesake, listed, taken
from baracuda.ops.batch_norm import batch_norm, batch_norm_inference
from baracuda.ops.channel_norm import group_norm, instance_norm
from baracuda.ops.norm import layer_norm, rms_norm

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "RMSNorm",
]

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def _channels_last(x: torch.Tensor) -> bool:
    """Whether `x` is dense with its channels last, and not contiguous as well."""
    layout = _FORMATS.get(x.ndim)
    return layout is not None and not x.is_contiguous() and x.is_contiguous(memory_format=layout)


def _as_rows(
    x: torch.Tensor, shape: tuple[int, ...], *parameters: torch.Tensor | None
) -> tuple[Any, ...] | None:
    """`x` with the axes of `shape` as one, and parameters as well; None where these do not fit."""
    if tuple(x.shape[x.ndim - len(shape) :]) != shape or not taken(x, parameters=parameters):
        return None
    if len(shape) == 1:
        return x, *parameters
    rows = x.reshape(*x.shape[: x.ndim - len(shape)], math.prod(shape))
    return rows, *(p if p is None else p.reshape(-1) for p in parameters)


def _as_was(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`y` with the axes of `x` again."""
    return y if y.ndim == x.ndim else y.reshape(x.shape)


class LayerNorm(Namesake, torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` by `baracuda.layer_norm`: centre and scale the last axes.

    Several axes are normalised as one.

    Examples
    --------
    >>> import torch
    >>> from baracuda.nn import LayerNorm
    >>> LayerNorm(2)(torch.tensor([[1.0, 3.0]])).detach().round(decimals=4)
    tensor([[-1.,  1.]])
    """

    def _computed(self: Any, input: torch.Tensor) -> torch.Tensor | None:
        rows = _as_rows(input, self.normalized_shape, self.weight, self.bias)
        return None if rows is None else _as_was(layer_norm(*rows, eps=self.eps), input)


class RMSNorm(Namesake, torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` by `baracuda.rms_norm`: divide the last axes by their root mean square.

    Parameters
    ----------
    normalized_shape, eps, elementwise_affine, device, dtype
        As in torch. ``eps=None`` is that of the dtype in which it is computed: of float32 for 16
        bits.
    offset : float
        Added to the weight, which begins at ``1 - offset``: 1 in Gemma.
    casting : {"none", "before_weight"}
        As in `baracuda.rms_norm`: "before_weight" in Llama and Qwen.

    Raises
    ------
    TypeError, ValueError
        An `offset` or `casting` that `baracuda.rms_norm` does not take. Where either is not the
        default, also a call on what the op does not take: torch's own forward has neither.

    Notes
    -----
    x is a tensor of shape [*b, *normalized_shape], the weight one of normalized_shape. The result
    has the shape and dtype of x, float32 in an autocast region for CUDA. Bit-stable.

    Examples
    --------
    >>> import torch
    >>> from baracuda.nn import RMSNorm
    >>> RMSNorm(2, offset=1.0)(torch.tensor([3.0, -3.0])).detach()
    tensor([ 1., -1.])
    """

    # Of the class: a `torch.nn.RMSNorm` that `replace` makes one of these has no such attributes.
    offset: float = 0.0
    casting: Literal["none", "before_weight"] = "none"

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        offset: float = 0.0,
        casting: Literal["none", "before_weight"] = "none",
    ) -> None:
        shape: Any = normalized_shape
        super().__init__(shape, eps, elementwise_affine, device, dtype)
        spec = rms_norm.spec
        self.offset = spec.scalars["offset"]("RMSNorm", "offset", offset)
        self.casting = spec.options["casting"]("RMSNorm", "casting", casting)
        if offset:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Make the scale 1."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1 - self.offset)

    def extra_repr(self) -> str:
        own = {"offset": (self.offset, 0.0), "casting": (self.casting, "none")}
        return ", ".join(filter(None, (super().extra_repr(), listed({}, own))))

    def _computed(self: Any, x: torch.Tensor) -> torch.Tensor | None:
        rows, own = _as_rows(x, self.normalized_shape, self.weight), self.extra_options()
        if rows is None:
            if not own:
                return None
            expected = (
                f"a dense floating tensor whose last axes are {self.normalized_shape}, of the "
                "dtype and device of the weight, which may be float32 beside 16 bits"
            )
            hint = f"torch's own forward, which runs on others, has no {' or '.join(own)}"
            raise type_error("RMSNorm", "x", expected, f"{x.dtype} of {tuple(x.shape)}", hint)
        eps = self.eps
        if eps is None:
            eps = torch.finfo(x.dtype if x.dtype is torch.float64 else torch.float32).eps
        return _as_was(rms_norm(*rows, eps=eps, **own), x)

    def extra_options(self) -> dict[str, Any]:
        """The options that torch's class does not have, where they are not the default."""
        own = {"offset": self.offset, "casting": self.casting}
        return {name: value for name, value in own.items() if value not in (0.0, "none")}


class GroupNorm(Namesake, torch.nn.GroupNorm):
    """`torch.nn.GroupNorm` by `baracuda.group_norm`: centre and scale groups of channels."""

    def _computed(self: Any, input: torch.Tensor) -> torch.Tensor | None:
        fits = input.ndim > 1 and input.shape[1] == self.num_channels
        if (
            not fits
            or _channels_last(input)
            or not taken(input, parameters=(self.weight, self.bias))
        ):
            return None
        return group_norm(input, self.weight, self.bias, num_groups=self.num_groups, eps=self.eps)


class _BatchNorm(Namesake):
    def _computed(self: Any, input: torch.Tensor) -> torch.Tensor | None:
        self._check_input_dim(input)
        mean, var, affine = self.running_mean, self.running_var, (self.weight, self.bias)
        if _channels_last(input):
            return None
        if not self.training and mean is not None:
            if not taken(input, parameters=(mean, var, *affine)):
                return None
            return batch_norm_inference(input, mean, var, *affine, eps=self.eps)
        tracked = self.training and self.track_running_stats and mean is not None
        number = input.numel() // max(input.shape[1], 1)
        # The op rounds statistics to the dtype of its input, and float16 has no large variance.
        # torch refuses a channel of one element.
        fits = mean is None or (mean.dtype is input.dtype and mean.dtype is not torch.float16)
        if tracked and (self.momentum is None or not fits):
            return None
        if number < 2 or not taken(input, parameters=affine):
            return None
        y, batch_mean, batch_var = batch_norm(input, *affine, eps=self.eps)
        if tracked:
            with torch.no_grad():
                if self.num_batches_tracked is not None:
                    self.num_batches_tracked.add_(1)
                mean.lerp_(batch_mean, self.momentum)
                var.lerp_(batch_var * (number / (number - 1)), self.momentum)
        return y


class BatchNorm1d(_BatchNorm, torch.nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d` by `baracuda.batch_norm`, or `baracuda.batch_norm_inference` in eval.

    Running statistics are updated in place as torch's are: by `momentum`, with the unbiased
    variance. The op rounds statistics to the dtype of its input, and float16 has no large variance.
    So training runs torch's own forward where running statistics have another dtype than the input
    or are float16, and where ``momentum=None``.
    """


class BatchNorm2d(_BatchNorm, torch.nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d`, as `BatchNorm1d`; images in channels-last format run torch's own."""


class BatchNorm3d(_BatchNorm, torch.nn.BatchNorm3d):
    """`torch.nn.BatchNorm3d`, as `BatchNorm2d`."""


class _InstanceNorm(Namesake):
    def _computed(self: Any, input: torch.Tensor) -> torch.Tensor | None:
        self._check_input_dim(input)
        alone = input.ndim == self._get_no_batch_dim()
        x = input.unsqueeze(0) if alone else input
        mean, var, affine = self.running_mean, self.running_var, (self.weight, self.bias)
        if x.shape[1] != self.num_features or _channels_last(x):
            return None
        if not self.training and self.track_running_stats and mean is not None:
            if not taken(x, parameters=(mean, var, *affine)):
                return None
            y = batch_norm_inference(x, mean, var, *affine, eps=self.eps)
        # torch keeps statistics over the batch in training, and refuses a channel of one element.
        elif mean is not None or x.shape[2:].numel() == 1 or not taken(x, parameters=affine):
            return None
        else:
            y = instance_norm(x, *affine, eps=self.eps)
        return y.squeeze(0) if alone else y


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """`torch.nn.InstanceNorm1d` by `baracuda.instance_norm`.

    With ``track_running_stats=True`` eval is `baracuda.batch_norm_inference`, and training runs
    torch's own forward.
    """


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """`torch.nn.InstanceNorm2d`, as `InstanceNorm1d`; channels-last images run torch's own."""


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """`torch.nn.InstanceNorm3d`, as `InstanceNorm2d`."""
