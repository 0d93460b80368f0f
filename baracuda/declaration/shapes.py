"""The shape language: parse ``"dy[*b n], x[*b 2n] -> dx[*b 2n]"``, bind its axes to real shapes.

A signature names the axes of every array. ``n`` is one axis, ``2n`` twice its extent, ``*b`` a
group of any number of axes, ``n?`` an axis of extent ``n`` or 1, ``*i<=b`` a group no larger than
``*b`` axis by axis, ``n@axis`` the axis that the option ``axis`` points at. ``shape(*b n)`` in
parentheses is an option that holds a shape. ``if reduction=none`` (or ``!=``) at the end of a form
says for which value of an option it is; ``and`` joins several.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from baracuda.errors import value_error
from baracuda.forks import cached_property
from baracuda.layouts import Shape

Axes: TypeAlias = dict[str, int | Shape]

_PATTERN = re.compile(r"\s*(\w+)\s*([\[(])([^\])]*)[\])]\s*")
_CONDITION = re.compile(r"\s*(\w+)\s*(!?=)\s*(\w+)\s*$")
_TERM = re.compile(r"(\*?)(\d*)([a-z]\w*)(\??)(?:<=(\w+))?(?:@(\w+))?$")


@dataclass(frozen=True, slots=True)
class Term:
    """One axis, or one group of axes, of an array."""

    name: str
    group: bool = False
    factor: int = 1
    or_one: bool = False
    bound: str | None = None
    marker: str | None = None

    def __str__(self) -> str:
        factor = "" if self.factor == 1 else str(self.factor)
        bound = f"<={self.bound}" if self.bound else ""
        return f"{'*' * self.group}{factor}{self.name}{'?' * self.or_one}{bound}"


@dataclass(frozen=True)
class Pattern:
    """The axes of one array, or of one option that holds a shape."""

    name: str
    terms: tuple[Term, ...]
    is_option: bool = False

    def __str__(self) -> str:
        return "[" + " ".join(map(str, self.terms)) + "]"

    @cached_property
    def marker(self) -> str | None:
        """The option that points at one of these axes."""
        return next((t.marker for t in self.terms if t.marker), None)

    @cached_property
    def marked(self) -> int:
        """Which of these terms that is."""
        return [t.marker for t in self.terms].index(self.marker)

    @cached_property
    def names(self) -> frozenset[str]:
        """The axes and groups."""
        return frozenset(t.name for t in self.terms)

    @cached_property
    def bounds(self) -> frozenset[str]:
        """The groups within which groups of its own are."""
        return frozenset(t.bound for t in self.terms if t.bound)

    @cached_property
    def reached(self) -> frozenset[str]:
        """The axes and groups, and those within which groups of its own are."""
        return self.names | self.bounds

    @cached_property
    def groups(self) -> tuple[Term, ...]:
        """The terms that stand for any number of axes."""
        return tuple(t for t in self.terms if t.group)

    @cached_property
    def broadcasts(self) -> bool:
        """Whether an axis may be of extent 1 in the place of its own."""
        return any(t.or_one for t in self.terms)

    @cached_property
    def fixed(self) -> int:
        """How many terms stand for one axis."""
        return len(self.terms) - len(self.groups)

    def fits_rank(self, rank: int) -> bool:
        """Whether an array of this rank could have these axes."""
        return rank == self.fixed or (rank > self.fixed and bool(self.groups))

    def labels(self, axes: Mapping[str, Any]) -> tuple[Label, ...]:
        """What each axis of the bound array is called."""
        out: list[Label] = []
        for term in self.terms:
            if term.group:
                out += [Label(f"{term.name}{i}", term) for i in range(len(axes[term.name]))]
            else:
                out.append(Label(term.name, term))
        return tuple(out)

    def shape(self, axes: Mapping[str, Any]) -> Shape:
        """The shape under bound axes."""
        out: list[int] = []
        for term in self.terms:
            value = axes[term.name]
            out += value if term.group else [term.factor * value]
        return tuple(out)


@dataclass(frozen=True, slots=True)
class Label:
    """One axis of a bound array: its name, a group's axes numbered, and the term it came from."""

    name: str
    term: Term


class Condition(NamedTuple):
    """For which value of an option a form is, or for all but which."""

    option: str
    value: str
    equal: bool

    def __str__(self) -> str:
        return f"{self.option}{'=' if self.equal else '!='}{self.value}"

    def holds(self, options: Mapping[str, Any]) -> bool:
        """Whether these options are of that kind."""
        return (str(options[self.option]) == self.value) == self.equal


