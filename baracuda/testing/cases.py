"""Inputs for the laws: derived from an op's block, drawn once, rounded to each dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import combinations
from typing import Any
from zlib import crc32

import numpy as np

from baracuda import backends
from baracuda.calls import adjoint
from baracuda.calls.op import Op, registry
from baracuda.declaration.dtypes import named
from baracuda.declaration.roles import Wide
from baracuda.declaration.shapes import Signature
from baracuda.declaration.spec import Case, OpSpec
from baracuda.families.numerics import stored_as
from baracuda.libraries import Array, Library, library

_WIDE = ("float64", "int64", "uint64", "complex128")
# Results of bodies in float64, which many laws ask for.
_REFERENCES: dict[tuple[Any, ...], tuple[Any, tuple[np.ndarray[Any, Any], ...]]] = {}
_MOST_REFERENCES = 512
LIBRARIES = ("numpy", "torch", "jax", "array_api_strict")


@dataclass(frozen=True)
class Subject:
    """One op on one backend, for arrays of one library and dtype.

    A brief one tries each form of the op at the first case alone; with 2 `ends` the first and the
    last form, with 1 the last. In a mixed one some kinds of inputs are wider than the dtype:
    parameters, a residual stream. What is deterministic gives the same bits in so many `runs`.
    """

    op: str
    backend: str
    library: str
    dtype: str
    device: str = "cpu"
    brief: bool = False
    mixed: tuple[Wide, ...] = ()
    runs: int = 20
    ends: int = 0

    def __str__(self) -> str:
        end = "".join([f"-wide_{kind}" for kind in self.mixed])
        end += "-brief" * self.brief + ("", "-last", "-ends")[self.ends]
        return f"{self.op}-{self.backend}-{self.library}-{named(self.dtype).short}{end}"

    @property
    def function(self) -> Op[..., Any]:
        """The op."""
        return registry[self.op]

    @property
    def spec(self) -> OpSpec:
        """Its declaration."""
        return registry[self.op].spec

    def context(self) -> AbstractContextManager[Any]:
        """A block in which the library can hold the dtype: JAX has 64 bits only when asked."""
        if self.library == "jax" and named(self.dtype).name in _WIDE:
            return import_module("jax").enable_x64(True)  # type: ignore[no-any-return]
        return nullcontext()

    def calls(self) -> Iterator[Call]:
        """Every form of the op at every case of its block that the backend is for."""
        kernel = self.spec.kernel if self.backend == "cuda" else None
        lacks = kernel.lacks if kernel else None
        cases = [case for case in self.spec.cases if lacks not in list(case.options.items())]
        every = list(tried(self.spec, cases))
        if self.brief or self.ends:
            first: dict[Signature, Case] = {}
            for case, form in every:
                first.setdefault(form, case)
            every = [(case, form) for form, case in first.items()]
        ends = every[:1] + every[1:][-1:]
        for case, form in ends[-self.ends :] if self.ends else every:
            drawn = draw(self.spec, case, form, self.dtype, mixed=self.mixed)
            yield Call(self, case, form, drawn)


def turn(name: str) -> int:
    """A number by which cases of this name take turns, whatever others there are."""
    return crc32(name.encode())


def subjects(
    ops: Sequence[str] | None = None,
    libraries: Sequence[str] = LIBRARIES,
    only: Sequence[str] | None = None,
    device: str = "cpu",
) -> Iterator[Subject]:
    """Every op x backend x library x dtype that a backend claims and the library can hold."""
    for name in ops or registry:
        for lib in libraries:
            for backend, dtypes in backends.claims(registry[name].spec, lib, device).items():
                if only is None or backend in only:
                    for dtype in dtypes:
                        if not holds(lib, dtype):
                            continue
                        spec = registry[name].spec
                        takes = backends.mixes(spec, backend, dtype)
                        for mixed in mixtures_of(spec.wide if takes else ()):
                            yield Subject(name, backend, lib, dtype, device, mixed=mixed)


def mixtures_of(kinds: Sequence[Wide]) -> tuple[tuple[Wide, ...], ...]:
    """None of the kinds of inputs that may be wider, each choice of some, and all."""
    return tuple([c for many in range(len(kinds) + 1) for c in combinations(kinds, many)])


def mixtures(spec: OpSpec, form: Signature, dtype: str) -> tuple[tuple[Wide, ...], ...]:
    """Which kinds of a form's values may be wider for kernels: those for which there are any."""
    takes = backends.mixes(spec, "cuda", dtype)
    there = {spec.role(p.name).wide for p in form.inputs}
    return mixtures_of([kind for kind in spec.wide if takes and kind in there])


