"""Whether an array stands for a run-time value as the number does that it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from baracuda.declaration.spec import Case
from baracuda.errors import UnsupportedError
from baracuda.testing.bounds import close, same_bits
from baracuda.testing.cases import Call, holds, many, to_library, turn


def hold(call: Call) -> None:
    """Compare a call for every run-time value that may be an array, at each dtype of it."""
    arrays, spec = call.given(), call.subject.spec
    for name, dtype in _arrays(call):
        kept = np.asarray(call.scalars[name], dtype)
        number = kept.item()
        held = to_library(kept, call.subject.library, call.subject.device)
        one = replace(call, case=Case(call.case.axes, **{**call.case.options, name: number}))
        label = f"{name} in {dtype}"
        try:
            result, plan = call.subject.function.planned(
                *arrays, **{**one.options, "backend": call.subject.backend, name: held}
            )
        except UnsupportedError as error:
            if "run-time values" not in str(error):
                raise
            # What lies on a device is for kernels where it is an integer. A real number is taken
            # by another backend, at the latest by the body.
            if spec.codes[list(spec.scalars).index(name)] == "d":
                result = call.subject.function(*arrays, **{**one.options, name: held})
                close(one, many(result), label)
            continue
        got = result if isinstance(result, tuple) else (result,)
        if plan.problem.reads and plan.sku.backend != "cuda":
            close(one, got, label)
        else:
            same_bits(got, one.run(arrays), f"{label}, {call.case}")
        same_bits(got, call.run(arrays, **{name: held}), f"{label}, called again")


def _arrays(call: Call) -> Iterator[tuple[str, str]]:
    """The run-time values, and the dtypes of arrays that hold them in the subject's library.

    Where only some of the op's forms are tried, one dtype of each value: they take turns.
    """
    subject, library = call.subject, call.subject.library
    # JAX has 64 bits only where the call is in 64 bits.
    wide = library != "jax" or subject.dtype == "float64"
    for name, normaliser in call.subject.spec.scalars.items():
        found = []
        for dtype in getattr(normaliser, "dtypes", ()):
            if holds(library, dtype) and (wide or dtype.endswith("32")):
                integer = dtype.startswith(("int", "uint"))
                kind = np.iinfo(dtype) if integer else np.finfo(dtype)
                if kind.min <= call.scalars[name] <= kind.max:
                    found.append((name, dtype))
        at = turn(str(subject)) % max(len(found), 1)
        yield from found[at : at + 1] if subject.ends else found
