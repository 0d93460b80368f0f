"""The laws. Each takes a `Subject`, tries every case of its op, and raises AssertionError."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from importlib import import_module
from operator import is_
from typing import Any

import numpy as np

from baracuda.calls.adjoint import dual
from baracuda.calls.op import registry
from baracuda.declaration.dtypes import named
from baracuda.declaration.sku import KernelSku
from baracuda.declaration.spec import Case
from baracuda.errors import UnsupportedError
from baracuda.libraries import Array, library_of
from baracuda.testing import cuts, values, views
from baracuda.testing.bounds import close, near, same_bits, steps
from baracuda.testing.cases import (
    Call,
    Subject,
    adapter,
    apart,
    many,
    options_of,
    positional,
    pulled,
    to_numpy,
)

LAWS: dict[str, Callable[[Subject], str | None]] = {}
"""Each returns None where it holds, and where it does not apply the reason."""


class DoesNotApply(Exception):
    """Why a law has nothing to say about a subject."""


def law(function: Callable[[Subject], None]) -> Callable[[Subject], str | None]:
    """Add a law to `LAWS`."""

    @wraps(function)
    def asked(subject: Subject) -> str | None:
        try:
            function(subject)
        except DoesNotApply as reason:
            return str(reason)
        return None

    LAWS[function.__name__] = asked
    return asked


@law
def matches_the_body_in_float64(subject: Subject) -> None:
    """The result is the definition's, rounded once."""
    for call in subject.calls():
        close(call, call.run())


@law
def is_the_gradient_of_its_forward(subject: Subject) -> None:
    """<dy, J v> = <J^T dy, v> for random directions, J by central differences in float64.

    The tolerance is that of the subject's own dtype, so every backend and dtype is held to the
    forward, not to the gradient's own body.
    """
    if subject.spec.adjoint_of is None:
        raise DoesNotApply("the op is no gradient")
    forward = registry[subject.spec.adjoint_of].spec
    for call in subject.calls():
        rng = np.random.default_rng(7)
        results = [to_numpy(x).astype(np.float64) for x in call.run()]
        outputs, asked = pulled(call, forward)
        pulls = {f"d{n}": x.astype(np.float64) for n in outputs
                 if (x := call.arrays.get(f"d{n}")) is not None}  # fmt: skip
        grads = pulls | dict(zip([p.name for p in call.form.outputs], results, strict=True))
        # Those of inputs that share theirs are each the gradient along its own direction.
        grads = {n: grads[d] for n in forward.arrays if (d := dual(forward, n)) in grads}
        at = {n: call.arrays.get(n, g).astype(np.float64) for n, g in grads.items()}
        along = {name: rng.standard_normal(x.shape) for name, x in at.items()}
        up, down = (
            _forward(call, {name: x + step * along[name] for name, x in at.items()}, asked)
            for step in (_STEP, -_STEP)
        )
        terms = [
            pulls[f"d{name}"] * apart(a, b) / (2 * _STEP)
            for name, a, b in zip(outputs, up, down, strict=True)
            if not forward.role(name).dtype
        ]
        right = sum(np.sum(g * along[n]) for n, g in grads.items())
        error = abs(sum(map(np.sum, terms)) - right)
        scale = sum(np.sum(np.abs(term)) for term in terms) + 1.0
        most = (1e-7 + 4 * named(subject.dtype).eps) * scale
        assert error <= most, f"{call.case} {call.form.text}: {error} over {most}"


_STEP = 1e-6


def _forward(call: Call, at: Mapping[str, np.ndarray[Any, Any]], asked: Mapping[str, bool]) -> Any:
    """The forward of the op of `call` in float64, what is differentiated taken from `at`."""
    forward = registry[call.subject.spec.adjoint_of or ""]
    wide = {
        n: x if n in forward.spec.discrete else x.astype(np.float64)
        for n, x in {**call.arrays, **at}.items()
    }
    arrays = positional([wide.get(n) for n in forward.spec.arrays])
    given = {**options_of(forward.spec, call.case), **call.options, **call.scalars}
    known = {*forward.spec.options, *forward.spec.scalars}
    options = {k: v for k, v in given.items() if k in known}
    return many(forward(*arrays, **options, **asked, backend="array_api"))


