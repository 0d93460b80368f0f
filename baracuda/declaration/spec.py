"""Frozen declarations: what an op is, what a problem is, what a backend must answer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

from baracuda.declaration.collective import Collective
from baracuda.declaration.dispatch import Choices
from baracuda.declaration.dtypes import FLOATS, named
from baracuda.declaration.roles import VALUE, Role, Wide
from baracuda.declaration.shapes import Axes, Signature, Term
from baracuda.forks import cached_property
from baracuda.layouts import Numbering, Shape, least_regular
from baracuda.libraries import Library

Normaliser: TypeAlias = Callable[[str, str, Any], Any]
"""``(op, option, value) -> value``, or an error that names the option."""

Resolver: TypeAlias = Callable[[str, Axes, dict[str, Any]], Mapping[str, int]]
"""``(op, axes, options) -> derived axes``; may complete the options in place."""

Schedule: TypeAlias = Literal[
    "add_rows", "bags", "bags_backward", "channels", "combine", "combine_backward",
    "window_backward", "cross_entropy", "elementwise", "few_rows", "gather", "heads", "join_rows",
    "kl_div", "last_write", "last_write_backward", "log_prob", "nll_loss", "planes", "reduce",
    "rope", "rows", "scatter", "segments", "spread_rows", "topk_kl_div", "window",
]  # fmt: skip
"""How a kernel goes over the arrays."""

Autocast: TypeAlias = Literal["", "float32", "region"]
"""What an op does within an autocast region: its results are float32, mixed inputs too; matrix
products have the dtype of the region; nothing."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """File, functor ("" moves) and schedule; if it takes lists; an option it has no kernel for."""

    file: str
    functor: str
    schedule: Schedule
    lists: bool = False
    lacks: tuple[str, Any] = ("", "")


@dataclass(frozen=True, slots=True)
class Packed:
    """One array that holds two others as its halves along an axis.

    The packed problem is the unpacked one on views, for its inputs and for its outputs.
    """

    array: str
    other: str
    axis: str
    first: str

    def order(self, options: Mapping[str, Any]) -> tuple[str, str]:
        """The names of the first and the second half."""
        return (self.other, self.array) if options[self.first] else (self.array, self.other)


class Case:
    """One set of axes and options at which the laws are tried."""

    def __init__(self, axes: Mapping[str, int | Shape], **options: Any) -> None:
        self.axes = dict(axes)
        self.options = options

    def __repr__(self) -> str:
        parts = [f"{k}={v}" for k, v in (*self.axes.items(), *self.options.items())]
        return ",".join(parts).replace(" ", "")


@dataclass(frozen=True, eq=False)
class OpSpec:
    """Everything that is derived from an op's block.

    Attributes
    ----------
    name, category : str
        Public name and family.
    body : callable
        The array-API definition, in the accumulate dtype: fallback, composite and oracle.
    signatures : tuple of Signature
        The forms of the op, chosen by the arrays given and their ranks.
    options, scalars : mapping
        Structural options and run-time values, each with its normaliser.
    defaults : mapping
        Default of every option and scalar that has one.
    dtypes : tuple of str
        dtypes of all arrays that are values.
    roles : mapping
        What the arrays are that are not plain values: indices, masks, counters.
    resolve
        Computes the derived axes of the signatures from the others and the options.
    adjoint_of : str or None
        The forward op whose gradient this is.
    ahead_of : str or None
        The op whose result and gradients for a cotangent of 1 this one computes at once: it runs in
        the place of that op where autograd will ask for all of them.
    namesake : str or None
        The function below `torch` that computes the same from the same arrays and keywords:
        ``nn.functional.elu``. Tests and benchmarks hold the op to it.
    located : mapping
        Flags that make elements depend on their place along the last axis of a group.
    batches : tuple of str or None
        The axes and groups along which it falls apart into smaller problems; None: all groups.
    elementwise : bool
        An element of the outputs depends on those in its place alone.
    keeps_layout : bool
        Outputs keep a dense input's layout, as those of elementwise ops always do.
    numbered : bool, str or callable
        Elements depend on their number in the whole array, in C order: functors take random words;
        a flag that rounds the first result at random; or strides of numbers that elements share.
    products : bool
        Its arrays are factors of matrix products, which an autocast region computes in its dtype.
    composite : bool
        The body is made of other ops: it takes arrays as they are, and rounds by itself.
    collective : Collective or None
        The axis along which it may be cut over devices that then exchange small arrays.
    """

    name: str
    category: str
    body: Callable[..., Any]
    signatures: tuple[Signature, ...]
    options: Mapping[str, Normaliser] = field(default_factory=dict)
    scalars: Mapping[str, Normaliser] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = FLOATS
    roles: Mapping[str, Role] = field(default_factory=dict)
    resolve: Resolver | None = None
    hints: Mapping[str, str] = field(default_factory=dict)
    adjoint_of: str | None = None
    ahead_of: str | None = None
    namesake: str | None = None
    located: Mapping[str, str] = field(default_factory=dict)
    batches: tuple[str, ...] | None = None
    elementwise: bool = False
    keeps_layout: bool = False
    numbered: bool | str | Numbering = False
    products: bool = False
    composite: bool = False
    inplace: bool = False
    packed: Packed | None = None
    kernel: Kernel | None = None
    collective: Collective | None = None
    cases: tuple[Case, ...] = ()

    @property
    def moves(self) -> bool:
        """Whether elements are only moved, so that nothing has to be computed in a wider dtype."""
        return "bool" in self.dtypes

    @property
    def accumulates(self) -> bool:
        """Whether `accumulate=True` may add into given outputs: gradients do."""
        return self.adjoint_of is not None

    @cached_property
    def autocast(self) -> Autocast:
        """What the op does within an autocast region; what makes gradients takes no part."""
        cotangents = any(role.wide == "cotangent" for role in self.roles.values())
        if cotangents or self.adjoint_of is not None or self.ahead_of is not None:
            return ""
        if self.products:
            return "region"
        results = {self.role(p.name) for form in self.signatures for p in form.outputs}
        return "float32" if any(role.accumulated or role.chosen for role in results) else ""

    def adds_into(self, output: str) -> bool:
        """Whether a call may add into this given output: into gradients and sums it may."""
        return self.accumulates or self.role(output).total

    @cached_property
    def pointwise(self) -> bool:
        """Whether it is elementwise, and has one form in which all arrays share one shape."""
        if not self.elementwise or len(self.signatures) > 1:
            return False
        patterns = (*self.signatures[0].inputs, *self.signatures[0].outputs)
        return len({p.terms for p in patterns}) == 1 and len(patterns[0].terms) == 1

    def batch(self, term: Term) -> bool:
        """Whether an axis or group is one along which a problem falls apart."""
        return term.group if self.batches is None else term.name in self.batches

    def role(self, name: str) -> Role:
        """What an array is."""
        return self.roles.get(name, VALUE)

    def _of_kind(self, *kinds: str) -> tuple[str, ...]:
        return tuple(name for name in self.arrays if self.role(name).kind in kinds)

    @cached_property
    def indices(self) -> tuple[str, ...]:
        """The inputs that point along an axis."""
        return self._of_kind("index")

    @cached_property
    def integers(self) -> tuple[str, ...]:
        """The inputs of int32 or int64."""
        return self._of_kind("index", "integer")

    @cached_property
    def masks(self) -> tuple[str, ...]:
        """The inputs of bool."""
        return self._of_kind("mask")

    @cached_property
    def discrete(self) -> frozenset[str]:
        """The inputs along which nothing is differentiated."""
        return frozenset((*self.integers, *self.masks))

    @cached_property
    def counted(self) -> dict[str, str]:
        """The inputs that may be left out, each with the axis along which it counts then."""
        return {name: role.counts for name, role in self.roles.items() if role.counts}

    def uncounted(self, given: Collection[str]) -> dict[str, str]:
        """Of `counted`, what is not given, where a form takes it beside all that is."""
        forms = [{*form.names} for form in self.signatures]
        return {n: a for n, a in self.counted.items() if n not in given and {n, *given} in forms}

    @cached_property
    def wide(self) -> tuple[Wide, ...]:
        """The kinds of inputs that may be wider than the others."""
        return tuple(dict.fromkeys([r.wide for r in map(self.role, self.arrays) if r.wide]))

    def dtype_of(self, name: str, dtype: str, index: str) -> str:
        """The dtype of an input beside floating ones of `dtype` and integer ones of `index`."""
        return "bool" if name in self.masks else index if name in self.integers else dtype

    @cached_property
    def arrays(self) -> tuple[str, ...]:
        """All array parameters, in order: those of the longest form first, then what others add."""
        forms = sorted([s.names for s in self.signatures], key=len, reverse=True)
        return tuple(dict.fromkeys(name for names in forms for name in names))

    @cached_property
    def optional(self) -> tuple[str, ...]:
        """The arrays that some forms do without, but for the second half of a packed one.

        Functors of elementwise schedules differ by which of these are given (`form_end`).
        """
        half = self.packed.other if self.packed else ""
        always = set[str].intersection(*[{*form.names} for form in self.signatures])
        return tuple([name for name in self.arrays if name != half and name not in always])

    def form_end(self, form: Signature) -> str:
        """The end of a functor's name: bits of optional arrays, the option of a further result."""
        bits = sum([(name in form.names) << k for k, name in enumerate(self.optional)])
        options = (*self.asked(form), *([str(self.numbered)] if self.rounds(form) else []))
        ends = [name.title().replace("_", "") for name in options]
        return (f"Given{bits}" if bits else "") + "".join(ends)

    def rounds(self, form: Signature) -> bool:
        """Whether the first result of this form is rounded at random."""
        return any(c.option == self.numbered and c.holds({c.option: True}) for c in form.conditions)

    def numbers(self, form: Signature) -> bool:
        """Whether elements of this form depend on their number in the whole array."""
        return self.numbered is True or callable(self.numbered) or self.rounds(form)

    def asked(self, form: Signature) -> tuple[str, ...]:
        """The options by which a form has more results than another of the same arrays."""
        same = [other for other in self.signatures if other.names == form.names]
        least = min([len(other.outputs) for other in same])
        if len(form.outputs) == least:
            return ()
        usual = [{*other.conditions} for other in same if len(other.outputs) == least]
        apart = min([{*form.conditions} - conditions for conditions in usual], key=len)
        return tuple([c.option for c in form.conditions if c in apart])

    @cached_property
    def conditions(self) -> frozenset[str]:
        """The options that choose among the forms."""
        return frozenset(c.option for s in self.signatures for c in s.conditions)

    def forms(self, given: Mapping[str, Any]) -> tuple[Signature, ...]:
        """The forms for these options, those not given at their defaults."""
        options = {**self.defaults, **given}
        return tuple(s for s in self.signatures if s.allowed(options))

    @cached_property
    def codes(self) -> str:
        """How kernels get the run-time values, in order, as `struct` has it."""
        return "".join(getattr(normalise, "code", "d") for normalise in self.scalars.values())

    @cached_property
    def floors(self) -> tuple[tuple[str, str], ...]:
        """Pairs of options of which the second may not lie below the first."""
        every = {**self.options, **self.scalars}
        floors = [(getattr(normalise, "floor", ""), name) for name, normalise in every.items()]
        return tuple(pair for pair in floors if pair[0])

    @cached_property
    def usual(self) -> dict[str, Any]:
        """The defaults, normalised."""
        normalise = {**self.options, **self.scalars}
        return {k: normalise[k](self.name, k, value) for k, value in self.defaults.items()}


