"""What a strict type checker must refuse: one error on each marked line, none elsewhere."""

import numpy as np

import baracuda as bc

x = np.ones((4, 8), np.float32)
index = np.zeros((4, 3), np.int64)

# misspelt options
bc.glu(x, axes=1)  # error
bc.swiglu(x, gatefirst=True)  # error
bc.geglu(x, approx="tanh")  # error
bc.swiglu(x, approximate="tanh")  # error
bc.rope(x, rotary=4)  # error
bc.rope(x, interleave=True)  # error
bc.lp_pool1d(x, norm_type=2, kernel_size=2, padding=1)  # error
bc.lp_pool2d(x, p=2, kernel_size=2)  # error
bc.gather(x, index, dim=1)  # error
bc.gather_backward(x, index, axis=1, shape=(4, 8))  # error
bc.lerp(x, x, wieght=0.5)  # error

# missing ones
bc.gather(x, index)  # error
bc.gather_backward(x, index, axis=1)  # error
bc.lp_pool1d(x, norm_type=2)  # error
bc.lerp_backward(x)  # error
bc.swiglu()  # error

# of the wrong type
bc.glu(x, axis="last")  # error
bc.glu(x, axis=1.0)  # error
bc.swiglu(x, gate_first="yes")  # error
bc.rope(x, base="10000")  # error
bc.rope(x, rotary_dim=4.0)  # error
bc.lp_pool1d(x, norm_type="2", kernel_size=2)  # error
bc.lp_pool1d(x, norm_type=2, kernel_size=2.0)  # error
bc.lp_pool1d(x, norm_type=2, kernel_size=(2, 2))  # error
bc.lp_pool2d(x, norm_type=2, kernel_size=2, stride="1")  # error
bc.gather_backward(x, index, axis=1, src_shape=4)  # error
bc.gather(x, index, axis=1, mode=1)  # error
bc.lerp(x, x, weight="half")  # error

# no such choice
bc.gelu(x, approximate="erf")  # error
bc.cross_entropy(x, index, reduction="average")  # error
bc.mse_loss(x, x, reduction="batchmean")  # error
bc.gather(x, index, axis=1, mode="clip")  # error
bc.swiglu(x, backend="trtion")  # error
with bc.options(backend="cuda:0"):  # error
    pass

# results of another type
text: str = bc.gelu(x)  # error
print(bc.swiglu.plan(x)(x).no_such_thing)  # error
one, two, three = bc.lerp_backward(x, weight=0.5)  # error

# arrays by keyword, options by position
bc.swiglu(x=x)  # error
bc.lerp(x, x, 0.5)  # error
bc.swiglu(x, None, -1)  # error

# dispatch options
bc.swiglu(x, backends="numpy")  # error
bc.swiglu(x, backend=1)  # error
bc.rope(x, determinstic=True)  # error
bc.rope(x, deterministic="yes")  # error
bc.gather(x, index, axis=1, max_workspace_bytes="1 GB")  # error
bc.lerp(x, x, weight=0.5, autotune=None)  # error
bc.lerp_backward(x, weight=0.5, sku=3)  # error
bc.swiglu(x, out=x)  # error
with bc.options(backends="numpy"):  # error
    pass
with bc.options(autotune="no"):  # error
    pass

# the same through plan and planned
bc.swiglu.plan(x, axes=1)  # error
bc.rope.plan(x, backend=1)  # error
bc.gather.planned(x, index, axes=1)  # error
bc.lp_pool1d.planned(x, norm_type=2)  # error

# what comes back
print(bc.swiglu.plan(x).skus)  # error
bc.swiglu.plan(x)(x, accumulate="yes")  # error
bc.swiglu.plan(x).sku.dtype = "float64"  # error
bc.plan_cache.load(3)  # error
