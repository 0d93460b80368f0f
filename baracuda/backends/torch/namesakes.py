"""Functions of torch that serve ops on a CPU: which, on which dtypes, and what is corrected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from baracuda.backends.torch import indexed as ix
from baracuda.backends.torch.adapters import (
    WIDE,
    Namesake,
    Serve,
    pairs,
    pointwise,
    rows,
    wide,
)
from baracuda.backends.torch.norms import (
    add_layer_norm,
    add_layer_norm_backward,
    batch_norm,
    batch_norm_backward,
    batch_norm_inference,
    group_norm,
    group_norm_backward,
    l2_normalize,
    l2_normalize_backward,
    layer_norm,
    layer_norm_backward,
    several,
    short,
    wide_only,
)
from baracuda.backends.torch.rows import (
    binary_cross_entropy,
    binary_cross_entropy_backward,
    binary_cross_entropy_with_logits,
    binary_cross_entropy_with_logits_backward,
    countable,
    cross_entropy,
    cross_entropy_backward,
    cross_entropy_with_gradient,
    glu,
    l1_loss_backward,
    last,
    log_prob,
    log_prob_backward,
    logsumexp,
    logsumexp_backward,
    nll_loss,
    nll_loss_backward,
    packed,
    softmax,
    softmax_backward,
    unmasked,
    unmeasured,
    unraised,
)  # fmt: skip
from baracuda.backends.torch.units import UNITS
from baracuda.calls import ranges
from baracuda.declaration.backend import Adds, Runner, each
from baracuda.declaration.spec import Problem
from baracuda.layouts import Shape
from baracuda.libraries import Array

_SCALE, _DEPTH = 1.0507009873554805, 1.7580993408473768 / 1.0507009873554805


def _beyond(threshold: float, dtype: Any) -> float:
    """The threshold of a softplus, from which on its slope is 1 to the last bit."""
    return min(threshold, 40.0 if dtype == torch.float64 else 18.0)


def _nearest(a: Array, b: Array, weight: float) -> tuple[Any, ...]:
    # torch begins at `b` below -1/2, too.
    return (a, b, weight) if weight > -0.5 else (b, a, 1 - weight)


def _along_channels(weight: Array, x: Array) -> Array:
    """The slopes in a shape that broadcasts to `x`."""
    return weight.view(-1, *[1] * (x.ndim - 2)) if weight.shape[0] != 1 else weight.view(())


def _prelu_backward(dy: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    dx, shares = torch.ops.aten._prelu_kernel_backward(dy, x, _along_channels(weight, x))
    others = [i for i in range(x.ndim) if i != 1 or weight.shape[0] == 1]
    return dx, shares.sum(others).reshape(weight.shape)


NAMESAKES: Mapping[str, Namesake] = {
    **UNITS,
    "relu": pointwise("relu"),
    "relu_backward": pointwise("threshold_backward", lambda dy, y: (dy, y, 0)),
    "leaky_relu": pointwise("leaky_relu", lambda x, negative_slope: (x, negative_slope)),
    "leaky_relu_backward": pointwise(
        "leaky_relu_backward", lambda dy, x, negative_slope: (dy, x, negative_slope, False)
    ),
    "threshold": pointwise("threshold", lambda x, threshold, value: (x, threshold, value)),
    "threshold_backward": pointwise(
        "threshold_backward", lambda dy, x, threshold, value: (dy, x, threshold)
    ),
    "relu6": pointwise("hardtanh", lambda x: (x, 0, 6)),
    "relu6_backward": pointwise("hardtanh_backward", lambda dy, y: (dy, y, 0, 6), nan=1),
    "hardtanh": pointwise("hardtanh", lambda x, min_val, max_val: (x, min_val, max_val)),
    "hardtanh_backward": pointwise(
        "hardtanh_backward", lambda dy, x, min_val, max_val: (dy, x, min_val, max_val), nan=1
    ),
    "hardsigmoid": pointwise("hardsigmoid"),
    "hardsigmoid_backward": pointwise(
        # A sixth is rounded to float32.
        "hardsigmoid_backward",
        dtypes=("float32", "float16", "bfloat16"),
    ),
    "hardswish": pointwise("hardswish"),
    "hardswish_backward": pointwise("hardswish_backward", nan=1),
    "hardshrink": pointwise("hardshrink", lambda x, lambd: (x, lambd), WIDE),
    "hardshrink_backward": pointwise(
        "hardshrink_backward", lambda dy, x, lambd: (dy, x, lambd), WIDE, nan=1
    ),
    "softshrink": pointwise("softshrink", lambda x, lambd: (x, lambd), WIDE),
    "softshrink_backward": pointwise(
        "softshrink_backward", lambda dy, x, lambd: (dy, x, lambd), WIDE, nan=1
    ),
    "elu": pointwise("elu", lambda x, alpha: (x, alpha)),
    "elu_backward": pointwise(
        "elu_backward", lambda dy, x, alpha: (dy, alpha, 1, 1, False, x), nan=1
    ),
    "selu": pointwise("elu", lambda x: (x, _DEPTH, _SCALE)),
    "selu_backward": pointwise(
        "elu_backward", lambda dy, x: (dy, _DEPTH, _SCALE, 1, False, x), nan=1
    ),
    "celu": pointwise("elu", lambda x, alpha: (x, alpha, 1, 1 / alpha)),
    "celu_backward": pointwise(
        "elu_backward", lambda dy, x, alpha: (dy, alpha, 1, 1 / alpha, False, x), nan=1
    ),
    "softplus": pointwise(
        "softplus", lambda x, beta, threshold: (x, beta, _beyond(threshold, x.dtype))
    ),
    "softplus_backward": pointwise(
        "softplus_backward",
        lambda dy, x, beta, threshold: (dy, x, beta, _beyond(threshold, x.dtype)),
    ),
    "sigmoid": pointwise("sigmoid"),
    # float16 is not widened.
    "sigmoid_backward": pointwise("sigmoid_backward", dtypes=(*WIDE, "bfloat16")),
    "log_sigmoid": pointwise("log_sigmoid"),
    "log_sigmoid_backward": pointwise(
        "softplus_backward", lambda dy, x: (dy, x, -1, _beyond(40, x.dtype)), WIDE
    ),
    "tanh": pointwise("tanh"),
    "tanh_backward": pointwise("tanh_backward"),
    "silu": pointwise("silu"),
    "silu_backward": pointwise("silu_backward"),
    "mish": pointwise("mish"),
    "mish_backward": pointwise("mish_backward"),
    "lerp": pointwise("lerp.Scalar", _nearest),
    "prelu": pointwise("_prelu_kernel", lambda x, weight: (x, _along_channels(weight, x))),
    "prelu_backward": rows("_prelu_kernel_backward", _prelu_backward, WIDE),
    "glu": rows("glu", glu, suits=packed),
    "l1_loss_backward": rows("sign", l1_loss_backward, WIDE, corrected=True),
    "binary_cross_entropy": rows("lerp", binary_cross_entropy, WIDE),
    "binary_cross_entropy_with_logits": rows(
        "lerp", binary_cross_entropy_with_logits, WIDE, suits=unraised, corrected=True
    ),
    "binary_cross_entropy_with_logits_backward": rows(
        "sigmoid", binary_cross_entropy_with_logits_backward, WIDE, suits=unraised
    ),
    "binary_cross_entropy_backward": rows(
        "binary_cross_entropy_backward", binary_cross_entropy_backward, WIDE
    ),
    "nll_loss": rows("nll_loss_forward", nll_loss, WIDE, checks=True),
    "nll_loss_backward": rows("scatter", nll_loss_backward, WIDE, suits=countable),
    "mse_loss": pairs("mse_loss"),
    "mse_loss_backward": pairs("mse_loss_backward"),
    "smooth_l1_loss": pairs("smooth_l1_loss", "beta"),
    "smooth_l1_loss_backward": pairs("smooth_l1_loss_backward", "beta", sharp=True),
    "huber_loss": pairs("huber_loss", "delta"),
    "huber_loss_backward": pairs("huber_loss_backward", "delta"),
    "softmax": rows("_softmax", softmax("_softmax"), suits=unmasked, corrected=True),
    "softmax_backward": rows(
        "_softmax_backward_data", softmax_backward("_softmax_backward_data"), suits=last
    ),
    "log_softmax": rows(
        "_log_softmax", softmax("_log_softmax"), WIDE, suits=unmasked, corrected=True
    ),
    "log_softmax_backward": rows(
        "_log_softmax_backward_data",
        softmax_backward("_log_softmax_backward_data"),
        suits=last,
        corrected=True,
    ),
    "logsumexp": rows("logsumexp", logsumexp, WIDE),
    "logsumexp_backward": rows("_softmax", logsumexp_backward, WIDE, corrected=True),
    "layer_norm": rows("native_layer_norm", layer_norm),
    "layer_norm_backward": rows("native_layer_norm_backward", layer_norm_backward, WIDE),
    "l2_normalize": rows("linalg_vector_norm", l2_normalize, WIDE, suits=short),
    "l2_normalize_backward": rows("linalg_vector_norm", l2_normalize_backward, WIDE, suits=short),
    "group_norm": rows("native_group_norm", group_norm, WIDE),
    "group_norm_backward": rows(
        "native_group_norm_backward", group_norm_backward, WIDE, suits=several
    ),
    "instance_norm": rows("native_group_norm", group_norm, WIDE),
    "instance_norm_backward": rows(
        "native_group_norm_backward", group_norm_backward, WIDE, suits=several
    ),
    "add_layer_norm": rows("native_layer_norm", add_layer_norm, WIDE, suits=wide_only),
    "add_layer_norm_backward": rows(
        "native_layer_norm_backward", add_layer_norm_backward, WIDE, suits=wide_only
    ),
    "batch_norm": rows("native_batch_norm", batch_norm, WIDE),
    "batch_norm_backward": rows("native_batch_norm", batch_norm_backward, WIDE),
    "batch_norm_inference": rows("native_batch_norm", batch_norm_inference, WIDE),
    "log_prob": rows("_log_softmax", log_prob, WIDE, corrected=True),
    "log_prob_backward": rows("_log_softmax", log_prob_backward, WIDE, corrected=True),
    "cross_entropy": rows("_log_softmax", cross_entropy, WIDE, suits=unmeasured, corrected=True),
    "cross_entropy_backward": rows("_softmax", cross_entropy_backward, WIDE, corrected=True),
    "cross_entropy_with_gradient": rows(
        "_log_softmax", cross_entropy_with_gradient, WIDE, suits=unmeasured, corrected=True
    ),
    "gather": ix.indexed("gather", ix.take, ix.MOVED),
    "gather_backward": ix.indexed("scatter_add", ix.sums, WIDE),
    "scatter_add": ix.indexed("scatter_add", ix.scatter_add, WIDE),
    "scatter_add_backward": ix.indexed("gather", ix.take),
    "scatter": ix.indexed("scatter", ix.scatter),
    "scatter_backward": ix.indexed("scatter", ix.scatter_backward),
    "scatter_reduce": ix.indexed("scatter_reduce", ix.scatter_reduce, WIDE, ix.reduced),
    "scatter_reduce_backward": ix.indexed(
        "scatter_reduce", ix.scatter_reduce_backward, WIDE, ix.reduced
    ),
    "index_select": ix.indexed("index_select", ix.select, ix.MOVED),
    "index_select_backward": ix.indexed("index_add", ix.sums_of_slices, WIDE),
    "index_add": ix.indexed("index_add", ix.index_add, WIDE),
    "index_add_backward": ix.indexed("index_select", ix.select, WIDE),
    "embedding": ix.indexed("embedding", ix.embedding),
    "embedding_backward": ix.indexed(
        "embedding_dense_backward", ix.embedding_backward, WIDE, checks=False
    ),
    "embedding_bag": ix.indexed(
        "_embedding_bag", ix.embedding_bag, WIDE, ix.side_by_side, checks=False
    ),
    "segment_sum": ix.indexed("index_add", ix.segment_sum, WIDE),
    "segment_sum_backward": ix.indexed("index_select", ix.segment_sum_backward),
    "segment_mean": ix.indexed("index_add", ix.segment_mean, WIDE),
    "segment_mean_backward": ix.indexed("index_select", ix.segment_mean_backward, WIDE),
    "segment_max": ix.indexed("scatter_reduce", ix.segment_max),
    "segment_max_backward": ix.indexed("index_select", ix.segment_max_backward, WIDE),
    "segment_softmax": ix.indexed("scatter_reduce", ix.segment_softmax, WIDE),
    "segment_softmax_backward": ix.indexed("index_add", ix.segment_softmax_backward, WIDE),
}
"""The function that serves each op."""


_MOST_AXES, _LARGEST = 8, 1e30


def namesake(problem: Problem) -> Namesake | None:
    """The function that computes a problem, None where the body has to."""
    found = NAMESAKES.get(problem.spec.name)
    # Elsewhere torch has other kernels, with roundings and edges of their own.
    if found is None or problem.device != "cpu" or problem.compute_dtype not in found.dtypes:
        return None
    # Some of its vectorised loops end at so many axes, and none takes a value that is an array.
    if problem.reads or max(len(x.shape) for x in problem.given) > _MOST_AXES:
        return None
    return found if found.suits(problem) else None


def _lies(x: Array, strides: Shape | None) -> bool:
    """Whether the elements lie as a problem plans them: None is C order."""
    return bool(x.is_contiguous() if strides is None else x.stride() == strides)


def _refusing(problem: Problem, serve: Serve) -> Serve:
    """`serve`, and the library's own error where torch raises one for an index."""

    def served(*arrays: Array, **options: Any) -> Any:
        try:
            return serve(*arrays, **options)
        except (IndexError, RuntimeError):
            ranges.check(problem, arrays)
            raise

    return served


