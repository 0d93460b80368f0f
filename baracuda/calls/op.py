"""``@op``: from one decorated function to a public op, its plans and its place in the registry."""

from __future__ import annotations

import copyreg
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, ParamSpec, TypeVar

from baracuda.calls import check, cotangents, lists, records, sets
from baracuda.calls.cache import plan_cache
from baracuda.calls.plan import Plan, make
from baracuda.calls.recent import Recent, written
from baracuda.calls.routes import Route, in_graph, route_of
from baracuda.declaration import autocast, hints, values
from baracuda.declaration.backend import Misfit
from baracuda.declaration.collective import Collective
from baracuda.declaration.dispatch import DEFAULT, NAMES, current
from baracuda.declaration.dtypes import FLOATS
from baracuda.declaration.pairing import Pairing, pairing
from baracuda.declaration.roles import Role
from baracuda.declaration.shapes import Signature, signatures
from baracuda.declaration.sku import KernelSku
from baracuda.declaration.spec import Case, Kernel, Normaliser, OpSpec, Packed, Problem, Resolver
from baracuda.declaration.verify import verify
from baracuda.errors import ArgumentTypeError, ArgumentValueError, UnsupportedError
from baracuda.layouts import Numbering
from baracuda.libraries import TRACED, UNFIT, compiling, facts_of, library_of, unwrapped

P = ParamSpec("P")
R = TypeVar("R")

_NOTHING: dict[str, Any] = {}

registry: dict[str, Op[Any, Any]] = {}
"""Every op by its public name."""


