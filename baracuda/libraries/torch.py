"""torch: facts of its tensors, and what is watching them (autograd, transforms, tracing)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

import array_api_compat.torch
import torch
from torch.autograd import forward_ad

from baracuda.declaration.dtypes import name_of
from baracuda.layouts import Shape
from baracuda.libraries import Array, Facts, Library, Region, State, adopt, alignment, near

_any_autocast = torch._C._is_any_autocast_enabled
# Asked once: torch.compile does not trace the question in every version.
_REGIONS = frozenset(
    kind
    for kind in (
        "cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "xla",
        torch._C._get_privateuse1_backend_name(),
    )
    if torch.amp.is_autocast_available(kind)
)  # fmt: skip
_AS_IT_IS = nullcontext()
_compiling = torch.compiler.is_compiling
_deterministic = torch._C._get_deterministic_algorithms
modes = torch._C._len_torch_dispatch_stack
transforms = torch._C._functorch.peek_interpreter_stack
_is_batch = torch._C._functorch.is_legacy_batchedtensor
# What torch.compile itself guards its graphs with; without it the general way is taken.
TensorGuards = getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
# Elements of a product that are computed at a time.
_PART = 1 << 26
# Factors from here on may be beyond float32.
_FAR = 2.0**127


class Torch(Library):
    """Dense torch tensors on any device."""

    name = "torch"
    xp = array_api_compat.torch
    stored_as = MappingProxyType({"uint16": "int16", "uint32": "int32", "uint64": "int64"})

    def takes(self, x: Array) -> bool:
        return isinstance(x, torch.Tensor)

    def facts(self, x: Array) -> Hashable:
        device = x.device
        if device.type == "cuda":
            lies = _alignment(x), _materialised(x)
            return ("torch", x.dtype, x.shape, x.stride(), device, *lies)
        return ("torch", x.dtype, x.shape, x.stride(), device)

    def describe(self, x: Array) -> Facts:
        if x.is_nested or x.layout != torch.strided or x.is_quantized:
            what = "a nested tensor" if x.is_nested else f"layout {x.layout}"
            raise TypeError(f"expected a dense tensor, got {what}")
        device = _device_name(x.device)
        divides = 16 if not device.startswith("cuda") else _alignment(x) if _materialised(x) else 0
        return Facts(_dtype_name(x.dtype), tuple(x.shape), tuple(x.stride()), device, divides)

    def strides(self, x: Array) -> Shape | None:
        return tuple(x.stride())

    def device_of(self, x: Array) -> Any:
        return x.device

    def state(self, arrays: Sequence[Array]) -> State | None:
        mode, grad = "", False
        for x in arrays:
            if type(x) in _PLAIN_TYPES:
                grad |= x.requires_grad
                if _is_batch(x):
                    mode = "traced"
            elif isinstance(x, (torch.Tensor, torch.fx.Proxy)):
                mode = "traced"
        if _compiling() or transforms() is not None or modes():
            mode = "traced"
        elif not mode and forward_ad._current_level >= 0:
            mode = "forward-mode"
        elif not mode and grad and torch.is_grad_enabled():
            mode = "autograd"
        deterministic = _deterministic()
        if _any_autocast() and (region := region_of(arrays)):
            return mode, deterministic, *region
        return (mode, deterministic) if mode or deterministic else None

    def matcher(self, arrays: Sequence[Array]) -> Callable[[Sequence[Array]], bool]:
        state = self.state(arrays)
        plain = state is None or (state[0] in ("", "autograd") and not state[1])
        if TensorGuards is None or not plain:
            return super().matcher(arrays)
        pattern = _pattern(arrays)
        places = [i for i, at in enumerate(pattern) if at == i]
        if len(places) < len(arrays):
            # Guards want tensors, and each once.
            there = self.matcher([arrays[i] for i in places])
            return lambda others: _pattern(others) == pattern and there([others[i] for i in places])
        # A block without gradients hides that they are watched, which the guards do not see: what
        # fits within it does not fit outside, and the other way round.
        watched = state is not None and state[0] == "autograd"
        matters = any(x.requires_grad for x in arrays)
        same, count = self.guard(arrays), len(arrays)

        def fits(others: Sequence[Array]) -> bool:
            return (
                # The guards raise on another number.
                len(others) == count
                and same(*others)
                and (not matters or torch.is_grad_enabled() is watched)
                and not modes()
                and forward_ad._current_level < 0
                and not _deterministic()
            )

        if state is not None and state[2:]:
            # The guards tell regions of a device from what is outside, and not their dtypes.
            region = state[2:]
            return lambda others: fits(others) and region_of(others) == region
        if matters and not watched:
            unwatched = self.matcher([x.detach() for x in arrays])
            return lambda others: fits(others) or unwatched(others)
        return fits

    def guard(self, arrays: Sequence[Array]) -> Callable[..., bool]:
        """``(*others)``: whether they are such tensors, and watched as these are.

        Whether gradients are recorded makes no difference. Without such guards in torch, none are.
        """
        if TensorGuards is None or any(x is None for x in arrays):
            return lambda *others: False
        shapes = [list(x.shape) for x in arrays]
        strides = [list(x.stride()) for x in arrays]
        # Types, dtypes, devices, sizes, strides, gradients and dispatch keys in one call.
        guards = TensorGuards(*arrays, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides)
        return guards.check  # type: ignore[no-any-return]

    def readable(self, x: Array) -> bool:
        return bool(
            x.device.type == "cpu"
            and type(x) in _PLAIN_TYPES
            and not torch.compiler.is_compiling()
            and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        )

    def search(self, x: Array, bad: Callable[[Array], Array]) -> Any:
        """Begin to look for the first bad entry; nothing is left in a graph."""
        hidden = _compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x)
        if hidden or x.device.type != "cuda" or type(x) not in _PLAIN_TYPES:
            return None
        if torch.cuda.is_current_stream_capturing():
            return None
        with torch.cuda.device(x.device):
            flat = x.detach().reshape(-1)
            strange = bad(flat).to(torch.int64)
            first = strange.argmax()
            host, told = (torch.empty(n, dtype=torch.int64, pin_memory=True) for n in (3, 1))
            told.fill_(-1)
            found = torch.stack([strange.take(first), first, flat.take(first).to(torch.int64)])
            host.copy_(found, non_blocking=True)
            # Behind the rest.
            told.copy_(found[:1], non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call]
            done.record()
        return lambda: told.item() >= 0, done.synchronize, host.tolist

    def _at_hand(self, x: Array) -> bool:
        """Whether `x` is readable, and nothing records or transforms what is done with it."""
        state = self.state((x,))
        return self.readable(x) and (state is None or state[0] != "traced")

    def _bare(self, x: Array) -> bool:
        """Whether `x` is readable, and nothing but values is asked of what is done with it."""
        if not self.readable(x):
            return False
        state = self.state((x,))
        return state is None or not state[0]

    def view(self, x: Array, dtype: str) -> Array:
        if not _compiling() and transforms() is not None:
            return _Viewed.apply(x, self.dtype(dtype))  # type: ignore[no-untyped-call]
        return x.view(self.dtype(dtype))

    def empty(self, shape: Shape, dtype: str, like: Array, strides: Shape | None) -> Array:
        if strides is None:
            return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
        return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype), device=like.device)

    def conform(self, x: Array, strides: Shape | None) -> Array:
        if strides is None:
            return x.contiguous()
        if tuple(x.stride()) == strides:
            return x
        return torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device).copy_(x)

    def assign(self, out: Array, value: Array, accumulate: bool) -> None:
        if accumulate and out.dtype == value.dtype:
            out.add_(value)
        else:
            out.copy_(out.to(value.dtype) + value if accumulate else value)

    def written(self, outs: Sequence[Array]) -> None:
        # Else autograd would use saved tensors of which a kernel has changed the values.
        try:
            torch.autograd.graph.increment_version(outs)
        except RuntimeError:
            # Tensors of inference mode have no version. To count another twice does no harm.
            torch.autograd.graph.increment_version([x for x in outs if not x.is_inference()])

    def watches(self, x: Array) -> bool:
        return bool(x.requires_grad) and torch.is_grad_enabled()

    def memory(self, x: Array) -> tuple[int, Shape] | None:
        size = x.element_size()
        return x.data_ptr(), tuple(s * size for s in x.stride())

    def apart(self, x: Array, others: Sequence[Array]) -> bool:
        begin, end = x.data_ptr(), _end(x)
        return not [y for y in others if y.data_ptr() < end and begin < _end(y)]

    def stream(self, x: Array) -> int:
        return torch.cuda.current_stream(x.device).cuda_stream

    def shared(self, x: Array) -> Array:
        return x.detach()

    def constant(self, x: Array) -> Array:
        return x.detach()

    def running(self, device: str) -> AbstractContextManager[Any]:
        # Matrix products in a body are of the dtypes that it gives them.
        if not _any_autocast():
            return _AS_IT_IS
        kind = device.partition(":")[0]
        narrows = kind in _REGIONS and torch.is_autocast_enabled(kind)
        return torch.autocast(kind, enabled=False) if narrows else _AS_IT_IS

    def hosted(self, x: Array) -> tuple[Any, Callable[[Any], Array]] | None:
        if not self._bare(x) or x.dtype == torch.bfloat16:
            return None
        return x.detach().resolve_neg().numpy(), torch.from_numpy

    def masked(self, x: Array, keep: Array) -> Array | None:
        if not (self._at_hand(x) and _plain(x)):
            return None
        # By bits: torch's `where` stalls on masks that no branch predictor can follow.
        bits = x.view(getattr(torch, f"int{8 * x.itemsize}"))
        return bits.bitwise_and_(keep.to(bits.dtype).neg_()).view(x.dtype)

    def plus(self, x: Array, y: Array, factor: float) -> Array:
        # torch refuses a factor beyond the range of the dtype.
        return torch.add(x, y, alpha=factor) if abs(factor) < _FAR else x + factor * y

    def sigmoid(self, x: Array) -> Array:
        return torch.sigmoid(x)

    def inverse_root(self, x: Array) -> Array:
        # As models in torch have it; its square root on a CPU is not always the nearest number.
        return torch.rsqrt(x)

    def softmax(self, x: Array, axis: int, keep: Array | None) -> Array:
        if self._at_hand(x):
            y = torch.softmax(x if keep is None else x.masked_fill(~keep, -torch.inf), axis)
            # NaN has spread over its row, and fills a row of which nothing counts.
            if not y.detach().sum().isnan():
                return y
        return super().softmax(x, axis, keep)

    def log_softmax(self, x: Array) -> Array:
        return torch.log_softmax(x, -1)

    def turned(self, x: Array, cos: Array, sin: Array) -> Array:
        if not self._at_hand(x):
            return super().turned(x, cos, sin)
        x = x.contiguous()
        # Complex numbers begin at even offsets alone.
        x = x.clone() if x.storage_offset() % 2 else x
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)

    def halves(self, first: Array, second: Array, like: Array) -> Array:
        plain = _plain(first) and forward_ad._current_level < 0
        out = torch.empty_like(like) if plain else None
        return torch.cat((first, second), -1, out=out)

    def take(self, x: Array, index: Array, axis: int) -> Array:
        line = self._line(index, axis)
        if line is None:
            return torch.gather(x, axis, index.long())
        return x[near(index.shape, axis)].index_select(axis, line)

    def _line(self, index: Array, axis: int) -> Array | None:
        """The entries of an index at hand that varies along `axis` alone, None for any other."""
        if not self._at_hand(index):
            return None
        once, extent = self.once(index), index.shape[axis]
        # A stride of 0 along the axis itself may leave as many entries along another one.
        return once.reshape(-1) if once.shape[axis] == once.numel() == extent else None

    def product(self, a: Array, b: Array, bias: Array | None = None) -> Array:
        # The sums begin with the bias: one pass, and one rounding.
        return torch.matmul(a, b) if bias is None else torch.addmm(bias, a, b)

    def add_product(self, total: Array | None, a: Array, b: Array) -> Array:
        if not _plain(a):
            return super().add_product(total, a, b)
        if not (a.is_cuda and a.itemsize == 2):
            product = torch.mm(a, b) if a.itemsize > 2 else self._widely(a, b)
            return product if total is None else total.add_(product)
        if total is None:
            return torch.mm(a, b, out_dtype=torch.float32)
        # In parts, since each takes memory of its own beside the total.
        few = max(_PART // max(total.shape[1], 1), 1)
        for x, y in zip(total.split(few), a.split(few), strict=True):
            torch.addmm(x, y, b, out_dtype=torch.float32, out=x)
        return total

    def add_rounded(self, total: Array | None, a: Array, b: Array) -> Array:
        if total is None or not _plain(a):
            return super().add_rounded(total, a, b)
        return total.addmm_(a, b)

    def scaled(self, total: Array, scale: Array) -> Array:
        return total.mul_(scale) if _plain(total) else total * scale

    def put(self, x: Array, index: Array, values: Array, axis: int) -> Array:
        return x.scatter_(axis, index.long(), values)

    def highest(self, values: Array, index: Array, extent: int) -> Array:
        none = values.new_full((extent + 1, *values.shape[1:]), -math.inf)
        at = index.long().reshape(-1, *[1] * (values.ndim - 1)).expand_as(values)
        return none.scatter_reduce(0, at, values, "amax", include_self=False)[:extent]

    def combined(
        self, values: Array, index: Array, axis: int, shape: Shape, how: str, none: float
    ) -> Array:
        start, how = values.new_full(shape, none), how if how == "prod" else "amax"
        return start.scatter_reduce(axis, index.long(), values, how, include_self=False)

    def scatter_add(self, values: Array, index: Array, axis: int, shape: Shape) -> Array:
        out = torch.zeros(shape, dtype=values.dtype, device=values.device)
        line = self._line(index, axis)
        if line is None:
            add = out.scatter_add_ if self._at_hand(values) else out.scatter_add
            return add(axis, index.long(), values)
        out[near(index.shape, axis)].index_add_(axis, line, values)
        return out


class _Viewed(torch.autograd.Function):
    """The bytes of a tensor as another dtype of its size, which `vmap` of torch 2.11 has not."""

    @staticmethod
    def forward(x: Array, dtype: Any) -> Array:
        return x.view(dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Array) -> None:
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        return None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Array, dtype: Any) -> Any:
        return _Viewed.apply(x, dtype), in_dims[0]  # type: ignore[no-untyped-call]


def region_of(arrays: Sequence[Array]) -> Region:
    """The autocast region for the device of the arrays."""
    device = getattr(arrays[0], "device", None) if arrays else None
    kind = device.type if isinstance(device, torch.device) else ""
    if kind not in _REGIONS or not torch.is_autocast_enabled(kind):
        return ()
    return name_of(torch.get_autocast_dtype(kind)), kind


def is_batch(x: Any) -> bool:
    """Whether `x` is a batch of cotangents that autograd takes for one (`is_grads_batched`).

    It has no memory, and no transform of `torch.func` is there to say so.
    """
    return isinstance(x, torch.Tensor) and _is_batch(x)


def _pattern(arrays: Sequence[Array]) -> tuple[int, ...]:
    """Of each array the place of the first that it is; of what is left out -1."""
    first: dict[int, int] = {}
    return tuple([-1 if x is None else first.setdefault(id(x), i) for i, x in enumerate(arrays)])


def _plain(x: Array) -> bool:
    """Whether `x` may be written to: nothing records or transforms what is done with it."""
    return type(x) in _PLAIN_TYPES and transforms() is None and not x.requires_grad


_dtype_name = cache(name_of)
_device_name = lru_cache(maxsize=256)(str)


def _end(x: Array) -> int:
    """The address behind the last byte; strides are never negative."""
    size = x.nbytes
    if not x.is_contiguous():
        steps = [step * (n - 1) for n, step in zip(x.shape, x.stride(), strict=True)]
        size = x.itemsize * (sum(steps) + 1)
    return int(x.data_ptr() + size)


def _materialised(x: Array) -> bool:
    """Whether its memory has its values: not that of a lazily conjugated or negated view."""
    return not (x.is_conj() or x.is_neg())


def _alignment(x: Array) -> int:
    """The power of two up to 16 that divides the address; 16 for what has none."""
    if type(x) not in _PLAIN_TYPES:
        return 16
    try:
        address = x.data_ptr()
    except RuntimeError:
        return 16
    return alignment(address)


ADAPTER = Torch()
# Of what `torch.fx` puts in the place of tensors, no facts are to be had.
adopt(torch.fx.Proxy, ADAPTER)
