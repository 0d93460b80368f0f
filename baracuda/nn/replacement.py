"""Swap torch's modules in a model for those of the same name here, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from baracuda.nn import activations, gated, losses, norms, pooling

__all__ = ["Replacement", "replace", "restore"]


def _pairs() -> Iterator[tuple[type[torch.nn.Module], type[torch.nn.Module]]]:
    """torch's class and ours, of each name that both have."""
    for family in (activations, gated, losses, norms, pooling):
        for name in family.__all__:
            ours, theirs = getattr(family, name), getattr(torch.nn, name, None)
            if theirs is not None:
                yield theirs, ours


NAMESAKES = dict(_pairs())
"""Ours, by torch's class."""


@dataclass(frozen=True, repr=False)
class Replacement:
    """What `replace` or `restore` has done with a model.

    Attributes
    ----------
    replaced : dict of str to str
        The names of the modules that are of another class now, and the names of their classes.
    left : dict of str to str
        The names of the modules that were left as they are, and why.
    """

    replaced: dict[str, str]
    left: dict[str, str]

    def __repr__(self) -> str:
        counts = Counter(self.replaced.values())
        what = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        return f"Replacement(replaced: {what or 'none'}; left: {len(self.left)})"


def _wanted(kinds: Iterable[str | type] | str | type | None) -> set[type[torch.nn.Module]]:
    """torch's classes of these names, or that these classes or their namesakes are."""
    if kinds is None:
        return set(NAMESAKES)
    each: Iterable[str | type] = (kinds,) if isinstance(kinds, (str, type)) else kinds
    known: dict[Any, type[torch.nn.Module]] = {}
    for theirs, ours in NAMESAKES.items():
        known |= {theirs.__name__: theirs, theirs: theirs, ours: theirs}
    wanted = set()
    for kind in each:
        if kind not in known:
            names = ", ".join(sorted(theirs.__name__ for theirs in NAMESAKES))
            raise ValueError(f"replace: kinds: expected some of {names}, got {kind!r}")
        wanted.add(known[kind])
    return wanted


def _why_not(module: Any, ours: Any) -> str:
    """Why a module of torch's class is left; empty where it is not."""
    if "forward" in vars(module):
        return "its forward is set on the instance"
    if getattr(module, "qconfig", None) is not None:
        return "it is prepared for quantisation"
    return ours._kept(module) if hasattr(ours, "_kept") else ""


def replace(
    model: torch.nn.Module, kinds: Iterable[str | type] | str | type | None = None
) -> Replacement:
    """Make torch's modules in a model those of the same name here, in place.

    A module stays the same object and becomes an instance of the subclass. So its parameters,
    buffers, hooks, training flag and names in a ``state_dict`` stay, optimisers go on, and what is
    tied or registered twice stays so.

    Parameters
    ----------
    model : torch.nn.Module
        What is walked, itself included.
    kinds : names or classes, optional
        Which modules: ``"LayerNorm"``, `torch.nn.LayerNorm` or `baracuda.nn.LayerNorm`. By
        default all that both have.

    Returns
    -------
    Replacement
        What was replaced, and what was left for which reason.

    Raises
    ------
    ValueError
        A kind that is not here.

    Notes
    -----
    Some modules are left, with the reason: subclasses, which may have another forward
    (parametrised, quantised and sharded modules are subclasses); modules whose forward is set on
    the instance, or that have a ``qconfig``. So are modules that would run torch's own forward
    anyway (``inplace=True``), and LPPool where torch's values differ. Calls of functions
    (``F.relu``) are not modules, and stay torch's. Call it before `torch.compile`, `torch.jit` and
    ``fully_shard`` of each layer. A second call replaces nothing. `restore` is the way back.

    Examples
    --------
    >>> import torch
    >>> from baracuda.nn import replace
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
    >>> replace(model)
    Replacement(replaced: 1 GELU, 1 LayerNorm; left: 0)
    """
    wanted = _wanted(kinds)
    names = {kind.__name__ for kind in wanted}
    replaced: dict[str, str] = {}
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        kind = type(module)
        if kind in wanted:
            ours = NAMESAKES[kind]
            if why := _why_not(module, ours):
                left[name] = why
            else:
                module.__class__ = ours
                replaced[name] = kind.__name__
        elif not any(base in kind.__mro__ for base in NAMESAKES.values()):
            base = next((base for base in kind.__mro__ if base in wanted), None)
            if base is not None:
                left[name] = f"{kind.__name__} is a subclass of torch.nn.{base.__name__}"
            elif isinstance(module, torch.jit.ScriptModule) and module.original_name in names:
                left[name] = "it is compiled by torch.jit"
    return Replacement(replaced, left)


def restore(model: torch.nn.Module) -> Replacement:
    """Make the modules in a model that have torch's names torch's own, in place.

    Parameters
    ----------
    model : torch.nn.Module
        What is walked, itself included.

    Returns
    -------
    Replacement
        What was made torch's, and what was left: subclasses, a `GLU` whose gate is first, and an
        `RMSNorm` with an offset or a casting.

    Notes
    -----
    It takes modules that `replace` has made and others alike.

    Examples
    --------
    >>> from baracuda.nn import LayerNorm, restore
    >>> model = LayerNorm(4)
    >>> restore(model), type(model).__module__
    (Replacement(replaced: 1 LayerNorm; left: 0), 'torch.nn.modules.normalization')
    """
    back = {ours: theirs for theirs, ours in NAMESAKES.items()}
    replaced: dict[str, str] = {}
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        kind = type(module)
        if kind not in back:
            if any(base in back for base in kind.__mro__):
                left[name] = f"{kind.__name__} is a subclass"
        elif getattr(module, "gate_first", False):
            left[name] = "torch.nn.GLU has the gate last"
        elif isinstance(module, norms.RMSNorm) and (own := module.extra_options()):
            left[name] = f"torch.nn.RMSNorm has no {' or '.join(own)}"
        else:
            module.__class__ = back[kind]
            replaced[name] = kind.__name__
    return Replacement(replaced, left)
