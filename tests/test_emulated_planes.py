"""Norms of channels without a GPU: every way of reading planes, in two orders of threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import emulator
import lanes
import numpy as np
import pytest
from numpy.typing import NDArray
from test_emulated_rows import Shape, Trial, few, reference, trial
from tuning import retuned

from baracuda.backends.cuda.compiler import Entry
from baracuda.backends.cuda.launch_plan import Call
from baracuda.backends.cuda.schedules import kept_planes, plan, planes
from baracuda.backends.cuda.schedules.kept_planes import Share
from baracuda.calls import check
from baracuda.calls.op import registry
from baracuda.declaration.dispatch import DEFAULT
from baracuda.declaration.dtypes import named
from baracuda.declaration.roles import Wide

Array = NDArray[Any]
OPS = [name for name, op in registry.items() if op.spec.category == "channel_norm"]
KEPT = [op for op in OPS if "inference" not in op]
DTYPES = ("float32", "bfloat16", "float64")
# n, c, s, and the number of groups: planes of a few elements, odd ones, lines of several parts,
# columns with a short last chunk, in vectors and not, and columns of which several are a channel.
SIZES: tuple[tuple[int, int, Shape, int], ...] = (
    (2, 6, (3,), 2),
    (3, 4, (5, 16), 2),
    (2, 4, (2, 1200), 2),
    (2, 2, (150, 120), 1),
    (1, 2, (147, 253), 2),
    (133, 32, (), 4),
    (21, 3, (), 3),
    (20, 8, (7,), 2),
    (1, 1, (1,), 1),
)
EMPTY: tuple[tuple[int, int, Shape, int], ...] = ((0, 4, (3,), 2), (2, 4, (0,), 2))


def permuted(one: Trial, order: tuple[int, ...]) -> Trial:
    """The same values in another order of memory."""
    back = tuple(np.argsort(order))
    arrays = [
        emulator.placed(x.transpose(order)).transpose(back) if x is not None and x.ndim > 1 else x
        for x in one.arrays
    ]
    problem = check.problem(registry[one.op].spec, arrays, one.call.problem.options, DEFAULT)
    call = one.call._replace(problem=problem)
    return one._replace(
        arrays=tuple(arrays), call=call, steps=plan(call), label=f"{one.label} {order}",
        about=(*one.about, "permuted"),
    )  # fmt: skip


def positive(one: Trial) -> Trial:
    """With variances."""
    for name, x in zip(registry[one.op].spec.arrays, one.arrays, strict=True):
        if name == "var" and x is not None:
            x[...] = np.abs(x) + 0.25
    return one


def mixed(op: str, dtype: str) -> Iterator[Trial]:
    """With parameters wider than what is normalised: rows, columns, kept sets, several kernels."""
    spec = registry[op].spec
    form = spec.signatures[-1]
    for n, c, s, groups in (SIZES[0], SIZES[1], SIZES[4], SIZES[5], SIZES[7]):
        options = {"num_groups": groups} if "num_groups" in spec.options else {}
        shapes = {p.name: p.shape({"n": n, "c": c, "s": s}) for p in form.inputs}
        yield trial(op, shapes, dtype, mixed=("parameter",), **options)
        if spec.accumulates:
            yield trial(op, shapes, dtype, add=True, mixed=("parameter",), **options)
    yield from kept(op, dtype, mixed=("parameter",))


def every(op: str, dtype: str) -> Iterator[Trial]:
    spec = registry[op].spec
    for n, c, s, groups in (*SIZES, *EMPTY):
        options = {"num_groups": groups} if "num_groups" in spec.options else {}
        for form in spec.signatures:
            shapes = {p.name: p.shape({"n": n, "c": c, "s": s}) for p in form.inputs}
            yield trial(op, shapes, dtype, **options)
            if form is not spec.signatures[-1]:
                continue
            if spec.accumulates:
                yield trial(op, shapes, dtype, add=True, **options)
            if c > 1 and n * len(s) > 1 and 0 not in (n, *s):
                hows = ("odd", "stepped", "padded") if s else ("odd",)
                yield from (trial(op, shapes, dtype, how, **options) for how in hows)
                yield permuted(trial(op, shapes, dtype, **options), (0, *range(2, 2 + len(s)), 1))


def kept(op: str, dtype: str, mixed: tuple[Wide, ...] = ()) -> Iterator[Trial]:
    """Sets that stay on chip, in clusters of every size, two in turn."""
    spec = registry[op].spec
    options = {"num_groups": 2} if "num_groups" in spec.options else {}
    # Of a plane's two parts the second is the shorter one.
    s = {"float32": 520, "bfloat16": 1288, "float64": 198}[dtype]
    for cluster in (1, 2, 4, 8):

        def share(_: Call, units: int, __: int, cluster: int = cluster) -> Share:
            return Share(cluster, 1, -(-units // cluster))

        few = patch.multiple(kept_planes, PROCESSORS=1, share=share)
        turns = retuned(kept_planes, blocks=0, turns=2)
        with few, turns, patch.object(planes, "_on_chip", lambda *_: None):
            for form in spec.signatures[-1 if mixed else 0 :]:
                shapes = {p.name: p.shape({"n": 3, "c": 6, "s": (s,)}) for p in form.inputs}
                whole = form is spec.signatures[-1] and cluster < 8
                for how in ("dense", "odd", "padded") if whole else ("dense",):
                    yield trial(op, shapes, dtype, how, mixed=mixed, **options)
                if spec.accumulates and whole:
                    yield trial(op, shapes, dtype, add=True, mixed=mixed, **options)


@cache
def trials(dtype: str) -> tuple[Trial, ...]:
    return few(positive(one) for op in OPS for one in every(op, dtype))


@cache
def kept_trials(dtype: str) -> tuple[Trial, ...]:
    return few(one for op in KEPT for one in kept(op, dtype))


@cache
def kept_alone(dtype: str) -> tuple[Trial, ...]:
    """Of the last forms, which write their outputs; usually of the first op and its gradient."""
    every = (one for op in (KEPT if lanes.FULL else KEPT[:2]) for one in kept(op, dtype))
    forms = {op: registry[op].spec.signatures[-1] for op in KEPT}
    return tuple(x for x in every if x.call.problem.signature is forms[x.op] and not x.call.add)


@cache
def mixed_trials(dtype: str) -> tuple[Trial, ...]:
    return few(positive(one) for op in OPS for one in mixed(op, dtype))


@cache
def entries(dtype: str, of: Callable[[str], tuple[Trial, ...]] = trials) -> tuple[Entry, ...]:
    """Every kernel of these, compiled together."""
    found = {s.entry.symbol: s.entry for one in of(dtype) for s in one.steps.kernels}
    return tuple(found.values())


def computed(one: Trial, every: tuple[Entry, ...], seed: int) -> list[Array]:
    outs = [emulator.empty(x.shape, x.dtype) for x in one.call.problem.outputs]
    if one.call.add:
        for x in outs:
            x[...] = 0.5
    given = [x for x in one.arrays if x is not None]
    emulator.run(every, one.steps, [*given, *outs], seed, list(one.scalars.values()))
    return outs


def least(one: Trial) -> float:
    """The smallest deviation by which something is divided."""
    known = dict(zip(registry[one.op].spec.arrays, one.arrays, strict=True))
    x = np.asarray(known["x"], np.float64)
    if not x.size:
        return 1.0
    if known.get("var") is not None:
        variances = np.asarray(known["var"], np.float64)
    elif "batch" in one.op:
        variances = x.var((0, *range(2, x.ndim)))
    else:
        number = one.call.problem.options.get("num_groups", x.shape[1])
        variances = x.reshape(len(x), number, -1).var(-1)
    return float(np.sqrt(np.min(variances) + 1e-5))


@pytest.mark.slow("kernels for every shape of a plane, thread by thread")
@pytest.mark.parametrize(
    ("dtype", "of"),
    lanes.cases(
        [*itertools.product(DTYPES, (trials, kept_trials)), ("bfloat16", mixed_trials)],
        lanes.thinned(
            {
                ("float32", trials),
                ("bfloat16", kept_trials),
                ("bfloat16", mixed_trials),
            }.__contains__
        ),
    ),
)
def test_planes_are_the_body_in_any_order_of_threads(
    dtype: str, of: Callable[[str], tuple[Trial, ...]]
) -> None:
    small = named(named(dtype).accumulate).eps
    seen = set[tuple[str, ...]]()
    for one in of(dtype):
        kernels = tuple(step.entry.symbol for step in one.steps.kernels)
        first = computed(one, entries(dtype, of), 0)
        # Another order once for the same kernels.
        second = first if kernels in seen else computed(one, entries(dtype, of), 1)
        if not lanes.FULL:
            seen.add(kernels)
        with np.errstate(all="ignore"):
            wanted, scale = reference(one), 1 / least(one)
        outs = one.call.problem.outputs
        for x, again, want, out in zip(first, second, wanted, outs, strict=True):
            assert x.tobytes() == again.tobytes(), one.label
            kind = named(out.dtype)
            eps = kind.eps
            got, want = x.astype(np.float64), want + 0.5 * one.call.add
            parameters = [a for a in one.arrays if a is not None and a.ndim == 1]
            size = 8 * max([1.0, *(float(abs(a.astype(np.float64)).max()) for a in parameters)])
            most = (0.51 * eps if kind.accumulate != out.dtype else eps) * np.abs(want)
            many = one.arrays[0].size / max(want.size, 1)  # type: ignore[union-attr]
            most = most + small * 8 * (1 + scale) * size * (1 + many**0.5)
            error = np.abs(got - want)
            assert np.all(error <= most), (one.label, float(error.max()), float(np.max(most)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("s", [(40, 40), ()])
def test_what_is_far_from_zero_keeps_its_digits(dtype: str, s: Shape) -> None:
    """As much as x itself has: a part's first elements and the others differ, too."""
    shapes = {"x": (100, 2, *s)}
    for op, options in (("batch_norm", {}), ("group_norm", {"num_groups": 1})):
        one = trial(op, shapes, dtype, **options)
        x = one.arrays[0]
        assert x is not None
        far = {"float32": 4096.0, "bfloat16": 32.0}[dtype]
        late = (np.arange(100) > 50).reshape(-1, *[1] * (x.ndim - 1))
        x[...] = (far + np.asarray(x, np.float64) + late).astype(x.dtype)
        found = {e.symbol: e for e in (s.entry for s in one.steps.kernels)}
        outs = [emulator.empty(o.shape, dtype) for o in one.call.problem.outputs]
        emulator.run(tuple(found.values()), one.steps, [x, *outs], 0, [1e-5])
        for got, want in zip(outs, reference(one), strict=True):
            most = (named(dtype).eps if dtype != "float32" else 4e-7) * np.maximum(np.abs(want), 1)
            assert np.all(np.abs(got.astype(np.float64) - want) <= most), (op, s)


