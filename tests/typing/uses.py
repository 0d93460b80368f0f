"""Every public function with every option, as a strict type checker must accept it."""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import baracuda as bc

x = np.ones((4, 8), np.float32)
half = np.ones((4, 4), np.float32)
image = np.ones((2, 8, 8))
index = np.zeros((4, 3), np.int64)
dout = np.ones((4, 3), np.float32)
positions = np.arange(4)
gate: Any = None

# gated
bc.glu(x)
bc.glu(half, half, axis=-1, gate_first=False)
bc.reglu(x, axis=0, gate_first=True)
bc.swiglu(x, None)
bc.geglu(x, axis=1, gate_first=True, approximate="tanh")
bc.geglu(x, approximate="none")
bc.glu_backward(half, x, axis=-1)
bc.reglu_backward(half, x, gate, gate_first=True)
bc.swiglu_backward(half, half, half, axis=0)
bc.geglu_backward(half, x, approximate="tanh")
da, dgate = bc.swiglu_backward(half, half, half)

# lerp
bc.lerp(x, x, weight=0.5)
bc.lerp(x, x, weight=1)
da, db = bc.lerp_backward(x, weight=0.5)

# gather
bc.gather(x, index, axis=1)
bc.gather(x, index, axis=-1, mode="drop")
bc.gather_backward(dout, index, axis=1, src_shape=(4, 8), mode="raise")
bc.gather_backward(dout, index, axis=1, src_shape=x.shape)

# lp_pool
bc.lp_pool1d(x, norm_type=2, kernel_size=3)
bc.lp_pool1d(x, norm_type=float("inf"), kernel_size=(3,), stride=(2,), ceil_mode=True)
y = bc.lp_pool1d(x, norm_type=1.5, kernel_size=3, stride=None)
bc.lp_pool1d_backward(y, x, y, norm_type=1.5, kernel_size=3, stride=None, ceil_mode=False)
bc.lp_pool2d(image, norm_type=2.0, kernel_size=2)
bc.lp_pool2d(image, norm_type=2, kernel_size=(2, 3), stride=(1, 2), ceil_mode=True)
pooled = bc.lp_pool2d(image, norm_type=2, kernel_size=(2, 3), stride=1, ceil_mode=True)
bc.lp_pool2d_backward(
    pooled, image, pooled, norm_type=2, kernel_size=(2, 3), stride=1, ceil_mode=True
)

# rope
bc.rope(x)
bc.rope(x, positions)
bc.rope(x, positions, base=500000.0, interleaved=False, rotary_dim=4, seq_axis=-2)
bc.rope(x, frequencies=bc.rope_frequencies("linear", 8, 10000.0, factor=2.0)[0])
bc.dropout(x, p=0.5, **next(bc.seeds(7, step=3)))
bc.rope_backward(x, None, base=10, rotary_dim=None)

# dispatch options
bc.swiglu(x, backend="numpy", deterministic=True, max_workspace_bytes=1 << 20, autotune=False)
bc.swiglu(x, backend=None, deterministic=None, max_workspace_bytes=None, autotune=True, sku=None)
bc.gather_backward(dout, index, axis=1, src_shape=(4, 8), deterministic=False)
bc.rope_backward(x, backend="array_api", autotune=True)
settings: bc.Dispatch = {"backend": "array_api", "deterministic": True}
bc.lp_pool1d(x, norm_type=2, kernel_size=2, **settings)
with bc.options(backend="numpy", deterministic=True, max_workspace_bytes=0, autotune=False):
    bc.lerp_backward(x, weight=0.1)

# results have the type of the primal, whatever types the other arrays have
Floats = npt.NDArray[np.float32]
a: Floats = x
assert_type(bc.gelu(a, approximate="tanh"), Floats)
assert_type(bc.rms_norm(a, np.ones(8, np.float32)), Floats)
assert_type(bc.gather(a, index, axis=1), Floats)
assert_type(bc.cross_entropy(a, positions, reduction="none", mode="drop"), Floats)
assert_type(bc.kl_div(a, a, reduction="batchmean"), Floats)
assert_type(bc.lerp_backward(a, weight=0.5), tuple[Floats, Floats])
assert_type(bc.swiglu_backward(half, a), Floats | tuple[Floats, Floats])
assert_type(bc.swiglu.plan(a)(a), Floats)
assert_type(bc.softmax.planned(a), tuple[Floats, bc.Plan[Floats]])
any_plan: bc.Plan = bc.swiglu.plan(a)

# plans
plan = bc.swiglu.plan(x, axis=-1, backend="numpy")
assert_type(plan.why, tuple[tuple[str, str], ...])
out = np.empty((4, 4), np.float32)
plan(x)
plan(x, out=out)
bc.swiglu_backward.plan(half, x)(half, x, out=x.copy(), accumulate=True)
weighted = bc.lerp.plan(x, x, weight=0.5)
weighted(x, x, weight=0.3)
bc.lerp_backward.plan(x, weight=0.5)(x, weight=0.3, out=(x.copy(), x.copy()))
result, used = bc.rope.planned(x, positions, base=100.0, deterministic=True)
assert_type(used.why, tuple[tuple[str, str], ...])
pair, its_plan = bc.lerp_backward.planned(x, weight=0.5)
for backend, reason in plan.why:
    print(backend.upper(), reason.upper())
assert_type(plan.workspace_size, int)

# SKUs
sku = plan.sku
assert_type(sku, bc.KernelSku)
bc.swiglu(x, sku=sku)
bc.swiglu(x, sku=sku.to_json())
assert_type(bc.KernelSku.from_json(sku.to_json()), bc.KernelSku)
assert_type(sku.precision, bc.PrecisionGuarantee)
assert_type(sku.precision.deterministic, bool)
assert_type(sku.index_dtype, str | None)

# the cache
assert_type(bc.plan_cache.info(), bc.CacheInfo)
bc.plan_cache.save("plans.json")
assert_type(bc.plan_cache.load(Path("plans.json")), int)
bc.check_errors()
bc.plan_cache.clear()
bc.PlanCache(maxsize=10)

# ops as values, errors
op: bc.Op[..., Any] = bc.reglu
op(x)
try:
    bc.gather(x, index, axis=1)
except (bc.IndexOutOfRangeError, bc.ArgumentTypeError, bc.ArgumentValueError) as error:
    caught: bc.BaracudaError = error
except bc.UnsupportedError as missing:
    print(missing)
assert_type(bc.__version__, str)
