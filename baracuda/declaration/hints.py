"""What to write instead of a keyword that an op does not take, or of an option by position."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from baracuda.declaration.spec import OpSpec
from baracuda.errors import nearest

# What other libraries call an option.
_ELSEWHERE = {"dim": "axis", "dims": "axis", "p": "norm_type", "epsilon": "eps"}


def for_position(spec: OpSpec) -> str:
    """Which arguments are positional, and which are not."""
    takes = f"arrays are positional: {_call(spec.name, spec.arrays)}"
    keywords = ", ".join(f"{name}=" for name in (*spec.options, *spec.scalars))
    return f"{takes}; options are keywords: {keywords}" if keywords else takes


def for_keyword(spec: OpSpec, name: str, takes: Collection[str]) -> str:
    """What to write instead of a keyword that is none of those that a call takes."""
    if name in spec.arrays:
        until = spec.arrays.index(name) + 1
        return f"arrays are positional: {_call(spec.name, spec.arrays[:until])}"
    if name in ("out", "inplace"):
        arrays = spec.signatures[0].names
        plan = _call(f"{spec.name}.plan", [*arrays, *_required(spec, spec.options)])
        out = arrays[-1] if name == "inplace" and spec.inplace else "..."
        return f"write {_call(plan, [*arrays, *_required(spec, spec.scalars), f'out={out}'])}"
    other = _ELSEWHERE.get(name)
    close = [other] if other in takes else nearest(name, takes)
    return f"write {close[0]}=" if close else f"keywords are {', '.join(takes) or 'none'}"


def _call(name: str, arguments: Iterable[str]) -> str:
    return f"{name}({', '.join(arguments)})"


def _required(spec: OpSpec, names: Iterable[str]) -> list[str]:
    """The keywords without a default."""
    return [f"{name}=..." for name in names if name not in spec.defaults]
