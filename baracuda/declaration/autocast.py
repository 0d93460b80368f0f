"""What an op does within an autocast region of torch; `OpSpec.autocast` says which kind it is of.

A region has no effect but on the dtypes of arrays and of results. It is settled before there is a
problem: by casts, and by options that then name a dtype. So a plan means the same wherever it is
called, and no plan, operator or program is bound to a region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baracuda.declaration.dtypes import name_of
from baracuda.declaration.spec import OpSpec
from baracuda.libraries import Array, Region, State, library_of, unwrapped

# What a region casts: it leaves float64 alone, as torch does.
_ELIGIBLE = frozenset({"float16", "bfloat16", "float32"})


def state_of(arrays: Sequence[Array]) -> State | None:
    """What their library says of arrays beside facts; None also of what has no library."""
    try:
        return library_of(arrays[0]).state(arrays)
    except (IndexError, TypeError):
        return None


def region_of(state: State | None) -> Region:
    """The region of a state."""
    return state[2:] if state is not None else ()


def taken(spec: OpSpec, arrays: Sequence[Array], region: Region) -> Sequence[Array]:
    """The arrays as a call takes them: `arrays` themselves where nothing is cast.

    Factors of products are cast to the dtype of the region; what may be float32 beside them stays
    that. Beside that only inputs of mixed dtypes are cast, to float32, where the op does not take
    them as they are.
    """
    if not (region and spec.autocast):
        return arrays
    pairs = list(zip(spec.arrays, arrays, strict=False))
    dtypes = {
        name: name_of(getattr(x, "dtype", None))
        for name, x in pairs
        if x is not None and name not in spec.discrete
    }
    want, _ = region
    if spec.autocast == "float32":
        own = {d for name, d in dtypes.items() if not spec.role(name).wide}
        if len(own) == 1 and {*dtypes.values()} <= own | {"float32"}:
            return arrays
        want = "float32"
    for name in dtypes:
        if spec.role(name).wide and dtypes[name] == "float32":
            dtypes[name] = want
    if {*dtypes.values()} == {want} or not _ELIGIBLE.issuperset(dtypes.values()):
        return arrays
    library = library_of(arrays[0])
    kind, astype = library.dtype(want), library.xp.astype
    return tuple([astype(x, kind) if dtypes.get(n, want) != want else x for n, x in pairs])


def settled(spec: OpSpec, arrays: Sequence[Array]) -> Sequence[Array]:
    """The arrays of a call of which nothing is known: unwrapped, and as the region takes them."""
    plain = unwrapped(arrays)
    return taken(spec, plain, region_of(state_of(plain)))


def chosen(
    spec: OpSpec, dtype: str, options: Mapping[str, Any], state: State | None = None
) -> dict[str, str]:
    """The options that name the dtype of a result, where the call leaves that open.

    They name one in every plan: `dtype`, that of the primal, or float32 within a region. On a CPU
    torch leaves softmax and norms as narrow as they are, and so does this.
    """
    if spec.adjoint_of is not None:
        return {}
    _, device = region_of(state) or ("", "cpu")
    wide = device != "cpu" and spec.autocast == "float32" and dtype in _ELIGIBLE
    names = [r.chosen for r in spec.roles.values() if r.chosen and options[r.chosen] is None]
    return dict.fromkeys(names, "float32" if wide else dtype)
