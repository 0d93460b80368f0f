"""torch modules around the ops, with the constructor arguments of torch's own where it has one.

Where torch has the module too (`torch.nn.LayerNorm`) these are subclasses of it: constructor,
parameters, buffers, ``state_dict`` and ``repr`` are torch's, so one line can be swapped and
checkpoints load both ways. `replace` swaps what it finds in a model. What an op does not take,
such as other dtypes or shapes that broadcast, runs torch's own forward. What torch does not have is
by keyword. Dispatch options come from the `baracuda.options` block around the call, or around the
run of a compiled program.

``import baracuda`` does not import it; asking for ``baracuda.nn`` does, and so does ``import
baracuda.nn``. Either defines ``torch.ops.baracuda`` as well, which a process needs that loads an
exported program.
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "baracuda.nn needs torch: pip install 'baracuda[torch]'", name="torch"
    ) from None

import baracuda.frameworks.torch.operators  # noqa: F401  (it defines them)
from baracuda.nn.activations import (
    CELU,
    ELU,
    GELU,
    SELU,
    Hardshrink,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softmax2d,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Tanh,
    Tanhshrink,
    Threshold,
)
from baracuda.nn.gated import GEGLU, GLU, ReGLU, SwiGLU
from baracuda.nn.losses import (
    BCELoss,
    BCEWithLogitsLoss,
    CosineEmbeddingLoss,
    CrossEntropyLoss,
    HuberLoss,
    KLDivLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
    TripletMarginLoss,
)
from baracuda.nn.norms import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from baracuda.nn.pooling import LPPool1d, LPPool2d
from baracuda.nn.positions import RotaryEmbedding
from baracuda.nn.replacement import Replacement, replace, restore

__all__ = [
    "CELU",
    "ELU",
    "GEGLU",
    "GELU",
    "GLU",
    "SELU",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CosineEmbeddingLoss",
    "CrossEntropyLoss",
    "GroupNorm",
    "Hardshrink",
    "Hardsigmoid",
    "Hardswish",
    "Hardtanh",
    "HuberLoss",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "KLDivLoss",
    "L1Loss",
    "LPPool1d",
    "LPPool2d",
    "LayerNorm",
    "LeakyReLU",
    "LogSigmoid",
    "LogSoftmax",
    "MSELoss",
    "Mish",
    "NLLLoss",
    "PReLU",
    "RMSNorm",
    "ReGLU",
    "ReLU",
    "ReLU6",
    "Replacement",
    "RotaryEmbedding",
    "SiLU",
    "Sigmoid",
    "SmoothL1Loss",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "Softplus",
    "Softshrink",
    "Softsign",
    "SwiGLU",
    "Tanh",
    "Tanhshrink",
    "Threshold",
    "TripletMarginLoss",
    "replace",
    "restore",
]
