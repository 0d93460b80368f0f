"""The type of a result is that of its primal, for each library: `assert_type` on every line."""

from typing import assert_type, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import torch

import baracuda as bc

Floats = npt.NDArray[np.float32]

ONES = np.ones((4, 8), np.float32)
a = cast(Floats, ONES)
t, j = torch.from_numpy(ONES), jnp.asarray(ONES)
w, target = torch.ones(8), np.zeros(4, np.int64)

assert_type(bc.gelu(a), Floats)
assert_type(bc.gelu(t, approximate="tanh"), torch.Tensor)
assert_type(bc.gelu(j), jax.Array)
assert_type(bc.gelu_backward(t, t), torch.Tensor)

# other arrays have types of their own, and change nothing
assert_type(bc.rms_norm(t, torch.nn.Parameter(w)), torch.Tensor)
assert_type(bc.gather(a, np.zeros((4, 2), np.int64), axis=1), Floats)
assert_type(bc.cross_entropy(a, target, reduction="none"), Floats)
assert_type(bc.kl_div(t, t, reduction="batchmean"), torch.Tensor)
assert_type(bc.rope(j, jnp.arange(4)), jax.Array)

# several results
assert_type(bc.add_rms_norm(t, t, w), tuple[torch.Tensor, torch.Tensor])
assert_type(bc.lerp_backward(j, weight=0.5), tuple[jax.Array, jax.Array])
assert_type(bc.cross_entropy_with_gradient(a, target), tuple[Floats, ...])
loss, *gradients = bc.cross_entropy_with_gradient(a, target)
assert_type(loss, Floats)

# as many as there are parameters, each of the type of the primal
dhidden, dweight = bc.linear_cross_entropy_backward(t[0, 0], t, t, w)
dhidden, dweight, dbias = bc.linear_cross_entropy_backward(t[0, 0], t, t, w, w)
assert_type(dbias, torch.Tensor)
three = bc.linear_kl_div_with_gradient(t, t, w, w, kind="jsd", beta=0.3)
assert_type(three, tuple[torch.Tensor, torch.Tensor, torch.Tensor])

# one for packed arrays, two for split ones: which of them no type says
assert_type(bc.swiglu_backward(t[:, :4], t), torch.Tensor | tuple[torch.Tensor, torch.Tensor])
dx, dgate = bc.swiglu_backward(t, t, t)

# plans
plan = bc.swiglu.plan(t, backend="torch")
assert_type(plan, bc.Plan[torch.Tensor])
assert_type(plan(t), torch.Tensor)
assert_type(bc.lerp_backward.plan(a, weight=0.5)(a, weight=0.1), tuple[Floats, Floats])
y, used = bc.softmax.planned(j)
assert_type(y, jax.Array)
assert_type(used, bc.Plan[jax.Array])
any_plan: bc.Plan = plan
