"""The ops, one file per family; importing this package registers all of them."""

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
from baracuda.ops.pooling import (
    lp_pool1d,
    lp_pool1d_backward,
    lp_pool2d,
    lp_pool2d_backward,
)
from baracuda.ops.rope import rope, rope_backward

__all__ = [
    "gather",
    "gather_backward",
    "geglu",
    "geglu_backward",
    "glu",
    "glu_backward",
    "lerp",
    "lerp_backward",
    "lp_pool1d",
    "lp_pool1d_backward",
    "lp_pool2d",
    "lp_pool2d_backward",
    "reglu",
    "reglu_backward",
    "rope",
    "rope_backward",
    "swiglu",
    "swiglu_backward",
]