@pytest.mark.full
def test_bits_do_not_depend_on_alignment() -> None:
    differ = set()
    for op in OPS:
        spec = registry[op].spec
        options = {"num_groups": 2} if "num_groups" in spec.options else {}
        for n, c, s in ((3, 4, (5, 16)), (133, 32, ()), (2, 2, (150, 120))):
            form = spec.signatures[-1]
            shapes = {p.name: p.shape({"n": n, "c": c, "s": s}) for p in form.inputs}
            one = positive(trial(op, shapes, "float32", **options))
            call = one.call._replace(alignment=4)
            odd = one._replace(call=call, steps=plan(call))
            # Planes of one element are read one by one anyway.
            if [e.entry for e in odd.steps.kernels] == [e.entry for e in one.steps.kernels]:
                continue
            differ.add((op, s))
            every = tuple({e.entry for t in (one, odd) for e in t.steps.kernels})
            found = []
            for some in (one, odd):
                outs = [emulator.empty(x.shape, "float32") for x in call.problem.outputs]
                given = [x for x in one.arrays if x is not None]
                emulator.run(every, some.steps, [*given, *outs], 0, [1e-5])
                found.append([x.tobytes() for x in outs])
            assert found[0] == found[1], (op, s)
    assert len(differ) > 2 * len(OPS)


