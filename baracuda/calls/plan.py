"""From a problem to a plan: choose a backend, let it prepare, record what runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from baracuda import backends
from baracuda._version import __version__
from baracuda.calls import body, check, outputs
from baracuda.declaration.backend import Adds, Misfit, Prepared, Runner
from baracuda.declaration.hints import for_keyword
from baracuda.declaration.sku import KernelSku
from baracuda.declaration.spec import Problem
from baracuda.errors import ArgumentTypeError, UnsupportedError, type_error, value_error
from baracuda.forks import import_module
from baracuda.instruments import logger, ranged
from baracuda.libraries import TRACED, UNFIT, Array, compiling, facts_of, unwrapped

if TYPE_CHECKING:
    import typing_extensions

    # So that `Plan` alone is a type too; at run time only from Python 3.13 on.
    R = typing_extensions.TypeVar("R", default=Any)
else:
    R = TypeVar("R")


class Owner(Protocol):
    """What a plan asks of its op."""

    def sibling(self, plan: Plan, arrays: Sequence[Array]) -> Plan:
        """The plan for the same problem in the layout of `arrays`."""

    def valued(
        self, plan: Plan, arrays: Sequence[Array], scalars: Mapping[str, Any]
    ) -> tuple[Plan, dict[str, Any]]:
        """The plan for the same problem where run-time values are arrays, and these values."""

    def as_operator(self, torch: Any, arrays: Sequence[Any], options: dict[str, Any]) -> Any:
        """A call as torch's graphs see it."""

    def completed(self, arrays: Sequence[Any], torch: Any = None) -> Sequence[Any]:
        """The arrays, with zeros for cotangents that are None."""