@cache
def holds(lib: str, dtype: str) -> bool:
    """Whether the library has arrays of this dtype; JAX only while `Subject.context` is entered."""
    try:
        adapter(lib).dtype(dtype)
    except (AttributeError, TypeError):
        return False
    return True


@cache
def adapter(lib: str) -> Library:
    """The library's adapter, also for a plain array-API namespace."""
    if lib in ("numpy", "torch", "cupy", "jax"):
        return library(lib)
    from baracuda.libraries import library_of

    return library_of(import_module(lib).asarray([0.0]))


def to_library(x: np.ndarray[Any, Any], lib: str, device: str = "cpu") -> Array:
    """A copy of a NumPy array in another library, C-contiguous, of the same dtype."""
    x = np.array(x, order="C")
    if lib == "numpy":
        return x
    if lib == "torch":
        torch = import_module("torch")
        if x.dtype.name == "bfloat16":
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(x).to(device)
    return adapter(lib).xp.asarray(x)


def to_numpy(x: Array) -> np.ndarray[Any, Any]:
    """The values of any library's array; bfloat16 as float32."""
    if type(x).__module__.startswith("torch"):
        x = x.detach().cpu()
        x = (x.float() if "bfloat16" in str(x.dtype) else x).numpy()
    elif type(x).__module__.startswith("cupy"):
        x = x.get()
    elif type(x).__module__.startswith("array_api_strict"):
        x = np.array(np.from_dlpack(x))
    host: np.ndarray[Any, Any] = np.asarray(x)
    # NumPy takes a dtype of others for a void; to ask for its name costs more than all else here.
    return host.astype(np.float32) if host.dtype.kind == "V" else host