@dataclass(frozen=True)
class Signature:
    """The axes of all inputs and outputs of one form of an op."""

    text: str
    inputs: tuple[Pattern, ...]
    outputs: tuple[Pattern, ...]
    derived: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()

    def __hash__(self) -> int:
        return hash(self.text)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The arrays that this form takes."""
        return tuple(p.name for p in self.inputs if not p.is_option)

    @cached_property
    def binding(self) -> tuple[Pattern, ...]:
        """The inputs in the order in which they are bound: what says how large axes are first."""

        def later(pattern: Pattern) -> tuple[bool, bool]:
            return not pattern.names.isdisjoint(self.derived), pattern.marker is None

        return tuple(sorted(self.inputs, key=later))

    def allowed(self, options: Mapping[str, Any]) -> bool:
        """Whether this form is one for these options."""
        return all(condition.holds(options) for condition in self.conditions)

    def takes(self, arrays: Collection[str]) -> bool:
        """Whether these are the arrays of this form."""
        return len(arrays) == len(self.names) and all(map(arrays.__contains__, self.names))


def parse(text: str, derived: Sequence[str] = ()) -> Signature:
    """Read one signature; the options and the other axes make the `derived` ones.

    Raises
    ------
    ValueError
        Where the text is not of the language.
    """
    left, arrow, right = text.partition("->")
    if not arrow:
        raise ValueError(f"signature {text!r}: expected '->'")
    right, when, each = right.partition(" if ")
    sides = _patterns(text, left), _patterns(text, right)
    conditions = [_condition(text, part) for part in each.split(" and ") if when]
    return Signature(text, *sides, tuple(derived), tuple(conditions))


def signatures(texts: Sequence[str], derived: Sequence[str] = ()) -> tuple[Signature, ...]:
    """Parse the forms of an op."""
    return tuple(parse(text, derived) for text in texts)


def _condition(text: str, part: str) -> Condition:
    match = _CONDITION.match(part)
    if match is None:
        raise ValueError(f"signature {text!r}: cannot read the condition {part!r}")
    option, sign, value = match.groups()
    return Condition(option, value, sign == "=")


def _patterns(text: str, part: str) -> tuple[Pattern, ...]:
    out, end = [], 0
    for match in _PATTERN.finditer(part):
        if part[end : match.start()].strip(" ,"):
            break
        name, bracket, body = match.groups()
        out.append(Pattern(name, tuple(_term(text, t) for t in body.split()), bracket == "("))
        end = match.end()
    if not out or part[end:].strip(" ,"):
        raise ValueError(f"signature {text!r}: cannot read {part[end:]!r}")
    return tuple(out)


def _term(text: str, word: str) -> Term:
    match = _TERM.match(word)
    if match is None:
        raise ValueError(f"signature {text!r}: cannot read the axis {word!r}")
    star, factor, name, one, bound, marker = match.groups()
    return Term(name, bool(star), int(factor or 1), bool(one), bound, marker)


class Binder:
    """Binds the axes of one signature, array by array, and explains what does not fit."""

    def __init__(self, op: str, options: dict[str, Any], hints: Mapping[str, str]) -> None:
        self.op = op
        self.axes: Axes = {}
        self._options = options
        self._hints = hints
        # Who said so, for the messages.
        self._met: dict[Pattern, Shape] = {}
        self._derived: Mapping[str, int] = {}

    def bind(
        self,
        signature: Signature,
        shapes: Mapping[str, Shape],
        resolve: Callable[[str, Axes, dict[str, Any]], Mapping[str, int]] | None = None,
    ) -> Axes:
        """Bind every input; `resolve` computes the derived axes from the others.

        Options that mark an axis are made non-negative in place.

        Raises
        ------
        ValueError
            For the first array that does not fit, with the axis and both values.
        """
        resolved = resolve is None
        for pattern in signature.binding:
            if not resolved and not pattern.names.isdisjoint(signature.derived):
                resolved = True
                self._derive(resolve)
            shape = self._options[pattern.name] if pattern.is_option else shapes[pattern.name]
            self._match(pattern, tuple(shape))
        if not resolved:
            self._derive(resolve)
        return self.axes

    def _derive(self, resolve: Any) -> None:
        self._derived = resolve(self.op, self.axes, self._options)
        self.axes.update(self._derived)

    def _said(self, pattern: Pattern) -> str:
        """An array that was met, with its shape and the option that points at one of its axes."""
        shape = self._met[pattern]
        text = (
            f"{pattern.name}={shape}" if pattern.is_option else f"{pattern.name} of shape {shape}"
        )
        return (
            f"{text} with {pattern.marker}={self._options[pattern.marker]}"
            if pattern.marker
            else text
        )

    def _owner(self, term: Term, name: str) -> str:
        """Who said how large an axis is."""
        if name in self._derived:
            return "by " + ", ".join(f"{k}={v}" for k, v in self._options.items())
        owner, factor = next((p, t.factor) for p in self._met for t in p.terms if t.name == name)
        part = "half of " if (factor, term.factor) == (2, 1) else ""
        return f"{part or 'as '}{self._said(owner)}"

    def _fail(self, pattern: Pattern, expected: str, shape: Shape) -> ValueError:
        axes: dict[str, Any] = {pattern.name: pattern, **self.axes}
        hint = self._hints.get(pattern.name, "")
        return value_error(self.op, pattern.name, expected, f"shape {shape}", axes, hint)

    def _rank(self, pattern: Pattern, shape: Shape) -> ValueError:
        """The error for an array of too many or too few axes."""
        known: list[Any] = [
            self.axes.get(t.name, self.axes.get(t.bound or "")) for t in pattern.groups
        ]
        count = pattern.fixed + sum([len(k) for k in known if k is not None])
        least = "at least " if None in known else ""
        beside = " and ".join(map(self._said, self._met))
        expected = f"{least}{count} {'axis' if count == 1 else 'axes'}"
        return self._fail(pattern, f"{expected} beside {beside}" if beside else expected, shape)

    def _match(self, pattern: Pattern, shape: Shape) -> None:
        lengths = self._group_lengths(pattern, shape)
        self._met[pattern] = shape
        axis = 0
        for term in pattern.terms:
            if not term.group:
                self._extent(pattern, term, axis, shape)
                axis += 1
                continue
            part = shape[axis : axis + lengths[term.name]]
            if term.name not in self.axes and term.bound is None:
                self.axes[term.name] = part
            else:
                self._group(pattern, term, axis, part, shape)
            axis += len(part)

    def _group_lengths(self, pattern: Pattern, shape: Shape) -> dict[str, int]:
        """How many axes each group of `pattern` has in an array of this shape."""
        groups, axes = pattern.groups, self.axes
        spare = len(shape) - pattern.fixed
        lengths: dict[str, int] = {}
        for term in groups:
            known = axes.get(term.name, axes.get(term.bound or ""))
            if known is not None:
                lengths[term.name] = len(known)  # type: ignore[arg-type]
        if pattern.marker and groups[0].name not in lengths and spare >= 0:
            written = self._options[pattern.marker]
            position = self._position(pattern, len(shape)) - (pattern.marked - 1)
            last = len(groups) == 1
            if not (0 <= position <= spare) or (last and position != spare):
                first, end = pattern.marked - 1, pattern.marked - 1 + spare
                room = f"an axis from {first} to {end}" if first < end and not last else f"{end}"
                raise value_error(
                    self.op,
                    pattern.marker,
                    f"{room} for {pattern.name} of shape {shape}",
                    written,
                    {pattern.name: pattern},
                )
            lengths[groups[0].name] = position
        free = [t.name for t in groups if t.name not in lengths]
        if len(free) == 1:
            lengths[free[0]] = spare - sum(lengths.values())
        if spare < 0 or min(lengths.values(), default=0) < 0 or sum(lengths.values()) != spare:
            raise self._rank(pattern, shape)
        return lengths

    def _position(self, pattern: Pattern, rank: int) -> int:
        name = pattern.marker or ""
        axis = self._options[name]
        if not -rank <= axis < rank:
            raise value_error(
                self.op, name, f"{-rank} <= {name} < {rank} for {pattern.name} of rank {rank}", axis
            )
        self._options[name] = axis % rank
        return int(axis % rank)

    def _extent(self, pattern: Pattern, term: Term, axis: int, shape: Shape) -> None:
        known, extent = self.axes.get(term.name), shape[axis]
        if known is None:
            if extent % term.factor:
                even = "an even extent" if term.factor == 2 else f"a multiple of {term.factor}"
                raise self._fail(pattern, f"{even} along axis {axis}", shape)
            self.axes[term.name] = extent // term.factor
            return
        want = term.factor * known
        if extent != want and not (term.or_one and extent == 1):
            either = " or 1" if term.or_one else ""
            expected = f"{want}{either} along axis {axis} ({self._owner(term, term.name)})"
            raise self._fail(pattern, expected, shape)

    def _group(self, pattern: Pattern, term: Term, axis: int, part: Shape, shape: Shape) -> None:
        known = self.axes.get(term.name)
        if known is None:
            limit = self.axes[term.bound or ""]
            for i, (n, most) in enumerate(zip(part, limit, strict=True)):  # type: ignore[arg-type]
                if n > most and not (term.or_one and n == 1):
                    owner = self._owner(term, term.bound or "")
                    expected = f"at most {most} along axis {axis + i} ({owner})"
                    raise self._fail(pattern, expected, shape)
            self.axes[term.name] = part
            return
        if part == known:
            return
        for i, (n, want) in enumerate(zip(part, known, strict=True)):  # type: ignore[arg-type]
            if n != want and not (term.or_one and n == 1):
                either = " or 1" if term.or_one else ""
                expected = f"{want}{either} along axis {axis + i} ({self._owner(term, term.name)})"
                raise self._fail(pattern, expected, shape)
