"""What frameworks make of calls that need more than a plain run: their routes, and operators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from baracuda.declaration.dtypes import name_of
from baracuda.declaration.sku import KernelSku
from baracuda.errors import UnsupportedError
from baracuda.forks import import_module
from baracuda.libraries import Array


class Route(Protocol):
    """What a framework does with calls that need more than a plain run.

    Asked only where the library's `state` is ``"traced"``: transforms, tracing, dispatch modes.
    """

    def takes(self, op: Any, arrays: Sequence[Array], mode: str) -> bool:
        """Whether this call is the route's."""

    def call(self, op: Any, arrays: Sequence[Array], options: dict[str, Any]) -> Any:
        """Compute it."""


routes: dict[str, Route] = {}
"""The route of each library; without one, such calls run the differentiable body."""

graphs: dict[str, Callable[..., Any]] = {}
"""How the graphs of a framework call an op, where it has operators for them."""

_modules = sys.modules


def operators(framework: str) -> bool:
    """Have a framework know the ops as operators, which stand for them in its graphs."""
    folder = f"baracuda.frameworks.{framework}"
    import_module(f"{folder}.operators").known()
    if f"{framework}.distributed.tensor" in _modules:
        import_module(f"{folder}.sharding").known()
    if f"{framework}.utils.flop_counter" in _modules:
        import_module(f"{folder}.flops").known()
    return True


# torch.compile runs it while it reads the caller's code, as what
# `torch.compiler.assume_constant_result` marks.
operators._dynamo_marked_constant = True  # type: ignore[attr-defined]


def in_graph(
    torch: Any,
    op: Any,
    arrays: Sequence[Array],
    options: dict[str, Any],
    forms: Mapping[str, Callable[[int], Any]],
) -> Any:
    """A call as one operator of torch's; `forms` are how it takes integers.

    Raises
    ------
    NotImplementedError
        Where a run-time value is a tensor.
    """
    operators("torch")
    for name, form in forms.items():
        if isinstance(options.get(name), int):
            options = {**options, name: form(options[name])}
    for name, value in options.items():
        if isinstance(value, torch.dtype):
            options = {**options, name: name_of(value)}
    for name in op.spec.scalars:
        if isinstance(options.get(name), torch.Tensor):
            raise UnsupportedError(
                f"{op.spec.name}: {name}: torch's graphs take a number, not a tensor: pass "
                f"{name}.item(), or call the op outside of them"
            )
    if isinstance(options.get("sku"), KernelSku):
        options = {**options, "sku": options["sku"].to_json()}
    return graphs["torch"](op, arrays, options)


# Libraries whose framework module adds its route when it is loaded, by the first such call.
_FRAMEWORKS = ("jax", "torch")


def route_of(library: str) -> Route | None:
    """The route of a library, None where it has none."""
    if library in _FRAMEWORKS and library not in routes:
        import_module(f"baracuda.frameworks.{library}")
    return routes.get(library)