def apart(have: Array, want: Array) -> np.ndarray[Any, Any]:
    """What results are more than others, equal infinities nothing."""
    have, want = np.asarray(have), np.asarray(want)
    kind = np.complex128 if have.dtype.kind == "c" else np.float64
    have, want = have.astype(kind), want.astype(kind)
    with np.errstate(invalid="ignore"):
        return np.where(have == want, 0.0, have - want)


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one call: NumPy arrays of the subject's dtype, and options.

    Beside them what a saved result was made from, where the gradient takes the result alone.
    """

    subject: Subject
    case: Case
    form: Signature
    arrays: Mapping[str, np.ndarray[Any, Any]]

    @property
    def options(self) -> dict[str, Any]:
        """Structural options and run-time values."""
        out = options_of(self.subject.spec, self.case)
        for pattern in self.form.inputs:
            if pattern.is_option:
                out[pattern.name] = pattern.shape(self.case.axes)
        return out | self._chosen(self.subject.dtype)

    def _chosen(self, dtype: str) -> dict[str, str]:
        """The options that name the dtype of what the op does not take."""
        return {r.chosen: dtype for r in self.subject.spec.roles.values() if r.chosen}

    @property
    def scalars(self) -> dict[str, Any]:
        """The run-time values alone, in the op's order."""
        spec = self.subject.spec
        known = {**spec.usual, **self.options}
        return {name: known[name] for name in spec.scalars}

    @property
    def dtypes(self) -> list[str]:
        """The dtype of each result, as declared."""
        inputs = {name: x.dtype.name for name, x in self.arrays.items()}
        roles = [self.subject.spec.role(p.name) for p in self.form.outputs]
        return [role.result(self.subject.dtype, inputs, self.options) for role in roles]

    @property
    def watched(self) -> list[str]:
        """The inputs that the op has an explicit gradient to, all floating ones where it has none.

        Where others are differentiated too, that is by the body.
        """
        spec = self.subject.spec
        partner, _ = adjoint.partner(spec)
        floats = [n for n in spec.arrays if n in self.arrays and n not in spec.discrete]
        if partner is None:
            return floats
        known = {p.name for form in partner.signatures for p in form.outputs}
        known |= {f"d{p.name}" for p in self.form.outputs}
        return [n for n in floats if adjoint.dual(spec, n) in known]

    def given(self, lib: str | None = None) -> list[Array]:
        """The positional arguments in the subject's library."""
        lib = lib or self.subject.library
        return positional(
            [
                to_library(self.arrays[name], lib, self.subject.device)
                if name in self.arrays
                else None
                for name in self.subject.spec.arrays
            ]
        )

    def run(self, arrays: Sequence[Array] | None = None, **more: Any) -> tuple[Array, ...]:
        """The op forced onto the subject's backend; always a tuple."""
        arrays = self.given() if arrays is None else arrays
        result = self.subject.function(
            *arrays, **{**self.options, "backend": self.subject.backend, **more}
        )
        return many(result)

    def plan(self, arrays: Sequence[Array] | None = None, **more: Any) -> Any:
        """The plan of `run`."""
        arrays = self.given() if arrays is None else arrays
        return self.subject.function.plan(
            *arrays, **{**self.options, "backend": self.subject.backend, **more}
        )

    def reference(self, noise: float = 0.0, seed: int = 0) -> tuple[np.ndarray[Any, Any], ...]:
        """The body in float64 on NumPy, its inputs moved by a relative `noise`.

        Nobody may write into the arrays: all laws, backends and libraries share them.
        """
        of = self.subject
        key = (id(self.arrays), of.spec, self.case, self.form, of.dtype, noise, seed)
        if key not in _REFERENCES:
            while len(_REFERENCES) >= _MOST_REFERENCES:
                _REFERENCES.pop(next(iter(_REFERENCES)))
            # With the arrays, so that no others get their id.
            _REFERENCES[key] = self.arrays, self._computed(noise, seed)
        return _REFERENCES[key][1]

    def _computed(self, noise: float, seed: int) -> tuple[np.ndarray[Any, Any], ...]:
        rng = np.random.default_rng(seed)
        wide = []
        for name in self.subject.spec.arrays:
            x = self.arrays.get(name)
            if x is not None and named(x.dtype.name).kind == "float":
                x = x.astype(np.float64)
                x = x * (1 + noise * rng.choice([-1.0, 1.0], x.shape)) if noise else x
            wide.append(x)
        with stored_as(*self.dtypes, primal=self.subject.dtype):
            result = self.subject.function(
                *positional(wide),
                **{**self.options, **self._chosen("float64"), "backend": "array_api"},
            )
        return many(result)


def many(result: Any) -> tuple[Array, ...]:
    """What an op returned, as a tuple also where it is one array."""
    return result if isinstance(result, tuple) else (result,)


def positional(arrays: Sequence[Array]) -> list[Array]:
    """The arrays of a call without the absent ones at its end."""
    out = list(arrays)
    while out and out[-1] is None:
        out.pop()
    return out


def pulled(call: Call, forward: OpSpec) -> tuple[list[str], dict[str, bool]]:
    """The results of a forward, for a call of its gradient, and the flags that ask for them.

    They are those of the form of which the call has the most cotangents.
    """

    def results(form: Signature) -> int:
        return len(form.outputs) if f"d{form.outputs[-1].name}" in call.arrays else 0

    form = max(forward.signatures, key=results)
    own, taken = call.subject.spec.options, form.conditions
    asked = {c.option: c.value == "True" for c in taken if c.option not in own}
    return [p.name for p in form.outputs], asked


