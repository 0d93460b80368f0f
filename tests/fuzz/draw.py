"""A call from a seed and a number: op, library, shapes, options, values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import baracuda.ops  # noqa: F401
from baracuda import backends
from baracuda.calls.op import registry
from baracuda.declaration.dtypes import named
from baracuda.declaration.shapes import Condition, Signature
from baracuda.declaration.spec import OpSpec
from baracuda.testing.cases import adapter, holds

from . import layouts
from .layouts import Memory

OPS = tuple(registry)
# Elements of an array, and of the few that are longer.
MOST, LONG = 400, 5000
EXTENTS = (0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 33)
RANKS = (0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6, 7, 8)
STYLES = ("plain", "plain", "plain", "ties", "tiny", "wild", "wild")
# JAX compiles what it runs, so it is rare.
HOST = {"numpy": 0.46, "torch": 0.47, "array_api_strict": 0.067, "jax": 0.003}


@dataclass
class Drawn:
    """One call, laid out in memory."""

    seed: int
    number: int
    op: str
    library: str
    device: str
    dtype: str
    form: Signature
    axes: dict[str, Any]
    options: dict[str, Any]
    style: str
    arrays: dict[str, Memory]
    rng: Any

    @property
    def spec(self) -> OpSpec:
        return registry[self.op].spec

    @property
    def given(self) -> list[Any]:
        """The positional arguments, None for one that is left out before another."""
        out = [
            self.arrays[name].array if name in self.arrays else None for name in self.spec.arrays
        ]
        while out and out[-1] is None:
            out.pop()
        return out

    @property
    def scalars(self) -> dict[str, Any]:
        return {k: v for k, v in self.options.items() if k in self.spec.scalars}

    def __str__(self) -> str:
        arrays = ", ".join(
            f"{n}: {m.dtype}{list(m.layout.shape)} strides {list(m.layout.strides)}"
            f" offset {m.layout.offset}{' skewed' * bool(m.layout.skew)}"
            for n, m in self.arrays.items()
        )
        return f"{self.op} {self.library} {self.device} {self.style} {self.options} ({arrays})"


@cache
def claimed(op: str, library: str, device: str) -> dict[str, tuple[str, ...]]:
    """The dtypes that each backend takes and the library has."""
    claims = backends.claims(registry[op].spec, library, device)
    held = {b: tuple(d for d in dtypes if holds(library, d)) for b, dtypes in claims.items()}
    return {b: dtypes for b, dtypes in held.items() if dtypes}


def case(seed: int, number: int, device: str = "cpu") -> Drawn:
    """The call of this seed and number, always the same."""
    rng = np.random.default_rng([seed, number])
    op = OPS[number % len(OPS)]
    library = "torch" if device != "cpu" else str(rng.choice(list(HOST), p=list(HOST.values())))
    return drawn(rng, seed, number, op, library, device)


def drawn(rng: Any, seed: int, number: int, op: str, library: str, device: str) -> Drawn:
    spec = registry[op].spec
    dtypes = sorted({d for kinds in claimed(op, library, device).values() for d in kinds})
    dtype = str(rng.choice(dtypes))
    if library == "jax":
        dtype = str(rng.choice([d for d in dtypes if named(d).itemsize <= 4]))
    # Of rounded logits, which is the largest may depend on the rounding.
    metrics = Condition("metrics", "True", True)
    forms = [f for f in spec.signatures if not (spec.composite and metrics in f.conditions)]
    form = forms[rng.integers(len(forms))]
    style = str(rng.choice(STYLES))
    if style == "wild" and (spec.composite or "kind" in spec.options):
        # What 0 * inf gives in a product of matrices is for its library to say, and which
        # probabilities are 0 for the dtype.
        style = "plain"
    if style in ("tiny", "wild") and library == "jax":
        # XLA flushes denormal numbers on a CPU.
        style = "infinite" if style == "wild" else "plain"
    options = _options(rng, spec, form, dtype)
    if options.get("reduction") == "prod" and style != "ties":
        # Products of huge or tiny numbers leave the range of float32 on the way.
        style = "plain"
    axes = _axes(rng, spec, form, options, device)
    out = Drawn(seed, number, op, library, device, dtype, form, axes, options, style, {}, rng)
    for pattern in form.inputs:
        shape = _shape(rng, pattern, axes)
        if pattern.is_option:
            options[pattern.name] = shape
        else:
            out.arrays[pattern.name] = _array(out, pattern.name, shape)
    if op.startswith("lp_pool") and op.endswith("backward"):
        _saved_norms(out)
    if op in ("segment_max_backward", "scatter_reduce_backward", "embedding_bag_backward"):
        _saved_result(out)
    return out


# What is not a number as an option: those that have a say in the shapes are drawn with them.
_CHOICES: dict[str, tuple[Any, ...]] = {
    "gate_first": (False, True), "approximate": ("none", "tanh"), "swap": (False, True),
    "log_target": (False, True), "causal": (False, False, True), "interleaved": (True, False),
    "ceil_mode": (False, True), "mode": ("raise", "drop"), "low": (0.0, -2.5), "high": (1.0, 3, 0),
    "mean": (0.0, -1.5), "std": (1.0, 0.3, 0), "chunk": (None, 7, 100),
    "norm_type": (1, 2, 2.0, 3, 0.5, 1.5, 4, math.inf), "base": (10000.0, 10000.0, 50.0, 2),
    "p": (1, 2, 2.0, 3, 1.5, 8), "ignore_index": (-100, -100, 0, 1), "stride": (None, 1, 2, 3),
    "weight": (0.0, 1.0, 0.5, 0.25, 0.3, -2.0, 1.75), "negative_slope": (0.01, 0.25, 0, -0.5, 1.5),
    "alpha": (1.0, 0.5, 2, 0.3, -0.75), "beta": (1.0, 0.5, 2, 0.3), "delta": (1.0, 0.5, 2, 0.3),
    "threshold": (0.0, 0.5, -1, 0.3, 20.0), "value": (0, -1.5, 0.3), "lambd": (0.5, 0, 1.5, 0.3),
    "scale": (1.0, 1.0, 0.5, -2.5, 0.3, 0), "margin": (1.0, 0.0, 0.5, 0.3),
    "label_smoothing": (0.0, 0.0, 0.1, 0.5, 1), "z_loss": (0.0, 0.0, 0.01, 0.5),
    "softcap": (0.0, 0.0, 2.0, 30), "eps": (1e-5, 1e-6, 0.5, 1e-3),
    "offset": (0.0, 1.0, 1.0, -0.3), "casting": ("none", "before_weight"),
    "keepdims": (False, True), "entropy": (False, True), "temperature": (1.0, 0.7, 2, 0.05),
    "lr": (1e-3, 0.1, 0), "beta1": (0.9, 0.5, 0), "beta2": (0.999, 0.95, 0.5), "step": (1, 2, 999),
    "weight_decay": (0.01, 0.1, 0), "momentum": (0.9, 0.5, 0), "dampening": (0.0, 0.0, 0.1),
    "nesterov": (False, True), "grad_scale": (1.0, 128.0, 0.3), "found_inf": (0.0, 0.0, 0.0, 1.0),
    "include_self": (False, True), "copy": (False, True), "stochastic_rounding": (False, True),
    "decay": (0.9, 0.999, 0.5), "max_norm": (1.0, 0.5, 30.0),
    "factor": (0.5, 1.0, -3.0),
    "padding_idx": (None, 0, 0),
    "kind": ("forward", "reverse", "jsd"), "grad_dtype": ("accumulate", "accumulate", "weight"),
    "metrics": (False, True),
    "seed": (0, 5, -3, 2**63 + 11),
}  # fmt: skip
# Where a name means something else.
_OF_MASKS = {"p": (0.1, 0.5, 0, 1, 0.3), "offset": (0, 1, 2**40 + 1),
             "mode": ("row", "batch")}  # fmt: skip


def _options(rng: Any, spec: OpSpec, form: Signature, dtype: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    names = [*spec.options, *spec.scalars]
    if "reduction" in names:
        which = ["mean", "sum", "none", *(["batchmean"] if "log_target" in spec.options else [])]
        which = [
            r for r in which
            if all(c.holds({"reduction": r}) for c in form.conditions if c.option == "reduction")
        ]  # fmt: skip
        which = ["sum", "mean", "max", "min", "prod"] if "include_self" in names else which
        if spec.name.startswith("embedding_bag"):
            which = [r for r in ("sum", "mean", "max") if r == "sum" or not form.conditions]
        out["reduction"] = str(rng.choice(which))
    if "min_val" in names:
        out["min_val"] = float(rng.choice([-1.0, -0.3, 0.0, -2.5]))
        out["max_val"] = float(rng.choice([1.0, 0.3, 0.0, 4.5]))
    for name in names:
        if name in _CHOICES:
            values = _CHOICES[name]
            masks = spec.category == "random" or spec.numbered is True
            if masks or getattr(spec.scalars.get(name), "code", "") == "Q":
                values = _OF_MASKS.get(name, values)
            if spec.name.startswith("triplet") and name == "margin":
                values = values[::2]
            if name == "beta" and "kind" in spec.options:
                values = values[1::2]
            if name not in spec.defaults or rng.random() < 0.6:
                out[name] = values[rng.integers(len(values))]
    for c in form.conditions:
        if c.option in _CHOICES:
            out[c.option] = next(v for v in _CHOICES[c.option] if c.holds({c.option: v}))
    left = {"reduction"} & spec.defaults.keys()
    return {k: v for k, v in out.items() if k not in left or v != "mean" or rng.random() < 0.7}


def _extent(rng: Any) -> int:
    return int(rng.choice(EXTENTS))


def _axes(
    rng: Any, spec: OpSpec, form: Signature, options: dict[str, Any], device: str
) -> dict[str, Any]:
    """An extent for every axis and group that is not derived, and the options that go with it."""
    axes: dict[str, Any] = {}
    every = [t for p in (*form.inputs, *form.outputs) for t in p.terms]
    later = {*form.derived, *(t.name for t in every if t.bound)}
    terms = {t.name: t for t in every if t.name not in later}
    widest = max(form.inputs, key=lambda p: len(p.terms))
    groups = [t.name for t in terms.values() if t.group]
    spare = max(0, int(rng.choice(RANKS)) - widest.fixed)
    lengths = dict.fromkeys(groups, 0)
    for _ in range(spare if groups else 0):
        lengths[groups[rng.integers(len(groups))]] += 1
    if options.get("causal"):
        # The diagonal is of the last two axes, the last of which is normalised.
        lengths["b"], lengths["c"] = max(lengths["b"], 1), 0
    # Where kernels are, the schedules for long rows and many are to be met too.
    times = 1 if device == "cpu" or spec.name.startswith("lp_pool") else 20
    one_long = rng.random() < 0.04
    left = LONG * times if one_long else MOST
    for name, term in terms.items():
        found = []
        for _ in range(lengths[name] if term.group else 1):
            extent = _extent(rng)
            if one_long and rng.random() < 0.5:
                extent, one_long = int(rng.integers(100, 1500 * times)), False
            extent = min(extent, max(left, 1)) if extent else 0
            left = left // max(extent, 1) if extent else left
            found.append(extent)
        axes[name] = tuple(found) if term.group else found[0]
    _adjust(rng, spec, form, axes, options)
    for pattern in form.inputs:
        if pattern.marker:
            at = sum(len(axes[t.name]) if t.group else 1 for t in pattern.terms[: pattern.marked])
            rank = sum(len(axes[t.name]) if t.group else 1 for t in pattern.terms)
            default = spec.defaults.get(pattern.marker)
            if default is None or at - rank != default or rng.random() < 0.5:
                options[pattern.marker] = at - (rank if rng.random() < 0.5 else 0)
    return axes


def _adjust(
    rng: Any, spec: OpSpec, form: Signature, axes: dict[str, Any], options: dict[str, Any]
) -> None:
    """What an op demands of its axes beside the form."""
    name = spec.name
    if "num_groups" in spec.options:
        c = axes["c"] = max(axes["c"], 1)
        options["num_groups"] = int(rng.choice([g for g in range(1, c + 1) if c % g == 0]))
    has_row = options.get("mode", "raise") == "raise" or options.get("padding_idx") is not None
    if counts := spec.options.keys() & {"num_segments", "num_rows", "num_embeddings"}:
        axes["n"] = _extent(rng)
    if spec.category == "indexing" and has_row:
        axes["n"] = max(axes["n"], 1)
    if counts:
        options |= dict.fromkeys(counts, axes["n"])
    if "rotary_dim" in spec.options:
        axes["d"] += axes["d"] % 2
        if axes["d"] and rng.random() < 0.4:
            options["rotary_dim"] = 2 * int(rng.integers(1, axes["d"] // 2 + 1))
    if name.startswith("rope_qk"):
        # q and k have the same axes but for one, along which angles do not change.
        places = [(group, i) for group in ("b", "h") for i in range(len(axes[group]))]
        group, at = places[rng.integers(len(places))] if places else ("", 0)
        for whole, keys, *angles in (("b", "c", "i", "u"), ("h", "g", "j", "v")):
            fewer = list(axes[whole])
            if whole == group and fewer[at]:
                fewer[at] = int(rng.integers(1, fewer[at] + 1))
            axes[keys] = tuple(fewer)
            both = zip(axes[whole], fewer, strict=True)
            axes |= dict.fromkeys(angles, tuple([m if m == n else 1 for m, n in both]))
    if "r" in axes:
        axes["r"] = options.get("rotary_dim") or axes["d"]
        axes["r"] //= 1 + (rng.random() < 0.5)
        # Entries of an empty table are all out of range.
        axes["p"] = max(axes.get("p", 1), 1)
    if "one" in form.derived:
        axes["one"] = 1
    if name.startswith("lp_pool"):
        dims = ["l"] if "1d" in name else ["h", "w"]
        sizes = []
        for dim in dims:
            axes[dim] = max(axes[dim], 1)
            sizes.append(int(rng.integers(1, min(axes[dim], 5) + 1)))
        same = len(set(sizes)) == 1
        options["kernel_size"] = sizes[0] if same or len(dims) == 1 else tuple(sizes)
        strides = options.get("stride") or sizes
        strides = [strides] * len(dims) if isinstance(strides, int) else strides
        for dim, k, s in zip(dims, sizes, strides, strict=True):
            axes["o" + dim] = windows(axes[dim], k, s, options.get("ceil_mode", False))
    if any(spec.role(name).below == "v" for name in ("target", "teacher_ids")):
        # A class for every index; the few problems without classes have no rows.
        rows = math.prod(axes.get("b", (axes.get("n"),))) * math.prod(axes.get("c", ()))
        axes["v"] = max(axes["v"], 1) if rows else axes["v"]
    if "rows" in spec.indices and not axes.get("n", 1):
        # There is no row to list.
        axes["m"] = 0


def windows(extent: int, size: int, stride: int, ceil: bool) -> int:
    """How many windows there are, none of which starts outside."""
    over = extent - size
    count = (-(-over // stride) if ceil else over // stride) + 1
    return count - 1 if ceil and (count - 1) * stride >= extent else count


def _shape(rng: Any, pattern: Any, axes: dict[str, Any]) -> tuple[int, ...]:
    for term in pattern.terms:
        if term.bound and term.name not in axes:
            whole = axes[term.bound]
            axes[term.name] = tuple(n if rng.random() < 0.5 else int(rng.integers(n + 1))
                                    for n in whole)  # fmt: skip
    out: list[int] = []
    for term in pattern.terms:
        extents = axes[term.name] if term.group else (term.factor * axes[term.name],)
        out += [1 if term.or_one and rng.random() < 0.4 else n for n in extents]
    return tuple(out)


def _array(drawn: Drawn, name: str, shape: tuple[int, ...]) -> Memory:
    rng, spec = drawn.rng, drawn.spec
    layout = layouts.draw(rng, shape, drawn.library)
    index = "int64" if rng.random() < 0.6 else "int32"
    dtype = spec.dtype_of(name, drawn.dtype, index)
    style = drawn.style
    if name == "weight" and style in ("tiny", "wild"):
        # Products and reciprocals of the least numbers are none.
        style = "plain" if style == "tiny" else "infinite"
    if (
        style in ("wild", "infinite")
        and name.startswith("d")
        and not ((spec.elementwise and spec.category != "gated") or spec.moves)
    ):
        # Whether 0 * inf counts in a sum is not promised.
        style = "plain"

    def fill(count: int) -> Any:
        if name in spec.masks:
            return rng.random(count) < 0.7
        if name in spec.integers:
            entries = _integers(drawn, name, count)
            # They ascend along the array, which may lie backwards.
            return (
                np.sort(entries)[:: -1 if layout.strides[0] < 0 else 1]
                if spec.role(name).ascends
                else entries
            )
        return numbers(
            rng,
            count,
            drawn.dtype,
            style,
            _range(drawn, name),
            rows=not spec.elementwise or spec.category in ("gated", "optimiser"),
        )

    return Memory(layout, dtype, drawn.library, drawn.device, fill)


def _integers(drawn: Drawn, name: str, count: int) -> Any:
    rng, spec = drawn.rng, drawn.spec
    role = spec.role(name)
    if role.between:
        low, high = map(int, role.between)
        return rng.integers(low, high, count, endpoint=True)
    if not role.below:
        top = 2**31 - 1 if drawn.dtype != "float64" and rng.random() < 0.3 else 5000
        return rng.integers(-top, top, count)
    out = rng.integers(0, max(drawn.axes[role.below], 1), count)
    if name == "target" and rng.random() < 0.3:
        ignored = drawn.options.get("ignore_index", -100)
        out = np.where(rng.random(count) < 0.3, ignored, out)
        # An index to ignore may be no class here, as any other is out of range.
    if drawn.options.get("mode") == "drop" and rng.random() < 0.5:
        out = np.where(rng.random(count) < 0.2, rng.choice([-1, 7000, -(2**31)], count), out)
    return out


# Results that a gradient takes, where any value in the range is one.
_SAVED = {
    "sigmoid_backward": (0.0, 1.0), "tanh_backward": (-1.0, 1.0), "softmax_backward": (0.0, 1.0),
    "segment_softmax_backward": (0.0, 1.0),
    "log_softmax_backward": (-6.0, 0.0), "relu_backward": (-1.0, 3.0),
    "relu6_backward": (-1.0, 7.0),
}  # fmt: skip


def _range(drawn: Drawn, name: str) -> tuple[float, float] | None:
    if name == "y" and drawn.op in _SAVED:
        return _SAVED[drawn.op]
    return drawn.spec.role(name).between


def numbers(
    rng: Any, n: int, dtype: str, style: str, within: Any = None, rows: bool = False
) -> Any:
    """Values of a style; of those within a range, the ends too."""
    kind = named(dtype).kind
    if dtype == "bool":
        return rng.random(n) < 0.5
    if kind != "float":
        every = rng.integers(0, 100, n)
        return every + 1j * rng.standard_normal(n) if kind == "complex" else every
    if within is not None:
        out = rng.uniform(*within, n)
        ends = rng.random(n) < (0.0 if style == "plain" else 0.1)
        return np.where(ends, rng.choice(np.asarray(within), n), out)
    out = rng.standard_normal(n) * rng.choice([0.1, 1.0, 1.0, 1.0, 5.0])
    if style == "ties":
        return rng.integers(-6, 7, n) / 2
    if style == "tiny":
        return out * _least(dtype) * 10.0 ** rng.uniform(-2, 4, n)
    if style in ("wild", "infinite"):
        huge, least = _most(dtype, rows), _least(dtype)
        # Apart, as the product of an infinity and what underflows depends on the dtype.
        some = (
            (math.nan, math.inf, -math.inf, 0.0, -0.0, huge, -huge),
            (math.nan, 0.0, -0.0, 1.0, -1.0, least, -least, least / 16, huge, -huge),
        )
        edges = some[0 if style == "infinite" else rng.integers(2)]
        at = rng.random(n) < rng.choice([0.02, 0.1, 0.5])
        return np.where(at, rng.choice(edges, n), out)
    return out


def _least(dtype: str) -> float:
    """The smallest normal number."""
    return {"float16": 2.0**-14, "float64": 2.0**-1022}.get(dtype, 2.0**-126)


def _most(dtype: str, rows: bool) -> float:
    """A huge one; in a row, one whose square is a number too."""
    if rows:
        return {"float16": 65504.0, "float64": 1e30}.get(dtype, 1e15)
    return {"float16": 65504.0, "float64": 1e150}.get(dtype, 1e30)


def _saved_norms(drawn: Drawn) -> None:
    """The result that belongs to x, as the gradient of a norm takes both."""
    from .moves import lp_pool

    x = drawn.arrays["x"].values().astype(np.float64)
    with np.errstate(all="ignore"):
        y = lp_pool(x, drawn.options, 1 if "1d" in drawn.op else 2)
        y = y.astype(adapter("numpy").dtype(drawn.dtype))
    layout = layouts.draw(drawn.rng, y.shape, drawn.library, repeat=False)
    drawn.arrays["y"] = Memory(layout, drawn.dtype, drawn.library, drawn.device, y)


def _saved_result(drawn: Drawn) -> None:
    """The result that belongs to the rows: of any other no element would be a maximum."""
    from .formulas import expected

    forward = registry[drawn.spec.adjoint_of or ""].spec
    given = {n: x.values() for n, x in drawn.arrays.items() if n in forward.arrays}
    (out,) = expected(forward.name, given, drawn.options)
    with np.errstate(all="ignore"):
        out = out.astype(adapter("numpy").dtype(drawn.dtype))
    layout = layouts.draw(drawn.rng, out.shape, drawn.library, repeat=False)
    name = forward.signatures[0].outputs[0].name
    drawn.arrays[name] = Memory(layout, drawn.dtype, drawn.library, drawn.device, out)