class Op(Generic[P, R]):
    """A public op: callable as its function, with plans.

    Attributes
    ----------
    spec : OpSpec
        What the op's block declares.
    """

    def __init__(self, function: Callable[P, R], spec: OpSpec) -> None:
        self.spec = spec
        self._name = spec.name
        self._scalars = tuple(spec.scalars)
        self._recent = Recent()
        self._lists = lists.Recent(self)
        functools.update_wrapper(self, function)
        whole = inspect.signature(function)
        own = [p for p in whole.parameters.values() if p.kind is not p.VAR_KEYWORD]
        self._own = whole.replace(parameters=own)
        self._least = sum(p.kind is p.POSITIONAL_ONLY and p.default is p.empty for p in own)
        self._required = {p.name for p in own if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
        self._keywords = {*spec.options, *spec.scalars, *NAMES}
        self._in_graphs = values.in_graphs(own, spec)

    def __repr__(self) -> str:
        return f"<op {self.spec.name}>"

    def __reduce__(self) -> str:
        return self.spec.name

    def __call__(self, *arrays: P.args, **options: P.kwargs) -> R:
        if (torch := compiling()) is not None:
            return self.as_operator(torch, arrays, options)  # type: ignore[no-any-return]
        scalars = self._split(options) if options and self._scalars else _NOTHING
        state = alias = None
        try:
            words = written(options) if options else ()
            guess = self._recent.last.next
            unset = current.get() is DEFAULT
            # Most calls are as the last one was, or follow it as one did before: no key is built.
            if (
                guess.generation == plan_cache.generation
                and unset
                and words == guess.written
                and guess.matches(arrays)
            ):
                plan_cache.count_hit()
                plan, self._recent.last = guess.plan, guess
            elif not unset or (plan := self._recent.find(arrays, words)) is None:
                generation = plan_cache.generation
                alias = self._alias(arrays, options)
                if (state := alias[1]) is not None and (region := autocast.region_of(state)):
                    given = autocast.taken(self.spec, arrays, region)
                    if given is not arrays:
                        return self(*given, **options, **scalars)
                plan = plan_cache.find(alias)
                if plan is not None:
                    self._recent.remember(plan, generation, alias, arrays)
        except UNFIT:
            plan = alias = None
        if plan is None or (state is not None and state[0] == "traced"):
            self._signature_check(arrays, {**options, **scalars})
            if (given := self.completed(arrays)) is not arrays:
                return self(*given, **options, **scalars)
            if self._lists.takes(arrays):
                return self._lists.run(arrays, options, scalars)  # type: ignore[no-any-return]
            if alias is None and (given := autocast.settled(self.spec, arrays)) is not arrays:
                return self(*given, **options, **scalars)
            # Where nothing watches the arrays, no route does.
            route = self._route(arrays) if alias is None or state is not None else None
            if route is not None:
                return route.call(self, arrays, {**options, **scalars})  # type: ignore[no-any-return]
            if plan is None and check.are_arrays(scalars.values()):
                return self._run_valued(arrays, options, scalars)  # type: ignore[no-any-return]
            if plan is None:
                generation = plan_cache.generation
                plan = self._find(arrays, options, alias)
                if alias is not None and not plan.provisional:
                    self._recent.remember(plan, generation, alias, arrays, new=True)
        if self._scalars:
            try:
                scalars = plan.scalars(scalars)
            except ArgumentTypeError:
                return self._run_valued(arrays, options, scalars)  # type: ignore[no-any-return]
        try:
            return plan.run(arrays, None, False, scalars)  # type: ignore[no-any-return]
        except Misfit:
            plan = self._misfit(arrays, options)
            return plan.run(arrays, None, False, scalars)  # type: ignore[no-any-return]

    @property
    def forms(self) -> tuple[Signature, ...]:
        """The forms: which arrays are given and returned together, and how their axes relate."""
        return self.spec.signatures

    @property
    def adjoint(self) -> Pairing | None:
        """The gradient of this op, what it takes and returns; None where no op is its gradient."""
        found = next((op for op in registry.values() if op.spec.adjoint_of == self._name), None)
        return pairing(self.spec, found, found.spec) if found else None

    @property
    def early(self) -> Op[Any, Any] | None:
        """The op that computes the result of this one and its gradients at once."""
        return next((op for op in registry.values() if op.spec.ahead_of == self._name), None)

    def completed(self, arrays: Sequence[Any], torch: Any = None) -> Sequence[Any]:
        """The arrays, with zeros for cotangents that are None."""
        return cotangents.completed(self.spec, registry, arrays, torch)

    def _misfit(self, arrays: Sequence[Any], options: Mapping[str, Any]) -> Plan:
        """The plan for arrays that look like those of the last call, but lie differently."""
        generation = plan_cache.generation
        try:
            found = self._recent.find(arrays, written(options), narrow=True)
            if found is not None and current.get() is DEFAULT:
                return found
            alias = self._alias(arrays, options)
            plan = plan_cache.find(alias)
        except UNFIT:
            return self._find(arrays, options)
        plan = plan or self._find(arrays, options, alias)
        if not plan.provisional:
            self._recent.remember(plan, generation, alias, arrays)
        return plan

    def _run_valued(
        self, arrays: Sequence[Any], options: Mapping[str, Any], scalars: Mapping[str, Any]
    ) -> Any:
        """A call of which run-time values may be arrays, which stay where they are."""
        # A value may be traced where no array is.
        route = self._route([x for x in scalars.values() if hasattr(x, "dtype")])
        if route is not None:
            return route.call(self, arrays, {**options, **scalars})
        plan, values = self._valued(arrays, options, scalars)
        return plan.run(arrays, None, False, values)

    def _valued(
        self,
        arrays: Sequence[Any],
        options: Mapping[str, Any],
        scalars: Mapping[str, Any],
        whole: bool = True,
    ) -> tuple[Plan, dict[str, Any]]:
        """The plan of such a call, and the values as it takes them."""
        given = check.values_of(self.spec, arrays, scalars)
        alias = self._alias(arrays, options, given)
        plan = plan_cache.find(alias) or self._find(arrays, options, alias, given)
        dtype = plan.problem.compute_dtype
        every = check.scalars(self.spec, dtype, given.numbers, whole, given.arrays) | given.arrays
        return plan, {name: every[name] for name in self._scalars if name in every}

    def as_operator(self, torch: Any, arrays: Sequence[Any], options: dict[str, Any]) -> Any:
        """The call as torch's graphs, modes and subclasses see it: one operator."""
        if self._lists.takes(arrays):
            return sets.each(self, arrays, options)
        return in_graph(torch, self, self.completed(arrays, torch), options, self._in_graphs)

    def plan(self, *arrays: P.args, **options: P.kwargs) -> Plan[R]:
        """Choose once: the plan that a call with these arguments runs.

        Takes the op's own arguments. Run-time values are checked and forgotten: give them again at
        every call of the plan. They may be left out here.

        Returns
        -------
        Plan

        Raises
        ------
        TypeError, ValueError, NotImplementedError
            As the op itself does.
        """
        if (torch := compiling()) is not None and torch.compiler.is_dynamo_compiling():
            raise UnsupportedError(
                f"{self._name}: plan: torch.compile cannot read it: make it outside, or call the op"
            )
        given: dict[str, Any] = dict(options)
        scalars = self._split(given)
        self._signature_check(arrays, {**dict.fromkeys(self._scalars, 0.0), **given})
        if self._lists.takes(arrays):
            return self._lists.find(arrays, given)  # type: ignore[return-value, arg-type]
        taken = unwrapped(self.completed(arrays))
        if check.are_arrays(scalars.values()):
            return self._valued(taken, given, scalars, whole=False)[0]
        try:
            plan = plan_cache.find(self._alias(taken, given))
        except UNFIT:
            plan = None
        plan = plan or self._find(taken, given)
        plan.scalars(scalars, whole=False)
        return plan

    def planned(self, *arrays: P.args, **options: P.kwargs) -> tuple[R, Plan[R]]:
        """The result, and the plan that made it."""
        given: dict[str, Any] = dict(options)
        scalars = self._split(given)
        self._signature_check(arrays, {**given, **scalars})
        if self._lists.takes(arrays):
            found = self._lists.find(arrays, given)  # type: ignore[arg-type]
            return found(*arrays, **scalars), found  # type: ignore[return-value]
        taken = autocast.settled(self.spec, self.completed(arrays))
        if check.are_arrays(scalars.values()):
            plan, scalars = self._valued(taken, given, scalars)
        else:
            plan = self.plan(*taken, **given)
            scalars = plan.scalars(scalars) if self._scalars else scalars
        try:
            return plan.run(taken, None, False, scalars), plan
        except Misfit:
            plan = self._misfit(taken, given)
            return plan.run(taken, None, False, scalars), plan

    def _split(self, given: dict[str, Any]) -> dict[str, Any]:
        """Take the run-time values out of `given`."""
        return {name: given.pop(name) for name in self._scalars if name in given}

    def _alias(
        self, arrays: Sequence[Any], options: Mapping[str, Any], given: check.Values | None = None
    ) -> tuple[Any, ...]:
        """The cheap key of a call: facts of the arrays, keywords as written, what is in force.

        One of `UNFIT` where an array or keyword cannot be part of it; `check` says why.
        """
        state, facts = facts_of(arrays)
        return (
            self._name,
            state,
            facts,
            written(options) + (given[2:] if given else ()),
            current.get() if state is None or state[0] != "traced" else DEFAULT,
        )

    def _signature_check(self, arrays: Sequence[Any], options: Mapping[str, Any]) -> None:
        """The errors of any Python call: too many arrays, an unknown or missing keyword."""
        if (
            self._least <= len(arrays) <= len(self.spec.arrays)
            and options.keys() <= self._keywords
            and options.keys() >= self._required
        ):
            return
        try:
            self._own.bind(*arrays, **{k: v for k, v in options.items() if k not in NAMES})
        except TypeError as error:
            unknown = next((name for name in options if name not in self._keywords), "")
            if len(arrays) > len(self.spec.arrays):
                hint = f"; {hints.for_position(self.spec)}"
            else:
                takes = [*self.spec.options, *self.spec.scalars, *sorted(NAMES)]
                hint = f"; {hints.for_keyword(self.spec, unknown, takes)}" if unknown else ""
            raise ArgumentTypeError(f"{self.spec.name}: {error}{hint}") from None

    def _route(self, arrays: Sequence[Any]) -> Route | None:
        try:
            library = library_of(arrays[0])
        except (IndexError, TypeError):
            return None
        state = library.state(arrays)
        if not state or not state[0] or (route := route_of(library.name)) is None:
            return None
        return route if route.takes(self, arrays, state[0]) else None

    def _find(
        self,
        arrays: Sequence[Any],
        options: Mapping[str, Any],
        alias: tuple[Any, ...] | None = None,
        given: check.Values | None = None,
    ) -> Plan:
        """The plan for a call whose alias leads to none yet."""
        dispatch = {name: value for name, value in options.items() if name in NAMES}
        own = {name: value for name, value in options.items() if name not in NAMES}
        block = alias[-1] if alias else DEFAULT if check.traced(arrays) else current.get()
        known, chosen = () if alias is None else alias[1:2], block.but(self.spec.name, dispatch)
        problem = check.problem(self.spec, arrays, own, chosen, given, known)
        if alias is None:
            try:
                # Only now are all types known.
                alias = self._alias(arrays, options, given)
                hash(alias)
            except UNFIT:
                alias = None
        facts = facts_of(arrays) if alias is None else alias[1:3]
        return plan_cache.get(alias, problem, lambda p: make(p, self, facts, arrays))

    def sibling(self, plan: Plan, arrays: Sequence[Any]) -> Plan:
        """The plan for the same problem in the layout of `arrays`."""
        options = records.chosen(plan)
        try:
            found = plan_cache.find(self._alias(arrays, options))
        except UNFIT:
            found = None
        found = found or self._find(arrays, options)
        route = self._route(arrays) if found.problem.device == TRACED else None
        if route is None:
            return found
        taken = route
        # A program that is traced may be differentiated, of which the route knows all.
        return found.through(
            lambda given, outs, add, scalars: taken.call(self, given, {**options, **scalars})
        )

    def valued(
        self, plan: Plan, arrays: Sequence[Any], scalars: Mapping[str, Any]
    ) -> tuple[Plan, dict[str, Any]]:
        """The plan for the same problem where run-time values are arrays, and these values."""
        return self._valued(arrays, records.chosen(plan), scalars)

    def again(self, record: Mapping[str, Any]) -> Plan:
        """The plan of a record, or the error that says why it cannot be made here."""
        problem, sku = records.problem_of(self.spec, record), KernelSku.from_json(record["sku"])

        def made(problem: Problem) -> Plan:
            choices = replace(problem.choices, sku=sku)
            plan = make(replace(problem, choices=choices), self, None)
            # It is what the call chose, not what a caller asked for.
            plan.problem = problem
            return plan

        plan = plan_cache.get(None, problem, made)
        return plan if plan.sku == sku else made(problem)


def _planned_again(record: Mapping[str, Any]) -> Plan:
    if record["op"] not in registry:
        raise ArgumentValueError(f"plan: expected a known op, got {record['op']}: import it first")
    return registry[record["op"]].again(record)


copyreg.pickle(Plan, lambda plan: (_planned_again, (records.record(plan),)))


def op(
    *forms: str,
    category: str,
    options: Mapping[str, Normaliser] | None = None,
    scalars: Mapping[str, Normaliser] | None = None,
    dtypes: tuple[str, ...] = FLOATS,
    roles: Mapping[str, Role] | None = None,
    resolve: Resolver | None = None,
    derived: tuple[str, ...] = (),
    hints: Mapping[str, str] | None = None,
    adjoint_of: str | None = None,
    ahead_of: str | None = None,
    namesake: str | None = None,
    located: Mapping[str, str] | None = None,
    batches: tuple[str, ...] | None = None,
    elementwise: bool = False,
    keeps_layout: bool = False,
    numbered: bool | str | Numbering = False,
    products: bool = False,
    composite: bool = False,
    inplace: bool = False,
    packed: Packed | None = None,
    kernel: Kernel | None = None,
    collective: Collective | None = None,
    cases: tuple[Case, ...] = (),
) -> Callable[[Callable[P, R]], Op[P, R]]:
    """Declare an op; see `OpSpec` for what each keyword says.

    `derived` names the axes that `resolve` computes.

    The function's signature and docstring are the public ones. Its body is the definition in
    array-API terms, called with arrays in the accumulate dtype and normalised options.

    Raises
    ------
    ValueError
        Where the declaration contradicts the function, other ops or itself; it names the line.
    """

    def decorate(function: Callable[P, R]) -> Op[P, R]:
        parameters = inspect.signature(function).parameters
        spec = OpSpec(
            name=function.__name__,
            category=category,
            body=function,
            signatures=signatures(forms, derived),
            options=dict(options or {}),
            scalars=dict(scalars or {}),
            defaults={
                name: p.default
                for name, p in parameters.items()
                if p.kind is p.KEYWORD_ONLY and p.default is not p.empty
            },
            dtypes=dtypes,
            roles=dict(roles or {}),
            resolve=resolve,
            hints=dict(hints or {}),
            adjoint_of=adjoint_of,
            ahead_of=ahead_of,
            namesake=namesake,
            located=dict(located or {}),
            batches=batches,
            elementwise=elementwise,
            keeps_layout=keeps_layout or elementwise,
            numbered=numbered,
            products=products,
            composite=composite,
            inplace=inplace,
            packed=packed,
            kernel=kernel,
            collective=collective,
            cases=cases,
        )
        verify(spec, function, {name: op.spec for name, op in registry.items()})
        registry[spec.name] = made = Op(function, spec)
        return made

    return decorate
