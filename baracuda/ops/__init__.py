"""The ops, one file per family; importing this package registers all of them."""

from baracuda.ops.cross_entropy import (
    cross_entropy,
    cross_entropy_backward,
    cross_entropy_with_gradient,
)
from baracuda.ops.divergence import (
    binary_cross_entropy,
    binary_cross_entropy_backward,
    binary_cross_entropy_with_logits,
    binary_cross_entropy_with_logits_backward,
    kl_div,
    kl_div_backward,
)
from baracuda.ops.elementwise import lerp, lerp_backward
from baracuda.ops.gated import (
    geglu,
    geglu_backward,
    glu,
    glu_backward,
    reglu,
    reglu_backward,
    swiglu,
    swiglu_backward,
)
from baracuda.ops.indexing import gather, gather_backward
from baracuda.ops.linear_cross_entropy import (
    linear_cross_entropy,
    linear_cross_entropy_backward,
    linear_cross_entropy_with_gradient,
)
from baracuda.ops.loss import (
    huber_loss,
    huber_loss_backward,
    l1_loss,
    l1_loss_backward,
    mse_loss,
    mse_loss_backward,
    smooth_l1_loss,
    smooth_l1_loss_backward,
)
from baracuda.ops.norm import (
    add_layer_norm,
    add_layer_norm_backward,
    add_rms_norm,
    add_rms_norm_backward,
    layer_norm,
    layer_norm_backward,
    rms_norm,
    rms_norm_backward,
)
from baracuda.ops.pooling import (
    lp_pool1d,
    lp_pool1d_backward,
    lp_pool2d,
    lp_pool2d_backward,
)
from baracuda.ops.rope import rope, rope_backward
from baracuda.ops.softmax import (
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
)

__all__ = [
    "add_layer_norm",
    "add_layer_norm_backward",
    "add_rms_norm",
    "add_rms_norm_backward",
    "binary_cross_entropy",
    "binary_cross_entropy_backward",
    "binary_cross_entropy_with_logits",
    "binary_cross_entropy_with_logits_backward",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_with_gradient",
    "gather",
    "gather_backward",
    "geglu",
    "geglu_backward",
    "glu",
    "glu_backward",
    "huber_loss",
    "huber_loss_backward",
    "kl_div",
    "kl_div_backward",
    "l1_loss",
    "l1_loss_backward",
    "layer_norm",
    "layer_norm_backward",
    "lerp",
    "lerp_backward",
    "linear_cross_entropy",
    "linear_cross_entropy_backward",
    "linear_cross_entropy_with_gradient",
    "log_softmax",
    "log_softmax_backward",
    "lp_pool1d",
    "lp_pool1d_backward",
    "lp_pool2d",
    "lp_pool2d_backward",
    "mse_loss",
    "mse_loss_backward",
    "reglu",
    "reglu_backward",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "rope_backward",
    "smooth_l1_loss",
    "smooth_l1_loss_backward",
    "softmax",
    "softmax_backward",
    "swiglu",
    "swiglu_backward",
]