class Plan(Generic[R]):
    """A choice made once: which kernel, on which backend, for arrays of these shapes.

    A plan holds no array. It is tied to shapes, dtypes, library and device; arrays of another
    layout run through the sibling plan of that layout. Plans are immutable and may be called
    from any thread.

    Attributes
    ----------
    why : tuple of (str, str)
        Every backend passed over, with its reason.
    workspace_size : int
        Bytes of scratch memory per call.
    provisional : bool
        Whether a backend ahead could not be loaded. Such a plan is not kept: the next call tries to
        load that backend again.
    problem : Problem
        The validated call that this plan was made for.
    matches : callable
        ``(arrays) -> bool``: whether they are those that this very plan is for.
    outs : callable
        ``(arrays, out, accumulate) -> (outs, adds)``: the outputs given, checked.
    run : callable
        ``(arrays, outs, accumulate, scalars) -> result``, without any check.
    scalars : callable
        ``(given, whole=True) -> the run-time values``, checked and with their defaults.
    """

    __slots__ = (
        "__weakref__",
        "_backend",
        "_behind",
        "_facts",
        "_owner",
        "_prepared",
        "_sku",
        "matches",
        "outs",
        "problem",
        "provisional",
        "run",
        "scalars",
        "why",
        "workspace_size",
    )

    def __init__(
        self,
        problem: Problem,
        backend: str,
        prepared: Prepared,
        why: tuple[tuple[str, str], ...],
        owner: Owner,
        facts: Any,
    ) -> None:
        self.problem = problem
        self.why = why
        self.workspace_size = prepared.workspace_size
        self.provisional = prepared.provisional
        self.matches: Callable[[Sequence[Array]], bool] = self._are_alike
        self._backend = backend
        # Bodies write by the library's own functions, which tell it of new values.
        self._behind = prepared.kernel not in body.KERNELS
        self._prepared = prepared
        self._owner = owner
        self._sku: KernelSku | None = None
        self._facts = facts
        self.outs = outputs.Outputs(problem)
        self.scalars = check.reader(problem)
        self.run: Runner = ranged(prepared.run, lambda: str(self.sku))

    def __repr__(self) -> str:
        return f"<Plan {self.sku}>"

    @property
    def sku(self) -> KernelSku:
        """What runs and what it guarantees; assembled when it is first asked for."""
        if self._sku is None:
            problem, prepared = self.problem, self._prepared
            self._sku = KernelSku(
                category=problem.spec.category,
                op=problem.spec.name,
                dtype=problem.dtype,
                index_dtype=problem.index_dtype,
                layout=problem.layout,
                backend=self._backend,
                arch=prepared.arch,
                kernel=prepared.kernel,
                variant=prepared.variant,
                version=__version__,
                precision=prepared.precision,
                code=prepared.code,
            )
        return self._sku

    def _are_alike(self, arrays: Sequence[Array]) -> bool:
        """Compares facts; from the first arrays that fit on, the library's own way is faster."""
        if facts_of(arrays) != self._facts:
            return False
        self.matches = self.problem.library.matcher(arrays)
        return True

    def __call__(
        self,
        *arrays: Array,
        out: Any = None,
        accumulate: bool | Sequence[bool] = False,
        **scalars: Any,
    ) -> R:
        """Run on arrays of the planned shapes, dtypes, library and device.

        Parameters
        ----------
        *arrays
            As the op takes them.
        out : array, or tuple of arrays and None, optional
            Where to write, of the outputs' shapes, dtypes, library and device; None for a new
            array. May be exactly an input where the op is safe in place. The gradient of a
            parameter of 16 bits may be float32: its sum is then stored without rounding.
        accumulate : bool or sequence of bool, optional
            Add into `out` instead, rounding once: into all outputs, or one bool for each output.
            For gradients.
        **scalars
            The op's run-time values, such as `weight`.

        Returns
        -------
        array or tuple of arrays
            `out` where it was given, with new arrays for None.

        Raises
        ------
        ValueError
            For arrays or outputs that do not fit the plan, naming the difference; for an `out`
            that overlaps an input in part; for an `accumulate` without an `out`, or of another
            length than there are outputs.
        NotImplementedError
            For `out` with arrays that cannot be written to, and for `accumulate` with an output
            that is no gradient.
        """
        if (torch := compiling()) is not None:
            return self._in_graph(torch, arrays, out, accumulate, scalars)  # type: ignore[no-any-return]
        plan = self
        if scalars or self.problem.spec.scalars:
            self._check_names(scalars)
            try:
                scalars = self.scalars(scalars)
            except ArgumentTypeError:
                plan, scalars = self._valued(arrays, scalars)
        try:
            fits = plan.matches(arrays)
        except UNFIT:
            fits = False
        if not fits and not plan._same_facts(arrays):
            arrays = tuple(unwrapped(self._owner.completed(arrays)))
            plan = plan.fitting(arrays)
        outs: tuple[Array, ...] | None = None
        adds: Adds = False
        if out is not None or accumulate is not False:
            outs, adds = plan.outs(arrays, out, accumulate)
        try:
            result = plan.run(arrays, outs, adds, scalars)
        except Misfit:
            result = plan.fitting(arrays).run(arrays, outs, adds, scalars)
        if outs is not None and plan._behind:
            plan.problem.library.written(outs)
        return result  # type: ignore[no-any-return]

    def _in_graph(
        self, torch: Any, arrays: Sequence[Any], out: Any, accumulate: Any, scalars: dict[str, Any]
    ) -> Any:
        """The call as an operator of a graph of torch's, with the options of the plan."""
        problem, choices = self.problem, self.problem.choices
        op = problem.spec.name
        if out is not None or accumulate is not False:
            raise UnsupportedError(
                f"{op}: plan: torch.compile and torch.export take no out= or accumulate=: write "
                f"out.copy_(plan(...)) or out.add_(plan(...))"
            )
        arrays = self._owner.completed(arrays, torch)
        given = [(tuple(x.shape), x.dtype) for x in arrays if x is not None]
        planned = [(x.shape, problem.library.dtype(x.dtype)) for x in problem.given]
        if given != planned:
            hint = "make another plan, or call the op"
            raise value_error(op, "plan", f"arrays of {planned} (as planned)", given, None, hint)
        dispatch = {
            "backend": choices.sku.backend if choices.sku else choices.backend,
            "deterministic": choices.deterministic,
            "max_workspace_bytes": choices.max_workspace_bytes,
            "autotune": choices.autotune,
        }
        return self._owner.as_operator(torch, arrays, {**problem.options, **dispatch, **scalars})

    def _same_facts(self, arrays: Sequence[Array]) -> bool:
        """What the library's own way of telling may miss: it sees more than facts."""
        try:
            return bool(facts_of(arrays) == self._facts)
        except UNFIT:
            return False

    def _check_names(self, given: Mapping[str, Any]) -> None:
        spec = self.problem.spec
        for name in given:
            if name not in spec.scalars:
                takes = ", ".join(spec.scalars) or "no run-time values"
                hint = "a structural option is part of the plan"
                hint = hint if name in spec.options else for_keyword(spec, name, spec.scalars)
                raise type_error(spec.name, name, takes, "that keyword", hint)

    def _valued(
        self, arrays: Sequence[Array], scalars: Mapping[str, Any]
    ) -> tuple[Plan, dict[str, Any]]:
        """The plan where run-time values are arrays, or were when this one was made."""
        arrays = unwrapped(arrays)
        if not self._same_facts(arrays):
            self.fitting(arrays)
        return self._owner.valued(self, arrays, scalars)

    def fitting(self, arrays: Sequence[Array]) -> Plan:
        """This plan or its sibling for the layout of `arrays`."""
        spec, ours = self.problem.spec, self.problem
        given = [x for x in arrays if x is not None]
        if len(given) != len(ours.given):
            raise value_error(spec.name, "plan", f"{len(ours.given)} arrays", len(given))
        for x, operand in zip(given, ours.given, strict=True):
            library, has = check.described(spec.name, operand.name, x)
            for what, got, want in (
                ("library", library.name, ours.library.name),
                ("shape", has.shape, operand.shape),
                ("dtype", has.dtype, operand.dtype),
                ("device", has.device, ours.device),
            ):
                # A tracer is on no device: the plan of its program is the same choice.
                if got != want and (what, got) != ("device", TRACED):
                    raise value_error(
                        spec.name,
                        operand.name,
                        f"{what} {want} (as planned)",
                        got,
                        None,
                        "make another plan",
                    )
        found = self._owner.sibling(self, arrays)
        if self._facts is None and (found.problem.inputs, found.problem.mode) == (
            ours.inputs,
            ours.mode,
        ):
            # Made from a record: these are the first arrays of its own.
            self._facts = facts_of(arrays)
            return self
        return found

    def through(self, run: Runner) -> Plan:
        """This plan with another way to the same results."""
        prepared = self._prepared._replace(run=run)
        return Plan(self.problem, self._backend, prepared, self.why, self._owner, self._facts)