@pytest.mark.slow("each set twice, in clusters, thread by thread")
@pytest.mark.parametrize("dtype", lanes.cases(DTYPES, lanes.thinned("bfloat16".__eq__)))
def test_kept_sets_have_the_same_bits_in_vectors_and_not(dtype: str) -> None:
    """In clusters of every size, some of which take two sets in turn."""
    found: dict[Any, set[tuple[bytes, ...]]] = {}
    ways = set()
    for one in kept_alone(dtype):
        kernel, *_ = one.steps.kernels
        assert "_kept_" in kernel.entry.symbol
        shape = one.call.problem.outputs[0].shape
        sets = shape[1] if "batch" in one.op else 2 * shape[0] if "group" in one.op else 18
        turns = sets * kernel.entry.cluster // kernel.grid[0]
        ways.add((kernel.entry.cluster, "_vectors" in kernel.entry.symbol, turns))
        outs = computed(one, entries(dtype, kept_alone), 0)
        bits = found.setdefault((one.op, kernel.entry.cluster), set())
        bits.add(tuple(x.tobytes() for x in outs))
    assert {len(bits) for bits in found.values()} == {1}
    assert ways >= {(cluster, wide, 2) for cluster in (1, 2, 4) for wide in (True, False)}
    assert (8, True, 2) in ways


