"""CuPy's own functions: its arrays where no kernel takes them, torch tensors on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import cupy

from baracuda.calls import body
from baracuda.declaration.backend import Adds, Prepared, Runner
from baracuda.declaration.dtypes import numpy_dtype
from baracuda.declaration.spec import OpSpec, Problem
from baracuda.libraries import Array, adopt, library
from baracuda.libraries.cupy import CuPy


class CuPyBackend:
    """The body through CuPy's functions, on the device and the current stream of the arrays."""

    name = "cupy"
    reads = "dqQ"

    def claims(self, spec: OpSpec, library: str) -> Sequence[str]:
        return spec.dtypes

    def mixes(self, spec: OpSpec) -> bool:
        return True

    def check_errors(self) -> None:
        """Indices are searched as the body's are on any device."""

    def refuses(self, problem: Problem) -> str | None:
        if problem.mode:
            return f"{problem.mode} arrays need functions that can be differentiated and traced"
        if not problem.device.startswith("cuda"):
            return f"takes arrays on NVIDIA devices, not on {problem.device}"
        if problem.reads and problem.library.name != "cupy":
            return "takes run-time values of another library from the host alone"
        if problem.dtype == "bfloat16":
            try:
                numpy_dtype("bfloat16")
            except TypeError as error:
                return str(error)
        if problem.choices.deterministic and not body.ordered(problem):
            return f"cupy.add.at on {problem.device} adds in no fixed order"
        return None

    def prepare(self, problem: Problem) -> Prepared:
        ours = library("cupy")
        own = replace(problem, library=ours)
        fusable = problem.pointwise and not problem.spec.scalars
        if fusable:
            own = replace(own, spec=replace(own.spec, body=_fused(own.spec)))
        foreign = problem.library is not ours
        return Prepared(
            run=_on_views(problem, body.runner(own)) if foreign else body.runner(own),
            kernel="fused body" if fusable else body.kernel(problem),
            variant="from_dlpack" if foreign else "",
            arch=ours.arch(problem.device),
            precision=body.precision(problem),
        )


# -- fused bodies --------------------------------------------------------------------------------


class _Fusable:
    """CuPy's namespace while `cupy.fuse` traces: ufuncs, and what they make of the rest."""

    round = cupy.rint

    def __getattr__(self, name: str) -> Any:
        return getattr(cupy, name)

    @staticmethod
    def astype(x: Array, dtype: Any, *, copy: bool = True) -> Array:
        return x.astype(dtype, copy=copy)


class _Tracing(CuPy):
    """Of what stands for arrays while `cupy.fuse` traces: no array can be made then."""

    xp = _Fusable()
    differentiates = True


_TRACING = _Tracing()


def _fused(spec: OpSpec) -> Callable[..., Any]:
    """The body of an elementwise op as one kernel, packed arrays as their halves."""

    def fused(*arrays: Array, **options: Any) -> Any:
        if any(x is not None and x.size == 0 for x in arrays):
            return spec.body(*arrays, **options)
        given, packed, axis = dict(zip(spec.arrays, arrays, strict=False)), spec.packed, 0
        halved = packed is not None and given.get(packed.other) is None
        if packed is not None and halved:
            axis = options[packed.axis]
            halves = cupy.split(given[packed.array], 2, axis)
            given.update(zip(packed.order(options), halves, strict=True))
        result = _kernel(spec, tuple(options.items()))(*[given.get(name) for name in spec.arrays])
        if packed is not None and halved and type(result) is tuple:
            parts = dict(zip((packed.array, packed.other), result, strict=True))
            return cupy.concatenate([parts[name] for name in packed.order(options)], axis)
        return result

    return fused


@lru_cache(maxsize=256)
def _kernel(spec: OpSpec, options: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    """The body on unpacked arrays as CuPy fuses it, compiled when it first meets a dtype."""

    def traced(*stand_ins: Any) -> Any:
        for x in stand_ins:
            adopt(type(x), _TRACING)
        return spec.body(*stand_ins, **dict(options))

    kernel: Callable[..., Any] = cupy.fuse(kernel_name=f"baracuda_{spec.name}")(traced)
    return kernel


# -- arrays of others ----------------------------------------------------------------------------


class Handle(NamedTuple):
    """A stream as libraries show theirs to each other."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def _on_views(problem: Problem, run: Runner) -> Runner:
    """`run` on the memory of another library's arrays, as part of that library's stream."""
    theirs, running = problem.library, library("cupy").running

    def view(x: Array) -> Array:
        return cupy.from_dlpack(theirs.shared(x))

    on_views = body.on_views(run, view, theirs.xp.from_dlpack)

    def run_on_their_stream(
        arrays: Sequence[Array],
        outs: tuple[Array, ...] | None,
        accumulate: Adds,
        scalars: Mapping[str, Any],
    ) -> Any:
        # On one stream nothing has to wait, and memory is given back in order.
        stream = cupy.cuda.Stream.from_external(Handle(theirs.stream(arrays[0])))
        with running(problem.device), stream:
            return on_views(arrays, outs, accumulate, scalars)

    return run_on_their_stream


BACKEND = CuPyBackend()