def compute_dtype(spec: OpSpec, dtype: str) -> str:
    """dtype in which the body runs and sums are kept, for arrays of `dtype`."""
    return dtype if spec.moves else named(dtype).accumulate


class Operand(NamedTuple):
    """One array of a problem. `strides` are canonical: None is C order."""

    name: str
    dtype: str
    shape: Shape
    strides: Shape | None
    alignment: int = 16

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, whatever the strides."""
        return self.size * named(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Problem:
    """A call without its values: validated, normalised, comparable, free of arrays.

    Attributes
    ----------
    spec : OpSpec
    signature : Signature
        The form that the arrays fit.
    library : Library
    device : str
    mode : str
        ``""``; concrete values, differentiated backward (``"autograd"``) or as they are computed
        (``"forward-mode"``); or ``"traced"``.
    axes : dict
        Every axis with its extent.
    inputs : tuple of Operand or None
        None for an optional array that was not given.
    outputs : tuple of Operand
    options : dict
        Structural options, normalised.
    choices : Choices
        Dispatch options, `deterministic` resolved.
    reads : tuple of str
        Of each run-time value the dtype of the array that it is, "" for a number; () for none.
    dtype : str
        That of the primal: of the first value that may not be wider.
    given : tuple of Operand
        The inputs that are there.
    raising : tuple of str
        The indices that are there, and of which an entry out of range is an error.
    """

    spec: OpSpec
    signature: Signature
    library: Library
    device: str
    mode: str
    axes: Axes
    inputs: tuple[Operand | None, ...]
    outputs: tuple[Operand, ...]
    options: dict[str, Any]
    choices: Choices
    reads: tuple[str, ...] = ()
    dtype: str = field(init=False)
    given: tuple[Operand, ...] = field(init=False)
    raising: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        spec, given = self.spec, tuple([x for x in self.inputs if x is not None])
        own = [x for x in given if not (x.name in spec.discrete or spec.role(x.name).wide)]
        object.__setattr__(self, "dtype", (own or self.outputs)[0].dtype)
        object.__setattr__(self, "given", given)
        object.__setattr__(self, "raising", tuple(self._raising()))

    def _raising(self) -> Iterator[str]:
        for name in self.spec.indices:
            policy = self.spec.role(name).policy
            if self.options[policy] == "raise" and any(x.name == name for x in self.given):
                yield name

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two problems the same, as nested tuples of plain values; made anew."""
        c = self.choices
        return (
            self.spec.name,
            self.library.name,
            self.device,
            self.mode,
            self.inputs,
            tuple(self.options.items()),
            (c.backend, c.deterministic, c.max_workspace_bytes, c.autotune),
            self.reads,
            c.sku and c.sku.to_json(),
        )

    def dtype_of(self, kind: Wide) -> str:
        """dtype of the values of a kind that may be wider; of the primal where none was given."""
        some = (x.dtype for x in self.given if self.spec.role(x.name).wide == kind)
        return next(some, self.dtype)

    @property
    def mixed(self) -> bool:
        """Whether values of two dtypes were given."""
        return any(self.dtype_of(kind) != self.dtype for kind in self.spec.wide)

    @property
    def compute_dtype(self) -> str:
        """dtype in which the body runs and sums are kept."""
        return compute_dtype(self.spec, self.dtype)

    @property
    def index_dtype(self) -> str | None:
        """dtype of the integer input, where one was given."""
        return next((x.dtype for x in self.given if x.name in self.spec.integers), None)

    def extent_of(self, index: str) -> Any:
        """What the entries of an index lie below."""
        return self.axes[self.spec.role(index).below]

    def ignored_by(self, index: str) -> int | None:
        """The one entry of an index that is in range everywhere, None where there is none."""
        return self.options[o] if (o := self.spec.role(index).ignored) else None

    def skipped_by(self, index: str) -> int | None:
        """The one entry of an index of which nothing is added up, None where there is none."""
        return self.options[o] if (o := self.spec.role(index).skipped) else None

    @property
    def pointwise(self) -> bool:
        """Whether each element of the outputs depends on one of each input, and all are alike."""
        every = (*self.signature.inputs, *self.signature.outputs)
        return self.spec.elementwise and len({p.names for p in every}) == 1

    @property
    def layout(self) -> str:
        """The least regular layout among the inputs."""
        return least_regular([(x.shape, x.strides) for x in self.given])
