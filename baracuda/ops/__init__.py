"""The ops, one file per family; importing this package registers all of them."""

from typing import TYPE_CHECKING

from baracuda.calls.op import registry
from baracuda.ops.add_norm import *
from baracuda.ops.batch_norm import *
from baracuda.ops.channel_norm import *
from baracuda.ops.clipped import *
from baracuda.ops.cross_entropy import *
from baracuda.ops.distance_loss import *
from baracuda.ops.divergence import *
from baracuda.ops.elementwise import *
from baracuda.ops.embedding import *
from baracuda.ops.embedding_bag import *
from baracuda.ops.exponential_units import *
from baracuda.ops.gated import *
from baracuda.ops.gradient_norm import *
from baracuda.ops.index_add import *
from baracuda.ops.indexing import *
from baracuda.ops.kl_div_with_logits import *
from baracuda.ops.l2_normalize import *
from baracuda.ops.linear_cross_entropy import *
from baracuda.ops.linear_kl_div import *
from baracuda.ops.linear_log_prob import *
from baracuda.ops.linear_topk_kl_div import *
from baracuda.ops.log_prob import *
from baracuda.ops.logsumexp import *
from baracuda.ops.loss import *
from baracuda.ops.nll_loss import *
from baracuda.ops.norm import *
from baracuda.ops.optimisers import *
from baracuda.ops.permute import *
from baracuda.ops.pooling import *
from baracuda.ops.prelu import *
from baracuda.ops.qk_norm_rope import *
from baracuda.ops.random import *
from baracuda.ops.random_numbers import *
from baracuda.ops.rectifiers import *
from baracuda.ops.rope import *
from baracuda.ops.rope_qk import *
from baracuda.ops.rope_with_tables import *
from baracuda.ops.scatter import *
from baracuda.ops.scatter_reduce import *
from baracuda.ops.segment import *
from baracuda.ops.segment_softmax import *
from baracuda.ops.self_gated import *
from baracuda.ops.shrinks import *
from baracuda.ops.sigmoids import *
from baracuda.ops.soft_target_cross_entropy import *
from baracuda.ops.softmax import *
from baracuda.ops.softmax_dropout import *
from baracuda.ops.stochastic_depth import *
from baracuda.ops.topk_kl_div_with_logits import *

# Each family exports what it registers. Type checkers go by the imports: mypy takes a list that is
# put together for an empty one.
if not TYPE_CHECKING:
    __all__ = sorted(registry)
