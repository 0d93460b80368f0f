"""The options that every op takes besides its own, and the block that sets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any, Literal, TypedDict, Unpack

from baracuda.declaration.sku import KernelSku
from baracuda.errors import UnsupportedError, nearest, shown, type_error, value_error
from baracuda.libraries import compiling


class Dispatch(TypedDict, total=False):
    """Keywords that say how to run an op, not what it computes."""

    backend: Literal["cuda", "cupy", "torch", "numpy", "array_api"] | None
    """Force this backend; a forced backend never falls back.

    One that another package brings has a name that type checkers do not know: ``cast(Any, name)``.
    """
    deterministic: bool | None
    """True: the same bits on every run, or an error. None: the framework's global switch."""
    max_workspace_bytes: int | None
    """Refuse plans that need more scratch memory than this."""
    autotune: bool
    """Measure once per problem where a backend has several variants; the SKU records the fastest.

    On the arrays of the call that makes the plan, with outputs of its own. The default never
    measures; nor do `sku=`, a loaded record, or a call that is captured into a CUDA graph.
    """
    sku: KernelSku | str | None
    """Make this recorded choice again, or say why it cannot be made here."""


@dataclass(frozen=True, slots=True)
class Choices:
    """`Dispatch` with every keyword given; hashable, part of a plan's key."""

    backend: str | None = None
    deterministic: bool | None = None
    max_workspace_bytes: int | None = None
    autotune: bool = False
    sku: KernelSku | None = None

    def but(self, op: str, given: Mapping[str, Any]) -> Choices:
        """These choices with `given` put in, checked."""
        if not given:
            return self
        for name, value in given.items():
            kinds, text = _KINDS[name]
            if not isinstance(value, kinds) or (Integral in kinds and isinstance(value, bool)):
                raise type_error(op, name, text, shown(value))
        limit = given.get("max_workspace_bytes")
        if limit is not None:
            # What torch's operators and the files of plans can hold.
            if not 0 <= limit < 1 << 63:
                raise value_error(op, "max_workspace_bytes", "a size >= 0 of 64 bits", shown(limit))
            given = {**given, "max_workspace_bytes": int(limit)}
        if isinstance(given.get("sku"), str):
            try:
                given = {**given, "sku": KernelSku.from_json(given["sku"])}
            except ValueError as error:
                what, got = "the JSON text of a KernelSku", shown(given["sku"])
                raise value_error(op, "sku", what, got, hint=f"{error}") from None
        return replace(self, **given)


_NONE = type(None)
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "backend": ((str, _NONE), "the name of a backend or None"),
    "deterministic": ((bool, _NONE), "True, False or None"),
    "max_workspace_bytes": ((Integral, _NONE), "a number of bytes or None"),
    "autotune": ((bool,), "True or False"),
    "sku": ((KernelSku, str, _NONE), "a KernelSku, its JSON text or None"),
}
NAMES = frozenset(field.name for field in fields(Choices))
DEFAULT = Choices()

current: ContextVar[Choices] = ContextVar("baracuda_options", default=DEFAULT)
"""What `options` set for the running block."""


@contextmanager
def options(**dispatch: Unpack[Dispatch]) -> Iterator[None]:
    """Set dispatch options for a block, in this thread or task only.

    A keyword given to an op wins over the block, an inner block over an outer one. While a
    framework traces, only keywords count: what is traced must not depend on where it was traced.
    An operator in a graph of torch's is a call of its own when the graph runs.

    Parameters
    ----------
    **dispatch
        Any of `Dispatch`'s keywords.

    Raises
    ------
    TypeError
        For an unknown keyword or a value of the wrong type.
    NotImplementedError
        In code that torch compiles or exports: what is traced there has no block.

    Examples
    --------
    >>> import numpy as np, baracuda as bc
    >>> with bc.options(backend="array_api"):
    ...     plan = bc.reglu.plan(np.ones((2, 4)))
    >>> plan.sku.backend
    'array_api'
    """
    if compiling() is not None:
        raise UnsupportedError(
            "options: a block cannot be traced by torch.compile or torch.export: "
            "give the op its dispatch options by keyword, or put the block around the compiled call"
        )
    unknown = sorted(set(dispatch) - NAMES)
    if unknown:
        hint = "".join(f"write {name}=" for name in nearest(unknown[0], sorted(NAMES))[:1])
        raise type_error("options", unknown[0], f"one of {', '.join(sorted(NAMES))}", "that", hint)
    token = current.set(current.get().but("options", dispatch))
    try:
        yield
    finally:
        current.reset(token)


def unrecorded() -> AbstractContextManager[None]:
    """A block like the one around it, where no choice is to be made again."""
    return nullcontext() if current.get().sku is None else _without_record()


@contextmanager
def _without_record() -> Iterator[None]:
    token = current.set(replace(current.get(), sku=None))
    try:
        yield
    finally:
        current.reset(token)