@law
def layouts_agree(subject: Subject) -> None:
    """Strided, offset, reversed, misaligned and read-only views give what copies give."""
    for call in subject.calls():
        plain = call.given()
        want = call.run(plain)
        for label, same in views.every(call, plain).items():
            try:
                got = call.run(same)
            except UnsupportedError:
                assert (subject.backend, subject.library) == ("torch", "numpy"), label
                continue
            for i, (x, y) in enumerate(zip(got, want, strict=True)):
                near(call, to_numpy(x), to_numpy(y), i, f"{label} {call.case} {call.form.text}")


@law
def broadcast_inputs_agree(subject: Subject) -> None:
    """An input of stride 0 gives what its copy gives."""
    if subject.library not in ("numpy", "torch", "cupy"):
        raise DoesNotApply("the library has no arrays of stride 0")
    xp = adapter(subject.library).xp
    broadcast, asarray = xp.broadcast_to, xp.asarray
    for call in subject.calls():
        plain = call.given()
        ranks = {x.ndim for x in plain if x is not None}
        if 0 in ranks or "y" in call.arrays:
            continue
        views = [x if x is None else broadcast(x[:1], x.shape) for x in plain]
        copies = [x if x is None else asarray(x, copy=True) for x in views]
        try:
            got = call.run(views)
        except UnsupportedError:
            assert (subject.backend, subject.library) == ("torch", "numpy")
            continue
        want, roles = call.run(copies), [subject.spec.role(p.name) for p in call.form.outputs]
        for i, (x, y, role) in enumerate(zip(got, want, roles, strict=True)):
            if subject.spec.products and not role.flows:
                continue  # All classes are alike: which is the largest is a matter of rounding.
            error = np.abs(apart(to_numpy(x), to_numpy(y)))
            more = 8 * named(subject.dtype).eps * np.abs(to_numpy(y))
            within = any(
                np.all(error <= 8 * np.max(most[i], initial=0.0) + more) for most in steps(call)
            )
            assert within, f"{call.case} {call.form.text}"


@law
def inputs_stay_as_they_are(subject: Subject) -> None:
    """Bit for bit, after a call and after a plan call."""
    for call in subject.calls():
        arrays = call.given()
        before = [None if x is None else np.array(to_numpy(x)) for x in arrays]
        call.run(arrays)
        call.plan(arrays)(*arrays, **call.scalars)
        for x, was in zip(arrays, before, strict=True):
            assert was is None or to_numpy(x).tobytes() == was.tobytes(), f"{call.case}"


@law
def what_comes_in_goes_out(subject: Subject) -> None:
    """Library, device and dtype of the primal, or as declared; C order unless layouts are kept."""
    for call in subject.calls():
        arrays = call.given()
        library = library_of(arrays[0])
        for x, dtype in zip(call.run(arrays), call.dtypes, strict=True):
            assert type(x) is type(arrays[0]), f"{type(x)}"
            facts = library.describe(x)
            assert facts.dtype == library.held_as(dtype), facts.dtype
            assert facts.device == library.describe(arrays[0]).device
            if subject.library == "numpy":
                assert (x.flags.c_contiguous, x.flags.writeable) == (True, True)
            if subject.library in ("numpy", "torch", "cupy"):
                assert library.apart(x, [a for a in arrays if a is not None])


@law
def outputs_may_be_given(subject: Subject) -> None:
    """`out=` holds what a call returns, and is returned; `accumulate=True` adds to it."""
    for call in subject.calls():
        arrays = call.given()
        plan, want = call.plan(arrays), call.run(arrays)
        if not adapter(subject.library).writable:
            try:
                plan(*arrays, out=want if len(want) > 1 else want[0], **call.scalars)
            except NotImplementedError:
                continue
            raise AssertionError("immutable arrays were taken as outputs")
        for layout in ("contiguous", "strided"):
            outs = tuple(_filled(x, math.nan if to_numpy(x).dtype.kind == "f" else 1) for x in want)
            if layout == "strided" and subject.library in ("numpy", "torch", "cupy"):
                outs = tuple(views.strided(x, subject.library) for x in outs)
            got = many(plan(*arrays, out=outs if len(outs) > 1 else outs[0], **call.scalars))
            assert all(map(is_, got, outs)), "out is not returned"
            close(call, outs, f"{layout} out")
        if not subject.spec.accumulates:
            continue
        outs = tuple(_filled(x, 0.5) for x in want)
        plan(*arrays, out=outs if len(outs) > 1 else outs[0], accumulate=True, **call.scalars)
        for i, (x, value) in enumerate(zip(outs, call.reference(), strict=True)):
            error = np.abs(to_numpy(x).astype(np.float64) - (value + 0.5))
            half = 0.5 * named(subject.dtype).eps * (np.abs(value + 0.5) + 0.5)
            within = any(np.all(error <= most[i] + half) for most in steps(call))
            assert within, f"accumulate {call.case} {call.form.text}"


