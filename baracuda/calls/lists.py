"""Calls of an op with sequences of arrays in the places of arrays: one plan for the whole list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from operator import is_
from typing import Any

from baracuda import backends
from baracuda.calls import check, outputs, sets
from baracuda.calls.cache import plan_cache
from baracuda.calls.plan import Plan
from baracuda.calls.sets import Lists, Owner
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dispatch import current
from baracuda.declaration.sku import KernelSku
from baracuda.errors import ArgumentTypeError, type_error, value_error
from baracuda.instruments import logger
from baracuda.libraries import UNFIT, Array, facts_of, library_of


def in_force() -> tuple[Any, int]:
    """What a plan over lists is made under, and is not kept beyond."""
    return current.get(), plan_cache.generation


def _matcher(flat: Sequence[Array]) -> Callable[[Sequence[Array]], bool]:
    """Tells whether others need the same plan."""
    if not flat:
        return lambda others: True
    found = library_of(flat[0]).matcher(flat)
    if found(flat):
        return found
    # torch's own guards refuse an array that is there twice.
    want = facts_of(flat)
    return lambda others: facts_of(others) == want


def _none_fits(arrays: Sequence[Array]) -> bool:
    return False


class ListPlan:
    """A choice made once for sequences of arrays: which launches, for arrays of these shapes.

    It holds no array. Kernels take all sets of arrays of one dtype in one launch; the backend has a
    table of addresses for that, and makes it again where one has changed. Sets that no such kernel
    takes run one by one, through the plan of each.

    Attributes
    ----------
    plans : tuple of Plan
        The plan of each set by itself.
    skus : tuple of KernelSku
        What runs: a record of each launch over many sets, then of each plan that runs by itself.
    matches : callable
        ``(arrays) -> bool``: whether all arrays, one operand after the other, fit the plan.
    """

    def __init__(
        self,
        op: Owner,
        plans: Sequence[Plan],
        given: tuple[bool, ...],
        options: Mapping[str, Any],
        matches: Callable[[Sequence[Array]], bool] | None = None,
    ) -> None:
        self._op, self._options, self._given = op, dict(options), given
        self.plans, self._count = tuple(plans), len(plans)
        self._kinds = {p.problem.compute_dtype: p for p in plans}
        self._in_place: set[tuple[int, ...]] = set()
        self._outs_match: Callable[[Sequence[Array]], bool] = _none_fits
        self.matches = matches or _none_fits
        self._prepare()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._op, self.plans, self._given, self._options)

    def _prepare(self) -> None:
        """Give to a backend the sets that it takes together; the others are `alone`."""
        together: dict[tuple[str, str], list[int]] = {}
        for i, plan in enumerate(self.plans):
            if _takes(plan):
                # One launch adds up sums of one dtype.
                dtype = plan.problem.outputs[0].dtype if sets.summed(self._op.spec) else ""
                together.setdefault((plan.sku.backend, dtype), []).append(i)
        most = max(together.items(), key=lambda x: len(x[1]), default=(("", ""), []))
        (name, _), taken = most
        problems = [self.plans[i].problem for i in taken]
        try:
            self._together = backends.load(name).prepare_list(problems) if taken else None  # type: ignore[attr-defined]
        except Refusal as refusal:
            logger.info("%s: a launch for each set of arrays: %s", self._op.spec.name, refusal)
            self._together, taken = None, []
        self._taken, self._alone = taken, sorted({*range(self._count)} - {*taken})
        skus = []
        for first, kernel, variant, code in self._together.launches if self._together else ():
            made = {"kernel": kernel, "variant": variant, "code": code}
            skus.append(replace(self.plans[taken[first]].sku, **made))
        skus += dict.fromkeys([self.plans[i].sku for i in self._alone])
        self.skus: tuple[KernelSku, ...] = tuple(skus)

    def __repr__(self) -> str:
        return f"<ListPlan {self._op.spec.name} of {self._count}: {', '.join(map(str, self.skus))}>"

    def fits(self, arrays: Lists, flat: Sequence[Array]) -> bool:
        """Whether the plan is for these lists."""
        if len(flat) != self._count * sum(self._given):
            return False
        if tuple([x is not None for x in arrays]) != self._given:
            return False
        try:
            return bool(self.matches(flat))
        except UNFIT:
            return False

    def __call__(self, *arrays: Any, out: Any = None, **scalars: Any) -> Any:
        """Run on lists of the planned shapes, dtypes, library and device.

        Parameters
        ----------
        *arrays : list or tuple of arrays
            As the op takes arrays.
        out : list of arrays, or tuple of lists, optional
            Where to write. Each list may be exactly one of `arrays`: the step is then in place.
        **scalars
            The op's run-time values, for all arrays alike.

        Returns
        -------
        list of arrays, or tuple of lists
            A list of each result; `out` where it was given.

        Raises
        ------
        ValueError
            For arrays or outputs that do not fit the plan; for arrays that overlap where one of
            them is written to.
        """
        if not sets.are(arrays):
            first, kinds = self._op.spec.arrays[0], [type(x).__name__ for x in arrays]
            expected = f"a list of {self._count} arrays"
            raise type_error(self._op.spec.name, first, expected, ", ".join(kinds) or "none")
        flat = sets.joined(arrays)
        plan = self if self.fits(arrays, flat) else self._sibling(arrays)
        return plan.run(arrays, flat, out, scalars)

    def run(
        self, arrays: Lists, flat: Sequence[Array], out: Any, scalars: Mapping[str, Any]
    ) -> Any:
        """A call with arrays that fit; `flat` are all of them."""
        if not flat:
            return out if out is not None else self._none()
        outs = None if out is None else self._outs(arrays, out)
        if self._together is None:
            return self._one_by_one(arrays, outs, scalars)
        values, reads = self._values(flat[0], scalars)
        made = self._new(arrays) if outs is None else outs
        self._together(self._part(flat), self._sources(arrays, made), values, reads)
        library = library_of(flat[0])
        if outs is not None:
            library.written([*chain.from_iterable(outs)])
        every = sets.rows(self._op.spec, arrays) if self._alone else []
        for i in self._alone:
            own = tuple([some[i] for some in made])
            each_own = sets.own(self._op.spec, every[i][0], scalars, i)
            self.plans[i](*every[i], out=own if len(own) > 1 else own[0], **each_own)
        return made if len(made) > 1 else made[0]

    def _none(self) -> Any:
        """The results of no arrays."""
        names = {n for n, some in zip(self._op.spec.arrays, self._given, strict=False) if some}
        own = {k: v for k, v in self._options.items() if k in self._op.spec.options}
        form = next(f for f in self._op.spec.forms(own) if {*f.names} == names)
        return tuple([] for _ in form.outputs) if len(form.outputs) > 1 else []

    def _part(self, flat: Sequence[Array]) -> Sequence[Array]:
        """Of all operands the arrays of the sets that run together."""
        if not self._alone:
            return flat
        return [flat[k + i] for k in range(0, len(flat), self._count) for i in self._taken]

    def _sources(
        self, arrays: Lists, outs: Sequence[Sequence[Array]]
    ) -> list[int | Sequence[Array]]:
        """For each output the number of the operand in whose place it is, or its arrays."""
        given = [some for some in arrays if some is not None]
        where = self._places(given, outs)
        return [self._part(some) if k < 0 else k for some, k in zip(outs, where, strict=True)]

    @staticmethod
    def _places(given: Lists, outs: Sequence[Sequence[Array]]) -> tuple[int, ...]:
        """The number of the operand that an output is, -1 for none."""
        places = []
        for some in outs:
            first = some[0] if some else None
            at = next((k for k, x in enumerate(given) if x is some or (x and x[0] is first)), -1)
            alike = at >= 0 and (given[at] is some or all(map(is_, some, given[at] or ())))
            places.append(at if alike else -1)
        return tuple(places)

    def _new(self, arrays: Lists) -> tuple[list[Array], ...]:
        """New outputs."""
        library, first = self.plans[0].problem.library, arrays[0] or ()
        results = [
            [library.empty(o.shape, o.dtype, like, o.strides) for o in plan.problem.outputs]
            for plan, like in zip(self.plans, first, strict=True)
        ]
        return tuple(map(list, zip(*results, strict=True)))

    def _outs(self, arrays: Lists, out: Any) -> tuple[Sequence[Array], ...]:
        """The outputs as lists, checked; those that are inputs only once."""
        results = len(self.plans[0].problem.outputs)
        several = type(out) in (list, tuple) and (results > 1 or sets.are(out))
        given = tuple(out) if several else (out,)
        outs = tuple([[None] * self._count if x is None else x for x in given])
        if len(outs) != results or not all(type(x) in (list, tuple) for x in outs):
            expected = "a list of arrays" if results == 1 else f"a tuple of {results} lists"
            got = ", ".join([type(x).__name__ for x in given])
            raise value_error(self._op.spec.name, "out", expected, got)
        if any(len(x) != self._count for x in outs):
            lengths = [len(x) for x in outs]
            raise value_error(self._op.spec.name, "out", f"{self._count} arrays each", lengths)
        places = self._places([some for some in arrays if some is not None], outs)
        others = [*chain.from_iterable([x for x, k in zip(outs, places, strict=True) if k < 0])]
        missing = any(x is None for x in others)
        known = places in self._in_place and not missing
        each_set = sets.rows(self._op.spec, arrays) if self._alone or not known else []
        if not (known and (not others or self._outs_match(others))):
            every = zip(self.plans, each_set, zip(*outs, strict=True), strict=True)
            checked = [plan.outs(row, own, False)[0] for plan, row, own in every]
            if missing:
                outs = tuple(map(list, zip(*checked, strict=True)))
            else:
                self._in_place.add(places)
                self._outs_match = library_of(others[0]).matcher(others) if others else _none_fits
        if self._alone:
            # Backends look at those that they take together.
            outputs.in_lists(self._op.spec.name, each_set, [*zip(*outs, strict=True)])
        return outs

    def _values(self, like: Array, scalars: Mapping[str, Any]) -> tuple[list[Any], tuple[str, ...]]:
        """The run-time values in the order of kernels, and which of them are arrays."""
        spec = self._op.spec
        try:
            every = [p.scalars(scalars) for p in self._kinds.values()]
            return list(every[0].values()), ()
        except ArgumentTypeError:
            given = check.values_of(spec, (like,), scalars)
            found: dict[str, Any] = {}
            for dtype in self._kinds:
                found = check.scalars(spec, dtype, given.numbers, True, given.arrays)
            found |= given.arrays
            return [found[name] for name in spec.scalars], given.dtypes

    def _one_by_one(
        self, arrays: Lists, outs: tuple[Sequence[Array], ...] | None, scalars: Mapping[str, Any]
    ) -> Any:
        results = []
        for i, row in enumerate(sets.rows(self._op.spec, arrays)):
            own = None if outs is None else tuple([some[i] for some in outs])
            own = own[0] if own is not None and len(own) == 1 else own
            values = sets.own(self._op.spec, row[0], scalars, i)
            results.append(self.plans[i](*row, out=own, **values))
        if outs is not None:
            return outs if len(outs) > 1 else outs[0]
        return sets.columns(results)

    def _sibling(self, arrays: Lists) -> ListPlan:
        """The plan for the same shapes in another layout."""
        spec, every = self._op.spec, sets.rows(self._op.spec, arrays)
        if len(every) != self._count:
            raise value_error(spec.name, "plan", f"{self._count} arrays in a list", len(every))
        for plan, row in zip(self.plans, every, strict=True):
            plan.fitting(row)
        found = _planned(self._op, arrays, self._options)
        alike = all(p.problem == q.problem for p, q in zip(found.plans, self.plans, strict=True))
        self.matches = found.matches if alike else self.matches
        return found


class SumPlan(ListPlan):
    """A choice made once for the sum over sequences of arrays."""

    def run(
        self, arrays: Lists, flat: Sequence[Array], out: Any, scalars: Mapping[str, Any]
    ) -> Any:
        """A call with arrays that fit; `flat` are all of them."""
        spec = self._op.spec
        if out is not None:
            raise value_error(spec.name, "out", "None (a sum over a list)", type(out).__name__)
        results, every = [], sets.rows(spec, arrays)
        if self._together is not None:
            first = self.plans[self._taken[0]].problem
            operand, values = first.outputs[0], self._values(flat[0], scalars)
            total = first.library.empty((), operand.dtype, flat[0], operand.strides)
            self._together(self._part(flat), (), *values, total)
            results.append(total)
        results += [self.plans[i](*every[i], **scalars) for i in self._alone]
        return sets.total(spec, results)


def _planned(op: Owner, arrays: Lists, options: Mapping[str, Any]) -> ListPlan:
    """The plan for these lists, whose sets of the same facts share one."""
    sets.of_one_library(op.spec, arrays)
    found, plans = dict[Any, Plan](), list[Plan]()
    for row in sets.rows(op.spec, arrays):
        try:
            facts = facts_of(row)
            plan = found.get(facts)
            if plan is None:
                plan = found[facts] = op.plan(*row, **options)
        except UNFIT:
            plan = op.plan(*row, **options)
        plans.append(plan)
    given = tuple(x is not None for x in arrays)
    kind = SumPlan if sets.summed(op.spec) else ListPlan
    return kind(op, plans, given, options, _matcher(sets.joined(arrays)))


# So many plans over lists does an op remember.
_MOST = 4


class Recent:
    """The plans over lists that an op has made lately."""

    def __init__(self, op: Owner) -> None:
        self._op, self._taken = op, sets.taken_by(op.spec)
        self._known: tuple[tuple[Any, ListPlan], ...] = ()

    def takes(self, arrays: Sequence[Any]) -> bool:
        """Whether these are lists, and the op takes such."""
        return self._taken and sets.are(arrays)

    def find(self, arrays: Lists, options: Mapping[str, Any]) -> ListPlan:
        """The plan for these lists and structural options."""
        return self._find(arrays, sets.joined(arrays), options)

    def _find(self, arrays: Lists, flat: Sequence[Array], options: Mapping[str, Any]) -> ListPlan:
        key = repr(sorted(options.items())), *in_force()
        for known, plan in self._known:
            if known == key and plan.fits(arrays, flat):
                return plan
        made = _planned(self._op, arrays, options)
        self._known = ((key, made), *self._known)[:_MOST]
        return made

    def run(self, arrays: Lists, options: Mapping[str, Any], scalars: Mapping[str, Any]) -> Any:
        """A call of the op with lists."""
        sets.rows(self._op.spec, arrays)
        if sets.watched(arrays):
            return sets.each(self._op, arrays, {**options, **scalars})
        flat = sets.joined(arrays)
        return self._find(arrays, flat, options).run(arrays, flat, None, scalars)


def _takes(plan: Plan) -> bool:
    """Whether the backend of a plan takes such sets of arrays together."""
    takes = getattr(backends.load(plan.sku.backend), "takes_lists_of", None)
    return takes is not None and not plan.problem.mode and takes(plan.problem)