def make(
    problem: Problem,
    owner: Owner,
    facts: Any,
    arrays: Sequence[Array] = (),
) -> Plan:
    """Choose a backend, let it prepare, and record what it will run.

    `arrays` are those of the call, `facts` what `facts_of` says of them, None for a plan that is
    made from a record; variants are measured on them where that is asked for.

    Raises
    ------
    ValueError
        Where the choice of `sku=` cannot be made again here.
    NotImplementedError
        Where no backend takes the problem.
    """
    wanted = problem.choices.sku
    # Whether the framework may differentiate what runs: none was asked for, or it did by record.
    free = problem.choices.backend is None and problem.spec.category not in _EXACT
    if wanted is not None:
        free = wanted.variant == problem.mode
        problem = _as_recorded(problem, wanted)
    watch = _watched(problem)
    name, prepared, why = backends.choose(replace(problem, mode="") if watch else problem)
    if watch and prepared.kernel == "body" and free:
        # Of the body the framework's own gradient is the faster: it computes nothing twice.
        watch = None
        name, prepared, why = backends.choose(problem)
    if prepared.tuned is not None and problem.choices.autotune and wanted is None:
        prepared = prepared.tuned(arrays)._replace(provisional=prepared.provisional)
    if watch:
        prepared = prepared._replace(run=watch(prepared.run))
    plan = Plan(problem, name, prepared, why, owner, facts)
    if wanted is not None and (sku := plan.sku) != wanted:
        differing = [f for f in _SKU_FIELDS if getattr(sku, f) != getattr(wanted, f)]
        raise value_error(
            sku.op,
            "sku",
            ", ".join(f"{f} {getattr(wanted, f)}" for f in differing),
            ", ".join(f"{getattr(sku, f)}" for f in differing) + " here",
            hint="plan without sku= to have a record of this place",
        )
    if logger.isEnabledFor(logging.DEBUG):
        passed = "".join([f"; not {backend}: {reason}" for backend, reason in why])
        logger.debug("planned %s for %s%s", plan.sku, _shapes(problem), passed)
    return plan


def _shapes(problem: Problem) -> str:
    """The inputs in words."""
    return ", ".join([f"{x.name}{list(x.shape)}" for x in problem.given])


def _watched(problem: Problem) -> Callable[[Runner], Runner] | None:
    """What makes a runner of plain arrays one that the framework can differentiate."""
    if problem.mode != "autograd":
        return None
    framework = import_module(f"baracuda.frameworks.{problem.library.name}")
    return framework.watched(problem)  # type: ignore[no-any-return]


# Ops whose explicit gradients keep what differentiating the body loses, to saturation, to what
# cancels or is infinite.
_EXACT = frozenset({"activation", "loss", "softmax"})
_SKU_FIELDS = tuple(field.name for field in fields(KernelSku))


def _as_recorded(problem: Problem, sku: KernelSku) -> Problem:
    """`problem` with the backend of `sku` forced, where the record is of such a problem."""
    for what, want, got in (
        ("op", problem.spec.name, sku.op),
        ("dtype", problem.dtype, sku.dtype),
        ("index_dtype", problem.index_dtype, sku.index_dtype),
        ("layout", problem.layout, sku.layout),
        ("version", __version__, sku.version),
    ):
        if want != got:
            raise value_error(problem.spec.name, "sku", f"one of {what} {want}", got)
    if sku.backend not in backends.names():
        known = f"one of backend {', '.join(backends.names())}"
        raise value_error(problem.spec.name, "sku", known, sku.backend)
    forced = problem.choices.backend
    if forced is not None and forced != sku.backend:
        raise value_error(problem.spec.name, "sku", f"one of backend {forced}", sku.backend)
    return replace(problem, choices=replace(problem.choices, backend=sku.backend))