@law
def outputs_are_added_to_one_by_one(subject: Subject) -> None:
    """`accumulate` with one bool for each output adds to that one, and makes the others anew."""
    if not adapter(subject.library).writable:
        raise DoesNotApply("arrays of the library are immutable")
    for call in subject.calls():
        arrays, outputs = call.given(), call.form.outputs
        plan = call.plan(arrays)
        for number, pattern in enumerate(outputs):
            if len(outputs) == 1 or not subject.spec.adds_into(pattern.name):
                continue
            start = _filled(call.run(arrays)[number], 0.5)
            outs = tuple([start if i == number else None for i in range(len(outputs))])
            some = tuple([x is not None for x in outs])
            got = list(plan(*arrays, out=outs, accumulate=some, **call.scalars))
            assert got[number] is start, "out is not returned"
            _added(call, got, some, f"{pattern.name} alone")


@law
def sums_may_be_wider(subject: Subject) -> None:
    """A declared sum of 16 bits is stored in the accumulate dtype as it is, and added there."""
    wide = named(subject.dtype).accumulate
    library = adapter(subject.library)
    if not library.writable:
        raise DoesNotApply("arrays of the library are immutable")
    if wide == subject.dtype:
        raise DoesNotApply("the dtype is its own accumulate dtype")
    for call in subject.calls():
        arrays = call.given()
        plan, names = call.plan(arrays), [p.name for p in call.form.outputs]
        sums = tuple([subject.spec.role(name).total for name in names])
        if not any(sums):
            continue
        for adding in (False, True):
            outs = tuple(
                [
                    library.xp.astype(_filled(x, 0.5), library.dtype(wide)) if total else None
                    for x, total in zip(call.run(arrays), sums, strict=True)
                ]
            )
            added = tuple([adding and total for total in sums])
            out, flags = (outs, added) if len(outs) > 1 else (outs[0], added[0])
            got = many(plan(*arrays, out=out, accumulate=flags, **call.scalars))
            assert all(x is y for x, y in zip(got, outs, strict=True) if y is not None)
            _added(call, got, added, "wider")


def _added(call: Call, got: Sequence[Array], added: Sequence[bool], label: str) -> None:
    """Whether `got` are the results, and 0.5 more where they were `added` to that."""
    for i, (x, value) in enumerate(zip(got, call.reference(), strict=True)):
        dtype = library_of(x).describe(x).dtype
        value = value + 0.5 * added[i]
        more = added[i] * named(dtype).eps * (np.abs(value) + 0.5)
        error = np.abs(apart(to_numpy(x).astype(np.float64), value))
        bounds = steps(call, stored=dtype == call.subject.dtype)
        within = any(np.all(error <= most[i] + more) for most in bounds)
        assert within, f"{label} {call.case} {call.form.text}"


def _filled(x: Array, value: float) -> Array:
    """An array like `x` that holds `value` throughout."""
    library = library_of(x)
    return library.xp.full(x.shape, value, dtype=x.dtype, device=library.device_of(x))


@law
def plans_are_reused(subject: Subject) -> None:
    """One problem, one plan object: again, by its other spelling, from another thread."""
    for call in subject.calls():
        arrays = call.given()
        plan = call.plan(arrays)
        assert call.plan(call.given()) is plan
        found: list[Any] = []

        def elsewhere(call: Call = call, found: list[Any] = found) -> None:
            with subject.context():
                found.append(call.plan(call.given()))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert found == [plan]
        result, same = subject.function.planned(
            *arrays, **{**call.options, "backend": subject.backend}
        )
        assert same is plan
        close(call, many(result), "planned")


@law
def skus_are_honest(subject: Subject) -> None:
    """The SKU says what the problem is and who ran it, survives JSON, and can be made again."""
    for call in subject.calls():
        arrays = call.given()
        plan = call.plan(arrays)
        sku, library = plan.sku, library_of(arrays[0])
        assert (sku.op, sku.backend, sku.dtype) == (subject.op, subject.backend, subject.dtype)
        assert sku.category == subject.spec.category
        integers = [
            library.describe(x).dtype
            for n, x in zip(subject.spec.arrays, arrays, strict=False)
            if x is not None and n in subject.spec.integers
        ]
        assert sku.index_dtype == (integers[0] if integers else None)
        assert KernelSku.from_json(sku.to_json()) == sku
        assert hash(KernelSku.from_json(sku.to_json())) == hash(sku)
        assert subject.op in str(sku)
        again = call.plan(arrays, sku=sku)
        assert again.sku == sku


