"""Calls that have to be refused, by an error of ours that names the op."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import baracuda as bc
from baracuda.calls.op import registry
from baracuda.errors import BaracudaError
from baracuda.testing.cases import adapter, many

from .draw import Drawn
from .layouts import Layout, Memory

# Values of options that no op takes, and why not is to be said.
_BAD: dict[str, tuple[Any, ...]] = {
    "axis": (99, -99, 1.5, None, True), "seq_axis": (99, -99, 0.5), "reduction": ("most", None, 1),
    "mode": ("clip", None), "approximate": ("erf", 1), "gate_first": (1, "yes", None),
    "interleaved": (1, None), "causal": (1, "no"), "norm_type": (0, -1, math.nan, "2"),
    "keepdims": (1, None), "kind": ("mixed", None), "temperature": (0, -1.0, "1"),
    "grad_dtype": ("float32", None),
    "kernel_size": (0, -1, 1.5, (1, 2, 3)), "stride": (0, -2, "1"), "ceil_mode": (1, None),
    "base": (0, -1.0, "e"), "rotary_dim": (3, -2, 1 << 20), "num_groups": (0, -1, 1.0, 997),
    "label_smoothing": (-0.1, 1.5, "some"), "z_loss": (-1.0, None), "softcap": (-1.0, "x"),
    "ignore_index": (1.5, None), "chunk": (0, -3, 1.5), "p": (-1.0, "2"), "swap": (1, None),
    "num_segments": (-1, 1.5, None), "num_rows": (-1, 1.5, 1 << 31),
    "num_embeddings": (-1, None, 1 << 31),
    "sorted": (1, None), "seed": (1.5, None, 1 << 64),
    "margin": ("1", None), "beta": ("1",), "delta": (0, -1.0), "alpha": ("1", None),
    "lambd": ("1",), "weight": ("1", None), "negative_slope": ("1",), "eps": ("1", None),
    "offset": ("1", math.inf), "casting": ("after", None),
    "scale": ("1", None), "threshold": ("1",), "value": ("1",), "log_target": (1, None),
    "min_val": ("1",), "max_val": (None,), "src_shape": (3, "ab", (-1, 2)), "x_shape": (3, "ab"),
    "weight_shape": (3, "ab", (-1, 2)), "padding_idx": (-1, 1.5, 1 << 40),
    "backend": ("trtion", 3), "nonsense": (1,), "deterministic": ("yes",),
}  # fmt: skip


def check(drawn: Drawn, tally: Any) -> None:
    """Break a legal call in one way, and look at the error."""
    ways = list(_ways(drawn))
    label, attempt = ways[drawn.rng.integers(len(ways))]
    tally.ops[drawn.op] += 1
    tally.kinds["illegal"] += 1
    from .check import Wrong

    try:
        with np.errstate(all="raise"):
            got = attempt()
            if drawn.device != "cpu":
                # An index is looked at by the kernel: its error is the next call's.
                bc.check_errors()
    except (ValueError, TypeError, IndexError, NotImplementedError) as error:
        if not isinstance(error, BaracudaError):
            raise Wrong(f"{label}: a raw {type(error).__name__}: {error}") from error
        names = [drawn.op]
        if drawn.spec.composite and drawn.device != "cpu" and isinstance(error, IndexError):
            # A composite's index on a GPU is met by the kernel of an op inside, which it names.
            inner = drawn.op.removeprefix("linear_").partition("_with")[0].partition("_back")[0]
            names += [inner, "embedding", "gather"]
        if not any(name in str(error) for name in names):
            raise Wrong(f"{label}: the error does not name the op: {error}") from error
    else:
        shapes = [tuple(x.shape) for x in many(got)]
        raise Wrong(f"{label}: no error, but results {shapes}")
    for name, memory in drawn.arrays.items():
        if not memory.unharmed():
            raise Wrong(f"{label}: input {name} was changed")


def _ways(drawn: Drawn) -> Iterator[tuple[str, Callable[[], Any]]]:
    op, given, options, spec = registry[drawn.op], drawn.given, drawn.options, drawn.spec
    rng = drawn.rng
    at = int(rng.integers(len(given)))
    name = spec.arrays[at]

    def instead(x: Any) -> Callable[[], Any]:
        return lambda: op(*given[:at], x, *given[at + 1 :], **options)

    yield f"no array in the place of {name}", instead(rng.choice([1.5, 0]).item())
    yield f"a string in the place of {name}", instead("x")
    if given[at] is not None:
        memory = drawn.arrays[name]
        shape = memory.layout.shape
        for axis in _shared(drawn, name):
            longer = tuple(n + 9 * (i == axis) for i, n in enumerate(shape))
            yield f"{name} of shape {longer}", instead(_fresh(drawn, name, longer))
        if len(given) > 1:
            other = "torch" if drawn.library == "numpy" else "numpy"
            yield f"{name} of {other}", instead(_fresh(drawn, name, shape, library=other))
        wrong = "float32" if spec.dtype_of(name, "", "index") == "index" else "int64"
        if "int64" not in spec.dtypes or wrong != "int64":
            yield f"{name} of {wrong}", instead(_fresh(drawn, name, shape, dtype=wrong))
    yield "too many arrays", lambda: op(*given, *given, *given, *given, **options)
    if len(given) > 1:
        yield "one array", lambda: op(**options)
    names = [n for n in _BAD if n in spec.options or n in spec.scalars]
    for key in (*names, "backend", "nonsense", "deterministic"):
        bad = _BAD[key][rng.integers(len(_BAD[key]))]
        yield f"{key}={bad!r}", lambda key=key, bad=bad: op(*given, **{**options, key: bad})
    yield from _indices(drawn, op)
    yield from _outs(drawn, op)


def _shared(drawn: Drawn, name: str) -> list[int]:
    """The axes of an input that are as long as those of another input."""
    patterns = {p.name: p for p in drawn.form.inputs if not p.is_option}
    others = [t for n, p in patterns.items() if n != name for t in p.terms]
    firm = {t.name for t in others if not (t.or_one or t.bound)}
    shape, out, at = drawn.arrays[name].layout.shape, [], 0
    for term in patterns[name].terms:
        count = len(drawn.axes[term.name]) if term.group else 1
        if term.name in firm and not term.bound:
            out += range(at, at + count)
        at += count
    return [i for i in out if i < len(shape)][:1]


def _fresh(drawn: Drawn, name: str, shape: Any, **more: str) -> Any:
    """A plain array like that of `name`."""
    strides = [math.prod([max(n, 1) for n in shape[i + 1 :]]) for i in range(len(shape))]
    memory = drawn.arrays[name]
    layout = Layout(tuple(shape), tuple(strides), 0, max(math.prod(shape), 1))
    library, dtype = more.get("library", drawn.library), more.get("dtype", memory.dtype)
    device = drawn.device if library == "torch" else "cpu"
    if library == "numpy" and drawn.device != "cpu":
        library = "torch"
        device = "cpu"
    return Memory(layout, dtype, library, device, lambda n: np.zeros(n)).array


def _indices(drawn: Drawn, op: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Indices out of range, where that is an error."""
    options = drawn.options
    if drawn.device != "cpu":
        plan = op.plan(*drawn.given, **options)
        # Where there is nothing to write, a device reads nothing.
        if not any(math.prod(x.shape) for x in plan.problem.outputs):
            return
    for name in drawn.spec.indices:
        if options.get("mode", "raise") != "raise" or "mode" not in drawn.spec.options:
            continue
        if name not in drawn.arrays or not math.prod(drawn.arrays[name].layout.shape):
            continue
        values = drawn.arrays[name].values()
        place = tuple(int(drawn.rng.integers(n)) for n in values.shape)
        if name != "rows" and "rows" in drawn.arrays and drawn.device != "cpu":
            # A device reads what belongs to the rows that are listed, and nothing else.
            listed = drawn.arrays["rows"].values()
            if not listed.size:
                continue
            place = (int(listed[place[0] % listed.size]), *place[1:])
        values[place] = drawn.rng.choice([-1, 10**6])
        memory = drawn.arrays[name]
        strides = [math.prod(values.shape[i + 1 :]) for i in range(values.ndim)]
        layout = Layout(values.shape, tuple(strides), 0, values.size)
        bad = Memory(layout, memory.dtype, drawn.library, drawn.device, values).array
        given = [bad if n == name else x for n, x in zip(drawn.spec.arrays, drawn.given,
                                                         strict=False)]  # fmt: skip
        yield f"{name} out of range", lambda given=given: op(*given, **options)


