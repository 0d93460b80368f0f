"""The plans that the next call of an op is likely to need, found without making a key.

A program repeats a call, or lets a handful take turns: forms, shapes, dtypes, options. Which one
follows which is the first guess. The next are the plans of calls of the same shapes and options.
A guess is compared with the arrays as its library does it best; what fits is the right plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from baracuda.calls.cache import plan_cache
from baracuda.calls.plan import Plan
from baracuda.declaration.dispatch import DEFAULT, current
from baracuda.libraries import FACTS, Array, alignment, facts_of

# So many kinds of calls are told apart by shapes and options, and so many calls of one kind by
# what those do not say: dtypes, strides, devices, gradients.
_MOST_KINDS, _MOST_ALIKE = 64, 4
_WIDEST = alignment(0)
# Modes in which the next call is likely to be as this one: nothing special, and training.
_REPEATED = ("", "autograd")
_SEVERAL = frozenset((tuple, np.ndarray))


class Known:
    """Calls that a plan was found for.

    Attributes
    ----------
    plan : Plan
    generation : int
        That of the plan cache.
    written : tuple
        The keywords of the calls.
    matches : callable
        ``(arrays) -> bool``: whether the arrays are those of such a call.
    narrow : bool
        Whether some array is less aligned than it may be. Such a call is told by facts alone: the
        library's own way does not see alignment, and would match arrays that are aligned better.
    next : Known
        What came behind such a call the last time; to begin with such a call.
    """

    __slots__ = ("_facts", "_shape", "generation", "matches", "narrow", "next", "plan", "written")

    def __init__(
        self,
        plan: Any,
        generation: int,
        written: Any = (),
        facts: Any = (),
        narrow: bool = False,
        shape: Any = None,
    ) -> None:
        self.plan, self.generation, self.written, self._shape = plan, generation, written, shape
        self.narrow = narrow
        self.matches: Callable[[Sequence[Array]], bool] = self._are_alike
        self.next, self._facts = self, facts

    def _are_alike(self, arrays: Sequence[Array]) -> bool:
        """Compares facts; from the first arrays that fit on, the library's own way is faster."""
        # Most arrays that do not fit have another shape, which is cheaper to ask for.
        first = arrays[0]
        if type(first) in FACTS and first.shape != self._shape:
            return False
        if facts_of(arrays) != self._facts:
            return False
        if not self.narrow:
            self.matches = self.plan.problem.library.matcher(arrays)
        return True


class Recent:
    """The calls of one op of late.

    Attributes
    ----------
    last : Known
        The last of them.
    """

    __slots__ = ("_kinds", "last")

    def __init__(self) -> None:
        self.last = Known(None, -1)
        self._kinds: tuple[int, dict[Any, tuple[Known, ...]]] = (-1, {})

    def find(
        self, arrays: Sequence[Array], written: tuple[Any, ...], narrow: bool = False
    ) -> Plan | None:
        """The plan of such a call, where there was one of late; a `narrow` one alone if asked."""
        generation, kinds = self._kinds
        if generation != plan_cache.generation:
            return None
        for known in kinds.get(_kind(arrays, written), ()):
            if (known.narrow or not narrow) and known.matches(arrays):
                plan_cache.count_hit()
                self.last.next = self.last = known
                plan: Plan = known.plan
                return plan
        return None

    def plan(
        self,
        make: Callable[..., Plan],
        arrays: Sequence[Array],
        written: tuple[Any, ...],
        options: Mapping[str, Any],
        narrow: bool = False,
    ) -> Plan:
        """The plan that was found of late, or else what `make` gives for arrays and options.

        Only a `narrow` one where another plan has just refused how the arrays are aligned.
        """
        block = current.get()
        found = self.find(arrays, written, narrow) if block is DEFAULT else None
        if found is None:
            alias, generation = ("", *facts_of(arrays), written, block), plan_cache.generation
            found = make(*arrays, **options)
            if not found.provisional:
                self.remember(found, generation, alias, arrays)
        return found

    def remember(
        self,
        plan: Plan,
        generation: int,
        alias: tuple[Any, ...],
        arrays: Sequence[Array],
        new: bool = False,
    ) -> None:
        """Note that `plan` is that of such a call, where more of them are likely.

        `generation` is that of the plan cache before the plan was taken out of it; a `new` plan
        may be one of many that are called once.
        """
        _, state, facts, written, block = alias
        mode, deterministic, *_ = state or ("", False)
        if mode not in _REPEATED or deterministic or block is not DEFAULT:
            return
        narrow = any(x.alignment < _WIDEST for x in plan.problem.given)
        one = Known(plan, generation, written, (state, facts), narrow, arrays[0].shape)
        if not (new or narrow):
            # Equal facts of others were not enough: what fits has to be told from those arrays.
            one.matches = plan.problem.library.matcher(arrays)
        since, kinds = self._kinds
        if since != generation or len(kinds) >= _MOST_KINDS:
            kinds = {}
            self._kinds = generation, kinds
        kind = _kind(arrays, written)
        alike = [one, *kinds.get(kind, ())]
        fewer, others = [[k for k in alike if k.narrow is n][:_MOST_ALIKE] for n in (True, False)]
        # The narrow ones first: the others match their arrays too, and do not fit them. A new
        # tuple, since another thread may walk over this one.
        kinds[kind] = (*fewer, *others)
        self.last.next = self.last = one


def _kind(arrays: Sequence[Array], written: tuple[Any, ...]) -> tuple[Any, ...]:
    """What tells most calls of an op apart, at the least cost."""
    first, last = arrays[0], arrays[-1]
    return len(arrays), first.shape, None if last is None else last.shape, written


def written(options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Keywords as they are written, each with its type: 1, True and 1.0 are equal, but as keys."""
    return tuple(
        [
            (k, t, v) if (t := type(v)) not in _SEVERAL else (k, *_held(v))
            for k, v in options.items()
        ]
    )


def _held(value: Any) -> tuple[Any, Any]:
    """The types and the values of several; of a NumPy array those that it has now."""
    if type(value) is tuple:
        return tuple(map(type, value)), value
    return (np.ndarray, value.dtype, value.shape), value.tobytes()
