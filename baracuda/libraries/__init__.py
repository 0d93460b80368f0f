"""One adapter per array library: the facts of an array that a plan depends on, and its allocator.

An array's library, which is loaded where there is one, is found from its type, once per type.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

from baracuda.declaration.dtypes import name_of, named
from baracuda.forks import import_module
from baracuda.layouts import Shape

Array: TypeAlias = Any
"""Any array-API array."""
A = TypeVar("A", bound=Any)
"""The type of an op's results: that of its primal, the one argument of each op that is an `A`.

Were others too, type checkers would join theirs with it: float32 of two axes and int64 of one.
"""

TRACED = "traced"
"""The device of an array that stands for one: none in particular."""

State: TypeAlias = tuple[Any, ...]
"""Mode (see `Problem`) of arrays, global determinism; within an autocast region also that."""

Region: TypeAlias = tuple[str, ...]
"""The dtype of an autocast region and the kind of device that it is for; nothing outside of one."""


class Facts(NamedTuple):
    """What `check` reads off an array.

    `strides` are in elements, None where there are none; `alignment` is the power of two up to 16
    that divides the address, where kernels depend on it, and 0 where they would not read values.
    """

    dtype: str
    shape: Shape
    strides: Shape | None
    device: str
    alignment: int = 16


class Library:
    """What baracuda asks of an array library; the defaults fit any array-API namespace.

    Attributes
    ----------
    name : str
        The library's name, as it stands in plan keys.
    xp : module
        Its array-API namespace.
    writable : bool
        Whether `out=` arrays are possible.
    differentiates : bool
        Whether gradients may be taken through its functions.
    stored_as : mapping
        For each dtype that the library can only store, one of its size that it can move.
    """

    name: str
    xp: Any
    writable: bool = True
    differentiates: bool = True
    fuses: bool = False  # elementwise functions, so that none is a pass of its own
    stored_as: Mapping[str, str] = MappingProxyType({})
    combined: Any = None  # of maxima, products and last values a method, where there is one
    search: Any = None  # of a bad entry a method, where a device can do it while nobody waits
    log_softmax: Any = None  # along the last axis, NaN where nothing is above -inf
    hosted: Any = None  # of an array on a host NumPy's view, and what takes such memory over
    plus: Any = None  # of x, y and a number a method that gives x + number*y in one pass
    masked: Any = None  # one that gives x where it is to be kept, else 0
    follows: Any = None  # one that says whether x goes to the device of what it meets

    def takes(self, x: Array) -> bool:
        """Whether `x`, of a class that derives from one of this library, is an array of it.

        Raises
        ------
        TypeError
            Where it is, but means something else.
        """
        return hasattr(x, "dtype") and hasattr(x, "shape")

    def facts(self, x: Array) -> Hashable:
        """The cheapest hashable value that tells apart any two arrays needing two plans."""
        return (self.name, x.dtype, x.shape, str(self.device_of(x)))

    def describe(self, x: Array) -> Facts:
        """The facts of `x` under their portable names."""
        return Facts(name_of(x.dtype), tuple(x.shape), self.strides(x), str(self.device_of(x)))

    def strides(self, x: Array) -> Shape | None:
        """The strides of `x` in elements, None where the library does not have them."""
        return None

    def device_of(self, x: Array) -> Any:
        """The library's own device object, None where tracing hides it."""
        return getattr(x, "device", None)

    def state(self, arrays: Sequence[Array]) -> State | None:
        """What is in force beside the facts of the arrays; None: plain."""
        return None

    def matcher(self, arrays: Sequence[Array]) -> Callable[[Sequence[Array]], bool]:
        """Tells whether others need the same plan as `arrays`, at the least cost per call."""
        want = facts_of(arrays)
        return lambda others: facts_of(others) == want

    def readable(self, x: Array) -> bool:
        """Whether the values of `x` can be looked at without waiting for a device."""
        return "cpu" in str(self.device_of(x)).lower()

    def values(self, x: Array) -> Array:
        """A readable `x` as an array that can be computed with at once."""
        return x

    def dtype(self, name: str) -> Any:
        """The library's dtype object called `name`; AttributeError where it has none."""
        return getattr(self.xp, name)

    def held_as(self, name: str) -> str:
        """The dtype that new arrays have which are to be of dtype `name`."""
        return name

    def view(self, x: Array, dtype: str) -> Array:
        """The bytes of `x` as elements of another dtype of the same size."""
        return x.view(self.dtype(dtype))

    def empty(self, shape: Shape, dtype: str, like: Array, strides: Shape | None) -> Array:
        """A new array on the device of `like`, in C order unless dense `strides` are given."""
        return self.xp.empty(shape, dtype=self.dtype(dtype), device=self.device_of(like))

    def conform(self, x: Array, strides: Shape | None) -> Array:
        """`x` in C order, or in the dense order of `strides`; as it is without a layout."""
        return x

    def assign(self, out: Array, value: Array, accumulate: bool) -> None:
        """Write `value` into `out`, or add it in the dtype of `value`, rounding once."""
        if accumulate:
            value = self.xp.astype(out, value.dtype) + value
        out[...] = self.xp.astype(value, out.dtype, copy=False)

    def written(self, outs: Sequence[Array]) -> None:
        """Take note that memory of `outs` has new values, which the library may not have seen."""

    def memory(self, x: Array) -> tuple[int, Shape] | None:
        """Address of the first element and strides in bytes, None where there is no such thing."""
        return None

    def apart(self, x: Array, others: Sequence[Array]) -> bool:
        """Whether `x` surely shares no memory with `others`; False where `memory` has to tell."""
        return False

    def stream(self, x: Array) -> int:
        """The handle of the current stream of the device of `x`."""
        return 0

    def shared(self, x: Array) -> Array:
        """`x` as another library may look at its memory."""
        return x

    def constant(self, x: Array) -> Array:
        """`x`, a constant to whoever differentiates."""
        return x

    def watches(self, x: Array) -> bool:
        """Whether the library would have to record what is written to `x`."""
        return False

    def frozen(self, x: Array) -> bool:
        """Whether writing to `x` is forbidden."""
        return False

    def clip(self, x: Array, low: float | None, high: float | None) -> Array:
        """`x` held between two numbers, of which one may be left out; NaN at NaN."""
        return self.xp.clip(x, low, high)

    def sigmoid(self, x: Array) -> Array:
        """The logistic function. Where exp overflows the quotient is 0, as it should be."""
        return 1 / (1 + self.xp.exp(-x))

    def less_largest(self, x: Array, axis: int) -> Array:
        """`x` less the largest along an axis; as it is where that is -inf."""
        if x.shape[axis] == 0:
            return x
        most = self.xp.max(self.constant(x), axis=axis, keepdims=True)
        return x - self.xp.where(most == -self.xp.inf, 0, most)

    def softmax(self, x: Array, axis: int, keep: Array | None) -> Array:
        """Exponentials of `x` as parts of their sum, 0 where they are not kept."""
        xp = self.xp
        x = x if keep is None else xp.where(keep, x, -xp.inf)
        powers = xp.exp(self.less_largest(x, axis))
        total = xp.sum(powers, axis=axis, keepdims=True)
        y = powers / xp.where(total == 0, 1, total)
        return y if keep is None else xp.where(keep, y, 0)

    def turned(self, x: Array, cos: Array, sin: Array) -> Array:
        """Neighbouring pairs of the last axis, each turned by its angle."""
        pairs = self.xp.reshape(x, (*x.shape[:-1], x.shape[-1] // 2, 2))
        first, second = pairs[..., 0], pairs[..., 1]
        pair = (first * cos - second * sin, first * sin + second * cos)
        return self.xp.reshape(self.xp.stack(pair, axis=-1), x.shape)

    def halves(self, first: Array, second: Array, like: Array) -> Array:
        """Both along the last axis, in the layout of `like`, of their shape, where it can be."""
        return self.xp.concat([first, second], axis=-1)

    def once(self, x: Array) -> Array:
        """A readable `x` without what broadcasting repeats; any other as it is."""
        strides = self.strides(x) if self.readable(x) else None
        if strides is None or 0 not in strides:
            return x
        return x[tuple(slice(1) if step == 0 else slice(None) for step in strides)]

    def spans(self, index: Array, n: int) -> bool:
        """Whether all entries of an index, which can be read, are from 0 to n - 1."""
        return bool(self.xp.all((index >= 0) & (index < n)))

    def take(self, x: Array, index: Array, axis: int) -> Array:
        """The elements of `x` that `index` points to along an axis, all in range."""
        # What the namespace itself indexes with: libraries differ in which integers they take.
        native = self.xp.__array_namespace_info__().default_dtypes()["indexing"]
        at = self.xp.astype(index, native, copy=False)
        return self.xp.take_along_axis(x[near(index.shape, axis)], at, axis=axis)

    def lookup(self, x: Array, index: Array, axis: int) -> Array | None:
        """`x` with the axes of an index in the place of one, all in range; None: no own way."""
        return None

    def added(self, values: Array, index: Array, axis: int, extent: int) -> Array | None:
        """The transpose of `lookup`, of entries in range; None: no own way."""
        return None

    def highest(self, values: Array, index: Array, extent: int) -> Array | None:
        """The largest row of each entry but `extent`; ties share a gradient. None: no own way."""
        return None

    def dot(self, x: Array, y: Array) -> Array:
        """The sums of products along the last axis, which stays."""
        return self.xp.sum(x * y, axis=-1, keepdims=True)

    def inverse_root(self, x: Array) -> Array:
        """One over the square root."""
        return 1 / self.xp.sqrt(x)

    def scatter_add(self, values: Array, index: Array, axis: int, shape: Shape) -> Array | None:
        """Zeros of `shape` with `values` added at `index`, all in range; None: no fast route."""
        return None

    def put(self, x: Array, index: Array, values: Array, axis: int) -> Array:
        """`x` with values of each row at `index`, alike where it repeats; may be written to `x`."""
        every = self.xp.arange(x.shape[axis], dtype=index.dtype, device=self.device_of(index))
        every, before = self.xp.reshape(every, (-1, *(1,) * (x.ndim - axis - 1))), (slice(None),)
        for one in [(*before * axis, slice(k, k + 1), ...) for k in range(index.shape[axis])]:
            x = self.xp.where(every == index[one], values[one], x)
        return x

    def rounded(self, x: Array, dtype: str) -> Array:
        """The values of `x` in a narrower dtype, in the dtype of `x`."""
        return self.xp.astype(self.xp.astype(x, self.dtype(dtype)), x.dtype)

    def product(self, a: Array, b: Array, bias: Array | None = None) -> Array:
        """The matrix product, `bias` added to each row, in their dtype: wide sums, rounded once."""
        product = self._widely(a, b)
        if bias is not None:
            product = product + self.xp.astype(bias, product.dtype, copy=False)
        return self.xp.astype(product, a.dtype, copy=False)

    def add_product(self, total: Array | None, a: Array, b: Array) -> Array:
        """The matrix product in the accumulate dtype, added to `total` where there is one."""
        product = self._widely(a, b)
        return product if total is None else total + product

    def add_rounded(self, total: Array | None, a: Array, b: Array) -> Array:
        """The same in the dtype of `a` and `b`: the sum is rounded each time."""
        product = self.product(a, b)
        return product if total is None else total + product

    def scaled(self, total: Array, scale: Array) -> Array:
        """The products with a number, in the place of `total` where nobody could tell."""
        return total * scale

    def _widely(self, a: Array, b: Array) -> Array:
        wide = self.dtype(named(name_of(a.dtype)).accumulate)
        return self.xp.matmul(*[self.xp.astype(x, wide, copy=False) for x in (a, b)])

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``(arrays, scalars)`` of concrete arrays, as one program where the library makes such."""
        return function

    def arch(self, device: str) -> str:
        """The architecture that computes on `device`, for the SKU."""
        return platform.machine() if "cpu" in device.lower() else device

    def compiled_for(self) -> str:
        """The device for which programs are compiled while arrays of it are traced."""
        return TRACED

    def differs(self, x: Array, value: int) -> Array:
        """``x != value`` of integers, also of a value that their dtype does not hold."""
        held = self.xp.iinfo(x.dtype)
        return x != value if held.min <= value <= held.max else x == x

    def joined(self, low: Array, high: int) -> Any:
        """64 bits as ops take them: the low 32 are an integer array without axes."""
        return self.xp.astype(low, self.dtype("int64")) + (high << 32)

    def wide_integers(self) -> AbstractContextManager[Any]:
        """A block in which arrays of int64 can be made, whatever the library is set to."""
        return nullcontext()

    def running(self, device: str) -> AbstractContextManager[Any]:
        """A block that computes on `device`; floating-point exceptions neither warn nor raise."""
        return nullcontext()


_modules = sys.modules
_ADAPTERS = {"numpy": "numpy", "torch": "torch", "cupy": "cupy", "jax": "jax", "jaxlib": "jax"}
_LOADED: dict[str, Library] = {}
_BY_TYPE: dict[type, Library] = {}
# type -> the adapter's own method; the second has only types whose library has a state at all.
FACTS: dict[type, Callable[[Array], Hashable]] = {type(None): lambda x: None}
STATES: dict[type, Callable[[Sequence[Array]], State | None]] = {}

# What the facts of a new type, of no array and of a value without a hash raise.
UNFIT = (KeyError, IndexError, TypeError, AttributeError, RuntimeError)


def facts_of(arrays: Sequence[Array]) -> tuple[State | None, tuple[Hashable, ...]]:
    """What watches the arrays of a call, and the cheapest facts of each.

    One of `UNFIT` for what is no array of a library that has been met.
    """
    facts = tuple([FACTS[type(x)](x) for x in arrays])
    # Last: a type that another thread is just meeting has its state before its facts.
    state_of = STATES.get(type(arrays[0]))
    return None if state_of is None else state_of(arrays), facts


def compiling() -> Any:
    """The module torch while it traces for a compiled program, else None."""
    torch = _modules.get("torch")
    # While another thread imports torch, it is there without its parts.
    compiler = getattr(torch, "compiler", None)
    return torch if compiler is not None and compiler.is_compiling() else None


def alignment(address: int) -> int:
    """The power of two up to 16 that divides an address; 16 for that of an empty array."""
    return min(address & -address or 16, 16)


def near(shape: Shape, axis: int) -> tuple[slice, ...]:
    """The corner of an array where an index of this shape points into."""
    return tuple(slice(None) if i == axis else slice(n) for i, n in enumerate(shape))


def library(name: str) -> Library:
    """The adapter called `name` (``numpy``, ``torch``, ``cupy``, ``jax``); imports the library."""
    if name not in _LOADED:
        _LOADED[name] = import_module(f"baracuda.libraries.{name}").ADAPTER
    return _LOADED[name]


def library_of(x: Array) -> Library:
    """The adapter for the library that `x` belongs to.

    Raises
    ------
    TypeError
        Where `x` is not an array of any library.
    """
    kind = type(x)
    found = _BY_TYPE.get(kind)
    if found is None:
        found = _detect(x)
        if kind in _BY_TYPE:  # adopted by the adapter that was just loaded
            return found
        if type(found).state is not Library.state:
            STATES[kind] = found.state
        FACTS[kind] = found.facts
        _BY_TYPE[kind] = found
    return found


def adopt(kind: type, adapter: Library) -> None:
    """Let what stands for an array while something is traced belong to `adapter`."""
    _BY_TYPE[kind] = adapter


def unwrapped(arrays: Sequence[Array]) -> Sequence[Array]:
    """The arrays themselves, or with the arrays of what is none but has ``__jax_array__``."""
    if not any(map(_wraps, arrays)):
        return arrays
    return [x.__jax_array__() if _wraps(x) else x for x in arrays]


def _wraps(x: Array) -> bool:
    if not hasattr(type(x), "__jax_array__"):
        return False
    try:
        library_of(x)
    except TypeError:
        return True
    return False  # tracers have it as well


# How what is no array gives one, by what it has; the first that fits.
_WAYS = {
    "filled": "x.filled(value)",
    "todense": "x.todense()",
    "to_numpy": "x.to_numpy()",
    "compute": "x.compute()",
    "__array__": "numpy.asarray(x)",
}


def no_array(x: Array, way: str = "") -> TypeError:
    """The error for an `x` that is no array, or more than one, and the `way` to get one."""
    kind = type(x)
    way = way or next((way for name, way in _WAYS.items() if hasattr(kind, name)), "")
    hint = f"; convert it first: {way}" if way else ""
    return TypeError(f"expected an array, got {kind.__module__}.{kind.__qualname__}{hint}")


def _detect(x: Array) -> Library:
    kind = type(x)
    for base in kind.__mro__:
        root = base.__module__.partition(".")[0]
        if root in _ADAPTERS:
            adapter = library(_ADAPTERS[root])
            # Others inherit from classes of NumPy that are no arrays.
            if adapter.takes(x) or kind in _BY_TYPE:
                return adapter
    # Bodies would fill what is sparse.
    if hasattr(kind, "__array_namespace__") and not hasattr(kind, "todense"):
        other: Library = import_module("baracuda.libraries.array_api").adapter(x)
        return other
    raise no_array(x)