def test_sets_are_shared_by_as_few_blocks_as_two_fit_a_multiprocessor() -> None:
    call = trial("group_norm", {"x": (1, 2, 8)}, "float32", num_groups=1).call
    # Parts of 2 KiB and what is beside them: 200 KiB, 700, 1600 with one block, too many.
    assert kept_planes.share(call, 98, 2084) == Share(2, 2, 49)
    assert kept_planes.share(call, 340, 2084) == Share(8, 2, 43)
    assert kept_planes.share(call, 784, 2084) == Share(8, 1, 98)
    assert kept_planes.share(call, 1568, 2084) is None
    assert kept_planes.threads(49, 2) == 13 * 32
    assert kept_planes.threads(98, 1) == 25 * 32


@pytest.mark.parametrize("op", [op for op in OPS if op.endswith("_norm_backward")])
def test_sets_of_one_element_pass_on_what_is_no_number(op: str) -> None:
    """Their gradient is that of the mean, but for NaN and infinities in any of the inputs."""
    spec = registry[op].spec
    options = {"num_groups": 6} if "num_groups" in spec.options else {}
    for form in spec.signatures:
        shapes = {p.name: p.shape({"n": 1, "c": 6, "s": ()}) for p in form.inputs}
        for name in shapes:
            one = trial(op, shapes, "float32", **options)
            place = list(spec.arrays).index(name)
            x = one.arrays[place]
            assert x is not None
            x[..., 1:4] = np.nan, np.inf, -np.inf
            entries = tuple(s.entry for s in one.steps.kernels)
            with np.errstate(all="ignore"):
                want = reference(one)[0]
            assert np.isfinite(want).any()
            assert not np.isfinite(want[..., 1:4]).any()
            np.testing.assert_allclose(computed(one, entries, 0)[0], want, 1e-6, err_msg=name)