def runner(problem: Problem, found: Namesake, otherwise: Runner) -> Runner:
    """The runner of a function of torch; `otherwise` runs what it does not compute."""
    serve, library, roles = found.serving(problem), problem.library, problem.spec.roles.values()
    if problem.raising and found.checks:
        serve = _refusing(problem, serve)
    dtypes = {role.chosen for role in roles}
    options = {name: value for name, value in problem.options.items() if name not in dtypes}
    outputs = [(library.dtype(x.dtype), x.strides) for x in problem.outputs]
    dtype, strides = outputs[0]
    # A result that is wider than the arrays was never rounded to their dtype.
    wider = any(x.dtype == problem.compute_dtype != problem.dtype for x in problem.outputs)
    checked = bool(problem.raising) and not found.checks
    widened = problem.dtype not in found.dtypes
    widened |= wider
    running, device = library.running, problem.device
    # Between two layouts torch's loops are others, which round otherwise.
    alike = found.writes and not widened and all(x.strides == strides for x in problem.given)

    def delivered(x: Array, dtype: Any, strides: Shape | None) -> Array:
        return library.conform(x if x.dtype == dtype else x.to(dtype), strides)

    def into(
        arrays: Sequence[Array],
        outs: tuple[Array, ...],
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> bool:
        """Whether `outs` have the results."""
        if alike and not accumulate and _lies(outs[0], strides):
            return serve(*arrays, out=outs[0], **options, **scalars) is not None
        # A sum is rounded once, and so is a result that is given more bits.
        narrow = accumulate or any(x.dtype != d for x, (d, _) in zip(outs, outputs, strict=True))
        result = serve(*(map(wide, arrays) if widened or narrow else arrays), **options, **scalars)
        if result is None:
            return False
        results = result if type(result) is tuple else (result,)
        for out, x, add in zip(outs, results, each(accumulate, len(outs)), strict=True):
            library.assign(out, x, add)
        return True

    def run(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        if checked:
            ranges.check(problem, arrays)
        elif ranges.begun:
            ranges.raise_found()
        # Where products of such a value overflow, torch's functions differ from each other.
        if scalars and any(abs(x) > _LARGEST for x in scalars.values()):
            return otherwise(arrays, outs, accumulate, scalars)
        if outs is not None:
            with running(device):
                done = into(arrays, outs, accumulate, scalars)
            if not done:
                return otherwise(arrays, outs, accumulate, scalars)
            return outs if len(outs) > 1 else outs[0]
        with running(device):
            result = serve(*(map(wide, arrays) if widened else arrays), **options, **scalars)
        if result is None:
            return otherwise(arrays, outs, accumulate, scalars)
        if type(result) is tuple:
            return tuple([delivered(x, *o) for x, o in zip(result, outputs, strict=True)])
        return delivered(result, dtype, strides)

    return run