@law
def declared_determinism_holds(subject: Subject) -> None:
    """The same bits over the subject's number of runs wherever the SKU says so."""
    for call in subject.calls():
        arrays = call.given()
        plan = call.plan(arrays)
        if not plan.sku.precision.deterministic:
            continue
        first = many(plan(*arrays, **call.scalars))
        for _ in range(subject.runs):
            same_bits(first, many(plan(*arrays, **call.scalars)), f"{call.case}")


@law
def forced_backends_never_fall_back(subject: Subject) -> None:
    """`backend=` runs there, or raises with the reason."""
    for call in subject.calls():
        plan = call.plan()
        assert plan.sku.backend == subject.backend
        assert plan.why == ()
        break


@law
def traces_as_it_runs(subject: Subject) -> None:
    """Under `jax.jit` and `torch.func.vmap` the result is that of the plain call."""
    if subject.dtype in adapter(subject.library).stored_as:
        # torch has no batching rule for the view through which these are moved.
        raise DoesNotApply("the library can only store the dtype")
    for call in subject.calls():
        arrays = call.given()
        given = [x for x in arrays if x is not None]

        def function(*some: Array, call: Call = call, arrays: Any = arrays) -> tuple[Array, ...]:
            left = iter(some)
            return call.run([None if x is None else next(left) for x in arrays])

        if subject.library == "jax":
            got = import_module("jax").jit(function)(*given)
        elif subject.library == "torch" and subject.backend == "array_api":
            batched = import_module("torch").func.vmap(function)(*(x[None] for x in given))
            got = [x[0] for x in batched]
        else:
            raise DoesNotApply("the library traces nothing, or not on this backend")
        close(call, got, "traced")


@law
def arrays_may_be_run_time_values(subject: Subject) -> None:
    """An array without axes stands for the number that it holds: the same bits without a body."""
    if not any(hasattr(normalise, "dtypes") for normalise in subject.spec.scalars.values()):
        raise DoesNotApply("no run-time value is a number")
    for call in {call.form: call for call in subject.calls()}.values():
        values.hold(call)


@law
def parts_make_the_whole(subject: Subject) -> None:
    """Blocks, shards and batches give what one call gives, wherever the declaration cuts it."""
    if subject.library == "jax":
        raise DoesNotApply("XLA compiles every part anew")
    for call in subject.calls():
        cuts.hold(call)


@law
def indices_obey_their_policy(subject: Subject) -> None:
    """An entry out of range is an error that names it, or counts for nothing, whatever it is."""
    if not subject.spec.indices:
        raise DoesNotApply("no input is an index")
    for call in subject.calls():
        for name in subject.spec.indices:
            index = call.arrays.get(name)
            if index is None or index.size < 2:
                continue
            role = subject.spec.role(name)
            extent = int(call.case.axes[role.below])  # type: ignore[arg-type]
            whichever = (-1, extent, np.iinfo(index.dtype).max)
            first, *others = [_with(call, name, bad, "drop") for bad in whichever]
            got = first.run()
            close(first, got, f"{name} = -1, dropped")
            same = call.plan(call.given()).sku.precision.deterministic
            for other in others:
                label = f"{name} out of range, {call.case}"
                if same:
                    same_bits(got, other.run(), label)
                else:
                    close(first, other.run(), label)
            for bad in (-1, extent):
                _refused(call, name, bad)


def _with(call: Call, name: str, bad: int, policy: str) -> Call:
    """The call with a first entry of an index that is out of range."""
    index = call.arrays[name].copy()
    index[(0,) * index.ndim] = bad
    options = {**call.case.options, call.subject.spec.role(name).policy: policy}
    case = Case(call.case.axes, **options)
    return replace(call, case=case, arrays={**call.arrays, name: index})


def _refused(call: Call, name: str, bad: int) -> None:
    some = _with(call, name, bad, "raise")
    if not adapter(call.subject.library).readable(some.given()[0]):
        return  # a later call says so, or what compiled the program
    try:
        some.run()
    except IndexError as error:
        said = str(error)
    else:
        said = "no error"
    assert said.startswith(f"{call.subject.op}: {name}: expected 0 <= i < "), f"{bad}: {said}"