def options_of(spec: OpSpec, case: Case) -> dict[str, Any]:
    """The options of a case that this op has; a forward and its gradient share cases."""
    return {k: v for k, v in case.options.items() if k in spec.options or k in spec.scalars}


def tried(spec: OpSpec, cases: Sequence[Case]) -> Iterator[tuple[Case, Signature]]:
    """Every case with every form that its options allow."""
    for case in cases:
        for form in spec.forms(options_of(spec, case)):
            yield case, form


@cache
def draw(
    spec: OpSpec,
    case: Case,
    form: Signature,
    dtype: str,
    seed: int = 0,
    mixed: tuple[Wide, ...] = (),
) -> Mapping[str, np.ndarray[Any, Any]]:
    """Normal values, indices in range, positions up to a million, masks that keep two of three.

    Saved outputs are those of the forward, with such inputs of it as the gradient does not take.
    `mixed`: the kinds of inputs that are wider than the dtype.
    """
    rng = np.random.default_rng([seed, len(spec.name), *map(ord, spec.name)])
    out = _drawn(rng, spec, case, form, dtype, mixed)
    forward = registry.get(spec.adjoint_of or "")
    saved = forward and {p.name for p in forward.spec.signatures[0].outputs} & set(out)
    if forward and saved:
        # What was saved has to belong to its input, rounded as the forward rounds it.
        taken = set(out) & set(forward.spec.arrays)
        whole = next(f for f in forward.spec.signatures if taken <= set(f.names))
        out = {**_drawn(rng, forward.spec, case, whole, dtype, mixed), **out}
        inputs = positional([out.get(name) for name in forward.spec.arrays])
        results = forward(*inputs, **options_of(forward.spec, case), backend="array_api")
        named_results = zip([p.name for p in whole.outputs], many(results), strict=True)
        out.update({name: x for name, x in named_results if name in saved})
    return out


def _drawn(
    rng: np.random.Generator,
    spec: OpSpec,
    case: Case,
    form: Signature,
    dtype: str,
    mixed: tuple[Wide, ...],
) -> dict[str, np.ndarray[Any, Any]]:
    axes = dict(case.axes)
    if spec.resolve is not None:
        # Derived axes, as a call would find them: completed options in, axes out.
        axes.update(_derived(spec, case, axes))
    out: dict[str, np.ndarray[Any, Any]] = {}
    for pattern in form.inputs:
        if pattern.is_option:
            continue
        shape, role = pattern.shape(axes), spec.role(pattern.name)
        wide = role.wide in mixed
        kind = adapter("numpy").dtype(named(dtype).accumulate if wide else dtype)
        if pattern.name in spec.integers and role.between:
            low, high = map(int, role.between)
            drawn = rng.integers(low, high, shape, np.int64, endpoint=True)
            out[pattern.name] = np.sort(drawn) if role.ascends else drawn
        elif pattern.name in spec.integers:
            top = axes[role.below] if role.below else 1_000_000
            out[pattern.name] = rng.integers(0, max(top, 1), shape).astype(np.int64)
        elif pattern.name in spec.masks:
            out[pattern.name] = rng.integers(0, 3, shape) > 0
        elif role.between:
            out[pattern.name] = rng.uniform(*role.between, shape).astype(kind)
        elif named(dtype).kind == "float":
            out[pattern.name] = rng.standard_normal(shape).astype(kind)
        else:
            out[pattern.name] = rng.integers(0, 2, shape).astype(kind)
    return out


def _derived(spec: OpSpec, case: Case, axes: Mapping[str, Any]) -> Mapping[str, int]:
    given = options_of(spec, case)
    options = {
        name: normalise(spec.name, name, given.get(name, spec.defaults.get(name)))
        for name, normalise in spec.options.items()
        if name in given or name in spec.defaults
    }
    return spec.resolve(spec.name, dict(axes), options) if spec.resolve else {}
