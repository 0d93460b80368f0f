"""Exceptions and the one place where their messages are built.

Every exception is also the built-in that fits it, so callers may catch ``ValueError`` as well as
`BaracudaError`. Messages read ``op: argument: expected …, got … [axis values]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np


class BaracudaError(Exception):
    """Base of all exceptions raised by baracuda."""


class ArgumentTypeError(BaracudaError, TypeError):
    """An argument of the wrong kind: not an array, wrong dtype, mixed libraries or devices."""


class ArgumentValueError(BaracudaError, ValueError):
    """An argument of the right kind whose shape or value does not fit."""


class IndexOutOfRangeError(BaracudaError, IndexError):
    """An entry of an index array lies outside the axis that it indexes."""


class UnsupportedError(BaracudaError, NotImplementedError):
    """No backend takes the problem; the message lists each backend's reason."""


def shown(value: object) -> str:
    """An argument in one line; of an array what it is, as its values may lie on a device."""
    if hasattr(value, "dtype") and not isinstance(value, np.generic):
        kind, shape = type(value), getattr(value, "shape", "unknown")
        return f"a {kind.__module__}.{kind.__qualname__} of shape {shape}"
    try:
        text = repr(value)
    except ValueError:
        return "an integer of more digits than Python prints"
    return text if len(text) <= 120 else f"{text[:117]}..."


def nearest(name: str, among: Iterable[str], least: float = 0.6) -> list[str]:
    """At most three names like one that is not known, the most alike first."""
    return get_close_matches(name, list(among), cutoff=least)


def message(
    op: str,
    argument: str,
    expected: str,
    got: object,
    axes: Mapping[str, Any] | None = None,
    hint: str = "",
) -> str:
    """Build ``op: argument: expected …, got … [axes]; hint``."""
    text = f"{op}: {argument}: expected {expected}, got {got}"
    if axes:
        text += " [" + ", ".join(f"{name}={value}" for name, value in axes.items()) + "]"
    return f"{text}; {hint}" if hint else text


def type_error(op: str, argument: str, expected: str, got: object, hint: str = "") -> TypeError:
    """Build an `ArgumentTypeError`."""
    return ArgumentTypeError(message(op, argument, expected, got, None, hint))


def value_error(
    op: str,
    argument: str,
    expected: str,
    got: object,
    axes: Mapping[str, Any] | None = None,
    hint: str = "",
) -> ValueError:
    """Build an `ArgumentValueError`."""
    return ArgumentValueError(message(op, argument, expected, got, axes, hint))
