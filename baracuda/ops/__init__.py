"""The ops, one file per family; importing this package registers all of them."""

from baracuda.ops.add_norm import (
    add_layer_norm,
    add_layer_norm_backward,
    add_rms_norm,
    add_rms_norm_backward,
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
from baracuda.ops.norm import (
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
    "gather",
    "gather_backward",
    "geglu",
    "geglu_backward",
    "glu",
    "glu_backward",
    "layer_norm",
    "layer_norm_backward",
    "lerp",
    "lerp_backward",
    "log_softmax",
    "log_softmax_backward",
    "lp_pool1d",
    "lp_pool1d_backward",
    "lp_pool2d",
    "lp_pool2d_backward",
    "reglu",
    "reglu_backward",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "rope_backward",
    "softmax",
    "softmax_backward",
    "swiglu",
    "swiglu_backward",
]