def _outs(drawn: Drawn, op: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Outputs that do not fit, and sums where there are none."""
    given, options, scalars = drawn.given, drawn.options, drawn.scalars
    try:
        plan = op.plan(*given, **options)
    except BaracudaError:
        return
    first = plan.problem.outputs[0]
    if not adapter(drawn.library).writable:
        yield (
            "out of a library whose arrays are immutable",
            lambda: plan(*given, out=op(*given, **options), **scalars),
        )
        return

    def out(shape: Any, dtype: str) -> Any:
        strides = [math.prod([max(n, 1) for n in shape[i + 1 :]]) for i in range(len(shape))]
        layout = Layout(tuple(shape), tuple(strides), 0, max(math.prod(shape), 1))
        return Memory(layout, dtype, drawn.library, drawn.device, lambda n: np.zeros(n)).array

    outputs = [out(x.shape, x.dtype) for x in plan.problem.outputs]

    def pack(first: Any) -> Any:
        return (first, *outputs[1:]) if len(outputs) > 1 else first

    wide = out((*first.shape, 2), first.dtype)
    yield "out of another shape", lambda: plan(*given, out=pack(wide), **scalars)
    other = "float64" if first.dtype != "float64" else "float32"
    narrow = out(first.shape, other)
    yield "out of another dtype", lambda: plan(*given, out=pack(narrow), **scalars)
    yield "too many outputs", lambda: plan(*given, out=(*outputs, outputs[0]), **scalars)
    yield "out is no array", lambda: plan(*given, out=pack(1.5), **scalars)
    if not any(drawn.spec.adds_into(p.name) for p in drawn.form.outputs):
        yield (
            "accumulate without a gradient",
            lambda: plan(*given, out=pack(outputs[0]), accumulate=True, **scalars),
        )
    else:
        yield "accumulate without out", lambda: plan(*given, accumulate=True, **scalars)
    if drawn.library == "numpy":
        frozen = np.broadcast_to(out((), first.dtype), first.shape)
        yield "out is read-only", lambda: plan(*given, out=pack(frozen), **scalars)
    if max(first.shape, default=0) > 1 and drawn.library == "torch" and 0 not in first.shape:
        repeated = out((), first.dtype).expand(first.shape)
        yield "out overlaps itself", lambda: plan(*given, out=pack(repeated), **scalars)
