"""Calls of an op with sequences of arrays in the places of arrays: one plan for the whole list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import add, is_
from typing import Any, Protocol

from baracuda import backends
from baracuda.calls import check
from baracuda.calls.cache import plan_cache
from baracuda.calls.plan import Plan
from baracuda.declaration.backend import Refusal
from baracuda.declaration.dispatch import current
from baracuda.declaration.sku import KernelSku
from baracuda.declaration.spec import OpSpec
from baracuda.errors import ArgumentTypeError, type_error, value_error
from baracuda.instruments import logger
from baracuda.libraries import UNFIT, Array, facts_of, library_of

Lists = Sequence[Sequence[Array] | None]
"""For each array that the op takes a sequence of them, all of one length."""


class Owner(Protocol):
    """What a plan over lists asks of its op."""

    spec: OpSpec

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        """One call."""

    def plan(self, *arrays: Any, **options: Any) -> Any:
        """The plan of one call, or of lists."""


def summed(spec: OpSpec) -> bool:
    """Whether results are sums over all elements, of a list over those of all its arrays."""
    return not any(p.terms for f in spec.signatures for p in f.outputs)


def taken_by(spec: OpSpec) -> bool:
    """Whether an op takes lists: elementwise ones of which all arrays have one shape, and sums."""
    sides = [f.inputs if summed(spec) else (*f.inputs, *f.outputs) for f in spec.signatures]
    every = [{p.terms for p in side} for side in sides]
    alike = all(len(terms) == 1 and len(next(iter(terms))) == 1 for terms in every)
    return spec.elementwise and alike


def are(arrays: Sequence[Any]) -> bool:
    """Whether these are sequences of arrays."""
    # Not `bool`, which not every torch.compile reads of a tuple.
    return len(arrays) > 0 and type(arrays[0]) in (list, tuple)


def watched(arrays: Lists) -> bool:
    """Whether a framework traces or differentiates what is done with some of the arrays."""
    flat = joined(arrays)
    if not flat:
        return False
    state = library_of(flat[0]).state(flat)
    return bool(state and state[0])


def joined(arrays: Lists) -> list[Array]:
    """All arrays that are there, one operand after the other."""
    return [*chain.from_iterable([some for some in arrays if some is not None])]


def each(op: Owner, arrays: Lists, options: Mapping[str, Any]) -> Any:
    """The op on each set of arrays: for frameworks that see every call."""
    sets = enumerate(rows(op.spec, arrays))
    results = [op(*row, **_own(op.spec, row[0], options, i)) for i, row in sets]
    return _sum(op.spec, results) if summed(op.spec) else _columns(results)


def rows(spec: OpSpec, arrays: Lists) -> list[tuple[Array, ...]]:
    """The sets of arrays.

    Raises
    ------
    TypeError, ValueError
        For what is no sequence, and for sequences of other lengths than the first.
    """
    count = len(arrays[0] or ())
    for name, some in zip(spec.arrays, arrays, strict=False):
        if some is None:
            continue
        if type(some) not in (list, tuple):
            expected = f"a list of arrays (as {spec.arrays[0]})"
            raise type_error(spec.name, name, expected, type(some).__name__)
        if len(some) != count:
            expected = f"{count} arrays (as {spec.arrays[0]})"
            raise value_error(spec.name, name, expected, len(some))
    return list(zip(*[(None,) * count if x is None else x for x in arrays], strict=True))


def _own(spec: OpSpec, like: Array, values: Mapping[str, Any], i: int) -> Mapping[str, Any]:
    """The values for the set of this number: where elements are numbered, random words of its own.

    It is what kernels of lists do.
    """
    if not (spec.numbered and i):
        return values
    offset = values.get("offset", spec.defaults["offset"])
    library = library_of(like)
    if hasattr(offset, "dtype"):
        return {**values, "offset": library.joined(offset, i)}
    whole = (offset + (i << 32)) % 2**64
    return {**values, "offset": whole}


def _columns(results: Sequence[Any]) -> Any:
    """The results of sets of arrays as a list of each result."""
    if results and type(results[0]) is not tuple:
        return list(results)
    return tuple(map(list, zip(*results, strict=True)))


def _sum(spec: OpSpec, results: Sequence[Array]) -> Array:
    """The sum of the results of sets of arrays, in their order."""
    if not results:
        raise value_error(spec.name, spec.arrays[0], "at least one array", 0)
    # NumPy makes scalars of sums of arrays without axes.
    xp = library_of(results[0]).xp
    return xp.reshape(reduce(add, [xp.reshape(x, (1,)) for x in results]), ())


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

    def __init__(self, op: Owner, arrays: Lists, options: Mapping[str, Any]) -> None:
        self._op, self._options, spec = op, dict(options), op.spec
        sets = rows(spec, arrays)
        self._count, self._given = len(sets), tuple(x is not None for x in arrays)
        found: dict[Any, Plan] = {}
        plans = []
        for row in sets:
            try:
                facts = facts_of(row)
                plan = found.get(facts)
                if plan is None:
                    plan = found[facts] = op.plan(*row, **options)
            except UNFIT:
                plan = op.plan(*row, **options)
            plans.append(plan)
        self.plans: tuple[Plan, ...] = tuple(plans)
        self._kinds = {p.problem.compute_dtype: p for p in plans}
        self._in_place: set[tuple[int, ...]] = set()
        self._outs_match: Callable[[Sequence[Array]], bool] = lambda outs: False
        flat = joined(arrays)
        self.matches = _matcher(flat)
        self._prepare()

    def _prepare(self) -> None:
        """Give to a backend the sets that it takes together; the others are `alone`."""
        together: dict[tuple[str, str], list[int]] = {}
        for i, plan in enumerate(self.plans):
            if _takes(plan):
                # One launch adds up sums of one dtype.
                dtype = plan.problem.outputs[0].dtype if summed(self._op.spec) else ""
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
        flat = joined(arrays)
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
        sets = rows(self._op.spec, arrays) if self._alone else []
        for i in self._alone:
            own = tuple([some[i] for some in made])
            each_own = _own(self._op.spec, sets[i][0], scalars, i)
            self.plans[i](*sets[i], out=own if len(own) > 1 else own[0], **each_own)
        return out if out is not None else made if len(made) > 1 else made[0]

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
        outputs = len(self.plans[0].problem.outputs)
        outs = (out,) if outputs == 1 and not are(out) else tuple(out)
        if len(outs) != outputs or not all(type(x) in (list, tuple) for x in outs):
            got = f"{len(outs)}: {', '.join([type(x).__name__ for x in outs])}"
            raise value_error(self._op.spec.name, "out", f"{outputs} lists of arrays", got)
        if any(len(x) != self._count for x in outs):
            lengths = [len(x) for x in outs]
            raise value_error(self._op.spec.name, "out", f"{self._count} arrays each", lengths)
        places = self._places([some for some in arrays if some is not None], outs)
        others = [*chain.from_iterable([x for x, k in zip(outs, places, strict=True) if k < 0])]
        if places in self._in_place and (not others or self._outs_match(others)):
            return outs
        for i, row in enumerate(rows(self._op.spec, arrays)):
            own = tuple([some[i] for some in outs])
            self.plans[i].outs(row, own if len(own) > 1 else own[0], False)
        self._in_place.add(places)
        if others:
            self._outs_match = library_of(others[0]).matcher(others)
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
        for i, row in enumerate(rows(self._op.spec, arrays)):
            own = None if outs is None else tuple([some[i] for some in outs])
            own = own[0] if own is not None and len(own) == 1 else own
            values = _own(self._op.spec, row[0], scalars, i)
            results.append(self.plans[i](*row, out=own, **values))
        if outs is not None:
            return outs if len(outs) > 1 else outs[0]
        return _columns(results)

    def _sibling(self, arrays: Lists) -> ListPlan:
        """The plan for the same shapes in another layout."""
        spec, sets = self._op.spec, rows(self._op.spec, arrays)
        if len(sets) != self._count:
            raise value_error(spec.name, "plan", f"{self._count} arrays in a list", len(sets))
        for plan, row in zip(self.plans, sets, strict=True):
            plan.fitting(row)
        found = _planned(self._op, arrays, self._options)
        self.matches = found.matches if found.plans == self.plans else self.matches
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
        results, sets = [], rows(spec, arrays)
        if self._together is not None:
            first = self.plans[self._taken[0]].problem
            operand, values = first.outputs[0], self._values(flat[0], scalars)
            total = first.library.empty((), operand.dtype, flat[0], operand.strides)
            self._together(self._part(flat), (), *values, total)
            results.append(total)
        results += [self.plans[i](*sets[i], **scalars) for i in self._alone]
        return _sum(spec, results)


def _planned(op: Owner, arrays: Lists, options: Mapping[str, Any]) -> ListPlan:
    return (SumPlan if summed(op.spec) else ListPlan)(op, arrays, options)


# So many plans over lists does an op remember.
_MOST = 4


class Recent:
    """The plans over lists that an op has made lately."""

    def __init__(self, op: Owner) -> None:
        self._op, self._taken = op, taken_by(op.spec)
        self._known: tuple[tuple[Any, ListPlan], ...] = ()

    def takes(self, arrays: Sequence[Any]) -> bool:
        """Whether these are lists, and the op takes such."""
        return self._taken and are(arrays)

    def find(self, arrays: Lists, options: Mapping[str, Any]) -> ListPlan:
        """The plan for these lists and structural options."""
        return self._find(arrays, joined(arrays), options)

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
        rows(self._op.spec, arrays)
        if watched(arrays):
            return each(self._op, arrays, {**options, **scalars})
        flat = joined(arrays)
        return self._find(arrays, flat, options).run(arrays, flat, None, scalars)


def _takes(plan: Plan) -> bool:
    """Whether the backend of a plan takes such sets of arrays together."""
    takes = getattr(backends.load(plan.sku.backend), "takes_lists_of", None)
    return takes is not None and not plan.problem.mode and takes(plan.problem)
